"""Traces for other programs: tables for spreadsheets and scripts (CSV), a timeline for ui.perfetto.dev. Pure.

Times of a table are seconds on the round's own clock, as the trace has them. What is not known is an empty cell.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perf.text import printable
from perf.trace import RequestTrace, Round

#: What a timeline says of tok/s is a mean over so long at least, and has so many points at most.
RATE_STEP_S = 0.1
MAX_RATE_POINTS = 10_000

_Cell = str | int | float | None
_Event = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A round, and the name of the launch that it belongs to."""

    launch: str
    round: Round

    @property
    def place(self) -> tuple[str, int]:
        """Launch and round, rounds being counted from 1 as on the screen."""
        return self.launch, self.round.index + 1


def csv_of_requests(rounds: Iterable[Exported]) -> Iterator[str]:
    """Lines of a table with a row for every request, in the order in which they were planned."""
    yield _line(
        *("launch", "round", "request", "prompt_id", "sent_s", "first_token_s", "last_token_s", "ended_s", "chunks"),
        *("prompt_tokens", "cached_tokens", "output_tokens", "finish_reason", "failure", "failure_detail"),
    )
    for each in rounds:
        for request in each.round.requests:
            failure = request.failure
            yield _line(
                *each.place,
                request.index,
                request.prompt_id,
                request.sent_s,
                request.first_token_s,
                request.last_token_s,
                request.ended_s,
                len(request.chunk_times_s),
                request.prompt_tokens,
                request.cached_tokens,
                request.output_tokens,
                request.finish_reason,
                None if failure is None else failure.label,
                None if failure is None else failure.detail,
            )


def csv_of_chunks(rounds: Iterable[Exported]) -> Iterator[str]:
    """Lines of a table with a row for every chunk; `request` is that of the other table."""
    yield _line("launch", "round", "request", "chunk", "time_s", "tokens")
    for each in rounds:
        for request in each.round.requests:
            tokens: Sequence[int | None] = request.chunk_tokens or (None,) * len(request.chunk_times_s)
            for number, (time_s, count) in enumerate(zip(request.chunk_times_s, tokens, strict=True)):
                yield _line(*each.place, request.index, number, time_s, count)


def _line(*cells: _Cell) -> str:
    text = io.StringIO()
    row = [_harmless(each) if isinstance(each, str) else each for each in cells]
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue()


def _harmless(text: str) -> str:
    """Text from outside that a spreadsheet does not take for a formula: it would be carried out."""
    line = printable(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def chrome(rounds: Iterable[Exported], title: str) -> Iterator[str]:
    """A timeline in the JSON format of Chrome's trace events: a process for each round, a track for each stream.

    A request is a slice from its sending to its last token, of a failed one to its end; in it lie TTFT and decode.
    """
    events = [event for pid, each in enumerate(rounds, start=1) for event in _events(each, pid)]
    yield json.dumps({"displayTimeUnit": "ms", "otherData": {"title": title}, "traceEvents": events}) + "\n"


def _events(exported: Exported, pid: int) -> Iterator[_Event]:
    launch, number = exported.place
    yield _named("process_name", f"{launch} round {number}", pid, 0)
    requests = exported.round.requests
    streams = _streams(requests)
    for stream in range(1, max(streams, default=0) + 1):
        yield _named("thread_name", f"stream {stream:03d}", pid, stream)
    for request, stream in zip(requests, streams, strict=True):
        failure = request.failure
        name = printable(request.prompt_id) + (f": {failure.label}" if failure else "")
        about = {
            "request": request.index,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "output_tokens": request.output_tokens,
            "chunks": len(request.chunk_times_s),
            "finish_reason": request.finish_reason and printable(request.finish_reason),
            "failure": failure and printable(failure.detail),
        }
        known = {key: value for key, value in about.items() if value is not None}
        yield _slice(name, request.sent_s, _end_s(request), pid, stream) | {"args": known}
        if request.first_token_s is not None and request.last_token_s is not None:
            yield _slice("TTFT", request.sent_s, request.first_token_s, pid, stream)
            yield _slice("decode", request.first_token_s, request.last_token_s, pid, stream)
    for time_s, count in _in_flight(requests):
        yield _counter("in flight", "requests", time_s, count, pid)
    for time_s, rate in _rates(requests):
        yield _counter("tok/s", "tok/s", time_s, rate, pid)


def _end_s(request: RequestTrace) -> float:
    """When a request left its stream, which is when the next one may be sent: the last token."""
    last = request.last_token_s
    return request.ended_s if request.failure is not None or last is None else last


def _streams(requests: Sequence[RequestTrace]) -> list[int]:
    """For each request the lowest stream, from 1, that is free when it is sent."""
    free_s: list[float] = []
    found = [0] * len(requests)
    for place in sorted(range(len(requests)), key=lambda each: (requests[each].sent_s, requests[each].index)):
        request = requests[place]
        stream = next((each for each, time_s in enumerate(free_s) if time_s <= request.sent_s), len(free_s))
        free_s[stream : stream + 1] = [_end_s(request)]
        found[place] = stream + 1
    return found


def _in_flight(requests: Sequence[RequestTrace]) -> Iterator[tuple[float, int]]:
    """How many requests are in flight from each time on at which that changes."""
    changes: dict[float, int] = {}
    for request in requests:
        changes[request.sent_s] = changes.get(request.sent_s, 0) + 1
        changes[_end_s(request)] = changes.get(_end_s(request), 0) - 1
    count = 0
    for time_s in sorted(changes):
        count += changes[time_s]
        yield time_s, count


def _rates(requests: Sequence[RequestTrace]) -> Iterator[tuple[float, float]]:
    """Tokens per second from each time on, at the end 0; nothing where some chunk's tokens are not known."""
    good = [each for each in requests if each.failure is None]
    known = [(each.chunk_times_s, each.chunk_tokens) for each in good if each.chunk_tokens]
    if not known or len(known) < len(good):
        return
    times = np.concatenate([np.asarray(times_s) for times_s, _ in known])
    tokens = np.concatenate([np.asarray(counts, dtype=np.float64) for _, counts in known])
    start_s = min(float(times.min()), *(each.sent_s for each in good))
    step_s = max(RATE_STEP_S, (float(times.max()) - start_s) / MAX_RATE_POINTS)
    points = math.floor((float(times.max()) - start_s) / step_s) + 1
    counts, _ = np.histogram(times, bins=points, range=(start_s, start_s + points * step_s), weights=tokens)
    for point, count in enumerate(counts.tolist()):
        yield start_s + point * step_s, count / step_s
    yield start_s + points * step_s, 0.0


def _nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


def _slice(name: str, start_s: float, end_s: float, pid: int, stream: int) -> _Event:
    # In whole nanoseconds, so that a slice ends exactly where the next one begins; the format has microseconds.
    start, end = _nanoseconds(start_s), _nanoseconds(max(start_s, end_s))
    return {"ph": "X", "name": name, "ts": start / 1000, "dur": (end - start) / 1000, "pid": pid, "tid": stream}


def _counter(name: str, unit: str, time_s: float, value: float, pid: int) -> _Event:
    return {"ph": "C", "name": name, "ts": _nanoseconds(time_s) / 1000, "pid": pid, "tid": 0, "args": {unit: value}}


def _named(what: str, name: str, pid: int, stream: int) -> _Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": stream, "args": {"name": name}}
