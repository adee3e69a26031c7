"""Saturation is what a curve over the levels shows, and where it shows nothing, that is said."""

import csv
import gzip
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from perf.saturation import LEAST_LEVELS, SATURATED, Point, level_for, points, saturation, sentence
from perf.saturation import Saturation as Found

NIGHTLY = Path(__file__).parents[1] / "data" / "nightly"
MARGIN = 0.03
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)


def curve(level: float, *, plateau: float = 1000.0, half: float, sharpness: float) -> float:
    return float(plateau / (1 + (half / level) ** sharpness) ** (1 / sharpness))


def exact(levels: Sequence[int], *, plateau: float = 1000.0, half: float, sharpness: float) -> tuple[Point, ...]:
    return tuple(
        Point(level=level, throughput=curve(level, plateau=plateau, half=half, sharpness=sharpness), error=0.002)
        for level in levels
    )


def measured(values: dict[int, float], error: float | None = 0.005) -> Found:
    return saturation(
        [Point(level=level, throughput=value, error=error) for level, value in values.items()], margin=MARGIN
    )


def launches(
    generator: np.random.Generator, levels: Sequence[int], half: float, sharpness: float, noise: float, count: int
) -> dict[int, tuple[float, ...]]:
    return {
        level: tuple(
            curve(level, half=half, sharpness=sharpness) * math.exp(generator.normal(0, noise)) for _ in range(count)
        )
        for level in levels
    }


# What is recovered.


@pytest.mark.parametrize(("half", "sharpness"), [(4.0, 1.0), (8.0, 2.0), (16.0, 8.0), (30.0, 0.6), (100.0, 1.3)])
def test_a_curve_without_noise_is_found_again(half: float, sharpness: float) -> None:
    found = saturation(exact(LEVELS, half=half, sharpness=sharpness), margin=MARGIN)
    assert found.plateau == pytest.approx(1000, rel=1e-3)
    assert found.half == pytest.approx(half, rel=1e-2)
    assert found.worst_residual is not None
    assert found.worst_residual < 1e-4
    assert found.saturated_at is not None
    assert curve(found.saturated_at, half=half, sharpness=sharpness) == pytest.approx(950, rel=2e-3)
    assert found.lo is not None
    assert found.lo < 1000 < (found.hi or math.inf)


@pytest.mark.parametrize(
    ("half", "sharpness"), [(4.0, 1.0), (8.0, 2.0), (16.0, 4.0), (8.0, 8.0), (32.0, 1.0), (30.0, 0.6), (200.0, 1.0)]
)
def test_the_interval_holds_the_plateau_and_the_highest_level_is_not_called_what_it_is_not(
    half: float, sharpness: float
) -> None:
    """At 2 % noise and three launches a level; the seed is fixed, so that nothing here is up to luck."""
    generator = np.random.default_rng(7)
    is_reached = curve(LEVELS[-1], half=half, sharpness=sharpness) >= SATURATED * 1000
    held, states = 0, Counter[str]()
    for _ in range(60):
        sample = points(launches(generator, LEVELS, half, sharpness, 0.02, 3))
        found = saturation(sample, margin=MARGIN)
        states[found.state] += 1
        assert found.lo is not None
        held += found.lo <= 1000 <= (found.hi or math.inf)
    assert held >= 54
    assert states["falls"] <= 3
    assert states["not reached" if is_reached else "reached"] == 0
    assert states["reached" if is_reached else "not reached"] >= 45


def nightly() -> dict[tuple[str, str, str], dict[int, float]]:
    """Medians of real servers over some weeks: tok/s by level, for series of at least six levels."""
    series: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in NIGHTLY.glob("*.csv.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["isl"] != "0" and row["throughput (tok/s)"]:
                    key = (row["cfg"], row["isl"], row["osl"])
                    series[key][int(row["c"])].append(float(row["throughput (tok/s)"]))
    medians = {
        key: {level: statistics.median(values) for level, values in sorted(levels.items()) if len(values) >= 5}
        for key, levels in series.items()
    }
    return {key: levels for key, levels in medians.items() if len(levels) >= 6}


def test_real_servers_follow_the_curve_several_times_as_closely_as_one_that_cannot_bend_softly() -> None:
    """What decided for the curve of docs/decisions/0014, on 52 series of real servers."""
    free, hyperbola = [], []
    real = nightly()
    for levels in real.values():
        found = measured(levels, error=0.01)
        if found.state == "falls":
            continue
        assert found.worst_residual is not None
        free.append(found.worst_residual)
        hyperbola.append(_worst_of_hyperbola(levels))
    assert len(real) == 52
    assert len(free) >= 45
    assert statistics.median(free) < 0.04
    assert statistics.median(hyperbola) > 0.1


def _worst_of_hyperbola(levels: dict[int, float]) -> float:
    """The largest residual of the best plateau c / (c + half)."""
    c, logs = np.array(list(levels), dtype=np.float64), np.log(list(levels.values()))
    residuals = []
    for half in np.geomspace(1, 10_000, 2000):
        left = logs + np.log1p(half / c)
        residuals.append(left - left.mean())
    best = min(residuals, key=lambda each: float(each @ each))
    return float(np.abs(np.expm1(best)).max())


# What is said.


def test_a_saturated_server_is_said_to_be_with_its_plateau_and_the_level_it_begins_at() -> None:
    found = measured({1: 92.0, 4: 330.0, 16: 690.0, 64: 768.0, 128: 772.0})
    assert found.state == "reached"
    assert sentence(found).startswith("reached: plateau 77")
    assert found.saturated_at is not None
    assert 16 < found.saturated_at < 64


def test_a_server_that_is_saturated_by_one_request_is_so_from_the_lowest_level_on() -> None:
    found = saturation(exact(LEVELS, half=0.3, sharpness=5), margin=MARGIN)
    assert (found.state, found.saturated_at) == ("reached", 1.0)


def test_a_server_that_still_gains_is_not_saturated_whatever_its_highest_level() -> None:
    found = measured({1: 114, 2: 222, 4: 396, 8: 656, 16: 1073, 32: 1725, 64: 2380, 128: 3757, 256: 5476})
    assert found.state == "not reached"
    assert found.rise == pytest.approx(5476 / 3757 - 1)
    assert sentence(found) == "not reached at c=256: throughput still changes by +45.8 % per doubling"


def test_a_server_that_loses_throughput_has_a_peak_and_no_plateau() -> None:
    found = measured({4: 208, 8: 386, 16: 645, 32: 949, 64: 1243, 128: 1471, 256: 1404})
    assert (found.state, found.plateau) == ("falls", 1471)
    assert found.rise == pytest.approx(1404 / 1471 - 1)
    assert sentence(found) == "falls by 4.6 % per doubling from its peak of 1471 tok/s"
    assert [each.fitted is None for each in found.table] == [False] * 6 + [True]
    assert found.saturated_at is not None
    assert 64 < found.saturated_at < 128


def test_a_loss_that_noise_explains_is_no_fall() -> None:
    values = {4: 208.0, 8: 386.0, 16: 645.0, 32: 949.0, 64: 1243.0, 128: 1471.0, 256: 1404.0}
    assert measured(values, error=0.03).state != "falls"
    assert measured(values, error=None).state != "falls"
    assert measured(values | {256: 1450.0}, error=1e-4).state != "falls"  # within the margin


def test_a_curve_that_expects_more_than_the_last_step_shows_does_not_say_that_throughput_rises() -> None:
    found = measured({4: 318, 8: 543, 16: 822, 32: 1161, 64: 1551, 128: 1950, 256: 1885}, error=0.011)
    assert found.state == "unclear"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({8: 500.0}, "not fitted: 1 of at least 4 levels"),
        (
            {1: 92.7, 2: 157.7},
            "not fitted: 2 of at least 4 levels; throughput still changes by +70.1 % per doubling",
        ),
        (
            {1: 90.0, 8: 500.0, 32: 510.0},
            "not fitted: 3 of at least 4 levels; throughput still changes by +1.0 % per doubling",
        ),
    ],
)
def test_too_few_levels_are_not_fitted_and_that_is_said(values: dict[int, float], said: str) -> None:
    found = measured(values)
    assert len(values) < LEAST_LEVELS
    assert (found.state, found.plateau, found.lo, found.hi, found.saturated_at) == ("not fitted", *[None] * 4)
    assert found.worst_residual is None
    assert sentence(found) == said
    assert [(each.level, each.throughput) for each in found.table] == list(values.items())


def test_the_fit_is_shown_level_by_level() -> None:
    found = measured({1: 100.0, 4: 350.0, 16: 900.0, 64: 960.0, 128: 975.0})
    for each in found.table:
        assert each.fitted is not None
        assert each.residual == pytest.approx(each.throughput / each.fitted - 1)
    assert found.worst_residual == max(abs(each.residual or 0.0) for each in found.table)


def test_a_curve_that_does_not_fit_claims_less() -> None:
    smooth = measured({each.level: each.throughput for each in exact(LEVELS, half=8, sharpness=1)})
    kinks = {1: 1.1, 4: 0.9, 16: 1.1, 64: 0.9}
    kinked = measured(
        {each.level: each.throughput * kinks.get(each.level, 1.0) for each in exact(LEVELS, half=8, sharpness=1)}
    )
    assert smooth.lo is not None
    assert smooth.hi is not None
    assert kinked.lo is not None
    assert kinked.hi is None or math.log(kinked.hi / kinked.lo) > 3 * math.log(smooth.hi / smooth.lo)


@pytest.mark.parametrize("wrong", [[], [8, 8], [0, 8]])
def test_levels_that_make_no_curve_are_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="one point for each level"):
        saturation([Point(level=level, throughput=10.0, error=0.01) for level in wrong], margin=MARGIN)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_throughput_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        saturation([Point(level=1, throughput=wrong, error=0.01)], margin=MARGIN)
    with pytest.raises(ValueError, match="positive"):
        points({1: (10.0, wrong)})
    with pytest.raises(ValueError, match="positive"):
        points({1: ()})


# The noise of the points.


def test_launches_that_agree_by_luck_do_not_make_a_level_certain() -> None:
    lucky, other = points({1: (100.0, 100.0), 8: (490.0, 510.0)})
    assert lucky.throughput == pytest.approx(100)
    assert other.throughput == pytest.approx(math.sqrt(490 * 510))
    assert lucky.error is not None
    assert other.error is not None
    assert other.error / 2 < lucky.error < other.error


def test_a_known_noise_counts_where_it_is_larger() -> None:
    (known,) = points({1: (100.0, 101.0)}, spreads={1: 0.2})
    assert known.error == pytest.approx(0.2 / math.sqrt(2))
    (own,) = points({1: (100.0, 150.0)}, spreads={1: 0.02})
    assert own.error == pytest.approx(math.log(1.5) / 2)


def test_one_launch_without_a_known_noise_has_none() -> None:
    assert [each.error for each in points({1: (100.0,), 8: (500.0,)})] == [None, None]


# The level that stands for saturation.


def test_saturation_is_the_smallest_level_at_which_every_variant_has_its_plateau() -> None:
    early = saturation(exact(LEVELS, half=4, sharpness=4), margin=MARGIN)
    late = saturation(exact(LEVELS, half=16, sharpness=4), margin=MARGIN)
    assert level_for({"early": early}, margin=MARGIN).level == 8
    chosen = level_for({"early": early, "late": late}, margin=MARGIN)
    assert (chosen.level, chosen.note) == (32, None)


def test_saturation_is_the_highest_level_with_a_note_where_a_variant_is_not_saturated() -> None:
    early = saturation(exact(LEVELS, half=4, sharpness=4), margin=MARGIN)
    never = saturation(exact(LEVELS, half=200, sharpness=1), margin=MARGIN)
    chosen = level_for({"early": early, "never": never}, margin=MARGIN)
    assert chosen.level == 128
    assert chosen.note is not None
    assert "never: not reached at c=128" in chosen.note
    few = measured({1: 90.0, 8: 500.0, 32: 510.0})
    chosen = level_for({"few": few}, margin=MARGIN)
    assert chosen.level == 32
    assert chosen.note is not None
    assert "few: not fitted: 3 of at least 4 levels" in chosen.note


def test_a_variant_that_falls_is_compared_where_it_has_its_peak() -> None:
    falls = measured({4: 208, 8: 386, 16: 645, 32: 949, 64: 1243, 128: 1471, 256: 1404})
    assert level_for({"falls": falls}, margin=MARGIN).level == 128
    late = saturation(exact((4, 8, 16, 32, 64, 128, 256), half=120, sharpness=8), margin=MARGIN)
    chosen = level_for({"falls": falls, "late": late}, margin=MARGIN)
    assert chosen.level == 256
    assert chosen.note is not None
    assert "at no level are all within the margin" in chosen.note


def test_saturation_needs_a_level_that_was_measured_of_all() -> None:
    with pytest.raises(ValueError, match="measured of every variant"):
        level_for({"one": measured({1: 10.0}), "other": measured({2: 10.0})}, margin=MARGIN)
    with pytest.raises(ValueError, match="measured of every variant"):
        level_for({}, margin=MARGIN)


# For any measurement.


@st.composite
def measurements(draw: st.DrawFn, *, at_least: int = 1) -> tuple[Point, ...]:
    levels = draw(st.lists(st.integers(1, 1000), min_size=at_least, max_size=8, unique=True))
    values = st.floats(1.0, 1e5)
    errors = st.one_of(st.none(), st.floats(1e-4, 0.2))
    return tuple(Point(level=level, throughput=draw(values), error=draw(errors)) for level in levels)


@given(measured=measurements(), data=st.data())
@settings(max_examples=40)
def test_the_order_of_the_levels_changes_nothing(measured: tuple[Point, ...], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(measured))
    assert saturation(shuffled, margin=MARGIN) == saturation(measured, margin=MARGIN)


@given(
    half=st.floats(0.5, 300),
    sharpness=st.floats(0.3, 8),
    noise=st.lists(st.floats(-0.03, 0.03), min_size=8, max_size=8),
    factor=st.floats(1e-3, 1e3),
)
@settings(max_examples=40)
def test_a_server_that_is_faster_by_a_factor_has_its_plateau_raised_by_it_and_saturates_at_the_same_level(
    half: float, sharpness: float, noise: list[float], factor: float
) -> None:
    one = [
        Point(level=each.level, throughput=each.throughput * math.exp(luck), error=0.01)
        for each, luck in zip(exact(LEVELS, half=half, sharpness=sharpness), noise, strict=True)
    ]
    other = [Point(level=each.level, throughput=each.throughput * factor, error=each.error) for each in one]
    first, second = saturation(one, margin=MARGIN), saturation(other, margin=MARGIN)
    # Not a word on the edge of its meaning: there rounding decides.
    assume(first.rise is None or abs(first.rise) > 1e-9)
    assert second.state == first.state
    assert first.plateau is not None
    assert second.plateau == pytest.approx(first.plateau * factor, rel=1e-3)
    assert second.saturated_at == pytest.approx(first.saturated_at, rel=1e-2)
    assert second.worst_residual == pytest.approx(first.worst_residual, abs=1e-4)
    assert level_for({"only": second}, margin=MARGIN).level == level_for({"only": first}, margin=MARGIN).level


@given(measured=measurements())
@settings(max_examples=40)
def test_throughput_that_never_falls_is_never_said_to_fall(measured: tuple[Point, ...]) -> None:
    values = sorted(each.throughput for each in measured)
    ordered = sorted(measured, key=lambda each: each.level)
    rising = [
        Point(level=each.level, throughput=value, error=each.error) for each, value in zip(ordered, values, strict=True)
    ]
    found = saturation(rising, margin=MARGIN)
    assert found.state != "falls"
    assert found.rise is None or found.rise >= 0


@given(measured=measurements(at_least=LEAST_LEVELS))
@example(
    measured=tuple(
        Point(level=level, throughput=rate, error=None) for level, rate in ((1, 1.0), (2, 1.0), (932, 1.0), (933, 3.0))
    )
)
@settings(max_examples=60)
def test_whatever_was_measured_the_answer_is_in_order(measured: tuple[Point, ...]) -> None:
    found = saturation(measured, margin=MARGIN)
    assert [each.level for each in found.table] == sorted(each.level for each in measured)
    assert found.plateau is not None
    assert found.lo is not None
    assert 0 < found.lo <= found.plateau * (1 + 1e-9)
    assert found.hi is None or found.hi >= found.plateau * (1 - 1e-9)
    assert found.saturated_at is not None
    assert found.saturated_at > 0
    assert level_for({"only": found}, margin=MARGIN).level in {each.level for each in measured}
    assert sentence(found)
