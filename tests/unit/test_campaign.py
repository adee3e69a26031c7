"""What is launched, in which order, and when it ends: on simulated rigs whose truth is known."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf import simulation
from perf.campaign import (
    FIRST_BASELINE_LAUNCHES,
    LAUNCHES_ASIDE,
    LAUNCHES_WITHOUT_NOISE,
    next_block,
)
from perf.gate import Word
from perf.record import LaunchRecord, Measurement, SuiteRecord
from perf.simulation import Truth
from perf.trial import Trials
from perf.verdict import judge, relation_looks
from tests.unit.simulated import SimulatedRig, failed, launch, measured, relation, select, stored, suite

QUIET = (99.9, 100.0, 100.1, 100.0)
STORE = tuple(stored(*QUIET, variant=name, level=level) for name in ("baseline", "eagle3") for level in (1, 8))
LEVELS = (1, 2, 5, 10, 30, 70, 100, 250)
LOSS = float(np.log(0.97))


def steady(_variant: str, _level: int) -> float:
    return 100.0


def words(state: SuiteRecord) -> dict[str, Word]:
    return {verdict.id: verdict.word for verdict in judge(state)}


def two_by_two(max_launches: int = 8) -> SuiteRecord:
    return suite(levels=(1, 8), variants=("baseline", "eagle3"), store=STORE, max_launches=max_launches)


def times_measured(state: SuiteRecord) -> Counter[tuple[str, int]]:
    return Counter((each.variant, taken.level) for each in state.launches for taken in each.measurements)


def levels_of(launched: LaunchRecord) -> tuple[int, ...]:
    return tuple(taken.level for taken in launched.measurements)


def night(
    seed: int,
    *,
    spread: float | tuple[float, ...] = 0.01,
    lost: dict[int, float] | None = None,
    variants: tuple[str, ...] = ("plain",),
    apart: float = 0.5,
    budget_s: float | None = None,
    reference: bool = True,
    max_launches: int = 200,
    nights: int = 20,
) -> SuiteRecord:
    """One campaign of the product's own on a rig with a store of so many nights, and as many pairs of others.

    `lost` are log-ratios by the place of the level; `apart` is the spread of nights, in units of a launch's.
    """
    each = (spread,) * len(LEVELS) if isinstance(spread, float) else spread
    change = np.zeros(len(each))
    for place, size in (lost or {}).items():
        change[place] = size
    truth = Truth(throughput=(100.0,) * len(each), spread=each, night=apart)
    rig = simulation.SimulatedRig(
        dict.fromkeys(variants, truth), LEVELS[: len(each)], seed=seed, changes={variants[0]: change}
    )
    state = simulation.suite(rig.store(nights, nights), reference=reference, max_launches=max_launches)
    return rig.run(replace(state, order_seed=seed), budget_s=budget_s)


def blocks(state: SuiteRecord, variant: str = "plain") -> list[tuple[LaunchRecord, ...]]:
    """The launches of each block of a variant, in the order in which they ran."""
    ours = [each for each in state.launches if each.variant == variant]
    return [tuple(group) for _, group in groupby(ours, key=lambda each: each.block)]


def arms(block: tuple[LaunchRecord, ...]) -> str:
    return "".join("C" if each.arm == "candidate" else "R" for each in block)


# How often


def test_a_quiet_rig_is_decided_by_one_launch_of_each_variant() -> None:
    rig = SimulatedRig(truth=steady, cv=0.0005)
    done = rig.run(two_by_two())
    assert set(times_measured(done).values()) == {1}
    assert set(words(done).values()) == {Word.PASS}
    assert done.stopped is None


def test_an_unchanged_night_of_one_percent_noise_takes_few_launches() -> None:
    """A launch of all levels, and some of those that are not clear yet: less than half of two whole pairs."""
    measured_levels = [sum(times_measured(night(seed)).values()) for seed in range(40)]
    assert np.mean(measured_levels) < 16
    assert min(measured_levels) == len(LEVELS)


def test_what_is_cleared_is_not_launched_again_but_for_one_quiet_level_to_compare_with() -> None:
    spread = (0.012, 0.012, 0.002, 0.012, 0.012, 0.012, 0.012, 0.012)
    seen = 0
    for seed in range(20):
        done = night(seed, spread=spread)
        for count in range(1, len(done.launches)):
            before = replace(done, launches=done.launches[:count])
            following = done.launches[count]
            if following.block == done.launches[count - 1].block:
                continue
            (trial,) = Trials("plain").keep_up(before)
            if trial.gate.losses.is_suspect or not trial.gate.losses.alone.any():
                continue
            live = {level for level, on in zip(trial.levels, trial.gate.losses.alone, strict=True) if on}
            assert set(levels_of(following)) - live <= {LEVELS[2]}
            assert live <= set(levels_of(following))
            seen += 1
    assert seen > 10


def test_a_level_judged_by_itself_takes_part_twice_and_holds_up_nobody() -> None:
    spread = (0.005,) * 7 + (0.10,)
    for seed in range(10):
        done = night(seed, spread=spread)
        counts = times_measured(done)
        assert counts["plain", LEVELS[7]] <= LAUNCHES_ASIDE + 1
        found = words(done)
        assert found.pop(f"simulated/plain/c{LEVELS[7]:03d}") is Word.INCONCLUSIVE
        assert set(found.values()) == {Word.PASS}
        assert len(done.launches) < 8


@pytest.mark.parametrize("cap", [1, 2, 3, 5, 8])
def test_a_variant_is_never_launched_more_often_than_the_cap(cap: int) -> None:
    noisy = SimulatedRig(truth=steady, cv=0.2, seed=1).store(4, levels=(1, 8), variants=("baseline", "eagle3"))
    rig = SimulatedRig(truth=steady, cv=0.2)
    state = suite(levels=(1, 8), variants=("baseline", "eagle3"), store=noisy, max_launches=cap, reference=True)
    done = rig.run(state)
    counts = Counter((each.variant, each.arm) for each in done.launches)
    assert max(counts.values()) == cap
    for variant in ("baseline", "eagle3"):
        for arm in ("candidate", "reference"):
            ordinals = [each.ordinal for each in done.launches if (each.variant, each.arm) == (variant, arm)]
            assert ordinals == list(range(1, counts[variant, arm] + 1))
    assert Word.INCONCLUSIVE in words(done).values()


def test_a_pair_that_one_arm_may_not_run_any_more_is_not_run_by_the_other_alone() -> None:
    for seed in range(10):
        free, capped = (night(seed, spread=0.03, max_launches=cap) for cap in (200, 8))
        assert sum(each.arm == "candidate" for each in capped.launches) <= 8
        # What is run under the cap is the beginning of what is run without: no candidate stands in for a pair.
        assert capped.launches == free.launches[: len(capped.launches)]


def test_the_cap_is_of_the_variant_even_where_a_relation_asks_again_late() -> None:
    """Level 8 of eagle3 takes every launch; then the relation at level 1, long decided, opens again."""
    bound = relation("eagle3", "baseline", level=1)
    state = suite(levels=(1, 8), variants=("baseline", "eagle3"), store=STORE, relations=(bound,))
    swing = random.Random(3)
    rig = SimulatedRig(
        truth=steady,
        replaced=lambda _variant, ordinal, level: measured(
            100.0 if level == 1 and ordinal <= 2 else 100 * swing.uniform(0.7, 1.4), level=level
        ),
    )
    done = rig.run(state)
    assert max(Counter(each.variant for each in done.launches).values()) <= state.max_launches


def test_a_case_without_a_baseline_is_launched_four_times_so_that_the_next_run_can_judge() -> None:
    rig = SimulatedRig(truth=steady, cv=0.01)
    done = rig.run(suite(reference=True))
    assert [each.arm for each in done.launches] == ["candidate"] * FIRST_BASELINE_LAUNCHES
    assert words(done) == {"sim/baseline/c001": Word.NO_BASELINE}
    assert len(SimulatedRig(truth=steady).run(suite(max_launches=3)).launches) == 3


def test_one_stored_launch_is_given_another_two_and_then_it_is_said_that_more_are_needed() -> None:
    done = SimulatedRig(truth=steady, cv=0.01).run(suite(store=(stored(100.0),)))
    assert len(done.launches) == LAUNCHES_WITHOUT_NOISE
    assert words(done) == {"sim/baseline/c001": Word.INCONCLUSIVE}


def test_a_case_that_cannot_be_believed_is_never_launched_again() -> None:
    rig = SimulatedRig(
        truth=steady,
        cv=0.001,
        replaced=lambda variant, _ordinal, level: failed(level) if (variant, level) == ("eagle3", 8) else None,
    )
    done = rig.run(two_by_two())
    assert times_measured(done)["eagle3", 8] == 1
    found = words(done)
    assert found.pop("sim/eagle3/c008") is Word.INVALID
    assert set(found.values()) == {Word.PASS}


def test_a_launch_that_failed_as_a_whole_is_the_last_of_its_variant() -> None:
    rig = SimulatedRig(
        truth=steady,
        cv=0.01,
        replaced=lambda variant, _ordinal, level: failed(level) if variant == "eagle3" else None,
    )
    rig.run(two_by_two())
    assert Counter(rig.variants)["eagle3"] == 1


def test_an_advisory_case_is_launched_once() -> None:
    rig = SimulatedRig(truth=steady, cv=0.2)
    done = rig.run(replace(two_by_two(), advisory="shown, never gated", reference=True))
    assert set(times_measured(done).values()) == {1}
    assert {each.arm for each in done.launches} == {"candidate"}


def test_a_level_that_cannot_be_reached_is_invalid_without_a_launch() -> None:
    rig = SimulatedRig(truth=steady, cv=0.001)
    state = replace(two_by_two(), requests=((1, 30), (8, 7)))
    done = rig.run(state)
    assert set(rig.launched) == {("baseline", (1,)), ("eagle3", (1,))}
    assert words(done)["sim/eagle3/c008"] is Word.INVALID
    alone = rig.run(select(state, "sim/eagle3/c008"))
    assert alone.launches == ()
    (verdict,) = judge(alone)
    assert verdict.reasons[0].name == "level never reached"


def test_a_relation_selected_alone_measures_what_it_needs_and_nothing_else() -> None:
    bound = relation("baseline", "eagle3")
    state = suite(levels=(1, 8), variants=("baseline", "other", "eagle3"), relations=(bound,), reference=True)
    rig = SimulatedRig(truth=lambda variant, _level: 773.0 if variant == "baseline" else 354.0, cv=0.001)
    done = rig.run(select(state, bound.id))
    assert set(rig.launched) == {("baseline", (8,)), ("eagle3", (8,))}
    assert set(times_measured(done).values()) == {2}
    assert words(done) == {bound.id: Word.PASS}


def test_a_relation_gets_its_looks_where_no_case_asks() -> None:
    """It is judged from launches of tonight alone, at its looks: what is stored tells it no more than noise."""
    bound = relation("baseline", "eagle3", level=8)
    state = suite(levels=(1, 8), variants=("baseline", "eagle3"), store=STORE, relations=(bound,))
    done = SimulatedRig(truth=steady, cv=0.0005).run(state)
    assert set(times_measured(done).values()) == {1}
    assert words(done)[bound.id] is Word.PASS
    unknown = select(suite(levels=(8,), variants=("baseline", "eagle3"), relations=(bound,)), bound.id)
    for cv, fewest in ((0.0005, 2), (0.05, 4)):
        counts = times_measured(SimulatedRig(truth=steady, cv=cv).run(unknown))
        assert counts["baseline", 8] == counts["eagle3", 8] >= fewest
        assert counts["baseline", 8] in relation_looks(unknown)


def test_what_is_not_selected_is_not_measured() -> None:
    rig = SimulatedRig(truth=steady, cv=0.001)
    rig.run(select(two_by_two(), "sim/eagle3/c001"))
    assert set(rig.launched) == {("eagle3", (1,))}
    assert SimulatedRig(truth=steady).run(select(two_by_two())).launches == ()


# With a reference build, and without


def test_what_is_suspect_is_settled_by_pairs_whose_arms_alternate() -> None:
    """ABBA: a rig that warms over the night favours neither arm."""
    pairs = 0
    for seed in range(10):
        done = night(seed, lost={0: LOSS})
        for block in blocks(done):
            assert arms(block) in ("C", "CR", "RC")
            if arms(block) == "RC":
                assert block[0].block % 2 == 1
            pairs += len(block) == 2
        assert words(done)["simulated/plain/c001"] in (Word.REGRESSED, Word.PASS)
    assert pairs > 20


def test_pairs_follow_each_other_as_abba() -> None:
    done = night(3, spread=0.03, max_launches=60)
    paired = [(block[0].block, arms(block)) for block in blocks(done) if len(block) == 2]
    assert len(paired) > 5
    order = [name for number, name in paired[1:]]
    assert order == ["RC" if number % 2 else "CR" for number, _ in paired[1:]]
    assert abs(order.count("RC") - order.count("CR")) <= 1


def test_a_reference_that_joins_a_candidate_runs_at_once_before_any_other_variant() -> None:
    joined = 0
    for seed in range(20):
        done = night(seed, lost={0: -0.06}, variants=("plain", "eagle"))
        for before, after in zip(done.launches, done.launches[1:], strict=False):
            ran = [each for each in done.launches if (each.variant, each.block) == (after.variant, after.block)]
            if after.arm == "reference" and len(ran) == 2 and ran[1] is after:
                assert ran[0] is before
                joined += 1
        for variant in ("plain", "eagle"):
            for block in blocks(done, variant):
                places = [done.launches.index(each) for each in block]
                assert places == list(range(places[0], places[0] + len(places)))
                assert set(levels_of(block[-1])) <= set(levels_of(block[0])) or arms(block) == "RC"
    assert joined >= 20


def test_the_store_alone_convicts_nobody_where_a_reference_build_can_be_launched() -> None:
    for seed in range(5):
        done = night(seed, lost={0: -0.10})
        assert words(done)["simulated/plain/c001"] is Word.REGRESSED
        assert sum(each.arm == "reference" for each in done.launches) >= 3


@pytest.mark.parametrize(("stored", "most"), [(4, 3), (20, 13)])
def test_the_smaller_the_store_the_sooner_pairs_say_more_than_further_candidates(stored: int, most: int) -> None:
    for seed in range(5):
        done = night(seed, spread=0.03, nights=stored, max_launches=40)
        alone = Counter(level for block in blocks(done) if arms(block) == "C" for level in levels_of(block[0]))
        live_alone = sorted(alone.values())
        assert live_alone[-2] <= most  # the quietest may be an anchor beside others
        assert any(len(block) == 2 for block in blocks(done))


def test_without_a_reference_build_only_the_candidate_is_launched_and_it_ends_when_more_would_not_help() -> None:
    ended = 0
    for seed in range(10):
        done = night(seed, spread=0.01, apart=2.0, reference=False, max_launches=200)
        assert {each.arm for each in done.launches} == {"candidate"}
        assert all(arms(block) == "C" for block in blocks(done))
        assert len(done.launches) < 40
        ended += Word.INCONCLUSIVE in words(done).values()
    assert ended > 0


@pytest.mark.parametrize("gain", [0.01, 0.015, 0.02, 0.03])
def test_a_gain_that_cannot_be_told_from_the_night_ends_too(gain: float) -> None:
    for seed in range(6):
        done = night(
            seed, spread=0.01, apart=1.0, lost=dict.fromkeys(range(8), gain), reference=False, max_launches=200
        )
        assert len(done.launches) < 60


def test_a_loss_without_a_reference_build_is_convicted_by_the_store() -> None:
    for seed in range(5):
        done = night(seed, spread=0.005, lost={0: -0.05}, reference=False)
        assert words(done)["simulated/plain/c001"] is Word.REGRESSED
        assert len(done.launches) == 3


def test_a_gain_is_settled_by_pairs_and_named() -> None:
    for seed in range(5):
        found = words(night(seed, spread=0.005, lost={0: 0.05}))
        assert found.pop("simulated/plain/c001") is Word.IMPROVED
        assert set(found.values()) == {Word.PASS}


# In which order, and how it is kept


def test_the_order_of_variants_alternates_so_that_a_warming_rig_favours_none() -> None:
    noisy = SimulatedRig(truth=steady, cv=0.2, seed=1).store(4, levels=(1, 8), variants=("baseline", "eagle3"))
    rig = SimulatedRig(truth=steady, cv=0.2)
    rig.run(suite(levels=(1, 8), variants=("baseline", "eagle3"), store=noisy, max_launches=4))
    assert rig.variants == ["baseline", "eagle3", "eagle3", "baseline"] * 2


def test_the_order_of_levels_is_drawn_by_the_seed_of_the_campaign_and_drawn_alike_again() -> None:
    def orders(seed: int) -> list[tuple[int, ...]]:
        rig = SimulatedRig(truth=steady, cv=0.01)
        rig.run(replace(suite(levels=LEVELS), order_seed=seed))
        return [levels for _, levels in rig.launched]

    first = orders(1)
    assert orders(1) == first
    assert orders(2) != first
    assert len(set(first)) == len(first)
    assert all(sorted(each) == list(LEVELS) for each in first)
    places = Counter(order.index(1) for seed in range(60) for order in orders(seed))
    assert set(places) == set(range(8))
    assert max(places.values()) < 60


def test_the_campaign_is_saved_after_every_launch() -> None:
    rig = SimulatedRig(truth=steady, cv=0.2)
    done = rig.run(two_by_two())
    assert [len(state.launches) for state in rig.saved] == list(range(1, len(done.launches) + 1))
    assert rig.saved[-1] == done


def test_the_same_night_is_the_same_campaign_again() -> None:
    assert night(7, lost={0: LOSS}) == night(7, lost={0: LOSS})


# When it ends


LOUD = SimulatedRig(truth=steady, cv=0.2, seed=1).store(4, levels=(1, 8), variants=("baseline", "eagle3"))


def loud() -> SuiteRecord:
    return suite(levels=(1, 8), variants=("baseline", "eagle3"), store=LOUD)


def test_the_budget_ends_a_campaign_before_the_launch_that_would_exceed_it() -> None:
    rig = SimulatedRig(truth=steady, cv=0.2, launch_s=60.0)
    began = rig.now_s
    done = rig.run(loud(), budget_s=330.0)
    assert len(done.launches) == 5
    assert rig.now_s - began <= 330.0
    assert done.stopped == "the budget of 5 min 30 s is spent"
    assert rig.saved[-1] == done


def test_a_budget_that_fits_exactly_is_used_and_one_that_is_never_reached_is_not_mentioned() -> None:
    exact = SimulatedRig(truth=steady, cv=0.2, launch_s=60.0).run(loud(), budget_s=240.0)
    assert len(exact.launches) == 4
    roomy = SimulatedRig(truth=steady, cv=0.0005, launch_s=60.0).run(two_by_two(), budget_s=240.0)
    assert (len(roomy.launches), roomy.stopped) == (2, None)


def test_half_a_pair_is_never_run_because_the_other_half_does_not_fit() -> None:
    whole = night(3, spread=0.03, max_launches=20)
    assert whole.stopped is None
    spent = np.cumsum([each.duration_s for each in whole.launches])
    pairs = 0
    for budget_s in np.arange(300.0, float(spent[-1]) + 100, 60.0):
        done = night(3, spread=0.03, max_launches=20, budget_s=float(budget_s))
        assert sum(each.duration_s for each in done.launches) <= max(budget_s, done.launches[0].duration_s)
        assert done.launches == whole.launches[: len(done.launches)]
        assert arms(blocks(done)[-1]) in ("C", arms(blocks(whole)[len(blocks(done)) - 1]))
        pairs += len(blocks(done)[-1]) == 2
    assert pairs > 10


def test_what_the_budget_left_unmeasured_is_invalid_and_says_so() -> None:
    done = SimulatedRig(truth=steady, launch_s=60.0).run(two_by_two(), budget_s=0.5)
    # The first launch's length is not known before it was made.
    assert [each.variant for each in done.launches] == ["baseline"]
    (reason,) = next(verdict.reasons for verdict in judge(done) if verdict.id == "sim/eagle3/c001")
    assert (reason.name, reason.seen) == ("not measured", "the budget of 0 s is spent")
    assert "--perf-budget-minutes" in reason.advice


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    cv=st.sampled_from([0.0, 0.005, 0.02, 0.3]),
    bad=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
    cap=st.integers(1, 9),
    stored_for=st.sets(st.sampled_from(range(len(STORE)))),
    reference=st.booleans(),
)
def test_a_campaign_ends_whatever_is_measured(
    seed: int, cv: float, bad: float, missing: float, cap: int, stored_for: set[int], reference: bool
) -> None:
    """Rounds without numbers and without a reason, too: nothing but the cap would end those."""
    chance = random.Random(seed)

    def strange(_variant: str, _ordinal: int, level: int) -> Measurement | None:
        if chance.random() < bad:
            return failed(level)
        return Measurement(level=level, rounds=(), reasons=()) if chance.random() < missing else None

    bound = (relation("baseline", "eagle3"), relation("eagle3", "baseline", level=1))
    state = suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        store=tuple(STORE[index] for index in stored_for),
        relations=bound,
        max_launches=cap,
        reference=reference,
    )
    rig = SimulatedRig(truth=steady, cv=cv, seed=seed, replaced=strange)
    done = rig.run(state)
    for variant in ("baseline", "eagle3"):
        assert next_block(done, variant, Trials(variant).keep_up(done)) is None
    assert max(Counter((each.variant, each.arm) for each in done.launches).values()) <= cap
    assert len(judge(done)) == 6


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 0.003, 0.02, 0.3]),
    apart=st.sampled_from([0.0, 0.5, 5.0]),
    lost=st.dictionaries(st.integers(0, 2), st.sampled_from([-0.5, -0.03, -0.015, 0.015, 0.03, 0.5])),
    reference=st.booleans(),
    noisy=st.booleans(),
)
def test_a_campaign_ends_whatever_changed(
    seed: int, spread: float, apart: float, lost: dict[int, float], reference: bool, noisy: bool
) -> None:
    each = (spread, spread, 0.4 if noisy else spread)
    done = night(seed, spread=each, apart=apart, lost=lost, reference=reference, max_launches=25)
    assert max(Counter(each.arm for each in done.launches).values()) <= 25
    assert next_block(done, "plain", Trials("plain").keep_up(done)) is None
    assert reference or {each.arm for each in done.launches} == {"candidate"}


# A short calibration, through campaign and verdict as pytest runs them; tests/calibration has the long one


def test_a_loss_of_ten_percent_is_found_where_it_is_and_nowhere_else() -> None:
    for seed in range(15):
        found = words(night(seed, lost={4: float(np.log(0.9))}, variants=("plain", "eagle")))
        assert [name for name, word in found.items() if word is Word.REGRESSED] == ["simulated/plain/c030"]


def test_a_loss_of_the_margin_is_hardly_ever_passed_over_in_silence(
    record_property: Callable[[str, object], None],
) -> None:
    seen = Counter(words(night(seed, lost={4: LOSS}))["simulated/plain/c030"] for seed in range(80))
    for word, count in seen.items():
        record_property(word.value, count)
    assert seen[Word.PASS] <= 8  # one in forty is what is allowed; nine of eighty have a chance of one in 10,000
    assert seen[Word.REGRESSED] >= 70


def test_one_launch_is_a_launch_record_like_any_other() -> None:
    """What a campaign keeps is what `launch` says: blocks and ordinals from 1, each arm's by itself."""
    done = night(1, lost={0: LOSS})
    assert [each.block for each in done.launches] == sorted(each.block for each in done.launches)
    assert done.launches[0].block == done.launches[0].ordinal == launch().ordinal == 1
