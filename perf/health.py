"""How the client itself fares while it measures: its lag, its absences, its share of a core, and its wait for one."""

import asyncio
import time
from array import array
from pathlib import Path

import numpy as np

from perf.trace import ClientHealth

#: The thread's nanoseconds on a core, its nanoseconds of waiting for one though ready, and its time slices
#: (Linux, Documentation/scheduler/sched-stats.rst).
SCHEDSTAT = Path("/proc/thread-self/schedstat")

#: How often the loop is to call, and from when on it counts as away: far above its own turns, and what a timer is late.
BEAT_S = 0.02
AWAY_S = 0.01


class Watch:
    """Begins with the window; made and asked by the thread that reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began_s, self._cpu_s, self._waited_s = time.perf_counter(), time.thread_time(), _waited_s()
        self._away_s = self._longest_s = 0.0
        self._beat_at(loop.time() + BEAT_S)

    def _beat_at(self, due_s: float) -> None:
        self._due_s = due_s
        self._beat = self._loop.call_at(due_s, self._come)

    def _come(self) -> None:
        self._count()
        self._beat_at(self._loop.time() + BEAT_S)

    def _count(self) -> None:
        if (late_s := self._loop.time() - self._due_s) > AWAY_S:
            self._away_s += late_s
            self._longest_s = max(self._longest_s, late_s)

    def health(self, lags_s: "array[float]", *, turnaround_s: float, answering_s: float) -> ClientHealth:
        """The health since the beginning: `lags_s` of every read of which the lag is known, and the sums over all
        requests of the time before each and of the time that it took."""
        self._beat.cancel()
        self._count()
        window_s = max(time.perf_counter() - self._began_s, 1e-9)
        waited_s = _waited_s()
        lags = np.frombuffer(lags_s)
        p50, p99, most = np.percentile(lags, (50, 99, 100)) if lags.size else (None, None, None)
        return ClientHealth(
            processes=1,
            reads=lags.size,
            lag_p50_s=None if p50 is None else float(p50),
            lag_p99_s=None if p99 is None else float(p99),
            lag_max_s=None if most is None else float(most),
            away_share=self._away_s / window_s,
            away_max_s=self._longest_s,
            turnaround_share=turnaround_s / max(turnaround_s + answering_s, 1e-9),
            cpu_share=(time.thread_time() - self._cpu_s) / window_s,
            run_queue_share=None
            if waited_s is None or self._waited_s is None
            else (waited_s - self._waited_s) / window_s,
        )


def _waited_s() -> float | None:
    """How long this thread has waited for a core since its beginning; None where the kernel does not tell."""
    try:
        on_core_ns, waited_ns, _ = map(int, SCHEDSTAT.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return waited_ns * 1e-9 if on_core_ns else None  # a kernel that keeps no count says 0 for all
