"""From the bytes of one streamed answer, fed as they arrive, to what they say. Pure: each read comes with its time.

The event-stream rules are those of the HTML standard ("Server-sent events", parsing an event stream): comments, blank
lines, any line ending and any split of bytes over reads are no errors. What makes an answer good is docs/metrics.md's
"one good request"; everything else is a named failure and its tokens count nowhere.

An event as servers send it is one line of JSON, decoded into the few fields that are looked at; whatever does not fit
them exactly is read again, slowly and with patience. Nothing is kept of an event but a time and a count, so that a
round of ten million tokens fits into memory.
"""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from perf.trace import MAX_DETAIL, Failure, FailureName

#: The most bytes of an answer that are read: so many, and so many more for each token asked for. An event of SGLang's
#: with usage is 450 bytes a token; ten times that is another kind of answer.
ANSWER_BYTES = 64 * 1024
ANSWER_BYTES_PER_TOKEN = 4 * 1024

#: More tokens than any counter of one request reaches, and less than an 8-byte integer holds.
MAX_COUNT = 2**48

#: An integer of more digits is no count. Python refuses to read one of thousands, which JSON may hold.
COUNT_DIGITS = 100


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a stream said. Times are the reads' own: `chunk_times_s` doubles, `chunk_tokens` 64-bit integers."""

    chunk_times_s: "array[float]" = field(default_factory=lambda: array("d"))
    chunk_tokens: "array[int] | None" = field(default_factory=lambda: array("q"))
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None


class EventStream:
    """Cut the pieces of a body into blocks of lines, one for an event."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of an event whose blank line has not come yet
        self._after_cr = False
        self._begun = False

    def blocks(self, piece: bytes) -> list[bytes]:
        """The blocks that end in this piece, each without the blank line that dispatches it; lines end with LF."""
        if self._after_cr or b"\r" in piece:
            piece = self._line_feeds(piece)
        if not self._begun and piece:
            piece = self._without_mark(piece)
        rest = self._rest
        if rest:
            # A blank line may lie across the seam; what lies before it was searched when it came.
            seam = max(0, len(rest) - 1)
            rest += piece
            if rest.find(b"\n\n", seam) < 0:
                return []
            piece = bytes(rest)
        *blocks, last = piece.split(b"\n\n")
        self._rest = bytearray(last)
        return blocks

    def close(self) -> bytes:
        """What the end of the body cuts off: an error object or half a JSON text must not get lost."""
        return bytes(self._rest)

    def _line_feeds(self, piece: bytes) -> bytes:
        """CRLF and CR as LF, also where a CRLF is split over two pieces."""
        if not piece:
            return piece
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
            if not piece:
                return piece
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_mark(self, piece: bytes) -> bytes:
        """A byte order mark at the very beginning says nothing."""
        mark = b"\xef\xbb\xbf"
        self._rest += piece
        if len(self._rest) < len(mark):  # no event is so short
            return b""
        self._begun = True
        piece = bytes(self._rest.removeprefix(mark))
        self._rest.clear()
        return piece


def read_block(block: bytes) -> Iterator[tuple[str, bytes]]:
    """The event of a block of lines; none where no line of it is data."""
    kind, data = "", list[bytes]()
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", errors="replace")
    if data:
        yield kind, b"\n".join(data)


# The fields of an event that are looked at. What is absent or null in any of them is one and the same; whatever else a
# server puts there does not fit, and is read with patience.

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    error: None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: _Tokens | None = None
    prompt_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice]
    usage: _Usage | None = None
    object: str | None = None
    error: None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Reader:
    """One answer with status 200 as it arrives. Bytes behind a failure are not looked at."""

    def __init__(self, requested_tokens: int) -> None:
        self.requested_tokens = requested_tokens
        self.events = 0
        self.heard_s = 0.0  # when the last event had come
        self.answer = Answer()
        self._stream = EventStream()
        self._bytes_left = ANSWER_BYTES + ANSWER_BYTES_PER_TOKEN * requested_tokens
        self._seen_tokens = 0
        self._finish_s: float | None = None

    @property
    def tokens(self) -> int:
        """Output tokens so far as far as the server told."""
        return self._seen_tokens

    def feed(self, time_s: float, piece: bytes) -> None:
        """Take the next piece of the body, which was read at `time_s`."""
        if self.answer.failure is not None:
            return
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            most = ANSWER_BYTES + ANSWER_BYTES_PER_TOKEN * self.requested_tokens
            self._fail(FailureName.MALFORMED, f"more than {most:,} bytes for {self.requested_tokens:,} tokens")
            return
        events = self.events
        for block in self._stream.blocks(piece):
            if block.startswith(b"data: ") and b"\n" not in block:
                self.events += 1
                try:
                    chunk = _decode(block[6:])
                except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
                    pass
                else:
                    if chunk.object != "error":
                        self._take(time_s, chunk)
                        continue
                self._take_slowly(time_s, "", block[6:], cut_off=False)
            else:
                for kind, data in read_block(block):
                    self.events += 1
                    self._take_slowly(time_s, kind, data, cut_off=False)
        if self.events > events:
            self.heard_s = time_s

    def close(self, time_s: float, *, ended_clean: bool) -> Answer:
        """The body ended, at `time_s`; `ended_clean` is False where the connection broke."""
        for kind, data in read_block(self._stream.close()):
            self.events += 1
            self._take_slowly(time_s, kind, data, cut_off=not ended_clean)
        answer = self.answer
        _settle_counts(answer, self._finish_s)
        answer.failure = answer.failure or _failure(answer, self.requested_tokens, ended_clean=ended_clean)
        return answer

    def _fail(self, name: FailureName, detail: str) -> None:
        if self.answer.failure is None:
            self.answer.failure = Failure(name=name, detail=detail[:MAX_DETAIL])

    def _take_slowly(self, time_s: float, kind: str, data: bytes, *, cut_off: bool) -> None:
        """An event that is not of the usual shape: an error, a `[DONE]`, a field that holds something odd."""
        if self.answer.failure is not None or data.strip() in (b"", b"[DONE]"):  # an event without data says nothing
            return
        text = data.decode("utf-8", errors="replace")
        chunk = _object(text)
        if chunk is None:
            if cut_off:
                self._fail(FailureName.TRUNCATED, "the connection broke within an event")
            else:
                self._fail(FailureName.MALFORMED, f"an event that is no JSON object: {text[:MAX_DETAIL]}")
            return
        choice = _first_choice(chunk)
        error = _error(chunk, choice)
        if error is not None or kind == "error":
            self._fail(FailureName.ERROR_IN_STREAM, message_of(error or chunk))
            return
        self._take(time_s, _fitted(chunk, choice))

    def _take(self, time_s: float, chunk: _Chunk) -> None:
        answer = self.answer
        if answer.failure is not None:
            return
        total: int | None = None
        if (usage := chunk.usage) is not None and (total := usage.completion_tokens) is not None:
            answer.output_tokens = total
            answer.prompt_tokens = usage.prompt_tokens
            if usage.prompt_tokens_details is not None:
                answer.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if finish := choice.finish_reason:
            finish = finish[:MAX_DETAIL]
            if answer.finish_reason not in (None, finish):
                seen = f'finish_reason "{answer.finish_reason}", and then "{finish}"'
                self._fail(FailureName.MALFORMED, seen)
                return
            answer.finish_reason = finish
        delta = choice.delta
        text = choice.text or (delta is not None and (delta.content or delta.reasoning_content or delta.reasoning))
        # A chunk counts as tokens where it carries text; behind the first text also where only the count rose
        # (a token without text, such as an end-of-sequence token that `ignore_eos` goes past).
        if text or (answer.chunk_tokens and (total or 0) > self._seen_tokens):
            answer.chunk_times_s.append(time_s)
            if total is None or total < self._seen_tokens or answer.chunk_tokens is None:
                answer.chunk_tokens = None
            else:
                answer.chunk_tokens.append(total - self._seen_tokens)
                self._seen_tokens = total
        elif finish and self._finish_s is None:
            self._finish_s = time_s


def _settle_counts(answer: Answer, finish_s: float | None) -> None:
    """Make the counts of the chunks add up to the usage, or have none; and let no token be later than the last time.

    Tokens without text behind the last text are in no chunk; they came with the finish chunk at the latest. Without
    counts nobody knows whether there are any, so that the finish chunk is the last token's time.
    """
    counts, total, times = answer.chunk_tokens, answer.output_tokens, answer.chunk_times_s
    counted = sum(counts or ())
    if not counts or total is None or counted > total:
        answer.chunk_tokens = None
        if times and finish_s is not None and finish_s > times[-1]:
            times.append(finish_s)
        return
    missing = total - counted
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
        value: object = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= COUNT_DIGITS else None


def _first_choice(chunk: dict[str, object]) -> dict[str, object] | None:
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _fitted(chunk: dict[str, object], choice: dict[str, object] | None) -> _Chunk:
    """Of a chunk of any shape what fits; what does not is absent."""
    usage, details = chunk.get("usage"), None
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
    delta = None if choice is None else choice.get("delta")
    return _Chunk(
        usage=_Usage(
            completion_tokens=_count(usage.get("completion_tokens")),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            prompt_tokens_details=_Details(_count(details.get("cached_tokens"))) if isinstance(details, dict) else None,
        )
        if isinstance(usage, dict)
        else None,
        choices=[]
        if choice is None
        else [
            _Choice(
                text=_text(choice.get("text")),
                finish_reason=_text(choice.get("finish_reason")),
                delta=_Delta(
                    content=_text(delta.get("content")),
                    reasoning_content=_text(delta.get("reasoning_content")),
                    reasoning=_text(delta.get("reasoning")),
                )
                if isinstance(delta, dict)
                else None,
            )
        ],
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


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
    if isinstance(message, str) and message:
        return message[:MAX_DETAIL]
    try:
        return json.dumps(error)[:MAX_DETAIL]
    except RecursionError:  # Python reads deeper nesting than it writes
        return "an error that is nested too deeply to be shown"


def refusal(body: bytes) -> str:
    """What the body of an answer with another status than 200 says, in the server's own words if it has them."""
    text = body.decode("utf-8", errors="replace")
    value = _object(text)
    return text[:MAX_DETAIL] if value is None else message_of(value.get("error") or value)
