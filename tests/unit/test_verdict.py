"""From a suite's record to the verdict of a case: what is compared, with what, and what is said beside it."""

from dataclasses import replace

import pytest

from perf import report
from perf.gate import Word
from perf.measured import SIMULATED_ACCEPTANCE
from perf.record import LaunchRecord, Measurement, RoundRecord, SuiteRecord
from perf.sample import Build, StoredCase
from perf.verdict import SPENT_ON_RELATIONS, CaseVerdict, bound, judge_case, relation_looks
from tests.unit.simulated import failed, launch, measured, relation, stored, suite

STORE = stored(99.8, 100.0, 100.2, 100.0)


def judged(
    *throughputs: float, store: StoredCase | None = STORE, launches: tuple[LaunchRecord, ...] = ()
) -> CaseVerdict:
    """The verdict of the one case of a suite with these launches, of one throughput each where only those are given."""
    made = launches or tuple(
        launch(measured(value), ordinal=number) for number, value in enumerate(throughputs, start=1)
    )
    return verdict(suite(store=() if store is None else (store,), launches=made))


def verdict(state: SuiteRecord) -> CaseVerdict:
    return judge_case(state, state.cases[0])


def screen(found: CaseVerdict) -> str:
    return report.screen(found, "python -m perf promote 20260201-020000", "campaigns/20260201-020000")


def moved(found: CaseVerdict) -> str:
    """The line of the screen that says what moved."""
    return next(line for line in screen(found).splitlines() if "moved with it" in line)


# What it is compared with


def test_a_case_is_judged_by_the_launches_that_measured_it() -> None:
    found = judged(99.9, 100.1)
    assert (found.word, found.launches, found.logs) == (Word.PASS, 2, ("baseline-2",))
    assert found.measured is not None
    assert found.measured.output_throughput == pytest.approx(100.0)
    assert judged(90.0, 90.1, 90.0).word is Word.REGRESSED
    assert judged(110.0, 110.1, 110.0).word is Word.IMPROVED
    # Without a reference build two launches of one level are not enough to call anything.
    assert (judged(90.0, 90.1).word, judged(110.0, 110.1).word) == (Word.INCONCLUSIVE, Word.PASS)


def test_the_launch_is_the_sample_and_its_rounds_share_its_luck() -> None:
    """Four rounds of 80 in one of two launches are one launch of 80, however many they are."""
    lucky, unlucky = measured(100.0), measured(80.0)
    many = replace(unlucky, rounds=unlucky.rounds * 4)
    one = judged(launches=(launch(lucky), launch(unlucky, ordinal=2)))
    four = judged(launches=(launch(lucky), launch(many, ordinal=2)))
    assert one.judgement == four.judgement
    assert one.word is Word.INCONCLUSIVE


def test_what_relations_may_spend_of_alpha_is_shared_by_all_of_them_whatever_is_selected() -> None:
    """At every look, and at the last launch wherever it ends; the cases' gates spend the rest."""
    bounds = (relation("eagle3", "baseline", level=1), relation("eagle3", "baseline", level=2))
    state = suite(levels=(1, 2, 4), variants=("baseline", "eagle3"), relations=bounds)
    times = len(relation_looks(state)) + 1
    assert bound(state).tail * len(bounds) * times == pytest.approx(SPENT_ON_RELATIONS * state.alpha)
    few = replace(state, relations=(state.relations[0], replace(state.relations[1], selected=False)))
    assert bound(few) == bound(state)


def test_without_a_stored_baseline_there_is_nothing_to_compare_with() -> None:
    found = judged(100.0, 100.0, store=None)
    assert (found.word, found.judgement) == (Word.NO_BASELINE, None)
    assert found.why == "no baseline is stored for this case on this rig"
    assert found.measured is not None


def test_another_workload_is_not_comparable() -> None:
    found = judged(100.0, 100.0, store=replace(STORE, workload_digest="digest-of-before"))
    assert found.word is Word.NO_BASELINE
    assert found.why == "the stored baseline was asked another workload (digest digest-of-before, now digest-1)"


def test_another_power_limit_is_not_comparable() -> None:
    found = judged(100.0, 100.0, store=replace(STORE, power_limits_w=(600.0, None)))
    assert found.word is Word.NO_BASELINE
    assert found.why == "the stored baseline ran under other power limits (600 W, unknown, now none)"


@pytest.mark.parametrize(("was", "now"), [(None, "2.5"), ("2.5", None), ("2.5", "2.6")])
def test_acceptance_simulated_on_one_side_only_is_not_comparable(was: str | None, now: str | None) -> None:
    """sglang#31609."""
    env = {} if now is None else {SIMULATED_ACCEPTANCE: now}
    launches = tuple(launch(measured(100.0), ordinal=number, env=env) for number in (1, 2))
    found = judged(launches=launches, store=replace(STORE, simulated_acceptance=was))
    assert found.word is Word.NO_BASELINE
    assert found.why == (
        f"acceptance is not simulated alike on both sides "
        f"(SGLANG_SIMULATE_ACC_LEN was {was or 'not set'}, now {now or 'not set'})"
    )


def test_acceptance_simulated_alike_on_both_sides_is_compared() -> None:
    env = {SIMULATED_ACCEPTANCE: "2.5"}
    launches = tuple(launch(measured(100.0), ordinal=number, env=env) for number in (1, 2))
    assert judged(launches=launches, store=replace(STORE, simulated_acceptance="2.5", env=tuple(env.items()))).word is (
        Word.PASS
    )


def test_what_cannot_be_believed_is_invalid_whatever_the_other_launches_say() -> None:
    found = judged(launches=(launch(measured(100.0)), launch(failed(), ordinal=2)))
    assert (found.word, found.judgement, found.measured) == (Word.INVALID, None, None)
    assert found.reasons[0].name == "requests failed"


@pytest.mark.parametrize("rounds", [(), (replace(failed().rounds[0], reasons=()),)])
def test_a_round_without_numbers_is_never_a_pass(rounds: tuple[RoundRecord, ...]) -> None:
    empty = Measurement(level=1, rounds=rounds, reasons=())
    found = judged(launches=(launch(measured(100.0)), launch(empty, ordinal=2)))
    assert (found.word, found.reasons[0].name) == (Word.INVALID, "not measured")
    state = suite(store=(STORE,), reference=True, launches=(launch(measured(100.0)), launch(empty, arm="reference")))
    assert verdict(state).word is Word.INVALID


def test_a_server_that_already_ran_has_no_log_to_read() -> None:
    attached = replace(launch(failed()), command=())
    assert judged(launches=(attached,)).logs == ()


# What is said beside it


def test_what_is_being_tested_is_noted_beside_the_verdict_and_judged_all_the_same() -> None:
    launches = tuple(
        launch(
            measured(100.0),
            ordinal=number,
            version="0.5.3",
            model="other",
            extra=("--tp", "4"),
            env={"NCCL_PROTO": "LL"},
        )
        for number in (1, 2)
    )
    found = judged(launches=launches)
    assert found.word is Word.PASS
    assert found.notes == (
        "server version 0.5.3, was 0.5.2",
        "model other, was model",
        "command: now with --tp 4, was with nothing more",
        "environment differs in NCCL_PROTO",
    )


def test_nothing_is_noted_where_nothing_differs() -> None:
    assert judged(100.0, 100.0).notes == ()


OLD = Build(
    sglang="0.5.22",
    torch="2.9.0",
    cuda=None,
    commit="1a2b3c4d5e6f7a8b",
    dirty=None,
    kernels=(),
    packages="0123456789abcdef",
)
NEW = replace(OLD, sglang="0.5.23", commit="9f3e1d0c21ab7788", dirty="5d41402abc4b2a76")


def test_the_build_is_noted_beside_the_verdict_where_both_are_known_and_differ() -> None:
    launches = tuple(launch(measured(100.0), ordinal=number, build=NEW) for number in (1, 2))
    known = replace(STORE, build=OLD)
    assert judged(launches=launches, store=known).notes == (
        "build sglang 0.5.23 at 9f3e1d0c21ab, changed (5d41402a), packages 01234567, "
        "was sglang 0.5.22 at 1a2b3c4d5e6f, packages 01234567",
    )
    assert judged(launches=launches, store=replace(known, build=NEW)).notes == ()
    assert judged(launches=launches, store=STORE).notes == ()


def test_launches_of_two_builds_are_no_sample() -> None:
    """Somebody switched the branch under a running campaign."""
    launches = tuple(launch(measured(100.0), ordinal=number, build=each) for number, each in enumerate((OLD, NEW), 1))
    found = judged(launches=launches)
    assert (found.word, [reason.name for reason in found.reasons]) == (Word.INVALID, ["build changed"])
    assert "ran sglang 0.5.22 at 1a2b3c4d5e6f, packages 01234567, then sglang 0.5.23" in found.reasons[0].seen


def speculative(*pairs: tuple[float, float]) -> tuple[LaunchRecord, ...]:
    """Launches of a throughput and an acceptance length each."""
    return tuple(
        launch(measured(throughput, acceptance=acceptance), ordinal=number)
        for number, (throughput, acceptance) in enumerate(pairs, start=1)
    )


def test_a_loss_of_acceptance_is_a_regression_that_names_it() -> None:
    """ATOM#1557: acceptance fell from 61 to 36 %; of 3 draft tokens that is 2.83 to 2.08 tokens a step."""
    store = stored(283.0, 282.6, 283.4, 283.0, acceptance=2.83)
    found = judged(launches=speculative((208.1, 2.08), (207.9, 2.08), (208.0, 2.08)), store=store)
    assert found.word is Word.REGRESSED
    assert "acceptance length 2.83 -> 2.08 (-26.5 %) explains all of it; steps/s unchanged (~)" in moved(found)


def test_a_loss_of_step_time_is_a_regression_that_names_it() -> None:
    store = stored(283.0, 282.6, 283.4, 283.0, acceptance=2.83)
    found = judged(launches=speculative((208.1, 2.83), (207.9, 2.83), (208.0, 2.83)), store=store)
    assert "steps/s 100.0 -> 73.5 (-26.5 %) explains all of it; acceptance length unchanged (~)" in moved(found)


def test_what_moved_says_only_what_its_interval_supports() -> None:
    """Two launches of 2.0 and 3.6 say nothing about an acceptance length of 2.8: not even that it is unchanged."""
    store = stored(280.0, 281.0, acceptance=2.8)
    found = judged(launches=speculative((140.0, 2.0), (141.0, 3.6)), store=store)
    assert "acceptance length, steps/s unclear (?)" in moved(found)
    assert "unchanged" not in moved(found)


def test_what_a_launch_lacks_is_not_compared() -> None:
    """sglang#36272: all text in one chunk has no TPOT; a server without counters no acceptance length."""
    silent = replace(STORE, launches=tuple(replace(each, tpot_s=(None,)) for each in STORE.launches))
    for store, names in ((STORE, ["TTFT", "TPOT"]), (silent, ["TTFT"])):
        found = judged(90.0, 90.1, 90.0, store=store).moved
        assert found is not None
        assert [each.name for each in found.beside] == names


def test_a_time_to_first_token_of_zero_is_absent_and_not_zero() -> None:
    found = judged(launches=tuple(launch(measured(100.0, ttft_s=0.0), ordinal=number) for number in (1, 2)))
    assert found.measured is not None
    assert found.measured.ttft_s is None


HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egood\nPASS  everything is fine\r"


def test_hostile_text_from_a_store_or_a_server_does_nothing_on_a_screen() -> None:
    promotion = replace(STORE.promotion, reason=HOSTILE, promoted_at=HOSTILE)
    store = replace(STORE, model=HOSTILE, server_version=HOSTILE, promotions=(promotion,), command=(HOSTILE,))
    for value in (100.0, 80.0, 120.0):
        launches = tuple(
            launch(measured(value), ordinal=number, model=HOSTILE, version=HOSTILE + "2") for number in (1, 2)
        )
        check_harmless(screen(judged(launches=launches, store=store)))
    check_harmless(screen(judged(100.0, 100.0, store=replace(store, workload_digest=HOSTILE))))
    check_harmless(screen(judged(100.0, 100.0, store=replace(store, simulated_acceptance=HOSTILE))))
    reason = replace(failed().rounds[0].reasons[0], name=HOSTILE, seen=HOSTILE, advice=HOSTILE)
    check_harmless(screen(judged(launches=(launch(failed(reason=reason)),))))
    state = replace(suite(store=(STORE,), launches=(launch(measured(100.0)),)), stopped=HOSTILE, advisory=HOSTILE)
    check_harmless(screen(verdict(state)))


def check_harmless(text: str) -> None:
    assert all(line.isprintable() for line in text.splitlines())
    assert not any(line.startswith("PASS  everything") for line in text.splitlines())
    assert "good" in text  # shown, and harmless


def test_a_case_needs_its_own_level_and_variant() -> None:
    state = suite(levels=(1, 8), variants=("baseline",), launches=(launch(measured(100.0)), launch(measured(100.0))))
    assert judge_case(state, state.cases[1]).word is Word.INVALID
