"""Why a round must not be believed. Pure: each check is a function of what was seen, and names what to do."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields

from perf.text import printable, share
from perf.trace import Counters, Round

#: Client and server may differ by this much: some servers count a token more or less at the ends of a request.
MAX_DISAGREEMENT = 0.01

#: Prompt tokens that may come from the cache, beyond the chat template that all requests share.
MAX_CACHED_SHARE = 0.02

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
    """What is known of one round beside its requests: the server's counters before and after it, and its death."""

    round: Round
    before: Counters | None
    after: Counters | None
    speculative: bool
    level_must_be_reached: bool
    death: str | None

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
        )
        for reason in reasons
    )


def check_warmup(warmup: Round, death: str | None) -> tuple[Reason, ...]:
    """Why the round behind this warm-up must not be measured; none where every request was served."""
    failures = _failures(warmup)
    if failures is None and len(warmup.requests) == warmup.planned_requests:
        return ()
    reason = Reason(
        name="warm-up failed",
        seen=failures or f"{len(warmup.requests)} of {warmup.planned_requests} requests were made",
        advice="a server that is not warm would be measured cold: read the server log",
    )
    return (*_died(death), reason)


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
    after, counted = seen.after or Counters(), seen.counted or Counters()
    lost: list[str] = []
    for counter in fields(Counters):
        was, now, count = (getattr(each, counter.name) for each in (seen.before, after, counted))
        if was is not None and count is None:
            lost.append(f"{counter.name} {was:,} before the round, {'none' if now is None else f'{now:,}'} after it")
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
    elif steps <= 0 or tokens - len(seen.round.requests) <= steps:  # the first token of a request is prefill's
        length = "no verify step ran" if steps <= 0 else f"{tokens:,} tokens in {steps:,} verify steps"
        yield Reason(name="acceptance 1.0", seen=length, advice="the draft is not wired: check the draft model's path")


def _output_tokens(measured: Round) -> int | None:
    counts = [request.output_tokens for request in measured.requests if request.failure is None]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(measured.requests) else None
