"""What somebody's tool was once wrong about, each with its source: small enough for a stub server or a list of numbers.

A source such as vllm#57519 is an entry of that project's issue tracker. Every one of them is an input with a right
answer, and is held by tests here or elsewhere; what no test holds yet says so.
"""

import ast
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from perf.gate import Word
from perf.metrics import summarize
from perf.moved import lines
from perf.provenance import build_of
from perf.record import LaunchRecord
from perf.relations import judge as judge_relation
from perf.sample import StoredCase
from perf.stream import Answer
from perf.trace import FailureName, RequestTrace, Round
from perf.validity import Observation, check
from perf.verdict import CaseVerdict, judge_case
from tests.unit.simulated import ONE_CASE, launch, measured, relation, stored, suite
from tests.unit.test_provenance import Environment, git
from tests.unit.test_stream import DONE, answer, data, delta, end, text, usage

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An input and its right answer; `held_by` are tests, as `module:test`. `open` is what no test holds, and why."""

    sources: tuple[str, ...]
    given: str
    right: str
    held_by: tuple[str, ...]
    open: str | None = None


KNOWN = (
    Known(
        sources=("sglang#12064",),
        given="1 token at 0.10 s, then 10 chunks of 3 tokens every 30 ms, usage 31",
        right="TPOT 10.0 ms, not 30; 31 tokens",
        held_by=(
            "test_stream:test_chunks_of_three_tokens_every_30_ms_are_ten_milliseconds_a_token",
            "test_metrics:test_three_tokens_to_a_chunk_every_30_ms_are_10_ms_a_token",
        ),
    ),
    Known(
        sources=("vllm#37666", "vllm#50677"),
        given="the same stream in any other chunking",
        right="the same totals; the peak over a second is no less than the mean",
        held_by=(
            "test_stream:test_the_same_tokens_in_other_chunks_have_the_same_total",
            "test_metrics:test_the_same_stream_in_any_chunking_has_the_same_totals",
            "test_metrics_properties:test_another_cut_of_the_streams_into_chunks_changes_no_total",
            "test_metrics_properties:"
            "test_the_windows_of_a_round_hold_all_its_tokens_and_the_fastest_is_no_slower_than_the_round",
        ),
    ),
    Known(
        sources=("vllm#57519", "inference-perf#713"),
        given="2 chunks, an error object, [DONE]",
        right="failed, no token counts, the round is INVALID",
        held_by=(
            "test_stream:test_an_error_within_a_stream_is_a_failure_whatever_follows",
            "test_metrics:test_a_round_with_one_failed_request_has_no_number",
            "test_load:test_a_failure_within_an_answer_is_named_though_the_status_was_200",
            "test_known_inputs:test_an_error_behind_any_number_of_chunks_is_no_token_and_no_number",
        ),
    ),
    Known(
        sources=("llama-benchy#11", "vllm-swift#19"),
        given="3 chunks, stop, no usage, 512 asked",
        right="no_usage; never 512, never 3",
        held_by=(
            "test_stream:test_three_chunks_and_a_stop_without_usage_are_neither_512_tokens_nor_3",
            "test_known_inputs:test_without_usage_no_number_of_chunks_is_a_number_of_tokens",
        ),
    ),
    Known(
        sources=("vllm#45739",),
        given='the text "!" a thousand times, usage 1000',
        right="1000 tokens",
        held_by=(
            "test_stream:test_a_thousand_exclamation_marks_are_the_thousand_tokens_that_usage_says",
            "test_metrics:test_tokens_are_what_usage_says_and_neither_text_nor_chunks_are_counted",
        ),
        open="nothing notes that the text is degenerate: no text is kept",
    ),
    Known(
        sources=("vllm#54227", "sglang#39651"),
        given="1,024 prompt tokens, 1,000 of them cached",
        right="INVALID: prefix cache hits",
        held_by=("test_validity:test_a_prompt_that_came_from_the_cache_is_not_believed",),
    ),
    Known(
        sources=("LMBenchmark#35",),
        given="a warm-up prompt that is measured, too",
        right="refused before any load",
        held_by=("test_workload:test_a_request_that_would_be_answered_from_the_cache_is_refused_before_any_load",),
    ),
    Known(
        sources=("sglang#34743", "sglang#29329"),
        given="acceptance of 3.0 over 10 steps and of 2.0 over 40; or none of a variant that speculates",
        right="2.2, not 2.5; missing is INVALID",
        held_by=(
            "test_metrics:test_acceptance_length_is_pooled_over_the_round",
            "test_validity:test_missing_acceptance_of_a_speculative_variant_is_no_pass",
        ),
    ),
    Known(
        sources=("TensorRT-LLM#18741",),
        given="TPOT from 6.08 to 15.24 ms",
        right="REGRESSED",
        held_by=("test_known_inputs:test_tokens_that_come_slower_are_a_regression_that_shows_the_time_per_token",),
    ),
    Known(
        sources=("guidellm#982",),
        given="asked for 256 tokens, got 17 with stop",
        right="wrong_length, INVALID",
        held_by=("test_stream:test_an_answer_that_stopped_early_is_of_the_wrong_length",),
    ),
    Known(
        sources=("sglang#22000",),
        given="a stranger answers /health with 200 on our port",
        right="refused before any load",
        held_by=("test_server:test_a_stranger_on_the_port_is_not_taken_for_the_server",),
    ),
    Known(
        sources=("sglang#31645", "sglang#39545"),
        given="the server forks a grandchild, then exits",
        right="nobody of the group is alive after the end",
        held_by=(
            "test_server:test_what_a_dead_server_left_behind_is_ended_too",
            "test_server:test_nobody_is_left_though_they_ignore_sigterm_and_became_daemons",
            "test_emulator:test_fault_leave_grandchild_leaves_one_in_a_session_of_its_own",
        ),
        open="the memory of the GPUs is not waited for: there is no telemetry within a campaign",
    ),
    Known(
        sources=("sglang#22779",),
        given="some tokens, then silence",
        right="ends at the limit between tokens",
        held_by=("test_load:test_a_failure_on_the_wire_is_named_is_never_tried_again_and_ends_the_round",),
    ),
    Known(
        sources=("guidellm#470",),
        given="the client says 940, the server counted 1000 over the window",
        right="INVALID: server and client disagree",
        held_by=("test_validity:test_a_client_that_says_940_of_1000_counted_tokens_is_not_believed",),
    ),
    Known(
        sources=("sglang#2470", "vllm.cpp#543"),
        given="SM clock medians of 2470 and 2190 MHz, no throttle bit",
        right="not comparable",
        held_by=(
            "test_clocks:test_clocks_of_2470_and_2190_mhz_without_a_throttle_bit_are_not_compared",
            "test_telemetry:"
            "test_clocks_that_are_not_those_of_the_stored_night_are_not_comparable_though_nothing_was_slowed",
        ),
    ),
    Known(
        sources=("sglang-jax#1095",),
        given="97.2, 96.8 and 98.4 against a floor of 98",
        right="an interval, not a coin flip",
        held_by=("test_interval:test_numbers_around_a_floor_give_an_interval_and_no_coin_flip",),
    ),
    Known(
        sources=("sglang#36272",),
        given="200 tokens, all in one chunk",
        right="the throughput is valid; ITL and TPOT are absent, not 0, and are not compared",
        held_by=(
            "test_stream:test_all_tokens_in_one_chunk_have_a_throughput_and_no_time_between_tokens",
            "test_metrics:test_all_tokens_in_one_chunk_leave_throughput_valid_and_the_time_between_tokens_absent",
            "test_verdict:test_what_a_launch_lacks_is_not_compared",
        ),
    ),
    Known(
        sources=("sglang#31609",),
        given="SGLANG_SIMULATE_ACC_LEN set on one side only",
        right="NO_BASELINE, or INVALID where variants are compared: not comparable",
        held_by=(
            "test_verdict:test_acceptance_simulated_on_one_side_only_is_not_comparable",
            "test_relations:test_acceptance_that_is_simulated_on_one_side_alone_makes_a_relation_invalid",
            "test_crossings:test_acceptance_that_is_simulated_on_one_side_alone_makes_a_crossover_invalid",
        ),
    ),
    Known(
        sources=("ATOM#1557",),
        given="acceptance from 61 to 36 %; one night it is missing",
        right="REGRESSED; missing is INVALID, never a pass",
        held_by=(
            "test_verdict:test_a_loss_of_acceptance_is_a_regression_that_names_it",
            "test_validity:test_missing_acceptance_of_a_speculative_variant_is_no_pass",
        ),
    ),
    Known(
        sources=("imp#1011",),
        given="restarts of 328, 348, 364 tok/s with speculation, 281.6 to 283.1 without; a baseline of other arguments",
        right="noise is of each variant, from fresh launches; another digest is NO_BASELINE",
        held_by=(
            "test_known_inputs:test_the_noise_of_one_variant_is_not_that_of_the_other",
            "test_known_inputs:test_a_baseline_of_other_arguments_is_never_compared_in_silence",
        ),
    ),
    Known(
        sources=("vllm-ascend#16070",),
        given="a workflow says commit A, the installed package is commit B",
        right="the installed build is the provenance",
        held_by=(
            "test_known_inputs:test_the_installed_build_is_the_provenance_and_not_what_a_workflow_says",
            "test_provenance:test_what_the_environment_of_the_server_puts_in_front_is_the_build",
        ),
    ),
    Known(
        sources=("sglang#28062",),
        given="the first, cold run was published: 124 against 249",
        right="cold rounds never count",
        held_by=(
            "test_known_servers:test_a_server_that_is_slow_until_it_is_warm_is_measured_warm",
            "test_validity:test_a_warm_up_that_failed_is_named_with_its_failure_and_its_death",
        ),
    ),
    Known(
        sources=("inference-perf KubeCon data",),
        given="plain 6431, EAGLE 4278 tok/s at saturation; 64 and 63 at the lowest rate",
        right="speculation pays at no level: the crossover is at or below the lowest",
        held_by=(
            "test_known_inputs:test_speculation_that_is_slower_at_every_level_is_never_said_to_pay",
            "test_crossover:test_speculation_that_is_slower_at_the_lowest_level_has_its_crossover_at_or_below_it",
        ),
    ),
)


# The table itself.


@cache
def tree() -> dict[str, ast.FunctionDef]:
    """Every test function, as `module:test`."""
    return {
        f"{path.stem}:{node.name}": node
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.sources[0])
def test_every_known_input_is_held_by_tests_that_are_there(known: Known) -> None:
    there = tree()
    for name in known.held_by:
        assert name in there, f"{known.sources}: there is no test {name}"
        assert any(isinstance(node, ast.Assert) for node in ast.walk(there[name])), f"{name} asserts nothing"
    assert known.held_by


def test_every_known_input_stands_once_in_the_table() -> None:
    sources = [source for known in KNOWN for source in known.sources]
    assert len(sources) == len(set(sources)) == 30


# Streams, each kind and not only the one that was reported.

ERRORS = {
    "an object": data({"error": {"message": "CUDA error"}}),
    "a text": data({"error": "CUDA error"}),
    "an empty object": data({"error": {}}),
    "of an older kind": data({"object": "error", "message": "CUDA error"}),
    "of its own event": b'event: error\ndata: {"message": "CUDA error"}\n\n',
    "in a choice": data({"choices": [{"index": 0, "delta": {}, "error": {"message": "CUDA error"}}]}),
    "beside a usage": data({"choices": [], "usage": usage(8), "error": {"message": "CUDA error"}}),
}


def in_a_round(read: Answer, *, requested: int) -> Round:
    """A round of this one request; without text it ended when it was sent."""
    return Round(
        level=1,
        index=0,
        planned_requests=1,
        requested_tokens=requested,
        requests=(
            RequestTrace(
                index=0,
                prompt_id="task",
                sent_s=0.0,
                chunk_times_s=tuple(read.chunk_times_s),
                chunk_tokens=None if read.chunk_tokens is None else tuple(read.chunk_tokens),
                output_tokens=read.output_tokens,
                prompt_tokens=read.prompt_tokens,
                cached_tokens=read.cached_tokens,
                ended_s=max(read.chunk_times_s, default=0.0),
                finish_reason=read.finish_reason,
                failure=read.failure,
            ),
        ),
    )


def reasons(measured: Round) -> list[str]:
    seen = Observation(
        round=measured, before=None, after=None, speculative=False, level_must_be_reached=True, death=None
    )
    return [reason.name for reason in check(seen)]


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("chunks", [0, 1, 2, 8])
@pytest.mark.parametrize("tail", [(), (DONE,), end(8)], ids=["nothing", "DONE", "a good end"])
def test_an_error_behind_any_number_of_chunks_is_no_token_and_no_number(
    error: bytes, chunks: int, tail: tuple[bytes, ...]
) -> None:
    """vllm#57519, inference-perf#713."""
    for counted in (None, 1):
        before = (data(text(tokens=counted and place + counted)) for place in range(chunks))
        measured = in_a_round(answer(*before, error, *tail), requested=8)
        (request,) = measured.requests
        assert request.failure is not None
        assert request.failure.name is FailureName.ERROR_IN_STREAM
        assert summarize(measured) is None
        assert reasons(measured) == ["requests failed"]


@pytest.mark.parametrize("chunks", [1, 3, 511, 512, 513])
@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("words", ["x", "x " * 512])
@pytest.mark.parametrize("last", [(), (data({"choices": [], "usage": None}),), (data({"choices": [], "usage": {}}),)])
def test_without_usage_no_number_of_chunks_is_a_number_of_tokens(
    chunks: int, finish: str, words: str, last: tuple[bytes, ...]
) -> None:
    """llama-benchy#11, vllm-swift#19."""
    said = (data(text(words)) for _ in range(chunks))
    measured = in_a_round(answer(*said, data(delta(finish=finish)), *last, DONE, requested=512), requested=512)
    (request,) = measured.requests
    assert request.failure is not None
    assert request.failure.name is FailureName.NO_USAGE
    assert (request.output_tokens, request.chunk_tokens) == (None, None)
    assert summarize(measured) is None
    assert reasons(measured) == ["requests failed"]


# Verdicts.


def judged(store: StoredCase, *launches: LaunchRecord, variant: str = "baseline") -> CaseVerdict:
    state = suite(variants=(variant,), store=(store,), launches=launches)
    return judge_case(state, state.cases[0])


def tonight(*throughputs: float, variant: str = "baseline") -> tuple[LaunchRecord, ...]:
    return tuple(launch(measured(value), variant=variant, ordinal=place) for place, value in enumerate(throughputs, 1))


def test_tokens_that_come_slower_are_a_regression_that_shows_the_time_per_token() -> None:
    """TensorRT-LLM#18741: one stream, whose time per token rose from 6.08 to 15.24 ms."""
    before = stored(*(1 / tpot_s for tpot_s in (0.00607, 0.00608, 0.00609)))
    found = judged(before, *tonight(1 / 0.01523, 1 / 0.01525, 1 / 0.01524))
    assert found.word is Word.REGRESSED
    assert found.moved is not None
    (tpot,) = (each for each in found.moved.beside if each.name == "TPOT")
    assert tpot.after / tpot.before == pytest.approx(15.24 / 6.08, abs=0.001)
    assert tpot.effect.moved is True
    told = " ".join(text for _, text in lines(found.moved, on_gpus=False))
    assert "TPOT 6.1 -> 15.2 ms (+150.7 %, slower)" in told


#: Restarts of one build, in tok/s.
SPECULATIVE = (328.0, 348.0, 364.0)
PLAIN = (281.6, 282.4, 283.1)


def test_the_noise_of_one_variant_is_not_that_of_the_other() -> None:
    """imp#1011: a loss that is plain to see in the quiet variant proves nothing in the one that varies by 5 %."""
    plain = judged(
        stored(*PLAIN, variant="plain"), *tonight(*(0.95 * each for each in PLAIN), variant="plain"), variant="plain"
    )
    eagle = judged(
        stored(*SPECULATIVE, variant="eagle3"),
        *tonight(*(0.95 * each for each in SPECULATIVE), variant="eagle3"),
        variant="eagle3",
    )
    assert (plain.word, eagle.word) == (Word.REGRESSED, Word.INCONCLUSIVE)
    assert plain.judgement is not None
    assert eagle.judgement is not None
    assert plain.judgement.change == pytest.approx(eagle.judgement.change)
    assert eagle.judgement.noise_before is not None
    assert plain.judgement.noise_before is not None
    assert eagle.judgement.noise_before > 10 * plain.judgement.noise_before


def test_a_baseline_of_other_arguments_is_never_compared_in_silence() -> None:
    """imp#1011: what is asked must be the same; what runs may differ, since that is what is tested, and is named."""
    asked_otherwise = replace(stored(*PLAIN), workload_digest="of-another-length")
    found = judged(asked_otherwise, *tonight(*PLAIN))
    assert (found.word, found.judgement) == (Word.NO_BASELINE, None)
    assert "another workload (digest of-another-length, now digest-1)" in (found.why or "")
    launches = tuple(replace(each, command=(*each.command, "--draft-tokens", "4")) for each in tonight(*PLAIN))
    found = judged(stored(*PLAIN), *launches)
    assert found.word is Word.PASS
    assert found.notes == ("command: now with --draft-tokens 4, was with nothing more",)


#: Published in tok/s: at the lowest rate, and at saturation.
LOWEST = {"plain": (64.0, 64.0, 64.0), "eagle": (63.0, 63.0, 63.0)}
SATURATED = {"plain": (6431.0, 6431.0, 6431.0), "eagle": (4278.0, 4278.0, 4278.0)}


def test_speculation_that_is_slower_at_every_level_is_never_said_to_pay() -> None:
    """inference-perf KubeCon data."""
    for samples in (LOWEST, SATURATED):
        holds = judge_relation(relation("plain", "eagle"), samples, ONE_CASE)
        assert holds.word is Word.PASS
        assert holds.judgement.change > 0
        pays = judge_relation(relation("eagle", "plain", at_least=1.02), samples, ONE_CASE)
        assert pays.judgement.change < 0
        assert pays.word is Word.VIOLATED


# Builds.


def test_the_installed_build_is_the_provenance_and_not_what_a_workflow_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-ascend#16070: the commit that a job has checked out beside it is not the one that its interpreter runs."""
    environment = Environment(tmp_path)
    environment.install("sglang", "0.5.23", editable=True)
    installed = git(environment.checkout, "rev-parse", "HEAD")
    said = tmp_path / "workflow"
    git(tmp_path, "clone", "-q", str(environment.checkout), str(said))
    git(said, "commit", "-q", "--allow-empty", "-m", "what the workflow says")
    told = git(said, "rev-parse", "HEAD")
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "SGLANG_COMMIT"):
        monkeypatch.setenv(name, told)
    found = build_of(environment.python, said, dict(os.environ))
    assert found is not None
    assert (found.commit, found.dirty, found.sglang) == (installed, None, "0.5.23")
    assert installed != told
