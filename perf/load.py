"""Closed-loop load through `AsyncOpenAI`: the only clock that is measured.

While a round runs, a read is stamped and kept and nothing else is done; events are found and decoded after the round.
The openai client is made for users: retries are off, limits are explicit, and nothing of the developer's own
environment (OPENAI_* variables, proxies) reaches the server.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import aiohttp
import httpx2
import openai
from openai.types.chat import ChatCompletionMessageParam

from perf.stream import read_answer, refusal
from perf.trace import MAX_DETAIL, Failure, FailureName, RequestTrace, Round
from perf.workload import Endpoint, PlannedRequest, RoundPlan

#: How often a running round is looked at: is the server alive, and what may be shown.
WATCH_INTERVAL_S = 0.25


#: A connection idle for longer is not used again: uvicorn closes its own after 5 s, and a request that meets the
#: closing would fail.
KEEPALIVE_S = 1.0

#: The most bytes of an answer that are kept: so many, and so many more for each token asked for. An event of SGLang's
#: with usage is 450 bytes a token; ten times that is another kind of answer, and many of them would fill the memory.
ANSWER_BYTES = 64 * 1024
ANSWER_BYTES_PER_TOKEN = 4 * 1024

#: The body of an answer with another status than 200 is read for its message only: so much of it, for so long.
REFUSAL_BYTES = 64 * 1024
REFUSAL_S = 5.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a running round stands. `chunks` counts events, which is enough to see that it lives."""

    finished: int
    planned: int
    chunks: int
    elapsed_s: float


@dataclass(slots=True)
class _Tally:
    finished: int = 0
    chunks: int = 0
    failed: bool = False


@dataclass(slots=True)
class _Departure:
    """When a built request was handed to the transport; those of the first wave wait for each other before."""

    wave: asyncio.Barrier | None
    sent_s: float


_DEPARTURE: ContextVar[_Departure] = ContextVar("departure")


async def _depart(_: httpx2.Request) -> None:
    """The HTTP client's hook between building a request and sending it.

    Building 250 requests takes the openai package a few tenths of a second, and none is written before the last is
    built: that is the client's time, not the server's, so the clock starts here.
    """
    departure = _DEPARTURE.get()
    if departure.wave is not None:
        await departure.wave.wait()
    departure.sent_s = time.perf_counter()


class _RefusedError(Exception):
    """An answer with another status than 200; what it says."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


async def _refuse(response: httpx2.Response) -> None:
    """The HTTP client's hook for the head of an answer. Only 200 is an answer.

    The openai package would take any 2xx for one, and read the body of any other to its end, which may never come.
    """
    if response.status_code == httpx2.codes.OK:
        return
    body = b""
    with suppress(TimeoutError, httpx2.HTTPError, aiohttp.ClientError):
        async with asyncio.timeout(REFUSAL_S):
            async for piece in response.aiter_raw():
                body += piece[: REFUSAL_BYTES - len(body)]
                if len(body) >= REFUSAL_BYTES:
                    break
    raise _RefusedError(response.status_code, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """What was seen of one request before anything was decoded. Times are of the process clock."""

    request: PlannedRequest
    sent_s: float
    reads: tuple[tuple[float, bytes], ...]
    ended_s: float
    failure: Failure | None
    ended_clean: bool


class _Body(Protocol):
    """The part of the openai package's streamed response that is used here."""

    @property
    def headers(self) -> httpx2.Headers: ...

    def iter_bytes(self) -> AsyncIterator[bytes]: ...


class Client:
    """A client for one server, for the length of a launch; its connections are reused from round to round."""

    def __init__(self, target: Target, *, connections: int, limits: Limits | None = None) -> None:
        self.target = target
        self.limits = limits or Limits()
        self._connections = connections
        self._runner = asyncio.Runner()
        self._runner.get_loop().set_exception_handler(_told)
        self._openai: openai.AsyncOpenAI | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._openai is not None:
                self._runner.run(self._openai.close())
        finally:
            self._runner.close()

    def run_round(
        self,
        plan: RoundPlan,
        requested_tokens: int,
        *,
        died: Callable[[], bool] = lambda: False,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> Round:
        """Measure one round: `plan.level` requests in flight until all are done.

        After a request was seen to fail no further one is sent: the round is not comparable any more. When `died` says
        that the server is gone, what is in flight is given up at once.
        """
        return self._runner.run(self._run(plan.level, plan.index, plan.measured, requested_tokens, died, show))

    def warm_up(self, plan: RoundPlan, requested_tokens: int, *, died: Callable[[], bool] = lambda: False) -> Round:
        """Ask the warm-up requests of a round; where one fails, the server is not warm: the caller has to judge."""
        level = max(1, min(plan.level, len(plan.warmup)))
        return self._runner.run(self._run(level, plan.index, plan.warmup, requested_tokens, died, lambda _: None))

    async def _run(
        self,
        level: int,
        index: int,
        requests: tuple[PlannedRequest, ...],
        tokens: int,
        died: Callable[[], bool],
        show: Callable[[Progress], None],
    ) -> Round:
        client = self._client()
        tally = _Tally()
        queue = iter(requests)
        began = time.perf_counter()

        count = min(level, len(requests))
        wave = asyncio.Barrier(max(1, count))

        async def stream() -> list[_Exchange]:
            done: list[_Exchange] = []
            for request in queue:
                departure = _Departure(None if done else wave, time.perf_counter())
                done.append(await self._ask(client, request, tokens, tally, departure))
                tally.finished += 1
                if tally.failed:
                    break
            return done

        streams = [asyncio.create_task(stream()) for _ in range(count)]
        pending = set(streams)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=WATCH_INTERVAL_S)
            show(
                Progress(
                    finished=tally.finished,
                    planned=len(requests),
                    chunks=tally.chunks,
                    elapsed_s=time.perf_counter() - began,
                )
            )
            if pending and died():
                tally.failed = True
                for task in pending:
                    task.cancel()
        exchanges = [exchange for task in streams for exchange in task.result()]
        zero = min((exchange.sent_s for exchange in exchanges), default=0.0)
        traces = sorted((_decode(exchange, tokens, zero) for exchange in exchanges), key=lambda trace: trace.index)
        return Round(
            level=level,
            index=index,
            planned_requests=len(requests),
            requested_tokens=tokens,
            requests=tuple(traces),
        )

    async def _ask(
        self,
        client: openai.AsyncOpenAI,
        request: PlannedRequest,
        tokens: int,
        tally: _Tally,
        departure: _Departure,
    ) -> _Exchange:
        reads: list[tuple[float, bytes]] = []
        failure: Failure | None = None
        ended_clean = False
        clock = time.perf_counter
        loop = asyncio.get_running_loop()
        _DEPARTURE.set(departure)
        deadline = loop.time() + self.limits.request_s
        begun, size, most = 0, 0, ANSWER_BYTES + ANSWER_BYTES_PER_TOKEN * tokens
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + self.limits.first_token_s)) as limit:
                async with self._open(client, request, tokens) as response:
                    if problem := _unreadable(response.headers):
                        failure = Failure(name=FailureName.MALFORMED, detail=problem)
                    else:
                        async for piece in response.iter_bytes():
                            reads.append((clock(), piece))
                            size += len(piece)
                            if size > most:
                                detail = f"more than {most:,} bytes for {tokens:,} tokens"
                                failure = Failure(name=FailureName.MALFORMED, detail=detail)
                                break
                            if count := piece.count(b"data:"):
                                tally.chunks += count
                                begun += count
                                if begun > 1:  # behind the role-only chunk
                                    limit.reschedule(min(deadline, loop.time() + self.limits.between_tokens_s))
                        ended_clean = True
        except TimeoutError:
            waited = clock() - (reads[-1][0] if reads else departure.sent_s)
            failure = (
                Failure(name=FailureName.STALLED, detail=f"silent for {waited:.1f} s after {begun} events")
                if begun > 1 and loop.time() < deadline
                else Failure(name=FailureName.TIMEOUT, detail=f"no answer within {clock() - departure.sent_s:.1f} s")
            )
        except _RefusedError as error:
            failure = Failure(name=FailureName.HTTP_ERROR, status=error.status, detail=refusal(error.body))
        except openai.APIConnectionError as error:
            failure = _unconnected(error)
        except httpx2.HTTPError as error:
            # The headers are there, the body broke: what arrived is decoded, an error object in it goes before.
            if not reads:
                failure = Failure(name=FailureName.TRUNCATED, detail=f"the body broke before its first byte: {error}")
        except aiohttp.ClientResponseError as error:  # what it cannot read as HTTP the transport passes on as it is
            failure = Failure(name=FailureName.MALFORMED, detail=f"no HTTP answer: {error.message}"[:MAX_DETAIL])
        except asyncio.CancelledError:
            if not tally.failed:
                raise
            failure = Failure(name=FailureName.CONNECTION, detail="the server exited while this request was in flight")
        exchange = _Exchange(
            request=request,
            sent_s=departure.sent_s,
            reads=tuple(reads),
            ended_s=clock(),
            failure=failure,
            ended_clean=ended_clean,
        )
        if failure is not None or not ended_clean:
            tally.failed = True
        return exchange

    def _open(
        self, client: openai.AsyncOpenAI, request: PlannedRequest, tokens: int
    ) -> AbstractAsyncContextManager[_Body]:
        extra: dict[str, object] = {
            "ignore_eos": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.target.endpoint == "completions":
            return client.completions.with_streaming_response.create(
                model=self.target.model,
                prompt=request.completion_prompt(),
                max_tokens=tokens,
                temperature=self.target.temperature,
                stream=True,
                extra_body=extra,
            )
        messages: list[ChatCompletionMessageParam] = []
        for message in request.messages:
            if message.role == "system":
                messages.append({"role": "system", "content": message.content})
            elif message.role == "assistant":
                messages.append({"role": "assistant", "content": message.content})
            else:
                messages.append({"role": "user", "content": message.content})
        return client.chat.completions.with_streaming_response.create(
            model=self.target.model,
            messages=messages,
            max_tokens=tokens,
            temperature=self.target.temperature,
            stream=True,
            extra_body=extra,
        )

    def _client(self) -> openai.AsyncOpenAI:
        if self._openai is None:
            limits = self.limits
            with _without_openai_environment():
                self._openai = openai.AsyncOpenAI(
                    base_url=f"{self.target.base_url}/v1",
                    api_key="none",  # the package insists on one
                    default_headers={"Authorization": self.target.authorization or "Bearer none"},
                    max_retries=0,
                    http_client=openai.DefaultAioHttpClient(
                        trust_env=False,
                        follow_redirects=False,
                        headers={"Accept-Encoding": "identity"},
                        event_hooks={"request": [_depart], "response": [_refuse]},
                        timeout=httpx2.Timeout(limits.request_s, connect=limits.connect_s),
                        limits=httpx2.Limits(
                            max_connections=self._connections,
                            max_keepalive_connections=self._connections,
                            keepalive_expiry=KEEPALIVE_S,
                        ),
                    ),
                )
        return self._openai


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Of a task that an interrupt ended nothing is to be told: the interrupt itself is on its way."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


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


def _decode(exchange: _Exchange, tokens: int, zero: float) -> RequestTrace:
    answer = read_answer(exchange.reads, requested_tokens=tokens, ended_clean=exchange.ended_clean)
    return RequestTrace(
        index=exchange.request.index,
        prompt_id=exchange.request.prompt_id,
        sent_s=exchange.sent_s - zero,
        chunk_times_s=tuple(time_s - zero for time_s in answer.chunk_times_s),
        chunk_tokens=None if answer.chunk_tokens is None else tuple(answer.chunk_tokens),
        output_tokens=answer.output_tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        ended_s=exchange.ended_s - zero,
        finish_reason=answer.finish_reason,
        failure=exchange.failure or answer.failure,
    )


def _unreadable(headers: httpx2.Headers) -> str | None:
    kind = headers.get("content-type", "")
    if not kind.lower().startswith("text/event-stream"):
        return f'not an event stream: content-type "{kind}"'[:MAX_DETAIL]
    coding = headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        return f'the body is compressed though it was asked not to be: content-encoding "{coding}"'[:MAX_DETAIL]
    return None


def _unconnected(error: openai.APIConnectionError) -> Failure:
    """No answer began. The transport calls a dropped connection a time-out; what it was is at the root of the chain."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    name = FailureName.TIMEOUT if isinstance(root, TimeoutError) else FailureName.CONNECTION
    return Failure(name=name, detail=f"{type(root).__name__}: {root}"[:MAX_DETAIL])
