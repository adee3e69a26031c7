"""Where a server saturates: a curve of output throughput over levels, its plateau, and whether it is reached. Pure.

The curve is X(c) = plateau / (1 + (half / c)^sharpness)^(1 / sharpness). With sharpness 1 it is plateau c / (c + half),
what a step whose time is linear in the batch gives; with a great one it is the bound of every closed loop,
min(slope c, plateau) with slope = plateau / half; below 1 it bends over many levels, as servers with prefill and
attention do. Why this one and not another stands in docs/decisions/0014.

A server that loses throughput at high levels has a peak and no plateau: what is said of it is what was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from perf.noise import LEAST_SPREAD
from perf.sample import relative

#: The share of the plateau from which on a server counts as saturated.
SATURATED = 0.95

#: Three numbers are fitted, so that four levels are the fewest which can contradict the curve.
LEAST_LEVELS = 4

#: No curve of three numbers is true to better than this, however still the rig: it is part of every level's error.
MODEL_ERROR = 0.01

#: Softer or sharper than this no set of levels can tell from the end of the range.
SHARPNESS = (0.25, 16.0)
#: The `half` that is searched: from below the lowest level (saturated everywhere) to far above the highest (nowhere).
HALF_BELOW, HALF_ABOVE = 64.0, 1000.0

#: Intervals are 95 % ones: an explanation, not a verdict.
CONFIDENCE = 0.95

#: Points of a searched range, and how often the range of sharpness is narrowed to what fits: by forty each time.
GRID = 81
LOOKS = 4
#: Halvings of a range of `half`: far below what any noise lets be known.
HALVINGS = 28

#: `reached`: the highest level has at least SATURATED of the plateau. `not reached`: it has less. `unclear`: neither is
#: shown. `falls`: it is below the peak. `not fitted`: too few levels.
State = Literal["reached", "not reached", "unclear", "falls", "not fitted"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The output throughput of one level, tok/s, and the standard error of its logarithm; None where none is known."""

    level: int
    throughput: float
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One level of the table: measured and fitted tok/s. `residual` is measured / fitted - 1, None where not fitted."""

    level: int
    throughput: float
    fitted: float | None
    residual: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """What the levels of one variant say of its saturation.

    `plateau` (tok/s) is that of the curve, or the measured peak where it `falls`, None where nothing was fitted; it
    lies between `lo` and `hi` with 95 % confidence, None is no bound. `saturated_at` is where SATURATED of it is
    reached, on the scale of levels: not below the lowest of them, maybe far above the highest. `half` and `sharpness`
    are the curve's, None where nothing was fitted.
    `worst_residual` is the largest of the table, in size. `rise` is the relative change of measured throughput for a
    doubling of the level at the end: from the last but one level to the last, or, where it `falls`, from the peak on.
    """

    state: State
    plateau: float | None
    lo: float | None
    hi: float | None
    saturated_at: float | None
    half: float | None
    sharpness: float | None
    worst_residual: float | None
    rise: float | None
    table: tuple[Fitted, ...]

    @property
    def highest(self) -> int:
        """The highest level that was measured."""
        return self.table[-1].level


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The level that stands for saturation; `note` says why it is not a saturated one."""

    level: int
    note: str | None


def points(samples: Mapping[int, Sequence[float]], *, spreads: Mapping[int, float] | None = None) -> tuple[Point, ...]:
    """The points of a variant from its launches: tok/s by level, one number per launch.

    The noise of a launch at a level is the largest of what that level's launches show, what those of all levels show
    together (a few launches may agree by luck), and what is known from elsewhere (`spreads`, standard deviations in
    logarithms). Raises ValueError for an empty sample and for numbers that are not positive and finite.
    """
    for level, sample in samples.items():
        if not sample or not all(0 < value < math.inf for value in sample):
            raise ValueError(f"a sample must be positive numbers, one for each launch; seen {list(sample)} at {level}")
    logs = {level: [math.log(value) for value in samples[level]] for level in sorted(samples)}
    means = {level: math.fsum(values) / len(values) for level, values in logs.items()}
    squares = {level: math.fsum((value - means[level]) ** 2 for value in values) for level, values in logs.items()}
    freedom = sum(len(values) - 1 for values in logs.values())
    pooled = math.fsum(squares.values()) / freedom if freedom else None
    found: list[Point] = []
    for level, values in logs.items():
        known = None if spreads is None or level not in spreads else spreads[level] ** 2
        own = squares[level] / (len(values) - 1) if len(values) > 1 else None
        variance = max((each for each in (own, pooled, known) if each is not None), default=None)
        error = None if variance is None else math.sqrt(max(variance, LEAST_SPREAD**2) / len(values))
        found.append(Point(level=level, throughput=math.exp(means[level]), error=error))
    return tuple(found)


def saturation(points: Sequence[Point], *, margin: float) -> Saturation:
    """Fit the curve. The order of the points is of no account; throughput `falls` only where the loss is a margin.

    Raises ValueError for no level, a level twice, and throughput that is not positive and finite.
    """
    ordered = sorted(points, key=lambda each: each.level)
    levels = [each.level for each in ordered]
    if not levels or len(set(levels)) < len(levels) or levels[0] < 1:
        raise ValueError(f"saturation needs one point for each level, at least one; seen the levels {levels}")
    if not all(0 < each.throughput < math.inf for each in ordered):
        raise ValueError("throughput must be positive and finite")
    peak = max(range(len(ordered)), key=lambda index: ordered[index].throughput)
    if _falls(ordered, peak, margin):
        return _falling(ordered, peak)
    curve = _fit(ordered) if len(ordered) >= LEAST_LEVELS else None
    if curve is None:
        return Saturation(
            state="not fitted",
            plateau=None,
            lo=None,
            hi=None,
            saturated_at=None,
            half=None,
            sharpness=None,
            worst_residual=None,
            rise=_rise(ordered[-2], ordered[-1]) if len(ordered) > 1 else None,
            table=_table(ordered, None),
        )
    rise = _rise(ordered[-2], ordered[-1])
    state: State = "unclear"
    if curve.share_lo >= SATURATED:
        state = "reached"
    elif curve.share_hi < SATURATED and rise > 0:  # else the curve expects what the last step does not show
        state = "not reached"
    table = _table(ordered, curve)
    return Saturation(
        state=state,
        plateau=curve.plateau,
        lo=curve.lo,
        hi=curve.hi,
        saturated_at=max(curve.reaches(SATURATED), float(levels[0])),
        half=curve.half,
        sharpness=curve.sharpness,
        worst_residual=_worst(table),
        rise=rise,
        table=table,
    )


def level_for(variants: Mapping[str, Saturation], *, margin: float) -> Chosen:
    """The level that stands for saturation in a relation between these variants.

    The smallest that was measured of all and at which the throughput of each is within `margin` of its plateau (or of
    its peak); else the highest, with a note. Raises ValueError where no level was measured of all.
    """
    measured = [{each.level for each in found.table} for found in variants.values()]
    common = sorted(set.intersection(*measured)) if measured else []
    if not common:
        raise ValueError("saturation needs a level that was measured of every variant")
    unsaturated = [name for name, found in variants.items() if found.state not in ("reached", "falls")]
    if unsaturated:
        told = "; ".join(f"{name}: {sentence(variants[name])}" for name in unsaturated)
        return Chosen(level=common[-1], note=f"the highest level stands for saturation ({told})")
    near = [level for level in common if all(_is_near(found, level, margin) for found in variants.values())]
    if near:
        return Chosen(level=near[0], note=None)
    return Chosen(
        level=common[-1],
        note="the highest level stands for saturation: at no level are all within the margin of their plateaus",
    )


def sentence(found: Saturation) -> str:
    """What is known of the saturation, in words: `reached: plateau 773 tok/s, 95 % of it from c=42 on`."""
    rise = "" if found.rise is None else f"throughput still changes by {100 * found.rise:+.1f} % per doubling"
    match found.state:
        case "not fitted":
            why = f"not fitted: {len(found.table)} of at least {LEAST_LEVELS} levels"
            return f"{why}; {rise}" if rise else why
        case "falls":
            return (
                f"falls by {-100 * (found.rise or 0.0):.1f} % per doubling from its peak of {found.plateau:.4g} tok/s"
            )
        case "reached":
            return (
                f"reached: plateau {found.plateau:.4g} tok/s, {SATURATED:.0%} of it from c={found.saturated_at:.3g} on"
            )
        case "not reached":
            return f"not reached at c={found.highest}: {rise}"
        case "unclear":
            return f"unclear at c={found.highest}: {rise}"


def _rise(first: Point, last: Point) -> float:
    """The relative change of throughput for each doubling of the level, from one point to another."""
    return relative(math.log(last.throughput / first.throughput) / math.log2(last.level / first.level))


def _falls(ordered: Sequence[Point], peak: int, margin: float) -> bool:
    """Is the highest level below the peak by more than the margin, and by more than noise explains?

    Any level could have been the peak by luck, so the error is divided over all of them.
    """
    top, last = ordered[peak], ordered[-1]
    if top is last or top.error is None or last.error is None:
        return False
    loss = math.log(top.throughput / last.throughput)
    sure = float(special.ndtri(1 - (1 - CONFIDENCE) / len(ordered))) * math.hypot(top.error, last.error)
    return loss > max(sure, -math.log1p(-margin))


def _falling(ordered: Sequence[Point], peak: int) -> Saturation:
    """The peak as measured; the curve, where there are levels enough up to the peak, for the table alone."""
    top = ordered[peak]
    rising = ordered[: peak + 1]
    curve = _fit(rising) if len(rising) >= LEAST_LEVELS else None
    half = 0.0 if top.error is None else float(special.ndtri((1 + CONFIDENCE) / 2)) * top.error
    table = (*_table(rising, curve), *_table(ordered[peak + 1 :], None))
    return Saturation(
        state="falls",
        plateau=top.throughput,
        lo=top.throughput * math.exp(-half),
        hi=top.throughput * math.exp(half),
        saturated_at=_first_at(rising, SATURATED * top.throughput),
        half=None if curve is None else curve.half,
        sharpness=None if curve is None else curve.sharpness,
        worst_residual=_worst(table),
        rise=_rise(top, ordered[-1]),
        table=table,
    )


def _first_at(rising: Sequence[Point], throughput: float) -> float:
    """The first place at which the measured levels, joined in the logarithms of both, have this throughput."""
    index = next(index for index, each in enumerate(rising) if each.throughput >= throughput)
    if index == 0:
        return float(rising[0].level)
    below, above = rising[index - 1], rising[index]
    share = math.log(throughput / below.throughput) / math.log(above.throughput / below.throughput)
    return float(below.level * (above.level / below.level) ** share)


def _is_near(found: Saturation, level: int, margin: float) -> bool:
    measured = next(each.throughput for each in found.table if each.level == level)
    return found.plateau is not None and measured >= (1 - margin) * found.plateau


def _table(points: Sequence[Point], curve: "_Curve | None") -> tuple[Fitted, ...]:
    rows: list[Fitted] = []
    for each in points:
        fitted = None if curve is None else curve.at(each.level)
        residual = None if fitted is None else each.throughput / fitted - 1
        rows.append(Fitted(level=each.level, throughput=each.throughput, fitted=fitted, residual=residual))
    return tuple(rows)


def _worst(table: Sequence[Fitted]) -> float | None:
    return max((abs(each.residual) for each in table if each.residual is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """The fit: its three numbers, the interval of the plateau, and of the share of it that the highest level has."""

    plateau: float
    half: float
    sharpness: float
    lo: float | None
    hi: float | None
    share_lo: float
    share_hi: float

    def at(self, level: int) -> float:
        """Fitted tok/s."""
        return self.plateau * math.exp(float(_share(np.float64(level), np.log(self.half), np.log(self.sharpness))))

    def reaches(self, share: float) -> float:
        """Where this share of the plateau is reached, on the scale of levels."""
        return self.half * math.exp(-math.log(math.expm1(-self.sharpness * math.log(share))) / self.sharpness)


def _share(levels: Vector | np.float64, log_half: Vector | np.float64, log_sharpness: Vector | np.float64) -> Vector:
    """The logarithm of X / plateau."""
    sharpness = np.exp(log_sharpness)
    logs: Vector = -np.logaddexp(0.0, sharpness * (log_half - np.log(levels))) / sharpness
    return logs


def _fit(ordered: Sequence[Point]) -> _Curve:
    """Weighted least squares on log throughput.

    For given half and sharpness the best plateau is a weighted mean, so that two numbers are searched. What fits as
    well as the noise allows is a region of these two: its extremes are the ends of the intervals (profile likelihood),
    which holds where the plateau is hardly determined and an interval from the curvature would not. Where the residuals
    are larger than the errors say, the errors are raised until they agree: a curve that does not fit knows less.
    """
    levels = np.array([each.level for each in ordered], dtype=np.float64)
    reference = ordered[-1].throughput
    # Rounded far below any noise: a search in a flat region must not end elsewhere because a unit was another.
    logs = np.array([round(math.log(each.throughput / reference), 10) for each in ordered])
    known = [each.error for each in ordered if each.error is not None]
    largest = max(known, default=0.0)
    errors = np.hypot([largest if each.error is None else each.error for each in ordered], MODEL_ERROR)
    weights = 1 / errors**2
    search = _Search(levels, logs, weights)
    best, cost = search.best()
    scale = max(1.0, cost / (len(ordered) - 3))
    allowed = cost + scale * float(special.ndtri((1 + CONFIDENCE) / 2)) ** 2
    region = search.region(best, allowed)
    top = _share(levels[-1], region[:, 0], region[:, 1])
    return _Curve(
        plateau=reference * math.exp(search.plateau(best)),
        half=math.exp(best[0]),
        sharpness=math.exp(best[1]),
        lo=reference * math.exp(float(region[:, 2].min())),
        hi=None if search.is_unbounded(region) else reference * math.exp(float(region[:, 2].max())),
        share_lo=math.exp(float(top.min())),
        share_hi=math.exp(float(top.max())),
    )


class _Search:
    """Half and sharpness, both as logarithms, within their ranges: what fits best, and what fits well enough."""

    def __init__(self, levels: Vector, logs: Vector, weights: Vector) -> None:
        self._levels, self._logs, self._weights = levels, logs, weights
        self._half = (math.log(levels[0] / HALF_BELOW), math.log(levels[-1] * HALF_ABOVE))
        self._sharpness = (math.log(SHARPNESS[0]), math.log(SHARPNESS[1]))

    def best(self) -> tuple[Vector, float]:
        """(log half, log sharpness) of the least cost, and the cost."""
        sharpness = np.linspace(*self._sharpness, GRID)
        half = self._profile(sharpness)
        start = int(np.argmin(self._cost(half, sharpness)))

        def residuals(place: Vector) -> Vector:
            left: Vector = np.sqrt(self._weights) * self._residuals(place[:1], place[1:])[0]
            return left

        lower, upper = zip(self._half, self._sharpness, strict=True)
        inside = np.clip([half[start], sharpness[start]], np.add(lower, 1e-9), np.subtract(upper, 1e-9))
        found = optimize.least_squares(residuals, inside, bounds=(lower, upper), xtol=1e-12, ftol=1e-12, gtol=1e-12)
        return found.x, 2 * float(found.cost)

    def plateau(self, place: Vector) -> float:
        """The logarithm of the best plateau at a place."""
        return float(self._plateaus(place[:1], place[1:])[0])

    def region(self, best: Vector, allowed: float) -> NDArray[np.float64]:
        """The edge of what costs no more than allowed: rows of (log half, log sharpness, log plateau).

        For a given sharpness the plateau and the share that each level has of it change one way with half, so that
        their extremes are on the edge.
        """
        lo, hi = self._sharpness
        sharpness = half = best[:0]
        for _ in range(LOOKS):
            sharpness = np.union1d(np.linspace(lo, hi, GRID), best[1])
            half = self._profile(sharpness)
            inside = np.flatnonzero((self._cost(half, sharpness) <= allowed) | (sharpness == best[1]))
            lo = float(sharpness[max(inside[0] - 1, 0)])
            hi = float(sharpness[min(inside[-1] + 1, len(sharpness) - 1)])
            half, sharpness = half[inside], sharpness[inside]
        edges = [np.column_stack((self._edge(half, sharpness, end, allowed), sharpness)) for end in self._half]
        places = np.vstack((best, *edges))
        return np.column_stack((places, self._plateaus(places[:, 0], places[:, 1])))

    def is_unbounded(self, region: NDArray[np.float64]) -> bool:
        """Does the region reach the end of a range behind which the plateau would be higher still?"""
        near = 1e-6
        return bool((region[:, 0] >= self._half[1] - near).any() or (region[:, 1] <= self._sharpness[0] + near).any())

    def _profile(self, sharpness: Vector) -> Vector:
        """The best half for each sharpness: the best of a grid, then golden sections around it."""
        grid = np.linspace(*self._half, GRID)
        costs = np.stack([self._cost(np.full_like(sharpness, half), sharpness) for half in grid])
        middle = np.argmin(costs, axis=0)
        lo, hi = grid[np.maximum(middle - 1, 0)], grid[np.minimum(middle + 1, GRID - 1)]
        golden = (math.sqrt(5) - 1) / 2
        for _ in range(HALVINGS):
            left, right = hi - golden * (hi - lo), lo + golden * (hi - lo)
            lower = self._cost(left, sharpness) < self._cost(right, sharpness)
            lo, hi = np.where(lower, lo, left), np.where(lower, right, hi)
        found: Vector = (lo + hi) / 2
        return found

    def _edge(self, half: Vector, sharpness: Vector, end: float, allowed: float) -> Vector:
        """From each half towards the end of the range: how far the cost is allowed, by bisection."""
        near, far = half, np.full_like(half, end)
        far_fits = self._cost(far, sharpness) <= allowed
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            fits = self._cost(middle, sharpness) <= allowed
            near, far = np.where(fits, middle, near), np.where(fits, far, middle)
        edge: Vector = np.where(far_fits, end, near)
        return edge

    def _plateaus(self, half: Vector, sharpness: Vector) -> Vector:
        shares = _share(self._levels, half[:, None], sharpness[:, None])
        plateaus: Vector = ((self._logs - shares) @ self._weights) / self._weights.sum()
        return plateaus

    def _residuals(self, half: Vector, sharpness: Vector) -> NDArray[np.float64]:
        shares = _share(self._levels, half[:, None], sharpness[:, None])
        left: NDArray[np.float64] = self._logs - shares
        left -= (left @ self._weights / self._weights.sum())[:, None]
        return left

    def _cost(self, half: Vector, sharpness: Vector) -> Vector:
        cost: Vector = self._residuals(half, sharpness) ** 2 @ self._weights
        return cost
