"""A round that must not be believed says why, with the numbers seen and what to do; a clean one says nothing."""

from dataclasses import replace

import pytest

from perf.rig import GpuProcess, GpuState
from perf.trace import ClientHealth, Counters, Failure, FailureName, RequestTrace, Round
from perf.validity import (
    MAX_WARMUPS,
    Observation,
    Reason,
    check,
    check_capacity,
    check_gpus,
    check_warmup,
    is_warm,
    level_never_reached,
    remarks,
)


def request(index: int = 0, *, tokens: int = 100, prompt: int | None = 1024, cached: int | None = None) -> RequestTrace:
    return RequestTrace(
        index=index,
        prompt_id=f"task-{index}",
        sent_s=0.0,
        chunk_times_s=(1.0, 2.0),
        chunk_tokens=None,
        output_tokens=tokens,
        prompt_tokens=prompt,
        cached_tokens=cached,
        ended_s=2.0,
        finish_reason="length",
    )


def seen(
    *requests: RequestTrace,
    counted: Counters | None = None,
    before: Counters | None = None,
    level: int = 1,
    planned: int | None = None,
    speculative: bool = False,
    required: bool = True,
    death: str | None = None,
    client: ClientHealth | None = None,
) -> Observation:
    return Observation(
        round=Round(
            level=level,
            index=1,
            planned_requests=len(requests) if planned is None else planned,
            requested_tokens=100,
            requests=requests,
            client=client,
        ),
        before=Counters() if before is None and counted is not None else before,
        after=counted,
        speculative=speculative,
        level_must_be_reached=required,
        death=death,
    )


def only(observation: Observation) -> Reason:
    (reason,) = check(observation)
    assert reason.seen.isprintable()
    assert reason.advice
    return reason


TEN = tuple(request(index) for index in range(10))


def failed(index: int, name: FailureName, detail: str = "", status: int | None = None) -> RequestTrace:
    return replace(request(index), failure=Failure(name=name, detail=detail, status=status))


@pytest.mark.parametrize(
    "observation",
    [
        seen(*TEN),
        seen(*TEN, level=10),
        seen(*TEN, counted=Counters()),
        seen(*TEN, counted=Counters(generated=1000, prompt=10_240, cached=0)),
        seen(*TEN, counted=Counters(generated=1000, verify_steps=400), speculative=True),
        seen(*(request(index, cached=0) for index in range(10))),
        seen(*(request(index, prompt=None) for index in range(10)), counted=Counters(cached=0)),
        seen(*TEN, before=Counters(generated=50), counted=Counters(generated=1050, verify_steps=7)),
    ],
)
def test_a_clean_round_has_no_reason_against_it(observation: Observation) -> None:
    assert check(observation) == ()


# Requests that failed.


def test_failed_requests_are_counted_named_and_the_first_is_shown() -> None:
    reason = only(
        seen(
            *TEN[:5],
            failed(5, FailureName.HTTP_ERROR, 'KV cache\n\x1b[31m "pool" is full', 500),
            failed(6, FailureName.HTTP_ERROR, "other", 500),
            failed(7, FailureName.STALLED, "silent"),
        )
    )
    assert reason.name == "requests failed"
    assert reason.seen == (
        '3 of 8 requests failed in round 2 (2 x http_500, 1 x stalled; first: KV cache "pool" is full)'
    )
    assert "server log" in reason.advice


def test_one_failed_request_of_many_is_enough() -> None:
    many = tuple(request(index) for index in range(999))
    assert only(seen(*many, failed(999, FailureName.NO_USAGE))).seen.startswith("1 of 1000 requests failed")


def test_a_round_in_which_nothing_was_asked_is_not_clean() -> None:
    assert only(seen(planned=30, required=False)).seen == "0 of 30 requests were made"


def test_a_round_that_stopped_early_is_not_clean() -> None:
    reason = only(seen(*TEN, planned=30))
    assert (reason.name, reason.seen) == ("requests failed", "10 of 30 requests were made")


def test_failed_requests_hide_no_other_reason_that_is_known() -> None:
    names = [each.name for each in check(seen(failed(0, FailureName.TIMEOUT), level=2, death="killed by SIGKILL"))]
    assert names == ["server died", "requests failed", "level never reached"]


def test_a_failed_request_is_no_lack_of_acceptance_and_no_disagreement() -> None:
    reasons = check(seen(*TEN, failed(10, FailureName.ABORTED), counted=Counters(generated=5000), speculative=True))
    assert [reason.name for reason in reasons] == ["requests failed"]


def test_a_server_that_died_is_a_reason_with_its_last_words() -> None:
    reason = only(seen(*TEN, death="killed by SIGKILL; its last line: CUDA error"))
    assert (reason.name, reason.seen) == ("server died", "killed by SIGKILL; its last line: CUDA error")


# Levels.


def test_thirty_requests_do_not_reach_a_level_of_250() -> None:
    thirty = tuple(request(index) for index in range(30))
    reason = only(seen(*thirty, level=250))
    assert (reason.name, reason.seen) == ("level never reached", "30 requests cannot keep 250 in flight")
    assert 'level_reached = "not required"' in reason.advice


def test_a_published_protocol_may_stay_below_its_level() -> None:
    thirty = tuple(request(index) for index in range(30))
    assert check(seen(*thirty, level=250, required=False)) == ()


@pytest.mark.parametrize(("requests", "reached"), [(249, False), (250, True), (251, True)])
def test_a_level_needs_as_many_requests_as_streams(requests: int, reached: bool) -> None:
    assert (level_never_reached(250, requests) is None) is reached


# Server and client.


@pytest.mark.parametrize(
    ("counted", "believed"), [(1000, True), (1010, True), (990, True), (1011, False), (989, False), (0, False)]
)
def test_server_and_client_may_differ_by_one_percent(counted: int, believed: bool) -> None:
    assert (check(seen(*TEN, counted=Counters(generated=counted))) == ()) is believed


def test_a_client_that_says_940_of_1000_counted_tokens_is_not_believed() -> None:  # guidellm#470
    reason = only(seen(*(request(index, tokens=94) for index in range(10)), counted=Counters(generated=1000)))
    assert reason.name == "server and client disagree"
    assert reason.seen == "the client saw 940 tokens, the server counted 1,000 over the same window"
    assert "somebody else" in reason.advice


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        (None, "generated 5,000 before the round, none after it"),
        (Counters(), "generated 5,000 before the round, none after it"),
        (Counters(generated=1000), "generated 5,000 before the round, 1,000 after it"),
    ],
)
def test_a_counter_that_vanished_or_fell_is_not_a_check_that_passed(after: Counters | None, shown: str) -> None:
    reason = only(seen(*TEN, before=Counters(generated=5000), counted=after))
    assert (reason.name, reason.seen) == ("server counters unusable", shown)


def test_every_counter_that_was_lost_is_named() -> None:
    reason = only(seen(*TEN, before=Counters(generated=0, prompt=9, cached=0), counted=Counters(generated=1000)))
    assert reason.seen == "prompt 9 before the round, none after it; cached 0 before the round, none after it"


def test_counters_that_began_anew_between_two_rounds_are_told_though_they_grow_within_each() -> None:
    before, after = Counters(generated=96, prompt=400), Counters(generated=1096, prompt=2000)
    restarted = replace(seen(*TEN, before=before, counted=after), last=Counters(generated=1192, prompt=400))
    assert only(restarted).seen == "generated 1,192 after the round before, 96 before this one"
    assert check(replace(restarted, last=Counters(generated=90, prompt=400))) == ()


def test_the_counters_of_a_server_that_died_are_not_missed() -> None:
    assert only(seen(*TEN, before=Counters(generated=5000), death="exited with code 1")).name == "server died"


# The warm-up.


def warmup(*requests: RequestTrace, planned: int) -> Round:
    return Round(level=2, index=0, planned_requests=planned, requested_tokens=100, requests=requests)


def test_a_warm_up_that_was_served_is_no_reason() -> None:
    assert check_warmup([warmup(*TEN, planned=10)], None) == ()


def test_a_warm_up_that_failed_is_named_with_its_failure_and_its_death() -> None:
    failed_one = failed(3, FailureName.HTTP_ERROR, "no room", 503)
    (reason,) = check_warmup([warmup(*TEN[:3], failed_one, planned=8)], None)
    assert (reason.name, reason.seen) == (
        "warm-up failed",
        "1 of 8 requests failed in round 1 (1 x http_503; first: no room)",
    )
    assert "cold" in reason.advice
    reasons = check_warmup([warmup(planned=8)], "killed by SIGKILL")
    assert [each.name for each in reasons] == ["server died", "warm-up failed"]


def wave(*, tokens_s: float, slow_start_s: float = 0.0, chunks: int = 64) -> Round:
    """A warm-up of one stream at a steady rate, but for a wait in the first half of its answer."""
    half = chunks // 2
    times = [(n + 1) / tokens_s + (slow_start_s if n > 0 else 0.0) for n in range(half)]
    times += [times[-1] + (n + 1) / tokens_s for n in range(chunks - half)]
    asked = replace(request(tokens=chunks), chunk_times_s=tuple(times), ended_s=times[-1])
    return replace(warmup(asked, planned=1), level=1)


def test_a_server_that_is_at_its_speed_needs_one_warm_up() -> None:
    assert not is_warm([])
    assert is_warm([wave(tokens_s=100)])
    assert is_warm([wave(tokens_s=100, slow_start_s=0.02)])


def test_a_server_that_gets_faster_within_its_warm_up_is_asked_again_until_it_does_not() -> None:  # sglang#28062
    cold, warm = wave(tokens_s=249, slow_start_s=0.25), wave(tokens_s=249)
    assert not is_warm([cold])
    assert not is_warm([cold, warm])
    assert is_warm([cold, warm, warm])
    assert is_warm([cold, warm, wave(tokens_s=255)])
    assert not is_warm([cold, warm, wave(tokens_s=270)])
    assert check_warmup([cold, warm], None) == ()


def test_a_warm_up_of_too_few_chunks_tells_nothing_and_is_asked_again() -> None:
    few = wave(tokens_s=100, chunks=8)
    assert not is_warm([few])
    assert is_warm([few, few])


def test_a_server_that_never_stops_getting_faster_is_not_measured() -> None:
    waves = [wave(tokens_s=100 * 1.1**n, slow_start_s=0.5 / (n + 1)) for n in range(MAX_WARMUPS)]
    (reason,) = check_warmup(waves, None)
    assert reason.name == "never warm"
    assert reason.seen.count(",") == MAX_WARMUPS - 1
    assert "warmup_requests" in reason.advice


# The client and its host.


HEALTHY = ClientHealth(
    processes=1,
    reads=1000,
    lag_p50_s=0.00003,
    lag_p99_s=0.001,
    lag_max_s=0.004,
    away_share=0.0,
    away_max_s=0.0,
    turnaround_share=0.0002,
    cpu_share=0.2,
    run_queue_share=0.01,
)
#: One stream of 100 chunks a second.
STEADY = replace(request(), chunk_times_s=tuple((n + 1) / 100 for n in range(100)), ended_s=1.0)


def test_a_healthy_client_is_no_reason_and_no_remark() -> None:
    assert check(seen(STEADY, client=HEALTHY)) == ()
    assert remarks(seen(STEADY, client=HEALTHY).round) == ()
    untold = replace(HEALTHY, lag_p50_s=None, lag_p99_s=None, lag_max_s=None, run_queue_share=None)
    assert check(seen(STEADY, client=untold)) == ()


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        (replace(HEALTHY, turnaround_share=0.023), "streams stood idle 2.3 % of the time between two requests"),
        (replace(HEALTHY, lag_max_s=1.5), "it read up to 1,500 ms late, when about 150 chunks of a stream lay unread"),
        (replace(HEALTHY, away_share=0.3, away_max_s=0.31), "it was away 30 % of the time"),
        (
            replace(HEALTHY, away_share=0.05, away_max_s=1.5),
            "it read up to 1,500 ms late, when about 150 chunks of a stream lay unread",
        ),
        (replace(HEALTHY, cpu_share=0.97), "it needed 97 % of a core"),
    ],
)
def test_a_client_that_was_measured_in_the_servers_place_is_named(client: ClientHealth, shown: str) -> None:
    reason = only(seen(STEADY, client=client))
    assert reason.name == "client was the bottleneck"
    assert reason.seen == shown
    assert "client_processes" in reason.advice


def test_a_client_within_its_limits_is_believed() -> None:
    assert (
        check(
            seen(STEADY, client=replace(HEALTHY, turnaround_share=0.02, lag_max_s=1.0, away_share=0.1, cpu_share=0.9))
        )
        == ()
    )


def test_bytes_that_lay_unread_count_by_the_rate_of_a_stream() -> None:
    """Late by a second at one chunk a second fills no buffer."""
    slow = replace(request(), chunk_times_s=(1.0, 2.0, 3.0), ended_s=3.0)
    assert check(seen(slow, client=replace(HEALTHY, lag_max_s=1.5))) == ()


def test_all_that_speaks_against_the_client_is_shown_together() -> None:
    reason = only(seen(STEADY, client=replace(HEALTHY, turnaround_share=0.5, cpu_share=1.0)))
    assert reason.seen.count(";") == 1


def test_a_failed_request_is_no_bottleneck_of_the_client() -> None:
    broken = seen(STEADY, failed(1, FailureName.TRUNCATED), client=replace(HEALTHY, turnaround_share=0.5))
    assert [each.name for each in check(broken)] == ["requests failed"]


@pytest.mark.parametrize(("waited", "said", "believed"), [(0.04, False, True), (0.25, True, True), (0.26, True, False)])
def test_a_busy_host_is_said_and_beyond_a_quarter_not_believed(waited: float, said: bool, believed: bool) -> None:
    busy = seen(STEADY, client=replace(HEALTHY, run_queue_share=waited))
    assert bool(remarks(busy.round)) is said
    assert [each.name for each in check(busy)] == ([] if believed else ["host too busy"])
    if said:
        assert f"{waited * 100:.0f} %" in remarks(busy.round)[0]


def test_times_that_may_be_late_are_said() -> None:
    (remark,) = remarks(seen(STEADY, client=replace(HEALTHY, away_share=0.02, away_max_s=0.25)).round)
    assert remark == (
        "the client was away 2 % of the time, up to 250 ms: single times of tokens may be as much too late"
    )


def test_a_rate_is_believed_that_was_carried_twice_over() -> None:
    assert check_capacity(5000.0, 100, 10_000.0, 2.0, "") == ()
    (reason,) = check_capacity(5000.0, 100, 8000.0, 2.0, "9,100 of 12,500 chunks/s arrived\x1b[2J")
    assert reason.name == "capacity not shown"
    assert reason.seen.startswith(
        "5,000 chunks/s over 100 streams; to be believed, the client has to carry 10,000 on a null server, "
        "and was seen to carry 8,000: 9,100 of 12,500 chunks/s arrived"
    )
    assert reason.seen.isprintable()


# The GPUs.


IDLE = GpuState(
    index=3,
    uuid="GPU-3",
    processes=(),
    memory_used_bytes=500 * 1024**2,
    slowed_by=(),
    celsius=31,
    persistent=True,
    power_limit_w=600.0,
)


def test_idle_gpus_are_ours() -> None:
    assert check_gpus(()) == ()
    assert check_gpus((IDLE, replace(IDLE, memory_used_bytes=None))) == ()


def test_a_gpu_with_somebody_else_on_it_is_not_ours() -> None:
    foreign = replace(IDLE, processes=(GpuProcess(pid=4711, name="python\x1b[2J"),))
    left = replace(IDLE, index=5, memory_used_bytes=9 * 1024**3)
    (reason,) = check_gpus((IDLE, foreign, left))
    assert reason.name == "GPU not ours"
    assert reason.seen.startswith("GPU 3: others are on it: python")
    assert reason.seen.endswith("; GPU 5: 9.0 GiB of its memory are taken and nobody is seen on it")
    assert reason.seen.isprintable()
    assert reason.advice


# The prefix cache.


def test_a_prompt_that_came_from_the_cache_is_not_believed() -> None:  # vllm#54227, sglang#39651
    reason = only(seen(request(prompt=1024, cached=1000)))
    assert reason.name == "prefix cache hits"
    assert reason.seen == "1,000 of 1,024 prompt tokens came from the cache (97.7 %)"
    assert "flush" in reason.advice


@pytest.mark.parametrize(("cached", "believed"), [(0, True), (64, True), (84, True), (85, False), (1000, False)])
def test_a_shared_chat_template_and_two_percent_more_may_come_from_the_cache(cached: int, believed: bool) -> None:
    assert (check(seen(request(prompt=1000, cached=cached))) == ()) is believed
    assert (check(seen(request(prompt=1000), counted=Counters(cached=cached))) == ()) is believed


@pytest.mark.parametrize(("cached", "believed"), [(10, True), (11, False), (20, False)])
def test_a_chat_template_is_never_taken_for_more_than_half_of_a_prompt(cached: int, believed: bool) -> None:
    assert (check(seen(request(prompt=20, cached=cached))) == ()) is believed


def test_one_cached_prompt_among_many_new_ones_is_seen_in_their_sum() -> None:
    new = tuple(request(index, prompt=100, cached=0) for index in range(9))
    assert check(seen(*new, request(9, prompt=100, cached=100))) == ()
    assert only(seen(*(replace(each, cached_tokens=60) for each in new))).name == "prefix cache hits"


@pytest.mark.parametrize(("by_usage", "by_counter"), [(0, 1000), (1000, 0), (None, 1000), (1000, None)])
def test_of_usage_and_counter_the_worse_is_believed(by_usage: int | None, by_counter: int | None) -> None:
    reason = only(seen(request(prompt=1000, cached=by_usage), counted=Counters(cached=by_counter)))
    assert reason.name == "prefix cache hits"


@pytest.mark.parametrize("prompt", [None, 0])
def test_cached_tokens_of_a_prompt_of_unknown_length_are_cache_hits(prompt: int | None) -> None:
    reason = only(seen(request(prompt=prompt, cached=1000)))
    assert reason.seen == "1,000 of an unknown number of prompt tokens came from the cache"
    assert only(seen(request(prompt=prompt), counted=Counters(cached=1000))).name == "prefix cache hits"
    among_many = tuple(request(index, prompt=100_000, cached=0) for index in range(9))
    assert only(seen(*among_many, request(9, prompt=prompt, cached=1))).name == "prefix cache hits"


# Acceptance.


@pytest.mark.parametrize("counted", [None, Counters(), Counters(generated=1000)])
def test_missing_acceptance_of_a_speculative_variant_is_no_pass(counted: Counters | None) -> None:
    # sglang#34743, sglang#29329, ATOM#1557
    reason = only(seen(*TEN, counted=counted, speculative=True))
    assert reason.name == "acceptance missing"
    assert "no verify steps" in reason.seen
    assert "--enable-metrics" in reason.advice


@pytest.mark.parametrize(("steps", "believed"), [(989, True), (990, False), (1000, False), (0, False)])
def test_a_step_for_every_token_means_that_the_draft_is_not_wired(steps: int, believed: bool) -> None:
    """The first of a request's 100 tokens is prefill's: ten plain requests take 990 steps."""
    reasons = check(seen(*TEN, counted=Counters(generated=1000, verify_steps=steps), speculative=True))
    assert [reason.name for reason in reasons] == ([] if believed else ["acceptance 1.0"])


def test_an_unwired_draft_is_shown_with_its_numbers() -> None:
    observation = seen(*TEN, counted=Counters(verify_steps=1000), speculative=True)
    assert only(observation).seen == "1,000 tokens in 1,000 verify steps"
    assert only(replace(observation, after=Counters(verify_steps=0))).seen == "no verify step ran"


def test_an_adaptive_server_must_count_verify_steps_and_draft_for_one_stream() -> None:
    """Where many decode together it may draft nothing; then each of its steps yields a token."""

    def names(level: int, steps: int | None) -> list[str]:
        counted = Counters(generated=1000, verify_steps=steps)
        observation = replace(seen(*TEN, counted=counted, level=level, speculative=True), adaptive=True)
        return [reason.name for reason in check(observation)]

    assert names(8, 400) == names(8, 1000) == names(8, 0) == names(1, 400) == []
    assert names(8, None) == names(1, None) == ["acceptance missing"]
    assert names(1, 1000) == names(1, 0) == ["acceptance 1.0"]


def test_a_plain_variant_needs_no_acceptance() -> None:
    assert check(seen(*TEN, counted=Counters(generated=1000, verify_steps=None))) == ()


# What a server counted over a window.


def test_counters_are_differences_and_what_is_not_counted_stays_absent() -> None:
    before = Counters(generated=100, prompt=None, cached=5, verify_steps=None)
    now = Counters(generated=350, prompt=70, cached=5, verify_steps=None)
    assert now.since(before) == Counters(generated=250, prompt=70, cached=0, verify_steps=None)
    assert Counters().since(now) == Counters()
