"""What clients cost and how true their numbers are, side by side: `python -m benchmarks.client [--quick] [--rivals]`.

Every client runs against `perf.null_server`, which logs each send, in a process of its own on the first core; the
server has the last one. Absolute times are of this machine and this minute: what carries over are the ratios between
rows of one run. The exit code is 1 where our own client made an error or opened a connection too many, never for a
time.
"""

import argparse
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from benchmarks.contenders import CONTENDERS, OURS, PER_EVENT, PLAIN, Job, Observed, load, to_line
from benchmarks.rivals import RIVALS, Load, RivalError
from perf.files import write_text
from perf.null_server import SentRequest, Truth, read_truth

ROOT = Path(__file__).parents[1]
CORES = sorted(os.sched_getaffinity(0))

#: A client that was given seconds of work and is not done after so long hangs.
JOB_TIMEOUT_S = 180.0
START_TIMEOUT_S = 30.0

#: A round may become so much longer than the server's schedule says, for a rate to be sustained.
SUSTAINED_SLACK = 0.01
#: Tokens of a request of the crowd.
CROWD_TOKENS = 5

#: An attempt at a rate in which the client waited for its core for a larger share of the time says nothing against
#: it, and is repeated, up to so many times the attempts.
FAIR_WAIT = 0.05
DISTURBED = 2

FLIP_STREAMS = 250
FLIP_BASELINE = (1, 12_500)  # tokens a chunk, tok/s
FLIP_SPECULATIVE = (3, 10_000)
TRUE_RATIO = FLIP_BASELINE[1] / FLIP_SPECULATIVE[1]

#: A wave for other tools, which have no warm-up of their connections: long beside their start.
RIVAL_S = 6.0

TARGET_PLAIN = 30
TARGET_PER_EVENT = 3
TARGET_LAG_S = 1e-3
TARGET_RATE = 1e-3
TARGET_RATIO = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured: seconds a round, tokens an answer, repeats."""

    streams: int
    first_rate: float
    doublings: int
    bisections: int
    rung_s: float
    attempts: int
    overload_tokens: int
    rates: tuple[int, ...]
    fidelity_s: float
    repeats: int
    crowd: int
    crowd_step_s: float
    flip_s: float
    flip_repeats: int
    flips: tuple[tuple[bool, bool], ...]  # a second process on each core, burst


FULL = Size(
    streams=100,
    first_rate=1000,
    doublings=8,
    bisections=2,
    rung_s=1.0,
    attempts=2,
    overload_tokens=500,
    rates=(3000, 10_000),
    fidelity_s=1.5,
    repeats=3,
    crowd=2000,
    crowd_step_s=0.25,
    flip_s=1.2,
    flip_repeats=2,
    flips=((False, False), (False, True), (True, False), (True, True)),
)
QUICK = Size(
    streams=20,
    first_rate=8000,
    doublings=1,
    bisections=0,
    rung_s=0.2,
    attempts=1,
    overload_tokens=50,
    rates=(2000,),
    fidelity_s=0.3,
    repeats=1,
    crowd=200,
    crowd_step_s=0.05,
    flip_s=0.3,
    flip_repeats=1,
    flips=((False, False),),
)


# Servers, clients, and what else runs.


@dataclass(slots=True, kw_only=True)
class Server:
    """A null server that runs, and its truth once it was ended."""

    url: str
    process: subprocess.Popen[str]
    file: Path

    def end(self) -> Truth:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(START_TIMEOUT_S)
        return read_truth(self.file)


@contextmanager
def null_server(*, tokens_per_chunk: int, step_s: float, burst: bool = False) -> Iterator[Server]:
    """A null server on the last core."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.npz"
        options = ["--tokens-per-chunk", str(tokens_per_chunk), "--step-ms", str(step_s * 1e3)]
        command = [sys.executable, "-m", "perf.null_server", "--port", "0", "--truth", str(file), *options]
        command += ["--burst"] * burst
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                os.sched_setaffinity(process.pid, {CORES[-1]})
                yield Server(url=_line(process, START_TIMEOUT_S), process=process, file=file)
            finally:
                process.kill()


class Contender:
    """A client's process on the first core; jobs go in, what it saw comes out."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.contenders", name, str(CORES[0])]
        self.name = name
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, job: Job) -> Observed:
        """Do the job. Raises RuntimeError where the process does not answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(to_line(job))
        self._process.stdin.flush()
        _line(self._process, JOB_TIMEOUT_S)
        return load(Path(job.file))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _line(process: subprocess.Popen[str], timeout_s: float) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    if not ready or not (line := process.stdout.readline()):
        raise RuntimeError(f"no answer within {timeout_s:.0f} s, or no process: {process.args!r}")
    return line.strip()


@contextmanager
def burners(wanted: bool) -> Iterator[None]:
    """A process on each core that never stops computing, where wanted."""
    with ExitStack() as stack:
        for core in CORES if wanted else ():
            burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(burner.wait)
            stack.callback(burner.kill)
            os.sched_setaffinity(burner.pid, {core})
        yield


# One trial: what a client saw beside what was sent.


@dataclass(frozen=True)
class Trial:
    """One round of one client and the server's truth about it. Times in seconds, rates in tok/s."""

    observed: Observed
    truth: Truth
    job: Job

    @cached_property
    def sent(self) -> dict[str, SentRequest]:
        return {request.id: request for request in self.truth.requests if request.id in set(self.observed.ids)}

    @cached_property
    def whole(self) -> list[tuple[float, NDArray[np.float64], SentRequest]]:
        """Of every request of which each chunk was seen: when the client sent it, its stamps, its truth."""
        seen = zip(self.observed.ids, self.observed.sent_s, self.observed.times_s, strict=True)
        found = ((sent_s, times_s, self.sent.get(id_)) for id_, sent_s, times_s in seen)
        return [(a, times_s, sent) for a, times_s, sent in found if sent and len(times_s) == len(sent.sent_s)]

    @property
    def errors(self) -> int:
        """Requests that failed, of which a chunk is missing, or whose tokens are wrong."""
        right = int((self.observed.tokens == self.job.tokens).sum())
        return self.job.requests - min(right, len(self.whole), self.job.requests - len(self.observed.errors))

    @property
    def began_s(self) -> float:
        return min(request.arrival_s for request in self.sent.values())

    @property
    def due_s(self) -> float:
        """When the last chunk was to be sent."""
        return max(r.due_s + self.truth.step_s * (len(r.sent_s) - 1) for r in self.sent.values())

    @property
    def last_s(self) -> float:
        return max(float(request.sent_s[-1]) for request in self.sent.values())

    @property
    def behind(self) -> float:
        """How late the client was in the last quarter of the schedule, as a share of its length: its backlog.

        Behind the send; where that waited for the client's full socket, behind the schedule.
        """
        late = []
        for _, times_s, sent in self.whole:
            due_s = sent.due_s + self.truth.step_s * np.arange(len(sent.sent_s))
            last = due_s > self.due_s - (self.due_s - self.began_s) / 4
            late.append((times_s - (due_s if sent.blocked else sent.sent_s))[last])
        late_s = float(np.median(np.concatenate(late))) + self.observed.read_lag_p50_s
        return late_s / (self.due_s - self.began_s)

    @property
    def server_behind(self) -> float:
        """How much later than scheduled the server itself was done."""
        return (self.last_s - self.due_s) / (self.due_s - self.began_s)

    @property
    def rate(self) -> float:
        """Whole-round output throughput as the client would report it: first send to last token."""
        ends = [float(times_s[-1]) for times_s in self.observed.times_s if len(times_s)]
        return int(self.observed.tokens.sum()) / (max(ends) - float(self.observed.sent_s.min()))

    @property
    def true_rate(self) -> float:
        """The same as it was sent: first arrival to last send."""
        return self.job.requests * self.job.tokens / (self.last_s - self.began_s)

    @property
    def cpu_per_token_s(self) -> float:
        return self.observed.cpu_s / max(1, int(self.observed.tokens.sum()))

    @property
    def run_queue_share(self) -> float:
        return np.nan if self.observed.run_queue_s is None else self.observed.run_queue_s / self.observed.wall_s


def trial(
    contender: Contender, *, rate: float, seconds: float, streams: int, tokens_per_chunk: int = 1, burst: bool = False
) -> Trial:
    """One wave of requests at an offered rate, after a warm-up on the same connections."""
    step_s = streams * tokens_per_chunk / rate
    chunks = max(2, round(seconds / step_s))
    return one_round(contender, streams, streams, chunks * tokens_per_chunk, step_s, tokens_per_chunk, burst, True)


def one_round(
    contender: Contender,
    streams: int,
    requests: int,
    tokens: int,
    step_s: float,
    tokens_per_chunk: int,
    burst: bool,
    warm: bool,
) -> Trial:
    with (
        null_server(tokens_per_chunk=tokens_per_chunk, step_s=step_s, burst=burst) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        job = Job(
            url=server.url,
            streams=streams,
            requests=requests,
            tokens=tokens,
            warm=warm,
            file=str(Path(folder) / "seen.npz"),
        )
        observed = contender.run(job)
        made = Trial(observed, server.end(), job)
    if not made.whole:
        raise SystemExit(f"{contender.name}: no request was answered in full; first error: {observed.errors[:1]}")
    return made


# Tables.


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What one measurement says; `note` is what has to be known to read it."""

    title: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, style: str) -> str:
        heading = f"## {self.title}" if style == "github" else f"{self.title}\n{'=' * len(self.title)}"
        right = ("left", *["right"] * (len(self.headers) - 2), "left")
        body = tabulate(self.rows, self.headers, tablefmt=style, colalign=right, disable_numparse=True)
        return f"{heading}\n\n{textwrap.fill(self.note, 128)}\n\n{body}\n"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def percent(share: float, places: int = 1) -> str:
    return "-" if np.isnan(share) else f"{share * 100:.{places}f} %"


def met(what: str, kept: bool) -> str:
    return f"{what}: {'met' if kept else 'missed'}"


@dataclass(slots=True)
class Tally:
    """What decides the exit code."""

    faults: list[str]

    def ours(self, contender: Contender, tried: Trial) -> None:
        """Note an error of our own client, or a request that came over a connection more than there are streams."""
        if contender.name != OURS:
            return
        if tried.errors:
            self.faults.append(f"{tried.errors} errors ({', '.join(tried.observed.errors[:1]) or 'tokens'})")
        if (more := len({request.connection for request in tried.sent.values()}) - tried.job.streams) > 0:
            self.faults.append(f"{more} connections too many in a round of {tried.job.streams} streams")


# What is measured.


def sustained(contenders: Sequence[Contender], size: Size, tally: Tally) -> Table:
    """The highest rate that each client keeps up with on one core, and what a token costs it."""
    climbs = {contender.name: climb(contender, size, tally) for contender in contenders}
    rates = {name: made.best.true_rate if made.best else np.nan for name, made in climbs.items()}
    rows = []
    for contender in contenders:
        overload = one_round(contender, size.streams, size.streams, size.overload_tokens, 0.0, 1, False, True)
        tally.ours(contender, overload)
        made, rate = climbs[contender.name], rates[contender.name]
        over_plain, over_per_event = rate / rates[PLAIN], rate / rates[PER_EVENT]
        target = "-"
        if contender.name == OURS:
            target = met(f">= {TARGET_PLAIN} x {PLAIN}", over_plain >= TARGET_PLAIN) + "; "
            target += met(f">= {TARGET_PER_EVENT} x {PER_EVENT}", over_per_event >= TARGET_PER_EVENT)
        rows.append(
            (
                contender.name,
                ">= " * made.limited + number(rate, ",.0f"),
                number(over_plain, ".1f"),
                number(over_per_event, ".2f"),
                number(made.true_rate, ",.0f"),
                number(made.best.cpu_per_token_s * 1e6 if made.best else np.nan, ".1f"),
                number(overload.cpu_per_token_s * 1e6, ".1f"),
                percent(made.best.run_queue_share if made.best else np.nan),
                target,
            )
        )
    return Table(
        title=f"Sustained rate at {size.streams} streams on one core",
        note="The highest rate of one-token chunks at which the tokens of a round's last quarter are seen no more than "
        f"{percent(SUSTAINED_SLACK, 0)} of the round of {size.rung_s:g} s late (median; best of {size.attempts} "
        f"attempts with a core of its own, {size.bisections} bisections after doubling); `>=`: the server "
        f"could send no more. True: the highest of these with a lag p99 within {ms(TARGET_LAG_S)} ms. CPU of the whole "
        "process over the round, building requests included; overload: all is sent at once, so that reads coalesce.",
        headers=(
            "client",
            "sustained tok/s",
            f"x {PLAIN}",
            f"x {PER_EVENT}",
            "true tok/s",
            "CPU us/token",
            "at overload",
            "run-queue wait",
            "target",
        ),
        rows=tuple(rows),
    )


@dataclass(slots=True, kw_only=True)
class Climb:
    """How high a client came: the best rate that it sustained, and the best with a lag p99 below the target.

    `limited`: at the next higher rate it was the server that could not keep up.
    """

    best: Trial | None = None
    true_rate: float = np.nan
    limited: bool = False


def climb(contender: Contender, size: Size, tally: Tally) -> Climb:
    """Double the rate until it is not sustained, then bisect."""
    made = Climb()

    def holds(rate: float) -> bool:
        fair = 0
        for _ in range(DISTURBED * size.attempts):
            if fair == size.attempts:
                break
            tried = trial(contender, rate=rate, seconds=size.rung_s, streams=size.streams)
            fair += not tried.run_queue_share > FAIR_WAIT
            tally.ours(contender, tried)
            kept = not tried.errors and tried.behind <= SUSTAINED_SLACK
            made.limited = kept and tried.server_behind > SUSTAINED_SLACK
            if kept and not made.limited:
                made.best = tried
                if fidelity(tried).lag_p99 <= TARGET_LAG_S:
                    made.true_rate = float(np.fmax(made.true_rate, tried.true_rate))
                return True
        return False

    low, high, limited = 0.0, size.first_rate, False
    for _ in range(size.doublings + 1):
        if not holds(high):
            limited = made.limited
            break
        low, high = high, high * 2
    for _ in range(size.bisections if low else 0):
        middle = (low * high) ** 0.5
        if holds(middle):
            low = middle
        else:
            high, limited = middle, made.limited
    made.limited = limited
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How far what a client says is from what was sent. Seconds and shares."""

    lag_p50: float
    lag_p99: float
    ttft_p50: float
    ttft_p99: float
    itl_p99: float
    rate: float
    read_lag_p99: float
    cpu: float
    run_queue: float
    server_late_p99: float


def fidelity(tried: Trial) -> Fidelity:
    """Compare one trial with its truth."""
    lags = np.concatenate([times_s - sent.sent_s for _, times_s, sent in tried.whole])
    ttft = np.array([(t[0] - sent_s) - (sent.sent_s[0] - sent.arrival_s) for sent_s, t, sent in tried.whole])
    seen = np.concatenate([np.diff(times_s) for _, times_s, _ in tried.whole])
    made = np.concatenate([np.diff(sent.sent_s) for _, _, sent in tried.whole])
    return Fidelity(
        lag_p50=float(np.percentile(lags, 50)),
        lag_p99=float(np.percentile(lags, 99)),
        ttft_p50=float(np.percentile(ttft, 50)),
        ttft_p99=float(np.percentile(ttft, 99)),
        itl_p99=float(np.percentile(seen, 99) - np.percentile(made, 99)),
        rate=tried.rate / tried.true_rate - 1,
        read_lag_p99=tried.observed.read_lag_p99_s,
        cpu=tried.observed.cpu_s / tried.observed.wall_s,
        run_queue=tried.run_queue_share,
        server_late_p99=float(np.percentile(tried.truth.lateness_s(), 99)),
    )


def median(of: Sequence[Fidelity]) -> Fidelity:
    """The median of every figure for itself."""
    return Fidelity(**{one.name: statistics.median(getattr(each, one.name) for each in of) for one in fields(Fidelity)})


def truthfulness(contenders: Sequence[Contender], size: Size, rate: int, tally: Tally) -> Table:
    """How true every client's times are at one offered rate."""
    tried: dict[str, list[Fidelity]] = {contender.name: [] for contender in contenders}
    for _ in range(size.repeats):
        for contender in contenders:
            one = trial(contender, rate=rate, seconds=size.fidelity_s, streams=size.streams)
            tally.ours(contender, one)
            tried[contender.name].append(fidelity(one))
    rows = []
    for name, all_of_it in tried.items():
        it = median(all_of_it)
        target = "-"
        if name == OURS:
            target = met(
                "lag p99, TTFT p50, ITL p99 <= 1 ms",
                max(it.lag_p99, abs(it.ttft_p50), abs(it.itl_p99)) <= TARGET_LAG_S,
            )
            target += "; " + met(f"tok/s {percent(TARGET_RATE)}", abs(it.rate) <= TARGET_RATE)
        rows.append(
            (
                name,
                ms(it.lag_p50),
                ms(it.lag_p99),
                ms(it.ttft_p50),
                ms(it.ttft_p99),
                ms(it.itl_p99),
                percent(it.rate, 2),
                ms(it.read_lag_p99) if name == OURS else "-",
                percent(it.cpu, 0),
                percent(it.run_queue),
                ms(it.server_late_p99),
                target,
            )
        )
    return Table(
        title=f"Truth at {rate:,} tok/s, {size.streams} streams",
        note=f"Milliseconds; medians of {size.repeats} rounds of {size.fidelity_s:g} s. Lag: a token's stamp behind "
        "its send. TTFT error: the client's TTFT (from the call; ours from the write) less the server's (arrival to "
        "first send). ITL: difference of the p99. tok/s: over the whole round. Read late: ours stamps with the arrival "
        "at the host, and reads so much later. Server late: what it sent behind its schedule, at p99.",
        headers=(
            "client",
            "lag p50",
            "lag p99",
            "TTFT error p50",
            "p99",
            "ITL p99",
            "tok/s error",
            "read late p99",
            "CPU",
            "run-queue wait",
            "server late",
            "target",
        ),
        rows=tuple(rows),
    )


def crowd(contenders: Sequence[Contender], size: Size, tally: Tally) -> Table:
    """Many streams: does every one have its connection, and does it keep it?"""
    rows = []
    for contender in contenders:
        tried = one_round(contender, size.crowd, 2 * size.crowd, CROWD_TOKENS, size.crowd_step_s, 1, False, False)
        tally.ours(contender, tried)
        opened = len(tried.truth.accepted_s)
        kept = not tried.errors and opened == size.crowd
        rows.append(
            (
                contender.name,
                f"{opened:,}",
                f"{tried.errors:,}",
                percent(tried.rate / tried.true_rate - 1, 2),
                percent(tried.observed.cpu_s / tried.observed.wall_s, 0),
                percent(tried.run_queue_share),
                met("a connection each, no error", kept) if contender.name == OURS else "-",
            )
        )
    return Table(
        title=f"{size.crowd:,} streams",
        note=f"{2 * size.crowd:,} requests of {CROWD_TOKENS} tokens, each a token every "
        f"{size.crowd_step_s * 1e3:.0f} ms, no warm-up. Clients of the openai package have its own default limits.",
        headers=("client", "connections", "errors", "tok/s error", "CPU", "run-queue wait", "target"),
        rows=tuple(rows),
    )


def flip(contenders: Sequence[Contender], size: Size, tally: Tally) -> Table:
    """Does a client keep the order of a baseline of thin chunks and a slower speculative server of fat ones?"""
    rows = []
    for burning, burst in size.flips:
        ratios: dict[str, list[tuple[float, float, float]]] = {contender.name: [] for contender in contenders}
        with burners(burning):
            for _ in range(size.flip_repeats):
                for contender in contenders:
                    pair = []
                    for tokens_per_chunk, rate in (FLIP_BASELINE, FLIP_SPECULATIVE):
                        one = trial(
                            contender,
                            rate=rate,
                            seconds=size.flip_s,
                            streams=FLIP_STREAMS,
                            tokens_per_chunk=tokens_per_chunk,
                            burst=burst,
                        )
                        tally.ours(contender, one)
                        pair.append(one)
                    baseline, speculative = pair
                    ratios[contender.name].append(
                        (
                            baseline.rate / speculative.rate,
                            baseline.true_rate / speculative.true_rate,
                            max(one.run_queue_share for one in pair),
                        )
                    )
        for name, measured in ratios.items():
            seen, sent, run_queue = (statistics.median(each) for each in zip(*measured, strict=True))
            error = seen / TRUE_RATIO - 1
            rows.append(
                (
                    name,
                    "yes" if burning else "no",
                    "yes" if burst else "no",
                    f"{seen:.3f}",
                    percent(error, 2),
                    f"{sent:.3f}",
                    percent(run_queue),
                    met(f"{TRUE_RATIO:g} within {percent(TARGET_RATIO, 0)}", abs(error) <= TARGET_RATIO)
                    if name == OURS
                    else "-",
                )
            )
    return Table(
        title=f"{FLIP_STREAMS} streams: baseline over speculative",
        note=f"Offered {FLIP_BASELINE[1]:,} tok/s in chunks of {FLIP_BASELINE[0]} against {FLIP_SPECULATIVE[1]:,} in "
        f"chunks of {FLIP_SPECULATIVE[0]}: {TRUE_RATIO:g}. Sent: the ratio by the server's log, which a client that "
        f"asks late or does not read pulls with it. Medians of {size.flip_repeats} pairs of {size.flip_s:g} s. Busy: "
        "another process computes on each core. Burst: all streams at one instant.",
        headers=("client", "busy", "burst", "ratio", "error", "sent", "run-queue wait", "target"),
        rows=tuple(rows),
    )


def others(size: Size, rate: int) -> Table:
    """What other tools say at one offered rate, beside what was sent to them."""
    step_s = size.streams / rate
    tokens = round(RIVAL_S / step_s)
    rows = []
    for rival in RIVALS:
        with null_server(tokens_per_chunk=1, step_s=step_s) as server, tempfile.TemporaryDirectory() as folder:
            try:
                load = Load(url=server.url, streams=size.streams, tokens=tokens)
                reported = rival.run(load, Path(folder))
            except RivalError as error:
                rows.append((rival.name, *"------", f"not run: {error}"))
                continue
            truth = server.end()
        # Behind what the tool asked to warm up: the last so many, of the length that was asked for.
        asked = [request for request in truth.requests if len(request.sent_s) == tokens][-size.streams :]
        if len(asked) < size.streams:
            rows.append((rival.name, *"------", f"{len(asked)} of {size.streams} answers were read to the end"))
            continue
        began_s = min(request.arrival_s for request in asked)
        true_rate = len(asked) * tokens / (max(float(request.sent_s[-1]) for request in asked) - began_s)
        ttft_s = statistics.median(float(request.sent_s[0]) - request.arrival_s for request in asked)
        blocked = sum(request.blocked for request in asked)
        rows.append(
            (
                rival.name,
                f"{reported.rate:,.0f}",
                f"{true_rate:,.0f}",
                percent(reported.rate / true_rate - 1),
                ms(reported.ttft_p50_s),
                ms(ttft_s),
                ms(reported.ttft_p50_s - ttft_s),
                f"server held up {blocked} times" if blocked else "-",
            )
        )
    return Table(
        title=f"Other tools at {rate:,} tok/s, {size.streams} streams",
        note=f"What each tool reported of one wave of {size.streams} requests of {tokens} tokens, beside the server's "
        "log: tok/s over the whole run, median TTFT in ms. The tools have all cores, the server has the last.",
        headers=("tool", "reported tok/s", "true tok/s", "error", "reported TTFT", "true TTFT", "TTFT error", "remark"),
        rows=tuple(rows),
    )


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit code."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    made.add_argument("--quick", action="store_true", help="a few seconds a table, to see that all of it works")
    made.add_argument("--rivals", action="store_true", help="install and run other tools too (gigabytes, minutes)")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there as well")
    given = made.parse_args(arguments)
    size = QUICK if given.quick else FULL
    tally = Tally([])
    host = (
        f"{platform.machine()}, {len(CORES)} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{host}\n{'Client and server share the one core there is.' * (len(CORES) == 1)}", flush=True)
    tables: list[Table] = []
    with ExitStack() as stack:
        contenders = [Contender(name) for name in CONTENDERS]
        for contender in contenders:
            stack.callback(contender.close)
        steps: list[Callable[[], Table]] = [lambda: sustained(contenders, size, tally)]
        steps += [partial(truthfulness, contenders, size, rate, tally) for rate in size.rates]
        steps += [lambda: crowd(contenders, size, tally), lambda: flip(contenders, size, tally)]
        if given.rivals:
            steps += [partial(others, size, rate) for rate in size.rates]
        for step in steps:
            tables.append(table := step())
            print(table.text("simple"), flush=True)
    if given.markdown:
        write_text(given.markdown, f"{host}\n\n" + "\n".join(table.text("github") for table in tables))
    for fault in dict.fromkeys(tally.faults):
        print(f"{OURS}: {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
