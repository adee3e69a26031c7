"""What several processes saw is one round, whatever was dealt to whom; and every request is dealt to somebody."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.crew import lost, shares
from perf.metrics import summarize
from perf.trace import ClientHealth, Failure, FailureName, RequestTrace, Round, merged
from perf.workload import Message, PlannedRequest, RoundPlan

#: The machine that runs the tests may be busy with anything.
unhurried = settings(deadline=None)

#: A host's clock some days after its start: any reading of it, not only whole ticks.
READINGS_S = st.floats(2.0**17, 2.0**18, exclude_max=True)

SHARES = st.floats(0, 1)
LAGS_S = st.none() | st.floats(0, 10)
HEALTHS = st.builds(
    ClientHealth,
    processes=st.just(1),
    reads=st.integers(0, 10**9),
    lag_p50_s=LAGS_S,
    lag_p99_s=LAGS_S,
    lag_max_s=LAGS_S,
    away_share=SHARES,
    away_max_s=st.floats(0, 10),
    turnaround_share=SHARES,
    cpu_share=SHARES,
    run_queue_share=st.none() | SHARES,
)


@st.composite
def readings(draw: st.DrawFn, index: int) -> RequestTrace:
    """One request, its times as the clock showed them."""
    sent_s, *chunk_times_s, ended_s = sorted(draw(st.lists(READINGS_S, min_size=3, max_size=8, unique=True)))
    tokens = [draw(st.integers(1, 5)) for _ in chunk_times_s]
    failed = draw(st.integers(0, 20)) == 0
    return RequestTrace(
        index=index,
        prompt_id=f"p{index}",
        sent_s=sent_s,
        chunk_times_s=array("d", chunk_times_s),
        chunk_tokens=array("q", tokens),
        output_tokens=sum(tokens),
        prompt_tokens=9,
        cached_tokens=0,
        ended_s=ended_s,
        finish_reason="length",
        failure=Failure(name=FailureName.TRUNCATED, detail="cut") if failed else None,
    )


def as_measured(requests: Sequence[RequestTrace], planned: int, client: ClientHealth | None = None) -> Round:
    """What one process makes of its requests: its times begin with its own first request."""
    zero_s = min((request.sent_s for request in requests), default=0.0)
    return Round(
        level=4,
        index=1,
        planned_requests=planned,
        requested_tokens=31,
        requests=tuple(
            replace(
                request,
                sent_s=request.sent_s - zero_s,
                chunk_times_s=array("d", [time_s - zero_s for time_s in request.chunk_times_s]),
                ended_s=request.ended_s - zero_s,
            )
            for request in requests
        ),
        zero_s=zero_s,
        client=client,
    )


@unhurried
@given(st.data())
def test_any_split_over_processes_in_any_order_gives_the_round_of_one_process(data: st.DataObject) -> None:
    requests = [data.draw(readings(index)) for index in range(data.draw(st.integers(0, 12)))]
    owners = [data.draw(st.integers(0, 4)) for _ in requests]
    parts = [
        as_measured(mine, len(mine))
        for owner in range(5)
        for mine in ([request for request, whose in zip(requests, owners, strict=True) if whose == owner],)
    ]
    whole, together = as_measured(requests, len(requests)), merged(data.draw(st.permutations(parts)))
    assert together == whole
    assert summarize(together) == summarize(whole)


@unhurried
@given(st.lists(HEALTHS, min_size=1, max_size=5))
def test_no_process_hides_its_troubles_behind_the_others(healths: list[ClientHealth]) -> None:
    parts = [as_measured((), 0, health) for health in healths]
    found = merged(parts).client
    assert found is not None
    assert found == merged(parts[::-1]).client
    assert (found.processes, found.reads) == (len(healths), sum(health.reads for health in healths))
    for name in (
        "lag_p50_s",
        "lag_p99_s",
        "lag_max_s",
        "away_share",
        "away_max_s",
        "turnaround_share",
        "cpu_share",
        "run_queue_share",
    ):
        known = [getattr(health, name) for health in healths if getattr(health, name) is not None]
        assert getattr(found, name) == (max(known) if known else None)


@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_a_process_that_asked_nothing_says_nothing_of_the_client(known: list[bool]) -> None:
    health = ClientHealth(
        processes=1,
        reads=3,
        lag_p50_s=0.1,
        lag_p99_s=0.2,
        lag_max_s=0.3,
        away_share=0.0,
        away_max_s=0.0,
        turnaround_share=0.0,
        cpu_share=0.5,
        run_queue_share=None,
    )
    found = merged([as_measured((), 0, health if each else None) for each in known]).client
    assert (None if found is None else found.processes) == (sum(known) or None)


def planned(count: int) -> tuple[PlannedRequest, ...]:
    messages = (Message(role="user", content="Sort."),)
    return tuple(PlannedRequest(index=100 + n, prompt_id=f"p{n}", messages=messages) for n in range(count))


@given(st.integers(1, 40), st.integers(1, 120), st.integers(1, 64))
def test_every_request_is_dealt_to_one_process_and_every_process_gets_its_streams(
    level: int, count: int, processes: int
) -> None:
    of = min(processes, level, count)
    dealt = list(shares(planned(count), level, of))
    assert sorted((request for share in dealt for request in share), key=lambda each: each.index) == [*planned(count)]
    streams = [min(len(range(number, level, of)), len(share)) for number, share in enumerate(dealt)]
    assert sum(streams) == min(level, count)
    assert max(streams) - min(streams) <= 1
    assert min(streams) >= 1


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 12))
def test_where_the_requests_are_a_multiple_of_the_level_every_stream_gets_as_many(
    level: int, turns: int, processes: int
) -> None:
    of = min(processes, level)
    for number, share in enumerate(shares(planned(level * turns), level, of)):
        assert len(share) == turns * len(range(number, level, of))


@pytest.mark.parametrize("start_s", [None, 5.0])
def test_of_a_process_that_ended_every_request_has_failed_and_the_round_has_no_number(start_s: float | None) -> None:
    plan = RoundPlan(level=4, index=1, warmup=(), measured=planned(2))
    left = lost(plan, 31, start_s, "a process of the client ended: exit code 1")
    assert [request.failure and request.failure.label for request in left.requests] == ["connection"] * 2
    good = replace(left, requests=tuple(replace(each, failure=None, index=7) for each in left.requests[:1]))
    whole = merged([left, good])
    assert (whole.planned_requests, len(whole.requests)) == (4, 3)
    assert summarize(whole) is None
