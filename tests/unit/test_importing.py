"""`python -m perf import`: nights of others come in whole and under safe names, or not at all. Never as a baseline."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perf import importing
from perf.__main__ import main
from perf.files import FileError
from perf.history import NAME, History, Night, Place
from perf.importing import Imported, Wanted
from tests.unit.simulated import campaign, launch, measured, suite, written

CSV = """date,commit,model,c,throughput,accept
2026-04-04T21:26:01Z,42c0449a,plain,4,440.5,
2026-04-04T21:26:01Z,42c0449a,plain,16,1262.4,
2026-04-04T21:26:01Z,42c0449a,plain MTP3,4,742.7,2.8
2026-04-05T21:41:00Z,be228160,plain,4,407.2,
2026-04-05T21:41:00Z,be228160,plain,4,409.2,
2026-04-05T21:41:00Z,be228160,plain MTP3,4,830.4,2.9
"""


def wanted(**changes: object) -> Wanted:
    every = {
        "rig_id": "imported",
        "suite": "theirs",
        "variant": None,
        "date": None,
        "level": None,
        "value": None,
        "commit": None,
        "series": "model",
        "acceptance": "accept",
        "where": (),
        "name": None,
    }
    return Wanted(**(every | changes))  # type: ignore[arg-type]


def read(tmp_path: Path, text: str | bytes, **changes: object) -> Imported:
    path = tmp_path / "nights.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return importing.read(path, wanted(**changes))


def cells(found: Imported) -> list[tuple[str, str, int, tuple[float, ...]]]:
    return [
        (place.variant, night.campaign, night.level, night.output_throughput)
        for place, nights in found.nights.items()
        for night in nights
    ]


# CSV


def test_each_series_of_a_table_becomes_a_variant_and_each_row_a_launch_of_its_night(tmp_path: Path) -> None:
    found = read(tmp_path, CSV)
    assert cells(found) == [
        ("plain", "20260404-212601", 4, (440.5,)),
        ("plain", "20260404-212601", 16, (1262.4,)),
        ("plain", "20260405-214100", 4, (407.2, 409.2)),
        ("plain-MTP3", "20260404-212601", 4, (742.7,)),
        ("plain-MTP3", "20260405-214100", 4, (830.4,)),
    ]
    assert set(found.nights) == {
        Place(rig_id="imported", suite="theirs", variant=name) for name in ("plain", "plain-MTP3")
    }
    newest = found.nights[Place(rig_id="imported", suite="theirs", variant="plain-MTP3")][-1]
    assert newest == Night(
        schema=1,
        campaign="20260405-214100",
        started_at="2026-04-05T21:41:00+00:00",
        level=4,
        arm="candidate",
        output_throughput=(830.4,),
        acceptance_length=(2.9,),
        version=None,
        commit="be228160",
        changed=None,
        workload_digest="imported",
        source="nights.csv",
    )
    assert dict(found.columns) == {
        "date": "date",
        "commit": "commit",
        "level": "c",
        "value": "throughput",
        "series": "model",
        "acceptance": "accept",
    }


def test_a_gzipped_table_is_read_as_one(tmp_path: Path) -> None:
    assert cells(read(tmp_path, gzip.compress(CSV.encode()))) == cells(read(tmp_path, CSV))


def test_where_chooses_rows_and_a_column_named_twice_takes_either_value(tmp_path: Path) -> None:
    found = read(tmp_path, CSV, where=(("model", "plain"), ("c", "4"), ("c", "8")))
    assert [(level, name) for name, _, level, _ in cells(found)] == [(4, "plain"), (4, "plain")]
    assert found.left_out == 3


def test_series_that_are_each_named_by_where_become_the_one_variant_that_is_asked_for(tmp_path: Path) -> None:
    both = (("model", "plain"), ("model", "plain MTP3"), ("c", "16"), ("c", "4"))
    found = read(tmp_path, CSV.replace("MTP3,4", "MTP3,8"), where=(*both, ("c", "8")), variant="one")
    assert {(name, level) for name, _, level, _ in cells(found)} == {("one", 4), ("one", 8), ("one", 16)}
    with pytest.raises(FileError, match="2 series for one --variant: 'plain', 'plain MTP3'; name those that are one"):
        read(tmp_path, CSV, variant="one")


def test_rows_of_runs_that_failed_are_left_out_and_counted(tmp_path: Path) -> None:
    found = read(tmp_path, CSV.replace("440.5", "0.0").replace("1262.4", ""))
    assert len(cells(found)) == 3
    assert found.without_value == (f"{tmp_path}/nights.csv:2", f"{tmp_path}/nights.csv:3")


def test_two_commits_of_one_second_are_two_nights(tmp_path: Path) -> None:
    text = CSV.replace("2026-04-05T21:41:00Z", "2026-04-04T21:26:01Z")
    found = read(tmp_path, text, where=(("model", "plain"), ("c", "4")))
    assert [name for _, name, _, _ in cells(found)] == ["20260404-212601", "20260404-212601-2"]


@pytest.mark.parametrize(
    ("written_as", "is_at"),
    [
        ("2026-04-05", "2026-04-05T00:00:00+00:00"),
        ("2026-04-05 21:41", "2026-04-05T21:41:00+00:00"),
        ("2026-04-05T21:41:00.123+02:00", "2026-04-05T19:41:00+00:00"),
        ("1775425260", "2026-04-05T21:41:00+00:00"),
        ("1775425260123", "2026-04-05T21:41:00+00:00"),
        ("999999999", "2001-09-09T01:46:39+00:00"),
        ("20260405", "2026-04-05T00:00:00+00:00"),
        ("20260405T214100", "2026-04-05T21:41:00+00:00"),
    ],
)
def test_a_date_is_understood_as_it_is_commonly_written(tmp_path: Path, written_as: str, is_at: str) -> None:
    found = read(tmp_path, f"date,c,value\n{written_as},4,5\n", series=None, acceptance=None, variant="v")
    assert [night.started_at for nights in found.nights.values() for night in nights] == [is_at]


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("", {}, ":1: the first line must name different columns"),
        ("date,date,c\n", {}, ":1: the first line must name different columns"),
        ("just words", {}, ":1: the first line must name different columns, separated by commas; seen: 'just words'"),
        ("a,b,c,model,accept\n", {}, "which column is the date? Say it with --date COLUMN; there are 'a', 'b', 'c'"),
        (CSV, {"value": "tput"}, "--value: no column 'tput'; there are 'date', 'commit', 'model'"),
        (CSV, {"where": (("cfg", "plain"),)}, "--where: no column 'cfg'; there are"),
        (CSV, {"where": (("c", "99"),)}, "no row is left of 6; --where: c=99; columns: "),
        (CSV, {"name": "x"}, "--name takes apart the names of github-action-benchmark's data.js, and this is CSV"),
        (CSV.replace("440.5", "fast"), {}, ":2: the value 'fast' is no positive number"),
        (CSV.replace("440.5", "-3"), {}, ":2: the value '-3' is no positive number"),
        (CSV.replace("440.5", "nan"), {}, ":2: the value 'nan' is no positive number"),
        (CSV.replace("440.5", "inf"), {}, ":2: the value 'inf' is no positive number"),
        (CSV.replace("440.5", "1e300"), {}, ":2: the value '1e300' is no positive number"),
        (CSV.replace(",2.8", ",x"), {}, ":4: the acceptance length 'x' is no positive number"),
        (CSV.replace("plain,16", "plain,0"), {}, ":3: the level '0' is no concurrency"),
        (CSV.replace("plain,16", "plain,1.5"), {}, ":3: the level '1.5' is no concurrency"),
        (CSV.replace("2026-04-05T21:41:00Z", "yesterday"), {}, ":5: the date 'yesterday' is not as 2026-04-05"),
        (
            CSV.replace("2026-04-05T21:41:00Z", "0999-01-01"),
            {},
            ":5: the date '0999-01-01' is before 1970; put it right",
        ),
        (
            CSV.replace("2026-04-05T21:41:00Z", "1970-01-01T01:00+02:00"),
            {},
            ":5: the date '1970-01-01T01:00+02:00' is before 1970",
        ),
        (CSV.replace("2026-04-05T21:41:00Z", "10000-01-01"), {}, ":5: the date '10000-01-01' is not as 2026-04-05"),
        *(
            (CSV.replace("2026-04-05T21:41:00Z", digits), {}, f":5: the date '{digits}' is not as 2026-04-05 or ")
            for digits in ("20260405214100", "202604052141", "20260405214", "17754252601234", "1775425")
        ),
        (CSV.replace("2026-04-05T21:41:00Z", "9999-12-31"), {}, ":5: the date '9999-12-31' is in the future; put it"),
        (CSV.replace("2026-04-05T21:41:00Z", "9999999999"), {}, ":5: the date '9999999999' is in the future; put it"),
        (
            CSV.replace("2026-04-05T21:41:00Z", f"{datetime.now(UTC) + timedelta(days=1, hours=1):%Y-%m-%dT%H:%M:%SZ}"),
            {},
            "' is in the future",
        ),
        (CSV + "1,2\n", {}, ":8: 2 fields where the first line names 6 columns"),
        (CSV + '"open', {}, "not CSV: unexpected end of data"),
        (CSV.replace("plain MTP3", "plain!"), {}, "the series 'plain' and 'plain!' would both be variant plain"),
        (CSV.replace("plain", "///"), {}, "cannot name a variant; give --variant NAME"),
        (CSV, {"series": None}, "no series has a name; give --variant NAME, or --series COLUMN"),
        (
            CSV.replace("0.5", "0.0").replace(".2,", ".0,"),
            {"value": "accept", "where": (("model", "plain"),)},
            "is not 0",
        ),
        (b"\xff\xfe", {}, "not text in UTF-8"),
        (b"\x1f\x8b\x08broken", {}, "gzip that cannot be unpacked"),
        (CSV, {"suite": "../up"}, "--suite: '../up' is no name"),
        (CSV, {"variant": "a/b"}, "--variant: 'a/b' is no name"),
        (CSV, {"rig_id": ".."}, "--rig: '..' is no name"),
    ],
)
def test_what_cannot_be_understood_is_an_error_with_place_and_advice(
    tmp_path: Path, text: str | bytes, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(FileError) as caught:
        read(tmp_path, text, **changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gzip_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_JSON_BYTES", 10_000)
    with pytest.raises(FileError, match="unpacked it has more than 10,000 bytes"):
        read(tmp_path, gzip.compress(b"a" * 1_000_000))


TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from(list('\0\n\r",/.\\\x1b\u202e')), max_size=20)


@settings(max_examples=200)
@given(TEXT, TEXT, st.none() | TEXT)
def test_whatever_stands_in_a_table_names_stay_in_their_folder(
    tmp_path_factory: pytest.TempPathFactory, series: str, commit: str, other: str | None
) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    rows = f"2026-04-05,{quoted(commit)},{quoted(series)},4,5\n"
    rows += "" if other is None else f"2026-04-05,{quoted(commit)},{quoted(other)},4,5\n"
    folder = tmp_path_factory.mktemp("import")
    try:
        found = read(folder, "date,commit,model,c,value\n" + rows, acceptance=None)
    except FileError as error:
        assume(not str(error).isprintable())  # one that is, is a good answer
        raise
    kept = History(folder / "history")
    kept.append(found.nights)
    assert all(NAME.fullmatch(place.variant) for place in found.nights)
    assert {path.parent for path in kept.folder.rglob("*.jsonl")} == {kept.folder / "imported" / "theirs"}
    for place, nights in found.nights.items():
        assert kept.read(place) == nights
        assert all(night.commit is None or night.commit.isprintable() for night in nights)


# github-action-benchmark


def bench(name: str, value: object, unit: str = "tok/s") -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit, "extra": "Run: somewhere"}


def entry(day: int, *benches: dict[str, object]) -> dict[str, object]:
    at = datetime(2026, 4, day, 21, 41, tzinfo=UTC)
    return {
        "commit": {"id": f"{day:040d}", "message": "a\nb", "timestamp": "2026-04-01T00:00:00Z", "url": "https://x"},
        "date": int(at.timestamp() * 1000),
        "tool": "customBiggerIsBetter",
        "benches": list(benches),
    }


def page(*entries: dict[str, object], before: str = "window.BENCHMARK_DATA = ", after: str = "") -> str:
    data = {"lastUpdate": 1783887499922, "repoUrl": "https://github.com/a/b", "entries": {"Benchmark": list(entries)}}
    return before + json.dumps(data, indent=2) + after


ATOM = (
    bench("GLM-5 1024/1024 c=4 throughput (tok/s)", 206.2),
    bench("GLM-5 1024/1024 c=4 Total Tput (tok/s)", 410),
    bench("GLM-5 1024/1024 c=4 TPOT (ms)", 19.1, "ms"),
    bench("GLM-5 1024/1024 c=16 throughput (tok/s)", 715.5),
    bench("GLM-5 8192/1024 c=16 throughput (tok/s)", 615.5),
)
ATOM_NAME = r"(?P<series>\S+) (?P<isl>\d+)/(?P<osl>\d+) c=(?P<level>\d+) throughput \(tok/s\)"


@pytest.mark.parametrize(
    ("before", "after"), [("window.BENCHMARK_DATA = ", ""), ("window.BENCHMARK_DATA=", ";\n"), ("", "")]
)
def test_a_page_is_taken_apart_by_the_names_of_its_benches(tmp_path: Path, before: str, after: str) -> None:
    text = page(entry(4, *ATOM), entry(5, *ATOM), before=before, after=after)
    found = read(tmp_path, text, name=ATOM_NAME, where=(("isl", "1024"),), series=None, acceptance=None)
    assert cells(found) == [
        ("GLM-5", f"2026040{day}-214100", level, (value,))
        for day in (4, 5)
        for level, value in ((4, 206.2), (16, 715.5))
    ]
    night = found.nights[Place(rig_id="imported", suite="theirs", variant="GLM-5")][0]
    assert (night.commit, night.started_at) == (f"{4:040d}", "2026-04-04T21:41:00+00:00")


def test_a_page_with_plain_names_needs_no_pattern(tmp_path: Path) -> None:
    benches = (bench("eagle3/c016", 930.5), bench("eagle3/c004", 300), bench("plain c=4 throughput", 200, "tokens/s"))
    found = read(tmp_path, page(entry(4, *benches)), series=None, acceptance=None)
    assert [(name, level) for name, _, level, _ in cells(found)] == [("eagle3", 4), ("eagle3", 16), ("plain", 4)]


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (page(entry(4, *ATOM)), {}, "more than one bench gives the throughput of level 4 on 2026-04-04: "),
        (
            page(entry(4, *ATOM[2:3])),
            {},
            "no bench in tok/s has a name as --name has it; seen: 'GLM-5 1024/1024 c=4 TPOT",
        ),
        (page(entry(4, bench("speed", 3.0))), {}, "seen: 'speed (tok/s)'"),
        (page(), {}, "no bench in tok/s"),
        (page(entry(4, *ATOM)), {"name": "("}, "--name: '(' is no regular expression"),
        (page(entry(4, *ATOM)), {"name": "(?P<series>.*)"}, "--name: it must have a group for the level"),
        (
            page(entry(4, bench("a c=4", "5"))),
            {},
            "entries.Benchmark.0.benches.0.value: Input should be a valid number",
        ),
        (page(entry(4, bench("a c=4", -5))), {}, "the value '-5.0' is no positive number"),
        (page({**entry(4, *ATOM), "date": 10**20}), {}, "100000000000000000 seconds since 1970 are no date; put it"),
        (page({**entry(4, *ATOM), "date": 10**400}), {}, "000... seconds since 1970 are no date"),
        (page({**entry(4, ATOM[3]), "date": -(10**12)}), {}, "the date '1938-04-24T22:13:20+00:00' is before 1970"),
        ('{"entries": []}', {}, "not a page of github-action-benchmark: entries: "),
        ("{", {}, "not a page of github-action-benchmark: the whole file: Invalid JSON"),
        ("window.BENCHMARK_DATA = alert(1)", {}, "not a page of github-action-benchmark: the whole file"),
        ("{" * 100_000, {}, "not a page of github-action-benchmark"),
    ],
)
def test_a_page_that_cannot_be_understood_is_an_error_with_advice(
    tmp_path: Path, text: str, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(FileError) as caught:
        read(tmp_path, text, **({"series": None, "acceptance": None} | changes))
    assert said in str(caught.value)


# The command


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nights.csv").write_text(CSV)
    return tmp_path


IMPORT = ("import", "nights.csv", "--suite", "theirs", "--series", "model")


@pytest.mark.usefixtures("at")
def test_the_command_says_what_it_took_for_what_and_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IMPORT, "--where", "c=4"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "columns   date: date, level: c, value: throughput, commit: commit, series: model",
        "left out  1 rows, by --where",
        "imported  theirs/plain on imported: 2 new of 2",
        "imported  theirs/plain-MTP3 on imported: 2 new of 2",
        "-> .perf/history",
    ]
    assert main([*IMPORT]) == 0
    assert "imported  theirs/plain on imported: 1 new of 3" in capsys.readouterr().out


def test_an_import_writes_nothing_but_history(at: Path) -> None:
    assert main([*IMPORT, "--rig", "far"]) == 0
    files = {str(path.relative_to(at)) for path in at.rglob("*") if path.is_file()}
    assert files == {
        "nights.csv",
        ".perf/history/.lock",
        ".perf/history/far/theirs/plain.jsonl",
        ".perf/history/far/theirs/plain-MTP3.jsonl",
    }


def test_an_import_that_fails_writes_nothing(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IMPORT, "--value", "nothing"]) == 1
    assert "--value: no column 'nothing'" in capsys.readouterr().err
    assert [path.name for path in at.iterdir()] == ["nights.csv"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("nights.csv",), "needs --suite NAME"), ((*IMPORT[1:], "--where", "c"), "'c' is not COLUMN=VALUE")],
)
def test_a_wrong_command_line_is_a_usage_error(
    at: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["import", *arguments])
    assert caught.value.code == 64
    assert said in capsys.readouterr().err
    assert not (at / ".perf").exists()


def test_a_campaign_that_is_not_in_the_history_yet_can_be_added(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = suite(launches=(launch(measured(90.0)), launch(measured(91.0), ordinal=2)))
    written(at / ".perf" / "campaigns", campaign(state))
    for new in (1, 0):
        assert main(["import", "20260201-020000"]) == 0
        place = "sim/baseline on cpu-simulated-01234567"
        assert capsys.readouterr().out == f"imported  {place}: {new} new of 1\n-> .perf/history\n"


def test_an_incomplete_campaign_is_not_added(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(at / ".perf" / "campaigns", campaign(suite(launches=(launch(measured(90.0)),)), complete=False))
    assert main(["import", "20260201-020000"]) == 1
    assert "is not complete" in capsys.readouterr().err
    assert not (at / ".perf" / "history").exists()
