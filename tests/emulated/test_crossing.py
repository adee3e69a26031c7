"""Where lines cross, as a user meets it: emulated servers, a suite file, an inner pytest, a stored crossover."""

import json
import re
from pathlib import Path

import pytest

from tests.emulated.inner import PACED, Desk, Run

#: One level at which speculation pays and one at which it does not; the adaptive server does what is better.
FAST_ALONE, SLOW_TOGETHER = "1:-0.4", "4:0.4"
EXPECT = """
[[expect]]
crossover = ["eagle3", "baseline"]

[[expect]]
variant = "adaptive"
at_least = 0.97
of = ["baseline", "eagle3"]
at = "every level"
"""
CROSSOVER = "lines/expect/crossover-of-eagle3-and-baseline"


def lines(desk: Desk, *, eagle3: str) -> Path:
    return desk.suite(
        {
            "baseline": PACED,
            "eagle3": (*PACED, "--slowdown", eagle3),
            "adaptive": (*PACED, "--slowdown", FAST_ALONE),
        },
        name="lines",
        levels=(1, 4),
        more=EXPECT,
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("crossing"))


@pytest.fixture(scope="module")
def first(desk: Desk) -> Run:
    return desk.measure(lines(desk, eagle3=f"{FAST_ALONE},{SLOW_TOGETHER}"), "-k", "expect")


@pytest.fixture(scope="module")
def promoted(desk: Desk, first: Run) -> Run:
    del first
    return desk.perf("promote", "--reason", "where the lines cross")


def test_an_adaptive_server_holds_the_envelope_of_the_others_at_every_level(first: Run) -> None:
    words = first.words()
    assert {case for case, word in words.items() if word == "PASS"} == {
        f"lines/expect/adaptive-0.97x-of-baseline-eagle3/c{level:03d}" for level in (1, 4)
    }, first.screen


def test_a_crossover_that_was_never_stored_says_where_it_is_and_how_to_record_it(first: Run) -> None:
    item = first.item(CROSSOVER)
    assert item.word == "NO_BASELINE"
    assert first.code == 1
    assert "NO_BASELINE  eagle3 is faster up to about c=" in item.message
    assert f'--case "{CROSSOVER}" --reason "first baseline"' in item.message
    assert 1 < float(item.properties["crossover"]) < 4


def test_a_promoted_crossover_lies_beside_the_baselines_and_check_judges_with_it(desk: Desk, promoted: Run) -> None:
    assert promoted.code == 0, promoted.screen
    assert f"promoted  {CROSSOVER}: - -> eagle3 is faster up to about c=" in promoted.out
    file = json.loads((desk.baselines / "emulated" / "lines" / "crossover.json").read_text())
    assert file["crossovers"][0]["reason"] == "where the lines cross"
    checked = desk.perf("check")
    assert checked.code == 0, checked.screen
    assert re.search(r"^expect/crossover-of-eagle3-and-baseline .* PASS$", checked.out, re.MULTILINE)


def test_speculation_that_stops_paying_is_violated_by_pytest_and_by_check(desk: Desk, promoted: Run) -> None:
    del promoted
    later = desk.measure(lines(desk, eagle3=f"1:0.3,{SLOW_TOGETHER}"), "-k", "crossover")
    assert later.words() == {CROSSOVER: "VIOLATED"}, later.screen
    assert later.code == 1
    message = later.item(CROSSOVER).message
    assert "VIOLATED  eagle3 no longer pays at level 1: baseline is faster from the lowest level on, c=1" in message
    assert 'where the lines cross")' in message
    checked = desk.perf("check", store=False)
    assert checked.code == 1
