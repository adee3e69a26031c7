"""What the gate says of nights whose truth is known, launch after launch."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from perf.evidence import Observed
from perf.gate import ALL_PATTERNS_UP_TO, WORST_FIRST, Gate, Rule, Word, anytime, patterns, set_aside, worst
from perf.noise import Noise
from tests.unit.nights import ALONE, LOSS, RULE, Tonight, judged, known

UNCHANGED = (0.0,) * 8
ONE_LOST = (LOSS, *UNCHANGED[1:])
ALL_LOST = (LOSS,) * 8


def words(gate: Gate) -> list[Word]:
    return [gate.word(level) for level in range(len(gate.noise.mean))]


def night(
    noise: Noise, change: tuple[float, ...], seed: int, *, pairs: int = 0, lone: int = 0, rule: Rule = RULE
) -> Gate:
    """The gate after so many lone candidate launches and then pairs, every level in each."""
    rig = Tonight(noise, np.array(change), seed)
    for _ in range(lone):
        rig.lone()
    for _ in range(pairs):
        rig.pair()
    return judged(noise, rig.ran, rule)


def at_most(count: int, trials: int, share: float) -> bool:
    """Could so many of the trials be luck, if each had this chance? A one in a million luck is none."""
    return count <= stats.binom.ppf(1 - 1e-6, trials, share)


# What it says, and after how much


def test_several_verdicts_are_one_by_the_worst() -> None:
    assert set(WORST_FIRST) == set(Word)
    assert worst([Word.PASS, Word.IMPROVED]) is Word.IMPROVED
    assert worst([Word.INCONCLUSIVE, Word.NO_BASELINE, Word.INVALID]) is Word.INVALID
    assert worst(Word) is Word.REGRESSED
    with pytest.raises(ValueError):
        worst([])


def test_nothing_is_known_before_the_first_launch() -> None:
    gate = Gate(known(0.01), RULE)
    assert words(gate) == [Word.INCONCLUSIVE] * 8
    assert gate.could_see(0) is None
    assert gate.launches_needed(0) is None
    assert not gate.exhausted


@pytest.mark.parametrize("rule", [RULE, ALONE], ids=["with a reference", "without"])
def test_one_launch_passes_a_quiet_rig_that_is_as_it_was(rule: Rule) -> None:
    passed = sum(
        words(night(known(0.005, night=0.25), UNCHANGED, seed, lone=1, rule=rule)) == [Word.PASS] * 8
        for seed in range(50)
    )
    assert passed >= 40


@pytest.mark.parametrize("rule", [RULE, ALONE], ids=["with a reference", "without"])
@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("size", [0.03, 0.10, 0.7])
def test_three_launches_of_each_arm_convict_one_level_and_name_it(rule: Rule, place: int, size: float) -> None:
    change = np.zeros(8)
    change[place] = np.log(1 - size)
    for seed in range(5):
        for count, word in ((2, Word.INCONCLUSIVE), (3, Word.REGRESSED)):
            pairs, lone = (count, 0) if rule.reference else (0, count)
            gate = night(known(0.004), tuple(change), seed, pairs=pairs, lone=lone, rule=rule)
            assert gate.word(place) is word
            others = {each for level, each in enumerate(words(gate)) if level != place}
            assert others <= ({Word.PASS} if word is Word.REGRESSED else {Word.PASS, Word.INCONCLUSIVE})


@pytest.mark.parametrize("rule", [RULE, ALONE], ids=["with a reference", "without"])
@pytest.mark.parametrize("size", [0.03, 0.10, 0.7])
def test_two_launches_of_each_arm_convict_where_all_levels_say_the_same(rule: Rule, size: float) -> None:
    for seed in range(5):
        for count, word in ((1, Word.INCONCLUSIVE), (2, Word.REGRESSED)):
            pairs, lone = (count, 0) if rule.reference else (0, count)
            gate = night(known(0.003), (float(np.log(1 - size)),) * 8, seed, pairs=pairs, lone=lone, rule=rule)
            assert words(gate) == [word] * 8


def test_losses_of_different_sizes_are_all_named_and_the_rest_passes() -> None:
    """What is convicted is left free, so a large loss says nothing of a small one beside it."""
    change = (-0.10, 0.0, 0.0, LOSS, 0.0, 0.0, 0.0, 0.0)
    for seed in range(5):
        found = words(night(known(0.004), change, seed, pairs=5))
        assert [level for level, word in enumerate(found) if word is Word.REGRESSED] == [0, 3]
        assert Counter(found)[Word.PASS] == 6


def test_a_gain_beside_a_loss_is_a_gain() -> None:
    change = (-0.10, 0.0, 0.0, -LOSS, 0.0, 0.0, 0.0, 0.0)
    for seed in range(5):
        found = words(night(known(0.004), change, seed, pairs=5))
        assert (found[0], found[3]) == (Word.REGRESSED, Word.IMPROVED)
        assert Counter(found)[Word.PASS] == 6


def test_a_gain_is_improved() -> None:
    for seed in range(5):
        one = words(night(known(0.004), tuple(-each for each in ONE_LOST), seed, pairs=3))
        assert one == [Word.IMPROVED] + [Word.PASS] * 7
        assert words(night(known(0.003), (-LOSS,) * 8, seed, pairs=2)) == [Word.IMPROVED] * 8


@pytest.mark.parametrize("levels", [1, 2, 4, 12, 16, 24])
def test_any_number_of_levels_is_judged(levels: int) -> None:
    """Above twelve not every set of levels is a pattern: one level, neighbours, and all."""
    noise = known(0.003, levels=levels)
    for lost in {0, levels - 1}:
        change = np.zeros(levels)
        change[lost] = LOSS
        found = words(night(noise, tuple(change), 1, pairs=3 if levels > 2 else 4))
        assert [level for level, word in enumerate(found) if word is Word.REGRESSED] == [lost]
        assert set(found) <= {Word.REGRESSED, Word.PASS}
    assert set(words(night(noise, (LOSS,) * levels, 1, pairs=3))) == {Word.REGRESSED}
    assert set(words(night(noise, (0.0,) * levels, 1, lone=2))) == {Word.PASS}


def test_patterns_are_every_set_of_levels_as_long_as_that_can_be_enumerated() -> None:
    for levels in (1, 2, 5, ALL_PATTERNS_UP_TO):
        rows = patterns(levels)
        assert len({tuple(row) for row in rows}) == len(rows) == 2**levels - 1
    rows = patterns(ALL_PATTERNS_UP_TO + 1)
    there = {tuple(np.flatnonzero(row)) for row in rows}
    assert there == {tuple(range(first, end)) for first in range(13) for end in range(first + 1, 14)}
    for levels in (1, 8, 16):  # a level's own pattern is found by its index
        assert patterns(levels)[:levels].tolist() == np.eye(levels).tolist()


# Who may convict


def test_the_store_convicts_where_there_is_no_reference_build_and_only_there() -> None:
    for change in (ONE_LOST, ALL_LOST, (-0.5,) * 8):
        assert Word.REGRESSED in words(night(known(0.003), change, 1, lone=3, rule=ALONE))
        alone = night(known(0.003), change, 1, lone=30)
        assert Word.REGRESSED not in words(alone)
        assert alone.losses.mixture < 1e-3  # nothing at all speaks against it


@pytest.mark.parametrize("offset", [-0.1, -0.03, 0.05], ids=str)
@pytest.mark.parametrize("place", [slice(None), 0], ids=["all levels", "one level"])
def test_a_night_far_from_the_store_convicts_nobody_whose_reference_is_as_far(
    offset: float, place: slice | int
) -> None:
    """Another driver, a hotter room, a bad host: both arms 10 % below what is stored, at all levels or at one."""
    for cv in (0.002, 0.005):
        called = 0
        for seed in range(20):
            rig = Tonight(known(cv), np.zeros(8), seed)
            rig.center[place] += offset
            rig.lone()
            for _ in range(6):
                rig.pair()
            called += bool(judged(rig.noise, rig.ran).decided.any())
        assert at_most(called, 20, 0.01)


def test_a_loss_is_found_in_a_night_far_from_the_store() -> None:
    for seed in range(5):
        rig = Tonight(known(0.004), np.array(ONE_LOST), seed)
        rig.center = rig.center - 0.1
        for _ in range(5):
            rig.pair()
        found = words(judged(rig.noise, rig.ran))
        assert found[0] is Word.REGRESSED
        assert Word.REGRESSED not in found[1:]


def test_without_a_reference_a_common_loss_within_what_nights_differ_is_hardly_ever_told() -> None:
    """A night as noisy as a loss of the margin: no number of launches tonight tells them apart, and it is said."""
    told = 0
    for seed in range(20):
        gate = night(known(0.01, night=2.0), ALL_LOST, seed, lone=12, rule=ALONE)
        told += bool(gate.decided.any())
        assert gate.exhausted or gate.decided.any()
        assert Word.PASS not in words(gate) or gate.decided.any()
    assert at_most(told, 20, 0.1)


def test_a_small_loss_is_never_red_however_sure() -> None:
    """A third of the margin is what matters."""
    for size in (0.002, 0.005, 0.009):
        for lost in ((float(np.log(1 - size)), *UNCHANGED[1:]), (float(np.log(1 - size)),) * 8):
            for seed in range(5):
                assert words(night(known(0.001), lost, seed, pairs=20)) == [Word.PASS] * 8


def test_a_loss_too_small_to_matter_is_not_red_because_the_others_gained_a_little() -> None:
    """Beside them it looks like half the margin more than it is; what it lost by itself is what counts."""
    change = (-0.006,) + (0.015,) * 7
    red = sum(
        night(known(cv), change, seed, lone=1, pairs=6).losses.convicted[0]
        for cv in (0.002, 0.003)
        for seed in range(30)
    )
    assert red <= 5


def test_seven_levels_that_gain_do_not_convict_the_eighth() -> None:
    """Beside them it looks as if it had lost; that alone must not do."""
    change = (0.0,) + (-LOSS,) * 7
    red = sum(
        night(known(cv), change, seed, pairs=8).losses.convicted[0] for cv in (0.005, 0.01, 0.02) for seed in range(60)
    )
    assert at_most(red, 180, 0.01)


# How often it is wrong: coarse bounds on the whole, through many nights of one policy


@cache
def shares(cv: float, change: tuple[float, ...]) -> Counter[str]:
    """What 150 nights of up to 20 pairs say in the end, stopping where everything is decided."""
    said = Counter[str]()
    for seed in range(150):
        rig = Tonight(known(cv), np.array(change), seed)
        gate = Gate(rig.noise, RULE)
        for number in range(20):
            for launch in (rig.lone(),) if number == 0 else rig.pair():
                gate.add(launch)
            if Word.INCONCLUSIVE not in words(gate):
                break
        found = words(gate)
        said["red"] += Word.REGRESSED in found
        said["first red"] += found[0] is Word.REGRESSED
        said["first pass"] += found[0] is Word.PASS
        said["improved"] += Word.IMPROVED in found
    return said


@pytest.mark.parametrize("cv", [0.005, 0.01])
def test_an_unchanged_night_is_hardly_ever_red_or_improved(cv: float) -> None:
    said = shares(cv, UNCHANGED)
    assert at_most(said["red"], 150, 0.005)
    assert at_most(said["improved"], 150, 0.005)
    assert said["first pass"] >= 145


@pytest.mark.parametrize("change", [ONE_LOST, ALL_LOST], ids=["one level", "all levels"])
@pytest.mark.parametrize("cv", [0.005, 0.01])
def test_a_loss_of_the_margin_is_found_and_hardly_ever_passed(cv: float, change: tuple[float, ...]) -> None:
    said = shares(cv, change)
    assert at_most(said["first pass"], 150, 0.025)
    assert at_most(150 - said["first red"], 150, 0.05)


# The interval beside it


@pytest.mark.parametrize("rule", [RULE, ALONE], ids=["with a reference", "without"])
@pytest.mark.parametrize("change", [UNCHANGED, ONE_LOST, ALL_LOST], ids=["nothing", "one level", "all levels"])
def test_the_interval_holds_the_truth_at_every_look_of_a_night(rule: Rule, change: tuple[float, ...]) -> None:
    """Whoever stops when it looks good stops at one of these looks."""
    noise = known(0.01)
    nights, wrong, plainly_wrong = 100, 0, 0
    for seed in range(nights):
        rig = Tonight(noise, np.array(change), seed)
        gate = Gate(noise, rule)
        missed = missed_plainly = False
        for number in range(12):
            for launch in rig.pair() if rule.reference and number else (rig.lone(),):
                gate.add(launch)
            found = gate.change(0)
            missed |= not found.lo <= change[0] <= found.hi
            missed_plainly |= abs(found.estimate - change[0]) > 1.96 * found.error
        wrong, plainly_wrong = wrong + missed, plainly_wrong + missed_plainly
    assert at_most(wrong, nights, 0.05)
    assert plainly_wrong > wrong


def test_an_interval_narrows_with_what_is_known_and_is_wider_than_a_plain_one() -> None:
    halves = [anytime(variance, 0.03) for variance in (1e-3, 1e-4, 1e-5, 1e-6)]
    assert halves == sorted(halves, reverse=True)
    for variance, half in zip((1e-3, 1e-4, 1e-5, 1e-6), halves, strict=True):
        assert 1.96 < half / np.sqrt(variance) < 6
    assert anytime(float("inf"), 0.03) == float("inf")
    assert anytime(0.0, 0.03) == 0.0


def test_the_change_is_against_the_reference_once_a_level_is_in_doubt() -> None:
    lost = night(known(0.005), ONE_LOST, 2, lone=1, pairs=3)
    assert lost.change(0).fresh
    assert not lost.change(1).fresh
    assert lost.change(0).estimate == pytest.approx(LOSS, abs=0.01)
    assert lost.change(1).estimate == pytest.approx(0.0, abs=0.01)
    alone = night(known(0.005), ONE_LOST, 2, lone=4, rule=ALONE)
    assert not alone.change(0).fresh


def test_a_level_that_one_launch_lacked_has_a_change_all_the_same() -> None:
    rig = Tonight(known(0.005), np.array(ONE_LOST), 3)
    for levels in ([0, 1, 2], [0, 5], [5], [0, 1]):
        rig.pair(levels)
    gate = judged(rig.noise, rig.ran)
    assert gate.launches[True].tolist() == [3, 2, 1, 0, 0, 2, 0, 0]
    for level in (0, 1, 2, 5):
        found = gate.change(level)
        assert found.lo < found.estimate < found.hi
    assert gate.change(0).estimate == pytest.approx(LOSS, abs=0.012)


# What it could have seen


def test_what_could_be_seen_shrinks_with_launches_and_grows_with_noise() -> None:
    seen = {
        (cv, count): night(known(cv), UNCHANGED, 4, lone=count).could_see(0)
        for cv in (0.005, 0.01, 0.02)
        for count in (1, 2, 4, 8)
    }
    sizes = {key: value for key, value in seen.items() if value is not None}
    assert len(sizes) == len(seen)
    for (cv, count), size in sizes.items():
        assert size > 0
        if count < 8:
            assert sizes[cv, 2 * count] < size
        if cv < 0.02:
            assert sizes[2 * cv, count] > size


def test_the_launches_that_are_asked_for_are_fewer_the_more_there_were_and_the_quieter_it_is() -> None:
    def needed(cv: float, count: int) -> int:
        found = night(known(cv, launches=200), UNCHANGED, 5, lone=count).launches_needed(0)
        assert found is not None
        return found

    assert needed(0.02, 2) > needed(0.02, 6) > needed(0.02, 12)
    assert needed(0.03, 4) > needed(0.02, 4) > needed(0.01, 4) >= 1
    # They would do: what could be seen is then about the margin.
    more = night(known(0.02, launches=200), UNCHANGED, 5, lone=4 + needed(0.02, 4)).could_see(0)
    assert more == pytest.approx(-LOSS, rel=0.25)


def test_a_loss_as_large_as_could_be_seen_is_mostly_not_passed() -> None:
    noise = known(0.02)
    seen = night(noise, UNCHANGED, 6, lone=6).could_see(0)
    assert seen is not None
    passed = sum(night(noise, (-seen, *UNCHANGED[1:]), seed, lone=6).word(0) is Word.PASS for seed in range(40))
    assert at_most(passed, 40, 0.05)


def test_a_rig_with_a_reference_build_is_never_exhausted() -> None:
    assert not night(known(0.01, night=2.0), UNCHANGED, 7, lone=40).exhausted
    assert night(known(0.01, night=2.0), UNCHANGED, 7, lone=40, rule=ALONE).exhausted


# Noise: set aside, and a night that is noisier than the store


def test_a_level_that_is_far_noisier_than_the_others_is_set_aside() -> None:
    assert set_aside(known((0.01,) * 7 + (0.1,))) == (7,)
    assert set_aside(known((0.01,) * 7 + (0.04,))) == ()  # below five percent it can be afforded
    assert set_aside(known((0.03,) * 7 + (0.08,))) == ()
    assert set_aside(known((0.1,) * 8)) == ()  # then that is what this rig is like
    assert set_aside(known((0.2,))) == ()


def test_on_most_nights_as_noisy_as_the_store_nothing_is_taken_for_wider() -> None:
    factors = [night(known(0.01), UNCHANGED, seed, lone=6).guard.factor for seed in range(60)]
    assert np.mean([factor == 1.0 for factor in factors]) > 0.7
    assert max(factors) < 2.0


def test_a_night_noisier_than_the_store_widens_everything() -> None:
    store, truth = known(0.005), known(0.015)
    rig = Tonight(truth, np.array(UNCHANGED), 8)
    launches = [rig.lone() for _ in range(6)]
    noisy, quiet = judged(store, launches), night(store, UNCHANGED, 8, lone=6)
    assert noisy.guard.factor > 4
    assert noisy.guard.convicting > noisy.guard.factor
    ours, theirs = noisy.could_see(0), quiet.could_see(0)
    assert ours is not None
    assert theirs is not None
    assert ours > 2 * theirs
    assert noisy.change(0).error > 2 * quiet.change(0).error


def test_what_convicts_is_wider_the_less_the_store_knows_of_noise() -> None:
    few, many = (replace(known(0.01), freedom=np.full(8, freedom)) for freedom in (1.0, 60.0))
    ratios = [judged(noise, Tonight(noise, np.zeros(8), 9).pair()).guard.convicting for noise in (few, many)]
    assert ratios[0] > 1.3 * ratios[1] > 1.3


@pytest.mark.parametrize("levels", [3, 8, 20, 32])
def test_the_first_launch_of_a_night_like_the_store_is_taken_for_as_noisy(levels: int) -> None:
    """Its levels without the lowest vary less than all of them: the factor that makes up for it is right.

    Of few levels the most that one launch may say takes off a little.
    """
    noise = replace(known(0.01, levels=levels, night=0.0), freedom=np.full(levels, 1e9))
    luck = np.random.default_rng(10)
    found = []
    for _ in range(1500):
        logs = 0.01 * luck.standard_normal() / 2 + np.sqrt(noise.own * (1 + 1 / 20)) * luck.standard_normal(levels)
        gate = Gate(noise, RULE)
        gate.guard.add(Observed(candidate=True, block=1, hours=0.0, logs=logs), logs)
        squares = gate.guard._found[0] * (4 + levels - 2) - 4
        found.append(squares / (levels - 2))
    assert (0.85 if levels == 3 else 0.95) < np.mean(found) < 1.06
