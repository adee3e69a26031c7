"""A launch has a price before it is spent: from stored launches, else from what is expected, else none is told."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf import plan
from perf.__main__ import main
from perf.baseline import Store
from perf.plan import Forecast, forecast, interpolated
from perf.sample import StoredCase
from perf.suite import Suite
from perf.suite_file import parse
from tests.unit.simulated import stored

SOURCE = Path("sim.toml")
HEAD = '[suite]\nname = "sim"\nrig = "emulated"\n'
WORKLOAD = "[workload]\nconcurrency = [1, 2, 30]\nmin_requests = 10\nrequests_per_stream = 1\noutput_tokens = 100\n"
BASELINE = '[variants.baseline]\ncommand = ["serve", "{port}"]\n'
EXPECTED = "expected_tok_s = { 1 = 50, 30 = 1000 }\n"


def read(workload: str = "", expected: str = EXPECTED, gate: str = "", more: str = "") -> Suite:
    return parse(f"{HEAD}{WORKLOAD}{workload}\n[gate]\n{gate}\n{BASELINE}{expected}{more}", SOURCE)


def store(*cases: StoredCase) -> dict[tuple[str, int], StoredCase]:
    return {("baseline", case.level): case for case in cases}


def seconds(suite: Suite, cases: Mapping[tuple[str, int], StoredCase] | None = None) -> dict[str, tuple[float, float]]:
    """Warm-up and measured seconds of every level of the first variant."""
    found: dict[str, tuple[float, float]] = {}
    for level in forecast(suite, cases or {}).variants[0].levels:
        assert level.warmup_s is not None
        assert level.measured_s is not None
        found[level.name] = (level.warmup_s, level.measured_s)
    return found


def start_s(found: Forecast) -> float | None:
    return found.variants[0].start_s


# Seconds


def test_a_measured_round_takes_its_tokens_by_the_throughput() -> None:
    found = seconds(read())
    assert found["c001"][1] == pytest.approx(10 * 100 / 50)
    assert found["c030"][1] == pytest.approx(30 * 100 / 1000)


def test_between_two_levels_the_throughput_is_interpolated_in_logarithms() -> None:
    assert seconds(read())["c002"][1] == pytest.approx(10 * 100 / (50 * 20 ** (math.log(2) / math.log(30))))


def test_the_warm_up_runs_no_wider_than_it_has_requests() -> None:
    eight = 50 * 20 ** (math.log(8) / math.log(30))
    found = seconds(read("warmup_requests = 8"))
    assert found["c001"][0] == pytest.approx(8 * 100 / 50)
    assert found["c030"][0] == pytest.approx(8 * 100 / eight)
    assert seconds(read("warmup_requests = 0"))["c030"][0] == 0
    assert seconds(read("warmup_requests = 500"))["c030"][0] == pytest.approx(500 * 100 / 1000)


def test_every_round_has_a_warm_up_of_its_own() -> None:
    one, three = seconds(read()), seconds(read("rounds = 3"))
    for level in one:
        assert three[level] == pytest.approx(tuple(3 * each for each in one[level]))


def test_a_level_with_its_own_length_is_counted_with_it() -> None:
    lengths = WORKLOAD.replace("= 100", "= { default = 100, 30 = 10 }")
    suite = parse(f"{HEAD}{lengths}{BASELINE}{EXPECTED}", SOURCE)
    assert seconds(suite)["c030"][1] == pytest.approx(30 * 10 / 1000)
    assert forecast(suite, {}).variants[0].output_tokens == (10 + 8) * 100 + (10 + 8) * 100 + (30 + 8) * 10


@given(
    points=st.dictionaries(st.integers(1, 1000), st.floats(0.1, 1e5), min_size=1, max_size=6),
    level=st.integers(1, 1000),
)
def test_an_interpolated_throughput_lies_between_its_neighbours(points: dict[int, float], level: int) -> None:
    curve = sorted(points.items())
    below = [value for each, value in curve if each <= level] or [curve[0][1]]
    above = [value for each, value in curve if each >= level] or [curve[-1][1]]
    low, high = sorted((below[-1], above[0]))
    assert low * (1 - 1e-9) <= interpolated(curve, level) <= high * (1 + 1e-9)
    assert interpolated(curve, level) == points.get(level, interpolated(curve, level))


# Sources


def test_a_stored_baseline_is_believed_before_any_expectation() -> None:
    cases = store(stored(100.0, 400.0, level=2))
    levels = forecast(read(), cases).variants[0].levels
    assert [level.source for level in levels] == ["expected", "stored", "expected"]
    assert levels[1].throughput == pytest.approx(200.0)
    assert levels[1].measured_s == pytest.approx(10 * 100 / 200)
    assert forecast(read(), cases).variants[0].sources == "stored and expected"


def test_a_baseline_of_another_variant_says_nothing() -> None:
    found = forecast(read(), {("eagle3", 2): stored(100.0, level=2)})
    assert {level.source for level in found.variants[0].levels} == {"expected"}


def test_a_start_is_the_median_of_the_stored_launches_each_counted_once() -> None:
    def starting(level: int, *starts: float | None) -> StoredCase:
        case = stored(*(100.0 for _ in starts), level=level)
        launches = tuple(replace(launch, start_s=value) for launch, value in zip(case.launches, starts, strict=True))
        return replace(case, launches=launches)

    assert start_s(forecast(read(), store(starting(1, 10.0, 20.0, 90.0)))) == 20.0
    assert start_s(forecast(read(), store(starting(1, 10.0, 90.0), starting(2, 10.0), starting(30, 10.0)))) == 50.0
    assert start_s(forecast(read(), store(starting(1, None, 30.0)))) == 30.0
    assert start_s(forecast(read(), store(starting(1, None, None)))) is None


def test_without_a_source_the_tokens_are_known_and_no_time_is_made_up() -> None:
    found = forecast(read(expected=""), {})
    (variant,) = found.variants
    assert variant.output_tokens == (18 + 18 + 38) * 100
    assert (variant.levels_s, found.launches_s, found.unknown) == (None, None, ("baseline",))
    assert plan.line(found) == "sim: no forecast for baseline: measure once, or state expected_tok_s"


def test_one_stored_level_is_no_forecast_of_the_others() -> None:
    (variant,) = forecast(read(expected=""), store(stored(100.0, level=1))).variants
    assert [level.source for level in variant.levels] == ["stored", None, None]
    assert variant.levels_s is None


# A campaign

WHOLE = store(*(stored(1000.0, 1000.0, level=level) for level in (1, 2, 30)))


def test_a_launch_is_its_start_and_its_levels() -> None:
    found = forecast(read("warmup_requests = 0"), WHOLE)
    assert found.launches_s == pytest.approx(10 + (10 + 10 + 30) * 100 / 1000)


@pytest.mark.parametrize(
    ("gate", "workload", "counts"),
    [
        ("", "", (1, 2, 4, 8, 12)),
        ("max_launches = 6", "", (1, 2, 4, 6)),
        ("budget_minutes = 60", "", (1, 2, 4, 8, 12)),  # up to 200 may be launched: the minutes end it
        ("max_launches = 1", "", (1,)),
        ("", 'level_reached = "not required"', (1,)),
    ],
)
def test_what_a_campaign_costs_is_told_for_a_few_numbers_of_launches(
    gate: str, workload: str, counts: tuple[int, ...]
) -> None:
    assert forecast(read(workload, gate=gate), WHOLE).counts == counts


@pytest.mark.parametrize(
    ("gate", "most"),
    [("", 12), ("budget_minutes = 60", 200), ("budget_minutes = 60\nmax_launches = 3", 3), ("max_launches = 30", 30)],
)
def test_where_minutes_end_a_campaign_launches_hardly_do(gate: str, most: int) -> None:
    assert plan.most_launches(read(gate=gate).gate) == most


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (4, "the budget of 4 min 00 s holds 12"),
        (2.5, "the budget of 2 min 30 s holds 8, not 12"),
        (1.5, "the budget of 1 min 30 s holds 4, not 8"),
        (0.2, "the budget of 12 s holds none, not 1"),
    ],
)
def test_the_line_says_what_the_budget_holds(minutes: float, said: str) -> None:
    suite = read("warmup_requests = 0", gate=f"budget_minutes = {minutes}")  # a launch is 15 s
    assert plan.line(forecast(suite, WHOLE)) == (
        "sim: about 15 s for 1 launch of every variant, 30 s for 2, 1 min 00 s for 4, 2 min 00 s for 8, "
        f"3 min 00 s for 12; {said}"
    )


def test_a_sum_without_starts_says_so() -> None:
    assert plan.line(forecast(read(), {})).endswith("; not counted: the start of baseline; no budget is set")


def test_what_the_documentation_says_comes_from_the_suite_file_alone() -> None:
    more = '[variants.bare]\ncommand = ["serve", "{port}"]\n'
    suite = read("warmup_requests = 0", "expected_tok_s = { 1 = 100 }\n", more=more)  # 5000 tokens in 50 s
    assert plan.costs(suite) == (
        ("baseline", "5,000", "0.833, and the start"),
        ("bare", "5,000", "no forecast"),
    )


# The command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sim.toml").write_text(f"{HEAD}{WORKLOAD}{BASELINE}{EXPECTED}")
    return tmp_path


def test_the_command_says_where_each_number_comes_from(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(place / "baselines").promote("emulated", "sim", "baseline", (stored(200.0, 200.0, level=2),), add=False)
    assert main(["plan", "--suite", "sim.toml"]) == 0
    text = capsys.readouterr().out
    assert [line.split()[:5] for line in text.split("\n\n")[1].splitlines()[2:]] == [
        ["baseline/c001", "10", "1,000", "50.0", "expected"],
        ["baseline/c002", "10", "1,000", "200.0", "stored"],
        ["baseline/c030", "30", "3,000", "1,000", "expected"],
    ]
    assert re.search(r"^baseline +7,400 +10 s +\S.* s +\S.* s +stored and expected$", text, flags=re.MULTILINE)
    assert "stored: baselines/emulated; expected: expected_tok_s in the suite file" in text


def test_a_suite_that_nobody_measured_is_told_what_it_needs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "sim.toml").write_text(f"{HEAD}{WORKLOAD}{BASELINE}")
    assert main(["plan", "--suite", "sim.toml", "--baselines", "nowhere"]) == 0
    text = capsys.readouterr().out
    assert "a campaign: no forecast for baseline: measure once, or state expected_tok_s" in text
    assert "stored: nothing in nowhere/emulated" in text
    assert "of how launches vary here nothing is stored, and nothing can be promised" in text


def test_what_a_night_would_show_follows_the_forecast_and_answers_the_options(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tuple(stored(1000.0, 1004.0, 998.0, 1001.0, level=level) for level in (1, 2, 30))
    Store(place / "baselines").promote("emulated", "sim", "baseline", cases, add=False)
    assert main(["plan", "--suite", "sim.toml", "--nights", "3"]) == 0
    text = capsys.readouterr().out
    assert "baseline: 4 launches of 1 night stored" in text
    assert "asked      margin 3 %, power 95 %, alpha 1 %, no reference build" in text
    options = ["--nights=3", "--margin=2%", "--alpha=0.05", "--power=90%", "--reference"]
    assert main(["plan", "--suite", "sim.toml", *options]) == 0
    text = capsys.readouterr().out
    assert "2 % less is found in" in text
    assert "asked      margin 2 %, power 90 %, alpha 5 %, with a reference build" in text


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--margin=3", "'3' is not a share such as 3% or 0.03, at least 0.0001"),
        ("--margin=0.001%", "'0.001%' is not a share such as 3% or 0.03, at least 0.0001"),
        ("--alpha=3", "'3' is not a share such as 3% or 0.03"),
    ],
)
def test_a_share_that_could_mean_either_or_is_too_small_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], option: str, said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan", "--suite", "sim.toml", option])
    assert end.value.code == 64
    assert said in capsys.readouterr().err


def test_a_damaged_baseline_is_a_sentence_and_not_a_forecast(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "baselines" / "emulated" / "sim" / "baseline.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    assert main(["plan", "--suite", "sim.toml"]) == 1
    assert "not a baseline file" in capsys.readouterr().err


def test_a_suite_that_is_not_there_is_a_usage_error(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--suite", str(place / "none.toml")]) == 64
    assert "none.toml: cannot be read" in capsys.readouterr().err
