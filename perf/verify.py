"""Do the numbers of a campaign follow from its traces? Summarised again, each must be what the record says."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from perf import trace_file
from perf.files import FileError
from perf.metrics import Distribution, RoundSummary, summarize
from perf.record import LaunchRecord, Measurement, RoundRecord, SuiteRecord
from perf.trace_file import Trace
from perf.validity import Reason

#: Another version or another machine's numpy may sum in another order; no verdict depends on less.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A suite with a reason not to believe each round whose trace says otherwise; how many rounds have none to ask."""

    suite: SuiteRecord
    rounds: int
    without_trace: int


def verify(suite: SuiteRecord, campaign: Path) -> Verified:
    """Compare every round of a suite with its trace in the campaign's folder.

    Raises FileError for a trace that is damaged; one that is not there is counted.
    """
    names = {(case.variant, case.level): case.id.rpartition("/")[2] for case in suite.cases}
    rounds = without_trace = 0

    def checked(launch: LaunchRecord, taken: Measurement, each: RoundRecord) -> RoundRecord:
        nonlocal rounds, without_trace
        place = trace_file.path(campaign / launch.name, names[launch.variant, taken.level], each.index)
        if not place.exists():
            rounds += each.summary is not None  # where the warm-up failed there is neither
            without_trace += each.summary is not None
            return each
        rounds += 1
        differences = tuple(_differences(each, trace_file.read(place, taken.level, each.index), place))
        if not differences:
            return each
        reason = Reason(
            name="record and trace disagree",
            seen=f"launch {launch.name}, round {each.index + 1}: {'; '.join(differences[:3])}",
            advice=f"campaign.json or {place} was changed: measure again",
        )
        return replace(each, reasons=(reason, *each.reasons))

    launches = tuple(
        replace(
            launch,
            measurements=tuple(
                replace(taken, rounds=tuple(checked(launch, taken, each) for each in taken.rounds))
                for taken in launch.measurements
            ),
        )
        for launch in suite.launches
    )
    return Verified(suite=replace(suite, launches=launches), rounds=rounds, without_trace=without_trace)


def _differences(each: RoundRecord, trace: Trace, place: Path) -> Iterator[str]:
    """Every number that is not the same, in words. Raises FileError."""
    if each.client != trace.round.client:
        yield "how the client fared is not as the trace has it"
    steps = None if trace.counted is None else trace.counted.verify_steps
    try:
        recorded, traced = each.summary, summarize(trace.round, verify_steps=steps)
    except ValueError as error:
        raise FileError(f"{place}: contradicts itself: {error}; restore it, or remove it and be without") from error
    if recorded is None or traced is None:
        if recorded is not traced:
            yield f"the record has {'numbers' if recorded else 'none'}, the trace {'none' if recorded else 'numbers'}"
        return
    ours, theirs = _flat(recorded), _flat(traced)
    for name in ours | theirs:
        if not _is_same(ours.get(name), theirs.get(name)):
            yield f"{name} is {ours.get(name)} in the record and {theirs.get(name)} by the trace"


def _is_same(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=TOLERANCE))


def _flat(summary: RoundSummary) -> dict[str, float | None]:
    """The numbers by name, those of a distribution as `ttft_s.p50`."""
    flat: dict[str, float | None] = {}
    for field in fields(summary):
        value = getattr(summary, field.name)
        if isinstance(value, Distribution):
            flat |= {f"{field.name}.{part}": number for part, number in asdict(value).items()}
        else:
            flat[field.name] = value
    return flat


def text(found: tuple[Verified, ...]) -> str:
    """One line: how much of the record was held against its traces."""
    rounds, without = sum(each.rounds for each in found), sum(each.without_trace for each in found)
    said = f"traces: {rounds - without} of {rounds} rounds have one, and were summarised again from it"
    return said + (f"; {without} are taken as recorded (traces removed, or older than version 0.2)" if without else "")
