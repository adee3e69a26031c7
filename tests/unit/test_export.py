"""Traces for other programs: a spreadsheet carries nothing out, and a timeline shows what was in flight."""

import csv
import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from perf.export import Exported, chrome, csv_of_chunks, csv_of_requests
from perf.metrics import summarize
from perf.trace import Failure, FailureName, RequestTrace, Round
from tests.unit.test_metrics_properties import closed_loops, rounds
from tests.unit.test_trace_file import FAILED, GOOD, ROUND, UNCOUNTED

unhurried = settings(deadline=None)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def requests_of(*measured: Round) -> list[dict[str, str]]:
    return rows("".join(csv_of_requests(Exported(launch="eagle3-2", round=each) for each in measured)))


def chunks_of(*measured: Round) -> list[dict[str, str]]:
    return rows("".join(csv_of_chunks(Exported(launch="eagle3-2", round=each) for each in measured)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A slice of a timeline, in whole nanoseconds."""

    name: str
    pid: int
    stream: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a viewer makes of a file."""

    names: dict[tuple[int, int], str]
    slices: tuple[Slice, ...]
    counters: dict[str, list[tuple[float, float]]]
    arguments: dict[str, dict[str, object]]


def timeline(*measured: Round) -> Timeline:
    """Read a timeline by the rules of the trace event format; whatever breaks one fails."""
    text = "".join(chrome((Exported(launch="eagle3-2", round=each) for each in measured), "a title"))
    document = json.loads(text, parse_constant=pytest.fail)
    assert text.isascii()
    assert document["otherData"] == {"title": "a title"}
    names, slices, counters, arguments = {}, [], defaultdict(list), {}
    for event in document["traceEvents"]:
        assert type(event["pid"]) is type(event["tid"]) is int
        match event["ph"]:
            case "M":
                assert event["name"] in ("process_name", "thread_name")
                names[event["pid"], event["tid"]] = event["args"]["name"]
            case "X":
                assert event["dur"] >= 0
                start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
                assert (start / 1000, length / 1000) == (event["ts"], event["dur"])
                slices.append(
                    Slice(name=event["name"], pid=event["pid"], stream=event["tid"], start=start, end=start + length)
                )
                if "args" in event:
                    arguments[event["name"]] = event["args"]
            case "C":
                ((_, value),) = event["args"].items()
                counters[event["name"]].append((event["ts"] / 1e6, value))
            case other:
                raise AssertionError(other)
    assert {(each.pid, each.stream) for each in slices} <= names.keys()
    return Timeline(names=names, slices=tuple(slices), counters=counters, arguments=arguments)


# Tables


def test_a_table_has_a_row_for_every_request_of_every_round_and_an_empty_cell_for_what_is_not_known() -> None:
    found = requests_of(ROUND, replace(ROUND, index=2, requests=(GOOD,)))
    assert [(each["launch"], each["round"], each["request"]) for each in found] == [
        ("eagle3-2", "2", "0"),
        ("eagle3-2", "2", "1"),
        ("eagle3-2", "2", "2"),
        ("eagle3-2", "3", "0"),
    ]
    assert found[0] == {
        "launch": "eagle3-2",
        "round": "2",
        "request": "0",
        "prompt_id": "p0",
        "sent_s": "0.001",
        "first_token_s": "0.1",
        "last_token_s": "0.2",
        "ended_s": "0.25",
        "chunks": "3",
        "prompt_tokens": "12",
        "cached_tokens": "",
        "output_tokens": "4",
        "finish_reason": "length",
        "failure": "",
        "failure_detail": "",
    }
    assert (found[2]["first_token_s"], found[2]["output_tokens"], found[2]["failure"]) == ("", "", "http_500")
    assert found[2]["failure_detail"] == 'KV cache "pool" is full'


def test_a_table_of_chunks_has_a_row_for_every_chunk() -> None:
    assert [tuple(each.values()) for each in chunks_of(ROUND)] == [
        ("eagle3-2", "2", "0", "0", "0.1", "1"),
        ("eagle3-2", "2", "0", "1", "0.2", "0"),
        ("eagle3-2", "2", "0", "2", "0.2", "3"),
        ("eagle3-2", "2", "1", "0", repr(1 / 3), ""),
    ]


def test_a_text_from_outside_is_no_formula_and_no_second_row() -> None:
    for evil in ('=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "\r\n=1", " =1", '"\n=1', "\x1b[2J=1"):
        failure = Failure(name=FailureName.ERROR_IN_STREAM, detail=evil)
        (row,) = requests_of(
            replace(ROUND, requests=(replace(FAILED, prompt_id=evil, finish_reason=evil, failure=failure),))
        )
        for cell in (row["prompt_id"], row["finish_reason"], row["failure_detail"]):
            assert cell[0] in "'\"", (evil, cell)
            assert cell.isprintable()


def test_a_number_below_zero_stays_a_number() -> None:
    (row,) = requests_of(replace(ROUND, requests=(replace(GOOD, sent_s=-1e-06),)))
    assert float(row["sent_s"]) == -1e-06


# Timelines


def test_a_timeline_has_a_process_for_each_round_and_a_slice_for_each_request_with_ttft_and_decode_in_it() -> None:
    found = timeline(ROUND, replace(ROUND, index=2, requests=(GOOD,)))
    assert found.names[1, 0] == "eagle3-2 round 2"
    assert found.names[2, 0] == "eagle3-2 round 3"
    assert [each for each in found.slices if each.pid == 2] == [
        Slice(name="p0", pid=2, stream=1, start=1_000_000, end=200_000_000),
        Slice(name="TTFT", pid=2, stream=1, start=1_000_000, end=100_000_000),
        Slice(name="decode", pid=2, stream=1, start=100_000_000, end=200_000_000),
    ]
    assert found.arguments["p0"] == {
        "request": 0,
        "prompt_tokens": 12,
        "output_tokens": 4,
        "chunks": 3,
        "finish_reason": "length",
    }


def test_a_failed_request_is_named_and_lasts_to_its_end() -> None:
    found = timeline(replace(ROUND, requests=(FAILED,)))
    assert found.slices == (Slice(name="p0: http_500", pid=1, stream=1, start=1_000_000, end=250_000_000),)
    assert found.arguments["p0: http_500"]["failure"] == 'KV cache "pool" is full'
    assert "tok/s" not in found.counters


def test_a_timeline_says_nothing_of_tokens_per_second_where_the_tokens_of_chunks_are_not_known() -> None:
    assert "tok/s" not in timeline(replace(ROUND, requests=(GOOD, UNCOUNTED))).counters


def test_a_round_without_requests_is_an_empty_track() -> None:
    assert timeline(replace(ROUND, requests=())).names == {(1, 0): "eagle3-2 round 2"}


def test_a_round_of_a_year_has_a_bounded_timeline() -> None:
    long = replace(GOOD, chunk_times_s=(0.1, 1.0, 3.2e7))
    assert len(timeline(replace(ROUND, requests=(long,))).counters["tok/s"]) <= 10_002


@unhurried
@given(closed_loops())
def test_a_closed_loop_needs_no_more_streams_than_its_level(measured: Round) -> None:
    streams = {each.stream for each in timeline(measured).slices}
    summary = summarize(measured)
    assert summary is not None
    assert streams == set(range(1, summary.peak_concurrency + 1))
    assert len(streams) <= measured.level


@unhurried
@given(rounds)
def test_slices_of_a_stream_never_overlap_and_counters_are_those_of_the_metrics(measured: Round) -> None:
    found = timeline(measured)
    by_stream: dict[int, list[Slice]] = defaultdict(list)
    for each in found.slices:
        if each.name not in ("TTFT", "decode"):
            by_stream[each.stream].append(each)
    assert sum(map(len, by_stream.values())) == len(measured.requests)
    for slices in by_stream.values():
        slices.sort(key=lambda each: (each.start, each.end))
        assert all(one.end <= other.start for one, other in pairwise(slices))
    summary = summarize(measured)
    assert summary is not None
    assert max(count for _, count in found.counters["in flight"]) == summary.peak_concurrency
    assert found.counters["in flight"][-1][1] == 0
    if all(each.chunk_tokens is not None for each in measured.requests):
        rates = found.counters["tok/s"]
        lengths = [after - before for (before, _), (after, _) in pairwise(rates)]
        seen = math.fsum(rate * length for (_, rate), length in zip(rates[:-1], lengths, strict=True))
        assert math.isclose(seen, summary.output_tokens, rel_tol=1e-6)


def test_a_hostile_name_is_escaped() -> None:
    evil: RequestTrace = replace(GOOD, prompt_id='"}]}</script>\x1b[2J\u202e\n')
    assert timeline(replace(ROUND, requests=(evil,))).slices[0].name == '"}]}</script>'
