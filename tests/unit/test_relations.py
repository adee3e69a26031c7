"""Relations between variants: is one at least a factor times the best of others?"""

from dataclasses import replace

import pytest

from perf.gate import Word
from perf.interval import Spread
from perf.interval import judge as judge_pairs
from perf.record import SuiteRecord
from perf.relations import Where, judge, place
from perf.suite import Relation
from perf.verdict import RelationVerdict, judge_relation
from tests.unit.simulated import ONE_CASE, SimulatedRig, failed, launch, measured, relation, select, stored, suite

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
    assert found == judge_pairs(fresh["a"], fresh["adaptive"], replace(ONE_CASE, tail=ONE_CASE.tail / 3))


def test_what_the_store_knows_of_noise_decides_with_one_launch_of_each() -> None:
    """Published: 773 against 354 tok/s at saturation, each of a single run."""
    samples = {"baseline": (773.0,), "eagle3": (354.0,)}
    known = {name: Spread(spread=0.01, freedom=6) for name in samples}
    assert judge(relation("baseline", "eagle3"), samples, ONE_CASE).word is Word.INCONCLUSIVE
    assert judge(relation("baseline", "eagle3"), samples, ONE_CASE, spreads=known).word is Word.PASS
    assert judge(relation("eagle3", "baseline"), samples, ONE_CASE, spreads=known).word is Word.VIOLATED
    one_side = {"baseline": Spread(spread=0.01, freedom=6)}
    assert judge(relation("baseline", "eagle3"), samples, ONE_CASE, spreads=one_side).word is Word.INCONCLUSIVE


# Where saturation is


def curves(*, plateau: float = 1000.0, levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)) -> SuiteRecord:
    """A suite whose stored baselines bend: the baseline's at 8 streams, that of eagle3 at 4."""
    store = tuple(
        stored(*(0.999 * rate, rate, 1.001 * rate), level=level, variant=variant)
        for variant, bend in (("baseline", 8), ("eagle3", 4))
        for level in levels
        for rate in (plateau * level / bend / (1 + (level / bend) ** 8) ** (1 / 8),)
    )
    bound = relation("baseline", "eagle3")
    return suite(levels=levels, variants=("baseline", "eagle3"), store=store, relations=(bound,))


def test_saturation_is_the_first_level_at_which_every_stored_baseline_is_near_its_plateau() -> None:
    state = curves()
    found = place(state, state.relations[0].relation)
    assert found.level == 16
    assert found.told is not None
    assert found.told.startswith("baseline reached: plateau")
    assert "; eagle3 reached: plateau" in found.told
    assert place(state, relation("eagle3", "baseline")).level == 16


def test_saturation_that_the_store_does_not_show_is_the_highest_level_and_it_is_said_why() -> None:
    for levels, why in (((1, 2, 4, 8), "unclear at c=8"), ((8, 16, 32), "fewer than 4 levels of baseline, eagle3")):
        state = curves(levels=levels)
        found = place(state, state.relations[0].relation)
        assert (found.level, found.told is not None and why in found.told) == (max(levels), True)
    bare = suite(levels=(1, 250, 30), variants=("baseline", "eagle3"))
    assert place(bare, relation("baseline", "eagle3")).level == 250
    assert place(bare, relation("baseline", "eagle3", level=30)) == Where(level=30, told=None)


def test_a_baseline_that_was_asked_something_else_tells_nothing_of_saturation() -> None:
    state = curves()
    other = replace(
        state, cases=tuple(replace(case, workload_digest="another") if case.level > 4 else case for case in state.cases)
    )
    assert place(other, state.relations[0].relation).level == 64
    limited = replace(state, power_limits_w=(300.0,))
    assert place(limited, state.relations[0].relation).level == 64


def test_the_level_that_stands_for_saturation_does_not_move_with_what_is_measured() -> None:
    state = curves()
    bound = state.relations[0].relation
    rig = SimulatedRig(truth=lambda _variant, level: 10.0 * level, cv=0.1)
    done = rig.run(select(state, bound.id))
    assert {levels for _, levels in rig.launched} == {(16,)}
    assert place(done, bound) == place(state, bound)


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
    assert (found.word, found.level, found.best) == (Word.PASS, 8, "eagle3")
    assert found.saturation == "the highest level stands for it: fewer than 4 levels of baseline, eagle3 are stored"
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


def test_acceptance_that_is_simulated_on_one_side_alone_makes_a_relation_invalid() -> None:
    """sglang#31609: a speedup of made-up acceptance is no speedup."""
    simulated = {"SGLANG_SIMULATE_ACC_LEN": "3.0"}
    for plain, status in (({}, Word.INVALID), (simulated, Word.PASS)):
        launches = [
            launch(measured(1.0), measured(rate, level=8), variant=variant, ordinal=ordinal, env=env)
            for variant, rate, env in (("baseline", 773.0, plain), ("eagle3", 354.0, simulated))
            for ordinal in (1, 2)
        ]
        state = suite(levels=(1, 8), variants=("baseline", "eagle3"), relations=(BOUND,), launches=tuple(launches))
        found = verdict(state)
        assert found.word is status
        if status is Word.INVALID:
            (reason,) = found.reasons
            assert reason.name == "acceptance is not simulated alike"
            assert reason.seen == "SGLANG_SIMULATE_ACC_LEN is not set in baseline; 3.0 in eagle3"
