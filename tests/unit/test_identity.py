"""A server that says of itself what was not asked for is told from one that resolved an argument its own way."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.identity import MAX_NAME, Value, check, check_attached, check_model, recorded

CAPTURED = Path(__file__).parents[1] / "data" / "sglang" / "eagle3_server_info.txt"
ANSWER = json.loads(CAPTURED.read_text().partition("{")[1] + CAPTURED.read_text().partition("{")[2])
#: As SGLang 0.5.23 tells them, and the command that it was started by.
SAID: dict[str, Value] = {name: value for name, value in ANSWER.items() if not isinstance(value, list | dict)}
PORT = ANSWER["port"]
COMMAND = ("{python}", "-m", "sglang.launch_server", *ANSWER["launch_command"].replace(str(PORT), "{port}").split())


def wrong(command: tuple[str, ...], **said: Value) -> tuple[str, ...]:
    return check(command, SAID | said, port=PORT).wrong


def notes(command: tuple[str, ...], **said: Value) -> tuple[str, ...]:
    return check(command, SAID | said, port=PORT).notes


def test_sglang_agrees_with_the_command_that_started_it() -> None:
    assert len(COMMAND) > 20
    assert wrong(COMMAND) == notes(COMMAND) == ()
    assert not check(COMMAND, SAID, port=PORT).reasons


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ({"model_path": "/models/other"}, "--model-path: asked /models/mk8, runs with /models/other"),
        ({"served_model_name": "large"}, "--served-model-name: asked tiny, runs with large"),
        ({"port": 30000}, f"--port: asked {PORT}, runs with 30000"),
        ({"speculative_algorithm": None}, "--speculative-algorithm: asked EAGLE3, runs with None"),
        ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm: asked EAGLE3, runs with NGRAM"),
    ],
)
def test_another_server_is_told_by_flag_asked_and_seen(said: dict[str, Value], seen: str) -> None:
    assert wrong(COMMAND, **said) == (seen,)
    (reason,) = check(COMMAND, SAID | said, port=PORT).reasons
    assert (reason.name, reason.seen) == ("wrong server", seen)


def test_what_sglang_resolves_otherwise_is_a_note() -> None:
    asked = (*COMMAND, "--tp", "8", "--speculative-num-draft-tokens=9", "--mem-fraction-static", "0.85")
    assert wrong(asked) == ()
    assert notes(asked) == (
        "--mem-fraction-static: asked 0.85, runs with 0.716",
        "--speculative-num-draft-tokens: asked 9, runs with 4",
        "--tp: asked 8, runs with 1",
    )
    capped: dict[str, Value] = {"effective_max_running_requests_per_dp": 3, "dp_size": 2}
    assert notes(COMMAND, **capped) == ("--max-running-requests: asked 32, runs with 6",)
    assert wrong(COMMAND, speculative_algorithm="EAGLE") == ()
    assert wrong((*COMMAND, "--speculative-algorithm", "NEXTN"), speculative_algorithm="FROZEN_KV_MTP") == ()


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (("--dtype", "auto"), {"dtype": "bfloat16"}),
        (("--max-total-tokens", "none"), {"max_total_tokens": 5}),
        (("--mem-fraction-static", ".7160"), {"mem_fraction_static": 0.716}),
        (("--page-size", "1.0"), {"page_size": 1}),
        (("--page-size", "many"), {"page_size": 1}),
        (("--enable-metrics",), {"enable_metrics": True}),
        (("--enable-metrics", "TRUE"), {"enable_metrics": True}),
        (("--enable-lora", "0"), {"enable_lora": False}),
        (("--stream-interval",), {"stream_interval": 5}),
        (("--api-key", "[secret]"), {"api_key": None}),
        (("--admin-api-key", "k"), {"admin_api_key": "<redacted>"}),
        (("--attention-backend", "FA3"), {"attention_backend": "fa3"}),
        (("--tokenizer-path", "/models/mk8/"), {"tokenizer_path": "/models/mk8"}),
        (("--cuda-graph-bs", "1", "2"), {"cuda_graph_bs": 3}),
        (("--tp", "8", "--tp-size", "1"), {"tp_size": 1}),
        (("--max-running-requests", "-1"), {"max_running_requests": None}),
        (
            ("--enable-return-aux-hidden-states",),
            {"enable_return_aux_hidden_states": True, "speculative_algorithm": None},
        ),
        (("--unheard-of", "1"), {}),
        (("-x", "1", "--", "--dp"), {"dp_size": 1}),
        (("bash", "-c", "serve --tp 8"), {}),
    ],
)
def test_a_value_that_means_the_same_or_cannot_be_compared_is_not_told(
    asked: tuple[str, ...], seen: dict[str, Value]
) -> None:
    found = check((*COMMAND, *asked), SAID | seen, port=PORT)
    assert (found.wrong, found.notes) == ((), ())


def test_what_tells_a_server_may_be_given_to_its_launcher_too() -> None:
    started = ("mpirun", "serve", "--port", "{port}", "--", "--port", "9")
    assert [check(started, {"port": port}, port=30000).wrong for port in (9, 30000)] == [(), ()]
    assert check(started, {"port": 8}, port=30000).wrong == ("--port: asked 9, runs with 8",)
    twice = ("--model-path", "org/a", "--model-path", "org/b")
    assert [check_attached(twice, {"model_path": f"org/{each}"}).notes == () for each in "abc"] == [True, True, False]


def test_a_flag_that_is_off_on_the_server_is_a_note() -> None:
    assert notes((*COMMAND, "--disable-radix-cache")) == ("--disable-radix-cache: asked True, runs with False",)


@pytest.mark.parametrize(
    "path",
    [
        "/root/.cache/huggingface/hub/models--org--A-Model-8B/snapshots/0123abc",
        "/root/.cache/modelscope/hub/models/org/A___Model-8B",
    ],
)
def test_a_model_that_was_downloaded_is_the_one_that_was_asked_for(path: str) -> None:
    hub = ("--model-path", "org/A-Model-8B")
    named: dict[str, Value] = {"model_path": path, "served_model_name": "name"}
    assert check((*hub, "--served-model-name", "name"), named, port=1).wrong == ()
    assert check(hub, {"model_path": "/any/where", "served_model_name": hub[1]}, port=1).wrong == ()
    assert check(hub, {"model_path": "org/B-Model-8B", "served_model_name": "org/B-Model-8B"}, port=1).wrong
    assert check(("--model-path", "/models/a"), {"model_path": "/models/a-large"}, port=1).wrong


@pytest.mark.parametrize(
    ("asked", "path", "same"),
    [
        ("Qwen/Qwen3-8B", "/models/Qwen3-8B-FP8", False),
        ("Qwen/Qwen3-8B", "/models/qwen3-8b", True),
        ("Qwen/Qwen3-8B", "/cache/hub/models--Qwen--Qwen3-8B-FP8/snapshots/0123abc", False),
        ("Qwen/Qwen3-8B", "/cache/hub/models--Other--Qwen3-8B/snapshots/0123abc", False),
        ("Qwen/Qwen3-8B", "/cache/Qwen--Qwen3-8B", True),
        ("org/", "/models/anything", False),
        ("org/Large-GGUF:Q8_0", "/hub/models--org--Large-GGUF/snapshots/0123abc/Large-Q8_0.gguf", True),
        ("org/Large", "/models/Large-Q8_0.gguf", True),
        ("org/Large", "/models/Small-Q8_0.gguf", False),
    ],
)
def test_a_folder_is_of_the_model_whose_whole_name_it_has(asked: str, path: str, same: bool) -> None:
    assert (check(("--model-path", asked), {"model_path": path}, port=1).wrong == ()) is same


def test_a_router_answers_for_the_server_behind_it() -> None:
    router = ("{python}", "-m", "sglang_router.launch_server", "--port", "{port}")
    assert check(router, {"port": 31000}, port=30000).wrong == ()
    assert check(router[2:], {"port": 31000}, port=30000).wrong == ()
    assert check(("server", *router[3:]), {"port": 31000}, port=30000).wrong


def test_a_server_that_tells_nothing_contradicts_nothing() -> None:
    assert check(COMMAND, {}, port=PORT).reasons == check_model("m", {}, ("other",)).reasons == ()
    assert check_attached(COMMAND, {}).notes == ()


def test_a_model_that_the_server_does_not_serve_is_a_wrong_server() -> None:
    for name in ("tiny", "/models/mk8", "tiny:adapter", "adapter"):
        assert check_model(name, SAID, ("tiny", "adapter")).reasons == ()
    (reason,) = check_model("llama", SAID, ("tiny",)).reasons
    assert reason.seen == "model: asked llama, it serves /models/mk8, tiny"


def test_of_a_server_that_already_ran_another_model_path_is_a_note() -> None:
    found = check_attached(("--model-path", "org/B"), SAID)
    assert (found.wrong, found.notes) == ((), ("--model-path: the suite has org/B, it runs with /models/mk8",))
    assert check_attached((*COMMAND, "--tp", "8"), SAID).notes == ()


def test_what_decides_speed_is_recorded_and_no_path_and_nothing_that_is_off() -> None:
    kept = recorded(SAID)
    assert 40 < len(kept) < 100
    assert kept["attention_backend"] == "torch_native"
    assert (kept["speculative_num_draft_tokens"], kept["mem_fraction_static"], kept["tp_size"]) == ("4", "0.72", "1")
    assert kept["disable_overlap_schedule"] == "True"
    assert not any("path" in name or name in ("port", "random_seed", "launch_command") for name in kept)
    assert not {"quantization", "disable_cuda_graph"} & kept.keys()


TEXT = st.text(max_size=12) | st.sampled_from(["--tp", "--port", "{port}", "8", "--model-path=/x", "auto", "-1", "nan"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
NAMES = st.sampled_from(["tp_size", "port", "model_path", "served_model_name", "dtype", "a_backend"]) | st.text(
    max_size=9
)


@given(st.lists(TEXT, max_size=8).map(tuple), st.dictionaries(NAMES, VALUES, max_size=8))
def test_no_command_and_no_answer_break_the_comparison(command: tuple[str, ...], said: dict[str, Value]) -> None:
    for found in (check(command, said, port=1), check_attached(command, said), check_model("m", said, ())):
        assert all(text.isprintable() for text in (*found.wrong, *(each.seen for each in found.reasons)))
    assert all(len(name) <= MAX_NAME for name in recorded(said))
