"""What the user sees: the golden screens and the golden table.

The goldens are the wanted text. `python -m tests.unit.test_report` writes them anew from today's code; read the
difference as a user would before you keep it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perf import report
from perf.gate import Word
from perf.record import LaunchRecord, SuiteRecord
from perf.sample import StoredCase
from perf.validity import Reason
from perf.verdict import CaseVerdict, RelationVerdict, Verdict, judge
from tests.unit.simulated import FAILED, failed, launch, measured, relation, stored, suite

GOLDEN = Path(__file__).parent / "golden"

CAMPAIGN = "20260201-020000"
PROMOTE = f"python -m perf promote {CAMPAIGN}"
FOLDER = f".perf/campaigns/{CAMPAIGN}"

STORE = stored(2975.0, 2990.0, 2984.0, 2987.0, level=16, variant="eagle3", acceptance=2.88, reason="fast verify, #42")


def eagle3(*throughputs: float, acceptance: float = 2.88, version: str = "0.5.2") -> tuple[LaunchRecord, ...]:
    """Launches of the case that has a stored baseline of 2,984 tok/s."""
    return tuple(
        launch(
            measured(value, level=16, acceptance=acceptance * (1 + 0.0005 * number)),
            variant="eagle3",
            ordinal=number,
            version=version,
            duration_s=300.0,
        )
        for number, value in enumerate(throughputs, start=1)
    )


def case(*launches: LaunchRecord, store: tuple[StoredCase, ...] = (STORE,)) -> SuiteRecord:
    return suite(levels=(16,), variants=("eagle3",), store=store, launches=launches)


def bound(plain: tuple[float, ...], fast: tuple[float, ...], at_least: float = 1.0) -> SuiteRecord:
    """The relation `baseline >= at_least x eagle3` at saturation alone."""
    launches = [
        launch(measured(value, level=250), variant=variant, ordinal=ordinal, duration_s=300.0)
        for variant, values in (("baseline", plain), ("eagle3", fast))
        for ordinal, value in enumerate(values, start=1)
    ]
    state = suite(
        levels=(250,),
        variants=("baseline", "eagle3"),
        relations=(relation("baseline", "eagle3", at_least=at_least),),
        launches=tuple(launches),
    )
    return replace(state, cases=tuple(replace(each, selected=False) for each in state.cases))


PLAIN, FAST = (772.0, 773.0, 774.0), (353.5, 354.0, 354.5)
RESTLESS = (2910.0, 2990.0, 2952.0, 2903.0, 2981.0, 2935.0, 2968.0, 2922.0)
NOISY = (2700.0, 2990.0, 3100.0, 2880.0, 2790.0, 3050.0, 2950.0, 2840.0)

#: One screen for each file; every word an item can show is here.
SCREENS: dict[str, SuiteRecord] = {
    "pass": case(*eagle3(2981.0, 2985.0)),
    "improved": case(*eagle3(3190.0, 3201.0, version="0.5.3")),
    "regressed": case(*eagle3(2789.0, 2783.0, acceptance=2.69, version="0.5.3+g9f3e1d0.dirty")),
    "inconclusive": case(*eagle3(*RESTLESS)),
    "inconclusive-by-noise": case(*eagle3(*NOISY)),
    "inconclusive-by-budget": replace(case(*eagle3(2850.0, 3000.0)), stopped="the budget of 1 h 00 min is spent"),
    "inconclusive-by-store": case(
        *eagle3(*NOISY), store=(replace(STORE, launches=STORE.launches[:1], promotions=STORE.promotions),)
    ),
    "inconclusive-by-one-launch": case(*eagle3(2900.0), store=(replace(STORE, launches=STORE.launches[:1]),)),
    "invalid": case(launch(failed(16), variant="eagle3")),
    "invalid-by-many-reasons": case(
        launch(
            replace(
                failed(16),
                reasons=tuple(
                    Reason(name=f"reason {number}", seen=f"seen {number}", advice=f"do {number}") for number in range(8)
                ),
            ),
            variant="eagle3",
        )
    ),
    "invalid-by-budget": replace(case(), stopped="the budget of 1 h 00 min is spent"),
    "no-baseline": case(*eagle3(2981.0, 2985.0), store=()),
    "no-baseline-other-workload": case(*eagle3(2981.0), store=(replace(STORE, workload_digest="0123456789abcdef"),)),
    "advisory": replace(case(*eagle3(2789.0)), advisory='level_reached = "not required": shown, never gated'),
    "advisory-without-baseline": replace(
        case(*eagle3(2789.0), store=()), advisory="measured on a server that already ran: shown, never gated"
    ),
    "relation-pass": bound(PLAIN, FAST),
    "relation-factor": bound(PLAIN, FAST, at_least=2.5),
    "relation-inconclusive": bound((700.0, 790.0), (720.0, 745.0)),
    "relation-invalid": replace(
        bound(PLAIN, ()), launches=(*bound(PLAIN, ()).launches, launch(failed(250), variant="eagle3"))
    ),
    "violated": bound(FAST, PLAIN),
}


def only(state: SuiteRecord) -> Verdict:
    (verdict,) = judge(state)
    return verdict


def every_word() -> SuiteRecord:
    """A suite in whose table every verdict stands."""
    levels = (1, 2, 8, 16, 30, 250)
    store = tuple(
        stored(*(value * level for value in (99.8, 100.0, 100.2, 100.1)), level=level, acceptance=None)
        for level in (1, 2, 8, 16)
    )
    rates = {1: (100.0, 100.1), 2: (93.0, 93.1), 8: (120.0, 120.1), 16: (90.0, 108.0), 30: (98.0, 98.1)}
    plain = [
        launch(*(measured(values[index] * level, level=level) for level, values in rates.items()), failed(250))
        for index in (0, 1)
    ]
    fast = [
        launch(
            *(
                measured(level * value, level=level, acceptance=2.2, ttft_s=1.0)
                for level, value in ((1, 80.0 + index), (2, 110.0), (8, 100.0 + 30 * index), (16, 60.0), (30, 50.0))
            ),
            measured(3000.0, level=250),
            variant="eagle3",
        )
        for index in (0, 1)
    ]
    ordered = [replace(each, name=f"{each.variant}-{n}", ordinal=n) for n, each in enumerate((*plain, *fast), start=1)]
    relations = tuple(relation("baseline", "eagle3", level=level) for level in (2, 8, 30, 250))
    return suite(
        levels=levels, variants=("baseline", "eagle3"), store=store, relations=relations, launches=tuple(ordered)
    )


def texts() -> Iterator[tuple[str, str]]:
    """Every golden file's name and what it should hold."""
    for name, state in SCREENS.items():
        yield f"{name}.txt", report.screen(only(state), PROMOTE, FOLDER) + "\n"
    verdicts = judge(every_word())
    yield "table.txt", f"{report.table(verdicts)}\n\n{report.tally(verdicts)}\n"
    yield "table.md", report.table(verdicts, form="github") + "\n"


@pytest.mark.parametrize(("name", "text"), [pytest.param(name, text, id=name) for name, text in texts()])
def test_what_the_user_sees_is_the_golden_text(name: str, text: str) -> None:
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_no_golden_text_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {name for name, _ in texts()}


def test_every_verdict_has_a_golden_screen_and_stands_in_the_golden_table() -> None:
    assert {only(state).word for state in SCREENS.values()} == set(Word)
    assert {verdict.word for verdict in judge(every_word())} == set(Word)


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_begins_with_its_word_and_every_line_of_it_is_harmless(name: str) -> None:
    verdict = only(SCREENS[name])
    lines = report.screen(verdict, PROMOTE, FOLDER).splitlines()
    assert lines[0].startswith(f"{report.word(verdict)}  ")
    assert all(line.isprintable() and line == line.rstrip() for line in lines)


@pytest.mark.parametrize("name", SCREENS)
def test_what_fails_ends_with_what_to_do(name: str) -> None:
    verdict = only(SCREENS[name])
    if report.passes(verdict):
        return
    text = report.screen(verdict, PROMOTE, FOLDER)
    assert any(
        hint in text for hint in ("python -m perf promote", "server.log", "--perf-", "[[expect]]", "quiet the rig")
    )


def test_a_percentage_is_shown_only_where_it_means_something() -> None:
    undecided = report.screen(only(SCREENS["inconclusive"]), PROMOTE, FOLDER)
    assert "%" not in next(line for line in undecided.splitlines() if "output throughput" in line)
    table = report.table(judge(every_word()))
    cells = {line.split()[0]: line for line in table.splitlines()[2:]}
    assert " ~ " in cells["baseline/c001"]
    assert " ? " in cells["baseline/c016"]
    assert "-7.0 %" in cells["baseline/c002"]


def test_only_pass_improved_and_advisory_let_an_item_pass() -> None:
    passing = {report.word(verdict) for state in SCREENS.values() if report.passes(verdict := only(state))}
    assert passing == {"PASS", "IMPROVED", "ADVISORY"}


def test_an_advisory_case_that_cannot_be_believed_fails_all_the_same() -> None:
    verdict = only(replace(SCREENS["invalid"], advisory="shown, never gated"))
    assert report.word(verdict) == "INVALID"
    assert not report.passes(verdict)


def test_nothing_advisory_is_offered_for_promotion() -> None:
    for state in SCREENS.values():
        text = report.screen(only(replace(state, advisory="shown, never gated")), PROMOTE, FOLDER)
        assert "python -m perf promote" not in text


def test_a_tally_counts_words_and_says_the_worst() -> None:
    verdicts = [only(SCREENS[name]) for name in ("pass", "regressed", "pass", "advisory", "improved")]
    assert report.tally(verdicts) == "1 ADVISORY, 1 IMPROVED, 2 PASS, 1 REGRESSED; overall REGRESSED"
    assert report.tally(verdicts[:1] * 3) == "3 PASS; overall PASS"
    assert report.tally([verdicts[3]]) == "1 ADVISORY"


def test_the_commands_of_a_screen_name_the_campaign_and_the_case() -> None:
    verdict = only(SCREENS["regressed"])
    assert isinstance(verdict, CaseVerdict)
    assert f'{PROMOTE} --case "{verdict.id}" --reason "why"' in report.screen(verdict, PROMOTE, FOLDER)
    assert f"{FOLDER}/eagle3-2/server.log" in report.screen(verdict, PROMOTE, FOLDER)
    violated = only(SCREENS["violated"])
    assert isinstance(violated, RelationVerdict)
    assert f"{FOLDER}/baseline-3/server.log" in report.screen(violated, PROMOTE, FOLDER)


def test_the_reason_of_a_failure_is_told_with_its_numbers() -> None:
    assert FAILED.seen in report.screen(only(SCREENS["invalid"]), PROMOTE, FOLDER)


def write_goldens() -> None:
    """Write every golden file anew."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, text in texts():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_goldens()
