"""`python -m perf check` holds a campaign against its traces, and `export` shows them."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perf import record, trace_file
from perf.__main__ import main
from perf.metrics import RoundSummary, summarize
from perf.record import Measurement, RoundRecord
from perf.trace import Counters, RequestTrace, Round
from tests.unit.simulated import FAILED, campaign, launch, measured, stored, suite, summary, written
from tests.unit.test_trace_file import FAILED as FAILED_REQUEST
from tests.unit.test_trace_file import HEALTH

ID = "20260201-020000"
COUNTED = Counters(generated=400, verify_steps=160)
CHECKED = "traces: 4 of 4 rounds have one, and were summarised again from it\n"


def measured_round(index: int, step_s: float) -> Round:
    """Four requests after each other, of 100 tokens each; about 1 / `step_s` tok/s."""
    requests = tuple(
        RequestTrace(
            index=number,
            prompt_id=f"p{number}",
            sent_s=100 * number * step_s,
            chunk_times_s=tuple((100 * number + token) * step_s for token in range(1, 101)),
            chunk_tokens=(1,) * 100,
            output_tokens=100,
            prompt_tokens=10,
            cached_tokens=0,
            ended_s=(100 * number + 100) * step_s,
            finish_reason="length",
        )
        for number in range(4)
    )
    return Round(level=1, index=index, planned_requests=4, requested_tokens=100, requests=requests)


def numbers(of: Round) -> RoundSummary:
    found = summarize(of, verify_steps=COUNTED.verify_steps)
    assert found is not None
    return found


class Place:
    """A project with one campaign of two launches with two rounds each, all with their traces, which passes."""

    def __init__(self, folder: Path) -> None:
        self.campaigns = folder / ".perf" / "campaigns"
        self.folder = self.campaigns / ID
        rounds = {(ordinal, index): measured_round(index, 0.01 / 3) for ordinal in (1, 2) for index in (0, 1)}
        launches = tuple(
            launch(
                Measurement(
                    level=1,
                    rounds=tuple(
                        RoundRecord(
                            index=index,
                            summary=numbers(rounds[ordinal, index]),
                            reasons=(),
                            client=None,
                            gpus=None,
                            server_log=None,
                        )
                        for index in (0, 1)
                    ),
                    reasons=(),
                ),
                ordinal=ordinal,
            )
            for ordinal in (1, 2)
        )
        state = suite(store=(stored(299.9, 300.0, 300.1, 300.0),), launches=launches)
        assert state.workload is not None
        written(self.campaigns, campaign(replace(state, workload=replace(state.workload, rounds=2))))
        for (ordinal, index), each in rounds.items():
            self.trace(ordinal, index).parents[1].mkdir(exist_ok=True)
            trace_file.write(self.trace(ordinal, index), each, COUNTED)

    def trace(self, ordinal: int, index: int) -> Path:
        return trace_file.path(self.folder / f"baseline-{ordinal}", "c001", index)

    def change(self, change: Callable[[RoundRecord], RoundRecord]) -> None:
        """Change the record of the second round of the second launch, as an editor would."""
        whole = record.read(self.folder)
        state = whole.suites[0]
        first, second = state.launches
        (taken,) = second.measurements
        taken = replace(taken, rounds=(taken.rounds[0], change(taken.rounds[1])))
        second = replace(second, measurements=(taken,))
        record.save(self.folder, replace(whole, suites=(replace(state, launches=(first, second)),)))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


def run(*arguments: str) -> int:
    """The exit code, also where argparse ends the process itself."""
    try:
        return main(list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


# check


def test_a_campaign_whose_numbers_follow_from_its_traces_has_its_verdict(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.folder.is_dir()
    assert run("check") == 0
    assert capsys.readouterr().out.endswith(CHECKED)


def slower(numbers: RoundSummary) -> RoundSummary:
    """Another throughput, and what `read` would notice of it put right."""
    window_s = numbers.window_s * 1.001
    return replace(numbers, window_s=window_s, output_throughput=numbers.output_tokens / window_s)


CHANGES: dict[str, tuple[Callable[[RoundSummary], RoundSummary], str]] = {
    "throughput": (slower, "window_s is "),
    "TTFT": (lambda it: replace(it, ttft_s=replace(it.ttft_s, p50=0.5)), "ttft_s.p50 is 0.5 in the record and 0.00"),
    "acceptance": (lambda it: replace(it, acceptance_length=2.6), "acceptance_length is 2.6 in the record and 2.5 by"),
    "a number": (lambda it: replace(it, requests=5), "requests is 5 in the record and 4 by the trace"),
    "none": (lambda it: replace(it, itl_s=None), "itl_s.mean is None in the record and 0.00"),
    "one in a million": (lambda it: replace(it, e2e_s=replace(it.e2e_s, max=it.e2e_s.max * 1.000001)), "e2e_s.max is"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_number_that_was_changed_makes_its_case_invalid_and_is_named(
    place: Place, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    change, seen = CHANGES[name]
    place.change(lambda each: replace(each, summary=each.summary and change(each.summary)))
    assert run("check") == 3
    out = capsys.readouterr().out
    assert f"sim/baseline/c001\nINVALID  record and trace disagree: launch baseline-2, round 2: {seen}" in out
    path = f".perf/campaigns/{ID}/baseline-2/traces/c001-2.npz"
    assert f"campaign.json or {path} was changed: measure again\n" in out
    assert out.endswith(CHECKED)


def test_numbers_that_were_removed_or_made_up_make_their_case_invalid(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.change(lambda each: replace(each, summary=None, reasons=(FAILED,)))
    assert run("check") == 3
    assert "launch baseline-2, round 2: the record has none, the trace numbers" in capsys.readouterr().out
    whole = measured_round(1, 0.01)
    failed = replace(whole, requests=(*whole.requests[1:], replace(FAILED_REQUEST, index=0)))
    trace_file.write(place.trace(2, 1), failed, COUNTED)
    place.change(lambda each: replace(each, summary=summary(300.0), reasons=()))
    assert run("check") == 3
    assert "launch baseline-2, round 2: the record has numbers, the trace none" in capsys.readouterr().out


def test_a_client_that_was_made_to_look_better_makes_its_case_invalid(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.change(lambda each: replace(each, client=HEALTH))
    assert run("check") == 3
    assert "round 2: how the client fared is not as the trace has it" in capsys.readouterr().out


def test_what_sums_in_another_order_is_the_same_number(place: Place) -> None:
    def rounded(it: RoundSummary) -> RoundSummary:
        return replace(it, ttft_s=replace(it.ttft_s, mean=it.ttft_s.mean * (1 + 1e-15)))

    place.change(lambda each: replace(each, summary=each.summary and rounded(each.summary)))
    assert run("check") == 0


def test_a_round_that_failed_is_held_against_its_trace_too(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    whole = measured_round(1, 0.01)
    failed = replace(whole, requests=(*whole.requests[1:], replace(FAILED_REQUEST, index=0)))
    trace_file.write(place.trace(2, 1), failed, None)
    place.change(lambda each: replace(each, summary=None, reasons=(FAILED,)))
    assert run("check") == 3
    out = capsys.readouterr().out
    assert "INVALID  requests failed: 3 of 128" in out
    assert "disagree" not in out
    assert out.endswith(CHECKED)


def test_rounds_without_a_trace_are_taken_as_recorded_and_counted(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.trace(1, 0).unlink()
    place.trace(2, 1).unlink()
    assert run("check") == 0
    assert capsys.readouterr().out.endswith(
        "traces: 2 of 4 rounds have one, and were summarised again from it; 2 are taken as recorded (traces removed, "
        "or older than version 0.2)\n"
    )


def test_a_trace_that_is_damaged_is_a_sentence_and_never_a_verdict(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.trace(1, 1).write_bytes(place.trace(1, 1).read_bytes()[:-100])
    assert run("check") == 64
    seen = capsys.readouterr()
    assert seen.out == ""
    path = f".perf/campaigns/{ID}/baseline-1/traces/c001-2.npz"
    assert (
        seen.err
        == f"error: {path}: not the trace of a round: File is not a zip file; restore it, or remove it and be without\n"
    )


def test_a_trace_that_contradicts_itself_is_a_sentence(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    whole = measured_round(0, 0.01)
    odd = replace(whole, requests=(replace(whole.requests[0], output_tokens=7), *whole.requests[1:]))
    trace_file.write(place.trace(1, 0), odd, COUNTED)
    assert run("check") == 64
    assert (
        "c001-1.npz: contradicts itself: request 0 counts as good, but its 100 chunk counts" in capsys.readouterr().err
    )


def test_the_trace_of_another_round_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.trace(1, 0).write_bytes(place.trace(1, 1).read_bytes())
    assert run("check") == 64
    assert "c001-1.npz: not the trace of a round: level 1, round 2: that of another" in capsys.readouterr().err


# export


def test_a_case_is_exported_whole_or_one_launch_or_round_of_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.folder.is_dir()

    def rounds(*arguments: str) -> set[tuple[str, str]]:
        assert run("export", "--case", "sim/baseline/c001", "--format", "csv", *arguments) == 0
        return {(row["launch"], row["round"]) for row in csv.DictReader(capsys.readouterr().out.splitlines())}

    assert len(rounds()) == 4
    assert rounds("--launch", "2") == {("baseline-2", "1"), ("baseline-2", "2")}
    assert rounds("--launch", "1", "--round", "2") == {("baseline-1", "2")}
    assert rounds(ID, "--round", "1") == {("baseline-1", "1"), ("baseline-2", "1")}


def test_every_chunk_can_be_exported(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.folder.is_dir()
    assert run("export", "--case", "sim/baseline/c001", "--format", "csv-chunks", "--launch", "1", "--round", "1") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    expected = measured_round(0, 0.01 / 3)
    assert [float(row["time_s"]) for row in rows] == [time for it in expected.requests for time in it.chunk_times_s]


def test_a_timeline_is_written_to_the_file_that_is_named(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.folder.is_dir()
    assert run("export", "--case", "sim/baseline/c001", "--format", "chrome", "--output", "trace.json") == 0
    assert capsys.readouterr() == ("", "")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert document["otherData"] == {"title": f"sim/baseline/c001, campaign {ID}"}
    assert {event["pid"] for event in document["traceEvents"]} == {1, 2, 3, 4}
    assert run("export", "--case", "sim/baseline/c001", "--format", "chrome", "--output", ".") == 1
    assert "is there and is no file" in capsys.readouterr().err


def test_what_is_left_out_of_an_export_is_said(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.trace(1, 0).unlink()
    assert run("export", "--case", "sim/baseline/c001", "--format", "csv") == 0
    assert capsys.readouterr().err == "left out: 1 of 4 rounds, which have no trace\n"


def test_a_campaign_that_was_interrupted_can_be_exported(place: Place) -> None:
    whole = record.read(place.folder)
    record.save(place.folder, replace(whole, complete=False, finished_at=None))
    assert run("export", "--case", "sim/baseline/c001", "--format", "csv") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--case", "sim/baseline/c002"), 1, f"no case 'sim/baseline/c002' in {ID}; there are sim/baseline/c001\n"),
        (("--case", "sim/baseline/c001", "--launch", "3"), 1, "no such launch or round; choose by --launch and --rou"),
        (("--case", "sim/baseline/c001", "--round", "0"), 64, "argument --round: at least 1"),
        ((), 64, "the following arguments are required: --case"),
        (("20990101-000000", "--case", "sim/baseline/c001"), 1, "no campaign '20990101-000000'"),
    ],
)
def test_an_export_of_nothing_is_a_sentence(
    place: Place, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert place.folder.is_dir()
    assert run("export", "--format", "csv", *arguments) == code
    assert said in capsys.readouterr().err


def test_a_campaign_without_traces_says_where_the_first_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / ".perf" / "campaigns", campaign(suite(launches=(launch(measured(100.0)),))))
    assert run("export", "--case", "sim/baseline/c001", "--format", "csv") == 1
    assert capsys.readouterr().err == (
        f"error: no trace of sim/baseline/c001 in {ID}: the first of 1 would be .perf/campaigns/{ID}/baseline-1/traces/"
        "c001-1.npz; choose by --launch and --round, or measure\n"
    )
