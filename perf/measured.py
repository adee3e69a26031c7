"""What a campaign took of a case, and whether it may be judged at all. Pure."""

from perf.record import Arm, CaseRecord, LaunchRecord, Measurement, SuiteRecord
from perf.sample import Build, LaunchSample
from perf.text import printable
from perf.validity import Reason, level_never_reached

Taken = tuple[tuple[LaunchRecord, Measurement], ...]

#: Pins acceptance on the server: with it on one side only, the two sides are not comparable (sglang#31609).
SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"

_ARMS: tuple[Arm, ...] = ("candidate", "reference")


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
    if suite.level_must_be_reached and (reason := level_never_reached(case.level, dict(suite.requests)[case.level])):
        return (reason,)
    return ()


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
