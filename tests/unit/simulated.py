"""A rig that is only simulated, and short ways to make samples, records and campaigns for tests.

The product's own modules do everything else: no formula of theirs is copied here.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import md5
from pathlib import Path

from perf import campaign as campaigns
from perf import record
from perf.crossover import Contrast, StoredCrossover, StoredLevel, locate
from perf.interval import Bound, tail
from perf.metrics import Distribution, RoundSummary
from perf.record import (
    Arm,
    Campaign,
    CaseRecord,
    CrossoverRecord,
    LaunchRecord,
    Measurement,
    Order,
    Outputs,
    RelationRecord,
    RoundRecord,
    SameOutputRecord,
    SuiteRecord,
    WorkloadRecord,
)
from perf.rig import Rig
from perf.sample import SCHEMA, Build, LaunchSample, Promotion, StoredCase, geometric_mean
from perf.suite import Crossover, Relation, SameOutput
from perf.validity import Reason

#: The rule of one case alone at one look: 1 % for each end.
ONE_CASE = Bound(margin=0.03, tail=tail(0.01, 1, 1), power=0.95)

RIG = Rig(
    gpus=(),
    driver=None,
    cuda=None,
    cpu="Simulated CPU @ 2.00GHz",
    governor=None,
    machine="0123456789abcdef",
    kernel="6.1.0",
    pairs=(),
)

FAILED = Reason(
    name="requests failed",
    seen='3 of 128 requests failed in round 2 (3 x http_500; first: "KV cache pool is full")',
    advice="a partial round is not comparable: read the server log",
)


# Samples


def stored(
    *throughputs: float,
    level: int = 1,
    variant: str = "baseline",
    acceptance: float | None = None,
    ttft_s: float = 0.1,
    reason: str = "first baseline",
) -> StoredCase:
    """A stored baseline of one launch for each throughput, in tok/s."""
    launches = tuple(
        LaunchSample(
            campaign="20260101-000000",
            launch=f"{variant}-{number}",
            start_s=10.0,
            output_throughput=(value,),
            acceptance_length=(acceptance,),
            ttft_s=(ttft_s,),
            tpot_s=(level / value,),
            ttft_mean_s=(ttft_s,),
            e2e_mean_s=(512 * level / value,),
            achieved_concurrency=(float(level),),
            itl_p99_s=(None,),
            turnaround_share=(None,),
            away_share=(None,),
            cpu_share=(None,),
            pace=(),
        )
        for number, value in enumerate(throughputs, start=1)
    )
    return StoredCase(
        schema=SCHEMA,
        case=f"sim/{variant}/c{level:03d}",
        level=level,
        workload_digest=digest(level),
        power_limits_w=(),
        simulated_acceptance=None,
        command=command(variant),
        env=(),
        model="model",
        server_version="0.5.2",
        build=None,
        fingerprint=(),
        launches=launches,
        others=(),
        promotions=(
            Promotion(
                promoted_at="2026-01-01T00:00:00+00:00",
                reason=reason,
                campaign="20260101-000000",
                throughput=geometric_mean(throughputs),
                launches=len(throughputs),
                comparable=None,
            ),
        ),
        server_arguments=(),
    )


def digest(level: int) -> str:
    return f"digest-{level}"


def command(variant: str) -> tuple[str, ...]:
    return ("{python}", "-m", "server", "--variant", variant, "--port", "{port}")


# Launches


def summary(throughput: float, *, level: int = 1, acceptance: float | None = None, ttft_s: float = 0.1) -> RoundSummary:
    """A round's numbers that follow from its throughput."""

    def all_at(value: float) -> Distribution:
        return Distribution(mean=value, p50=value, p90=value, p99=value, max=value)

    return RoundSummary(
        requests=100,
        output_tokens=51_200,
        window_s=51_200 / throughput,
        output_throughput=throughput,
        steady_throughput=None,
        request_throughput=throughput / 512,
        per_request_throughput=all_at(throughput / level),
        ttft_s=all_at(ttft_s),
        tpot_s=all_at(level / throughput),
        itl_s=None,
        e2e_s=all_at(512 * level / throughput),
        achieved_concurrency=float(level),
        peak_concurrency=level,
        acceptance_length=acceptance,
    )


def measured(throughput: float, *, level: int = 1, acceptance: float | None = None, ttft_s: float = 0.1) -> Measurement:
    """One case in one launch, of one round."""
    numbers = summary(throughput, level=level, acceptance=acceptance, ttft_s=ttft_s)
    return Measurement(
        level=level,
        rounds=(RoundRecord(index=0, summary=numbers, reasons=(), client=None, gpus=None, server_log=None),),
        reasons=(),
    )


def failed(level: int = 1, reason: Reason = FAILED) -> Measurement:
    """One case in one launch that must not be believed."""
    return Measurement(
        level=level,
        rounds=(RoundRecord(index=0, summary=None, reasons=(reason,), client=None, gpus=None, server_log=None),),
        reasons=(),
    )


def launch(
    *measurements: Measurement,
    variant: str = "baseline",
    ordinal: int = 1,
    duration_s: float = 60.0,
    env: Mapping[str, str] | None = None,
    extra: tuple[str, ...] = (),
    model: str = "model",
    version: str = "0.5.2",
    build: Build | None = None,
    arm: Arm = "candidate",
    block: int | None = None,
) -> LaunchRecord:
    """One server process life; in a block of its own where none is given."""
    order = Order(variant=variant, arm=arm, ordinal=ordinal, block=block or ordinal, levels=())
    return LaunchRecord(
        name=order.name,
        variant=variant,
        arm=arm,
        ordinal=ordinal,
        block=order.block,
        started_at="2026-02-01T02:00:00+00:00",
        start_s=10.0,
        duration_s=duration_s,
        command=(*command(variant), *extra),
        variant_env=tuple((env or {}).items()),
        python="python",
        env=tuple((env or {}).items()),
        model=model,
        server_version=version,
        build=build,
        notes=(),
        measurements=measurements,
        outputs=None,
        server_arguments=(),
    )


# Suites and campaigns


def suite(
    *,
    levels: tuple[int, ...] = (1,),
    variants: tuple[str, ...] = ("baseline",),
    store: tuple[StoredCase, ...] = (),
    relations: tuple[Relation, ...] = (),
    crossovers: tuple[CrossoverRecord, ...] = (),
    launches: tuple[LaunchRecord, ...] = (),
    max_launches: int = 8,
    reference: bool = False,
) -> SuiteRecord:
    """A suite whose every case and relation is selected; `store` is what its cases are judged against."""
    by_case = {each.case: each for each in store}
    cases = tuple(
        CaseRecord(
            id=f"sim/{variant}/c{level:03d}",
            variant=variant,
            level=level,
            workload_digest=digest(level),
            selected=True,
            stored=by_case.get(f"sim/{variant}/c{level:03d}"),
        )
        for variant in variants
        for level in levels
    )
    return SuiteRecord(
        name="sim",
        source="sim.toml",
        rig_id=RIG.id,
        power_limits_w=(),
        fingerprint=(),
        margin=0.03,
        alpha=0.01,
        power=0.95,
        family=len(cases) + len(relations) + len(crossovers),
        max_launches=max_launches,
        reference=reference,
        order_seed=20,
        workload=WorkloadRecord(
            prompt_set="simulated",
            endpoint="chat",
            temperature=0.0,
            rounds=1,
            warmup_requests=8,
            output_tokens=tuple((level, 512) for level in levels),
        ),
        requests=tuple((level, max(30, 4 * level)) for level in levels),
        level_must_be_reached=True,
        advisory=None,
        rerun=False,
        cases=cases,
        relations=tuple(RelationRecord(relation=each, selected=True) for each in relations),
        crossovers=crossovers,
        launches=launches,
        stopped=None,
        problem=None,
        same_outputs=(),
    )


def relation(variant: str, *of: str, at_least: float = 1.0, level: int | None = None) -> Relation:
    """`variant` is at least `at_least` times the best of `of`; at saturation where no level is given."""
    place = "saturation" if level is None else f"c{level:03d}"
    return Relation(
        id=f"sim/expect/{variant}-of-{'-'.join(of)}/{place}",
        suite="sim",
        variant=variant,
        at_least=at_least,
        of=of,
        level=level,
    )


def crossing(first: str, second: str, stored: StoredCrossover | None = None) -> CrossoverRecord:
    """The crossover of two variants, selected; `stored` is what it is judged against."""
    crossover = Crossover(id=f"sim/expect/crossover-of-{first}-and-{second}", suite="sim", first=first, second=second)
    return CrossoverRecord(crossover=crossover, selected=True, stored=stored)


def stored_crossover(first: str, second: str, leads: Mapping[int, float], *, error: float = 0.004) -> StoredCrossover:
    """A stored crossover of four launches of each: how many times as fast the first is at each level."""
    contrasts = [
        Contrast(level=level, log_ratio=-math.log(lead), error=error, freedom=20.0) for level, lead in leads.items()
    ]
    found = locate(contrasts, tail=0.0005)
    return StoredCrossover(
        schema=1,
        crossover=f"sim/expect/crossover-of-{first}-and-{second}",
        first=first,
        second=second,
        power_limits_w=(),
        simulated_acceptance=(None, None),
        tail=0.0005,
        levels=tuple(
            StoredLevel(workload_digest=digest(each.level), contrast=each, launches_first=4, launches_second=4)
            for each in contrasts
        ),
        estimate=found.estimate,
        lo=found.lo,
        hi=found.hi,
        campaign="20260101-000000",
        reason="first baseline",
        promoted_at="2026-01-01T00:00:00+00:00",
    )


def same_output(*variants: str, at_least: float = 1.0) -> SameOutputRecord:
    """What these variants say is what the first of them says, to a share of the prompts; selected."""
    id = f"sim/expect/same-output-of-{'-and-'.join(variants)}"
    return SameOutputRecord(
        same_output=SameOutput(id=id, suite="sim", variants=variants, at_least=at_least), selected=True
    )


def saying(record: LaunchRecord, *texts: str, again: tuple[str, ...] | None = None) -> LaunchRecord:
    """The launch, which said these texts to as many prompts; where it was asked once more, `again`."""
    prompts = tuple(f"prompt-{number}" for number in range(1, len(texts) + 1))
    first, second = (
        tuple(md5(each.encode("utf-8", errors="surrogatepass")).hexdigest() for each in said)
        for said in (texts, again or ())
    )
    said = Outputs(tokens=64, prompts=prompts, texts=texts, digests=first, again=second, reason=None)
    return replace(record, outputs=said)


def campaign(*suites: SuiteRecord, id: str = "20260201-020000", complete: bool = True) -> Campaign:
    """A campaign on the simulated rig."""
    return Campaign(
        kind="sglang-perf campaign",
        schema=2,
        id=id,
        started_at="2026-02-01T02:00:00+00:00",
        finished_at="2026-02-01T03:00:00+00:00" if complete else None,
        complete=complete,
        tool_version="0.1.0",
        rig=RIG,
        suites=suites,
    )


def written(folder: Path, written_campaign: Campaign) -> Path:
    """The folder of a campaign that was saved under `folder`."""
    place = folder / written_campaign.id
    place.mkdir(parents=True)
    record.save(place, written_campaign)
    return place


def select(state: SuiteRecord, *ids: str) -> SuiteRecord:
    """The suite with only these cases, relations and crossovers selected."""
    return replace(
        state,
        cases=tuple(replace(each, selected=each.id in ids) for each in state.cases),
        relations=tuple(replace(each, selected=each.relation.id in ids) for each in state.relations),
        crossovers=tuple(replace(each, selected=each.crossover.id in ids) for each in state.crossovers),
    )


# The rig


@dataclass(slots=True)
class SimulatedRig:
    """A rig whose truth is known: `truth(variant, level)` in tok/s, each launch off by its own luck of `cv`.

    Every launch takes `launch_s` seconds of a clock that is the rig's own. `replaced` answers in place of a
    measurement, for what cannot be believed.
    """

    truth: Callable[[str, int], float]
    cv: float = 0.0
    seed: int = 0
    launch_s: float = 60.0
    replaced: Callable[[str, int, int], Measurement | None] = lambda _variant, _ordinal, _level: None
    now_s: float = 1000.0
    launched: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    saved: list[SuiteRecord] = field(default_factory=list)
    luck: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.luck = random.Random(self.seed)

    def throughput(self, variant: str, level: int) -> float:
        """The throughput of a fresh launch: log-normal around the truth."""
        return self.truth(variant, level) * math.exp(self.luck.gauss(0.0, self.cv))

    def measure(self, order: Order) -> LaunchRecord:
        """Run one launch."""
        self.launched.append((order.variant, order.levels))
        self.now_s += self.launch_s
        taken = tuple(
            self.replaced(order.variant, order.ordinal, level)
            or measured(self.throughput(order.variant, level), level=level)
            for level in order.levels
        )
        return launch(
            *taken,
            variant=order.variant,
            arm=order.arm,
            ordinal=order.ordinal,
            block=order.block,
            duration_s=self.launch_s,
        )

    def store(self, count: int, *, levels: tuple[int, ...], variants: tuple[str, ...]) -> tuple[StoredCase, ...]:
        """Baselines of `count` launches of each case, from this rig's own luck."""
        return tuple(
            stored(*(self.throughput(variant, level) for _ in range(count)), level=level, variant=variant)
            for variant in variants
            for level in levels
        )

    def run(self, state: SuiteRecord, *, budget_s: float | None = None) -> SuiteRecord:
        """The product's own campaign on this rig."""
        return campaigns.run(
            state, measure=self.measure, save=self.saved.append, clock=lambda: self.now_s, budget_s=budget_s
        )

    @property
    def variants(self) -> list[str]:
        """The variants in the order in which they were launched."""
        return [variant for variant, _ in self.launched]
