"""Relations between variants: is one at least a factor times the best of others? Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perf.gate import Judgement, Rule, Word
from perf.gate import judge as judge_samples
from perf.sample import geometric_mean
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


def judge(relation: Relation, samples: Mapping[str, tuple[float, ...]], rule: Rule) -> Result:
    """Judge variant / (at_least x best of `of`) like a change, with the margin. tok/s, one number per launch.

    Which of `of` is the best is seen only tonight, so the error is divided over all that could have been.
    """
    best = max(relation.of, key=lambda name: geometric_mean(samples[name]))
    bar = tuple(relation.at_least * value for value in samples[best])
    judgement = judge_samples(bar, samples[relation.variant], replace(rule, tail=rule.tail / len(relation.of)))
    word = {Word.REGRESSED: Word.VIOLATED, Word.IMPROVED: Word.PASS}.get(judgement.word, judgement.word)
    return Result(word=word, best=best, judgement=judgement)
