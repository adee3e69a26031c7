"""An emulated SGLang: `python -m perf.emulator --port P`. Real HTTP, synthetic time, a known truth.

It answers as SGLang 0.5.23 does, paced by `perf.emulator_engine`, can fail in the ways servers fail, and writes what
really happened to a truth file. It computes no language: its words are a fixed vocabulary. See docs/emulator.md.
"""

import argparse
import asyncio
import faulthandler
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from perf.emulator_engine import Acceptance, Engine, EngineRequest, Slowdown, Step, Timing, mean_acceptance
from perf.emulator_wire import (
    CACHED_SHARE,
    CONTEXT_TOKENS,
    WRONG_LENGTH_TOKENS,
    BadRequestError,
    Reply,
    compact,
    error_body,
    plan_reply,
    read_ask,
    read_object,
    validation_error,
)

VERSION = "0.5.23-emulated"
COUNTER_OFF = 1.06
DECODE_LOG_STEPS = 40
# Above the largest level anybody measures, so that no connection of a burst is refused.
BACKLOG = 4096
# Open streams are cut at shutdown: nobody reads them any more.
SHUTDOWN_S = 0.1
# The grandchild that is left behind goes by itself, should nobody end it.
GRANDCHILD_S = 600
# Between the bytes of a stream that drips: far below any limit of silence.
DRIP_S = 0.1
# After the last bytes of an answer, so that they have left before the server replaces itself.
RESTART_S = 0.05
WRONG_MODEL = "another/model"
# Probability that a draft token is accepted, where no --acceptance is given.
DEFAULT_DRAFT_ACCEPTANCE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Step times, and the mean acceptance length where the profile is one of a speculative server."""

    anchors_s: tuple[tuple[int, float], ...]
    acceptance: float | None = None


# The published profiles are calibrated with the engine in virtual time to numbers others published
# (docs/emulator.md); the source gives neither acceptance length nor prefill time, so these are chosen.
PROFILES: Mapping[str, Profile] = {
    "default": Profile(anchors_s=((1, 0.010), (8, 0.012), (32, 0.020), (128, 0.044))),
    "published-baseline": Profile(anchors_s=((1, 0.01077), (2, 0.01266), (30, 0.03859))),
    "published-eagle3": Profile(anchors_s=((1, 0.02589), (2, 0.03258), (30, 0.17736)), acceptance=2.1),
}
PREFILL_MS = 15.0
PREFILL_TOKEN_MS = 0.01

REQUEST_FAULTS: Mapping[str, str] = {
    "http-500": "answers 500 at once",
    "error-in-stream": "a few tokens, then an error object and [DONE], under 200",
    "abort": "a few tokens, then finish_reason abort, usage as produced",
    "truncated": "a few tokens, then the connection closes without the terminating chunk",
    "silent-end": "a few tokens, then a clean end of the body: no finish, no usage, no [DONE]",
    "stalled": "a few tokens, then silence on an open connection",
    "no-usage": "no usage anywhere",
    "wrong-length": f"{WRONG_LENGTH_TOKENS} tokens, finish_reason stop",
    "usage-off-by-one": "usage says one token less than was sent",
    "cache-hits": f"{CACHED_SHARE:.0%} of the prompt come from the cache",
    "counter-off": f"the server's token counter counts {COUNTER_OFF} times the tokens",
    "ignore-eos-ignored": "stops early although ignore_eos was asked for",
    "slow-drip": "a few tokens, then a byte of a comment now and then, for ever",
    "hang": "the process stops: it lives and accepts, and never answers anything again",
    "die-mid-round": "a few tokens, then a traceback and SIGKILL to itself",
    "cuda-traceback": "a few tokens, then a scheduler's traceback out of the graph runner, and SIGKILL to itself",
    "segfault": "a few tokens, then a segmentation fault, reported as CPython does",
    "restart": "after the answer the server replaces itself: same process, counters from 0",
}
PROCESS_FAULTS: Mapping[str, str] = {
    "no-acceptance": "a speculative server without its acceptance counters",
    "slow-start=SECONDS": "/health answers 503 for so long",
    "never-ready": "/health answers 503 for ever",
    "wrong-model": f"says that it serves {WRONG_MODEL}",
    "exit-at-start": "prints an out-of-memory traceback and exits with 1",
    "ignore-sigterm": "SIGTERM does nothing",
    "leave-grandchild": "a child in a session of its own outlives the server",
}
SLOW_START = "slow-start="

OUT_OF_MEMORY = """Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3812, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 94.97 GiB
"""
# What a scheduler process leaves, and its launcher after it; in SGLang it ends both.
SIZE_MISMATCH = """Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3901, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "sglang/srt/model_executor/cuda_graph_runner.py", line 911, in replay_prepare
    self.buffers.positions[:raw].copy_(batch.positions)
RuntimeError: The size of tensor a (8) must match the size of tensor b (10) at non-singleton dimension 0

Received sigquit from a child process. It usually means the child failed.
"""
ILLEGAL_ACCESS = """Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3901, in run_scheduler_process
    scheduler.event_loop_overlap()
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line, checked; a field a flag."""

    host: str
    port: int
    model_path: str
    tp: int
    api_key: str | None
    enable_metrics: bool
    enable_cache_report: bool
    max_running_requests: int
    speculative_algorithm: str | None
    speculative_draft_model_path: str | None
    speculative_num_steps: int
    speculative_eagle_topk: int
    speculative_num_draft_tokens: int
    profile: str
    step_ms: tuple[tuple[int, float], ...] | None
    prefill_ms: float
    prefill_token_ms: float
    acceptance: float | None
    speed: float
    launch_cv: float
    round_cv: float
    noise_seed: int | None
    slowdown: Slowdown
    fault: tuple[str, ...]
    fault_after: int
    fault_every: int
    truth: Path | None


def timing_of(options: Options) -> Timing:
    """The profile's step times, or those of the command line."""
    anchors_s = PROFILES[options.profile].anchors_s
    if options.step_ms is not None:
        anchors_s = tuple((batch, step_ms / 1e3) for batch, step_ms in options.step_ms)
    return Timing(
        anchors_s=anchors_s,
        prefill_base_s=options.prefill_ms / 1e3,
        prefill_per_token_s=options.prefill_token_ms / 1e3,
    )


def acceptance_of(options: Options) -> Acceptance | None:
    """The acceptance model of a speculative server; None without --speculative-algorithm."""
    if options.speculative_algorithm is None:
        return None
    steps = options.speculative_num_steps
    mean = options.acceptance or PROFILES[options.profile].acceptance
    return Acceptance(mean=mean or mean_acceptance(DEFAULT_DRAFT_ACCEPTANCE, steps), draft_steps=steps)


def engine_of(options: Options, noise_seed: int) -> Engine:
    """The engine that the command line describes."""
    return Engine(
        timing=timing_of(options),
        acceptance=acceptance_of(options),
        noise_seed=noise_seed,
        slowdown=options.slowdown,
        launch_cv=options.launch_cv,
        round_cv=options.round_cv,
        speed=options.speed,
        max_running=options.max_running_requests,
    )


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=compact(value), status=status, content_type="application/json")


class Truth:
    """Lines of JSON about what really happened, each flushed as it is written. Without a path they go nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", buffering=1)

    def write(self, kind: str, **facts: object) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"event": kind, **facts}, default=str) + "\n")


@dataclass(slots=True)
class Counters:
    """What /metrics counts, by whether the request was streamed; grows when a request ends."""

    prompt_tokens: float = 0
    generation_tokens: float = 0
    requests: int = 0


def ready_after_s(faults: Iterable[str]) -> float:
    """Seconds from the start to a healthy server."""
    if "never-ready" in faults:
        return math.inf
    return sum(float(kind.removeprefix(SLOW_START)) for kind in faults if kind.startswith(SLOW_START))


class Server:
    """The HTTP side: asks go into the engine, steps come out as bytes."""

    def __init__(self, options: Options) -> None:
        if "wrong-model" in options.fault:
            options = replace(options, model_path=WRONG_MODEL)
        self._options = options
        self._noise_seed = secrets.randbits(32) if options.noise_seed is None else options.noise_seed
        self._engine = engine_of(options, self._noise_seed)
        self._acceptance = acceptance_of(options)
        self._replies: dict[EngineRequest, Reply] = {}
        self._wake = asyncio.Event()
        self._asked = 0
        self._counters = {False: Counters(), True: Counters()}
        self._cached_tokens = 0
        self._verify_steps = 0
        self._lateness_s = array("d")
        self._decode_steps = 0
        self._log_tokens = 0
        self._log_deadline_s = time.monotonic()
        self._throughput = 0.0
        self._started_s = time.monotonic()
        self._ready_s = self._started_s + ready_after_s(options.fault)
        self._truth = Truth(options.truth)

    # Life

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises OSError when the port is taken."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ignore = "ignore-sigterm" in self._options.fault
        loop.add_signal_handler(signal.SIGTERM, (lambda: log("SIGTERM ignored")) if ignore else stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        runner = web.AppRunner(
            self._application(), handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        await runner.setup()
        await web.TCPSite(runner, self._options.host, self._options.port, backlog=BACKLOG).start()
        self._write_start()
        log(f"Uvicorn running on http://{self._options.host}:{self._options.port} (Press CTRL+C to quit)")
        if self._ready_s < math.inf:
            loop.call_at(self._ready_s, log, "The server is fired up and ready to roll!")
        drive = asyncio.create_task(self._drive())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({drive, stopped}, return_when=asyncio.FIRST_COMPLETED)
        self._write_exit()
        stopped.cancel()
        await runner.cleanup()
        if drive.done():
            drive.result()
        drive.cancel()
        with suppress(asyncio.CancelledError):
            await drive

    async def _drive(self) -> None:
        """Let the engine's steps happen at their absolute deadlines, or at once where the host is late."""
        while True:
            deadline_s = self._engine.start_step()
            if deadline_s is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            await asyncio.sleep(max(0.0, deadline_s - time.monotonic()))
            step = self._engine.finish_step()
            self._lateness_s.append(time.monotonic() - step.deadline_s)
            for request, tokens in step.emissions:
                reply = self._replies[request]
                if request.finished:
                    self._account(reply)
                reply.emit(tokens)
            self._log_step(step)

    def _account(self, reply: Reply, finish: str | None = None) -> None:
        """A request has ended: count it before its last bytes leave."""
        request, plan = reply.request, reply.plan
        del self._replies[request]
        counters = self._counters[reply.ask.stream]
        counters.requests += 1
        counters.prompt_tokens += reply.ask.prompt_tokens
        counters.generation_tokens += request.tokens * (COUNTER_OFF if "counter-off" in plan.faults else 1)
        self._cached_tokens += plan.cached_tokens
        self._verify_steps += request.verify_steps
        self._truth.write(
            "request",
            id=reply.id,
            arrival_s=request.arrival_s,
            first_token_s=request.first_token_s,
            last_token_s=request.last_token_s,
            prompt_tokens=reply.ask.prompt_tokens,
            tokens=request.tokens,
            verify_steps=request.verify_steps,
            level=request.level,
            finish=finish or plan.finish,
            faults=sorted(plan.faults),
        )
        for kind, last_words in (("die-mid-round", ILLEGAL_ACCESS), ("cuda-traceback", SIZE_MISMATCH)):
            if kind in plan.faults:
                sys.stderr.write(last_words)
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        if "segfault" in plan.faults:
            faulthandler.enable()
            os.kill(os.getpid(), signal.SIGSEGV)

    def _write_start(self) -> None:
        grandchild: int | None = None
        if "leave-grandchild" in self._options.fault:
            grandchild = subprocess.Popen(["sleep", str(GRANDCHILD_S)], start_new_session=True).pid
        log(f"server_args={asdict(self._options)}")
        self._truth.write(
            "start",
            time_s=time.monotonic(),
            pid=os.getpid(),
            grandchild_pid=grandchild,
            noise_seed=self._noise_seed,
            launch_factor=self._engine.launch_factor,
            round_factor=self._engine.round_factor,
            arguments={**asdict(self._options), "api_key": None},
            timing=asdict(timing_of(self._options)),
            acceptance=None if self._acceptance is None else asdict(self._acceptance),
        )

    def _write_exit(self) -> None:
        late_s = sorted(self._lateness_s)
        wall_s = time.monotonic() - self._started_s
        facts = {
            "steps": len(late_s),
            "late_median_s": late_s[len(late_s) // 2] if late_s else None,
            "late_p99_s": late_s[len(late_s) * 99 // 100] if late_s else None,
            "late_max_s": late_s[-1] if late_s else None,
            "cpu_share": time.process_time() / wall_s,
        }
        self._truth.write("exit", time_s=time.monotonic(), **facts)
        log(f"Shutting down. Host lateness: {facts}")

    def _log_step(self, step: Step) -> None:
        if step.prefill:
            tokens = sum(request.prefill_tokens for request, _ in step.emissions)
            log(
                f"Prefill batch, #new-seq: {len(step.emissions)}, #new-token: {tokens}, "
                f"#running-req: {self._engine.running}, #queue-req: {self._engine.waiting}"
            )
        self._log_tokens += sum(tokens for _, tokens in step.emissions)
        self._decode_steps += not step.prefill
        if step.prefill or self._decode_steps % DECODE_LOG_STEPS:
            return
        self._throughput = self._log_tokens / (step.deadline_s - self._log_deadline_s)
        self._log_tokens, self._log_deadline_s = 0, step.deadline_s
        held = sum(request.prefill_tokens + request.tokens for request, _ in step.emissions)
        accept = ""
        if (mean := self._mean_acceptance()) is not None:
            accept = f"accept len: {mean:.2f}, accept rate: {self._accept_rate(mean):.2f}, "
        log(
            f"Decode batch, #running-req: {len(step.emissions)}, #token: {held}, token usage: 0.00, {accept}"
            f"cuda graph: True, gen throughput (token/s): {self._throughput:.2f}, #queue-req: {self._engine.waiting}"
        )

    def _mean_acceptance(self) -> float | None:
        if self._engine.verify_steps == 0 or "no-acceptance" in self._options.fault:
            return None
        return self._engine.accepted / self._engine.verify_steps

    def _accept_rate(self, mean: float) -> float:
        return (mean - 1) / self._options.speculative_num_steps

    # HTTP

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=0, middlewares=[self._guard])
        for path in ("/health", "/health_generate"):
            application.router.add_get(path, self._health)
        for path in ("/server_info", "/get_server_info"):
            application.router.add_get(path, self._server_info)
        for path in ("/model_info", "/get_model_info"):
            application.router.add_get(path, self._model_info)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/v1/loads", self._loads)
        if self._options.enable_metrics:
            application.router.add_get("/metrics", self._metrics)
        application.router.add_route("*", "/flush_cache", self._flush_cache)
        application.router.add_post("/slow_down", self._slow_down)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/completions", self._completions)
        return application

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """The key check, and errors as JSON."""
        key = self._options.api_key
        is_open = request.path.startswith(("/health", "/metrics"))
        if key is not None and not is_open and request.headers.get("Authorization") != f"Bearer {key}":
            return json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except BadRequestError as error:
            return json_response(error.body, status=400)
        except web.HTTPException as error:
            return json_response({"detail": error.reason}, status=error.status)

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, chat=True)

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, chat=False)

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        ask = read_ask(await http.read(), chat=chat, default_model=self._options.model_path)
        faults = self._next_faults()
        if "http-500" in faults:
            return json_response(error_body("KV cache pool is full", "InternalServerError", 500), status=500)
        if "hang" in faults:
            os.kill(os.getpid(), signal.SIGSTOP)
        plan = plan_reply(ask, faults)
        request = self._engine.submit(
            arrival_s=time.monotonic(),
            prefill_tokens=ask.prompt_tokens - plan.cached_tokens,
            output_tokens=plan.tokens,
            prompt=ask.prompt_hash,
        )
        reply = Reply(ask, plan, request, cache_report=self._options.enable_cache_report)
        self._replies[request] = reply
        self._wake.set()
        try:
            return await (self._stream(http, reply) if ask.stream else self._answer(http, reply))
        finally:
            # The client went away before the end.
            if request in self._replies:
                self._engine.cancel(request)
                self._account(reply, finish="cancelled")

    def _next_faults(self) -> frozenset[str]:
        self._asked += 1
        late = self._asked - self._options.fault_after - 1
        if late < 0 or late % self._options.fault_every:
            return frozenset()
        return frozenset(self._options.fault) & REQUEST_FAULTS.keys()

    async def _stream(self, http: web.Request, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await reply.started.wait()
        await response.prepare(http)
        # Head and first events leave in one write. What follows goes past aiohttp's writer, in the same chunked
        # framing: a coroutine for each token of 250 streams would cost more than all the rest.
        await response.write(reply.take_pending())
        if isinstance(http.transport, asyncio.Transport):
            reply.attach(http.transport)
        while "slow-drip" in reply.plan.faults:
            await asyncio.sleep(DRIP_S)
            reply.drip()
        await reply.done.wait()
        if "truncated" in reply.plan.faults:
            reply.cut()
        if "restart" in reply.plan.faults:
            asyncio.get_running_loop().call_later(RESTART_S, os.execv, sys.executable, sys.orig_argv)
        return response

    async def _answer(self, http: web.Request, reply: Reply) -> web.StreamResponse:
        await reply.done.wait()
        if "error-in-stream" in reply.plan.faults:
            return json_response(error_body("KV cache pool is full", "InternalServerError", 500), status=500)
        if reply.plan.faults & {"truncated", "silent-end"} and http.transport is not None:
            http.transport.close()
        return json_response(reply.whole())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if time.monotonic() >= self._ready_s else 503)

    async def _models(self, _: web.Request) -> web.Response:
        name = self._options.model_path
        model = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": CONTEXT_TOKENS,
        }
        return json_response({"object": "list", "data": [model]})

    async def _model_info(self, _: web.Request) -> web.Response:
        name = self._options.model_path
        return json_response(
            {
                "model_path": name,
                "served_model_name": name,
                "tokenizer_path": name,
                "is_generation": True,
                "weight_version": "default",
                "load_format": "auto",
                "model_type": "emulated",
                "architectures": ["EmulatedForCausalLM"],
            }
        )

    async def _server_info(self, _: web.Request) -> web.Response:
        options = self._options
        speculative = options.speculative_algorithm is not None
        arguments: dict[str, object] = {
            "model_path": options.model_path,
            "tokenizer_path": options.model_path,
            "served_model_name": options.model_path,
            "host": options.host,
            "port": options.port,
            "tp_size": options.tp,
            "max_running_requests": options.max_running_requests,
            "enable_metrics": options.enable_metrics,
            "enable_cache_report": options.enable_cache_report,
            "speculative_algorithm": options.speculative_algorithm,
            "speculative_draft_model_path": options.speculative_draft_model_path,
            "speculative_num_steps": options.speculative_num_steps if speculative else None,
            "speculative_eagle_topk": options.speculative_eagle_topk if speculative else None,
            "speculative_num_draft_tokens": options.speculative_num_draft_tokens if speculative else None,
        }
        state = {**arguments, "last_gen_throughput": self._throughput}
        if (mean := self._mean_acceptance()) is not None:
            state["avg_spec_accept_length"] = mean
        return json_response({**arguments, "status": "ready", "internal_states": [state], "version": VERSION})

    async def _loads(self, _: web.Request) -> web.Response:
        now = datetime.now(UTC)
        load: dict[str, object] = {
            "timestamp": now.timestamp(),
            "dp_rank": 0,
            "num_running_reqs": self._engine.running,
            "num_waiting_reqs": self._engine.waiting,
            "max_running_requests": self._options.max_running_requests,
            "gen_throughput": self._throughput,
            "cache_hit_rate": 0.0,
        }
        if (mean := self._mean_acceptance()) is not None:
            load["speculative"] = {"accept_length": mean, "accept_rate": self._accept_rate(mean)}
        return json_response({"timestamp": now.isoformat(), "version": VERSION, "loads": [load]})

    async def _flush_cache(self, _: web.Request) -> web.Response:
        text = (
            "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
            "the operation will not be performed.)\n"
        )
        if self._engine.running or self._engine.waiting:
            return web.Response(status=400, text=text)
        self._engine.new_round()
        self._truth.write("flush", time_s=time.monotonic(), round_factor=self._engine.round_factor)
        return web.Response(text=text)

    async def _slow_down(self, http: web.Request) -> web.Response:
        sleep_s = read_object(await http.read()).get("forward_sleep_time")
        if not isinstance(sleep_s, int | float | None):
            raise validation_error("float_parsing", "forward_sleep_time", "Input should be a valid number")
        self._engine.extra_step_s = float(sleep_s or 0)
        return json_response(None)

    async def _metrics(self, _: web.Request) -> web.Response:
        engine = f'engine_type="unified",model_name="{self._options.model_path}"'
        rank = f'{engine},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        lines: list[str] = []

        def add(name: str, kind: str, text: str, samples: Sequence[tuple[str, float]]) -> None:
            lines.extend((f"# HELP sglang:{name} {text}", f"# TYPE sglang:{name} {kind}"))
            lines.extend(f"sglang:{name}{{{labels}}} {float(value)}" for labels, value in samples)

        by_kind = [
            (f'{engine},is_streaming="{str(stream).lower()}"', counters) for stream, counters in self._counters.items()
        ]
        add("prompt_tokens_total", "counter", "Prompt tokens.", [(at, it.prompt_tokens) for at, it in by_kind])
        add("generation_tokens_total", "counter", "Output tokens.", [(at, it.generation_tokens) for at, it in by_kind])
        add("num_requests_total", "counter", "Requests processed.", [(at, it.requests) for at, it in by_kind])
        cached = [(f'cache_source="device",{engine}', float(self._cached_tokens))]
        add("cached_tokens_total", "counter", "Cached prompt tokens.", cached)
        if self._acceptance is not None and "no-acceptance" not in self._options.fault:
            add("spec_verify_calls_total", "counter", "Verify steps.", [(engine, self._verify_steps)])
            add("spec_accept_length", "gauge", "Mean acceptance length.", [(rank, self._mean_acceptance() or 0.0)])
        add("num_running_reqs", "gauge", "Running requests.", [(rank, self._engine.running)])
        add("num_queue_reqs", "gauge", "Waiting requests.", [(rank, self._engine.waiting)])
        add("gen_throughput", "gauge", "Output tokens per second.", [(rank, self._throughput)])
        return web.Response(text="\n".join(lines) + "\n", headers={"Content-Type": "text/plain; version=0.0.4"})


def log(line: str) -> None:
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}\n")
    sys.stderr.flush()


# Command line


def pairs(text: str) -> tuple[tuple[str, float], ...]:
    """`all:0.1,10:0.05` as (("all", 0.1), ("10", 0.05))."""
    try:
        return tuple((key.strip(), float(value)) for key, value in (pair.split(":") for pair in text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"wanted pairs such as 10:0.5,30:1.5, seen {text!r}") from error


def step_anchors(text: str) -> tuple[tuple[int, float], ...]:
    return tuple((positive(batch), step_ms) for batch, step_ms in pairs(text))


def slowdowns(text: str) -> Slowdown:
    losses = dict(pairs(text))
    everywhere = losses.pop("all", 0.0)
    try:
        return Slowdown(
            everywhere=everywhere, at_level=tuple((positive(level), loss) for level, loss in losses.items())
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def fault_kind(text: str) -> str:
    is_number = text.removeprefix(SLOW_START).replace(".", "", 1).isdecimal()
    if text not in {*REQUEST_FAULTS, *PROCESS_FAULTS} - {f"{SLOW_START}SECONDS"} and not (
        text.startswith(SLOW_START) and is_number
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join((*REQUEST_FAULTS, *PROCESS_FAULTS))}")
    return text


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a whole number from 1 on, seen {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Every flag; docs/emulator.md describes them."""
    kinds = "\n".join(f"  {kind:22} {text}" for kind, text in {**REQUEST_FAULTS, **PROCESS_FAULTS}.items())
    made = argparse.ArgumentParser(
        prog="python -m perf.emulator",
        description=__doc__,
        epilog=f"kinds of --fault:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    server = made.add_argument_group("as SGLang's")
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=int, required=True)
    server.add_argument("--model-path", default="emulated/model")
    server.add_argument("--tp", "--tp-size", type=positive, default=1)
    server.add_argument("--api-key")
    server.add_argument("--enable-metrics", action="store_true")
    server.add_argument("--enable-cache-report", action="store_true")
    server.add_argument("--max-running-requests", type=positive, default=1024)
    server.add_argument("--speculative-algorithm")
    server.add_argument("--speculative-draft-model-path")
    server.add_argument("--speculative-num-steps", type=positive, default=2)
    server.add_argument("--speculative-eagle-topk", type=positive, default=1)
    server.add_argument("--speculative-num-draft-tokens", type=positive, default=4)
    model = made.add_argument_group("time")
    model.add_argument("--profile", choices=tuple(PROFILES), default="default")
    model.add_argument("--step-ms", type=step_anchors, metavar="BATCH:MS,...", help="decode step by batch size")
    model.add_argument("--prefill-ms", type=float, default=PREFILL_MS, help="base of a prefill step")
    model.add_argument("--prefill-token-ms", type=float, default=PREFILL_TOKEN_MS, help="prefill of one prompt token")
    model.add_argument("--acceptance", type=float, help="mean acceptance length")
    model.add_argument("--speed", type=float, default=1.0, help="divides all times")
    noise = made.add_argument_group("noise and planted changes")
    noise.add_argument("--launch-cv", type=float, default=0.0, help="spread of all times between launches")
    noise.add_argument("--round-cv", type=float, default=0.0, help="spread of all times between flushes")
    noise.add_argument("--noise-seed", type=int)
    noise.add_argument("--slowdown", type=slowdowns, default=Slowdown(), metavar="LEVEL:FRACTION,...")
    faults = made.add_argument_group("faults")
    faults.add_argument("--fault", type=fault_kind, action="append", default=[], metavar="KIND")
    faults.add_argument("--fault-after", type=int, default=0, metavar="N", help="requests served well first")
    faults.add_argument("--fault-every", type=positive, default=1, metavar="M", help="then every M-th fails")
    made.add_argument("--truth", type=Path, metavar="FILE", help="what really happened, as JSON lines")
    return made


def read_options(arguments: Sequence[str]) -> Options:
    """The command line as Options. Exits with 2 and a sentence where it cannot be."""
    made = parser()
    given = vars(made.parse_args(arguments))
    options = Options(**{**given, "fault": tuple(given["fault"])})
    try:
        engine_of(options, noise_seed=0)
    except ValueError as error:
        made.error(str(error))
    if options.speculative_algorithm is None and options.acceptance is not None:
        made.error("--acceptance needs --speculative-algorithm: without it nothing is drafted")
    if options.speculative_algorithm is None and PROFILES[options.profile].acceptance is not None:
        made.error(f"--profile {options.profile} needs --speculative-algorithm: it is one of a speculative server")
    if options.speed <= 0:
        made.error(f"--speed must be above 0, seen {options.speed}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Serve until told to stop; the exit code."""
    options = read_options(arguments)
    if "exit-at-start" in options.fault:
        sys.stderr.write(OUT_OF_MEMORY)
        return 1

    async def serve() -> None:
        await Server(options).run()

    try:
        asyncio.run(serve())
    except OSError as error:
        log(f"cannot serve on {options.host}:{options.port}: {error}. Choose another --port or --truth")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
