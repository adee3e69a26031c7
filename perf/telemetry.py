"""How the GPUs fare while a round is measured: clocks, power, heat, errors, and who else is there, as NVML tells it.

A process of its own asks, at low priority: an answer of the driver may take milliseconds, in which whoever reads the
server's streams must not wait. It runs `main` here, talks over a socket pair, which is its stdin, and ends with it, so
with the process that started it. One that dies or hangs costs what it would have told, and never the round.
"""

import os
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import socketpair
from types import TracebackType
from typing import Self, TypeGuard

import psutil
import pynvml

from perf import interpreter
from perf.nvml import (
    PcieLink,
    pcie_most,
    pcie_now,
    pids_on,
    process_name,
    reasons_now,
    slowed_by,
    told,
    utilisation,
)
from perf.rig import GpuProcess, GpuTelemetry

#: A look at eight GPUs is some hundred questions; more of them would tell little more of a round of many seconds.
INTERVAL_S = 0.5

#: For an interpreter to start on a busy machine and to open NVML, which takes seconds where nothing keeps it open.
START_S = 30.0

#: For an answer at the ends of a round: a look at every GPU takes a fraction of it, unless the driver hangs.
ANSWER_S = 5.0

#: A killed process is gone in milliseconds; one that hangs in the driver is left to end with it.
KILL_WAIT_S = 1.0

#: A driver that failed so often is not asked again in this campaign: each try may cost the time of a start.
MAX_TRIES = 3

#: Behind everything that serves or measures, where cores are scarce.
NICENESS = 10

#: Errors that a GPU reported between two looks; what is beyond them is not counted.
MAX_EVENTS = 32

#: Numbers of a driver beyond this are none; a nonsensical number of an error still is that of an error.
MAX_NUMBER = 1e12

#: A process must be seen on a GPU so often to count: the driver lists one for a moment after it has ended.
LEAST_SIGHTINGS = 2

#: Looks at each end of a GPU's work whose clocks are not told: it ramps up, and down.
RAMP_LOOKS = 1

#: Of many, the first are named.
MAX_FOREIGN = 8

#: What the process is given of our environment; the rest may hold keys.
KEPT_ENV = ("PATH", "LD_LIBRARY_PATH")

_UNKNOWN = "clocks and errors of its GPUs are not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    """A round begins; `server` is the process of the server's command."""

    server: int | None


class Sampler:
    """Looks at these GPUs between `begin` and `end`. Its process starts on entry, and by `start` where it was lost.

    `problem` says why the last round was not seen, None where it was.
    """

    def __init__(self, uuids: Sequence[str], *, interval_s: float = INTERVAL_S, answer_s: float = ANSWER_S) -> None:
        self.problem: str | None = None
        self._order = (tuple(uuids), interval_s)
        self._answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._tries = 0
        self._is_open = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def start(self) -> None:
        """See that its process runs. It may take seconds: call it before a warm-up, behind which GPUs would idle."""
        if self._link is not None or self._tries == MAX_TRIES:
            return
        self._tries += 1
        try:
            self._start()
        except OSError as error:  # no file or process is left
            self._end()
            self.problem = f"the process that asks NVML could not be started ({error.strerror}): {_UNKNOWN}"
            return
        answer = self._ask(self._order, START_S)
        if answer is not True:
            self._lost("when it was started" + (f" (NVML answers {answer})" if isinstance(answer, str) else ""))

    def begin(self, server: int | None) -> None:
        """A round begins, of a server whose command is process `server`. Returns once the looks have begun."""
        if self._is_open:  # the round before it was broken off
            self.end()
        if self._link is None:
            return
        self.problem = None
        self._is_open = True
        if self._ask(_Begin(server=server), self._answer_s) is not True:
            self._lost("when the round began")

    def end(self) -> tuple[GpuTelemetry, ...] | None:
        """What was seen since `begin`, of each GPU; None where nothing could be."""
        if self._link is None:
            return None
        self._is_open = False
        seen = self._ask(None, self._answer_s)
        if isinstance(seen, tuple):
            return seen
        self._lost("during the round")
        return None

    def _start(self) -> None:
        ours, theirs = socketpair()
        with theirs:
            self._link = Connection(ours.detach())
            self._process = subprocess.Popen(
                interpreter.command("perf.telemetry"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in KEPT_ENV if name in os.environ},
            )

    def _ask(self, what: object, timeout_s: float) -> object:
        """Its answer; None where none comes in time or at all."""
        assert self._link is not None
        with suppress(EOFError, OSError):
            self._link.send(what)
            if self._link.poll(timeout_s):
                answer: object = self._link.recv()
                return answer
        return None

    def _lost(self, when: str) -> None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)  # its end is seen a moment after that of its socket
        code = self._process.returncode
        how = "did not answer" if code is None else "ended"
        self.problem = f"the process that asks NVML {how} {when}: {_UNKNOWN}"
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_WAIT_S)
        if self._link is not None:
            self._link.close()
        self._process = self._link = None
        self._is_open = False


# In the process.


def main() -> None:
    """Look at GPUs, until the one that started this ends it or ends."""
    link = Connection(0)
    os.nice(NICENESS)
    with suppress(EOFError, OSError):  # the end of the pair
        uuids, interval_s = link.recv()
        try:
            pynvml.nvmlInit()
            boards = [_Board(uuid) for uuid in uuids]
        except pynvml.NVMLError as error:
            link.send(str(error))
            return
        link.send(True)
        while True:
            begun = link.recv()
            window = _Window(boards, begun.server)
            link.send(True)
            next_s = time.monotonic() + interval_s / 2
            while not link.poll(max(0.0, next_s - time.monotonic())):
                window.look()
                next_s = max(next_s + interval_s, time.monotonic())
            link.recv()
            link.send(window.seen())


class _Board:
    """One GPU, and the errors that its driver reports."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.handle: object = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self.index = told(pynvml.nvmlDeviceGetIndex, self.handle)
        self._events: object = None
        with suppress(pynvml.NVMLError):  # not every board and system reports them
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(self.handle, pynvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def xids(self) -> list[int] | None:
        """What it reported since it was asked last; of several at once the driver tells the last one's number."""
        if self._events is None:
            return None
        found: list[int] = []
        for _ in range(MAX_EVENTS):
            event = told(pynvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            found.append(min(int(event.eventData), int(MAX_NUMBER)))
        return found

    def ecc_errors(self, kind: int) -> int | None:
        """Errors of its memory since the driver was loaded."""
        return told(pynvml.nvmlDeviceGetTotalEccErrors, self.handle, kind, pynvml.NVML_VOLATILE_ECC)


class _Seen:
    """What the looks at one GPU found."""

    def __init__(self, board: _Board) -> None:
        self.samples = self.idle_samples = 0
        self.core_mhz: list[int] = []
        self.memory_mhz: list[int] = []
        self.power_w: list[float] = []
        self.celsius: list[int] = []
        self.worked: list[float] = []
        self.links: list[PcieLink] = []
        self.slowed = Counter[str]()
        self.pids = Counter[int]()
        self.knows_reasons = self.knows_pids = False
        # Asked, so that what was reported before the window is not told as its own.
        self.xids: list[int] | None = None if board.xids() is None else []
        self.ecc_before = _ecc_errors(board)

    def look(self, board: _Board) -> None:
        handle = board.handle
        self.samples += 1
        reasons = reasons_now(handle)
        core = told(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
        memory = told(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM)
        power = told(pynvml.nvmlDeviceGetPowerUsage, handle)
        celsius = told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        if reasons is not None:
            self.knows_reasons = True
            self.slowed.update(slowed_by(reasons))
        if reasons is not None and reasons & pynvml.nvmlClocksEventReasonGpuIdle:
            self.idle_samples += 1  # its clocks are those of no work
        else:
            self.core_mhz += [core] if _is_number(core) else []
            self.memory_mhz += [memory] if _is_number(memory) else []
        self.power_w += [power / 1000] if _is_number(power) else []
        self.celsius += [celsius] if _is_number(celsius) else []
        worked, link = utilisation(handle), pcie_now(handle)
        self.worked += [] if worked is None else [worked]
        self.links += [] if link is None else [link]
        pids = pids_on(handle)
        if pids is not None:
            self.knows_pids = True
            self.pids.update(set(pids))


class _Window:
    """The looks at all GPUs of one round."""

    def __init__(self, boards: Sequence[_Board], server: int | None) -> None:
        self._boards = boards
        self._seen = [_Seen(board) for board in boards]
        self._supervisor = _parent(server)
        self._ours: dict[int, bool] = {}
        self._names: dict[int, str] = {}

    def look(self) -> None:
        """Look at every GPU once."""
        for board, seen in zip(self._boards, self._seen, strict=True):
            seen.look(board)
            if seen.xids is not None:
                seen.xids += board.xids() or []
            for pid in seen.pids:
                if pid not in self._ours:
                    self._ours[pid] = self._is_ours(pid)
                    self._names[pid] = process_name(pid)

    def seen(self) -> tuple[GpuTelemetry, ...]:
        """What was found, of each GPU."""
        return tuple(self._summary(board, seen) for board, seen in zip(self._boards, self._seen, strict=True))

    def _summary(self, board: _Board, seen: _Seen) -> GpuTelemetry:
        ecc = [
            None if was is None or now is None or now - was > MAX_NUMBER else max(0, now - was)
            for was, now in zip(seen.ecc_before, _ecc_errors(board), strict=True)
        ]
        core_mhz, memory_mhz = (each[RAMP_LOOKS:-RAMP_LOOKS] for each in (seen.core_mhz, seen.memory_mhz))
        xids = None if seen.xids is None else (*seen.xids, *(board.xids() or []))
        slowed = tuple((why, count / seen.samples) for why, count in sorted(seen.slowed.items()))
        return GpuTelemetry(
            index=board.index,
            uuid=board.uuid,
            samples=seen.samples,
            idle_samples=seen.idle_samples,
            sm_clock_median_mhz=_of(statistics.median, core_mhz),
            sm_clock_mean_mhz=_of(statistics.fmean, core_mhz),
            sm_clock_min_mhz=_of(min, core_mhz),
            memory_clock_median_mhz=_of(statistics.median, memory_mhz),
            power_mean_w=_of(statistics.fmean, seen.power_w),
            power_max_w=_of(max, seen.power_w),
            temperature_max_celsius=max(seen.celsius, default=None),
            utilisation_mean=_of(statistics.fmean, seen.worked),
            slowed_by=slowed if seen.knows_reasons else None,
            ecc_corrected=ecc[0],
            ecc_uncorrected=ecc[1],
            xids=xids,
            foreign=self._foreign(seen),
            pcie=max(seen.links, key=lambda link: link.width * 2**link.generation, default=None),
            pcie_most=pcie_most(board.handle),
        )

    def _foreign(self, seen: _Seen) -> tuple[GpuProcess, ...] | None:
        """Who else was on a GPU. Where nobody of ours was on any, the numbers may be another namespace's."""
        if not seen.knows_pids:
            return None
        others = [pid for pid, count in sorted(seen.pids.items()) if not self._ours[pid] and count >= LEAST_SIGHTINGS]
        if others and not any(self._ours.values()):
            return None
        return tuple(GpuProcess(pid=pid, name=self._names[pid]) for pid in others[:MAX_FOREIGN])

    def _is_ours(self, pid: int) -> bool:
        """Is it the server, or below the supervisor, which adopts what the server leaves?"""
        try:
            return any(each.pid == self._supervisor for each in psutil.Process(pid).parents())
        except psutil.Error:
            return False


def _parent(pid: int | None) -> int | None:
    try:
        return None if pid is None else psutil.Process(pid).ppid()
    except psutil.Error:  # it died: the round says so
        return None


def _ecc_errors(board: _Board) -> tuple[int | None, int | None]:
    corrected = board.ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)
    return corrected, board.ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)


def _is_number(told: int | None) -> TypeGuard[int]:
    """Is it one that a card which works may tell? None, 0 and less are no clock, power or heat."""
    return told is not None and 0 < told <= MAX_NUMBER


def _of(statistic: Callable[[Iterable[float]], float], values: Sequence[float]) -> float | None:
    return float(statistic(values)) if values else None
