"""Rounds small enough to be reckoned by hand. Many are inputs that misled other tools; the source stands with each."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import FrameType
from typing import Self

import pytest
from pydantic import TypeAdapter

from benchmarks import metrics_at_scale
from perf.metrics import STEADY_PERCENT, Distribution, RoundSummary, summarize, windowed_tokens
from perf.trace import Failure, FailureName, RequestTrace, Round

METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def request(
    times_s: Sequence[float],
    tokens: Sequence[int] | None,
    *,
    sent_s: float = 0.0,
    usage: int | None = None,
    failure: Failure | None = None,
) -> RequestTrace:
    """A request whose usage is the sum of its chunk counts, unless it is given."""
    return RequestTrace(
        index=7,
        prompt_id="p",
        sent_s=sent_s,
        chunk_times_s=tuple(times_s),
        chunk_tokens=None if tokens is None else tuple(tokens),
        output_tokens=sum(tokens) if usage is None and tokens is not None else usage,
        prompt_tokens=12,
        cached_tokens=None,
        ended_s=max(times_s, default=sent_s) + 5.0,  # [DONE] comes late: no number may depend on it
        finish_reason="length",
        failure=failure,
    )


def a_round(*requests: RequestTrace, level: int = 1, planned: int | None = None) -> Round:
    return Round(
        level=level,
        index=0,
        planned_requests=len(requests) if planned is None else planned,
        requested_tokens=31,
        requests=requests,
    )


def numbers(*requests: RequestTrace, level: int = 1, verify_steps: int | None = None) -> RoundSummary:
    summary = summarize(a_round(*requests, level=level), verify_steps=verify_steps)
    assert summary is not None
    return summary


def constant(value: float) -> Distribution:
    """What a quantity that never varies must be summarised as."""
    return Distribution(mean=value, p50=value, p90=value, p99=value, max=value)


def assert_constant(found: Distribution | None, value: float) -> None:
    assert found is not None
    for field in fields(Distribution):
        assert getattr(found, field.name) == pytest.approx(value, rel=1e-12)


# Tokens are tokens, whatever the chunks


def test_three_tokens_to_a_chunk_every_30_ms_are_10_ms_a_token() -> None:
    """sglang#12064 reported the 30 ms between chunks as the time per token."""
    stream = request([0.10, *(0.10 + 0.03 * n for n in range(1, 11))], [1] + [3] * 10)
    summary = numbers(stream)
    assert summary.output_tokens == 31
    assert_constant(summary.tpot_s, 0.010)
    assert_constant(summary.itl_s, 0.010)
    assert_constant(summary.ttft_s, 0.10)
    assert_constant(summary.e2e_s, 0.40)
    assert_constant(summary.per_request_throughput, 31 / 0.40)
    assert summary.output_throughput == pytest.approx(31 / 0.40)


@pytest.mark.parametrize("per_chunk", [1, 2, 3, 5, 6, 10, 15, 30])
def test_the_same_stream_in_any_chunking_has_the_same_totals(per_chunk: int) -> None:
    """vllm#37666, vllm#50677: counting chunks made the rate fall, and its peak lie under its mean."""
    chunks = 30 // per_chunk
    stream = request(
        [0.5, *(0.5 + 0.25 * per_chunk * n for n in range(1, chunks + 1))], [1, *[per_chunk] * chunks], sent_s=0.0
    )
    summary = numbers(stream)
    assert (summary.output_tokens, summary.window_s) == (31, 8.0)
    assert summary.output_throughput == 31 / 8.0
    assert summary.tpot_s == constant(0.25)
    in_each_second = [windowed_tokens([stream], second, second + 1.0) for second in range(8)]
    assert sum(in_each_second) == 31
    assert max(in_each_second) >= summary.output_throughput


def test_all_tokens_in_one_chunk_leave_throughput_valid_and_the_time_between_tokens_absent() -> None:
    """sglang#36272: 200 tokens in one content chunk gave an ITL and a TPOT of 0."""
    summary = numbers(request([2.0], [200]))
    assert (summary.tpot_s, summary.itl_s) == (None, None)
    assert summary.output_throughput == 100.0
    assert summary.steady_throughput == 100.0
    assert summary.per_request_throughput == constant(100.0)
    assert (summary.ttft_s, summary.e2e_s) == (constant(2.0), constant(2.0))


def test_chunks_that_bear_one_time_say_no_more_than_one_chunk() -> None:
    """A stream that a proxy held back and sent at once: its tokens did not take 0 s each."""
    summary = numbers(request([2.0, 2.0, 2.0], [50, 100, 50]))
    assert (summary.tpot_s, summary.itl_s) == (None, None)
    assert summary.output_throughput == 100.0


def test_tokens_are_what_usage_says_and_neither_text_nor_chunks_are_counted() -> None:
    """vllm#45739: "!" a thousand times, usage 1000; tokenising the text again called it a sevenfold regression."""
    summary = numbers(request([0.1 * n for n in range(1, 101)], None, usage=1000))
    assert summary.output_tokens == 1000
    assert summary.output_throughput == pytest.approx(100.0)


def test_without_counts_per_chunk_only_what_needs_them_is_absent() -> None:
    stream = request([1.0, 2.0, 4.0], None, usage=9)
    counted = replace(stream, chunk_tokens=(1, 4, 4))
    without, with_counts = numbers(stream), numbers(counted)
    assert None not in (with_counts.tpot_s, with_counts.itl_s, with_counts.steady_throughput)
    assert without == replace(with_counts, tpot_s=None, itl_s=None, steady_throughput=None)


def test_one_request_without_counts_hides_the_steady_throughput_but_not_the_latencies_of_the_others() -> None:
    summary = numbers(request([1.0, 2.0], [1, 4]), request([1.0, 2.0], None, usage=5), level=2)
    assert summary.steady_throughput is None
    assert summary.tpot_s == constant(0.25)
    assert summary.itl_s == constant(0.25)


def test_a_request_of_one_chunk_is_left_out_of_tpot_and_nowhere_else() -> None:
    summary = numbers(request([1.0, 2.0], [1, 4]), request([4.0], [5]), level=2)
    assert summary.tpot_s == constant(0.25)
    assert summary.itl_s == constant(0.25)
    assert summary.ttft_s.max == 4.0


def test_a_chunk_without_a_new_token_is_no_arrival_and_its_time_goes_to_the_next() -> None:
    """A reasoning delta split from content bears the same cumulative usage as the chunk before it."""
    split = numbers(request([1.0, 1.5, 2.0, 3.0], [2, 0, 2, 4]))
    whole = numbers(request([1.0, 2.0, 3.0], [2, 2, 4]))
    assert split == whole
    assert split.itl_s is not None
    assert split.itl_s.max == 0.5


def test_no_token_after_the_first_chunk_means_no_time_between_tokens() -> None:
    summary = numbers(request([1.0, 2.0], [5, 0]))
    assert (summary.tpot_s, summary.itl_s) == (None, None)


def test_each_token_of_a_chunk_counts_in_the_inter_token_latency() -> None:
    """Gaps 1 s for 1 token, 1 s for 4, 4 s for 5: in order 0.25 (4 times), 0.8 (5 times), 1.0."""
    itl = numbers(request([1.0, 2.0, 3.0, 7.0], [3, 1, 4, 5])).itl_s
    assert itl is not None
    assert itl.mean == pytest.approx(0.6)
    assert itl.p50 == 0.8
    assert itl.p90 == pytest.approx(0.8 + 0.1 * 0.2)
    assert itl.p99 == pytest.approx(0.8 + 0.91 * 0.2)
    assert itl.max == 1.0


def test_percentiles_lie_linearly_between_order_statistics() -> None:
    ttft = numbers(*(request([float(n)], [1]) for n in (5, 3, 1, 2, 4))).ttft_s
    assert (ttft.mean, ttft.p50, ttft.max) == (3.0, 3.0, 5.0)
    assert ttft.p90 == pytest.approx(4.6)
    assert ttft.p99 == pytest.approx(4.96)


def test_a_percentile_that_is_an_element_of_the_list_is_exactly_that_element() -> None:
    ttft = numbers(*(request([0.1 * n], [1]) for n in range(1, 102))).ttft_s
    assert (ttft.p50, ttft.p90, ttft.p99) == (0.1 * 51, 0.1 * 91, 0.1 * 100)


# A partial round has no number


@pytest.mark.parametrize("name", FailureName)
def test_a_round_with_one_failed_request_has_no_number(name: FailureName) -> None:
    """vllm#57519 (error in the stream), llama-benchy#11 (no usage), guidellm#982 (wrong length), sglang#22779."""
    good = request([1.0, 2.0], [1, 30])
    failed = request([1.0, 2.0], [1, 30], failure=Failure(name=name, detail="seen"))
    assert summarize(a_round(good, good)) is not None
    assert summarize(a_round(good, failed)) is None


def test_a_failed_request_may_lack_everything_and_is_still_only_a_failed_request() -> None:
    refused = request([], None, failure=Failure(name=FailureName.CONNECTION, detail="refused"))
    assert summarize(a_round(refused)) is None


def test_a_round_in_which_fewer_finished_than_planned_has_no_number() -> None:
    good = request([1.0, 2.0], [1, 30])
    assert summarize(a_round(good, good, planned=3)) is None


def test_a_round_without_a_request_has_no_number() -> None:
    assert summarize(a_round()) is None


# Concurrency and the steady part


def test_little_s_law_and_the_sweep_on_a_round_reckoned_by_hand() -> None:
    """In flight: 1 in [0, 1), 2 in [1, 3), 1 in [3, 4): an area of 6 over 4 s."""
    summary = numbers(request([3.0], [1]), request([4.0], [1], sent_s=1.0), level=2)
    assert summary.achieved_concurrency == 1.5
    assert summary.peak_concurrency == 2
    assert summary.request_throughput == 0.5


def test_one_request_that_ends_as_the_next_is_sent_is_one_in_flight() -> None:
    summary = numbers(request([1.0], [10]), request([2.0], [10], sent_s=1.0), request([4.0], [20], sent_s=2.0))
    assert summary.peak_concurrency == 1
    assert summary.achieved_concurrency == 1.0


def test_back_to_back_requests_at_level_one_have_one_throughput_however_it_is_counted() -> None:
    """30 requests of 512 tokens at C=1: output, steady and per-request throughput are the same question."""
    summary = numbers(*(request([n + 0.5, n + 1.0], [1, 511], sent_s=float(n)) for n in range(30)))
    assert summary.output_throughput == 512.0
    assert summary.steady_throughput == 512.0
    assert summary.per_request_throughput == constant(512.0)


def test_ramp_up_and_drain_are_cut_from_the_steady_throughput() -> None:
    """Level 2 is held in (1, 4]: the 2 tokens at 1.0 and the 100 at 9.0 lie outside, what arrives at 4.0 inside."""
    summary = numbers(request([1.0, 4.0], [2, 6]), request([2.0, 9.0], [3, 100], sent_s=1.0), level=2)
    assert summary.steady_throughput == (6 + 3) / 3.0
    assert summary.output_throughput == 111 / 9.0


def test_a_round_at_its_level_throughout_has_its_output_throughput_as_steady_throughput() -> None:
    """Two streams, each replaced at the instant it ends: the token of an end belongs to the interval before it."""
    summary = numbers(
        request([0.3, 0.7], [1, 4]),
        request([0.4, 1.1], [2, 5]),
        request([0.9, 1.9], [1, 9], sent_s=0.7),
        request([1.3, 1.9], [3, 8], sent_s=1.1),
        level=2,
    )
    assert summary.steady_throughput == summary.output_throughput


def test_thirty_requests_never_load_250_streams() -> None:
    """The published levels 70, 100 and 250 held 30 requests each: there is no steady part at 250."""
    thirty = [request([1.0, 2.0], [1, 511]) for _ in range(30)]
    at_250, at_30 = numbers(*thirty, level=250), numbers(*thirty, level=30)
    assert at_250.steady_throughput is None
    assert at_250.peak_concurrency == 30
    assert at_30.steady_throughput == at_30.output_throughput == at_250.output_throughput


@pytest.mark.parametrize(("level", "enough"), [(1, 1), (2, 2), (19, 19), (20, 19), (40, 38), (60, 57), (61, 58)])
def test_the_level_is_held_from_95_percent_of_it_in_flight(level: int, enough: int) -> None:
    held = numbers(*(request([1.0], [1]) for _ in range(enough)), level=level)
    assert held.steady_throughput is not None
    if enough > 1:
        missed = numbers(*(request([1.0], [1]) for _ in range(enough - 1)), level=level)
        assert missed.steady_throughput is None


# Acceptance length


def test_acceptance_length_is_pooled_over_the_round() -> None:
    """sglang#34743, sglang#29329: 3.0 over 10 steps and 2.0 over 40 are 2.2, not the mean of ratios 2.5."""
    summary = numbers(request([1.0], [30]), request([1.0], [80]), verify_steps=10 + 40)
    assert summary.acceptance_length == 2.2


@pytest.mark.parametrize("verify_steps", [None, 0])
def test_without_verify_steps_there_is_no_acceptance_length(verify_steps: int | None) -> None:
    assert numbers(request([1.0], [30]), verify_steps=verify_steps).acceptance_length is None


def test_a_counter_that_went_down_is_an_error_and_not_a_negative_acceptance() -> None:
    with pytest.raises(ValueError, match=r"verify steps over the round are -3.*reset.*read both"):
        numbers(request([1.0], [30]), verify_steps=-3)


# Windows


def test_a_window_counts_what_arrives_after_its_start_up_to_its_end() -> None:
    stream = request([1.0, 2.0, 3.0], [1, 20, 300])
    assert windowed_tokens([stream], 1.0, 2.0) == 20
    assert windowed_tokens([stream], 0.0, 3.0) == 321
    assert windowed_tokens([stream], 3.0, 9.0) == 0


def test_the_tokens_of_a_failed_request_count_in_no_window() -> None:
    failed = request([1.0], [20], failure=Failure(name=FailureName.ABORTED, detail="seen"))
    assert windowed_tokens([failed, request([1.0], [3])], 0.0, 9.0) == 3


def test_a_window_over_a_stream_without_counts_is_an_error_and_not_zero() -> None:
    with pytest.raises(ValueError, match=r"request 7 has no tokens per chunk.*continuous usage"):
        windowed_tokens([request([1.0], None, usage=3)], 0.0, 9.0)


# A trace that contradicts itself


@pytest.mark.parametrize(
    ("contradiction", "seen"),
    [
        (request([1.0], None), "has no output tokens by usage"),
        (request([], [], usage=3), "no text of it arrived"),
        (request([1.0], [3], sent_s=1.0), "last token came at 1.0 s, not after it was sent at 1.0 s"),
        (request([1.0], [3], sent_s=2.0), "last token came at 1.0 s, not after it was sent at 2.0 s"),
        (request([1.0, 2.0], [3]), r"1 chunk counts \(sum 3, least 3\) are not those of 3 tokens in 2 chunks"),
        (request([1.0], [], usage=3), r"0 chunk counts \(sum 0, least 0\)"),
        (request([1.0, 2.0], [3, 4], usage=8), "sum 7"),
        (request([1.0, 2.0], [9, -1]), "least -1"),
    ],
)
def test_a_good_request_that_contradicts_itself_is_named_with_what_was_seen(
    contradiction: RequestTrace, seen: str
) -> None:
    with pytest.raises(ValueError, match=seen) as caught:
        summarize(a_round(request([1.0], [1]), contradiction))
    assert str(caught.value).startswith("request 7 counts as good, but ")
    assert str(caught.value).endswith("must name a failure instead")


# Long rounds


class PythonSteps:
    """A tracer that counts the instructions of Python, those of numpy's own Python among them."""

    seen = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Self:
        frame.f_trace_opcodes = True
        self.seen += event == "opcode"
        return self


def python_steps(measured: Round) -> int:
    steps, before = PythonSteps(), sys.gettrace()
    gc.collect()
    gc.disable()  # whatever it would end has steps of its own
    sys.settrace(steps)
    try:
        assert summarize(measured) is not None
    finally:
        sys.settrace(before)
        gc.enable()
    return steps.seen


@pytest.mark.parametrize("per_chunk", [1, 3])
def test_a_round_of_longer_requests_takes_no_more_steps_of_python(per_chunk: int) -> None:
    """What is done for each chunk is done in arrays."""

    def steps(chunks: int) -> int:
        times_s = [1.0 + n / 64 for n in range(chunks)]
        return python_steps(a_round(*(request(times_s, [1, *[per_chunk] * (chunks - 1)]) for _ in range(3)), level=3))

    assert steps(1000) == steps(10) > 0


@pytest.mark.parametrize("shape", metrics_at_scale.SHAPES, ids=lambda shape: shape.name)
def test_summarising_a_long_round_takes_a_small_multiple_of_the_memory_of_its_times_and_counts(
    shape: metrics_at_scale.Shape,
) -> None:
    assert 0 < metrics_at_scale.peak_over_input(shape.round_of(100_000)) < 4


def test_the_benchmark_at_scale_shows_each_kind_of_round_at_three_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    metrics_at_scale.main(["--largest", "10000"])
    heading, _, *lines = capsys.readouterr().out.splitlines()
    assert " ".join(heading.split()) == "round requests times tokens CPU s ns/time growth / n log n memory / input"
    assert len(lines) == 3 * len(metrics_at_scale.SHAPES)
    for shape in metrics_at_scale.SHAPES:
        rows = [line[len(shape.name) :].split() for line in lines if line.startswith(f"{shape.name}  ")]
        assert [row[5] == "-" for row in rows] == [True, False, False], shape.name
        times, tokens = int(rows[-1][1].replace(",", "")), int(rows[-1][2].replace(",", ""))
        assert times == pytest.approx(10_000, rel=0.05)
        assert tokens == (pytest.approx(3 * times, rel=0.05) if shape.packed else times)


def test_the_benchmark_at_scale_refuses_a_size_at_which_nothing_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        metrics_at_scale.main(["--largest", "999"])
    assert "--largest is 999; growth is seen from 1,000 token times on" in capsys.readouterr().err


# What is judged, stored and documented


@pytest.mark.parametrize("tokens", [(1, 3, 6), None])
def test_a_summary_written_as_json_and_read_back_is_the_same(tokens: tuple[int, ...] | None) -> None:
    written = numbers(request([0.1, 0.3, 0.7], tokens, usage=10), request([0.9], None, usage=3), verify_steps=7)
    adapter = TypeAdapter(RoundSummary)
    assert adapter.validate_json(adapter.dump_json(written, warnings="error")) == written


def test_a_summary_holds_plain_python_numbers() -> None:
    """A numpy number compares equal and then fails in `json`, or prints as `np.float64(...)`."""
    summary = numbers(request([0.1, 0.3, 0.7], [1, 3, 6]), verify_steps=7)
    for value in asdict(summary).values():
        for number in value.values() if isinstance(value, dict) else [value]:
            assert type(number) in {int, float}, summary


def documented_fields() -> dict[str, dict[str, str]]:
    """The table of the page: field name -> column -> cell."""
    lines = [line for line in METRICS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    header, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): dict(zip(header, row, strict=True)) for row in rows}


def test_the_page_documents_every_field_and_no_other_in_their_order() -> None:
    assert list(documented_fields()) == [field.name for field in fields(RoundSummary)]


def test_the_page_says_of_every_number_that_may_be_absent_when_it_is() -> None:
    rows = documented_fields()
    for field in fields(RoundSummary):
        may_be_absent = "None" in str(field.type)
        assert bool(rows[field.name]["`-` when"]) is may_be_absent, field.name


def test_the_page_gives_a_unit_that_fits_the_name() -> None:
    for name, row in documented_fields().items():
        assert (row["unit"] == "s") is name.endswith("_s"), name
        assert row["formula"], name


def test_the_page_states_the_share_of_the_level_that_is_used() -> None:
    assert f"at least {STEADY_PERCENT} % of it is in flight" in METRICS_PAGE.read_text(encoding="utf-8")
