"""A server that does nothing but send, and logs every send: `python -m perf.null_server --port P`.

A client is believed at a level only after it kept up with this one at the same chunk rate on the same machine. To be
far cheaper than any client it renders each answer once and then sends prepared bytes over raw sockets from one thread
and one epoll. It is no engine: nothing is batched, queued or computed, and the text is always the same word.
"""

import argparse
import functools
import gc
import io
import itertools
import json
import math
import re
import resource
import select
import signal
import socket
import struct
import sys
import time
from array import array
from bisect import insort
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perf.files import FileError, write_bytes

HOST = "127.0.0.1"
MODEL = "null"
#: Above the largest level anybody measures, so that no connection of a burst is refused.
BACKLOG = 4096
#: As many characters of a prompt name a request in the truth: the prefix that makes every planned prompt differ.
ID_CHARACTERS = 16
#: Nobody counted it, but every answer has to say one.
PROMPT_TOKENS = 1

#: A request beyond these is not one of a measurement; an answer of so many tokens takes 26 MB once rendered.
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_TOKENS = 65_536
#: Rendered answers that are kept: one for every length a measurement asks for.
KEPT_ANSWERS = 16
READ_BYTES = 256 * 1024

#: Linux tells with this option when the bytes of a read arrived, as a `struct timespec` of the wall clock.
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("ll")
CONTROL_BYTES = 64

#: Multiples of it, modulo 1, spread any number of streams nearly evenly over the step (Weyl's sequence).
GOLDEN = (math.sqrt(5) - 1) / 2

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*(?=\r\n)", re.IGNORECASE)

clock = time.perf_counter


# The truth, as it is read again.


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """One answered request. Times are of CLOCK_MONOTONIC in seconds: `time.perf_counter` of every process of the host.

    `arrival_s` is when its last byte arrived at the host (was read, where the kernel does not tell), `due_s` when its
    first chunk was to be sent; `sent_s` is the clock just before each content chunk was given to the kernel, `tokens`
    what each of them packs. Behind `blocked` waits for the client (its socket was full) the schedule is the client's
    doing. Of an answer that was cut off, what was sent.
    """

    id: str
    connection: int
    arrival_s: float
    due_s: float
    sent_s: NDArray[np.float64]
    tokens: NDArray[np.int64]
    blocked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """All that one server sent, requests in the order of their arrival.

    `accepted_s` is when each connection was accepted. Of the `busy_s` seconds in which a request was in flight the
    process was `on_cpu_s` on a core and `run_queue_s` waiting for one; None where the host does not tell.
    """

    step_s: float
    requests: tuple[SentRequest, ...]
    accepted_s: NDArray[np.float64]
    busy_s: float
    on_cpu_s: float | None
    run_queue_s: float | None

    def lateness_s(self) -> NDArray[np.float64]:
        """How late every chunk was sent that no client held up: the server's own doing. Empty without a step."""
        if not self.step_s:
            return np.empty(0)
        late = [
            request.sent_s - (request.due_s + self.step_s * np.arange(len(request.sent_s)))
            for request in self.requests
            if not request.blocked
        ]
        return np.concatenate(late) if late else np.empty(0)


def read_truth(path: Path) -> Truth:
    """Read what `--truth` wrote. Raises FileError."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            sent = np.split(stored["sent_s"], np.cumsum(stored["chunks"])[:-1])
            tokens = np.split(stored["tokens"], np.cumsum(stored["chunks"])[:-1])
            columns = (stored[name].tolist() for name in ("id", "connection", "arrival_s", "due_s", "blocked"))
            requests = tuple(
                SentRequest(
                    id=id_, connection=connection, arrival_s=arrival_s, due_s=due_s, sent_s=s, tokens=t, blocked=blocked
                )
                for (id_, connection, arrival_s, due_s, blocked), s, t in zip(
                    zip(*columns, strict=True), sent, tokens, strict=False
                )
            )
            on_cpu_s, run_queue_s = (float(stored[name]) for name in ("on_cpu_s", "run_queue_s"))
            return Truth(
                step_s=float(stored["step_s"]),
                requests=requests,
                accepted_s=stored["accepted_s"],
                busy_s=float(stored["busy_s"]),
                on_cpu_s=None if math.isnan(on_cpu_s) else on_cpu_s,
                run_queue_s=None if math.isnan(run_queue_s) else run_queue_s,
            )
    except (OSError, ValueError, KeyError) as error:
        raise FileError(f"{path}: cannot be read as the truth of a null server: {error}") from error


# What is sent.


def chunk_tokens(tokens: int, per_chunk: int) -> tuple[int, ...]:
    """The tokens of each chunk; the last one takes the rest."""
    return tuple(min(per_chunk, tokens - before) for before in range(0, tokens, per_chunk))


@functools.lru_cache(maxsize=KEPT_ANSWERS)
def render(chat: bool, tokens: int, per_chunk: int) -> tuple[bytes, ...]:
    """What is sent at each step, in SGLang's shape with `continuous_usage_stats`: one event a piece of HTTP's chunking.

    Head and role chunk go with the first content, what follows the last content goes with it, as from one step of an
    engine.
    """
    kind = "chat.completion.chunk" if chat else "text_completion"
    before = f'data: {{"id":"{0:032x}","object":"{kind}","created":0,"model":"{MODEL}","choices":['

    def usage(done: int) -> str:
        return (
            f'{{"prompt_tokens":{PROMPT_TOKENS},"total_tokens":{PROMPT_TOKENS + done},"completion_tokens":{done},'
            '"prompt_tokens_details":null,"reasoning_tokens":0,"completion_tokens_details":null}'
        )

    def choice(content: str, finish: str = "null", end: str = "") -> bytes:
        text = f'{before}{{"index":0,{content},"logprobs":null,"finish_reason":{finish},"matched_stop":null}}]{end}}}'
        return piece(text)

    def delta(content: str, finish: str = "null", end: str = "") -> bytes:
        return choice(f'"delta":{{"reasoning_content":null{content}}}', finish, end)

    def piece(event: str) -> bytes:
        data = event.encode() + b"\n\n"
        return b"%x\r\n%b\r\n" % (len(data), data)

    counts = chunk_tokens(tokens, per_chunk)
    sends: list[bytes] = []
    for place, (count, done) in enumerate(zip(counts, itertools.accumulate(counts), strict=True), start=1):
        words, end = " null" * count, f',"usage":{usage(done)}'
        if chat:
            sends.append(delta(f',"content":"{words}"', end=end))
        else:
            sends.append(choice(f'"text":"{words}"', '"length"' if place == len(counts) else "null", end))
    opening = delta(',"role":"assistant","content":""') if chat else b""
    closing = delta("", '"length"') if chat else b""
    closing += piece(f'{before}],"usage":{usage(tokens)}}}') + piece("data: [DONE]") + b"0\r\n\r\n"
    sends[0] = HEAD + opening + sends[0]
    sends[-1] += closing
    return tuple(sends)


def whole(value: object, status: str = "200 OK") -> bytes:
    """An answer that is not a stream."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status.encode(),
        len(body),
        body,
    )


def refusal(message: str, status: str = "400 Bad Request") -> bytes:
    """An error as SGLang words it."""
    return whole({"object": "error", "message": message, "type": "BadRequestError", "code": int(status[:3])}, status)


# What is asked.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A generation request: the text that names it, and how many tokens it wants."""

    id: str
    chat: bool
    tokens: int


def read_ask(body: bytes, *, chat: bool) -> Ask:
    """What a body asks for. Raises ValueError with a sentence for the client."""
    sent: object = json.loads(body)
    if not isinstance(sent, dict) or sent.get("stream") is not True:
        raise ValueError("a JSON object with 'stream': true is answered, nothing else")
    tokens = sent.get("max_completion_tokens") or sent.get("max_tokens")
    if not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
        raise ValueError(f"max_tokens must be an integer from 1 to {MAX_TOKENS}, seen {tokens!r}")
    text: object = sent.get("prompt")
    if chat:
        match sent.get("messages"):
            case [{"content": [{"text": text}, *_]}, *_] | [{"content": text}, *_]:
                pass
    return Ask(id=text[:ID_CHARACTERS] if isinstance(text, str) else "", chat=chat, tokens=tokens)


# Connections and streams.


@dataclass(slots=True, eq=False)
class Connection:
    """One client's socket: what was read and not yet asked, what was sent and not yet taken."""

    socket: socket.socket
    number: int
    phase: float
    inbound: bytearray = field(default_factory=bytearray)
    rest: bytes = b""
    stream: "Stream | None" = None


@dataclass(slots=True, eq=False)
class Stream:
    """One answer on its way; afterwards its record."""

    connection: Connection
    ask: Ask
    sends: tuple[bytes, ...]
    arrival_s: float
    due_s: float
    next_s: float
    sent_s: "array[float]" = field(default_factory=lambda: array("d"))
    blocked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, checked."""

    port: int
    tokens_per_chunk: int
    step_s: float
    burst: bool
    first_s: float
    truth: Path | None


class CoreTime:
    """How long this process had a core, and how long it waited for one, while a request was in flight."""

    def __init__(self) -> None:
        self._file = None
        with suppress(FileNotFoundError):
            self._file = open("/proc/self/schedstat", "rb", buffering=0)  # noqa: SIM115  as long as the process
        self._began = (0.0, 0, 0)
        self.total = (0.0, 0, 0)

    def _read(self) -> tuple[float, int, int]:
        if self._file is None:
            return clock(), 0, 0
        self._file.seek(0)
        on_cpu_ns, run_queue_ns, _ = map(int, self._file.read().split())
        return clock(), on_cpu_ns, run_queue_ns

    def start(self) -> None:
        self._began = self._read()

    def stop(self) -> None:
        busy_s, on_cpu_ns, run_queue_ns = self.total
        now, then = self._read(), self._began
        self.total = (busy_s + now[0] - then[0], on_cpu_ns + now[1] - then[1], run_queue_ns + now[2] - then[2])

    def facts(self) -> dict[str, float]:
        busy_s, on_cpu_ns, run_queue_ns = self.total
        known = 1.0 if self._file is not None else math.nan
        return {"busy_s": busy_s, "on_cpu_s": known * on_cpu_ns / 1e9, "run_queue_s": known * run_queue_ns / 1e9}


class NullServer:
    """Every stream in flight is due one chunk a step, on an absolute schedule: what is late is caught up."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # First, so that its number is below the 1024 that `select` can wait for.
        self._epoll = select.epoll()
        self._listener = socket.create_server((HOST, options.port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # what it accepts inherits it
        self._epoll.register(self._listener, select.EPOLLIN)
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._queue: deque[Stream] = deque()  # by the time at which the next chunk is due
        self._in_flight = 0
        self._zero_s = 0.0
        self._stopped = False
        self._accepted_s = array("d")
        self._streams: list[Stream] = []
        self._core_time = CoreTime()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def end_at(self, *signals: signal.Signals) -> None:
        """Let any of these end `run`, at once also where nothing is due."""
        signal.set_wakeup_fd(self._waker.fileno())
        for number in signals:
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def run(self) -> None:
        """Serve until ended. Nothing here makes garbage in cycles, and a collection would stop every stream."""
        gc.disable()
        while not self._stopped:
            # epoll waits whole milliseconds, which is longer than a step of many streams; select waits microseconds.
            if not self._queue:
                select.select([self._epoll], [], [])
            elif (wait_s := self._queue[0].next_s - clock()) > 0:
                select.select([self._epoll], [], [], wait_s)
            self._serve(self._epoll.poll(0))
            self._send_due(clock())
        if self._in_flight:
            self._core_time.stop()

    # Reading

    def _serve(self, events: Sequence[tuple[int, int]]) -> None:
        asked: list[tuple[Connection, float]] = []
        for number, what in events:
            if number == self._listener.fileno():
                self._accept()
            elif connection := self._connections.get(number):
                if what & ~select.EPOLLOUT and (arrival_s := self._receive(connection)) is not None:
                    asked.append((connection, arrival_s))
                if what & select.EPOLLOUT and connection.rest:
                    self._writable(connection)
        # All are read before the first is answered, so that none is late by the others' answers.
        for connection, arrival_s in asked:
            self._answer(connection, arrival_s)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                number = len(self._accepted_s)
                self._accepted_s.append(clock())
                phase = 0.0 if self._options.burst else number * GOLDEN % 1.0
                self._connections[accepted.fileno()] = Connection(accepted, number, phase)
                self._epoll.register(accepted, select.EPOLLIN)

    def _receive(self, connection: Connection) -> float | None:
        """When what is new arrived, None where nothing is."""
        try:
            data, told, _, _ = connection.socket.recvmsg(READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data, told = b"", []
        arrival_s = clock()
        connection.inbound += data
        if not data or len(connection.inbound) > MAX_HEAD_BYTES + MAX_BODY_BYTES:
            self._close(connection)
            return None
        if told and len(told[0][2]) == TIMESPEC.size:
            seconds, nanoseconds = TIMESPEC.unpack(told[0][2])
            arrival_s -= max(0, time.time_ns() - seconds * 1_000_000_000 - nanoseconds) / 1e9
        return arrival_s

    def _answer(self, connection: Connection, arrival_s: float) -> None:
        """Answer what is there in full, one request after the other."""
        while not (connection.stream or connection.rest) and (found := self._take(connection)) is not None:
            line, body = found
            if line.startswith(b"GET /health "):
                self._send(connection, whole({}))
            elif line.startswith(b"GET /v1/models "):
                card = {"id": MODEL, "object": "model", "created": 0, "owned_by": "perf"}
                self._send(connection, whole({"object": "list", "data": [card]}))
            elif line.startswith((b"POST /v1/chat/completions ", b"POST /v1/completions ")):
                try:
                    ask = read_ask(body, chat=line.startswith(b"POST /v1/chat"))
                except ValueError as error:
                    self._send(connection, refusal(str(error)))
                else:
                    self._start(connection, ask, arrival_s)
            else:
                self._send(connection, refusal("no such path here", "404 Not Found"))

    def _take(self, connection: Connection) -> tuple[bytes, bytes] | None:
        """The next request, its first line and its body, once it is there in full."""
        inbound = connection.inbound
        end = inbound.find(b"\r\n\r\n")
        if end < 0:
            return None
        found = LENGTH.search(inbound, 0, end + 2)
        length = int(found[1]) if found else 0
        if end > MAX_HEAD_BYTES or length > MAX_BODY_BYTES:
            self._close(connection)
            return None
        if len(inbound) < end + 4 + length:
            return None
        line = bytes(inbound[: inbound.find(b"\r\n")])
        body = bytes(inbound[end + 4 : end + 4 + length])
        del inbound[: end + 4 + length]
        return line, body

    # Sending

    def _start(self, connection: Connection, ask: Ask, arrival_s: float) -> None:
        due_s, step_s = arrival_s + self._options.first_s, self._options.step_s
        if not self._in_flight:
            self._core_time.start()
            self._zero_s = due_s
        self._in_flight += 1
        if step_s:  # the stream's next place in the steps, which began when the idle server was asked
            passed = math.floor((due_s - self._zero_s) / step_s - connection.phase) + 1
            due_s = self._zero_s + (passed + connection.phase) * step_s
        sends = render(ask.chat, ask.tokens, self._options.tokens_per_chunk)
        connection.stream = stream = Stream(connection, ask, sends, arrival_s, due_s, due_s)
        self._streams.append(stream)
        self._enqueue(stream)

    def _enqueue(self, stream: Stream) -> None:
        """With one step for all, what was just sent is due last; only a new or a held-up stream is not."""
        if not self._queue or stream.next_s >= self._queue[-1].next_s:
            self._queue.append(stream)
        else:
            insort(self._queue, stream, key=_next_s)

    def _send_due(self, now_s: float) -> None:
        """At most one chunk for each stream, so that requests are read in between also where all are late."""
        queue = self._queue
        for _ in range(len(queue)):
            if not queue or queue[0].next_s > now_s:
                break
            stream = queue.popleft()
            data = stream.sends[len(stream.sent_s)]
            stream.sent_s.append(clock())
            if self._send(stream.connection, data):
                self._sent(stream)

    def _send(self, connection: Connection, data: bytes) -> bool:
        """Whether the kernel took it all; if not, the rest follows when the socket is writable."""
        try:
            taken = connection.socket.send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            self._close(connection)
            return False
        if taken == len(data):
            return True
        connection.rest = data[taken:]
        if connection.stream is not None:
            connection.stream.blocked += 1
        self._epoll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
        return False

    def _writable(self, connection: Connection) -> None:
        data, stream = connection.rest, connection.stream
        connection.rest = b""
        self._epoll.modify(connection.socket, select.EPOLLIN)
        if stream is not None:
            stream.sent_s[-1] = clock()  # the client has a chunk when its last byte was sent
        if not self._send(connection, data):
            return
        if stream is not None:
            self._sent(stream)
        else:
            self._answer(connection, clock())

    def _sent(self, stream: Stream) -> None:
        if len(stream.sent_s) < len(stream.sends):
            stream.next_s = stream.next_s + self._options.step_s if self._options.step_s else stream.sent_s[-1]
            self._enqueue(stream)
            return
        self._end(stream)
        if stream.connection.inbound:
            self._answer(stream.connection, clock())

    def _end(self, stream: Stream) -> None:
        stream.connection.stream = None
        stream.sends = ()
        self._in_flight -= 1
        if not self._in_flight:
            self._core_time.stop()

    def _close(self, connection: Connection) -> None:
        """The client has gone, or is none."""
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        connection.inbound.clear()
        connection.rest = b""
        if stream := connection.stream:
            with suppress(ValueError):  # it waited for its socket
                self._queue.remove(stream)
            self._end(stream)

    # Afterwards

    def truth(self) -> bytes:
        """All that was sent so far, as an .npz that `read_truth` reads."""
        sent_s = [np.asarray(stream.sent_s) for stream in self._streams]
        tokens = [
            np.array(chunk_tokens(stream.ask.tokens, self._options.tokens_per_chunk)[: len(stream.sent_s)])
            for stream in self._streams
        ]
        arrays: dict[str, NDArray[np.generic]] = {
            "id": np.array([stream.ask.id for stream in self._streams], dtype=f"U{ID_CHARACTERS}"),
            "connection": np.array([stream.connection.number for stream in self._streams], dtype=np.int64),
            "arrival_s": np.array([stream.arrival_s for stream in self._streams]),
            "due_s": np.array([stream.due_s for stream in self._streams]),
            "blocked": np.array([stream.blocked for stream in self._streams], dtype=np.int64),
            "chunks": np.array([len(stream.sent_s) for stream in self._streams], dtype=np.int64),
            "sent_s": np.concatenate([np.empty(0), *sent_s]),
            "tokens": np.concatenate([np.empty(0, np.int64), *tokens]).astype(np.int64),
            "accepted_s": np.array(self._accepted_s),
            "step_s": np.array(self._options.step_s),
            **{name: np.array(value) for name, value in self._core_time.facts().items()},
        }
        made = io.BytesIO()
        np.savez(made, allow_pickle=False, **arrays)
        return made.getvalue()


def _next_s(stream: Stream) -> float:
    return stream.next_s


# The command line.


def read_options(arguments: Sequence[str]) -> Options:
    """The command line as Options. Exits with 2 and a sentence where it cannot be."""
    made = argparse.ArgumentParser(prog="python -m perf.null_server", description="A server that only sends.")
    made.add_argument("--port", type=int, required=True, help="0 takes a free one; the first line printed names it")
    made.add_argument("--tokens-per-chunk", type=int, default=1, metavar="K", help="the last chunk takes the rest")
    made.add_argument("--step-ms", type=float, default=0.0, help="one chunk a stream and step; 0: as fast as possible")
    made.add_argument("--burst", action="store_true", help="all streams at one instant of the step, not spread")
    made.add_argument("--first-ms", type=float, default=0.0, help="delay before the first chunk")
    made.add_argument("--truth", type=Path, metavar="FILE", help="an .npz of all that was sent, written at the end")
    given = made.parse_args(arguments)
    if given.tokens_per_chunk < 1:
        made.error(f"--tokens-per-chunk must be 1 or more, seen {given.tokens_per_chunk}")
    for name in ("step_ms", "first_ms"):
        if not 0 <= getattr(given, name) < math.inf:
            made.error(f"--{name.replace('_', '-')} must be 0 or more, seen {getattr(given, name)}")
    return Options(
        port=given.port,
        tokens_per_chunk=given.tokens_per_chunk,
        step_s=given.step_ms / 1e3,
        burst=given.burst,
        first_s=given.first_ms / 1e3,
        truth=given.truth,
    )


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, then write the truth; the exit code."""
    options = read_options(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        server = NullServer(options)
    except OSError as error:
        sys.stderr.write(f"cannot serve on {HOST}:{options.port}: {error.strerror}. Choose another --port\n")
        return 1
    server.end_at(signal.SIGTERM, signal.SIGINT)
    print(f"http://{HOST}:{server.port}", flush=True)
    try:
        server.run()
    finally:
        if options.truth is not None:
            write_bytes(options.truth, server.truth())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
