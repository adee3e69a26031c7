"""Every launch and every variant is asked the same, and no two requests of a launch share their beginning."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.workload import (
    PREFIX_DIGITS,
    SHIPPED_SETS,
    Message,
    PlannedRequest,
    Prompt,
    RoundPlan,
    Workload,
    WorkloadError,
    find_set,
    parse_set,
    read_set,
    refuse_leaks,
)

TURNS = (
    Message(role="system", content="You write Python."),
    Message(role="user", content="Sort a list."),
    Message(role="assistant", content="Done."),
    Message(role="user", content="Now reverse it."),
)
PROMPTS = (
    *(Prompt(id=f"task-{n}", messages=(Message(role="user", content=f"Do task {n}."),)) for n in range(9)),
    Prompt(id="turns", messages=TURNS),
)
WORKLOAD = Workload(
    prompt_set="set",
    prompts=PROMPTS,
    levels=(1, 16, 250),
    requests_per_level=None,
    min_requests=30,
    requests_per_stream=4,
    output_tokens=32,
    output_tokens_by_level=((250, 8),),
    rounds=2,
    warmup_requests=8,
    seed=20,
    endpoint="chat",
    temperature=0.0,
    level_must_be_reached=True,
    start_spread_s=0.0,
    client_processes=1,
)


def beginning(request: PlannedRequest) -> str:
    return request.messages[0].content[:PREFIX_DIGITS]


def test_a_round_is_planned_the_same_every_time_and_whatever_else_the_suite_holds() -> None:
    plan = WORKLOAD.plan(16, 1)
    assert plan == WORKLOAD.plan(16, 1)
    other = replace(WORKLOAD, levels=(16,), output_tokens=9, endpoint="completions", temperature=1.0, rounds=5)
    assert plan == other.plan(16, 1)


def test_a_plan_stays_what_stored_baselines_were_asked() -> None:
    first = WORKLOAD.plan(16, 0).measured[0]
    assert (first.prompt_id, beginning(first)) == ("task-1", "11a9a327360cb6a8")


def test_a_round_holds_as_many_requests_as_its_level_needs() -> None:
    assert [len(WORKLOAD.plan(level, 0).measured) for level in WORKLOAD.levels] == [30, 64, 1000]
    assert len(replace(WORKLOAD, requests_per_level=5).plan(250, 0).measured) == 5
    plan = WORKLOAD.plan(250, 1)
    assert (plan.level, plan.index, len(plan.warmup)) == (250, 1, 8)
    assert [request.index for request in plan.measured] == list(range(1000))
    assert WORKLOAD.tokens(16) == 32
    assert WORKLOAD.tokens(250) == 8


def test_no_two_requests_of_a_launch_share_their_beginning() -> None:
    beginnings = [
        beginning(request)
        for level in (1, 2, 5, 10, 30, 70, 100, 250)
        for index in range(2)
        for plan in (WORKLOAD.plan(level, index),)
        for request in (*plan.warmup, *plan.measured)
    ]
    assert len(beginnings) > 3900
    assert len(set(beginnings)) == len(beginnings)


def test_every_prefix_has_the_same_length_and_stands_before_the_first_message() -> None:
    texts = {prompt.id: prompt.messages for prompt in PROMPTS}
    for request in WORKLOAD.plan(16, 0).measured:
        original = texts[request.prompt_id]
        prefix, _, task = request.messages[0].content.partition("\n\n")
        assert len(prefix) == PREFIX_DIGITS
        assert int(prefix, 16) >= 0
        assert task == original[0].content
        assert request.messages[0].role == original[0].role
        assert request.messages[1:] == original[1:]


def test_every_task_is_asked_before_one_is_asked_again() -> None:
    asked = [request.prompt_id for request in WORKLOAD.plan(1, 0).measured]
    assert set(asked[:10]) == set(asked[10:20]) == {prompt.id for prompt in PROMPTS}


def test_rounds_levels_and_phases_ask_in_different_orders() -> None:
    orders = {
        tuple(request.prompt_id for request in requests[:8])
        for requests in (
            WORKLOAD.plan(16, 0).measured,
            WORKLOAD.plan(16, 1).measured,
            WORKLOAD.plan(250, 0).measured,
            WORKLOAD.plan(16, 0).warmup,
            replace(WORKLOAD, seed=21).plan(16, 0).measured,
        )
    }
    assert len(orders) == 5


@pytest.mark.parametrize("changed", ["salt", "seed", "round", "level"])
def test_another_salt_seed_round_or_level_shares_no_beginning(changed: str) -> None:
    plan = WORKLOAD.plan(16, 0)
    other = {
        "salt": lambda: WORKLOAD.plan(16, 0, salt="a1b2"),
        "seed": lambda: replace(WORKLOAD, seed=21).plan(16, 0),
        "round": lambda: WORKLOAD.plan(16, 1),
        "level": lambda: WORKLOAD.plan(17, 0),
    }[changed]()
    ours = {beginning(request) for request in (*plan.warmup, *plan.measured)}
    assert ours.isdisjoint(beginning(request) for request in (*other.warmup, *other.measured))


def test_a_salted_round_is_planned_the_same_every_time() -> None:
    assert WORKLOAD.plan(16, 0, salt="a1b2") == WORKLOAD.plan(16, 0, salt="a1b2")


def test_completions_get_all_turns_as_one_text_behind_the_prefix() -> None:
    request = next(each for each in WORKLOAD.plan(16, 0).measured if each.prompt_id == "turns")
    assert request.completion_prompt() == (
        f"{beginning(request)}\n\nYou write Python.\n\nSort a list.\n\nDone.\n\nNow reverse it."
    )


def request_of(index: int, text: str) -> PlannedRequest:
    return PlannedRequest(index=index, prompt_id=f"p{index}", messages=(Message(role="user", content=text),))


@pytest.mark.parametrize(
    ("warmup", "measured", "fragment"),
    [
        (("a",), ("b", "a"), "stands in the warm-up and again in the measured requests"),  # LMBenchmark#35
        (("a",), ("b", "b"), "stands in the measured requests and again in the measured requests"),
        (("a", "a"), ("b",), "stands in the warm-up and again in the warm-up"),
    ],
)
def test_a_request_that_would_be_answered_from_the_cache_is_refused_before_any_load(
    warmup: tuple[str, ...], measured: tuple[str, ...], fragment: str
) -> None:
    plan = RoundPlan(
        level=16,
        index=0,
        warmup=tuple(request_of(*each) for each in enumerate(warmup)),
        measured=tuple(request_of(*each) for each in enumerate(measured)),
    )
    with pytest.raises(WorkloadError) as caught:
        refuse_leaks(plan)
    assert fragment in str(caught.value)
    assert "level 16" in str(caught.value)


# Prompt sets.


def parsed(*lines: str) -> tuple[Prompt, ...]:
    return parse_set(lines, "set.jsonl")


def test_a_set_holds_prompts_and_conversations_and_blank_lines_are_none() -> None:
    turns = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    first, second = parsed(
        "", json.dumps({"id": "a", "prompt": "Sort \u2028 a list."}), "  \r", json.dumps({"id": "b", "messages": turns})
    )
    assert first == Prompt(id="a", messages=(Message(role="user", content="Sort \u2028 a list."),))
    assert second == Prompt(id="b", messages=TURNS)


GOOD = '{"id": "good", "prompt": "Sort a list."}'
SHAPE = "a JSON object with 'id' and either 'prompt' or 'messages'"


@pytest.mark.parametrize(
    ("line", "fragments"),
    [
        ("{", ("not JSON", SHAPE)),
        ("\ufeff{}", ("not JSON", SHAPE)),
        ("[" * 100_000, ("not JSON", SHAPE)),
        ("9" * 5000, ("not JSON", SHAPE)),
        ("null", ("seen None", SHAPE)),
        ('["a"]', ("seen ['a']", SHAPE)),
        ("{}", ("'id' is None", "a text that is not empty")),
        ('{"id": 7, "prompt": "x"}', ("'id' is 7", "a text that is not empty")),
        ('{"id": "", "prompt": "x"}', ("'id' is ''", "a text that is not empty")),
        ('{"id": "a"}', (SHAPE,)),
        ('{"id": "a", "prompt": "x", "messages": []}', (SHAPE,)),
        ('{"id": "a", "prompt": "x", "tokens": 3}', ("unknown key 'tokens'", SHAPE)),
        ('{"id": "a", "prompt": 3}', ("'prompt' is 3", "a text that is not empty")),
        ('{"id": "a", "prompt": " \\n"}', ("'prompt' is ' \\n'", "a text that is not empty")),
        ('{"id": "a", "prompt": "\\ud800"}', ("'prompt' holds a character that cannot be sent",)),
        ('{"id": "a", "messages": {}}', ("'messages' is {}", "a list of turns")),
        ('{"id": "a", "messages": []}', ("'messages' is []", "a list of turns")),
        ('{"id": "a", "messages": ["x"]}', ("message 1", "seen 'x'", "'role' and 'content'")),
        ('{"id": "a", "messages": [{"role": "user"}]}', ("message 1", "'role' and 'content'")),
        (
            '{"id": "a", "messages": [{"role": "tool", "content": "x"}]}',
            ("message 1", "'role' is 'tool'", "system, user, assistant"),
        ),
        (
            '{"id": "a", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}',
            ("message 1", "'content' is [{", "a text that is not empty"),
        ),
        (
            '{"id": "a", "messages": [{"role": "assistant", "content": "x"}]}',
            ("the last message is the assistant's", "allowed: the user's"),
        ),
        (GOOD, ("'good' stands twice", "every prompt needs its own")),
    ],
)
def test_a_bad_line_of_a_set_is_named_with_what_was_seen_and_what_is_allowed(
    line: str, fragments: tuple[str, ...]
) -> None:
    with pytest.raises(WorkloadError) as caught:
        parsed(GOOD, "", line)
    message = str(caught.value)
    assert message.startswith("set.jsonl, line 3")
    assert message.isprintable()
    for fragment in fragments:
        assert fragment in message


def test_a_set_without_prompts_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"set.jsonl: no prompts in it"):
        parsed("", " ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "prompt", "messages", "role", "content", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.lists(st.one_of(st.text(), JSON.map(json.dumps)), max_size=4))
def test_any_lines_are_a_set_or_refused(lines: list[str]) -> None:
    prompts: tuple[Prompt, ...] = ()
    refusal = "set.jsonl: none"
    try:
        prompts = parsed(*lines)
    except WorkloadError as error:
        refusal = str(error)
    assert refusal.isprintable()
    assert refusal.startswith("set.jsonl")
    assert all(prompt.messages and prompt.messages[-1].role == "user" for prompt in prompts)


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_a_task_is_asked_word_for_word(texts: list[str]) -> None:
    lines = [json.dumps({"id": str(place), "prompt": text}) for place, text in enumerate(texts)]
    plan = replace(WORKLOAD, prompts=parsed(*lines)).plan(1, 0)
    asked = {request.messages[0].content[PREFIX_DIGITS:] for request in plan.measured}
    assert asked == {f"\n\n{text}" for text in texts}


# Where sets lie.


def test_a_file_beside_the_suite_goes_before_a_shipped_set_of_its_name(tmp_path: Path) -> None:
    assert find_set("coding-agentic", tmp_path) == SHIPPED_SETS / "coding-agentic.jsonl"
    (tmp_path / "coding-agentic").write_text(GOOD)
    assert find_set("coding-agentic", tmp_path) == tmp_path / "coding-agentic"


@pytest.mark.parametrize("name", ["poems", "..", ".", "sub/coding-agentic", "../prompts/coding-agentic", "p" * 5000])
def test_a_set_that_is_not_there_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError):
        find_set(name, tmp_path)


def test_a_set_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    with pytest.raises(WorkloadError, match=r"set\.jsonl"):
        read_set(path)
    path.write_bytes(b"\xff")
    with pytest.raises(WorkloadError, match="cannot be read as a UTF-8 prompt set"):
        read_set(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(WorkloadError, match="Is a directory"):
        read_set(path)


def test_lines_of_a_set_may_end_in_any_way_that_leaves_them_lines(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(b'{"id": "a", "prompt": "x"}\r\n\r\n{"id": "b", "prompt": "y"}')
    assert [prompt.id for prompt in read_set(path)] == ["a", "b"]
