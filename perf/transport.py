"""HTTP/1.1 under the openai package: a request is built by it, and read here as the bytes arrive.

A transport of httpx2, which the openai package is given as its client's. What it builds is *parked*: nothing is sent
before the load says so, and the response is handed up only when the answer has ended, so that within the measured
window there are writes and reads and nothing else. The load sends an exchange on a connection; the connection reads,
lets httptools find the body in it and feeds the reader of the exchange.

Stamps are the kernel's: SO_TIMESTAMPNS says of every read when its last bytes had arrived at this host, whatever the
client was doing then. The difference to now is the client's lag, known for every read. Where the kernel does not tell
(TLS, for one) the stamp is taken when the bytes are read, and the lag is not known.
"""

import asyncio
import select
import socket
import ssl
import struct
import time
from array import array
from collections.abc import Callable
from contextvars import ContextVar

import httptools
import httpx2

from perf.stream import Reader, refusal
from perf.trace import MAX_DETAIL, Failure, FailureName
from perf.workload import PlannedRequest

#: Bytes taken at one read, which bear one stamp, that of the last of them: ten events of SGLang's. More would hide what
#: had lain unread since long, behind what came just now.
READ_BYTES = 4 * 1024

#: The body of an answer with another status than 200 is read for its message only.
REFUSAL_BYTES = 64 * 1024

#: More than any server's head, and than what stands between two pieces of a body; an endless one would fill the memory.
HEAD_BYTES = 64 * 1024

#: Linux's <asm-generic/socket.h>; Python has no name for it.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")


class Exchange:
    """One request and its answer. Times are seconds of `time.perf_counter`.

    `message` is what goes over the wire, once the openai package has built it; `parked` is then called. `ended_s` is
    when its last bytes had arrived. `failure` is why the request is no good one, known at its end at the latest.
    """

    __slots__ = (
        "answered_s",
        "ended_s",
        "failure",
        "message",
        "over",
        "parked",
        "reader",
        "refused",
        "released",
        "request",
        "sent_s",
        "status",
    )

    def __init__(self, request: PlannedRequest, requested_tokens: int, parked: "Callable[[Exchange], None]") -> None:
        self.request = request
        self.reader = Reader(requested_tokens)
        self.parked = parked
        self.message = b""
        self.sent_s = 0.0
        self.answered_s = 0.0  # when the head of the answer had come
        self.ended_s = 0.0
        self.status: int | None = None
        self.refused = bytearray()
        self.failure: Failure | None = None
        self.over = False
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def refuses(self) -> bool:
        """The status is another than 200: only that is an answer."""
        return self.status not in (None, httpx2.codes.OK)

    def fail(self, name: FailureName, detail: str) -> None:
        """Name why this is no good request; the first reason stays."""
        if self.failure is None:
            self.failure = Failure(name=name, detail=detail[:MAX_DETAIL])

    def end(self, ended_s: float, *, clean: bool) -> None:
        """Nothing more is coming."""
        if self.over:
            return
        self.over = True
        self.ended_s = ended_s
        if self.failure is None and self.refuses:
            said = refusal(bytes(self.refused))
            self.failure = Failure(name=FailureName.HTTP_ERROR, status=self.status, detail=said)
        elif self.status is None:
            self.fail(FailureName.CONNECTION, "the server closed the connection before an answer")
        answer = self.reader.close(self.ended_s, ended_clean=clean)
        self.failure = self.failure or answer.failure

    def release(self) -> None:
        """Hand the response up to the openai package, which takes half a millisecond to look at it."""
        if not self.released.done():
            self.released.set_result(None)


#: The exchange for which the openai package is building a request in this task.
EXCHANGE: ContextVar[Exchange] = ContextVar("exchange")


class Connection:
    """One connection, one exchange at a time. Whatever ends an exchange calls `ended`, from within the read."""

    def __init__(self, link: socket.socket, poll: select.epoll, lags: "array[float]") -> None:
        self.ended: Callable[[Connection, Exchange], None] = _nobody
        self.exchange: Exchange | None = None
        self.usable = True
        self.idle_since_s = time.perf_counter()
        self._link = link
        self._poll = poll
        self._lags = lags
        self._to_send = memoryview(b"")
        self._arrived_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0  # that have come since the last one of a body
        self._head: dict[bytes, bytes] = {}
        self._in_body = False
        self._endless = False
        self._complete = False
        poll.register(link.fileno(), select.EPOLLIN)

    # Sending.

    def is_open(self) -> bool:
        """Can the next request be sent on it? A server may have closed it behind an answer without announcing that."""
        if self.usable and not isinstance(self._link, ssl.SSLSocket):
            try:
                self.usable = self._link.recv(1, socket.MSG_PEEK) != b""
            except BlockingIOError:
                return True
            except OSError:
                self.usable = False
        if not self.usable:
            self.close()
        return self.usable

    def send(self, exchange: Exchange) -> None:
        """Write a request; the clock of the exchange starts with the write."""
        self.exchange = exchange
        self._complete = self._in_body = False
        self._head, self._head_bytes = {}, 0
        self._to_send = memoryview(exchange.message)
        exchange.message = b""
        self._arrived_s = exchange.sent_s = time.perf_counter()
        self._write()

    def _write(self) -> None:
        try:
            while self._to_send:
                self._to_send = self._to_send[self._link.send(self._to_send) :]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._poll.modify(self._link.fileno(), select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError as error:
            self._broke(error)
            return
        self._poll.modify(self._link.fileno(), select.EPOLLIN)

    # Reading.

    def ready(self) -> None:
        """The connection can be read from or written to."""
        if self._to_send:
            self._write()
        more = True
        while more and self.usable:
            more = self._read()

    def _read(self) -> bool:
        """Take what has arrived; True where more may lie in the TLS layer, of which no poll tells."""
        told: list[tuple[int, int, bytes]] = []
        encrypted = isinstance(self._link, ssl.SSLSocket)
        try:
            if encrypted:
                piece = self._link.recv(READ_BYTES)
            else:
                piece, told, _, _ = self._link.recvmsg(READ_BYTES, 64)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            self._broke(error)
            return False
        arrived_s = time.perf_counter()
        if told and len(told[0][2]) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(told[0][2])
            lag_s = max(0.0, (time.time_ns() - seconds * 1_000_000_000 - nanoseconds) * 1e-9)
            # A wall clock that was set between the two makes nonsense of the difference; times never run backwards.
            lag_s = min(lag_s, arrived_s - self._arrived_s)
            self._lags.append(lag_s)
            arrived_s -= lag_s
        self._arrived_s = arrived_s
        if not piece:
            self._closed_by_server()
            return False
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for
            self.close()
            return False
        self._head_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserCallbackError as error:  # one of ours below failed, or was interrupted
            raise (error.__context__ or error) from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.usable = False
            if not self._complete:
                exchange.fail(FailureName.MALFORMED, f"no HTTP answer: {error}")
        if self._head_bytes > HEAD_BYTES:
            detail = f"no HTTP answer: more than {HEAD_BYTES:,} bytes without one of a body"
            exchange.fail(FailureName.MALFORMED, detail)
        if self._complete or exchange.failure is not None or exchange.reader.answer.failure is not None:
            self._end(clean=self._complete)
        return encrypted

    def _closed_by_server(self) -> None:
        """A body without a length ends with the connection; every other one ends too soon."""
        self.usable = False
        self._end(clean=self._in_body and self._endless)

    def _broke(self, error: OSError) -> None:
        self.usable = False
        if self.exchange is not None and self.exchange.status is None:
            self.exchange.fail(FailureName.CONNECTION, f"{type(error).__name__}: {error}")
        self._end(clean=False)

    def _end(self, *, clean: bool) -> None:
        exchange, self.exchange = self.exchange, None
        if not (clean and self._complete) or self._to_send:
            self.usable = False
        if not self.usable:
            self.close()
        self.idle_since_s = time.perf_counter()
        if exchange is not None:
            exchange.end(self._arrived_s if clean else time.perf_counter(), clean=clean)
            self.ended(self, exchange)

    def give_up(self) -> None:
        """End the exchange where it is."""
        self.usable = False
        self._end(clean=False)

    def close(self) -> None:
        """Let go of the socket."""
        self.usable = False
        if self._link.fileno() >= 0:
            self._poll.unregister(self._link.fileno())
            self._link.close()

    # What httptools finds in the bytes.

    def on_message_begin(self) -> None:
        self._head = {}
        if self._complete:  # something behind the answer
            self.usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head[name.lower()] = value

    def on_headers_complete(self) -> None:
        exchange, status = self.exchange, self._parser.get_status_code()
        if exchange is None or self._complete or status < 200:  # behind the answer, or "100 Continue"
            return
        exchange.status = status
        exchange.answered_s = self._arrived_s
        self._in_body = True
        coding = self._head.get(b"transfer-encoding", b"").lower()
        self._endless = b"content-length" not in self._head and b"chunked" not in coding
        if status == httpx2.codes.OK and (problem := _unreadable(self._head)):
            exchange.fail(FailureName.MALFORMED, problem)

    def on_body(self, body: bytes) -> None:
        exchange = self.exchange
        self._head_bytes = 0
        if exchange is None or self._complete:
            return
        if exchange.status == httpx2.codes.OK:
            exchange.reader.feed(self._arrived_s, body)
            return
        exchange.refused += body[: REFUSAL_BYTES - len(exchange.refused)]
        if len(exchange.refused) >= REFUSAL_BYTES:
            self._complete = True
            self.usable = False

    def on_message_complete(self) -> None:
        if self._in_body:
            self._complete = True
            self.usable = self.usable and self._parser.should_keep_alive()


def _nobody(_: Connection, __: Exchange) -> None:
    """A connection whose exchanges nobody waits for."""


def _unreadable(head: dict[bytes, bytes]) -> str | None:
    """Why the body of an answer with status 200 cannot be read; None where it can."""
    kind = head.get(b"content-type", b"").decode("latin-1")
    if not kind.lower().startswith("text/event-stream"):
        return f'not an event stream: content-type "{kind}"'
    transfer = head.get(b"transfer-encoding", b"chunked").decode("latin-1")
    if transfer.strip().lower() not in ("chunked", "identity"):
        return f'the body is not only cut into chunks: transfer-encoding "{transfer}"'
    coding = head.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.lower() != "identity":
        return f'the body is compressed though it was asked not to be: content-encoding "{coding}"'
    return None


class Transport(httpx2.AsyncBaseTransport):
    """The connections to one server, and the seam to the openai package.

    `lags` collects the lag of every read in seconds, for whoever empties it.
    """

    def __init__(self, base_url: str, *, connect_s: float) -> None:
        url = httpx2.URL(base_url)
        self._host, self._port = url.host, url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._connect_s = connect_s
        self._poll = select.epoll()
        self._by_handle: dict[int, Connection] = {}
        self._watched_by: asyncio.AbstractEventLoop | None = None
        self.lags: array[float] = array("d")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Park the request; its response comes when its answer has ended and the exchange is released."""
        exchange = EXCHANGE.get()
        exchange.message = _serialized(request, await request.aread())
        exchange.parked(exchange)
        await exchange.released
        if exchange.status is None:
            detail = exchange.failure.detail if exchange.failure else "no answer"
            raise httpx2.ConnectError(detail, request=request)
        return httpx2.Response(exchange.status, content=bytes(exchange.refused), request=request)

    async def aclose(self) -> None:
        """Let go of every connection."""
        for connection in tuple(self._by_handle.values()):
            connection.close()
        if self._watched_by is not None:
            self._watched_by.remove_reader(self._poll.fileno())
            self._watched_by = None
        self._poll.close()

    async def connections(self, count: int, *, idle_s: float) -> list[Connection]:
        """So many connections without an exchange; those that were idle for longer than `idle_s` are not used again.

        Raises OSError where the server cannot be reached.
        """
        if self._watched_by is None:
            self._watched_by = asyncio.get_running_loop()
            self._watched_by.add_reader(self._poll.fileno(), self.read)
        self.read()  # what the server closed meanwhile is closed
        kept: list[Connection] = []
        for handle, connection in tuple(self._by_handle.items()):
            if connection.usable and time.perf_counter() - connection.idle_since_s > idle_s:
                connection.close()
            if not connection.usable:
                del self._by_handle[handle]
            elif connection.exchange is None:
                kept.append(connection)
        # As many at once as the default executor has threads, 32 at most: far below any server's backlog.
        tasks = [asyncio.create_task(self.open()) for _ in range(count - len(kept))]
        try:
            return kept[:count] + [await task for task in tasks]
        except OSError:
            for connection in self._by_handle.values():  # where files ran out, others in this process need some
                connection.close()
            raise
        finally:
            for task in tasks:
                task.cancel()

    async def open(self) -> Connection:
        """A new connection. Raises OSError; TimeoutError, which is one, within the limit."""
        link = await asyncio.to_thread(self._connect)
        connection = Connection(link, self._poll, self.lags)
        self._by_handle[link.fileno()] = connection
        return connection

    def _connect(self) -> socket.socket:
        link = socket.create_connection((self._host, self._port), timeout=self._connect_s)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                link = self._tls.wrap_socket(link, server_hostname=self._host)
            else:
                link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            link.setblocking(False)
        except BaseException:
            link.close()
            raise
        return link

    def read(self) -> None:
        """Read every connection that is ready: one call of the event loop for all of them."""
        for handle, _ in self._poll.poll(0):
            if (connection := self._by_handle.get(handle)) is not None:
                connection.ready()


def _serialized(request: httpx2.Request, body: bytes) -> bytes:
    """The request as HTTP/1.1 puts it on the wire (RFC 9112, section 3)."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % (name, value) for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
