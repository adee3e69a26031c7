"""What a campaign took of a case, and whether it may be judged at all. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean

from perf.record import Arm, CaseRecord, LaunchRecord, Measurement, SuiteRecord
from perf.rig import GpuTelemetry
from perf.sample import Build, LaunchSample, Pace
from perf.text import printable
from perf.validity import Reason, level_never_reached

Taken = tuple[tuple[LaunchRecord, Measurement], ...]

#: Pins acceptance on the server: with it on one side only, the two sides are not comparable (sglang#31609).
SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"

_ARMS: tuple[Arm, ...] = ("candidate", "reference")

#: Clocks of two sides that differ by more: a third of the default margin, where throughput follows the clock.
MAX_CLOCK_DIFFERENCE = 0.01

#: Looks at a working card from which its clocks are told: fewer are a second or two.
LEAST_SAMPLES = 4


def measurements(suite: SuiteRecord, variant: str, level: int, arm: Arm = "candidate") -> Taken:
    """Every launch of an arm that measured a case, with what it measured."""
    return tuple(
        (launch, measurement)
        for launch in suite.launches
        if launch.variant == variant and launch.arm == arm
        for measurement in launch.measurements
        if measurement.level == level
    )


def sample(launch: LaunchRecord, measurement: Measurement, *, campaign: str = "") -> LaunchSample:
    """One launch's sample of a case whose rounds all may be believed; `campaign` where it is to be stored."""
    taken = [(each.summary, each.client) for each in measurement.rounds if each.summary is not None]
    summaries, clients = [each for each, _ in taken], [client for _, client in taken]
    paces = tuple(None if each.gpus is None else pace(each.gpus) for each in measurement.rounds if each.summary)
    return LaunchSample(
        campaign=campaign,
        launch=launch.name,
        start_s=launch.start_s,
        output_throughput=tuple(each.output_throughput for each in summaries),
        acceptance_length=tuple(each.acceptance_length for each in summaries),
        ttft_s=tuple(each.ttft_s.p50 for each in summaries),
        tpot_s=tuple(None if each.tpot_s is None else each.tpot_s.p50 for each in summaries),
        ttft_mean_s=tuple(each.ttft_s.mean for each in summaries),
        e2e_mean_s=tuple(each.e2e_s.mean for each in summaries),
        achieved_concurrency=tuple(each.achieved_concurrency for each in summaries),
        itl_p99_s=tuple(None if each.itl_s is None else each.itl_s.p99 for each in summaries),
        turnaround_share=tuple(None if each is None else each.turnaround_share for each in clients),
        away_share=tuple(None if each is None else each.away_share for each in clients),
        cpu_share=tuple(None if each is None else each.cpu_share for each in clients),
        pace=paces if any(paces) else (),
    )


def pace(gpus: Sequence[GpuTelemetry]) -> Pace | None:
    """What is compared of the GPUs of a round; None where no card worked long enough to tell."""
    clocks = [
        (gpu.sm_clock_median_mhz, gpu.sm_clock_mean_mhz)
        for gpu in gpus
        if gpu.sm_clock_median_mhz is not None
        and gpu.sm_clock_mean_mhz is not None
        and gpu.samples - gpu.idle_samples >= LEAST_SAMPLES
    ]
    if not clocks:
        return None
    power_w = [gpu.power_mean_w for gpu in gpus if gpu.power_mean_w is not None]
    return Pace(
        sm_clock_median_mhz=min(median for median, _ in clocks),
        sm_clock_mean_mhz=min(mean for _, mean in clocks),
        power_w=sum(power_w) if len(power_w) == len(gpus) else None,
        celsius=max(
            (gpu.temperature_max_celsius for gpu in gpus if gpu.temperature_max_celsius is not None), default=None
        ),
    )


def reasons(suite: SuiteRecord, case: CaseRecord) -> tuple[Reason, ...]:
    """Why a case must not be judged: it is at fault, or was not measured."""
    if suite.problem is not None:
        return (Reason(name="not measured", seen=suite.problem, advice="put that right, and measure again"),)
    if found := faults(suite, case):
        return found
    taken, beside = (measurements(suite, case.variant, case.level, arm) for arm in _ARMS)
    if not taken or not all(_whole(measurement) for _, measurement in (*taken, *beside)):
        return (
            Reason(
                name="not measured",
                seen=suite.stopped or "no round of this case was finished",
                advice="give the campaign more minutes with --perf-budget-minutes, or read the server log",
            ),
        )
    return ()


def faults(suite: SuiteRecord, case: CaseRecord) -> tuple[Reason, ...]:
    """What is wrong with a case, whatever is still to be measured of it."""
    arms = [measurements(suite, case.variant, case.level, arm) for arm in _ARMS]
    found = tuple(reason for taken in arms for _, measurement in taken for reason in measurement.all_reasons)
    if found:
        return found
    for taken in arms:
        builds = dict.fromkeys(launch.build for launch, _ in taken if launch.build is not None)
        if len(builds) > 1:
            return (
                Reason(
                    name="build changed",
                    seen="launches of this case ran " + ", then ".join(build_text(build) for build in builds),
                    advice="leave checkout and environment alone while a campaign runs, and measure again",
                ),
            )
    models = dict.fromkeys(launch.model for taken in arms for launch, _ in taken if launch.model is not None)
    if len(models) > 1:
        return (
            Reason(
                name="model changed",
                seen="launches of this case served " + ", then ".join(printable(model, 80) for model in models),
                advice="candidate and reference must be asked for the same model: name it in `model` of the variant",
            ),
        )
    if differ := _clocks_differ(suite, case):
        return (differ,)
    if suite.level_must_be_reached and (reason := level_never_reached(case.level, dict(suite.requests)[case.level])):
        return (reason,)
    return ()


def told_of_clocks(suite: SuiteRecord, launch: LaunchRecord) -> LaunchRecord:
    """A launch that was just made, with the reason beside each case whose clocks it shows to differ.

    There it ends the launches of the case: what is at fault is never launched again.
    """
    after = replace(suite, launches=(*suite.launches, launch))
    cases = {case.level: case for case in suite.cases if case.variant == launch.variant}
    told = [
        each
        if each.all_reasons or (reason := _clocks_differ(after, cases[each.level])) is None
        else replace(each, reasons=(reason,))
        for each in launch.measurements
    ]
    return replace(launch, measurements=tuple(told))


def _clocks_differ(suite: SuiteRecord, case: CaseRecord) -> Reason | None:
    """Did the GPUs run at other clocks than on the side that a case is held against?

    Fresh pairs are held against each other, block by block; where there can be none, tonight is against the store.
    """
    ours, others = (_paces(suite, case, arm) for arm in _ARMS)
    if not ours:
        return None
    compared: list[_Sides]
    if suite.reference:
        compared = [
            (f"launch {name} ran at", mine, f"{other}, beside it, at", theirs)
            for (name, block, mine), (other, beside, theirs) in product(ours, others)
            if block == beside
        ]
    elif not_comparable(suite, case) is None:
        compared = _with_store(case, ours)
    else:
        compared = []
    seen = next((told for each in compared if (told := _apart(*each))), None)
    if seen is None:
        return None
    return Reason(
        name="clocks differ",
        seen=seen,
        advice="lock them (nvidia-smi -lgc MHZ,MHZ) and measure again; where these are the clocks from now on, "
        "record the case anew: measure with an empty --perf-baselines folder and promote that",
    )


def clocks_beside_store(suite: SuiteRecord, case: CaseRecord) -> str | None:
    """What is said of a case that has a reference build to be held against: its clocks are not the stored ones."""
    compared = _with_store(case, _paces(suite, case, "candidate"))
    return next((told for each in compared if (told := _apart(*each))), None)


#: One side and the other: what is said of it, and how its GPUs fared.
_Sides = tuple[str, Sequence[Pace], str, Sequence[Pace]]


def _with_store(case: CaseRecord, ours: Iterable[tuple[str, int, list[Pace]]]) -> list[_Sides]:
    """Tonight's launches together beside the stored ones; nothing where one of both was not sampled."""
    launches = () if case.stored is None else case.stored.launches
    stored = [each for launch in launches for each in launch.pace if each is not None]
    tonight = [each for _, _, paces in ours for each in paces]
    return [("tonight ran at", tonight, "the stored baseline at", stored)] if stored and tonight else []


def _apart(one: str, mine: Sequence[Pace], other: str, theirs: Sequence[Pace]) -> str | None:
    """Both sides' clocks in words, where the difference is too large; None where it is not."""
    now, was = (fmean(each.sm_clock_median_mhz for each in side) for side in (mine, theirs))
    now_mean, was_mean = (fmean(each.sm_clock_mean_mhz for each in side) for side in (mine, theirs))
    if max(abs(now / was - 1), abs(now_mean / was_mean - 1)) <= MAX_CLOCK_DIFFERENCE:
        return None
    return (
        f"{one} {now:,.0f} MHz (median of the slowest GPU; mean {now_mean:,.0f}), {other} {was:,.0f} ({was_mean:,.0f})"
    )


def _paces(suite: SuiteRecord, case: CaseRecord, arm: Arm) -> list[tuple[str, int, list[Pace]]]:
    """Name and block of each launch of an arm that was sampled, and how the GPUs fared in its rounds."""
    found: list[tuple[str, int, list[Pace]]] = []
    for launch, measurement in measurements(suite, case.variant, case.level, arm):
        rounds = [each for taken in measurement.rounds if taken.gpus and (each := pace(taken.gpus)) is not None]
        if rounds:
            found.append((launch.name, launch.block, rounds))
    return found


def not_comparable(suite: SuiteRecord, case: CaseRecord) -> str | None:
    """Why the stored baseline of a case says nothing of it, None where it does."""
    stored = case.stored
    if stored is None:
        return "no baseline is stored for this case on this rig"
    if stored.workload_digest != case.workload_digest:
        return (
            f"the stored baseline was asked another workload (digest {printable(stored.workload_digest, 32)}, "
            f"now {case.workload_digest})"
        )
    if stored.power_limits_w != suite.power_limits_w:
        return (
            f"the stored baseline ran under other power limits ({_watts(stored.power_limits_w)}, "
            f"now {_watts(suite.power_limits_w)})"
        )
    for arm in _ARMS:
        for launch, _ in measurements(suite, case.variant, case.level, arm):
            now = dict(launch.variant_env).get(SIMULATED_ACCEPTANCE)
            if now != stored.simulated_acceptance:
                was, now = (printable(value or "not set", 32) for value in (stored.simulated_acceptance, now))
                return f"acceptance is not simulated alike on both sides ({SIMULATED_ACCEPTANCE} was {was}, now {now})"
    return None


def build_text(build: Build | None) -> str:
    """A build in a few words."""
    return "an unknown build" if build is None else printable(f"{build}, packages {build.packages[:8]}", 120)


def _whole(measurement: Measurement) -> bool:
    return bool(measurement.rounds) and all(each.summary is not None for each in measurement.rounds)


def _watts(limits: tuple[float | None, ...]) -> str:
    return ", ".join("unknown" if limit is None else f"{limit:.0f} W" for limit in limits) or "none"
