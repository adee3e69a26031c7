"""The interval of a ratio between two variants whose launches stand side by side, judged at a few looks. Pure.

For relations; the verdict on a case is `gate`. A launch is one number, since its rounds share its luck. The datum is
the difference of the logarithms of a pair; the interval is a t interval whose error is divided over everything it may
say, and steadied by what the store knows of the noise (docs/decisions/0016).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from scipy import special

from perf.gate import Word
from perf.sample import relative

#: Launches searched for the advice "N more launches"; beyond it the advice is a quieter rig.
MAX_ADVISED_LAUNCHES = 200

#: However much is stored, tonight may be noisier than it, which the first pairs cannot show: with 8, a night twice as
#: noisy is called wrongly about half as often as with 30, and ratios near the bar cost a quarter more launches.
MOST_FREEDOM = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How sure a verdict must be. `tail` is the error of each end of one interval, `margin` a relative loss."""

    margin: float
    tail: float
    power: float

    @property
    def log_margin(self) -> float:
        """The margin as a positive log-ratio: -ln(1 - margin)."""
        return -math.log1p(-self.margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What is known of one number's noise before tonight: standard deviation in logarithms, and degrees of freedom."""

    spread: float
    freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is said about the change from one side to another: of a case from before to now, of a relation to its bar.

    `change`, `lo`, `hi` are relative changes of the metric itself (0.02 is 2 % more, also of a latency); `word` knows
    its direction. `could_see` is the relative loss that would have been found with the power asked; None where no noise
    can be estimated. `launches_needed` is how many more launches (at least one) would find a loss of the margin
    with that power, None where none within MAX_ADVISED_LAUNCHES would.
    """

    word: Word
    change: float
    lo: float
    hi: float
    before: float
    after: float
    launches_before: int
    launches_after: int
    noise_before: float | None
    noise_after: float | None
    could_see: float | None
    launches_needed: int | None


def tail(alpha: float, family: int, looks: int) -> float:
    """The error one end of one interval may have: Bonferroni over everything the suite may say, at every look."""
    return alpha / (family * looks)


def looks(first: int, cap: int) -> tuple[int, ...]:
    """Numbers of launches at which a case is judged: `first`, doubled until the cap, and the cap."""
    schedule = [min(first, cap)]
    while schedule[-1] < cap:
        schedule.append(min(2 * schedule[-1], cap))
    return tuple(schedule)


def outcome(lo: float, hi: float, estimate: float, margin: float) -> Word:
    """The verdict for an interval of the log-ratio (positive is better) and a positive log margin.

    Every interval has exactly one outcome. REGRESSED: no change is excluded, a loss of the margin is not, and the
    estimate is material (at least a third of the margin).
    """
    if hi < 0 and lo <= -margin and estimate <= -margin / 3:
        return Word.REGRESSED
    if lo > 0 and hi >= margin and estimate >= margin / 3:
        return Word.IMPROVED
    if lo > -margin:
        return Word.PASS
    return Word.INCONCLUSIVE


def difference(one: Spread | None, other: Spread | None) -> Spread | None:
    """What is known of the difference of two launches (Welch, Satterthwaite); None where one of them is unknown."""
    if one is None or other is None:
        return None
    first, second = one.spread**2, other.spread**2
    freedom = (first + second) ** 2 / (first**2 / one.freedom + second**2 / other.freedom)
    return Spread(spread=math.sqrt(first + second), freedom=min(freedom, MOST_FREEDOM))


def judge(
    before: tuple[float, ...], after: tuple[float, ...], bound: Bound, *, known: Spread | None = None
) -> Judgement:
    """Judge `after` over `before`, each the launches of one night in their order: the k-th stand side by side.

    What moves over the night cancels in a pair. Launches of one side that have no partner say nothing. `known` is the
    noise of one difference; it steadies tonight's, and where tonight's pairs vary more, that holds.

    Raises ValueError for an empty sample and for numbers that are zero, negative, infinite or not numbers: such a side
    is an error, never a skip.
    """
    count = min(len(before), len(after))
    first, second = _logs(before[:count]), _logs(after[:count])
    pairs = _Logs.of(b - a for a, b in zip(first.values, second.values, strict=True))
    spread = _paired(pairs, known)
    half = math.inf if spread is None else spread.half_width(bound.tail)
    lo, hi = pairs.mean - half, pairs.mean + half
    return Judgement(
        word=outcome(lo, hi, pairs.mean, bound.log_margin),
        change=relative(pairs.mean),
        lo=relative(lo),
        hi=relative(hi),
        before=math.exp(first.mean),
        after=math.exp(second.mean),
        launches_before=count,
        launches_after=count,
        noise_before=first.noise,
        noise_after=second.noise,
        could_see=None if spread is None else -math.expm1(-spread.detectable(bound)),
        launches_needed=None if spread is None else _pairs_needed(spread, bound),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logs:
    """The logarithms of a sample, their mean and the sum of their squared distances from it.

    Sums are correctly rounded (`math.fsum`), so that the order of the launches changes no bit.
    """

    values: tuple[float, ...]
    mean: float
    squares: float

    @classmethod
    def of(cls, logs: Iterable[float]) -> "_Logs":
        values = tuple(logs)
        mean = math.fsum(values) / len(values)
        return cls(values=values, mean=mean, squares=math.fsum((value - mean) ** 2 for value in values))

    @property
    def noise(self) -> float | None:
        """Coefficient of variation of one launch: the standard deviation of the logarithms."""
        return math.sqrt(self.squares / (len(self.values) - 1)) if len(self.values) > 1 else None


def _logs(sample: tuple[float, ...]) -> _Logs:
    if not sample or not all(0 < value < math.inf for value in sample):
        raise ValueError(f"a sample must be positive numbers, one for each launch; seen {list(sample)}")
    return _Logs.of(map(math.log, sample))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paired:
    """The variance of one difference, how many there are, and the degrees of freedom that the variance rests on.

    It is pooled with the store's, and where tonight's pairs vary more, it is theirs: a noisy night widens the interval.
    """

    variance: float
    count: int
    freedom: float

    @property
    def error(self) -> float:
        return math.sqrt(self.variance / self.count)

    def half_width(self, tail_error: float) -> float:
        return _t(1 - tail_error, self.freedom) * self.error

    def detectable(self, bound: Bound) -> float:
        """The loss, as a positive log-ratio, that ends REGRESSED with the power that is asked.

        REGRESSED is an estimate below both -half_width (no change is excluded) and half_width - margin (a loss of the
        margin is not); the noise of the estimate comes on top.
        """
        half = self.half_width(bound.tail)
        return max(half, bound.log_margin - half) + _t(bound.power, self.freedom) * self.error


def _paired(pairs: _Logs, known: Spread | None) -> _Paired | None:
    own = len(pairs.values) - 1
    stored = 0.0 if known is None else known.freedom
    if own + stored <= 0:
        return None
    variance = (pairs.squares + (0.0 if known is None else stored * known.spread**2)) / (own + stored)
    if own:
        variance = max(variance, pairs.squares / own)
    return _Paired(variance=variance, count=len(pairs.values), freedom=own + stored)


def _pairs_needed(spread: _Paired, bound: Bound) -> int | None:
    def suffices(more: int) -> bool:
        larger = _Paired(variance=spread.variance, count=spread.count + more, freedom=spread.freedom + more)
        return larger.detectable(bound) <= bound.log_margin

    more = 1 + bisect_left(range(1, MAX_ADVISED_LAUNCHES + 1), True, key=suffices)
    return more if more <= MAX_ADVISED_LAUNCHES else None


@lru_cache(maxsize=4096)  # a campaign asks for few quantiles, and often
def _t(probability: float, freedom: float) -> float:
    return float(special.stdtrit(freedom, probability))
