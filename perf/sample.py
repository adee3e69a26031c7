"""The sample: one case's numbers, launch by launch. The launch is the statistical unit. Pure data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: The schema of stored samples; a change of it comes with a step in `migration`.
SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a server's interpreter has installed; None where it is not there or not told.

    `commit` and `dirty` are of an editable install: the commit, and a digest of what differs from it, None where
    nothing does. `packages` is a digest over the name and version of every installed package.
    """

    sglang: str | None
    torch: str | None
    commit: str | None
    dirty: str | None
    packages: str

    def __str__(self) -> str:
        """`sglang 0.5.23 at 9f3e1d0c21ab, changed (5d41402a)`."""
        told = f"sglang {self.sglang}" if self.sglang else "no sglang installed"
        if self.commit:
            told += f" at {self.commit[:12]}"
        return told + (f", changed ({self.dirty[:8]})" if self.dirty else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSample:
    """One launch's numbers of one case, each once for every round.

    tok/s, output tokens per verify step, and the medians of TTFT and TPOT in seconds; `start_s` is how long the server
    took to be ready, None for one that already ran.
    """

    campaign: str
    launch: str
    start_s: float | None
    output_throughput: tuple[float, ...]
    acceptance_length: tuple[float | None, ...]
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What became the baseline, when (UTC, ISO 8601) and why; `throughput` is the launches' geometric mean, tok/s."""

    promoted_at: str
    reason: str
    campaign: str
    throughput: float
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCase:
    """The sample a case is judged against, and what was the same for all of it.

    Workload digest, power limits and simulated acceptance must be tonight's; command and environment (the suite's own,
    without a machine's paths), model and version are noted where they differ, since they are what is being tested.
    """

    schema: int
    case: str
    level: int
    workload_digest: str
    power_limits_w: tuple[float | None, ...]
    simulated_acceptance: str | None
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    model: str | None
    server_version: str | None
    build: Build | None
    launches: tuple[LaunchSample, ...]
    promotions: tuple[Promotion, ...]  # oldest first; the last is the one that holds

    @property
    def promotion(self) -> Promotion:
        """The promotion that holds."""
        return self.promotions[-1]


def is_sound(case: StoredCase) -> bool:
    """Can it be judged against: different launches of finite positive numbers, as they were promoted, of our schema?"""
    return (
        case.schema == SCHEMA
        and bool(case.promotions)
        and bool(case.launches)
        and len({(launch.campaign, launch.launch) for launch in case.launches}) == len(case.launches)
        and all(_is_sound(launch) for launch in case.launches)
        and case.promotion.launches == len(case.launches)
        and math.isclose(case.promotion.throughput, geometric_mean(throughputs(case.launches)), rel_tol=1e-9)
    )


def are_comparable(one: StoredCase, other: StoredCase) -> bool:
    """Were two samples asked the same under the same conditions, so that one may join or be judged by the other?"""
    return (
        one.workload_digest == other.workload_digest
        and one.power_limits_w == other.power_limits_w
        and one.simulated_acceptance == other.simulated_acceptance
    )


def may_join(one: StoredCase, other: StoredCase) -> bool:
    """Are two samples of one thing, so that their launches are one sample? An unknown build is not another."""
    return (
        are_comparable(one, other)
        and (one.command, one.env) == (other.command, other.env)
        and (one.build is None or other.build is None or one.build == other.build)
    )


def _is_sound(launch: LaunchSample) -> bool:
    rounds = len(launch.output_throughput)
    return (
        rounds > 0
        and all(math.isfinite(value) and value > 0 for value in launch.output_throughput)
        and len(launch.acceptance_length) == len(launch.ttft_s) == len(launch.tpot_s) == rounds
    )


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers: the mean in the logarithms the gate works with."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def throughputs(launches: Iterable[LaunchSample]) -> tuple[float, ...]:
    """One number per launch, tok/s: the geometric mean over its rounds."""
    return tuple(geometric_mean(launch.output_throughput) for launch in launches)
