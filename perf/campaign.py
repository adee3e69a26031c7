"""What is launched next, and when to stop. Its effects are passed in, so it is tested by a simulated rig."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from perf import relations
from perf.gate import Word, looks
from perf.record import CaseRecord, LaunchRecord, SuiteRecord
from perf.text import duration
from perf.verdict import FIRST_LOOK, Verdict, judge_case, judge_relation, measurements

#: Launches of a case without a baseline, so that the next run can judge.
FIRST_BASELINE_LAUNCHES = 4

#: The cap where neither option nor suite gives one.
DEFAULT_MAX_LAUNCHES = 8

#: What a launch is: the variant, its ordinal within the campaign (from 1) and the levels to measure.
Measure = Callable[[str, int, tuple[int, ...]], LaunchRecord]


def run(
    suite: SuiteRecord,
    *,
    measure: Measure,
    save: Callable[[SuiteRecord], None],
    clock: Callable[[], float],
    budget_s: float | None,
) -> SuiteRecord:
    """Launch until every selected case and relation is decided, the cap is reached, or the budget is spent.

    In each pass every variant that is needed is launched once; the order of the variants alternates from pass to pass
    (ABBA), so that a rig that warms over the night favours none.
    """
    began = clock()
    passes = 0
    while todo := next_levels(suite):
        variants = sorted(todo, key=[case.variant for case in suite.cases].index, reverse=passes % 2 == 1)
        for variant in variants:
            longest = max((launch.duration_s for launch in suite.launches if launch.variant == variant), default=0.0)
            if budget_s is not None and clock() - began + longest > budget_s:
                suite = replace(suite, stopped=f"the budget of {duration(budget_s)} is spent")
                save(suite)
                return suite
            ordinal = 1 + sum(launch.variant == variant for launch in suite.launches)
            suite = replace(suite, launches=(*suite.launches, measure(variant, ordinal, todo[variant])))
            save(suite)
        passes += 1
    return suite


def next_levels(suite: SuiteRecord) -> dict[str, tuple[int, ...]]:
    """The levels of each variant that the next pass must measure; empty when nothing more is owed or allowed."""
    needed: set[tuple[str, int]] = set()
    for case in suite.cases:
        if case.selected and _owes(suite, case, partial(judge_case, suite, case)):
            needed.add((case.variant, case.level))
    for record in suite.relations:
        if not record.selected:
            continue
        level = relations.level_of(record.relation, tuple(case.level for case in suite.cases))
        for variant in (record.relation.variant, *record.relation.of):
            case = next(case for case in suite.cases if case.variant == variant and case.level == level)
            if _owes(suite, case, partial(judge_relation, suite, record)):
                needed.add((variant, level))
    order = {case.variant: [each.level for each in suite.cases if each.variant == case.variant] for case in suite.cases}
    return {
        variant: tuple(level for level in levels if (variant, level) in needed)
        for variant, levels in order.items()
        if any((variant, level) in needed for level in levels)
    }


def _owes(suite: SuiteRecord, case: CaseRecord, judge: Callable[[], Verdict]) -> bool:
    """Must this case be measured (again) for the verdict that `judge` gives?

    Never because it reads badly: more launches come only from the rule, up to the next look and the cap.
    """
    if sum(launch.variant == case.variant for launch in suite.launches) >= suite.max_launches:
        return False  # whatever its launches measured: this also ends every campaign
    taken = measurements(suite, case.variant, case.level)
    if any(measurement.all_reasons for _, measurement in taken):
        return False
    if suite.level_must_be_reached and dict(suite.requests)[case.level] < case.level:
        return False  # known to be INVALID before any load
    if suite.advisory is not None:
        return len(taken) < 1
    if len(taken) not in looks(FIRST_LOOK, suite.max_launches):
        return True  # between two looks nothing is judged
    word = judge().word
    return word is Word.INCONCLUSIVE or (word is Word.NO_BASELINE and len(taken) < FIRST_BASELINE_LAUNCHES)
