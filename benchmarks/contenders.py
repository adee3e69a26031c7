"""The clients that are compared, each in a process of its own: `python -m benchmarks.contenders NAME CORE`.

The process reads jobs from its standard input, one JSON object a line, and answers each with a line once what it saw
is written. Imports, interpreter start and, where a job asks for it, a warm-up with the same connections lie outside
what is measured. Every client asks for the same and keeps the same: when each chunk with text was in the program's
hands, and its tokens by the server's cumulative usage.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import openai
from numpy.typing import NDArray

from perf.load import Client, Target
from perf.null_server import MODEL
from perf.workload import Message, PlannedRequest, RoundPlan

clock = time.perf_counter

#: Behind the 16 digits that name a request: about as long as a short question.
QUESTION = "\n\nSort a list of names in Python, and say why the order of equal ones is kept. " * 4
WARMUP_TOKENS = 2
#: No measured request has so high a number.
WARMUP_FROM = 1 << 60
#: SGLang's, beside what every client of the openai package can say.
EXTRA: dict[str, object] = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One round: `requests` in all, `streams` of them in flight, each of `tokens` tokens."""

    url: str
    streams: int
    requests: int
    tokens: int
    warm: bool
    file: str


@dataclass(slots=True)
class Seen:
    """One request as the client saw it, on a clock of the client's own."""

    number: int
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One round as a client saw it; its clock is the server's (CLOCK_MONOTONIC).

    A client that stamps with the arrival at the host, not with its own reading, read so much later (median, p99).
    """

    ids: tuple[str, ...]
    sent_s: NDArray[np.float64]
    times_s: tuple[NDArray[np.float64], ...]
    tokens: NDArray[np.int64]
    errors: tuple[str, ...]
    read_lag_p50_s: float
    read_lag_p99_s: float
    cpu_s: float
    wall_s: float
    run_queue_s: float | None


@dataclass(slots=True)
class Meter:
    """CPU time of the whole process, and its main thread's wait for a core, within `with meter.running():`."""

    read_lag_p50_s: float = 0.0
    read_lag_p99_s: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    run_queue_s: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        queued_s, cpu_s, wall_s = _run_queue_s(), time.process_time(), clock()
        yield
        self.cpu_s, self.wall_s = time.process_time() - cpu_s, clock() - wall_s
        if queued_s is not None and (now_s := _run_queue_s()) is not None:
            self.run_queue_s = now_s - queued_s


def _run_queue_s() -> float | None:
    with suppress(OSError):
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return None


def name_of(number: int) -> str:
    """The 16 digits by which the server's truth knows a request."""
    return f"{number:016x}"


Ask = Callable[[Seen, int], Awaitable[None]]


async def closed_loop(ask: Ask, numbers: Sequence[int], streams: int, tokens: int) -> list[Seen]:
    """Keep `streams` requests in flight until all are done. A request that fails says so in its record."""
    queue = iter(numbers)
    seen: list[Seen] = []

    async def stream() -> None:
        for number in queue:
            seen.append(one := Seen(number, clock()))
            try:
                await ask(one, tokens)
            except (openai.OpenAIError, aiohttp.ClientError, TimeoutError, OSError) as error:
                one.error = f"{type(error).__name__}: {error}"

    await asyncio.gather(*(stream() for _ in range(streams)))
    return seen


async def round_of(ask: Ask, job: Job, meter: Meter) -> list[Seen]:
    if job.warm:
        warmup = range(WARMUP_FROM, WARMUP_FROM + job.streams)
        await closed_loop(ask, warmup, job.streams, WARMUP_TOKENS)
    with meter.running():
        return await closed_loop(ask, range(job.requests), job.streams, job.tokens)


# The clients.


def plain(job: Job, meter: Meter) -> list[Seen]:
    """The openai package as its users use it, but for the retries."""
    return asyncio.run(_with_openai(job, meter, openai.DefaultAsyncHttpxClient()))


def over_aiohttp(job: Job, meter: Meter) -> list[Seen]:
    """The same over the package's own aiohttp transport."""

    async def run() -> list[Seen]:
        return await _with_openai(job, meter, openai.DefaultAioHttpClient())

    return asyncio.run(run())


async def _with_openai(job: Job, meter: Meter, http: openai.DefaultAsyncHttpxClient) -> list[Seen]:
    base_url = f"{job.url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http) as client:

        async def ask(one: Seen, tokens: int) -> None:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": name_of(one.number) + QUESTION}],
                max_tokens=tokens,
                temperature=0,
                stream=True,
                extra_body=EXTRA,
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    one.times_s.append(clock())
                if chunk.usage is not None:
                    one.tokens = chunk.usage.completion_tokens

        return await round_of(ask, job, meter)


def json_per_event(job: Job, meter: Meter) -> list[Seen]:
    """An aiohttp loop that decodes every event as it comes and keeps its text, in the manner of sglang's bench_serving.

    A loop of our own, not its code, and more generous: connections are used again where the tool opens one a request.
    """

    async def run() -> list[Seen]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

            async def ask(one: Seen, tokens: int) -> None:
                body = {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": name_of(one.number) + QUESTION}],
                    "max_tokens": tokens,
                    "temperature": 0,
                    "stream": True,
                    **EXTRA,
                }
                async with session.post(f"{job.url}/v1/chat/completions", json=body) as response:
                    response.raise_for_status()
                    answer, parts = "", list[str]()
                    async for line in response.content:
                        data = line.decode().strip().removeprefix("data: ")
                        if not data or data == "[DONE]":
                            continue
                        event = json.loads(data)
                        one.tokens = (event.get("usage") or {}).get("completion_tokens", one.tokens)
                        for choice in event.get("choices") or []:
                            if text := choice["delta"].get("content"):
                                one.times_s.append(clock())
                                parts.append(text)
                                answer += text

            return await round_of(ask, job, meter)

    return asyncio.run(run())


def ours(job: Job, meter: Meter) -> list[Seen]:
    """`perf.load.Client`. Building the requests and decoding the answers is in what is measured."""

    def planned(numbers: Sequence[int]) -> tuple[PlannedRequest, ...]:
        return tuple(
            PlannedRequest(
                index=number, prompt_id="sort", messages=(Message(role="user", content=name_of(number) + QUESTION),)
            )
            for number in numbers
        )

    target = Target(base_url=job.url, model=MODEL, authorization=None, endpoint="chat", temperature=0)
    warmup = range(WARMUP_FROM, WARMUP_FROM + job.streams) if job.warm else range(0)
    plan = RoundPlan(level=job.streams, index=0, warmup=planned(warmup), measured=planned(range(job.requests)))
    with Client(target) as client:
        if job.warm:
            client.warm_up(plan, WARMUP_TOKENS)
        with meter.running():
            measured = client.run_round(plan, job.tokens)
    if measured.client is not None:
        meter.read_lag_p50_s = measured.client.lag_p50_s or 0.0
        meter.read_lag_p99_s = measured.client.lag_p99_s or 0.0
    missing = job.requests - len(measured.requests)
    return [
        *(
            Seen(
                request.index,
                request.sent_s + measured.zero_s,
                [time_s + measured.zero_s for time_s in request.chunk_times_s],
                request.output_tokens or 0,
                "" if request.failure is None else f"{request.failure.label}: {request.failure.detail}",
            )
            for request in measured.requests
        ),
        *(Seen(-1, 0.0, error="never sent, since another had failed") for _ in range(missing)),
    ]


CONTENDERS: dict[str, Callable[[Job, Meter], list[Seen]]] = {
    "AsyncOpenAI": plain,
    "AsyncOpenAI, aiohttp": over_aiohttp,
    "aiohttp, JSON per event": json_per_event,
    "sglang-perf": ours,
}
OURS = "sglang-perf"
PLAIN = "AsyncOpenAI"
PER_EVENT = "aiohttp, JSON per event"


# From process to process.


def save(job: Job, seen: list[Seen], meter: Meter) -> None:
    """Write what was seen where the job wants it."""
    queued_s = np.nan if meter.run_queue_s is None else meter.run_queue_s
    np.savez(
        job.file,
        allow_pickle=False,
        ids=np.array([name_of(one.number) if one.number >= 0 else "" for one in seen]),
        sent_s=np.array([one.sent_s for one in seen]),
        times_s=np.array([time_s for one in seen for time_s in one.times_s]),
        chunks=np.array([len(one.times_s) for one in seen], dtype=np.int64),
        tokens=np.array([one.tokens for one in seen], dtype=np.int64),
        errors=np.array([one.error for one in seen]),
        cost=np.array([meter.read_lag_p50_s, meter.read_lag_p99_s, meter.cpu_s, meter.wall_s, queued_s]),
    )


def load(file: Path) -> Observed:
    """Read what `save` wrote."""
    with np.load(file, allow_pickle=False) as stored:
        read_lag_p50_s, read_lag_p99_s, cpu_s, wall_s, run_queue_s = stored["cost"].tolist()
        return Observed(
            ids=tuple(stored["ids"].tolist()),
            sent_s=stored["sent_s"],
            times_s=tuple(np.split(stored["times_s"], np.cumsum(stored["chunks"])[:-1])),
            tokens=stored["tokens"],
            errors=tuple(error for error in stored["errors"].tolist() if error),
            read_lag_p50_s=read_lag_p50_s,
            read_lag_p99_s=read_lag_p99_s,
            cpu_s=cpu_s,
            wall_s=wall_s,
            run_queue_s=None if np.isnan(run_queue_s) else run_queue_s,
        )


def to_line(job: Job) -> str:
    return json.dumps(asdict(job)) + "\n"


def main(name: str, core: int) -> None:
    """Do one job after the other until there are no more."""
    os.sched_setaffinity(0, {core})
    for line in sys.stdin:
        job, meter = Job(**json.loads(line)), Meter()
        save(job, CONTENDERS[name](job, meter), meter)
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
