"""A measurement that is cut short leaves no server and nothing that could be promoted; two at once do not meet."""

import configparser
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from perf import record
from tests.emulated.inner import PACED, REPOSITORY, Desk, Run, alive_with, started, wait_until

#: Each scenario is a pytest, a server and, in some, a tox; the start of each is a second or two of one core.
AT_ONCE = 3

#: A server that ignores SIGTERM is killed after ten seconds.
TEARDOWN_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MidRound:
    """A command whose server has answered one of sixty requests of a round."""

    desk: Desk
    process: subprocess.Popen[str]
    token: str
    below: tuple[psutil.Process, ...]

    def end(self) -> "Ended":
        """Wait for its end, then for that of all it had started."""
        out, error = self.process.communicate(timeout=TEARDOWN_LIMIT_S)
        left = tuple(alive_with(self.token))
        wait_until(lambda: not alive_with(self.token), "no server is left", TEARDOWN_LIMIT_S)
        wait_until(lambda: not any(map(_alive, self.below)), "no supervisor and no pytest is left", TEARDOWN_LIMIT_S)
        return Ended(desk=self.desk, code=self.process.returncode, screen=out + error, left=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A measurement that was cut short, all of its processes gone; `left` are the servers alive when it had ended."""

    desk: Desk
    code: int
    screen: str
    left: tuple[int, ...]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def mid_round(folder: Path, *flags: str, tox: bool = False, nohup: bool = False) -> Iterator[MidRound]:
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
    with started(["nohup", *command] if nohup else command) as process:
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


def _second_ctrl_c(running: MidRound) -> None:
    log = next(running.desk.folder.glob("campaigns/*/plain-1/server.log"))
    running.process.send_signal(signal.SIGINT)
    wait_until(lambda: "SIGTERM" in log.read_text(), "the server was asked to end")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        running.process.send_signal(number)


def _to(number: signal.Signals) -> Callable[[MidRound], None]:
    return lambda running: running.process.send_signal(number)


#: What is done to a measurement in mid-round, and how it was started.
SCENARIOS: dict[str, tuple[Callable[[MidRound], None], tuple[str, ...], bool]] = {
    "SIGINT": (_to(signal.SIGINT), (), False),
    "SIGTERM": (_to(signal.SIGTERM), (), False),
    "SIGHUP": (_to(signal.SIGHUP), (), False),
    "SIGKILL": (_to(signal.SIGKILL), (), False),
    "second Ctrl-C": (_second_ctrl_c, ("--fault", "ignore-sigterm"), False),
    "SIGINT to tox": (_to(signal.SIGINT), (), True),
    "SIGTERM to tox": (_to(signal.SIGTERM), (), True),
    "Ctrl-C to tox and pytest": (lambda running: os.killpg(running.process.pid, signal.SIGINT), (), True),
}


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ended]]]:
    """All of them, some at once, since most of their time is waiting."""

    def play(name: str) -> Ended:
        act, flags, tox = SCENARIOS[name]
        with mid_round(folders[name], *flags, tox=tox) as running:
            act(running)
            return running.end()

    folders = {name: tmp_path_factory.mktemp("interrupted") for name in SCENARIOS}
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        yield {name: pool.submit(play, name) for name in SCENARIOS}


def test_under_nohup_a_terminal_may_close(tmp_path: Path) -> None:
    with mid_round(tmp_path, nohup=True) as running:
        running.process.send_signal(signal.SIGHUP)
        answered = (tmp_path / "truth.jsonl").read_text().count('"request"')
        wait_until(lambda: (tmp_path / "truth.jsonl").read_text().count('"request"') > answered + 1, "it goes on")
        assert running.process.poll() is None
        running.process.terminate()
        assert running.end().code != 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_measurement_that_is_cut_short_leaves_no_server_and_no_promotable_campaign(
    scenarios: dict[str, Future[Ended]], name: str
) -> None:
    ended = scenarios[name].result()
    assert ended.code != 0
    folder = ended.desk.folders()[-1]
    assert not record.read(folder).complete
    promoted = ended.desk.perf("promote", "--reason", "x")
    assert promoted.code == 1
    assert f"campaign {folder.name} is not complete" in promoted.screen
    assert not ended.desk.baselines.exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "second Ctrl-C"])
def test_an_interrupted_pytest_ends_its_server_first_and_says_that_it_was_interrupted(
    scenarios: dict[str, Future[Ended]], name: str
) -> None:
    ended = scenarios[name].result()
    assert ended.code == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt: SIG" in ended.screen
    assert "not complete: it cannot be promoted" in ended.screen
    assert "INTERNALERROR" not in ended.screen
    assert ended.left == ()


@pytest.mark.parametrize("name", ["SIGINT to tox", "Ctrl-C to tox and pytest"])
def test_tox_gives_pytest_the_time_to_end_by_itself(scenarios: dict[str, Future[Ended]], name: str) -> None:
    ended = scenarios[name].result()
    assert "not complete: it cannot be promoted" in ended.screen
    assert "measure: exit 2 " in ended.screen
    assert "Traceback" not in ended.screen
    assert ended.left == ()


def test_check_has_no_verdict_for_a_campaign_that_was_cut_short(scenarios: dict[str, Future[Ended]]) -> None:
    checked = scenarios["SIGINT"].result().desk.perf("check", store=False)
    assert checked.code == 64
    assert "is not complete" in checked.error


def test_two_campaigns_at_once_take_neither_ports_nor_folders_of_each_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"plain": PACED})
    first = desk.measure(suite)
    assert first.words() == {"small/plain/c002": "NO_BASELINE"}, first.screen
    assert desk.perf("promote", "--reason", "x").code == 0
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda _: desk.measure(suite), range(2)))
    assert [run.code for run in runs] == [0, 0], [run.screen for run in runs]
    folders = desk.folders()
    assert len(folders) == 3
    for folder in folders:
        campaign = record.read(folder)
        assert campaign.complete
        names = [launch.name for launch in campaign.suites[0].launches]
        assert names
        assert sorted(each.parent.name for each in folder.glob("*/server.log") if each.stat().st_size) == sorted(names)


def test_a_campaign_whose_folder_vanishes_is_told_in_a_sentence_and_what_was_judged_before_is_shown(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    suites = [f"--perf-suite={desk.suite({'plain': PACED}, name=name)}" for name in ("first", "second")]
    command, junit = desk.pytest_command("-m", "perf", *suites, "tests/perf", "--perf-max-launches=1")
    with started(command) as process:
        wait_until(
            lambda: any(desk.campaigns.glob("*/second.plain-1/server.log")), "the second suite is being measured"
        )
        desk.folders()[-1].rename(tmp_path / "elsewhere")
        out, error = process.communicate(timeout=TEARDOWN_LIMIT_S)
    run = Run(code=process.returncode, out=out, error=error, junit=junit)
    assert run.code == 1
    assert run.words() == {"first/plain/c002": "NO_BASELINE", "second/plain/c002": None}
    assert "cannot be written: No such file or directory" in run.item("second/plain/c002").message
    assert "the folder of this campaign was removed: nothing more can be kept; measure again" in run.screen
    assert "1 NO_BASELINE; overall NO_BASELINE" in run.screen
    assert "Traceback" not in run.screen
    assert desk.folders() == []
