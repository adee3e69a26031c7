"""Two campaigns against each other: the one becomes what the other is judged with. Pure."""

from dataclasses import dataclass, replace

from perf.files import FileError
from perf.gate import Word
from perf.promotion import stored_case
from perf.record import Campaign, CaseRecord, SuiteRecord
from perf.sample import StoredCase
from perf.verdict import CaseVerdict, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The suites of the later campaign with the earlier one as their baseline, and what could not be compared."""

    suites: tuple[SuiteRecord, ...]
    left_out: tuple[str, ...]


def compared(before: Campaign, after: Campaign) -> Comparison:
    """`after` judged against `before`; what `before` has not, or not to be believed, is NO_BASELINE.

    Candidates are compared: the launches of a reference build say nothing of what changed between two campaigns.
    Whether two cases were asked the same is told by their verdict, as with a stored baseline. Raises FileError where no
    case is in both, on one rig.
    """
    stored: dict[tuple[str, str], StoredCase] = {}
    invalid: dict[tuple[str, str], str] = {}
    left_out: list[str] = []
    for suite in before.suites:
        for verdict in judge(suite):
            if not isinstance(verdict, CaseVerdict):
                continue
            if verdict.word is Word.INVALID:
                invalid[suite.rig_id, verdict.id] = f"{verdict.id} is INVALID in {before.id}"
            else:
                stored[suite.rig_id, verdict.id] = stored_case(before, suite, verdict, f"campaign {before.id}")
    suites: list[SuiteRecord] = []
    for suite in after.suites:
        cases: list[CaseRecord] = []
        for case in suite.cases:
            key = (suite.rig_id, case.id)
            found = stored.pop(key, None) if case.selected else None
            if case.selected and found is None:
                left_out.append(invalid.get(key, f"{case.id} is not in {before.id} on {suite.rig_id}"))
            cases.append(replace(case, stored=found))
        alone = tuple(replace(each, selected=False) for each in suite.relations)
        ours = tuple(each for each in suite.launches if each.arm == "candidate")
        crossovers = tuple(replace(each, selected=False) for each in suite.crossovers)
        suites.append(
            replace(
                suite,
                cases=tuple(cases),
                relations=alone,
                crossovers=crossovers,
                same_outputs=(),
                launches=ours,
                reference=False,
            )
        )
    left_out += [f"{case} is not in {after.id} on {rig}" for rig, case in stored]
    if not any(case.stored for suite in suites for case in suite.cases):
        raise FileError(
            f"{before.id} and {after.id} have no case in common that can be judged: "
            + (left_out[0] if left_out else "nothing was measured")
        )
    return Comparison(suites=tuple(suites), left_out=tuple(left_out))
