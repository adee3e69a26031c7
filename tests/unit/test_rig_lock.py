"""Two runs that would disturb each other never measure at once, and the second is told who is in its way."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from perf import rig_lock
from perf.files import MACHINE_FOLDER_ENV, FileError, machine_folder
from perf.rig import Gpu, Rig
from perf.rig_lock import Need, RigLock, RigTakenError, needs
from perf.suite import Suite
from perf.suite_file import load
from tests.unit.simulated import RIG

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `/tmp` is: all may make files in it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv(MACHINE_FOLDER_ENV, str(shared))
    return shared


def suite(folder: Path, table: str) -> Suite:
    path = folder / "mine.toml"
    path.write_text(
        f'[suite]\nname = "mine"\n{table}\n[workload]\nconcurrency = [1]\noutput_tokens = 8\n'
        '[variants.plain]\ncommand = ["serve", "{port}"]\n'
    )
    return load(path)


def rig(*uuids: str) -> Rig:
    gpu = Gpu(
        name="RTX PRO 6000", uuid="", power_limit_w=None, clocks_mhz=None, persistent=None, pcie=None, nvlinks=None
    )
    return replace(RIG, gpus=tuple(replace(gpu, uuid=uuid) for uuid in uuids))


#: What two suites on a rig of two GPUs need, and one on the processors.
FIRST = (Need(name="machine", alone=False), Need(name="GPU-1", alone=True))
SECOND = (Need(name="machine", alone=False), Need(name="GPU-2", alone=True))
ALL = (Need(name="machine", alone=True),)


@contextmanager
def holder(needed: tuple[Need, ...], then: str = "", *, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds locks, killed in the end; `then` is done before it says so.

    It becomes another user only when it has imported what this one may read, in a folder that it may see.
    """
    code = (
        f"import os, subprocess, sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from perf.rig_lock import Need, RigLock\n"
        f"{'' if user is None else f'os.setuid({user})'}\nlock = RigLock({needed!r}, 'campaign /x/20260201-020000')\n"
        f"{then}\nprint('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        umask=0o077,
        cwd=os.environ[MACHINE_FOLDER_ENV],
        env=os.environ | {MACHINE_FOLDER_ENV: "."},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def refusal(needed: tuple[Need, ...]) -> str:
    with pytest.raises(RigTakenError) as caught:
        RigLock(needed, "mine")
    return str(caught.value)


def test_an_emulated_suite_needs_nothing_and_a_real_one_what_its_servers_may_take(tmp_path: Path) -> None:
    emulated = suite(tmp_path, 'rig = "emulated"')
    on_cpu, on_gpu = suite(tmp_path, ""), suite(tmp_path, 'requires = "gpu"\ngpus = 1')
    machine = rig("GPU-2", "GPU-1")
    gpus = (Need(name="GPU-1", alone=True), Need(name="GPU-2", alone=True))

    assert needs((emulated,), machine) == ()
    assert needs((on_cpu,), machine) == ALL
    assert needs((emulated, on_gpu), machine) == (Need(name="machine", alone=False), *gpus)
    assert needs((on_cpu, on_gpu), machine) == (Need(name="machine", alone=True), *gpus)


def test_the_second_on_a_gpu_is_told_who_has_it_since_when_and_for_what() -> None:
    with holder(FIRST) as first:
        said = refusal(FIRST)
        assert f"GPU GPU-1 is being measured on by pid {first.pid} of " in said
        assert ": campaign /x/20260201-020000. " in said
        assert " since 20" in said
        assert "wait for it, or end it" in said
        assert rig_lock.holders() == (said.partition(" by ")[2].partition(". Two at once")[0],)


def test_runs_on_different_gpus_coexist_and_one_on_the_processors_with_none() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(RigLock(FIRST, "campaign 1"))
        second = stack.enter_context(RigLock(SECOND, "campaign 2"))
        said = refusal(ALL)
        assert "this machine is being measured on by pid" in said
        assert "campaign 1; pid" in said
        assert "campaign 2. Two" in said
        first.release()
        assert "campaign 1" not in refusal(ALL)
        second.release()
        stack.enter_context(RigLock(ALL, "campaign 3"))
        for needed in (FIRST, ALL):
            assert "campaign 3" in refusal(needed)


def test_who_is_refused_holds_nothing_of_what_it_wanted() -> None:
    both = (*FIRST, SECOND[1])
    with RigLock(SECOND, "campaign 2"):
        refusal(both)
        with RigLock(FIRST, "campaign 1"):
            pass
    assert rig_lock.holders() == ()


def test_death_releases_it_though_a_server_that_was_started_lives(folder: Path) -> None:
    then = (
        "server = subprocess.Popen(['sleep', '600'], start_new_session=True, close_fds=False, stdout=2)\n"
        "open('server', 'w').write(str(server.pid))"
    )
    with holder(ALL, then) as first:
        server = int((folder / "server").read_text())
        try:
            refusal(ALL)
            first.send_signal(signal.SIGKILL)
            first.wait()
            with RigLock(ALL, "campaign 2"):
                os.kill(server, 0)
        finally:
            os.kill(server, signal.SIGKILL)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_users_meet_whatever_their_umask_and_each_may_be_first(folder: Path) -> None:
    for first, second in ((None, 65534), (65534, None)):
        with holder(ALL, user=first):
            said = refusal(ALL)
        with holder(ALL, user=second) as other:
            assert f"pid {other.pid} of" in refusal(ALL)
            assert said.partition("pid")[2] not in refusal(ALL)
        for path in folder.iterdir():
            path.unlink()


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "somebody's file", "fifo", "folder"])
def test_what_somebody_planted_in_the_place_of_a_lock_is_not_touched_and_refused(folder: Path, kind: str) -> None:
    precious, path = folder / "precious", folder / "sglang-perf-machine.lock"
    precious.write_text("" if "link" in kind else "precious")
    match kind:
        case "symbolic link":
            path.symlink_to(precious)
        case "hard link":
            path.hardlink_to(precious)
        case "somebody's file":
            precious.rename(path)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()

    with pytest.raises(FileError, match=r"sglang-perf-machine\.lock"):
        RigLock(ALL, "mine")

    assert (path if kind == "somebody's file" else precious).read_text() in ("", "precious")
    assert rig_lock.holders() == ()


def test_a_lock_that_cannot_be_had_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MACHINE_FOLDER_ENV, str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match=r"SGLANG_PERF_LOCK_DIR=.*nowhere: there is no such folder"):
        RigLock(ALL, "mine")


def test_what_is_written_in_a_lock_cannot_steer_a_terminal(folder: Path) -> None:
    with RigLock(ALL, "mine"):
        (folder / "sglang-perf-machine.lock").write_text(
            '{"pid": 1, "user": "\\u001b[2J", "host": "h", "since": "s", "what": "w"}'
        )
        assert "\x1b" not in refusal(ALL)
        for damaged in ('{"pid":', '{"pid":' + "[" * 4000):
            (folder / "sglang-perf-machine.lock").write_text(damaged)
            assert "by a process that does not say who it is." in refusal(ALL)


def test_the_folder_does_not_depend_on_the_user_or_on_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MACHINE_FOLDER_ENV)
    before = machine_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert machine_folder() == before
