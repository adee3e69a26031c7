"""SGLang's log: what it says of its decode batches, and why it died. Pure; any text is read and none is believed.

`Decode batch, #running-req: 8, ..., accept len: 3.96, gen throughput (token/s): 635.15, #queue-req: 0` stands there
once every `decode_log_interval` (40) steps of a scheduler. Its throughput and acceptance are those of the steps since
the line before. The spellings are those of SGLang 0.2 to 0.5.23.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean, median

from perf.text import printable, share

#: Fewer lines than this are not compared with what the client saw.
MIN_LINES = 4

#: How far the client's throughput may lie from the log's before it is said: lines stand for 40 steps each, prefill lies
#: between two of them, and streams that end do not all end at once.
MAX_DISAGREEMENT = 0.25

#: A server that queues requests and never ran more than this share of the level is said not to reach it.
MAX_CAPPED_SHARE = 0.9

#: Numbers of a log beyond these are none; 0 is one. Sums over ranks are bounded alike.
MIN_NUMBER = 1e-6
MAX_NUMBER = 1e12

_DECODE = re.compile(
    r"(?P<who>[^\[\]\n]{0,80}(?:\[[^\[\]\n]{0,80}\]|\]|)) ?Decode batch(?: \[\d+\])?[.,] (?P<fields>[^\n]*)"
)
#: Stages of a pipeline and ranks of one tensor-parallel group hold the same requests; data-parallel ranks do not.
_RANKS = re.compile(r"\b(DP|PP|TP)(\d{1,6})\b")
_RETRACTED = re.compile(r"#retracted_reqs: (\d{1,9})\b")
_SWITCHED = "Switch adaptive runtime state"

_PREFIX = re.compile(r"^\[[^\[\]\n]{1,80}\] ")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|OutOfResources)|Exception)(?:: .*)?"
)
_HIT = re.compile(r"\bhit an exception: ")
#: An exception ends a traceback, whatever it is called; what may stand between two that are chained.
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?")
_CHAINED = ("During handling of the above", "The above exception was")
#: What is said where no Python exception ends it.
_FATAL = re.compile(
    r"Fatal Python error: |Segfault encountered|CUDA error: |CUDA out of memory|NCCL error|[Ww]atchdog.* time[ -]?out"
    r"|^\s*what\(\): |: error: (?:unrecognized arguments|argument |the following arguments)|: No module named "
    r"|\[Errno \d+\] |^terminate called |Assertion .* failed|crashed with exit code|[Oo]ut of memory: Killed"
)
#: They follow from another process's end, or only say that there was one.
_FOLLOWED = re.compile(
    r"^(?:EOFError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt|SystemExit|asyncio\.\S*CancelledError)\b"
    r"|[Cc]onnection (?:closed|reset) by peer|remote process exited|error messages above|[Ii]nitialization failed"
    r"|died during initialization|crashed with exit code|^terminate called |Broken pipe|recvValue failed"
)
#: They end a server, though another part of it may still write that it serves.
_LAST = re.compile(
    r"sigquit from a child process|SIGQUIT received|died during initialization|Scheduler hit an|crashed with exit code"
)
#: After an error that ended a server it answers no more.
_LIVES = re.compile(r"\b(?:Decode|Prefill) batch\b|\" 200 OK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """What a server's log says of one round's decoding; of several data-parallel schedulers, their sums.

    `lines` say so. `steps` are about how many decode steps they stand for, None where the server does not tell its
    interval. Requests that ran (median and most), and the most that waited; tok/s while it decodes (the median of lines
    but the first, each of as many steps), and tokens per verify step (their mean), None where no line has it. `eager`
    lines are of batches without a CUDA graph. `retractions` are of requests whose cache was given to others, `switches`
    of how many steps an adaptive server speculates.
    """

    lines: int
    steps: int | None
    running_median: float
    running_max: int
    queue_max: int | None
    throughput: float | None
    acceptance_length: float | None
    eager: int
    retractions: int
    switches: int


def summarize(lines: Iterable[bytes], *, interval: int | None) -> ServerLog | None:
    """What these lines of a log say; None where none is of a decode batch. `interval` is of steps between two."""
    running: dict[str, list[int]] = defaultdict(list)
    speeds: dict[str, list[float]] = defaultdict(list)
    waited: dict[str, list[int]] = defaultdict(list)
    accepted: list[float] = []
    retracted: dict[str, Counter[str]] = defaultdict(Counter)
    eager = switches = 0
    for raw in lines:
        # Most lines of a chatty log are none of these: told without decoding them.
        if b"Decode batch" not in raw:
            if b"#retracted_reqs" in raw and (found := _RETRACTED.search(raw.decode(errors="replace"))):
                ranks = _ranks(found.string[: found.start()])
                retracted[ranks.get("DP", "")][str(ranks)] += int(found[1])  # every rank says it
            switches += _SWITCHED.encode() in raw
            continue
        found = _DECODE.match(raw.decode(errors="replace"))
        fields = dict(_fields(found["fields"])) if found else {}
        count = _number(fields.get("#running-req"))
        if found is None or count is None:
            continue
        ranks = _ranks(found["who"])
        if int(ranks.get("PP", "0")):  # a later stage says again what the first has said
            continue
        rank = ranks.get("DP", "")
        if running[rank]:  # the first stands for the time before the round, too
            if speed := _number(fields.get("gen throughput (token/s)")):
                speeds[rank].append(speed)
            if length := _number(fields.get("accept len")):
                accepted.append(length)
        running[rank].append(int(count))
        if (queued := _number(fields.get("#queue-req"))) is not None:
            waited[rank].append(int(queued))
        eager += fields.get("cuda graph") == "False"
    if not running:
        return None
    return ServerLog(
        lines=sum(map(len, running.values())),
        steps=None if interval is None else interval * max(map(len, running.values())),
        running_median=_sum(median(counts) for counts in running.values()),
        running_max=int(_sum(map(max, running.values()))),
        queue_max=int(_sum(map(max, waited.values()))) if waited else None,
        throughput=_sum(median(each) for each in speeds.values()) if speeds else None,
        acceptance_length=fmean(accepted) if accepted else None,
        eager=eager,
        retractions=int(_sum(max(counts.values()) for counts in retracted.values())),
        switches=switches,
    )


def remarks(log: ServerLog, *, level: int, throughput: float, graphs: bool) -> Iterator[str]:
    """What is said of a round that is believed all the same; `throughput` is the client's, tok/s.

    `graphs` says that the server was not told to do without CUDA graphs.
    """
    queued = log.queue_max or 0
    if queued > 0 and log.running_max <= MAX_CAPPED_SHARE * level:
        yield (
            f"the server never ran more than {log.running_max:,} of {level:,} requests at once, and up to {queued:,} "
            "waited in it: see --max-running-requests"
        )
    if log.retractions:
        yield f"the server's cache was full: it put {log.retractions:,} requests back"
    if graphs and log.eager:
        yield f"decode batches without a CUDA graph: {log.eager:,} of the {log.lines:,} that the server logged"
    if log.throughput is not None and log.lines >= MIN_LINES:
        apart = throughput / log.throughput - 1
        if abs(apart) > MAX_DISAGREEMENT:
            yield (
                f"the server's log says {log.throughput:,.0f} tok/s while it decodes, the client saw "
                f"{throughput:,.0f}: {share(abs(round(apart, 3)))} {'more' if apart > 0 else 'less'}"
            )


def reason(tail: str) -> str | None:
    """The line of a log's end that says why its server ended, harmless and short; None where none does.

    The first exception that a part of SGLang was hit by, else the last error after which nothing was served, else one
    that only says that something else ended.
    """
    # Of a progress bar that rewrites its line, what was visible last.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in tail.split("\n")]
    hits = [number for number, line in enumerate(lines) if _HIT.search(line)]
    lived = max((number for number, line in enumerate(lines) if _LIVES.search(line)), default=-1)
    said = [
        *(line for number in hits if (line := _raised(lines, number)) is not None),
        *reversed([line for line in lines[lived + 1 :] if _tells(line)]),
        *(line for line in lines if _LAST.search(line)),
    ]
    causes = [line for line in said if not _FOLLOWED.search(_bare(line)) and not _LAST.search(line)]
    return next((printable(_bare(line)) for line in (*causes, *said)), None)


def is_ending(tail: str) -> bool:
    """Does SGLang say there that it ends itself, since a part of it died?

    It waits for dumps before it does, for more than a minute, and answers nobody meanwhile.
    """
    return _LAST.search(tail) is not None


def _raised(lines: list[str], start: int) -> str | None:
    """The exception that ends the traceback begun here, and those that were raised while it was handled."""
    last, within = None, True
    for line in lines[start + 1 :]:
        if within:
            if _RAISED.fullmatch(line):
                last, within = line, False
        elif line.startswith("Traceback ("):
            within = True
        elif line.strip() and not line.startswith(_CHAINED):
            break
    return last


def _tells(line: str) -> bool:
    bare = _bare(line)
    return bool(_EXCEPTION.fullmatch(bare) or _FATAL.search(bare))


def _bare(line: str) -> str:
    return _PREFIX.sub("", line, count=1)


def _ranks(prefix: str) -> dict[str, str]:
    """Of a scheduler, by kind, as its prefix tells them; the first of each."""
    return dict(reversed(_RANKS.findall(prefix)))


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, _, value = part.partition(":")
        yield name.strip(), value.strip()


def _number(text: str | None) -> float | None:
    """A number that a log may mean; None for what is none, negative, or beyond belief."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value == 0 or MIN_NUMBER <= value <= MAX_NUMBER else None


def _sum(values: Iterable[float]) -> float:
    return min(float(sum(values)), MAX_NUMBER)
