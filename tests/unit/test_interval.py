"""What is said of launches side by side that somebody could meet: the judgement of relations."""

import math
import random
from dataclasses import replace

import pytest

from perf.gate import Word
from perf.interval import MOST_FREEDOM, Bound, Judgement, Spread, difference, judge, looks, outcome, tail
from tests.unit.simulated import ONE_CASE

MARGIN = 0.03

#: Launches that vary by one percent, known from twenty degrees of freedom.
KNOWN = Spread(spread=0.01, freedom=20)


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


def test_numbers_around_a_floor_give_an_interval_and_no_coin_flip() -> None:
    """sglang-jax#1095: 97.2, 96.8 and 98.4 against a floor of 98."""
    floor, seen = (98.0, 98.0, 98.0), (97.2, 96.8, 98.4)
    found = judge(floor, seen, replace(ONE_CASE, margin=0.05))
    assert found.lo < -0.02 < found.change < 0
    assert found.hi > 0.01
    assert found.word is Word.PASS
    assert judge(floor, seen, replace(ONE_CASE, margin=0.01)).word is Word.INCONCLUSIVE


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


def test_one_launch_on_each_side_says_much_where_the_store_knows_their_noise() -> None:
    """Published: 773 against 354 tok/s at saturation. With launches that vary by 1 %, one of each is enough."""
    found = judge((773.0,), (354.0,), ONE_CASE, known=difference(KNOWN, KNOWN))
    assert found.word is Word.REGRESSED
    assert found.lo < 354 / 773 - 1 < found.hi < -0.5
    assert (found.noise_before, found.noise_after) == (None, None)
    assert found.could_see is not None
    assert judge((101.0,), (100.0,), ONE_CASE, known=difference(KNOWN, KNOWN)).word is Word.INCONCLUSIVE


def test_launches_without_spread_give_a_point() -> None:
    same = judge((100.0,) * 2, (100.0,) * 2, ONE_CASE)
    assert (same.word, same.lo, same.change, same.hi) == (Word.PASS, 0.0, 0.0, 0.0)
    assert same.could_see == pytest.approx(ONE_CASE.margin)
    assert judge((100.0,) * 2, (96.0,) * 2, ONE_CASE).word is Word.REGRESSED
    assert judge((100.0,) * 2, (98.0,) * 2, ONE_CASE).word is Word.PASS
    assert judge((100.0,) * 2, (104.0,) * 2, ONE_CASE).word is Word.IMPROVED


def test_what_moves_both_sides_of_a_night_alike_does_not_count() -> None:
    """A rig that warms by 30 % over the night: a launch is compared with the one beside it."""
    found = judge((100.0, 115.0, 130.0), (97.9, 112.9, 127.1), ONE_CASE)
    assert found.word is Word.PASS
    assert found.noise_before == pytest.approx(0.13, abs=0.01)
    assert found.hi - found.lo < 0.02
    mixed_up = judge((100.0, 115.0, 130.0), (127.1, 97.9, 112.9), ONE_CASE)
    assert mixed_up.word is Word.INCONCLUSIVE


def test_a_launch_without_a_partner_says_nothing() -> None:
    assert judge((100.0, 101.0, 50.0), (99.0, 100.5), ONE_CASE) == judge((100.0, 101.0), (99.0, 100.5), ONE_CASE)
    assert judge((100.0, 101.0), (99.0, 100.5, 50.0), ONE_CASE) == judge((100.0, 101.0), (99.0, 100.5), ONE_CASE)


def test_a_night_noisier_than_the_store_widens_the_interval_and_a_quiet_one_hardly_narrows_it() -> None:
    known = difference(KNOWN, KNOWN)
    quiet, usual, noisy = (
        judge((100.0,) * 4, exact(97.0, cv, 4), ONE_CASE, known=known) for cv in (0.0001, 0.0141, 0.06)
    )
    assert noisy.hi - noisy.lo > 3 * (usual.hi - usual.lo)
    assert 0.8 * (usual.hi - usual.lo) < quiet.hi - quiet.lo < usual.hi - usual.lo
    assert noisy.word is Word.INCONCLUSIVE
    alone = judge((100.0,) * 4, exact(97.0, 0.0141, 4), ONE_CASE)
    assert usual.hi - usual.lo < alone.hi - alone.lo


def test_the_noise_of_a_difference_is_that_of_both_launches_and_rests_on_the_worse_known() -> None:
    found = difference(Spread(spread=0.03, freedom=2), Spread(spread=0.04, freedom=4))
    assert found is not None
    assert found.spread == pytest.approx(0.05)
    assert found.freedom == pytest.approx(0.05**4 / (0.03**4 / 2 + 0.04**4 / 4))
    assert difference(KNOWN, None) is None
    assert difference(None, KNOWN) is None
    large = Spread(spread=0.01, freedom=1e6)
    much = difference(large, large)
    assert much is not None
    assert much.freedom == MOST_FREEDOM


def test_numbers_are_shown_as_they_were_measured() -> None:
    found = judge((100.0, 121.0), (90.0, 90.0, 90.0), ONE_CASE)
    assert found.before == pytest.approx(110.0)
    assert found.after == pytest.approx(90.0)
    assert (found.launches_before, found.launches_after) == (2, 2)
    assert found.change == pytest.approx(90 / 110 - 1)
    assert found.noise_after == pytest.approx(0.0)


def test_the_error_is_divided_over_everything_the_suite_may_say() -> None:
    """Every verdict at every look, added up, is the suite's alpha."""
    schedule = looks(1, 12)
    assert math.fsum([tail(0.01, 17, len(schedule))] * 17 * len(schedule)) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("first", "cap", "schedule"),
    [
        (2, 8, (2, 4, 8)),
        (2, 1, (1,)),
        (2, 2, (2,)),
        (2, 3, (2, 3)),
        (1, 12, (1, 2, 4, 8, 12)),
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


def share_found(loss: float, cv: float, pairs: int, known: Spread | None, *, nights: int = 1500) -> float:
    """How often a loss is REGRESSED, by the judgement itself; differences vary by `cv`."""
    luck = random.Random(7)

    def night() -> Judgement:
        after = tuple((1 - loss) * math.exp(luck.gauss(0, cv)) for _ in range(pairs))
        return judge((1.0,) * pairs, after, ONE_CASE, known=known)

    return sum(night().word is Word.REGRESSED for _ in range(nights)) / nights


@pytest.mark.parametrize(("cv", "pairs", "freedom"), [(0.001, 12, 0), (0.01, 4, 8), (0.03, 12, 0), (0.08, 12, 8)])
def test_a_loss_of_the_size_it_could_see_is_found_with_the_stated_power(cv: float, pairs: int, freedom: int) -> None:
    known = Spread(spread=cv, freedom=freedom) if freedom else None
    found = judge(exact(100, 0.0, pairs), exact(100, cv, pairs), ONE_CASE, known=known)
    assert found.noise_after == pytest.approx(cv)
    assert found.could_see is not None
    assert ONE_CASE.power - 0.06 < share_found(found.could_see, cv, pairs, known) <= 0.995
    assert share_found(found.could_see / 2, cv, pairs, known) < 0.55


def test_the_launches_it_asks_for_find_a_loss_of_the_margin() -> None:
    known = Spread(spread=0.02, freedom=20)
    found = judge(exact(100, 0.0, 4), exact(100, 0.02, 4), ONE_CASE, known=known)
    assert found.launches_needed is not None
    assert share_found(0.03, 0.02, 4, known) < 0.7
    assert ONE_CASE.power - 0.05 < share_found(0.03, 0.02, 4 + found.launches_needed, known)


def test_it_asks_for_no_launches_where_even_very_many_would_not_do() -> None:
    assert judge(exact(100, 0.0, 3), exact(100, 0.3, 3), ONE_CASE).launches_needed is None


@pytest.mark.parametrize(("pairs", "freedom"), [(1, 3), (1, 20), (2, 0), (2, 10), (4, 0), (4, 20)])
def test_the_interval_misses_the_truth_no_more_often_than_it_says(pairs: int, freedom: int) -> None:
    """Stored launches and tonight's are drawn anew each time, so what is known is as wrong as it would be."""
    luck, bound, nights = random.Random(11), replace(ONE_CASE, tail=0.02), 4000
    missed = 0
    for _ in range(nights):
        squares = sum(luck.gauss(0, 0.01) ** 2 for _ in range(freedom))
        known = Spread(spread=math.sqrt(squares / freedom), freedom=freedom) if freedom else None
        found = judge((1.0,) * pairs, tuple(math.exp(luck.gauss(0, 0.01)) for _ in range(pairs)), bound, known=known)
        missed += not found.lo <= 0 <= found.hi
    assert missed / nights < 2 * bound.tail + 4 * math.sqrt(2 * bound.tail / nights)
