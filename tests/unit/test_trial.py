"""From a suite's record to the gates of its variants: who is judged together, on which launches."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perf import record
from perf.gate import Word
from perf.measured import faults, not_comparable
from perf.record import CaseRecord, LaunchRecord, SuiteRecord
from perf.sample import Build, StoredCase
from perf.simulation import SimulatedRig, Truth
from perf.simulation import suite as simulated_suite
from perf.trial import Trial, Trials, stored_noise
from perf.verdict import judge, judge_case
from tests.unit.simulated import campaign, failed, launch, measured, stored, suite, written

LEVELS = (1, 2, 8, 32)
LOSS = float(np.log(0.97))
OLD = Build(sglang="0.5.22", torch=None, cuda=None, commit=None, dirty=None, kernels=(), packages="0123456789abcdef")
NEW = replace(OLD, sglang="0.5.23")


def rig(
    seed: int, *, spread: tuple[float, ...] = (0.01,) * 4, lost: tuple[int, ...] = (), names: int = 1
) -> SimulatedRig:
    """A rig of one or more variants; the candidate of the first lost the margin at these places."""
    truths = {f"v{number}": Truth(throughput=(100.0,) * len(spread), spread=spread) for number in range(names)}
    change = np.zeros(len(spread))
    change[list(lost)] = LOSS
    return SimulatedRig(truths, LEVELS[: len(spread)], seed=seed, changes={"v0": change})


def measured_night(seed: int, *, lost: tuple[int, ...] = (0,), names: int = 1, max_launches: int = 6) -> SuiteRecord:
    ours = rig(seed, lost=lost, names=names)
    return ours.run(simulated_suite(ours.store(20, 20), max_launches=max_launches))


def said(trials: tuple[Trial, ...]) -> list[tuple[object, ...]]:
    """Everything that the next launch, or a verdict, could depend on."""
    return [
        (
            each.levels,
            each.alone,
            [each.gate.word(place) for place in range(len(each.levels))],
            each.gate.losses.mixture,
            each.gate.stored.information.tolist(),
            each.gate.losses.excluded.tolist(),
            each.gate.guard.factor,
        )
        for each in trials
    ]


def of_levels(state: SuiteRecord, variant: str = "baseline") -> list[tuple[int, ...]]:
    return [each.levels for each in Trials(variant).keep_up(state)]


def quiet(*levels: int, variant: str = "baseline") -> tuple[StoredCase, ...]:
    return tuple(stored(99.9, 100.0, 100.1, 100.0, level=level, variant=variant) for level in levels)


# Who is judged together


def test_the_levels_of_a_variant_are_judged_together_and_a_noisy_one_by_itself() -> None:
    noisy = stored(80.0, 100.0, 120.0, 95.0, level=32)
    state = suite(levels=LEVELS, store=(*quiet(1, 2, 8), noisy))
    together, apart = Trials("baseline").keep_up(state)
    assert (together.levels, together.alone) == ((1, 2, 8), False)
    assert (apart.levels, apart.alone) == ((32,), True)
    assert together.gate.rule.families == apart.gate.rule.families == 2
    assert together.gate.noise.spread.max() < 0.01 < apart.gate.noise.spread[0]


def test_alpha_is_shared_by_the_variants_of_the_whole_suite_whatever_is_selected() -> None:
    state = suite(levels=(1, 2), variants=("baseline", "eagle3"), store=quiet(1, 2))
    few = replace(state, cases=tuple(replace(each, selected=each.id == "sim/baseline/c001") for each in state.cases))
    for each in (state, few):
        (judged,) = Trials("baseline").keep_up(each)
        assert judged.gate.rule.families == 2


def test_what_is_not_selected_or_has_no_baseline_or_another_takes_no_part() -> None:
    store = quiet(1, 2, 8)
    state = suite(levels=LEVELS, store=(*store[:2], replace(store[2], workload_digest="of before")))
    assert of_levels(state) == [(1, 2)]
    one = replace(state, cases=tuple(replace(each, selected=each.level == 2) for each in state.cases))
    assert of_levels(one) == [(2,)]
    assert of_levels(suite(levels=LEVELS)) == []


def test_what_is_advisory_or_could_not_be_measured_has_no_gate() -> None:
    state = suite(levels=(1, 2), store=quiet(1, 2))
    assert of_levels(replace(state, advisory="shown, never gated")) == []
    assert of_levels(replace(state, problem="the rig went away")) == []


def test_a_level_at_fault_is_taken_out_and_the_others_are_judged_from_their_first_launch_on() -> None:
    good = launch(measured(100.0), measured(100.0, level=2))
    bad = launch(measured(100.0), failed(2), ordinal=2)
    trials = Trials("baseline")
    state = suite(levels=(1, 2), store=quiet(1, 2), launches=(good,))
    assert [each.levels for each in trials.keep_up(state)] == [(1, 2)]
    state = replace(state, launches=(good, bad))
    (left,) = trials.keep_up(state)
    assert left.levels == (1,)
    assert left.gate.launches[True].tolist() == [2]
    assert said(trials.keep_up(state)) == said(Trials("baseline").keep_up(state))


def test_one_stored_launch_says_nothing_of_noise_so_nothing_is_judged() -> None:
    state = suite(store=(stored(100.0),), launches=tuple(launch(measured(50.0), ordinal=n) for n in (1, 2, 3)))
    assert of_levels(state) == []
    verdict = judge_case(state, state.cases[0])
    assert (verdict.word, verdict.judgement) == (Word.INCONCLUSIVE, None)


def test_both_arms_of_a_stored_night_are_two_builds_whose_difference_is_no_noise() -> None:
    (case,) = suite(store=quiet(1)).cases
    assert case.stored is not None

    def noise(name: Callable[[int], str]) -> float:
        assert case.stored is not None
        launches = tuple(
            replace(each, launch=name(number), output_throughput=(100.0 * (1.2 if number > 2 else 1.0) + number % 2,))
            for number, each in enumerate(case.stored.launches, 1)
        )
        found = stored_noise((replace(case, stored=replace(case.stored, launches=launches)),))
        assert found is not None
        return float(found.spread[0])

    one_build = noise(lambda number: f"baseline-{number}")
    two_builds = noise(lambda number: f"baseline+reference-{number}" if number > 2 else f"baseline-{number}")
    assert one_build > 3 * two_builds


# Kept up


@pytest.mark.parametrize("seed", range(4))
def test_kept_up_launch_by_launch_it_says_what_is_said_of_the_whole(seed: int) -> None:
    state = measured_night(seed, lost=(0,) if seed % 2 else ())
    kept = Trials("v0")
    for count in range(len(state.launches) + 1):
        so_far = replace(state, launches=state.launches[:count])
        blocks = [each.block for each in state.launches]
        if count < len(blocks) and count and blocks[count] == blocks[count - 1]:
            continue  # a campaign looks between blocks
        assert said(kept.keep_up(so_far)) == said(Trials("v0").keep_up(so_far))


def test_launches_of_another_variant_change_nothing() -> None:
    state = measured_night(1, names=2)
    ours = replace(state, launches=tuple(each for each in state.launches if each.variant == "v0"))
    assert len(ours.launches) < len(state.launches)
    words = [[each[2] for each in said(Trials("v0").keep_up(judged))] for judged in (state, ours)]
    assert words[0] == words[1]


def test_a_build_that_changed_under_a_campaign_is_seen_whatever_else_was_wrong() -> None:
    """The launch before had a fault at another level, and was of the other arm."""
    store = quiet(1, 2)
    first = launch(measured(100.0), failed(2))
    beside = launch(measured(100.0), arm="reference", build=OLD, block=1)
    later = launch(measured(100.0), arm="reference", build=NEW, ordinal=2, block=2)
    trials = Trials("baseline")
    state = suite(levels=(1, 2), store=store, reference=True)
    trials.keep_up(state)
    trials.keep_up(replace(state, launches=(first, beside)))
    assert trials.keep_up(replace(state, launches=(first, beside, later))) == ()


# What must not matter


def shuffled(state: SuiteRecord, seed: int) -> SuiteRecord:
    """Variants in another order, and the arms of a block: as a file may have them."""
    luck = random.Random(seed)
    by_block: dict[tuple[str, int], list[LaunchRecord]] = {}
    for each in state.launches:
        by_block.setdefault((each.variant, each.block), []).append(each)
    for block in by_block.values():
        luck.shuffle(block)
    variants = list(dict.fromkeys(each.variant for each in state.launches))
    luck.shuffle(variants)
    order = [key for name in variants for key in sorted(by_block) if key[0] == name]
    return replace(state, launches=tuple(each for key in order for each in by_block[key]))


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_launches_in_the_file_changes_nothing(seed: int) -> None:
    state = measured_night(seed, names=2)
    assert any(each.arm == "reference" for each in state.launches)
    other = shuffled(state, seed)
    assert other.launches != state.launches
    for name in ("v0", "v1"):
        assert said(Trials(name).keep_up(other)) == said(Trials(name).keep_up(state))


def test_the_order_of_cases_measurements_and_rounds_changes_nothing() -> None:
    state = measured_night(2)
    luck = random.Random(2)

    def mixed(each: LaunchRecord) -> LaunchRecord:
        return replace(each, measurements=tuple(luck.sample(each.measurements, len(each.measurements))))

    other = replace(state, launches=tuple(map(mixed, state.launches)))
    assert said(Trials("v0").keep_up(other)) == said(Trials("v0").keep_up(state))
    rounds = measured(100.0).rounds + measured(103.0).rounds + measured(98.7).rounds
    words = [
        said(
            Trials("baseline").keep_up(suite(store=quiet(1), launches=(launch(replace(measured(100.0), rounds=each)),)))
        )
        for each in (rounds, rounds[::-1])
    ]
    assert words[0] == words[1]


def test_a_campaign_that_was_written_and_read_is_the_same_and_says_the_same(tmp_path: Path) -> None:
    for seed, lost in enumerate(((), (0,), (0, 1, 2, 3))):
        state = measured_night(seed, lost=lost, names=2)
        saved = campaign(state, id=f"20260201-02000{seed}")
        again = record.read(written(tmp_path, saved))
        assert again == saved
        assert judge(again.suites[0]) == judge(state)


def test_a_sample_against_itself_is_never_red() -> None:
    """Stored launches measured again tonight, to the token and in the same order."""
    luck = random.Random(5)
    for _ in range(150):
        values = [100 * luck.lognormvariate(0, luck.choice([0.001, 0.01, 0.1])) for _ in range(luck.randint(2, 8))]
        launches = tuple(launch(measured(value), ordinal=number) for number, value in enumerate(values, 1))
        (verdict,) = judge(suite(store=(stored(*values),), launches=launches))
        assert verdict.word in (Word.PASS, Word.INCONCLUSIVE)


# What it costs


def test_faults_are_looked_for_once_and_not_again_with_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()

    def counted(name: str, real: Callable[[SuiteRecord, CaseRecord], object]) -> Callable[..., object]:
        def call(state: SuiteRecord, case: CaseRecord) -> object:
            calls[name] += 1
            return real(state, case)

        return call

    monkeypatch.setattr("perf.trial.faults", counted("trial", faults))
    monkeypatch.setattr("perf.campaign.faults", counted("campaign", faults))
    monkeypatch.setattr("perf.trial.not_comparable", counted("comparable", not_comparable))
    ours = rig(3, spread=(0.04,) * 4)
    done = ours.run(simulated_suite(ours.store(20, 20), max_launches=40))
    assert len(done.launches) >= 50
    assert calls["trial"] <= 2 * len(done.cases)  # before and after the first launch
    assert calls["comparable"] <= 2 * len(done.cases)
    assert calls["campaign"] == 0
