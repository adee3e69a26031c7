"""The sample: one case's numbers, launch by launch. The launch is the statistical unit. Pure data."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from perf.text import printable

#: The schema of stored samples; a change of it comes with a step in `migration`.
SCHEMA = 2

#: Launches that are kept only for what they say about noise: 15 nights of 4. More would steady no variance any further,
#: and a level is a line that people review.
MAX_OTHERS = 60

#: One launch of a campaign says nothing of how launches of one night differ.
LEAST_OF_A_NIGHT = 2

#: Arguments that a note names; what a new version resolves otherwise may be many.
MAX_ARGUMENTS_TOLD = 6

#: Name and value of what may differ and is told: see `differences`.
Fingerprint = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a server's interpreter has installed; None where it is not there or not told.

    `commit` and `dirty` are of an editable install: the commit, and a digest of what differs from it, None where
    nothing does. `cuda` is the version that torch was built for. `kernels` are the packages that bring kernels, with
    their versions, by name; `packages` is a digest over the name and version of every installed package.
    """

    sglang: str | None
    torch: str | None
    cuda: str | None
    commit: str | None
    dirty: str | None
    kernels: tuple[tuple[str, str], ...]
    packages: str

    def __str__(self) -> str:
        """`sglang 0.5.23 at 9f3e1d0c21ab, changed (5d41402a)`."""
        told = f"sglang {self.sglang}" if self.sglang else "no sglang installed"
        if self.commit:
            told += f" at {self.commit[:12]}"
        return told + (f", changed ({self.dirty[:8]})" if self.dirty else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the GPUs of a round fared, where they were sampled; of SM clocks (MHz) the lowest card's: it sets the pace.

    The mean is None of few looks, of which a single one moves it. `power_w` is the mean draw of all cards together,
    `celsius` the hottest; None where a board does not tell.
    """

    sm_clock_median_mhz: float
    sm_clock_mean_mhz: float | None
    power_w: float | None
    celsius: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSample:
    """One launch's numbers of one case, each once for every round.

    tok/s, output tokens per verify step, and the medians of TTFT and TPOT in seconds; `start_s` is how long the server
    took to be ready, None for one that already ran. The rest says what moved: the means over requests of TTFT and E2E,
    the 99th percentile of ITL, all in seconds, requests in flight, and the client's shares as in `trace.ClientHealth`;
    None in what version 0.1 stored. `pace` is how the GPUs fared, None in a round that was not sampled, and empty where
    none was.
    """

    campaign: str
    launch: str
    start_s: float | None
    output_throughput: tuple[float, ...]
    acceptance_length: tuple[float | None, ...]
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float | None, ...]
    ttft_mean_s: tuple[float | None, ...]
    e2e_mean_s: tuple[float | None, ...]
    achieved_concurrency: tuple[float | None, ...]
    itl_p99_s: tuple[float | None, ...]
    turnaround_share: tuple[float | None, ...]
    away_share: tuple[float | None, ...]
    cpu_share: tuple[float | None, ...]
    pace: tuple[Pace | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """What became the baseline, when (UTC, ISO 8601) and why; `throughput` is the launches' geometric mean, tok/s.

    `comparable` says that it was asked what the promotion before it was, under the same conditions: only then does the
    change of throughput mean something. None for the first, and in what version 0.1 stored.
    """

    promoted_at: str
    reason: str
    campaign: str
    throughput: float
    launches: int
    comparable: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCase:
    """The sample a case is judged against, and what was the same for all of it.

    Workload digest, power limits and simulated acceptance must be tonight's; command and environment (the suite's own,
    without a machine's paths), model, version, build and the machine's `fingerprint` are noted where they differ, since
    they are what is being tested. The fingerprint is empty where it is not known and where time is synthetic;
    `server_arguments`, as the server resolved those that decide its speed, are where it tells none.

    `launches` say how fast it is, and how launches vary. `others` are launches of whole earlier campaigns that were the
    baseline once: they were asked the same, of another build perhaps. They say nothing of how fast it is now, only how
    launches of one night vary around their own mean, so a night (a campaign) is never in both.
    """

    schema: int
    case: str
    level: int
    workload_digest: str
    power_limits_w: tuple[float | None, ...]
    simulated_acceptance: str | None
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    model: str | None
    server_version: str | None
    build: Build | None
    fingerprint: Fingerprint
    launches: tuple[LaunchSample, ...]
    others: tuple[LaunchSample, ...]  # newest campaign first
    promotions: tuple[Promotion, ...]  # oldest first; the last is the one that holds
    server_arguments: tuple[tuple[str, str], ...]

    @property
    def promotion(self) -> Promotion:
        """The promotion that holds."""
        return self.promotions[-1]

    @property
    def history(self) -> tuple[Promotion, ...]:
        """The promotions whose throughputs can be compared with that of the last: it, and what led to it."""
        # The first is what it begins with, whatever came before; of version 0.1 nobody knows what was asked.
        start = max(place for place, each in enumerate(self.promotions) if place == 0 or each.comparable is not True)
        return self.promotions[start:]

    @property
    def drift(self) -> float | None:
        """The relative change from the oldest comparable promotion to the last; None where there is but one."""
        first, *others = self.history
        return self.promotion.throughput / first.throughput - 1 if others else None

    def has_drifted(self, margin: float) -> bool:
        """Did promotions lose more than the margin since the oldest comparable one, though none did by itself?"""
        steps = [after.throughput / before.throughput - 1 for before, after in pairwise(self.history)]
        return self.drift is not None and self.drift < -margin <= min(steps)

    @property
    def nights(self) -> tuple[int, int]:
        """Of how many campaigns are `launches`, and `others`."""
        return len(by_campaign(self.launches)), len(by_campaign(self.others))


def is_sound(case: StoredCase) -> bool:
    """Can it be judged against: different launches of finite positive numbers, as they were promoted, of our schema?"""
    everything, nights = (*case.launches, *case.others), by_campaign(case.others)
    return (
        case.schema == SCHEMA
        and bool(case.promotions)
        and all(0 < each.throughput < math.inf for each in case.promotions)
        and bool(case.launches)
        and len({(launch.campaign, launch.launch) for launch in everything}) == len(everything)
        and all(_is_sound(launch) for launch in everything)
        and all(len(night) >= LEAST_OF_A_NIGHT for night in nights.values())
        and not nights.keys() & by_campaign(case.launches).keys()
        and case.promotion.launches == len(case.launches)
        and math.isclose(case.promotion.throughput, geometric_mean(throughputs(case.launches)), rel_tol=1e-9)
    )


def are_comparable(one: StoredCase, other: StoredCase) -> bool:
    """Were two samples asked the same under the same conditions, so that one may join or be judged by the other?"""
    return (
        one.workload_digest == other.workload_digest
        and one.power_limits_w == other.power_limits_w
        and one.simulated_acceptance == other.simulated_acceptance
    )


def may_join(one: StoredCase, other: StoredCase) -> bool:
    """Are two samples of one thing, so that their launches are one sample? An unknown build is not another."""
    return (
        are_comparable(one, other)
        and (one.command, one.env) == (other.command, other.env)
        and (one.build is None or other.build is None or one.build == other.build)
    )


def joined(old: StoredCase, new: StoredCase) -> StoredCase:
    """`new` with the launches of `old` before its own; of a launch that is in both, the new one."""
    known = {(launch.campaign, launch.launch) for launch in new.launches}
    kept = tuple(each for each in old.launches if (each.campaign, each.launch) not in known)
    return _promoted(old, new, launches=(*kept, *new.launches), others=old.others, build=new.build or old.build)


def succeeded(old: StoredCase, new: StoredCase) -> StoredCase:
    """`new` in place of `old`, whose launches tell of noise from now on."""
    others = (*old.launches, *old.others) if are_comparable(old, new) else ()
    return _promoted(old, new, launches=new.launches, others=others, build=new.build)


def _promoted(
    old: StoredCase,
    new: StoredCase,
    *,
    launches: tuple[LaunchSample, ...],
    others: tuple[LaunchSample, ...],
    build: Build | None,
) -> StoredCase:
    latest = replace(
        new.promotion,
        throughput=geometric_mean(throughputs(launches)),
        launches=len(launches),
        comparable=are_comparable(old, new),
    )
    return replace(
        new,
        build=build,
        launches=launches,
        others=_kept(others, without=by_campaign(launches).keys()),
        promotions=(*old.promotions, latest),
    )


def _kept(others: tuple[LaunchSample, ...], *, without: Iterable[str]) -> tuple[LaunchSample, ...]:
    """What is kept to tell of noise: the newest whole nights that do, as many as there is room for."""
    nights = by_campaign(others)
    kept: tuple[LaunchSample, ...] = ()
    for campaign in sorted(nights.keys() - set(without), reverse=True):  # they are named by the time
        if LEAST_OF_A_NIGHT <= len(nights[campaign]) <= MAX_OTHERS - len(kept):
            kept += nights[campaign]
    return kept


def by_campaign(launches: Iterable[LaunchSample]) -> dict[str, tuple[LaunchSample, ...]]:
    """Launches by the campaign, the night, that they are of."""
    found: dict[str, tuple[LaunchSample, ...]] = {}
    for launch in launches:
        found[launch.campaign] = (*found.get(launch.campaign, ()), launch)
    return found


def differences(stored: StoredCase, fingerprint: Fingerprint, build: Build | None) -> tuple[str, ...]:
    """What of the machine and of the server's packages is not as it was: `driver 575.51, was 570.86`. Harmless text.

    `-` stands for what is not there. A side of which nothing is known differs in nothing, and of a build version,
    commit and digest are told by `Build` itself.
    """
    return (
        *_differences(stored.fingerprint, fingerprint),
        *_differences(() if stored.build is None else _parts(stored.build), () if build is None else _parts(build)),
    )


def resolved_otherwise(stored: StoredCase, arguments: Fingerprint, version: str | None) -> str | None:
    """What the server made of its arguments that is not as it was, in harmless text; None where all is or is not known.

    What is not there is off, `-`; but another version has other arguments, so of it only those that both have are told.
    """
    was, now = dict(stored.server_arguments), dict(arguments)
    names = was.keys() | now.keys() if version == stored.server_version else was.keys() & now.keys()
    changed = [
        f"{printable(name, 40)} {_told(now.get(name))}, was {_told(was.get(name))}"
        for name in sorted(names)
        if was and now and was.get(name) != now.get(name)
    ]
    more = len(changed) - MAX_ARGUMENTS_TOLD
    told = "; ".join(changed[:MAX_ARGUMENTS_TOLD]) + (f"; and {more} more" if more > 0 else "")
    return f"arguments that the server resolved otherwise: {told}" if changed else None


def _differences(was: Fingerprint, now: Fingerprint) -> Iterator[str]:
    before, after = dict(was), dict(now)
    if before and after:
        for name in dict.fromkeys((*after, *before)):
            if before.get(name) != after.get(name):
                yield f"{printable(name, 40)} {_told(after.get(name))}, was {_told(before.get(name))}"


def _told(value: str | None) -> str:
    return printable(value or "", 80) or "-"


def _parts(build: Build) -> Fingerprint:
    """What `differences` tells of a build; never empty."""
    return (("torch", build.torch or ""), ("CUDA of torch", build.cuda or ""), *build.kernels)


def _is_sound(launch: LaunchSample) -> bool:
    rounds = len(launch.output_throughput)
    return (
        rounds > 0
        and len(launch.pace) in (0, rounds)
        and all(
            each.sm_clock_median_mhz > 0 and (each.sm_clock_mean_mhz is None or each.sm_clock_mean_mhz > 0)
            for each in launch.pace
            if each is not None
        )
        and all(math.isfinite(value) and value > 0 for value in launch.output_throughput)
        and all(
            len(values) == rounds
            for values in (
                launch.acceptance_length,
                launch.ttft_s,
                launch.tpot_s,
                launch.ttft_mean_s,
                launch.e2e_mean_s,
                launch.achieved_concurrency,
                launch.itl_p99_s,
                launch.turnaround_share,
                launch.away_share,
                launch.cpu_share,
            )
        )
    )


def relative(log: float) -> float:
    """The relative change that a log-ratio is (0.02 is 2 % more); infinite where no number is so large."""
    try:
        return math.expm1(log)
    except OverflowError:
        return math.inf


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers: the mean in the logarithms the gate works with."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def throughputs(launches: Iterable[LaunchSample]) -> tuple[float, ...]:
    """One number per launch, tok/s: the geometric mean over its rounds."""
    return tuple(geometric_mean(launch.output_throughput) for launch in launches)
