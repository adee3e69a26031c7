"""The verdict on every level of one variant: which patterns of lost levels tonight's launches leave possible. Pure.

A pattern is a set of levels that lost the margin while the others lost nothing. Every pattern is held against "no
change" by one likelihood over all levels, so levels are compared with each other inside a launch and not only with the
store. A level passes when every pattern that has it is excluded; what is suspect is left to fresh comparisons, where
there is a reference build; gains are the mirror image. docs/statistics.md has the method, docs/decisions/0015 why.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from perf.evidence import DRIFT_AT_ONCE, GAINS, LOSSES, RAW, Evidence, Observed, Route
from perf.noise import Matrix, Noise, Vector

Flags = NDArray[np.bool_]


class Word(StrEnum):
    """Every verdict, spelled as everywhere."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    VIOLATED = "VIOLATED"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    NO_BASELINE = "NO_BASELINE"


#: Worst first: the order in which several verdicts become one.
WORST_FIRST = (
    Word.REGRESSED,
    Word.VIOLATED,
    Word.INVALID,
    Word.NO_BASELINE,
    Word.INCONCLUSIVE,
    Word.IMPROVED,
    Word.PASS,
)

#: The boundary is tilted by this share of the information: a slow tail of launches is cut, and the miss rate stays.
TILT = 0.1
#: Mean overshoot of a random walk in discrete steps, in its standard deviations (Siegmund 1985, 0.583).
OVERSHOOT = 0.583
#: A pattern this much likelier than no change (in natural logarithms) is suspect: the store alone clears it no more.
SUSPECT_AT = 4.0
#: Of alpha, what red and IMPROVED may each spend; the rest is for relations (verdict.SPENT_ON_RELATIONS).
SPENT_ON_A_SIDE = 0.3
#: Of a miss rate of 1 - power, what the boundary spends; the rest is for noise that is estimated.
SPENT_ON_MISSES = 0.3
#: The direct estimate must lie this many standard errors beyond no change before anything is called.
DIRECT_AT = 1.645
#: Launches of each arm that a verdict of change needs; two where more than two levels say the same.
LAUNCHES_OF_FEW, LAUNCHES_OF_MANY = 3, 2
#: A level is called with the others of its pattern where it makes that so much likelier (in natural logarithms).
SUPPORTED_AT = 1.5
#: Prior weight of "tonight is as noisy as the store", in degrees of freedom.
GUARD_WEIGHT = 4.0
#: The first launch says no more than that tonight's variance is so many times the store's.
MOST_OF_FIRST = 4.0
#: So many of a level's launches are nearly all of them.
NEARLY_EVERY = 0.75
#: Weights of patterns: one level, all of them, anything else.
SINGLES, ALL, OTHERS = 0.5, 0.3, 0.2
#: What is suspect may be so many margins, and what convicts is mixed over them with these weights: a large loss is
#: found sooner.
SIZES = ((1, 0.7), (2, 0.2), (4, 0.1))
#: Up to this many levels every set of them is a pattern; above, single levels, neighbours, and all.
ALL_PATTERNS_UP_TO = 12
#: A level noisier than this, or than so many times the median, is judged by itself.
SET_ASIDE_ABOVE, SET_ASIDE_TIMES = 0.05, 3.0
#: Without a reference build: where so much of what the store allows is known, more launches add next to nothing.
EXHAUSTED_AT = 0.8
#: The same after so many launches of a level: its mean is known five times better than one of them.
MOST_ALONE = 25
#: Of the information of one launch: less is rounding.
NEGLIGIBLE = 1e-6
#: A common change of more levels than this is told by the quietest of them.
MANY = 3
#: An interval that holds whenever it is looked at: wrong with this probability, ever.
INTERVAL_ERROR = 0.05


def worst(words: Iterable[Word]) -> Word:
    """Several verdicts as one. Raises ValueError for none: nothing measured is never a pass."""
    return min(words, key=WORST_FIRST.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How sure a verdict must be. `alpha` is the false alarms of the whole suite, `margin` a relative loss.

    `families` are how many variants (and levels judged by themselves) share alpha; `reference` says that fresh launches
    of a reference build can be had: then the stored baseline alone never convicts.
    """

    margin: float
    alpha: float
    power: float
    families: int
    reference: bool

    @property
    def log_margin(self) -> float:
        """The margin as a positive log-ratio: -ln(1 - margin)."""
        return -math.log1p(-self.margin)

    @property
    def boundary(self) -> float:
        """A pattern below this log likelihood ratio, tilted, is excluded."""
        return math.log(SPENT_ON_MISSES * (1 - self.power)) / (1 - 2 * TILT)

    @property
    def conviction(self) -> float:
        """The logarithm of the likelihood ratio, mixed over patterns, that convicts (Ville's inequality)."""
        return math.log(self.families / (SPENT_ON_A_SIDE * self.alpha))

    @property
    def material(self) -> float:
        """An estimate smaller than this log-ratio is never red, nor an improvement."""
        return self.log_margin / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of one level as it was measured, as log-ratios: an estimate and an interval that holds at any time.

    `fresh` says that it is against tonight's reference launches, not the stored mean. `error` is its standard error.
    """

    estimate: float
    lo: float
    hi: float
    error: float
    fresh: bool


def set_aside(noise: Noise) -> tuple[int, ...]:
    """The levels so noisy that they would hold up the others: each is judged by itself."""
    limit = max(SET_ASIDE_ABOVE, SET_ASIDE_TIMES * float(np.median(noise.spread)))
    return tuple(int(index) for index in np.flatnonzero(noise.spread > limit))


@lru_cache(maxsize=32)
def patterns(levels: int) -> Matrix:
    """Every pattern over so many levels, one a row of zeros and ones, the smallest first."""
    indices = range(levels)
    if levels <= ALL_PATTERNS_UP_TO:
        sets = [chosen for size in range(1, levels + 1) for chosen in combinations(indices, size)]
    else:
        sets = [
            tuple(range(first, first + size)) for size in range(1, levels + 1) for first in range(levels - size + 1)
        ]
    rows = np.zeros((len(sets), levels))
    for row, chosen in zip(rows, sets, strict=True):
        row[list(chosen)] = 1.0
    rows.flags.writeable = False
    return rows


class Gate:
    """The sequential verdict on the levels of one variant. Launches are added in the order in which they ran.

    The same launches in the same order give the same verdict; what is launched next is the campaign's to decide, and no
    choice of it can spend more of alpha.
    """

    def __init__(self, noise: Noise, rule: Rule) -> None:
        self.noise, self.rule = noise, rule
        count = len(noise.mean)
        self.evidence = Evidence(noise, rule.log_margin)
        self.guard = _Guard(noise)
        self.losses = Side(rule, count, LOSSES)
        self.gains = Side(rule, count, GAINS)
        self.launches = {True: np.zeros(count, dtype=int), False: np.zeros(count, dtype=int)}
        self._touched: dict[bool, list[Flags]] = {True: [], False: []}
        self._beyond = {LOSSES: np.zeros(count, dtype=int), GAINS: np.zeros(count, dtype=int)}
        self.last: Observed | None = None
        self._lone = False
        self.stored = self.fresh = Route(information=np.zeros((count, count)), score=np.zeros((count, 3)))

    @property
    def decided(self) -> Flags:
        """Levels with a verdict of change: they say nothing of the others any more."""
        return self.losses.convicted | self.gains.convicted

    @property
    def lone_candidate(self) -> Flags | None:
        """The levels of the last launch, if it was a candidate that no reference has joined."""
        return np.isfinite(self.last.logs) if self._lone and self.last is not None else None

    def add(self, launch: Observed) -> None:
        """Take in the next launch."""
        there = np.isfinite(launch.logs)
        self.guard.add(launch, self.evidence.add(launch))
        self.launches[launch.candidate] += there
        self._touched[launch.candidate].append(there)
        if launch.candidate:
            off = launch.logs - self.noise.mean
            self._beyond[LOSSES] += off < -self.evidence.reach
            self._beyond[GAINS] += off > self.evidence.reach
        self._lone = launch.candidate and (self.last is None or self.last.block != launch.block)
        self.last = launch
        self.stored, self.fresh = self.evidence.stored(), self.evidence.fresh()
        if not self.rule.reference:
            self.fresh = self.stored
        while self._judge():
            self.losses.restart()
            self.gains.restart()

    def word(self, level: int) -> Word:
        """The verdict on a level, by its index."""
        if self.losses.convicted[level]:
            return Word.REGRESSED
        if self.gains.convicted[level]:
            return Word.IMPROVED
        return Word.INCONCLUSIVE if self.losses.live[level] else Word.PASS

    def change(self, level: int) -> Change:
        """The change of a level that was measured, with an anytime-valid interval (normal mixture: Robbins 1970)."""
        wanted = self.losses.doubted[level] or self.gains.doubted[level] or self.decided[level]
        told = self.fresh.information[level, level] > NEGLIGIBLE / self.noise.own[level]
        fresh = bool(self.rule.reference and wanted and told)
        route = self.fresh if fresh else self.stored
        everything = np.diag(route.information) > NEGLIGIBLE / (self.noise.own + np.diag(self.noise.stored))
        index = int(everything[:level].sum())
        information = route.information[np.ix_(everything, everything)]
        covariance = np.linalg.pinv(information, hermitian=True)
        estimate = float(covariance[index] @ route.score[everything, RAW])
        variance = float(covariance[index, index]) * self.guard.factor
        half = anytime(variance, self.rule.log_margin)
        return Change(estimate=estimate, lo=estimate - half, hi=estimate + half, error=math.sqrt(variance), fresh=fresh)

    def could_see(self, level: int) -> float | None:
        """The loss of this level alone, a positive log-ratio, that could be told from none; None before any launch."""
        known = self._known(level)
        return self.rule.log_margin * math.sqrt(self._needed / known) if known > 0 else None

    def launches_needed(self, level: int) -> int | None:
        """About how many more candidate launches would tell a loss of the margin; None where no number would.

        Information is taken to grow with launches. The store ends that: without a reference build, no more can be known
        of tonight's change than the store knows of its own mean; nor of any loss that is still possible and has this
        level.
        """
        side, known = self.losses, self._known(level)
        here = side.patterns[side.open & ~side.excluded & (side.patterns[:, level] > 0)]
        if not known or (not self.rule.reference and any(self._most(each) <= self._needed for each in here)):
            return None
        return max(1, math.ceil(int(self.launches[True][level]) * (self._needed / known - 1)))

    @property
    def quietest(self) -> int:
        """The steadiest of the levels that are not decided: the anchor that others are compared with."""
        return int(np.argmin(np.where(self.decided, np.inf, self.noise.spread)))

    def telling(self, pattern: Flags) -> Flags:
        """The levels that tell a pattern soonest: a common change of many is told by the quietest of all.

        Where there is nothing but the store to compare with, a level outside the pattern is launched as well.
        """
        chosen, outside = pattern.copy(), ~pattern & ~self.decided
        if pattern.sum() > MANY and pattern[self.quietest]:
            chosen[:] = False
            chosen[self.quietest] = True
        if not self.rule.reference and outside.any():
            chosen[np.argmin(np.where(outside, self.noise.spread, np.inf))] = True
        return chosen

    @property
    def exhausted(self) -> bool:
        """Without a reference build: would more launches tonight add next to nothing to what they are made for?"""
        if self.rule.reference:
            return False
        if self.launches[True].max(initial=0) >= MOST_ALONE:
            return True
        side = self.gains if self.losses.named is None else self.losses
        if side.named is not None and side.is_suspect and not self._has_enough(side.named, arm=True):
            return False
        asked = list(np.eye(len(self.noise.mean), dtype=bool)[self.losses.alone])
        if side.named is not None:
            asked.append(side.named)
        ridge = NEGLIGIBLE * np.diag(1 / self.noise.own)
        unsure = np.linalg.inv(self.stored.information + ridge) - self.noise.stored  # of tonight's candidate itself
        return all(self._known_of(each) >= EXHAUSTED_AT * self._reach(each, unsure) for each in asked)

    def _known_of(self, pattern: Flags) -> float:
        return self.rule.log_margin**2 * float(pattern @ self.stored.information @ pattern)

    def _reach(self, pattern: Flags, unsure: Matrix) -> float:
        """The information on a pattern if tonight's candidate were known exactly at the levels launched for it."""
        at = self.telling(pattern).copy()
        at[self.quietest] = True
        left = unsure - unsure[:, at] @ np.linalg.pinv(unsure[np.ix_(at, at)], hermitian=True) @ unsure[at]
        return self.rule.log_margin**2 * float(
            pattern @ np.linalg.solve(self.noise.stored + left, pattern.astype(float))
        )

    @property
    def _needed(self) -> float:
        """The information at which a pattern that is not there is excluded with the power that is asked."""
        drift = 0.5 + TILT
        luck = float(special.ndtri(self.rule.power))
        root = luck + math.sqrt(luck**2 - 4 * drift * self.rule.boundary * self.guard.factor)
        return float((root / (2 * drift)) ** 2)

    def _known(self, level: int) -> float:
        doubted = self.losses.doubted[level] and self.launches[False][level]
        route = self.fresh if doubted and self.rule.reference else self.stored
        return self.rule.log_margin**2 * float(route.information[level, level])

    def _most(self, pattern: Vector) -> float:
        """The information on a pattern that the store allows, if tonight's candidate were known exactly."""
        return self.rule.log_margin**2 * float(pattern @ np.linalg.solve(self.noise.stored, pattern))

    def _judge(self) -> bool:
        """Update both sides; True where something was convicted, so that the rest must be looked at without it."""
        stored, fresh = _without(self.stored, self.decided), _without(self.fresh, self.decided)
        moved, sure = self.evidence.moved, self.launches[False] >= LAUNCHES_OF_FEW
        for side in (self.losses, self.gains):
            side.look(stored, fresh, self.decided, self.guard, unsure=moved & ~sure, sure=sure)
        for side in (self.losses, self.gains):
            if side.named is not None:
                chosen = self._supported(side, side.named, stored)
                if not self._proved(side, chosen, fresh):
                    chosen = self._plain(side, side.named)
                # What is called must look like it to whoever reads its number.
                agreeing = [
                    bool(on) and side.effect * self.change(level).estimate > 0 for level, on in enumerate(chosen)
                ]
                if any(agreeing):
                    side.convicted = side.convicted | np.array(agreeing)
                    return True
        return False

    def _has_enough(self, chosen: Flags, arm: bool) -> bool:
        """Have enough launches of an arm measured a level of these for a verdict of change?"""
        needed = LAUNCHES_OF_MANY if chosen.sum() > 2 else LAUNCHES_OF_FEW
        return sum(bool((touched & chosen).any()) for touched in self._touched[arm]) >= needed

    def _plain(self, side: "Side", named: Flags) -> Flags:
        """Where there is only the store: the levels that nearly every launch had further off than is believed of one.

        Clipped as they are, such launches would need many others to say what they say by agreeing with each other.
        """
        beyond, launches = self._beyond[side.column], self.launches[True]
        plain: Flags = named & (launches > 0) & (beyond >= NEARLY_EVERY * launches)
        if self.rule.reference or not (beyond[plain] >= LAUNCHES_OF_FEW).any():
            return np.zeros_like(named)
        return plain

    def _supported(self, side: "Side", named: Flags, route: Route) -> Flags:
        """The levels of a pattern without those that hardly fit it better than without them: they are not called."""
        within = (route.information @ named - np.diag(route.information) / 2) * side.effect
        fits = named & (side.effect * (route.score[:, side.column] - within) > SUPPORTED_AT)
        return fits if fits.any() else named

    def _proved(self, side: "Side", chosen: Flags, fresh: Route) -> bool:
        if side.mixture <= self.rule.conviction:
            return False
        if not all(self._has_enough(chosen, arm) for arm in ((True, False) if self.rule.reference else (True,))):
            return False
        estimate, error = _direct(fresh, chosen, self.decided, side.column)
        gain = -estimate if side.column == LOSSES else estimate
        return gain > max(self.rule.material, DIRECT_AT * error * math.sqrt(self.guard.convicting))


class Side:
    """Losses, or gains: what the patterns of one direction have come to."""

    def __init__(self, rule: Rule, levels: int, column: int) -> None:
        self.rule, self.column = rule, column
        self.patterns = patterns(levels)
        self.effect = -rule.log_margin if column == LOSSES else rule.log_margin
        self._sizes = self.patterns.sum(axis=1)
        self.convicted: Flags = np.zeros(levels, dtype=bool)
        self.excluded: Flags = np.zeros(len(self.patterns), dtype=bool)
        self.suspect: Flags = np.zeros(len(self.patterns), dtype=bool)
        self.doubted: Flags = np.zeros(levels, dtype=bool)  # in the pattern that was named while it was suspect
        self.open: Flags = np.ones(len(self.patterns), dtype=bool)
        self.mixture = -math.inf
        self.live: Flags = np.ones(levels, dtype=bool)
        self._weights = self._log_weights()
        self.named: Flags | None = None  # the pattern that fits best; None where all are excluded
        self.is_suspect = False
        self.restart()

    def restart(self) -> None:
        """Look at what is left as if for the first time: something was decided, and no longer speaks of the rest."""
        self._lowest = np.full(len(self.patterns), np.inf)
        self._information: Vector | None = None
        self.suspect = np.zeros(len(self.patterns), dtype=bool)

    def look(self, stored: Route, fresh: Route, decided: Flags, guard: "_Guard", *, unsure: Flags, sure: Flags) -> None:
        """Take in what both routes say now.

        `unsure` are levels where one or two launches alone say that tonight's reference is elsewhere than the store has
        it, `sure` those that have more: a pattern with one of the former is cleared once it has one of the latter.
        """
        if decided.any():
            self.open = ~self._has(decided)
            self._weights = self._log_weights()
        ratio, information = self._ratios(stored)
        fresh_ratio, fresh_information = self._ratios(fresh)
        factor = guard.factor
        grown = np.zeros_like(information) if self._information is None else information - self._information
        if self._information is None and not decided.any():
            grown = information
        self._information = information
        step = OVERSHOOT * np.sqrt(factor * np.maximum(grown, 0.0))
        self._lowest = np.minimum(self._lowest, ratio - TILT * information - step)
        likeliest = np.max(
            [
                np.maximum(_sized(ratio, information, size), _sized(fresh_ratio, fresh_information, size))
                for size, _ in SIZES
            ],
            axis=0,
        )
        self.suspect = self.suspect | (likeliest > SUSPECT_AT * factor)
        by_fresh = fresh_ratio - TILT * fresh_information < self.rule.boundary * factor
        if unsure.any():
            by_fresh = by_fresh & (~self._has(unsure) | self._has(sure))
        self.excluded = np.where(self.suspect, by_fresh, self._lowest < self.rule.boundary * factor)
        self.live = (self.patterns[self.open & ~self.excluded] > 0).any(axis=0) & ~decided
        likelihood = np.where(self.suspect, np.maximum(ratio, fresh_ratio), ratio)
        self.mixture = self._mixed(fresh_ratio, fresh_information, guard.convicting)
        left = self.open & ~self.excluded
        self.named, self.is_suspect = None, False
        if left.any():
            best = int(np.argmax(np.where(left, likelihood + self._weights, -np.inf)))
            self.named, self.is_suspect = self.patterns[best] > 0, bool(self.suspect[best])
            if self.is_suspect:
                self.doubted = self.doubted | self.named

    def _has(self, levels: Flags) -> Flags:
        """The patterns that have one of these levels."""
        return np.asarray((self.patterns[:, levels] > 0).any(axis=1), dtype=bool)

    @property
    def alone(self) -> Flags:
        """The levels whose pattern of one level is still possible: patterns of one come first."""
        count = len(self.convicted)
        flags: Flags = self.open[:count] & ~self.excluded[:count]
        return flags

    def _ratios(self, route: Route) -> tuple[Vector, Vector]:
        """Each pattern's log likelihood ratio against no change, and its information."""
        effect = self.effect
        quadratic = ((self.patterns @ route.information) * self.patterns).sum(axis=1)
        information: Vector = effect**2 * quadratic
        return effect * (self.patterns @ route.score[:, self.column]) - information / 2, information

    def _mixed(self, ratio: Vector, information: Vector, factor: float) -> float:
        """The logarithm of the likelihood ratio, mixed over open patterns and over sizes of the effect in margins."""
        if not self.open.any():
            return -math.inf
        ratio, information, weights = ratio[self.open], information[self.open], self._weights[self.open]
        mixed = [math.log(weight) + weights + _sized(ratio, information, size) / factor for size, weight in SIZES]
        return float(np.logaddexp.reduce(np.concatenate(mixed)))

    def _log_weights(self) -> Vector:
        """Logarithms of the weights of the open patterns; they add up to one."""
        sizes = np.where(self.open, self._sizes, 0)
        largest = sizes.max()
        weights = np.zeros(len(sizes))
        groups = [(ALL, sizes == largest), (SINGLES, sizes == 1), (OTHERS, (sizes > 1) & (sizes < largest))]
        for weight, group in groups:
            if group.any() and largest:
                weights += np.where(group, weight / group.sum(), 0.0)
        with np.errstate(divide="ignore"):
            logs: Vector = np.log(weights / weights.sum()) if weights.any() else np.full(len(sizes), -np.inf)
        return logs


def _sized(ratio: Vector, information: Vector, size: float) -> Vector:
    """The log likelihood ratios of an effect that is `size` times as large."""
    return size * ratio - size * (size - 1) / 2 * information


def anytime(variance: float, margin: float, error: float = INTERVAL_ERROR) -> float:
    """Half the width of an interval that holds at every look: a normal mixture whose deviation is the margin."""
    if not 0 < variance < math.inf:
        return math.inf if variance else 0.0
    information, mixing = 1 / variance, 1 / margin**2
    return math.sqrt((information + mixing) * (math.log1p(information / mixing) - 2 * math.log(error))) / information


def _without(route: Route, decided: Flags) -> Route:
    """The same, with the changes of decided levels left free: whatever they are, they say nothing of the others."""
    if not decided.any():
        return route
    rest = ~decided
    block = route.information[np.ix_(decided, decided)]
    solved = np.linalg.pinv(block, hermitian=True) @ np.column_stack(
        (route.information[np.ix_(decided, rest)], route.score[decided])
    )
    count = int(rest.sum())
    coupling = route.information[np.ix_(rest, decided)]
    information, score = np.zeros_like(route.information), np.zeros_like(route.score)
    information[np.ix_(rest, rest)] = route.information[np.ix_(rest, rest)] - coupling @ solved[:, :count]
    score[rest] = route.score[rest] - coupling @ solved[:, count:]
    return Route(information=information, score=score)


def _direct(route: Route, chosen: Flags, decided: Flags, column: int) -> tuple[float, float]:
    """The common change of the chosen levels with every other level left free, and its standard error."""
    others = ~chosen & ~decided
    design = np.column_stack((chosen.astype(np.float64), np.eye(len(chosen))[:, others]))
    covariance = np.linalg.pinv(design.T @ route.information @ design, hermitian=True)
    estimate = float(covariance[0] @ (design.T @ route.score[:, column]))
    return estimate, math.sqrt(max(float(covariance[0, 0]), 0.0)) or math.inf


class _Guard:
    """Is tonight noisier than the store says? Residuals between launches of one arm, against what they should be."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        count = len(noise.mean)
        self._sum = {True: np.zeros(count), False: np.zeros(count)}
        self._count = {True: np.zeros(count), False: np.zeros(count)}
        self._squares, self._freedom = 0.0, 0.0
        self._stored_freedom = float(noise.freedom.sum())

    def add(self, launch: Observed, deviation: Vector) -> None:
        """Take in a launch's deviations from the stored means, NaN where a level is missing."""
        seen, total = self._count[launch.candidate], self._sum[launch.candidate]
        there = np.isfinite(deviation)
        if launch.candidate and not seen.any():
            self._first(deviation[there], there)
        again = there & (seen > 0)
        if again.any():
            noise, n = self._noise, seen[again]
            residual = deviation[again] - total[again] / n
            weight = 1 / (noise.own[again] * (1 + 1 / n))
            center = float((weight * residual).sum() / weight.sum())
            self._squares += float((weight * (residual - center) ** 2).sum())
            common = (noise.shared + DRIFT_AT_ONCE * noise.typical) * (1 + 1 / float(n.mean()))
            self._squares += center**2 / (1 / float(weight.sum()) + common)
            self._freedom += len(n)
        total[there] += deviation[there]
        seen[there] += 1

    def _first(self, deviation: Vector, there: Flags) -> None:
        """The first launch: how its levels differ from each other, without the lowest, which may be lost."""
        count = len(deviation)
        if count < 3:
            return
        noise = self._noise
        variance = noise.own[there] * (1 + 1 / noise.launches) + noise.night_level[there]
        lowest = np.argmin(deviation / np.sqrt(variance))
        kept, weight = np.delete(deviation, lowest), 1 / np.delete(variance, lowest)
        center = float((weight * kept).sum() / weight.sum())
        squares = _without_lowest(count) * float((weight * (kept - center) ** 2).sum())
        # Where several levels changed, they differ by that, too: it must not pass for noise.
        self._squares += min(squares, MOST_OF_FIRST * (count - 2))
        self._freedom += count - 2

    @property
    def factor(self) -> float:
        """By how much variances are larger tonight; 1 where nothing shows that they are."""
        found, luck = self._found
        return found if found > 1 + 0.5 * luck else 1.0

    @property
    def convicting(self) -> float:
        """The same for what convicts: larger by what neither tonight nor the store can know of the noise."""
        found, luck = self._found
        return max(1.0, found + 0.5 * luck) * (1 + 1.5 * math.sqrt(2 / max(self._stored_freedom, 1.0)))

    @property
    def _found(self) -> tuple[float, float]:
        total = GUARD_WEIGHT + self._freedom
        return (GUARD_WEIGHT + self._squares) / total, math.sqrt(2 * self._freedom) / total


def _without_lowest(count: int) -> float:
    """Of so many standard normal numbers without the lowest, squares around their mean add up to (count - 2) / this.

    A power law through simulated factors (1.708, 1.363, 1.192, 1.138 of 3, 8, 20, 32 numbers), good to one percent.
    """
    return 1 + 0.708 * math.pow(count / 3, -0.69)
