"""The level from which one variant is faster than another: estimated, with an interval, and judged. Pure.

The datum of a level is the logarithm of second / first, from launches of one campaign, so that the night cancels. Each
level gets a t interval, and all of them together are right with the stated error (Bonferroni: levels of a launch move
together in ways nobody needs to know). What is assumed is one order: the first is faster up to some level, the second
from there on. Where the intervals contradict that, there is no one crossover, and that is what is said.

Between levels the ratio is taken to be linear in log2(level). The levels at which a variant is shown faster need no
such assumption (docs/decisions/0014).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from scipy import optimize, special

from perf.gate import Word
from perf.interval import MOST_FREEDOM, Spread
from perf.noise import LEAST_SPREAD
from perf.sample import relative

#: The schema of stored crossovers; a change of it comes with a step in `migration`.
SCHEMA = 1

#: `first`, `second`: faster at every level. `crosses`: each is shown faster somewhere. `open`: at most one is, and not
#: everywhere. `mixed`: the second is shown faster at a lower level than one at which the first is.
Shape = Literal["first", "second", "crosses", "open", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One level: the natural logarithm of second / first, its standard error and the degrees of freedom of that.

    `error` and `freedom` are None where no noise is known: then nothing is shown at this level.
    """

    level: int
    log_ratio: float
    error: float | None
    freedom: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """From which level on the second is faster.

    `estimate` is on the scale of levels, None where the ratio changes sides at none within those measured. With the
    stated error it lies neither below `lo` nor above `hi`; None is no bound. `first_faster` and `second_faster` are the
    levels at which that variant is faster, ascending: shown there or, unless `mixed`, beyond there.
    """

    shape: Shape
    levels: tuple[int, ...]
    estimate: float | None
    lo: float | None
    hi: float | None
    first_faster: tuple[int, ...]
    second_faster: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLevel:
    """One level of a stored crossover: what was asked, what came out, from how many launches."""

    workload_digest: str
    contrast: Contrast
    launches_first: int
    launches_second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCrossover:
    """A promoted crossover. `tail` is the error of each end of the band that it was estimated with.

    Workload digests, power limits and simulated acceptance (of first and second) must be tonight's. `estimate`, `lo`
    and `hi` are those of a Crossing; they follow from the levels and `tail`, and stand here for who reads the file.
    """

    schema: int
    crossover: str
    first: str
    second: str
    power_limits_w: tuple[float | None, ...]
    simulated_acceptance: tuple[str | None, str | None]
    tail: float
    levels: tuple[StoredLevel, ...]
    estimate: float | None
    lo: float | None
    hi: float | None
    campaign: str
    reason: str
    promoted_at: str

    @property
    def crossing(self) -> Crossing:
        """What was promoted."""
        return locate(tuple(each.contrast for each in self.levels), tail=self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLevel:
    """One level tonight: by how much the first is faster (first / second - 1), and the interval of that.

    `word` is None where the stored crossover does not show the first faster: there is nothing to lose.
    """

    level: int
    advantage: float
    lo: float
    hi: float
    word: Word | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """PASS, VIOLATED, INCONCLUSIVE or NO_BASELINE; `why` says why there is nothing to compare with."""

    word: Word
    crossing: Crossing
    levels: tuple[JudgedLevel, ...]
    why: str | None
    notes: tuple[str, ...]


def contrast(
    level: int,
    first: Sequence[float],
    second: Sequence[float],
    *,
    known_first: Spread | None = None,
    known_second: Spread | None = None,
) -> Contrast:
    """Compare two samples of one level, tok/s, one positive number per launch.

    Each variant has its own noise (a speculative one varies several times as much), so the error is Welch's. What is
    known of the noise steadies tonight's; where tonight's launches vary more, that holds. Raises ValueError for an
    empty sample and for numbers that are not positive and finite.
    """
    a, b = _Logs(first), _Logs(second)
    one, other = a.error(known_first), b.error(known_second)
    error = freedom = None
    if one is not None and other is not None:
        total = one[0] + other[0]
        error = math.sqrt(total)
        freedom = total**2 / (one[0] ** 2 / one[1] + other[0] ** 2 / other[1])
    return Contrast(level=level, log_ratio=b.mean - a.mean, error=error, freedom=freedom)


def difference(low: Contrast, high: Contrast, *, tail: float) -> tuple[float, float] | None:
    """The interval of how much the logarithm of second / first rises from one level to another; None where unknown."""
    if low.error is None or high.error is None or low.freedom is None or high.freedom is None:
        return None
    one, other = low.error**2, high.error**2
    freedom = (one + other) ** 2 / (one**2 / low.freedom + other**2 / high.freedom)
    rise = high.log_ratio - low.log_ratio
    half = float(special.stdtrit(freedom, 1 - tail)) * math.sqrt(one + other)
    return rise - half, rise + half


def locate(contrasts: Sequence[Contrast], *, tail: float) -> Crossing:
    """The crossover; all that is said of its interval and its levels is wrong with at most `tail` on each side.

    The order of the contrasts is of no account. Raises ValueError for no level and for a level twice.
    """
    ordered = _ordered(contrasts)
    band = _band(ordered, tail)
    levels = tuple(each.level for each in ordered)
    below = [index for index, (_, hi) in enumerate(band) if hi < 0]
    above = [index for index, (lo, _) in enumerate(band) if lo > 0]
    if below and above and above[0] < below[-1]:
        return Crossing(
            shape="mixed",
            levels=levels,
            estimate=None,
            lo=None,
            hi=None,
            first_faster=tuple(levels[index] for index in below),
            second_faster=tuple(levels[index] for index in above),
        )
    lo = _zero(levels, [hi for _, hi in band], below[-1]) if below else None
    hi = _zero(levels, [lo for lo, _ in band], above[0] - 1) if above else None
    first_faster = levels[: below[-1] + 1] if below else ()
    second_faster = levels[above[0] :] if above else ()
    shape: Shape = "crosses" if below and above else "open"
    if first_faster == levels:
        shape = "first"
    elif second_faster == levels:
        shape = "second"
    return Crossing(
        shape=shape,
        levels=levels,
        estimate=_estimate(ordered, lo, hi) if shape in ("crosses", "open") else None,
        lo=lo,
        hi=hi,
        first_faster=first_faster,
        second_faster=second_faster,
    )


def judge(stored: StoredCrossover | None, contrasts: Sequence[Contrast], *, margin: float, tail: float) -> Verdict:
    """Did the crossover move down: does the first no longer pay where it was shown to pay?

    The levels in question are those at which the stored crossover has the first faster. VIOLATED: at one of them
    tonight shows the first slower by more than `margin` (a relative loss). PASS: at all of them that is excluded.
    INCONCLUSIVE: neither. A false VIOLATED needs a bound to be wrong, of the stored band or of tonight's, each with at
    most its `tail` over all levels. The caller sees to it that both were asked the same (`not_comparable`).
    """
    ordered = _ordered(contrasts)
    now, band = locate(ordered, tail=tail), _band(ordered, tail)
    before = None if stored is None else stored.crossing
    log_margin = -math.log1p(-margin)
    levels = tuple(
        JudgedLevel(
            level=each.level,
            advantage=relative(-each.log_ratio),
            lo=relative(-hi),
            hi=relative(-lo),
            word=_word(lo, hi, log_margin) if before is not None and _was_first(before, each.level) else None,
        )
        for each, (lo, hi) in zip(ordered, band, strict=True)
    )
    words = [each.word for each in levels if each.word is not None]
    why = None
    notes: list[str] = []
    if stored is None or before is None:
        word = Word.NO_BASELINE
        why = "no crossover is stored for these variants on this rig"
    elif words:
        word = next((each for each in (Word.VIOLATED, Word.INCONCLUSIVE) if each in words), Word.PASS)
        notes += _moved_up(stored, before, now)
        notes += [_undecided(each) for each in levels if word is each.word is Word.INCONCLUSIVE]
    elif before.first_faster:
        word = Word.NO_BASELINE
        shown = f"{stored.first} faster at {_cs(before.first_faster)}"
        why = f"the stored crossover has {shown}, and tonight has no such level"
    else:
        word = Word.PASS
        notes += _moved_up(stored, before, now)
        notes.append(f"the stored crossover shows {stored.first} faster at no level, so it cannot move down")
    return Verdict(word=word, crossing=now, levels=levels, why=why, notes=tuple(notes))


def not_comparable(
    stored: StoredCrossover,
    *,
    digests: Mapping[int, str],
    power_limits_w: tuple[float | None, ...],
    simulated_acceptance: tuple[str | None, str | None],
) -> str | None:
    """Why tonight cannot be judged against it, None where it can. `digests` are tonight's, by level."""
    other = [
        each.contrast.level
        for each in stored.levels
        if digests.get(each.contrast.level, each.workload_digest) != each.workload_digest
    ]
    if other:
        return f"the stored crossover was asked another workload at {_cs(other)}"
    if stored.power_limits_w != power_limits_w:
        return "the stored crossover ran under other power limits"
    if stored.simulated_acceptance != simulated_acceptance:
        return "acceptance is not simulated as it was for the stored crossover"
    return None


def is_sound(stored: StoredCrossover) -> bool:
    """Can it be judged against: of our schema, of finite numbers, and what it says follows from its levels?"""
    contrasts = [each.contrast for each in stored.levels]
    levels = [each.level for each in contrasts]
    if not (
        stored.schema == SCHEMA
        and stored.first != stored.second
        and 0 < stored.tail < 0.5
        and levels == sorted(set(levels))
        and levels
        and levels[0] >= 1
        and all(min(each.launches_first, each.launches_second) >= 1 for each in stored.levels)
        and all(_is_sound(each) for each in contrasts)
    ):
        return False
    found = stored.crossing
    return all(
        one is other or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-6))
        for one, other in ((stored.estimate, found.estimate), (stored.lo, found.lo), (stored.hi, found.hi))
    )


def sentence(crossing: Crossing, first: str, second: str) -> str:
    """The crossover in words: `eagle3 is faster up to about c=11, baseline from there on (between c=7.2 and c=16)`."""
    lowest, highest = crossing.levels[0], crossing.levels[-1]
    below, above = crossing.first_faster, crossing.second_faster
    match crossing.shape:
        case "first":
            return f"{first} is faster at every level, {_c(lowest)} to {_c(highest)}"
        case "second":
            return f"{second} is faster from the lowest level on, {_c(lowest)}"
        case "mixed":
            told = f"{first} is faster at {_cs(below)}, {second} at {_cs(above)}"
            if max(above) < min(below):
                return f'{told}: the other way round, write crossover = ["{second}", "{first}"]'
            return f"{told}: no one level from which {second} is faster"
        case "crosses":
            about = "somewhere" if crossing.estimate is None else f"about {_c(crossing.estimate)}"
            ends = f"between {_c(crossing.lo or lowest)} and {_c(crossing.hi or highest)}"
            return f"{first} is faster up to {about}, {second} from there on ({ends})"
        case "open":
            if below:
                return f"{first} is faster up to {_c(below[-1])}; from where on {second} is, cannot be told"
            if above:
                return f"{second} is faster from {_c(above[0])} on; whether {first} is below, cannot be told"
            return f"cannot tell whether {first} or {second} is faster, between {_c(lowest)} and {_c(highest)}"


def short(crossing: Crossing) -> str:
    """The same for a cell of a table."""
    match crossing.shape:
        case "first":
            return f"above {_c(crossing.levels[-1])}"
        case "second":
            return f"at or below {_c(crossing.levels[0])}"
        case "crosses":
            return f"[{_c(crossing.lo or crossing.levels[0])}, {_c(crossing.hi or crossing.levels[-1])}]"
        case _:
            return "?"


def _ordered(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    ordered = tuple(sorted(contrasts, key=lambda each: each.level))
    levels = [each.level for each in ordered]
    if not levels or len(set(levels)) < len(levels):
        raise ValueError(f"a crossover needs one contrast for each level, at least one; seen the levels {levels}")
    return ordered


def _band(ordered: Sequence[Contrast], tail: float) -> tuple[tuple[float, float], ...]:
    """Bounds of the log-ratio at each level; on each side all of them hold together but for `tail`."""
    halves = [_half_width(each, tail / len(ordered)) for each in ordered]
    return tuple((each.log_ratio - half, each.log_ratio + half) for each, half in zip(ordered, halves, strict=True))


def _half_width(contrast: Contrast, tail: float) -> float:
    if contrast.error is None or contrast.freedom is None:
        return math.inf
    return float(special.stdtrit(contrast.freedom, 1 - tail)) * contrast.error


def _estimate(ordered: Sequence[Contrast], lo: float | None, hi: float | None) -> float | None:
    """Where the ratio changes sides, within the interval; None where that is below or above all levels.

    It is taken as measured or, where it changes sides more than once, as the rising curve that fits best.
    """
    places = [float(each.level) for each in ordered]
    ratios = [each.log_ratio for each in ordered]
    signs = [math.copysign(1, ratio) for ratio in ratios if ratio]
    if signs != sorted(signs):
        places, ratios = _rising(ordered)
    below = [index for index, ratio in enumerate(ratios) if ratio < 0]
    above = [index for index, ratio in enumerate(ratios) if ratio > 0]
    last, first = (below[-1] if below else -1), (above[0] if above else len(ratios))
    if first == 0:
        place = 0.0
    elif last == len(ratios) - 1:
        place = math.inf
    elif first == last + 1:
        place = _zero(places, ratios, last)
    else:  # even over several levels, or over all of them: their middle
        place = math.sqrt(places[last + 1] * places[first - 1])
    place = min(max(place, lo or 0.0), hi or math.inf)
    return place if 0 < place < math.inf else None


def _rising(ordered: Sequence[Contrast]) -> tuple[list[float], list[float]]:
    """The best rising curve through the ratios (isotonic regression), as places and values.

    Levels that it takes together are one place, in their middle: else a hair's difference in their common value would
    move the crossing from one end of them to the other.
    """
    # A level without an error gets the largest of the others': it must not draw the rest.
    worst = max((each.error for each in ordered if each.error is not None), default=1.0)
    weights = [1 / max(worst if each.error is None else each.error, LEAST_SPREAD) ** 2 for each in ordered]
    fit = optimize.isotonic_regression([each.log_ratio for each in ordered], weights=weights)
    places: list[float] = []
    for start, end in pairwise(fit.blocks.tolist()):
        total = math.fsum(weights[start:end])
        middle = math.fsum(weights[index] * math.log2(ordered[index].level) for index in range(start, end)) / total
        places.append(float(2**middle))
    return places, [float(fit.x[start]) for start in fit.blocks.tolist()[:-1]]


def _zero(levels: Sequence[float], values: Sequence[float], last: int) -> float:
    """Where a curve crosses zero between the levels `last` and `last` + 1, linear in log2(level).

    Where one of these is no level, the other: the crossing lies beyond it. Infinite values are steps.
    """
    if last < 0 or last == len(levels) - 1:
        return float(levels[max(last, 0)])
    low, high = values[last], values[last + 1]
    share = 0.0 if math.isinf(high) else 1.0 if math.isinf(low) else -low / (high - low)
    return float(levels[last] * (levels[last + 1] / levels[last]) ** share)


def _was_first(before: Crossing, level: int) -> bool:
    if before.shape == "mixed":
        return level in before.first_faster
    return bool(before.first_faster) and level <= before.first_faster[-1]


def _word(lo: float, hi: float, log_margin: float) -> Word:
    """The word for an interval of log(second / first) where the first was faster."""
    if lo > log_margin:
        return Word.VIOLATED
    return Word.PASS if hi < log_margin else Word.INCONCLUSIVE


def _undecided(level: JudgedLevel) -> str:
    if level.lo == -1:
        return f"at {_c(level.level)} nothing is excluded: the noise of one launch is not known"
    return f"at {_c(level.level)} a loss of up to {-100 * level.lo:.1f} % is not excluded"


def _moved_up(stored: StoredCrossover, before: Crossing, now: Crossing) -> Iterable[str]:
    won = [level for level in now.first_faster if level in before.second_faster]
    if won:
        yield (
            f"the crossover moved up: {stored.first} is faster at {_cs(won)}, where {stored.second} was; "
            "promote it to hold that"
        )


def _is_sound(contrast: Contrast) -> bool:
    if contrast.error is None or contrast.freedom is None:
        return math.isfinite(contrast.log_ratio) and contrast.error is contrast.freedom
    return all(map(math.isfinite, (contrast.log_ratio, contrast.error, contrast.freedom))) and (
        contrast.error > 0 and contrast.freedom > 0
    )


class _Logs:
    """The logarithms of a sample. Sums are correctly rounded, so that the order of the launches changes no bit."""

    def __init__(self, sample: Sequence[float]) -> None:
        if not sample or not all(0 < value < math.inf for value in sample):
            raise ValueError(f"a sample must be positive numbers, one for each launch; seen {list(sample)}")
        logs = [math.log(value) for value in sample]
        self.count = len(logs)
        self.mean = math.fsum(logs) / self.count
        self.squares = math.fsum((value - self.mean) ** 2 for value in logs)

    def error(self, known: Spread | None) -> tuple[float, float] | None:
        """The variance of the mean and its degrees of freedom; None where nothing is known of the noise."""
        own = self.count - 1
        stored = 0.0 if known is None else min(known.freedom, MOST_FREEDOM)
        freedom = own + stored
        if freedom <= 0:
            return None
        pooled = (self.squares + (0.0 if known is None else stored * known.spread**2)) / freedom
        variance = max(pooled, self.squares / own if own else 0.0, LEAST_SPREAD**2)
        return variance / self.count, freedom


def _c(level: float) -> str:
    """`c=16`, `c=7.2`: a level, or a place between levels."""
    return f"c={level:.0f}" if level >= 9.95 or level == round(level) else f"c={level:.1f}"


def _cs(levels: Iterable[int]) -> str:
    return ", ".join(map(_c, levels))
