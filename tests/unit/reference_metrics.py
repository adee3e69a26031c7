"""The definitions of docs/metrics.md, slowly and obviously: loops, exact fractions, lists written out token by token.

Nothing here is shared with `perf.metrics` but the types. A float is a fraction, so every number is exact until
it is rounded once at the end.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import floor

from perf.metrics import Distribution, RoundSummary
from perf.trace import RequestTrace, Round


def summarize(measured: Round, verify_steps: int | None = None) -> RoundSummary | None:
    if len(measured.requests) == 0 or len(measured.requests) < measured.planned_requests:
        return None
    for request in measured.requests:
        if request.failure is not None:
            return None

    tokens = 0
    first_sent = min(sent(request) for request in measured.requests)
    last_received = max(last(request) for request in measured.requests)
    window = last_received - first_sent
    ttft, e2e, rate, tpot, itl = [], [], [], [], []
    in_flight_time = Fraction(0)
    for request in measured.requests:
        assert request.output_tokens is not None
        tokens += request.output_tokens
        ttft.append(Fraction(request.chunk_times_s[0]) - sent(request))
        e2e.append(last(request) - sent(request))
        rate.append(request.output_tokens / (last(request) - sent(request)))
        in_flight_time += last(request) - sent(request)
        latencies = token_latencies(request)
        if latencies:
            assert request.chunk_tokens is not None
            first_token = Fraction(request.chunk_times_s[0])
            tpot.append((last(request) - first_token) / (request.output_tokens - request.chunk_tokens[0]))
        itl.extend(latencies)

    return RoundSummary(
        requests=len(measured.requests),
        output_tokens=tokens,
        window_s=float(window),
        output_throughput=float(tokens / window),
        steady_throughput=steady_throughput(measured),
        request_throughput=float(len(measured.requests) / window),
        per_request_throughput=distribution(rate),
        ttft_s=distribution(ttft),
        tpot_s=distribution(tpot) if tpot else None,
        itl_s=distribution(itl) if itl else None,
        e2e_s=distribution(e2e),
        achieved_concurrency=float(in_flight_time / window),
        peak_concurrency=max(in_flight(measured, sent(request)) for request in measured.requests),
        acceptance_length=float(Fraction(tokens, verify_steps)) if verify_steps else None,
    )


def sent(request: RequestTrace) -> Fraction:
    return Fraction(request.sent_s)


def last(request: RequestTrace) -> Fraction:
    return Fraction(request.chunk_times_s[-1])


def in_flight(measured: Round, instant: Fraction) -> int:
    """Requests with sent <= instant < last token."""
    count = 0
    for request in measured.requests:
        if sent(request) <= instant < last(request):
            count += 1
    return count


def token_latencies(request: RequestTrace) -> list[Fraction]:
    """One value for each token after those of the first chunk."""
    if request.chunk_tokens is None or len(set(request.chunk_times_s)) < 2:
        return []
    latencies: list[Fraction] = []
    since = Fraction(request.chunk_times_s[0])
    for time_s, count in list(zip(request.chunk_times_s, request.chunk_tokens, strict=True))[1:]:
        if count > 0:
            for _ in range(count):
                latencies.append((Fraction(time_s) - since) / count)
            since = Fraction(time_s)
    return latencies


def steady_throughput(measured: Round) -> float | None:
    """Interval by interval: is it loaded (seen from its middle), how long is it, what arrives after its start."""
    for request in measured.requests:
        if request.chunk_tokens is None:
            return None
    instants = sorted(
        {sent(request) for request in measured.requests} | {last(request) for request in measured.requests}
    )
    length, tokens = Fraction(0), 0
    for start, end in pairwise(instants):
        if in_flight(measured, (start + end) / 2) >= Fraction(95, 100) * measured.level:
            length += end - start
            for request in measured.requests:
                assert request.chunk_tokens is not None
                for time_s, count in zip(request.chunk_times_s, request.chunk_tokens, strict=True):
                    if start < Fraction(time_s) <= end:
                        tokens += count
    return float(tokens / length) if length else None


def distribution(values: Sequence[Fraction]) -> Distribution:
    ordered = sorted(values)
    return Distribution(
        mean=float(sum(ordered, Fraction(0)) / len(ordered)),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=float(ordered[-1]),
    )


def percentile(ordered: Sequence[Fraction], percent: int) -> float:
    """The value at rank percent/100 * (n - 1) counted from zero, linear between two ranks."""
    rank = Fraction(percent, 100) * (len(ordered) - 1)
    below = floor(rank)
    if below == rank:
        return float(ordered[below])
    return float(ordered[below] + (ordered[below + 1] - ordered[below]) * (rank - below))
