"""What `perf.metrics.summarize` costs as a round grows: `python benchmarks/metrics_at_scale.py [--largest N]`.

Sizes are in token times (chunks), the last three powers of ten up to N. Short requests grow in number, long ones in
length; a chunk holds one token, or 1 to 5. Times are of one core (CPU time), the best of REPEATS; the sizes take turns,
so that a slow spell of the machine meets all of them. Nothing is judged by absolute time: what means something on any
machine is the growth, the ratio to the size before over what n log n would give: 1 or less is n log n or better, a
little more where the arrays have just outgrown a cache.
Memory is what is allocated at the peak beside the input, as a multiple of the 16 bytes that a time and its count take.
"""

import argparse
import math
import time
import tracemalloc
from array import array
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from perf.metrics import summarize
from perf.trace import RequestTrace, Round

#: The best of so many is near the true cost on a machine that does something else now and then.
REPEATS = 5

LARGEST = 10_000_000
SMALLEST_LARGEST = 1_000
SHORT_REQUEST = 512
LONG_REQUESTS = 100
LEVEL = 50

#: The spread of counts in the chunks of a speculative server, 3 in the mean.
MOST_PER_CHUNK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How `size` token times are spread over requests and chunks."""

    name: str
    long: bool
    packed: bool

    def round_of(self, size: int) -> Round:
        """A closed loop of about `size` token times, the same at every call."""
        chunks = max(size // LONG_REQUESTS, 1) if self.long else min(SHORT_REQUEST, size)
        generator = np.random.default_rng(20)
        free_s = [0.0] * LEVEL
        requests: list[RequestTrace] = []
        for index in range(size // chunks):
            sent_s = free_s[index % LEVEL]
            times_s = sent_s + 0.1 + np.cumsum(generator.exponential(0.01, chunks))
            tokens = generator.integers(1, MOST_PER_CHUNK, chunks, dtype=np.int64, endpoint=True)
            if not self.packed:
                tokens[:] = 1
            free_s[index % LEVEL] = float(times_s[-1]) + 0.001
            requests.append(
                RequestTrace(
                    index=index,
                    prompt_id="p",
                    sent_s=sent_s,
                    chunk_times_s=array("d", times_s.tobytes()),
                    chunk_tokens=array("q", tokens.tobytes()),
                    output_tokens=int(tokens.sum()),
                    prompt_tokens=100,
                    cached_tokens=0,
                    ended_s=float(times_s[-1]),
                    finish_reason="length",
                )
            )
        return Round(
            level=LEVEL, index=0, planned_requests=len(requests), requested_tokens=chunks, requests=tuple(requests)
        )


SHAPES = (
    Shape(name="short requests", long=False, packed=False),
    Shape(name="short requests, packed chunks", long=False, packed=True),
    Shape(name="long requests", long=True, packed=False),
    Shape(name="long requests, packed chunks", long=True, packed=True),
)


def token_times(measured: Round) -> int:
    return sum(len(request.chunk_times_s) for request in measured.requests)


def cpu_s(measured: Round) -> float:
    start_s = time.process_time()
    summarize(measured)
    return time.process_time() - start_s


def peak_over_input(measured: Round) -> float:
    """What `summarize` allocates at its peak, in multiples of the times and counts it is given."""
    tracemalloc.start()
    try:
        summarize(measured)
        return tracemalloc.get_traced_memory()[1] / (16 * token_times(measured))
    finally:
        tracemalloc.stop()


def rows(shape: Shape, sizes: list[int]) -> list[list[object]]:
    """One row for each size: shape, requests, times, tokens, seconds, ns a time, growth, memory."""
    rounds = [shape.round_of(size) for size in sizes]
    best_s = [math.inf] * len(rounds)
    for _ in range(REPEATS):
        best_s = [min(best, cpu_s(measured)) for best, measured in zip(best_s, rounds, strict=True)]
    table: list[list[object]] = []
    before: tuple[float, int] | None = None
    for seconds, measured in zip(best_s, rounds, strict=True):
        times = token_times(measured)
        tokens = sum(request.output_tokens or 0 for request in measured.requests)
        growth = "-"
        if before is not None:
            seconds_before, times_before = before
            n_log_n = times * math.log(times) / (times_before * math.log(times_before))
            growth = f"{seconds / seconds_before / n_log_n:.2f}"
        table.append(
            [
                shape.name,
                f"{len(measured.requests):,}",
                f"{times:,}",
                f"{tokens:,}",
                f"{seconds:.4f}",
                f"{seconds / times * 1e9:.0f}",
                growth,
                f"{peak_over_input(measured):.1f}",
            ]
        )
        before = seconds, times
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What summarising a round costs as the round grows.")
    parser.add_argument(
        "--largest", type=int, default=LARGEST, help=f"token times of the largest round (default {LARGEST:,})"
    )
    largest: int = parser.parse_args(arguments).largest
    if largest < SMALLEST_LARGEST:
        parser.error(f"--largest is {largest}; growth is seen from {SMALLEST_LARGEST:,} token times on")
    sizes = [largest // 100, largest // 10, largest]
    print(
        tabulate(
            [row for shape in SHAPES for row in rows(shape, sizes)],
            headers=["round", "requests", "times", "tokens", "CPU s", "ns/time", "growth / n log n", "memory / input"],
            colalign=("left", *["right"] * 7),
            disable_numparse=True,
        )
    )


if __name__ == "__main__":
    main()
