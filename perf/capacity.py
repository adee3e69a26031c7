"""What the client can carry on this machine, shown on a null server and remembered.

A level is believed only where the client has carried its streams and `ROOM` times its chunks a second. What was shown
is kept in the user's cache for this machine, this version and this Python, so that it costs a second or two once.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import filelock
import psutil
from pydantic import TypeAdapter

import perf
from perf import crew, load, metrics, null_server, server
from perf.files import FileError, read_json, to_json, write_text
from perf.rig import Rig
from perf.validity import MAX_UNREAD_CHUNKS, unread_chunks
from perf.workload import Message, PlannedRequest, RoundPlan

#: The room that is asked for: a round's rate is its mean, and the client must not be near its end at the peaks.
ROOM = 2.0

#: How long the null server sends, in seconds.
SHOWN_S = 1.0

#: Fewer chunks to a stream say little of it, and a longer step only makes the round longer.
MIN_CHUNKS = 4
MAX_STEP_S = 0.5

#: Far beyond what a null server takes on any machine.
LIMITS = load.Limits(first_token_s=20.0, between_tokens_s=10.0, request_s=60.0)

#: Of a rate that `doctor` tries so much must arrive: in a round of a second or two it counts that the last of a wave
#: wait for the first. What was shown is what arrived.
ARRIVED = 0.85

#: A busy moment of the host is not the client's limit.
TRIES = 3

#: Where `doctor` begins to double, and where it ends: beyond what any server sends, and near what the null server can.
FIRST_RATE = 8_000.0
LAST_RATE = 128_000.0
DOCTOR_STREAMS = 256

#: Proofs that are kept; a case asks for one, and the best of them stand for many.
MAX_PROOFS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """So many chunks a second over so many streams were carried by so many processes."""

    streams: int
    processes: int
    chunks_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    host: str
    proofs: tuple[Proof, ...]


_KEPT = TypeAdapter(_Kept)


class Capacity:
    """What was shown on one machine. `show` says what is being done; a file that cannot be written is done without."""

    def __init__(self, rig: Rig, show: Callable[[str], None]) -> None:
        cores = len(psutil.Process().cpu_affinity() or ())
        self._host = f"{rig.machine} {rig.cpu} {cores} {rig.kernel} {perf.__version__} {platform.python_version()}"
        self._file = cache_file()
        self._show = show
        self.proofs: tuple[Proof, ...] = self._read()
        self.why_not = ""  # why the last proof failed

    def carried(self, streams: int, processes: int) -> float:
        """The highest rate that was shown with as many streams or more, by as many processes or fewer; 0.0 if none."""
        fit = (each for each in self.proofs if each.streams >= streams and each.processes <= processes)
        return max((each.chunks_s for each in fit), default=0.0)

    def prove(self, streams: int, chunks_s: float, processes: int) -> float:
        """The rate carried, `chunks_s` or more where it was shown before or can be shown now."""
        for _ in range(TRIES):
            if (carried := self.carried(streams, processes)) >= chunks_s:
                return carried
            self._show(f"showing on a null server that the client carries {chunks_s:,.0f} chunks/s")
            # A little more than is asked: the next round is never of exactly the same rate.
            wanted = Proof(streams=streams, processes=processes, chunks_s=max(1.25 * chunks_s, streams / MAX_STEP_S))
            self._show_and_keep(wanted, chunks_s)
        return self.carried(streams, processes)

    def explore(self) -> float:
        """Double the rate until it is not carried; the highest that was."""
        rate = FIRST_RATE
        while rate <= LAST_RATE:
            proof = Proof(streams=DOCTOR_STREAMS, processes=1, chunks_s=rate)
            self._show(f"client: {rate:,.0f} chunks/s over {DOCTOR_STREAMS} streams")
            known = self.carried(proof.streams, 1) >= ARRIVED * rate
            if not known and not any(self._show_and_keep(proof, ARRIVED * rate) for _ in range(TRIES)):
                break
            rate *= 2
        return self.carried(DOCTOR_STREAMS, 1)

    def _show_and_keep(self, wanted: Proof, needed: float) -> bool:
        shown = _shown(wanted, needed)
        if isinstance(shown, str):
            self.why_not = shown
            return False
        self._keep(replace(wanted, chunks_s=min(shown, wanted.chunks_s)))
        return True

    def _read(self) -> tuple[Proof, ...]:
        if self._file is None:
            return ()
        try:
            kept = read_json(self._file, _KEPT, "a record of what the client can carry")
        except FileError:  # none yet, or damaged: it is shown again
            return ()
        return kept.proofs if kept.host == self._host else ()

    def _keep(self, proof: Proof) -> None:
        self.proofs = (*(each for each in self.proofs if not _covers(proof, each)), proof)[-MAX_PROOFS:]
        if self._file is None:
            return
        with suppress(FileError, OSError, filelock.Timeout):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{self._file}.lock", timeout=1.0):
                # Another session may have shown something meanwhile.
                others = (each for each in self._read() if not any(_covers(one, each) for one in self.proofs))
                self.proofs = tuple(dict.fromkeys((*others, *self.proofs)))[-MAX_PROOFS:]
                write_text(self._file, to_json(asdict(_Kept(host=self._host, proofs=self.proofs)), indent=1) + "\n")


def _covers(proof: Proof, one: Proof) -> bool:
    """Does `proof` show whatever `one` shows?"""
    return proof.streams >= one.streams and proof.processes <= one.processes and proof.chunks_s >= one.chunks_s


def cache_file() -> Path | None:
    """In the user's cache (XDG Base Directory Specification); None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"))
    return folder / "sglang-perf" / "capacity.json" if folder.is_absolute() else None


def _shown(wanted: Proof, needed: float) -> float | str:
    """Two requests to a stream, in lock step as a batch engine sends: the chunks a second that arrived and were read in
    time, `needed` or more of those `wanted`; or why they did not."""
    step_s = wanted.streams / wanted.chunks_s
    chunks = max(MIN_CHUNKS, round(SHOWN_S / step_s / 2))
    requests = tuple(
        PlannedRequest(index=index, prompt_id="null", messages=(Message(role="user", content=f"{index:016x}"),))
        for index in range(2 * wanted.streams)
    )
    plan = RoundPlan(level=wanted.streams, index=0, warmup=requests[: wanted.streams], measured=requests)
    spec = server.ServerSpec(
        name="null",
        command=(
            sys.executable,
            "-m",
            "perf.null_server",
            "--port",
            "{port}",
            "--burst",
            "--step-ms",
            f"{1000 * step_s:.9f}",
        ),
        python=None,
        env=(),
        cwd=Path(perf.__file__).parents[1],
        ready_path="/health",
        ready_timeout_s=30.0,
        model=null_server.MODEL,
        api_key=None,
    )
    with tempfile.TemporaryDirectory(prefix="sglang-perf-") as folder:
        try:
            with server.launch(spec, Path(folder) / "server.log") as running:
                target = load.Target(
                    base_url=running.base_url,
                    model=running.model,
                    authorization=None,
                    endpoint="chat",
                    temperature=0.0,
                )
                with crew.client(target, processes=wanted.processes, limits=LIMITS) as client:
                    client.warm_up(plan, 1)
                    measured = client.run_round(plan, chunks)
        except server.ServerError as error:
            return f"the null server: {error.reason}"
    summary = metrics.summarize(measured)
    if summary is None:
        failures = [request.failure for request in measured.requests if request.failure]
        return f"a request to the null server failed: {failures[0].detail}" if failures else "not all was asked"
    arrived = summary.output_tokens / summary.window_s
    if arrived < needed:
        return f"{arrived:,.0f} of {wanted.chunks_s:,.0f} chunks/s arrived from the null server"
    if (unread := unread_chunks(measured)) > MAX_UNREAD_CHUNKS:
        return f"about {unread:,.0f} chunks of a stream lay unread"
    return arrived
