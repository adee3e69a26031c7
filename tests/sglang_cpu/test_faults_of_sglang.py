"""The fault matrix on real SGLang on a CPU: nothing passes silently, nobody is left, no stored baseline changes.

docs/faults.md has a row for each. Needs `make_environment.py` to have run.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from perf import record
from perf.server import STOP_GRACE_S
from tests.emulated.inner import Desk, Run, started, wait_until
from tests.emulated.test_teardown import kill_with_supervisor
from tests.sglang_cpu.sessions import ROOT, ask, session

PAGE = ROOT / "docs" / "faults.md"
MODELS = ROOT / ".perf" / "sglang-cpu" / "models"
BASELINE = (
    (ROOT / "perf" / "suites" / "sglang-cpu.toml").read_text(encoding="utf-8").partition("[variants.baseline]")[2]
)
#: Logged when the first answer of a round begins: nobody else asks there, and there is no warm-up.
ANSWERED = '"POST /v1/chat/completions HTTP/1.1" 200 OK'
POLL_S = 0.05
#: A launch is ready after 15 to 35 s where nothing else runs; a server that cannot end by itself is killed after 10 s.
LIMIT_S = 240.0
#: A good server on a shared machine may have to be measured again: its client may have had no core.
TRIES = 3
SPECULATIVE = ("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx")
EAGLE3 = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4", *SPECULATIVE, "--speculative-draft-model-path"),
)
LEADER, SCHEDULER, DETOKENIZER = "sglang.launch_server", "sglang::scheduler", "sglang::detokenizer"

pytestmark = pytest.mark.needs_sglang


def processes(folder: Path) -> tuple[psutil.Process, ...]:
    """Of servers of a suite file in this folder: it is where they work. A scheduler's title tells nothing else."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(process)
    return tuple(found)


def left(folder: Path) -> tuple[psutil.Process, ...]:
    """Those that live though all had the time to end."""
    with suppress(AssertionError):
        wait_until(lambda: not processes(folder), "they end", 2 * STOP_GRACE_S)
    return processes(folder)


def part(folder: Path, title: str) -> psutil.Process:
    """One process of the server that runs; not the shell that may have started it."""
    return next(each for each in processes(folder) if title in each.cmdline()[:3])


def told(path: str, body: object) -> Callable[[Path], None]:
    """Somebody asks the server for what the suite did not ask for."""

    def act(folder: Path) -> None:
        command = part(folder, LEADER).cmdline()
        ask(f"http://127.0.0.1:{command[command.index('--port') + 1]}", path, body)

    return act


def sent(number: signal.Signals, title: str) -> Callable[[Path], None]:
    """Somebody sends a signal to one of its processes."""
    return lambda folder: part(folder, title).send_signal(number)


def end_all(folder: Path) -> None:
    """As `pkill sglang` does."""
    for process in processes(folder):
        process.terminate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a variant, by its arguments, by its table, or by what is done to its server in mid-round; and
    what its verdict says."""

    args: tuple[str, ...] = ()
    change: tuple[str, str] = ("", "")
    act: Callable[[Path], None] | None = None
    reason: str


#: Found by the server's interpreter: once there is a file `raise`, its attention meets two sizes, as a graph may.
RAISES = """
import os
import torch
attention = torch.nn.functional.scaled_dot_product_attention
def planted(*args, **kwargs):
    if os.path.exists("raise"):
        torch.ones(8) + torch.ones(10)
    return attention(*args, **kwargs)
torch.nn.functional.scaled_dot_product_attention = planted
"""
DIED = r"server died: (killed by SIGKILL|it is about to end).*; its log says: .*"

#: By what the suite calls the variant.
FAULTS: dict[str, Fault] = {
    "no-model": Fault(
        args=("--model-path", str(MODELS / "none")),
        reason=r"server did not start: .*exit code 1.*; its log says: OSError: .*models/none",
    ),
    "no-memory": Fault(
        args=("--mem-fraction-static", "0.0001"),
        reason="server did not start: .*; its log says: ValueError: Loaded weights leave no GPU memory",
    ),
    "no-flag": Fault(
        args=("--no-such-flag",),
        reason="server did not start: .*; its log says: .* unrecognized arguments: --no-such-flag",
    ),
    "no-draft": Fault(
        args=(*EAGLE3, str(MODELS / "plain")),
        reason="server did not start: .*; its log says: AttributeError: 'LlamaForCausalLM' object",
    ),
    "other-model": Fault(
        change=("ready_timeout_s", 'model = "another"\nready_timeout_s'),
        reason="wrong server: model: asked another, it serves .*tiny",
    ),
    "no-metrics": Fault(
        args=("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8", *SPECULATIVE),
        change=('"--enable-metrics", ', ""),
        reason="acceptance missing: .*(?s:.*)start it with --enable-metrics",
    ),
    "short-context": Fault(args=("--context-length", "128"), reason="requests failed: .*http_400"),
    "scheduler-killed": Fault(act=sent(signal.SIGKILL, SCHEDULER), reason=f"{DIED}scheduler_0 .*exit code -9"),
    "scheduler-segfault": Fault(act=sent(signal.SIGSEGV, SCHEDULER), reason=f"{DIED}Segfault encountered"),
    "scheduler-raises": Fault(
        change=(f"{ROOT}/tests", f"{{folder}}:{ROOT}/tests"),
        act=lambda folder: (folder / "raise").touch(),
        reason=rf"{DIED}RuntimeError: The size of tensor a \(8\) must match the size of tensor b \(10\)",
    ),
    "scheduler-stopped": Fault(act=sent(signal.SIGSTOP, SCHEDULER), reason="requests failed: .*stalled"),
    "detokenizer-killed": Fault(act=sent(signal.SIGKILL, DETOKENIZER), reason=f"{DIED}detokenizer .*exit code -9"),
    "leader-killed": Fault(act=sent(signal.SIGKILL, LEADER), reason="server died: killed by SIGKILL"),
    "ended": Fault(act=end_all, reason=f"{DIED}exit code -15"),
    "aborted": Fault(act=told("/abort_request", {"abort_all": True}), reason="requests failed: .*aborted"),
    "paused": Fault(act=told("/pause_generation", {"mode": "in_place"}), reason="requests failed: .*stalled"),
    "asked-by-others": Fault(
        act=told("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}),
        reason="server and client disagree: the client saw 1,024 tokens, the server counted 1,088",
    ),
}
INTERRUPTED = (signal.SIGKILL, signal.SIGINT)
#: Beside the faults: one that is well, and one that a shell starts, as a launch script does.
WELL = {
    "good": Fault(reason=""),
    "scripted": Fault(change=("command = [", r"""command = ["sh", "-c", "\"$0\" \"$@\"; exit", """), reason=""),
}


def suite(folder: Path) -> Path:
    """A variant for each fault: the shipped one, changed."""
    (folder / "sitecustomize.py").write_text(RAISES)
    shipped = BASELINE.replace("../../", f"{ROOT}/")
    tables = []
    for name, fault in (WELL | FAULTS).items():
        changed = shipped.replace(*fault.change).replace("{folder}", str(folder))
        tables.append(f"[variants.{name}]{changed}args = {json.dumps(fault.args)}\n")
    path = folder / "faults.toml"
    path.write_text(
        '[suite]\nname = "faults"\nrequires = "cpu"\nmarker = "sglang_cpu"\n\n'
        "[workload]\nconcurrency = [2]\nrequests_per_level = 4\noutput_tokens = 256\nwarmup_requests = 0\n\n"
        "[gate]\nmargin = 0.4\nmax_launches = 1\n\n" + "\n".join(tables)
    )
    return path


def begun(campaign: Path, variant: str) -> bool:
    """Has its first server begun to answer a round?"""
    log = campaign / f"{variant}-1" / "server.log"
    return log.exists() and ANSWERED in log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def planting(desk: Desk) -> Iterator[None]:
    """Within this, what is to be done to a server in mid-round is done, once."""
    stop = threading.Event()

    def watch() -> None:
        to_do = {name: fault.act for name, fault in FAULTS.items() if fault.act is not None}
        while not stop.wait(POLL_S):
            for name in [each for each in to_do if any(begun(campaign, each) for campaign in desk.folders())]:
                to_do.pop(name)(desk.folder)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def mid_round(desk: Desk, path: Path, variant: str) -> Iterator[subprocess.Popen[str]]:
    """A session whose server has begun to answer. Whoever is left of it afterwards is ended."""
    before = desk.folders()
    command, _ = desk.pytest_command("-m", "sglang_cpu", f"--perf-suite={path}", "tests/perf", "-k", f"/{variant}/")
    try:
        with started(command) as process:
            wait_until(
                lambda: any(begun(each, variant) for each in desk.folders() if each not in before),
                "a round has begun",
                LIMIT_S,
            )
            yield process
    finally:
        for each in left(desk.folder):
            each.kill()


@dataclass(frozen=True, slots=True)
class CutShort:
    """A measurement of which pytest was ended in mid-round, and who is left of it."""

    folder: Path
    code: int
    screen: str
    left: tuple[psutil.Process, ...]


class Runs:
    """On one store: a run that is killed with its supervisor, one that is refused, one that is well and promoted; then
    runs that are cut short, and one of a faulty server after the other."""

    def __init__(self, folder: Path) -> None:
        self.desk = desk = Desk(folder)
        path = suite(folder)
        one = ("-m", "sglang_cpu", f"--perf-suite={path}", "tests/perf", "-k", "/good/")

        with mid_round(desk, path, "scripted") as process:
            kill_with_supervisor(process)
            self.survivors = {each.pid: " ".join(each.cmdline()) for each in processes(folder)}
            self.refused = desk.pytest(*one)
            self.advice = f"kill -9 {' '.join(map(str, sorted(self.survivors)))}"
            if self.refused.item("faults/good/c002").message.endswith(f"End them: {self.advice}"):
                subprocess.run(shlex.split(self.advice), check=False)
            self.ended = left(folder) == ()

        for _ in range(TRIES):
            self.good = desk.pytest(*one)
            if self.good.words() == {"faults/good/c002": "NO_BASELINE"}:
                break
        self.promoted = desk.perf("promote", "--reason", "first baseline")
        self.stored = self.store()

        self.cut_short: dict[signal.Signals, CutShort] = {}
        for number in INTERRUPTED:
            with mid_round(desk, path, "good") as process:
                process.send_signal(number)
                out, error = process.communicate(timeout=LIMIT_S)
                self.cut_short[number] = CutShort(desk.folders()[-1], process.returncode, out + error, left(folder))

        junit = folder / "faults.xml"
        with planting(desk):
            done = session(
                folder, path, "-k", " or ".join(f"/{name}/" for name in FAULTS), f"--junitxml={junit}",
                "-p", "tests.emulated.impatient",
            )  # fmt: skip
        self.matrix = Run(code=done.returncode, out=done.stdout, error=done.stderr, junit=junit)
        self.left = processes(folder)

    def store(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.desk.baselines.rglob("*.json")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_sglang_is_invalid_with_the_reason_by_name(runs: Runs, fault: str) -> None:
    item = runs.matrix.item(f"faults/{fault}/c002")
    assert (item.outcome, item.word) == ("failure", "INVALID")
    reason = re.compile(rf"(INVALID|^        ) +{FAULTS[fault].reason}", re.MULTILINE)
    assert reason.search(item.message), item.message
    assert reason.search(runs.matrix.out)


def test_faults_of_sglang_leave_nobody_and_no_baseline_changes_or_can_be_made_of_them(runs: Runs) -> None:
    assert runs.promoted.code == 0, runs.promoted.screen
    assert any(path.endswith("/faults/good.json") for path in runs.stored)
    assert runs.matrix.code == pytest.ExitCode.TESTS_FAILED
    assert "the suite itself failed" not in runs.matrix.screen
    assert runs.left == ()
    promoted = runs.desk.perf("promote", "--reason", "x")
    assert (promoted.code, promoted.out.count("promoted ")) == (1, 0)
    assert [name for name in FAULTS if f"refused   faults/{name}/c002: INVALID: " not in promoted.out] == []
    assert runs.desk.perf("check", store=False).code == 3
    assert runs.store() == runs.stored


@pytest.mark.parametrize("number", INTERRUPTED, ids=[each.name for each in INTERRUPTED])
def test_sglang_dies_with_a_pytest_that_is_cut_short_and_nothing_of_it_can_be_promoted(
    runs: Runs, number: signal.Signals
) -> None:
    cut = runs.cut_short[number]
    assert cut.code == (-signal.SIGKILL if number == signal.SIGKILL else pytest.ExitCode.INTERRUPTED), cut.screen
    assert cut.left == ()
    assert not record.read(cut.folder).complete
    for arguments, code in ((("check",), 64), (("promote", "--reason", "x"), 1)):
        refused = runs.desk.perf(*arguments, cut.folder.name)
        assert refused.code == code
        assert f"{cut.folder.name} is not complete" in refused.screen


def test_sglang_that_outlives_pytest_and_supervisor_is_named_by_the_next_run_and_ended_as_it_advises(
    runs: Runs,
) -> None:
    for title in (LEADER, SCHEDULER, DETOKENIZER):
        assert any(title in command for command in runs.survivors.values()), runs.survivors
    assert runs.refused.code == pytest.ExitCode.TESTS_FAILED
    said = runs.refused.item("faults/good/c002").message
    assert "processes of an earlier run that was killed still live" in said
    assert "launch scripted-1, begun 20" in said
    assert "scripted-1/server.log" in said
    assert "sglang.launch_server" in said
    assert said.endswith(f"End them: {runs.advice}")
    assert runs.ended
    assert runs.good.words() == {"faults/good/c002": "NO_BASELINE"}, runs.good.screen


def test_the_figures_of_real_sglang_are_those_of_the_page(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    words = runs.matrix.words()
    silent = [name for name in FAULTS if words[f"faults/{name}/c002"] != "INVALID"]
    silent += [
        str(number) for number, cut in runs.cut_short.items() if cut.code == 0 or record.read(cut.folder).complete
    ]
    orphans = (*runs.left, *(each for cut in runs.cut_short.values() for each in cut.left))
    now = runs.store()
    changed = [path for path in now.keys() | runs.stored.keys() if now.get(path) != runs.stored.get(path)]
    line = (
        f"{len(FAULTS) + len(runs.cut_short)} faults on SGLang: {len(silent)} silent passes, {len(orphans)} orphans, "
        f"{len(changed)} changed baselines"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")
    page = PAGE.read_text(encoding="utf-8")
    assert line in page
    assert [name for name in FAULTS if f"`{name}`" not in page] == []
