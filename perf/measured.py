"""What a campaign took of a case, and whether it may be judged at all. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from perf.record import Arm, CaseRecord, LaunchRecord, Measurement, SuiteRecord
from perf.rig import GpuTelemetry
from perf.sample import Build, LaunchSample, Pace
from perf.text import printable, share
from perf.validity import Reason, level_never_reached

Taken = tuple[tuple[LaunchRecord, Measurement], ...]

#: Pins acceptance on the server: with it on one side only, the two sides are not comparable (sglang#31609).
SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"

_ARMS: tuple[Arm, ...] = ("candidate", "reference")

#: Clocks of two sides that differ by more: a third of the default margin, where throughput follows the clock.
MAX_CLOCK_DIFFERENCE = 0.01

#: By how much clocks of like launches are off, as a standard deviation, and how many standard errors of that are borne
#: beyond it. What was seen tonight is not taken for it: a single slow launch would hide itself.
LAUNCH_CLOCK_SPREAD = 0.005
CLOCK_ERRORS = 2.0

#: Looks at a working card from which its clocks are told: fewer are two seconds, and those at both ends are not told.
LEAST_SAMPLES = 6

#: And from which their mean is: of fewer, a single look at half the clock moves it by 2 % and more.
LEAST_SAMPLES_OF_MEAN = 30


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

    def worked(gpu: GpuTelemetry) -> int:
        return gpu.samples - gpu.idle_samples

    # A card that works and says that its clock stands still does not tell it.
    told = [each for each in gpus if (each.sm_clock_median_mhz or 0) > 0 and worked(each) >= LEAST_SAMPLES]
    medians = [each.sm_clock_median_mhz for each in told if each.sm_clock_median_mhz is not None]
    means = [
        each.sm_clock_mean_mhz
        for each in told
        if each.sm_clock_mean_mhz is not None and each.sm_clock_mean_mhz > 0 and worked(each) >= LEAST_SAMPLES_OF_MEAN
    ]
    if not medians:
        return None
    power_w = [gpu.power_mean_w for gpu in gpus if gpu.power_mean_w is not None]
    return Pace(
        sm_clock_median_mhz=min(medians),
        sm_clock_mean_mhz=min(means, default=None),
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

    Fresh pairs are held against each other; where there can be none, tonight is against the store.
    """
    if suite.reference:
        seen = _clocks_between_arms(suite, case)
    else:
        seen = clocks_beside_store(suite, case) if not_comparable(suite, case) is None else None
    if seen is None:
        return None
    if suite.reference:
        advice = (
            "lock every card at one clock that it holds under load (nvidia-smi -lgc MHZ,MHZ) and measure again; "
            "to record anew does not help: both arms ran tonight"
        )
    else:
        advice = (
            "lock every card at the clock of the store (nvidia-smi -lgc MHZ,MHZ) and measure again; or lock at another "
            "and record the case anew: measure with an empty --perf-baselines folder and promote that"
        )
    return Reason(name="clocks differ", seen=seen, advice=advice)


def clocks_beside_store(suite: SuiteRecord, case: CaseRecord) -> str | None:
    """What is said of clocks that no stored launch of a case ran at; of one with a reference build that is all."""
    tonight = [rounds for _, rounds in _paces(suite, case, "candidate")]
    launches = () if case.stored is None else case.stored.launches
    stored = [rounds for launch in launches if (rounds := [each for each in launch.pace if each is not None])]
    return _apart("tonight ran at", tonight, "the stored baseline at", stored, lambda was: (min(was), max(was)))


def _clocks_between_arms(suite: SuiteRecord, case: CaseRecord) -> str | None:
    """All blocks together, of which both arms were sampled: a rig may warm over the night."""
    ours, others = (_paces(suite, case, arm) for arm in _ARMS)
    both = {block for block, _ in ours} & {block for block, _ in others}
    mine, theirs = ([rounds for block, rounds in side if block in both] for side in (ours, others))
    return _apart(
        "candidates ran at", mine, "the references beside them at", theirs, lambda was: (fmean(was), fmean(was))
    )


#: How the GPUs fared in the launches of one side, in each of their rounds.
_Side = Sequence[Sequence[Pace]]


def _apart(
    one: str, mine: _Side, other: str, theirs: _Side, bounds: Callable[[Sequence[float]], tuple[float, float]]
) -> str | None:
    """Both sides' clocks in words, where ours are too far beyond the bounds of theirs; None where they are not."""
    for name in ("median", "mean"):
        now, was = (
            [clock for rounds in side if (clock := _clock(name, rounds)) is not None] for side in (mine, theirs)
        )
        if not now or not was:
            continue
        allowed = MAX_CLOCK_DIFFERENCE + CLOCK_ERRORS * LAUNCH_CLOCK_SPREAD * math.sqrt(1 / len(now) + 1 / len(was))
        low, high = bounds(was)
        if not (1 - allowed) * low <= fmean(now) <= (1 + allowed) * high:
            told = " to ".join(dict.fromkeys(f"{each:,.0f}" for each in (low, high)))
            return (
                f"{one} {fmean(now):,.0f} MHz ({name} of the slowest GPU), {other} {told}; "
                f"{share(round(allowed, 3))} are borne"
            )
    return None


def _clock(name: str, rounds: Sequence[Pace]) -> float | None:
    """A launch's; None where its rounds do not tell."""
    values = [each.sm_clock_median_mhz if name == "median" else each.sm_clock_mean_mhz for each in rounds]
    known = [each for each in values if each is not None]
    return fmean(known) if known else None


def _paces(suite: SuiteRecord, case: CaseRecord, arm: Arm) -> list[tuple[int, list[Pace]]]:
    """The block of each launch of an arm that was sampled, and how the GPUs fared in its rounds."""
    found: list[tuple[int, list[Pace]]] = []
    for launch, measurement in measurements(suite, case.variant, case.level, arm):
        rounds = [each for taken in measurement.rounds if taken.gpus and (each := pace(taken.gpus)) is not None]
        if rounds:
            found.append((launch.block, rounds))
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


def last_log(launches: list[LaunchRecord]) -> tuple[str, ...]:
    """The last launch: what is INVALID is not launched again. A server that already ran left no log with us."""
    return tuple(launch.name for launch in launches[-1:] if launch.command)
