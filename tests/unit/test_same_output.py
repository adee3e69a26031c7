"""What variants say at temperature 0 is what the first of them says, or it is told where they part."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.compact import ADAPTER, compact
from perf.compare import compared
from perf.files import to_json
from perf.gate import Word
from perf.measured import SIMULATED_ACCEPTANCE
from perf.record import LaunchRecord, SuiteRecord, no_outputs
from perf.report import markdown, properties, screen
from perf.same_output import Agreement, Difference, SameOutputVerdict
from perf.same_output import judge as judge_output
from perf.statements import verdict_table
from perf.validity import Reason
from perf.verdict import CaseVerdict, judge
from tests.unit.simulated import campaign, launch, measured, same_output, saying, suite

TEXTS = ("one", "two", "three", "four")


def plain(*texts: str, again: tuple[str, ...] | None = None) -> LaunchRecord:
    """The yardstick, which says the same twice where nothing else is given."""
    return saying(launch(), *(texts or TEXTS), again=again or texts or TEXTS)


def draft(*texts: str, variant: str = "eagle3", env: dict[str, str] | None = None) -> LaunchRecord:
    return saying(launch(variant=variant, env=env), *(texts or TEXTS))


def state(*launches: LaunchRecord, at_least: float = 1.0) -> SuiteRecord:
    """An expectation of all variants that were launched."""
    names = tuple(dict.fromkeys(each.variant for each in launches)) if len(launches) > 1 else ("baseline", "eagle3")
    expected = same_output(*names, at_least=at_least)
    whole = suite(variants=names, launches=launches)
    cases = tuple(replace(each, selected=False) for each in whole.cases)
    return replace(whole, cases=cases, same_outputs=(expected,))


def judged(*launches: LaunchRecord, at_least: float = 1.0) -> SameOutputVerdict:
    (verdict,) = judge(state(*launches, at_least=at_least))
    assert isinstance(verdict, SameOutputVerdict)
    return verdict


def test_variants_that_say_the_same_pass() -> None:
    found = judged(plain(), draft(), draft(variant="ngram"))
    assert found.word is Word.PASS
    assert found.agreements == (
        Agreement(variant="eagle3", alike=4, of=4, first=None),
        Agreement(variant="ngram", alike=4, of=4, first=None),
    )
    assert (found.reasons, found.asked, found.tokens) == ((), 4, 64)


def test_one_other_word_is_violated_and_told_with_its_place() -> None:
    words = "the quick brown fox jumps over "
    found = judged(plain("a", words + "the lazy dog"), draft("a", words + "a lazy dog"))
    assert found.word is Word.VIOLATED
    (agreement,) = found.agreements
    assert (agreement.alike, agreement.of) == (1, 2)
    assert agreement.first is not None
    assert (agreement.first.prompt, agreement.first.at) == ("prompt-2", 31)
    assert agreement.first.yardstick == " fox jumps over the lazy dog"
    assert agreement.first.other == " fox jumps over a lazy dog"
    assert found.logs == ("baseline-1", "eagle3-1")


def test_what_was_said_counts_and_not_what_is_kept_of_it() -> None:
    """Kept are beginnings, with each variant's own secrets replaced."""
    one, other = plain("a word", "b"), draft("a word", "b")
    assert other.outputs is not None
    longer = replace(other, outputs=replace(other.outputs, digests=("0" * 32, other.outputs.digests[1])))
    found = judged(one, longer)
    assert found.word is Word.VIOLATED
    assert found.agreements[0].first == Difference(prompt="prompt-1", at=6, yardstick="a word", other="a word")
    hidden = replace(other, outputs=replace(other.outputs, texts=("a [secret]", "b")))
    assert judged(one, hidden).word is Word.PASS


def test_an_output_that_ends_too_soon_or_goes_on_is_another_one() -> None:
    for said in ("thre", "three and more"):
        found = judged(plain(), draft("one", "two", said, "four"))
        assert found.word is Word.VIOLATED
        assert found.agreements[0].first is not None
        assert found.agreements[0].first.at == min(len(said), len("three"))


@pytest.mark.parametrize(("at_least", "word"), [(0.75, Word.PASS), (0.76, Word.VIOLATED), (1.0, Word.VIOLATED)])
def test_near_ties_are_allowed_up_to_the_share_that_is_expected(at_least: float, word: Word) -> None:
    assert judged(plain(), draft("one", "two", "three", "five"), at_least=at_least).word is word


def test_each_variant_is_held_against_the_first_and_one_that_differs_is_enough() -> None:
    found = judged(plain(), draft(), draft("one", "two", "three", "five", variant="ngram"))
    assert found.word is Word.VIOLATED
    assert [(each.variant, each.alike) for each in found.agreements] == [("eagle3", 4), ("ngram", 3)]
    assert found.logs == ("baseline-1", "ngram-1")


def test_a_prompt_to_which_the_yardstick_says_two_things_is_left_out() -> None:
    found = judged(plain(again=("one", "two", "three", "vier")), draft("one", "two", "three", "five"))
    assert found.word is Word.PASS
    assert (found.agreements[0].alike, found.agreements[0].of, found.asked) == (3, 3, 4)
    assert "1 of 4 prompts, to which baseline says two things" in screen(found, "promote", "folder")


def test_a_yardstick_that_agrees_with_itself_on_three_of_four_prompts_is_one_and_on_half_is_none() -> None:
    found = judged(plain(again=("eins", "two", "three", "four")), draft("eins", "two", "three", "four"))
    assert (found.word, found.agreements[0].of) == (Word.PASS, 3)
    found = judged(plain(again=("eins", "zwei", "three", "four")), draft("eins", "zwei", "three", "four"))
    assert found.word is Word.INVALID


def test_a_yardstick_that_mostly_disagrees_with_itself_is_none() -> None:
    found = judged(plain(again=("eins", "zwei", "drei", "four")), draft("eins", "zwei", "drei", "four"))
    assert found.word is Word.INVALID
    assert [each.name for each in found.reasons] == ["output not repeatable"]
    assert "baseline said the same, and anything at all, to 1 of 4 prompts" in found.reasons[0].seen
    assert found.agreements == ()


def test_servers_that_say_nothing_do_not_agree() -> None:
    assert judged(plain("", "", "", "four"), draft("", "", "", "four")).word is Word.INVALID


def test_a_yardstick_that_was_not_asked_again_is_none() -> None:
    assert judged(saying(launch(), *TEXTS), draft()).word is Word.INVALID


NO_ANSWER = Reason(name="no output", seen="prompt 3 of 8: HTTP 500", advice="read the server log")


@pytest.mark.parametrize("silent", [0, 1])
def test_what_was_not_answered_is_invalid_and_names_who_was_silent(silent: int) -> None:
    launches = [plain(), draft()]
    launches[silent] = replace(launches[silent], outputs=no_outputs(NO_ANSWER))
    found = judged(*launches)
    assert found.word is Word.INVALID
    variant = launches[silent].variant
    assert found.reasons == (replace(NO_ANSWER, seen=f"{variant}: {NO_ANSWER.seen}"),)
    assert found.logs == (f"{variant}-1",)


def test_a_wrong_draft_is_not_hidden_by_a_third_variant_that_failed() -> None:
    broken = replace(draft(variant="ngram"), outputs=no_outputs(NO_ANSWER))
    found = judged(plain(), draft("one", "two", "three", "five"), broken)
    assert found.word is Word.VIOLATED
    shown = screen(found, "promote", "folder")
    assert "eagle3 in 3 of 4 prompts" in shown
    assert "no output: ngram: prompt 3 of 8: HTTP 500" in shown


def test_a_variant_that_was_never_launched_is_not_measured() -> None:
    found = judged(plain())
    assert (found.word, found.reasons[0].name) == (Word.INVALID, "not measured")
    assert found.reasons[0].seen == "eagle3 was not asked for its output"
    stopped = replace(state(plain()), stopped="the budget of 1 min 00 s is spent")
    (verdict,) = judge(stopped)
    assert verdict.reasons[0].seen == "the budget of 1 min 00 s is spent"


def test_a_suite_that_was_not_measured_to_its_end_proves_nothing() -> None:
    (verdict,) = judge(replace(state(plain(), draft()), problem="needs 1 GPUs"))
    assert (verdict.word, verdict.reasons[0].seen) == (Word.INVALID, "needs 1 GPUs")


def test_only_the_first_launch_of_the_candidate_is_compared() -> None:
    reference = replace(saying(launch(arm="reference"), "x", "x", "x", "x"))
    later = saying(launch(variant="eagle3", ordinal=2), "y", "y", "y", "y")
    whole = state(plain(), draft())
    whole = replace(whole, launches=(reference, *whole.launches, later))
    assert judge_output(whole, whole.same_outputs[0]).word is Word.PASS


def test_simulated_acceptance_says_what_no_model_said() -> None:
    found = judged(plain(), draft("x", "x", "x", "x", env={SIMULATED_ACCEPTANCE: "3"}))
    assert found.word is Word.INVALID
    assert found.reasons[0].name == "acceptance is simulated"
    assert "SGLANG_SIMULATE_ACC_LEN is 3 in eagle3" in found.reasons[0].seen


def test_what_is_advisory_is_shown_and_never_gated() -> None:
    (verdict,) = judge(replace(state(plain(), draft("x", "x", "x", "x")), advisory="shown, never gated"))
    assert screen(verdict, "promote", "folder").startswith("ADVISORY  ")


def test_machines_are_told_the_smallest_share() -> None:
    found = judged(plain(), draft(), draft("one", "two", "three", "five", variant="ngram"))
    assert properties(found) == (("verdict", "VIOLATED"), ("same_output", "0.750000"))
    assert properties(judged(plain())) == (("verdict", "INVALID"),)


def test_another_output_is_worse_than_any_loss_in_a_summary() -> None:
    text = markdown(campaign(state(plain(), draft("x", "x", "x", "x"))), "promote", "folder")
    assert "Worst: `sim/expect/same-output-of-baseline-and-eagle3`, another output." in text
    assert "| 0 of 4 alike |" in text


def test_a_record_has_the_counts_and_none_of_the_words() -> None:
    record = compact(campaign(state(plain(), draft("one", "two", "three", "five"))))
    (found,) = record.suites[0].same_outputs
    assert (found.verdict, found.variants, found.at_least) == ("VIOLATED", ("baseline", "eagle3"), 1.0)
    assert [(each.variant, each.alike, each.of) for each in found.agreements] == [("eagle3", 3, 4)]
    text = to_json(asdict(record))
    assert "five" not in text
    assert ADAPTER.validate_json(text) == record
    page = verdict_table(record)
    assert "expect/same-output-of-baseline-and-eagle3: eagle3 is like baseline in 3 of 4 prompts" in page


def test_two_campaigns_are_compared_by_their_cases_alone() -> None:
    taken = (plain(), draft("x", "x", "x", "x"))
    whole = state(*(replace(each, measurements=(measured(100.0),)) for each in taken))
    night = campaign(replace(whole, cases=tuple(replace(each, selected=True) for each in whole.cases)))
    (found,) = compared(night, replace(night, id="20260301-000000")).suites
    assert {type(verdict) for verdict in judge(found)} == {CaseVerdict}


WORDS = st.text(st.sampled_from("ab \n\x1b\u202e\ud800é`|<"), max_size=6)


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=9), st.sampled_from((0.01, 0.5, 0.75, 1.0)))
def test_whatever_is_said_the_counts_add_up_and_the_screen_is_harmless(
    said: list[tuple[str, str, str]], at_least: float
) -> None:
    texts, again, others = zip(*said, strict=True)
    found = judged(plain(*texts, again=again), draft(*others), at_least=at_least)
    steady = [(text, other) for text, second, other in said if text and text == second]
    if 2 * len(steady) < len(said):
        assert found.word is Word.INVALID
    else:
        alike = sum(text == other for text, other in steady)
        (agreement,) = found.agreements
        assert (agreement.alike, agreement.of) == (alike, len(steady))
        assert (found.word is Word.PASS) is (alike / len(steady) >= at_least)
        assert (agreement.first is None) is (alike == len(steady))
    assert all(line.isprintable() for line in screen(found, "promote", "folder").splitlines())


def test_a_case_beside_it_is_judged_as_ever() -> None:
    whole = state(replace(plain(), measurements=(measured(100.0),)), draft())
    cases = tuple(replace(each, selected=each.variant == "baseline") for each in whole.cases)
    words = [each.word for each in judge(replace(whole, cases=cases))]
    assert words == [Word.NO_BASELINE, Word.PASS]
