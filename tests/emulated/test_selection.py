"""What is measured is what was asked for, and a run that would measure nothing is never green."""

import json
from pathlib import Path

import pytest

from tests.emulated.inner import PACED, Desk, Run

#: The quickest case there is.
SHORT = "output_tokens = 4\nmin_requests = 1\nrequests_per_stream = 1\nwarmup_requests = 0"
USAGE = pytest.ExitCode.USAGE_ERROR


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def suite(desk: Desk) -> Path:
    """A suite whose server leaves a trace as soon as it is started."""
    return desk.suite({"served": desk.stranger("open('started', 'w')")}, workload=SHORT)


def nothing_happened(desk: Desk) -> bool:
    return not desk.campaigns.exists() and not (desk.folder / "started").exists()


def collected(run: Run) -> list[str]:
    return [line for line in run.out.splitlines() if "::" in line]


# What a bare pytest is


def test_a_bare_pytest_selects_no_performance_case(desk: Desk) -> None:
    run = desk.pytest("--collect-only", "-q")
    assert run.code == 0, run.screen
    assert len(collected(run)) > 100
    assert not [line for line in collected(run) if line.startswith("tests/perf/")]


def test_a_suite_that_cannot_be_read_does_no_harm_to_a_bare_pytest(desk: Desk) -> None:
    bad = desk.folder / "bad.toml"
    bad.write_text("[suite\n")
    run = desk.pytest("-q", "-o", f"perf_suite={bad}", "tests/perf", "tests/unit/test_text.py")
    assert run.code == 0, run.screen


@pytest.mark.parametrize("named", ["--perf-suite", "ini"])
def test_a_suite_that_cannot_be_read_is_a_usage_error_for_whoever_asks_for_it(desk: Desk, named: str) -> None:
    bad = desk.folder / "bad.toml"
    bad.write_text('[suite]\nname = "bad"\ncolour = "red"\n')
    asked = (
        ("-m", "perf", f"--perf-suite={bad}")
        if named == "--perf-suite"
        else ("-m", "rehearsal", "-o", f"perf_suite={bad}")
    )
    run = desk.pytest(*asked, "tests/perf")
    assert run.code == USAGE
    assert f"{bad}: suite.colour: unknown key" in run.screen
    assert nothing_happened(desk)


def test_a_suite_that_is_not_there_is_a_usage_error(desk: Desk) -> None:
    run = desk.measure(desk.folder / "none.toml")
    assert run.code == USAGE
    assert "none.toml: cannot be read" in run.error


# Nothing measured is never green


def test_the_gate_without_a_gpu_fails_and_says_what_it_needs(desk: Desk) -> None:
    run = desk.pytest("-m", "gpu", env={"CUDA_VISIBLE_DEVICES": ""})
    assert run.code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    items = [item for item in run.items() if item.case.startswith("kimi-k2.5-int4/")]
    assert len(items) >= 16
    for item in items:
        assert item.outcome in ("failure", "error")
        assert "kimi-k2.5-int4 needs 8 GPUs; seen: " in item.message
    assert not desk.campaigns.exists()


def test_a_suite_of_which_nothing_is_selected_is_refused(desk: Desk, suite: Path) -> None:
    for asked in ((), ("-m", "perf", "-k", "no-such-case")):
        run = desk.pytest(*asked, f"--perf-suite={suite}", "tests/perf")
        assert run.code == USAGE, run.screen
        assert "no case of it is selected" in run.error
    assert nothing_happened(desk)


@pytest.mark.parametrize("option", ["--benchmark-skip", "--benchmark-disable", "--setup-only", "--setup-plan"])
def test_options_that_would_measure_nothing_are_refused(desk: Desk, suite: Path, option: str) -> None:
    run = desk.measure(suite, option)
    assert run.code == USAGE
    assert f"{option} would judge nothing" in run.error
    assert nothing_happened(desk)


def test_a_selected_case_that_is_not_judged_is_not_green(desk: Desk, suite: Path) -> None:
    """Whatever keeps an item from being run, here a plugin that skips it."""
    (desk.folder / "skipper.py").write_text(
        "import pytest\n"
        "def pytest_runtest_setup(item):\n"
        "    if 'perf_item' in item.fixturenames:\n"
        "        pytest.skip('not today')\n"
    )
    run = desk.measure(suite, "-p", "skipper", env={"PYTHONPATH": str(desk.folder)})
    assert run.code == 1, run.screen
    assert "1 selected cases were not judged, such as small/served/c002: not a pass" in run.screen


def test_a_suite_given_twice_is_measured_once(desk: Desk, suite: Path) -> None:
    run = desk.pytest("-m", "perf", f"--perf-suite={suite}", f"--perf-suite={suite}", "tests/perf", "--co", "-q")
    assert len(collected(run)) == 1


def test_check_does_not_take_a_session_without_its_gpu_suite_for_a_pass(desk: Desk, suite: Path) -> None:
    needy = desk.suite({"served": desk.stranger()}, name="needy", workload=SHORT, suite='requires = "gpu"\ngpus = 1')
    run = desk.pytest(
        "-m", "perf", f"--perf-suite={suite}", f"--perf-suite={needy}", "tests/perf", env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert run.code == 1
    check = desk.perf("check")
    assert check.code == 3
    assert "needy needs 1 GPUs" in check.out
    promoted = desk.perf("promote", "--reason", "first baseline")
    assert promoted.code == 1
    assert "refused   needy/served/c002: INVALID: not measured" in promoted.out
    assert "promoted  small/served/c002" in promoted.out


def test_workers_of_xdist_are_refused(desk: Desk, suite: Path) -> None:
    for asked in (("-m", "rehearsal"), ("-m", "perf", f"--perf-suite={suite}")):
        run = desk.pytest("-n", "2", *asked, "tests/perf")
        assert run.code == USAGE
        assert "cannot be spread over xdist workers: run them without -n" in run.error
    assert nothing_happened(desk)


def test_a_case_that_reaches_a_worker_of_xdist_unnamed_fails_there(desk: Desk, suite: Path) -> None:
    run = desk.pytest("-n", "1", "-m", "", "-o", f"perf_suite={suite}", "tests/perf")
    assert run.code == pytest.ExitCode.TESTS_FAILED, run.screen
    assert "run them without -n" in run.item("small/served/c002").message
    assert nothing_happened(desk)


def test_two_suites_of_one_name_are_refused(desk: Desk, suite: Path) -> None:
    other = desk.suite({"served": PACED}, file="other.toml")
    run = desk.measure(suite, f"--perf-suite={other}")
    assert run.code == USAGE
    assert f"{other}: suite.name: 'small' is also the name of {suite}" in run.error


# What is asked for is measured


def test_collecting_starts_nothing_and_leaves_nothing(desk: Desk, suite: Path) -> None:
    run = desk.measure(suite, "--collect-only", "-q")
    assert run.code == 0, run.screen
    assert collected(run) == ["tests/perf/test_cases.py::test_verdict[small/served/c002]"]
    assert nothing_happened(desk)


def test_a_case_is_selected_by_variant_and_level_without_its_neighbours(desk: Desk) -> None:
    suite = desk.suite(
        {"baseline": PACED, "eagle3": PACED},
        levels=(1, 16, 160),
        more='[[expect]]\nvariant = "baseline"\nof = ["eagle3"]\nat = 16\n',
    )
    everything = desk.measure(suite, "--collect-only", "-q")
    assert len(collected(everything)) == 7
    run = desk.measure(suite, "--collect-only", "-q", "-k", "/eagle3/c016")
    assert collected(run) == ["tests/perf/test_cases.py::test_verdict[small/eagle3/c016]"]


def test_one_case_alone_is_measured_alone(desk: Desk) -> None:
    suite = desk.suite(
        {"served": desk.stranger(), "other": desk.stranger("open('started', 'w')", "other.py")},
        levels=(1, 2),
        workload=SHORT,
    )
    run = desk.measure(suite, "-k", "/served/c002", "--perf-max-launches=1")
    assert run.words() == {"small/served/c002": "NO_BASELINE"}
    measured = [
        (launch.variant, [each.level for each in launch.measurements]) for launch in desk.campaign().suites[0].launches
    ]
    assert measured == [("served", [2])]
    assert not (desk.folder / "started").exists()


def test_last_failed_measures_only_what_failed_and_the_record_says_so(desk: Desk) -> None:
    suite = desk.suite(
        {"served": desk.stranger(), "broken": desk.stranger('ERROR = "no"', "broken.py")},
        workload=f'{SHORT}\nlevel_reached = "not required"',  # advisory: what can be believed passes
    )
    first = desk.measure(suite)
    assert first.words() == {"small/served/c002": "ADVISORY", "small/broken/c002": "INVALID"}, first.screen
    assert not desk.campaign().suites[0].rerun
    again = desk.measure(suite, "--lf")
    assert again.words() == {"small/broken/c002": "INVALID"}
    state = json.loads((desk.folders()[-1] / "campaign.json").read_text())["suites"][0]
    assert state["rerun"] is True
    assert [launch["variant"] for launch in state["launches"]] == ["broken"]


def test_two_suites_in_one_session_keep_their_launches_apart(desk: Desk, suite: Path) -> None:
    other = desk.suite({"served": desk.stranger()}, name="other", workload=SHORT)
    run = desk.measure(suite, f"--perf-suite={other}", "--perf-max-launches=1")
    assert run.words() == {"small/served/c002": "NO_BASELINE", "other/served/c002": "NO_BASELINE"}, run.screen
    (campaign,) = desk.folders()
    names = {launch.name for each in desk.campaign().suites for launch in each.launches}
    assert len(names) == 2
    assert all(
        (campaign / name / "server.log").is_file() and (campaign / name / "traces" / "c002-1.npz").is_file()
        for name in names
    )
    promoted = desk.perf("promote", "--reason", "x")
    assert promoted.code == 0
    assert promoted.out.count("promoted ") == 2


def test_a_suite_that_failed_half_way_is_invalid_in_a_campaign_that_went_on(desk: Desk, suite: Path) -> None:
    """Its second saving meets a disk that is full for a moment; the suite after it is measured to its end."""
    (desk.folder / "full.py").write_text(
        "from perf import record\n"
        "from perf.files import FileError\n"
        "save, saved = record.save, []\n"
        "def full(folder, campaign):\n"
        "    saved.append(folder)\n"
        "    if len(saved) == 2:\n"
        "        raise FileError('no space left on the device')\n"
        "    save(folder, campaign)\n"
        "record.save = full\n"
    )
    other = desk.suite({"served": desk.stranger()}, name="other", workload=SHORT)
    suites = (f"--perf-suite={suite}", f"--perf-suite={other}", "--perf-max-launches=2")
    run = desk.pytest("-p", "full", "-m", "perf", *suites, "tests/perf", env={"PYTHONPATH": str(desk.folder)})
    assert run.code == 1, run.screen
    promoted = desk.perf("promote", "--reason", "first baseline")
    assert promoted.code == 1
    assert "refused   small/served/c002: INVALID: not measured" in promoted.out
    assert "promoted  other/served/c002" in promoted.out
