"""The trace of a round: what is read is what was written, to the last bit; whatever else lies there is a sentence."""

import json
import os
import re
import shutil
import zipfile
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from perf import trace_file
from perf.files import FileError
from perf.metrics import summarize
from perf.trace import ClientHealth, Counters, Failure, FailureName, RequestTrace, Round
from tests.unit.test_long_life import disk_of
from tests.unit.test_metrics_properties import rounds

ROOT = Path(__file__).parents[2]

#: No limit on the time of one example: the machine that runs the tests may be busy with anything.
unhurried = settings(deadline=None)

Arrays = Mapping[str, NDArray[np.generic]]

GOOD = RequestTrace(
    index=0,
    prompt_id="p0",
    sent_s=0.001,
    chunk_times_s=(0.1, 0.2, 0.2),
    chunk_tokens=(1, 0, 3),
    output_tokens=4,
    prompt_tokens=12,
    cached_tokens=None,
    ended_s=0.25,
    finish_reason="length",
)
UNCOUNTED = replace(GOOD, index=1, prompt_id="Größe \U0001f980 \x00", chunk_times_s=(1 / 3,), chunk_tokens=None)
FAILED = replace(
    GOOD,
    index=2,
    chunk_times_s=(),
    chunk_tokens=(),
    output_tokens=None,
    prompt_tokens=None,
    finish_reason=None,
    failure=Failure(name=FailureName.HTTP_ERROR, status=500, detail='KV cache "pool" is full\n'),
)
HEALTH = ClientHealth(
    processes=1,
    reads=7,
    lag_p50_s=1e-5,
    lag_p99_s=1e-4,
    lag_max_s=None,
    cpu_share=0.25,
    run_queue_share=None,
    away_share=0.0,
    away_max_s=0.0,
    turnaround_share=0.01,
)
ROUND = Round(
    level=2, index=1, planned_requests=3, requested_tokens=4, requests=(GOOD, UNCOUNTED, FAILED), client=HEALTH
)
COUNTED = Counters(generated=8, verify_steps=5)


def tupled(measured: Round) -> Round:
    """The round with its chunks in tuples, which may be compared."""
    return replace(
        measured,
        requests=tuple(
            replace(
                each,
                chunk_times_s=tuple(each.chunk_times_s),
                chunk_tokens=None if each.chunk_tokens is None else tuple(each.chunk_tokens),
            )
            for each in measured.requests
        ),
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return trace_file.path(tmp_path, "c002", ROUND.index)


def test_a_round_lies_in_the_folder_of_its_launch_under_its_level_and_its_number(place: Path, tmp_path: Path) -> None:
    assert place == tmp_path / "traces" / "c002-2.npz"


def test_what_is_read_is_what_was_written(place: Path) -> None:
    trace_file.write(place, ROUND, COUNTED)
    trace = trace_file.read(place, 2, 1)
    assert trace.counted == COUNTED
    assert tupled(trace.round) == ROUND
    assert [each.name for each in place.parent.iterdir()] == [place.name]


def test_arrays_of_the_client_are_written_as_tuples_are_and_come_back_as_arrays(place: Path) -> None:
    packed = replace(GOOD, chunk_times_s=array("d", GOOD.chunk_times_s), chunk_tokens=array("q", (1, 0, 3)))
    trace_file.write(place, replace(ROUND, requests=(GOOD,)), None)
    of_tuples = place.read_bytes()
    trace_file.write(place, replace(ROUND, requests=(packed,)), None)
    assert place.read_bytes() == of_tuples
    assert trace_file.read(place, 2, 1).round.requests == (packed,)


def test_a_round_without_requests_and_one_without_chunks_are_kept(place: Path) -> None:
    for requests in ((), (FAILED,)):
        empty = replace(ROUND, requests=requests, client=None)
        trace_file.write(place, empty, None)
        trace = trace_file.read(place, 2, 1)
        assert (tupled(trace.round), trace.counted) == (empty, None)


@unhurried
@given(rounds, st.none() | st.integers(0, 10**6))
def test_the_numbers_of_what_is_read_are_those_of_what_was_measured(
    tmp_path_factory: pytest.TempPathFactory, measured: Round, steps: int | None
) -> None:
    place = trace_file.path(tmp_path_factory.mktemp("launch"), "c", measured.index)
    trace_file.write(place, measured, Counters(verify_steps=steps))
    trace = trace_file.read(place, measured.level, measured.index)
    assert trace.counted is not None
    assert summarize(trace.round, verify_steps=trace.counted.verify_steps) == summarize(measured, verify_steps=steps)
    assert tupled(trace.round) == measured


@unhurried
@given(st.lists(st.floats(-1e9, 1e9).filter(lambda time_s: time_s == 0 or abs(time_s) > 1e-100)))
def test_every_bit_of_a_time_is_kept(tmp_path_factory: pytest.TempPathFactory, times: list[float]) -> None:
    place = trace_file.path(tmp_path_factory.mktemp("launch"), "c", 1)
    request = replace(GOOD, chunk_times_s=array("d", times), chunk_tokens=array("q", [1234567] * len(times)))
    trace_file.write(place, replace(ROUND, requests=(request,)), None)
    assert trace_file.read(place, 2, 1).round.requests == (request,)


@pytest.mark.parametrize("tokens", [(2**62, 2**62, 2**62, 2**62), (-1, 9), (10**9,)])
def test_tokens_that_no_round_has_are_refused_before_anything_counts_them(place: Path, tokens: tuple[int, ...]) -> None:
    request = replace(GOOD, chunk_times_s=array("d", [1.0] * len(tokens)), chunk_tokens=array("q", tokens))
    trace_file.write(place, replace(ROUND, requests=(request,)), None)
    with pytest.raises(FileError, match="a number of tokens that no request has"):
        trace_file.read(place, 2, 1)


@pytest.mark.parametrize(
    "text", ["{'descr': '|u1', ", "(", "{'descr': '|u1', 'fortran_order': False, 'shape': (True,)}"]
)
def test_the_head_of_an_array_that_is_none_is_a_sentence(place: Path, text: str) -> None:
    trace_file.write(place, ROUND, None)
    with zipfile.ZipFile(place) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    head = text.encode().ljust(118) + b"\n"
    members["chunks.npy"] = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(FileError, match="restore it, or remove it"):
        trace_file.read(place, 2, 1)


def test_the_arrays_are_read_with_numpy_as_the_documents_say(place: Path) -> None:
    trace_file.write(place, ROUND, COUNTED)
    snippet = re.search(r"```python\n(import json.*?)```", (ROOT / "docs" / "files.md").read_text(), flags=re.DOTALL)
    assert snippet
    found: dict[str, object] = {}
    exec(re.sub(r'numpy\.load\(".*?"\)', f"numpy.load({str(place)!r})", snippet[1]), found)
    kept, times, tokens, chunks = found["kept"], found["times"], found["tokens"], found["chunks"]
    assert isinstance(kept, dict)
    assert kept["counted"]["generated"] == 8
    assert kept["round"]["requests"][1]["chunk_tokens"] is None
    assert kept["round"]["requests"][2]["failure"]["status"] == 500
    assert list(times) == [0.1, 0.2, 0.2, 1 / 3]  # type: ignore[call-overload]
    assert list(tokens) == [1, 0, 3]  # type: ignore[call-overload]
    assert list(chunks) == [3, 1, 0]  # type: ignore[call-overload]


@pytest.mark.parametrize("part", [trace_file.Trace, Round, RequestTrace, Counters, ClientHealth, Failure])
def test_every_key_of_a_trace_is_documented(part: type[trace_file.Trace | Round | RequestTrace]) -> None:
    text = (ROOT / "docs" / "files.md").read_text()
    undocumented = [each.name for each in fields(part) if not re.search(rf"`(?:round\.)?{each.name}`", text)]
    assert undocumented == []


def test_a_chunk_takes_a_few_bytes(place: Path) -> None:
    """docs/files.md states how many. Arrivals 80 ms apart, each a little off, in nanoseconds of a clock that runs."""
    luck = np.random.default_rng(20)
    requests = []
    for index in range(50):
        offsets = np.arange(512) * 80_000_000 + luck.integers(0, 2_000_000, 512)
        times = (234_567_123_456_789 + offsets) / 1e9 - 234_567.0
        requests.append(replace(GOOD, index=index, chunk_times_s=tuple(times.tolist()), chunk_tokens=(1,) * 512))
    trace_file.write(place, replace(ROUND, requests=tuple(requests)), COUNTED)
    assert place.stat().st_size / (50 * 512) < 5


# What cannot be written


def test_a_launch_whose_folder_was_removed_is_not_begun_anew(place: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(FileError, match="No such file or directory; nothing was changed"):
        trace_file.write(place, ROUND, COUNTED)
    assert not tmp_path.exists()


def test_a_trace_that_finds_no_room_leaves_nothing(place: Path) -> None:
    with disk_of(100), pytest.raises(FileError, match="cannot be written: File too large; nothing was changed"):
        trace_file.write(place, ROUND, COUNTED)
    assert list(place.parent.iterdir()) == []


def test_a_trace_is_never_written_larger_than_it_is_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_BYTES", 1000)
    with pytest.raises(FileError, match=r"the trace has [\d,]+ bytes, more than is kept; ask for fewer"):
        trace_file.write(place, ROUND, COUNTED)
    assert not place.exists()


# What cannot be read


def arrays(place: Path) -> dict[str, NDArray[np.generic]]:
    trace_file.write(place, ROUND, COUNTED)
    with np.load(place) as file:
        return dict(file)


def save(place: Path, content: Arrays, *, allow_pickle: bool = False) -> None:
    with place.open("wb") as file:
        np.savez_compressed(file, allow_pickle=allow_pickle, **content)


def header(content: Arrays, change: Callable[[str], str]) -> NDArray[np.uint8]:
    return np.frombuffer(change(content["round"].tobytes().decode()).encode(), dtype=np.uint8)


def planes(*values: float, dtype: str = "<f8") -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.array(values, dtype=dtype).view(np.uint8).reshape(-1, 8).T)


DAMAGE: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "no array": (lambda _: {}, "holds nothing, not round, chunks, chunk_times_s, chunk_tokens"),
    "another npz": (lambda _: {"x": np.zeros(3)}, "holds x, not round"),
    "one too many": (lambda it: {**it, "x": np.zeros(3)}, "holds chunk_times_s, chunk_tokens, chunks, round, x"),
    "one missing": (lambda it: {name: it[name] for name in it if name != "chunks"}, "holds chunk_times_s, chunk_t"),
    "times as doubles": (lambda it: {**it, "chunk_times_s": np.zeros(4)}, r"an array of type float64 and shape \(4,\)"),
    "a flat header": (lambda it: {**it, "round": np.zeros((2, 2), np.uint8)}, r"of type uint8 and shape \(2, 2\)"),
    "by columns": (
        lambda it: {**it, "chunk_times_s": np.asfortranarray(it["chunk_times_s"])},
        "an array of type uint8",
    ),
    "seven rows": (lambda it: {**it, "chunk_times_s": it["chunk_times_s"][:7]}, "chunks in 7 rows of bytes, not 8"),
    "objects": (lambda it: {**it, "chunks": np.array([1, None])}, "an array of type object"),
    "too few chunks": (lambda it: {**it, "chunks": np.array([3, 1])}, "not how 4 chunks belong to 3 requests"),
    "too many chunks": (lambda it: {**it, "chunks": np.array([3, 1, 1])}, "not how 4 chunks belong to 3 requests"),
    "a negative one": (lambda it: {**it, "chunks": np.array([5, 1, -2])}, "not how 4 chunks belong to 3 requests"),
    "an endless one": (lambda it: {**it, "chunks": np.array([2**63 - 1, 2, 2**63 - 1])}, "not how 4 chunks belong"),
    "too many tokens": (lambda it: {**it, "chunk_tokens": planes(1, 1, 1, 1)}, "chunk_tokens: 4, where 3 chunks"),
    "no number": (lambda it: {**it, "chunk_times_s": planes(0.1, np.nan, 0.2, 0.3)}, "a time that no clock gives"),
    "endless": (lambda it: {**it, "chunk_times_s": planes(0.1, np.inf, 0.2, 0.3)}, "a time that no clock gives"),
    "too small": (lambda it: {**it, "chunk_times_s": planes(0.1, 1e-300, 0.2, 0.3)}, "a time that no clock gives"),
    "no JSON": (lambda it: {**it, "round": header(it, lambda text: text[:50])}, "round: Invalid JSON"),
    "no text": (lambda it: {**it, "round": np.array([0xFF, 0xFE], np.uint8)}, "round: Invalid JSON"),
    "nested": (lambda it: {**it, "round": header(it, lambda _: "[" * 100_000)}, "round: Invalid JSON: recursion limit"),
    "of tomorrow": (
        lambda it: {**it, "round": header(it, lambda text: text.replace('"schema": 1', '"schema": 2'))},
        "schema: Input should be 1",
    ),
    "of something else": (
        lambda it: {**it, "round": header(it, lambda text: text.replace("perf trace", "perf campaign"))},
        "kind: Input should be 'sglang-perf trace'",
    ),
    "a missing key": (
        lambda it: {**it, "round": header(it, lambda text: text.replace(', "failure": null', "", 1))},
        "round: has other keys than were written",
    ),
    "one too many keys": (
        lambda it: {
            **it,
            "round": header(it, lambda text: text.replace('"failure": null', '"failure": null, "x": 1', 1)),
        },
        "round: has other keys than were written",
    ),
    "a key that stands twice": (
        lambda it: {**it, "round": header(it, lambda text: text.replace('"index": 0', '"index": 0, "index": 0', 1))},
        "round: has other keys than were written",
    ),
    "a time as text": (
        lambda it: {**it, "round": header(it, lambda text: text.replace("0.25", '"0.25"', 1))},
        r"round.requests.0.ended_s: Input should be a valid number",
    ),
    "a time that is none": (
        lambda it: {**it, "round": header(it, lambda text: text.replace("0.25", "NaN", 1))},
        r"round.requests.0.ended_s: Input should be a finite number",
    ),
    "a far time": (
        lambda it: {**it, "round": header(it, lambda text: text.replace("0.25", "10000000000.0", 1))},
        "a time that no clock gives",
    ),
    "more tokens than there are": (
        lambda it: {**it, "round": header(it, lambda text: text.replace("12", "9" * 400, 1))},
        "a number of tokens that no request has",
    ),
    "tokens below none": (
        lambda it: {**it, "round": header(it, lambda text: text.replace("12", "-12", 1))},
        "a number of tokens that no request has",
    ),
    "an unknown failure": (
        lambda it: {**it, "round": header(it, lambda text: text.replace('"http"', '"else"', 1))},
        "round.requests.2.failure.name: Input should be",
    ),
    "another level": (
        lambda it: {**it, "round": header(it, lambda text: text.replace('"level": 2', '"level": 8', 1))},
        "level 8, round 2: that of another",
    ),
    "another round": (
        lambda it: {**it, "round": header(it, lambda text: text.replace('"index": 1', '"index": 4', 1))},
        "level 2, round 5: that of another",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_trace_that_we_never_wrote_is_refused_with_what_was_seen_and_what_to_do(place: Path, damage: str) -> None:
    change, seen = DAMAGE[damage]
    save(place, change(arrays(place)), allow_pickle=True)
    with pytest.raises(FileError, match=seen) as caught:
        trace_file.read(place, 2, 1)
    said = str(caught.value)
    assert said.startswith(f"{place}: not the trace of a round: ")
    assert said.endswith("; restore it, or remove it and be without")
    assert "\n" not in said


@unhurried
@given(st.data())
def test_a_trace_that_was_cut_or_changed_anywhere_is_refused_or_is_still_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = trace_file.path(tmp_path_factory.mktemp("launch"), "c002", 1)
    trace_file.write(place, ROUND, COUNTED)
    whole = bytearray(place.read_bytes())
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        damaged = whole
        for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
            damaged[at] = data.draw(st.integers(0, 255))
    place.write_bytes(damaged)
    with suppress(FileError):
        assert tupled(trace_file.read(place, 2, 1).round) == ROUND


def member(shape: str, dtype: str = "|u1", data: bytes = b"") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def test_a_small_file_that_unpacks_to_a_large_one_is_not_unpacked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "MAX_BYTES", 500_000)
    place.parent.mkdir()
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("round", "chunks", "chunk_times_s", "chunk_tokens"):
            archive.writestr(f"{name}.npy", bytes(400_000))
    assert place.stat().st_size < 10_000
    with pytest.raises(FileError, match="would unpack to more bytes than any round has"):
        trace_file.read(place, 2, 1)


def test_no_room_is_reserved_for_a_shape_that_only_says_so(place: Path) -> None:
    place.parent.mkdir()
    with zipfile.ZipFile(place, "w") as archive:
        for name in ("round", "chunks", "chunk_times_s", "chunk_tokens"):
            archive.writestr(f"{name}.npy", member("(1000000000000,)"))
    with pytest.raises(FileError, match=r"an array of type uint8 and shape \(1000000000000,\) in 0 bytes"):
        trace_file.read(place, 2, 1)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_that_is_packed_otherwise_is_refused(place: Path, method: int) -> None:
    content = arrays(place)
    with zipfile.ZipFile(place, "w", method) as archive:
        for name, array_ in content.items():
            packed = BytesIO()
            np.save(packed, array_)
            archive.writestr(f"{name}.npy", packed.getvalue())
    with pytest.raises(FileError, match="packed as numpy does not"):
        trace_file.read(place, 2, 1)


def test_a_trace_that_is_not_there_too_large_or_no_file_is_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileError, match="cannot be read as the trace of a round: No such file or directory"):
        trace_file.read(place, 2, 1)
    trace_file.write(place, ROUND, COUNTED)
    monkeypatch.setattr(trace_file, "MAX_BYTES", 100)
    with pytest.raises(FileError, match="bytes are too many for the trace of a round"):
        trace_file.read(place, 2, 1)
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(FileError, match="Not a regular file"):
        trace_file.read(place, 2, 1)


def test_text_of_a_server_that_is_no_unicode_is_kept_as_its_escape(place: Path) -> None:
    odd = replace(FAILED, failure=Failure(name=FailureName.MALFORMED, detail="half \ud800 of a pair"))
    trace_file.write(place, replace(ROUND, requests=(odd,)), None)
    failure = trace_file.read(place, 2, 1).round.requests[0].failure
    assert failure is not None
    assert json.loads(f'"{failure.detail}"') == "half \ud800 of a pair"
