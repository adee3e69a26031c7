"""From a suite's record to its verdicts. Pure: pytest and `python -m perf check` both call `judge`, so they agree."""

from collections.abc import Iterator
from dataclasses import dataclass

from perf import relations
from perf.gate import Judgement, Rule, Word, looks, tail
from perf.gate import judge as judge_samples
from perf.metrics import HIGHER_IS_BETTER
from perf.record import CaseRecord, LaunchRecord, Measurement, RelationRecord, SuiteRecord
from perf.sample import Build, LaunchSample, StoredCase, geometric_mean, throughputs
from perf.text import printable
from perf.validity import Reason, level_never_reached

#: Launches before the first look at a case. Two, so that tonight says something of its own noise.
FIRST_LOOK = 2

#: "What moved with it" is an explanation, not a verdict: each interval is a plain 95 % one.
EXPLANATION_TAIL = 0.025

#: Pins acceptance on the server: with it on one side only, the two sides are not comparable (sglang#31609).
SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC_LEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What tonight's launches showed, as the table has it: geometric means over launches; None where there is none."""

    launches: int
    output_throughput: float
    ttft_s: float | None
    tpot_s: float | None
    acceptance_length: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Another metric of the case. `unit` is empty for a plain number.

    `moved` is what its interval supports: True for a material change, False where a change of the margin is excluded,
    None where neither can be said.
    """

    name: str
    unit: str
    judgement: Judgement
    moved: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    """The verdict of one case. `why` says in words why there is nothing to compare with, or too little.

    `logs` names the launches whose server logs say most; none for a server that already ran.
    """

    id: str
    rig_id: str
    variant: str
    level: int
    word: Word
    margin: float
    advisory: str | None
    measured: Measured | None
    judgement: Judgement | None
    moved: tuple[Moved, ...]
    reasons: tuple[Reason, ...]
    why: str | None
    notes: tuple[str, ...]
    stored: StoredCase | None
    launches: int
    logs: tuple[str, ...]
    launch_s: float | None
    stopped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationVerdict:
    """The verdict of one relation. `best` is the variant of `of` that it was compared with."""

    id: str
    variant: str
    at_least: float
    of: tuple[str, ...]
    best: str | None
    level: int
    saturation: bool
    word: Word
    margin: float
    advisory: str | None
    judgement: Judgement | None
    reasons: tuple[Reason, ...]
    logs: tuple[str, ...]
    launch_s: float | None
    stopped: str | None


Verdict = CaseVerdict | RelationVerdict


def rule(suite: SuiteRecord) -> Rule:
    """How sure a verdict of the suite must be."""
    schedule = looks(FIRST_LOOK, suite.max_launches)
    return Rule(margin=suite.margin, tail=tail(suite.alpha, suite.family, len(schedule)), power=suite.power)


def judge(suite: SuiteRecord) -> tuple[Verdict, ...]:
    """The verdict of every selected case and relation, in the order of the suite."""
    cases = tuple(judge_case(suite, case) for case in suite.cases if case.selected)
    return (*cases, *(judge_relation(suite, each) for each in suite.relations if each.selected))


def judge_case(suite: SuiteRecord, case: CaseRecord) -> CaseVerdict:
    """The verdict of one case from the launches that measured it."""
    taken = measurements(suite, case.variant, case.level)
    reasons = _reasons(suite, case, taken)
    samples = () if reasons else tuple(sample(launch, measurement) for launch, measurement in taken)
    launches = [launch for launch, _ in taken]
    why = _not_comparable(suite, case, launches)
    judgement: Judgement | None = None
    if reasons:
        word = Word.INVALID
    elif why is not None or case.stored is None:
        word = Word.NO_BASELINE
    else:
        judgement = judge_samples(throughputs(case.stored.launches), throughputs(samples), rule(suite))
        word = judgement.word
    return CaseVerdict(
        id=case.id,
        rig_id=suite.rig_id,
        variant=case.variant,
        level=case.level,
        word=word,
        margin=suite.margin,
        advisory=suite.advisory,
        measured=_measured(samples) if samples else None,
        judgement=judgement,
        moved=() if judgement is None or case.stored is None else tuple(_moved(case.stored.launches, samples, suite)),
        reasons=reasons,
        why=why,
        notes=() if judgement is None or case.stored is None else tuple(_notes(case.stored, launches)),
        stored=case.stored,
        launches=len(launches),
        logs=_last_log(launches),
        launch_s=_mean([launch.duration_s for launch in launches]),
        stopped=suite.stopped,
    )


def judge_relation(suite: SuiteRecord, record: RelationRecord) -> RelationVerdict:
    """The verdict of one relation, from launches of this campaign alone."""
    relation = record.relation
    level = relations.level_of(relation, tuple(case.level for case in suite.cases))
    reasons: list[Reason] = []
    samples: dict[str, tuple[float, ...]] = {}
    launches: list[LaunchRecord] = []
    logs: dict[str, tuple[str, ...]] = {}
    for variant in (relation.variant, *relation.of):
        case = next(case for case in suite.cases if case.variant == variant and case.level == level)
        taken = measurements(suite, variant, level)
        launches += [launch for launch, _ in taken]
        logs[variant] = _last_log([launch for launch, _ in taken])
        found = _reasons(suite, case, taken)
        if found:
            reasons.append(
                Reason(name=f"{case.id} is INVALID", seen=f"{found[0].name}: {found[0].seen}", advice=found[0].advice)
            )
        else:
            samples[variant] = throughputs(sample(launch, measurement) for launch, measurement in taken)
    to_read = [variant for variant in logs if variant not in samples] or logs
    result = None if reasons else relations.judge(relation, samples, rule(suite))
    return RelationVerdict(
        id=relation.id,
        variant=relation.variant,
        at_least=relation.at_least,
        of=relation.of,
        best=None if result is None else result.best,
        level=level,
        saturation=relation.level is None,
        word=Word.INVALID if result is None else result.word,
        margin=suite.margin,
        advisory=suite.advisory,
        judgement=None if result is None else result.judgement,
        reasons=tuple(reasons),
        logs=tuple(launch for variant in to_read for launch in logs[variant]),
        launch_s=_mean([launch.duration_s for launch in launches]),
        stopped=suite.stopped,
    )


def measurements(suite: SuiteRecord, variant: str, level: int) -> tuple[tuple[LaunchRecord, Measurement], ...]:
    """Every launch that measured a case, with what it measured."""
    return tuple(
        (launch, measurement)
        for launch in suite.launches
        if launch.variant == variant
        for measurement in launch.measurements
        if measurement.level == level
    )


def sample(launch: LaunchRecord, measurement: Measurement, *, campaign: str = "") -> LaunchSample:
    """One launch's sample of a case whose rounds all may be believed; `campaign` where it is to be stored."""
    summaries = [each.summary for each in measurement.rounds if each.summary is not None]
    return LaunchSample(
        campaign=campaign,
        launch=launch.name,
        start_s=launch.start_s,
        output_throughput=tuple(each.output_throughput for each in summaries),
        acceptance_length=tuple(each.acceptance_length for each in summaries),
        ttft_s=tuple(each.ttft_s.p50 for each in summaries),
        tpot_s=tuple(None if each.tpot_s is None else each.tpot_s.p50 for each in summaries),
    )


def _reasons(
    suite: SuiteRecord, case: CaseRecord, taken: tuple[tuple[LaunchRecord, Measurement], ...]
) -> tuple[Reason, ...]:
    if suite.problem is not None:
        return (Reason(name="not measured", seen=suite.problem, advice="put that right, and measure again"),)
    found = tuple(reason for _, measurement in taken for reason in measurement.all_reasons)
    if found:
        return found
    builds = dict.fromkeys(launch.build for launch, _ in taken if launch.build is not None)
    if len(builds) > 1:
        return (
            Reason(
                name="build changed",
                seen="launches of this case ran " + ", then ".join(_build(build) for build in builds),
                advice="leave checkout and environment alone while a campaign runs, and measure again",
            ),
        )
    requests = dict(suite.requests)[case.level]
    if suite.level_must_be_reached and (reason := level_never_reached(case.level, requests)):
        return (reason,)
    if not taken or not all(measurement.rounds and _whole(measurement) for _, measurement in taken):
        return (
            Reason(
                name="not measured",
                seen=suite.stopped or "no round of this case was finished",
                advice="give the campaign more minutes with --perf-budget-minutes, or read the server log",
            ),
        )
    return ()


def _whole(measurement: Measurement) -> bool:
    return all(each.summary is not None for each in measurement.rounds)


def _not_comparable(suite: SuiteRecord, case: CaseRecord, launches: list[LaunchRecord]) -> str | None:
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
    for launch in launches:
        now = dict(launch.variant_env).get(SIMULATED_ACCEPTANCE)
        if now != stored.simulated_acceptance:
            was, now = (printable(value or "not set", 32) for value in (stored.simulated_acceptance, now))
            return f"acceptance is not simulated alike on both sides ({SIMULATED_ACCEPTANCE} was {was}, now {now})"
    return None


def _moved(before: tuple[LaunchSample, ...], after: tuple[LaunchSample, ...], suite: SuiteRecord) -> Iterator[Moved]:
    explanation = Rule(margin=suite.margin, tail=EXPLANATION_TAIL, power=suite.power)
    for name, unit, metric in (
        ("acceptance length", "", "acceptance_length"),
        ("steps/s", "", "output_throughput"),  # a rate of the same direction
        ("TTFT", "ms", "ttft_s"),
        ("TPOT", "ms", "tpot_s"),
    ):
        first, second = _per_launch(name, before), _per_launch(name, after)
        if first is not None and second is not None:
            found = judge_samples(first, second, explanation, higher_is_better=HIGHER_IS_BETTER[metric])
            moved: bool | None = None
            if not found.lo <= 0 <= found.hi and abs(found.change) >= suite.margin / 3:
                moved = True
            elif -suite.margin < found.lo and found.hi < suite.margin:
                moved = False
            yield Moved(name=name, unit=unit, judgement=found, moved=moved)


def _per_launch(name: str, launches: tuple[LaunchSample, ...]) -> tuple[float, ...] | None:
    """One positive number per launch of an explaining metric; None where a launch lacks it."""
    values: list[float] = []
    for launch in launches:
        steps = [
            rate / length if length else None
            for rate, length in zip(launch.output_throughput, launch.acceptance_length, strict=True)
        ]
        metrics: dict[str, list[float | None]] = {
            "acceptance length": list(launch.acceptance_length),
            "steps/s": steps,
            "TTFT": list(launch.ttft_s),
            "TPOT": list(launch.tpot_s),
        }
        rounds = metrics[name]
        known = [value for value in rounds if value is not None and value > 0]
        if not known or len(known) != len(rounds):
            return None
        values.append(geometric_mean(known))
    return tuple(values)


def _measured(samples: tuple[LaunchSample, ...]) -> Measured:
    def mean_of(name: str) -> float | None:
        values = _per_launch(name, samples)
        return None if values is None else geometric_mean(values)

    return Measured(
        launches=len(samples),
        output_throughput=geometric_mean(throughputs(samples)),
        ttft_s=mean_of("TTFT"),
        tpot_s=mean_of("TPOT"),
        acceptance_length=mean_of("acceptance length"),
    )


def _notes(stored: StoredCase, launches: list[LaunchRecord]) -> Iterator[str]:
    """Soft differences: shown beside the verdict, since they are what is being tested."""
    latest = launches[-1]
    for name, now, was in (
        ("server version", latest.server_version, stored.server_version),
        ("model", latest.model, stored.model),
    ):
        if now != was:
            yield f"{name} {printable(now or '-', 80)}, was {printable(was or '-', 80)}"
    if latest.build is not None and stored.build is not None and latest.build != stored.build:
        yield f"build {_build(latest.build)}, was {_build(stored.build)}"
    if latest.command != stored.command:
        new = [part for part in latest.command if part not in stored.command]
        old = [part for part in stored.command if part not in latest.command]
        yield f"command: now with {_words(new)}, was with {_words(old)}"
    changed = sorted({name for name, _ in set(latest.variant_env) ^ set(stored.env)})
    if changed:
        yield f"environment differs in {printable(', '.join(changed), 200)}"


def _build(build: Build | None) -> str:
    return "an unknown build" if build is None else printable(f"{build}, packages {build.packages[:8]}", 120)


def _words(parts: list[str]) -> str:
    return printable(" ".join(parts), 160) or "nothing more"


def _watts(limits: tuple[float | None, ...]) -> str:
    return ", ".join("unknown" if limit is None else f"{limit:.0f} W" for limit in limits) or "none"


def _last_log(launches: list[LaunchRecord]) -> tuple[str, ...]:
    """The last launch: what is INVALID is not launched again. A server that already ran left no log with us."""
    return tuple(launch.name for launch in launches[-1:] if launch.command)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
