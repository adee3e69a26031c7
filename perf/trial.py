"""From a suite's record to the gates of its variants: which levels are judged together, on which evidence. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np

from perf.evidence import Observed
from perf.gate import Gate, Rule, set_aside
from perf.measured import faults, not_comparable
from perf.noise import Matrix, Night, Noise, estimate
from perf.record import Arm, CaseRecord, LaunchRecord, SuiteRecord
from perf.sample import Build, LaunchSample, StoredCase, geometric_mean, throughputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Levels of one variant that are judged together; `alone` is one that is so noisy that it is judged by itself."""

    levels: tuple[int, ...]
    gate: Gate
    alone: bool


class Trials:
    """The trials of one variant, kept up with its launches as they come."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self._trials: tuple[Trial, ...] = ()
        self._levels: tuple[int, ...] = ()
        self._ran: dict[Arm, tuple[Build | None, tuple[tuple[str, str], ...]]] = {}
        self._began: str | None = None  # of the variant's first launch: a clock set back later moves nothing
        self._seen = 0

    def keep_up(self, suite: SuiteRecord) -> tuple[Trial, ...]:
        """Take in what the suite has launched since; begin again where other levels can be judged than before."""
        fresh = [each for each in suite.launches[self._seen :] if each.variant == self.variant]
        alike = [self._is_alike(each) for each in fresh]  # of every one: each is remembered
        if self._seen == 0 or not all(alike):
            cases = tuple(_judgeable(suite, self.variant))
            if (levels := tuple(case.level for case in cases)) != self._levels:
                self._trials, self._levels = tuple(_begin(suite, cases)), levels
                fresh = [each for each in suite.launches if each.variant == self.variant]
        # As they stand in a file is as they ran, but for the arms of a block: their order must not matter.
        for launch in sorted(fresh, key=lambda each: (each.block, each.arm)):
            self._began = self._began or launch.started_at
            for trial in self._trials:
                observed = _observed(launch, trial.levels, self._began)
                if np.isfinite(observed.logs).any():
                    trial.gate.add(observed)
        self._seen = len(suite.launches)
        return self._trials

    def _is_alike(self, launch: LaunchRecord) -> bool:
        """Can a launch change which levels may be judged? Not without a fault, and as the one of its arm before it."""
        ran = (launch.build, launch.variant_env)
        before = self._ran.setdefault(launch.arm, ran)
        return ran == before and not any(measurement.all_reasons for measurement in launch.measurements)


def _judgeable(suite: SuiteRecord, variant: str) -> Iterator[CaseRecord]:
    """The cases of a variant that have a stored baseline to be judged with, and no fault."""
    if suite.advisory is not None or suite.problem is not None:
        return
    for case in suite.cases:
        if (
            case.variant == variant
            and case.selected
            and not_comparable(suite, case) is None
            and not faults(suite, case)
        ):
            yield case


def _begin(suite: SuiteRecord, cases: tuple[CaseRecord, ...]) -> Iterator[Trial]:
    noise = stored_noise(cases, cautious=not suite.reference)
    if noise is None:
        return
    aside = set_aside(noise)
    groups = [tuple(index for index in range(len(cases)) if index not in aside), *((index,) for index in aside)]
    variants = len({case.variant for case in suite.cases})
    rule = Rule(
        margin=suite.margin,
        alpha=suite.alpha,
        power=suite.power,
        families=variants * len(groups),
        reference=suite.reference,
    )
    for group in groups:
        if group:
            levels = tuple(cases[index].level for index in group)
            yield Trial(levels=levels, gate=Gate(noise.of(group), rule), alone=group[0] in aside)


def stored_noise(cases: tuple[CaseRecord, ...], *, cautious: bool = False) -> Noise | None:
    """The noise of the cases from their stored launches; None where these cannot tell any. See `noise.estimate`."""
    return _noise(tuple(case.stored for case in cases if case.stored is not None), cautious)


@lru_cache(maxsize=16)  # a campaign asks for it, and then its verdict
def _noise(stored: tuple[StoredCase, ...], cautious: bool) -> Noise | None:
    if not stored:
        return None
    baseline = _nights([each.launches for each in stored])
    found = estimate(baseline, _nights([each.others for each in stored]), cautious=cautious)
    return found if found.freedom.any() else None


def _nights(by_level: list[tuple[LaunchSample, ...]]) -> list[Night]:
    """Launches as nights of one build: those of one campaign and arm."""
    rows: dict[tuple[str, str], Matrix] = {}
    for index, launches in enumerate(by_level):
        for launch, value in zip(launches, throughputs(launches), strict=True):
            row = rows.setdefault((launch.campaign, launch.launch), np.full(len(by_level), np.nan))
            row[index] = np.log(value)
    nights: dict[tuple[str, bool], list[Matrix]] = defaultdict(list)
    for (campaign, name), row in sorted(rows.items()):
        nights[campaign, "+reference-" in name].append(row)
    return [Night(name=campaign, logs=np.vstack(logs)) for (campaign, _), logs in nights.items()]


def _observed(launch: LaunchRecord, levels: tuple[int, ...], began: str) -> Observed:
    logs = np.full(len(levels), np.nan)
    for measurement in launch.measurements:
        summaries = [each.summary for each in measurement.rounds if each.summary is not None]
        if measurement.level in levels and summaries:
            value = geometric_mean(each.output_throughput for each in summaries)
            logs[levels.index(measurement.level)] = np.log(value)
    since = datetime.fromisoformat(launch.started_at) - datetime.fromisoformat(began)
    return Observed(
        candidate=launch.arm == "candidate",
        block=launch.block,
        hours=max(since.total_seconds(), 0.0) / 3600,
        logs=logs,
    )
