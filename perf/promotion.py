"""Promotion: a campaign's launches become stored baselines, and never without a person's reason."""

import fnmatch
import shlex
from dataclasses import dataclass
from pathlib import Path

from perf.baseline import Store
from perf.files import FileError, to_json, write_text
from perf.gate import Word
from perf.record import Campaign, SuiteRecord, now_utc
from perf.sample import SCHEMA, Promotion, StoredCase, geometric_mean, may_join, throughputs
from perf.verdict import SIMULATED_ACCEPTANCE, CaseVerdict, judge, measurements, sample

#: Where `python -m perf` looks, from the current folder.
DEFAULT_BASELINES = Path("baselines")
DEFAULT_CAMPAIGNS = Path(".perf/campaigns")

MAX_REASON = 500

_CANNOT_JOIN = (
    "the stored launches ran another workload, build, command or environment, or under other limits: leave out --add"
)


class PromotionError(Exception):
    """A promotion that is refused as a whole; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A case that was promoted: its verdict in the campaign, and the promotion that held before and holds now."""

    case: str
    word: Word
    before: Promotion | None
    after: Promotion


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was promoted, and what was not as (case, why)."""

    promoted: tuple[Promoted, ...]
    refused: tuple[tuple[str, str], ...]


def command(folder: Path, baselines: Path) -> str:
    """The command that promotes a campaign to a store, as it works from the current folder."""
    campaign = folder.name if folder.parent.resolve() == DEFAULT_CAMPAIGNS.resolve() else shlex.quote(str(folder))
    store = "" if baselines.resolve() == DEFAULT_BASELINES.resolve() else f" --baselines {shlex.quote(str(baselines))}"
    return f"python -m perf promote {campaign}{store}"


def promote(campaign: Campaign, store: Store, *, reason: str, pattern: str | None, add: bool) -> Outcome:
    """Store what a campaign measured. Raises PromotionError and FileError; each variant's file is written whole.

    Promotable is a case of a complete campaign whose own verdict is not INVALID and which was gated. With `add` the
    launches join the stored ones, which must be comparable. Every file is read before the first is written, so that a
    damaged one stops all; where a later one cannot be written, PromotionError says which cases were promoted.
    """
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
    before: dict[str, StoredCase] = {}
    words: dict[str, Word] = {}
    refused: list[tuple[str, str]] = []
    matched = False
    for suite in campaign.suites:
        by_variant: dict[str, list[StoredCase]] = {}
        for verdict in judge(suite):
            if not isinstance(verdict, CaseVerdict) or (
                pattern is not None and not fnmatch.fnmatchcase(verdict.id, pattern)
            ):
                continue
            matched = True
            words[verdict.id] = verdict.word
            if verdict.advisory:
                refused.append((verdict.id, verdict.advisory))
            elif verdict.word is Word.INVALID:
                refused.append((verdict.id, f"INVALID: {verdict.reasons[0].name}"))
            else:
                by_variant.setdefault(verdict.variant, []).append(stored_case(campaign, suite, verdict, reason.strip()))
        for variant, cases in by_variant.items():
            levels = {case.level: case for case in store.read(suite.rig_id, suite.name, variant)}
            before |= {case.case: levels[case.level] for case in cases if case.level in levels}
            foreign = [case for case in cases if add and not may_join(before.get(case.case, case), case)]
            refused += [(case.case, _CANNOT_JOIN) for case in foreign]
            if joining := [case for case in cases if case not in foreign]:
                chosen.append((suite, variant, joining))
    if not matched:
        raise PromotionError(
            f"no case of campaign {campaign.id}"
            + (
                f" matches {pattern!r}; its cases are written like {_example(campaign)!r}"
                if pattern is not None
                else " was measured"
            )
        )
    if any(suite.rig_id == campaign.rig.id for suite, _, _ in chosen):
        write_text(store.folder / campaign.rig.id / "rig.json", to_json(_fingerprint(campaign), indent=1))
    promoted: list[Promoted] = []
    for number, (suite, variant, cases) in enumerate(chosen):
        try:
            store.promote(suite.rig_id, suite.name, variant, tuple(cases), add=add)
            after = {case.level: case.promotion for case in store.read(suite.rig_id, suite.name, variant)}
        except FileError as error:
            if not promoted:
                raise
            done = ", ".join(each.case for each in promoted)
            left = ", ".join(case.case for _, _, theirs in chosen[number:] for case in theirs)
            reason = str(error).removesuffix("; nothing was changed")
            raise PromotionError(f"{reason}; promoted before that: {done}; not promoted: {left}") from error
        for case in cases:
            old = before.get(case.case)
            promoted.append(
                Promoted(
                    case=case.case,
                    word=words[case.case],
                    before=None if old is None else old.promotion,
                    after=after[case.level],
                )
            )
    return Outcome(promoted=tuple(promoted), refused=tuple(refused))


def stored_case(campaign: Campaign, suite: SuiteRecord, verdict: CaseVerdict, reason: str) -> StoredCase:
    """What a case of a campaign would be as a stored baseline."""
    taken = measurements(suite, verdict.variant, verdict.level)
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
        launches=launches,
        promotions=(
            Promotion(
                promoted_at=now_utc(),
                reason=reason,
                campaign=campaign.id,
                throughput=geometric_mean(throughputs(launches)),
                launches=len(launches),
            ),
        ),
    )


def _fingerprint(campaign: Campaign) -> dict[str, object]:
    rig = campaign.rig
    return {
        "id": rig.id,
        "gpus": [{"name": gpu.name, "uuid": gpu.uuid, "power_limit_w": gpu.power_limit_w} for gpu in rig.gpus],
        "driver": rig.driver,
        "cpu": rig.cpu,
        "kernel": rig.kernel,
    }


def _example(campaign: Campaign) -> str:
    return next((case.id for suite in campaign.suites for case in suite.cases), "suite/variant/c001")
