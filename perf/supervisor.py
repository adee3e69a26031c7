"""The process between pytest and a server: copies its log, and ends all its descendants whatever happens.

One per launch, in a session of its own. It is told what to start by one JSON line on stdin (`Order`), reports
events as JSON lines on stdout, and writes the server's output, secrets replaced, to stderr, which is the log
file (`Log` bounds it). It stops the server on a line `stop`, on end of file (pytest died, however), and on SIGINT,
SIGTERM, SIGHUP.

    {"event": "started", "pid": 4711}            {"event": "failed", "reason": "command not found: 'x'"}
    {"event": "exited", "code": 1}               {"event": "exited", "signal": "SIGKILL"}
    {"event": "log_failed", "reason": "..."}     {"event": "stopped", "left": ["4712 sglang::scheduler"]}

On Linux orphaned descendants are handed to the supervisor by the kernel, so it knows for sure when nobody is
left. Elsewhere a descendant that was orphaned before it was ever seen is missed, and nothing ends the server
when the supervisor itself is killed. Who outlives a supervisor that was killed is found by the `Note` it left.
"""

import ctypes
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from perf.redaction import Redactor, Secrets

# Killed processes are gone in milliseconds unless they hang in a driver; waiting longer would not help them.
KILL_WAIT_S = 10.0
# How often descendants are looked for while stopping: new ones may be born. Each look reads all of /proc.
SCAN_INTERVAL_S = 0.1
CHUNK_BYTES = 65536
# What may be in the pipe when the server ends (Linux: 1 MiB at most unless root raised it), in chunks.
MAX_DRAIN_CHUNKS = 16
# A server that logs in a loop must not fill the disk overnight. How it started stands at the beginning, how it died at
# the end; a log of ordinary length is never cut.
LOG_HEAD_BYTES = 16 << 20
LOG_TAIL_BYTES = 48 << 20
# How far the end of a line is looked for where a log is cut; a longer line is cut itself.
MAX_LINE_BYTES = 65536
COPY_BYTES = 1 << 20

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to start. `grace_s`: seconds between SIGTERM and SIGKILL. `log_path` is the file that stderr is.

    `name` is the launch's; its `Note` is kept at `note_path` until nobody is left.
    """

    name: str
    note_path: str
    command: tuple[str, ...] = field(repr=False)
    env: dict[str, str] = field(repr=False)  # all of it
    cwd: str
    log_path: str
    secrets: tuple[str, ...] = field(repr=False)
    grace_s: float
    parent: int
    log_head_bytes: int = LOG_HEAD_BYTES
    log_tail_bytes: int = LOG_TAIL_BYTES

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> "Order":
        """The order in that line."""
        values = json.loads(line)
        return cls(**values | {name: tuple(values[name]) for name in ("command", "secrets")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A process, told from any other that has or had its number on this machine since it started."""

    pid: int
    began: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """None when there is none. What is dead and not yet collected still has its number."""
        try:
            if _LINUX:  # in ticks since the machine started: psutil's time moves when the clock is set
                stat = Path(f"/proc/{pid}/stat").read_bytes()
                return cls(pid=pid, began=stat.rpartition(b")")[2].split()[19].decode())
            return cls(pid=pid, began=repr(psutil.Process(pid).create_time()))
        except (OSError, psutil.Error):
            return None

    def lives(self) -> bool:
        """Is it still there, and not dead?"""
        try:
            return Birth.of(self.pid) == self and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """How the processes of a launch began, in a file as long as any may live: `perf.leftovers` reads it.

    `command` is without secrets, `machine` as `machine()` says it, `runner` whoever asked for the launch.
    """

    launch: str
    log: str
    command: tuple[str, ...]
    began_at: str
    machine: str
    runner: Birth | None
    supervisor: Birth | None
    server: Birth | None


def machine() -> str:
    """What process numbers hold for: this start of this machine, and in a container its own numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return str(round(psutil.boot_time(), -2))


def main() -> None:
    """Supervise one server to its end."""
    # Unbuffered, so that nothing after the first line is swallowed.
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    if line:  # else the parent died before it said anything
        Supervisor(Order.from_json(line)).run()


class Supervisor:
    """A single-threaded loop over four things: the order pipe, the server's output, signals, and time."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._secrets = Secrets(order.secrets)
        self._redactor = Redactor(self._secrets)
        self._log = Log(order.log_path, order.log_head_bytes, order.log_tail_bytes)
        self._log_works = True
        self._note = Note(
            launch=order.name,
            log=order.log_path,
            command=self._secrets.redact_argv(order.command),
            began_at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine(),
            runner=Birth.of(order.parent),
            supervisor=Birth.of(os.getpid()),
            server=None,
        )
        self._server = 0
        self._output = -1
        self._known: set[psutil.Process] = set()  # equal by pid and creation time: safe against reused pids
        self._terminated: set[psutil.Process] = set()
        self._selector = selectors.DefaultSelector()
        self._stop_asked = False

    def run(self) -> None:
        """Start, watch, stop."""
        self._hear_signals()
        if _LINUX:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            self._watch_parent()
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ)
        self._keep_note()
        if not self._start():
            self._forget_note()
            return
        while not self._stop_asked:
            self._turn(timeout_s=None)
        left = self._stop()
        self._drain()
        self._write(self._redactor.finish())
        if not left:
            self._forget_note()
        _report("stopped", left=left)

    def _keep_note(self) -> None:
        path = self._order.note_path
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as part:
                part.write(_to_json(asdict(self._note)))
            os.replace(f"{path}.part", path)
        except OSError as error:
            _report("not_noted", reason=str(error))

    def _forget_note(self) -> None:
        with suppress(OSError):  # gone, or it could not be written: then whoever reads it sees that nobody lives
            os.unlink(self._order.note_path)

    # -- what wakes it

    def _hear_signals(self) -> None:
        def note(_number: int, _frame: FrameType | None) -> None:
            """Only there so that Python writes the number to the wake-up pipe."""

        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, note)
        self._wakeup = reader
        self._selector.register(reader, selectors.EVENT_READ)

    def _watch_parent(self) -> None:
        """End of file on stdin does not come while a forked child of pytest holds the pipe's other end."""
        with suppress(OSError):  # Linux before 5.3 or a seccomp filter: stdin must do; or it is dead already
            self._selector.register(os.pidfd_open(self._order.parent), selectors.EVENT_READ)
        self._stop_asked = os.getppid() != self._order.parent

    def _turn(self, timeout_s: float | None) -> None:
        """Wait for something to happen and attend to it."""
        for key, _ in self._selector.select(timeout_s):
            if key.fd == self._output:
                self._copy()
            elif key.fd == self._wakeup:
                numbers = set(os.read(key.fd, CHUNK_BYTES))
                self._stop_asked |= bool(numbers - {signal.SIGCHLD})
            else:  # the parent says stop, closed the pipe, or died: all mean the same
                self._selector.unregister(key.fd)
                self._stop_asked = True
        self._reap()

    # -- the server

    def _start(self) -> bool:
        order = self._order
        if not os.path.isdir(order.cwd):
            _report("failed", reason=f"its working directory is no folder: {order.cwd}")
            return False
        self._output, writer = os.pipe()
        os.set_blocking(self._output, False)
        supervisor = os.getpid()

        def in_child() -> None:
            if _LINUX:  # a second line only: it reaches the direct child, not its children
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != supervisor:
                    os._exit(1)

        try:
            process = subprocess.Popen(
                order.command,
                env=order.env,
                cwd=order.cwd,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                preexec_fn=in_child,  # noqa: PLW1509 (there are no threads here)
            )
        except FileNotFoundError:
            reason = "command not found (or the interpreter its first line names)"
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reason = f"the command cannot be run: {error}"
        else:
            self._server = process.pid
            process.returncode = 0  # all children are reaped here; keep Popen from waiting too
            self._selector.register(self._output, selectors.EVENT_READ)
            server = Birth.of(self._server)  # as a zombie at the latest: it is collected only later
            self._note = replace(self._note, server=server)
            self._keep_note()
            _report("started", pid=self._server, began=server.began if server else "")
            return True
        finally:
            os.close(writer)
        _report("failed", reason=self._secrets.redact(f"{reason}: {order.command[0]}"))
        return False

    def _reap(self) -> bool:
        """Collect the dead, ours and adopted ones. True when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._server:
                self._drain()  # its last words are in the log before its end is known
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    _report("exited", signal=_signal_name(-code))
                else:
                    _report("exited", code=code)
                self._stop_asked = True

    # -- the end

    def _stop(self) -> list[str]:
        """SIGTERM to all, SIGKILL after the grace time to who is left. Returns who survived that."""
        for number, limit_s in ((signal.SIGTERM, self._order.grace_s), (signal.SIGKILL, KILL_WAIT_S)):
            deadline = time.monotonic() + limit_s
            while True:
                # On Linux no child means no descendant: orphans become our children.
                nobody = self._reap()
                if nobody and _LINUX:
                    return []
                living = self._descendants()
                if nobody and not living:
                    return []
                self._signal(living, number)
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    break
                self._turn(min(SCAN_INTERVAL_S, remaining_s))
        return [self._described(process) for process in self._descendants()]

    def _descendants(self) -> list[psutil.Process]:
        """Who is alive of all that ever were seen below us. A zombie is dead, only not yet collected."""
        self._known.update(psutil.Process().children(recursive=True))
        self._known = {process for process in self._known if _lives(process)}
        return list(self._known)

    def _signal(self, processes: list[psutil.Process], number: signal.Signals) -> None:
        for process in processes:
            # SIGTERM once: to many servers a second one means "drop everything".
            if number == signal.SIGTERM and process in self._terminated:
                continue
            self._terminated.add(process)
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:  # changed its user: it is named among those left
                continue

    def _described(self, process: psutil.Process) -> str:
        try:
            command = " ".join(self._secrets.redact_argv(tuple(process.cmdline()))) or process.name()
        except psutil.Error:
            command = "?"
        return f"{process.pid} {command}"

    # -- the log

    def _copy(self) -> bool:
        """Move what is in the pipe to the log. False when there is no more for now."""
        try:
            chunk = os.read(self._output, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(self._output)
            os.close(self._output)
            self._output = -1
            return False
        self._write(self._redactor.feed(chunk))
        return True

    def _drain(self) -> None:
        for _ in range(MAX_DRAIN_CHUNKS):
            if self._output < 0 or not self._copy():
                return

    def _write(self, text: bytes) -> None:
        """To the log; when that fails, nowhere: the server must never block on a full pipe."""
        if not self._log_works:
            return
        try:
            self._log.write(text)
        except OSError as error:
            # Not tried again: a log with a hole in it would mislead.
            self._log_works = False
            _report("log_failed", reason=str(error))


class Log:
    """The log file, which is stderr: its beginning and its end, however much is written.

    Before it would grow over `head_bytes + tail_bytes` it is written anew, without its middle, and takes the place of
    the old one at once. So there is one whole log at every moment, also when the supervisor is killed meanwhile: then
    the old one ends early, and the unfinished one lies beside it as `.part`. `tail -F` follows, `tail -f` does not.
    """

    def __init__(self, path: str, head_bytes: int, tail_bytes: int) -> None:
        self._path = path
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head_end = 0
        self._tail_start = 0  # after the line that says how much was left out
        self._left_out = 0

    def write(self, text: bytes) -> None:
        """Append. Raises OSError."""
        size = os.fstat(2).st_size  # 0 of a device: it is never cut
        if size + len(text) > self._head_bytes + self._tail_bytes:
            self._cut(size)
        _write(2, text)

    def _cut(self, size: int) -> None:
        """Leave out what stands between the head and the last half of what the tail may have."""
        if not self._left_out:
            self._head_end = self._tail_start = _next_line(max(0, self._head_bytes - MAX_LINE_BYTES))
        kept = _next_line(size - self._tail_bytes // 2)
        left_out = self._left_out + kept - self._tail_start
        line = f"\n[{left_out:,} bytes of this log were left out here]\n".encode()
        part = f"{self._path}.part"
        try:
            with open(part, "w+b", buffering=0) as new:
                _copy(0, self._head_end, new.fileno())
                _write(new.fileno(), line)
                _copy(kept, size, new.fileno())
                os.replace(part, self._path)
                os.dup2(new.fileno(), 2)
        except OSError:
            with suppress(OSError):
                os.unlink(part)
            raise
        self._left_out, self._tail_start = left_out, self._head_end + len(line)


def _next_line(position: int) -> int:
    """Where the next line of the log begins; the position itself where none does for long."""
    return position + os.pread(2, MAX_LINE_BYTES, position).find(b"\n") + 1


def _copy(start: int, end: int, to: int) -> None:
    """A range of the log to another file."""
    for position in range(start, end, COPY_BYTES):
        _write(to, os.pread(2, min(COPY_BYTES, end - position), position))


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _report(event: str, **values: str | int | list[str]) -> None:
    try:
        os.write(1, (_to_json({"event": event, **values}) + "\n").encode())
    except OSError:  # the parent is gone; the work goes on
        return


def _to_json(value: dict[str, object]) -> str:
    """As `files.to_json`: half of a surrogate pair, such as a byte of a path, becomes the text of its escape."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: rf"\\u{ord(half[0]):04x}", text)
