"""Processes that outlived their pytest and its supervisor: found by what their launch noted, named, never ended.

A supervisor that is killed together with pytest, as by the kernel for want of memory, ends nobody. What the system
still tells of whom they leave is the session, which every server has of its own, and the environment, in which every
launch has a mark of its own. Who left the session and runs with another environment is found only below one that did
not; who stayed in it, only while its first process is there: then its number may be that of a stranger's session.
Where the environment was written over by a title, as SGLang's schedulers do, it does not tell, and the session counts.
"""

import os
import secrets
import shlex
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from perf.files import MACHINE_FOLDER_ENV, FileError, machine_folder, private_folder, read_json
from perf.supervisor import Birth, Note, machine
from perf.text import printable

#: The variable that every server is given, beside its recorded environment: the name of its launch's note.
MARK = "SGLANG_PERF_LAUNCH"

#: A supervisor whose pytest was killed needs the grace time and that of SIGKILL, 20 s together, at most.
ENDING_S = 30.0
POLL_S = 0.1

_NOTE = TypeAdapter(Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Somebody who lives."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.pid} {printable(self.name, 40)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Who lives of a launch; `ending` says that its supervisor is at work on them."""

    note: Note
    processes: tuple[Process, ...]
    ending: bool

    def __str__(self) -> str:
        who = ", ".join(map(str, self.processes))
        return f"{who}: of {_launch(self.note)}, by `{printable(shlex.join(self.note.command), 200)}`"


def new_note() -> Path:
    """Where a launch that is about to begin is to be noted; the stem is its mark. Raises FileError."""
    return _folder() / f"{secrets.token_hex(8)}.json"


def find(patience_s: float = ENDING_S) -> tuple[Leftover, ...]:
    """Who lives of launches of this user whose pytest is gone. Raises FileError.

    What a supervisor is still ending is waited for. Notes of launches of which nobody lives are removed; one that is
    damaged, or of another version, tells of nobody and stays.
    """
    deadline = time.monotonic() + patience_s
    while True:
        found = tuple(_abandoned())
        if not any(each.ending for each in found) or time.monotonic() > deadline:
            return tuple(each for each in found if each.processes)
        time.sleep(POLL_S)


def advice(found: Collection[Leftover]) -> str:
    """The command that ends them all."""
    return "kill -9 " + " ".join(str(process.pid) for each in found for process in each.processes)


def origin(pids: Collection[int]) -> str:
    """Of which launches of this user these processes are, its pytest gone or not; "" of none."""
    with suppress(FileError):
        known = ((path, note, alive(path.stem, note.server)) for path, note in _notes())
        found = ((note, [each.pid for each in living if each.pid in pids]) for _, note, living in known)
        return "; ".join(f"pid {', '.join(map(str, those))} is of {_launch(note)}" for note, those in found if those)
    return ""


def alive(mark: str, server: Birth | None) -> tuple[Process, ...]:
    """Who lives of the launch with this mark, which began with this process; and all below them."""
    found: dict[int, Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone, or another user's
            if process.status() != psutil.STATUS_ZOMBIE and _is_of(process, mark, server):
                for each in (process, *process.children(recursive=True)):
                    found[each.pid] = Process(pid=each.pid, name=each.name())
    return tuple(found[pid] for pid in sorted(found))


def _is_of(process: psutil.Process, mark: str, server: Birth | None) -> bool:
    """Is it of the launch, by its session or its environment? Raises psutil.Error and OSError."""
    in_session = server is not None and os.getsid(process.pid) == server.pid
    leader = Birth.of(server.pid) if server is not None and in_session else None
    if leader is not None and leader == server:
        return True
    environment = process.environ()
    # A title that is written over it leaves none.
    return environment.get(MARK) == mark or (in_session and leader is None and not environment)


def _launch(note: Note) -> str:
    return f"launch {note.launch}, begun {note.began_at}, log {note.log}"


def _folder() -> Path:
    try:
        return private_folder(machine_folder() / f"sglang-perf-launches-{os.getuid()}")
    except FileError as error:
        raise FileError(f"{error}, or name a folder for all users of this machine with {MACHINE_FOLDER_ENV}") from error


def _notes() -> Iterator[tuple[Path, Note]]:
    """Those that hold for the process numbers that we see. Raises FileError."""
    here = machine()
    for path in sorted(_folder().glob("*.json")):
        with suppress(FileError):
            note = read_json(path, _NOTE, "a note of a launch")
            if any(each is not None and each.pid <= 0 for each in (note.runner, note.supervisor, note.server)):
                continue  # damaged: 0 would be the session of the kernel's own threads
            if note.machine == here:
                yield path, note
            elif note.machine.partition(" ")[0] != here.partition(" ")[0]:  # else another container's, maybe at work
                _remove(path)


def _abandoned() -> Iterator[Leftover]:
    for path, note in _notes():
        if note.runner is not None and note.runner.lives():
            continue
        ending = note.supervisor is not None and note.supervisor.lives()
        processes = alive(path.stem, note.server)
        if processes or ending:
            yield Leftover(note=note, processes=processes, ending=ending)
        else:
            _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # gone, or the file system is read-only: it tells of nobody all the same
        path.unlink()
