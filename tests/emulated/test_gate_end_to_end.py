"""The gate as its user meets it: a server, a suite file, and an inner pytest whose word is its exit code and files."""

import json
import re
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml

from tests.emulated.inner import PACED, Desk, Run, healthy, run, running

GATED = "margin = 0.05\nalpha = 0.2\nmax_launches = 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run, and the campaign it left behind."""

    run: Run
    folder: Path

    @property
    def launches(self) -> dict[str, list[float]]:
        """tok/s of each launch by case, read from the campaign file by nothing of ours."""
        found: dict[str, list[float]] = {}
        for suite in json.loads((self.folder / "campaign.json").read_text())["suites"]:
            for launch in suite["launches"]:
                for each in launch["measurements"]:
                    key = f"{launch['variant']}/{each['level']}"
                    found.setdefault(key, []).append(each["rounds"][0]["summary"]["output_throughput"])
        return found


def measure(desk: Desk, suite: Path, *arguments: str) -> Measured:
    ran = desk.measure(suite, *arguments)
    return Measured(run=ran, folder=desk.folders()[-1])


def as_printed(screen: str) -> Run:
    """The last promote command of a screen, as it stands there."""
    return run(shlex.split(re.findall(r"python -m perf promote .*", screen)[-1]))


# A stranger's server


def test_a_strangers_server_has_no_baseline_then_is_promoted_as_printed_then_passes(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"served": desk.stranger()}, name="stranger", suite="")

    first = desk.pytest("-m", "perf", f"--perf-suite={suite}")  # as the README has it, without a path
    assert first.code == 1, first.screen
    assert first.words() == {"stranger/served/c002": "NO_BASELINE"}
    assert first.junit is not None
    assert [(each.tests, each.failures, each.errors) for each in JUnitXml.fromfile(str(first.junit))] == [(1, 1, 0)]
    assert "NO_BASELINE" in first.item("stranger/served/c002").message
    assert "stranger: no forecast for served: measure once, or state expected_tok_s" in first.out
    promoted = as_printed(first.out)
    assert promoted.code == 0, promoted.screen
    assert "promoted  stranger/served/c002: - -> " in promoted.out
    assert "4 launches" in promoted.out

    second = desk.measure(suite)
    assert second.code == 0, second.screen
    assert second.words() == {"stranger/served/c002": "PASS"}
    assert re.search(r"stranger: about \d+ s for 1 launch of every variant, .*; no budget is set", second.out)


# An emulated server that is as it was, slower, and faster


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("gate"))


def gate_suite(desk: Desk, *flags: str) -> Path:
    return desk.suite({"plain": (*PACED, *flags)}, name="gate", levels=(1, 2), gate=GATED)


@pytest.fixture(scope="module")
def first(desk: Desk) -> Measured:
    """Never measured before; afterwards it is the stored baseline."""
    measured = measure(desk, gate_suite(desk))
    promoted = as_printed(measured.run.out)
    assert promoted.code == 0, promoted.screen
    return measured


@pytest.fixture(scope="module")
def slower(desk: Desk, first: Measured) -> Measured:
    """20 % slower at level 2."""
    del first
    numbers = desk.folder / "benchmark.json"
    suite = gate_suite(desk, "--slowdown", "2:0.2")
    return measure(desk, suite, "--perf-margin=10%", "-o", "perf_margin=1%", f"--benchmark-json={numbers}")


@pytest.fixture(scope="module")
def faster(desk: Desk, slower: Measured) -> Measured:
    """A quarter faster at every level; then promoted by the command that it printed last."""
    del slower
    measured = measure(
        desk,
        gate_suite(desk, "--slowdown", "all:-0.25"),
        *("-o", "perf_margin=0.1", "-o", "perf_max_launches=3"),
    )
    promoted = as_printed(measured.run.out)
    assert promoted.code == 0, promoted.screen
    return measured


def test_a_server_slower_at_one_level_is_regressed_there_by_that_much_and_nowhere_else(slower: Measured) -> None:
    assert slower.run.code == 1
    assert slower.run.words() == {"gate/plain/c001": "PASS", "gate/plain/c002": "REGRESSED"}, slower.run.screen
    regressed = slower.run.item("gate/plain/c002")
    change, lo, hi = (float(regressed.properties[name]) for name in ("change", "lo", "hi"))
    assert -0.24 < change < -0.16
    assert lo <= change <= hi < 0
    assert "REGRESSED  output throughput" in regressed.message
    assert f"{slower.folder}/plain-" in regressed.message  # the server log


def test_a_faster_server_is_improved_and_passes_and_prints_how_to_record_it(faster: Measured) -> None:
    assert faster.run.code == 0
    assert set(faster.run.words().values()) == {"IMPROVED"}, faster.run.screen
    for item in faster.run.items():
        assert item.outcome == "passed"
        assert 0.20 < float(item.properties["change"]) < 0.30
        assert f'--case "{item.case}" --reason "why"' in faster.run.out


def test_what_differs_from_the_baseline_is_said_of_cases_that_pass_too(desk: Desk, faster: Measured) -> None:
    note = "not as in the baseline: command: now with --slowdown all:-0.25, was with nothing more"
    assert f"{note}  (plain/c001, plain/c002)" in faster.run.out
    assert note in desk.perf("check", faster.folder.name, store=False).out


def test_a_promotion_replaces_the_stored_baseline_of_the_case_it_names_alone(desk: Desk, faster: Measured) -> None:
    stored = json.loads(next(desk.baselines.glob("emulated/gate/plain.json")).read_text())["benchmarks"]
    campaigns = {each["name"]: {one["campaign"] for one in each["extra_info"]["launches"]} for each in stored}
    assert campaigns["gate/plain/c002"] == {faster.folder.name}
    assert campaigns["gate/plain/c001"] == {desk.folders()[0].name}


def test_junit_names_the_case_and_carries_verdict_interval_and_campaign(slower: Measured, first: Measured) -> None:
    for item in slower.run.items():
        assert item.name == f"test_verdict[{item.case}]"
        assert set(item.properties) >= {"verdict", "change", "lo", "hi", "campaign"}
        assert item.properties["campaign"] == slower.folder.name
    for item in first.run.items():
        assert item.properties.keys() == {"verdict", "output_throughput", "campaign"}
        assert item.word == "NO_BASELINE"


def test_benchmark_json_holds_tokens_per_second_of_the_launches(desk: Desk, slower: Measured) -> None:
    found = json.loads((desk.folder / "benchmark.json").read_text())["benchmarks"]
    assert len(found) == 2
    for each in found:
        variant, level = re.findall(r"gate/(\w+)/c0*(\d+)", each["name"])[0]
        launches = slower.launches[f"{variant}/{level}"]
        assert each["stats"]["rounds"] == len(launches)
        assert each["stats"]["ops"] == pytest.approx(statistics.harmonic_mean(launches), rel=1e-9)


def test_the_command_line_goes_before_the_ini_and_the_ini_before_the_suite(
    first: Measured, slower: Measured, faster: Measured
) -> None:
    rules = []
    for measured in (first, slower, faster):
        suite = json.loads((measured.folder / "campaign.json").read_text())["suites"][0]
        rules.append((suite["margin"], suite["max_launches"]))
    assert rules == [(0.05, 4), (0.1, 4), (0.1, 3)]


@pytest.mark.parametrize(
    ("text", "seen"),
    [("3", "'3'"), ("-3%", "'-3%'"), ("nan", "'nan'")],
)
def test_a_margin_that_could_mean_either_or_nothing_is_refused(tmp_path: Path, text: str, seen: str) -> None:
    desk = Desk(tmp_path)
    refused = desk.measure(desk.suite({"plain": PACED}), f"--perf-margin={text}")
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    assert f"--perf-margin: seen {seen}; allowed: a share such as 3% or 0.03" in refused.error


# Relations, budget


@pytest.fixture(scope="module")
def related(desk: Desk, faster: Measured) -> Measured:
    """A rival that is 40 % faster, of which both the true and the false is expected."""
    del faster
    suite = desk.suite(
        {"plain": PACED, "rival": (*PACED, "--slowdown", "all:-0.4")},
        name="pair",
        more='[[expect]]\nvariant = "plain"\nof = ["rival"]\n\n[[expect]]\nvariant = "rival"\nof = ["plain"]\nat = 2\n',
    )
    return measure(desk, suite, "-k", "expect")


def test_an_expectation_that_does_not_hold_is_violated_and_one_that_holds_passes(related: Measured) -> None:
    assert related.run.code == 1
    assert related.run.words() == {
        "pair/expect/plain-of-rival/saturation": "VIOLATED",
        "pair/expect/rival-of-plain/c002": "PASS",
    }, related.run.screen
    violated = related.run.item("pair/expect/plain-of-rival/saturation")
    assert -0.35 < float(violated.properties["change"]) < -0.22  # 1 / 1.4 is 29 % less
    assert "VIOLATED" in violated.message


@pytest.mark.parametrize(
    ("option", "ini"), [("--perf-budget-minutes=0.001", False), ("perf_budget_minutes=0.001", True)]
)
def test_a_spent_budget_ends_the_campaign_and_is_said(desk: Desk, related: Measured, option: str, ini: bool) -> None:
    del related
    suite = desk.suite({"served": desk.stranger()}, name="budget")
    measured = measure(desk, suite, *(("-o", option) if ini else (option,)))
    state = json.loads((measured.folder / "campaign.json").read_text())["suites"][0]
    assert len(state["launches"]) == 1
    assert state["stopped"] == "the budget of 0 s is spent"


# pytest and check


def test_check_gives_every_stored_campaign_the_verdicts_and_the_outcome_that_pytest_gave(
    desk: Desk, first: Measured, slower: Measured, faster: Measured, related: Measured
) -> None:
    for measured, code in ((first, 3), (slower, 1), (faster, 0), (related, 1)):
        checked = desk.perf("check", measured.folder.name, store=False)
        assert checked.code == code, checked.screen
        words = dict(re.findall(r"^(\S+/c\d+|expect/\S+) .* ([A-Z_]+)$", checked.out, re.MULTILINE))
        assert words == {case.split("/", 1)[1]: word for case, word in measured.run.words().items()}
        assert (measured.run.code == 0) == (code == 0)


def test_check_against_another_store_judges_anew(desk: Desk, slower: Measured, faster: Measured) -> None:
    del faster  # promoted since: the slower server is now judged against it
    checked = desk.perf("check", slower.folder.name)
    words = dict(re.findall(r"^(\S+/c\d+) .* ([A-Z_]+)$", checked.out, re.MULTILINE))
    assert words == {"plain/c001": "PASS", "plain/c002": "REGRESSED"}
    assert float(re.findall(r"^plain/c002 .* (-[\d.]+) %  +\[", checked.out, re.MULTILINE)[0]) < -30


# A server that already runs


def test_a_server_that_already_runs_is_advisory_and_never_promoted(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"plain": PACED, "other": PACED}, name="attached")
    with running() as url:
        both = desk.measure(suite, f"--perf-base-url={url}")
        assert both.code == pytest.ExitCode.USAGE_ERROR
        assert "select exactly one variant" in both.error
        assert not desk.campaigns.exists()

        measured = measure(desk, suite, f"--perf-base-url={url}/v1", "-k", "plain")
        assert measured.run.code == 0, measured.run.screen
        assert measured.run.words() == {"attached/plain/c002": "ADVISORY"}
        assert len(measured.launches["plain/2"]) == 1
        assert healthy(url)  # it is not ours to end

    promoted = desk.perf("promote", "--reason", "x")
    assert promoted.code == 1
    assert "attached/plain/c002: measured on a server that already ran" in promoted.out
    assert not list(desk.baselines.rglob("*.json"))
    checked = desk.perf("check", store=False)
    assert checked.code == 0
    assert "ADVISORY" in checked.out


def test_an_advisory_run_that_cannot_be_believed_fails(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with running("--fault", "http-500") as url:
        measured = desk.measure(desk.suite({"plain": PACED}), f"--perf-base-url={url}")
    assert measured.code == 1
    assert measured.words() == {"small/plain/c002": "INVALID"}
    assert "http_500" in measured.item("small/plain/c002").message
