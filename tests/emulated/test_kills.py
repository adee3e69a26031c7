"""A hundred kills at random moments, of measurements and of whatever writes a record: none leaves or loses anything.

`test_interrupts.py` kills a measurement in mid-round and looks closely; here it is any moment, from the start of the
interpreter to its end, and what is looked at is what must hold after each.
"""

import io
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from perf import record, trace_file
from perf.__main__ import main
from perf.baseline import Store
from perf.files import FileError
from perf.history import History
from tests.emulated.inner import PACED, REPOSITORY, Desk, started

#: How many kills of each; with the seeds of the moments below. As the page has them: docs/faults.md.
KILLS = {"pytest": 60, "promote": 20, "import": 14, "prune": 14}

#: Cores of the smallest machine that runs this.
AT_ONCE = 2

#: A measurement is killed at any moment of its whole length, or up to so long after one of these is in its folder: on a
#: busy machine most of its length is the start of an interpreter.
LANDMARKS = (None, None, "campaign.json", "*/server.log", "*/server.log", "*/traces/*.npz")
BEHIND_S = 0.7

#: Of four kills one is Ctrl-C, the others SIGKILL.
INTERRUPTS = 0.25

#: A kill that comes too late is another moment's; so many tries a kill.
TRIES = 3

#: Servers see that pytest is gone, and end: a second or two, and a busy machine.
TEARDOWN_LIMIT_S = 60.0

#: `main` writes to sys.stdout.
ONE_AT_A_TIME = threading.Lock()


@dataclass(slots=True)
class Figures:
    """What was counted."""

    kills: int = 0
    orphans: int = 0
    half_written: int = 0
    baselines: int = 0
    silent: int = 0
    seen: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """As it stands in docs/faults.md."""
        return (
            f"{self.kills} kills: {self.orphans} orphans, {self.half_written} half-written files, "
            f"{self.baselines} changed baselines, {self.silent} silent passes"
        )


def said(*arguments: str) -> tuple[int, str]:
    """What a verb says, of this process."""
    shown = io.StringIO()
    with ONE_AT_A_TIME, redirect_stdout(shown), redirect_stderr(shown):
        return main(list(arguments)), shown.getvalue()


class Worker:
    """A desk of its own, on which one thing after the other is killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.desk = Desk(folder)
        self.luck = random.Random(seed)
        self.counted = Figures()
        self.token = f"perf-killed-{uuid.uuid4().hex}"
        # In the environment of whatever is ours: servers get another one, and have the token among their arguments.
        self.env = {"XDG_CACHE_HOME": str(folder / self.token)}
        self.suite = self.desk.suite(
            {"plain": (*PACED, "--model-path", self.token)},
            name="killed",
            levels=(1,),
            workload="output_tokens = 8\nmin_requests = 2\nrequests_per_stream = 1\nwarmup_requests = 1",
            gate="margin = 0.5\nalpha = 0.2\nmax_launches = 2",
        )
        self.places = ("--baselines", str(self.desk.baselines), "--campaign-dir", str(self.desk.campaigns))
        first = self.desk.measure(self.suite, env=self.env)
        assert first.words() == {"killed/plain/c001": "NO_BASELINE"}, first.screen
        self.source = self.desk.folders()[-1]
        assert said("promote", "--reason", "first", *self.places)[0] == 0
        self.lasts: dict[str, float] = {}
        self.before = self.stored()

    # What is killed

    def pytest(self, _: int) -> None:
        command, _junit = self.desk.pytest_command("-m", "perf", f"--perf-suite={self.suite}", "tests/perf")
        there = set(self.desk.folders())

        def fresh() -> list[Path]:
            return [folder for folder in self.desk.folders() if folder not in there]

        landmark = self.luck.choice(LANDMARKS)
        behind = None if landmark is None else lambda: any(any(folder.glob(landmark)) for folder in fresh())
        code, alive = self.kill("pytest", command, self.env, behind)
        new = fresh()
        complete = any(self.is_complete(folder) for folder in new)
        served = any(any(folder.glob("*/server.log")) for folder in new)
        self.counted.reached["complete" if complete else "served" if served else "begun" if new else "nothing"] += alive
        if code == 0 and not complete:
            self.counted.silent += 1
        if not complete:
            for folder in new:
                checked, why = said("check", str(folder), "--campaign-dir", str(self.desk.campaigns))
                promoted, _why = said("promote", str(folder), "--reason", "x", *self.places)
                if checked != 64 or promoted == 0:
                    self.counted.silent += 1
                if (folder / record.FILE_NAME).exists() and not damage(folder / record.FILE_NAME):
                    assert "is not complete (interrupted)" in why, why
        self.look(alive)

    def promote(self, number: int) -> None:
        reason = f"{number}-{uuid.uuid4().hex}"
        _, alive = self.kill("promote", self.verb("promote", str(self.source), "--reason", reason), self.env)
        self.look(alive, promoted=reason)

    def import_(self, number: int) -> None:
        nights = [f"2025-{1 + number % 12:02d}-{day:02d},1,{100 + day}.5" for day in range(1, 29)]
        table = self.folder / "nights.csv"
        table.write_text("\n".join(["date,concurrency,tok/s", *nights]) + "\n")
        columns = ("--date", "date", "--level", "concurrency", "--value", "tok/s")
        before = self.nights()
        verb = self.verb("import", str(table), "--suite", "elsewhere", "--variant", f"v{number}", *columns)
        _, alive = self.kill("import", verb, self.env)
        if self.nights() - before not in (0, len(nights)):
            self.counted.half_written += 1
        self.look(alive)

    def prune(self, number: int) -> None:
        """Two more campaigns, of which one goes."""
        data = (self.source / record.FILE_NAME).read_text()
        for name in (f"20250101-0{number:05d}", f"20250102-0{number:05d}"):
            shutil.copytree(self.source, self.desk.campaigns / name)
            (self.desk.campaigns / name / record.FILE_NAME).write_text(data.replace(self.source.name, name, 1))
        _, alive = self.kill("prune", self.verb("prune", "--keep", "2"), self.env)
        assert (self.source / record.FILE_NAME).read_text() == data
        self.look(alive)

    def verb(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "perf", *arguments, *self.places]

    # How

    def kill(
        self, kind: str, command: list[str], env: dict[str, str], behind: Callable[[], bool] | None = None
    ) -> tuple[int, bool]:
        """Kill it at a moment between its start and its usual end, or shortly after something has happened.

        Its exit code, and was it alive then.
        """
        number = signal.SIGINT if self.luck.random() < INTERRUPTS else signal.SIGKILL
        wait_s = self.luck.uniform(0.05, 1.0) * (self.lasts[kind] if behind is None else BEHIND_S)
        began = time.monotonic()
        with started(command, env=env) as process:
            while behind is not None and process.poll() is None and not behind():
                time.sleep(0.01)
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
            alive = process.poll() is None
            process.send_signal(number)
            process.communicate(timeout=TEARDOWN_LIMIT_S)
        if not alive and behind is None:
            self.lasts[kind] = min(self.lasts[kind], time.monotonic() - began)
        return process.returncode, alive

    # What must hold afterwards

    def look(self, alive: bool, promoted: str | None = None) -> None:
        self.counted.kills += alive
        deadline = time.monotonic() + TEARDOWN_LIMIT_S
        while (left := self.ours()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.counted.orphans += len(left)
        self.counted.seen += [f"alive: {each}" for each in left]
        for path in sorted(self.folder.rglob("*")):
            if path.name.startswith(".") and path.name.endswith(".tmp"):
                path.unlink()  # as docs/files.md says
            elif path.is_file() and (why := damage(path)):
                self.counted.half_written += 1
                self.counted.seen.append(f"{path}: {why}")
        now = self.stored()
        if now != self.before and not self.was_promoted(promoted):
            self.counted.baselines += 1
            self.counted.seen.append(f"changed: {self.before.keys() ^ now.keys()}")
        self.before = now

    def ours(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                words = (*process.cmdline(), *process.environ().values())
                if process.status() != psutil.STATUS_ZOMBIE and any(self.token in word for word in words):
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            except (psutil.Error, OSError):
                continue
        return found

    def stored(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.desk.baselines.rglob("*.json")}

    def was_promoted(self, reason: str | None) -> bool:
        with suppress(FileError):
            (found,) = Store(self.desk.baselines).by_case("emulated", "killed", ("plain",)).values()
            return found.promotion.reason == reason
        return False

    def nights(self) -> int:
        """How many there are; -1 where they cannot be read."""
        kept = History.beside(self.desk.campaigns)
        with suppress(FileError):
            return sum(len(kept.read(place)) for place in kept.places())
        return -1

    def is_complete(self, folder: Path) -> bool:
        with suppress(FileError):
            return record.read(folder).complete
        return False

    def run(self, share: int) -> None:
        kinds: dict[str, Callable[[int], None]] = {
            "pytest": self.pytest,
            "promote": self.promote,
            "import": self.import_,
            "prune": self.prune,
        }
        warm = {
            "pytest": self.desk.pytest_command("-m", "perf", f"--perf-suite={self.suite}", "tests/perf")[0],
            "promote": self.verb("promote", str(self.source), "--reason", "again"),
            "import": self.verb("import", str(self.source)),
            "prune": self.verb("prune", "--keep", "9"),
        }
        for kind, command in warm.items():
            began = time.monotonic()
            with started(command, env=self.env) as process:
                shown = "".join(process.communicate())
            assert process.returncode in (0, 1), shown
            self.lasts[kind] = time.monotonic() - began
        self.before = self.stored()
        for kind, act in kinds.items():
            wanted, tries = self.counted.kills + KILLS[kind] // share, 0
            while self.counted.kills < wanted:
                tries += 1
                assert tries <= TRIES * KILLS[kind], f"{kind} ends before it can be killed"
                act(tries)

    def afterwards(self) -> None:
        """Everything works as if nothing had been; on a busy machine a measurement may have to be repeated."""
        assert 0 in (self.desk.measure(self.suite, env=self.env).code for _ in range(TRIES))
        assert said("check", "--campaign-dir", str(self.desk.campaigns))[0] == 0
        assert said("promote", "--reason", "last", *self.places)[0] == 0
        assert said("import", str(self.desk.folders()[-1]), *self.places)[0] == 0
        code, shown = said("prune", "--keep", "1", *self.places)
        assert code == 0, shown
        left = {path.name for path in self.desk.campaigns.iterdir() if not path.name.startswith(".prune.")}
        assert self.source.name in left
        assert all(record.ID.fullmatch(name) for name in left)


def damage(path: Path) -> str | None:
    """Why a file that is there is not whole; None where it is, or where nobody reads it."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".jsonl":
            [json.loads(line) for line in path.read_bytes().splitlines()]
        elif path.suffix == ".npz":
            trace_file.read(path, 1, int(path.stem.partition("-")[2]) - 1)
    except (ValueError, FileError) as error:
        return str(error)
    return None


def test_a_hundred_kills_leave_no_process_no_half_file_no_other_baseline_and_nothing_that_passes(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(seed: int) -> Worker:
        worker = Worker(tmp_path_factory.mktemp("killed"), seed)
        worker.run(AT_ONCE)
        return worker

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        workers = list(pool.map(work, range(AT_ONCE)))
        parts = [worker.counted for worker in workers]
        whole = Figures(*(sum(getattr(each, name) for each in parts) for name in Figures.__slots__[:5]))
        with capsys.disabled():
            sys.stdout.write(f"\n{whole.line()}\n")
        assert whole.kills == sum(KILLS.values()) >= 100
        served = sum(each.reached["served"] for each in parts)
        assert served >= KILLS["pytest"] / 4, f"{served} kills while a server was there: no random moments"
        assert whole.line() in (REPOSITORY / "docs" / "faults.md").read_text(), [each.seen for each in parts]
        list(pool.map(Worker.afterwards, workers))
