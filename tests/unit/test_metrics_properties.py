"""What must hold for every round, and agreement with a slow reference on rounds nobody thought of.

Times are whole ticks of a drawn unit, so that equal times (an end and a start, two chunks of one read) are common.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.metrics import Distribution, RoundSummary, summarize, windowed_tokens
from perf.trace import Failure, FailureName, RequestTrace, Round
from tests.unit import reference_metrics

#: No limit on the time of one example: the machine that runs the tests may be busy with anything.
unhurried = settings(deadline=None)

#: Sums and differences of such times are exact.
EXACT_TICK_S = 1 / 1024
TICKS_S = st.sampled_from([EXACT_TICK_S, 0.001, 1 / 3])
LEVELS = st.sampled_from([1, 2, 3, 4, 20])
COUNTED = st.sampled_from(["all", "some", "none"])

#: Rounding alone: every number is a few operations away from the times.
ROUNDING = 1e-12


def trace(
    index: int, tick_s: float, sent: int, arrivals: Sequence[int], counts: Sequence[int], *, counted: bool
) -> RequestTrace:
    """A good request from whole ticks."""
    return RequestTrace(
        index=index,
        prompt_id=f"p{index}",
        sent_s=sent * tick_s,
        chunk_times_s=tuple(arrival * tick_s for arrival in arrivals),
        chunk_tokens=tuple(counts) if counted else None,
        output_tokens=sum(counts),
        prompt_tokens=12,
        cached_tokens=0,
        ended_s=(arrivals[-1] + 3) * tick_s,
        finish_reason="length",
    )


def round_of(level: int, requests: Sequence[RequestTrace]) -> Round:
    return Round(level=level, index=0, planned_requests=len(requests), requested_tokens=31, requests=tuple(requests))


@st.composite
def streams(draw: st.DrawFn, sent: int) -> tuple[list[int], list[int]]:
    """Arrivals and token counts of one request sent at a tick: it ends later than it was sent."""
    gaps = draw(st.lists(st.integers(0, 6), max_size=12))
    first = sent + draw(st.integers(0 if any(gaps) else 1, 8))
    arrivals = [first]
    for gap in gaps:
        arrivals.append(arrivals[-1] + gap)
    counts = [draw(st.sampled_from([1, 1, 2, 5, 0, 17])) for _ in arrivals]
    counts[-1] = max(counts[-1], 0 if any(counts) else 1)
    return arrivals, counts


@st.composite
def arbitrary_rounds(draw: st.DrawFn, ticks_s: st.SearchStrategy[float] = TICKS_S) -> Round:
    """Requests that start whenever they like, at a level that has nothing to do with them."""
    tick_s, counted = draw(ticks_s), draw(COUNTED)
    requests: list[RequestTrace] = []
    for index in range(draw(st.integers(1, 10))):
        sent = draw(st.integers(0, 12))
        arrivals, counts = draw(streams(sent))
        given_counts = counted == "all" or (counted == "some" and draw(st.booleans()))
        requests.append(trace(index, tick_s, sent, arrivals, counts, counted=given_counts))
    return round_of(draw(st.integers(1, 8)), requests)


@st.composite
def closed_loops(draw: st.DrawFn, ticks_s: st.SearchStrategy[float] = TICKS_S) -> Round:
    """`level` streams, each sending its next request when the last has ended, at once or after a pause."""
    level, tick_s = draw(LEVELS), draw(ticks_s)
    requests: list[RequestTrace] = []
    for _ in range(level):
        now = draw(st.integers(0, 2))
        for _ in range(draw(st.integers(1, 3))):
            arrivals, counts = draw(streams(now))
            requests.append(trace(len(requests), tick_s, now, arrivals, counts, counted=True))
            now = arrivals[-1] + draw(st.sampled_from([0, 0, 1, 4]))
    return round_of(level, requests)


@st.composite
def full_rounds(draw: st.DrawFn) -> Round:
    """Closed loops at their level from the first send to the last token."""
    level, tick_s = draw(LEVELS), draw(st.sampled_from([0.001, 0.0017]))  # ticks whose sums are rounded
    requests: list[RequestTrace] = []
    for _ in range(level):
        turns = sorted({0, 60, *draw(st.lists(st.integers(1, 59), max_size=3))})
        for sent, last in pairwise(turns):
            arrivals = [*sorted(draw(st.lists(st.integers(sent + 1, last), max_size=5))), last]
            counts = [draw(st.integers(1, 9)) for _ in arrivals]
            requests.append(trace(len(requests), tick_s, sent, arrivals, counts, counted=True))
    return round_of(level, requests)


rounds = st.one_of(arbitrary_rounds(), closed_loops())
counted_rounds = st.one_of(closed_loops(), full_rounds())


def numbers(measured: Round, verify_steps: int | None = None) -> RoundSummary:
    summary = summarize(measured, verify_steps=verify_steps)
    assert summary is not None
    return summary


def in_other_times(measured: Round, change: Callable[[float], float]) -> Round:
    return replace(
        measured,
        requests=tuple(
            replace(
                request,
                sent_s=change(request.sent_s),
                chunk_times_s=tuple(map(change, request.chunk_times_s)),
                ended_s=change(request.ended_s),
            )
            for request in measured.requests
        ),
    )


def assert_near(
    found: RoundSummary, expected: RoundSummary, rel: float, factors: dict[str, float] | None = None
) -> None:
    """Each field of `found` is that of `expected` times its factor: counts and absences exactly, the rest nearly."""
    for field in fields(RoundSummary):
        seen, wanted = getattr(found, field.name), getattr(expected, field.name)
        factor = (factors or {}).get(field.name, 1.0)
        if isinstance(wanted, Distribution):
            assert isinstance(seen, Distribution), field.name
            for part in fields(Distribution):
                value = getattr(wanted, part.name) * factor
                assert getattr(seen, part.name) == pytest.approx(value, rel=rel, abs=0.0), (field.name, part.name)
        elif isinstance(wanted, float):
            assert seen == pytest.approx(wanted * factor, rel=rel, abs=0.0), field.name
        else:
            assert seen == wanted, field.name


# Against the reference


@given(arbitrary_rounds(), st.one_of(st.none(), st.integers(0, 300)))
@settings(unhurried, max_examples=200)
def test_any_round_has_the_numbers_of_the_definitions(measured: Round, verify_steps: int | None) -> None:
    expected = reference_metrics.summarize(measured, verify_steps)
    assert expected is not None
    assert_near(numbers(measured, verify_steps), expected, ROUNDING)


@given(counted_rounds)
@unhurried
def test_any_closed_loop_has_the_numbers_of_the_definitions(measured: Round) -> None:
    expected = reference_metrics.summarize(measured)
    assert expected is not None
    assert_near(numbers(measured), expected, ROUNDING)


# A partial round


@given(rounds, st.sampled_from(FailureName), st.data())
@unhurried
def test_one_failed_request_anywhere_leaves_no_number(measured: Round, name: FailureName, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(measured.requests) - 1))
    requests = list(measured.requests)
    requests[at] = replace(requests[at], failure=Failure(name=name, detail="seen"))
    assert summarize(replace(measured, requests=tuple(requests)), verify_steps=5) is None


@given(rounds, st.integers(1, 5))
@unhurried
def test_a_request_that_never_finished_leaves_no_number(measured: Round, missing: int) -> None:
    assert summarize(replace(measured, planned_requests=len(measured.requests) + missing)) is None


# What must not matter


@given(rounds, st.data())
@unhurried
def test_the_order_of_the_requests_changes_nothing(measured: Round, data: st.DataObject) -> None:
    shuffled = replace(measured, requests=tuple(data.draw(st.permutations(measured.requests))))
    assert numbers(shuffled, 9) == numbers(measured, 9)


def in_arrays(measured: Round) -> Round:
    """As the client leaves it."""
    return replace(
        measured,
        requests=tuple(
            replace(
                request,
                chunk_times_s=array("d", request.chunk_times_s),
                chunk_tokens=None if request.chunk_tokens is None else array("q", request.chunk_tokens),
            )
            for request in measured.requests
        ),
    )


@given(rounds)
@unhurried
def test_arrays_have_the_numbers_of_tuples_and_are_left_as_they_were(measured: Round) -> None:
    arrays = in_arrays(measured)
    assert numbers(arrays, 9) == numbers(measured, 9)
    assert arrays == in_arrays(measured)


@given(
    st.one_of(arbitrary_rounds(st.just(EXACT_TICK_S)), closed_loops(st.just(EXACT_TICK_S))), st.integers(-4000, 4000)
)
@unhurried
def test_the_zero_of_the_clock_changes_nothing(measured: Round, ticks: int) -> None:
    later = in_other_times(measured, lambda time_s: time_s + ticks * EXACT_TICK_S)
    assert numbers(later, 9) == numbers(measured, 9)


@given(rounds, st.floats(1e-3, 1e3))
@unhurried
def test_all_times_times_k_divide_the_rates_by_k(measured: Round, k: float) -> None:
    slower = numbers(in_other_times(measured, lambda time_s: time_s * k), 9)
    times = dict.fromkeys(("window_s", "ttft_s", "tpot_s", "itl_s", "e2e_s"), k)
    rates = dict.fromkeys(
        ("output_throughput", "steady_throughput", "request_throughput", "per_request_throughput"), 1 / k
    )
    # Times are rounded when multiplied, and a gap is a small difference of them.
    assert_near(slower, numbers(measured, 9), 1e-9, times | rates)


@st.composite
def cut_again(draw: st.DrawFn, request: RequestTrace, *, keep_first: bool) -> RequestTrace:
    """The same tokens between the same first and last times, in other chunks (`keep_first`: but the first)."""
    first, last, total = request.chunk_times_s[0], request.chunk_times_s[-1], request.output_tokens
    assert total is not None
    assert request.chunk_tokens is not None
    parts = draw(st.lists(st.integers(1, 15), max_size=6))
    times = [first, *(min(first + (last - first) * part / 16, last) for part in sorted(parts)), last]
    least = request.chunk_tokens[0] if keep_first else 0
    cuts = sorted(draw(st.lists(st.integers(least, total), min_size=len(times) - 1, max_size=len(times) - 1)))
    if keep_first:
        cuts[0] = least
    counts = tuple(end - start for start, end in pairwise([0, *cuts, total]))
    return replace(request, chunk_times_s=tuple(times), chunk_tokens=counts)


@given(counted_rounds, st.booleans(), st.data())
@unhurried
def test_another_cut_of_the_streams_into_chunks_changes_no_total(
    measured: Round, keep_first: bool, data: st.DataObject
) -> None:
    """vllm#37666. The time per token stays too where the first chunk does."""
    again = tuple(data.draw(cut_again(request, keep_first=keep_first)) for request in measured.requests)
    found, expected = numbers(replace(measured, requests=again), 9), numbers(measured, 9)
    assert (
        replace(
            found,
            steady_throughput=expected.steady_throughput,
            itl_s=expected.itl_s,
            tpot_s=found.tpot_s if keep_first else expected.tpot_s,
        )
        == expected
    )


# Concurrency


@given(rounds)
@unhurried
def test_the_peak_is_never_below_the_mean(measured: Round) -> None:
    summary = numbers(measured)
    assert summary.achieved_concurrency <= summary.peak_concurrency * (1 + ROUNDING)
    assert 1 <= summary.peak_concurrency <= summary.requests


@given(st.one_of(closed_loops(), full_rounds()))
@unhurried
def test_a_closed_loop_never_exceeds_its_level(measured: Round) -> None:
    summary = numbers(measured)
    assert summary.peak_concurrency <= measured.level
    assert summary.achieved_concurrency <= measured.level * (1 + ROUNDING)


@given(full_rounds())
@unhurried
def test_a_round_at_its_level_throughout_has_one_throughput(measured: Round) -> None:
    summary = numbers(measured)
    assert summary.steady_throughput == summary.output_throughput
    assert summary.achieved_concurrency == pytest.approx(measured.level, rel=ROUNDING)
    assert summary.peak_concurrency == measured.level


# Windows


@given(counted_rounds, st.data())
@unhurried
def test_disjoint_windows_add_up_and_their_union_has_the_time_weighted_mean_rate(
    measured: Round, data: st.DataObject
) -> None:
    """Windows that begin and end at the very times at which tokens arrive."""
    arrivals = {time_s for request in measured.requests for time_s in request.chunk_times_s}
    instants = st.sampled_from(sorted({-1.0, *arrivals, max(arrivals) + 1.0}))
    bounds = sorted(data.draw(st.lists(instants, min_size=2, max_size=8, unique=True)))
    windows = list(pairwise(bounds))
    tokens = [windowed_tokens(measured.requests, start, end) for start, end in windows]
    union = windowed_tokens(measured.requests, bounds[0], bounds[-1])
    assert sum(tokens) == union
    lengths = [end - start for start, end in windows]
    rates = [count / length for count, length in zip(tokens, lengths, strict=True)]
    weighted = sum(rate * length for rate, length in zip(rates, lengths, strict=True)) / sum(lengths)
    assert weighted == pytest.approx(union / (bounds[-1] - bounds[0]))
    assert min(rates) * (1 - ROUNDING) <= weighted <= max(rates) * (1 + ROUNDING)


@given(counted_rounds)
@unhurried
def test_the_windows_of_a_round_hold_all_its_tokens_and_the_fastest_is_no_slower_than_the_round(
    measured: Round,
) -> None:
    """vllm#37666: a peak below the mean was the sign that chunks were counted."""
    start_s = min(request.sent_s for request in measured.requests)
    end_s = max(request.chunk_times_s[-1] for request in measured.requests)
    bounds = [start_s + (end_s - start_s) * part / 8 for part in range(8)] + [end_s]
    first_instant = windowed_tokens(measured.requests, start_s - 1.0, start_s)  # the window leaves out its start
    tokens = [windowed_tokens(measured.requests, start, end) for start, end in pairwise(bounds)]
    summary = numbers(measured)
    assert first_instant + sum(tokens) == summary.output_tokens
    peak = (first_instant + max(tokens)) / (summary.window_s / 8)
    assert peak >= summary.output_throughput * (1 - ROUNDING)
