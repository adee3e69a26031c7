"""The compact record of a campaign: its verdicts and the numbers behind them, small enough to keep for ever. Pure.

For whoever reads a campaign and is not this suite: a dashboard, a bot, the documentation. Its schema is published as
docs/schemas/record-1.json; within a schema fields are only added, and what was added later has a default: "not known".
It cannot be judged again: campaign.json can.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from perf.crossover import Shape, sentence
from perf.files import MAX_NUMBER
from perf.measured import measurements
from perf.metrics import RoundSummary
from perf.moved import Change, Effect, Explanation
from perf.record import Campaign, CaseRecord, LaunchRecord, SuiteRecord, WorkloadRecord
from perf.same_output import SameOutputVerdict
from perf.sample import Build, geometric_mean, relative
from perf.validity import Reason
from perf.verdict import CaseVerdict, CrossoverVerdict, End, RelationVerdict, Route, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactJudgement:
    """Compared with what, and how it came out.

    Shares: `change` of `before` to `after`, within [`lo`, `hi`]; None for an end beyond what a file may hold,
    which few launches can have.
    """

    before: float
    after: float
    change: float
    lo: float | None
    hi: float | None
    launches_before: int
    launches_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactNumbers:
    """Geometric means over the launches of a case. tok/s, seconds; None where a launch does not have it.

    `per_request_throughput`, `ttft_s`, `tpot_s` and `e2e_s` are of each round's median over its requests.
    """

    output_throughput: float
    per_request_throughput: float | None
    achieved_concurrency: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    acceptance_length: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactEffect:
    """A relative change within its 95 % interval; None for what is beyond every number that a file may hold."""

    change: float | None
    lo: float | None
    hi: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactChange:
    """A metric that the case was held against, and tonight's; seconds, tok/s or plain numbers.

    `share` is the part of the change of throughput that it explains; None where that is not known.
    """

    name: str
    before: float
    after: float
    effect: CompactEffect
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactMoved:
    """Why throughput is another, as docs/what-moved.md has it: parts that make up its change, and what is beside."""

    parts: tuple[CompactChange, ...]
    unexplained: CompactEffect | None
    equal_acceptance: CompactEffect | None
    beside: tuple[CompactChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactCase:
    """One case, measured in so many launches. `gated` is false where it was measured and not judged (ADVISORY).

    `route` says what it was held against: launches of the reference build tonight, or the stored baseline, of so many
    `nights`, where fresh launches could be had or not ("store alone"). `ended` is the rule that ended the launches of
    an INCONCLUSIVE, `could_see` the loss it would have found, `drift` the change since the oldest promotion.
    """

    id: str
    variant: str
    level: int
    requests: int
    workload_digest: str
    verdict: str
    gated: bool
    launches: int
    numbers: CompactNumbers | None
    judgement: CompactJudgement | None
    reasons: tuple[Reason, ...]
    route: Route | None = None
    nights: int | None = None
    set_aside: bool | None = None
    ended: End | None = None
    could_see: float | None = None
    drift: float | None = None
    moved: CompactMoved | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRelation:
    """One relation: `variant` is at least `at_least` times the best of `of`."""

    id: str
    variant: str
    at_least: float
    of: tuple[str, ...]
    best: str | None
    level: int
    verdict: str
    gated: bool
    judgement: CompactJudgement | None
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactLead:
    """By how much the first variant of a crossover is faster at a level: a share, within [`lo`, `hi`] at all levels."""

    level: int
    lead: float | None
    lo: float | None
    hi: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactCrossover:
    """One crossover: from which level on is `second` faster than `first`? `told` says it in words.

    `estimate` is on the scale of levels and lies within [`lo`, `hi`]; None is no bound, or no such place.
    """

    id: str
    first: str
    second: str
    verdict: str
    gated: bool
    shape: Shape | None
    told: str | None
    estimate: float | None
    lo: float | None
    hi: float | None
    levels: tuple[CompactLead, ...]
    notes: tuple[str, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactAgreement:
    """To how many `of` so many prompts a variant says what the yardstick says."""

    variant: str
    alike: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSameOutput:
    """One expectation of the same output: what `variants` say, held against the first, in a share of `at_least`."""

    id: str
    variants: tuple[str, ...]
    at_least: float
    verdict: str
    gated: bool
    agreements: tuple[CompactAgreement, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReference:
    """How the reference build of a variant ran, by its last launch; `launches` of it took `rig_s` seconds together."""

    server_version: str | None
    build: Build | None
    launches: int
    rig_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactVariant:
    """How a variant ran, by its last launch; `launches` of it took `rig_s` seconds together.

    `reference` are launches of the same with the reference build, in time of their own.
    """

    name: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    model: str | None
    server_version: str | None
    build: Build | None
    launches: int
    rig_s: float
    reference: CompactReference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSuite:
    """One suite of the campaign: only what was selected.

    `alpha` is the false-alarm rate of its verdicts together; None for a rerun of what failed, which has no stated one.
    """

    name: str
    rig_id: str
    margin: float
    alpha: float | None
    advisory: str | None
    stopped: str | None
    problem: str | None
    workload: WorkloadRecord | None
    variants: tuple[CompactVariant, ...]
    cases: tuple[CompactCase, ...]
    relations: tuple[CompactRelation, ...]
    crossovers: tuple[CompactCrossover, ...] = ()
    same_outputs: tuple[CompactSameOutput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRig:
    """The machine: GPU names as often as there are GPUs."""

    id: str
    gpus: tuple[str, ...]
    driver: str | None
    cpu: str
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    """The compact record of one campaign. Times are UTC, ISO 8601."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)  # holds for what is inside, too

    kind: Literal["sglang-perf record"] = "sglang-perf record"
    schema: Literal[1] = 1
    campaign: str
    started_at: str
    finished_at: str | None
    complete: bool
    tool_version: str
    rig: CompactRig
    suites: tuple[CompactSuite, ...]


ADAPTER = TypeAdapter(Compact)


def json_schema() -> dict[str, object]:
    """The published schema of the record, JSON Schema 2020-12."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | ADAPTER.json_schema()


def compact(campaign: Campaign) -> Compact:
    """The record of a campaign, complete or not."""
    rig = campaign.rig
    return Compact(
        campaign=campaign.id,
        started_at=campaign.started_at,
        finished_at=campaign.finished_at,
        complete=campaign.complete,
        tool_version=campaign.tool_version,
        rig=CompactRig(
            id=rig.id,
            gpus=tuple(gpu.name for gpu in rig.gpus),
            driver=rig.driver,
            cpu=rig.cpu,
            kernel=rig.kernel,
        ),
        suites=tuple(_suite(suite) for suite in campaign.suites),
    )


def _suite(suite: SuiteRecord) -> CompactSuite:
    verdicts = judge(suite)
    cases = {case.id: case for case in suite.cases}
    return CompactSuite(
        name=suite.name,
        rig_id=suite.rig_id,
        margin=suite.margin,
        alpha=None if suite.rerun else suite.alpha,
        advisory=suite.advisory,
        stopped=suite.stopped,
        problem=suite.problem,
        workload=suite.workload,
        variants=tuple(_variants(suite)),
        cases=tuple(
            _case(suite, cases[verdict.id], verdict) for verdict in verdicts if isinstance(verdict, CaseVerdict)
        ),
        relations=tuple(_relation(verdict) for verdict in verdicts if isinstance(verdict, RelationVerdict)),
        crossovers=tuple(_crossover(verdict) for verdict in verdicts if isinstance(verdict, CrossoverVerdict)),
        same_outputs=tuple(_same_output(verdict) for verdict in verdicts if isinstance(verdict, SameOutputVerdict)),
    )


def _variants(suite: SuiteRecord) -> Iterator[CompactVariant]:
    for name in dict.fromkeys(launch.variant for launch in suite.launches):
        ours = [launch for launch in suite.launches if launch.variant == name]
        launches = [launch for launch in ours if launch.arm == "candidate"]
        references = [launch for launch in ours if launch.arm == "reference"]
        last = launches[-1] if launches else None  # none where it was interrupted after the reference
        yield CompactVariant(
            name=name,
            command=ours[-1].command,
            env=(last or ours[-1]).variant_env,
            model=(last or ours[-1]).model,
            server_version=last.server_version if last else None,
            build=last.build if last else None,
            launches=len(launches),
            rig_s=_rig_s(launches),
            reference=_reference(references) if references else None,
        )


def _reference(launches: list[LaunchRecord]) -> CompactReference:
    last = launches[-1]
    return CompactReference(
        server_version=last.server_version, build=last.build, launches=len(launches), rig_s=_rig_s(launches)
    )


def _rig_s(launches: list[LaunchRecord]) -> float:
    return sum(launch.duration_s for launch in launches)


def _case(suite: SuiteRecord, case: CaseRecord, verdict: CaseVerdict) -> CompactCase:
    return CompactCase(
        id=verdict.id,
        variant=verdict.variant,
        level=verdict.level,
        requests=dict(suite.requests)[verdict.level],
        workload_digest=case.workload_digest,
        verdict=verdict.word.value,
        gated=verdict.advisory is None,
        launches=verdict.launches,
        numbers=_numbers(suite, verdict),
        judgement=_judgement(verdict),
        reasons=verdict.reasons,
        route=verdict.route,
        nights=None if verdict.judgement is None or verdict.stored is None else verdict.stored.nights[0],
        set_aside=None if verdict.judgement is None else verdict.others_noise is not None,
        ended=verdict.ended,
        could_see=None if verdict.judgement is None else verdict.judgement.could_see,
        drift=None if verdict.stored is None else verdict.stored.drift,
        moved=None if (moved := verdict.moved) is None else _moved(moved),
    )


def _moved(found: Explanation) -> CompactMoved:
    def change(of: Change, share: float | None = None) -> CompactChange:
        return CompactChange(name=of.name, before=of.before, after=of.after, effect=_effect(of.effect), share=share)

    equal = found.equal_acceptance
    return CompactMoved(
        parts=tuple(change(each.change, each.share) for each in found.parts),
        unexplained=None if found.unexplained is None else _effect(found.unexplained),
        equal_acceptance=None if equal is None else _effect(equal.equal),
        beside=tuple(map(change, found.beside)),
    )


def _effect(effect: Effect) -> CompactEffect:
    change, lo, hi = (_end(relative(log)) for log in (effect.log, effect.lo, effect.hi))
    return CompactEffect(change=change, lo=lo, hi=hi)


def _relation(verdict: RelationVerdict) -> CompactRelation:
    return CompactRelation(
        id=verdict.id,
        variant=verdict.variant,
        at_least=verdict.at_least,
        of=verdict.of,
        best=verdict.best,
        level=verdict.level,
        verdict=verdict.word.value,
        gated=verdict.advisory is None,
        judgement=_judgement(verdict),
        reasons=verdict.reasons,
    )


def _crossover(verdict: CrossoverVerdict) -> CompactCrossover:
    found = verdict.crossing
    return CompactCrossover(
        id=verdict.id,
        first=verdict.first,
        second=verdict.second,
        verdict=verdict.word.value,
        gated=verdict.advisory is None,
        shape=None if found is None else found.shape,
        told=None if found is None else sentence(found, verdict.first, verdict.second),
        estimate=None if found is None else found.estimate,
        lo=None if found is None else found.lo,
        hi=None if found is None else found.hi,
        levels=tuple(
            CompactLead(level=each.level, lead=_end(each.advantage), lo=_end(each.lo), hi=_end(each.hi))
            for each in verdict.levels
        ),
        notes=verdict.notes,
        reasons=verdict.reasons,
    )


def _same_output(verdict: SameOutputVerdict) -> CompactSameOutput:
    return CompactSameOutput(
        id=verdict.id,
        variants=verdict.variants,
        at_least=verdict.at_least,
        verdict=verdict.word.value,
        gated=verdict.advisory is None,
        agreements=tuple(
            CompactAgreement(variant=each.variant, alike=each.alike, of=each.of) for each in verdict.agreements
        ),
        reasons=verdict.reasons,
    )


def _numbers(suite: SuiteRecord, verdict: CaseVerdict) -> CompactNumbers | None:
    if verdict.measured is None:
        return None
    rounds = [
        each.summary
        for _, measurement in measurements(suite, verdict.variant, verdict.level)
        for each in measurement.rounds
        if each.summary is not None
    ]

    def mean(value_of: Callable[[RoundSummary], float | None]) -> float | None:
        known = [value for each in rounds if (value := value_of(each)) is not None and value > 0]
        return geometric_mean(known) if known and len(known) == len(rounds) else None

    return CompactNumbers(
        output_throughput=verdict.measured.output_throughput,
        per_request_throughput=mean(lambda each: each.per_request_throughput.p50),
        achieved_concurrency=mean(lambda each: each.achieved_concurrency),
        ttft_s=mean(lambda each: each.ttft_s.p50),
        tpot_s=mean(lambda each: None if each.tpot_s is None else each.tpot_s.p50),
        e2e_s=mean(lambda each: each.e2e_s.p50),
        acceptance_length=mean(lambda each: each.acceptance_length),
    )


def _judgement(verdict: CaseVerdict | RelationVerdict) -> CompactJudgement | None:
    found = verdict.judgement
    if found is None:
        return None
    return CompactJudgement(
        before=found.before,
        after=found.after,
        change=found.change,
        lo=_end(found.lo),
        hi=_end(found.hi),
        launches_before=found.launches_before,
        launches_after=found.launches_after,
    )


def _end(value: float) -> float | None:
    return value if abs(value) <= MAX_NUMBER else None
