"""What must hold for every two samples."""

import math
import statistics
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perf.gate import Word
from perf.interval import Bound, Judgement, Spread, judge, outcome
from perf.relations import judge as judge_relation
from tests.unit.simulated import relation

#: No limit on the time of one example: the machine that runs the tests may be busy with anything.
unhurried = settings(deadline=None)

#: Around the margin, where every word is near.
logs = st.floats(-0.2, 0.2)
samples = st.lists(st.floats(90, 110), min_size=1, max_size=8).map(tuple)
bounds = st.builds(
    Bound, margin=st.sampled_from([0.01, 0.03, 0.1]), tail=st.sampled_from([0.01, 0.001]), power=st.just(0.95)
)

#: A verdict may turn within rounding of a threshold.
ROUNDING = 1e-9


def numbers(found: Judgement) -> tuple[float, ...]:
    return (found.change, found.lo, found.hi)


def decided_clearly(found: Judgement, bound: Bound) -> bool:
    edges = (0.0, -bound.margin, 1 / (1 - bound.margin) - 1)
    return all(abs(number - edge) > 1e-6 for number in numbers(found) for edge in edges)


@unhurried
@given(lo=logs, estimate=logs, hi=logs, margin=st.floats(0.001, 0.2))
def test_every_interval_has_exactly_one_of_four_outcomes(lo: float, estimate: float, hi: float, margin: float) -> None:
    lo, estimate, hi = sorted((lo, estimate, hi))
    regressed = hi < 0 and lo <= -margin and estimate <= -margin / 3
    improved = lo > 0 and hi >= margin and estimate >= margin / 3
    passes = not regressed and not improved and lo > -margin
    inconclusive = not regressed and lo <= -margin
    assert [regressed, improved, passes, inconclusive].count(True) == 1
    words = (Word.REGRESSED, Word.IMPROVED, Word.PASS, Word.INCONCLUSIVE)
    assert outcome(lo, hi, estimate, margin) is words[[regressed, improved, passes, inconclusive].index(True)]


@unhurried
@given(lo=logs, estimate=logs, hi=logs, margin=st.floats(0.001, 0.2))
def test_a_pass_excludes_a_loss_of_the_margin_and_red_excludes_no_change(
    lo: float, estimate: float, hi: float, margin: float
) -> None:
    lo, estimate, hi = sorted((lo, estimate, hi))
    word = outcome(lo, hi, estimate, margin)
    if word in (Word.PASS, Word.IMPROVED):
        assert lo > -margin
    if word is Word.REGRESSED:
        assert hi < 0


@unhurried
@given(before=samples, after=samples, bound=bounds, factor=st.floats(1e-3, 1e6))
def test_scaling_both_sides_changes_nothing(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound, factor: float
) -> None:
    found = judge(before, after, bound)
    scaled = judge(tuple(factor * each for each in before), tuple(factor * each for each in after), bound)
    for one, other in zip(numbers(found), numbers(scaled), strict=True):
        assert one == other or abs(one - other) < ROUNDING * max(1, abs(one))
    assume(decided_clearly(found, bound))
    assert found.word is scaled.word


@unhurried
@given(sample=samples, bound=bounds)
def test_a_sample_against_itself_is_never_red(sample: tuple[float, ...], bound: Bound) -> None:
    found = judge(sample, sample, bound)
    assert found.word in (Word.PASS, Word.INCONCLUSIVE)
    assert found.lo <= 0 <= found.hi
    held = judge_relation(relation("a", "b"), {"a": sample, "b": sample}, bound)
    assert held.word in (Word.PASS, Word.INCONCLUSIVE)


@unhurried
@given(before=samples, after=samples, bound=bounds, factor=st.floats(0.5, 0.999))
def test_slowing_every_launch_by_one_factor_never_improves_the_verdict(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound, factor: float
) -> None:
    """The order of verdicts is IMPROVED, PASS, INCONCLUSIVE, REGRESSED; what is slower stays or moves down it."""
    found = judge(before, after, bound)
    slower = judge(before, tuple(factor * each for each in after), bound)
    downhill = (Word.IMPROVED, Word.PASS, Word.INCONCLUSIVE, Word.REGRESSED)
    assert downhill.index(slower.word) >= downhill.index(found.word)


@unhurried
@given(before=samples, after=samples, bound=bounds, data=st.data())
def test_the_order_of_pairs_changes_no_bit(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound, data: st.DataObject
) -> None:
    pairs = list(zip(before, after, strict=False))
    first, second = zip(*data.draw(st.permutations(pairs)), strict=True)
    assert judge(first, second, bound) == judge(before, after, bound)


@unhurried
@given(before=samples, after=samples, bound=bounds)
def test_changing_places_turns_the_change_around(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound
) -> None:
    found, other = judge(before, after, bound), judge(after, before, bound)
    assert abs((1 + found.change) * (1 + other.change) - 1) < ROUNDING
    if found.hi < 1e3:
        assert abs((1 + found.lo) * (1 + other.hi) - 1) < 1e-6


@unhurried
@given(before=samples, after=samples, bound=bounds, spread=st.floats(0.0005, 0.1), freedom=st.floats(1, 40))
def test_tonight_is_never_taken_for_steadier_than_it_was(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound, spread: float, freedom: float
) -> None:
    found = judge(before, after, bound, known=Spread(spread=spread, freedom=freedom))
    differences = [math.log(b / a) for a, b in zip(before, after, strict=False)]
    own = statistics.stdev(differences) if len(differences) > 1 else 0.0
    normal = statistics.NormalDist().inv_cdf(1 - bound.tail)
    assert math.log((1 + found.hi) / (1 + found.lo)) >= 2 * normal * own / math.sqrt(len(differences)) * (1 - 1e-9)


@unhurried
@given(before=samples, after=samples, bound=bounds)
def test_a_wider_margin_never_makes_red_of_a_pass(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound
) -> None:
    found = judge(before, after, bound)
    wider = judge(before, after, replace(bound, margin=min(0.9, 2 * bound.margin)))
    assert numbers(wider) == numbers(found)
    if found.word in (Word.PASS, Word.IMPROVED):
        assert wider.word in (Word.PASS, Word.IMPROVED)
