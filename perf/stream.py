"""From the bytes of one streamed answer, each read stamped, to what they say. Pure; works after the run, not during it.

The event-stream rules are those of the HTML standard ("Server-sent events", parsing an event stream): comments, blank
lines, any line ending and any split of bytes over reads are no errors. What makes an answer good is docs/metrics.md's
"one good request"; everything else is a named failure and its tokens count nowhere.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perf.trace import MAX_DETAIL, Failure, FailureName


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One dispatched event: its type and data, and when its last byte was read."""

    time_s: float
    type: str
    data: str


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a stream said. Times are the reads' own."""

    chunk_times_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] | None = field(default_factory=list)
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None


def events(reads: Sequence[tuple[float, bytes]]) -> Iterator[Event]:
    """Dispatch the events of a body that was read in the given pieces, each with the time of its read.

    The data of an event that the end of the body cuts off is dispatched too: what it says (an error object, half a
    JSON text) must not get lost.
    """
    type_, data = "", list[str]()
    last = reads[-1][0] if reads else 0.0
    for time_s, line in _lines(reads):
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                type_ = value
            continue
        if data:
            yield Event(time_s=time_s, type=type_, data="\n".join(data))
        type_, data = "", []
    if data:
        yield Event(time_s=last, type=type_, data="\n".join(data))


def _lines(reads: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    """Lines ended by CRLF, LF or CR, with the time of the read that ended them. A byte order mark is dropped."""
    pending = bytearray()
    after_cr = False
    first = True
    last = 0.0
    for time_s, piece in reads:
        last = time_s
        if after_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # noqa: PLW2901  the second half of a CRLF that was split over two reads
        elif not piece:
            continue
        after_cr = piece.endswith(b"\r")
        pending += piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = pending.split(b"\n")
        pending = rest
        for line in whole:
            yield time_s, _decode(line, first)
            first = False
    if pending:
        yield last, _decode(pending, first)


def _decode(line: bytes | bytearray, first: bool) -> str:
    text = line.decode("utf-8", errors="replace")
    return text.removeprefix("\ufeff") if first else text


def read_answer(reads: Sequence[tuple[float, bytes]], *, requested_tokens: int, ended_clean: bool) -> Answer:
    """Interpret the body of an answer with status 200; `ended_clean` is False where the connection broke."""
    answer = Answer()
    seen_tokens = 0
    finish_s: float | None = None
    for event in events(reads):
        if event.data.strip() in ("", "[DONE]"):  # an event without data says nothing
            continue
        chunk = _object(event.data)
        if chunk is None:
            answer.failure = (
                Failure(
                    name=FailureName.MALFORMED, detail=f"an event that is no JSON object: {event.data[:MAX_DETAIL]}"
                )
                if ended_clean
                else Failure(name=FailureName.TRUNCATED, detail="the connection broke within an event")
            )
            break
        choice = _first_choice(chunk)
        error = _error(chunk, choice)
        if error is not None or event.type == "error":
            answer.failure = Failure(name=FailureName.ERROR_IN_STREAM, detail=message_of(error or chunk))
            break
        total = _read_usage(chunk, answer)
        if choice is None:
            continue
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            finish = finish[:MAX_DETAIL]
            if answer.finish_reason not in (None, finish):
                seen = f'finish_reason "{answer.finish_reason}", and then "{finish}"'
                answer.failure = Failure(name=FailureName.MALFORMED, detail=seen[:MAX_DETAIL])
                break
            answer.finish_reason = finish
        # A chunk counts as tokens where it carries text; behind the first text also where only the count rose
        # (a token without text, such as an end-of-sequence token that `ignore_eos` goes past).
        if _has_text(choice) or (answer.chunk_tokens and (total or 0) > seen_tokens):
            answer.chunk_times_s.append(event.time_s)
            if total is None or total < seen_tokens or answer.chunk_tokens is None:
                answer.chunk_tokens = None
            else:
                answer.chunk_tokens.append(total - seen_tokens)
                seen_tokens = total
        elif finish and finish_s is None:
            finish_s = event.time_s
    _settle_counts(answer, finish_s)
    answer.failure = answer.failure or _failure(answer, requested_tokens, ended_clean=ended_clean)
    return answer


def _settle_counts(answer: Answer, finish_s: float | None) -> None:
    """Make the counts of the chunks add up to the usage, or have none; and let no token be later than the last time.

    Tokens without text behind the last text are in no chunk; they came with the finish chunk at the latest. Without
    counts nobody knows whether there are any, so that the finish chunk is the last token's time.
    """
    counts, total, times = answer.chunk_tokens, answer.output_tokens, answer.chunk_times_s
    if not counts or total is None or sum(counts) > total:
        answer.chunk_tokens = None
        if times and finish_s is not None and finish_s > times[-1]:
            times.append(finish_s)
        return
    missing = total - sum(counts)
    if missing and finish_s is not None and finish_s >= times[-1]:
        times.append(finish_s)
        counts.append(missing)
    else:
        counts[-1] += missing


def _failure(answer: Answer, requested: int, *, ended_clean: bool) -> Failure | None:
    if answer.finish_reason == "abort":
        return Failure(name=FailureName.ABORTED, detail='finish_reason "abort"')
    if not ended_clean:
        return Failure(name=FailureName.TRUNCATED, detail="the connection broke before the end of the body")
    if answer.finish_reason is None:
        return Failure(name=FailureName.TRUNCATED, detail="the body ended without finish_reason")
    if answer.output_tokens is None:
        return Failure(name=FailureName.NO_USAGE, detail="the stream carried no usage")
    if answer.finish_reason != "length" or answer.output_tokens != requested:
        return Failure(
            name=FailureName.WRONG_LENGTH,
            detail=f"asked for {requested} tokens, got {answer.output_tokens} with finish_reason "
            f'"{answer.finish_reason}"',
        )
    if not answer.chunk_times_s:
        return Failure(name=FailureName.MALFORMED, detail=f"{answer.output_tokens} tokens by usage, but no text")
    return None


def _object(text: str) -> dict[str, object] | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _read_usage(chunk: dict[str, object], answer: Answer) -> int | None:
    """Take over the usage of a chunk; its cumulative output tokens, None where it has none."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return None
    total = _count(usage.get("completion_tokens"))
    if total is None:
        return None
    answer.output_tokens = total
    answer.prompt_tokens = _count(usage.get("prompt_tokens"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        answer.cached_tokens = _count(details.get("cached_tokens"))
    return total


def _first_choice(chunk: dict[str, object]) -> dict[str, object] | None:
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _has_text(choice: dict[str, object]) -> bool:
    delta = choice.get("delta")
    texts: list[object] = [choice.get("text")]
    if isinstance(delta, dict):
        texts += [delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning")]
    return any(isinstance(text, str) and text for text in texts)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error(chunk: dict[str, object], choice: dict[str, object] | None) -> object:
    """The error that a chunk is or bears, None where it is none. Servers put it in one of four places."""
    for holder in (chunk, choice or {}):
        error = holder.get("error")
        if error or isinstance(error, dict):
            return error or holder
    if chunk.get("object") == "error":
        return chunk
    if "choices" not in chunk and "usage" not in chunk and (chunk.get("message") or chunk.get("errors")):
        return chunk
    return None


def message_of(error: object) -> str:
    """The server's own words for an error, where it has them, else the whole."""
    message = error.get("message") if isinstance(error, dict) else None
    return (message if isinstance(message, str) and message else json.dumps(error))[:MAX_DETAIL]


def refusal(body: bytes) -> str:
    """What the body of an answer with another status than 200 says, in the server's own words if it has them."""
    text = body.decode("utf-8", errors="replace")
    value = _object(text)
    return text[:MAX_DETAIL] if value is None else message_of(value.get("error") or value)
