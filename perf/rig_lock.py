"""One measurement at a time: locks that all users of a machine see, and that the end of a process releases.

A file for each GPU, by its UUID, and one for the machine. Who measures on GPUs holds theirs, and shares the machine's
with others that do; who measures real servers on the CPU holds the machine's alone. Emulated suites, whose time is
synthetic, hold nothing.

The locks are of `flock`, on descriptors that are closed in every program we start: a server that survives its pytest
does not hold them. It is found as what it is, by `leftovers`, and on a GPU by whoever looks at its memory.
"""

import fcntl
import json
import os
import pwd
import re
import socket
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from perf.files import FileError, machine_folder
from perf.rig import Rig
from perf.suite import Suite
from perf.text import printable

#: `doctor` holds a lock for a moment to see whether it is held: one that is still held after these tries is.
TRIES = 10
PAUSE_S = 0.05

#: What stands in a lock's file is a line; more is not ours.
MAX_BYTES = 4096

MACHINE = "machine"

#: What a lock's file says of who holds it.
_TOLD = ("pid", "user", "host", "since", "what")


class RigTakenError(Exception):
    """Somebody else measures; the text says who, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A lock that is needed, alone or shared with others."""

    name: str
    alone: bool


def needs(chosen: Iterable[Suite], rig: Rig) -> tuple[Need, ...]:
    """What measuring these suites needs to itself: all GPUs that this process sees, since a server may take any."""
    real = [each for each in chosen if not each.emulated]
    if not real:
        return ()
    gpus = sorted(gpu.uuid for gpu in rig.gpus) if any(each.gpus for each in real) else []
    return (
        Need(name=MACHINE, alone=not all(each.gpus for each in real)),
        *(Need(name=re.sub(r"[^A-Za-z0-9-]", "_", uuid), alone=True) for uuid in gpus),
    )


class RigLock:
    """Locks that are held: until `release()`, or the end of this process. A context manager."""

    def __init__(self, needed: Sequence[Need], what: str) -> None:
        """Take them all or none, in one order for everybody; `what` tells others what for.

        Raises RigTakenError, and FileError where a lock cannot be had at all.
        """
        self._held: list[int] = []
        self._told: list[int] = []
        if not needed:
            return
        folder = machine_folder()
        with ExitStack() as undo:
            undo.callback(self.release)
            for need in needed:
                self._held.append(_locked(folder, need))
            self._told = [held for need, held in zip(needed, self._held, strict=True) if need.alone]
            self.tell(what)
            undo.pop_all()

    def tell(self, what: str) -> None:
        """What it is held for, for whoever comes in its way. That it cannot be written is no reason not to measure."""
        if not self._held:
            return
        user = str(os.getuid())
        with suppress(KeyError):  # a user id without a name
            user = pwd.getpwuid(os.getuid()).pw_name
        since = datetime.now(UTC).isoformat(timespec="seconds")
        values = (os.getpid(), user, socket.gethostname(), since, what[:1000])
        told = json.dumps(dict(zip(_TOLD, values, strict=True))).encode()
        for held in self._told:
            with suppress(OSError):
                os.ftruncate(held, 0)
                os.pwrite(held, told, 0)

    def release(self) -> None:
        """Give them back."""
        while self._held:
            os.close(self._held.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holders() -> tuple[str, ...]:
    """Who measures on this machine, on whatever GPUs. Raises FileError."""
    folder = machine_folder()
    return tuple(dict.fromkeys(who for path in sorted(folder.glob("sglang-perf-*.lock")) if (who := _holder(path))))


def _path(folder: Path, name: str) -> Path:
    return folder / f"sglang-perf-{name}.lock"


def _locked(folder: Path, need: Need) -> int:
    """The descriptor of a lock that is ours. Raises RigTakenError and FileError."""
    path = _path(folder, need.name)
    for _ in range(TRIES):
        held = _opened(path)
        try:
            fcntl.flock(held, (fcntl.LOCK_EX if need.alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(held), os.lstat(path)):
                return held
        except (BlockingIOError, FileNotFoundError):  # held by another; or its file was removed meanwhile
            pass
        except OSError as error:
            os.close(held)
            raise FileError(_failed(path, error.strerror)) from error
        os.close(held)
        time.sleep(PAUSE_S)
    # Of the machine's lock that several share, the others tell who they are.
    who = _holder(path) or "; ".join(holders()) or "a process that does not say who it is"
    what = "this machine" if need.name == MACHINE else f"GPU {need.name}"
    raise RigTakenError(
        f"{what} is being measured on by {who}. Two at once would measure each other: wait for it, or end it; it holds "
        f"{path} as long as it lives"
    )


def _opened(path: Path) -> int:
    """The file of a lock, made where it is not there, for all users to lock. Raises FileError.

    Where everybody may make files, somebody may have made this one: no link is followed, nothing is waited for, and
    what is not such a file is not touched.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    problem: str | None = "it comes and goes"
    for _ in range(TRIES):
        try:
            # Not with O_CREAT: of another user's file the kernel may refuse that (fs.protected_regular).
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            with suppress(FileExistsError):
                try:
                    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                except FileExistsError:
                    raise
                except OSError as error:
                    raise FileError(_failed(path, error.strerror)) from error
                os.fchmod(descriptor, 0o666)  # whatever the umask
                return descriptor
            continue
        except OSError as error:
            problem = error.strerror  # of permissions: it may be a moment old
            time.sleep(PAUSE_S)
            continue
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 and _is_ours(descriptor):
            return descriptor
        os.close(descriptor)
        raise FileError(f"{path} is no lock of this suite: see who made it, and remove it")
    raise FileError(_failed(path, problem))


def _failed(path: Path, why: str | None) -> str:
    return (
        f"{path}: cannot be locked, so nobody knows whether this rig is free: {why}; put that right, or name a folder "
        "for all of its users with SGLANG_PERF_LOCK_DIR"
    )


def _is_ours(descriptor: int) -> bool:
    """Is it empty, or does it begin as `tell` writes it? Anything else in its place is somebody's file."""
    return os.pread(descriptor, 7, 0) in (b"", b'{"pid":')


def _holder(path: Path) -> str | None:
    """Who holds a lock alone; None where nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _who(os.pread(descriptor, MAX_BYTES, 0))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _who(written: bytes) -> str:
    """In words, from what everybody may have written there."""
    try:
        told = json.loads(written)
        pid, user, host, since, what = (printable(str(told[key]), 300) for key in _TOLD)
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a process that does not say who it is"
    return f"pid {pid} of {user} on {host} since {since}: {what}"
