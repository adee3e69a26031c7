"""A run that was killed with all its supervisors is not the next one's noise; two real runs never measure at once."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest

from perf import leftovers, measure, rig_lock, suite_file
from perf.capacity import Capacity
from perf.files import MACHINE_FOLDER_ENV
from perf.load import Limits
from perf.record import Order
from perf.rig import GpuProcess, GpuState
from perf.rig_lock import Need, RigLock
from perf.server import ServerError, ServerSpec, launch
from tests.emulated.inner import PACED, Desk, started, wait_until
from tests.unit.simulated import RIG

#: What a server leaves behind: a daemon that was made twice, and a child that left its session and closed everything.
LEAVING = """
import signal, socket
signal.signal(signal.SIGHUP, signal.SIG_IGN)

def leave(name, times):
    if os.fork():
        return
    for _ in range(times):
        os.setsid()
        if os.fork():
            os._exit(0)
    with open(name + ".part", "w") as out:
        out.write(str(os.getpid()))
    os.rename(name + ".part", name)
    os.closerange(0, 256)
    time.sleep(600)

leave("child", 1)
leave("daemon", 2)
"""


def supervisor_of(pytest_process: subprocess.Popen[str]) -> psutil.Process:
    """The one that supervises a launch of the suite, by its command line."""
    below = psutil.Process(pytest_process.pid).children()
    return next(each for each in below if any("perf.supervisor" in word for word in each.cmdline()))


def kill_with_supervisor(process: subprocess.Popen[str]) -> None:
    """Kill a pytest and the supervisor of its server so that neither sees the other end."""
    supervisor = supervisor_of(process)
    supervisor.suspend()
    process.send_signal(signal.SIGSTOP)
    supervisor.kill()
    process.kill()
    process.wait()


def test_who_outlives_pytest_and_supervisor_is_named_by_the_next_run_which_measures_when_they_are_gone(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    path = desk.suite({"served": desk.stranger(LEAVING)}, name="stranger", suite="", gate="max_launches = 1")
    command, _ = desk.pytest_command("-m", "perf", f"--perf-suite={path}", "tests/perf")
    survivors: list[int] = []
    try:
        with started(command) as process:
            for name in ("child", "daemon"):
                wait_until((tmp_path / name).exists, f"the server left its {name} behind")
                survivors.append(int((tmp_path / name).read_text()))
            holder = f"pid {process.pid} of "
            assert any(who.startswith(holder) and str(desk.folders()[-1]) in who for who in rig_lock.holders())
            kill_with_supervisor(process)
        assert all(map(psutil.pid_exists, survivors))
        assert rig_lock.holders() == ()  # they do not hold what their pytest held

        refused = desk.measure(path)
        assert refused.code == 1
        said = refused.item("stranger/served/c002").message
        assert "processes of an earlier run that was killed still live" in said
        assert "launch served-1, begun 20" in said
        assert str(desk.folders()[-1] / "served-1" / "server.log") in said
        assert "stranger.py" in said
        assert "End them: kill -9 " in said
        assert {int(pid) for pid in said.rpartition("kill -9 ")[2].split()[:2]} == set(survivors)
        assert len(desk.folders()) == 1
        assert all(map(psutil.pid_exists, survivors))  # nobody that we did not start is ended
        doctor = desk.perf("doctor", f"--suite={path}")
        assert doctor.code == 1
        (line,) = (each for each in doctor.out.splitlines() if "of an earlier run that was killed there live" in each)
        assert line.startswith("UNFIT  left ")
        assert all(f"{pid} " in line for pid in survivors)
    finally:
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)

    for name in ("child", "daemon"):
        (tmp_path / name).unlink()
    measured = desk.measure(path)
    assert measured.words() == {"stranger/served/c002": "NO_BASELINE"}, measured.screen
    left = [int((tmp_path / name).read_text()) for name in ("child", "daemon")]
    assert not any(psutil.pid_exists(pid) for pid in left)  # a supervisor that lives ends them
    assert leftovers.find() == ()


def test_a_second_real_run_is_refused_at_once_and_an_emulated_one_is_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    real = desk.suite({"served": desk.stranger()}, name="stranger", suite="", gate="max_launches = 1")
    emulated = desk.suite({"plain": PACED}, gate="max_launches = 1")
    with RigLock((Need(name="machine", alone=True),), "campaign /x/20260201-020000"):
        refused = desk.measure(real)
        assert refused.code == 1
        said = refused.item("stranger/served/c002").message
        assert f"this machine is being measured on by pid {os.getpid()} of " in said
        assert "campaign /x/20260201-020000. Two at once would measure each other: wait for it, or end it" in said
        assert desk.folders() == []
        looked = desk.perf("doctor", f"--suite={real}", "--noise", "stranger/served/c002")
        assert looked.code == 1
        assert looked.out.count(f"measured on by pid {os.getpid()} of ") == 2, looked.out
        assert "tok/s" not in looked.out
        looked = desk.perf("doctor", f"--suite={emulated}")
        assert (
            f"note   others      on other GPUs, or while nothing real is measured here: pid {os.getpid()}" in looked.out
        )

        measured = desk.measure(emulated)
        assert measured.words() == {"small/plain/c002": "NO_BASELINE"}, measured.screen
        checked = desk.perf("check", store=False)
        assert "small/plain/c002" in checked.out


# What a launch leaves on its port and on the GPUs

#: Gives its listening socket to somebody who is not below its supervisor.
GIVING = """
import socket
class Handler(Handler):
    def do_GET(self):
        if self.path == "/give":
            with socket.socket(socket.AF_UNIX) as to:
                to.connect("heir")
                socket.send_fds(to, [b"x"], [self.server.fileno()])
        self.answer(200, {"data": [{"id": "x"}]})
"""
HEIR = """
import socket, time
with socket.socket(socket.AF_UNIX) as at:
    at.bind("heir"); at.listen(); print("up", flush=True)
    given = socket.recv_fds(at.accept()[0], 1, 1)
    print("given", flush=True); time.sleep(600)
"""


def spec(desk: Desk, code: str) -> ServerSpec:
    return ServerSpec(
        name="served-1",
        command=desk.stranger(code),
        python=None,
        env=(),
        cwd=desk.folder,
        ready_path="/health",
        ready_timeout_s=60.0,
        model=None,
        api_key=None,
    )


def test_who_listens_on_the_port_of_a_server_that_has_ended_is_named_and_not_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HEIR]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as heir:
        assert heir.stdout is not None
        try:
            assert heir.stdout.readline() == "up\n"
            server = launch(spec(Desk(tmp_path), GIVING), tmp_path / "server.log")
            httpx2.get(f"{server.base_url}/give", trust_env=False)
            assert heir.stdout.readline() == "given\n"
            with pytest.raises(ServerError) as caught:
                server.stop()
            assert f"later somebody listens on its port {server.port}: {heir.pid} " in str(caught.value)
            assert "end it, if it is a remnant of the server" in str(caught.value)
            assert heir.poll() is None
            server.stop()  # the port is given back: who listens there is nobody's concern
        finally:
            heir.kill()


#: Gives its port away as soon as it is asked for an answer.
GIVEN_AWAY = """
import socket
class Handler(Handler):
    def do_POST(self):
        if not os.path.exists("given"):
            open("given", "x").close()
            with socket.socket(socket.AF_UNIX) as to:
                to.connect("heir")
                socket.send_fds(to, [b"x"], [self.server.fileno()])
        super().do_POST()
"""
#: Is never ready, and not impressed by SIGTERM; nor are those whom it leaves.
STUBBORN = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{LEAVING}
signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM", flush=True))
class Handler(Handler):
    def do_GET(self):
        self.answer(503, {{}})
"""


def interrupted(measuring: subprocess.Popen[str]) -> str:
    """What a pytest showed that was interrupted and ended so."""
    out, error = measuring.communicate(timeout=60)
    assert measuring.returncode == pytest.ExitCode.INTERRUPTED, out + error
    assert "KeyboardInterrupt: SIGINT" in out
    assert "INVALID" not in out
    return out


def test_an_interrupt_goes_on_though_somebody_has_the_port_of_its_server_and_that_is_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    workload = "min_requests = 60\nrequests_per_stream = 1\nwarmup_requests = 0"
    suite = desk.suite({"given": desk.stranger(GIVEN_AWAY)}, levels=(1,), workload=workload)
    command, _ = desk.pytest_command("-m", "perf", f"--perf-suite={suite}", "tests/perf")
    with (
        subprocess.Popen([sys.executable, "-c", HEIR], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as heir,
        started(command) as measuring,
    ):
        assert heir.stdout is not None
        try:
            assert heir.stdout.readline() == "up\n"
            assert heir.stdout.readline() == "given\n"
            measuring.send_signal(signal.SIGINT)
            out = interrupted(measuring)
        finally:
            heir.kill()
    assert re.search(rf"later somebody listens on its port \d+: {heir.pid} ", out)


def test_an_interrupt_of_a_start_goes_on_though_its_server_leaves_somebody_and_that_is_told(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"served": desk.stranger(STUBBORN)})
    command, _ = desk.pytest_command("-m", "perf", f"--perf-suite={suite}", "tests/perf")
    survivors: list[int] = []
    try:
        with started(command) as measuring:
            wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "daemon").exists(), "two are left behind")
            survivors = [int((tmp_path / name).read_text()) for name in ("child", "daemon")]
            measuring.send_signal(signal.SIGINT)
            (log,) = desk.campaigns.glob("*/served-1/server.log")
            wait_until(lambda: "SIGTERM" in log.read_text(), "the server was asked to end")
            supervisor_of(measuring).kill()
            out = interrupted(measuring)
    finally:
        for pid in survivors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "left processes that did not end" in out
    assert any(f"{pid} " in out for pid in survivors)
    wait_until(lambda: leftovers.find() == (), "nobody is left, and no note of it")


def test_a_launch_is_noted_for_its_user_alone_without_secrets_until_nobody_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "machine"  # other tests leave notes of the dead in theirs
    own.mkdir()
    monkeypatch.setenv(MACHINE_FOLDER_ENV, str(own))
    keyed = spec(Desk(tmp_path), "")
    keyed = replace(keyed, command=(*keyed.command, "--api-key", "sk-0123456789"), api_key="sk-0123456789")
    with launch(keyed, tmp_path / "server.log"):
        folder = leftovers.new_note().parent
        (path,) = folder.glob("*.json")
        assert folder.stat().st_mode & 0o077 == 0
        assert '"--api-key", "[secret]"' in path.read_text()
        assert "sk-0123456789" not in path.read_text()
    assert list(folder.iterdir()) == []

    monkeypatch.setattr(leftovers, "new_note", lambda: tmp_path / "nowhere" / "0123456789abcdef.json")
    with launch(keyed, tmp_path / "server.log") as server:
        (said,) = server.notes
    assert said.startswith("no note of it could be kept: a later run will not find who outlived its supervisor: ")


def test_a_server_that_everybody_may_reach_is_noted(tmp_path: Path) -> None:
    everywhere = spec(Desk(tmp_path), "")
    script = tmp_path / "stranger.py"
    script.write_text(script.read_text().replace('"127.0.0.1"', '"0.0.0.0"'))

    with launch(everywhere, tmp_path / "server.log") as server:
        (note,) = server.notes
    assert note.startswith("it listens on 0.0.0.0: whoever reaches this machine can ask it")
    assert "--host 127.0.0.1" in note


def test_memory_that_is_not_freed_is_told_with_what_it_is_of_before_a_launch_and_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated look at the GPUs: here is none."""
    monkeypatch.setattr(measure, "GPU_SETTLE_S", 1.0)
    state = GpuState(
        index=3,
        uuid="GPU-1",
        processes=(),
        memory_used_bytes=9 * 1024**3,
        slowed_by=(),
        celsius=31,
        persistent=True,
        power_limit_w=600.0,
    )
    said: list[str] = []
    bench = measure.Bench(
        suite=suite_file.load(Desk(tmp_path).suite({"plain": PACED})),
        folder=tmp_path,
        prefix="",
        base_url=None,
        show=measure.Show(line=said.append, live=lambda _: None),
        limits=Limits(),
        capacity=Capacity(RIG, lambda _: None),
        gpus=lambda: (state,),
    )
    bench.say_what_is_left()
    assert said == [
        "after the last launch: GPU 3: 9.0 GiB of its memory are taken and nobody is seen on it; waited 1 s for it; "
        "do: end what runs there, or what an earlier server left: nvidia-smi, and python -m perf doctor"
    ]
    desk = Desk(tmp_path)
    with launch(spec(desk, ""), tmp_path / "server.log") as server:
        assert server.pid is not None
        state = replace(state, processes=(GpuProcess(pid=server.pid, name="python"),))
        order = Order(variant="plain", arm="candidate", ordinal=1, block=1, levels=(2,))
        (reason,) = bench.measure(order).measurements[0].reasons
    assert reason.name == "GPU not ours"
    assert reason.seen.startswith(
        f"GPU 3: others are on it: python (pid {server.pid}); waited 1 s for it; "
        f"pid {server.pid} is of launch served-1, "
    )
    assert str(tmp_path / "server.log") in reason.seen
    said.clear()
    replace(bench, gpus=lambda: (replace(state, processes=(), memory_used_bytes=0),)).say_what_is_left()
    assert said == []
