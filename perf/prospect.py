"""What the next night would show, before it is spent: the product's own campaign and verdict on the stored noise. Pure.

The rig is simulated and the store is the real one: tonight's true means lie around the stored ones by as much as the
store leaves open, launches vary as the stored ones did, and every launch takes the minutes of its forecast. The noise
that was estimated is taken for the truth, so no answer is surer than the store.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import special
from tabulate import tabulate

from perf import simulation, verdict
from perf.campaign import FIRST_BASELINE_LAUNCHES
from perf.gate import Word, set_aside
from perf.noise import ASSUMED_SPREAD, PRIOR_NIGHT, PRIOR_SHARED, PRIOR_WEIGHT, Matrix, Noise, Vector
from perf.plan import Forecast, most_launches
from perf.record import CaseRecord, RelationRecord, SuiteRecord
from perf.sample import StoredCase
from perf.simulation import SimulatedRig, Truth
from perf.suite import Suite
from perf.text import duration, rough, share
from perf.trial import stored_noise

#: Nights of one question at most. A chance of one half is then known to a fifteenth.
NIGHTS = 60
#: A chance that is known this well, as a standard error, is known well enough: 24 of 24 nights are.
WELL_ENOUGH = 0.05
#: A chance that is surely below the power asked after so many nights need not be known any better.
HOPELESS_FROM = 12
#: An upper or lower bound is meant with this probability.
BOUND = 0.95
#: Losses that are tried, in margins: each half as large again as the one before, up to 11 margins.
LARGER = tuple(1.5**step for step in range(7))
#: No loss beyond this is looked for: a level that lost it needs no statistics.
LARGEST_LOSS = 0.9
#: Of a hundred unchanged nights, so many take no longer than the minutes that are told.
LONGEST = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a night. Shares; `max_launches` of each arm of a variant, `budget_s` None without a budget."""

    margin: float
    alpha: float
    power: float
    reference: bool
    max_launches: int
    budget_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """In how many simulated nights something was so."""

    found: int
    nights: int

    def __str__(self) -> str:
        return f"{self.found} of {self.nights} nights"

    @property
    def share(self) -> float:
        """Of all nights."""
        return self.found / self.nights

    @property
    def error(self) -> float:
        """Its standard error, which is not 0 for all or none: two nights of each kind are added (Agresti and Coull)."""
        share = (self.found + 2) / (self.nights + 4)
        return math.sqrt(share * (1 - share) / (self.nights + 4))

    def is_below(self, power: float) -> bool:
        """Is the chance less, and not only by bad luck? By its upper bound (Clopper and Pearson)."""
        if self.found == self.nights:
            return False
        return float(special.betaincinv(self.found + 1, self.nights - self.found, BOUND)) < power


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelProspect:
    """One level that is judged. `spread` of a launch in natural logarithms, from so many degrees of `freedom`.

    `alone` says that it is set aside and judged by itself. `margin` is the chance that a loss of the margin at this
    level alone is found; `smallest` the smallest loss that was tried and is found with the power asked: the margin
    itself, a larger one, or None where none is.
    """

    level: int
    name: str
    spread: float
    freedom: float
    alone: bool
    margin: Chance
    smallest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantProspect:
    """One variant with stored noise: of how many `launches` and `nights`; `others` are those that tell of noise alone.

    `shared` is the share of a launch's variance that moves all levels alike; `night` and `night_level` are standard
    deviations between nights, of all levels together and of the level that differs most by itself.
    """

    name: str
    launches: int
    nights: int
    others: int
    others_nights: int
    shared: float
    night: float
    night_level: float
    levels: tuple[LevelProspect, ...]
    every: Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """Nights on which nothing changed: rig-minutes and launches to the end, and how many ended with every verdict."""

    mean_s: float
    longest_s: float
    launches: float
    decided: Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What a night would show; `unknown` are the variants of whose noise nothing is stored."""

    question: Question
    variants: tuple[VariantProspect, ...]
    unknown: tuple[str, ...]
    unchanged: Unchanged


def question(
    chosen: Suite,
    *,
    margin: float | None = None,
    alpha: float | None = None,
    power: float | None = None,
    reference: bool | None = None,
) -> Question:
    """What the suite asks, but for what is given."""
    gate = chosen.gate
    return Question(
        margin=margin or gate.margin,
        alpha=alpha or gate.alpha,
        power=power or gate.power,
        reference=chosen.reference is not None if reference is None else reference,
        max_launches=most_launches(gate),
        budget_s=None if gate.budget_minutes is None else 60 * gate.budget_minutes,
    )


def prospect(
    chosen: Suite,
    stored: Mapping[tuple[str, int], StoredCase],
    forecast: Forecast,
    asked: Question,
    *,
    nights: int = NIGHTS,
) -> Prospect | None:
    """What a night of the suite would show on the rig that `stored` is of; None where nothing can be simulated.

    That is where no noise is stored, where a level has no forecast, and for a suite that is not gated.
    """
    rig = _rig(chosen, stored, forecast, asked)
    if rig is None:
        return None
    unchanged = _unchanged(rig, nights)
    lost = math.log1p(-asked.margin)
    every = _chances(rig, dict.fromkeys(rig.noise, np.full(len(rig.levels), lost)), None, nights)
    alone = {level: _chances(rig, rig.change(level, lost), level, nights) for level in rig.levels}
    smallest = {level: _smallest(rig, level, chances, nights) for level, chances in alone.items()}
    return Prospect(
        question=asked,
        variants=tuple(
            _variant(
                chosen,
                rig,
                name,
                {level: (chances[name], smallest[level][name]) for level, chances in alone.items() if name in chances},
                every[name],
            )
            for name in rig.noise
        ),
        unknown=tuple(each.name for each in chosen.variants if each.name not in rig.noise),
        unchanged=unchanged,
    )


def spread_interval(spread: float, freedom: float) -> tuple[float, float]:
    """Between what the true standard deviation lies, where one was found with these degrees of freedom (chi-square)."""
    tail = (1 - BOUND) / 2
    lo, hi = (math.sqrt(freedom / float(special.chdtri(freedom, each))) for each in (tail, 1 - tail))
    return spread * lo, spread * hi


def losses(margin: float) -> tuple[float, ...]:
    """The losses that are tried, the margin first."""
    return tuple(margin * factor for factor in LARGER if factor == 1 or margin * factor < LARGEST_LOSS)


# The rig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rig:
    """What is simulated: a suite before its first launch, and of each variant its truth and its minutes.

    `noise` is of the variants that have any, over the levels in `known` (by their indices); `roots` are the factors
    whose square is the covariance of tonight's true means.
    """

    record: SuiteRecord
    levels: tuple[int, ...]
    truths: Mapping[str, Truth]
    seconds: Mapping[str, tuple[float, ...]]
    noise: Mapping[str, Noise]
    known: Mapping[str, tuple[int, ...]]
    roots: Mapping[str, Matrix]
    budget_s: float | None

    def change(self, level: int, log_ratio: float) -> dict[str, Vector]:
        """A change at one level alone, of each variant where it can be judged."""
        place = self.levels.index(level)
        one = np.zeros(len(self.levels))
        one[place] = log_ratio
        return {name: one for name, known in self.known.items() if place in known}

    def night(self, seed: int, changes: Mapping[str, Vector]) -> tuple[SuiteRecord, float]:
        """One night's campaign, and how long it took. The same seed is the same night, whatever changed."""
        luck = np.random.default_rng((seed, 1))
        tonight: dict[str, Vector] = {name: np.zeros(len(self.levels)) for name in self.truths}
        for name, known in self.known.items():
            tonight[name][list(known)] = self.roots[name] @ luck.standard_normal(len(known))
        rig = SimulatedRig(self.truths, self.levels, seed=seed, changes=changes, seconds=self.seconds, tonight=tonight)
        return rig.run(self.record, budget_s=self.budget_s), rig.now_s


def _rig(
    chosen: Suite, stored: Mapping[tuple[str, int], StoredCase], forecast: Forecast, asked: Question
) -> _Rig | None:
    if chosen.advisory or forecast.unknown:
        return None
    levels = chosen.workload.levels
    cases = tuple(
        CaseRecord(
            id=each.id,
            variant=each.variant,
            level=each.level,
            workload_digest=simulation.DIGEST,
            selected=True,
            stored=_as_simulated(stored.get((each.variant, each.level))),
        )
        for each in chosen.cases
    )
    truths: dict[str, Truth] = {}
    noise: dict[str, Noise] = {}
    known: dict[str, tuple[int, ...]] = {}
    roots: dict[str, Matrix] = {}
    for variant in chosen.variants:
        ours = [each for each in cases if each.variant == variant.name and each.stored is not None]
        found = stored_noise(tuple(ours), cautious=not asked.reference)
        places = tuple(levels.index(each.level) for each in ours)
        if found is not None:
            noise[variant.name], known[variant.name] = found, places
            roots[variant.name] = np.asarray(np.linalg.cholesky(found.stored), dtype=np.float64)
        truths[variant.name] = _truth(found, places, len(levels))
    if not noise:
        return None
    record = replace(
        simulation.suite({}, margin=asked.margin, alpha=asked.alpha, power=asked.power, reference=asked.reference),
        max_launches=asked.max_launches,
        family=chosen.family,
        requests=tuple((level, chosen.workload.requests(level)) for level in levels),
        level_must_be_reached=False,
        cases=cases,
        relations=tuple(RelationRecord(relation=each, selected=True) for each in chosen.relations),
        crossovers=(),  # what they cost depends on how near to one the ratios lie
    )
    return _Rig(
        record=record,
        levels=levels,
        truths=truths,
        seconds={
            each.name: (each.start_s or 0.0, *((of.warmup_s or 0.0) + (of.measured_s or 0.0) for of in each.levels))
            for each in forecast.variants
        },
        noise=noise,
        known=known,
        roots=roots,
        budget_s=asked.budget_s,
    )


def _as_simulated(case: StoredCase | None) -> StoredCase | None:
    """Comparable with tonight, whatever it was asked: launches vary alike."""
    if case is None:
        return None
    return replace(case, workload_digest=simulation.DIGEST, power_limits_w=(), simulated_acceptance=None)


def _truth(noise: Noise | None, places: tuple[int, ...], levels: int) -> Truth:
    """The truth of every level of a variant; of what is not stored nothing is judged, so any will do."""
    if noise is None:
        return Truth(throughput=(1.0,) * levels, spread=(ASSUMED_SPREAD,) * levels)
    known = simulation.truth_of(noise)
    throughput, spread = [1.0] * levels, [known.typical] * levels
    for index, place in enumerate(places):
        throughput[place], spread[place] = known.throughput[index], known.spread[index]
    return replace(known, throughput=tuple(throughput), spread=tuple(spread))


# Questions


def _unchanged(rig: _Rig, nights: int) -> Unchanged:
    decided, minutes, launches = 0, [], 0
    for seed in range(nights):
        done, took_s = rig.night(seed, {})
        decided += all(each.word is not Word.INCONCLUSIVE for each in verdict.judge(done))
        minutes.append(took_s)
        launches += len(done.launches)
    return Unchanged(
        mean_s=math.fsum(minutes) / nights,
        longest_s=float(np.quantile(minutes, LONGEST)),
        launches=launches / nights,
        decided=Chance(found=decided, nights=nights),
    )


def _chances(rig: _Rig, changes: Mapping[str, Vector], level: int | None, nights: int) -> dict[str, Chance]:
    """Of each changed variant: how often it is REGRESSED at this level, at any for None. Stops when that is known."""
    found = dict.fromkeys(changes, 0)
    chances: dict[str, Chance] = {}
    for seed in range(nights if changes else 0):
        done, _ = rig.night(seed, changes)
        red = [
            (each.variant, each.level)
            for each in verdict.judge(done)
            if isinstance(each, verdict.CaseVerdict) and each.word is Word.REGRESSED
        ]
        for name in changes:
            found[name] += any(variant == name and level in (None, at) for variant, at in red)
        chances = {name: Chance(found=count, nights=seed + 1) for name, count in found.items()}
        if all(each.error <= WELL_ENOUGH or _is_hopeless(each, rig.record.power) for each in chances.values()):
            break
    return chances


def _is_hopeless(chance: Chance, power: float) -> bool:
    return chance.nights >= HOPELESS_FROM and chance.is_below(power)


def _variant(
    chosen: Suite, rig: _Rig, name: str, alone: Mapping[int, tuple[Chance, float | None]], every: Chance
) -> VariantProspect:
    noise = rig.noise[name]
    aside = set_aside(noise)
    cases = [each.stored for each in rig.record.cases if each.variant == name and each.stored is not None]
    others = {(each.campaign, each.launch) for case in cases for each in case.others}
    return VariantProspect(
        name=name,
        launches=noise.launches,
        nights=noise.nights,
        others=len(others),
        others_nights=len({campaign for campaign, _ in others}),
        shared=noise.shared / noise.typical,
        night=math.sqrt(noise.night),
        night_level=math.sqrt(float(noise.night_level.max())),
        levels=tuple(
            LevelProspect(
                level=level,
                name=chosen.level_name(level),
                spread=float(noise.spread[index]),
                freedom=float(noise.freedom[index]),
                alone=index in aside,
                margin=margin,
                smallest=smallest,
            )
            for index, (level, (margin, smallest)) in enumerate(alone.items())
        ),
        every=every,
    )


def _smallest(rig: _Rig, level: int, margins: Mapping[str, Chance], nights: int) -> dict[str, float | None]:
    """The smallest loss of those that are tried that is found with the power asked, of each variant: by bisection.

    The variants take their steps on the same nights, each with a loss of its own.
    """
    power, tried = rig.record.power, losses(rig.record.margin)
    # The index of a loss that is not found, and of one that is, or is beyond what is tried.
    ends = {name: (-1, 0) if each.share >= power else (0, len(tried)) for name, each in margins.items()}
    while open_ := {name: (low + high) // 2 for name, (low, high) in ends.items() if high - low > 1}:
        changes = {name: rig.change(level, math.log1p(-tried[middle]))[name] for name, middle in open_.items()}
        for name, chance in _chances(rig, changes, level, nights).items():
            low, high = ends[name]
            ends[name] = (low, open_[name]) if chance.share >= power else (open_[name], high)
    return {name: tried[high] if high < len(tried) else None for name, (_, high) in ends.items()}


# Text


def text(found: Prospect) -> str:
    """What a night would show, in full."""
    loss = share(found.question.margin)
    headers = ("case", "launches vary by", "degrees of freedom", f"{loss} less is found in", "smallest loss found")
    parts = [
        *map(_noise, found.variants),
        tabulate(
            list(_rows(found)),
            headers=headers,
            disable_numparse=True,
            colalign=("left", *("right" for _ in headers[1:])),
        ),
        "\n".join(_sentences(found)),
        "\n".join(_trust(found)),
    ]
    return "\n\n".join(parts) + "\n"


def why_not(chosen: Suite, forecast: Forecast, stored: Mapping[tuple[str, int], StoredCase]) -> str:
    """Why there is no prospect, and what would be assumed."""
    if chosen.advisory:
        return "no prospect: the suite is advisory, measured once and never gated\n"
    if stored and forecast.unknown:
        return f"no prospect: no forecast for {', '.join(forecast.unknown)}\n"
    if stored:
        return "no prospect: one stored launch says nothing of how launches vary. Promote more, with --add\n"
    return (
        "no prospect: of how launches vary here nothing is stored, and nothing can be promised.\n"
        f"A campaign launches each case {FIRST_BASELINE_LAUNCHES} times and ends NO_BASELINE; once promoted, these "
        "launches tell. Until then\n"
        f"a launch is assumed to vary by {share(ASSUMED_SPREAD)}, {share(PRIOR_SHARED)} of its variance alike at all "
        f"levels, and nights to differ by {share(math.sqrt(PRIOR_NIGHT) * ASSUMED_SPREAD)}.\n"
    )


def _noise(variant: VariantProspect) -> str:
    """What is stored of a variant's noise, in words."""
    spreads = sorted(rough(each.spread) for each in variant.levels)
    others = f", and {_launches(variant.others, variant.others_nights)} that tell of noise alone"
    lines = [
        f"{variant.name}: {_launches(variant.launches, variant.nights)} stored{others if variant.others else ''}",
        f"  launches  vary by {' to '.join(dict.fromkeys(map(share, (spreads[0], spreads[-1]))))}; "
        f"{share(rough(variant.shared))} of that variance moves all levels alike",
        f"  nights    differ by {share(rough(variant.night))} at all levels alike, "
        f"and by {share(rough(variant.night_level))} at each level by itself",
    ]
    if aside := [
        f"{each.name} (launches vary by {share(rough(each.spread))})" for each in variant.levels if each.alone
    ]:
        lines.append(f"  aside     judged by itself: {', '.join(aside)}")
    return "\n".join(lines)


def _rows(found: Prospect) -> Iterator[tuple[str, ...]]:
    for variant in found.variants:
        for each in variant.levels:
            smallest = f"not even {share(rough(losses(found.question.margin)[-1]))}"
            if each.smallest is not None:
                smallest = share(rough(each.smallest))
            yield (
                f"{variant.name}/{each.name}",
                share(rough(each.spread)),
                f"{each.freedom:.0f}",
                str(each.margin),
                smallest,
            )
        yield f"{variant.name}, every level", "-", "-", str(variant.every), "-"


def _sentences(found: Prospect) -> Iterator[str]:
    asked, free = found.question, found.unchanged
    yield (
        f"unchanged  {duration(free.mean_s)} and {free.launches:.3g} launches on average, at most "
        f"{duration(free.longest_s)} in {share(LONGEST)} of nights; decided in {free.decided}"
    )
    yield (
        f"asked      margin {share(asked.margin)}, power {share(asked.power)}, alpha {share(asked.alpha)}, "
        f"{'with a' if asked.reference else 'no'} reference build"
    )
    budget = "" if asked.budget_s is None else f", and a budget of {duration(asked.budget_s)}"
    yield f"within     {asked.max_launches} launches of each build of a variant{budget}"
    of_all = " of every variant" if len(found.variants) > 1 else ""
    fewest = min(each.margin.nights for variant in found.variants for each in variant.levels)
    least = share(rough((1 - BOUND) ** (1 / fewest)))
    yield f"found      REGRESSED in simulated nights in which that level{of_all} alone is so much slower;"
    yield f"           smallest is the first loss tried, from the margin on, that {share(asked.power)} of them found"
    yield f"           {fewest} of {fewest} nights show a chance of {least} or more, with {share(BOUND)} confidence"
    if found.unknown:
        yield f"not judged {', '.join(found.unknown)}: nothing tells how launches vary"


def _trust(found: Prospect) -> Iterator[str]:
    """How wide what is stored is, which all of this takes for the truth."""
    yield "Simulated nights, with the stored noise taken for the truth: they promise no more than the store knows."
    variant, least = min(
        ((variant, each) for variant in found.variants for each in variant.levels), key=lambda pair: pair[1].freedom
    )
    name = f"{variant.name}/{least.name}"
    if least.freedom:
        lo, hi = spread_interval(1.0, least.freedom)
        yield (
            f"Least is known of {name}: its launches may vary by {lo:.2g} to {hi:.2g} times that, "
            "and minutes go with the square."
        )
    else:
        yield f"No two launches of {name} are of one night: how they vary is read from different nights."
    if min(each.nights for each in found.variants) <= PRIOR_WEIGHT:
        yield "Few nights are stored: how much nights differ is partly assumed."


def _launches(launches: int, nights: int) -> str:
    return f"{launches} launch{'' if launches == 1 else 'es'} of {nights} night{'' if nights == 1 else 's'}"
