"""Why a round must not be believed. Pure: each check is a function of what was seen, and names what to do."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from perf.nvml import POWER_CAP
from perf.rig import GpuState, GpuTelemetry
from perf.text import printable, share
from perf.trace import ClientHealth, Counters, Round

#: Client and server may differ by this much: some servers count a token more or less at the ends of a request.
MAX_DISAGREEMENT = 0.01

#: Prompt tokens that may come from the cache, beyond the chat template that all requests share.
MAX_CACHED_SHARE = 0.02

#: What the client may add to a closed loop: more would be most of a margin of 3 %. On two cores that a server fills,
#: with requests of half a second, it adds up to 1.2 %.
MAX_TURNAROUND_SHARE = 0.02

#: Chunks of one stream that may lie unread: a socket's buffer of 128 KiB, Linux's default, holds 300 events of
#: SGLang's with usage, and behind a full one the server is held back.
MAX_UNREAD_CHUNKS = 100

#: The share of the window in which the client was away: said, and beyond belief. Throughput bears it far longer than
#: the times of single tokens do.
NOTED_AWAY_SHARE = 0.01
MAX_AWAY_SHARE = 0.10

#: A process that reads for more of its time has no room for a burst.
MAX_CPU_SHARE = 0.9

#: The share of the window in which the client was ready to run and had no core: said, and beyond belief. The server's
#: own processes wait in the same queue.
NOTED_RUN_QUEUE_SHARE = 0.05
MAX_RUN_QUEUE_SHARE = 0.25

#: Warm-ups of one round; a server that is still getting faster then has a problem of its own.
MAX_WARMUPS = 5

#: How much faster a warm-up may be than the fastest before it, and its second half than its first.
MAX_SPEED_UP = 0.05
MAX_SPEED_UP_WITHIN = 0.10

#: Fewer chunks than this have no halves worth comparing.
MIN_WARMUP_CHUNKS = 16

#: An idle GPU's own: context of the display, of a monitoring agent.
MAX_IDLE_GPU_BYTES = 512 * 1024**2

#: The share of samples in which heat or the hardware held a card's clocks down, and how many they are at least: of a
#: few looks one may meet a moment's brake.
MAX_SLOWED_SHARE = 0.05
LEAST_SLOWED = 2

#: A card that works for less of the time lets its PCIe link run slower.
LOADED_SHARE = 0.5

#: A shared chat template is at most so many tokens of a prompt, and never more than half of it.
TEMPLATE_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A named reason, the numbers seen, and what to do."""

    name: str
    seen: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known of one round beside its requests: the server's counters before and after it, and its death.

    `last` are the counters as they were after the round before, None in the first of a launch. `adaptive` is a server
    that decides by itself how much it drafts: where it expects no gain nothing, though its draft is wired.
    """

    round: Round
    before: Counters | None
    after: Counters | None
    speculative: bool
    level_must_be_reached: bool
    death: str | None
    last: Counters | None = None
    adaptive: bool = False

    @property
    def counted(self) -> Counters | None:
        """The server's own count over the window."""
        return None if self.before is None or self.after is None else self.after.since(self.before)


def check(seen: Observation) -> tuple[Reason, ...]:
    """Every reason not to believe the round; none is needed for a round that may be believed."""
    return tuple(
        reason
        for reasons in (
            _died(seen.death),
            _failed(seen),
            _level(seen),
            _lost(seen),
            _disagree(seen),
            _cached(seen),
            _acceptance(seen),
            _client(seen.round),
            _host(seen.round),
        )
        for reason in reasons
    )


def taken(gpu: GpuState) -> str | None:
    """By whom a GPU is taken before anything of ours runs on it; None where it is free as far as the driver tells."""
    if gpu.processes:
        return "others are on it: " + ", ".join(f"{each.name} (pid {each.pid})" for each in gpu.processes[:5])
    if gpu.memory_used_bytes is not None and gpu.memory_used_bytes > MAX_IDLE_GPU_BYTES:
        return f"{gpu.memory_used_bytes / 1024**3:.1f} GiB of its memory are taken and nobody is seen on it"
    return None


def check_gpus(before: Sequence[GpuState]) -> tuple[Reason, ...]:
    """Are the GPUs ours alone? As they are before a launch."""
    seen = "; ".join(f"GPU {gpu.index}: {why}" for gpu in before if (why := taken(gpu)))
    if not seen:
        return ()
    advice = "end what runs there, or what an earlier server left: nvidia-smi, and python -m perf doctor"
    return (Reason(name="GPU not ours", seen=printable(seen, 400), advice=advice),)


def check_telemetry(gpus: Sequence[GpuTelemetry]) -> tuple[Reason, ...]:
    """Did the GPUs run as they should while a round was measured? The power cap is no reason: see `gpu_remarks`."""

    def told(name: str, seen: Iterator[str], advice: str) -> Iterator[Reason]:
        if text := "; ".join(seen):
            yield Reason(name=name, seen=printable(text, 400), advice=advice)

    slowed = (
        f"{_gpu(gpu)} was held down by {why} in {share(round(part, 3))} of {gpu.samples} samples{_heat(gpu)}"
        for gpu in gpus
        for why, part in gpu.slowed_by or ()
        if why != POWER_CAP and part > MAX_SLOWED_SHARE and round(part * gpu.samples) >= LEAST_SLOWED
    )
    errors = (f"{_gpu(gpu)}: {', '.join(found)}" for gpu in gpus if (found := list(_gpu_errors(gpu))))
    foreign = (
        f"{_gpu(gpu)}: " + ", ".join(f"{each.name} (pid {each.pid})" for each in gpu.foreign)
        for gpu in gpus
        if gpu.foreign
    )
    return (
        *told("GPU throttled", slowed, "cool it, or look at its power supply: nvidia-smi -q -d PERFORMANCE"),
        *told("GPU error", errors, "dmesg and nvidia-smi -q -d ECC say more; a reset or another card may be due"),
        *told("GPU not ours", foreign, "others ran on it during the round: keep them off, and measure again"),
    )


def gpu_remarks(gpus: Sequence[GpuTelemetry]) -> tuple[str, ...]:
    """What is said of the GPUs of a round that is believed all the same."""
    said: list[str] = []
    capped = [part for gpu in gpus for why, part in gpu.slowed_by or () if why == POWER_CAP]
    if capped:
        said.append(
            f"{len(capped)} of {len(gpus)} GPUs at their power cap, in up to {share(round(max(capped), 3))} of "
            "samples: their clocks are what it allows"
        )
    corrected = {_gpu(gpu): gpu.ecc_corrected for gpu in gpus if gpu.ecc_corrected}
    said += [f"{name}: {count:,} memory errors, all corrected" for name, count in corrected.items()]
    said += [
        f"{_gpu(gpu)} runs its link at {gpu.pcie} under load, of {gpu.pcie_most}"
        for gpu in gpus
        if None not in (gpu.pcie, gpu.pcie_most)
        and gpu.pcie != gpu.pcie_most
        and (gpu.utilisation_mean or 0.0) >= LOADED_SHARE
    ]
    return tuple(printable(each) for each in said)


def _gpu(gpu: GpuTelemetry) -> str:
    return f"GPU {gpu.uuid if gpu.index is None else gpu.index}"


def _heat(gpu: GpuTelemetry) -> str:
    return "" if gpu.temperature_max_celsius is None else f", at up to {gpu.temperature_max_celsius} degrees Celsius"


def _gpu_errors(gpu: GpuTelemetry) -> Iterator[str]:
    if gpu.xids:
        yield "Xid " + ", ".join(map(str, dict.fromkeys(gpu.xids)))
    if gpu.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected:,} memory errors that were not corrected"


def check_capacity(chunks_s: float, level: int, carried: float, room: float, why_not: str) -> tuple[Reason, ...]:
    """Was the client shown to carry `room` times these chunks a second over these streams? `carried` is what it was,
    `why_not` what came in between."""
    if carried >= room * chunks_s:
        return ()
    reason = Reason(
        name="capacity not shown",
        seen=f"{chunks_s:,.0f} chunks/s over {level} streams; to be believed, the client has to carry "
        f"{room * chunks_s:,.0f} on a null server, and was seen to carry {carried:,.0f}"
        + (f": {printable(why_not, 200)}" if why_not else ""),
        advice="python -m perf doctor; quiet this machine, or raise client_processes in [workload]",
    )
    return (reason,)


def remarks(measured: Round) -> tuple[str, ...]:
    """What is said of a round that is believed all the same."""
    client = measured.client
    if client is None:
        return ()
    said: list[str] = []
    if client.run_queue_share is not None and client.run_queue_share > NOTED_RUN_QUEUE_SHARE:
        said.append(f"the host was busy: the client waited {share(round(client.run_queue_share, 3))} for a core")
    if client.away_share > NOTED_AWAY_SHARE:
        said.append(
            f"the client was away {share(round(client.away_share, 3))} of the time, up to "
            f"{1000 * client.away_max_s:,.0f} ms: single times of tokens may be as much too late"
        )
    return tuple(said)


def check_warmup(waves: Sequence[Round], death: str | None) -> tuple[Reason, ...]:
    """Why the round behind these warm-ups must not be measured; none where every request of the last was served."""
    failures, last = _failures(waves[-1]), waves[-1]
    if failures is None and len(last.requests) == last.planned_requests:
        if len(waves) < MAX_WARMUPS or is_warm(waves):
            return ()
        rates = ", ".join(f"{_rate(wave):,.0f}" for wave in waves)
        reason = Reason(
            name="never warm",
            seen=f"every warm-up was faster than those before it: {rates} tok/s",
            advice="raise warmup_requests: what is measured now is the server's start",
        )
        return (reason,)
    reason = Reason(
        name="warm-up failed",
        seen=failures or f"{len(last.requests)} of {last.planned_requests} requests were made",
        advice="a server that is not warm would be measured cold: read the server log",
    )
    return (*_died(death), reason)


def is_warm(waves: Sequence[Round]) -> bool:
    """Is the server at its speed after these warm-ups?

    After one: if its second half was not much faster than its first. Else another is made, and it is warm once one is
    not faster than the fastest before it.
    """
    if not waves:
        return False
    if len(waves) == 1:
        halves = _halves(waves[0])
        return halves is not None and halves[1] <= (1 + MAX_SPEED_UP_WITHIN) * halves[0]
    return _rate(waves[-1]) <= (1 + MAX_SPEED_UP) * max(_rate(wave) for wave in waves[:-1])


def _rate(wave: Round) -> float:
    """Tokens a second from the first request to the last token."""
    tokens = sum(request.output_tokens or 0 for request in wave.requests)
    ends = [request.chunk_times_s[-1] for request in wave.requests if request.chunk_times_s]
    began = min((request.sent_s for request in wave.requests), default=0.0)
    return tokens / max(max(ends, default=began) - began, 1e-9)


def _halves(wave: Round) -> tuple[float, float] | None:
    """Chunks a second in the first and the second half of all chunks behind the first; None for too few of them."""
    times = sorted(time_s for request in wave.requests for time_s in request.chunk_times_s)
    if len(times) < MIN_WARMUP_CHUNKS or times[0] == times[-1]:
        return None
    middle = len(times) // 2
    first, second = times[middle] - times[0], times[-1] - times[middle]
    return middle / max(first, 1e-9), (len(times) - 1 - middle) / max(second, 1e-9)


def level_never_reached(level: int, requests: int) -> Reason | None:
    """Fewer requests than streams cannot fill the level: known before any load."""
    if requests >= level:
        return None
    return Reason(
        name="level never reached",
        seen=f"{requests} requests cannot keep {level} in flight",
        advice='raise requests_per_level or requests_per_stream, or say level_reached = "not required"',
    )


def _died(death: str | None) -> Iterator[Reason]:
    if death is not None:
        yield Reason(name="server died", seen=death, advice="read the server log")


def _failures(asked: Round) -> str | None:
    failures = [request.failure for request in asked.requests if request.failure is not None]
    if not failures:
        return None
    kinds = Counter(failure.label for failure in failures)
    most = ", ".join(f"{count} x {label}" for label, count in kinds.most_common(3))
    return (
        f"{len(failures)} of {asked.planned_requests} requests failed in round {asked.index + 1} "
        f"({most}; first: {printable(failures[0].detail, 200)})"
    )


def _failed(seen: Observation) -> Iterator[Reason]:
    if failures := _failures(seen.round):
        yield Reason(
            name="requests failed", seen=failures, advice="a partial round is not comparable: read the server log"
        )
    elif len(seen.round.requests) != seen.round.planned_requests:
        yield Reason(
            name="requests failed",
            seen=f"{len(seen.round.requests)} of {seen.round.planned_requests} requests were made",
            advice="a partial round is not comparable: read the server log",
        )


def _level(seen: Observation) -> Iterator[Reason]:
    if seen.level_must_be_reached:
        reason = level_never_reached(seen.round.level, seen.round.planned_requests)
        if reason is not None:
            yield reason


def _lost(seen: Observation) -> Iterator[Reason]:
    """A counter that was there and is gone, fell, or is no number any more: what it was to show is not known."""
    if seen.before is None or seen.death is not None:
        return
    lost: list[str] = []
    for was, first, now, second in (
        (seen.last, "after the round before", seen.before, "before this one"),
        (seen.before, "before the round", seen.after or Counters(), "after it"),
    ):
        counted = Counters() if was is None else now.since(was)
        for name in (each.name for each in fields(Counters)):
            before, after = getattr(was, name, None), getattr(now, name)
            if before is not None and getattr(counted, name) is None:
                lost.append(f"{name} {before:,} {first}, {'none' if after is None else f'{after:,}'} {second}")
    if lost:
        yield Reason(
            name="server counters unusable",
            seen="; ".join(lost),
            advice="the server or a part of it began anew, or its /metrics does not answer: read the server log",
        )


def _disagree(seen: Observation) -> Iterator[Reason]:
    counted = None if seen.counted is None else seen.counted.generated
    ours = _output_tokens(seen.round)
    if counted is None or ours is None:
        return
    if abs(counted - ours) > MAX_DISAGREEMENT * ours:
        yield Reason(
            name="server and client disagree",
            seen=f"the client saw {ours:,} tokens, the server counted {counted:,} over the same window",
            advice="somebody else uses this server, or it counts otherwise: see that the suite has it to itself",
        )


def _cached(seen: Observation) -> Iterator[Reason]:
    """Prompt tokens from the cache, by usage or by the server's counter, whichever says more."""
    requests = seen.round.requests
    prompt = sum(request.prompt_tokens or 0 for request in requests)
    counter = 0 if seen.counted is None else seen.counted.cached or 0
    cached = max(counter, sum(request.cached_tokens or 0 for request in requests))
    unknown = any(request.cached_tokens and not request.prompt_tokens for request in requests)
    allowed = sum(min(TEMPLATE_TOKENS, (request.prompt_tokens or 0) // 2) for request in requests)
    if unknown or cached - allowed > MAX_CACHED_SHARE * prompt:
        of = f"{prompt:,} prompt tokens" if prompt else "an unknown number of prompt tokens"
        yield Reason(
            name="prefix cache hits",
            seen=f"{cached:,} of {of} came from the cache" + (f" ({share(cached / prompt)})" if prompt else ""),
            advice="measured prompts must be new to the server: flush its cache, and share it with nobody",
        )


def _acceptance(seen: Observation) -> Iterator[Reason]:
    if not seen.speculative or any(request.failure for request in seen.round.requests):
        return
    tokens = _output_tokens(seen.round)
    steps = None if seen.counted is None else seen.counted.verify_steps
    if steps is None or not tokens:
        yield Reason(
            name="acceptance missing",
            seen="the variant speculates, but the server counted no verify steps",
            advice="start it with --enable-metrics; if it is, the draft is not wired",
        )
    elif seen.adaptive and seen.round.level > 1:
        return
    elif steps <= 0 or tokens - len(seen.round.requests) <= steps:  # the first token of a request is prefill's
        length = "no verify step ran" if steps <= 0 else f"{tokens:,} tokens in {steps:,} verify steps"
        yield Reason(name="acceptance 1.0", seen=length, advice="the draft is not wired: check the draft model's path")


def _client(measured: Round) -> Iterator[Reason]:
    """Was it the client that was measured? Only of complete rounds: a failure has its own reason."""
    client = measured.client
    if client is None or any(request.failure for request in measured.requests):
        return
    seen: list[str] = []
    if client.turnaround_share > MAX_TURNAROUND_SHARE:
        seen.append(f"streams stood idle {share(round(client.turnaround_share, 3))} of the time between two requests")
    if client.away_share > MAX_AWAY_SHARE:
        seen.append(f"it was away {share(round(client.away_share, 3))} of the time")
    if (unread := unread_chunks(measured)) > MAX_UNREAD_CHUNKS:
        late = f"up to {1000 * _latest_s(client):,.0f} ms late"
        seen.append(f"it read {late}, when about {unread:,.0f} chunks of a stream lay unread")
    if client.cpu_share > MAX_CPU_SHARE:
        seen.append(f"it needed {share(round(client.cpu_share, 3))} of a core")
    if seen:
        yield Reason(
            name="client was the bottleneck",
            seen="; ".join(seen),
            advice="raise client_processes in [workload], or quiet this machine: python -m perf doctor",
        )


def unread_chunks(measured: Round) -> float:
    """About how many chunks of one stream lay unread when the client was latest, at the mean rate of a stream."""
    lag_s = 0.0 if measured.client is None else _latest_s(measured.client)
    spans = [request.chunk_times_s[-1] - request.sent_s for request in measured.requests if request.chunk_times_s]
    chunks = sum(len(request.chunk_times_s) for request in measured.requests)
    return lag_s * chunks / max(sum(spans), 1e-9)


def _latest_s(client: ClientHealth) -> float:
    """How late the client read at its latest, by what is known of either."""
    return max(client.lag_max_s or 0.0, client.away_max_s)


def _host(measured: Round) -> Iterator[Reason]:
    waited = None if measured.client is None else measured.client.run_queue_share
    if waited is not None and waited > MAX_RUN_QUEUE_SHARE:
        yield Reason(
            name="host too busy",
            seen=f"the client was ready to run and waited {share(round(waited, 3))} of the time for a core",
            advice="end other work on this machine: python -m perf doctor names it",
        )


def _output_tokens(measured: Round) -> int | None:
    counts = [request.output_tokens for request in measured.requests if request.failure is None]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(measured.requests) else None
