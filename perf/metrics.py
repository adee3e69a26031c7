"""The numbers of a round, as pure functions. The definitions are those of docs/metrics.md and stand nowhere else.

Not for judging: whether a round may be believed is `validity`, whether it lost anything is `gate`.
Sums of times go through `math.fsum`: correctly rounded, it depends neither on the order of the requests nor on
where an interval was cut.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perf.trace import RequestTrace, Round

#: The share of the level that counts as loaded, in whole percent so that whole numbers are compared.
STEADY_PERCENT = 95


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

_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """A good request with what every good request has; `chunk_tokens` is None where the server gave no counts."""

    sent_s: float
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...] | None
    output_tokens: int


def summarize(measured: Round, *, verify_steps: int | None = None) -> RoundSummary | None:
    """Summarise a round; None where a request of it failed, fewer than planned finished, or none was made.

    `verify_steps` is how far the server's counter of verify steps rose over the round, None where it has none.
    Formulas and units: docs/metrics.md.

    Raises:
        ValueError: a request counts as good and contradicts itself, or `verify_steps` is negative.
    """
    requests = measured.requests
    failed = any(request.failure is not None for request in requests)
    if failed or not requests or len(requests) < measured.planned_requests:
        return None
    if verify_steps is not None and verify_steps < 0:
        raise ValueError(
            f"verify steps over the round are {verify_steps}: the server's counter was reset between the two "
            "readings; read both from the same server process"
        )

    streams = [_stream(request) for request in requests]
    sent = np.array([stream.sent_s for stream in streams])
    first = np.array([stream.chunk_times_s[0] for stream in streams])
    last = np.array([stream.chunk_times_s[-1] for stream in streams])
    tokens = np.array([stream.output_tokens for stream in streams])

    output_tokens = int(tokens.sum())
    window_s = float(last.max() - sent.min())
    edges = np.unique(np.concatenate((sent, last)))
    tpots = [tpot for stream in streams if (tpot := _time_per_output_token(stream)) is not None]
    return RoundSummary(
        requests=len(streams),
        output_tokens=output_tokens,
        window_s=window_s,
        output_throughput=output_tokens / window_s,
        steady_throughput=_steady_throughput(measured.level, streams, sent, last),
        request_throughput=len(streams) / window_s,
        per_request_throughput=_distribution(tokens / (last - sent)),
        ttft_s=_distribution(first - sent),
        tpot_s=_distribution(np.array(tpots)) if tpots else None,
        itl_s=_inter_token_latency(streams),
        e2e_s=_distribution(last - sent),
        achieved_concurrency=math.fsum(np.concatenate((last, -sent))) / window_s,
        peak_concurrency=int(_in_flight(sent, last, edges, side="right").max()),
        acceptance_length=output_tokens / verify_steps if verify_steps else None,
    )


def windowed_tokens(requests: Sequence[RequestTrace], start_s: float, end_s: float) -> int:
    """Output tokens that arrived in (start_s, end_s]; those of a failed request count nowhere.

    Raises:
        ValueError: a good request contradicts itself, or the server gave no counts per chunk.
    """
    total = 0
    for request in requests:
        if request.failure is not None:
            continue
        stream = _stream(request)
        if stream.chunk_tokens is None:
            raise ValueError(
                f"request {request.index} has no tokens per chunk, so when they arrived is not known; "
                "ask for a window only where the server gives continuous usage"
            )
        arrivals = zip(stream.chunk_times_s, stream.chunk_tokens, strict=True)
        total += sum(count for time_s, count in arrivals if start_s < time_s <= end_s)
    return total


def _stream(request: RequestTrace) -> _Stream:
    """The request without the absences that no good request has."""
    times, counts, tokens = request.chunk_times_s, request.chunk_tokens, request.output_tokens

    def contradiction(seen: str) -> ValueError:
        return ValueError(f"request {request.index} counts as good, but {seen}; its trace must name a failure instead")

    if tokens is None:
        raise contradiction("has no output tokens by usage")
    if not times:
        raise contradiction("no text of it arrived")
    # This also keeps the window of the round, and with it every divisor, above zero.
    if not times[-1] > request.sent_s:
        raise contradiction(f"its last token came at {times[-1]} s, not after it was sent at {request.sent_s} s")
    if counts is not None and (len(counts) != len(times) or min(counts) < 0 or sum(counts) != tokens):
        raise contradiction(
            f"its {len(counts)} chunk counts (sum {sum(counts)}, least {min(counts, default=0)}) are not those of "
            f"{tokens} tokens in {len(times)} chunks"
        )
    return _Stream(sent_s=request.sent_s, chunk_times_s=times, chunk_tokens=counts, output_tokens=tokens)


def _token_gaps(stream: _Stream) -> tuple[_Floats, _Counts] | None:
    """Time and tokens of every arrival after the first; None where the stream says nothing of time between tokens.

    That is so without counts per chunk, and where all chunks bear one time (one chunk, or one read of the socket):
    a gap of 0 would be made up (sglang#36272).
    A chunk in which the server counts no new token (text held back, a reasoning delta split from content) is no
    arrival: the time before it belongs to the next one.
    """
    times_s, counts = stream.chunk_times_s, stream.chunk_tokens
    if counts is None or times_s[0] == times_s[-1]:
        return None
    tokens = np.array(counts)
    arrival = tokens > 0
    arrival[0] = True
    return np.diff(np.array(times_s)[arrival]), tokens[arrival][1:]


def _time_per_output_token(stream: _Stream) -> float | None:
    gaps = _token_gaps(stream)
    if gaps is None or gaps[1].size == 0:
        return None
    return (stream.chunk_times_s[-1] - stream.chunk_times_s[0]) / int(gaps[1].sum())


def _inter_token_latency(streams: Sequence[_Stream]) -> Distribution | None:
    gaps = [pair for stream in streams if (pair := _token_gaps(stream)) is not None]
    tokens = np.concatenate([tokens for _, tokens in gaps]) if gaps else np.array([], dtype=np.int64)
    if tokens.size == 0:
        return None
    return _distribution(np.concatenate([gap for gap, _ in gaps]) / tokens, tokens)


def _in_flight(sent: _Floats, last: _Floats, times: _Floats, *, side: Literal["left", "right"]) -> _Counts:
    """Requests in flight just after (side="right") or just before (side="left") each time.

    A request is in flight in [sent, last token): at the instant in which one ends and the next starts, one is.
    """
    started = np.searchsorted(np.sort(sent), times, side=side)
    return started - np.searchsorted(np.sort(last), times, side=side)


def _steady_throughput(level: int, streams: Sequence[_Stream], sent: _Floats, last: _Floats) -> float | None:
    """Tokens per second of the intervals in which the level is held, each interval without its start, with its end.

    What arrives is the work of the time before it, so a token counts by the requests in flight just before it
    arrives: the last tokens of a full round count, and one held at the level throughout has its output throughput.
    """

    def loaded(in_flight: _Counts) -> NDArray[np.bool_]:
        return 100 * in_flight >= STEADY_PERCENT * level

    edges = np.unique(np.concatenate((sent, last)))
    held = loaded(_in_flight(sent, last, edges[:-1], side="right"))
    counts = [stream.chunk_tokens for stream in streams if stream.chunk_tokens is not None]
    if len(counts) < len(streams) or not held.any():
        return None
    length_s = math.fsum(np.concatenate((edges[1:][held], -edges[:-1][held])))
    times = np.concatenate([stream.chunk_times_s for stream in streams])
    arrived = np.concatenate(counts)[loaded(_in_flight(sent, last, times, side="left"))]
    return int(arrived.sum()) / length_s


def _distribution(values: _Floats, counts: _Counts | None = None) -> Distribution:
    """The distribution of a list in which each value stands as often as its count says (once without counts)."""
    counts = np.ones(values.size, dtype=np.int64) if counts is None else counts
    order = np.argsort(values)
    ordered, ranks = values[order], np.cumsum(counts[order])
    total = int(ranks[-1])

    def percentile(percent: int) -> float:
        # In whole numbers, so that a percentile which is an element of the list is exactly that element.
        rank, hundredths = divmod(percent * (total - 1), 100)
        low, high = ordered[np.searchsorted(ranks, (rank, min(rank + 1, total - 1)), side="right")]
        return float(low + (high - low) * (hundredths / 100))

    return Distribution(
        mean=math.fsum(values * counts) / total,
        p50=percentile(50),
        p90=percentile(90),
        p99=percentile(99),
        max=float(ordered[-1]),
    )
