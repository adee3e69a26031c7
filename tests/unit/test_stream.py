"""Whatever way a server cuts, spaces and decorates its stream, it says the same; and no stream invents a token.

Names such as vllm#57519 are entries of that project's issue tracker: somebody's tool once read this stream wrongly.
"""

import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from perf.metrics import summarize
from perf.stream import (
    ANSWER_BYTES,
    ANSWER_BYTES_PER_TOKEN,
    MAX_COUNT,
    Answer,
    EventStream,
    Reader,
    message_of,
    read_block,
    refusal,
)
from perf.trace import MAX_DETAIL, FailureName, RequestTrace, Round

CAPTURES = Path(__file__).parents[1] / "data" / "sglang"


def captured(name: str) -> bytes:
    """The body of a captured answer; its head ends with the first blank line."""
    return (CAPTURES / f"{name}.txt").read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]


def answer(
    *pieces: bytes, requested: int = 8, clean: bool = True, times: Sequence[float] | None = None, gap_s: float = 0.0
) -> Answer:
    times = times or [1.0 + gap_s * place for place in range(len(pieces))]
    return read_answer(tuple(zip(times, pieces, strict=True)), requested_tokens=requested, ended_clean=clean)


def read_answer(reads: Sequence[tuple[float, bytes]], *, requested_tokens: int, ended_clean: bool) -> Answer:
    reader = Reader(requested_tokens)
    for time_s, piece in reads:
        reader.feed(time_s, piece)
    return reader.close(reads[-1][0] if reads else 0.0, ended_clean=ended_clean)


def times(read: Answer) -> list[float]:
    return list(read.chunk_times_s)


def counts(read: Answer) -> list[int] | None:
    return None if read.chunk_tokens is None else list(read.chunk_tokens)


def events(reads: Sequence[tuple[float, bytes]]) -> list[tuple[float, str, str]]:
    """Time, type and data of every event of a body read in the given pieces."""
    stream = EventStream()
    blocks = [(time_s, block) for time_s, piece in reads for block in stream.blocks(piece)]
    blocks.append((reads[-1][0], stream.close()))
    return [
        (time_s, kind, data.decode(errors="replace")) for time_s, block in blocks for kind, data in read_block(block)
    ]


def failure(given_answer: Answer) -> FailureName | None:
    return None if given_answer.failure is None else given_answer.failure.name


def data(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = data(b"[DONE]")


def usage(tokens: int, **more: object) -> dict[str, object]:
    return {"completion_tokens": tokens, "prompt_tokens": 12, "total_tokens": 12 + tokens, **more}


def delta(tokens: int | None = None, *, finish: str | None = None, **fields: str | None) -> dict[str, object]:
    chunk: dict[str, object] = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    return chunk if tokens is None else {**chunk, "usage": usage(tokens)}


ROLE = delta(role="assistant", content="")


def text(content: str = "x", tokens: int | None = None) -> dict[str, object]:
    return delta(tokens, content=content)


def end(tokens: int | None, finish: str = "length") -> tuple[bytes, ...]:
    last = () if tokens is None else (data({"choices": [], "usage": usage(tokens)}),)
    return (data(delta(finish=finish)), *last, DONE)


GOOD = (data(ROLE), data(text()), data(text()), *end(8))

MARK = b"\xef\xbb\xbf"  # of the byte order


# What SGLang was captured to answer.


@pytest.mark.parametrize(
    ("name", "chunks", "chunk_tokens", "tokens", "prompt", "finish"),
    [
        ("chat_stream", 5, None, 8, 12, "length"),
        ("chat_stream_contusage", 4, [1, 2, 1, 2], 6, 12, "length"),
        ("completions_stream", 8, None, 8, 11, "length"),
        ("eagle3_chat_stream", 3, None, 8, 12, "length"),
        ("eagle3_chat_stream_contusage", 3, [1, 4, 1], 6, 12, "length"),
        ("eagle3_completions_stream", 2, None, 8, 11, "length"),
    ],
)
def test_what_sglang_answers_is_read_right(
    name: str, chunks: int, chunk_tokens: list[int] | None, tokens: int, prompt: int, finish: str
) -> None:
    read = answer(captured(name), requested=tokens)
    assert read.failure is None
    assert len(times(read)) == chunks
    assert counts(read) == chunk_tokens
    assert (read.output_tokens, read.prompt_tokens, read.finish_reason) == (tokens, prompt, finish)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat_stream_nousage", FailureName.NO_USAGE),
        ("abort_stream", FailureName.ABORTED),
        ("error_in_stream", FailureName.ERROR_IN_STREAM),
        ("chat_nonstream", FailureName.TRUNCATED),
    ],
)
def test_what_sglang_fails_with_is_named(name: str, expected: FailureName) -> None:
    assert failure(answer(captured(name))) is expected


def test_cached_prompt_tokens_are_read_where_the_server_reports_them() -> None:
    assert answer(captured("abort_stream")).cached_tokens == 0
    assert answer(captured("chat_stream")).cached_tokens is None
    details = data({"choices": [], "usage": usage(8, prompt_tokens_details={"cached_tokens": 1000})})
    read = answer(*GOOD[:-2], details, DONE)
    assert (read.failure, read.cached_tokens) == (None, 1000)


@pytest.mark.parametrize("name", ["chat_stream", "eagle3_chat_stream_contusage", "completions_stream"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_captured_answers_read_the_same_a_byte_at_a_time_and_with_any_line_ending(name: str, ending: bytes) -> None:
    body = captured(name)
    assert answer(*(bytes([each]) for each in body.replace(b"\n", ending))) == answer(body)


# What a conforming event stream may hold.

NOTHING = (
    b"\n",
    b": keep-alive\n\n",
    b":\n",
    b"event: ping\n\n",
    b"id: 7\nretry: 3000\n",
    b"unknown: field\n",
    b"data\n\n",
    b"data:\n\n",
    b"data:  \n\n",
    data({}),
    data({"choices": []}),
    data({"choices": None}),
    data({"choices": [], "usage": None}),
    data({"choices": [{"index": 0, "delta": {}}]}),
    data({"choices": [{"index": 0, "delta": None, "finish_reason": ""}]}),
    data({"choices": [{"index": 0}]}),
    data({"error": None, "choices": []}),
    data({"object": "chat.completion.chunk", "choices": [], "created": 1}),
    data(delta(content="")),
    data(delta(content=None, reasoning_content=None)),
    data(delta(role="assistant", tool_calls=None)),
    data({**delta(content=""), "usage": None}),
    b'event: message\ndata: {"choices":\ndata: []}\n\n',
    b'data:{"choices": []}\n\n',
)


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("place", range(len(GOOD) + 1))
def test_what_says_nothing_changes_nothing(nothing: bytes, place: int) -> None:
    assert answer(b"".join((*GOOD[:place], nothing, *GOOD[place:]))) == answer(b"".join(GOOD))


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"\xef\xbb\xbf", b""), (b"", b"\n\n\n"), (b"", b": bye"), (b"", b"trailing"), (b"", b"id: 9"), (b"\n\n", b"\r")],
)
def test_a_byte_order_mark_and_trailing_bytes_say_nothing(before: bytes, after: bytes) -> None:
    read = answer(before + b"".join(GOOD) + after)
    assert read == answer(b"".join(GOOD))
    assert read.failure is None


def test_a_missing_blank_line_at_the_end_loses_nothing() -> None:
    assert answer(b"".join(GOOD).rstrip(b"\n")) == answer(b"".join(GOOD))
    assert answer(b"".join(GOOD[:-1]).rstrip(b"\n")) == answer(b"".join(GOOD))


def test_a_good_answer_needs_no_done() -> None:
    assert answer(*GOOD[:-1]).failure is None


def test_a_line_break_split_over_two_reads_is_one_line_break() -> None:
    assert list(events([(1.0, b"data: a\r"), (2.0, b""), (3.0, b"\n"), (4.0, b"\n"), (5.0, b"data: b\n\n")])) == [
        (4.0, "", "a"),
        (5.0, "", "b"),
    ]


@given(st.lists(st.sampled_from(["\r\n", "\n", "\r"]), min_size=12, max_size=12), st.integers(1, 5))
def test_mixed_line_endings_are_line_endings(endings: list[str], size: int) -> None:
    """A CR behind which a line with LF would be empty is one line ending with it, so such pairs are left out."""
    assume(not any(one == "\r" and other == "\n" for one, other in pairwise(endings)))
    lines = ["data: a", "", "data: b", "data: c", "", ": note", "data: d", "", "event: e", "data: f", "", ""]
    body = "".join(line + ending for line, ending in zip(lines, endings, strict=True)).encode()
    reads = [(1.0, body[start : start + size]) for start in range(0, len(body), size)]
    assert [said for _, _, said in events(reads)] == ["a", "b\nc", "d", "f"]


def test_data_of_several_lines_is_one_event_and_one_blank_is_dropped() -> None:
    (event,) = events([(1.0, b"event: error\ndata:  a\ndata:b\ndata\ndata: : c\n\n")])
    assert event == (1.0, "error", " a\nb\n\n: c")


def test_bytes_that_are_no_text_are_text_that_nobody_reads() -> None:
    broken = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xf0\x9f"},"finish_reason":null}]}\n\n'
    read = answer(data(ROLE), broken, *end(8))
    assert (read.failure, len(times(read)), read.output_tokens) == (None, 1, 8)


def test_a_character_split_over_two_reads_is_one_character() -> None:
    body = 'data: {"message": "\u65e5\u672c"}\n\n'.encode()
    for cut in range(len(body)):
        ((_, _, said),) = events([(1.0, body[:cut]), (2.0, body[cut:])])
        assert said == '{"message": "\u65e5\u672c"}'


def test_of_a_duplicated_field_the_last_counts_as_in_any_json() -> None:
    chunk = b'data: {"choices":[],"usage":{"completion_tokens":3,"completion_tokens":8}}\n\n'
    assert answer(*GOOD[:-2], chunk, DONE).output_tokens == 8


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning"])
def test_reasoning_is_text_as_content_is(field: str) -> None:
    read = answer(
        data(ROLE), data({"choices": [{"index": 0, "delta": {field: "hm"}}]}), data(text()), *end(8), gap_s=1.0
    )
    assert times(read) == [2.0, 3.0, 4.0]


def test_every_chunk_bears_the_time_of_the_read_that_ended_it() -> None:
    body = b"".join(GOOD)
    read = answer(*(bytes([each]) for each in body), times=[float(place) for place in range(len(body))])
    ends = [float(len(b"".join(GOOD[: place + 1])) - 1) for place in (1, 2, 3)]
    assert times(read) == ends


def test_only_events_are_heard_and_no_part_of_one_and_no_keep_alive() -> None:
    reader = Reader(8)
    heard: list[tuple[int, float]] = []
    for time_s, piece in enumerate(
        (b": hi\n\n", GOOD[0], b":\n\n", b"event: ping\n\n", GOOD[1][:9], GOOD[1][9:], b"\n")
    ):
        reader.feed(float(time_s), piece)
        heard.append((reader.events, reader.heard_s))
    assert heard == [(0, 0.0), (1, 1.0), (1, 1.0), (1, 1.0), (1, 1.0), (2, 5.0), (2, 5.0)]


def test_a_long_event_in_many_reads_is_one_chunk() -> None:
    long = data(text("x" * 1_000_000))
    pieces = [long[start : start + 4096] for start in range(0, len(long), 4096)]
    read = answer(data(ROLE), *pieces, *end(1000), requested=1000)
    assert (read.failure, len(times(read))) == (None, 1)


DECORATIONS = st.lists(st.sampled_from(NOTHING), max_size=2).map(b"".join)


@given(
    st.sampled_from(["chat_stream", "chat_stream_contusage", "eagle3_chat_stream_contusage", "completions_stream"]),
    st.lists(DECORATIONS, min_size=11, max_size=11),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
    st.lists(st.integers(1, 400), max_size=30),
)
def test_any_decoration_and_any_split_of_bytes_over_reads_says_the_same(
    name: str, decorations: list[bytes], ending: bytes, mark: bool, sizes: list[int]
) -> None:
    blocks = captured(name).split(b"\n\n")
    body = b"\xef\xbb\xbf" if mark else b""
    for block, decoration in zip(blocks, decorations, strict=False):
        body += decoration + block + b"\n\n"
    body = body.replace(b"\n", ending)
    cuts = [0, *accumulate(sizes), len(body)]
    plain, read = answer(captured(name)), answer(*(body[start:stop] for start, stop in pairwise(cuts) if start < stop))
    assert read == plain


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10), st.data())
def test_the_same_tokens_in_other_chunks_have_the_same_total(tokens: list[int], draw: st.DataObject) -> None:
    # vllm#37666, vllm#50677
    total = sum(tokens)
    cuts = draw.draw(st.lists(st.integers(1, total), max_size=10).map(lambda inner: sorted({*inner, total})))
    for totals in (list(accumulate(tokens)), cuts):
        read = answer(data(ROLE), *(data(text(tokens=count)) for count in totals), *end(total), requested=total)
        assert (read.failure, read.output_tokens) == (None, total)
        assert counts(read) == [after - before for before, after in pairwise([0, *totals])]


# Counts of chunks.


def test_tokens_without_text_behind_the_last_text_came_with_the_finish_chunk() -> None:
    read = answer(data(ROLE), data(text(tokens=1)), data(text(tokens=5)), *end(8), gap_s=1.0)
    assert (counts(read), times(read)) == ([1, 4, 3], [2.0, 3.0, 4.0])


def test_a_token_without_text_between_texts_is_in_the_chunk_that_counted_it() -> None:
    read = answer(data(text(tokens=2)), data(text("", tokens=5)), data(text(tokens=8)), *end(8), gap_s=1.0)
    assert (counts(read), times(read)) == ([2, 3, 3], [1.0, 2.0, 3.0])


def test_a_count_before_the_first_text_belongs_to_the_first_text() -> None:
    read = answer(data(delta(0, role="assistant")), data(text("", tokens=2)), data(text(tokens=8)), *end(8), gap_s=1.0)
    assert (counts(read), times(read)) == ([8], [3.0])


@pytest.mark.parametrize(
    "chunks",
    [
        (text(tokens=2), text()),  # one chunk without a count
        (text(), text(tokens=8)),
        (text(tokens=5), text(tokens=3)),  # a count that falls
        (text(tokens=5), text(tokens=9)),  # more than the last usage
    ],
)
def test_counts_that_do_not_add_up_are_no_counts(chunks: tuple[dict[str, object], ...]) -> None:
    read = answer(data(ROLE), *map(data, chunks), *end(8))
    assert (read.failure, counts(read), read.output_tokens) == (None, None, 8)
    assert len(times(read)) == 2


def test_a_finish_chunk_with_the_only_usage_is_when_the_last_token_came() -> None:
    read = answer(data(ROLE), data(text()), data(text()), data(delta(8, finish="length")), DONE, gap_s=1.0)
    assert (read.failure, read.output_tokens, counts(read)) == (None, 8, None)
    assert times(read) == [2.0, 3.0, 4.0]


def test_a_finish_chunk_with_text_is_a_chunk() -> None:
    read = answer(data(ROLE), data(text()), data(delta(8, content="x", finish="length")), DONE, gap_s=1.0)
    assert (read.failure, times(read)) == (None, [2.0, 3.0])


@pytest.mark.parametrize("value", [True, -1, 1.5, "8", None, [8], 10**400])
def test_a_count_that_is_no_count_is_none(value: object) -> None:
    read = answer(*GOOD[:-2], data({"choices": [], "usage": {"completion_tokens": value}}), DONE)
    assert failure(read) is FailureName.NO_USAGE
    read = answer(*GOOD[:-2], data({"choices": [], "usage": {**usage(8), "prompt_tokens": value}}), DONE)
    assert read.failure is None
    assert read.prompt_tokens is None


def test_a_chunk_without_text_whose_count_has_not_risen_is_no_chunk() -> None:
    read = answer(data(text("x", 3)), data(text("", 3)), data(text("x", 8)), *end(8), gap_s=1.0)
    assert (counts(read), times(read)) == ([3, 5], [1.0, 3.0])


def test_text_whose_count_has_not_risen_is_a_chunk_of_no_token() -> None:
    read = answer(data(text("x", 3)), data(text("x", 3)), data(text("x", 8)), *end(8), gap_s=1.0)
    assert (counts(read), times(read)) == ([3, 0, 5], [1.0, 2.0, 3.0])


def test_of_two_finish_chunks_the_first_is_when_the_last_token_came() -> None:
    finish = data(delta(finish="length"))
    read = answer(data(text("x", 3)), finish, finish, *end(8)[1:], gap_s=1.0)
    assert (counts(read), times(read)) == ([3, 5], [1.0, 2.0])


def test_tokens_without_text_may_come_in_the_read_of_the_last_text() -> None:
    read = answer(data(text("x", 3)) + b"".join(end(8)))
    assert (counts(read), times(read)) == ([3, 5], [1.0, 1.0])


def test_an_answer_may_have_exactly_the_most_bytes() -> None:
    most = ANSWER_BYTES + 8 * ANSWER_BYTES_PER_TOKEN
    good = b"".join(GOOD)
    filled = good + b":" * (most - len(good))
    assert failure(answer(*cut(filled, [1000]))) is None
    read = answer(*cut(filled + b":", [1000]))
    assert failure(read) is FailureName.MALFORMED
    assert read.failure is not None
    assert read.failure.detail == f"more than {most:,} bytes for 8 tokens"


def test_what_comes_behind_a_failure_is_not_looked_at() -> None:
    reader = Reader(8)
    for piece in (GOOD[0], data({"error": "full"}), *GOOD):
        reader.feed(1.0, piece)
    assert (reader.events, reader.tokens) == (2, 0)
    read = reader.close(2.0, ended_clean=True)
    assert (failure(read), read.output_tokens, times(read)) == (FailureName.ERROR_IN_STREAM, None, [])


# What others read wrongly.


def summary_of(read: Answer, *, requested: int) -> Round:
    trace = RequestTrace(
        index=0,
        prompt_id="task",
        sent_s=0.0,
        chunk_times_s=tuple(read.chunk_times_s),
        chunk_tokens=None if read.chunk_tokens is None else tuple(read.chunk_tokens),
        output_tokens=read.output_tokens,
        prompt_tokens=read.prompt_tokens,
        cached_tokens=read.cached_tokens,
        ended_s=max(read.chunk_times_s),
        finish_reason=read.finish_reason,
        failure=read.failure,
    )
    return Round(level=1, index=0, planned_requests=1, requested_tokens=requested, requests=(trace,))


def test_chunks_of_three_tokens_every_30_ms_are_ten_milliseconds_a_token() -> None:  # sglang#12064
    chunks = [data(text(tokens=1 + 3 * place)) for place in range(11)]
    times = [0.05, *(0.10 + 0.03 * place for place in range(11)), 0.5, 0.5, 0.5]
    read = answer(data(ROLE), *chunks, *end(31), requested=31, times=times)
    assert (read.failure, read.output_tokens, counts(read)) == (None, 31, [1] + [3] * 10)
    summary = summarize(summary_of(read, requested=31))
    assert summary is not None
    assert summary.tpot_s is not None
    assert summary.tpot_s.p50 == pytest.approx(0.010)


def test_all_tokens_in_one_chunk_have_a_throughput_and_no_time_between_tokens() -> None:  # sglang#36272
    read = answer(data(ROLE), data(text("x" * 900, tokens=200)), *end(200), requested=200, gap_s=1.0)
    assert (read.failure, read.output_tokens, counts(read)) == (None, 200, [200])
    summary = summarize(summary_of(read, requested=200))
    assert summary is not None
    assert summary.output_throughput == pytest.approx(200 / 2.0)
    assert summary.tpot_s is None
    assert summary.itl_s is None


def test_all_tokens_in_one_chunk_without_counts_have_a_throughput_and_no_time_between_tokens() -> None:
    read = answer(data(ROLE), data(text("x" * 900)), *end(200), requested=200, times=[0.5, 2.0, 2.001, 2.5, 2.5])
    assert (read.failure, read.output_tokens, counts(read)) == (None, 200, None)
    summary = summarize(summary_of(read, requested=200))
    assert summary is not None
    assert summary.output_throughput == pytest.approx(200 / 2.001)
    assert (summary.tpot_s, summary.itl_s) == (None, None)


def hushed(*, counted: bool, tokens: int = 33, gap_s: float = 0.05) -> Answer:
    """A word, then a token without text every `gap_s`; the stream says so only in its last usage, or at every token."""
    chunks = [data(text("Hello", 1 if counted else None))]
    chunks += [data(text("", place if counted else None)) for place in range(2, tokens + 1)]
    ends_s = gap_s * (len(chunks) - 1)
    times = [*(gap_s * place for place in range(len(chunks))), ends_s + 0.001, ends_s + 2.0, ends_s + 2.0]
    return answer(*chunks, *end(tokens), requested=tokens, times=[1.0 + time_s for time_s in times])


@pytest.mark.parametrize("counted", [True, False])
def test_tokens_without_text_are_never_faster_than_they_came(counted: bool) -> None:
    read = hushed(counted=counted)
    assert read.failure is None
    summary = summarize(summary_of(read, requested=33))
    assert summary is not None
    assert summary.window_s == pytest.approx(1.0 + 32 * 0.05, abs=0.002)


def test_usage_and_done_are_never_when_a_token_came() -> None:
    late = answer(data(text()), *end(8), times=[1.0, 2.0, 30.0, 60.0])
    assert times(late) == [1.0, 2.0]
    no_finish_of_its_own = answer(data(delta(content="x", finish="length")), *end(8)[1:], times=[1.0, 30.0, 60.0])
    assert (no_finish_of_its_own.failure, times(no_finish_of_its_own)) == (None, [1.0])


@pytest.mark.parametrize("tail", [(DONE,), (), end(512)])
def test_an_error_within_a_stream_is_a_failure_whatever_follows(tail: tuple[bytes, ...]) -> None:
    # vllm#57519, inference-perf#713
    read = answer(data(text()), data(text()), data({"error": {"message": "CUDA error", "code": 500}}), *tail)
    assert failure(read) is FailureName.ERROR_IN_STREAM
    assert read.failure is not None
    assert read.failure.detail == "CUDA error"
    assert read.output_tokens is None


def test_three_chunks_and_a_stop_without_usage_are_neither_512_tokens_nor_3() -> None:
    # llama-benchy#11, vllm-swift#19
    read = answer(data(text()), data(text()), data(text()), *end(None, "stop"), requested=512)
    assert failure(read) is FailureName.NO_USAGE
    assert (read.output_tokens, counts(read)) == (None, None)


def test_an_answer_that_stopped_early_is_of_the_wrong_length() -> None:  # guidellm#982
    read = answer(data(ROLE), data(text()), *end(17, "stop"), requested=256)
    assert failure(read) is FailureName.WRONG_LENGTH
    assert read.failure is not None
    assert read.failure.detail == 'asked for 256 tokens, got 17 with finish_reason "stop"'


def test_a_thousand_exclamation_marks_are_the_thousand_tokens_that_usage_says() -> None:  # vllm#45739
    read = answer(data(ROLE), *(data(text("!")) for _ in range(1000)), *end(1000), requested=1000)
    assert (read.failure, read.output_tokens) == (None, 1000)


# Every failure by its name.


@pytest.mark.parametrize(
    ("pieces", "clean", "expected", "detail"),
    [
        ((), True, FailureName.TRUNCATED, "the body ended"),
        ((b"",), True, FailureName.TRUNCATED, "the body ended"),
        (GOOD[:3], True, FailureName.TRUNCATED, "the body ended without finish_reason"),
        (GOOD[:3], False, FailureName.TRUNCATED, "the connection broke"),
        ((*GOOD[:3], GOOD[1][:30]), False, FailureName.TRUNCATED, "the connection broke within an event"),
        (GOOD[:4], False, FailureName.TRUNCATED, "the connection broke"),
        (GOOD, False, FailureName.TRUNCATED, "the connection broke"),
        ((*GOOD[:3], DONE), True, FailureName.TRUNCATED, "finish_reason"),
        ((*GOOD[:3], GOOD[4], DONE), True, FailureName.TRUNCATED, "finish_reason"),
        ((*GOOD[:3], GOOD[1][:30]), True, FailureName.MALFORMED, 'no JSON object: {"choices"'),
        ((GOOD[0], data(b"[1]")), True, FailureName.MALFORMED, "no JSON object: [1]"),
        ((GOOD[0], data(b"null")), True, FailureName.MALFORMED, "no JSON object: null"),
        ((GOOD[0], data(b"[" * 10_000)), True, FailureName.MALFORMED, "no JSON object"),
        ((GOOD[0], data(b"9" * 5000)), True, FailureName.MALFORMED, "no JSON object"),
        ((b'{"choices": []}',), True, FailureName.TRUNCATED, "finish_reason"),
        ((b"<html>502 Bad Gateway</html>",), True, FailureName.TRUNCATED, "finish_reason"),
        ((data(ROLE), *end(8)), True, FailureName.MALFORMED, "8 tokens by usage, but no text"),
        (GOOD[:-2], True, FailureName.NO_USAGE, "no usage"),
        ((*GOOD[:3], *end(7)), True, FailureName.WRONG_LENGTH, "asked for 8 tokens, got 7"),
        ((*GOOD[:3], *end(9)), True, FailureName.WRONG_LENGTH, "asked for 8 tokens, got 9"),
        ((*GOOD[:3], *end(0)), True, FailureName.WRONG_LENGTH, "got 0"),
        ((*GOOD[:3], *end(8, "stop")), True, FailureName.WRONG_LENGTH, 'finish_reason "stop"'),
        ((*GOOD[:3], *end(8, "x" * 900)), True, FailureName.WRONG_LENGTH, "x" * 40 + '"'),
        ((*GOOD[:3], *end(8, "abort")), True, FailureName.ABORTED, "abort"),
        ((*GOOD[:3], *end(None, "abort")), True, FailureName.ABORTED, "abort"),
        ((data({"error": "out of memory"}),), True, FailureName.ERROR_IN_STREAM, "out of memory"),
        ((data({"error": {}}), *GOOD), True, FailureName.ERROR_IN_STREAM, '{"error": {}}'),
        ((data({"object": "error", "message": "full"}),), True, FailureName.ERROR_IN_STREAM, "full"),
        ((b'event: error\ndata: {"message": "full"}\n\n',), True, FailureName.ERROR_IN_STREAM, "full"),
        ((b"event: error\n" + GOOD[1], *GOOD), True, FailureName.ERROR_IN_STREAM, "choices"),
        ((*GOOD, data({"error": {"message": "late"}})), True, FailureName.ERROR_IN_STREAM, "late"),
        ((*GOOD[:3], data({"error": {"message": "last"}}).rstrip()), False, FailureName.ERROR_IN_STREAM, "last"),
        (
            (GOOD[1], data({"choices": [{"index": 0, "delta": {}, "error": {"message": "lost"}}]}), *GOOD[2:]),
            True,
            FailureName.ERROR_IN_STREAM,
            "lost",
        ),
        ((GOOD[1], data({"code": 500, "message": "bare"}), *GOOD[2:]), True, FailureName.ERROR_IN_STREAM, "bare"),
        ((GOOD[1], data({"errors": [{"x": "listed"}]}), *GOOD[2:]), True, FailureName.ERROR_IN_STREAM, "listed"),
        ((*GOOD[:3], *end(8, "abort")[:1], *GOOD[3:]), True, FailureName.MALFORMED, '"abort", and then "length"'),
        ((*GOOD[:4], *end(8, "stop")), True, FailureName.MALFORMED, '"length", and then "stop"'),
        ((data({"error": {"code": 500}}),), True, FailureName.ERROR_IN_STREAM, '{"code": 500}'),
        ((data({"error": {"code": 10**40}}),), True, FailureName.ERROR_IN_STREAM, "0" * 40),
    ],
)
def test_an_answer_that_is_not_good_fails_by_name(
    pieces: tuple[bytes, ...], clean: bool, expected: FailureName, detail: str
) -> None:
    read = answer(*pieces, clean=clean)
    assert failure(read) is expected
    assert read.failure is not None
    assert detail in read.failure.detail


def test_an_endless_finish_reason_is_not_kept() -> None:
    read = answer(*GOOD[:3], *end(8, "x" * 9000))
    assert len(read.finish_reason or "") == MAX_DETAIL
    twice = answer(*GOOD[:3], data(delta(finish="x" * 9000)), *end(8, "x" * 9000))
    assert failure(twice) is FailureName.WRONG_LENGTH


@pytest.mark.parametrize("piece", [data({"error": "e" * 9000}), data({"error": ["e" * 9000]}), data(b"e" * 9000)])
def test_what_a_failure_shows_is_bounded(piece: bytes) -> None:
    read = answer(piece)
    assert read.failure is not None
    assert len(read.failure.detail) <= MAX_DETAIL + 50


# Nothing crashes it, nothing invents a token.


def holds_together(read: Answer, reads: Sequence[tuple[float, bytes]], requested: int) -> None:
    assert times(read) == sorted(times(read))
    assert set(read.chunk_times_s) <= {time_s for time_s, _ in reads}
    if read.chunk_tokens is not None:
        assert len(read.chunk_tokens) == len(times(read))
        assert all(count >= 0 for count in read.chunk_tokens)
        assert sum(read.chunk_tokens) == read.output_tokens
    if read.failure is None:
        assert read.output_tokens == requested
        assert read.finish_reason == "length"
        assert read.chunk_times_s


@given(st.lists(st.binary(max_size=60)), st.booleans())
@example([b"data: \xff\xfe\n\n"], True)
def test_any_bytes_are_read_without_a_token(pieces: list[bytes], clean: bool) -> None:
    reads = [(float(place), piece) for place, piece in enumerate(pieces)]
    read = read_answer(reads, requested_tokens=8, ended_clean=clean)
    holds_together(read, reads, 8)
    assert read.failure is not None
    if b"completion_tokens" not in b"".join(pieces):
        assert read.output_tokens is None


@given(st.binary(), st.integers(0, 2000), st.integers(0, 50), st.integers(1, 300))
def test_a_stream_damaged_anywhere_is_read(noise: bytes, start: int, length: int, size: int) -> None:
    body = captured("eagle3_chat_stream_contusage")
    body = body[:start] + noise + body[start + length :]
    reads = [(float(place), body[place : place + size]) for place in range(0, len(body), size)]
    holds_together(read_answer(reads, requested_tokens=6, ended_clean=True), reads, 6)


COUNTS = st.one_of(st.integers(0, 9), st.integers(), st.none(), st.booleans(), st.floats(), st.just("8"))
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
USAGES = st.one_of(ODD, st.fixed_dictionaries({"completion_tokens": COUNTS}, optional={"prompt_tokens": COUNTS}))
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "delta": ODD | st.fixed_dictionaries({"content": st.sampled_from(["x", "", None]) | ODD}),
        "text": ODD,
        "finish_reason": st.sampled_from([None, "length", "stop", "abort"]) | ODD,
    },
)
CHUNKS = st.one_of(
    ODD,
    st.fixed_dictionaries(
        {}, optional={"choices": ODD | st.lists(CHOICES | ODD, max_size=2), "usage": USAGES, "object": ODD}
    ),
)


@given(st.lists(CHUNKS, max_size=8), st.booleans())
def test_tokens_come_from_usage_and_from_nowhere_else(chunks: list[object], clean: bool) -> None:
    reads = [(float(place), data(chunk)) for place, chunk in enumerate(chunks)]
    read = read_answer(reads, requested_tokens=8, ended_clean=clean)
    holds_together(read, reads, 8)
    said = [chunk["usage"] for chunk in chunks if isinstance(chunk, dict) and isinstance(chunk.get("usage"), dict)]
    counted = [each.get("completion_tokens") for each in said]
    assert read.output_tokens is None or read.output_tokens in counted


@given(
    st.lists(st.tuples(st.sampled_from(["x", ""]), st.integers(0, 8) | st.none()), max_size=8),
    st.lists(st.integers(0, 8), max_size=2),
    st.integers(0, 8),
)
def test_a_likely_stream_holds_together(
    chunks: list[tuple[str, int | None]], totals: list[int], finish_place: int
) -> None:
    parts = [data(text(content, tokens)) for content, tokens in chunks]
    parts.insert(finish_place, data(delta(finish="length")))
    parts += [data({"choices": [], "usage": usage(total)}) for total in totals]
    reads = [(float(place), part) for place, part in enumerate((*parts, DONE))]
    holds_together(read_answer(reads, requested_tokens=8, ended_clean=True), reads, 8)


# An event of the usual shape is decoded fast, any other is read slowly; whichever it is, it says the same. Behind a
# comment line every event is read slowly.


def fast(text: bytes) -> bytes:
    return b"data: " + text + b"\n\n"


def slow(text: bytes) -> bytes:
    return b":\ndata: " + text + b"\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    answer: Answer
    events: int
    tokens: int
    heard_s: float


def said(pieces: Sequence[bytes], *, clean: bool = True) -> Said:
    """Everything that a reader tells of these pieces, one a second."""
    reader = Reader(8)
    for place, piece in enumerate(pieces, start=1):
        reader.feed(float(place), piece)
    read = reader.close(float(len(pieces) + 1), ended_clean=clean)
    return Said(answer=read, events=reader.events, tokens=reader.tokens, heard_s=reader.heard_s)


#: Values that JSON readers differ about: of the right kind or nearly so, and at the end such as are no JSON.
NUMBERS = (
    b"0",
    b"3",
    b"8",
    b"-0",
    b"-1",
    b"8.0",
    b"8e0",
    b"80e-1",
    b"1.5",
    b"1e400",
    b"NaN",
    b"Infinity",
    b"-Infinity",
)
LARGE = tuple(str(value).encode() for value in (MAX_COUNT, MAX_COUNT + 1, f"{MAX_COUNT}.0", 2**63, 2**64, 10**400))
STRINGS = (
    *(b'""', b'"x"', b'"length"', b'"error"', b'"8"', b'"\\u0000"', b'"\\/"', b'"\x7f"', '"\u2028"'.encode()),
    *(
        b'"\\ud800"',
        b'"\\udc00x"',
        b'"\\ud83d\\ude00"',
        b'"\\ud83d\\u0041"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xf0\x9f"',
    ),
)
OTHERS = (b"null", b"true", b"false", b"9" * 5000, b"[" * 200 + b"]" * 200, b'{"usage":' * 200 + b"{}" + b"}" * 200)
NO_JSON = (
    *(
        b"",
        b"nul",
        b"08",
        b"8.",
        b".8",
        b"+8",
        b"0x8",
        b"8_0",
        b"-",
        b"8e",
        b"[",
        b"[8",
        b"[8,]",
        b"{",
        b'{"a"}',
        b"{a:8}",
    ),
    *(
        b'"x',
        b'"\\u12"',
        b'"\\q"',
        b'"\\"',
        b"'x'",
        b'"\x01"',
        b'"\x00"',
        b'"\t"',
        b"\xff",
        b"\x0b8",
        MARK + b"8",
        b"\xd9\xa8",
    ),
)


def mostly(usual: st.SearchStrategy[bytes], *odd: st.SearchStrategy[bytes], share: int = 8) -> st.SearchStrategy[bytes]:
    """As `one_of`, which takes a strategy that is given twice for one."""
    return st.sampled_from([*[usual] * share, *odd]).flatmap(lambda chosen: chosen)


SCALARS = mostly(
    st.sampled_from((*NUMBERS, *LARGE, *STRINGS, *OTHERS)),
    st.integers().map(lambda value: str(value).encode()),
    st.floats().map(lambda value: repr(value).encode()),
    st.text(max_size=4).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(NO_JSON),
    share=12,
)
#: Around any token of JSON. Raw line ends would end the line, and are tried where streams are.
SPACES = mostly(st.just(b""), st.sampled_from((b" ", b"  ", b"\t")), st.sampled_from((b" ", b"\x0c", b",")), share=20)


def listed(values: st.SearchStrategy[bytes], least: int = 0) -> st.SearchStrategy[bytes]:
    lists = st.lists(values, min_size=least, max_size=2)
    return st.tuples(lists, SPACES).map(lambda made: b"[" + b",".join(made[0]) + made[1] + b"]")


Field = tuple[bytes, st.SearchStrategy[bytes]]


def member(field: Field) -> st.SearchStrategy[bytes]:
    name, value = field
    return st.tuples(st.just(b'"' + name + b'":'), SPACES, value, SPACES).map(b"".join)


def members(*usual: Field, others: Sequence[Field] = ()) -> st.SearchStrategy[bytes]:
    """Objects that mostly have the usual fields; in any order, with others, one or the other missing or there twice."""
    them = st.tuples(*(mostly(member(each), st.just(b"")) for each in usual))
    more = st.lists(st.one_of([member(each) for each in (*usual, *others)]), max_size=1)
    fields = st.tuples(them, more).flatmap(
        lambda made: st.permutations([each for part in made for each in part if each])
    )
    return fields.map(lambda made: b"{" + b",".join(made) + b"}")


NAMES = (b"a", b"error", b"message", b"usage", b"\xff", b"\\ud800")
ANYTHING = st.recursive(
    SCALARS, lambda inner: listed(inner) | members(others=[(name, inner) for name in NAMES]), max_leaves=3
)


def usually(*values: bytes) -> st.SearchStrategy[bytes]:
    return mostly(st.sampled_from(values), st.just(b"null"), ANYTHING, share=12)


COUNT_TEXTS = usually(b"0", b"3", b"5", b"8")
CONTENT_TEXTS = usually(b'""', b'"x"', b'"x"', '"\u65e5"'.encode())
ERROR_TEXTS = mostly(st.just(b"null"), ANYTHING, share=1)
DETAILS = members((b"cached_tokens", COUNT_TEXTS), others=[(b"audio_tokens", ANYTHING)])
USAGE_TEXTS = members(
    (b"completion_tokens", COUNT_TEXTS),
    (b"prompt_tokens", COUNT_TEXTS),
    others=[
        (b"prompt_tokens_details", mostly(DETAILS, ANYTHING, share=4)),
        (b"completion\\u005ftokens", COUNT_TEXTS),
        (b"reasoning_tokens", ANYTHING),
    ],
)
DELTA_TEXTS = members(
    (b"content", CONTENT_TEXTS),
    others=[(b"reasoning_content", CONTENT_TEXTS), (b"reasoning", CONTENT_TEXTS), (b"role", ANYTHING)],
)
CHOICE_TEXTS = members(
    (b"delta", mostly(DELTA_TEXTS, ANYTHING)),
    (b"finish_reason", mostly(st.just(b"null"), usually(b'"length"', b'"length"', b'"stop"', b'"abort"'), share=2)),
    others=[(b"text", CONTENT_TEXTS), (b"error", ERROR_TEXTS), (b"index", ANYTHING), (b"logprobs", ANYTHING)],
)
CHUNK_TEXTS = st.tuples(
    SPACES,
    members(
        (b"choices", mostly(listed(mostly(CHOICE_TEXTS, ANYTHING), least=1), st.just(b"[]"), ANYTHING)),
        (b"usage", mostly(USAGE_TEXTS, st.just(b"null"), ANYTHING)),
        others=[
            (b"object", usually(b'"chat.completion.chunk"', b'"error"')),
            (b"error", ERROR_TEXTS),
            (b"message", ANYTHING),
            (b"errors", ANYTHING),
            (b"created", ANYTHING),
        ],
    ),
    SPACES,
).map(b"".join)


@given(st.lists(CHUNK_TEXTS | ANYTHING, min_size=1, max_size=4), st.booleans())
@example([b'{"choices":[],"created":' + b"9" * 5000 + b"}"], True)
@example([b'{"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":8.0}}'], True)
@example([b'{"choices":[],"error":{"a":1},"error":null}'], True)
@example([b'{"choices":[],"object":"error","message":"full"}'], True)
@example([b'{"choices":[{"delta":{"content":"x"}}],"error":{"message":"full"}}'], True)
@example([b'{"choices":[],"message":"full"}'], True)
@example([b'{"choices":[{"delta":{"content":"x"},"finish_reason":"length"},{"finish_reason":"stop"}]}'], True)
@example([b'{"choices":[],"usage":{"completion_tokens":%d}}' % MAX_COUNT], True)
@example([b'{"choices":[{"error":{"message":"lost"}}]}'], True)
@example([b'{"choices":[{"finish_reason":"abort"},{"error":{}}]}'], True)
def test_what_is_read_fast_says_what_it_says_read_slowly(texts: list[bytes], clean: bool) -> None:
    assert said([fast(each) for each in texts], clean=clean) == said([slow(each) for each in texts], clean=clean)


@given(
    st.sampled_from(("chat_stream_contusage", "eagle3_chat_stream_contusage", "completions_stream", "abort_stream")),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 400), st.integers(0, 3), st.binary(max_size=3)), max_size=3),
)
def test_what_is_damaged_and_read_fast_says_what_it_says_read_slowly(
    name: str, damages: list[tuple[int, int, int, bytes]]
) -> None:
    texts = [block.removeprefix(b"data: ") for block in captured(name).split(b"\n\n") if block]
    for block, start, length, noise in damages:
        text = texts[block % len(texts)]
        texts[block % len(texts)] = text[:start] + noise.translate(None, b"\r\n") + text[start + length :]
    assert said([fast(each) for each in texts]) == said([slow(each) for each in texts])


@given(st.lists(CHUNK_TEXTS | SCALARS, min_size=1, max_size=6))
def test_no_json_of_any_shape_makes_a_token_that_no_usage_holds(texts: list[bytes]) -> None:
    reads = [(float(place), fast(text)) for place, text in enumerate(texts)]
    read = read_answer(reads, requested_tokens=8, ended_clean=True)
    holds_together(read, reads, 8)
    if not any(b"completion_tokens" in text or b"completion\\u005ftokens" in text for text in texts):
        assert read.output_tokens is None


def test_an_event_of_the_usual_shape_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read slowly is read right, too: only a count tells that it cost a load its speed."""
    slowly: list[str] = []
    monkeypatch.setattr("json.loads", lambda read, **_: slowly.append(read))
    for name in ("chat_stream", "chat_stream_contusage", "eagle3_chat_stream_contusage", "completions_stream"):
        body = captured(name)
        for size in (1, 100, len(body)):
            answer(*(body[start : start + size] for start in range(0, len(body), size)))
    assert slowly == []


@pytest.mark.parametrize("depth", [300, 100_000])
def test_nothing_is_nested_too_deeply_to_be_read_or_refused(depth: int) -> None:
    for beside in (b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        reads = [(1.0, data(text())), (2.0, data(b'{"choices":[],"more":' + beside + b"}"))]
        read = read_answer(reads, requested_tokens=1000, ended_clean=True)
        whole = depth == 300 and beside.endswith((b"]", b"}"))
        assert failure(read) is (FailureName.TRUNCATED if whole else FailureName.MALFORMED)


def test_what_is_nested_too_deeply_to_be_shown_is_an_error_all_the_same() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert message_of(deep) == "an error that is nested too deeply to be shown"
    for depth in range(900, 1100):  # about as deep as Python reads
        nested = b"[" * depth + b"]" * depth
        read = answer(data(b'{"error":' + nested + b"}"))
        assert failure(read) in (FailureName.ERROR_IN_STREAM, FailureName.MALFORMED)
        assert refusal(b'{"error":{},"more":' + nested + b"}")


# Bytes, whatever they are, and however they are cut.


def by_the_book(body: bytes) -> list[tuple[str, str]]:
    """Type and data of every event, line by line as the HTML standard has it; an event that the end cuts off is one."""
    found: list[tuple[str, str]] = []
    kind, lines = "", list[bytes]()
    for line in (*re.split(rb"\r\n|\r|\n", body.removeprefix(MARK)), b""):
        if not line:
            if lines:
                found.append((kind, b"\n".join(lines).decode(errors="replace")))
            kind, lines = "", []
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            kind = value.decode(errors="replace")
        elif name == b"data":
            lines.append(value)
    return found


SCRAPS = st.one_of(
    st.sampled_from(
        (b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"data", b": ", b":", b" ", b"event: error", b"id")
    ),
    st.sampled_from(
        (b"data: ", b"data:", b"Data: ", b": keep-alive\n\n", b"retry: 1\n", MARK, b"\xef", b"\xbb", b"\xbf", b"[DONE]")
    ),
    st.sampled_from((*GOOD, *(piece.replace(b"\n", b"\r\n") for piece in GOOD), *(piece[6:] for piece in GOOD))),
    st.sampled_from(
        (fast(b'{"completion_tokens":77,"choices":[]}'), fast(b'{"choices":[{"usage":{"completion_tokens":77}}]}'))
    ),
    st.sampled_from(
        (data(text('"usage":{"completion_tokens":77}')), data(delta(reasoning="hm")), data({"usage": usage(5)}))
    ),
    st.binary(max_size=4),
    CHUNK_TEXTS.map(fast),
)
SCRAP_BODIES = st.lists(SCRAPS, max_size=12).map(b"".join)


def cut(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The body in pieces of these sizes, again and again."""
    pieces, start = list[bytes](), 0
    for size in cycle(sizes):
        if start >= len(body):
            return pieces
        pieces.append(body[start : start + size])
        start += size
    return pieces


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@given(SCRAP_BODIES, SIZES)
@example(b"\xef\xbbdata: a\n\n", [1])
@example(MARK + MARK + b"data: a\n\n", [1, 0])
@example(b"data: a\r\n\r\ndata: b\r\r\ndata: c\n\r", [3])
def test_any_bytes_in_any_pieces_are_the_events_that_the_standard_says(body: bytes, sizes: list[int]) -> None:
    reads = [(1.0, piece) for piece in cut(body, sizes)] or [(1.0, b"")]
    assert [(kind, said) for _, kind, said in events(reads)] == by_the_book(body)


@given(SCRAP_BODIES, SIZES, st.booleans())
def test_any_bytes_in_any_pieces_say_the_same(body: bytes, sizes: list[int], clean: bool) -> None:
    pieces = cut(body, sizes)
    at_once = read_answer([(1.0, body)], requested_tokens=8, ended_clean=clean)
    reads = [(1.0, piece) for piece in pieces]
    assert read_answer(reads or [(1.0, b"")], requested_tokens=8, ended_clean=clean) == at_once
    holds_together(at_once, [(1.0, body)], 8)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_byte_order_mark_is_a_mark_wherever_it_is_cut_and_only_at_the_beginning(size: int) -> None:
    body = MARK + b"".join(GOOD)
    plain = said([b"".join(GOOD)]).answer
    assert answer(*cut(body, [size])) == answer(*cut(body, [size, 0])) == plain
    twice = data({"error": "lost"})
    assert failure(answer(*cut(MARK + MARK + twice + b"".join(GOOD), [size]))) is None  # of a field that nobody knows
    assert failure(answer(*cut(MARK + twice + b"".join(GOOD), [size]))) is FailureName.ERROR_IN_STREAM


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_wherever_a_good_answer_is_cut_off_it_is_good_only_if_all_was_said(size: int) -> None:
    body = b"".join(GOOD)
    told = len(b"".join(GOOD[:5])) - 2  # the usage; its blank line may be missing
    for length in range(len(body) + 1):
        pieces = cut(body[:length], [size])
        assert failure(answer(*pieces, clean=False)) is not None
        whole = answer(*pieces)
        # Of `[DONE]` half is no JSON. A line that has no colon yet, or no data, says nothing.
        half_done = told + 2 + len(b"data: ") < length < told + 2 + len(b"data: [DONE]")
        assert (whole.failure is None) is (length >= told and not half_done)
        assert whole.output_tokens == (8 if length >= told else None)


#: Seconds of the processor's: several times what linear work takes. Work on all that came before, with every piece,
#: would take several times as much.
WORK_S = 20.0


def read_within_bounds(pieces: Iterable[bytes]) -> Answer:
    reader, began_s = Reader(1000), time.process_time()
    for place, piece in enumerate(pieces):
        reader.feed(1.0, piece)
        if place % 1024 == 0:
            assert time.process_time() - began_s < WORK_S
    read = reader.close(1.0, ended_clean=True)
    assert time.process_time() - began_s < WORK_S
    return read


LONG = 1024 * 1024
LONG_EVENTS = {
    "a line": data(text("x" * LONG)),
    "lines": b'data: {"choices": [{"delta":\n' + b"data: \n" * (LONG // 7) + b'data: {"content": "x"}}]}\n\n',
    "a number": data(b'{"choices": [{"delta": {"content": "x"}}], "created": ' + b"9" * LONG + b"}"),
    "a number that is no count": data(b'{"choices": [{"delta": {"content": "x"}}], "usage": ' + b"9" * LONG + b"}"),
    "comments": b": keep-alive\n\n" * (LONG // 14) + data(text()),
    "blank lines": b"\n" * LONG + data(text()),
    "a comment": b":" + b"x" * LONG + b"\n" + data(text()),
}


@pytest.mark.parametrize("name", LONG_EVENTS)
@pytest.mark.parametrize("size", [64, LONG])
def test_however_long_an_event_is_each_byte_is_worked_on_a_few_times(name: str, size: int) -> None:
    body = LONG_EVENTS[name]
    ends = end(1000)
    read = read_within_bounds([data(ROLE), *cut(body, [size]), *ends])
    assert (read.failure, len(times(read)), read.output_tokens) == (None, 1, 1000)


def test_a_line_that_comes_a_byte_at_a_time_is_searched_once() -> None:
    body = data(text("x" * 2 * LONG))
    read = read_within_bounds(bytes([each]) for each in b"".join((body, *end(1000))))
    assert (read.failure, len(times(read)), read.output_tokens) == (None, 1, 1000)
