"""What is launched next, and when to stop. Its effects are passed in, so it is tested by a simulated rig.

Launches come from the rule alone, never because something reads badly; which launch is next can cost minutes and not
certainty. The order within a gate's levels is fixed (docs/statistics.md): what is suspect is settled by fresh pairs of
the reference build and the candidate; what is merely open is launched with the levels still open and the quietest
level, to compare with.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perf import relations
from perf.gate import Flags, Gate
from perf.measured import faults, measurements, not_comparable
from perf.noise import Vector
from perf.record import Arm, CaseRecord, LaunchRecord, Order, SuiteRecord
from perf.text import duration
from perf.trial import Trial, Trials
from perf.verdict import is_open, open_levels, relation_looks

#: Launches of a case without a baseline, so that the next run can judge.
FIRST_BASELINE_LAUNCHES = 4

#: Launches of a case whose baseline says nothing of noise: tonight's say a little.
LAUNCHES_WITHOUT_NOISE = 2

#: The cap of each arm of a variant, where neither option nor suite gives one; a budget of minutes is the better cap.
DEFAULT_MAX_LAUNCHES = 12
MAX_LAUNCHES_WITH_BUDGET = 200

#: A level's candidate launches alone tell less than blocks of both arms once tonight's mean is known better than this
#: share of what the stored one is.
ENOUGH_ALONE = 0.6

#: Launches of a level that is judged by itself, where nothing is suspect: it must not hold up the others.
LAUNCHES_ASIDE = 2

#: Runs one launch.
Measure = Callable[[Order], LaunchRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a variant's next block measures: levels of the candidate, of the reference, none where that arm rests.

    `joins` says that the reference joins the candidate launch that ran last.
    """

    candidate: frozenset[int]
    reference: frozenset[int]
    joins: bool = False


def run(
    suite: SuiteRecord,
    *,
    measure: Measure,
    save: Callable[[SuiteRecord], None],
    clock: Callable[[], float],
    budget_s: float | None,
    trials: Mapping[str, Trials] | None = None,
) -> SuiteRecord:
    """Launch until every selected case and relation is decided, the cap is reached, or the budget is spent.

    `trials` of every variant, with no launch in them yet, are kept up where somebody wants them afterwards.
    In each pass every variant that needs it runs a block; the order of the variants alternates from pass to pass
    (ABBA), and so does that of the arms from block to block: a rig that warms over the night favours none.
    """
    began = clock()
    variants = tuple(dict.fromkeys(case.variant for case in suite.cases))
    if trials is None:
        trials = {variant: Trials(variant) for variant in variants}
    passes = 0
    launched = True
    while launched:
        launched = False
        for variant in reversed(variants) if passes % 2 else variants:
            block = next_block(suite, variant, trials[variant].keep_up(suite))
            while block is not None:
                orders = tuple(_orders(suite, variant, block))
                longest = max((each.duration_s for each in suite.launches if each.variant == variant), default=0.0)
                if budget_s is not None and clock() - began + longest * len(orders) > budget_s:
                    suite = replace(suite, stopped=f"the budget of {duration(budget_s)} is spent")
                    save(suite)
                    return suite
                for order in orders:
                    suite = replace(suite, launches=(*suite.launches, measure(order)))
                    save(suite)
                launched = True
                following = next_block(suite, variant, trials[variant].keep_up(suite))
                # A reference that joins runs at once: nothing else may come between the two.
                block = following if following is not None and following.joins else None
        passes += 1
    return suite


def next_block(suite: SuiteRecord, variant: str, trials: tuple[Trial, ...]) -> Block | None:
    """What a variant must measure next; None when nothing more is owed or allowed."""
    ours = [each for each in suite.launches if each.variant == variant]
    launches = {arm: sum(each.arm == arm for each in ours) for arm in ("candidate", "reference")}
    joined = ours[-1].measurements if ours and ours[-1].arm == "candidate" else ()
    there = frozenset(measurement.level for measurement in joined)
    wanted = [_with(there, block) for trial in trials if (block := _wanted(trial)) is not None]
    wanted = [block for block in wanted if _is_allowed(block, launches, suite.max_launches)]
    if joining := [block for block in wanted if block.joins]:
        # One launch for all that can still join; whatever else is wanted comes after it.
        return Block(candidate=frozenset(), reference=_union(block.reference for block in joining), joins=True)
    judged = {level for trial in trials for level in trial.levels}
    candidate = _union(block.candidate for block in wanted)
    candidate |= {
        case.level
        for case in suite.cases
        if case.variant == variant and case.level not in judged and case.selected and _owed(suite, case)
    }
    candidate |= frozenset(_owed_to_relations(suite, variant)) | frozenset(_owed_to_crossovers(suite, variant))
    reference = _union(block.reference for block in wanted)
    if launches["candidate"] >= suite.max_launches or not candidate:
        return None
    return Block(candidate=candidate, reference=reference)


def _with(there: frozenset[int], block: Block) -> Block:
    """A block whose reference joins the variant's last launch, where that measured its levels; else a whole one."""
    if block.joins and not block.reference <= there:
        return Block(candidate=block.reference, reference=block.reference)
    return block


def _is_allowed(block: Block, launches: Mapping[str, int], cap: int) -> bool:
    """May it run under the cap of each arm?"""
    arms = [arm for arm, levels in (("candidate", block.candidate), ("reference", block.reference)) if levels]
    return all(launches[arm] < cap for arm in arms)


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset[int]().union(*sets)


def _orders(suite: SuiteRecord, variant: str, block: Block) -> Iterator[Order]:
    """The launches of a block. Levels run in an order of the campaign's own luck, which its seed gives again."""
    ours = [each for each in suite.launches if each.variant == variant]
    number = max((each.block for each in ours), default=0) + (0 if block.joins else 1)
    arms: tuple[Arm, ...] = ("reference", "candidate") if number % 2 else ("candidate", "reference")
    for arm in arms:
        levels = sorted(block.candidate if arm == "candidate" else block.reference)
        if levels:
            ordinal = 1 + sum(each.arm == arm for each in ours)
            random.Random(f"{suite.order_seed} {variant} {arm} {ordinal}").shuffle(levels)
            yield Order(variant=variant, arm=arm, ordinal=ordinal, block=number, levels=tuple(levels))


# What the levels of a gate need


def _wanted(trial: Trial) -> Block | None:
    gate, levels = trial.gate, trial.levels
    choice = _aside(gate) if trial.alone else _choice(gate)
    if choice is None:
        return None
    candidate, reference = (frozenset(level for level, on in zip(levels, flags, strict=True) if on) for flags in choice)
    return Block(candidate=candidate, reference=reference, joins=not candidate)


def _choice(gate: Gate) -> tuple[Flags, Flags] | None:
    """The levels of the candidate and of the reference that a gate asks for next."""
    none = np.zeros(len(gate.noise.mean), dtype=bool)
    if gate.last is None:
        return ~none, none
    named, gained = gate.losses.named, gate.gains.named
    if gate.exhausted:
        return None
    if named is None:  # no loss is left; is a gain to be settled?
        return _settle(gate, gained) if gained is not None and gate.gains.is_suspect else None
    if gate.losses.is_suspect:
        return _settle(gate, named)
    live = gate.losses.alone
    if not live.any():
        return _pair(gate, _with_quietest(gate, gate.telling(named)))
    if gate.rule.reference and (gate.launches[True][live] >= _enough(gate)[live]).any():
        return live, live
    return _with_quietest(gate, live), none


def _enough(gate: Gate) -> Vector:
    """The candidate launches of each level after which its own part of the stored mean is what is least known."""
    noise = gate.noise
    stored = noise.own / noise.launches + noise.night_level * (1 + 1 / noise.nights)
    enough: Vector = ENOUGH_ALONE * noise.own / stored
    return enough


def _aside(gate: Gate) -> tuple[Flags, Flags] | None:
    """A level that is judged by itself takes part in what is launched, and is settled only where it looks bad."""
    one, none = np.ones(1, dtype=bool), np.zeros(1, dtype=bool)
    if gate.launches[True][0] < LAUNCHES_ASIDE:
        return one, none
    if not gate.losses.is_suspect or gate.exhausted:
        return None
    return _settle(gate, one)


def _settle(gate: Gate, named: Flags) -> tuple[Flags, Flags]:
    """A suspect pattern: fresh pairs, where they can be had."""
    return _pair(gate, gate.telling(named))


def _pair(gate: Gate, levels: Flags) -> tuple[Flags, Flags]:
    none = np.zeros_like(levels)
    if not gate.rule.reference:
        return _with_quietest(gate, levels), none
    if gate.lone_candidate is not None and (gate.lone_candidate >= levels).all():
        return none, levels
    return levels, levels


def _with_quietest(gate: Gate, levels: Flags) -> Flags:
    chosen = levels.copy()
    chosen[gate.quietest] = True
    return chosen


# What is owed where no gate asks


def _owed(suite: SuiteRecord, case: CaseRecord) -> bool:
    """Must a case be measured that no gate can judge? What is at fault is never launched again."""
    if faults(suite, case):
        return False
    taken = len(measurements(suite, case.variant, case.level))
    if suite.advisory is not None:
        return taken < 1
    return taken < (LAUNCHES_WITHOUT_NOISE if not_comparable(suite, case) is None else FIRST_BASELINE_LAUNCHES)


def _owed_to_relations(suite: SuiteRecord, variant: str) -> Iterator[int]:
    """The levels of a variant that a relation must see (again), up to the next look and the cap.

    A look is at so many launches of each side: what a variant has beyond the others' does not count.
    """
    for record in suite.relations:
        relation = record.relation
        variants = (relation.variant, *relation.of)
        if not record.selected or variant not in variants:
            continue
        level = relations.place(suite, relation).level
        case = next(each for each in suite.cases if (each.variant, each.level) == (variant, level))
        taken = {each: len(measurements(suite, each, level)) for each in variants}
        pairs = min(taken.values())
        if faults(suite, case) or taken[variant] >= _next_look(suite, pairs):
            continue
        if not pairs or is_open(suite, record):
            yield level


def _owed_to_crossovers(suite: SuiteRecord, variant: str) -> Iterator[int]:
    """The same for crossovers, which must see every level."""
    for record in suite.crossovers:
        variants = (record.crossover.first, record.crossover.second)
        ours = [case for case in suite.cases if case.variant in variants]
        if not record.selected or variant not in variants or any(faults(suite, case) for case in ours):
            continue
        taken = {(case.variant, case.level): len(measurements(suite, case.variant, case.level)) for case in ours}
        levels = [case.level for case in ours if case.variant == variant]
        pairs = {level: min(taken[each, level] for each in variants) for level in levels}
        missing = [level for level in levels if not pairs[level]]
        again = () if missing else open_levels(suite, record, without_baseline=FIRST_BASELINE_LAUNCHES)
        for level in (*missing, *again):
            if taken[variant, level] < _next_look(suite, pairs[level]):
                yield level


def _next_look(suite: SuiteRecord, taken: int) -> int:
    """How many launches of each side the next look needs; 0 where there is none."""
    schedule = relation_looks(suite) if suite.advisory is None else (1,)
    return next((count for count in schedule if count > taken), 0)
