"""The emulated engine in virtual time: every number here is arithmetic, no clock is read."""

import statistics
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.emulator import engine_of, read_options
from perf.emulator_engine import (
    Acceptance,
    Deck,
    Engine,
    EngineRequest,
    Slowdown,
    Timing,
    lognormal_factor,
    mean_acceptance,
)

TIMING = Timing(anchors_s=((1, 0.010), (10, 0.020), (20, 0.040)), prefill_base_s=0.005, prefill_per_token_s=0.0001)
BASELINE = ("--profile", "published-baseline")
EAGLE3 = ("--profile", "published-eagle3", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2")
# (flags, concurrency, output throughput in tok/s as published, see docs/emulator.md)
PUBLISHED = (
    (BASELINE, 1, 92.7),
    (BASELINE, 2, 157.7),
    (BASELINE, 30, 773.0),
    (EAGLE3, 1, 80.9),
    (EAGLE3, 2, 128.3),
    (EAGLE3, 30, 354.0),
)


def closed_loop(
    engine: Engine,
    concurrency: int,
    requests: int,
    *,
    prompt_tokens: int = 400,
    output_tokens: int = 512,
    reply_s: float = 0.0,
) -> list[EngineRequest]:
    """Keep `concurrency` requests in flight; a client answers `reply_s` after a last token with its next request."""
    done: list[EngineRequest] = []
    sent = min(concurrency, requests)
    for _ in range(sent):
        engine.submit(arrival_s=0.0, prefill_tokens=prompt_tokens, output_tokens=output_tokens)
    while engine.start_step() is not None:
        step = engine.finish_step()
        for request, _ in step.emissions:
            if request.finished:
                done.append(request)
                if sent < requests:
                    sent += 1
                    arrival_s = step.deadline_s + reply_s
                    engine.submit(arrival_s=arrival_s, prefill_tokens=prompt_tokens, output_tokens=output_tokens)
    return done


def end_s(request: EngineRequest) -> float:
    assert request.last_token_s is not None
    return request.last_token_s


def output_throughput(done: list[EngineRequest]) -> float:
    """Output tokens / (last token - first send), in tok/s."""
    window_s = max(map(end_s, done)) - min(request.arrival_s for request in done)
    return sum(request.tokens for request in done) / window_s


def engine_for(flags: tuple[str, ...], seed: int = 1) -> Engine:
    return engine_of(read_options(("--port", "1", *flags)), noise_seed=seed)


def plain(slowdown: Slowdown | None = None, **settings: float) -> Engine:
    return Engine(timing=TIMING, noise_seed=1, slowdown=slowdown, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("flags", "concurrency", "published"), PUBLISHED)
@pytest.mark.parametrize("reply_s", [0.0, 0.002])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_published_profile_gives_the_published_throughput_for_30_requests_a_level(
    flags: tuple[str, ...], concurrency: int, published: float, reply_s: float, seed: int
) -> None:
    done = closed_loop(engine_for(flags, seed), concurrency, 30, reply_s=reply_s)
    assert len(done) == 30
    assert output_throughput(done) == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(("flags", "concurrency", "published"), PUBLISHED)
def test_a_published_profile_depends_little_on_the_number_of_requests(
    flags: tuple[str, ...], concurrency: int, published: float
) -> None:
    done = closed_loop(engine_for(flags), concurrency, 120, reply_s=0.002)
    assert output_throughput(done) == pytest.approx(published, rel=0.007)


def test_the_published_speculative_profile_accepts_what_its_profile_states() -> None:
    done = closed_loop(engine_for(EAGLE3), 30, 30)
    tokens, steps = sum(request.tokens for request in done), sum(request.verify_steps for request in done)
    assert tokens / steps == pytest.approx(2.1, rel=0.005)


requests_of_any_kind = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=2, allow_nan=False),
        st.integers(min_value=1, max_value=2000),
        st.integers(min_value=1, max_value=60),
    ),
    min_size=1,
    max_size=25,
)


@given(requests_of_any_kind, st.sampled_from([None, 1.0, 1.7, 3.0]), st.integers(1, 30), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_request_gets_exactly_its_tokens_at_growing_deadlines(
    asked: list[tuple[float, int, int]], mean: float | None, max_running: int, seed: int
) -> None:
    acceptance = None if mean is None else Acceptance(mean=mean, draft_steps=2)
    engine = Engine(timing=TIMING, noise_seed=seed, acceptance=acceptance, max_running=max_running)
    submitted = [
        engine.submit(arrival_s=arrival_s, prefill_tokens=prompt, output_tokens=output)
        for arrival_s, prompt, output in sorted(asked)
    ]
    deadlines: list[float] = []
    got: Counter[EngineRequest] = Counter()
    while engine.start_step() is not None:
        step = engine.finish_step()
        deadlines.append(step.deadline_s)
        assert len(step.emissions) <= max_running
        for request, tokens in step.emissions:
            assert 1 <= tokens <= (1 if step.prefill or acceptance is None else 3)
            got[request] += tokens
    assert all(earlier < later for earlier, later in pairwise(deadlines))
    for request in submitted:
        assert got[request] == request.tokens == request.output_tokens
        assert request.first_token_s is not None
        assert request.arrival_s < request.first_token_s <= end_s(request)
        assert request.first_token_s in deadlines


def test_a_prefill_step_admits_all_who_wait_and_lets_the_running_wait() -> None:
    engine = plain()
    first = engine.submit(arrival_s=1.0, prefill_tokens=100, output_tokens=3)
    assert engine.start_step() == pytest.approx(1.0 + 0.005 + 100 * 0.0001)
    engine.submit(arrival_s=1.001, prefill_tokens=10, output_tokens=3)
    engine.submit(arrival_s=1.002, prefill_tokens=20, output_tokens=3)
    engine.finish_step()
    assert first.tokens == 1
    assert engine.start_step() == pytest.approx(1.015 + 0.005 + 30 * 0.0001)
    prefill = engine.finish_step()
    assert prefill.prefill
    assert len(prefill.emissions) == 2
    assert first.tokens == 1
    engine.start_step()
    assert len(engine.finish_step().emissions) == 3


def test_an_arrival_after_a_boundary_waits_for_the_next_however_late_the_host_asks() -> None:
    engine = plain()
    engine.submit(arrival_s=0.0, prefill_tokens=1, output_tokens=5)
    engine.start_step()
    boundary_s = engine.finish_step().deadline_s
    engine.submit(arrival_s=boundary_s + 1e-6, prefill_tokens=1, output_tokens=5)
    engine.start_step()
    decode = engine.finish_step()
    assert (decode.prefill, len(decode.emissions)) == (False, 1)
    engine.start_step()
    assert engine.finish_step().prefill


def test_after_idle_time_the_timeline_restarts_at_the_next_arrival() -> None:
    engine = plain()
    closed_loop(engine, 1, 1, output_tokens=2)
    assert engine.start_step() is None
    engine.submit(arrival_s=100.0, prefill_tokens=10, output_tokens=2)
    assert engine.start_step() == pytest.approx(100.0 + 0.005 + 10 * 0.0001)


def test_a_cancelled_request_gets_nothing_more_and_the_others_all_of_theirs() -> None:
    engine = plain()
    gone = engine.submit(arrival_s=0.0, prefill_tokens=1, output_tokens=50)
    stays = engine.submit(arrival_s=0.0, prefill_tokens=1, output_tokens=50)
    engine.start_step()
    engine.finish_step()
    engine.start_step()
    engine.cancel(gone)
    assert [request for request, _ in engine.finish_step().emissions] == [stays]
    while engine.start_step() is not None:
        engine.finish_step()
    assert (gone.tokens, stays.tokens) == (1, 50)
    assert (engine.running, engine.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("batch", "step_s"), [(1, 0.010), (4, 0.010 + 3 / 900), (10, 0.020), (15, 0.030), (20, 0.040), (50, 0.100)]
)
def test_step_time_is_linear_between_anchors_and_goes_on_with_the_last_slope(batch: int, step_s: float) -> None:
    assert TIMING.decode_s(batch) == pytest.approx(step_s)


def test_step_time_before_the_first_anchor_is_that_of_the_first() -> None:
    timing = Timing(anchors_s=((4, 0.010), (8, 0.020)), prefill_base_s=0, prefill_per_token_s=0)
    assert timing.decode_s(1) == timing.decode_s(4) == 0.010


@pytest.mark.parametrize("anchors_s", [(), ((0, 1.0),), ((2, 1.0), (1, 2.0)), ((1, 0.0),), ((1, 2.0), (2, 1.0))])
def test_impossible_anchors_are_refused(anchors_s: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"anchors|times"):
        Timing(anchors_s=anchors_s, prefill_base_s=0, prefill_per_token_s=0)


@pytest.mark.parametrize("loss", [0.10, 0.30, -0.25])
def test_a_slowdown_costs_its_fraction_at_its_level_and_nothing_elsewhere(loss: float) -> None:
    slowdown = Slowdown(at_level=((10, loss),))
    for concurrency in (1, 9, 11, 20):
        unchanged = output_throughput(closed_loop(plain(), concurrency, 25, output_tokens=64))
        # Exactly: also while 20 requests in flight drain through 10.
        assert output_throughput(closed_loop(plain(slowdown), concurrency, 25, output_tokens=64)) == unchanged
    before = output_throughput(closed_loop(plain(), 10, 30, output_tokens=64))
    assert output_throughput(closed_loop(plain(slowdown), 10, 30, output_tokens=64)) == pytest.approx(
        before * (1 - loss)
    )


def test_a_slowdown_everywhere_gives_way_to_the_one_of_a_level() -> None:
    slowdown = Slowdown(everywhere=0.10, at_level=((10, 0.20),))
    assert slowdown.factor(10) == pytest.approx(1 / 0.8)
    assert slowdown.factor(11) == pytest.approx(1 / 0.9)
    with pytest.raises(ValueError, match="below 1"):
        Slowdown(at_level=((3, 1.0),))


def test_speed_divides_every_time() -> None:
    slow, fast = (output_throughput(closed_loop(plain(speed=speed), 3, 9)) for speed in (1.0, 50.0))
    assert fast == pytest.approx(50 * slow)


def test_extra_step_time_is_added_to_every_step() -> None:
    engine = plain()
    engine.extra_step_s = 0.5
    (request,) = closed_loop(engine, 1, 1, prompt_tokens=10, output_tokens=4)
    assert end_s(request) == pytest.approx(0.005 + 0.001 + 3 * 0.010 + 4 * 0.5)


@given(st.integers(1, 7), st.floats(0, 1), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_a_few_hundred_draws_have_nearly_the_stated_mean(draft_steps: int, share: float, seed: int) -> None:
    mean = 1 + share * draft_steps
    deck = Deck(Acceptance(mean=mean, draft_steps=draft_steps).cumulative(), Random(seed))
    drawn = [deck.draw() for _ in range(250)]
    assert set(drawn) <= set(range(1, draft_steps + 2))
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.02)


def test_draws_follow_the_stated_distribution() -> None:
    acceptance = Acceptance(mean=2.3, draft_steps=3)
    probability = acceptance.probability()
    assert mean_acceptance(probability, 3) == pytest.approx(2.3)
    deck = Deck(acceptance.cumulative(), Random(3))
    counts = Counter(deck.draw() for _ in range(20_000))
    expected = {k: probability ** (k - 1) * (1 - probability) for k in (1, 2, 3)} | {4: probability**3}
    assert {k: count / 20_000 for k, count in counts.items()} == pytest.approx(expected, abs=0.002)


def test_consecutive_draws_are_no_fixed_pattern() -> None:
    cumulative = Acceptance(mean=2.0, draft_steps=3).cumulative()
    deck, other = Deck(cumulative, Random(1)), Deck(cumulative, Random(2))
    first, second, third = (tuple(one.draw() for _ in range(20)) for one in (deck, deck, other))
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("mean", [0.9, 3.1])
def test_an_impossible_acceptance_length_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match="between 1 and 3"):
        Acceptance(mean=mean, draft_steps=2)


def test_noise_factors_have_median_one_and_the_stated_spread() -> None:
    factors = [lognormal_factor(0.10, Random(seed)) for seed in range(4000)]
    assert statistics.median(factors) == pytest.approx(1, abs=0.01)
    assert statistics.stdev(factors) / statistics.fmean(factors) == pytest.approx(0.10, abs=0.005)
    assert lognormal_factor(0.0, Random(1)) == 1.0


def test_noise_comes_from_the_seed_once_a_launch_and_once_a_round() -> None:
    def factors(seed: int) -> tuple[float, float, float]:
        engine = Engine(timing=TIMING, noise_seed=seed, launch_cv=0.05, round_cv=0.05)
        first = engine.round_factor
        engine.new_round()
        return engine.launch_factor, first, engine.round_factor

    assert factors(7) == factors(7)
    assert len({*factors(7), *factors(8)}) == 6


def test_noise_factors_multiply_every_time() -> None:
    noisy = Engine(timing=TIMING, noise_seed=3, launch_cv=0.2, round_cv=0.2)
    quiet = output_throughput(closed_loop(plain(), 3, 9))
    expected = quiet / (noisy.launch_factor * noisy.round_factor)
    assert output_throughput(closed_loop(noisy, 3, 9)) == pytest.approx(expected)
