"""Closed-loop load through `AsyncOpenAI`: the only clock that is measured.

The openai package builds every request and judges every status; the requests are built before the clock starts, and
within the window the transport writes and reads (see there). The package is made for users: retries are off, limits
are explicit, and nothing of the developer's own environment (OPENAI_* variables, proxies) reaches the server.
"""

import asyncio
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import httpx2
import numpy as np
import openai

from perf.health import Watch
from perf.trace import FailureName, RequestTrace, Round
from perf.transport import EXCHANGE, Connection, Exchange, Transport
from perf.workload import Endpoint, PlannedRequest, RoundPlan

#: How often a running round is looked at: is the server alive, is a stream silent, and what may be shown.
WATCH_INTERVAL_S = 0.25

#: A connection idle for longer is not used again: uvicorn closes its own after 5 s, and a request that meets the
#: closing would fail.
KEEPALIVE_S = 3.0

#: The body of an answer with another status than 200 is waited for so long: it is read for its message only.
REFUSAL_S = 5.0

#: Requests that are built before the clock starts: those of a round of any usual size, in some tens of megabytes, and
#: one for every stream at least. Of a longer round the rest is built as others end.
BUILT_AHEAD = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one request, in seconds.

    `first_token_s` covers queueing and prefill behind a full batch; `between_tokens_s` is far above any step time and
    far below the 600 s at which the openai client would notice; `request_s` bounds a stream that drips for ever.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    between_tokens_s: float = 30.0
    request_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and for what. `authorization` is the whole header, or None for a server that wants none."""

    base_url: str
    model: str
    authorization: str | None
    endpoint: Endpoint
    temperature: float


def body_of(target: Target, request: PlannedRequest, tokens: int) -> dict[str, object]:
    """What is asked, whether its answer is streamed or not."""
    said: dict[str, object] = {"prompt": request.completion_prompt()}
    if target.endpoint == "chat":
        said = {"messages": [{"role": each.role, "content": each.content} for each in request.messages]}
    return {
        "model": target.model,
        **said,
        "max_tokens": tokens,
        "temperature": target.temperature,
        "ignore_eos": True,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a running round stands. `tokens` are those that the server has counted so far, 0 where it does not;
    `failed` says that no further request will be sent."""

    finished: int
    planned: int
    chunks: int
    tokens: int
    elapsed_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which of the clients that share a level this one is: number `number` of `of`, with the streams whose number
    leaves that remainder. `gate` returns when the window begins for all; `stopped` says that another one failed."""

    number: int = 0
    of: int = 1
    gate: Callable[[], None] = lambda: None
    stopped: Callable[[], bool] = lambda: False


#: No other client has a part in the level.
WHOLE = Part()


class _Pass:
    """One pass over the requests of a round or of a warm-up: who is next, who is on the way, and is it over."""

    def __init__(self, requests: tuple[PlannedRequest, ...], tokens: int, part: Part = WHOLE) -> None:
        self.tokens = tokens
        self.part = part
        self.planned = len(requests)
        self.unbuilt = deque(requests)
        self.building = 0
        self.ready: deque[Exchange] = deque()
        self.asking: set[asyncio.Task[None]] = set()
        self.idle: list[tuple[Connection, float]] = []  # waits for a request to be built; since when
        self.to_come = 0  # connections that are being opened, or whose start is yet to come
        self.flying: dict[Exchange, Connection] = {}
        self.sent: list[Exchange] = []
        self.events = self.counted = 0  # of those that have ended
        self.turnaround_s = 0.0
        self.failed = False
        self.error: BaseException | None = None
        self.changed = asyncio.Event()

    @property
    def built_ahead(self) -> bool:
        """Nothing is being built any more, or building failed."""
        return self.building == 0 or self.error is not None

    @property
    def over(self) -> bool:
        """Nothing is on the way, and nothing will be sent any more."""
        if self.error is not None:
            return True
        left = self.to_come or self.unbuilt or self.building or self.ready
        return not self.flying and (self.failed or not left)

    def progress(self, elapsed_s: float) -> Progress:
        return Progress(
            finished=len(self.sent) - len(self.flying),
            planned=self.planned,
            chunks=self.events + sum(exchange.reader.events for exchange in self.flying),
            tokens=self.counted + sum(exchange.reader.tokens for exchange in self.flying),
            elapsed_s=elapsed_s,
            failed=self.failed,
        )


class Client:
    """A client for one server, for the length of a launch; its connections are reused from round to round."""

    def __init__(self, target: Target, *, limits: Limits | None = None) -> None:
        self.target = target
        self.limits = limits or Limits()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._loop.set_exception_handler(self._told)
        self._pass = _Pass((), 0)
        self._transport = Transport(target.base_url, connect_s=self.limits.connect_s)
        self._openai = self._client()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _signals_after(lambda: None):
            try:
                self._runner.run(self._openai.close())
            finally:
                self._runner.close()

    def run_round(
        self,
        plan: RoundPlan,
        requested_tokens: int,
        *,
        start_spread_s: float = 0.0,
        part: Part = WHOLE,
        died: Callable[[], bool] = lambda: False,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> Round:
        """Measure one round: `plan.level` requests in flight until all are done.

        The first request of every stream is sent at once, or spread over `start_spread_s` seconds. After a request was
        seen to fail no further one is sent: the round is not comparable any more. When `died` says that the server is
        gone, what is in flight is given up at once. Of a level that several clients share, `plan` has the requests of
        this `part` alone.
        """
        return self._finish(
            self._run(plan.level, plan.index, plan.measured, requested_tokens, start_spread_s, part, died, show)
        )

    def warm_up(self, plan: RoundPlan, requested_tokens: int, *, died: Callable[[], bool] = lambda: False) -> Round:
        """Ask the warm-up requests of a round; where one fails, the server is not warm: the caller has to judge."""
        level = max(1, min(plan.level, len(plan.warmup)))
        return self._finish(
            self._run(level, plan.index, plan.warmup, requested_tokens, 0.0, WHOLE, died, lambda _: None)
        )

    def _finish(self, asking: Coroutine[object, object, Round]) -> Round:
        task = self._loop.create_task(asking)

        def stop() -> None:
            task.cancel()
            self._loop.call_soon_threadsafe(lambda: None)  # it may be waiting

        with _signals_after(stop):
            return self._loop.run_until_complete(task)

    async def _run(
        self,
        level: int,
        index: int,
        requests: tuple[PlannedRequest, ...],
        tokens: int,
        spread_s: float,
        part: Part,
        died: Callable[[], bool],
        show: Callable[[Progress], None],
    ) -> Round:
        made = self._pass = _Pass(requests, tokens, part)
        streams = min(len(range(part.number, level, part.of)), len(requests))
        try:
            for _ in range(min(max(BUILT_AHEAD, streams), len(requests))):
                self._build(made)
            while not made.built_ahead:
                await made.changed.wait()
                made.changed.clear()
            made.ready = deque(sorted(made.ready, key=lambda exchange: exchange.request.index))
            connections = await self._connect(made, streams)
            part.gate()
            self._transport.read()  # what the server closed while the others were waited for is not sent on
            made.failed = made.failed or part.stopped()
            del self._transport.lags[:]
            watch, began_s = Watch(self._loop), time.perf_counter()
            self._start(made, connections, spread_s, seed=f"{level}/{index}")
            while not made.over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(WATCH_INTERVAL_S):
                        await made.changed.wait()
                made.changed.clear()
                show(made.progress(time.perf_counter() - began_s))
                self._look(made, died)
            health = watch.health(
                self._transport.lags,
                turnaround_s=made.turnaround_s,
                answering_s=sum(exchange.ended_s - exchange.sent_s for exchange in made.sent),
            )
            for exchange in made.sent:
                exchange.release()
            for exchange in made.ready:  # never sent
                exchange.released.cancel()
            await asyncio.gather(*made.asking, return_exceptions=True)
            if made.error is not None:
                raise made.error
        finally:
            for task in made.asking:
                task.cancel()
            await asyncio.gather(*made.asking, return_exceptions=True)
        zero = min((exchange.sent_s for exchange in made.sent), default=0.0)
        traces = sorted((_trace(exchange, zero) for exchange in made.sent), key=lambda trace: trace.index)
        return Round(
            level=level,
            index=index,
            planned_requests=len(requests),
            requested_tokens=tokens,
            requests=tuple(traces),
            zero_s=zero,
            client=health,
        )

    # Before the window: requests are built, connections opened.

    def _build(self, made: _Pass) -> None:
        made.building += 1
        exchange = Exchange(made.unbuilt.popleft(), made.tokens, partial(self._parked, made))
        task = self._loop.create_task(self._ask(exchange, made.tokens))
        made.asking.add(task)
        task.add_done_callback(partial(self._asked, made))

    async def _ask(self, exchange: Exchange, tokens: int) -> None:
        EXCHANGE.set(exchange)
        with suppress(openai.APIError):  # what came back stands in the exchange
            async with self._open(exchange.request, tokens):
                pass
        if not exchange.over:
            raise RuntimeError("the openai package did not hand its request to the transport; see its version")

    def _asked(self, made: _Pass, task: asyncio.Task[None]) -> None:
        made.asking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            made.error = error
            made.changed.set()

    def _parked(self, made: _Pass, exchange: Exchange) -> None:
        made.building -= 1
        made.ready.append(exchange)
        if made.idle:
            self._next(made, *made.idle.pop())
        elif made.building == 0:
            made.changed.set()

    async def _connect(self, made: _Pass, count: int) -> list[Connection]:
        try:
            connections = await self._transport.connections(count, idle_s=KEEPALIVE_S)
        except OSError as error:
            self._unreachable(made, error)
            return []
        for connection in connections:
            connection.ended = partial(self._ended, made)
        return connections

    def _unreachable(self, made: _Pass, error: OSError) -> None:
        """There is no connection for the next request: it has failed."""
        exchange = made.ready.popleft()
        exchange.sent_s = time.perf_counter()
        name = FailureName.TIMEOUT if isinstance(error, TimeoutError) else FailureName.CONNECTION
        exchange.fail(name, f"no connection: {type(error).__name__}: {error}")
        made.sent.append(exchange)
        made.failed = True
        exchange.end(exchange.sent_s, clean=False)

    # Within the window: every end of an answer sends the next request, from within the read that ended it.

    def _start(self, made: _Pass, connections: list[Connection], spread_s: float, seed: str) -> None:
        """The first wave: at once, or at random moments of the spread: those of a stream, in every launch and part."""
        chosen, part = random.Random(seed), made.part
        delays = [chosen.uniform(0.0, spread_s) for _ in range(part.number + part.of * len(connections))]
        made.to_come += len(connections)
        for delay_s, connection in zip(delays[part.number :: part.of], connections, strict=True):
            if spread_s:
                self._loop.call_later(delay_s, self._come, made, connection)
            else:
                self._come(made, connection)

    def _come(self, made: _Pass, connection: Connection) -> None:
        made.to_come -= 1
        self._next(made, connection, None)

    def _ended(self, made: _Pass, connection: Connection, exchange: Exchange) -> None:
        del made.flying[exchange]
        made.events += exchange.reader.events
        made.counted += exchange.reader.tokens
        if exchange.failure is not None:
            made.failed = True
            made.changed.set()  # to be told at once
        made.failed = made.failed or made.part.stopped()
        if made.unbuilt and not made.failed:
            exchange.release()
            self._build(made)
        self._next(made, connection, exchange.ended_s)

    def _next(self, made: _Pass, connection: Connection, free_s: float | None) -> None:
        """The connection, or one in its place, takes the next request. `free_s` is when the answer before it ended."""
        if made.failed or not made.ready:
            if made.building and not made.failed and free_s is not None:
                made.idle.append((connection, free_s))
            elif made.over:
                made.changed.set()
        elif connection.is_open():
            exchange = made.ready.popleft()
            made.sent.append(exchange)
            made.flying[exchange] = connection
            connection.send(exchange)
            made.turnaround_s += 0.0 if free_s is None else exchange.sent_s - free_s
        elif len(made.ready) > made.to_come:
            made.to_come += 1
            task = self._loop.create_task(self._reopen(made))
            made.asking.add(task)
            task.add_done_callback(partial(self._asked, made))

    async def _reopen(self, made: _Pass) -> None:
        """A new connection, and none that is idle: that one waits for a request that is being built."""
        try:
            connection = await self._transport.open()
        except OSError as error:
            made.to_come -= 1
            if made.ready:  # else others have taken what there was
                self._unreachable(made, error)
            made.changed.set()
            return
        connection.ended = partial(self._ended, made)
        self._come(made, connection)  # the time it took is the server's, which had closed the one before

    def _look(self, made: _Pass, died: Callable[[], bool]) -> None:
        """End what is silent for too long, or everything where the server has died."""
        self._transport.read()
        now_s, limits = time.perf_counter(), self.limits
        dead = bool(made.flying or made.to_come) and died()
        made.failed = made.failed or dead or made.part.stopped()
        for exchange, connection in tuple(made.flying.items()):
            events, elapsed_s = exchange.reader.events, now_s - exchange.sent_s
            silent_s = now_s - exchange.reader.heard_s
            if dead:
                exchange.fail(FailureName.CONNECTION, "the server exited while this request was in flight")
            elif exchange.refuses:
                if now_s - exchange.answered_s < REFUSAL_S:
                    continue
            elif elapsed_s > limits.request_s or (events <= 1 and elapsed_s > limits.first_token_s):
                exchange.fail(FailureName.TIMEOUT, f"no answer within {elapsed_s:.1f} s")
            elif events > 1 and silent_s > limits.between_tokens_s:  # behind the role-only chunk
                exchange.fail(FailureName.STALLED, f"silent for {silent_s:.1f} s after {events} events")
            else:
                continue
            connection.give_up()

    def _told(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """What goes wrong within a read ends the pass."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._pass.error = error
            self._pass.changed.set()
            return
        loop.default_exception_handler(context)

    # What the openai package is told.

    def _open(self, request: PlannedRequest, tokens: int) -> AbstractAsyncContextManager[object]:
        body = body_of(self.target, request, tokens)
        # What the package has no argument for.
        extra = {
            "ignore_eos": body.pop("ignore_eos"),
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        create: Callable[..., AbstractAsyncContextManager[object]] = (
            self._openai.chat.completions.with_streaming_response.create
            if self.target.endpoint == "chat"
            else self._openai.completions.with_streaming_response.create
        )
        return create(**body, stream=True, extra_body=extra)

    def _client(self) -> openai.AsyncOpenAI:
        with _without_openai_environment():
            return openai.AsyncOpenAI(
                base_url=f"{self.target.base_url}/v1",
                api_key="none",  # the package insists on one
                default_headers={"Authorization": self.target.authorization or "Bearer none"},
                max_retries=0,
                http_client=httpx2.AsyncClient(
                    transport=self._transport,
                    trust_env=False,
                    follow_redirects=False,
                    headers={"Accept-Encoding": "identity"},
                ),
            )


@contextmanager
def _signals_after(stop: Callable[[], None]) -> Iterator[None]:
    """A signal that has a handler calls `stop` at once, and its handler afterwards.

    An exception that a handler raises within the event loop may be swallowed there (in a weak reference's callback), or
    may lose a callback that was about to run: its task would never end, whatever cancels it.
    """
    if threading.current_thread() is not threading.main_thread():  # no signal comes here
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        stop()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _without_openai_environment() -> Iterator[None]:
    """The client takes keys, organisation, project and headers from the environment, whatever it is given."""
    held = {name: value for name, value in os.environ.items() if name.startswith("OPENAI_")}
    for name in held:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(held)


def _trace(exchange: Exchange, zero_s: float) -> RequestTrace:
    answer = exchange.reader.answer
    np.frombuffer(answer.chunk_times_s)[:] -= zero_s  # in place: a long round's times are most of its memory
    return RequestTrace(
        index=exchange.request.index,
        prompt_id=exchange.request.prompt_id,
        sent_s=exchange.sent_s - zero_s,
        chunk_times_s=answer.chunk_times_s,
        chunk_tokens=answer.chunk_tokens,
        output_tokens=answer.output_tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        ended_s=exchange.ended_s - zero_s,
        finish_reason=answer.finish_reason,
        failure=exchange.failure,
    )
