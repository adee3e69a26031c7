"""What others read of a run: JUnit, the summary of a GitHub job, and `python -m perf report`."""

import json
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perf.compact import ADAPTER
from tests.emulated.inner import Desk, Run
from tests.unit.simulated import campaign, failed, launch, suite, written

#: The quickest case there is.
SHORT = "output_tokens = 4\nmin_requests = 1\nrequests_per_stream = 1\nwarmup_requests = 0"

#: What a server may say of its failure: everything that means something to XML, markdown, HTML or a terminal.
HOSTILE = "boom ]]> </details> ``` <script>x</script> @everyone | &amp; \\x00\\x0b\\x1b[31m \\ud800 \\uffff"

#: Of JUnit properties, those that are words.
WORDS = {"verdict", "campaign", "route"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run in a build job: one case without a baseline, and one of a server that answers with hostile text."""

    desk: Desk
    run: Run
    summary: Path


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    desk = Desk(tmp_path_factory.mktemp("readers"))
    variants = {"plain": desk.stranger(), "hostile": desk.stranger(f'ERROR = "{HOSTILE}"', "hostile.py")}
    summary = desk.folder / "summary.md"
    summary.write_text("an earlier step\n")
    ran = desk.measure(
        desk.suite(variants, workload=SHORT), "--perf-max-launches=1", env={"GITHUB_STEP_SUMMARY": str(summary)}
    )
    return Night(desk=desk, run=ran, summary=summary)


# JUnit


def test_junit_is_xml_whatever_a_server_says(night: Night) -> None:
    assert night.run.junit is not None
    root = ET.parse(night.run.junit).getroot()
    assert root.tag == "testsuites"
    (whole,) = root
    assert {name: whole.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "2",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
    }
    messages = {case.get("name"): case.findtext("failure") for case in whole}
    assert "boom ]]> </details> ```" in (messages["test_verdict[small/hostile/c002]"] or "")


def test_junit_properties_are_words_and_plain_numbers(night: Night) -> None:
    items = night.run.items()
    assert [item.case for item in items] == ["small/plain/c002", "small/hostile/c002"]
    for item in items:
        assert item.properties["campaign"] == night.desk.folders()[0].name
        for name in item.properties.keys() - WORDS:
            assert re.fullmatch(r"-?\d+\.\d+", item.properties[name])
    assert night.run.words() == {"small/plain/c002": "NO_BASELINE", "small/hostile/c002": "INVALID"}
    assert items[0].properties.keys() == {"verdict", "output_throughput", "campaign"}
    assert items[1].properties.keys() == {"verdict", "campaign"}


# The summary of a job


def test_the_summary_is_appended_to_what_is_there(night: Night) -> None:
    text = night.summary.read_text()
    assert text.startswith("an earlier step\n## sglang-perf: INVALID\n")
    assert "| `plain/c002` " in text
    assert "<details><summary>INVALID <code>small/hostile/c002</code></summary>" in text
    assert text.isascii()
    assert text.count("<script>") == sum("boom ]]>" in line for line in text.splitlines())


def test_the_report_of_the_campaign_is_what_the_summary_says(night: Night) -> None:
    told = night.desk.perf("report", "--format", "markdown")
    assert told.code == 0, told.screen
    assert f"an earlier step\n{told.out}" == night.summary.read_text()


def test_a_suite_that_cannot_be_measured_is_in_the_summary(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    needy = desk.suite({"served": desk.stranger()}, name="needy", workload=SHORT, suite='requires = "gpu"\ngpus = 1')
    summary = tmp_path / "summary.md"
    ran = desk.measure(needy, env={"CUDA_VISIBLE_DEVICES": "", "GITHUB_STEP_SUMMARY": str(summary)})
    assert ran.code == 1
    text = summary.read_text()
    assert text.startswith("## sglang-perf: INVALID\n\nNothing was measured.")
    assert "needy needs 1 GPUs; seen: 0 GPUs" in text


@pytest.mark.parametrize("summary", ["/dev/full", ".", "fifo"])
def test_a_summary_that_cannot_be_written_is_a_line_and_changes_no_verdict(tmp_path: Path, summary: str) -> None:
    desk = Desk(tmp_path)
    if summary == "fifo":  # nobody reads it: opening it would last for ever
        summary = str(tmp_path / summary)
        os.mkfifo(summary)
    shown = desk.suite({"served": desk.stranger()}, workload=f'{SHORT}\nlevel_reached = "not required"')
    ran = desk.measure(shown, "--perf-max-launches=1", env={"GITHUB_STEP_SUMMARY": summary})
    assert ran.code == 0, ran.screen
    assert f"GITHUB_STEP_SUMMARY={summary}: cannot be written: " in ran.out
    assert desk.campaign().complete


def test_an_interrupted_run_has_no_verdict_and_no_summary(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "interrupter.py").write_text("def pytest_runtest_teardown(item):\n    raise KeyboardInterrupt\n")
    summary = tmp_path / "summary.md"
    ran = desk.measure(
        desk.suite({"served": desk.stranger()}, workload=SHORT),
        *("--perf-max-launches=1", "-p", "interrupter"),
        env={"PYTHONPATH": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)},
    )
    assert ran.code == pytest.ExitCode.INTERRUPTED, ran.screen
    assert not desk.campaign().complete
    assert not summary.exists()


# python -m perf report


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with a campaign of one INVALID case, and a newer one that is still running."""
    desk = Desk(tmp_path)
    measured = suite(launches=(launch(failed()),))
    written(desk.campaigns, campaign(measured))
    written(desk.campaigns, campaign(replace(measured, launches=()), id="20260202-020000", complete=False))
    return desk


def test_a_report_is_for_people_for_markdown_and_for_programs(desk: Desk) -> None:
    texts = {
        form: desk.perf("report", "20260201-020000", "--format", form).out for form in ("text", "markdown", "json")
    }
    assert texts["text"] == desk.perf("report", "20260201-020000").out
    assert "1 INVALID; overall INVALID" in texts["text"]
    assert texts["markdown"].startswith("## sglang-perf: INVALID\n")
    assert ADAPTER.validate_json(texts["json"]).suites[0].cases[0].verdict == "INVALID"
    assert json.loads(texts["json"])["campaign"] == "20260201-020000"


def test_a_report_goes_to_a_file_in_place_of_what_is_there(desk: Desk) -> None:
    output = desk.folder / "new" / "report.md"
    for _ in range(2):
        ran = desk.perf("report", "20260201-020000", "--format", "markdown", "--output", str(output))
        assert (ran.code, ran.screen) == (0, "")
    assert output.read_text() == desk.perf("report", "20260201-020000", "--format", "markdown").out


def test_a_report_is_not_written_over_what_is_no_file(desk: Desk) -> None:
    for place in (Path(os.devnull), desk.folder, desk.campaigns / "20260201-020000" / "campaign.json" / "x.md"):
        ran = desk.perf("report", "20260201-020000", "--output", str(place))
        assert ran.code == 64
        assert ran.error.startswith(f"error: {place}: ")
    assert not Path(os.devnull).is_file()


def test_a_campaign_that_is_not_complete_has_no_report(desk: Desk) -> None:
    for form in ("text", "markdown", "json"):
        ran = desk.perf("report", "--format", form)
        assert ran.code == 64
        assert "campaign 20260202-020000 is not complete" in ran.error
        assert ran.out == ""
