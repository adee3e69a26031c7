"""Promotion: a campaign's launches become stored baselines, and never without a person's reason."""

import fnmatch
import shlex
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from perf.baseline import Store, render
from perf.campaign import FIRST_BASELINE_LAUNCHES
from perf.crossover import SCHEMA as CROSSOVER_SCHEMA
from perf.crossover import StoredCrossover, StoredLevel, sentence
from perf.files import to_json, write_together
from perf.gate import Word
from perf.measured import SIMULATED_ACCEPTANCE, Taken, measurements, sample
from perf.record import Arm, Campaign, SuiteRecord, now_utc
from perf.same_output import SameOutputVerdict
from perf.sample import SCHEMA, Promotion, StoredCase, geometric_mean, is_sound, may_join, throughputs
from perf.text import launches as launches_told
from perf.text import percent, printable, share, throughput
from perf.verdict import CaseVerdict, CrossoverVerdict, RelationVerdict, bound, judge

#: Where `python -m perf` looks, from the current folder.
DEFAULT_BASELINES = Path("baselines")
DEFAULT_CAMPAIGNS = Path(".perf/campaigns")

MAX_REASON = 500

_CANNOT_JOIN: dict[Arm, str] = {
    "candidate": (
        "the stored launches ran another workload, build, command or environment, or under other limits: "
        "leave out --add"
    ),
    "reference": (
        "the stored launches ran another build than the reference, or another workload, command or environment, "
        "or under other limits: the baseline stays as it is"
    ),
}


#: Such a file would be refused whenever it is read.
_NOT_SOUND = "nothing can be judged by what was measured, such as a clock of 0: measure it again"


class PromotionError(Exception):
    """A promotion that is refused as a whole; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A case that was promoted: its suite's margin, and what is stored for it now.

    `word` is the verdict on what was promoted; None for launches of the reference, which none is about.
    """

    word: Word | None
    margin: float
    stored: StoredCase

    @property
    def case(self) -> str:
        """Its id."""
        return self.stored.case

    @property
    def before(self) -> Promotion | None:
        """The promotion that held before; None for the first."""
        return self.stored.promotions[-2] if len(self.stored.promotions) > 1 else None

    @property
    def after(self) -> Promotion:
        """The promotion that holds now."""
        return self.stored.promotion


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedCrossover:
    """A crossover that was promoted: what was stored before it, and what is now. `word` is the verdict on it."""

    word: Word
    before: StoredCrossover | None
    after: StoredCrossover


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was promoted, and what was not as (case or crossover, why)."""

    promoted: tuple[Promoted, ...]
    crossovers: tuple[PromotedCrossover, ...]
    refused: tuple[tuple[str, str], ...]


def command(folder: Path, baselines: Path) -> str:
    """The command that promotes a campaign to a store, as it works from the current folder."""
    campaign = folder.name if folder.parent.resolve() == DEFAULT_CAMPAIGNS.resolve() else shlex.quote(str(folder))
    store = "" if baselines.resolve() == DEFAULT_BASELINES.resolve() else f" --baselines {shlex.quote(str(baselines))}"
    return f"python -m perf promote {campaign}{store}"


def promote(
    campaign: Campaign, store: Store, *, reason: str, pattern: str | None, add: bool, arm: Arm = "candidate"
) -> Outcome:
    """Store what a campaign measured. Raises PromotionError and FileError; each file is written whole.

    Promotable is a case of a complete campaign whose own verdict is not INVALID and which was gated, and a crossover
    that shows something, whose every case is none of these. With `add` the
    launches join the stored ones, which must be comparable; those of the reference can only join. From the first file
    that is read to the last that is written no other promotion comes between, and what cannot all be written is not.

    A crossover is replaced, never added to: with `add` it is stored only where there is none.
    """
    add = add or arm == "reference"
    if not campaign.complete:
        raise PromotionError(
            f"campaign {campaign.id} is not complete (interrupted, or still running): measure again, "
            "or name an older campaign"
        )
    if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
        raise PromotionError(
            f"--reason must be one printable line of at most {MAX_REASON} characters that is not empty"
        )
    chosen: list[tuple[SuiteRecord, str, list[StoredCase]]] = []
    crossings: list[tuple[SuiteRecord, list[CrossoverVerdict]]] = []
    words: dict[str, Word] = {}
    refused: list[tuple[str, str]] = []
    matched = False
    for suite in campaign.suites:
        by_variant: dict[str, list[StoredCase]] = {}
        crossing: list[CrossoverVerdict] = []
        for verdict in judge(suite):
            if isinstance(verdict, RelationVerdict | SameOutputVerdict) or (
                pattern is not None and not fnmatch.fnmatchcase(verdict.id, pattern)
            ):
                continue
            if isinstance(verdict, CrossoverVerdict):
                if arm == "candidate":
                    matched = True
                    crossing.append(verdict)
                continue
            matched = True
            words[verdict.id] = verdict.word
            if verdict.advisory:
                refused.append((verdict.id, verdict.advisory))
            elif verdict.word is Word.INVALID:
                refused.append((verdict.id, f"INVALID: {verdict.reasons[0].name}"))
            elif why := _why_not(measurements(suite, verdict.variant, verdict.level, arm), arm):
                refused.append((verdict.id, why))
            else:
                case = stored_case(campaign, suite, verdict, reason.strip(), arm=arm)
                if is_sound(case):
                    by_variant.setdefault(verdict.variant, []).append(case)
                else:
                    refused.append((verdict.id, _NOT_SOUND))
        chosen += [(suite, variant, cases) for variant, cases in by_variant.items()]
        crossings += [(suite, crossing)] if crossing else []
    if not matched:
        raise PromotionError(
            f"no case of campaign {campaign.id}"
            + (
                f" matches {pattern!r}; its cases are written like {_example(campaign)!r}"
                if pattern is not None
                else " was measured"
            )
        )
    files: dict[Path, bytes] = {}
    rigs: set[str] = set()
    promoted: list[Promoted] = []
    crossovers: list[PromotedCrossover] = []
    sound = any(_why_no_crossover(found) is None for _, crossing in crossings for found in crossing)
    with store.locked() if chosen or sound else nullcontext():  # else nothing is written, not even a lock
        for suite, variant, cases in chosen:
            before = {case.level: case for case in store.read(suite.rig_id, suite.name, variant)}
            foreign = [case for case in cases if add and not may_join(before.get(case.level, case), case)]
            refused += [(case.case, _CANNOT_JOIN[arm]) for case in foreign]
            if joining := tuple(case for case in cases if case not in foreign):
                stored = store.with_cases(suite.rig_id, suite.name, variant, joining, add=add)
                files[store.path(suite.rig_id, suite.name, variant)] = render(suite.rig_id, stored).encode()
                rigs.add(suite.rig_id)
                joined = {case.level for case in joining}
                promoted += [
                    Promoted(word=words[case.case] if arm == "candidate" else None, margin=suite.margin, stored=case)
                    for case in stored
                    if case.level in joined
                ]
        for suite, crossing in crossings:
            there = store.crossovers(suite.rig_id, suite.name)
            ours: list[PromotedCrossover] = []
            for found in crossing:
                was = there.get(found.id)
                if add and was is not None:
                    continue  # a night that is added tells of noise, and moves no crossover
                if why := _why_no_crossover(found):
                    refused.append((found.id, why))
                else:
                    after = _stored_crossover(campaign, suite, found, reason.strip())
                    ours.append(PromotedCrossover(word=found.word, before=was, after=after))
            if ours:
                path, text = store.with_crossovers(suite.rig_id, suite.name, [each.after for each in ours])
                files[path] = text.encode()
                rigs.add(suite.rig_id)
                crossovers += ours
        if campaign.rig.id in rigs:
            path = store.folder / campaign.rig.id / "rig.json"
            files[path] = to_json(_fingerprint(campaign), indent=1).encode()
        write_together(files)
    return Outcome(promoted=tuple(promoted), crossovers=tuple(crossovers), refused=tuple(refused))


def told(outcome: Outcome) -> Iterator[str]:
    """What was promoted from what to what, and whether that was a loss: nobody is to accept one without seeing it."""
    for each in outcome.promoted:
        before, after = each.before, each.after
        was = "-" if before is None else throughput(before.throughput)
        line = f"promoted  {each.case}: {was} -> {throughput(after.throughput)} tok/s"
        if before is not None and after.comparable is False:
            line += " (asked something else)"
        elif before is not None:
            line += f" ({percent(after.throughput / before.throughput - 1)})"
        line += f", {launches_told(after.launches)}"
        if before is not None and before.launches > after.launches:
            line += f", there were {before.launches}"
        if len(each.stored.history) > 2:
            line += f", {_drift(each)}"
        if each.word in (Word.REGRESSED, Word.INCONCLUSIVE):
            line += f", {each.word}"
        yield line
        if each.stored.has_drifted(each.margin):
            together = f"no step lost the margin of {share(each.margin)}, together they did"
            yield f"drifted   {each.case}: {_drift(each)}: {together}"
    thin = [each.stored for each in outcome.promoted if len(each.stored.launches) == 1]
    if thin:
        yield f"thin      {_thin(thin, '--add' if outcome.promoted[0].word else '--reference')}"
    for crossing in outcome.crossovers:
        was = "-" if crossing.before is None else _told(crossing.before)
        word = f", {crossing.word}" if crossing.word in (Word.VIOLATED, Word.INCONCLUSIVE) else ""
        yield f"promoted  {crossing.after.crossover}: {was} -> {_told(crossing.after)}{word}"
    for case, why in outcome.refused:
        yield f"refused   {case}: {printable(why)}"


def _thin(stored: Sequence[StoredCase], joining: str) -> str:
    """What baselines of one launch cannot do, and what to do; `joining` is the option that adds to them."""
    told = f"{len(stored)} cases are" if len(stored) > 1 else f"{stored[0].case} is"
    why = "which says little of how fast it is"
    if not all(each.others for each in stored):
        why = "which says nothing of how launches vary: as long as nothing else does, verdicts are INCONCLUSIVE"
    return (
        f"{told} stored as one launch, {why}; measure again and promote with {joining}, "
        f"or measure with an empty --perf-baselines folder: {FIRST_BASELINE_LAUNCHES} launches"
    )


def _told(stored: StoredCrossover) -> str:
    return sentence(stored.crossing, stored.first, stored.second)


def _drift(each: Promoted) -> str:
    oldest = each.stored.history[0]
    change = percent(each.after.throughput / oldest.throughput - 1)
    return f"{change} since {printable(oldest.promoted_at[:10])}"


def _why_not(taken: Taken, arm: Arm) -> str | None:
    """Why the launches of an arm are no sample though the case is not INVALID: it is about the candidate's."""
    if not taken:
        return f"no {arm} launch of this campaign measured it"
    for launch, measurement in taken:
        if not measurement.rounds or any(each.summary is None for each in measurement.rounds):
            return f"launch {launch.name} did not measure it to the end"
    return None


def _why_no_crossover(found: CrossoverVerdict) -> str | None:
    if found.advisory:
        return found.advisory
    if found.crossing is None:
        return f"INVALID: {found.reasons[0].name}"
    if not found.crossing.first_faster and not found.crossing.second_faster:
        return f"{sentence(found.crossing, found.first, found.second)}: there is nothing to hold; launch more"
    return None


def _stored_crossover(campaign: Campaign, suite: SuiteRecord, found: CrossoverVerdict, reason: str) -> StoredCrossover:
    """What a campaign showed of a crossover, to be stored."""
    if found.crossing is None:
        raise PromotionError(f"{found.id} is INVALID")
    digests = {case.level: case.workload_digest for case in suite.cases}
    launches = dict(found.launches)
    return StoredCrossover(
        schema=CROSSOVER_SCHEMA,
        crossover=found.id,
        first=found.first,
        second=found.second,
        power_limits_w=suite.power_limits_w,
        simulated_acceptance=found.simulated_acceptance,
        tail=bound(suite).tail,
        levels=tuple(
            StoredLevel(
                workload_digest=digests[each.level],
                contrast=each,
                launches_first=launches[each.level][0],
                launches_second=launches[each.level][1],
            )
            for each in found.contrasts
        ),
        estimate=found.crossing.estimate,
        lo=found.crossing.lo,
        hi=found.crossing.hi,
        campaign=campaign.id,
        reason=reason,
        promoted_at=now_utc(),
    )


def stored_case(
    campaign: Campaign, suite: SuiteRecord, verdict: CaseVerdict, reason: str, *, arm: Arm = "candidate"
) -> StoredCase:
    """What the launches of one arm of a case would be as a stored baseline."""
    taken = measurements(suite, verdict.variant, verdict.level, arm)
    latest = taken[-1][0]
    launches = tuple(sample(launch, measurement, campaign=campaign.id) for launch, measurement in taken)
    case = next(case for case in suite.cases if case.id == verdict.id)
    return StoredCase(
        schema=SCHEMA,
        case=verdict.id,
        level=verdict.level,
        workload_digest=case.workload_digest,
        power_limits_w=suite.power_limits_w,
        simulated_acceptance=dict(latest.variant_env).get(SIMULATED_ACCEPTANCE),
        command=latest.command,
        env=latest.variant_env,
        model=latest.model,
        server_version=latest.server_version,
        build=latest.build,
        fingerprint=suite.fingerprint,
        server_arguments=latest.server_arguments,
        launches=launches,
        others=(),
        promotions=(
            Promotion(
                promoted_at=now_utc(),
                reason=reason,
                campaign=campaign.id,
                throughput=geometric_mean(throughputs(launches)),
                launches=len(launches),
                comparable=None,
            ),
        ),
    )


def _fingerprint(campaign: Campaign) -> dict[str, object]:
    rig = campaign.rig
    return {
        "id": rig.id,
        "gpus": [asdict(gpu) for gpu in rig.gpus],
        "pairs": rig.pairs,
        "driver": rig.driver,
        "cuda": rig.cuda,
        "cpu": rig.cpu,
        "governor": rig.governor,
        "kernel": rig.kernel,
    }


def _example(campaign: Campaign) -> str:
    return next((case.id for suite in campaign.suites for case in suite.cases), "suite/variant/c001")
