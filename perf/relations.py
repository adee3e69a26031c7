"""Relations between variants: is one at least a factor times the best of others? Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perf.gate import Word
from perf.interval import Bound, Judgement, Spread, difference, judge_pairs
from perf.suite import Relation


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict, the variant compared with, and the judgement of the ratio (a change of 0 is: exactly the factor)."""

    word: Word
    best: str
    judgement: Judgement


def level_of(relation: Relation, levels: tuple[int, ...]) -> int:
    """The level a relation is judged at. Saturation is the highest level of the suite, measured for every variant."""
    return max(levels) if relation.level is None else relation.level


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
