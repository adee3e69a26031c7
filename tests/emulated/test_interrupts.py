"""A measurement that is cut short leaves no server and nothing that could be promoted; two at once do not meet."""

import configparser
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from perf import record
from tests.emulated.inner import PACED, REPOSITORY, Desk, alive_with, started, wait_until

#: A server that ignores SIGTERM is killed after ten seconds.
TEARDOWN_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MidRound:
    """A command whose server has answered one of sixty requests of a round."""

    desk: Desk
    process: subprocess.Popen[str]
    token: str
    below: tuple[psutil.Process, ...]

    def end(self) -> tuple[int, str]:
        """Wait for its end, and for that of all it had started; its exit code and what it showed."""
        wait_until(lambda: not alive_with(self.token), "no server is left", TEARDOWN_LIMIT_S)
        wait_until(lambda: not any(map(_alive, self.below)), "no supervisor and no pytest is left", TEARDOWN_LIMIT_S)
        out, error = self.process.communicate(timeout=TEARDOWN_LIMIT_S)
        return self.process.returncode, out + error

    def refuse_promotion(self) -> None:
        """Its campaign is there, not complete, and of no use to promote or check."""
        folder = self.desk.folders()[-1]
        assert not record.read(folder).complete
        promoted = self.desk.perf("promote", "--reason", "x")
        assert promoted.code == 1
        assert f"campaign {folder.name} is not complete" in promoted.screen
        assert not self.desk.baselines.exists()
        assert self.desk.perf("check").code == 64


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def mid_round(folder: Path, *flags: str, tox: bool = False) -> Iterator[MidRound]:
    desk = Desk(folder)
    token = f"emulated/{uuid.uuid4().hex}"
    truth = folder / "truth.jsonl"
    suite = desk.suite(
        {"plain": (*PACED, "--model-path", token, "--truth", str(truth), *flags)},
        levels=(1,),
        workload="min_requests = 60\nrequests_per_stream = 1\nwarmup_requests = 0",
    )
    command, _ = desk.pytest_command("-m", "perf", f"--perf-suite={suite}", "tests/perf")
    if tox:
        command = [sys.executable, "-m", "tox", "run", "-c", str(_tox_file(folder, command))]
    with started(command) as process:
        wait_until(lambda: truth.exists() and '"request"' in truth.read_text(), "the first request is answered")
        assert alive_with(token)
        below = tuple(psutil.Process(process.pid).children(recursive=True))
        yield MidRound(desk=desk, process=process, token=token, below=below)


def _tox_file(folder: Path, command: list[str]) -> Path:
    """An environment that runs the command under the time limits of the repository's own tox file."""
    ours = configparser.ConfigParser(interpolation=None)
    ours.read(REPOSITORY / "tox.ini")
    limits = "\n".join(f"{key} = {ours['testenv'][key]}" for key in ("interrupt_timeout", "terminate_timeout"))
    path = folder / "tox.ini"
    path.write_text(
        f"[tox]\nenv_list = measure\n\n[testenv]\npackage = skip\nchange_dir = {REPOSITORY}\n{limits}\n"
        f"allowlist_externals = *\ncommands = {' '.join(command)}\n"
    )
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_pytest_ends_server_and_campaign_and_the_exit_code_says_interrupted(
    tmp_path: Path, number: signal.Signals
) -> None:
    with mid_round(tmp_path) as running:
        running.process.send_signal(number)
        code, screen = running.end()
        assert code == pytest.ExitCode.INTERRUPTED
        assert f"KeyboardInterrupt: {number.name}" in screen
        assert "not complete: it cannot be promoted" in screen
        running.refuse_promotion()


def test_nothing_is_left_after_pytest_was_killed(tmp_path: Path) -> None:
    with mid_round(tmp_path) as running:
        running.process.kill()
        code, _ = running.end()
        assert code == -signal.SIGKILL
        running.refuse_promotion()


def test_a_second_ctrl_c_does_not_cut_the_teardown_short(tmp_path: Path) -> None:
    with mid_round(tmp_path, "--fault", "ignore-sigterm") as running:
        log = next(tmp_path.glob("campaigns/*/plain-1/server.log"))
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda: "SIGTERM" in log.read_text(), "the server was asked to end")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            running.process.send_signal(number)
        code, screen = running.end()
        assert code == pytest.ExitCode.INTERRUPTED
        assert "INTERNALERROR" not in screen
        running.refuse_promotion()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_tox_ends_what_it_runs(tmp_path: Path, number: signal.Signals) -> None:
    with mid_round(tmp_path, tox=True) as running:
        running.process.send_signal(number)
        code, _ = running.end()
        assert code != 0
        running.refuse_promotion()


def test_ctrl_c_at_a_terminal_that_reaches_tox_and_pytest_alike_ends_both(tmp_path: Path) -> None:
    with mid_round(tmp_path, tox=True) as running:
        os.killpg(running.process.pid, signal.SIGINT)
        code, screen = running.end()
        assert code != 0
        assert "KeyboardInterrupt: SIGINT" in screen
        running.refuse_promotion()


def test_two_campaigns_at_once_take_neither_ports_nor_folders_of_each_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"plain": PACED}, gate="max_launches = 2\nmargin = 0.1", suite="")
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: desk.measure(suite, "--perf-max-launches=2"), range(2))
    for run in (first, second):
        assert run.words() == {"small/plain/c002": "NO_BASELINE"}, run.screen
    promoted = desk.perf("promote", "--reason", "x")
    assert promoted.code == 0, promoted.screen
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda _: desk.measure(suite), range(2)))
    assert [run.code for run in runs] == [0, 0], [run.screen for run in runs]
    folders = desk.folders()
    assert len(folders) == 4
    assert all(record.read(folder).complete for folder in folders)
    assert all((folder / "plain-2" / "server.log").stat().st_size for folder in folders)
