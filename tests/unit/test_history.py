"""The history: every valid night is in it once, whole, and nothing else is."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from perf import history
from perf.files import FileError
from perf.history import History, Night, Place
from perf.record import Campaign
from perf.sample import Build
from tests.unit.simulated import campaign, failed, launch, measured, suite

ROOT = Path(__file__).parents[2]
PLACE = Place(rig_id="rig", suite="mine", variant="eagle3")
BUILD = Build(
    sglang="0.5.23", torch="2.9", commit="9f3e1d0c21ab", dirty="5d41402a", packages="aa", kernels=(), cuda=None
)


def night(day: int = 1, level: int = 1, throughput: float = 100.0, **changes: object) -> Night:
    """An imaginary night of January 2026."""
    made = Night(
        schema=1,
        campaign=f"202601{day:02d}-020000",
        started_at=f"2026-01-{day:02d}T02:00:00+00:00",
        level=level,
        arm="candidate",
        output_throughput=(throughput,),
        acceptance_length=(None,),
        version="0.5.23",
        commit=None,
        changed=None,
        workload_digest="digest",
        source=None,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def kept(tmp_path: Path) -> History:
    return History(tmp_path / "history")


def lines(kept: History, place: Place = PLACE) -> list[str]:
    return kept.path(place).read_text().splitlines()


# What of a campaign is kept

TWO = suite(
    levels=(1, 8),
    variants=("baseline", "eagle3"),
    launches=(
        launch(measured(90.0), measured(400.0, level=8), build=BUILD),
        launch(measured(91.0), measured(401.0, level=8), ordinal=2, build=BUILD),
        launch(measured(180.0, acceptance=2.5), failed(8), variant="eagle3", version="0.5.2"),
    ),
)


def in_history(found: Campaign) -> dict[tuple[str, int], Night]:
    return {(place.variant, each.level): each for place, nights in history.nights(found).items() for each in nights}


def test_every_valid_case_is_a_night_with_its_launches_its_build_and_its_acceptance() -> None:
    found = in_history(campaign(TWO))
    assert set(found) == {("baseline", 1), ("baseline", 8), ("eagle3", 1)}
    plain, drafted = found["baseline", 1], found["eagle3", 1]
    assert plain.output_throughput == pytest.approx((90.0, 91.0))
    assert plain.acceptance_length == (None, None)
    assert (plain.version, plain.commit, plain.changed) == ("0.5.23", "9f3e1d0c21ab", "5d41402a")
    assert (plain.campaign, plain.started_at, plain.arm) == (
        "20260201-020000",
        "2026-02-01T02:00:00+00:00",
        "candidate",
    )
    assert drafted.acceptance_length == (2.5,)
    assert (drafted.version, drafted.commit) == ("0.5.2", None)
    assert drafted.workload_digest == "digest-1"


def test_the_place_is_the_rig_the_suite_and_the_variant() -> None:
    assert set(map(str, history.nights(campaign(TWO)))) == {
        "sim/baseline on cpu-simulated-01234567",
        "sim/eagle3 on cpu-simulated-01234567",
    }


@pytest.mark.parametrize(
    "other",
    [
        campaign(TWO, complete=False),
        campaign(replace(TWO, advisory="not gated")),
        campaign(replace(TWO, problem="the session ended")),
        campaign(suite(launches=(launch(failed()),))),
        campaign(suite(launches=())),
    ],
    ids=["incomplete", "advisory", "not measured to its end", "invalid", "never launched"],
)
def test_what_must_not_be_believed_is_not_in_it(other: Campaign) -> None:
    assert in_history(other) == {}


def test_a_case_that_was_measured_for_a_relation_alone_is_in_it_too() -> None:
    cases = tuple(replace(each, selected=False) for each in TWO.cases)
    assert in_history(campaign(replace(TWO, cases=cases))) == in_history(campaign(TWO))


def test_the_reference_arm_is_a_series_of_its_own() -> None:
    launches = (
        launch(measured(90.0)),
        replace(launch(measured(100.0)), name="baseline+reference-1", arm="reference", block=1),
    )
    found = [
        each
        for nights in history.nights(campaign(replace(suite(launches=launches), reference=True))).values()
        for each in nights
    ]
    assert [each.arm for each in found] == ["candidate", "reference"]
    assert [each.output_throughput for each in found] == [pytest.approx((90.0,)), pytest.approx((100.0,))]


# Files


def test_nights_are_read_back_as_they_were_oldest_first(kept: History) -> None:
    nights = (night(3), night(1, level=8), night(1), night(2, acceptance_length=(2.88,), commit="abc"))
    assert kept.append({PLACE: nights}) == {PLACE: 4}
    assert [(each.campaign[:8], each.level) for each in kept.read(PLACE)] == [
        ("20260101", 1),
        ("20260101", 8),
        ("20260102", 1),
        ("20260103", 1),
    ]
    assert set(kept.read(PLACE)) == set(nights)
    assert kept.places() == (PLACE,)
    assert kept.path(PLACE).relative_to(kept.folder) == Path("rig/mine/eagle3.jsonl")


def test_the_same_campaign_is_never_in_it_twice(kept: History) -> None:
    kept.append({PLACE: (night(1),)})
    assert kept.append({PLACE: (night(1), night(2))}) == {PLACE: 1}
    assert len(lines(kept)) == 2


def test_another_content_of_a_night_that_is_there_is_refused_and_nothing_changes(kept: History) -> None:
    kept.append({PLACE: (night(1),)})
    with pytest.raises(FileError, match=r"eagle3.jsonl: holds something else of campaign 20260101-020000, level 1"):
        kept.append({PLACE: (night(1, throughput=101.0), night(2))})
    assert len(lines(kept)) == 1


def test_measured_and_imported_nights_do_not_mix(kept: History) -> None:
    kept.append({PLACE: (night(1),)})
    with pytest.raises(FileError, match="are not one history; import under another --rig"):
        kept.append({PLACE: (night(2, source="theirs.csv"),)})
    assert len(lines(kept)) == 1


def test_there_is_no_history_of_what_was_never_measured(kept: History) -> None:
    assert kept.read(PLACE) == ()
    assert kept.places() == ()


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "/etc", "a\x00b", "-a", "a b", "ä", "x" * 300, "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(kept: History, name: str) -> None:
    for place in (replace(PLACE, rig_id=name), replace(PLACE, suite=name), replace(PLACE, variant=name)):
        with pytest.raises(FileError, match="cannot name a history"):
            kept.append({place: (night(),)})
        with pytest.raises(FileError, match="cannot name a history"):
            kept.read(place)
    assert kept.places() == ()


def line_of(**changes: object) -> str:
    return json.dumps({**asdict(night(2)), **changes})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("", "not a line of a history"),
        ("{", "not a line of a history"),
        ("[]", "not a line of a history"),
        ("null", "not a line of a history"),
        ("\x00", "not a line of a history"),
        (line_of()[:-20], "not a line of a history"),
        (line_of(level="1"), "level: Input should be a valid integer"),
        (line_of(level=0), "level: Input should be greater than or equal to 1"),
        (line_of(output_throughput=[]), "output_throughput: Tuple should have at least 1 item"),
        (line_of(output_throughput=[0]), "output_throughput.0"),
        (line_of(output_throughput=[-1.0]), "output_throughput.0"),
        (line_of(output_throughput=[float("nan")]), "output_throughput.0"),
        (line_of(output_throughput=[1e300]), "output_throughput.0"),
        (line_of(acceptance_length=[]), "acceptance_length: one for each launch"),
        (line_of(arm="other"), "arm"),
        (line_of(campaign="../../x"), "campaign: String should match"),
        (line_of(started_at="yesterday"), "started_at: String should match"),
        (line_of(schema=0), "schema"),
        (line_of(schema=2), "written by a newer version (schema 2, this one knows 1): update sglang-perf"),
        (line_of(schema=2, output_throughput="another shape"), "written by a newer version"),
        (json.dumps(asdict(night(1))), "level 1 of campaign 20260101-020000 stands twice, as after a merge"),
        ("[" * 100_000, "not a line of a history"),
    ],
)
def test_a_damaged_line_is_named_with_its_file_and_number_and_stays(kept: History, damage: str, said: str) -> None:
    kept.append({PLACE: (night(1),)})
    path = kept.path(PLACE)
    path.write_text(path.read_text() + damage + "\n")
    before = path.read_bytes()
    for attempt in (lambda: kept.read(PLACE), lambda: kept.append({PLACE: (night(3),)})):
        with pytest.raises(FileError) as caught:
            attempt()
        assert str(caught.value).startswith(f"{path}:2: ")
        assert said in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert path.read_bytes() == before


def test_bytes_that_are_no_text_are_a_damaged_line(kept: History) -> None:
    kept.append({PLACE: (night(1),)})
    kept.path(PLACE).write_bytes(b"\xff\xfe\n")
    with pytest.raises(FileError, match=r"eagle3.jsonl:1: not a line of a history"):
        kept.read(PLACE)


@pytest.mark.parametrize(
    ("unreadable", "said"),
    [
        (
            night(3, campaign="9990101-000000"),
            "level 1 of campaign 9990101-000000: not a line of a history: campaign: ",
        ),
        (night(3, campaign="999", level=0), "level 0 of campaign 999: not a line of a history: campaign: "),
        (night(3, started_at="0999"), "started_at: String should match"),
        (night(3, throughput=0.0), "output_throughput.0: "),
        (night(3, acceptance_length=()), "acceptance_length: one for each launch"),
    ],
)
def test_what_could_not_be_read_again_is_never_written(kept: History, unreadable: Night, said: str) -> None:
    kept.append({PLACE: (night(1),)})
    before = kept.path(PLACE).read_bytes()
    with pytest.raises(FileError) as caught:
        kept.append({PLACE: (night(2), unreadable)})
    assert str(caught.value).startswith(f"{kept.path(PLACE)}: cannot hold level ")
    assert said in str(caught.value)
    assert str(caught.value).endswith("; nothing of this file was changed; leave that night out")
    assert kept.path(PLACE).read_bytes() == before
    assert kept.read(PLACE) == (night(1),)


def test_a_night_that_is_added_twice_at_once_is_in_it_once(kept: History) -> None:
    assert kept.append({PLACE: (night(1), night(1))}) == {PLACE: 1}
    assert kept.read(PLACE) == (night(1),)
    with pytest.raises(FileError, match="holds something else of campaign 20260102-020000, level 1"):
        kept.append({PLACE: (night(2), night(2, throughput=101.0))})
    assert kept.read(PLACE) == (night(1),)


def test_who_waits_too_long_for_another_says_so(kept: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOCK_TIMEOUT_S", 0.05)
    kept.folder.mkdir()
    with FileLock(kept.folder / ".lock"), pytest.raises(FileError, match=r"\.lock: a campaign or import has held it"):
        kept.append({PLACE: (night(),)})


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    with pytest.raises(FileError, match="cannot be written"):
        History(tmp_path / "history").append({PLACE: (night(),)})


def test_many_that_append_at_once_lose_nothing(kept: History) -> None:
    program = """
import sys
from pathlib import Path
from tests.unit.test_history import PLACE, History, night
kept = History(Path(sys.argv[1]))
for day in range(1, 8):
    kept.append({PLACE: (night(day, level=int(sys.argv[2])),)})
"""
    command = [sys.executable, "-c", program, str(kept.folder)]
    running = [subprocess.Popen([*command, str(level)], cwd=ROOT) for level in (1, 2, 3)]
    assert [each.wait(timeout=120) for each in running] == [0, 0, 0]
    assert {(each.campaign, each.level) for each in kept.read(PLACE)} == {
        (night(day).campaign, level) for day in range(1, 8) for level in (1, 2, 3)
    }


def test_an_append_that_is_killed_leaves_the_old_file(kept: History) -> None:
    kept.append({PLACE: (night(1),)})
    program = """
import os, sys
from pathlib import Path
from tests.unit.test_history import PLACE, History, night
os.replace = lambda *_: os.kill(os.getpid(), 9)
History(Path(sys.argv[1])).append({PLACE: (night(2),)})
"""
    done = subprocess.run([sys.executable, "-c", program, str(kept.folder)], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -9
    assert kept.read(PLACE) == (night(1),)
    kept.append({PLACE: (night(2),)})
    assert kept.read(PLACE) == (night(1), night(2))
    assert kept.places() == (PLACE,)


NIGHTS = st.lists(
    st.builds(
        night,
        day=st.integers(1, 28),
        level=st.integers(1, 10**9),
        throughput=st.floats(1e-3, 1e9),
        arm=st.sampled_from(["candidate", "reference"]),
        version=st.none() | st.text(),
        commit=st.none() | st.text(max_size=60),
        workload_digest=st.text(),
    ),
    unique_by=lambda each: (each.campaign, each.level, each.arm),
    max_size=5,
)


@settings(max_examples=40)
@given(NIGHTS, st.randoms())
def test_whatever_nights_hold_they_are_read_back_and_their_order_of_adding_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, nights: list[Night], random: object
) -> None:
    one, other = (History(tmp_path_factory.mktemp("history")) for _ in range(2))
    shuffled = list(nights)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one.append({PLACE: tuple(nights)})
    for each in shuffled:
        other.append({PLACE: (each,)})
    assert set(one.read(PLACE)) == {replace(each, **_as_stored(each)) for each in nights}  # type: ignore[arg-type]
    if nights:
        assert one.path(PLACE).read_bytes() == other.path(PLACE).read_bytes()


def _as_stored(each: Night) -> dict[str, object]:
    """Half of a surrogate pair is no text in JSON: it is kept as the text of its escape."""
    return {
        name: None if value is None else value.encode("utf-8", "backslashreplace").decode()
        for name, value in (
            ("version", each.version),
            ("commit", each.commit),
            ("workload_digest", each.workload_digest),
        )
    }


def test_the_history_lies_beside_the_campaigns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert History.beside(Path(".perf/campaigns")).folder == Path(os.getcwd()) / ".perf/history"
    assert History.beside(Path("campaigns")).folder == Path(os.getcwd()) / "history"
