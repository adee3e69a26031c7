"""What one round left behind: its requests, with every time that was taken.

Times are seconds on one monotonic clock whose zero is the round's own (the first request is sent near 0.0).
A chunk here is a piece of the stream that carried text, whatever number of tokens it packs: the role-only chunk,
the usage chunk and `[DONE]` are not among them, the finish chunk only where tokens may have come without text.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

#: How much of a text from outside is kept in a trace, in characters. Far more than is ever shown: it is cut to that
#: only after secrets were replaced in it, since half a secret is not found any more.
MAX_DETAIL = 4096


class FailureName(StrEnum):
    """Why a request is not a good one. MEASUREMENT: every other request counts nowhere."""

    HTTP_ERROR = "http"  # shown with its status: http_500
    ERROR_IN_STREAM = "error_in_stream"
    ABORTED = "aborted"
    TRUNCATED = "truncated"
    NO_USAGE = "no_usage"
    WRONG_LENGTH = "wrong_length"
    STALLED = "stalled"
    TIMEOUT = "timeout"
    MALFORMED = "malformed"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A named reason, the HTTP status where there was one, and what was seen (text from outside, unescaped)."""

    name: FailureName
    detail: str
    status: int | None = None

    @property
    def label(self) -> str:
        """The reason as users read it, `http_500` for an HTTP status."""
        return f"http_{self.status}" if self.name is FailureName.HTTP_ERROR else self.name.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """One call and its timings.

    `chunk_tokens` are the tokens of each chunk by the server's cumulative usage; None where the server does not
    give per-chunk counts. Where it is given, its sum is `output_tokens`, which is what the server's usage says.
    A failed request keeps its times for diagnosis; its tokens count nowhere. The client leaves both as `array.array`
    (doubles, 64-bit integers): 16 bytes a chunk, where a tuple of Python's numbers takes 80.
    """

    index: int
    prompt_id: str
    sent_s: float
    # Not in `repr()`, which asyncio makes of a task and its result: half a gigabyte for ten million.
    chunk_times_s: Sequence[float] = field(repr=False)
    chunk_tokens: Sequence[int] | None = field(repr=False)
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    ended_s: float
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def first_token_s(self) -> float | None:
        """When the first text arrived."""
        return self.chunk_times_s[0] if self.chunk_times_s else None

    @property
    def last_token_s(self) -> float | None:
        """When the last token had arrived: with the last text, or the finish chunk (never usage, never `[DONE]`)."""
        return self.chunk_times_s[-1] if self.chunk_times_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How the client itself fared over the window of a round; None where the host does not tell.

    `lag` is the time between the arrival of a read's last bytes at this host and their being read, over all `reads` of
    which it is known: a lower bound, since Linux joins what arrives unread, under the time of the last of it.
    `away_share` is the share of the window in which the client did not come to read for 10 ms or more longer than it
    should have, `away_max_s` the longest such absence: so late a single token's time may be. `turnaround_share` is the
    share of the streams' time between the arrival of an answer's last bytes and the writing of the next request: what a
    client adds to a closed loop. `cpu_share` is of one core, by the thread that reads, `run_queue_share` the share of
    the window in which it was ready to run and had no core. Where `processes` shared the level, `reads` are the sum,
    and all else is of the worst.
    """

    processes: int
    reads: int
    lag_p50_s: float | None
    lag_p99_s: float | None
    lag_max_s: float | None
    away_share: float
    away_max_s: float
    turnaround_share: float
    cpu_share: float
    run_queue_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One complete closed-loop pass of a case: `level` requests in flight until `planned_requests` were sent.

    `zero_s` is where the round's zero lies on this host's monotonic clock (`time.perf_counter`). `client` is None where
    nothing was asked.
    """

    level: int
    index: int
    planned_requests: int
    requested_tokens: int
    requests: tuple[RequestTrace, ...]
    zero_s: float = 0.0
    client: ClientHealth | None = None


def merged(parts: Sequence[Round]) -> Round:
    """The round of which each part was measured by a process of its own; one part at least, in any order.

    Exact: a difference of two readings of one clock has no rounding while the round is shorter than the clock is old,
    so the times are those which one process would have taken.
    """
    zero_s = min((part.zero_s for part in parts if part.requests), default=0.0)
    requests = (_later(request, part.zero_s - zero_s) for part in parts for request in part.requests)
    health = tuple(part.client for part in parts if part.client is not None)
    return Round(
        level=parts[0].level,
        index=parts[0].index,
        planned_requests=sum(part.planned_requests for part in parts),
        requested_tokens=parts[0].requested_tokens,
        requests=tuple(sorted(requests, key=lambda request: request.index)),
        zero_s=zero_s,
        client=_worst(health) if health else None,
    )


def _later(request: RequestTrace, by_s: float) -> RequestTrace:
    return replace(
        request,
        sent_s=request.sent_s + by_s,
        chunk_times_s=array("d", (np.asarray(request.chunk_times_s) + by_s).tobytes()),
        ended_s=request.ended_s + by_s,
    )


def _worst(parts: Sequence[ClientHealth]) -> ClientHealth:
    return ClientHealth(
        processes=sum(part.processes for part in parts),
        reads=sum(part.reads for part in parts),
        lag_p50_s=_most(part.lag_p50_s for part in parts),
        lag_p99_s=_most(part.lag_p99_s for part in parts),
        lag_max_s=_most(part.lag_max_s for part in parts),
        away_share=max(part.away_share for part in parts),
        away_max_s=max(part.away_max_s for part in parts),
        turnaround_share=max(part.turnaround_share for part in parts),
        cpu_share=max(part.cpu_share for part in parts),
        run_queue_share=_most(part.run_queue_share for part in parts),
    )


def _most(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the server's start, in tokens and verify steps; None where the server does not count."""

    generated: int | None = None
    prompt: int | None = None
    cached: int | None = None
    verify_steps: int | None = None

    def since(self, before: "Counters") -> "Counters":
        """What was counted between two readings."""
        return Counters(
            generated=_difference(self.generated, before.generated),
            prompt=_difference(self.prompt, before.prompt),
            cached=_difference(self.cached, before.cached),
            verify_steps=_difference(self.verify_steps, before.verify_steps),
        )


def _difference(now: int | None, before: int | None) -> int | None:
    """A counter that appears with its first use counted from zero; one that went down was reset and says nothing."""
    if now is None or now < (before or 0):
        return None
    return now - (before or 0)
