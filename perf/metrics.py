"""The numbers of a round, as pure functions. The definitions are those of docs/metrics.md and stand nowhere else."""

from collections.abc import Mapping
from dataclasses import dataclass

from perf.trace import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles (linear interpolation between order statistics) of one quantity, in its own unit."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary:
    """The numbers of one round. None where the stream did not carry what the definition needs."""

    requests: int
    output_tokens: int
    window_s: float
    output_throughput: float
    steady_throughput: float | None
    request_throughput: float
    per_request_throughput: Distribution
    ttft_s: Distribution
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution
    achieved_concurrency: float
    peak_concurrency: int
    acceptance_length: float | None


#: Direction is part of a metric. A metric without an entry cannot be judged.
HIGHER_IS_BETTER: Mapping[str, bool] = {
    "output_throughput": True,
    "steady_throughput": True,
    "request_throughput": True,
    "per_request_throughput": True,
    "ttft_s": False,
    "tpot_s": False,
    "itl_s": False,
    "e2e_s": False,
    "achieved_concurrency": True,
    "acceptance_length": True,
}


def summarize(measured: Round, *, verify_steps: int | None = None, counted_tokens: int | None = None) -> RoundSummary | None:
    """Summarise a round; None where a request of it failed or none was made."""
    raise NotImplementedError
