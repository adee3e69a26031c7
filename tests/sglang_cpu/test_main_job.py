"""The whole job on real SGLang on a CPU: start, load, count, judge, end. Needs `make_environment.py` to have run."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from perf import record, trace_file
from perf.gate import Word
from perf.verdict import judge

ROOT = Path(__file__).parents[2]
SUITE = "sglang-cpu"
LEVELS = (1, 4)

pytestmark = pytest.mark.needs_sglang


class Runs:
    """Two sessions on one store: the first records, the second judges."""

    def __init__(self, folder: Path) -> None:
        self.folders = [f"--baselines={folder / 'baselines'}", f"--campaign-dir={folder / 'campaigns'}"]
        self.first = self._pytest(folder)
        self.recorded = record.read(record.find(folder / "campaigns", None))
        self.promoted = self.perf("promote", "--reason", "first baseline")
        self.second = self._pytest(folder)
        self.judged_folder = record.find(folder / "campaigns", None)
        self.judged = record.read(self.judged_folder)

    def _pytest(self, folder: Path) -> subprocess.CompletedProcess[str]:
        options = [f"--perf-baselines={folder / 'baselines'}", f"--perf-campaign-dir={folder / 'campaigns'}"]
        return _run(
            "pytest", "-m", "sglang_cpu", "tests/perf", f"--perf-suite={SUITE}", "--perf-max-launches=2", *options
        )

    def perf(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _run("perf", *arguments, *self.folders)


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


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


def test_the_second_run_judges_what_the_first_promoted(runs: Runs) -> None:
    assert runs.promoted.returncode == 0, runs.promoted.stdout + runs.promoted.stderr
    words = {verdict.word for verdict in judge(runs.judged.suites[0])}
    # A shared CPU is too noisy to promise PASS; that nothing is INVALID or without baseline is what is asserted.
    assert words <= {Word.PASS, Word.IMPROVED, Word.INCONCLUSIVE, Word.REGRESSED}, runs.second.stdout
    assert runs.second.returncode == (0 if words <= {Word.PASS, Word.IMPROVED} else 1)


def test_check_agrees_with_pytest(runs: Runs) -> None:
    check = runs.perf("check", runs.judged.id)
    for verdict in judge(runs.judged.suites[0]):
        assert str(verdict.word) in check.stdout
    assert (check.returncode == 0) == (runs.second.returncode == 0)


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
