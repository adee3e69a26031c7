"""Relations between variants: is one at least a factor times the best of others?"""

from dataclasses import replace

import pytest

from perf.gate import Word
from perf.interval import judge as judge_samples
from perf.record import SuiteRecord
from perf.relations import judge, level_of
from perf.suite import Relation
from perf.verdict import RelationVerdict, judge_relation
from tests.unit.simulated import ONE_CASE, failed, launch, measured, relation, suite

#: Published for eight GPUs at saturation, in tok/s; the spread is ours, since single runs were published.
PLAIN = (772.0, 773.0, 774.0)
EAGLE3 = (353.5, 354.0, 354.5)


def test_the_published_saturation_holds_the_relation() -> None:
    found = judge(relation("baseline", "eagle3"), {"baseline": PLAIN, "eagle3": EAGLE3}, ONE_CASE)
    assert (found.word, found.best) == (Word.PASS, "eagle3")
    assert 1 + found.judgement.change == pytest.approx(773 / 354, rel=1e-4)


def test_the_published_saturation_the_other_way_round_violates_it() -> None:
    found = judge(relation("baseline", "eagle3"), {"baseline": EAGLE3, "eagle3": PLAIN}, ONE_CASE)
    assert found.word is Word.VIOLATED
    assert 1 + found.judgement.change == pytest.approx(0.458, abs=5e-4)


def test_a_factor_is_part_of_what_is_expected() -> None:
    samples = {"eagle3": (149.0, 150.0, 151.0), "baseline": (99.5, 100.0, 100.5)}
    assert judge(relation("eagle3", "baseline", at_least=1.4), samples, ONE_CASE).word is Word.PASS
    found = judge(relation("eagle3", "baseline", at_least=1.6), samples, ONE_CASE)
    assert found.word is Word.VIOLATED
    assert 1 + found.judgement.change == pytest.approx(150 / 160, abs=1e-3)
    assert found.judgement.before == pytest.approx(160, abs=0.1)


def test_the_margin_is_allowed_below_what_is_expected() -> None:
    samples = {"adaptive": (98.0, 98.0, 98.0), "plain": (100.0, 100.0, 100.0)}
    assert judge(relation("adaptive", "plain"), samples, ONE_CASE).word is Word.PASS


def test_too_much_noise_is_inconclusive() -> None:
    samples = {"adaptive": (80.0, 120.0), "plain": (100.0, 110.0)}
    assert judge(relation("adaptive", "plain"), samples, ONE_CASE).word is Word.INCONCLUSIVE


def test_the_best_of_several_is_what_counts() -> None:
    samples = {"adaptive": (100.0, 100.0), "plain": (90.0, 90.0), "eagle3": (120.0, 120.0)}
    for of in (("plain", "eagle3"), ("eagle3", "plain")):
        found = judge(relation("adaptive", *of), samples, ONE_CASE)
        assert (found.word, found.best) == (Word.VIOLATED, "eagle3")
    assert judge(relation("adaptive", "plain"), samples, ONE_CASE).word is Word.PASS


def test_choosing_the_best_of_several_costs_certainty() -> None:
    """The best of three equals is the luckiest: without this a false VIOLATED were three times as likely."""
    fresh = {"adaptive": (99.0, 101.0), "a": (99.0, 100.0), "b": (98.0, 99.0), "c": (97.0, 98.0)}
    found = judge(relation("adaptive", "a", "b", "c"), fresh, ONE_CASE).judgement
    assert found == judge_samples(fresh["a"], fresh["adaptive"], replace(ONE_CASE, tail=ONE_CASE.tail / 3))


def test_saturation_is_the_highest_level_of_the_suite() -> None:
    assert level_of(relation("a", "b"), (1, 250, 30)) == 250
    assert level_of(relation("a", "b", level=30), (1, 250, 30)) == 30


# From a suite's record

BOUND = relation("baseline", "eagle3")


def record(*, baseline: tuple[float, ...], eagle3: tuple[float, ...], bound: Relation = BOUND) -> SuiteRecord:
    launches = [
        launch(measured(1.0), measured(value, level=8), variant=variant, ordinal=ordinal)
        for variant, values in (("baseline", baseline), ("eagle3", eagle3))
        for ordinal, value in enumerate(values, start=1)
    ]
    return suite(levels=(1, 8), variants=("baseline", "eagle3"), relations=(bound,), launches=tuple(launches))


def verdict(state: SuiteRecord) -> RelationVerdict:
    return judge_relation(state, state.relations[0])


def test_a_relation_compares_tonights_launches_at_its_own_level() -> None:
    found = verdict(record(baseline=PLAIN, eagle3=EAGLE3))
    assert (found.word, found.level, found.saturation, found.best) == (Word.PASS, 8, True, "eagle3")
    assert found.judgement is not None
    assert found.judgement.after == pytest.approx(773, abs=0.1)


def test_a_relation_is_invalid_where_a_side_is_and_names_that_side_and_its_log() -> None:
    state = record(baseline=PLAIN, eagle3=())
    broken = launch(measured(1.0), failed(8), variant="eagle3", ordinal=1)
    found = verdict(replace(state, launches=(*state.launches, broken)))
    assert found.word is Word.INVALID
    assert found.reasons[0].name == "sim/eagle3/c008 is INVALID"
    assert found.reasons[0].seen.startswith("requests failed: 3 of 128")
    assert found.logs == ("eagle3-1",)


def test_a_relation_is_invalid_where_a_side_was_not_measured() -> None:
    found = verdict(record(baseline=PLAIN, eagle3=()))
    assert found.word is Word.INVALID
    assert "not measured" in found.reasons[0].seen


def test_a_violated_relation_names_the_logs_of_both_sides() -> None:
    found = verdict(record(baseline=EAGLE3, eagle3=PLAIN))
    assert (found.word, found.logs) == (Word.VIOLATED, ("baseline-3", "eagle3-3"))
