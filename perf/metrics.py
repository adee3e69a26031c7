"""The numbers of a round, as pure functions. The definitions are those of docs/metrics.md and stand nowhere else.

Not for judging: whether a round may be believed is `validity`, whether it lost anything is `gate`.
Sums of times go through `math.fsum`: correctly rounded, it depends neither on the order of the requests nor on
where an interval was cut. It is slow, so only a few values of each request are summed so;
what is done for each chunk is done by numpy, in a few arrays of 8 bytes a chunk and one of 8 bytes a token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


_Floats = NDArray[np.float64]
_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stream:
    """A good request with what every good request has; `tokens` of its chunks is None where the server gave none.

    The arrays are views of the trace's own memory where that is an `array.array`.
    """

    sent_s: float
    times_s: _Floats
    tokens: _Counts | None
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chunks:
    """The chunks of all requests that have counts, request after request; `starts` are the first of each."""

    times_s: _Floats
    tokens: _Counts
    starts: NDArray[np.intp]


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
    first = np.array([stream.times_s[0] for stream in streams])
    last = np.array([stream.times_s[-1] for stream in streams])
    tokens = np.array([stream.output_tokens for stream in streams])
    chunks = _chunks(streams)

    output_tokens = int(tokens.sum())
    window_s = float(last.max() - sent.min())
    edges, in_flight = _sweep(sent, last)
    tpots = [tpot for stream in streams if (tpot := _time_per_output_token(stream)) is not None]
    return RoundSummary(
        requests=len(streams),
        output_tokens=output_tokens,
        window_s=window_s,
        output_throughput=output_tokens / window_s,
        steady_throughput=(
            _steady_throughput(edges, 100 * in_flight >= STEADY_PERCENT * measured.level, chunks)
            if chunks is not None and chunks.starts.size == len(streams)
            else None
        ),
        request_throughput=len(streams) / window_s,
        per_request_throughput=_distribution(tokens / (last - sent)),
        ttft_s=_distribution(first - sent),
        tpot_s=_distribution(np.array(tpots)) if tpots else None,
        itl_s=None if chunks is None else _inter_token_latency(chunks),
        e2e_s=_distribution(last - sent),
        achieved_concurrency=_sum_of_lengths(sent, last) / window_s,
        peak_concurrency=int(in_flight.max()),
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
        if stream.tokens is None:
            raise ValueError(
                f"request {request.index} has no tokens per chunk, so when they arrived is not known; "
                "ask for a window only where the server gives continuous usage"
            )
        total += int(stream.tokens[(start_s < stream.times_s) & (stream.times_s <= end_s)].sum())
    return total


def _stream(request: RequestTrace) -> _Stream:
    """The request without the absences that no good request has."""
    output_tokens = request.output_tokens
    times_s = np.asarray(request.chunk_times_s, dtype=np.float64)
    tokens = None if request.chunk_tokens is None else np.asarray(request.chunk_tokens, dtype=np.int64)

    def contradiction(seen: str) -> ValueError:
        return ValueError(f"request {request.index} counts as good, but {seen}; its trace must name a failure instead")

    if output_tokens is None:
        raise contradiction("has no output tokens by usage")
    if times_s.size == 0:
        raise contradiction("no text of it arrived")
    # This also keeps the window of the round, and with it every divisor, above zero.
    if not times_s[-1] > request.sent_s:
        raise contradiction(f"its last token came at {times_s[-1]} s, not after it was sent at {request.sent_s} s")
    if tokens is not None and (tokens.size != times_s.size or tokens.min() < 0 or tokens.sum() != output_tokens):
        raise contradiction(
            f"its {tokens.size} chunk counts (sum {tokens.sum()}, least {min(tokens, default=0)}) are not those of "
            f"{output_tokens} tokens in {times_s.size} chunks"
        )
    return _Stream(sent_s=request.sent_s, times_s=times_s, tokens=tokens, output_tokens=output_tokens)


def _chunks(streams: Sequence[_Stream]) -> _Chunks | None:
    counted = [(stream.times_s, stream.tokens) for stream in streams if stream.tokens is not None]
    if not counted:
        return None
    ends = np.cumsum([times_s.size for times_s, _ in counted])
    return _Chunks(
        times_s=np.concatenate([times_s for times_s, _ in counted]),
        tokens=np.concatenate([tokens for _, tokens in counted]),
        starts=np.append(0, ends[:-1]),
    )


def _time_per_output_token(stream: _Stream) -> float | None:
    """None where the stream says nothing of time between tokens.

    That is so without counts per chunk, and where all chunks bear one time (one chunk, or one read of the socket):
    a gap of 0 would be made up (sglang#36272).
    """
    first_s, last_s = stream.times_s[0], stream.times_s[-1]
    if stream.tokens is None or first_s == last_s:
        return None
    later = stream.output_tokens - int(stream.tokens[0])
    return float(last_s - first_s) / later if later else None


def _inter_token_latency(chunks: _Chunks) -> Distribution | None:
    latencies_s, sum_s = _token_latencies(chunks)
    return _distribution(latencies_s, sum_of_values=sum_s) if latencies_s.size else None


def _token_latencies(chunks: _Chunks) -> tuple[_Floats, float]:
    """One latency for each token after the first chunk of its request, and their sum.

    Requests whose chunks all bear one time have none, as for the time per output token.
    A chunk in which the server counts no new token (text held back, a reasoning delta split from content) is no
    arrival: the time before it belongs to the next one.
    """
    times_s, tokens, starts = chunks.times_s, chunks.tokens, chunks.starts
    ends = np.append(starts[1:], times_s.size)
    opens = np.zeros(times_s.size, dtype=np.bool_)
    opens[starts] = True
    arrives = (opens | (tokens > 0)) & np.repeat(times_s[starts] != times_s[ends - 1], ends - starts)
    later = arrives & ~opens
    if not arrives.all():
        times_s, opens = times_s[arrives], opens[arrives]
    latencies_s = np.diff(times_s)[~opens[1:]]
    if tokens.max() > 1:
        counts = tokens[later]
        latencies_s /= counts
        latencies_s = np.repeat(latencies_s, counts)
    # Those of a request add up to the time from its first arrival to its last, the one before the next that opens.
    return latencies_s, _sum_of_lengths(times_s[opens], times_s[np.roll(opens, -1)])


def _sum_of_lengths(starts: _Floats, ends: _Floats) -> float:
    return math.fsum(np.concatenate((ends, -starts)))


def _sweep(sent: _Floats, last: _Floats) -> tuple[_Floats, _Counts]:
    """The instants at which a request starts or ends, in order, and the requests in flight just after each.

    A request is in flight in [sent, last token): at the instant in which one ends and the next starts, one is.
    """
    edges = np.unique(np.concatenate((sent, last)))
    started = np.searchsorted(np.sort(sent), edges, side="right")
    return edges, started - np.searchsorted(np.sort(last), edges, side="right")


def _steady_throughput(edges: _Floats, held: NDArray[np.bool_], chunks: _Chunks) -> float | None:
    """Tokens per second of the intervals in which the level is held, each interval without its start, with its end.

    `held` says of each edge whether the level is held from there to the next. What arrives is the work of the time
    before it, so a token counts by the requests in flight just before it arrives: the last tokens of a full round
    count, and one held at the level throughout has its output throughput.
    """
    # Adjacent intervals become one: start, end, start, end, each later than the one before it.
    bounds = edges[np.flatnonzero(np.diff(held, prepend=False))]
    if bounds.size == 0:
        return None
    # After a start and not after its end is after an odd number of bounds.
    inside = np.searchsorted(bounds, chunks.times_s, side="left")
    inside &= 1
    return int(np.dot(chunks.tokens, inside)) / _sum_of_lengths(bounds[::2], bounds[1::2])


def _distribution(values: _Floats, *, sum_of_values: float | None = None) -> Distribution:
    """The distribution of a list, which is sorted in place; the sum is for a caller who has it from fewer numbers.

    The percentiles are exact: nothing is sampled or binned.
    """
    values.sort()
    # In whole numbers, so that a percentile which is an element of the list is exactly that element.
    below, hundredths = np.divmod(np.array([50, 90, 99, 100]) * (values.size - 1), 100)
    low, high = values[below], values[np.minimum(below + 1, values.size - 1)]
    p50, p90, p99, greatest = (low + (high - low) * (hundredths / 100)).tolist()
    total = math.fsum(values) if sum_of_values is None else sum_of_values
    return Distribution(mean=total / values.size, p50=p50, p90=p90, p99=p99, max=greatest)
