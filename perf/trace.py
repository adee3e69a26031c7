"""What one round left behind: its requests, with every time that was taken.

Times are seconds on one monotonic clock whose zero is the round's own (the first request is sent near 0.0).
A chunk here is a piece of the stream that carried text, whatever number of tokens it packs: the role-only chunk,
the usage chunk and `[DONE]` are not among them, the finish chunk only where tokens may have come without text.
"""

from dataclasses import dataclass
from enum import StrEnum

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
    A failed request keeps its times for diagnosis; its tokens count nowhere.
    """

    index: int
    prompt_id: str
    sent_s: float
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...] | None
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
class Round:
    """One complete closed-loop pass of a case: `level` requests in flight until `planned_requests` were sent."""

    level: int
    index: int
    planned_requests: int
    requested_tokens: int
    requests: tuple[RequestTrace, ...]


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
