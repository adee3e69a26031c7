"""Who outlived a run is named by what the run noted, and nobody else ever is."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from perf import leftovers
from perf.files import MACHINE_FOLDER_ENV, FileError
from perf.leftovers import MARK
from perf.supervisor import Birth, Note, Order, machine

DEAD = Birth(pid=1, began="never")

NOTE = Note(
    launch="eagle3-1",
    log="/x/20260201-020000/eagle3-1/server.log",
    command=("serve", "--api-key", "[secret]"),
    began_at="2026-02-01T02:00:00+00:00",
    machine=machine(),
    runner=DEAD,
    supervisor=DEAD,
    server=DEAD,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MACHINE_FOLDER_ENV, str(tmp_path))
    return leftovers.new_note().parent


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """To be killed in the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def keep(note: Note, mark: str = "0123456789abcdef") -> Path:
    path = leftovers.new_note().with_stem(mark)
    path.write_text(json.dumps(asdict(note)))
    return path


def found_pids(patience_s: float = 0.0) -> list[int]:
    return [process.pid for each in leftovers.find(patience_s) for process in each.processes]


def began(processes: list[int], code: str, env: dict[str, str] | None = None) -> int:
    """A process in a session of its own that does something and says so; what it prints first is a pid of another."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os, sys, time\n{code}\nprint(os.getpid(), flush=True)\ntime.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
        start_new_session=True,
    )
    processes.append(process.pid)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.stdout.close()
    processes.append(pid)
    return pid


#: Says its own pid and stays.
STAYS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def orphaned(env: dict[str, str]) -> str:
    """Forks, so that the first of the session dies and one stays in it that has no other environment than this."""
    return f"if os.fork(): os._exit(0)\nos.execve(sys.executable, [sys.executable, '-c', {STAYS!r}], {env})"


#: Forks twice, each time into a session of its own, and closes all that it had open but the pipe to us.
DAEMON_TWICE = "for _ in range(2):\n    if os.fork(): os._exit(0)\n    os.setsid()\nos.close(0); os.closerange(2, 256)"


def test_a_server_whose_pytest_and_supervisor_are_gone_is_named_with_how_it_began(processes: list[int]) -> None:
    pid = began(processes, "", {MARK: "0123456789abcdef"})
    keep(NOTE)

    found = leftovers.find(0.0)

    (name,) = (process.name for each in found for process in each.processes)
    assert [str(each) for each in found] == [
        f"{pid} {name}: of launch eagle3-1, begun 2026-02-01T02:00:00+00:00, "
        "log /x/20260201-020000/eagle3-1/server.log, by `serve --api-key '[secret]'`"
    ]
    assert leftovers.advice(found) == f"kill -9 {pid}"
    assert (
        leftovers.origin([pid, os.getpid()]) == f"pid {pid} is of " + str(found[0]).partition("of ")[2].split(", by")[0]
    )


def test_who_became_a_daemon_twice_and_closed_everything_is_found_by_the_mark(processes: list[int]) -> None:
    pid = began(processes, DAEMON_TWICE, {MARK: "0123456789abcdef"})
    keep(NOTE)

    assert found_pids() == [pid]


def test_who_has_no_environment_to_see_is_found_by_the_session_though_its_first_is_gone(processes: list[int]) -> None:
    pid = began(processes, orphaned({}))
    keep(replace(NOTE, server=Birth(pid=os.getsid(pid), began="whenever its first was born")))
    assert Birth.of(os.getsid(pid)) is None
    assert psutil.Process(pid).environ() == {}

    assert found_pids() == [pid]


def test_whoever_is_below_one_that_is_found_is_named_too(processes: list[int]) -> None:
    popen = f"subprocess.Popen([sys.executable, '-c', {STAYS!r}], env={{}}, start_new_session=True)"
    first = f"import subprocess\n{popen}\ntime.sleep(600)"
    pid = began(processes, first, {MARK: "0123456789abcdef"})
    keep(NOTE)

    assert found_pids() == sorted([psutil.Process(pid).ppid(), pid])


def test_a_launch_whose_pytest_lives_leaves_nobody(processes: list[int]) -> None:
    pid = began(processes, "", {MARK: "0123456789abcdef"})
    path = keep(replace(NOTE, runner=Birth.of(os.getpid())))

    assert found_pids() == []
    assert path.exists()
    assert f"pid {pid} is of launch eagle3-1" in leftovers.origin([pid])  # asked of a GPU, it is told all the same


def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it(processes: list[int]) -> None:
    pid = began(processes, "")
    born = Birth.of(pid)
    assert born is not None
    path = keep(replace(NOTE, server=Birth(pid=pid, began="earlier"), runner=replace(born, began="earlier")))

    assert found_pids() == []
    assert not path.exists()  # nobody lives of it
    keep(replace(NOTE, server=born))
    assert found_pids() == [pid]


def test_notes_of_an_earlier_start_of_the_machine_go_and_those_of_another_container_stay(processes: list[int]) -> None:
    pid = began(processes, "", {MARK: "0123456789abcdef"})
    born = Birth.of(pid)
    earlier = keep(replace(NOTE, server=born, machine="another-boot " + machine().split()[1]))
    assert found_pids() == []
    assert not earlier.exists()
    elsewhere = keep(replace(NOTE, server=born, machine=machine().split()[0] + " pid:[1]"))
    assert found_pids() == []
    assert elsewhere.exists()


@pytest.mark.parametrize("text", ["", "{", '{"launch": "x"}', "\x00"])
def test_a_damaged_note_names_nobody_and_stays(processes: list[int], text: str) -> None:
    began(processes, "", {MARK: "0123456789abcdef"})
    path = keep(NOTE)
    path.write_text(text)

    assert found_pids() == []
    assert path.read_text() == text


def test_what_a_supervisor_is_still_ending_is_waited_for(processes: list[int]) -> None:
    pid = began(processes, "", {MARK: "0123456789abcdef"})
    ends = f"import os, time; time.sleep(2); os.kill({pid}, 9); time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", ends]) as supervisor:
        path = keep(replace(NOTE, supervisor=Birth.of(supervisor.pid)))
        assert found_pids(patience_s=0.0) == [pid]
        assert found_pids(patience_s=60.0) == []
        assert not path.exists()


def test_a_folder_that_others_could_write_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(FileError, match="is not a folder of this user alone"):
        leftovers.find()


def test_strangers_in_a_session_whose_number_was_given_anew_are_not_named(processes: list[int]) -> None:
    pid = began(processes, orphaned({"A": "1"}))
    note = replace(NOTE, server=Birth(pid=os.getsid(pid), began="before"))
    keep(note)
    assert Birth.of(os.getsid(pid)) is None  # the first of their session has gone, too

    assert found_pids() == []
    assert leftovers.origin([pid]) == ""


@pytest.mark.parametrize(
    "note",
    [
        replace(NOTE, runner=Birth(pid=-1, began="1")),
        replace(NOTE, supervisor=Birth(pid=0, began="1")),
        replace(NOTE, server=Birth(pid=0, began="1")),
    ],
)
def test_a_note_with_a_number_that_no_process_has_names_nobody_and_stays(note: Note) -> None:
    path = keep(note)

    assert found_pids() == []
    assert path.exists()


@pytest.mark.parametrize("where", ["", "   "])
def test_a_note_that_does_not_say_of_which_machine_it_is_names_nobody(where: str) -> None:
    keep(replace(NOTE, machine=where))
    assert found_pids() == []


@pytest.mark.parametrize("where", [machine(), "another-boot pid:[1]"])
def test_a_note_that_cannot_be_removed_names_nobody(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def refused(_path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, f"read-only, {missing_ok}")

    path = keep(replace(NOTE, machine=where))
    with monkeypatch.context() as patched:  # root may remove anything, save where it may not mount
        patched.setattr(Path, "unlink", refused)
        assert found_pids() == []
    assert path.exists()


def test_a_launch_in_a_folder_whose_name_is_not_utf_8_leaves_a_note_that_is_read(
    tmp_path: Path, processes: list[int]
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    path = leftovers.new_note()
    order = Order(
        name="plain-1",
        note_path=str(path),
        command=(sys.executable, "-c", "import time; time.sleep(600)", os.fsdecode(b"\xe9")),
        env=dict(os.environ) | {MARK: path.stem},
        cwd=str(folder),
        log_path=str(folder / "server.log"),
        secrets=(),
        grace_s=1.0,
        parent=os.getpid(),
    )
    code = "import sys; from perf.supervisor import main; main()"
    with (folder / "server.log").open("w+b") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    processes.append(supervisor.pid)
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with supervisor:
        supervisor.stdin.write(order.to_json().encode() + b"\n")
        supervisor.stdin.flush()
        supervisor.stdout.readline()
        try:
            assert f"log {tmp_path}/caf\\udce9/server.log" in leftovers.origin(
                [psutil.Process(supervisor.pid).children()[0].pid]
            )
        finally:
            supervisor.stdin.close()
