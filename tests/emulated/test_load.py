"""The load as servers see it, over real sockets: what is asked, how much at once, and what a failure is called."""

import asyncio
import gzip
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trustme

from perf import load
from perf.answers import NoAnswerError, ask
from perf.load import Client, Limits, Progress, Target
from perf.metrics import summarize
from perf.trace import Round
from perf.workload import Endpoint, Message, PlannedRequest, Prompt, RoundPlan

ROOT = Path(__file__).parents[2]

#: What takes milliseconds where nothing else runs; only a hang lasts so long.
PATIENCE_S = 30.0
POLL_S = 0.02

#: Limits that a test waits out. Far above what a stub needs to answer on a busy machine.
SHORT_S = 1.0

#: A flood is so many pieces of 64 KiB: 2 GiB, which take longer to send than a test may last.
FLOOD_PIECES = 32 * 1024

TURNS = (
    Message(role="system", content="You write Python."),
    Message(role="user", content='Sort "\u65e5\u672c"\n\tand <tags>.'),
    Message(role="assistant", content="Done."),
    Message(role="user", content="Now reverse it."),
)


# A server that answers as it is told, and remembers what it was asked.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as it came over the wire."""

    line: str
    head: str
    headers: dict[str, str]
    body: dict[str, object]


@dataclass(slots=True, kw_only=True)
class Stub:
    port: int = 0
    connections: int = 0
    asked: list[Asked] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)


Respond = Callable[[Stub, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def stub(respond: Respond, tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """A running stub; `respond` writes one answer, in the stub's own thread and loop."""
    server = Stub()
    started, stop = threading.Event(), threading.Event()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                server.asked.append(Asked(line=line, head=head, headers=headers, body=json.loads(body)))
                await respond(server, writer)
                await writer.drain()

    async def serve() -> None:
        # The end of asyncio.run cancels the connections that are still open.
        listener = await asyncio.start_server(connection, "127.0.0.1", 0, backlog=1024, ssl=tls)
        server.port = listener.sockets[0].getsockname()[1]
        started.set()
        await asyncio.to_thread(stop.wait)
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        yield server
    finally:
        stop.set()
        thread.join()


def head(kind: str = "text/event-stream", *more: str, status: str = "200 OK") -> bytes:
    lines = (f"HTTP/1.1 {status}", f"content-type: {kind}", "transfer-encoding: chunked", *more)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunked(b"")


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(content: str = "x", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 9}})


DONE = b"data: [DONE]\n\n"
TOKENS = 4
SOME = (delta(""), delta(), delta())
GOOD = (*SOME, delta("", "length"), usage(TOKENS), DONE)


def stream(*events: bytes) -> bytes:
    return head() + b"".join(map(chunked, events))


def answer(*pieces: bytes) -> Respond:
    """Answer with these bytes, each in a write of its own."""

    async def respond(_: Stub, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return respond


def then_silence(*pieces: bytes) -> Respond:
    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        await answer(*pieces)(server, writer)
        await asyncio.sleep(10 * PATIENCE_S)

    return respond


def then_close(*pieces: bytes) -> Respond:
    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        await answer(*pieces)(server, writer)
        writer.close()

    return respond


def then_reset(*pieces: bytes) -> Respond:
    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        await answer(*pieces)(server, writer)
        await asyncio.sleep(0.1)  # a reset takes back what the client has not read yet
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return respond


async def garble(_: Stub, writer: asyncio.StreamWriter) -> None:
    """A few tokens, and once they have been read bytes that are no chunk."""
    writer.write(stream(*SOME))
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.write(b"data: {}\n\n")


def flood(*pieces: bytes) -> Respond:
    """The given bytes, and behind them more than anybody should keep."""

    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        await answer(*pieces)(server, writer)
        with suppress(ConnectionError):
            for _ in range(FLOOD_PIECES):
                writer.write(chunked(b"x" * 64 * 1024))
                await writer.drain()

    return respond


async def drip(_: Stub, writer: asyncio.StreamWriter) -> None:
    """A token now and then, for ever."""
    writer.write(head())
    while not writer.is_closing():
        writer.write(chunked(delta()))
        await writer.drain()
        await asyncio.sleep(SHORT_S / 20)


def plan(level: int, requests: int, messages: tuple[Message, ...] = TURNS) -> RoundPlan:
    asked = tuple(PlannedRequest(index=n, prompt_id=f"task-{n}", messages=messages) for n in range(requests))
    return RoundPlan(level=level, index=0, warmup=asked[:2], measured=asked)


def client(
    port: int,
    *,
    endpoint: Endpoint = "chat",
    limits: Limits | None = None,
    authorization: str | None = None,
) -> Client:
    target = Target(
        base_url=f"http://127.0.0.1:{port}",
        model="tiny",
        authorization=authorization,
        endpoint=endpoint,
        temperature=0.5,
    )
    return Client(target, limits=limits)


def one_round(port: int, *, requests: int = 3, endpoint: Endpoint = "chat", limits: Limits | None = None) -> Round:
    with client(port, endpoint=endpoint, limits=limits) as asking:
        return asking.run_round(plan(1, requests), TOKENS)


def labels(measured: Round) -> list[str]:
    return [request.failure.label if request.failure else "good" for request in measured.requests]


# What is asked.

ASKED_OF_EVERY_SERVER: dict[str, object] = {
    "model": "tiny",
    "max_tokens": TOKENS,
    "temperature": 0.5,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "ignore_eos": True,
}


def test_a_chat_is_asked_with_its_turns_as_they_were_given_and_nothing_else() -> None:
    with stub(answer(stream(*GOOD) + END)) as server:
        measured = one_round(server.port, requests=1)
    (asked,) = server.asked
    assert labels(measured) == ["good"]
    assert asked.line == "POST /v1/chat/completions HTTP/1.1"
    turns = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    assert asked.body == {**ASKED_OF_EVERY_SERVER, "messages": turns}


def test_a_completion_is_asked_with_one_prompt_and_nothing_else() -> None:
    text = event({"choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": None})
    with stub(answer(stream(text, usage(TOKENS), DONE) + END)) as server:
        measured = one_round(server.port, requests=1, endpoint="completions")
    (asked,) = server.asked
    assert labels(measured) == ["good"]
    assert asked.line == "POST /v1/completions HTTP/1.1"
    assert asked.body == {**ASKED_OF_EVERY_SERVER, "prompt": "\n\n".join(turn.content for turn in TURNS)}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_what_a_server_says_is_asked_as_in_a_round_but_alone_at_temperature_0_and_without_a_stream(
    endpoint: Endpoint,
) -> None:
    with stub(answer(head(status="503 Busy") + END)) as server:
        one_round(server.port, requests=1, endpoint=endpoint)
        with client(server.port, endpoint=endpoint) as asking, pytest.raises(NoAnswerError, match="HTTP 503"):
            ask(asking.target, [Prompt(id="a", messages=TURNS)], TOKENS)
    measured, alone = server.asked
    streamed = measured.body.pop("stream_options")
    assert streamed
    assert (alone.line, alone.body) == (measured.line, measured.body | {"temperature": 0, "stream": False})


def test_nothing_of_the_developers_environment_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login secret-login password secret-password\n")
    netrc.chmod(0o600)
    secrets = {
        "OPENAI_API_KEY": "secret-key",
        "OPENAI_ADMIN_KEY": "secret-admin",
        "OPENAI_ORG_ID": "secret-organization",
        "OPENAI_PROJECT_ID": "secret-project",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/secret-base",
        "OPENAI_CUSTOM_HEADERS": "x-secret: secret-header",
        "NETRC": str(netrc),
    }
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        secrets[name] = "http://secret-proxy:1@127.0.0.1:9"
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with stub(answer(stream(*GOOD) + END)) as server:
        measured = one_round(server.port)
    assert labels(measured) == ["good"] * 3
    for asked in server.asked:
        assert "secret" not in asked.head
        assert asked.headers["authorization"] == "Bearer none"
    assert {name: os.environ.get(name) for name in secrets} == secrets


def test_the_servers_own_key_is_sent_to_it() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port, authorization="Bearer s3cret") as asking:
        asking.run_round(plan(1, 1), TOKENS)
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer s3cret"]


def test_no_compression_is_asked_for() -> None:
    with stub(answer(stream(*GOOD) + END)) as server:
        one_round(server.port, requests=1)
    assert server.asked[0].headers["accept-encoding"] == "identity"


# How much at once.


@pytest.mark.parametrize(("level", "requests"), [(1, 3), (4, 13), (150, 160)])
def test_exactly_the_level_is_in_flight_until_the_last_request_is_sent(level: int, requests: int) -> None:
    """No answer ends before the level is full, or nothing is left to be sent: fewer in flight would wait for ever.

    150 is more than the 100 connections that HTTP clients hold by default.
    """
    in_flight, most = 0, 0
    changed = asyncio.Condition()

    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        nonlocal in_flight, most
        async with changed:
            in_flight += 1
            most = max(most, in_flight)
            changed.notify_all()
            await changed.wait_for(lambda: in_flight == level or len(server.asked) == requests)
            in_flight -= 1
        writer.write(stream(*GOOD) + END)

    with stub(respond) as server, client(server.port, limits=Limits(first_token_s=PATIENCE_S)) as asking:
        measured = asking.run_round(plan(level, requests), TOKENS)
    assert labels(measured) == ["good"] * requests
    assert most == level
    assert server.connections == level
    assert [request.index for request in measured.requests] == list(range(requests))


def test_a_level_above_the_number_of_requests_sends_each_once() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port) as asking:
        measured = asking.run_round(plan(8, 3), TOKENS)
    assert labels(measured) == ["good"] * 3
    assert len(server.asked) == 3


def test_the_first_request_is_sent_at_zero_and_times_only_grow() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port) as asking:
        measured = asking.run_round(plan(2, 6), TOKENS)
    assert min(request.sent_s for request in measured.requests) == 0
    for request in measured.requests:
        assert request.sent_s < request.chunk_times_s[0] <= request.chunk_times_s[-1] <= request.ended_s


def test_a_warm_up_asks_its_own_requests_and_keeps_the_connections() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port) as asking:
        warm = asking.warm_up(plan(1, 6), TOKENS)
        measured = asking.run_round(plan(1, 6), TOKENS)
    assert (len(warm.requests), len(measured.requests)) == (2, 6)
    assert server.connections == 1


def test_a_connection_that_the_server_closed_between_rounds_is_no_failure() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port) as asking:
        asking.run_round(plan(2, 4), TOKENS)
        for writer in server.writers:
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        measured = asking.run_round(plan(2, 4), TOKENS)
    assert labels(measured) == ["good"] * 4


# Failures, by name, as they come over the wire.

WIRE_FAILURES: dict[str, tuple[Respond, str, str]] = {
    "500": (
        answer(
            head("application/json", status="500 Internal Server Error")
            + chunked(b'{"object":"error","message":"KV cache pool is full"}')
            + END
        ),
        "http_500",
        "KV cache pool is full",
    ),
    "503, try again": (
        answer(
            head("text/plain", "retry-after: 0", "x-should-retry: true", status="503 Service Unavailable")
            + chunked(b"busy")
            + END
        ),
        "http_503",
        "",
    ),
    "429, try again": (
        answer(
            head("application/json", "retry-after-ms: 1", "x-should-retry: true", status="429 Too Many Requests")
            + chunked(b'{"error":{"message":"slow down"}}')
            + END
        ),
        "http_429",
        "slow down",
    ),
    "401": (answer(head("text/plain", status="401 Unauthorized") + END), "http_401", ""),
    "404": (answer(head("text/html", status="404 Not Found") + chunked(b"<html>") + END), "http_404", ""),
    "a redirect": (
        answer(head("text/plain", "location: /v1/elsewhere", status="307 Temporary Redirect") + END),
        "http_307",
        "",
    ),
    "an error body without end": (
        then_silence(head("text/plain", status="500 Internal Server Error") + chunked(b"x" * 1000)),
        "http_500",
        "x" * 1000,
    ),
    "an endless error body": (flood(head("text/plain", status="500 Internal Server Error")), "http_500", "x" * 1000),
    "an endless stream": (flood(head(), *map(chunked, SOME)), "malformed", "more than 81,920 bytes for 4 tokens"),
    "an endless comment": (flood(head(), chunked(b":")), "malformed", "more than 81,920 bytes for 4 tokens"),
    "201": (answer(head(status="201 Created") + b"".join(map(chunked, GOOD)) + END), "http_201", ""),
    "206": (answer(head(status="206 Partial Content") + b"".join(map(chunked, GOOD)) + END), "http_206", ""),
    "reset before an answer": (then_reset(), "connection", ""),
    "closed before an answer": (then_close(), "connection", ""),
    "reset within the head": (then_reset(b"HTTP/1.1 200 OK\r\n"), "connection", ""),
    "no HTTP": (then_close(b"SSH-2.0-OpenSSH_9.6\r\n"), "malformed", "no HTTP answer"),
    "a head without end": (then_close(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000), "malformed", "no HTTP answer"),
    "reset after the head": (then_reset(head()), "truncated", ""),
    "reset within the stream": (then_reset(stream(*SOME)), "truncated", ""),
    "closed within the stream": (then_close(stream(*SOME)), "truncated", ""),
    "closed within an event": (then_close(stream(*SOME, delta()[:20])), "truncated", ""),
    "closed before the end of the body": (then_close(stream(*GOOD)), "truncated", ""),
    "closed before the length that was promised": (
        then_close(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n" + b"".join(SOME)
        ),
        "truncated",
        "",
    ),
    "an error before the reset": (
        then_reset(stream(*SOME, event({"error": {"message": "CUDA error"}}))),
        "error_in_stream",
        "CUDA error",
    ),
    "no chunks": (then_close(head() + b"data: {}\n\n"), "malformed", "no HTTP answer"),
    "no chunk any more": (then_close(stream(*SOME) + b"data: {}\n\n"), "malformed", "no HTTP answer"),
    "no chunk any more, later": (garble, "malformed", "no HTTP answer"),
    "JSON instead of a stream": (
        answer(head("application/json") + chunked(b'{"choices":[]}') + END),
        "malformed",
        'content-type "application/json"',
    ),
    "a page instead of a stream": (answer(head("text/html") + chunked(b"<html>") + END), "malformed", "text/html"),
    "a body in another coding": (
        answer(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: gzip, chunked\r\n\r\n" + END),
        "malformed",
        'transfer-encoding "gzip, chunked"',
    ),
    "a compressed stream": (
        answer(head("text/event-stream", "content-encoding: gzip") + chunked(gzip.compress(b"".join(GOOD))) + END),
        "malformed",
        "compressed",
    ),
    "no answer": (then_silence(), "timeout", "no answer within"),
    "a head and nothing more": (then_silence(head()), "timeout", "no answer within"),
    "a role and nothing more": (then_silence(stream(delta(""))), "timeout", "no answer within"),
    "a few tokens, then silence": (then_silence(stream(*SOME)), "stalled", "after 3 events"),  # sglang#22779
    "a few tokens, then keep-alives": (drip, "timeout", ""),
}


@pytest.mark.parametrize(("respond", "label", "detail"), WIRE_FAILURES.values(), ids=WIRE_FAILURES.keys())
def test_a_failure_on_the_wire_is_named_is_never_tried_again_and_ends_the_round(
    respond: Respond, label: str, detail: str
) -> None:
    waited_out = Limits(first_token_s=SHORT_S, between_tokens_s=SHORT_S, request_s=2 * SHORT_S)
    with stub(respond) as server:
        measured = one_round(
            server.port, requests=3, limits=waited_out if label in ("timeout", "stalled") else Limits()
        )
    assert labels(measured) == [label]
    assert measured.planned_requests == 3
    assert len(server.asked) == 1
    (request,) = measured.requests
    assert request.failure is not None
    assert detail in request.failure.detail
    assert summarize(measured) is None


STREAM_FAILURES: dict[str, tuple[Respond, str]] = {
    "an error object": (
        answer(stream(*SOME, event({"error": {"message": "out of memory"}}), DONE) + END),
        "error_in_stream",
    ),
    "aborted": (answer(stream(*SOME, delta("", "abort"), usage(2), DONE) + END), "aborted"),
    "a clean end, too soon": (answer(stream(*SOME) + END), "truncated"),
    "an empty body": (answer(head() + END), "truncated"),
    "no usage": (answer(stream(*SOME, delta("", "length"), DONE) + END), "no_usage"),
    "too short": (answer(stream(*SOME, delta("", "stop"), usage(2), DONE) + END), "wrong_length"),
    "one token too many": (answer(stream(*SOME, delta("", "length"), usage(TOKENS + 1), DONE) + END), "wrong_length"),
    "half a JSON": (answer(stream(*SOME, b'data: {"choices": [{"ind\n\n', DONE) + END), "malformed"),
    "bytes that are no text": (answer(stream(*SOME, b"data: \xff\xfe\x00\n\n", DONE) + END), "malformed"),
    "usage without text": (answer(stream(delta(""), delta("", "length"), usage(TOKENS), DONE) + END), "malformed"),
}


@pytest.mark.parametrize(("respond", "label"), STREAM_FAILURES.values(), ids=STREAM_FAILURES.keys())
def test_a_failure_within_an_answer_is_named_though_the_status_was_200(respond: Respond, label: str) -> None:
    with stub(respond) as server:
        measured = one_round(server.port)
    assert labels(measured) == [label]
    assert len(server.asked) == 1
    assert summarize(measured) is None


def test_a_refused_connection_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        measured = one_round(unused.getsockname()[1])
    assert labels(measured) == ["connection"]
    assert measured.requests[0].output_tokens is None


def test_a_redirect_is_not_followed() -> None:
    with stub(answer(stream(*GOOD) + END)) as other:
        location = f"location: http://127.0.0.1:{other.port}/v1/chat/completions"
        with stub(answer(head("text/plain", location, status="308 Permanent Redirect") + END)) as server:
            measured = one_round(server.port)
    assert labels(measured) == ["http_308"]
    assert other.connections == 0


def test_after_a_failure_what_is_in_flight_is_ended_and_nothing_more_is_sent() -> None:
    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        if len(server.asked) == 4:
            await answer(head("text/plain", status="500 Internal Server Error") + END)(server, writer)
        else:
            await asyncio.sleep(0.3)  # in flight while the fourth fails
            await answer(stream(*GOOD) + END)(server, writer)

    with stub(respond) as server, client(server.port) as asking:
        measured = asking.run_round(plan(4, 40), TOKENS)
    assert sorted(labels(measured)) == ["good", "good", "good", "http_500"]
    assert len(server.asked) == 4


def test_a_stream_that_any_reader_could_cut_otherwise_is_good() -> None:
    body = b": hi\r\n\r\n" + b"".join(GOOD).replace(b"\n", b"\r\n")
    pieces = [chunked(body[place : place + 7]) for place in range(0, len(body), 7)]
    with stub(answer(head("Text/Event-Stream; charset=utf-8"), *pieces, END)) as server:
        measured = one_round(server.port)
    assert labels(measured) == ["good"] * 3
    assert [request.output_tokens for request in measured.requests] == [TOKENS] * 3


def test_a_slow_stream_is_no_stalled_stream() -> None:
    """Silences add up to more than the limit between tokens; none of them is so long."""

    async def respond(_: Stub, writer: asyncio.StreamWriter) -> None:
        writer.write(head())
        for piece in GOOD:
            writer.write(chunked(piece))
            await writer.drain()
            await asyncio.sleep(SHORT_S / 4)
        writer.write(END)

    with stub(respond) as server:
        measured = one_round(server.port, requests=1, limits=Limits(first_token_s=SHORT_S, between_tokens_s=SHORT_S))
    assert labels(measured) == ["good"]


def test_a_server_that_died_ends_the_round_at_once() -> None:
    with stub(then_silence(stream(*SOME))) as server, client(server.port) as asking:
        began = time.monotonic()
        measured = asking.run_round(plan(4, 40), TOKENS, died=lambda: len(server.asked) >= 4)
        took_s = time.monotonic() - began
    assert labels(measured) == ["connection"] * 4
    assert "the server exited" in (measured.requests[0].failure or pytest.fail("no failure")).detail
    assert took_s < Limits().between_tokens_s
    assert len(server.asked) == 4


def test_a_round_of_more_requests_than_are_built_ahead_is_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BUILT_AHEAD", 6)
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port) as asking:
        measured = asking.run_round(plan(4, 40), TOKENS)
    assert labels(measured) == ["good"] * 40
    assert [request.index for request in measured.requests] == list(range(40))
    assert server.connections == 4


def test_an_interrupt_is_raised_once_when_the_event_loop_has_ended_where_none_of_its_callbacks_gets_lost() -> None:
    where: list[bool] = []

    def interrupt(_number: int, _frame: object) -> None:
        with suppress(RuntimeError):
            where.append(asyncio.get_running_loop().is_running())
            return
        where.append(False)
        raise KeyboardInterrupt

    held = signal.signal(signal.SIGINT, interrupt)
    try:
        with stub(then_silence(stream(*SOME))) as server, client(server.port) as asking:
            with pytest.raises(KeyboardInterrupt):
                asking.run_round(plan(4, 40), TOKENS, show=lambda _: signal.raise_signal(signal.SIGINT))
            assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGINT, held)
    assert where == [False]


def test_a_level_of_more_streams_than_requests_are_built_ahead_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BUILT_AHEAD", 2)
    with stub(then_silence(stream(*SOME))) as server, client(server.port) as asking:
        measured = asking.run_round(plan(6, 18), TOKENS, died=lambda: len(server.asked) >= 6)
        assert len(measured.requests) == len(server.asked) == 6


def test_a_server_that_closes_every_connection_is_asked_over_new_ones() -> None:
    with (
        stub(
            then_close(head("text/event-stream", "connection: close") + stream(*GOOD).removeprefix(head()) + END)
        ) as server,
        client(server.port) as asking,
    ):
        measured = asking.run_round(plan(3, 9), TOKENS)
    assert labels(measured) == ["good"] * 9
    assert server.connections == 9


def test_a_server_that_closes_behind_an_answer_without_a_word_is_asked_over_a_new_connection() -> None:
    """Its end is seen where it came before the next request is sent."""

    async def respond(_: Stub, writer: asyncio.StreamWriter) -> None:
        writer.write(stream(*GOOD) + END)
        writer.write_eof()

    with stub(respond) as server, client(server.port) as asking:
        measured = asking.run_round(plan(1, 1), TOKENS)
        time.sleep(0.1)
        again = asking.run_round(plan(1, 1), TOKENS)
    assert labels(measured) + labels(again) == ["good"] * 2
    assert server.connections == 2


def test_the_time_of_a_new_connection_is_not_the_clients() -> None:
    closing = head("text/event-stream", "connection: close") + stream(*GOOD).removeprefix(head()) + END
    with stub(then_close(closing)) as server, client(server.port) as asking:
        measured = asking.run_round(plan(2, 8), TOKENS)
    assert measured.client is not None
    assert measured.client.turnaround_share == 0


def test_a_request_larger_than_a_sockets_buffer_is_sent_whole() -> None:
    large = (Message(role="user", content="x" * 8_000_000),)
    with stub(answer(stream(*GOOD) + END)) as server, client(server.port) as asking:
        measured = asking.run_round(plan(2, 2, large), TOKENS)
    assert labels(measured) == ["good"] * 2
    assert all(asked.body["messages"] == [{"role": "user", "content": "x" * 8_000_000}] for asked in server.asked)


def test_an_encrypted_server_is_read_as_any_other_but_for_the_kernels_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    target = Target(base_url="", model="tiny", authorization=None, endpoint="chat", temperature=0.5)
    long = b"".join(map(chunked, (*SOME, *(delta("x" * 900) for _ in range(80)), *GOOD[3:])))
    with stub(answer(head() + long + END), tls=context) as server:
        with Client(replace(target, base_url=f"https://localhost:{server.port}")) as asking:
            measured = asking.run_round(plan(3, 9), TOKENS)
        monkeypatch.delenv("SSL_CERT_FILE")
        with Client(replace(target, base_url=f"https://localhost:{server.port}")) as distrusting:
            refused = distrusting.run_round(plan(3, 9), TOKENS)
    assert labels(measured) == ["good"] * 9
    assert server.connections >= 3
    assert measured.client is not None
    assert measured.client.lag_p99_s is None
    assert labels(refused) == ["connection"]
    assert "certificate" in (refused.requests[0].failure or pytest.fail("no failure")).detail


def test_the_time_of_a_token_is_when_it_came_not_when_it_was_read() -> None:
    """The client is kept from reading for half a second, in which the answer comes."""

    async def respond(_: Stub, writer: asyncio.StreamWriter) -> None:
        writer.write(stream(*SOME))
        await asyncio.sleep(SHORT_S / 2)  # the client looks up after a quarter of a second
        writer.write(b"".join(map(chunked, GOOD[3:])) + END)

    with stub(respond) as server, client(server.port) as asking:
        measured = asking.run_round(plan(1, 1), TOKENS, show=lambda _: time.sleep(SHORT_S))
    (request,) = measured.requests
    assert request.failure is None
    assert request.ended_s < SHORT_S
    assert measured.client is not None
    assert measured.client.lag_max_s is not None
    assert measured.client.lag_max_s > SHORT_S / 4


def test_a_long_round_is_not_written_out_by_whoever_shows_it() -> None:
    with stub(answer(stream(*GOOD) + END)) as server:
        measured = one_round(server.port)
    assert "chunk_times_s" not in repr(measured)


# The emulator, whose truth is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    port: int
    process: subprocess.Popen[bytes]
    truth_file: Path

    def truth(self) -> tuple[float, int, int]:
        """Output tokens per second, tokens and verify steps of all its requests, as docs/emulator.md defines them."""
        lines = [json.loads(line) for line in self.truth_file.read_text().splitlines()]
        requests = [line for line in lines if line["event"] == "request"]
        tokens = sum(request["tokens"] for request in requests)
        window_s = max(r["last_token_s"] for r in requests) - min(r["arrival_s"] for r in requests)
        return tokens / window_s, tokens, sum(request["verify_steps"] for request in requests)


@contextmanager
def emulator(folder: Path, *flags: str) -> Iterator[Emulator]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    truth, log = folder / "truth.jsonl", folder / "server.log"
    command = [sys.executable, "-m", "perf.emulator", "--port", str(port), "--truth", str(truth), *flags]
    with log.open("wb") as stderr, subprocess.Popen(command, cwd=ROOT, stderr=stderr) as process:
        try:
            end_s = time.monotonic() + PATIENCE_S
            while "Uvicorn running" not in log.read_text():
                assert process.poll() is None
                assert time.monotonic() < end_s
                time.sleep(POLL_S)
            yield Emulator(port=port, process=process, truth_file=truth)
        finally:
            process.kill()


#: 20 ms a step: milliseconds of a busy machine are few among them.
PACED = ("--step-ms", "1:20", "--prefill-ms", "20", "--prefill-token-ms", "0")
DRAFT = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--acceptance", "2.5")


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("flags", [PACED, (*PACED, *DRAFT)], ids=["plain", "speculative"])
def test_what_is_measured_is_what_the_server_did(flags: tuple[str, ...], endpoint: Endpoint, tmp_path: Path) -> None:
    shown: list[Progress] = []
    with emulator(tmp_path, *flags) as server, client(server.port, endpoint=endpoint) as asking:
        measured = asking.run_round(plan(4, 12), 48, show=shown.append)
        throughput, tokens, steps = server.truth()
    assert labels(measured) == ["good"] * 12
    summary = summarize(measured)
    assert summary is not None
    assert summary.output_tokens == tokens == 12 * 48
    assert summary.output_throughput == pytest.approx(throughput, rel=0.05)
    assert summary.peak_concurrency == 4
    for request in measured.requests:
        assert request.prompt_tokens is not None
        assert request.chunk_tokens is not None
        assert sum(request.chunk_tokens) == request.output_tokens == 48
        assert len(request.chunk_tokens) == len(request.chunk_times_s)
        packed = max(request.chunk_tokens) > 1
        assert packed is (steps > 0)
    assert shown[-1].finished == shown[-1].planned == 12
    assert shown[-1].chunks >= sum(len(request.chunk_times_s) for request in measured.requests)


def test_where_the_connections_of_a_level_use_up_all_files_some_are_left_for_others(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with emulator(tmp_path, "--step-ms", "1:2", "--prefill-ms", "2") as server, client(server.port) as asking:
        asking.run_round(plan(1, 1), TOKENS)  # whatever is opened once is open
        with Path(os.devnull).open() as next_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_free.fileno() + 40, hard))
        try:
            measured = asking.run_round(plan(200, 200), TOKENS)
            with Path(os.devnull).open():
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert labels(measured) == ["connection"]
    assert "Too many open files" in (measured.requests[0].failure or pytest.fail("no failure")).detail


@pytest.mark.parametrize(
    ("fault", "label"),
    [
        ("http-500", "http_500"),
        ("error-in-stream", "error_in_stream"),
        ("abort", "aborted"),
        ("truncated", "truncated"),
        ("silent-end", "truncated"),
        ("stalled", "stalled"),
        ("no-usage", "no_usage"),
        ("wrong-length", "wrong_length"),
        ("usage-off-by-one", "wrong_length"),
        ("ignore-eos-ignored", "wrong_length"),
    ],
)
def test_every_planted_fault_is_seen_behind_good_requests(fault: str, label: str, tmp_path: Path) -> None:
    limits = Limits(between_tokens_s=SHORT_S)
    fast = ("--step-ms", "1:2", "--prefill-ms", "2", "--fault", fault, "--fault-after", "2")
    with emulator(tmp_path, *fast) as server, client(server.port, limits=limits) as asking:
        measured = asking.run_round(plan(1, 3), 64)
    assert labels(measured) == ["good", "good", label]
    assert summarize(measured) is None


def test_a_server_killed_within_a_round_ends_it_with_its_requests_truncated(tmp_path: Path) -> None:
    flags = (*PACED, "--fault", "die-mid-round", "--fault-after", "3")
    with emulator(tmp_path, *flags) as server, client(server.port) as asking:
        measured = asking.run_round(plan(4, 40), 48, died=lambda: server.process.poll() is not None)
        assert server.process.wait(PATIENCE_S) == -9
    assert len(measured.requests) < 40
    assert labels(measured).count("truncated") >= 1
    assert {*labels(measured)} <= {"truncated", "connection"}
