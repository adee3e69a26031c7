"""`python -m perf trend`: it finds what lasts, no single bad night, and says how often it is wrong."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from benchmarks import trend as benchmark
from benchmarks.trend import Real
from perf import record, trend
from perf.__main__ import main
from perf.baseline import Store
from perf.history import History, Night, Place
from perf.measure import Show
from perf.session import Session, Settings
from perf.trend import Floats, Look
from tests.unit.simulated import campaign, launch, measured, stored, suite
from tests.unit.test_history import night

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trend.md").read_text()

PLACE = Place(rig_id="rig", suite="mine", variant="eagle3")
PLAIN = Look(ascii=False, colour=False)


def quiet(nights: int = 40, levels: int = 3, seed: int = 1) -> Floats:
    """Unchanged nights with a noise of 1 % at each level, 0.5 % of them all, in logarithms of tok/s."""
    noise = benchmark.independent(np.random.default_rng(seed), nights, levels)
    return np.asarray(np.log(100.0 * np.arange(1, levels + 1)) + noise, dtype=np.float64)


def points(logs: Floats) -> list[int]:
    return [index for index, _ in trend.change_points(logs, np.random.default_rng(0))]


def changed(logs: Floats, start: int, change: float, end: int | None = None) -> Floats:
    found = logs.copy()
    found[start:end] += np.log1p(change)
    return found


# What is a change, and what is none


@settings(max_examples=15)
@given(st.integers(6, 34), st.sampled_from([-0.3, -0.1, -0.05, 0.05, 0.2]), st.integers(1, 20))
def test_a_change_that_lasts_is_found_on_its_first_night(start: int, change: float, seed: int) -> None:
    assert points(changed(quiet(seed=seed), start, change)) == [start]


@settings(max_examples=40)
@given(st.integers(0, 39), st.floats(0.01, 0.99), st.sets(st.integers(0, 2), min_size=1))
def test_a_single_bad_night_is_no_change_wherever_and_however_bad_it_is(at: int, left: float, levels: set[int]) -> None:
    logs = quiet()
    logs[at, sorted(levels)] += np.log(left)
    assert points(logs) == []


@settings(max_examples=20)
@given(st.integers(0, 37), st.integers(1, 3))
def test_up_to_three_bad_nights_in_a_row_are_no_change(at: int, count: int) -> None:
    assert points(changed(quiet(), at, -0.3, at + count)) == []


def test_four_nights_are_enough_for_a_change() -> None:
    assert points(changed(quiet(), 36, -0.1)) == [36]
    assert points(changed(quiet(), 4, -0.1)) == [4]


def test_a_change_that_is_taken_back_is_two_changes() -> None:
    assert points(changed(quiet(), 14, -0.1, 26)) == [14, 26]


def test_a_change_at_some_levels_is_found_though_others_stay() -> None:
    logs = quiet(levels=8)
    logs[20:, 5:] += np.log(0.9)
    assert points(logs) == [20]


def test_a_night_without_some_levels_is_a_night_of_the_others() -> None:
    logs = changed(quiet(), 20, -0.1)
    logs[::3, 0] = np.nan
    logs[30:, 1] = np.nan
    assert points(logs) == [20]
    logs[:, 2] = np.nan
    assert points(logs) == [20]


def test_a_change_below_a_per_cent_is_not_worth_a_line() -> None:
    quietest = np.log(100.0) + (quiet() - quiet().mean(axis=0)) / 100
    assert points(changed(quietest, 20, -0.009)) == []
    assert points(changed(quietest, 20, -0.011)) == [20]


def test_nights_without_any_noise_are_no_change_until_they_change() -> None:
    logs = np.full((20, 2), 5.0)
    assert points(logs) == []
    assert points(changed(logs, 10, 0.02)) == [10]


def test_fewer_than_eight_nights_are_not_looked_through() -> None:
    assert points(changed(quiet(7), 3, -0.5)) == []


@settings(max_examples=10)
@given(st.integers(1, 30), st.floats(1e-3, 1e3), st.permutations(range(3)))
def test_neither_the_unit_nor_the_order_of_levels_matters(seed: int, factor: float, order: list[int]) -> None:
    logs = changed(quiet(seed=seed), 15, -0.06)
    before = trend.change_points(logs, np.random.default_rng(0))
    assert trend.change_points(logs[:, order] + np.log(factor), np.random.default_rng(0)) == before
    noise = trend.night_noise(logs)
    assert trend.night_noise(logs[:, order] + np.log(factor)) == pytest.approx(noise[order])


def test_the_noise_of_nights_is_not_widened_by_a_change_or_a_bad_night() -> None:
    logs = quiet(2000, 1, seed=5)
    true = float(np.std(logs))
    logs = changed(changed(logs, 100, -0.4), 50, -0.6, 51)
    assert trend.night_noise(logs)[0] == pytest.approx(true, rel=0.1)
    assert np.isnan(trend.night_noise(logs[:4])).all()


def test_nights_that_alternate_between_two_hosts_are_as_noisy_as_the_hosts_differ() -> None:
    noise = trend.night_noise(np.log([[100.0], [95.0]] * 20))[0]
    assert noise == pytest.approx(0.0538, abs=1e-4)  # twice the standard deviation: no smaller, at least


# How often it is wrong


@pytest.mark.parametrize("name", benchmark.NOISES)
def test_false_alarms_are_as_rare_as_is_printed_beside_a_change(name: str) -> None:
    """So few histories can show that a rate is much too small, not that it is exact."""
    histories = 100
    printed = dict(trend.FALSE_ALARMS)[name] / trend.HISTORIES
    count = benchmark.alarms(name, histories, seed=99)
    assert binomtest(count, histories, max(printed, trend.ALPHA), alternative="greater").pvalue > 1e-4


def test_the_rates_beside_a_change_are_those_of_the_page() -> None:
    for name, count in trend.FALSE_ALARMS:
        row = re.search(rf"^\| {re.escape(name)} \| ([0-9.]+) % \(", PAGE, flags=re.MULTILINE)
        assert row, name
        assert float(row.group(1)) == pytest.approx(100 * count / trend.HISTORIES)
    assert dict(trend.FALSE_ALARMS).keys() == benchmark.NOISES.keys()


def test_a_p_value_is_small_as_often_as_it_says() -> None:
    generator = np.random.default_rng(4)
    small = 0
    for _ in range(200):
        logs = benchmark.heavy(generator, 20, 4)
        found = trend.strongest(logs, generator)
        assert found is not None
        small += found[1] <= 0.05
    assert binomtest(small, 200, 0.05).pvalue > 1e-4


# Real nights


@pytest.fixture(scope="module")
def published() -> tuple[Real, ...]:
    return tuple(benchmark.real())


def of(published: tuple[Real, ...], name: str, tokens_in: str = "1024") -> Real:
    return next(each for each in published if (each.name, each.lengths) == (name, (tokens_in, "1024")))


@pytest.mark.parametrize("tokens_in", ["1024", "8192"])
def test_the_loss_of_2026_04_05_is_found_in_both_arms(published: tuple[Real, ...], tokens_in: str) -> None:
    for name in ("DeepSeek-R1-0528-MXFP4-MTP-MoEFP4", "DeepSeek-R1-0528-MXFP4-MTP-MoEFP4-mtp3"):
        found = of(published, name, tokens_in)
        (change,) = found.findings.changes
        before, after = found.series.nights[change.index - 1], found.series.nights[change.index]
        assert (before.commit, after.commit) == ("42c0449aa26f", "be228160f09e")
        at = dict(zip(found.series.levels, change.shifts, strict=True))
        assert all(at[level] < -0.15 for level in (16, 32, 64, 128, 256))


def test_the_gain_of_2026_03_29_is_found_and_the_loss_of_the_others_is_not(published: tuple[Real, ...]) -> None:
    found = of(published, "GLM-5-FP8")
    change = found.findings.changes[0]
    assert found.series.nights[change.index - 1].commit == "6f321f7dd6f7"
    assert found.series.nights[change.index].commit == "0079204e2392"
    assert change.shifts[0] > 0.15
    assert 0 < change.shifts[-1] < 0.05
    assert "2026-04-05" not in [found.night(each.index) for each in found.findings.changes]


def test_a_bad_night_that_really_was_is_named_and_is_no_change(published: tuple[Real, ...]) -> None:
    found = of(published, "DeepSeek-R1-0528-mtp3")
    assert found.night(-1) == "2026-04-23"
    worst = min(found.findings.bad, key=lambda each: each.change)
    assert (found.night(worst.index), worst.level) == ("2026-04-23", 4)
    assert worst.change == pytest.approx(-0.64, abs=0.02)
    assert max(each.index for each in found.findings.changes) < worst.index - 4


def test_the_page_has_what_is_found_in_every_published_series(
    published: tuple[Real, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m benchmarks.trend` prints it anew."""
    monkeypatch.setattr(benchmark, "real", lambda: iter(published))
    assert "\n".join(benchmark.findings()) in PAGE


# The command


def nights_of(logs: Floats, levels: tuple[int, ...], **changes: object) -> tuple[Night, ...]:
    return tuple(
        replace(
            night(level=level, throughput=float(np.exp(value))),
            **changes,  # type: ignore[arg-type]
            campaign=f"2026{1 + day // 28:02d}{1 + day % 28:02d}-020000",
            started_at=f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T02:00:00+00:00",
        )
        for day, row in enumerate(logs)
        for level, value in zip(levels, row, strict=True)
        if not np.isnan(value)
    )


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep(at: Path, logs: Floats, levels: tuple[int, ...] = (1, 8, 16), place: Place = PLACE, **changes: object) -> None:
    History(at / ".perf" / "history").append({place: nights_of(logs, levels, **changes)})


def test_all_levels_of_a_variant_are_a_line_each_with_one_list_of_changes(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = changed(quiet(30), 20, -0.1)
    logs[10, 1] += np.log(0.5)
    logs[4, 2] = np.nan
    keep(at, logs)
    assert main(["trend", "mine/eagle3/*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine/eagle3 on rig, candidate: 30 nights, 2026-01-01 to 2026-02-02"
    assert [line[:4] for line in lines[4:7]] == ["c001", "c008", "c016"]
    drawn = [line[-30:] for line in lines[4:7]]
    assert all(set(each) <= set(trend.CHARACTERS + "!") for each in drawn)
    assert drawn[1][10] == "!"
    assert drawn[2][4] == "·"
    start = lines[4].index(drawn[0])
    assert lines[7].index("a") == start + 20
    assert lines[8][start:] == "2026-01-01          2026-02-02"
    text = "\n".join(lines[9:])
    assert "a  first seen 2026-01-21 02:00 (0.5.23), last before it 2026-01-20 02:00 (0.5.23); p = 0.0002" in text
    assert re.search(r"c001 -(9|10)\.\d %, c008 -(9|10)\.\d %, c016 -(9|10)\.\d %", text)
    assert "false alarms in 1,000 simulated unchanged histories: independent nights 0" in text
    assert re.search(r"bad nights \(single, no change\): 2026-01-11 c008 -(49|50|51)\.\d %$", text)


def test_one_case_is_a_plot_with_its_newest_nights_and_its_stored_baseline(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(at, changed(quiet(30), 20, -0.1))
    case = replace(stored(99.9, 100.0, 100.1, variant="eagle3", level=1), case="mine/eagle3/c001")
    Store(at / "baselines").promote("rig", "mine", "eagle3", (case,), add=False)
    assert main(["trend", "mine/eagle3/c001"]) == 0
    said = capsys.readouterr().out
    assert "mine/eagle3/c001, tok/s; from night to night it varies by" in said
    assert "═ the stored baseline, 100.0 (2026-01-01, first baseline)" in said
    assert said.count("●") > 20
    assert "2026-02-02 02:00  20260202-020000  0.5.23" in said
    assert len(re.findall(r"^2026-\d\d-\d\d 02:00  ", said, flags=re.MULTILINE)) == 10
    assert re.search(r"a  first seen .*\n     c001 -(9|10)\.\d %\n", said)
    assert "c008" not in said


def test_without_a_unicode_terminal_everything_is_ascii(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(at, changed(quiet(30), 20, -0.1))
    for case in ("mine/eagle3/*", "mine/eagle3/c001"):
        with open(at / "out", "w", encoding="ascii") as out, monkeypatch.context() as context:
            context.setattr("sys.stdout", out)
            assert main(["trend", case]) == 0
        assert len((at / "out").read_text(encoding="ascii").splitlines()) > 10


def test_colour_is_only_for_what_moved_and_never_where_it_is_not_wanted() -> None:
    found = trend.series(PLACE, nights_of(changed(quiet(30), 20, -0.1), (1, 8, 16)), "candidate", newest=90)
    assert found
    shown = trend.examine(found, np.random.default_rng(0))
    coloured = trend.text(found, shown, {}, Look(ascii=False, colour=True))
    assert coloured.count("\x1b[31m-") == coloured.count("\x1b[0m") == 3
    assert re.sub("\x1b\\[[0-9]+m", "", coloured) == trend.text(found, shown, {}, PLAIN)


def test_every_change_has_letters_of_its_own_however_many_there_are() -> None:
    """28 changes in four years of a night a week."""
    nights = 29 * 7
    logs = quiet(nights)
    for start in range(7, nights, 7):
        logs[start:] += np.log(0.5 if start % 2 else 2.0)
    found = trend.series(PLACE, nights_of(logs, (1, 8, 16)), "candidate", newest=nights)
    assert found
    changes = tuple(
        trend.Change(index=index, p=0.0002, shifts=(-0.5, -0.5, 1.0), moved=(True, True, True))
        for index in range(7, nights, 7)
    )
    shown = trend.Findings(noise=(0.01, 0.01, 0.01), changes=changes, bad=())
    letters = [*"abcdefghijklmnopqrstuvwxyz", "aa", "ab"]
    for level in (None, 8):
        lines = trend.text(found, shown, {}, PLAIN, level=level).splitlines()
        listed = [line for line in lines if " first seen " in line]
        assert [line.split()[0] for line in listed] == letters
        assert len({line.index("first seen") for line in listed}) == 1
        (marks,) = (line for line in lines if line.split() == letters)
        first = marks.index("a")
        assert [marks.index(f" {each}") + 1 - first for each in letters[1:]] == [7 * n for n in range(1, 28)]


def test_no_color_is_respected(at: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    keep(at, changed(quiet(30), 20, -0.1))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["trend", "mine/eagle3"])
    assert "\x1b[31m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["trend", "mine/eagle3"])
    assert "\x1b" not in capsys.readouterr().out


def test_the_reference_is_a_trend_of_its_own(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(at, changed(quiet(20), 10, -0.1))
    keep(at, quiet(20, seed=2), arm="reference")
    assert main(["trend", "mine/eagle3/*"]) == 0
    one, other = capsys.readouterr().out.split("mine/eagle3 on rig, reference: ")
    assert one.startswith("mine/eagle3 on rig, candidate: ")
    assert "first seen" in one
    assert "change points: none" in other


def test_nights_that_were_asked_another_workload_are_left_out_and_it_is_said(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = changed(quiet(30), 15, -0.5)
    old, new = nights_of(logs[:15], (1, 8, 16), workload_digest="old"), nights_of(logs, (1, 8, 16))[45:]
    History(at / ".perf" / "history").append({PLACE: (*old, *new)})
    assert main(["trend", "mine/eagle3/*"]) == 0
    said = capsys.readouterr().out
    assert ": 15 nights, 2026-01-16 to 2026-02-02; left out, since they were asked another workload: 45 levels" in said
    assert "change points: none" in said


def test_only_the_newest_nights_are_looked_through_where_that_is_asked(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(at, changed(quiet(30), 10, -0.3))
    assert main(["trend", "mine/eagle3/*", "--nights", "20"]) == 0
    said = capsys.readouterr().out
    assert ": 20 nights, 2026-01-11 to 2026-02-02" in said
    assert "change points: none" in said


def test_more_nights_than_can_be_looked_through_are_a_usage_error(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(at, quiet(9))
    assert main(["trend", "mine/eagle3", "--nights", "2000"]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["trend", "mine/eagle3", "--nights", "2001"])
    assert ended.value.code == 64
    assert capsys.readouterr().err.endswith("error: argument --nights: at most 2,000\n")


@pytest.mark.parametrize("nights", [1, 2, 7, 9])
@pytest.mark.parametrize("case", ["mine/eagle3/*", "mine/eagle3/c001", "*/*/c008", "mine/eagle3"])
def test_few_nights_are_drawn_too(at: Path, capsys: pytest.CaptureFixture[str], case: str, nights: int) -> None:
    keep(at, quiet(nights))
    assert main(["trend", case]) == 0
    said = capsys.readouterr().out
    assert ("not looked for, 8 nights are the least" in said) == (nights < 8)
    assert "nan" not in said


def test_the_same_history_always_shows_the_same(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(at, changed(quiet(40), 20, -0.02))
    main(["trend", "mine/eagle3/*"])
    before = capsys.readouterr().out
    main(["trend", "mine/eagle3/*"])
    assert capsys.readouterr().out == before


def test_each_rig_is_shown_or_the_one_that_is_asked_for(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rig in ("one", "two"):
        keep(at, quiet(10), place=replace(PLACE, rig_id=rig))
    main(["trend", "mine/eagle3/*"])
    assert capsys.readouterr().out.count("mine/eagle3 on ") == 2
    main(["trend", "mine/eagle3/*", "--rig", "two"])
    assert re.findall("mine/eagle3 on (one|two)", capsys.readouterr().out) == ["two"]


@pytest.mark.parametrize("case", ["mine/eagle3/c999", "mine/other/*", "nobody", "", "a/b/c/d", "mine/eagle3/c001/x"])
def test_a_case_without_a_history_is_an_error_that_says_what_there_is(
    at: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    keep(at, quiet(10))
    assert main(["trend", case]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: no history of {case!r} in .perf/history; there are mine/eagle3 on rig")


def test_a_damaged_history_ends_with_its_file_and_line(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(at, quiet(3))
    path = at / ".perf/history/rig/mine/eagle3.jsonl"
    path.write_text(path.read_text() + "damaged\n")
    assert main(["trend", "mine/eagle3/*"]) == 1
    assert f"{path}:10: not a line of a history" in capsys.readouterr().err


EVIL = "\x1b[2J\x1b]0;x\x07\u202e\n| a"


@pytest.mark.parametrize("case", ["mine/eagle3/*", "mine/eagle3/c001"])
def test_nothing_in_a_history_reaches_the_terminal_as_a_command(
    at: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    keep(at, changed(quiet(20), 10, -0.2), version=EVIL, commit=EVIL, changed=EVIL, source=EVIL)
    assert main(["trend", case]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_what_the_page_shows_is_what_the_command_prints(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "tests").symlink_to(ROOT / "tests")
    commands = [
        [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", line)][3:]
        for line in re.findall(r"^python -m perf (?:import|trend) .*$", PAGE, flags=re.MULTILINE)
    ]
    for arguments in (each for each in commands if "atom" in " ".join(each)):
        assert main(arguments) == 0
        said = capsys.readouterr().out
        if arguments[0] == "trend":
            assert f"```\n{said}```" in PAGE


# The end of a session


@pytest.fixture
def said() -> list[str]:
    return []


def session(at: Path, say: Callable[[str], None]) -> Session:
    """One whose campaign is measured and not yet finished."""
    where = Settings(
        baselines=at / "baselines",
        campaigns=at / ".perf" / "campaigns",
        margin=None,
        budget_minutes=None,
        max_launches=None,
        base_url=None,
    )
    made = Session(where, (), frozenset(), Show(line=say, live=lambda _: None), rerun=False)
    made.folder = record.create_folder(where.campaigns)
    state = suite(launches=(launch(measured(90.0)), launch(measured(91.0), ordinal=2)))
    made.campaign = replace(campaign(state, complete=False), id=made.folder.name)
    return made


def test_a_session_that_ends_adds_its_night(at: Path, said: list[str]) -> None:
    made = session(at, said.append)
    made.finish()
    (place,) = History.beside(at / ".perf" / "campaigns").places()
    assert str(place) == "sim/baseline on cpu-simulated-01234567"
    assert said == []


def test_a_night_that_cannot_be_added_is_said_and_the_campaign_is_complete_all_the_same(
    at: Path, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = session(at, said.append)
    (at / ".perf" / "history").write_text("in the way")
    made.finish()
    assert made.folder
    assert record.read(made.folder).complete
    (line,) = said
    assert line.startswith("this night is not in the history: ")
    again = re.search(r"then: python -m perf (import \S+)$", line)
    assert again
    (at / ".perf" / "history").unlink()
    assert main(again.group(1).split()) == 0
    assert "1 new of 1" in capsys.readouterr().out
