"""What is said of two samples that somebody could meet: the judgement of relations, and of what moved."""

import math
import random

import pytest

from perf.gate import Word
from perf.interval import Bound, Judgement, judge, looks, outcome, tail
from tests.unit.simulated import ONE_CASE

MARGIN = 0.03


@pytest.mark.parametrize(
    ("position", "lo", "hi", "word"),
    [
        ("below the margin", -0.05, -0.04, Word.REGRESSED),
        ("over the margin, below no change", -0.05, -0.01, Word.REGRESSED),
        ("over the margin and over no change", -0.05, 0.01, Word.INCONCLUSIVE),
        ("between margin and no change", -0.02, -0.01, Word.PASS),
        ("over no change, inside the margins", -0.02, 0.02, Word.PASS),
        ("above no change, over a gain of the margin", 0.01, 0.05, Word.IMPROVED),
        # The same six at their edges, and what a wide or a one-sided interval says.
        ("up to no change exactly", -0.05, 0.0, Word.INCONCLUSIVE),
        ("from the margin exactly", -0.03, -0.01, Word.REGRESSED),
        ("just above the margin", math.nextafter(-0.03, 0), -0.01, Word.PASS),
        ("from no change exactly", 0.0, 0.06, Word.PASS),
        ("up to a gain of the margin exactly", 0.01, 0.03, Word.IMPROVED),
        ("above no change, below a gain of the margin", 0.01, 0.02, Word.PASS),
        ("over everything but a loss of the margin", -0.02, 0.5, Word.PASS),
        ("everything", -math.inf, math.inf, Word.INCONCLUSIVE),
    ],
)
def test_every_position_of_an_interval_has_its_verdict(position: str, lo: float, hi: float, word: Word) -> None:
    estimate = (lo + hi) / 2 if math.isfinite(lo + hi) else 0.0
    assert outcome(lo, hi, estimate, MARGIN) is word, position


def test_an_immaterial_estimate_is_never_red_however_sure() -> None:
    assert outcome(-0.031, -0.001, -MARGIN / 3, MARGIN) is Word.REGRESSED
    assert outcome(-0.031, -0.001, math.nextafter(-MARGIN / 3, 0), MARGIN) is Word.INCONCLUSIVE
    assert outcome(0.001, 0.031, math.nextafter(MARGIN / 3, 0), MARGIN) is Word.PASS


def test_the_margin_is_a_relative_loss_and_is_not_rounded() -> None:
    assert Bound(margin=0.03, tail=0.01, power=0.95).log_margin == pytest.approx(-math.log(0.97))
    assert judge((1000.0, 1000.0), (969.999, 969.999), ONE_CASE).word is Word.REGRESSED
    assert judge((1000.0, 1000.0), (970.001, 970.001), ONE_CASE).word is Word.PASS  # sglang-omni#2095


def test_a_slower_latency_is_a_regression_and_not_a_gain() -> None:
    """TensorRT-LLM#18741: TPOT rose from 6.08 to 15.24 ms and was listed as an improvement."""
    before, after = (6.05, 6.08, 6.11), (15.20, 15.24, 15.28)
    slower = judge(before, after, ONE_CASE, higher_is_better=False)
    assert slower.word is Word.REGRESSED
    assert slower.change == pytest.approx(1.5066, abs=1e-3)
    assert 0 < slower.lo < slower.change < slower.hi
    assert judge(after, before, ONE_CASE, higher_is_better=False).word is Word.IMPROVED
    assert judge(before, after, ONE_CASE).word is Word.IMPROVED  # as throughput it would be one


def test_numbers_around_a_floor_give_an_interval_and_no_coin_flip() -> None:
    """sglang-jax#1095: 97.2, 96.8 and 98.4 against a floor of 98."""
    found = judge((98.0, 98.0, 98.0), (97.2, 96.8, 98.4), ONE_CASE)
    assert found.lo < -0.02 < found.change < 0
    assert found.hi > 0.01
    assert found.word is Word.PASS
    assert judge((98.0, 98.0, 98.0), (97.2, 96.8, 98.4), Bound(margin=0.01, tail=0.01, power=0.95)).word is (
        Word.INCONCLUSIVE
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_number_that_is_no_throughput_is_an_error_and_never_a_skip(bad: float, place: str) -> None:
    good, damaged = (100.0, 101.0), (100.0, bad)
    with pytest.raises(ValueError, match="positive numbers, one for each launch"):
        judge(*((damaged, good) if place == "before" else (good, damaged)), ONE_CASE)


def test_a_sample_without_launches_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"seen \[\]"):
        judge((), (100.0,), ONE_CASE)
    with pytest.raises(ValueError, match=r"seen \[\]"):
        judge((100.0,), (), ONE_CASE)


def test_one_launch_on_each_side_says_nothing_of_noise() -> None:
    found = judge((100.0,), (50.0,), ONE_CASE)
    assert (found.word, found.lo, found.hi) == (Word.INCONCLUSIVE, -1.0, math.inf)
    assert found.change == pytest.approx(-0.5)
    assert (found.noise_before, found.noise_after, found.could_see, found.launches_needed) == (None,) * 4


def test_launches_without_spread_give_a_point() -> None:
    same = judge((100.0,) * 4, (100.0,) * 2, ONE_CASE)
    assert (same.word, same.lo, same.change, same.hi) == (Word.PASS, 0.0, 0.0, 0.0)
    assert same.could_see == pytest.approx(ONE_CASE.margin)
    assert judge((100.0,) * 4, (96.0,) * 2, ONE_CASE).word is Word.REGRESSED
    assert judge((100.0,) * 4, (98.0,) * 2, ONE_CASE).word is Word.PASS
    assert judge((100.0,) * 4, (104.0,) * 2, ONE_CASE).word is Word.IMPROVED


def test_a_noisy_night_widens_the_interval_and_never_narrows_it() -> None:
    quiet = judge((99.0, 100.0, 101.0, 100.0), (97.0, 97.4), ONE_CASE)
    noisy = judge((99.0, 100.0, 101.0, 100.0), (92.0, 102.7), ONE_CASE)
    assert noisy.hi - noisy.lo > 3 * (quiet.hi - quiet.lo)
    assert noisy.word is Word.INCONCLUSIVE


def test_numbers_are_shown_as_they_were_measured() -> None:
    found = judge((100.0, 121.0), (90.0, 90.0, 90.0), ONE_CASE)
    assert found.before == pytest.approx(110.0)
    assert found.after == pytest.approx(90.0)
    assert (found.launches_before, found.launches_after) == (2, 3)
    assert found.change == pytest.approx(90 / 110 - 1)
    assert found.noise_after == pytest.approx(0.0)


def test_the_error_is_divided_over_everything_the_suite_may_say() -> None:
    """Every verdict at every look, added up, is the suite's alpha."""
    schedule = looks(2, 8)
    assert math.fsum([tail(0.01, 17, len(schedule))] * 17 * len(schedule)) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("first", "cap", "schedule"),
    [
        (2, 8, (2, 4, 8)),
        (2, 1, (1,)),
        (2, 2, (2,)),
        (2, 3, (2, 3)),
        (2, 12, (2, 4, 8, 12)),
        (2, 100, (2, 4, 8, 16, 32, 64, 100)),
    ],
)
def test_looks_double_up_to_the_cap(first: int, cap: int, schedule: tuple[int, ...]) -> None:
    assert looks(first, cap) == schedule


# What it says it could have seen


def exact(center: float, cv: float, launches: int) -> tuple[float, ...]:
    """Launches whose logarithms have exactly this mean and standard deviation."""
    steps = [index - (launches - 1) / 2 for index in range(launches)]
    unit = math.sqrt(math.fsum(step * step for step in steps) / (launches - 1))
    return tuple(center * math.exp(cv * step / unit) for step in steps)


def share_found(loss: float, cv: float, before: int, after: int, *, nights: int = 1500) -> float:
    """How often a loss is REGRESSED, by the judgement itself."""
    luck = random.Random(7)

    def night() -> Judgement:
        return judge(
            tuple(math.exp(luck.gauss(0, cv)) for _ in range(before)),
            tuple((1 - loss) * math.exp(luck.gauss(0, cv)) for _ in range(after)),
            ONE_CASE,
        )

    return sum(night().word is Word.REGRESSED for _ in range(nights)) / nights


@pytest.mark.parametrize(("cv", "before", "after"), [(0.001, 4, 4), (0.01, 8, 4), (0.03, 8, 8), (0.08, 20, 10)])
def test_a_loss_of_the_size_it_could_see_is_found_with_the_stated_power(cv: float, before: int, after: int) -> None:
    found = judge(exact(100, cv, before), exact(100, cv, after), ONE_CASE)
    assert found.noise_before == pytest.approx(cv)
    assert found.could_see is not None
    assert ONE_CASE.power - 0.05 < share_found(found.could_see, cv, before, after) <= 0.995
    assert share_found(found.could_see / 2, cv, before, after) < 0.5


def test_the_launches_it_asks_for_find_a_loss_of_the_margin() -> None:
    found = judge(exact(100, 0.02, 16), exact(100, 0.02, 4), ONE_CASE)
    assert found.launches_needed is not None
    assert share_found(0.03, 0.02, 16, 4) < 0.6
    assert ONE_CASE.power - 0.05 < share_found(0.03, 0.02, 16, 4 + found.launches_needed)


def test_it_asks_for_no_launches_where_the_store_is_what_is_too_small() -> None:
    assert judge(exact(100, 0.03, 3), exact(100, 0.03, 8), ONE_CASE).launches_needed is None
