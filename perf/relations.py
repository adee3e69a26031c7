"""Relations between variants: is one at least a factor times the best of others? Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from perf.gate import Word
from perf.interval import Bound, Judgement, Spread, difference
from perf.interval import judge as judge_pairs
from perf.record import SuiteRecord
from perf.sample import StoredCase, throughputs
from perf.saturation import LEAST_LEVELS, Chosen, level_for, points, saturation, sentence
from perf.suite import Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict, the variant compared with, and the judgement of the ratio (a change of 0 is: exactly the factor)."""

    word: Word
    best: str
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The level a relation is judged at; `told` says why it stands for saturation, where that was asked for."""

    level: int
    told: str | None


def place(suite: SuiteRecord, relation: Relation) -> Where:
    """Where a relation is judged.

    Saturation is told by the stored baselines of its variants, which stay what they are while a campaign runs: with
    tonight's launches the level would move from look to look. Where they do not tell, it is the highest level.
    """
    if relation.level is not None:
        return Where(level=relation.level, told=None)
    variants = (relation.variant, *relation.of)
    stored = {
        name: tuple(
            case.stored
            for case in suite.cases
            if case.variant == name
            and case.stored is not None
            and case.stored.workload_digest == case.workload_digest
            and case.stored.power_limits_w == suite.power_limits_w
        )
        for name in variants
    }
    highest = max(case.level for case in suite.cases)
    if few := [name for name, cases in stored.items() if len(cases) < LEAST_LEVELS]:
        why = f"fewer than {LEAST_LEVELS} levels of {', '.join(few)} are stored"
        return Where(level=highest, told=f"the highest level stands for it: {why}")
    chosen, told = _saturated(tuple(stored.items()), suite.margin)
    return Where(level=highest if chosen.note else chosen.level, told=chosen.note or told)


@lru_cache(maxsize=16)  # a campaign asks before every launch
def _saturated(stored: tuple[tuple[str, tuple[StoredCase, ...]], ...], margin: float) -> tuple[Chosen, str]:
    found = {
        name: saturation(points({case.level: throughputs(case.launches) for case in cases}), margin=margin)
        for name, cases in stored
    }
    return level_for(found, margin=margin), "; ".join(f"{name} {sentence(each)}" for name, each in found.items())


def judge(
    relation: Relation,
    samples: Mapping[str, tuple[float, ...]],
    bound: Bound,
    *,
    spreads: Mapping[str, Spread] | None = None,
) -> Result:
    """Judge variant / (at_least x best of `of`) like a change, with the margin, launch beside launch.

    `samples` are tok/s, one number per launch in their order; `spreads` what is known of a launch's noise, by variant.
    Which of `of` is the best is seen only tonight, so the error is divided over all that could have been.
    """
    spreads = spreads or {}
    ours = samples[relation.variant]
    divided = replace(bound, tail=bound.tail / len(relation.of))
    found = {
        name: judge_pairs(
            tuple(relation.at_least * value for value in samples[name]),
            ours,
            divided,
            known=difference(spreads.get(name), spreads.get(relation.variant)),
        )
        for name in relation.of
    }
    best = min(relation.of, key=lambda name: found[name].change)
    judgement = found[best]
    word = {Word.REGRESSED: Word.VIOLATED, Word.IMPROVED: Word.PASS}.get(judgement.word, judgement.word)
    return Result(word=word, best=best, judgement=judgement)
