"""What a launch costs in rig-minutes, before they are spent: a forecast, never a part of a verdict. Pure.

A level of a launch takes, for each of its rounds,

    measured   requests * output tokens / output throughput at the level
    warm-up    warm-up requests * output tokens / output throughput at min(level, warm-up requests)

The first is the definition of output throughput turned round. The second is how the warm-up is sent: a closed loop of
its own before every round, no wider than it has requests (`load.Client.warm_up`); its last requests leave it emptier
than that, so it is a little longer. To the levels comes the start of the server. Its end is not counted: seconds; nor
are the few answers that a first launch gives for a `same_output`.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tabulate import tabulate

from perf.campaign import DEFAULT_MAX_LAUNCHES, MAX_LAUNCHES_WITH_BUDGET
from perf.interval import looks
from perf.sample import StoredCase, geometric_mean, throughputs
from perf.suite import Gate, Suite, Variant
from perf.text import duration, throughput

#: Where a throughput comes from: the stored baseline's launches, or the suite's `expected_tok_s`.
Source = Literal["stored", "expected"]

NO_FORECAST = "no forecast: measure once, or state expected_tok_s"

#: Levels and tok/s, ascending in the level.
Curve = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelForecast:
    """One level of one launch, all its rounds. tok/s and seconds are None together."""

    name: str
    requests: int
    output_tokens: int
    warmup_tokens: int
    throughput: float | None
    source: Source | None
    warmup_s: float | None
    measured_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantForecast:
    """One launch of a variant. `start_s` is the median of the stored launches."""

    name: str
    start_s: float | None
    levels: tuple[LevelForecast, ...]

    @property
    def output_tokens(self) -> int:
        """Everything a launch has the server produce, the warm-up too."""
        return sum(level.output_tokens + level.warmup_tokens for level in self.levels)

    @property
    def levels_s(self) -> float | None:
        """All levels, warm-up and measured; None where one of them is not known."""
        parts = [(level.warmup_s, level.measured_s) for level in self.levels]
        known = [warmup + measured for warmup, measured in parts if warmup is not None and measured is not None]
        return math.fsum(known) if len(known) == len(parts) else None

    @property
    def sources(self) -> str:
        """`stored`, `expected`, or both."""
        return " and ".join(sorted({level.source for level in self.levels if level.source}, reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A suite. `counts` are the numbers of launches of every variant that its cost is told for."""

    suite: str
    variants: tuple[VariantForecast, ...]
    counts: tuple[int, ...]
    budget_s: float | None

    @property
    def unknown(self) -> tuple[str, ...]:
        """The variants without a forecast."""
        return tuple(variant.name for variant in self.variants if variant.levels_s is None)

    @property
    def without_start(self) -> tuple[str, ...]:
        """The variants whose server's start is not known, and not in any sum."""
        return tuple(variant.name for variant in self.variants if variant.start_s is None)

    @property
    def launches_s(self) -> float | None:
        """One launch of every variant, as far as its start is known; None where a variant has no forecast."""
        if self.unknown:
            return None
        return math.fsum((variant.levels_s or 0.0) + (variant.start_s or 0.0) for variant in self.variants)


def forecast(suite: Suite, stored: Mapping[tuple[str, int], StoredCase]) -> Forecast:
    """What a suite costs. `stored` are its stored baselines on one rig, by variant and level.

    They count although the workload changed since: a forecast need not be comparable.
    """
    return Forecast(
        suite=suite.name,
        variants=tuple(_variant(suite, variant, stored) for variant in suite.variants),
        counts=(1,) if suite.advisory else looks(1, min(most_launches(suite.gate), DEFAULT_MAX_LAUNCHES)),
        budget_s=None if suite.gate.budget_minutes is None else 60 * suite.gate.budget_minutes,
    )


def most_launches(gate: Gate) -> int:
    """The cap of each arm of a variant: the suite's, or else a lower one where no budget ends a campaign."""
    return gate.max_launches or (DEFAULT_MAX_LAUNCHES if gate.budget_minutes is None else MAX_LAUNCHES_WITH_BUDGET)


def _variant(suite: Suite, variant: Variant, stored: Mapping[tuple[str, int], StoredCase]) -> VariantForecast:
    cases = {level: case for (name, level), case in stored.items() if name == variant.name}
    known: dict[int, tuple[float, Source]] = {}
    for level in suite.workload.levels:
        if level in cases:
            known[level] = (geometric_mean(throughputs(cases[level].launches)), "stored")
        elif variant.expected_tok_s:
            known[level] = (interpolated(variant.expected_tok_s, level), "expected")
    curve = sorted((level, value) for level, (value, _) in known.items())
    launches = {(each.campaign, each.launch): each.start_s for case in cases.values() for each in case.launches}
    starts = [start_s for start_s in launches.values() if start_s is not None]
    return VariantForecast(
        name=variant.name,
        start_s=statistics.median(starts) if starts else None,
        levels=tuple(_level(suite, level, known.get(level), curve) for level in suite.workload.levels),
    )


def _level(suite: Suite, level: int, known: tuple[float, Source] | None, curve: Curve) -> LevelForecast:
    workload = suite.workload
    requests, warmup = workload.rounds * workload.requests(level), workload.rounds * workload.warmup_requests
    tokens, warmup_tokens = requests * workload.tokens(level), warmup * workload.tokens(level)
    value, source = known or (None, None)
    warmup_s = measured_s = None
    if value is not None:
        width = max(1, min(level, workload.warmup_requests))
        warmup_s, measured_s = warmup_tokens / interpolated(curve, width), tokens / value
    return LevelForecast(
        name=suite.level_name(level),
        requests=requests,
        output_tokens=tokens,
        warmup_tokens=warmup_tokens,
        throughput=value,
        source=source,
        warmup_s=warmup_s,
        measured_s=measured_s,
    )


def interpolated(curve: Curve, level: int) -> float:
    """The throughput at a level: linear in the logarithms of both between the points, constant beyond them."""
    levels = [each for each, _ in curve]
    place = bisect_left(levels, level)
    if place == 0 or place == len(curve) or levels[place] == level:
        return curve[min(place, len(curve) - 1)][1]
    (low, slow), (high, fast) = curve[place - 1], curve[place]
    part = math.log(level / low) / math.log(high / low)
    return math.exp((1 - part) * math.log(slow) + part * math.log(fast))


def line(found: Forecast) -> str:
    """One line for the beginning of a campaign of the whole suite."""
    return f"{found.suite}: {_cost(found)}"


def text(found: Forecast, place: str) -> str:
    """The forecast in full; `place` is where its baselines would be stored."""
    sources = {level.source for variant in found.variants for level in variant.levels}
    levels = [_row(variant, level) for variant in found.variants for level in variant.levels]
    launches = [
        (
            variant.name,
            f"{variant.output_tokens:,}",
            "not known" if variant.start_s is None else duration(variant.start_s),
            _time(variant.levels_s),
            "-" if variant.levels_s is None else _launch(variant.levels_s, variant.start_s),
            variant.sources or NO_FORECAST,
        )
        for variant in found.variants
    ]
    parts = [
        found.suite,
        _table(levels, ("case", "requests", "output tokens", "tok/s", "source", "warm-up", "measured")),
        _table(launches, ("variant", "output tokens with warm-up", "start", "levels", "a launch", "source")),
        f"a campaign: {_cost(found)}",
        f"stored: {place if 'stored' in sources else f'nothing in {place}'}"
        + ("; expected: expected_tok_s in the suite file" if "expected" in sources else ""),
    ]
    return "\n\n".join(parts) + "\n"


def costs(suite: Suite) -> tuple[tuple[str, str, str], ...]:
    """Of each variant, in words: its name, the output tokens of a launch, its minutes. No promotion ages them."""
    return tuple(
        (
            variant.name,
            f"{variant.output_tokens:,}",
            "no forecast" if variant.levels_s is None else f"{variant.levels_s / 60:.3g}, and the start",
        )
        for variant in forecast(suite, {}).variants
    )


def _cost(found: Forecast) -> str:
    """What a campaign that launches every variant so often costs, and whether the budget holds it."""
    if (once_s := found.launches_s) is None:
        return f"no forecast for {', '.join(found.unknown)}: measure once, or state expected_tok_s"
    first, *more = (f"{duration(count * once_s)} for {count}" for count in found.counts)
    said = ", ".join([f"about {first} launch{'' if found.counts[0] == 1 else 'es'} of every variant", *more])
    if found.without_start:
        said += f"; not counted: the start of {', '.join(found.without_start)}"
    if found.budget_s is None:
        return said + "; no budget is set"
    held = [count for count in found.counts if count * once_s <= found.budget_s]
    beyond = "" if held == list(found.counts) else f", not {found.counts[len(held)]}"
    return f"{said}; the budget of {duration(found.budget_s)} holds {held[-1] if held else 'none'}{beyond}"


def _launch(levels_s: float, start_s: float | None) -> str:
    return f"{duration(levels_s)} + start" if start_s is None else duration(levels_s + start_s)


def _row(variant: VariantForecast, level: LevelForecast) -> tuple[str, ...]:
    return (
        f"{variant.name}/{level.name}",
        f"{level.requests:,}",
        f"{level.output_tokens:,}",
        "-" if level.throughput is None else throughput(level.throughput),
        level.source or "-",
        _time(level.warmup_s),
        _time(level.measured_s),
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _table(rows: Sequence[tuple[str, ...]], headers: tuple[str, ...]) -> str:
    align = ["left", *("left" if header == "source" else "right" for header in headers[1:])]
    return tabulate(rows, headers=headers, disable_numparse=True, colalign=align)
