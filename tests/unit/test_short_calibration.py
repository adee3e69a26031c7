"""The calibration in short: few suites in some of its cells, which fail when the method breaks and not by luck.

What was found by `pytest -m calibration` with all suites is published, and the pages say that.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from perf.verdict import judge
from tests.calibration.cells import CELLS, TABLES, Cell, Counts, broken, counted, lower, night, simulate_some, upper
from tests.calibration.results import PAGE, collect, constants, keep, kept, read, renewed, shown

BY_NAME = {cell.name: cell for cell in CELLS}

#: How many suites of which cell: what a break of the method needs to be seen, and half a minute of work in all.
SHORT = {
    "on-the-model-CV-0.5-none": 150,
    "on-the-model-CV-0.5-minus-3-at-one": 100,
    "on-the-model-CV-1-none": 250,
    "on-the-model-CV-1-minus-3-at-one": 250,
    "on-the-model-CV-1-minus-3-at-all": 100,
    "on-the-model-CV-2-none": 100,
    "on-the-model-CV-2-minus-3-at-one": 100,
    "off-the-model-hiccups-CV-1-none": 60,
    "mixed-CV-1-plus-3-at-seven": 60,
    "without-a-reference-build-40-min-CV-0.5-none": 100,
}


def run(cell: Cell, suites: int) -> Counts:
    return counted(simulate_some(cell, 0, suites))


@pytest.mark.parametrize(("name", "suites"), SHORT.items(), ids=SHORT)
def test_the_verdict_keeps_its_promises_in_a_few_hundred_suites(name: str, suites: int) -> None:
    cell = BY_NAME[name]
    assert suites < cell.suites
    assert not broken(cell, run(cell, suites))


def test_a_store_that_is_wrong_tonight_makes_nothing_red_where_there_is_a_reference_build() -> None:
    """It was taken in one night, and nights differ by three times what a launch does: that, it cannot know."""
    cell = BY_NAME["off-the-model-a-store-of-one-night-CV-1-none"]
    cell = replace(cell, truth=replace(cell.truth, night=3.0, night_level=1.0))
    assert not broken(cell, run(cell, 60))


def test_a_night_three_times_as_noisy_as_the_store_makes_no_false_alarms() -> None:
    """Its own launches tell that."""
    cell = BY_NAME["off-the-model-twice-the-variance-CV-1-none"]
    assert not broken(cell, run(replace(cell, truth=replace(cell.truth, scale=9.0)), 60))


def test_a_large_gain_is_found_as_surely_as_a_loss() -> None:
    cell = BY_NAME["mixed-CV-1-plus-10-at-one"]
    counts = run(cell, 60)
    assert counts.red == 0
    assert upper(counts.improved, counts.suites) > 0.95


def test_a_large_loss_is_found_without_a_reference_build_where_a_small_one_is_out_of_reach() -> None:
    cell = BY_NAME["large-losses-without-a-reference-build-150-min-CV-2-minus-10-at-one"]
    counts = run(cell, 60)
    assert counts.passed == 0
    assert upper(counts.found, counts.suites) > 0.95


# What counts


def test_the_bounds_are_those_of_clopper_and_pearson() -> None:
    assert upper(0, 299) == pytest.approx(1 - 0.05 ** (1 / 299))
    assert lower(299, 299) == pytest.approx(0.05 ** (1 / 299))
    assert (upper(5, 5), lower(0, 5)) == (1.0, 0.0)
    assert lower(40, 100) < 0.4 < upper(40, 100)


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("on-the-model-CV-1-none", {"red": 300}, "false alarms"),
        ("on-the-model-CV-1-none", {"improved": 300}, "false IMPROVED"),
        ("on-the-model-CV-1-none", {"passed": 9000}, "not all PASS"),
        ("on-the-model-CV-1-none", {"minutes": 25.0}, "rig-minutes"),
        ("on-the-model-CV-1-minus-3-at-one", {"found": 9000}, "not found"),
        ("on-the-model-CV-1-minus-3-at-one", {"passed": 500}, "silent misses"),
        ("mixed-CV-1-plus-3-at-seven", {"red": 300}, "false alarms"),
        ("without-a-reference-build-40-min-CV-0.5-none", {"red": 300}, "false alarms"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_a_cell_that_breaks_a_promise_says_which(
    name: str, changed: dict[str, float], told: str, *, whole: bool
) -> None:
    kept_promises = _counts(10_000 if min(BY_NAME[name].changes) >= 0 else 0)
    cell = replace(BY_NAME[name], suites=10_000 if whole else 20_000)
    assert broken(cell, kept_promises) == []
    found = broken(cell, replace(kept_promises, **changed))  # type: ignore[arg-type]
    assert [each.partition(":")[0] for each in found] == [told]


def test_few_suites_refute_nothing_that_luck_explains() -> None:
    cell = BY_NAME["on-the-model-CV-1-none"]
    assert broken(cell, replace(_counts(100), suites=100, red=4, passed=90)) == []
    assert broken(replace(cell, suites=100), replace(_counts(100), suites=100, red=4, passed=90)) != []


def _counts(passed: int) -> Counts:
    """Of ten thousand suites, as they should be."""
    return Counts(
        suites=10_000,
        red=0 if passed else 10_000,
        found=0 if passed else 10_000,
        innocent=0,
        improved=0,
        passed=passed,
        undecided=0,
        minutes=10.0,
        minutes_error=0.1,
        minutes_95=12.0,
        launches=1.0,
    )


# What is kept, and what is published


def test_what_is_counted_are_the_verdicts_of_the_record() -> None:
    cell = replace(BY_NAME["on-the-model-CV-1-minus-3-at-one"], both=True)
    for number in range(3):
        done, verdicts, _ = night(cell, number)
        assert verdicts == judge(done)
        assert len(verdicts) == 2 * len(cell.levels)


def test_a_suite_is_the_same_whichever_process_simulates_it() -> None:
    cell = BY_NAME["on-the-model-CV-1-none"]
    assert simulate_some(cell, 0, 4) == [*simulate_some(cell, 0, 1), *simulate_some(cell, 1, 3)]


def test_a_cell_is_run_again_when_it_was_another_or_smaller(tmp_path: Path) -> None:
    cell = BY_NAME["on-the-model-CV-1-none"]
    counts = _counts(10_000)
    assert kept(cell, 10, tmp_path) is None
    keep(cell, counts, tmp_path)
    assert kept(cell, 10_000, tmp_path) == counts
    assert kept(cell, 10_001, tmp_path) is None
    assert kept(replace(cell, truth=replace(cell.truth, shared=0.5)), 10, tmp_path) is None


def test_nothing_is_published_of_a_calibration_that_is_not_whole(tmp_path: Path) -> None:
    for cell in CELLS[1:]:
        keep(cell, replace(_counts(cell.suites), suites=cell.suites), tmp_path)
    with pytest.raises(ValueError, match=CELLS[0].name):
        collect(tmp_path)
    keep(CELLS[0], replace(_counts(1_000), suites=1_000), tmp_path)
    with pytest.raises(ValueError, match=CELLS[0].name):
        collect(tmp_path)
    assert collect(tmp_path, 0.1).share == 0.1
    keep(CELLS[0], _counts(10_000), tmp_path)
    assert [each.name for each in collect(tmp_path).results] == [cell.name for cell in CELLS]


def test_every_cell_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(CELLS)


def test_what_is_published_is_of_todays_cells_and_constants() -> None:
    """A constant of the method that is changed asks for a new calibration: tox -e calibration."""
    published = read()
    assert dict(published.constants) == dict(constants())
    assert {each.name: each.definition for each in published.results} == {cell.name: cell.definition for cell in CELLS}


def test_what_is_published_keeps_every_promise() -> None:
    """Of a share of the suites, only what is refuted beyond luck is a promise that is broken."""
    published = read()
    for each in published.results:
        cell = BY_NAME[each.name]
        assert each.counts.suites >= published.share * cell.suites, each.name
        assert not broken(cell, each.counts), each.name


def test_the_page_shows_what_was_published() -> None:
    text = PAGE.read_text()
    assert set(shown(text)) == set(TABLES)
    assert renewed(text, read()) == text
