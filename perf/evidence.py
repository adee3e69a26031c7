"""What tonight's launches say about a change of each level: running sums of a linear model, and its two routes. Pure.

The change of J levels is estimated by generalised least squares from y = log(tok/s) - stored mean. A launch moves all
its levels alike by luck (variance `shared`); a block, one candidate launch or one of each arm back to back, moves them
alike by the time of night. Both are integrated out of each block, exactly. Two answers are kept:

- the *stored* route believes the stored means as far as their covariance says (`Noise.stored`), and the time of night
  within a variance that grows with the hours;
- the *fresh* route believes neither: only launches of tonight, within one block, are compared.

docs/statistics.md has the formulas in words.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perf.noise import Matrix, Noise, Vector

#: Variance of the time of night, in units of a typical launch's: at once, per hour since the first launch, at most.
DRIFT_AT_ONCE = 0.1
DRIFT_PER_HOUR = 0.5
DRIFT_AT_MOST = 2.0

#: A level of a launch further from what is expected than this many standard deviations is pulled in to that.
CLIPPED_AT = 2.5
#: Where so many of its levels are that far, and to the same side, it is the launch that is far off, or the night.
NEARLY_ALL = 0.75

#: Relative to the information of one launch: what makes a system solvable where nothing was measured.
RIDGE = 1e-8

#: Columns of the data: clipped for losses, clipped for gains, and as it was measured.
LOSSES, GAINS, RAW = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One launch as evidence: natural logarithms of tok/s by the index of the level, NaN where one was not measured.

    `hours` since the first launch of the campaign; launches of one block have its number.
    """

    candidate: bool
    block: int
    hours: float
    logs: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The change of J levels as one route sees it: information G and score h, so that G^-1 h is its estimate."""

    information: Matrix
    score: Matrix  # J x 3: one column for each of LOSSES, GAINS, RAW


class Evidence:
    """Running sums over the blocks of one night, for J levels.

    What is far off is clipped, around the stored means; the fresh route clips around tonight's reference where that is
    not where the store has it: clipped at two different ends, two arms that are equally slow would look different.
    """

    def __init__(self, noise: Noise, margin: float) -> None:
        self._noise = noise
        self._margin = margin
        count = len(noise.mean)
        self._precision: Vector = 1 / noise.own
        self._prior = np.asarray(np.linalg.inv(noise.stored), dtype=np.float64)
        # How far a launch's level lies from the stored mean, if nothing changed: launch, night, time of night.
        total = noise.spread**2 + noise.night + noise.night_level + DRIFT_AT_ONCE * noise.typical
        self._width = np.asarray(CLIPPED_AT * np.sqrt(total), dtype=np.float64)
        #: Beyond this a candidate's level is pulled in, whichever way it changed.
        self.reach: Vector = np.maximum(self._width, margin) + margin / 2
        self._ridge: Matrix = RIDGE * np.diag(self._precision)
        self._launches: list[Observed] = []
        self._center: Vector = np.zeros(count)  # of what the fresh route clips, around the stored mean
        self._strange = False
        self._hours = 0.0
        self._stored, self._fresh = _Blocks(count), _Blocks(count)

    def add(self, launch: Observed) -> Vector:
        """Take in one launch. Returns its deviations from the stored means, clipped either way, NaN where missing."""
        there = np.isfinite(launch.logs)
        deviation = self._deviation(launch)
        if not self._launches or launch.block != self._launches[-1].block:
            self._hours = launch.hours
        self._launches.append(launch)
        drift = min(DRIFT_AT_MOST, DRIFT_AT_ONCE + DRIFT_PER_HOUR * self._hours) * self._noise.typical
        information, score = self._sums_of(launch, 0.0)
        self._stored.add(launch, information, score, 1 / drift)
        if not launch.candidate and self._moved(deviation):
            self._fresh = _Blocks(len(there))
            for each in self._launches:
                self._fresh.add(each, *self._sums_of(each, self._center), 0.0)
        elif self._center.any():
            self._fresh.add(launch, *self._sums_of(launch, self._center), 0.0)
        else:
            self._fresh.add(launch, information, score, 0.0)
        reach = self.reach if launch.candidate else self._width
        either: Vector = np.where(there, self._pulled_in(deviation, there, -reach, reach), np.nan)
        return either

    @property
    def moved(self) -> NDArray[np.bool_]:
        """The levels at which tonight's reference is taken to be elsewhere than the stored mean."""
        flags: NDArray[np.bool_] = self._center != 0
        return flags

    def stored(self) -> Route:
        """What is known where the stored means are believed as far as they are known."""
        return self._stored.sums.route(self._prior)

    def fresh(self) -> Route:
        """What is known from comparisons of this night alone."""
        return self._fresh.sums.route(self._ridge)

    def _deviation(self, launch: Observed) -> Vector:
        """From the stored means; 0 where a level was not measured."""
        deviation: Vector = np.where(np.isfinite(launch.logs), launch.logs - self._noise.mean, 0.0)
        return deviation

    def _sums_of(self, launch: Observed, center: Vector | float) -> tuple[Matrix, Matrix]:
        """A launch's information, the inverse of shared * 11' + diag(own) where measured (Sherman and Morrison), and
        its score, clipped around `center`."""
        weight = np.where(np.isfinite(launch.logs), self._precision, 0.0)
        information: Matrix = np.diag(weight) - np.outer(weight, weight) / (1 / self._noise.shared + weight.sum())
        return information, information @ self._data(launch, self._deviation(launch), center)

    def _moved(self, deviation: Vector) -> bool:
        """After another reference launch: is tonight's reference elsewhere than it was taken to be?"""
        self._strange = self._strange or bool((np.abs(deviation) > self._width).any())
        if not self._strange:
            return False
        logs = np.vstack([each.logs for each in self._launches if not each.candidate]) - self._noise.mean
        tonight = np.array([np.median(each[np.isfinite(each)]) if np.isfinite(each).any() else 0.0 for each in logs.T])
        before = self._center
        self._center = np.where(np.abs(tonight) > self._width, tonight, np.float64(0.0))
        return not np.array_equal(before, self._center)

    def _data(self, launch: Observed, deviation: Vector, center: Vector | float) -> Matrix:
        """Losses are believed down to twice what is asked, and gains alike; what is beyond counts as much as that."""
        there = np.isfinite(launch.logs)
        moved = deviation - center
        if launch.candidate:
            reach, middle = np.maximum(self._width, self._margin), self._margin / 2
            losses = self._pulled_in(moved, there, -middle - reach, -middle + reach)
            gains = self._pulled_in(moved, there, middle - reach, middle + reach)
        else:
            losses = gains = self._pulled_in(moved, there, -self._width, self._width)
        return np.column_stack((losses + center, gains + center, deviation))

    def _pulled_in(self, deviation: Vector, there: NDArray[np.bool_], low: Vector, high: Vector) -> Vector:
        """Deviations within these limits. Where nearly all levels are far off, their differences are left as they are:
        the launch as a whole is pulled in, and each level by how far it is from the others."""
        clipped: Vector = np.clip(deviation, low, high)
        alike = math.ceil(NEARLY_ALL * int(there.sum()))
        far = there & (np.abs(deviation) > self._width)
        if int(far.sum()) < alike:
            return clipped
        seen = np.sort(deviation[there])
        common = seen[alike - 1] if seen[alike - 1] < 0 else seen[-alike] if seen[-alike] > 0 else 0.0
        together: Vector = np.clip(common, low, high) + np.clip(deviation - common, low, high)
        return np.where(clipped == deviation, deviation, together)


class _Blocks:
    """The running sums of one route, and the block that may still grow."""

    def __init__(self, count: int) -> None:
        self._block = 0
        self._before = self.sums = _Sums(count)
        self._candidate, self._reference = _Arm(count), _Arm(count)

    def add(self, launch: Observed, information: Matrix, score: Matrix, time_precision: float) -> None:
        """Take in a launch; the time of night of its block has this precision (0: nothing is known of it)."""
        if launch.block != self._block:
            self._block, self._before = launch.block, self.sums
            self._candidate, self._reference = _Arm(len(information)), _Arm(len(information))
        arm = self._candidate if launch.candidate else self._reference
        arm.information = arm.information + information
        arm.score = arm.score + score
        self.sums = self._before.plus(self._candidate, self._reference, time_precision)


class _Arm:
    """The launches of one arm in one block."""

    __slots__ = ("information", "score")

    def __init__(self, count: int) -> None:
        self.information: Matrix = np.zeros((count, count))
        self.score: Matrix = np.zeros((count, 3))


class _Sums:
    """Normal equations of (mean of tonight's reference, change of the candidate), the times of night integrated out."""

    __slots__ = ("both", "cross", "either", "score_both", "score_change")

    def __init__(self, count: int) -> None:
        self.both: Matrix = np.zeros((count, count))
        self.cross: Matrix = np.zeros((count, count))
        self.either: Matrix = np.zeros((count, count))
        self.score_both: Matrix = np.zeros((count, 3))
        self.score_change: Matrix = np.zeros((count, 3))

    def plus(self, candidate: _Arm, reference: _Arm, time_precision: float) -> "_Sums":
        """These sums and one block, whose time of night has this precision (0: nothing is known of it)."""
        together = candidate.information + reference.information
        score = candidate.score + reference.score
        all_of_it = together.sum(axis=1)
        of_change = candidate.information.sum(axis=1)
        total = float(all_of_it.sum()) + time_precision
        pull = score.sum(axis=0) / total
        sums = _Sums(0)
        sums.both = self.both + together - np.outer(all_of_it, all_of_it) / total
        sums.cross = self.cross + candidate.information - np.outer(all_of_it, of_change) / total
        sums.either = self.either + candidate.information - np.outer(of_change, of_change) / total
        sums.score_both = self.score_both + score - np.outer(all_of_it, pull)
        sums.score_change = self.score_change + candidate.score - np.outer(of_change, pull)
        return sums

    def route(self, prior: Matrix) -> Route:
        """The change alone: tonight's reference means, with this prior precision around the stored ones, are out."""
        solved = np.linalg.solve(self.both + prior, np.column_stack((self.cross, self.score_both)))
        count = len(prior)
        information = self.either - self.cross.T @ solved[:, :count]
        score = self.score_change - self.cross.T @ solved[:, count:]
        return Route(information=(information + information.T) / 2, score=score)
