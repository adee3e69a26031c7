"""A rig that is only simulated: launches drawn from a model of noise whose truth is known.

What is simulated is what a launch measures, and as many stored launches as are asked. Everything else, what is launched
and what is said of it, is the product's own `campaign` and `verdict`. `plan` asks it what a rig's own noise
costs; the calibration asks it how often a verdict is wrong.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from statistics import median
from typing import Literal

import numpy as np

from perf import campaign
from perf.metrics import Distribution, RoundSummary
from perf.noise import Noise, Vector
from perf.record import CaseRecord, LaunchRecord, Measurement, Order, RoundRecord, SuiteRecord
from perf.sample import SCHEMA, LaunchSample, Promotion, StoredCase, geometric_mean
from perf.trial import Trials

#: When simulated nights begin; nothing depends on it.
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)

#: What simulated cases are asked, stored and tonight.
DIGEST = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """How one variant's launches vary on a rig, J levels; standard deviations and changes in natural logarithms.

    `throughput` in tok/s. `spread` is of one launch within a night, `shared` the share of its variance that moves all
    levels of a launch alike. `night` and `night_level` are standard deviations between nights, in units of a typical
    and of each level's spread. The rest is what a model leaves out: `tails` of Student's t with 4 degrees of freedom;
    `hiccups`, the share of a launch's levels that fall by 8 spreads; `drift` over two hours and a random `walk` every
    ten minutes, in typical spreads; `scale`, tonight's variance over the store's.
    """

    throughput: tuple[float, ...]
    spread: tuple[float, ...]
    shared: float = 0.25
    night: float = 0.5
    night_level: float = 0.0
    tails: Literal["normal", "t4"] = "normal"
    hiccups: float = 0.0
    drift: float = 0.0
    walk: float = 0.0
    scale: float = 1.0

    @property
    def typical(self) -> float:
        """The spread of the median level."""
        return median(self.spread)


def truth_of(noise: Noise) -> Truth:
    """A rig whose launches vary as is estimated."""
    typical = float(np.sqrt(noise.typical))
    return Truth(
        throughput=tuple(map(float, np.exp(noise.mean))),
        spread=tuple(map(float, noise.spread)),
        shared=noise.shared / typical**2,
        night=float(np.sqrt(noise.night)) / typical,
        night_level=float(np.sqrt(noise.night_level / noise.spread**2).max()),
    )


#: A hiccup is a launch's level this many spreads low, as real nights have them.
HICCUP = 8.0


class SimulatedRig:
    """One rig and one night on it. `changes` are what the candidate's levels lost or gained, as log-ratios.

    Minutes are of the rig's own clock: `launch_s` for a start and `level_s` for every level; `seconds` says the same of
    each variant by itself, its start first. `tonight` are the deviations of tonight's true means from `throughput`,
    where they are not drawn.
    """

    def __init__(
        self,
        truths: Mapping[str, Truth],
        levels: tuple[int, ...],
        *,
        seed: int,
        changes: Mapping[str, Vector] | None = None,
        launch_s: float = 120.0,
        level_s: float | tuple[float, ...] = 60.0,
        seconds: Mapping[str, tuple[float, ...]] | None = None,
        tonight: Mapping[str, Vector] | None = None,
    ) -> None:
        self.truths, self.levels = truths, levels
        self.luck = np.random.default_rng(seed)
        self.changes = changes or {}
        alike = (launch_s, *(level_s if isinstance(level_s, tuple) else (level_s,) * len(levels)))
        self.seconds = seconds or dict.fromkeys(truths, alike)
        self.now_s = 0.0
        self._tonight = tonight or {name: self._night(truth) for name, truth in truths.items()}
        self._walked, self._walked_at_s = 0.0, 0.0

    def store(self, nights: int, pairs: int, *, launches: int = 1) -> dict[tuple[str, int], StoredCase]:
        """Stored baselines of some nights of some launches each, and two launches of each of so many other nights."""
        stored: dict[tuple[str, int], StoredCase] = {}
        for name in self.truths:
            baseline = self._nights(name, nights, launches, date="20250101")
            others = self._nights(name, pairs, 2, date="20240101")
            for index, level in enumerate(self.levels):
                stored[name, level] = stored_case(
                    f"simulated/{name}/c{level:03d}",
                    level,
                    tuple(_sample(night, launch, rates[index]) for night, launch, rates in baseline),
                    tuple(_sample(night, launch, rates[index]) for night, launch, rates in others),
                )
        return stored

    def measure(self, order: Order) -> LaunchRecord:
        """Run one launch."""
        truth = self.truths[order.variant]
        began_s = self.now_s
        logs = np.log(truth.throughput) + self._tonight[order.variant] + self._launch(truth, truth.scale)
        logs += truth.typical * (truth.drift * began_s / 7200 + self._walk(truth))
        if order.arm == "candidate" and order.variant in self.changes:
            logs = logs + self.changes[order.variant]
        indices = [self.levels.index(level) for level in order.levels]
        start_s, *level_s = self.seconds[order.variant]
        self.now_s += start_s + sum(level_s[index] for index in indices)
        return LaunchRecord(
            name=order.name,
            variant=order.variant,
            arm=order.arm,
            ordinal=order.ordinal,
            block=order.block,
            started_at=(_BEGAN + timedelta(seconds=int(began_s))).isoformat(timespec="seconds"),
            start_s=start_s,
            duration_s=self.now_s - began_s,
            command=(),
            variant_env=(),
            python=None,
            env=(),
            model=None,
            server_version=None,
            build=None,
            notes=(),
            measurements=tuple(
                _measured(level, float(np.exp(logs[index]))) for level, index in zip(order.levels, indices, strict=True)
            ),
            outputs=None,
            server_arguments=(),
        )

    def run(
        self, suite: SuiteRecord, *, budget_s: float | None = None, trials: Mapping[str, Trials] | None = None
    ) -> SuiteRecord:
        """The product's own campaign on this rig."""
        return campaign.run(
            suite,
            measure=self.measure,
            save=lambda _: None,
            clock=lambda: self.now_s,
            budget_s=budget_s,
            trials=trials,
        )

    def _nights(self, name: str, nights: int, launches: int, *, date: str) -> list[tuple[str, str, list[float]]]:
        """Of stored nights: the campaign, the launch and the tok/s of its levels."""
        truth = self.truths[name]
        ran: list[tuple[str, str, list[float]]] = []
        for night in range(nights):
            center = self._night(truth)
            for number in range(1, launches + 1):
                rates = np.asarray(truth.throughput) * np.exp(center + self._launch(truth, 1.0))
                ran.append((f"{date}-{night:06d}", f"{name}-{number}", rates.tolist()))
        return ran

    def _night(self, truth: Truth) -> Vector:
        own = np.asarray(truth.spread) * truth.night_level * self.luck.standard_normal(len(truth.spread))
        center: Vector = truth.typical * truth.night * self.luck.standard_normal() + own
        return center

    def _launch(self, truth: Truth, scale: float) -> Vector:
        common, own_part = _parts(truth)
        count = len(own_part)
        if truth.tails == "t4":
            own, alike = self.luck.standard_t(4, count) / np.sqrt(2), self.luck.standard_t(4) / np.sqrt(2)
        else:
            own, alike = self.luck.standard_normal(count), self.luck.standard_normal()
        moved: Vector = math.sqrt(scale) * (common * alike + own_part * own)
        if truth.hiccups:
            moved -= HICCUP * np.asarray(truth.spread) * (self.luck.random(count) < truth.hiccups)
        return moved

    def _walk(self, truth: Truth) -> float:
        if truth.walk:
            steps = (self.now_s - self._walked_at_s) / 600
            self._walked += truth.walk * float(np.sqrt(steps) * self.luck.standard_normal())
            self._walked_at_s = self.now_s
        return self._walked


@lru_cache(maxsize=8)
def _parts(truth: Truth) -> tuple[Vector, Vector]:
    """Of a launch's standard deviation at every level: the part that all levels share, and the rest."""
    spread = np.asarray(truth.spread)
    common = truth.shared * np.minimum(truth.typical, spread) ** 2
    return np.sqrt(common), np.sqrt(spread**2 - common)


def suite(
    stored: Mapping[tuple[str, int], StoredCase],
    *,
    margin: float = 0.03,
    alpha: float = 0.01,
    power: float = 0.95,
    reference: bool = True,
    max_launches: int = campaign.MAX_LAUNCHES_WITH_BUDGET,
) -> SuiteRecord:
    """A suite of the stored cases, as it is before its first launch."""
    cases = tuple(
        CaseRecord(id=case.case, variant=name, level=level, workload_digest=DIGEST, selected=True, stored=case)
        for (name, level), case in stored.items()
    )
    return SuiteRecord(
        name="simulated",
        source="simulated",
        rig_id="simulated",
        power_limits_w=(),
        fingerprint=(),
        margin=margin,
        alpha=alpha,
        power=power,
        family=len(cases),
        max_launches=max_launches,
        reference=reference,
        order_seed=0,
        workload=None,
        requests=tuple((level, 1_000_000) for level in dict.fromkeys(level for _, level in stored)),
        level_must_be_reached=True,
        advisory=None,
        rerun=False,
        cases=cases,
        relations=(),
        crossovers=(),
        launches=(),
        stopped=None,
        problem=None,
        same_outputs=(),
    )


def stored_case(
    name: str, level: int, launches: tuple[LaunchSample, ...], others: tuple[LaunchSample, ...] = ()
) -> StoredCase:
    """A stored baseline of a simulated rig."""
    return StoredCase(
        schema=SCHEMA,
        case=name,
        level=level,
        workload_digest=DIGEST,
        power_limits_w=(),
        simulated_acceptance=None,
        command=(),
        env=(),
        model=None,
        server_version=None,
        build=None,
        fingerprint=(),
        launches=launches,
        others=others,
        promotions=(
            Promotion(
                promoted_at="2025-01-01T00:00:00+00:00",
                reason="simulated",
                campaign="20250101-000000",
                throughput=geometric_mean(each.output_throughput[0] for each in launches),
                launches=len(launches),
                comparable=None,
            ),
        ),
        server_arguments=(),
    )


def _sample(night: str, launch: str, throughput: float) -> LaunchSample:
    return LaunchSample(
        campaign=night,
        launch=launch,
        start_s=None,
        output_throughput=(throughput,),
        acceptance_length=(None,),
        ttft_s=(0.1,),
        tpot_s=(None,),
        ttft_mean_s=(None,),
        e2e_mean_s=(None,),
        achieved_concurrency=(None,),
        itl_p99_s=(None,),
        turnaround_share=(None,),
        away_share=(None,),
        cpu_share=(None,),
        pace=(),
    )


@lru_cache(maxsize=1)
def _distribution() -> Distribution:
    return Distribution(mean=0.1, p50=0.1, p90=0.1, p99=0.1, max=0.1)


def _measured(level: int, throughput: float) -> Measurement:
    one = _distribution()
    numbers = RoundSummary(
        requests=1,
        output_tokens=1,
        window_s=1 / throughput,
        output_throughput=throughput,
        steady_throughput=None,
        request_throughput=throughput,
        per_request_throughput=one,
        ttft_s=one,
        tpot_s=None,
        itl_s=None,
        e2e_s=one,
        achieved_concurrency=float(level),
        peak_concurrency=level,
        acceptance_length=None,
    )
    return Measurement(
        level=level,
        rounds=(RoundRecord(index=0, summary=numbers, reasons=(), client=None, gpus=None, server_log=None),),
        reasons=(),
    )
