"""The whole job on real SGLang on a CPU: start, load, count, judge, end. Needs `make_environment.py` to have run."""

import subprocess
from pathlib import Path

import psutil
import pytest

from perf import record, trace_file
from perf.gate import Word
from perf.verdict import judge
from tests.sglang_cpu.sessions import ROOT, run, session, slowed

SUITE = "sglang-cpu"
LEVELS = (1, 4)
#: Slept before each step of some milliseconds: no noise of a shared CPU is as large.
SLEEP_S = 0.05

pytestmark = pytest.mark.needs_sglang


class Runs:
    """Sessions on one store: the first records, the second is made slow in the middle, the third is made slow and
    restored before anything is measured."""

    def __init__(self, folder: Path) -> None:
        self.folders = [f"--baselines={folder / 'baselines'}", f"--campaign-dir={folder / 'campaigns'}"]
        # Two launches of each bound nothing: how much launches and nights vary is not known then.
        self.first = session(folder, SUITE, "--perf-max-launches=3")
        self.recorded = record.read(record.find(folder / "campaigns", None))
        self.promoted = self.perf("promote", "--reason", "first baseline")
        with slowed(SLEEP_S) as self.told_slow:
            self.slow = session(folder, SUITE, "--perf-max-launches=4", "-k", "c004")
        self.slowed = record.read(record.find(folder / "campaigns", None))
        with slowed(SLEEP_S, None) as self.told_restored:
            self.third = session(folder, SUITE, "--perf-max-launches=2")
        self.judged_folder = record.find(folder / "campaigns", None)
        self.judged = record.read(self.judged_folder)

    def perf(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run("perf", *arguments, *self.folders)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("sglang"))


def test_the_first_run_measures_both_levels_and_asks_for_a_baseline(runs: Runs) -> None:
    assert runs.first.returncode == 1, runs.first.stdout + runs.first.stderr
    assert runs.recorded.complete
    words = {verdict.id: verdict.word for verdict in judge(runs.recorded.suites[0])}
    assert words == {f"{SUITE}/baseline/c001": Word.NO_BASELINE, f"{SUITE}/baseline/c004": Word.NO_BASELINE}


def test_sglang_counts_the_tokens_that_the_client_counts(runs: Runs) -> None:
    folder = runs.judged_folder / "baseline-1"
    for level in LEVELS:
        trace = trace_file.read(trace_file.path(folder, f"c{level:03d}", 0), level, 0)
        asked = trace.round.requested_tokens * len(trace.round.requests)
        assert sum(request.output_tokens or 0 for request in trace.round.requests) == asked
        assert trace.counted is not None
        assert trace.counted.generated == asked


def test_a_server_that_becomes_slow_in_mid_campaign_is_regressed(runs: Runs) -> None:
    assert runs.promoted.returncode == 0, runs.promoted.stdout + runs.promoted.stderr
    assert len(runs.told_slow) == len(runs.slowed.suites[0].launches)
    found = {verdict.id: verdict.word for verdict in judge(runs.slowed.suites[0])}
    assert found[f"{SUITE}/baseline/c004"] is Word.REGRESSED, runs.slow.stdout
    assert runs.slow.returncode == 1


def test_a_server_that_was_restored_is_as_fast_as_before_and_no_faster(runs: Runs) -> None:
    assert len(runs.told_restored) == 2 * len(runs.judged.suites[0].launches)
    words = {verdict.word for verdict in judge(runs.judged.suites[0])}
    # A shared CPU is too noisy to promise PASS.
    assert words <= {Word.PASS, Word.INCONCLUSIVE}, runs.third.stdout
    assert runs.third.returncode == (0 if words == {Word.PASS} else 1)


def test_check_agrees_with_pytest(runs: Runs) -> None:
    check = runs.perf("check", runs.judged.id)
    for verdict in judge(runs.judged.suites[0]):
        assert str(verdict.word) in check.stdout
    assert (check.returncode == 0) == (runs.third.returncode == 0)


def test_sglang_says_who_it_is_and_leaves_nobody_behind(runs: Runs) -> None:
    for launch in runs.judged.suites[0].launches:
        assert launch.server_version == "0.5.23"
        assert launch.model == "tiny"
    alive = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "cwd", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and any("sglang.launch_server" in part or "sglang::" in part for part in process.info["cmdline"] or ())
        and (process.info["cwd"] or "").startswith(str(ROOT / "perf" / "suites"))
    ]
    assert not alive
