"""A crossover is where the faster variant changes, said as surely as the launches allow; it may not move down."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from perf.crossover import (
    SCHEMA,
    Contrast,
    Crossing,
    StoredCrossover,
    StoredLevel,
    contrast,
    is_sound,
    judge,
    locate,
    not_comparable,
    sentence,
)
from perf.gate import Word
from perf.interval import Spread

TAIL = 0.001
MARGIN = 0.03
LEVELS = (1, 4, 16, 64)


def ratios(*percent: float, error: float | None = 0.002, levels: Sequence[int] = LEVELS) -> tuple[Contrast, ...]:
    """By how many percent the second is faster, level by level."""
    return tuple(
        Contrast(
            level=level,
            log_ratio=math.log1p(each / 100),
            error=error,
            freedom=None if error is None else 20,
        )
        for level, each in zip(levels, percent, strict=True)
    )


def found(*percent: float, error: float | None = 0.002, levels: Sequence[int] = LEVELS) -> Crossing:
    return locate(ratios(*percent, error=error, levels=levels), tail=TAIL)


def stored(contrasts: Sequence[Contrast], *, tail: float = TAIL) -> StoredCrossover:
    crossing = locate(contrasts, tail=tail)
    return StoredCrossover(
        schema=SCHEMA,
        crossover="night/expect/crossover-of-eagle3-and-baseline",
        first="eagle3",
        second="baseline",
        power_limits_w=(450.0,),
        simulated_acceptance=(None, None),
        tail=tail,
        levels=tuple(
            StoredLevel(workload_digest=f"digest {each.level}", contrast=each, launches_first=4, launches_second=4)
            for each in contrasts
        ),
        estimate=crossing.estimate,
        lo=crossing.lo,
        hi=crossing.hi,
        campaign="20261129-020000",
        reason="first",
        promoted_at="2026-11-29T08:00:00+00:00",
    )


def words(crossing: Crossing) -> str:
    return sentence(crossing, "eagle3", "baseline")


# Where it is.


def test_the_published_speculation_pays_at_no_level() -> None:
    """92.7 against 80.9 tok/s alone, 157.7 against 128.3 with two, 773 against 354 at saturation."""
    pairs = {1: (80.9, 92.7), 2: (128.3, 157.7), 30: (354.0, 773.0)}
    known = Spread(spread=0.01, freedom=10)
    crossing = locate(
        [contrast(level, (a,), (b,), known_first=known, known_second=known) for level, (a, b) in pairs.items()],
        tail=TAIL,
    )
    assert (crossing.shape, crossing.estimate, crossing.lo, crossing.hi) == ("second", None, None, 1.0)
    assert words(crossing) == "baseline is faster from the lowest level on, c=1"


def test_speculation_that_is_slower_at_the_lowest_level_has_its_crossover_at_or_below_it() -> None:
    """inference-perf's KubeCon data: 63 against 64 tok/s at the lowest rate, 4278 against 6431 at saturation."""

    def crossing(noise: float) -> Crossing:
        known = Spread(spread=noise, freedom=10)
        pairs = {1: (63.0, 64.0), 64: (4278.0, 6431.0)}
        return locate(
            [contrast(level, (a,), (b,), known_first=known, known_second=known) for level, (a, b) in pairs.items()],
            tail=TAIL,
        )

    assert (crossing(0.002).shape, crossing(0.002).hi) == ("second", 1.0)
    noisy = crossing(0.01)  # the lead of 1.6 % is not shown by single launches that vary by 1 %
    assert (noisy.estimate, noisy.lo, noisy.second_faster) == (None, None, (64,))
    assert words(noisy) == "baseline is faster from c=64 on; whether eagle3 is below, cannot be told"


def test_a_crossover_is_found_between_the_levels_that_enclose_it() -> None:
    crossing = found(-20, -5, 5, 20)
    assert crossing.shape == "crosses"
    assert (crossing.first_faster, crossing.second_faster) == ((1, 4), (16, 64))
    assert crossing.estimate == pytest.approx(8.1, abs=0.2)
    assert crossing.lo is not None
    assert crossing.hi is not None
    assert 4 < crossing.lo < 8 < crossing.hi < 16
    assert words(crossing) == "eagle3 is faster up to about c=8.1, baseline from there on (between c=7.3 and c=9.1)"


def test_the_variant_that_is_faster_everywhere_is_said_to_be() -> None:
    crossing = found(-20, -15, -12, -10)
    assert (crossing.shape, crossing.lo, crossing.hi) == ("first", 64.0, None)
    assert words(crossing) == "eagle3 is faster at every level, c=1 to c=64"


def test_what_cannot_be_told_is_said_with_what_can() -> None:
    assert words(found(-20, -5, 0, 0)) == "eagle3 is faster up to c=4; from where on baseline is, cannot be told"
    assert words(found(0, 0, 5, 20)) == "baseline is faster from c=16 on; whether eagle3 is below, cannot be told"
    assert words(found(1, -1, 0, 1, error=0.02)) == (
        "cannot tell whether eagle3 or baseline is faster, between c=1 and c=64"
    )


def test_noise_between_two_sure_sides_is_smoothed_and_widens_the_interval() -> None:
    crossing = found(-20, 1, -1, 20, error=0.01)
    assert crossing.shape == "crosses"
    assert (crossing.first_faster, crossing.second_faster) == ((1,), (64,))
    assert crossing.estimate == pytest.approx(8, rel=0.02)
    assert crossing.lo is not None
    assert crossing.hi is not None
    assert 1 < crossing.lo < 4
    assert 16 < crossing.hi < 64


def test_levels_that_contradict_each_other_are_taken_together_in_their_middle() -> None:
    """+1 % at 4 and -6 % at 16 are -2.6 % at 8, on the way to +20 % at 64."""
    together = (math.log1p(0.01) + math.log1p(-0.06)) / 2
    expected = 8 * 8 ** (-together / (math.log1p(0.2) - together))
    assert found(-20, 1, -6, 20, error=0.02).estimate == pytest.approx(expected)


def test_a_noisy_level_does_not_draw_the_estimate() -> None:
    steady = ratios(-20, 3, -5, 20)
    noisy = (steady[0], replace(steady[1], error=0.5), *steady[2:])
    estimate = locate(noisy, tail=TAIL).estimate
    assert estimate is not None
    assert estimate > 16


def test_sides_that_change_twice_are_not_made_into_one_crossover() -> None:
    crossing = found(-20, 10, -10, 20)
    assert (crossing.shape, crossing.estimate, crossing.lo, crossing.hi) == ("mixed", None, None, None)
    assert words(crossing) == (
        "eagle3 is faster at c=1, c=16, baseline at c=4, c=64: no one level from which baseline is faster"
    )


def test_a_crossover_that_is_written_the_wrong_way_round_says_how_to_write_it() -> None:
    crossing = found(20, 10, -10, -20)
    assert crossing.shape == "mixed"
    assert words(crossing).endswith('the other way round, write crossover = ["baseline", "eagle3"]')


def test_a_lead_that_grows_and_shrinks_again_is_still_one_crossover() -> None:
    crossing = found(-5, -20, 20, 10)
    assert (crossing.shape, crossing.first_faster, crossing.second_faster) == ("crosses", (1, 4), (16, 64))
    assert crossing.estimate == pytest.approx(4 * 4 ** (math.log(0.8) / (math.log(0.8) - math.log(1.2))))


def test_one_level_has_a_faster_variant_or_cannot_tell() -> None:
    assert found(-20, levels=(8,)).shape == "first"
    assert found(20, levels=(8,)).shape == "second"
    assert found(0, levels=(8,)).shape == "open"
    assert found(0, levels=(8,)).estimate == 8


def test_without_any_noise_known_nothing_is_shown() -> None:
    crossing = found(-20, -5, 5, 20, error=None)
    assert (crossing.shape, crossing.lo, crossing.hi) == ("open", None, None)
    assert crossing.estimate == pytest.approx(8.1, abs=0.2)


@pytest.mark.parametrize("levels", [(), (8, 8)])
def test_levels_that_make_no_crossover_are_refused(levels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one contrast for each level"):
        found(*[1.0] * len(levels), levels=levels)


# One level.


def test_the_ratio_of_two_samples_is_that_of_their_geometric_means() -> None:
    one = contrast(8, (100.0, 110.0), (120.0, 130.0))
    assert one.log_ratio == pytest.approx(math.log(120 * 130 / (100 * 110)) / 2)
    # Of two launches that differ by d in logarithms, the variance of their mean is d squared over four.
    assert one.error == pytest.approx(math.hypot(math.log(1.1), math.log(130 / 120)) / 2)
    assert one.freedom is not None
    assert 1 <= one.freedom <= 2


def test_what_is_known_of_the_noise_steadies_a_few_launches_and_never_hides_a_noisy_night() -> None:
    known = Spread(spread=0.01, freedom=20)
    few = contrast(8, (100.0, 100.5), (120.0, 120.5))
    steadied = contrast(8, (100.0, 100.5), (120.0, 120.5), known_first=known, known_second=known)
    assert few.freedom is not None
    assert steadied.freedom is not None
    assert steadied.freedom > 8 * few.freedom
    noisy = contrast(8, (80.0, 120.0), (120.0, 120.5), known_first=known, known_second=known)
    assert noisy.error is not None
    assert noisy.error > math.log(120 / 80) / 2


def test_one_launch_of_each_has_no_error_unless_it_is_known() -> None:
    assert (contrast(8, (100.0,), (120.0,)).error, contrast(8, (100.0,), (120.0, 121.0)).error) == (None, None)


def test_emulated_launches_that_agree_to_the_last_bit_still_have_an_error() -> None:
    one = contrast(8, (100.0, 100.0), (120.0, 120.0))
    assert one.error is not None
    assert 0 < one.error < 0.001


@pytest.mark.parametrize("wrong", [(), (0.0,), (100.0, -1.0), (math.inf,), (math.nan,)])
def test_a_sample_that_is_none_is_refused(wrong: tuple[float, ...]) -> None:
    for first, second in ((wrong, (100.0,)), ((100.0,), wrong)):
        with pytest.raises(ValueError, match="positive numbers"):
            contrast(8, first, second)


# The verdict.


def verdict(*tonight: float, before: tuple[float, ...] = (-20, -5, 5, 20), error: float | None = 0.002) -> Word:
    return judge(stored(ratios(*before)), ratios(*tonight, error=error), margin=MARGIN, tail=TAIL).word


def test_the_same_crossover_passes() -> None:
    assert verdict(-20, -5, 5, 20) is Word.PASS


def test_a_crossover_that_moved_down_is_violated() -> None:
    result = judge(stored(ratios(-20, -5, 5, 20)), ratios(-20, 6, 8, 20), margin=MARGIN, tail=TAIL)
    assert result.word is Word.VIOLATED
    assert [each.word for each in result.levels] == [Word.PASS, Word.VIOLATED, None, None]
    lost = result.levels[1]
    assert lost.advantage == pytest.approx(1 / 1.06 - 1)
    assert lost.lo < lost.advantage < lost.hi < -MARGIN
    assert result.crossing.shape == "crosses"


def test_a_loss_within_the_margin_is_no_violation_though_the_crossover_moved() -> None:
    assert verdict(-20, 1, 5, 20) is Word.PASS


def test_a_loss_that_may_be_beyond_the_margin_is_inconclusive_and_says_which() -> None:
    result = judge(stored(ratios(-20, -5, 5, 20)), ratios(-20, 3, 8, 20), margin=MARGIN, tail=TAIL)
    assert result.word is Word.INCONCLUSIVE
    assert [note for note in result.notes if "not excluded" in note] == [
        f"at c=4 a loss of up to {-100 * result.levels[1].lo:.1f} % is not excluded"
    ]


def test_a_loss_where_the_first_never_paid_is_not_the_crossovers() -> None:
    assert verdict(-20, -5, 50, 90) is Word.PASS


def test_launches_too_few_to_know_their_noise_decide_nothing() -> None:
    result = judge(stored(ratios(-20, -5, 5, 20)), ratios(-20, -5, 5, 20, error=None), margin=MARGIN, tail=TAIL)
    assert result.word is Word.INCONCLUSIVE
    assert "at c=1 nothing is excluded: the noise of one launch is not known" in result.notes


def test_a_crossover_that_moved_up_passes_with_a_note() -> None:
    result = judge(stored(ratios(-20, -5, 5, 20)), ratios(-30, -20, -5, 20), margin=MARGIN, tail=TAIL)
    assert result.word is Word.PASS
    assert result.notes == (
        "the crossover moved up: eagle3 is faster at c=16, where baseline was; promote it to hold that",
    )


def test_a_variant_that_never_paid_cannot_stop_paying() -> None:
    result = judge(stored(ratios(15, 20, 50, 110)), ratios(15, 20, 60, 120), margin=MARGIN, tail=TAIL)
    assert result.word is Word.PASS
    assert result.notes == ("the stored crossover shows eagle3 faster at no level, so it cannot move down",)


def test_without_a_stored_crossover_there_is_no_verdict_but_the_estimate() -> None:
    result = judge(None, ratios(-20, -5, 5, 20), margin=MARGIN, tail=TAIL)
    assert (result.word, result.crossing) == (Word.NO_BASELINE, found(-20, -5, 5, 20))
    assert result.why == "no crossover is stored for these variants on this rig"
    assert [each.word for each in result.levels] == [None] * 4


def test_a_level_between_those_stored_is_held_to_what_they_say() -> None:
    tonight = ratios(-20, 6, 8, levels=(1, 2, 16))
    result = judge(stored(ratios(-20, -5, 5, 20)), tonight, margin=MARGIN, tail=TAIL)
    assert [each.word for each in result.levels] == [Word.PASS, Word.VIOLATED, None]


def test_a_stored_crossover_below_every_level_of_tonight_says_nothing() -> None:
    tonight = ratios(5, 20, levels=(16, 64))
    result = judge(stored(ratios(-20, -5, 5, 20)), tonight, margin=MARGIN, tail=TAIL)
    assert result.word is Word.NO_BASELINE
    assert result.why == "the stored crossover has eagle3 faster at c=1, c=4, and tonight has no such level"


def test_of_a_stored_crossover_that_is_none_only_what_was_shown_is_held() -> None:
    before = stored(ratios(-20, 10, -10, 20))
    words_of = [each.word for each in judge(before, ratios(10, 10, 10, 10), margin=MARGIN, tail=TAIL).levels]
    assert words_of == [Word.VIOLATED, None, Word.VIOLATED, None]


# What is stored.


def test_a_stored_crossover_survives_json_unchanged() -> None:
    adapter = TypeAdapter(StoredCrossover)
    for percent in ((-20, -5, 5, 20), (15, 20, 50, 110), (-20, -15, -12, -10), (-20, 10, -10, 20)):
        one = stored(ratios(*percent))
        again = adapter.validate_json(adapter.dump_json(one), strict=True)
        assert again == one
        assert is_sound(again)


def test_a_stored_crossover_without_a_known_noise_is_sound_and_shows_nothing() -> None:
    one = stored(ratios(-20, -5, 5, 20, error=None))
    assert is_sound(one)
    result = judge(one, ratios(30, 30, 30, 30), margin=MARGIN, tail=TAIL)
    assert result.word is Word.PASS
    assert result.notes == ("the stored crossover shows eagle3 faster at no level, so it cannot move down",)


def test_a_stored_crossover_that_does_not_follow_from_its_levels_is_not_sound() -> None:
    one = stored(ratios(-20, -5, 5, 20))
    first = one.levels[0]
    assert one.estimate is not None
    for wrong in (
        replace(one, schema=SCHEMA + 1),
        replace(one, estimate=one.estimate * 1.01),
        replace(one, lo=None),
        replace(one, hi=12.0),
        replace(one, second="eagle3"),
        replace(one, tail=0.0),
        replace(one, tail=math.nan),
        replace(one, levels=()),
        replace(one, levels=one.levels[::-1]),
        replace(one, levels=(first, *one.levels)),
        replace(one, levels=(replace(first, launches_first=0), *one.levels[1:])),
        *(
            replace(one, levels=(replace(first, contrast=each), *one.levels[1:]))
            for value in (math.nan, math.inf)
            for each in (
                replace(first.contrast, log_ratio=value),
                replace(first.contrast, error=value),
                replace(first.contrast, freedom=value),
            )
        ),
        replace(one, levels=(replace(first, contrast=replace(first.contrast, error=0.0)), *one.levels[1:])),
        replace(one, levels=(replace(first, contrast=replace(first.contrast, error=None)), *one.levels[1:])),
        replace(one, levels=(replace(first, contrast=replace(first.contrast, level=0)), *one.levels[1:])),
    ):
        assert not is_sound(wrong)


def test_a_stored_crossover_of_another_workload_or_rig_state_is_not_judged_against() -> None:
    one = stored(ratios(-20, -5, 5, 20))
    same = {level: f"digest {level}" for level in LEVELS}

    def why(
        digests: dict[int, str] = same,
        power: tuple[float | None, ...] = (450.0,),
        simulated: tuple[str | None, str | None] = (None, None),
    ) -> str | None:
        return not_comparable(one, digests=digests, power_limits_w=power, simulated_acceptance=simulated)

    assert why() is None
    assert why({2: "a new level"}) is None
    assert why(same | {16: "other"}) == "the stored crossover was asked another workload at c=16"
    assert why(power=(400.0,)) == "the stored crossover ran under other power limits"
    assert why(simulated=("3.0", None)) == "acceptance is not simulated as it was for the stored crossover"


# How often it is wrong.


def night(
    generator: np.random.Generator, truth: Sequence[float], noise: tuple[float, float], count: int
) -> list[Contrast]:
    """A simulated night: each launch moves all its levels alike, and each level by itself."""
    first = generator.normal(0, noise[0], (count, 1)) * 0.7 + generator.normal(0, noise[0], (count, len(truth))) * 0.7
    second = generator.normal(0, noise[1], (count, 1)) * 0.7 + generator.normal(0, noise[1], (count, len(truth))) * 0.7
    return [
        contrast(
            LEVELS[index],
            tuple(np.exp(first[:, index]).tolist()),
            tuple(np.exp(second[:, index] + truth[index]).tolist()),
        )
        for index in range(len(truth))
    ]


@pytest.mark.parametrize("truth", [(-0.06, -0.02, 0.02, 0.06), (0.0, 0.02, 0.04, 0.06), (-0.2, -0.001, 0.0, 0.2)])
def test_the_interval_and_the_sides_are_wrong_no_more_often_than_stated(truth: tuple[float, ...]) -> None:
    """A tail of 5 % on each side; 600 nights with a fixed seed, a speculative variant five times as noisy."""
    generator = np.random.default_rng(11)
    below, above = 0, 0
    place = next(
        a + (b - a) * -low / (high - low)
        for (a, low), (b, high) in pairwise(zip(map(math.log2, LEVELS), truth, strict=True))
        if low <= 0 < high
    )
    for _ in range(600):
        crossing = locate(night(generator, truth, (0.02, 0.004), 5), tail=0.05)
        too_high = crossing.lo is not None and math.log2(crossing.lo) > place + 1e-9
        too_low = crossing.hi is not None and math.log2(crossing.hi) < place - 1e-9
        below += too_low or any(truth[LEVELS.index(each)] <= 0 for each in crossing.second_faster)
        above += too_high or any(truth[LEVELS.index(each)] >= 0 for each in crossing.first_faster)
    # 43 of 600 would happen to a rule that is wrong 5 % of the time in 1 of 100 such tests.
    assert below <= 43
    assert above <= 43


def test_an_unchanged_crossover_is_violated_no_more_often_than_stated() -> None:
    """The worst case: where the first was shown faster it is exactly a margin slower, by luck of the stored night."""
    generator = np.random.default_rng(13)
    margin = -math.log1p(-MARGIN)
    before = stored(ratios(-5, -5, -5, 20))
    counted: Counter[Word] = Counter()
    for _ in range(600):
        tonight = night(generator, (margin, margin, margin, 0.2), (0.02, 0.004), 5)
        counted[judge(before, tonight, margin=MARGIN, tail=0.05).word] += 1
    assert counted[Word.VIOLATED] <= 43
    assert counted[Word.PASS] <= 43


def test_a_clear_loss_is_found_and_a_clear_lead_is_held() -> None:
    generator = np.random.default_rng(17)
    before = stored(ratios(-20, -10, 5, 20))
    lost: Counter[Word] = Counter()
    held: Counter[Word] = Counter()
    for _ in range(100):
        lost[
            judge(before, night(generator, (-0.2, 0.1, 0.1, 0.2), (0.01, 0.004), 5), margin=MARGIN, tail=TAIL).word
        ] += 1
        held[
            judge(before, night(generator, (-0.2, -0.1, 0.05, 0.2), (0.01, 0.004), 5), margin=MARGIN, tail=TAIL).word
        ] += 1
    assert lost[Word.VIOLATED] >= 80
    assert held[Word.PASS] >= 95
    assert held[Word.VIOLATED] == 0


# For any measurement.


@st.composite
def any_contrasts(draw: st.DrawFn) -> tuple[Contrast, ...]:
    levels = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True))
    errors = st.one_of(st.none(), st.floats(5e-4, 0.1))
    made = []
    for level in levels:
        error = draw(errors)
        made.append(
            Contrast(
                level=level,
                log_ratio=draw(st.one_of(st.just(0.0), st.floats(-0.5, 0.5))),
                error=error,
                freedom=None if error is None else draw(st.floats(1, 50)),
            )
        )
    return tuple(made)


@given(contrasts=any_contrasts())
def test_whatever_was_measured_the_answer_is_in_order(contrasts: tuple[Contrast, ...]) -> None:
    crossing = locate(contrasts, tail=TAIL)
    levels = sorted(each.level for each in contrasts)
    assert crossing.levels == tuple(levels)
    assert not set(crossing.first_faster) & set(crossing.second_faster)
    lo, hi = crossing.lo or 0.0, crossing.hi or math.inf
    assert lo <= hi * (1 + 1e-12)
    if crossing.estimate is not None:
        assert lo * (1 - 1e-12) <= crossing.estimate <= hi * (1 + 1e-12)
        assert levels[0] * (1 - 1e-12) <= crossing.estimate <= levels[-1] * (1 + 1e-12)
    if crossing.shape != "mixed":
        assert crossing.first_faster + crossing.second_faster == tuple(
            level for level in levels if level in crossing.first_faster + crossing.second_faster
        )
        assert all(level <= lo * (1 + 1e-12) for level in crossing.first_faster)
        assert all(level >= hi * (1 - 1e-12) for level in crossing.second_faster)
    assert sentence(crossing, "eagle3", "baseline")


@given(contrasts=any_contrasts(), data=st.data())
def test_the_order_of_the_levels_changes_nothing(contrasts: tuple[Contrast, ...], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(contrasts))
    assert locate(shuffled, tail=TAIL) == locate(contrasts, tail=TAIL)
    before = stored(sorted(contrasts, key=lambda each: each.level))
    assert judge(before, shuffled, margin=MARGIN, tail=TAIL) == judge(before, contrasts, margin=MARGIN, tail=TAIL)


@given(contrasts=any_contrasts())
def test_a_crossover_against_itself_is_never_violated_nor_moved(contrasts: tuple[Contrast, ...]) -> None:
    result = judge(stored(sorted(contrasts, key=lambda each: each.level)), contrasts, margin=MARGIN, tail=TAIL)
    assume(result.crossing.shape != "mixed")
    assert result.word in (Word.PASS, Word.INCONCLUSIVE)
    assert not any("moved up" in note for note in result.notes)


@given(
    samples=st.lists(
        st.tuples(
            st.lists(st.floats(50, 200), min_size=1, max_size=5),
            st.lists(st.floats(50, 200), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=6,
    ),
    factor=st.floats(1e-3, 1e3),
    data=st.data(),
)
def test_units_and_the_order_of_launches_change_nothing(
    samples: list[tuple[list[float], list[float]]], factor: float, data: st.DataObject
) -> None:
    for level, (first, second) in enumerate(samples, 1):
        one = contrast(level, first, second)
        assert contrast(level, data.draw(st.permutations(first)), data.draw(st.permutations(second))) == one
        scaled = contrast(level, [factor * each for each in first], [factor * each for each in second])
        assert scaled.log_ratio == pytest.approx(one.log_ratio, abs=1e-9)
        swapped = contrast(level, second, first)
        assert swapped.log_ratio == pytest.approx(-one.log_ratio)
        assert swapped.error == one.error


@given(contrasts=any_contrasts(), loss=st.floats(0, 0.5))
@settings(max_examples=50)
def test_a_first_that_is_slower_everywhere_never_has_the_better_verdict(
    contrasts: tuple[Contrast, ...], loss: float
) -> None:
    before = stored(sorted(contrasts, key=lambda each: each.level))
    slower = tuple(replace(each, log_ratio=each.log_ratio + loss) for each in contrasts)
    order = [Word.VIOLATED, Word.INCONCLUSIVE, Word.PASS]
    now, then = (judge(before, each, margin=MARGIN, tail=TAIL).word for each in (contrasts, slower))
    assert order.index(then) <= order.index(now)
