"""The trace of one measured round in a file: every request with the time of every chunk, exactly as it was taken.

A file of numpy's (`.npz`), which `numpy.load` reads without pickles. docs/files.md has its four arrays. `round` is the
round as JSON, with the chunks taken out of its requests: an empty list of tokens says that they are known. Those of
all requests lie one behind the other in `chunk_times_s` and `chunk_tokens`, `chunks` being how many each has.
Times and tokens are stored as their first bytes, then their second bytes and so on: neighbours have the leading bytes
in common, so that this compresses better than 8 bytes at a time, and faster, and loses nothing.
"""

import math
import tokenize
import zipfile
import zlib
from array import array
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from perf.files import MAX_NUMBER, MIN_NUMBER, FileError, read_bytes, to_json, write_bytes
from perf.trace import Counters, RequestTrace, Round

#: In the folder of a launch.
FOLDER = "traces"

#: No larger round is written: 16 million chunks of 16 bytes. No file is read that has twice that, packed or unpacked.
MAX_BYTES = 256 * 1024 * 1024

#: Nor one of more tokens, each of which `metrics` looks at: six times the longest round that was ever meant.
MAX_TOKENS = 64 * 1024 * 1024

#: Thirty years. Times of a round lie far within, on either side of its beginning.
MAX_TIME_S = 1e9

_WHAT = "the trace of a round"
_MEMBERS = ("round", "chunks", "chunk_times_s", "chunk_tokens")

_Bytes = NDArray[np.uint8]
_Counts = NDArray[np.int64]
_Times = NDArray[np.float64]
_Kind = TypeVar("_Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A round, and what the server itself counted meanwhile; None where it does not count."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)  # holds for what is inside, too

    kind: Literal["sglang-perf trace"]
    schema: Literal[1]
    counted: Counters | None
    round: Round


_ADAPTER = TypeAdapter(Trace)


class TooLargeError(FileError):
    """A round of so many chunks that its trace is not kept; its numbers are."""


def path(launch: Path, level_name: str, index: int) -> Path:
    """Where a round of a launch is kept: `traces/c016-1.npz`, rounds being counted from 1 as on the screen."""
    return launch / FOLDER / f"{level_name}-{index + 1}.npz"


def write(place: Path, measured: Round, counted: Counters | None) -> None:
    """Keep a round whole. Raises FileError."""
    requests, known = measured.requests, [each for each in measured.requests if each.chunk_tokens is not None]
    times = [np.asarray(each.chunk_times_s, dtype="<f8") for each in requests]
    tokens = [np.asarray(each.chunk_tokens, dtype="<i8") for each in known]
    header = replace(measured, requests=tuple(_without_chunks(each) for each in requests))
    arrays = {
        "round": np.frombuffer(
            _text(Trace(kind="sglang-perf trace", schema=1, counted=counted, round=header)), dtype=np.uint8
        ),
        "chunks": np.array([len(each) for each in times], dtype="<i8"),
        "chunk_times_s": _planes(np.concatenate([*times, np.array([], dtype="<f8")])),
        "chunk_tokens": _planes(np.concatenate([*tokens, np.array([], dtype="<i8")])),
    }
    size = sum(each.nbytes for each in arrays.values())
    if size > MAX_BYTES or sum(each.output_tokens or 0 for each in measured.requests) > MAX_TOKENS:
        raise TooLargeError(f"{place.name}: the trace has {size:,} bytes, more than is kept; ask for fewer tokens")
    try:
        place.parent.mkdir(exist_ok=True)  # and no more: a campaign that was removed meanwhile is not made again
    except OSError as error:
        raise FileError(f"{place}: cannot be written: {error.strerror}; nothing was changed") from error
    packed = BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type] # none of them is `allow_pickle`
    write_bytes(place, packed.getvalue())


def read(place: Path, level: int, index: int) -> Trace:
    """Read the trace of this round of this level. Raises FileError for whatever `write` does not write."""
    data = read_bytes(place, _WHAT, 2 * MAX_BYTES)
    try:
        header, chunks, times, tokens = _unpacked(data)
        trace = _ADAPTER.validate_json(header.tobytes(), strict=True)
        if (
            _text(trace) != header.tobytes()
        ):  # a key that is missing is not guessed, one that is too much not passed over
            raise ValueError("round: has other keys than were written")
        measured = trace.round
        if (measured.level, measured.index) != (level, index):
            raise ValueError(f"level {measured.level}, round {measured.index + 1}: that of another")
        return replace(trace, round=replace(measured, requests=_with_chunks(measured.requests, chunks, times, tokens)))
    # What zipfile and numpy raise for a file that is cut, was changed, or is none of theirs; numpy reads the head of an
    # array as an expression of Python's.
    except (
        ValueError,
        RuntimeError,
        EOFError,
        SyntaxError,
        TypeError,
        tokenize.TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise FileError(
            f"{place}: not {_WHAT}: {_seen(error)[:300]}; restore it, or remove it and be without"
        ) from error


def _text(trace: Trace) -> bytes:
    return to_json(asdict(trace)).encode()


def _seen(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'round'}: {first['msg']}"
    return str(error) or type(error).__name__


def _without_chunks(request: RequestTrace) -> RequestTrace:
    return replace(request, chunk_times_s=(), chunk_tokens=None if request.chunk_tokens is None else ())


def _with_chunks(
    requests: tuple[RequestTrace, ...], chunks: _Counts, times: _Times, tokens: _Counts
) -> tuple[RequestTrace, ...]:
    """The requests as they were. Raises ValueError where the arrays are not theirs, or hold what cannot be measured."""
    if len(chunks) != len(requests) or np.any((chunks < 0) | (chunks > len(times))) or chunks.sum() != len(times):
        raise ValueError(f"chunks: not how {len(times)} chunks belong to {len(requests)} requests")
    known = np.array([each.chunk_tokens is not None for each in requests], dtype=bool)
    if chunks[known].sum() != len(tokens):
        raise ValueError(f"chunk_tokens: {len(tokens)}, where {chunks[known].sum()} chunks have some")
    sizes = np.abs(np.concatenate((times, [time for each in requests for time in (each.sent_s, each.ended_s)])))
    if not np.all((sizes == 0) | ((sizes >= MIN_NUMBER) & (sizes <= MAX_TIME_S))):  # false of what is no number
        raise ValueError("holds a time that no clock gives")
    counts = [(each.prompt_tokens, each.cached_tokens, each.output_tokens) for each in requests]
    in_chunks = tokens.astype(np.float64)  # their sum could go round an integer
    if (
        not all(0 <= (count or 0) <= MAX_NUMBER for each in counts for count in each)
        or np.any(in_chunks < 0)
        or in_chunks.sum() > MAX_TOKENS
    ):
        raise ValueError("holds a number of tokens that no request has")
    whole: list[RequestTrace] = []
    time = token = 0
    for request, count, has_tokens in zip(requests, chunks.tolist(), known.tolist(), strict=True):
        its_times, its_tokens = times[time : time + count], tokens[token : token + count]
        whole.append(
            replace(
                request,
                chunk_times_s=array("d", its_times.tobytes()),
                chunk_tokens=array("q", its_tokens.tobytes()) if has_tokens else None,
            )
        )
        time += count
        token += count if has_tokens else 0
    return tuple(whole)


def _planes(values: _Times | _Counts) -> _Bytes:
    """Numbers of 8 bytes as eight rows: the first byte of each, the second byte of each, and so on."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, 8).T)


def _unpacked(data: bytes) -> tuple[_Bytes, _Counts, _Times, _Counts]:
    """The four arrays. Raises what zipfile and numpy raise; no more is unpacked than `read` allows."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        if members.keys() != set(_MEMBERS) or len(archive.infolist()) != len(_MEMBERS):
            raise ValueError(f"holds {', '.join(sorted(members)) or 'nothing'}, not {', '.join(_MEMBERS)}")
        if sum(each.file_size for each in members.values()) > 2 * MAX_BYTES:
            raise ValueError("would unpack to more bytes than any round has")
        if any(each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for each in members.values()):
            raise ValueError("packed as numpy does not")
        # Of a member never come more bytes than its `file_size`.
        header, chunks, times, tokens = (archive.read(members[name]) for name in _MEMBERS)
    return (
        _array(header, np.uint8, 1),
        _array(chunks, np.int64, 1),
        np.frombuffer(_array(times, np.uint8, 2).T.tobytes(), dtype=np.float64),
        np.frombuffer(_array(tokens, np.uint8, 2).T.tobytes(), dtype=np.int64),
    )


def _array(member: bytes, kind: type[_Kind], dimensions: int) -> NDArray[_Kind]:
    """An array as `write` writes it: its shape, which says how much to reserve, is that of the bytes that follow."""
    stream = BytesIO(member)
    if npy.read_magic(stream) != (1, 0):
        raise ValueError("packed as numpy does not")
    shape, by_columns, dtype = npy.read_array_header_1_0(stream)
    size = len(member) - stream.tell()
    if by_columns or dtype != np.dtype(kind) or len(shape) != dimensions or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"an array of type {dtype} and shape {shape} in {size:,} bytes")
    if dimensions == 2 and shape[0] != 8:
        raise ValueError(f"chunks in {shape[0]} rows of bytes, not 8")
    return np.frombuffer(member, dtype=kind, offset=stream.tell()).reshape(shape)
