"""What moved with a change of throughput: its exact split into causes, and what else changed beside it. Pure.

An explanation, never a verdict: the gate judges throughput alone. Every formula and its limits: docs/what-moved.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy import special

from perf.sample import LaunchSample, Pace, relative
from perf.text import milliseconds, percent, share, throughput

#: Each end of an interval here: a plain 95 % one, since nothing is decided by it.
TAIL = 0.025

#: A share is given as a number where its 95 % interval is this narrow, and as "all" where it is this near to 1.
MAX_SHARE_ERROR = 0.35
ALL = 0.1

#: The interval at equal acceptance is shown where it is this many times narrower: below that it tells nothing new.
MIN_NARROWER = 2.0

#: The client's use of a core moves by some percent from night to night; by this much, something else runs there.
CPU_MATTERS = 0.1

#: Of GPUs: a clock by which throughput may have moved, and what power and heat vary by from night to night.
CLOCK_MATTERS = 0.003
POWER_MATTERS = 0.05
CELSIUS_MATTER = 5.0

_Rounds = Callable[[LaunchSample], Iterable[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change in natural logarithms with its 95 % interval, which is infinite where one launch stands on each side.

    `moved` is what the interval supports: True for a material change, False where a change of the margin is excluded,
    None where neither can be said.
    """

    log: float
    lo: float
    hi: float
    moved: bool | None

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.hi - self.lo) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A metric before and after, geometric means over launches and their rounds, in tok/s, seconds or plain numbers."""

    name: str
    unit: str
    before: float
    after: float
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one metric did to log throughput; the parts and what is unexplained add up to its change.

    `share` is the part of the change of throughput that it explains, with the half-width of its 95 % interval; both are
    None unless throughput moved.
    """

    change: Change
    effect: Effect
    share: float | None
    share_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualAcceptance:
    """The change of throughput as it was, and at equal acceptance length; None where no width can be compared."""

    raw: Effect
    equal: Effect
    narrower: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why throughput changed. `parts` is empty where what they need was not stored.

    `rig` says how the GPUs fared on both sides; None where they were not sampled on either.
    """

    throughput: Change
    parts: tuple[Part, ...]
    unexplained: Effect | None
    equal_acceptance: EqualAcceptance | None
    beside: tuple[Change, ...]
    client: tuple[str, ...]
    rig: str | None


def explain(before: tuple[LaunchSample, ...], after: tuple[LaunchSample, ...], *, margin: float) -> Explanation:
    """Explain the change of throughput from one sample to another; `margin` is the relative loss that matters.

    Raises ValueError for an empty sample, and for a throughput or a margin that is none.
    """
    if not 0 < margin < 1:
        raise ValueError(f"the margin is a relative loss between 0 and 1; seen {margin}")
    samples = _Samples(before=before, after=after, log_margin=-math.log1p(-margin))
    rate = samples.read("throughput", "tok/s", lambda launch: launch.output_throughput)
    if rate is None:
        raise ValueError(
            "a sample must be launches with a positive throughput in every round; seen none, or another number"
        )
    acceptance = samples.read("acceptance length", "", lambda launch: launch.acceptance_length)
    causes = _closed_loop(samples) if acceptance is None else _speculative(samples, rate, acceptance)
    unexplained = _sum([rate.values, *(_scaled(cause.values, -weight) for cause, weight in causes)])
    beside = (
        samples.read("TTFT", "s", lambda launch: launch.ttft_s),
        samples.read("TPOT", "s", lambda launch: launch.tpot_s),
        samples.read("ITL p99", "s", lambda launch: launch.itl_p99_s),
        samples.read("concurrency", "", lambda launch: launch.achieved_concurrency) if acceptance else None,
    )
    return Explanation(
        throughput=rate.change,
        parts=tuple(_part(samples, cause, weight, rate) for cause, weight in causes),
        unexplained=samples.effect(unexplained) if causes else None,
        equal_acceptance=_equal_acceptance(rate, causes[1][0]) if acceptance else None,
        beside=tuple(metric.change for metric in beside if metric is not None),
        client=tuple(_client(before, after, margin)),
        rig=_rig(before, after),
    )


# Numbers

#: One number per launch, before and after: logarithms, or sums of them.
_Values = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    change: Change
    values: _Values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    before: tuple[LaunchSample, ...]
    after: tuple[LaunchSample, ...]
    log_margin: float

    def read(self, name: str, unit: str, rounds: _Rounds) -> _Metric | None:
        """A metric of every launch; None where a round of one lacks it, or has no positive number."""
        first, second = _logs(self.before, rounds), _logs(self.after, rounds)
        return None if first is None or second is None else self.metric(name, unit, (first, second))

    def metric(self, name: str, unit: str, values: _Values) -> _Metric:
        before, after = (math.exp(_mean(side)) for side in values)
        change = Change(name=name, unit=unit, before=before, after=after, effect=self.effect(values))
        return _Metric(change=change, values=values)

    def effect(self, values: _Values) -> Effect:
        log = _mean(values[1]) - _mean(values[0])
        half = _half_width(values)
        lo, hi = log - half, log + half
        moved: bool | None = None
        if not lo <= 0 <= hi and abs(log) >= self.log_margin / 3:
            moved = True
        elif -self.log_margin < lo and hi < self.log_margin:
            moved = False
        return Effect(log=log, lo=lo, hi=hi, moved=moved)


def _speculative(samples: _Samples, rate: _Metric, acceptance: _Metric) -> tuple[tuple[_Metric, float], ...]:
    """tok/s = tokens per verify step x verify steps/s, in every round."""
    steps = samples.metric("steps/s", "", _sum([rate.values, _scaled(acceptance.values, -1.0)]))
    return ((acceptance, 1.0), (steps, 1.0))


def _closed_loop(samples: _Samples) -> tuple[tuple[_Metric, float], ...]:
    """tok/s = concurrency x tokens of a request / (time to its first token + time from there to its last).

    The last two are weighed with logarithmic means (the decomposition LMDI-I: Ang, Energy Policy 33, 2005), so that
    they add up to the change of log E2E, and change their signs where the sides change places.
    """

    def decoding(launch: LaunchSample) -> Iterable[float | None]:
        pairs = zip(launch.e2e_mean_s, launch.ttft_mean_s, strict=True)
        return (None if whole is None or first is None else whole - first for whole, first in pairs)

    concurrency = samples.read("concurrency", "", lambda launch: launch.achieved_concurrency)
    whole = samples.read("E2E", "s", lambda launch: launch.e2e_mean_s)
    first = samples.read("mean TTFT", "s", lambda launch: launch.ttft_mean_s)
    later = samples.read("decode time", "s", decoding)
    if concurrency is None or whole is None or first is None or later is None:
        return ()
    of = _logarithmic_mean(whole.change)
    return (
        (concurrency, 1.0),
        (first, -_logarithmic_mean(first.change) / of),
        (later, -_logarithmic_mean(later.change) / of),
    )


def _part(samples: _Samples, cause: _Metric, weight: float, rate: _Metric) -> Part:
    values = _scaled(cause.values, weight)
    effect, total = samples.effect(values), rate.change.effect
    explained = error = None
    if total.moved:
        explained = effect.log / total.log
        # By the delta method: of what is left where that much of the change is taken away, in units of the change.
        error = _half_width(_sum([values, _scaled(rate.values, -explained)])) / abs(total.log)
    return Part(change=cause.change, effect=effect, share=explained, share_error=error)


def _equal_acceptance(rate: _Metric, steps: _Metric) -> EqualAcceptance:
    raw, equal = rate.change.effect, steps.change.effect
    known = math.isfinite(raw.half_width) and equal.half_width > 1e-12  # what only rounding tells apart has no width
    return EqualAcceptance(raw=raw, equal=equal, narrower=raw.half_width / equal.half_width if known else None)


def _logs(launches: tuple[LaunchSample, ...], rounds: _Rounds) -> tuple[float, ...] | None:
    """The mean logarithm over the rounds of each launch."""
    found: list[float] = []
    for launch in launches:
        values = [math.log(value) if value is not None and 0 < value < math.inf else None for value in rounds(launch)]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            return None
        found.append(_mean(known))
    return tuple(found) or None


def _mean(values: Sequence[float]) -> float:
    """Correctly rounded sums: the order of launches and of rounds changes no bit."""
    return math.fsum(values) / len(values)


def _half_width(values: _Values) -> float:
    """Of the 95 % t interval of a difference of means, the launch as the unit.

    Pooled over both samples, but no side is taken for steadier than its own launches say.
    """
    means = [_mean(side) for side in values]
    squares = [math.fsum((value - mean) ** 2 for value in side) for side, mean in zip(values, means, strict=True)]
    counts = [len(side) for side in values]
    freedom = sum(counts) - 2
    if freedom < 1:
        return math.inf
    pooled = math.fsum(squares) / freedom
    variance = math.fsum(
        max(pooled, own / (count - 1) if count > 1 else 0.0) / count for own, count in zip(squares, counts, strict=True)
    )
    return _t(freedom) * math.sqrt(variance)


@lru_cache(maxsize=256)
def _t(freedom: int) -> float:
    return float(special.stdtrit(freedom, 1 - TAIL))


def _logarithmic_mean(change: Change) -> float:
    """(after - before) / log(after / before), written so that it is the same both ways and holds for no change."""
    half = change.effect.log / 2
    return math.sqrt(change.before) * math.sqrt(change.after) * (math.sinh(half) / half if half else 1.0)


def _scaled(values: _Values, factor: float) -> _Values:
    return tuple(factor * value for value in values[0]), tuple(factor * value for value in values[1])


def _sum(terms: Sequence[_Values]) -> _Values:
    def side(number: int) -> tuple[float, ...]:
        return tuple(math.fsum(each) for each in zip(*(term[number] for term in terms), strict=True))

    return side(0), side(1)


def _client(before: tuple[LaunchSample, ...], after: tuple[LaunchSample, ...], margin: float) -> Iterable[str]:
    """In words, where the client fared so much otherwise that it may have moved the numbers."""
    shares: tuple[tuple[str, _Rounds, float], ...] = (
        ("streams idle", lambda launch: launch.turnaround_share, margin / 3),
        ("away", lambda launch: launch.away_share, margin / 3),
        ("using a core by", lambda launch: launch.cpu_share, CPU_MATTERS),
    )
    for what, rounds, matters in shares:
        was, now = ([value for launch in launches for value in rounds(launch)] for launches in (before, after))
        known_was, known_now = ([value for value in values if value is not None] for values in (was, now))
        if known_was and known_now and abs(_mean(known_now) - _mean(known_was)) >= matters:
            yield f"{what} {share(round(_mean(known_now), 3))}, was {share(round(_mean(known_was), 3))}"


def _rig(before: tuple[LaunchSample, ...], after: tuple[LaunchSample, ...]) -> str | None:
    """How the GPUs fared, in words: what is not as it was with its numbers."""
    was, now = ([each for launch in side for each in launch.pace if each is not None] for side in (before, after))
    if not was or not now:
        return None

    def text(name: str, unit: str, of: Callable[[Pace], float | None], matters: Callable[[float], float]) -> str | None:
        """None where either side does not tell; the name alone where it is as it was."""
        first, second = ([value for each in side if (value := of(each)) is not None] for side in (was, now))
        if not first or not second:
            return None
        old, new = _mean(first), _mean(second)
        return name if abs(new - old) <= matters(old) else f"{name} {new:,.0f} {unit}, was {old:,.0f}"

    told = [
        text("clocks", "MHz", lambda each: each.sm_clock_median_mhz, lambda old: CLOCK_MATTERS * old),
        text("power", "W", lambda each: each.power_w, lambda old: POWER_MATTERS * old),
        text("temperature", "degrees Celsius", lambda each: each.celsius, lambda _: CELSIUS_MATTER),
    ]
    known = [each for each in told if each is not None]
    same = [each for each in known if each in ("clocks", "power", "temperature")]
    texts = [*(each for each in known if each not in same), *([f"{', '.join(same)} as baselined"] if same else [])]
    return "; ".join(texts)


# Text


def lines(explanation: Explanation, *, on_gpus: bool) -> tuple[tuple[str, str], ...]:
    """A screen's lines, each with its label: what moved, and where they say something, acceptance and the client.

    `on_gpus` says that there are clocks that could have moved.
    """
    beside = ", ".join(_beside(change) for change in explanation.beside if _is_shown(change))
    unseen = on_gpus and explanation.rig is None
    beside = "; ".join([*([beside] if beside else []), *(["clocks not sampled"] if unseen else [])])
    texts = [each for each in (_parts(explanation), beside) if each]
    found = [(label, text) for label, text in zip(("moved with it", ""), texts, strict=False)]
    covariate = explanation.equal_acceptance
    if covariate is not None and covariate.narrower is not None and covariate.narrower >= MIN_NARROWER:
        text = (
            f"throughput {_interval(covariate.equal)}, {covariate.narrower:.1f} times narrower than as measured: "
            f"{_interval(covariate.raw)}"
        )
        found.append(("same acceptance", text))
    if explanation.rig is not None:
        found.append(("rig", explanation.rig))
    if explanation.client:
        found.append(("client", ", ".join(explanation.client)))
    return tuple(found)


def _is_shown(change: Change) -> bool:
    """Concurrency is what was asked for unless it moved."""
    return change.name != "concurrency" or change.effect.moved is True


def _parts(explanation: Explanation) -> str:
    """What explains most first, then what is not known, then what did nothing."""
    told: list[tuple[float, str]] = []
    unclear, small, unchanged = [], [], []
    for part in explanation.parts:
        if part.effect.moved:
            told.append((-abs(part.effect.log), f"{_values(part.change)}{_explains(part, explanation)}"))
        elif part.effect.moved is None:
            unclear.append(part.change.name)
        elif part.change.effect.moved is False:
            unchanged.append(part.change.name)
        else:
            small.append(_values(part.change) if part.change.effect.moved else part.change.name)
    texts = [text for _, text in sorted(told)]
    for names, what in ((unclear, "unclear (?)"), (small, "of little weight (~)"), (unchanged, "unchanged (~)")):
        if names:
            texts.append(f"{', '.join(names)} {what}")
    if explanation.unexplained is not None and explanation.unexplained.moved:
        texts.append(f"unexplained {percent(relative(explanation.unexplained.log))}")
    return "; ".join(texts)


def _explains(part: Part, explanation: Explanation) -> str:
    """The share as far as it is known."""
    if part.share is None or part.share_error is None:
        return ""
    if part.share < 0:
        return " works against it"
    if part.share_error > MAX_SHARE_ERROR:
        return " explains some of it"
    others = [each for each in explanation.parts if each is not part]
    if abs(part.share - 1) <= ALL and all(each.effect.moved is False for each in others):
        return " explains all of it"
    if part.share > 1 + ALL:
        return " explains more than all of it"
    return f" explains {100 * part.share:.0f} % of it"


def _beside(change: Change) -> str:
    if change.effect.moved is None:
        return f"{change.name} unclear (?)"
    return _values(change) if change.effect.moved else f"{change.name} unchanged (~)"


def _values(change: Change) -> str:
    """`TTFT 102 -> 131 ms (+28.4 %, slower)`."""
    if change.unit == "s":
        seen = f"{milliseconds(change.before)} -> {milliseconds(change.after)} ms"
        word = ", slower" if change.effect.log > 0 else ", faster"
    else:
        seen, word = f"{throughput(change.before)} -> {throughput(change.after)}", ""
    return f"{change.name} {seen} ({percent(relative(change.effect.log))}{word})"


def _interval(effect: Effect) -> str:
    """`-5.0 % [-5.6 %, -4.4 %]`; without the percentage where it means nothing."""
    says = {True: percent(relative(effect.log)), False: "unchanged (~)", None: "unclear (?)"}[effect.moved]
    return f"{says} [{percent(relative(effect.lo))}, {percent(relative(effect.hi))}]"
