"""How much launches vary: the parts of the noise of one variant, estimated from its stored launches. Pure.

The model, in natural logarithms of tok/s (docs/statistics.md):

    y[launch, level] = mean[level] + night + launch + own[launch, level] + night x level

`night` and `launch` move every level of a launch alike; what is left is each level's own. A night is a campaign.
Deviations from the mean of a night tell launch and own noise, whatever build ran; nights of one build tell the rest.
Small stores are steadied by priors, each with a weight in launches or nights.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

#: Share of a level's variance that its launch moves in all levels alike, and night variance in units of a launch's:
#: what is assumed where the store says little, and how many launches (nights) that assumption weighs.
PRIOR_SHARED = 0.25
PRIOR_NIGHT = 0.25
PRIOR_WEIGHT = 10.0
SHARED_RANGE = (0.05, 0.8)
#: However steady launches are, nights are assumed to differ by this much, until there are nights to tell.
PRIOR_NIGHT_SPREAD = 0.003
#: The night is never taken for less than this, and its estimate is raised by a tenth: it is read from few nights.
LEAST_NIGHT = 0.05
NIGHT_ALLOWANCE = 1.1
#: Night x level: how many nights the assumption "none" weighs.
NIGHT_LEVEL_WEIGHT = 10.0

#: Deviations beyond this many robust standard deviations are pulled in, where there are enough to know them.
WINSORISED_AT = 3.0
WINSORISED_FROM = 8
#: The median absolute deviation of a normal distribution is this much smaller than its standard deviation.
MAD_TO_SD = 1.4826

#: A spread that is known from few launches is widened as a one-sided t quantile is at this probability.
ALLOWANCE_AT = 0.95

#: Where nothing is stored to tell: launches vary by one percent.
ASSUMED_SPREAD = 0.01
#: No launch is as steady as this: emulated time is, and rounding is not noise.
LEAST_SPREAD = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """Launches of one build in one night: logarithms of tok/s, one row per launch, NaN where a level is missing."""

    name: str
    logs: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise of one variant's launches over J levels. All in natural logarithms (0.01 is one percent).

    `mean` is the stored mean of each level, `spread` the standard deviation of one launch within a night, `own` the
    part of that variance that is a level's own, `shared` the variance that a launch moves in all levels alike. `night`
    and `night_level` are the variances between nights: of all levels together, and of each by itself. `stored` is the
    covariance of tonight's true means around `mean`. `freedom` is how many degrees of freedom `spread` rests on.
    """

    mean: Vector
    spread: Vector
    own: Vector
    shared: float
    night: float
    night_level: Vector
    stored: Matrix
    freedom: Vector
    launches: int
    nights: int

    @property
    def typical(self) -> float:
        """The variance of a launch at the median level: the unit of what all levels share."""
        spread: list[float] = self.spread.tolist()
        return statistics.median(spread) ** 2

    def of(self, levels: Sequence[int]) -> "Noise":
        """The same noise for some of its levels, by their indices."""
        chosen = np.asarray(levels, dtype=np.intp)
        return Noise(
            mean=self.mean[chosen],
            spread=self.spread[chosen],
            own=self.own[chosen],
            shared=self.shared,
            night=self.night,
            night_level=self.night_level[chosen],
            stored=self.stored[np.ix_(chosen, chosen)],
            freedom=self.freedom[chosen],
            launches=self.launches,
            nights=self.nights,
        )


def estimate(baseline: Sequence[Night], others: Sequence[Night] = (), *, cautious: bool = False) -> Noise:
    """The noise from the nights of the stored baseline, and from `others`, whose means say nothing of it.

    `cautious` believes nights that differ as far as they do, however few they are: where the store alone convicts.

    Raises ValueError where a level has no launch in the baseline.
    """
    launches = np.vstack([night.logs for night in baseline])
    counts = np.isfinite(launches).sum(axis=0)
    if not len(launches) or not counts.all():
        raise ValueError("a level without a stored launch has no noise to be estimated")
    deviations = [_within(night.logs) for night in (*baseline, *others)]
    spread, freedom = _spread(deviations, launches)
    share = _shared(deviations, spread)
    typical = float(np.median(spread)) ** 2
    shared = share * typical
    own = spread**2 - share * np.minimum(typical, spread**2)
    mean = np.nanmean(launches, axis=0)
    night, night_level = _between(_by_name(baseline), mean, own, shared, spread, cautious=cautious)
    return Noise(
        mean=mean,
        spread=spread,
        own=own,
        shared=shared,
        night=night,
        night_level=night_level,
        stored=_stored(_by_name(baseline), own, shared, night, night_level),
        freedom=freedom,
        launches=len(launches),
        nights=len({each.name for each in baseline}),
    )


def _by_name(nights: Sequence[Night]) -> list[Matrix]:
    """The launches of each night together: two builds' worth of one night are one night of the baseline's."""
    rows: dict[str, list[Matrix]] = defaultdict(list)
    for night in nights:
        rows[night.name].append(night.logs)
    return [np.vstack(each) for each in rows.values()]


def _within(logs: Matrix) -> Matrix:
    """Deviations from a night's mean, scaled to have a launch's variance; NaN where there is but one launch."""
    count = np.isfinite(logs).sum(axis=0)
    scale = np.where(count > 1, np.sqrt(count / np.maximum(count - 1, 1)), np.nan)
    with np.errstate(invalid="ignore"):
        center = np.where(count > 0, np.nansum(logs, axis=0) / np.maximum(count, 1), np.nan)
    deviations: Matrix = (logs - center) * scale
    return deviations


def _degrees(deviations: Matrix) -> Vector:
    count = np.isfinite(deviations).sum(axis=0)
    degrees: Vector = np.maximum(count - 1, 0).astype(np.float64)
    return degrees


def _spread(deviations: list[Matrix], launches: Matrix) -> tuple[Vector, Vector]:
    """The standard deviation of one launch at each level, and its degrees of freedom.

    Levels steady each other: the logarithm of each variance is drawn towards the median one, the more the less its own
    variation exceeds what its degrees of freedom explain (the variance of log chi-square: the trigamma function).
    """
    freedom = np.sum([_degrees(each) for each in deviations], axis=0)
    if not freedom.any():  # one launch a night: their whole spread, nights included, is more than a launch's
        deviations = [_within(launches)]
        freedom = _degrees(deviations[0])
    if not freedom.any():
        return np.full(launches.shape[1], ASSUMED_SPREAD), freedom
    rows = _winsorised(np.vstack(deviations))
    known = freedom > 0
    # Of n deviations scaled to a launch's variance, the mean square over all of them is that variance.
    variance = np.full(launches.shape[1], np.nan)
    variance[known] = np.nanmean(rows[:, known] ** 2, axis=0)
    variance = np.maximum(variance, LEAST_SPREAD**2)
    logs = np.log(variance)
    # A median of variances lies below what they are of, as the median of chi-square does (Wilson and Hilferty).
    middle = float(np.nanmedian(logs - 3 * np.log1p(-2 / (9 * np.maximum(freedom, 1.0)))))
    luck = special.polygamma(1, np.where(known, freedom, 1.0) / 2)
    between = float(np.nanvar(logs, ddof=1)) if known.sum() > 1 else 0.0
    excess = np.maximum(between - luck, 0.0)
    weight = excess / (excess + luck) if known.sum() > 1 else np.ones_like(logs)
    weight = np.where(known, weight, 0.0)
    spread: Vector = np.exp((weight * np.where(known, logs, 0.0) + (1 - weight) * middle) / 2)
    # What a variance rests on: its own degrees of freedom, and of the others' as much as it was drawn to them.
    rests_on = freedom + (1 - weight) * (freedom.sum() - freedom)
    return spread * _allowance(rests_on), freedom


def _allowance(freedom: Vector) -> Vector:
    """How much wider a t quantile is than a normal one: few degrees of freedom may have seen a quiet night."""
    widened: Vector = special.stdtrit(freedom, ALLOWANCE_AT) / special.ndtri(ALLOWANCE_AT)
    return widened


def _winsorised(rows: Matrix) -> Matrix:
    count = np.isfinite(rows).sum(axis=0)
    with np.errstate(invalid="ignore"):
        limit = WINSORISED_AT * MAD_TO_SD * _nanmedian(np.abs(rows))
    limit = np.where((count >= WINSORISED_FROM) & (limit > 0), limit, np.inf)
    clipped: Matrix = np.clip(rows, -limit, limit)
    return clipped


def _nanmedian(rows: Matrix) -> Vector:
    """The median of each column; 0 where a column has no number."""
    median: Vector = np.array(
        [np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else 0.0 for column in rows.T]
    )
    return median


def _shared(deviations: list[Matrix], spread: Vector) -> float:
    """The share of the variance that a launch moves in all levels alike.

    Of standardised deviations z of one launch, the mean over K levels has variance share + (1 - share) / K, and they
    vary around it with 1 - share.
    """
    told, degrees = 0.0, 0.0
    for night in deviations:
        for row in night / spread:
            z = row[np.isfinite(row)]
            if len(z) > 1:
                weight = 1 - 1 / len(night)  # of n deviations from their own mean, n - 1 are free
                told += weight * (float(z.mean()) ** 2 - float(z.var(ddof=1)) / len(z))
                degrees += weight
    share = (told + PRIOR_WEIGHT * PRIOR_SHARED) / (degrees + PRIOR_WEIGHT)
    return float(np.clip(share, *SHARED_RANGE))


def _between(
    nights: list[Matrix], mean: Vector, own: Vector, shared: float, spread: Vector, *, cautious: bool
) -> tuple[float, Vector]:
    """The variances between nights: of all levels together, and of each level by itself."""
    typical = float(np.median(spread)) ** 2
    centers, errors, contrasts, expected = [], [], [], []
    for logs in nights:
        launches = np.isfinite(logs).sum(axis=0)
        there = launches > 0
        if not there.any():
            continue
        z = np.nanmean(logs[:, there], axis=0) - mean[there]
        weight = 1 / own[there]
        center = float((weight * z).sum() / weight.sum())
        size = float(launches[there].mean())
        centers.append(center)
        errors.append((shared + 1 / float(weight.sum())) / size)
        if there.sum() > 1:
            standard = (z - center) / spread[there]
            contrasts.append(float((standard**2).sum()) / (there.sum() - 1))
            expected.append(float((own[there] / spread[there] ** 2 / launches[there]).mean()))
    count = len(centers)
    told = float(np.var(centers, ddof=1)) - float(np.mean(errors)) if count > 1 else 0.0
    weight_told = count - 1
    assumed = max(PRIOR_NIGHT * typical, PRIOR_NIGHT_SPREAD**2)
    night = (weight_told * told + PRIOR_WEIGHT * assumed) / (weight_told + PRIOR_WEIGHT)
    night = max(night * NIGHT_ALLOWANCE, LEAST_NIGHT * typical, told if cautious else 0.0)
    # Contrasts are of deviations from the stored mean, which holds each night itself: count - 1 of count are free.
    night_level = np.zeros_like(mean)
    if count > 1 and contrasts:
        pooled = float(np.mean(contrasts)) * count / (count - 1)
        freedom = (count - 1) * max(len(mean) - 1, 1)
        excess = pooled - float(np.mean(expected))
        if not cautious:  # "none" is assumed, until the nights say otherwise
            excess -= pooled * float(np.sqrt(2 / freedom))
            excess *= weight_told / (weight_told + NIGHT_LEVEL_WEIGHT)
        night_level = max(excess, 0.0) * spread**2
    return night, night_level


def _stored(nights: list[Matrix], own: Vector, shared: float, night: float, night_level: Vector) -> Matrix:
    """The covariance of tonight's true means around the stored ones: the store's error, its nights, and tonight."""
    there = [np.isfinite(logs).astype(np.float64) for logs in nights]
    launches = np.vstack(there)
    total = launches.sum(axis=0)
    together = launches.T @ launches / np.outer(total, total)  # sum over launches of both weights
    counts = np.array([each.sum(axis=0) for each in there])
    by_night = counts.T @ counts / np.outer(total, total)  # sum over nights of both weights
    covariance: Matrix = (
        shared * together
        + np.diag(own / total)
        + night * (1 + by_night)
        + np.diag(night_level * (1 + np.diag(by_night)))
    )
    return covariance
