"""A free loopback port that no other campaign of this user takes as long as it is held.

Asking the kernel for a free port and passing its number on leaves a gap in which anyone can take it. Here a
file lock closes the gap among our own; a stranger is found by the bind, and after the start by its owner.
"""

import os
import random
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from perf.files import FileError, private_folder

# Below the ephemeral ranges of Linux (32768 on) and macOS (49152 on), from which the kernel gives ports to
# outgoing connections; below 30000, SGLang's own default, which people use by hand. Servers that add a few
# hundred for ports of their own stay below it too.
PORTS = range(20_000, 29_000)
# So many taken in a row out of 9000 means something else is wrong.
MAX_TRIES = 200


class PortError(Exception):
    """No port could be had; the text says why."""


@dataclass(frozen=True, slots=True)
class HeldPort:
    """A port that is ours until `release()`, which may be called twice; the end of the process releases it."""

    number: int
    _lock: FileLock

    def release(self) -> None:
        """Give the port back."""
        self._lock.release()


def hold_port() -> HeldPort:
    """A free port of `PORTS`, locked. Raises PortError."""
    try:
        folder = private_folder(Path(tempfile.gettempdir()) / f"sglang-perf-ports-{os.getuid()}")
    except FileError as error:
        raise PortError(f"no folder for the locks of ports: {error}") from error
    for number in random.sample(PORTS, MAX_TRIES):
        # thread_local=False: whoever stops the server may be another thread than the one that started it.
        lock = FileLock(folder / f"{number}.lock", thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        if _nobody_listens(number):
            return HeldPort(number, lock)
        lock.release()
    raise PortError(f"no free port among {MAX_TRIES} tried of {PORTS.start}-{PORTS.stop - 1}: see `ss -ltnp`")


def _nobody_listens(number: int) -> bool:
    """Binding to all addresses fails when anyone holds the port on any of them; nothing ever listens here."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True
