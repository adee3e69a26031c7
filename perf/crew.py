"""Processes that share a level, for a server that is faster than one process can read; asked like a `load.Client`.

Stream i of a level belongs to process i mod P, request j to stream j mod level. Each process runs the closed loop of
its own streams and hands no request to another. All of them build their requests and open their connections first, then
get one moment to start at: `time.perf_counter` is one clock for all processes of a host. What they saw becomes one
round by `trace.merged`, after the window.

A process is an interpreter of its own that runs `main` here and talks over a socket pair, which is its stdin. Not one
of `multiprocessing`: that would import anew whatever program we are part of, pytest's for one. Over the pair it is also
given the server's key, which is so neither in its arguments nor in its environment. The pair closes when we end,
however we do, and with it ends the process: it has nothing to clean up.
"""

import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from perf import interpreter
from perf.load import WATCH_INTERVAL_S, Client, Limits, Part, Progress, Target
from perf.trace import Failure, FailureName, RequestTrace, Round, merged
from perf.workload import PlannedRequest, RoundPlan

#: From the last "ready" to the start: what it takes to tell 64 processes of it, many times over.
START_AHEAD_S = 0.05

#: A process that says nothing for so long is not coming back. It reports many times a second while it measures; before
#: and after it builds requests, opens connections and hands over its times, which is seconds of work.
SILENT_S = 120

#: A socket closes a moment before its process can be asked how it ended.
END_SETTLE_S = 1.0

#: A killed process is gone in milliseconds unless it hangs in a driver; waiting longer would not help.
KILL_WAIT_S = 10.0

#: Enough for the last line of a traceback.
TAIL_BYTES = 4096

#: What a process is given of our environment: what finding libraries and trusted certificates depends on. The rest may
#: hold keys.
KEPT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ")


class _Word(Enum):
    """What is said without more: a process is READY; no further request is to be sent, STOP; the server DIED."""

    READY = auto()
    STOP = auto()
    DIED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """One process' part in a pass: its requests alone, at the level of all."""

    plan: RoundPlan
    tokens: int
    start_spread_s: float
    number: int
    of: int


class Crew:
    """A `load.Client` of up to `processes` processes, as many as a level has streams; they start when first needed."""

    def __init__(self, target: Target, *, processes: int, limits: Limits | None = None) -> None:
        self._target = target
        self._limits = limits or Limits()
        self._processes = processes
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def run_round(
        self,
        plan: RoundPlan,
        requested_tokens: int,
        *,
        start_spread_s: float = 0.0,
        died: Callable[[], bool] = lambda: False,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> Round:
        """As `load.Client.run_round`. The requests of a process that ends have failed, all of them."""
        return self._run(plan.level, plan.index, plan.measured, requested_tokens, start_spread_s, died, show)

    def warm_up(self, plan: RoundPlan, requested_tokens: int, *, died: Callable[[], bool] = lambda: False) -> Round:
        """As `load.Client.warm_up`."""
        level = max(1, min(plan.level, len(plan.warmup)))
        return self._run(level, plan.index, plan.warmup, requested_tokens, 0.0, died, lambda _: None)

    def _run(
        self,
        level: int,
        index: int,
        requests: tuple[PlannedRequest, ...],
        tokens: int,
        spread_s: float,
        died: Callable[[], bool],
        show: Callable[[Progress], None],
    ) -> Round:
        workers = self._ready(max(1, min(self._processes, level, len(requests))))
        orders = tuple(
            _Order(
                plan=RoundPlan(level=level, index=index, warmup=(), measured=share),
                tokens=tokens,
                start_spread_s=spread_s,
                number=number,
                of=len(workers),
            )
            for number, share in enumerate(shares(requests, level, len(workers)))
        )
        made, look_s, dead = _Pass(dict(zip(workers, orders, strict=True))), 0.0, False
        try:
            while made.working:
                made.turn()
                if made.working and time.monotonic() < look_s:
                    continue
                look_s = time.monotonic() + WATCH_INTERVAL_S
                if made.progress:
                    show(made.shown())
                if not dead and died():
                    dead = True
                    made.tell(_Word.DIED)
        finally:
            for worker in made.working:  # interrupted: nobody waits for its answers any more
                worker.end()
        return merged(made.rounds)

    def _ready(self, count: int) -> tuple["_Worker", ...]:
        """So many processes, those that have ended replaced. They start side by side."""
        for worker in tuple(self._workers):
            if worker.process.poll() is not None:
                worker.end()
                self._workers.remove(worker)
        known = len(self._workers)
        while len(self._workers) < count:
            self._workers.append(_Worker())
            self._workers[-1].tell((self._target, self._limits))
        for worker in self._workers[known:]:
            worker.hear()  # ready; one that ended instead will say nothing in the pass, either
        return tuple(self._workers[:count])


AnyClient = Client | Crew


def client(target: Target, *, processes: int, limits: Limits | None = None) -> AnyClient:
    """Whoever asks the server with so many processes."""
    return Client(target, limits=limits) if processes == 1 else Crew(target, processes=processes, limits=limits)


def shares(requests: Sequence[PlannedRequest], level: int, of: int) -> Iterator[tuple[PlannedRequest, ...]]:
    """The requests of each process: request j belongs to stream j mod `level`, stream i to process i mod `of`."""
    for number in range(of):
        yield tuple(request for place, request in enumerate(requests) if place % level % of == number)


class _Pass:
    """One pass over the requests of a round or of a warm-up, as it is seen from above."""

    def __init__(self, orders: "Mapping[_Worker, _Order]") -> None:
        self.orders = orders
        self.working = set(orders)
        self.preparing = set(orders)
        self.progress: dict[_Worker, Progress] = {}
        self.rounds: list[Round] = []
        self.start_s: float | None = None
        self.stopped = False
        for worker, order in orders.items():
            worker.tell(order)

    def turn(self) -> None:
        """Hear what is reported, or wait for it for one interval."""
        speaking = wait([worker.link for worker in self.working], WATCH_INTERVAL_S)
        for worker in tuple(self.working):
            if worker.link in speaking:
                self._heard(worker, worker.hear())
            elif time.monotonic() - worker.heard_s > SILENT_S:
                self._lost(worker)
        if not self.preparing and self.start_s is None:
            self.start_s = time.perf_counter() + START_AHEAD_S
            self.tell(self.start_s)

    def tell(self, what: _Word | float) -> None:
        """Tell all that are still at work."""
        for worker in self.working:
            worker.tell(what)

    def shown(self) -> Progress:
        """Where all of them stand together."""
        told = self.progress.values()
        return Progress(
            finished=sum(each.finished for each in told),
            planned=sum(len(order.plan.measured) for order in self.orders.values()),
            chunks=sum(each.chunks for each in told),
            tokens=sum(each.tokens for each in told),
            elapsed_s=max(each.elapsed_s for each in told),
            failed=self.stopped,
        )

    def _heard(self, worker: "_Worker", report: object) -> None:
        if isinstance(report, Progress):
            self.progress[worker] = report
            if report.failed:
                self._stop()
        elif isinstance(report, Round):
            self._ended(worker, report)
        elif report is _Word.READY:
            self.preparing.discard(worker)
        else:
            self._lost(worker)

    def _ended(self, worker: "_Worker", seen: Round) -> None:
        self.rounds.append(seen)
        self.working.discard(worker)
        self.preparing.discard(worker)
        if any(request.failure for request in seen.requests):
            self._stop()

    def _lost(self, worker: "_Worker") -> None:
        detail = f"a process of the client ended: {worker.how_it_ended()}"
        worker.end()
        self._ended(worker, lost(self.orders[worker].plan, self.orders[worker].tokens, self.start_s, detail))

    def _stop(self) -> None:
        """One request has failed: no further one is sent by anybody."""
        if not self.stopped:
            self.stopped = True
            self.tell(_Word.STOP)


def lost(plan: RoundPlan, tokens: int, start_s: float | None, detail: str) -> Round:
    """What is left of a part whose process ended: which of its requests were answered is not known any more."""
    now_s = time.perf_counter()
    zero_s = now_s if start_s is None else start_s
    failure = Failure(name=FailureName.CONNECTION, detail=detail)
    requests = tuple(
        RequestTrace(
            index=request.index,
            prompt_id=request.prompt_id,
            sent_s=0.0,
            chunk_times_s=(),
            chunk_tokens=None,
            output_tokens=None,
            prompt_tokens=None,
            cached_tokens=None,
            ended_s=max(0.0, now_s - zero_s),
            failure=failure,
        )
        for request in plan.measured
    )
    return Round(
        level=plan.level,
        index=plan.index,
        planned_requests=len(requests),
        requested_tokens=tokens,
        requests=requests,
        zero_s=zero_s,
    )


class _Worker:
    """One process, seen from above. What it prints, a traceback if anything, is kept in a file without a name."""

    def __init__(self) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        ours, theirs = socket.socketpair()
        with theirs:
            for bound in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # within a message, too
                ours.setsockopt(socket.SOL_SOCKET, bound, struct.pack("ll", SILENT_S, 0))
            self.link: Connection = Connection(ours.detach())
            self.process = subprocess.Popen(
                interpreter.command("perf.crew"),
                stdin=theirs.fileno(),
                stdout=self._printed,
                stderr=self._printed,
                env={name: os.environ[name] for name in KEPT_ENV if name in os.environ},
            )
        self.heard_s = time.monotonic()

    def tell(self, what: object) -> None:
        """Say something; to one that has ended in vain, which is found out when it is heard."""
        self.heard_s = time.monotonic()
        with suppress(OSError):
            self.link.send(what)

    def hear(self) -> object:
        """The next report, or None from one that has ended."""
        try:
            report: object = self.link.recv()
        except (EOFError, OSError):
            return None
        self.heard_s = time.monotonic()
        return report

    def how_it_ended(self) -> str:
        """In words, with the last line that it printed."""
        try:
            code = self.process.wait(END_SETTLE_S)
        except subprocess.TimeoutExpired:
            return f"it said nothing for {SILENT_S} s and was killed"
        seen = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - TAIL_BYTES))
        printed = self._printed.read().decode(errors="replace").strip().splitlines()
        return f"{seen}: {printed[-1]}" if printed else seen

    def end(self) -> None:
        """Leave nothing of it; a second time it does nothing."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_WAIT_S)
        self.link.close()
        self._printed.close()


# In the process.


class _Ears:
    """Hears what is said to this process, in a thread of its own, and ends it with the one that started it."""

    def __init__(self, link: Connection) -> None:
        self.orders: SimpleQueue[_Order] = SimpleQueue()
        self.stopped = threading.Event()
        self.died = threading.Event()
        self._link = link
        self._starts: SimpleQueue[float] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def gate(self) -> None:
        """Say that all is prepared, and return at the moment at which everybody starts."""
        self._link.send(_Word.READY)
        time.sleep(max(0.0, self._starts.get() - time.perf_counter()))

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:  # to the end of the pair
                self._take(self._link.recv())
        os._exit(0)

    def _take(self, said: object) -> None:
        if isinstance(said, _Order):
            self.stopped.clear()
            self.died.clear()
            self.orders.put(said)
        elif isinstance(said, float):
            self._starts.put(said)
        else:
            (self.stopped if said is _Word.STOP else self.died).set()


def main() -> None:
    """Be one process of a crew, until the one that started it ends it or ends."""
    link: Connection = Connection(0)
    target, limits = link.recv()
    ears = _Ears(link)
    with Client(target, limits=limits) as asking:
        link.send(_Word.READY)
        while True:  # to the end of the pair, see `_Ears`
            order = ears.orders.get()
            part = Part(number=order.number, of=order.of, gate=ears.gate, stopped=ears.stopped.is_set)
            link.send(
                asking.run_round(
                    order.plan,
                    order.tokens,
                    start_spread_s=order.start_spread_s,
                    part=part,
                    died=ears.died.is_set,
                    show=link.send,
                )
            )
