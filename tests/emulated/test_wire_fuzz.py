"""Whatever a server puts on the wire, a round ends in time, with a good request only for a good answer.

Over real sockets, from the answers of a server that knows which of them are good; more of them with
`--hypothesis-profile=fuzz`.
"""

import gzip
import json
import signal
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import cycle
from types import FrameType

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from perf.load import Client, Limits, Target
from perf.metrics import summarize
from perf.trace import MAX_DETAIL, Round
from perf.workload import Message, PlannedRequest, RoundPlan

TOKENS = 4

#: What takes milliseconds where nothing else runs; only a hang lasts so long.
PATIENCE_S = 20.0

#: For answers that end: silence is not among them.
ENDING = Limits(connect_s=PATIENCE_S, first_token_s=PATIENCE_S, between_tokens_s=PATIENCE_S, request_s=PATIENCE_S)

#: For answers that do not end.
SILENT = Limits(connect_s=PATIENCE_S, first_token_s=0.3, between_tokens_s=0.3, request_s=0.6)

#: Far more than a client should take of an answer that goes on for ever, far less than fills a memory.
FLOOD_BYTES = 64 * 1024 * 1024


class End(Enum):
    """What a server does behind an answer."""

    WAITS = "for the next request"
    CLOSES = "the connection, in order"
    RESETS = "the connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is put on the wire for one request, each piece in a write of its own.

    `good` is whether it is a good answer to a request for `TOKENS` tokens; None where either may be seen.
    """

    pieces: Sequence[bytes] | Iterable[bytes]
    end: End = End.WAITS
    good: bool | None = False


class Server(socketserver.ThreadingTCPServer):
    """Gives the answers one after the other, whatever it is asked and on however many connections."""

    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.answers: list[Answer] = []
        self.sent_bytes = 0
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def next(self) -> Answer | None:
        with self.lock:
            return self.answers.pop(0) if self.answers else None


class Connection(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        link: socket.socket = self.request
        link.settimeout(PATIENCE_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # the client has gone
            while self.asked(link) and (answer := self.server.next()) is not None:
                for piece in answer.pieces:
                    link.sendall(piece)
                    self.server.sent_bytes += len(piece)
                if answer.end is End.RESETS:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    link.close()
                if answer.end is not End.WAITS:
                    return

    def asked(self, link: socket.socket) -> bool:
        """A whole request has come."""
        seen = b""
        while b"\r\n\r\n" not in seen:
            piece = link.recv(65536)
            if not piece:
                return False
            seen += piece
        head, _, body = seen.partition(b"\r\n\r\n")
        lengths = [
            line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        ]
        missing = int(lengths[0]) - len(body)
        while missing > 0 and (piece := link.recv(missing)):
            missing -= len(piece)
        return missing == 0


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@contextmanager
def ended_by_alarm() -> Iterator[None]:
    """Fails where a round would not return at all."""

    def ring(_: int, __: FrameType | None) -> None:
        raise AssertionError("the round does not end")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 1.5 * PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def one_round(server: Server, answers: Sequence[Answer], limits: Limits = ENDING, *, level: int = 1) -> Round:
    """A request for each of these answers; the round returns, and holds together whatever they are."""
    server.answers, server.sent_bytes = list(answers), 0
    asked = tuple(
        PlannedRequest(index=place, prompt_id=f"task-{place}", messages=(Message(role="user", content="Sort."),))
        for place in range(len(answers))
    )
    plan = RoundPlan(level=level, index=0, warmup=(), measured=asked)
    target = Target(
        base_url=f"http://127.0.0.1:{server.port}",
        model="tiny",
        authorization=None,
        endpoint="chat",
        temperature=0.0,
    )
    began_s = time.monotonic()

    def late() -> bool:
        """Ends a round that would not end by itself."""
        return time.monotonic() - began_s > PATIENCE_S

    with ended_by_alarm(), Client(target, limits=limits) as client:
        measured = client.run_round(plan, TOKENS, died=late)
    assert not late()
    holds_together(measured)
    return measured


def holds_together(measured: Round) -> None:
    requests, planned = measured.requests, measured.planned_requests
    failed = [request for request in requests if request.failure is not None]
    assert 1 <= len(requests) <= planned
    assert failed or len(requests) == planned
    assert len(failed) <= measured.level  # behind a failure nothing is sent
    assert (summarize(measured) is None) is bool(failed)
    for request in requests:
        times = [request.sent_s, *request.chunk_times_s, request.ended_s]
        assert times == sorted(times)
        if request.chunk_tokens is not None:
            assert len(request.chunk_tokens) == len(request.chunk_times_s)
            assert sum(request.chunk_tokens) == request.output_tokens
        if request.failure is None:
            assert (request.output_tokens, request.finish_reason) == (TOKENS, "length")
        else:
            assert len(request.failure.detail) <= MAX_DETAIL


def as_good_as_its_answers(measured: Round, answers: Sequence[Answer]) -> None:
    for request, answer in zip(measured.requests, answers, strict=False):
        if answer.good is not None:
            assert (request.failure is None) is answer.good, request.failure
        if request.failure is None:
            assert answer.good is not False


# Answers of which it is known how good they are.


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(content: str = "x", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}})


DONE = b"data: [DONE]\n\n"
SAID = delta("") + delta() + delta() + delta("", "length")
GOOD = SAID + usage(TOKENS) + DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The bytes of an event stream, and how many of them make it good, if any do."""

    data: bytes
    good_from: int | None

    def good(self, length: int) -> bool:
        """Is it good where only so many bytes arrive? Half of a `[DONE]` is no JSON."""
        if self.good_from is None or length < self.good_from:
            return False
        half = self.data.rfind(b"[DONE]")
        return half < 0 or not half < length < half + len(b"[DONE]")


def body(data: bytes) -> Body:
    told = usage(TOKENS).rstrip()
    return Body(data=data, good_from=data.index(told) + len(told))


GOOD_BODIES = (
    body(GOOD),
    body(b": hello\n\n" + GOOD),
    body(b"\xef\xbb\xbf" + GOOD),
    body(GOOD.replace(b"\n", b"\r\n")),
    body(GOOD.replace(DONE, b"")),
    body(delta("", None) + delta("data: 4000 tokens \r\n\r\nHTTP/1.1 200 OK\r\n") + SAID + usage(TOKENS) + DONE),
)
BAD_BODIES = tuple(
    Body(data=data, good_from=None)
    for data in (
        b"",
        SAID,
        SAID + DONE,
        SAID + usage(TOKENS - 1) + DONE,
        SAID + usage(TOKENS + 1) + DONE,
        SAID.replace(b"length", b"stop") + usage(TOKENS) + DONE,
        SAID.replace(b"length", b"abort") + usage(TOKENS) + DONE,
        delta("", "length") + usage(TOKENS) + DONE,
        delta() + event({"error": {"message": "CUDA error"}}) + GOOD,
        GOOD.replace(b"completion_tokens", b"output_tokens"),
        delta() + b"data: {\n\n" + GOOD,
        event({"completion_tokens": TOKENS}) + SAID + DONE,
        gzip.compress(GOOD),
        b"<html>502 Bad Gateway</html>",
        b"\x00" * 100,
    )
)

GOOD_STATUS = (b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 200 Sehr gut \xfc")
BAD_STATUS = (
    *(b"HTTP/1.1 %d Status" % status for status in (0, 99, 101, 201, 204, 206, 304, 307, 404, 500, 503, 600, 999)),
    *(
        b"HTTP/2 200 OK",
        b"HTTP/1.1 2OO OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"ICY 200 OK",
        b"",
        b"\x16\x03\x01",
    ),
)
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\nx: y\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\ncontent-type: text/html\r\n\r\n",
)
GOOD_LINES = (
    *(b"x: y", b"x:", b"server: uvicorn", b"connection: keep-alive", b"content-encoding: identity"),
    *(b"Set-Cookie: a=b", b"Set-Cookie: c=d", b"x-usage: completion_tokens 4000", b"vary: \xff", b"upgrade: h2c"),
)
KINDS = st.sampled_from((b"content-type: text/event-stream", b"Content-Type:Text/Event-Stream; charset=utf-8"))
BAD_LINES = (
    *(
        b"content-encoding: gzip",
        b"Content-Encoding: br",
        b"content-type: application/json",
        b"content-type: text/html",
    ),
    *(b"content-length: 5\r\ncontent-length: 6", b"content-length: -1", b"content-length: x", b"\x00: y", b"no colon"),
    *(b"content-length: 99999999999999999999999999", b"transfer-encoding: chunked\r\ncontent-length: 7"),
)
TRAILING = (
    b"",
    b"\r\n",
    b"0\r\n\r\n",
    b"x",
    b"HTTP/1.1 200",
    b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    b"\x00" * 9,
)


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    pieces, start = list[bytes](), 0
    for size in cycle(sizes):
        if start >= len(data):
            return pieces
        pieces.append(data[start : start + size])
        start += size
    return pieces


def chunked(data: bytes, sizes: Sequence[int], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = (b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in cut(data, sizes))
    return b"".join(chunks) + b"0" + extension + b"\r\n" + trailer + b"\r\n"


SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=4)

#: What is wrong with an answer: mostly nothing, and never two things at once, of which one would hide the other.
WRONGS = ("nothing",) * 6 + ("status", "line", "body", "short", "long", "broken", "broken", "broken")


@st.composite
def ended_answers(draw: st.DrawFn) -> Answer:
    """Answers that end, in each of the ways of HTTP/1.1 or before that."""
    wrong, end, sizes = draw(st.sampled_from(WRONGS)), draw(st.sampled_from(End)), draw(SIZES)
    framing = "length" if wrong in ("short", "long") else draw(st.sampled_from(("chunked", "length", "close")))
    status = draw(st.sampled_from(BAD_STATUS if wrong == "status" else GOOD_STATUS))
    # Of two lines of one name the last counts.
    lines = [draw(KINDS), *draw(st.lists(st.sampled_from(GOOD_LINES), max_size=2))]
    lines += [draw(st.sampled_from(BAD_LINES))] if wrong == "line" else []
    said = draw(st.sampled_from(BAD_BODIES if wrong == "body" else GOOD_BODIES))
    length = len(said.data)  # of the body, as far as it will be read
    wire = said.data
    if framing == "chunked":
        lines.append(draw(st.sampled_from((b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked"))))
        extension, trailer = draw(st.sampled_from((b"", b";a=b"))), draw(st.sampled_from((b"", b"x-sum: 7\r\n")))
        wire = chunked(said.data, draw(SIZES), extension, trailer)
    elif framing == "length":
        length = max(0, length + {"short": -1, "long": 1}.get(wrong, 0) * draw(st.integers(1, 200)))
        lines.append(b"content-length: %d" % length)
    if end is not End.WAITS:  # a server that closes without a word meets the next request
        lines = [line for line in lines if not line.startswith(b"connection")] + [b"Connection: close"]
    head = b"".join(draw(st.lists(st.sampled_from(INTERIM), max_size=2)))
    head += b"".join(line + b"\r\n" for line in (status, *lines)) + b"\r\n"
    whole = head + wire
    ends = len(whole) - max(0, len(said.data) - length)  # where the answer has ended
    good = wrong in ("nothing", "short", "broken") and said.good(length)
    if wrong == "broken":
        ends = draw(st.integers(0, ends - 1))
        whole = whole[:ends]
        # Only a body that ends with the connection may end anywhere.
        good = framing == "close" and end is not End.RESETS and ends >= len(head) and said.good(ends - len(head))
    if end is End.WAITS and (framing == "close" or wrong in ("broken", "long", "status", "line")):
        end = End.CLOSES  # as it does not end otherwise
    # What stands behind an answer comes with its last bytes: later it would be the answer to the next request.
    behind = draw(st.sampled_from(TRAILING)) if wrong == "nothing" and framing != "close" else b""
    last = max(0, ends - 1)
    pieces = [*cut(whole[:last], sizes), whole[last:] + behind]
    if end is End.RESETS and good:  # a reset takes back what was not read yet
        return Answer(pieces=pieces, end=end, good=None if framing != "close" else False)
    return Answer(pieces=pieces, end=end, good=good)


CLOSING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + GOOD


def cut_off(coding: bytes, trailer: bytes = b"") -> list[Answer]:
    """All of a good body, in chunks, and not its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: " + coding + b"\r\n\r\n"
    return [Answer(pieces=[head + chunked(GOOD, [90], trailer=trailer)[:-2]], end=End.CLOSES)]


@given(st.lists(ended_answers(), min_size=1, max_size=3))
@example(cut_off(b"chunked"))
@example(cut_off(b"Chunked"))
@example(cut_off(b"chunked", b"transfer-encoding: identity\r\n"))
def test_an_answer_that_ends_is_good_if_it_is_and_no_other_is(server: Server, answers: list[Answer]) -> None:
    as_good_as_its_answers(one_round(server, answers), answers)


@settings(phases=(Phase.explicit, Phase.reuse, Phase.generate))  # what depends on the moment cannot be made smaller
@given(st.lists(ended_answers(), min_size=4, max_size=8), st.integers(2, 4))
@example([Answer(pieces=[CLOSING], end=End.CLOSES, good=True)] * 24, 4)
def test_of_several_at_once_no_more_are_good_than_were_good_answers(
    server: Server, answers: list[Answer], level: int
) -> None:
    measured = one_round(server, answers, level=level)
    good = [request for request in measured.requests if request.failure is None]
    assert len(good) <= sum(answer.good is not False for answer in answers)
    if all(answer.good for answer in answers):
        assert len(good) == len(answers)


# Answers of which nobody knows.


SCRAPS = st.one_of(
    st.sampled_from(
        (b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"5\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"data: ", b": ")
    ),
    st.sampled_from((*GOOD_STATUS, *BAD_STATUS, *INTERIM)).map(lambda line: line + b"\r\n"),
    st.sampled_from((*GOOD_LINES, *BAD_LINES, b"transfer-encoding: chunked")).map(lambda line: line + b"\r\n"),
    st.sampled_from((b"content-type: text/event-stream\r\n\r\n", delta(), usage(TOKENS), GOOD, GOOD[: len(SAID)])),
    st.binary(max_size=20),
)
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(GOOD, [90]),
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(GOOD) + GOOD,
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + GOOD,
)
DAMAGES = st.tuples(st.integers(0, 800), st.integers(0, 30), SCRAPS)


def damaged(whole: bytes, damages: Sequence[tuple[int, int, bytes]]) -> bytes:
    for start, length, scrap in damages:
        whole = whole[:start] + scrap + whole[start + length :]
    return whole


ANYTHING = st.one_of(
    st.lists(SCRAPS, max_size=10).map(b"".join),
    st.tuples(st.sampled_from(WHOLE), st.lists(DAMAGES, min_size=1, max_size=2)).map(lambda made: damaged(*made)),
)


def good_only_if_usage_says_so(measured: Round, wires: Sequence[bytes]) -> None:
    """However the bytes are damaged: without a count of tokens and a finish in them there is no good answer."""
    for request, wire in zip(measured.requests, wires, strict=False):
        if request.failure is None:
            assert all(needed in wire for needed in (b" 200", b"text/event-stream", b"completion_tokens", b"length"))


@given(ANYTHING, SIZES, st.sampled_from((End.CLOSES, End.RESETS)))
def test_any_bytes_on_the_wire_end_a_round_and_make_no_token(
    server: Server, wire: bytes, sizes: list[int], end: End
) -> None:
    answers = [Answer(pieces=cut(wire, sizes), end=end, good=None)]
    good_only_if_usage_says_so(one_round(server, answers), [wire])


@settings(max_examples=max(5, settings().max_examples // 20))
@given(ANYTHING, SIZES)
@example(b"", [1])
@example(WHOLE[0][:-5], [100])
@example(WHOLE[1][:-1], [100])
@example(WHOLE[2], [100])
@example(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + GOOD, [100])
@example(b"HTTP/1.1 100 Continue\r\n\r\n", [100])
def test_any_bytes_on_the_wire_with_silence_behind_them_end_a_round_at_the_limits(
    server: Server, wire: bytes, sizes: list[int]
) -> None:
    answers = [Answer(pieces=cut(wire, sizes), good=None)]
    good_only_if_usage_says_so(one_round(server, answers, SILENT), [wire])


# Answers without end.

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
FIRST = b"%x\r\n%b\r\n" % (len(delta()), delta())
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "a status line": (b"HTTP/1.1 200 ", b"O"),
    "a name of a header": (b"HTTP/1.1 200 OK\r\n", b"x"),
    "a value of a header": (HEAD + b"x: ", b"y"),
    "headers": (HEAD, b"x: y\r\n"),
    "headers of other names": (HEAD, b"".join(b"x-%d: y\r\n" % place for place in range(1000))),
    "blank lines": (b"", b"\r\n"),
    "interim answers": (b"", INTERIM[0]),
    "a size of a chunk": (HEAD + b"\r\n" + FIRST, b"0"),
    "an extension of a chunk": (HEAD + b"\r\n" + FIRST + b"5;", b"x"),
    "a trailer's name": (HEAD + b"\r\n" + FIRST + b"0\r\n", b"x"),
    "a trailer's value": (HEAD + b"\r\n" + FIRST + b"0\r\nx: ", b"y"),
    "trailers": (HEAD + b"\r\n" + FIRST + b"0\r\n", b"".join(b"x-%d: y\r\n" % place for place in range(1000))),
    "a line of a stream": (HEAD + b"\r\n" + FIRST, b"400\r\n" + b"x" * 1024 + b"\r\n"),
    "chunks of a byte": (HEAD + b"\r\n" + FIRST, b"1\r\n:\r\n"),
    "keep-alives": (HEAD + b"\r\n" + FIRST, b"3\r\n:\n\n\r\n"),
    "events without a token": (HEAD + b"\r\n" + FIRST, b"%x\r\n%b\r\n" % (len(delta("")), delta(""))),
    "a body without length": (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", b": \n"),
    "a body of great length": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999999999\r\n\r\n",
        b": \n",
    ),
    "a refusal": (b"HTTP/1.1 500 No\r\n\r\n", b"no "),
    "a refusal's trailers": (b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
}


def flood(beginning: bytes, again: bytes) -> Iterator[bytes]:
    yield beginning
    piece = again * (64 * 1024 // len(again))
    for _ in range(FLOOD_BYTES // len(piece)):
        yield piece


@pytest.mark.parametrize(("beginning", "again"), ENDLESS.values(), ids=ENDLESS.keys())
def test_an_answer_without_end_is_given_up_long_before_it_fills_the_memory(beginning: bytes, again: bytes) -> None:
    with serving() as server:
        measured = one_round(server, [Answer(pieces=flood(beginning, again))])
    (request,) = measured.requests
    assert request.failure is not None
    assert request.failure.label in ("malformed", "http_500")
    assert server.sent_bytes < FLOOD_BYTES / 2
