"""A campaign's traces as their user meets them: measured, checked, found out, and read by other programs."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.emulated.inner import PACED, Desk

CASE = "small/served/c002"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One campaign of two launches with two rounds each, of four requests at two in flight."""
    desk = Desk(tmp_path_factory.mktemp("traced"))
    suite = desk.suite({"served": PACED}, workload="rounds = 2\noutput_tokens = 16\n")
    measured = desk.measure(suite, "--perf-max-launches=2")
    assert measured.words() == {CASE: "NO_BASELINE"}, measured.screen
    return desk


def test_check_finds_the_numbers_in_the_traces_and_a_number_that_somebody_changed(desk: Desk) -> None:
    honest = desk.perf("check", store=False)
    assert honest.code == 3, honest.screen
    assert "1 NO_BASELINE; overall NO_BASELINE" in honest.out
    assert honest.out.endswith("traces: 4 of 4 rounds have one, and were summarised again from it\n")

    (folder,) = desk.folders()
    file = folder / "campaign.json"
    before = file.read_text()
    campaign = json.loads(before)
    summary = campaign["suites"][0]["launches"][1]["measurements"][0]["rounds"][0]["summary"]
    summary["window_s"] *= 0.9
    summary["output_throughput"] /= 0.9
    file.write_text(json.dumps(campaign))
    try:
        forged = desk.perf("check", store=False)
    finally:
        file.write_text(before)
    assert forged.code == 3, forged.screen
    assert "1 INVALID; overall INVALID" in forged.out
    assert f"{CASE}\nINVALID  record and trace disagree: launch served-2, round 1: window_s is " in forged.out


def test_a_table_has_every_request_as_the_record_counts_them(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    ran = desk.perf("export", "--case", CASE, "--format", "csv", "--output", str(file))
    assert (ran.code, ran.screen) == (0, "")
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert Counter((row["launch"], row["round"]) for row in rows) == {
        (launch, number): 4 for launch in ("served-1", "served-2") for number in ("1", "2")
    }
    assert {(row["output_tokens"], row["finish_reason"], row["failure"]) for row in rows} == {("16", "length", "")}
    first = desk.campaign().suites[0].launches[0].measurements[0].rounds[0].summary
    assert first is not None
    chosen = [row for row in rows if (row["launch"], row["round"]) == ("served-1", "1")]
    window_s = max(float(row["last_token_s"]) for row in chosen) - min(float(row["sent_s"]) for row in chosen)
    assert 4 * 16 / window_s == pytest.approx(first.output_throughput, rel=1e-12)

    chunks = desk.perf("export", "--case", CASE, "--format", "csv-chunks", "--launch", "2", "--round", "2")
    assert chunks.code == 0, chunks.screen
    tokens = [int(row["tokens"]) for row in csv.DictReader(chunks.out.splitlines())]
    assert sum(tokens) == 4 * 16


def test_a_timeline_has_the_requests_on_two_tracks(desk: Desk) -> None:
    ran = desk.perf("export", "--case", CASE, "--format", "chrome", "--launch", "1", "--round", "2")
    assert ran.code == 0, ran.screen
    events = json.loads(ran.out)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert Counter(event["name"] for event in slices if event["name"] in ("TTFT", "decode")) == {"TTFT": 4, "decode": 4}
    assert {event["tid"] for event in slices} == {1, 2}
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {
        "served-1 round 2",
        "stream 001",
        "stream 002",
    }
    in_flight = [event["args"]["requests"] for event in events if event["name"] == "in flight"]
    assert (max(in_flight), in_flight[-1]) == (2, 0)
