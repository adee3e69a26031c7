"""pytest-benchmark carries our numbers: its files are read here by what a stranger has, json and its own command."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from perf.carrier import commit_info
from perf.rig import probe
from perf.sample import Build
from tests.emulated.inner import PACED, REPOSITORY, Desk, Run, environment

#: The quickest case there is.
SHORT = "output_tokens = 4\nmin_requests = 1\nrequests_per_stream = 1\nwarmup_requests = 0"
USAGE = pytest.ExitCode.USAGE_ERROR

GATED = "margin = 0.1\nalpha = 0.2\nmax_launches = 6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """Two runs of a suite and the files of both: the first became the baseline, in the second one variant is slower."""

    desk: Desk
    first: Run
    second: Run

    @property
    def storage(self) -> Path:
        return self.desk.folder / "numbers"

    @property
    def saved(self) -> list[Path]:
        return sorted(self.storage.rglob("*.json"))

    def baseline(self, variant: str) -> Path:
        return self.desk.baselines / "emulated" / "carried" / f"{variant}.json"

    def launches(self, night: int) -> dict[str, list[float]]:
        """tok/s of every launch by variant, from the campaign file."""
        found: dict[str, list[float]] = {}
        for launch in json.loads((self.desk.folders()[night] / "campaign.json").read_text())["suites"][0]["launches"]:
            summary = launch["measurements"][0]["rounds"][0]["summary"]
            found.setdefault(launch["variant"], []).append(summary["output_throughput"])
        return found


def two(desk: Desk, *flags: str) -> Path:
    return desk.suite({"plain": PACED, "fast": (*PACED, *flags)}, name="carried", gate=GATED)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    desk = Desk(tmp_path_factory.mktemp("carrier"))
    store = f"--benchmark-storage={desk.folder / 'numbers'}"
    first = desk.measure(
        two(desk, "--slowdown", "all:-0.4"), store, "--benchmark-autosave", f"--benchmark-json={desk.folder}/first.json"
    )
    promoted = desk.perf("promote", "--reason", "first baseline")
    assert promoted.code == 0, promoted.screen
    second = desk.measure(
        two(desk),
        store,
        "--benchmark-save=second",
        "--benchmark-save-data",
        "--benchmark-compare",
        "--benchmark-verbose",
    )
    return Nights(desk=desk, first=first, second=second)


def compare(*arguments: object, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """`pytest-benchmark compare` of a user who is in `folder`."""
    return subprocess.run(
        [Path(sys.executable).parent / "pytest-benchmark", *map(str, arguments)],
        cwd=folder,
        env=environment({"PYTHONWARNINGS": "always"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows(screen: str) -> dict[str, list[str]]:
    """The numbers of every line of a table that is about a case, by what stands before them."""
    found = {}
    for line in screen.splitlines():
        if line.startswith("carried/"):
            name, *numbers = line.split("  ")
            found[name] = [each for number in numbers for each in number.split() if not each.startswith("(")]
    return found


# The files


def test_the_second_night_is_judged_as_without_pytest_benchmark(nights: Nights) -> None:
    assert nights.first.words() == {"carried/plain/c002": "NO_BASELINE", "carried/fast/c002": "NO_BASELINE"}
    assert nights.second.words() == {"carried/plain/c002": "PASS", "carried/fast/c002": "REGRESSED"}
    assert nights.second.code == 1


def test_what_is_saved_is_named_by_the_campaign_or_as_asked(nights: Nights) -> None:
    campaign = nights.desk.folders()[0].name
    assert [path.name for path in nights.saved] == [f"0001_{campaign}.json", "0002_second.json"]


@pytest.mark.parametrize("night", [0, 1])
def test_a_saved_run_holds_every_case_by_its_id_with_a_round_for_each_launch(nights: Nights, night: int) -> None:
    found = json.loads(nights.saved[night].read_text())["benchmarks"]
    assert [each["fullname"] for each in found] == ["carried/plain/c002", "carried/fast/c002"]
    for each in found:
        launches = nights.launches(night)[each["group"].removeprefix("carried/")]
        assert each["name"] == each["param"] == each["fullname"]
        assert each["params"] == {"concurrency": 2}
        assert each["stats"]["rounds"] == len(launches)
        assert each["stats"]["ops"] == pytest.approx(statistics.harmonic_mean(launches), rel=1e-9)
        assert ("data" in each["stats"]) == (night == 1)
    assert [1 / each for each in found[1]["stats"].get("data", [])] == pytest.approx(
        nights.launches(1)["fast"] if night else []
    )
    # A first baseline is launched four times; a loss is called after three launches.
    assert len(nights.launches(night)["fast"]) >= (3 if night else 4)


def test_a_saved_run_says_its_campaign_and_the_verdict_of_each_case(nights: Nights) -> None:
    found = json.loads(nights.saved[1].read_text())["benchmarks"]
    campaign = nights.desk.folders()[1].name
    assert [each["extra_info"] for each in found] == [
        {"verdict": "PASS", "campaign": campaign},
        {"verdict": "REGRESSED", "campaign": campaign},
    ]


def test_the_machine_of_a_file_is_the_rig_and_its_commit_is_that_of_the_server(nights: Nights) -> None:
    rig = probe()
    for path in (nights.desk.folder / "first.json", *nights.saved):
        found = json.loads(path.read_text())
        assert found["machine_info"] == {
            "node": rig.id,
            "cpu": {"brand_raw": rig.cpu},
            "release": rig.kernel,
            "gpus": json.loads(json.dumps([asdict(gpu) for gpu in rig.gpus])),
            "driver": rig.driver,
        }
    for path in (nights.baseline("plain"), *nights.saved):
        told = json.loads(path.read_text())["commit_info"]
        assert told["project"] == "sglang"
        assert "emulated" in told["id"]
        assert told["dirty"] is None  # an emulated server has no checkout
    assert json.loads(nights.baseline("plain").read_text())["machine_info"] == {"node": "emulated"}


@pytest.mark.parametrize(
    ("build", "version", "id", "dirty"),
    [
        (
            Build(sglang="0.5.3", torch=None, cuda=None, commit="9f3e1d0c", dirty="5d41", kernels=(), packages=""),
            "0.5.3.dev1",
            "9f3e1d0c",
            True,
        ),
        (
            Build(sglang="0.5.3", torch=None, cuda=None, commit=None, dirty=None, kernels=(), packages=""),
            "0.5.3.post1",
            "0.5.3.post1",
            None,
        ),
        (
            Build(sglang="0.5.3", torch=None, cuda=None, commit=None, dirty=None, kernels=(), packages=""),
            None,
            "0.5.3",
            None,
        ),
        (None, None, "unknown", None),
    ],
)
def test_the_commit_is_the_best_that_is_known_of_the_server(
    build: Build | None, version: str | None, id: str, dirty: bool | None
) -> None:
    told = commit_info(build, version)
    assert (told["id"], told["dirty"], told["project"]) == (id, dirty, "sglang")


# Compared


def test_a_run_is_compared_with_the_one_before_and_the_table_says_tokens_per_second(nights: Nights) -> None:
    assert "OPS (tok/s as ops/s)" in nights.second.out
    assert "Name (time in ms)" in nights.second.out
    table = rows(nights.second.out)
    ops = {name: float(numbers[0]) for name, numbers in table.items() if name.endswith(")")}
    assert ops["carried/fast/c002 (NOW)"] == pytest.approx(
        statistics.harmonic_mean(nights.launches(1)["fast"]), abs=0.001
    )
    before = next(value for name, value in ops.items() if name.startswith("carried/fast/c002 (0001_"))
    assert before == pytest.approx(statistics.harmonic_mean(nights.launches(0)["fast"]), abs=0.001)
    assert "machine_info is different" not in nights.second.screen


def test_the_command_compares_two_saved_runs(nights: Nights) -> None:
    done = compare(f"--storage={nights.storage}", "compare", "0001", "0002", "--columns=ops,rounds", "--name=short")
    assert (done.returncode, done.stderr) == (0, "")
    assert "OPS (tok/s as ops/s)" in done.stdout
    table = rows(done.stdout)
    assert len(table) == 4
    for name, (ops, count) in table.items():
        night = 0 if "(0001)" in name else 1
        expected = statistics.harmonic_mean(nights.launches(night)[name.split("/")[1]])
        assert float(ops) == pytest.approx(expected, abs=0.001)
        assert count == str(len(nights.launches(night)[name.split("/")[1]]))


def test_the_command_compares_a_saved_run_with_a_stored_baseline(nights: Nights) -> None:
    saved = nights.saved[1].relative_to(nights.desk.folder)
    baselines = [nights.baseline(name).relative_to(nights.desk.folder) for name in ("plain", "fast")]
    done = compare("compare", *baselines, saved, "--columns=ops", "--group-by=fullname", folder=nights.desk.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "benchmark 'carried/fast/c002': 2 tests" in done.stdout
    assert "benchmark 'carried/plain/c002': 2 tests" in done.stdout


def test_the_command_compares_the_baselines_of_two_variants_level_by_level(nights: Nights) -> None:
    baselines = [os.path.relpath(nights.baseline(name), REPOSITORY) for name in ("plain", "fast")]
    done = compare("compare", *baselines, "--group-by=param:concurrency", "--columns=ops,rounds")
    assert (done.returncode, done.stderr) == (0, "")
    assert "benchmark 'concurrency=2': 2 tests" in done.stdout
    assert set(rows(done.stdout)) == {"carried/plain/c002 (plain)", "carried/fast/c002 (fast)"}


def test_a_run_is_compared_with_a_stored_baseline_without_a_warning_about_the_machine(nights: Nights) -> None:
    ran = nights.desk.measure(
        two(nights.desk), "-k", "plain", f"--benchmark-compare={nights.baseline('plain')}", "--benchmark-verbose"
    )
    assert ran.code == 0, ran.screen
    assert len(rows(ran.out)) == 2
    assert "is different" not in ran.screen


# Never the gate


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A desk with the quickest suite, whose stored baseline a server of today meets."""
    desk = Desk(tmp_path_factory.mktemp("short"))
    first = desk.measure(quick(desk))
    assert first.words() == {"small/served/c002": "NO_BASELINE"}, first.screen
    assert desk.perf("promote", "--reason", "first baseline").code == 0
    return desk


def quick(desk: Desk, code: str = "") -> Path:
    return desk.suite(
        {"served": desk.stranger(code)}, workload=SHORT, gate="margin = 0.3\nalpha = 0.2\nmax_launches = 4"
    )


#: Twice as long for each token.
SLOWER = "STEP_S = 0.04"

#: Whatever of pytest-benchmark changes how it measures by itself.
WITHOUT_EFFECT = (
    "--benchmark-only",
    "--benchmark-disable",
    "--benchmark-enable",
    "--benchmark-disable-gc",
    "--benchmark-max-time=0.000001",
    "--benchmark-min-time=5",
    "--benchmark-min-rounds=7",
    "--benchmark-precision=0.5",
    "--benchmark-warmup=on",
    "--benchmark-warmup-iterations=3",
    "--benchmark-timer=time.process_time",
    "--benchmark-calibration-precision=100",
    "--benchmark-cprofile=tottime",
    "--benchmark-cprofile-loops=5",
    "-n0",
)


@pytest.mark.parametrize(("code", "word"), [("", "PASS"), (SLOWER, "REGRESSED")])
def test_no_option_of_pytest_benchmark_changes_a_verdict_or_a_number(short: Desk, code: str, word: str) -> None:
    numbers = short.folder / "new" / "numbers.json"
    ran = short.measure(quick(short, code), *WITHOUT_EFFECT, f"--benchmark-json={numbers}")
    assert ran.words() == {"small/served/c002": word}, ran.screen
    assert ran.code == (0 if word == "PASS" else 1)
    (suite,) = short.campaign().suites
    taken = [each.summary for launch in suite.launches for each in launch.measurements[0].rounds]
    (found,) = json.loads(numbers.read_text())["benchmarks"]
    assert [1 / each for each in found["stats"]["data"]] == pytest.approx(
        [each.output_throughput for each in taken if each is not None]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--benchmark-compare-fail=mean:5%",), "--benchmark-compare-fail knows nothing of noise"),
        (("--benchmark-skip", "--benchmark-only"), "--benchmark-skip would judge nothing"),
        (("--benchmark-json=/dev/null/x.json",), "--benchmark-json=/dev/null/x.json: cannot be written: "),
        (("--benchmark-json=tests",), "--benchmark-json=tests: cannot be written"),
        (("-p", "no:benchmark"), "unrecognized arguments: --benchmark-quiet"),
        (("-p", "no:benchmark", "-o", "addopts="), "which carries the numbers of these cases, is off"),
        (("--dist=load",), "run them without -n"),
        (("-d", "--tx=popen"), "run them without -n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_would_keep_the_carrier_from_its_work_is_refused_before_anything_is_measured(
    short: Desk, options: tuple[str, ...], said: str
) -> None:
    before = short.folders()
    refused = short.measure(quick(short), *options)
    assert refused.code == USAGE, refused.screen
    assert said in refused.error
    assert short.folders() == before


def test_a_worker_of_another_runs_xdist_is_refused(short: Desk) -> None:
    refused = short.measure(quick(short), env={"PYTEST_XDIST_WORKER": "gw0"})
    assert refused.code == USAGE
    assert "which carries the numbers of these cases, is off" in refused.error


def test_a_fifo_in_the_place_of_the_json_file_is_not_waited_for(short: Desk) -> None:
    os.mkfifo(fifo := short.folder / "fifo.json")
    refused = short.measure(quick(short), f"--benchmark-json={fifo}")
    assert refused.code == USAGE, refused.screen
    assert "fifo.json: cannot be written: name a file" in refused.error


@pytest.mark.parametrize("option", ["--benchmark-json=/dev/full", "--benchmark-autosave"])
def test_a_file_that_cannot_be_written_at_the_end_is_not_green_and_costs_no_campaign(short: Desk, option: str) -> None:
    ran = short.measure(quick(short), option, "--benchmark-storage=/dev/null/folder")
    assert ran.code == 1, ran.screen
    assert "pytest-benchmark could not write its file: " in ran.out
    assert ran.words() == {"small/served/c002": "PASS"}  # JUnit is written, too
    assert "1 PASS; overall PASS" in ran.out
    assert short.campaign().complete
    assert short.perf("check", store=False).code == 0


@pytest.mark.parametrize(("code", "word"), [("", "PASS"), (SLOWER, "REGRESSED")])
def test_an_item_fails_where_pytest_benchmark_throws_and_still_says_its_verdict(
    short: Desk, code: str, word: str
) -> None:
    (short.folder / "thrower.py").write_text(
        "from pytest_benchmark.fixture import BenchmarkFixture\n"
        "def pedantic(*_, **__):\n"
        "    raise RuntimeError('broken carrier')\n"
        "BenchmarkFixture.pedantic = pedantic\n"
    )
    ran = short.measure(quick(short, code), "-p", "thrower", env={"PYTHONPATH": str(short.folder)})
    assert ran.code == 1, ran.screen
    item = ran.item("small/served/c002")
    assert (item.word, item.outcome) == (word, "failure")
    assert ("broken carrier" if word == "PASS" else "REGRESSED  output throughput") in item.message
