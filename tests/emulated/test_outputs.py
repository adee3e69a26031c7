"""A draft path that says something else does not pass, however fast it is."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.emulated.inner import EMULATOR, Desk, Run

#: Few, quick requests: what is said is the matter.
QUICK = "output_tokens = 12\nmin_requests = 1\nrequests_per_stream = 1\nwarmup_requests = 0"
FAST = (*EMULATOR, "--step-ms", "1:2", "--prefill-ms", "2", "--prefill-token-ms", "0")
EAGLE3 = (*FAST, "--speculative-algorithm", "EAGLE3", "--acceptance", "2.0")

#: How strangers say what they say, which is otherwise the same word again and again. The hostile one says a
#: terminal sequence, a secret of its environment, and more halves of surrogate pairs than are kept of an output.
ODD = {
    "wrong": "def said(tokens): return 'word ' * 9 + 'other ' * (tokens - 9)",
    "once": "ANSWERS = iter(range(99))\ndef said(tokens): return 'word ' * tokens if next(ANSWERS) else 'other'",
    "fickle": "def said(tokens): return f'{time.monotonic_ns()} ' * tokens",
    "mute": "def said(tokens): return ''",
    "broken": "def said(tokens): return None + 'an error that closes the connection'",
    "dead": "sys.exit('no memory')",
    "short": "CHANGED = {'usage': {'completion_tokens': 7}}",
    "aborted": "CHANGED = {'choices': [{'message': {'content': 'word '}, 'finish_reason': 'abort'}]}",
    "stopped": "CHANGED = {'choices': [{'message': {'content': 'word '}, 'finish_reason': 'stop'}]}",
    "failed": "CHANGED = {'choices': [{'message': {'content': 'word '}, 'finish_reason': 'error'}], "
    "'usage': {'completion_tokens': 12}}",
    "long": "def said(tokens): return 'word ' * 1000",
    "longer": "def said(tokens): return 'word ' * 1000 + 'other'",
    "hostile": "def said(tokens): return '\\x1b[31m' + os.environ['SECRET_KEY'] + '\\ud800' * 5000",
}


#: What an answer has otherwise, where anything.
CHANGING = """
CHANGED = {}
class Handler(Handler):
    def answer(self, status, value):
        super().answer(status, value | (CHANGED if "choices" in value else {}))
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def suite_of(desk: Desk, variants: Mapping[str, tuple[str, ...]]) -> Path:
    names = ", ".join(f'"{name}"' for name in variants)
    more = f"[[expect]]\nsame_output = [{names}]"
    return desk.suite(variants, name="said", levels=(1,), workload=QUICK, more=more)


def test_speculation_that_changes_no_word_passes_and_check_agrees(desk: Desk) -> None:
    suite = suite_of(desk, {"baseline": FAST, "eagle3": EAGLE3})
    output = "said/expect/same-output-of-baseline-and-eagle3"
    run = desk.measure(suite, "--perf-max-launches=2")
    assert run.words().keys() == {"said/baseline/c001", "said/eagle3/c001", output}
    assert run.item(output).word == "PASS"
    assert run.item(output).properties["same_output"] == "1.000000"
    assert "8 of 8 alike" in run.out
    (measured,) = desk.campaign().suites
    # Asked in the first launches that measure, the yardstick twice.
    assert [each.variant for each in measured.launches[:2]] == ["baseline", "eagle3"]
    said = [each.outputs for each in measured.launches]
    assert not any(said[2:])
    assert said[0] is not None
    assert said[1] is not None
    assert said[0].texts == said[1].texts
    assert said[0].again == said[0].digests == said[1].digests
    assert said[1].again == ()
    assert len(set(said[0].prompts)) == 8
    assert len(set(said[0].texts)) > 4  # its vocabulary is small
    assert said[0].tokens == 12
    assert "8 of 8 alike" in desk.perf("check").out


def test_what_a_selected_case_launches_is_not_launched_again(desk: Desk) -> None:
    suite = suite_of(desk, {"baseline": FAST, "eagle3": EAGLE3})
    run = desk.measure(suite, "-k", "output or /eagle3/", "--perf-max-launches=1")
    assert run.words()["said/expect/same-output-of-baseline-and-eagle3"] == "PASS"
    (measured,) = desk.campaign().suites
    assert [(each.name, len(each.measurements)) for each in measured.launches] == [("eagle3-1", 1), ("baseline-1", 0)]


def test_what_is_launched_for_its_words_alone_is_in_the_budget_too(desk: Desk) -> None:
    suite = suite_of(desk, {"baseline": FAST, "eagle3": EAGLE3})
    run = desk.measure(suite, "-k", "output", "--perf-budget-minutes=0.001")
    output = run.item("said/expect/same-output-of-baseline-and-eagle3")
    assert output.word == "INVALID"
    assert "not measured: eagle3 was not asked for its output" in output.message
    assert "give the campaign more minutes with --perf-budget-minutes" in output.message
    assert "eagle3-1: not launched: the budget of 0 s is spent" in run.screen
    (measured,) = desk.campaign().suites
    assert [each.name for each in measured.launches] == ["baseline-1"]


def test_a_secret_of_one_variant_that_both_say_is_no_difference(desk: Desk) -> None:
    said = desk.stranger("def said(tokens): return 'tiger-and-lion-7342 ' * tokens")
    more = '[variants.keyed]\nextends = "plain"\nenv = { SECRET_KEY = "tiger-and-lion-7342" }\n\n'
    suite = desk.suite(
        {"plain": said},
        name="said",
        levels=(1,),
        workload=QUICK,
        more=more + '[[expect]]\nsame_output = ["plain", "keyed"]',
    )
    run = desk.measure(suite, "-k", "output")
    assert run.words() == {"said/expect/same-output-of-plain-and-keyed": "PASS"}
    (measured,) = desk.campaign().suites
    plain, keyed = (each.outputs for each in measured.launches)
    assert plain is not None
    assert keyed is not None
    assert plain.texts != keyed.texts
    assert not any("tiger" in text for text in keyed.texts)


def test_nobody_is_asked_where_the_expectation_is_not_selected(desk: Desk) -> None:
    suite = suite_of(desk, {"baseline": FAST, "eagle3": EAGLE3})
    desk.measure(suite, "-k", "/eagle3/", "--perf-max-launches=1")
    (measured,) = desk.campaign().suites
    assert [(each.name, each.outputs) for each in measured.launches] == [("eagle3-1", None)]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Run]:
    """One session of servers that say odd things, each beside a plain one."""
    desk = Desk(tmp_path_factory.mktemp("odd"))
    variants = {"plain": desk.stranger()}
    variants |= {name: desk.stranger(CHANGING + words, f"{name}.py") for name, words in ODD.items()}
    expected = [("plain", "wrong", 1.0), ("plain", "once", 0.8), ("plain", "dead", 1.0), ("plain", "hostile", 1.0)]
    expected += [("plain", name, 1.0) for name in ("short", "aborted", "stopped", "failed")] + [("long", "longer", 1.0)]
    expected += [(name, "plain", 1.0) for name in ("fickle", "mute", "broken")]
    more = "\n".join(
        f'[[expect]]\nsame_output = ["{first}", "{second}"]\nat_least = {share}' for first, second, share in expected
    )
    key = 'env = { SECRET_KEY = "tiger-and-lion-7342" }'
    suite = desk.suite(variants, name="said", levels=(1,), workload=QUICK, more=more, variant=key)
    return desk, desk.measure(suite, "-k", "output")


@pytest.mark.parametrize(
    ("of", "word", "said"),
    [
        ("plain-and-wrong", "VIOLATED", "says what plain says: wrong in 0 of 8 prompts; expected in all"),
        ("plain-and-wrong", "VIOLATED", "from character 46 on"),
        ("plain-and-once", "PASS", ""),
        ("plain-and-dead", "INVALID", "server did not start: dead: "),
        ("plain-and-dead", "INVALID", "no memory"),
        ("fickle-and-plain", "INVALID", "output not repeatable: "),
        ("mute-and-plain", "INVALID", "and anything at all, to 0 of 8 prompts"),
        ("broken-and-plain", "INVALID", "no output: broken: prompt 1 of 8, 'implement-ttl-lru-cache': "),
        ("plain-and-short", "INVALID", "no output: short: prompt 1 of 8, 'implement-ttl-lru-cache': 7 tokens of 12, "),
        ("plain-and-aborted", "INVALID", "finish_reason abort"),
        ("plain-and-stopped", "INVALID", "- tokens of 12, finish_reason stop"),
        ("plain-and-failed", "INVALID", "12 tokens of 12, finish_reason error"),
        ("long-and-longer", "VIOLATED", "from character 4097 on"),
        ("plain-and-hostile", "VIOLATED", "hostile in 0 of 8 prompts"),
    ],
)
def test_what_says_something_else_is_violated_and_what_says_nothing_invalid(
    odd: tuple[Desk, Run], of: str, word: str, said: str
) -> None:
    """However fast it is; in the words of the failure."""
    item = odd[1].item(f"said/expect/same-output-of-{of}")
    assert item.word == word
    assert item.outcome == ("passed" if word == "PASS" else "failure")
    assert said in item.message


def test_selected_alone_every_server_is_launched_once_for_its_words_and_check_agrees(odd: tuple[Desk, Run]) -> None:
    desk, run = odd
    assert run.code == 1
    (measured,) = desk.campaign().suites
    assert sorted(each.name for each in measured.launches) == sorted(f"{name}-1" for name in ("plain", *ODD))
    assert {each.measurements for each in measured.launches} == {()}
    check = desk.perf("check")
    assert check.code == 1
    for id, word in run.words().items():
        assert re.search(rf"{id.removeprefix('said/')} .* {word}\n", check.out)
    assert "7 of 8 alike" in check.out


def test_what_a_server_says_is_kept_without_its_key_and_shown_without_its_sequences(odd: tuple[Desk, Run]) -> None:
    desk, run = odd
    kept = (desk.folders()[0] / "campaign.json").read_text()
    shown = run.item("said/expect/same-output-of-plain-and-hostile").message
    assert "[31m" not in shown
    for text in (run.screen, shown, kept):
        assert "tiger-and-lion-7342" not in text
        assert "\x1b[31m" not in text


def test_nothing_of_it_is_promoted(odd: tuple[Desk, Run]) -> None:
    promoted = odd[0].perf("promote", "--reason", "why")
    assert promoted.code == 1
    assert "no case of campaign" in promoted.error
    assert not odd[0].baselines.exists()


def test_a_server_that_already_ran_is_one_and_cannot_be_compared(desk: Desk) -> None:
    suite = suite_of(desk, {"baseline": FAST, "eagle3": EAGLE3})
    run = desk.measure(suite, "-k", "output", "--perf-base-url=http://127.0.0.1:9")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "select exactly one variant with -k, seen said/baseline, said/eagle3" in run.screen
