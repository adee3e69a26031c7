"""Stored baselines: a file that others can read, that is whole or not there, and that only promotion changes."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.baseline import Store
from perf.files import MAX_JSON_BYTES, MAX_NUMBER, MIN_NUMBER, FileError
from perf.sample import (
    MAX_OTHERS,
    Build,
    LaunchSample,
    Promotion,
    StoredCase,
    by_campaign,
    geometric_mean,
    is_sound,
    throughputs,
)
from tests.unit.simulated import RIG, stored

RIG_ID = RIG.id
ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def promote(store: Store, *cases: StoredCase, add: bool = False) -> Path:
    return store.promote(RIG_ID, "sim", "baseline", cases, add=add)


def read(store: Store) -> tuple[StoredCase, ...]:
    return store.read(RIG_ID, "sim", "baseline")


# A file for others, too


def test_pytest_benchmark_compares_a_baseline_and_shows_tokens_per_second(store: Store) -> None:
    path = promote(store, stored(200.0, 50.0), stored(1000.0, 1000.0, 1000.0, level=8))
    compare = Path(sys.executable).parent / "pytest-benchmark"
    done = subprocess.run(
        [compare, "compare", path, "--columns=ops,rounds", "--name=long"],
        cwd=store.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The harmonic mean over launches, and how many there are.
    assert re.search(r"sim/baseline/c001.* 80\.0000 \S+ +2$", done.stdout, flags=re.MULTILINE)
    assert re.search(r"sim/baseline/c008.* 1,000\.0000 \S+ +3$", done.stdout, flags=re.MULTILINE)


def test_the_sample_stands_once_and_its_statistics_are_made_from_it(store: Store) -> None:
    path = promote(store, stored(200.0, 50.0))
    (benchmark,) = json.loads(path.read_text())["benchmarks"]
    assert benchmark["name"] == benchmark["fullname"] == benchmark["param"] == "sim/baseline/c001"
    assert (benchmark["group"], benchmark["params"]) == ("sim/baseline", {"concurrency": 1})
    assert benchmark["stats"]["ops"] == pytest.approx(80.0)
    assert "data" not in benchmark["stats"]
    assert [each["output_throughput"] for each in benchmark["extra_info"]["launches"]] == [[200.0], [50.0]]


def test_statistics_beside_the_sample_are_never_believed(store: Store) -> None:
    path = promote(store, stored(100.0, 100.0))
    path.write_text(path.read_text().replace('"ops": 100.0', '"ops": 1.0'))
    assert throughputs(read(store)[0].launches) == pytest.approx((100.0, 100.0))


def test_a_file_holds_one_level_a_line(store: Store) -> None:
    lines = promote(store, *(stored(100.0, level=level) for level in (8, 1, 250))).read_text().splitlines()
    assert len(lines) == 5
    for line, level in zip(lines[1:4], (1, 8, 250), strict=True):
        assert json.loads(line.rstrip(","))["extra_info"]["level"] == level


def test_promoting_one_level_leaves_the_lines_of_the_others_alone(store: Store) -> None:
    path = promote(store, *(stored(100 / 3, 0.1 + 0.2, level=level) for level in (1, 8, 250)))
    before = path.read_bytes().splitlines()
    promote(store, stored(300.0, level=8))
    after = path.read_bytes().splitlines()
    assert [index for index, line in enumerate(before) if line != after[index]] == [2]


def test_a_promotion_replaces_the_launches_and_remembers_every_promotion_before(store: Store) -> None:
    promote(store, stored(100.0, 100.0, reason="first"))
    promote(store, stored(110.0, reason="second"))
    (case,) = read(store)
    assert throughputs(case.launches) == pytest.approx((110.0,))
    assert [(each.reason, each.launches) for each in case.promotions] == [("first", 2), ("second", 1)]
    assert case.promotion.throughput == pytest.approx(110.0)


def later(case: StoredCase) -> StoredCase:
    launches = tuple(replace(each, campaign="20260301-000000") for each in case.launches)
    return replace(case, launches=launches)


def test_adding_joins_the_launches_and_says_how_many_there_are(store: Store) -> None:
    promote(store, stored(100.0, 100.0))
    promote(store, later(stored(121.0, 121.0)), add=True)
    (case,) = read(store)
    assert throughputs(case.launches) == pytest.approx((100.0, 100.0, 121.0, 121.0))
    assert case.promotion.launches == 4
    assert case.promotion.throughput == pytest.approx(110.0)


def test_adding_a_campaign_twice_counts_its_launches_once(store: Store) -> None:
    promote(store, stored(100.0, 100.0), add=True)
    promote(store, stored(100.0, 100.0), add=True)
    assert len(read(store)[0].launches) == 2


@pytest.mark.parametrize(
    "foreign", [{"workload_digest": "other"}, {"power_limits_w": (300.0,)}, {"simulated_acceptance": "2.5"}]
)
def test_launches_that_cannot_be_compared_are_never_joined(store: Store, foreign: dict[str, object]) -> None:
    """As after a promotion by somebody else, a moment ago."""
    before = promote(store, stored(100.0, 100.0), stored(700.0, level=8)).read_bytes()
    other = replace(later(stored(50.0)), **foreign)  # type: ignore[arg-type]
    with pytest.raises(FileError, match=r"level 1: .* these launches cannot join; nothing was changed"):
        promote(store, later(stored(701.0, level=8)), other, add=True)
    assert store.path(RIG_ID, "sim", "baseline").read_bytes() == before


# What tells of noise alone


def night(campaign: str, *throughputs: float) -> StoredCase:
    found = stored(*throughputs)
    launches = tuple(replace(each, campaign=campaign) for each in found.launches)
    return replace(found, launches=launches, promotions=(replace(found.promotion, campaign=campaign),))


def kept(case: StoredCase) -> list[tuple[str, int]]:
    """The nights that are kept for their noise, and of how many launches."""
    return [(name, len(launches)) for name, launches in by_campaign(case.others).items()]


def test_what_is_replaced_is_kept_to_tell_of_noise_and_says_nothing_of_the_level(store: Store) -> None:
    promote(store, night("20260101-000000", 100.0, 101.0))
    promote(store, night("20260102-000000", 150.0, 151.0))
    promote(store, night("20260103-000000", 200.0, 201.0))
    (case,) = read(store)
    assert throughputs(case.launches) == pytest.approx((200.0, 201.0))
    assert kept(case) == [("20260102-000000", 2), ("20260101-000000", 2)]
    assert throughputs(case.others) == pytest.approx((150.0, 151.0, 100.0, 101.0))
    assert case.promotion.launches == 2
    assert case.nights == (1, 2)


def test_what_ran_under_other_conditions_is_not_kept(store: Store) -> None:
    for foreign in ({"workload_digest": "other"}, {"power_limits_w": (300.0,)}, {"simulated_acceptance": "2.5"}):
        promote(store, night("20260101-000000", 100.0, 101.0))
        promote(store, replace(night("20260102-000000", 150.0, 151.0), **foreign))
        assert read(store)[0].others == ()
        assert read(store)[0].promotion.comparable is False
        store.path(RIG_ID, "sim", "baseline").unlink()


def test_one_launch_alone_says_nothing_within_a_night_and_is_not_kept(store: Store) -> None:
    promote(store, night("20260101-000000", 100.0))
    promote(store, night("20260102-000000", 100.0, 101.0), add=True)
    promote(store, night("20260103-000000", 100.0))
    assert kept(read(store)[0]) == [("20260102-000000", 2)]


def test_the_newest_nights_are_kept_whole_and_no_more_than_there_is_room_for(store: Store) -> None:
    size = MAX_OTHERS // 6
    for day in range(1, 10):
        promote(store, night(f"2026010{day}-000000", *[100.0] * (size + 1 if day == 5 else size)))
    assert kept(read(store)[0]) == [(f"2026010{day}-000000", size) for day in (8, 7, 6)] + [
        ("20260105-000000", size + 1),
        ("20260104-000000", size),
    ]
    promote(store, night("20260110-000000", *[100.0] * (MAX_OTHERS + 1)))
    promote(store, night("20260111-000000", 100.0))
    assert [name for name, _ in kept(read(store)[0])] == [f"2026010{day}-000000" for day in (9, 8, 7, 6, 5)]


def test_a_night_that_becomes_the_baseline_again_is_not_kept_beside_itself(store: Store) -> None:
    first, second = night("20260101-000000", 100.0, 101.0), night("20260102-000000", 150.0, 151.0)
    for case in (first, second, first):
        promote(store, case)
    assert kept(read(store)[0]) == [("20260102-000000", 2)]
    promote(store, second, add=True)
    assert (kept(read(store)[0]), read(store)[0].promotion.launches) == ([], 4)


def test_joining_keeps_what_tells_of_noise(store: Store) -> None:
    for day in (1, 2):
        promote(store, night(f"2026010{day}-000000", 100.0, 101.0))
    promote(store, night("20260103-000000", 100.0, 101.0), add=True)
    assert (kept(read(store)[0]), read(store)[0].nights) == ([("20260101-000000", 2)], (2, 1))


def test_a_build_that_is_not_known_does_not_take_the_place_of_one_that_is(store: Store) -> None:
    build = Build(
        sglang="0.5.23", torch=None, cuda=None, commit="a" * 40, dirty=None, kernels=(), packages="0123456789abcdef"
    )
    promote(store, replace(stored(100.0), build=build))
    promote(store, later(stored(100.0)), add=True)
    assert read(store)[0].build == build


def test_the_drift_is_that_since_the_oldest_promotion_that_was_asked_the_same(store: Store) -> None:
    for rate in (100.0, 99.0):
        promote(store, stored(rate))
    assert read(store)[0].drift == pytest.approx(-0.01)
    promote(store, replace(stored(500.0), workload_digest="other"))
    assert read(store)[0].drift is None
    promote(store, replace(stored(510.0), workload_digest="other"))
    (case,) = read(store)
    assert case.drift == pytest.approx(0.02)
    assert [each.comparable for each in case.promotions] == [None, True, False, True]


def test_a_promotion_of_which_nobody_knows_what_was_asked_begins_anew() -> None:
    """Version 0.1 stored none of that."""
    case = stored(100.0)
    steps = ((90.0, None), (100.0, None), (99.0, True), (98.0, True))
    promotions = tuple(replace(case.promotion, throughput=rate, comparable=known) for rate, known in steps)
    assert replace(case, promotions=promotions).drift == pytest.approx(-0.02)
    assert replace(case, promotions=promotions[:2]).drift is None
    assert replace(case, promotions=promotions[2:]).drift == pytest.approx(98 / 99 - 1)


# Whatever can be stored is read back as it was

texts = st.text(st.characters(codec="utf-8"), max_size=30)
rates = st.floats(min_value=MIN_NUMBER, max_value=MAX_NUMBER)


@st.composite
def launch_samples(draw: st.DrawFn) -> LaunchSample:
    rounds = draw(st.integers(1, 3))

    def each(values: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[float, ...]]:
        return st.lists(values, min_size=rounds, max_size=rounds).map(tuple)

    def perhaps(values: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[float | None, ...]]:
        return st.lists(st.none() | values, min_size=rounds, max_size=rounds).map(tuple)

    return LaunchSample(
        campaign=draw(texts),
        launch=draw(texts),
        start_s=draw(st.none() | rates),
        output_throughput=draw(each(st.floats(1e-3, 1e9))),
        acceptance_length=draw(perhaps(rates)),
        ttft_s=draw(each(rates)),
        tpot_s=draw(perhaps(rates)),
        ttft_mean_s=draw(perhaps(rates)),
        e2e_mean_s=draw(perhaps(rates)),
        achieved_concurrency=draw(perhaps(rates)),
        itl_p99_s=draw(perhaps(rates)),
        turnaround_share=draw(perhaps(rates)),
        away_share=draw(perhaps(rates)),
        cpu_share=draw(perhaps(rates)),
        pace=(),
    )


promotions = st.builds(
    Promotion,
    promoted_at=texts,
    reason=texts,
    campaign=texts,
    throughput=rates,
    launches=st.integers(0, 99),
    comparable=st.none() | st.booleans(),
)


@st.composite
def nights(draw: st.DrawFn) -> tuple[LaunchSample, ...]:
    """Launches that only tell of noise: at least two of a campaign, which is no other's."""
    names = draw(st.lists(texts.map("others ".__add__), max_size=2, unique=True))
    return tuple(
        replace(draw(launch_samples()), campaign=name, launch=f"{number}") for name in names for number in (1, 2)
    )


def as_promoted(case: StoredCase) -> StoredCase:
    launches = case.launches
    last = replace(case.promotion, throughput=geometric_mean(throughputs(launches)), launches=len(launches))
    return replace(case, promotions=(*case.promotions[:-1], last))


cases = st.builds(
    replace,
    st.just(stored(100.0)),
    workload_digest=texts,
    power_limits_w=st.lists(st.none() | rates, max_size=3).map(tuple),
    simulated_acceptance=st.none() | texts,
    command=st.lists(texts, max_size=3).map(tuple),
    env=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    model=st.none() | texts,
    server_version=st.none() | texts,
    fingerprint=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    others=nights(),
    launches=st.lists(
        launch_samples(), min_size=1, max_size=3, unique_by=lambda each: (each.campaign, each.launch)
    ).map(tuple),
    promotions=st.lists(promotions, min_size=1, max_size=3).map(tuple),
).map(as_promoted)


@settings(deadline=None, max_examples=60)
@given(case=cases)
def test_what_is_stored_is_read_back_bit_for_bit(case: StoredCase) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        path = promote(store, case)
        (found,) = read(store)
        assert found == case
        text = path.read_text(encoding="ascii")
        promote(store, case)  # a later promotion adds itself and changes nothing else
        (again,) = read(store)
        assert replace(again, promotions=case.promotions, others=case.others) == case
        assert len(text.splitlines()) == 3


# Whole or not there


def promoting(folder: Path, level: int, start: float) -> None:
    time.sleep(max(0.0, start - time.time()))
    for number in range(1, 11):
        promote(Store(folder), replace(stored(100.0 + number, level=level), case=f"sim/baseline/c{level:03d}"))


def test_two_promotions_at_once_lose_nothing(store: Store) -> None:
    start = time.time() + 1.0
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=promoting, args=(store.folder, level, start)) for level in (1, 8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert [(case.level, len(case.promotions)) for case in read(store)] == [(1, 10), (8, 10)]


ENDLESS = """
import sys
from pathlib import Path
from perf.baseline import Store
from tests.unit.simulated import RIG, stored
store = Store(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for launches in (1, 400):
        cases = tuple(stored(*[100.0] * launches, level=level) for level in (1, 8))
        store.promote(RIG.id, "sim", "baseline", cases, add=False)
"""


@contextmanager
def promoting_without_end(store: Store) -> Iterator[None]:
    """Another process promotes a small and a large sample in turn, until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, store.folder], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGKILL)


def test_who_reads_during_a_promotion_sees_the_old_file_or_the_new_one(store: Store) -> None:
    path = promote(store, stored(100.0))
    sizes = set()
    with promoting_without_end(store):
        deadline = time.monotonic() + 30
        for _ in range(20_000):
            text = path.read_bytes()
            assert text.endswith(b"]}\n")
            sizes.add(len(text))
            if time.monotonic() > deadline:
                break
    assert len(sizes) > 2  # there was something to see


def test_a_promotion_that_is_killed_never_leaves_a_part_of_a_file(store: Store) -> None:
    for number in range(6):
        with promoting_without_end(store):
            time.sleep(0.005 * number)  # not a wait for something: another place in the work each time
        assert [len(case.launches) in (1, 400) for case in read(store)] in ([], [True, True])
    promote(store, stored(100.0))  # and the lock of the dead is no lock
    assert read(store)


# What is damaged is an error with a sentence, never a skip


def damaged(store: Store, text: str) -> str:
    path = store.path(RIG_ID, "sim", "baseline")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(FileError) as error:
        read(store)
    with pytest.raises(FileError):
        promote(store, stored(100.0, level=2))
    assert path.read_text() == text
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def good(store: Store) -> str:
    return promote(store, stored(123.25, 123.25)).read_text()


def test_a_truncated_file_is_an_error(store: Store) -> None:
    text = good(store)
    for end in (0, 1, len(text) // 2, len(text) - 2):
        assert "not a baseline file" in damaged(store, text[:end])


@pytest.mark.parametrize(
    "foreign", ["[]", "null", "{}", '"x"', '{"version": "5.1.0", "benchmarks": []}', "<html>", "\x00", "[" * 100_000]
)
def test_a_foreign_file_is_an_error(store: Store, foreign: str) -> None:
    assert "not a baseline file" in damaged(store, foreign)


def test_a_level_that_stands_twice_as_after_a_merge_is_an_error(store: Store) -> None:
    head, line, end = good(store).partition('  {"group"')
    one = (line + end).rstrip().removesuffix("]}").rstrip()
    assert "a level stands twice" in damaged(store, f"{head}{one},\n{one}\n]}}\n")


def test_a_case_of_another_variant_is_an_error(store: Store) -> None:
    assert "belongs elsewhere" in damaged(store, good(store).replace("sim/baseline/c001", "sim/eagle3/c001"))


def test_one_launch_copied_is_no_larger_sample(store: Store) -> None:
    text = good(store)
    start = text.index('"launches": [') + len('"launches": [')
    end = text.index('], "others"')
    assert "different launches" in damaged(store, f"{text[:end]}, {text[start:end]}{text[end:]}")


def test_launches_that_only_tell_of_noise_are_of_whole_nights_of_their_own() -> None:
    case = night("20260102-000000", 100.0, 101.0)
    other = night("20260101-000000", 100.0, 101.0).launches
    for others in (other[:1], (*other, *other), case.launches, (replace(other[0], output_throughput=(0.0,)), other[1])):
        assert is_sound(replace(case, others=other))
        assert not is_sound(replace(case, others=others))


@pytest.mark.parametrize(
    ("was", "now"),
    [('"ttft_s": [0.1]', '"ttft_s": [0.2]'), ('"launch": "baseline-1"', '"launch": "baseline-9"'), ("first", "best")],
)
def test_what_was_changed_since_it_was_promoted_is_an_error(store: Store, was: str, now: str) -> None:
    promote(store, stored(99.0, level=1))
    text = promote(store, stored(100.0, level=8)).read_text()
    head, _, tail = text.rpartition(was)
    assert damaged(store, head + now + tail) == (
        "level 8 was changed since it was promoted; restore the file from version control, or remove it and promote "
        "again"
    )


def test_a_file_in_the_place_of_another_is_an_error(store: Store) -> None:
    promote(store, stored(100.0))
    there = store.path(RIG_ID, "sim", "baseline")
    for place, said in (
        (store.path("another-rig", "sim", "baseline"), "is of rig cpu-simulated-01234567, not of this one"),
        (store.path(RIG_ID, "sim", "eagle3"), "which belongs elsewhere"),
        (store.path(RIG_ID, "other", "baseline"), "which belongs elsewhere"),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(there, place)
        with pytest.raises(FileError, match=said):
            store.read(place.parent.parent.name, place.parent.name, place.stem)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_no_number_is_an_error(store: Store, value: str) -> None:
    assert "finite number" in damaged(store, good(store).replace("[123.25]", f"[{value}]"))


@pytest.mark.parametrize("value", ["[0.0]", "[-1.0]", "[]", "[1.0, 2.0]", "[123.26]"])
def test_a_sample_that_is_none_is_an_error(store: Store, value: str) -> None:
    assert damaged(store, good(store).replace("[123.25]", value)) == (
        "level 1: a stored sample must be different launches of positive numbers, as they were promoted, under schema "
        "2; restore the file from version control, or remove it and promote again"
    )


@pytest.mark.parametrize(
    ("old", "new"), [('"schema": 2', '"schema": 3'), ('"promotions": [{', '"promotions": [], "x": [{')]
)
def test_another_schema_or_no_promotion_is_an_error(store: Store, old: str, new: str) -> None:
    text = good(store)
    assert old in text
    assert "under schema 2" in damaged(store, text.replace(old, new))


def test_a_missing_field_is_named(store: Store) -> None:
    message = damaged(store, good(store).replace('"workload_digest"', '"workload"'))
    assert message == "not a baseline file: benchmarks.0.extra_info.workload_digest: Field required"


def test_a_file_that_is_far_too_large_is_not_read(store: Store) -> None:
    path = store.path(RIG_ID, "sim", "baseline")
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)  # sparse: it takes no room
    with pytest.raises(FileError, match="bytes are too many for a baseline file"):
        read(store)


def test_a_folder_in_place_of_a_file_is_an_error(store: Store) -> None:
    store.path(RIG_ID, "sim", "baseline").mkdir(parents=True)
    with pytest.raises(FileError, match="cannot be read as a baseline file: Is a directory"):
        read(store)


def test_no_file_is_no_baseline(store: Store) -> None:
    assert read(store) == ()
    store.folder.parent.mkdir(exist_ok=True)
    store.folder.write_text("a file where a folder could be")
    assert read(store) == ()


@contextmanager
def without_root() -> Iterator[None]:
    """Root may write everywhere: become nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_a_clear_error_and_nothing_is_changed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Store(Path(folder) / "baselines")
        path = promote(store, stored(100.0))
        before = path.read_bytes()
        for place in (store.folder, *(each for each in store.folder.rglob("*") if each.is_dir())):
            os.chmod(place, 0o555)
        with without_root(), pytest.raises(FileError) as error:
            promote(store, stored(200.0))
        assert str(error.value).endswith("cannot be written: Permission denied; nothing was changed")
        assert path.read_bytes() == before
        for place in (store.folder, *(each for each in store.folder.rglob("*") if each.is_dir())):
            os.chmod(place, 0o755)


def test_a_folder_that_cannot_be_looked_at_is_an_error_and_not_an_empty_store() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Store(Path(folder) / "baselines")
        promote(store, stored(100.0))
        os.chmod(store.folder, 0o000)
        with without_root(), pytest.raises(FileError, match="Permission denied"):
            read(store)
        os.chmod(store.folder, 0o755)


def test_a_geometric_mean_is_that_of_the_logarithms() -> None:
    assert geometric_mean((50.0, 200.0)) == pytest.approx(100.0)
