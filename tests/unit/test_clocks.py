"""How the GPUs fared while a round was measured: what of it must not be believed, and what cannot be compared."""

import random
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf import record
from perf.baseline import Store
from perf.gate import Word
from perf.measured import LEAST_SAMPLES, LEAST_SAMPLES_OF_MEAN, faults, pace, sample, told_of_clocks
from perf.nvml import POWER_CAP, PcieLink
from perf.record import Arm, LaunchRecord, Measurement, Order, SuiteRecord
from perf.rig import GpuProcess, GpuTelemetry
from perf.sample import Pace, StoredCase, is_sound
from perf.validity import MAX_SLOWED_SHARE, check_telemetry, gpu_remarks
from perf.verdict import CaseVerdict, judge
from tests.unit.simulated import RIG, SimulatedRig, campaign, launch, measured, stored, suite, written

GEN_5 = PcieLink(generation=5, width=16)
CALM = GpuTelemetry(
    index=3,
    uuid="GPU-3",
    samples=120,
    idle_samples=0,
    sm_clock_median_mhz=2470.0,
    sm_clock_mean_mhz=2468.0,
    sm_clock_min_mhz=2400.0,
    memory_clock_median_mhz=1593.0,
    power_mean_w=550.0,
    power_max_w=590.0,
    temperature_max_celsius=71,
    utilisation_mean=0.97,
    slowed_by=(),
    ecc_corrected=0,
    ecc_uncorrected=0,
    xids=(),
    foreign=(),
    pcie=GEN_5,
    pcie_most=GEN_5,
)
UNTOLD = replace(
    CALM,
    sm_clock_median_mhz=None,
    sm_clock_mean_mhz=None,
    slowed_by=None,
    ecc_corrected=None,
    ecc_uncorrected=None,
    xids=None,
    foreign=None,
    pcie=None,
    pcie_most=None,
)


# One round


@pytest.mark.parametrize(
    ("gpu", "name", "seen"),
    [
        (
            replace(CALM, slowed_by=(("heat (the driver)", 0.35),), temperature_max_celsius=92),
            "GPU throttled",
            "GPU 3 was held down by heat (the driver) in 35 % of 120 samples, at up to 92 degrees Celsius",
        ),
        (replace(CALM, xids=(94, 31, 94)), "GPU error", "GPU 3: Xid 94, 31"),
        (replace(CALM, ecc_uncorrected=2), "GPU error", "GPU 3: 2 memory errors that were not corrected"),
        (
            replace(CALM, foreign=(GpuProcess(pid=4711, name="python"),)),
            "GPU not ours",
            "GPU 3: python (pid 4711)",
        ),
    ],
)
def test_what_spoils_a_round_is_named_with_the_card_and_what_to_do(gpu: GpuTelemetry, name: str, seen: str) -> None:
    (reason,) = check_telemetry((replace(CALM, index=0), gpu))
    assert (reason.name, reason.seen) == (name, seen)
    assert reason.advice


def test_a_calm_card_and_one_that_does_not_tell_are_no_reason_and_no_remark() -> None:
    assert check_telemetry((CALM, UNTOLD)) == ()
    assert gpu_remarks((CALM, UNTOLD)) == ()


def test_a_moments_brake_is_borne_and_more_is_not() -> None:
    def slowed(part: float) -> tuple[GpuTelemetry, ...]:
        return (replace(CALM, slowed_by=(("the power brake", part),)),)

    assert check_telemetry(slowed(MAX_SLOWED_SHARE)) == ()
    assert [each.name for each in check_telemetry(slowed(MAX_SLOWED_SHARE + 0.01))] == ["GPU throttled"]


@pytest.mark.parametrize(("looks", "names"), [(1, []), (2, ["GPU throttled"])])
def test_one_braked_look_of_a_short_round_is_a_moment_too(looks: int, names: list[str]) -> None:
    gpu = replace(CALM, samples=19, slowed_by=(("heat (the hardware)", looks / 19),))
    assert [each.name for each in check_telemetry((gpu,))] == names


def test_the_power_cap_is_a_remark_since_it_holds_most_loaded_cards() -> None:
    capped = replace(CALM, slowed_by=((POWER_CAP, 0.8),))
    assert check_telemetry((capped, CALM)) == ()
    assert gpu_remarks((capped, CALM)) == (
        "1 of 2 GPUs at their power cap, in up to 80 % of samples: their clocks are what it allows",
    )


def test_a_link_below_its_most_is_told_of_a_card_that_works_and_not_of_an_idle_one() -> None:
    slow = replace(CALM, pcie=PcieLink(generation=4, width=8))
    assert gpu_remarks((slow,)) == ("GPU 3 runs its link at PCIe 4.0 x8 under load, of PCIe 5.0 x16",)
    assert gpu_remarks((replace(slow, utilisation_mean=0.02),)) == ()
    assert gpu_remarks((replace(slow, utilisation_mean=None),)) == ()


def test_corrected_memory_errors_are_a_remark() -> None:
    assert gpu_remarks((replace(CALM, ecc_corrected=12),)) == ("GPU 3: 12 memory errors, all corrected",)


def test_the_slowest_card_sets_the_pace_and_one_that_hardly_worked_does_not() -> None:
    slow = replace(CALM, sm_clock_median_mhz=2300.0, sm_clock_mean_mhz=2350.0, temperature_max_celsius=80)
    idle = replace(CALM, sm_clock_median_mhz=210.0, samples=120, idle_samples=120 - LEAST_SAMPLES + 1)
    assert pace((CALM, slow, idle)) == Pace(
        sm_clock_median_mhz=2300.0, sm_clock_mean_mhz=2350.0, power_w=1650.0, celsius=80
    )
    assert pace((idle,)) is None
    assert pace((UNTOLD,)) is None
    short = pace((replace(CALM, samples=LEAST_SAMPLES_OF_MEAN - 1),))
    assert short is not None
    assert (short.sm_clock_median_mhz, short.sm_clock_mean_mhz) == (2470.0, None)
    assert pace((CALM, replace(CALM, power_mean_w=None))) == Pace(
        sm_clock_median_mhz=2470.0, sm_clock_mean_mhz=2468.0, power_w=None, celsius=71
    )


# Two sides


def at(
    median: float | None, throughput: float = 100.0, *, mean: float | None = None, samples: int = 120
) -> Measurement:
    """A case in one launch whose GPU ran at this clock; None where it was not sampled."""
    taken = measured(throughput)
    if median is None:
        return taken
    gpu = replace(CALM, sm_clock_median_mhz=median, sm_clock_mean_mhz=mean or median, samples=samples)
    return replace(taken, rounds=tuple(replace(each, gpus=(gpu,)) for each in taken.rounds))


def stored_at(*medians: float | None) -> StoredCase:
    """A stored baseline whose launches ran at these clocks, over and over."""
    case = stored(100.0, 101.0, 99.0, 100.5)
    paces = [
        () if clock is None else (Pace(sm_clock_median_mhz=clock, sm_clock_mean_mhz=clock, power_w=550.0, celsius=70),)
        for clock in medians
    ]
    launches = tuple(replace(each, pace=ran) for each, ran in zip(case.launches, cycle(paces), strict=False))
    return replace(case, launches=launches)


def block(number: int, candidate: float | None, reference: float | None) -> tuple[LaunchRecord, LaunchRecord]:
    """A launch of each arm."""
    arms: tuple[tuple[Arm, float | None], ...] = (("reference", reference), ("candidate", candidate))
    first, second = (launch(at(clock), ordinal=number, block=number, arm=arm) for arm, clock in arms)
    return first, second


def told(state: SuiteRecord) -> list[str]:
    """The names of what is at fault with the only case."""
    return [each.name for each in faults(state, state.cases[0])]


def word(state: SuiteRecord) -> CaseVerdict:
    (verdict,) = judge(state)
    assert isinstance(verdict, CaseVerdict)
    return verdict


def test_clocks_of_2470_and_2190_mhz_without_a_throttle_bit_are_not_compared() -> None:
    """sglang#2470, vllm.cpp#543: between the arms of a block, and between tonight and the store."""
    pair = suite(reference=True, store=(stored_at(None),), launches=block(1, 2190.0, 2470.0))
    alone = suite(store=(stored_at(2470.0),), launches=(launch(at(2190.0)),))
    for state, seen, do in (
        (
            pair,
            "candidates ran at 2,190 MHz (median of the slowest GPU), the references beside them at 2,470; "
            "2.4 % are borne",
            "to record anew does not help",
        ),
        (
            alone,
            "tonight ran at 2,190 MHz (median of the slowest GPU), the stored baseline at 2,470; 2.1 % are borne",
            "record the case anew",
        ),
    ):
        verdict = word(state)
        assert verdict.word is Word.INVALID
        assert [(each.name, each.seen) for each in verdict.reasons] == [("clocks differ", seen)]
        assert "nvidia-smi -lgc" in verdict.reasons[0].advice
        assert do in verdict.reasons[0].advice


@given(st.floats(200.0, 4000.0), st.floats(-0.05, 0.05), st.booleans(), st.integers(1, 8))
def test_more_than_a_hundredth_and_the_luck_of_launches_is_told_and_less_is_not(
    clock: float, off: float, beside: bool, count: int
) -> None:
    """Luck is two standard errors, of launches that are off by half a percent: the less the more there are."""
    other = clock * (1 + off)
    blocks = range(1, count + 1)
    launches = tuple(
        each
        for number in blocks
        for each in (block(number, other, clock) if beside else (launch(at(other), ordinal=number),))
    )
    state = suite(reference=beside, store=(stored_at(clock),), launches=launches)
    borne = 0.01 + 2 * 0.005 * (1 / count + 1 / (count if beside else 4)) ** 0.5
    if abs(abs(off) - borne) > 1e-9:
        assert told(state) == (["clocks differ"] if abs(off) > borne else [])


@pytest.mark.parametrize("beside", [True, False])
def test_a_quiet_rig_is_hardly_ever_thrown_away_and_one_at_2190_mhz_always(beside: bool) -> None:
    """Looked at after each launch, as a campaign does, of launches whose clocks are off by half a percent."""
    luck = random.Random(20)
    nights = 200

    def clock(true: float) -> float:
        return true * luck.gauss(1.0, 0.005)

    def differ(true: float) -> bool:
        """In any of eight blocks, or launches."""
        state = suite(reference=beside, store=(stored_at(*(clock(2470.0) for _ in range(4))),))
        for number in range(1, 9):
            more = block(number, clock(true), clock(2470.0)) if beside else (launch(at(clock(true)), ordinal=number),)
            state = replace(state, launches=(*state.launches, *more))
            if told(state):
                return True
        return False

    assert sum(differ(2470.0) for _ in range(nights)) <= nights / 100
    assert all(differ(2190.0) for _ in range(nights))


def test_one_slow_launch_among_like_ones_does_not_hide_behind_the_spread_that_it_makes() -> None:
    for beside in (True, False):
        calm = [
            each
            for number in (1, 2, 3)
            for each in (block(number, 2470.0, 2470.0) if beside else (launch(at(2470.0), ordinal=number),))
        ]
        slow = block(4, 2190.0, 2470.0) if beside else (launch(at(2190.0), ordinal=4),)
        state = suite(reference=beside, store=(stored_at(2470.0),), launches=(*calm, *slow))
        assert told(state) == ["clocks differ"]
        assert told(replace(state, launches=tuple(calm))) == []


def test_a_clock_that_a_stored_launch_ran_at_is_the_stores_own() -> None:
    store = (stored_at(2300.0, 2400.0, 2350.0),)
    for clock in (2290.0, 2300.0, 2400.0, 2410.0):
        assert told(suite(store=store, launches=(launch(at(clock)),))) == []
    state = suite(store=store, launches=(launch(at(2190.0)),))
    assert "the stored baseline at 2,300 to 2,400" in faults(state, state.cases[0])[0].seen


def test_a_mean_that_differs_is_enough_where_the_medians_are_alike_and_looks_are_many() -> None:
    def state(looks: int) -> SuiteRecord:
        return suite(store=(stored_at(2400.0),), launches=(launch(at(2400.0, mean=2300.0, samples=looks)),))

    assert told(state(LEAST_SAMPLES_OF_MEAN)) == ["clocks differ"]
    assert "(mean of the slowest GPU)" in faults(state(LEAST_SAMPLES_OF_MEAN), state(1).cases[0])[0].seen
    assert told(state(LEAST_SAMPLES_OF_MEAN - 1)) == []  # where one look would move it as far


def test_what_was_not_sampled_on_either_side_is_not_compared() -> None:
    assert told(suite(store=(stored_at(2400.0),), launches=(launch(at(None)),))) == []
    assert told(suite(store=(stored_at(None),), launches=(launch(at(2400.0)),))) == []
    assert told(suite(reference=True, store=(stored_at(None),), launches=block(1, None, 2400.0))) == []
    assert told(suite(launches=(launch(at(2400.0)),))) == []


def test_arms_are_compared_over_whole_blocks_since_a_rig_may_warm_over_the_night() -> None:
    launches = (*block(1, 2400.0, 2405.0), *block(2, 2300.0, 2305.0), *block(3, 2000.0, 2000.0))
    for count in range(1, len(launches) + 1):
        assert told(suite(reference=True, store=(stored_at(None),), launches=launches[:count])) == []


def test_where_fresh_pairs_can_be_had_the_stores_clocks_are_only_told_beside_the_verdict() -> None:
    state = suite(reference=True, store=(stored_at(2470.0),), launches=block(1, 2190.0, 2195.0))
    verdict = word(state)
    assert verdict.word is not Word.INVALID
    assert any("tonight ran at 2,190 MHz" in note for note in verdict.notes)


def test_another_workload_has_no_baseline_whatever_its_clocks() -> None:
    other = replace(stored_at(2470.0), workload_digest="another")
    assert word(suite(store=(other,), launches=(launch(at(2190.0)),))).word is Word.NO_BASELINE


class Clocked(SimulatedRig):
    """A rig whose GPUs run at 2,470 MHz in the first launches of each variant, and then at 2,190."""

    def __init__(self, state: SuiteRecord, *, fast: int) -> None:
        super().__init__(truth=lambda _variant, _level: 80.0)
        self.state = state
        self.fast = fast

    def measure(self, order: Order) -> LaunchRecord:
        made = super().measure(order)
        clock = 2470.0 if order.ordinal <= self.fast else 2190.0
        taken = tuple(at(clock, each.rounds[0].summary.output_throughput) for each in made.measurements)  # type: ignore[union-attr]
        state = self.saved[-1] if self.saved else self.state
        return told_of_clocks(state, replace(made, measurements=taken))


@pytest.mark.parametrize("fast", [0, 1])
def test_a_campaign_ends_with_the_launch_whose_clocks_differ_though_it_looks_like_a_loss(fast: int) -> None:
    """Else it would be launched up to the cap, to settle a loss that nobody may believe."""
    variants = ("baseline", "eagle3")
    store = tuple(replace(stored_at(2470.0), case=f"sim/{name}/c001", command=()) for name in variants)
    state = suite(variants=variants, store=store, max_launches=12)
    rig = Clocked(state, fast=fast)
    done = rig.run(state)
    assert {each.word for each in judge(done)} == {Word.INVALID}
    assert rig.variants.count("baseline") == rig.variants.count("eagle3") == fast + 1


# Files


def test_telemetry_comes_back_from_a_campaigns_file_and_so_does_that_there_was_none(tmp_path: Path) -> None:
    for clock in (2400.0, None):
        whole = campaign(suite(launches=(launch(at(clock)),)))
        assert record.read(written(tmp_path / str(clock), whole)) == whole


@pytest.mark.parametrize("clock", [0.0, -5.0])
def test_a_working_card_whose_clock_stands_still_does_not_tell_it_and_spoils_no_baseline(clock: float) -> None:
    stands = replace(CALM, sm_clock_median_mhz=clock, sm_clock_mean_mhz=clock)
    assert pace((stands,)) is None
    beside = pace((stands, CALM))
    assert beside is not None
    assert (beside.sm_clock_median_mhz, beside.sm_clock_mean_mhz) == (2470.0, 2468.0)
    mean = pace((replace(CALM, sm_clock_mean_mhz=clock),))
    assert mean is not None
    assert (mean.sm_clock_median_mhz, mean.sm_clock_mean_mhz) == (2470.0, None)


def test_the_pace_is_stored_with_a_baseline_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    case = stored_at(2400.0)
    store = Store(tmp_path)
    store.promote(RIG.id, "sim", "baseline", (case,), add=False)
    assert store.read(RIG.id, "sim", "baseline") == (case,)
    first, *others = case.launches
    for damaged in ((first.pace[0],) * 2, (replace(stored_pace(case), sm_clock_median_mhz=0.0),)):
        assert not is_sound(replace(case, launches=(replace(first, pace=damaged), *others)))
    short = replace(stored_pace(case), sm_clock_mean_mhz=None)
    assert is_sound(replace(case, launches=(replace(first, pace=(short,)), *others)))


def stored_pace(case: StoredCase) -> Pace:
    (found,) = case.launches[0].pace
    assert found is not None
    return found


def test_a_sample_has_a_pace_for_each_round_or_none_at_all() -> None:
    one, other = launch(at(2400.0)), launch(at(None))
    assert [each and each.sm_clock_median_mhz for each in sample(one, one.measurements[0]).pace] == [2400.0]
    assert sample(other, other.measurements[0]).pace == ()
