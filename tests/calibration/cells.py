"""What a verdict is tried on: simulated suites whose truth is known, in cells of many alike, and what each demands.

A suite of a cell goes through the product's own campaign and verdict on `perf.simulation`; nothing of the method is
copied here. A cell with no change counts false alarms; one with a loss counts what is found and what is missed.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import numpy as np
from scipy.stats import beta, binom

from perf.gate import Word
from perf.record import SuiteRecord
from perf.simulation import SimulatedRig, Truth, suite
from perf.trial import Trials
from perf.verdict import CaseVerdict, judge_case

LEVELS = (1, 2, 5, 10, 30, 70, 100, 250)

#: The store of the model: so many nights of one launch each, and as many other nights of two.
NIGHTS = PAIRS = 20

MARGIN = 0.03

#: The variant that changes, and one that never does.
CHANGED, OTHER = "plain", "eagle3"

#: Bounds are one-sided and hold with this confidence (Clopper and Pearson 1934).
CONFIDENCE = 0.95

#: A run with fewer suites than a cell has can only refute what is demanded: by luck in one cell of so many.
REFUTED_AT = 1e-5

#: Off the model, where a level of a launch may fall by 8 spreads: where that is the reference's, the candidate looks
#: better. IMPROVED fails no build.
IMPROVED_BY_HICCUPS = 0.02

#: What the verdict promises: false alarms of either direction, on the model and off it; what holds on the model alone.
FALSE_ALARMS, POWER, SILENT_MISSES, PASSES = 0.01, 0.95, 0.025, 0.95

#: Rig-minutes to a verdict on an unchanged night, at most, by the spread of one launch.
MINUTES = {0.005: 10.5, 0.01: 18.5, 0.02: 106.0, 0.03: 265.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Suites that are alike in all but luck. `changes` are the relative ones of `CHANGED`, level by level.

    `aside` are levels, by index, from which no verdict is expected; `both` adds a variant that does not change.
    """

    table: str
    noise: str
    lost: str
    truth: Truth
    changes: tuple[float, ...]
    suites: int
    levels: tuple[int, ...] = LEVELS
    nights: int = NIGHTS
    pairs: int = PAIRS
    launches: int = 1
    reference: bool = True
    both: bool = False
    budget_min: float | None = None
    aside: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Of this cell alone: a file name."""
        words = f"{self.table} {self.noise} {self.lost}".replace("%", "").replace("+", "plus ").replace(" -", " minus ")
        return "-".join("".join(c if c.isalnum() or c == "." else " " for c in words).split())

    @property
    def definition(self) -> str:
        """A digest of all that is simulated, but for how often."""
        return hashlib.sha256(repr(asdict(replace(self, suites=0))).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One suite: whether a lost level was found, an innocent one was red, one was IMPROVED, and whether all passed."""

    found: bool
    innocent: bool
    improved: bool
    passed: bool
    minutes: float
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The suites of a cell, counted. Minutes are of the rig: the mean, its standard error, and the 95th percentile."""

    suites: int
    red: int
    found: int
    innocent: int
    improved: int
    passed: int
    undecided: int
    minutes: float
    minutes_error: float
    minutes_95: float
    launches: float


def night(cell: Cell, number: int) -> tuple[SuiteRecord, tuple[CaseVerdict, ...], float]:
    """One suite of a cell: its record, its verdicts, its minutes. The same number gives the same suite."""
    seed = int.from_bytes(hashlib.sha256(f"{cell.name} {number}".encode()).digest()[:8])
    rig = SimulatedRig(
        {CHANGED: cell.truth, OTHER: cell.truth} if cell.both else {CHANGED: cell.truth},
        cell.levels,
        seed=seed,
        changes={CHANGED: np.log1p(cell.changes)},
    )
    stored = rig.store(cell.nights, cell.pairs, launches=cell.launches)
    budget_s = None if cell.budget_min is None else 60 * cell.budget_min
    trials = {name: Trials(name) for name in rig.truths}
    done = rig.run(suite(stored, margin=MARGIN, reference=cell.reference), budget_s=budget_s, trials=trials)
    # As `verdict.judge` does, but with the trials that the campaign has kept: half the time of a suite.
    verdicts = tuple(judge_case(done, case, trials[case.variant].keep_up(done)) for case in done.cases)
    return done, verdicts, rig.now_s / 60


def simulate(cell: Cell, number: int) -> Outcome:
    """What came of one suite of a cell."""
    done, verdicts, minutes = night(cell, number)
    red = {(each.variant, each.level) for each in verdicts if each.word is Word.REGRESSED}
    lost = {(CHANGED, level) for level, change in zip(cell.levels, cell.changes, strict=True) if change < 0}
    awaited = {level for index, level in enumerate(cell.levels) if index not in cell.aside}
    return Outcome(
        found=bool(red & lost),
        innocent=bool(red - lost),
        improved=any(each.word is Word.IMPROVED for each in verdicts),
        passed=all(each.word in (Word.PASS, Word.IMPROVED) for each in verdicts if each.level in awaited),
        minutes=minutes,
        launches=len(done.launches),
    )


def simulate_some(cell: Cell, first: int, count: int) -> list[Outcome]:
    """Some suites of a cell: what one process does at a time."""
    return [simulate(cell, first + each) for each in range(count)]


def counted(outcomes: Sequence[Outcome]) -> Counts:
    """Outcomes as counts."""
    minutes = np.array([each.minutes for each in outcomes])
    red = sum(each.found or each.innocent for each in outcomes)
    passed = sum(each.passed for each in outcomes)
    return Counts(
        suites=len(outcomes),
        red=red,
        found=sum(each.found for each in outcomes),
        innocent=sum(each.innocent for each in outcomes),
        improved=sum(each.improved for each in outcomes),
        passed=passed,
        undecided=sum(not (each.found or each.innocent or each.passed) for each in outcomes),
        minutes=round(float(minutes.mean()), 2),
        minutes_error=round(float(minutes.std()) / len(outcomes) ** 0.5, 3),
        minutes_95=round(float(np.quantile(minutes, 0.95)), 1),
        launches=round(float(np.mean([each.launches for each in outcomes])), 2),
    )


# Bounds


def upper(count: int, of: int) -> float:
    """No higher than this, with `CONFIDENCE`."""
    return 1.0 if count == of else float(beta.ppf(CONFIDENCE, count + 1, of - count))


def lower(count: int, of: int) -> float:
    """No lower than this, with `CONFIDENCE`."""
    return 1 - upper(of - count, of)


# What is demanded


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A share of a cell's suites that must be `at_most` this: its bound where that is to be `shown`, else itself."""

    of: str
    count: int
    suites: int
    at_most: float
    shown: bool = True

    @property
    def holds(self) -> bool:
        """By the bound, or by the share itself. Where so few suites could not show it at all: not refuted."""
        if self.shown and upper(0, self.suites) > self.at_most:
            return not self.refuted
        return (upper(self.count, self.suites) if self.shown else self.count / self.suites) <= self.at_most

    @property
    def refuted(self) -> bool:
        """Can so many hardly be luck, if what is demanded is true?"""
        return bool(binom.sf(self.count - 1, self.suites, self.at_most) < REFUTED_AT)


def demands(cell: Cell, counts: Counts) -> Iterator[Demand]:
    """What must hold of shares. False alarms everywhere, the rest on the model; other tables are for reading."""
    on_model = cell.table == "on the model"
    suites = counts.suites
    if min(cell.changes) >= 0:
        yield Demand(of="false alarms", count=counts.red, suites=suites, at_most=FALSE_ALARMS)
        if max(cell.changes) <= 0:
            most = IMPROVED_BY_HICCUPS if cell.truth.hiccups else FALSE_ALARMS
            yield Demand(of="false IMPROVED", count=counts.improved, suites=suites, at_most=most)
        if on_model:
            yield Demand(of="not all PASS", count=suites - counts.passed, suites=suites, at_most=1 - PASSES)
    elif on_model:
        yield Demand(of="not found", count=suites - counts.found, suites=suites, at_most=1 - POWER, shown=False)
        yield Demand(of="silent misses", count=counts.passed, suites=suites, at_most=SILENT_MISSES, shown=False)


def broken(cell: Cell, counts: Counts) -> list[str]:
    """Which demands a cell breaks, in words. With fewer suites than the cell has, only what is refuted."""
    whole = counts.suites >= cell.suites
    found = [
        f"{each.of}: {each.count} of {each.suites} ({100 * each.count / each.suites:.2f} %, "
        f"bound {100 * upper(each.count, each.suites):.2f} %), at most {100 * each.at_most:g} %"
        for each in demands(cell, counts)
        if (not each.holds if whole else each.refuted)
    ]
    limit = MINUTES[median(cell.truth.spread)] if cell.table == "on the model" and cell.lost == NONE else np.inf
    # The limit is of the mean itself; what is refuted by few suites lies many standard errors above.
    if counts.minutes - (0 if whole else 4.5 * counts.minutes_error) > limit:
        found.append(f"rig-minutes: {counts.minutes:.1f} on an unchanged night, at most {limit:g}")
    return found


# The cells

_NONE = (0.0,) * len(LEVELS)


def _at(change: float, *indices: int, rest: float = 0.0, levels: int = len(LEVELS)) -> tuple[float, ...]:
    return tuple(change if index in indices else rest for index in range(levels))


_ONE, _ALL = _at(-MARGIN, 0), _at(-MARGIN, *range(len(LEVELS)))
NONE, ONE, ALL = "none", "-3 % at one", "-3 % at all"
_LOST = {NONE: _NONE, ONE: _ONE, ALL: _ALL}


def _truth(cv: float, levels: int = len(LEVELS)) -> Truth:
    return Truth(throughput=(100.0,) * levels, spread=(cv,) * levels)


def _percent(cv: float) -> str:
    return f"CV {100 * cv:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Off:
    """One way to be off the model: what the truth of CV 1 or 2 % has besides, and the store."""

    truth: dict[str, float | str]
    nights: int = NIGHTS
    pairs: int = PAIRS
    launches: int = 1
    noisy: bool = False


_OFF = {
    "t tails": _Off(truth={"tails": "t4"}),
    "hiccups": _Off(truth={"hiccups": 0.02}),
    "warming": _Off(truth={"drift": 1.0, "walk": 0.3}),
    "cooling": _Off(truth={"drift": -1.0, "walk": 0.3}),
    "twice the variance": _Off(truth={"scale": 2.0}),
    "a store of one night": _Off(truth={}, nights=1, pairs=0, launches=4),
    "a store of four nights": _Off(truth={}, nights=4, pairs=3),
    "restless nights": _Off(truth={"night": 1.0}),
    "night x level 0.25": _Off(truth={"night_level": 0.25}),
    "night x level 0.5": _Off(truth={"night_level": 0.5}),
    "one noisy level": _Off(truth={}, noisy=True),
}

#: Run-to-run noise of SGLang at eight levels as it was published, with the losing level of "one" (docs/statistics.md).
PUBLISHED = (0.0028, 0.0026, 0.0026, 0.0011, 0.0015, 0.0254, 0.005, 0.005)
PUBLISHED_LOSES = 2

_MIXED = {
    "-3 % at two": _at(-0.03, 0, 1),
    "-3 % at four": _at(-0.03, *range(4)),
    "-3 % at seven": _at(-0.03, *range(7)),
    "-3 % at all but the first": _at(0.0, 0, rest=-0.03),
    "a ramp from 0 to -3 %": tuple(float(each) for each in np.linspace(0.0, -0.03, len(LEVELS))),
    "-3 % at one, -1 % at the rest": _at(-0.03, 0, rest=-0.01),
    "-3 % at one, -1.5 % at the rest": _at(-0.03, 0, rest=-0.015),
    "-5 % at one, -2 to -1 % at the rest": (-0.05, *(float(each) for each in np.linspace(-0.02, -0.01, 7))),
    "-10 % at one": _at(-0.10, 0),
    "-10 % at all": _at(-0.10, *range(8)),
    "-5 % at one": _at(-0.05, 0),
    "-2 % at one": _at(-0.02, 0),
    "-1 % at one": _at(-0.01, 0),
    "-2 % at all": _at(-0.02, *range(8)),
    "-1 % at all": _at(-0.01, *range(8)),
    "+3 % at one": _at(0.03, 0),
    "+10 % at one": _at(0.10, 0),
    "+3 % at four": _at(0.03, *range(4)),
    "+3 % at seven": _at(0.03, *range(7)),
    "+3 % at all": _at(0.03, *range(8)),
}


def _on_model() -> Iterator[Cell]:
    for cv in MINUTES:
        for lost, changes in _LOST.items():
            few = cv > 0.02
            count = (4_000 if few else 10_000) if lost == NONE else (300 if few else 1_000)
            yield Cell(
                table="on the model", noise=_percent(cv), lost=lost, truth=_truth(cv), changes=changes, suites=count
            )


def _suites(lost: str) -> int:
    """Nights that lost something take many launches; what is said of them are percentages, not bounds of one."""
    return 2_000 if lost == NONE else 200


def _off_model() -> Iterator[Cell]:
    for cv in (0.01, 0.02):
        for name, off in _OFF.items():
            truth = replace(_truth(cv), **off.truth)  # type: ignore[arg-type]
            if off.noisy:
                truth = replace(truth, spread=(*truth.spread[:-1], 10 * cv))
            for lost, changes in _LOST.items():
                yield Cell(
                    table="off the model",
                    noise=f"{name}, {_percent(cv)}",
                    lost=lost,
                    truth=truth,
                    changes=changes,
                    suites=_suites(lost),
                    nights=off.nights,
                    pairs=off.pairs,
                    launches=off.launches,
                    aside=(len(LEVELS) - 1,) if off.noisy else (),
                )
    for lost, changes in {**_LOST, ONE: _at(-MARGIN, PUBLISHED_LOSES)}.items():
        yield Cell(
            table="off the model",
            noise="published SGLang noise",
            lost=lost,
            truth=replace(_truth(0.01), spread=PUBLISHED),
            changes=changes,
            suites=_suites(lost),
        )


def _mixed() -> Iterator[Cell]:
    for lost, changes in _MIXED.items():
        for cv in (0.01, 0.02):
            yield Cell(table="mixed", noise=_percent(cv), lost=lost, truth=_truth(cv), changes=changes, suites=150)


def _sizes() -> Iterator[Cell]:
    for count in (1, 2, 4, 10, 12, 16):
        for lost, where in ((NONE, ()), (ONE, (0,)), (ALL, tuple(range(count)))):
            if count == 1 and lost == ALL:
                continue
            yield Cell(
                table="sizes",
                noise=f"{count} level{'s' * (count > 1)}, {_percent(0.01)}",
                lost=lost,
                truth=_truth(0.01, count),
                changes=_at(-MARGIN, *where, levels=count),
                suites=_suites(lost),
                levels=tuple(2**each for each in range(count)),
            )
    for lost, changes in _LOST.items():
        yield Cell(
            table="sizes",
            noise=f"two variants, one may change, {_percent(0.01)}",
            lost=lost,
            truth=_truth(0.01),
            changes=changes,
            suites=_suites(lost),
            both=True,
        )


def _capped() -> Iterator[Cell]:
    for cv in (0.01, 0.02, 0.03):
        for minutes in (60.0, 120.0, 240.0, 360.0):
            for lost, changes in _LOST.items():
                yield Cell(
                    table="capped",
                    noise=f"{minutes:g} min, {_percent(cv)}",
                    lost=lost,
                    truth=_truth(cv),
                    changes=changes,
                    suites=150,
                    budget_min=minutes,
                )


#: The store of the model, and those of whoever has just begun: words, nights, pairs of other nights, launches a night.
_STORES = (
    ("", NIGHTS, PAIRS, 1),
    ("a store of one night, ", 1, 0, 4),
    ("a store of four nights, ", 4, 0, 1),
)


def _without_reference() -> Iterator[Cell]:
    for cv, minutes in ((0.005, 40.0), (0.01, 60.0), (0.02, 150.0)):
        for store, nights, pairs, launches in _STORES:
            for lost, changes in _LOST.items():
                yield Cell(
                    table="without a reference build",
                    noise=f"{minutes:g} min, {store}{_percent(cv)}",
                    lost=lost,
                    truth=_truth(cv),
                    changes=changes,
                    suites=_suites(lost),
                    nights=nights,
                    pairs=pairs,
                    launches=launches,
                    reference=False,
                    budget_min=minutes,
                )
        for lost in ("-10 % at one", "-10 % at all"):
            yield Cell(
                table="large losses without a reference build",
                noise=f"{minutes:g} min, {_percent(cv)}",
                lost=lost,
                truth=_truth(cv),
                changes=_MIXED[lost],
                suites=150,
                reference=False,
                budget_min=minutes,
            )


CELLS = (*_on_model(), *_off_model(), *_mixed(), *_sizes(), *_capped(), *_without_reference())
TABLES = tuple(dict.fromkeys(each.table for each in CELLS))
