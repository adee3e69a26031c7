"""From a suite's record to its verdicts. Pure: pytest and `python -m perf check` both call `judge`, so they agree."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from perf import crossover, relations, same_output
from perf.crossover import Contrast, Crossing, JudgedLevel, StoredCrossover
from perf.gate import LAUNCHES_OF_FEW, Word
from perf.interval import Bound, Judgement, Spread, looks, tail
from perf.measured import (
    SIMULATED_ACCEPTANCE,
    Taken,
    build_text,
    clocks_beside_store,
    faults,
    last_log,
    measurements,
    not_comparable,
    reasons,
    sample,
)
from perf.moved import Explanation, explain
from perf.record import (
    Arm,
    CaseRecord,
    CrossoverRecord,
    LaunchRecord,
    RelationRecord,
    SuiteRecord,
)
from perf.same_output import SameOutputVerdict
from perf.sample import (
    Build,
    LaunchSample,
    StoredCase,
    differences,
    geometric_mean,
    relative,
    resolved_otherwise,
    throughputs,
)
from perf.text import launches as launches_text
from perf.text import percent, printable, share
from perf.trial import Trial, Trials, stored_noise
from perf.validity import Reason

#: A relation that is near its factor is not launched for all night.
MAX_RELATION_LAUNCHES = 12

#: Of alpha, what the relations of a suite share; cases spend the rest (`gate.SPENT_ON_A_SIDE`).
SPENT_ON_RELATIONS = 0.4

#: The error of a note on either side.
UNSURE = 0.025

#: What a case was held against in the end: fresh launches of the reference build, the store where such launches could
#: be had, or the store where they could not.
Route = Literal["reference", "store", "store alone"]

#: Said once of all intervals: below a table.
INTERVALS = "intervals hold the true change in at least 95 % of campaigns, however often it was looked at"

#: Standard errors beyond the margin from which on a reference build is not what is stored, if anything says so.
STRANGE_AT = 2.0

#: A loss of all of more levels than this is told of as the night's.
LEAST_ALIKE = 2

#: Which rule ended the launches of what is INCONCLUSIVE.
End = Literal["budget", "cap", "exhausted", "set aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What tonight's launches showed, as the table has it: geometric means over launches; None where there is none."""

    launches: int
    output_throughput: float
    ttft_s: float | None
    tpot_s: float | None
    acceptance_length: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    """The verdict of one case. `why` says in words why there is nothing to compare with, or too little.

    `route` says what it was held against, and `before` holds the launches of that; `after` are tonight's of the
    candidate. `proved_with` are levels that changed with this one and were held against the reference where this was
    not. `together` is how many levels were judged as one. A level so noisy that it was judged by itself has
    `others_noise`, how launches vary at the others. `ended` says which rule ended the launches of what is INCONCLUSIVE.
    `builds` are tonight's of both arms, where the reference was launched. `logs` names the launches whose server logs
    say most; none for a server that already ran. `launch_s` is what one more launch (or pair) takes.
    """

    id: str
    rig_id: str
    variant: str
    level: int
    word: Word
    margin: float
    advisory: str | None
    measured: Measured | None
    judgement: Judgement | None
    route: Route | None
    proved_with: tuple[int, ...]
    together: int
    others_noise: float | None
    before: tuple[LaunchSample, ...]
    after: tuple[LaunchSample, ...]
    on_gpus: bool
    reasons: tuple[Reason, ...]
    why: str | None
    ended: End | None
    notes: tuple[str, ...]
    builds: tuple[Build | None, Build | None] | None
    stored: StoredCase | None
    launches: int
    max_launches: int
    logs: tuple[str, ...]
    launch_s: float | None
    stopped: str | None

    @property
    def moved(self) -> Explanation | None:
        """Why throughput is another; None where nothing is compared."""
        return explain(self.before, self.after, margin=self.margin) if self.before and self.after else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationVerdict:
    """The verdict of one relation. `best` is the variant of `of` that it was compared with.

    `saturation` says why the level stands for it, None where another place was asked for.
    """

    id: str
    variant: str
    at_least: float
    of: tuple[str, ...]
    best: str | None
    level: int
    saturation: str | None
    word: Word
    margin: float
    advisory: str | None
    judgement: Judgement | None
    reasons: tuple[Reason, ...]
    max_launches: int
    logs: tuple[str, ...]
    launch_s: float | None
    stopped: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverVerdict:
    """The verdict of one crossover: from which level on is `second` faster than `first`?

    `crossing`, `contrasts` and `levels` are tonight's, ascending; None and empty where it is INVALID. `why` says why
    there is nothing to compare with. `launches` are those of both variants that it rests on, by level.
    """

    id: str
    rig_id: str
    first: str
    second: str
    word: Word
    margin: float
    advisory: str | None
    crossing: Crossing | None
    contrasts: tuple[Contrast, ...]
    levels: tuple[JudgedLevel, ...]
    reasons: tuple[Reason, ...]
    why: str | None
    notes: tuple[str, ...]
    stored: StoredCrossover | None
    simulated_acceptance: tuple[str | None, str | None]
    launches: tuple[tuple[int, tuple[int, int]], ...]
    max_launches: int
    logs: tuple[str, ...]
    launch_s: float | None
    stopped: str | None


Verdict = CaseVerdict | RelationVerdict | CrossoverVerdict | SameOutputVerdict

_ARMS: tuple[Arm, Arm] = ("candidate", "reference")


def bound(suite: SuiteRecord) -> Bound:
    """How sure a verdict on a relation or crossover must be: at every look, and once more where the campaign ends."""
    claims, times = len(suite.relations) + len(suite.crossovers), len(relation_looks(suite)) + 1
    each = tail(SPENT_ON_RELATIONS * suite.alpha, max(claims, 1), times)
    return Bound(margin=suite.margin, tail=each, power=suite.power)


def relation_looks(suite: SuiteRecord) -> tuple[int, ...]:
    """Numbers of launches of each variant at which a relation is judged. One says something where noise is stored."""
    return looks(1, min(suite.max_launches, MAX_RELATION_LAUNCHES))


def last_look(suite: SuiteRecord, launches: int) -> int:
    """The last look at so many launches of each variant; 0 before the first."""
    return max((count for count in relation_looks(suite) if count <= launches), default=0)


def known_spreads(suite: SuiteRecord, variant: str) -> dict[int, Spread]:
    """What the store knows of how launches of a variant vary, by level; nothing of a level it does not know."""
    cases = tuple(case for case in suite.cases if case.variant == variant and not_comparable(suite, case) is None)
    noise = stored_noise(cases)
    if noise is None:
        return {}
    return {
        case.level: Spread(spread=float(spread), freedom=float(freedom))
        for case, spread, freedom in zip(cases, noise.spread, noise.freedom, strict=True)
        if freedom > 0
    }


def against(route: Route, launches: int, nights: int) -> str:
    """What a verdict was held against, in words: so many launches of so many nights."""
    if route == "reference":
        return f"{launches_text(launches)} of the reference build tonight"
    of = f"the stored baseline ({launches_text(launches)} of {nights} night{'s' if nights > 1 else ''})"
    return of if route == "store" else f"{of}; no reference build: the night itself is in the interval"


def judge(suite: SuiteRecord) -> tuple[Verdict, ...]:
    """The verdict of every selected case and expectation, in the order of the suite."""
    trials = {variant: _trials(suite, variant) for variant in dict.fromkeys(each.variant for each in suite.cases)}
    cases = tuple(judge_case(suite, case, trials[case.variant]) for case in suite.cases if case.selected)
    between = (judge_relation(suite, each) for each in suite.relations if each.selected)
    crossings = (judge_crossover(suite, each) for each in suite.crossovers if each.selected)
    outputs = (same_output.judge(suite, each) for each in suite.same_outputs if each.selected)
    return (*cases, *between, *crossings, *outputs)


def _trials(suite: SuiteRecord, variant: str) -> tuple[Trial, ...]:
    """What is advisory is held against the store like everything else, to be shown."""
    return Trials(variant).keep_up(replace(suite, advisory=None))


def judge_case(suite: SuiteRecord, case: CaseRecord, trials: tuple[Trial, ...] | None = None) -> CaseVerdict:
    """The verdict of one case from the launches of its variant; `trials` are that variant's where they are at hand."""
    if trials is None:
        trials = _trials(suite, case.variant)
    taken, taken_of_reference = (measurements(suite, case.variant, case.level, arm) for arm in _ARMS)
    launches, others = ([launch for launch, _ in each] for each in (taken, taken_of_reference))
    found = reasons(suite, case)
    samples = () if found else _samples(taken)
    why = not_comparable(suite, case)
    trial = next((each for each in trials if case.level in each.levels), None)
    judgement: Judgement | None = None
    route: Route | None = None
    before: tuple[LaunchSample, ...] = ()
    ended: End | None = None
    if found:
        word = Word.INVALID
    elif why is not None or case.stored is None:
        word = Word.NO_BASELINE
    elif trial is None:
        word, why = Word.INCONCLUSIVE, "one stored launch says nothing of how launches vary: promote more"
    else:
        fresh = trial.gate.change(trial.levels.index(case.level)).fresh
        before = _samples(taken_of_reference) if fresh else case.stored.launches
        route = "reference" if fresh else "store" if suite.reference else "store alone"
        noise = float(trial.gate.noise.spread[trial.levels.index(case.level)])
        if fresh and (strange := _another_reference(suite, case.stored, launches[-1], others[-1], before, noise)):
            found, word = (strange,), Word.INVALID
        else:
            judgement = _judgement(trial, case, before, samples)
            word = judgement.word
            if word is Word.INCONCLUSIVE:
                why = _why_open(trial, case.level, judgement)
                ended = _ended(suite, case.variant, trial)
    times_s = [launch.duration_s for launch in launches], [launch.duration_s for launch in others]
    launch_s, reference_s = map(_mean, times_s)
    return CaseVerdict(
        id=case.id,
        rig_id=suite.rig_id,
        variant=case.variant,
        level=case.level,
        word=word,
        margin=suite.margin,
        advisory=suite.advisory,
        measured=_measured(samples) if samples else None,
        judgement=judgement,
        route=route,
        proved_with=() if trial is None or route != "store" else _proved_with(trial, word),
        together=0 if trial is None else len(trial.levels),
        others_noise=None if trial is None or not trial.alone else _noise_of_others(trials, trial),
        before=before,
        after=() if judgement is None else samples,
        on_gpus=bool(suite.power_limits_w),
        reasons=found,
        why=why,
        ended=ended,
        notes=() if judgement is None or case.stored is None else tuple(_notes(suite, case, case.stored, launches)),
        builds=_builds(launches, others),
        stored=case.stored,
        launches=len(launches),
        max_launches=suite.max_launches,
        logs=last_log(launches),
        launch_s=None if launch_s is None else launch_s + (reference_s or 0.0) * (route == "reference"),
        stopped=suite.stopped,
    )


def _another_reference(
    suite: SuiteRecord,
    stored: StoredCase,
    candidate: LaunchRecord,
    reference: LaunchRecord,
    before: tuple[LaunchSample, ...],
    noise: float,
) -> Reason | None:
    """Is the reference further from the store than the margin and chance, for a reason of the suite's own?

    What both arms run differs from what is stored then: that they are alike says nothing of it.
    """
    now, was = geometric_mean(throughputs(before)), stored.promotion.throughput
    chance = STRANGE_AT * noise * math.sqrt(1 / len(before) + 1 / len(stored.launches))
    if abs(math.log(now / was)) <= -math.log1p(-suite.margin) + chance:
        return None
    both = dict(set(candidate.variant_env) & set(reference.variant_env))
    told = dict(stored.env)
    either = {name for name, _ in (*candidate.variant_env, *reference.variant_env)}
    changed = sorted({n for n, value in both.items() if told.get(n) != value} | (told.keys() - either))
    differs = [
        *([_command_differs(reference, stored)] if reference.command != stored.command else []),
        *([f"environment: {printable(', '.join(changed), 200)}"] if changed else []),
        *([f"model {printable(reference.model or '-', 80)}"] if reference.model != stored.model else []),
        *([f"build {build_text(reference.build)}"] if _runs_another(reference.build, stored.build) else []),
    ]
    if not differs:
        return None
    return Reason(
        name="reference is not what is stored",
        seen=f"the reference build made {now:,.1f} tok/s where {was:,.1f} are stored ({percent(now / was - 1)}), and "
        f"it is not as it was stored: {'; '.join(differs)}",
        advice="what both builds run with cannot be judged between them: measure it without [reference], or record it "
        "anew; a reference build that was replaced is recorded with promote --reference",
    )


def _samples(taken: Taken) -> tuple[LaunchSample, ...]:
    return tuple(sample(launch, measurement) for launch, measurement in taken)


def _judgement(
    trial: Trial, case: CaseRecord, before: tuple[LaunchSample, ...], samples: tuple[LaunchSample, ...]
) -> Judgement:
    """What the gate says of a level."""
    level = trial.levels.index(case.level)
    change, word = trial.gate.change(level), trial.gate.word(level)
    after = throughputs(samples)
    seen = trial.gate.could_see(level)
    # What decides a loss of several levels together is not how often this one is launched.
    alone = word is Word.INCONCLUSIVE and len(_open_pattern(trial, level)) == 1
    return Judgement(
        word=word,
        change=relative(change.estimate),
        lo=relative(change.lo),
        hi=relative(change.hi),
        before=geometric_mean(throughputs(before)),
        after=geometric_mean(after),
        launches_before=len(before),
        launches_after=len(after),
        noise_before=float(trial.gate.noise.spread[level]),
        noise_after=float(np.std(np.log(after), ddof=1)) if len(after) > 1 else None,
        could_see=None if seen is None else -math.expm1(-seen),
        launches_needed=trial.gate.launches_needed(level) if alone else None,
    )


def _why_open(trial: Trial, level: int, judgement: Judgement) -> str:
    """What is to blame that a loss is still possible: too few launches, or whose noise."""
    index, gate = trial.levels.index(level), trial.gate
    noise = gate.noise

    def varies(place: int) -> str:
        return share(round(float(noise.spread[place]), 3))

    here = f"launches vary by {varies(index)} at this level"
    if judgement.noise_after is not None:
        here += f" (tonight by {share(round(judgement.noise_after, 3))})"
    arms = (True, False) if gate.rule.reference else (True,)
    if judgement.hi < 0 and any(gate.launches[arm][index] < LAUNCHES_OF_FEW for arm in arms):
        return f"{here}; a loss is called after {LAUNCHES_OF_FEW} launches" + " of each build" * gate.rule.reference
    lost = _open_pattern(trial, index)
    if len(lost) == 1:
        return here
    if len(lost) > LEAST_ALIKE and len(lost) == (~gate.decided).sum():
        night = share(round(math.sqrt(noise.night), 3))
        return f"{here}; a loss of all levels alike is hard to tell from the night, and nights differ by {night}"
    others = [place for place in lost if place != index]
    worst = max(others, key=lambda place: float(noise.spread[place]))
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    there = f", where they vary by {varies(worst)}" if noise.spread[worst] > noise.spread[index] else ""
    return f"{here}; a loss together with level {trial.levels[worst]}{more} is possible{there}"


def _open_pattern(trial: Trial, index: int) -> tuple[int, ...]:
    """Of the losses that are still possible and have this level: it alone, what fits best, or the smallest."""
    side = trial.gate.losses
    if side.alone[index]:
        return (index,)
    named = side.named
    if named is None or not named[index]:
        named = side.patterns[side.open & ~side.excluded & (side.patterns[:, index] > 0)][0] > 0
    return tuple(map(int, np.flatnonzero(named)))


def _ended(suite: SuiteRecord, variant: str, trial: Trial) -> End | None:
    """Which rule ended the launches of an open case; None where fewer ran than it asks for, as in a comparison."""
    if suite.stopped is not None:
        return "budget"
    ran = Counter(each.arm for each in suite.launches if each.variant == variant)
    if max(ran.values()) >= suite.max_launches:
        return "cap"
    if trial.gate.exhausted:
        return "exhausted"
    return "set aside" if trial.alone else None


def _proved_with(trial: Trial, word: Word) -> tuple[int, ...]:
    """The levels with fresh launches of both arms that share a verdict of change: the store convicts none."""
    changed = {Word.REGRESSED: trial.gate.losses.convicted, Word.IMPROVED: trial.gate.gains.convicted}
    if word not in changed:
        return ()
    fresh = changed[word] & (trial.gate.launches[False] > 0)
    return tuple(level for level, proved in zip(trial.levels, fresh, strict=True) if proved)


def _noise_of_others(trials: tuple[Trial, ...], trial: Trial) -> float | None:
    spreads = [float(each) for other in trials if other is not trial for each in other.gate.noise.spread]
    return float(np.median(spreads)) if spreads else None


def judge_relation(suite: SuiteRecord, record: RelationRecord) -> RelationVerdict:
    """The verdict of one relation, from launches of this campaign alone.

    It takes every launch; where that leaves open what the last look decided, that look holds.
    """
    found = _relation(suite, record, every=True)
    if found.word is Word.INCONCLUSIVE and (looked := _relation(suite, record, every=False)).word is not found.word:
        return looked
    return found


def is_open(suite: SuiteRecord, record: RelationRecord) -> bool:
    """Did the last look leave a relation open? Between two looks nothing is judged."""
    return _relation(suite, record, every=False).word is Word.INCONCLUSIVE


def _relation(suite: SuiteRecord, record: RelationRecord, *, every: bool) -> RelationVerdict:
    """The verdict from every launch, or from those of the last look."""
    relation = record.relation
    where = relations.place(suite, relation)
    level = where.level
    places = [(variant, level) for variant in (relation.variant, *relation.of)]
    taken = _compared(suite, places)
    problems = tuple(_sides_at_fault(suite, places))
    launches = [launch for each in taken.values() for launch, _ in each]
    samples = {variant: throughputs(_samples(each)) for (variant, _), each in taken.items() if not problems}
    result = None
    if samples:
        last = None if every else last_look(suite, min(map(len, samples.values())))
        spreads = {each: known[level] for each in samples if level in (known := known_spreads(suite, each))}
        cut = {variant: values[:last] for variant, values in samples.items()}
        result = relations.judge(relation, cut, bound(suite), spreads=spreads)
    return RelationVerdict(
        id=relation.id,
        variant=relation.variant,
        at_least=relation.at_least,
        of=relation.of,
        best=None if result is None else result.best,
        level=level,
        saturation=where.told,
        word=Word.INVALID if result is None else result.word,
        margin=suite.margin,
        advisory=suite.advisory,
        judgement=None if result is None else result.judgement,
        reasons=problems,
        max_launches=suite.max_launches,
        logs=_logs(suite, taken),
        launch_s=_mean([launch.duration_s for launch in launches]),
        stopped=suite.stopped,
    )


def judge_crossover(suite: SuiteRecord, record: CrossoverRecord) -> CrossoverVerdict:
    """The verdict of one crossover: tonight's launches at every level against the stored crossover.

    As with a relation, what the last look decided is not opened again.
    """
    found = _crossover(suite, record, every=True)
    if found.word is Word.INCONCLUSIVE and (looked := _crossover(suite, record, every=False)).word is not found.word:
        return looked
    return found


def open_levels(suite: SuiteRecord, record: CrossoverRecord, *, without_baseline: int) -> tuple[int, ...]:
    """The levels at which the last look left a crossover open.

    Without a stored one, those with fewer than `without_baseline` launches of each variant.
    """
    found = _crossover(suite, record, every=False)
    if found.word is Word.NO_BASELINE:
        return tuple(level for level, counts in found.launches if min(counts) < without_baseline)
    return tuple(each.level for each in found.levels if each.word is Word.INCONCLUSIVE)


def _crossover(suite: SuiteRecord, record: CrossoverRecord, *, every: bool) -> CrossoverVerdict:
    pair = (record.crossover.first, record.crossover.second)
    digests = {case.level: case.workload_digest for case in suite.cases}
    levels = tuple(sorted(digests))
    places = [(variant, level) for variant in pair for level in levels]
    taken = _compared(suite, places)
    problems = tuple(_sides_at_fault(suite, places))
    launches = [launch for each in taken.values() for launch, _ in each]
    known = [known_spreads(suite, variant) for variant in pair]
    contrasts: list[Contrast] = []
    used = {place: len(each) for place, each in taken.items()}
    for level in () if problems else levels:
        samples = [throughputs(_samples(taken[variant, level])) for variant in pair]
        last = None if every else last_look(suite, min(map(len, samples)))
        used |= {(variant, level): len(sample[:last]) for variant, sample in zip(pair, samples, strict=True)}
        contrasts.append(
            crossover.contrast(
                level,
                samples[0][:last],
                samples[1][:last],
                known_first=known[0].get(level),
                known_second=known[1].get(level),
            )
        )
    found, other = None, None
    simulated: tuple[str | None, str | None] = (None, None)
    if contrasts:
        first, second = (_simulated(taken[variant, levels[0]])[-1] for variant in pair)
        simulated = (first, second)
        if record.stored is not None:
            other = crossover.not_comparable(
                record.stored,
                digests=digests,
                power_limits_w=suite.power_limits_w,
                simulated_acceptance=simulated,
            )
        stored = None if other else record.stored
        rule = bound(suite)
        found = crossover.judge(stored, contrasts, margin=rule.margin, tail=rule.tail)
    notes = [] if found is None else [*found.notes, *_more_under_load(suite, pair, contrasts)]
    return CrossoverVerdict(
        id=record.crossover.id,
        rig_id=suite.rig_id,
        first=pair[0],
        second=pair[1],
        word=Word.INVALID if found is None else found.word,
        margin=suite.margin,
        advisory=suite.advisory,
        crossing=None if found is None else found.crossing,
        contrasts=tuple(contrasts),
        levels=() if found is None else found.levels,
        reasons=problems,
        why=None if found is None else other or found.why,
        notes=tuple(notes),
        stored=record.stored,
        simulated_acceptance=simulated,
        launches=tuple((level, (used[pair[0], level], used[pair[1], level])) for level in levels),
        max_launches=suite.max_launches,
        logs=_logs(suite, taken),
        launch_s=_mean([launch.duration_s for launch in launches]),
        stopped=suite.stopped,
    )


def _more_under_load(suite: SuiteRecord, pair: tuple[str, str], contrasts: Sequence[Contrast]) -> Iterator[str]:
    """A note where a speculative variant's lead grows with the level: its steps should have less and less to spare.

    The clearest of all pairs of levels is told; that it is clear by luck has the error of one interval.
    """
    speculative = [
        any(
            value is not None
            for each in contrasts
            for taken in _samples(measurements(suite, variant, each.level))
            for value in taken.acceptance_length
        )
        for variant in pair
    ]
    if speculative[0] == speculative[1]:
        return
    sign = -1 if speculative[0] else 1
    name = pair[0] if speculative[0] else pair[1]
    pairs = list(combinations(contrasts, 2))
    found: list[tuple[float, Contrast, Contrast]] = []
    for low, high in pairs:
        rise = crossover.difference(low, high, tail=UNSURE / len(pairs))
        if rise is not None and (clear := min(sign * end for end in rise)) > 0:
            found.append((clear, low, high))
    if found:
        _, low, high = max(found, key=lambda each: each[0])
        at = [f"{percent(relative(sign * each.log_ratio))} at level {each.level}" for each in (low, high)]
        yield (
            f"the lead of {name} grows with load ({at[0]}, {at[1]}), though speculation usually pays less under load: "
            "look at acceptance lengths, and at what limits the other variant's batches"
        )


def _compared(suite: SuiteRecord, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Taken]:
    """What was measured at each place, in the order of the launches."""
    return {place: tuple(sorted(measurements(suite, *place), key=lambda each: each[0].ordinal)) for place in places}


def _sides_at_fault(suite: SuiteRecord, places: Iterable[tuple[str, int]]) -> Iterator[Reason]:
    """Why what is compared must not be judged: a side of it is INVALID, or they did not run under one condition."""
    chosen = set(places)
    ours = [case for case in suite.cases if (case.variant, case.level) in chosen]
    broken = [case for case in ours if faults(suite, case)]  # then what was not measured for it says less
    at_fault = False
    for case in broken or ours:
        if found := reasons(suite, case):
            at_fault = True
            yield Reason(name=f"{case.id} is INVALID", seen=f"{found[0].name}: {found[0].seen}", advice=found[0].advice)
    seen: dict[str | None, list[str]] = {}
    for variant, level in sorted(chosen):
        for value in _simulated(measurements(suite, variant, level)):
            names = seen.setdefault(value, [])
            names += [variant] if variant not in names else []
    if len(seen) > 1 and not at_fault:
        told = (f"{printable(value or 'not set', 32)} in {', '.join(names)}" for value, names in seen.items())
        yield Reason(
            name="acceptance is not simulated alike",
            seen=f"{SIMULATED_ACCEPTANCE} is {'; '.join(told)}",
            advice="set it for every variant that is compared, or for none",
        )


def _simulated(taken: Taken) -> list[str | None]:
    return [dict(launch.variant_env).get(SIMULATED_ACCEPTANCE) for launch, _ in taken]


def _logs(suite: SuiteRecord, taken: Mapping[tuple[str, int], Taken]) -> tuple[str, ...]:
    """The launches whose logs say most: of the sides that are at fault, else of all."""
    cases = {(case.variant, case.level): case for case in suite.cases}
    at_fault = [place for place in taken if reasons(suite, cases[place])] or list(taken)
    logs = [name for place in at_fault for name in last_log([launch for launch, _ in taken[place]])]
    return tuple(dict.fromkeys(logs))


def _measured(samples: tuple[LaunchSample, ...]) -> Measured:
    def mean_of(values: Callable[[LaunchSample], tuple[float | None, ...]]) -> float | None:
        """Over launches and their rounds; None where one lacks it: a time of zero is absent, too."""
        rounds = [values(each) for each in samples]
        known = [[value for value in each if value is not None and value > 0] for each in rounds]
        if any(not some or len(some) != len(each) for some, each in zip(known, rounds, strict=True)):
            return None
        return geometric_mean(map(geometric_mean, known))

    return Measured(
        launches=len(samples),
        output_throughput=geometric_mean(throughputs(samples)),
        ttft_s=mean_of(lambda each: each.ttft_s),
        tpot_s=mean_of(lambda each: each.tpot_s),
        acceptance_length=mean_of(lambda each: each.acceptance_length),
    )


def _notes(suite: SuiteRecord, case: CaseRecord, stored: StoredCase, launches: list[LaunchRecord]) -> Iterator[str]:
    """Soft differences: shown beside the verdict, since they are what is being tested."""
    latest = launches[-1]
    for name, now, was in (
        ("server version", latest.server_version, stored.server_version),
        ("model", latest.model, stored.model),
    ):
        if now != was:
            yield f"{name} {printable(now or '-', 80)}, was {printable(was or '-', 80)}"
    if _is_another(latest.build, stored.build):
        yield f"build {build_text(latest.build)}, was {build_text(stored.build)}"
    yield from differences(stored, suite.fingerprint, latest.build)
    if clocks := clocks_beside_store(suite, case):
        yield clocks
    if otherwise := resolved_otherwise(stored, latest.server_arguments, latest.server_version):
        yield otherwise
    if latest.command != stored.command:
        yield _command_differs(latest, stored)
    changed = sorted({name for name, _ in set(latest.variant_env) ^ set(stored.env)})
    if changed:
        yield f"environment differs in {printable(', '.join(changed), 200)}"


def _is_another(now: Build | None, was: Build | None) -> bool:
    return now is not None and was is not None and now != was


def _runs_another(now: Build | None, was: Build | None) -> bool:
    """Does it differ in what serves? Any package that was installed since is another build."""
    return _is_another(now, was and now and replace(was, packages=now.packages))


def _command_differs(launch: LaunchRecord, stored: StoredCase) -> str:
    new = [part for part in launch.command if part not in stored.command]
    old = [part for part in stored.command if part not in launch.command]
    return f"command: now with {_words(new)}, was with {_words(old)}"


def _words(parts: list[str]) -> str:
    return printable(" ".join(parts), 160) or "nothing more"


def _builds(launches: list[LaunchRecord], references: list[LaunchRecord]) -> tuple[Build | None, Build | None] | None:
    if not launches or not references:
        return None
    return launches[-1].build, references[-1].build


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
