"""What the user sees: the golden screens and the golden table.

The goldens are the wanted text. `python -m tests.unit.test_report` writes them anew from today's code; read the
difference as a user would before you keep it.
"""

import math
import random
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf import report, simulation
from perf.gate import WORST_FIRST, Word
from perf.record import Arm, Campaign, LaunchRecord, SuiteRecord
from perf.rig import Gpu
from perf.sample import Build, StoredCase
from perf.validity import Reason
from perf.verdict import CaseVerdict, RelationVerdict, Verdict, judge
from tests.unit import simulated
from tests.unit.simulated import (
    FAILED,
    RIG,
    campaign,
    failed,
    launch,
    measured,
    relation,
    same_output,
    saying,
    stored,
    stored_crossover,
    suite,
)

GOLDEN = Path(__file__).parent / "golden"

CAMPAIGN = "20260201-020000"
PROMOTE = f"python -m perf promote {CAMPAIGN}"
FOLDER = f".perf/campaigns/{CAMPAIGN}"

ARMS: tuple[Arm, Arm] = ("reference", "candidate")

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


def case(
    *launches: LaunchRecord, store: tuple[StoredCase, ...] = (STORE,), reference: bool = False, max_launches: int = 8
) -> SuiteRecord:
    return suite(
        levels=(16,),
        variants=("eagle3",),
        store=store,
        launches=launches,
        reference=reference,
        max_launches=max_launches,
    )


#: The builds of both arms of a night.
PATCHED = Build(
    sglang="0.5.3",
    torch="2.9.0",
    cuda=None,
    commit="9f3e1d0c21ab7788",
    dirty="5d41402abc4b2a76",
    kernels=(),
    packages="0" * 8,
)
UNPATCHED = replace(PATCHED, sglang="0.5.2", commit="1a2b3c4d5e6f7a8b", dirty=None)


def pairs(
    reference: tuple[float, ...], candidate: tuple[float, ...], *, builds: tuple[Build, Build] = (UNPATCHED, PATCHED)
) -> SuiteRecord:
    """A night of the case on which both arms ran, back to back."""
    launches = [
        replace(
            each, arm=arm, build=build, name=each.name.replace("-", "+reference-") if arm == "reference" else each.name
        )
        for pair in zip(eagle3(*reference), eagle3(*candidate), strict=True)
        for arm, build, each in zip(ARMS, builds, pair, strict=True)
    ]
    return case(*launches, reference=True)


def nights(rate: float, level: int, *, cv: float, count: int = 8) -> StoredCase:
    """A stored baseline, every night of 2 launches; its mean is `rate`, and its launches vary by `cv`."""
    luck = random.Random(level)
    logs = [luck.gauss(0.0, 1.0) for _ in range(count)]
    mean, spread = statistics.mean(logs), statistics.stdev(logs)
    values = [rate * math.exp(cv * (log - mean) / spread) for log in logs]
    found = stored(*values, level=level)
    ran = tuple(
        replace(each, campaign=f"202601{1 + number // 2:02}-000000", launch=f"baseline-{1 + number % 2}")
        for number, each in enumerate(found.launches)
    )
    return replace(found, launches=ran)


def curve(
    cv: Mapping[int, float], *launches: tuple[float, ...], reference: bool = True, stored_launches: int = 8
) -> SuiteRecord:
    """A night over several levels, each with its own noise in the store; of each launch, tok/s over the stored."""
    return suite(
        levels=tuple(cv),
        store=tuple(nights(100.0 * level, level, cv=noise, count=stored_launches) for level, noise in cv.items()),
        launches=tuple(
            launch(
                *(measured(100.0 * level * value, level=level) for level, value in zip(cv, values, strict=True)),
                ordinal=number,
                duration_s=600.0,
            )
            for number, values in enumerate(launches, start=1)
        ),
        reference=reference,
        max_launches=len(launches),
    )


def with_reference(state: SuiteRecord, *, level: int) -> SuiteRecord:
    """The night with launches of the reference build between the others, of one level that did not change."""
    launches = [
        each
        for candidate in state.launches
        for each in (
            launch(measured(100.0 * level, level=level), arm="reference", ordinal=candidate.ordinal),
            candidate,
        )
    ]
    return replace(state, launches=tuple(launches), reference=True)


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


def saturated() -> SuiteRecord:
    """The same relation where the store shows how both variants saturate."""
    levels = (1, 2, 5, 10, 30, 70, 250)
    store = tuple(
        stored(*(luck * rate for luck in (0.998, 1.0, 1.002)), level=level, variant=variant)
        for variant, plateau, half in (("baseline", 773.0, 6.0), ("eagle3", 354.0, 3.0))
        for level in levels
        for rate in (plateau / (1 + (half / level) ** 3) ** (1 / 3),)
    )
    bound = relation("baseline", "eagle3")
    launches = tuple(
        launch(measured(rate, level=30), variant=variant, duration_s=300.0)
        for variant, rate in (("baseline", 770.0), ("eagle3", 353.0))
    )
    state = suite(levels=levels, variants=("baseline", "eagle3"), store=store, relations=(bound,), launches=launches)
    return replace(state, cases=tuple(replace(each, selected=False) for each in state.cases))


#: What the plain server said to eight prompts, and what a wrong draft path said to the last of them.
SAID = (
    *(f"answer {number} to a prompt" for number in range(1, 8)),
    "```python\ndef mean(values):\n    return sum(values)",
)
WRONG = "```python\ndef mean(values):\n    return max(values)"


def outputs(*others: str, at_least: float = 1.0, again: tuple[str, ...] = SAID) -> SuiteRecord:
    """The same output expected of EAGLE-3, which says the `others` to the last prompts."""
    said = (*SAID[: len(SAID) - len(others)], *others)
    launches = saying(launch(), *SAID, again=again), saying(launch(variant="eagle3"), *said)
    state = suite(variants=("baseline", "eagle3"), launches=launches)
    cases = tuple(replace(each, selected=False) for each in state.cases)
    return replace(state, cases=cases, same_outputs=(same_output("baseline", "eagle3", at_least=at_least),))


#: How many times as fast as plain decoding speculation was when the crossover was stored.
LEADS = {1: 1.30, 4: 1.12, 8: 0.94, 32: 0.60}


def crossing(leads: Mapping[int, float], *, spread: float = 0.002, is_stored: bool = True) -> SuiteRecord:
    """A crossover alone, of four launches of each variant."""
    launches = tuple(
        launch(
            *(
                measured(
                    90.0 * level * (lead if variant == "eagle3" else 1.0) * (1 + spread * (-1) ** (number // 2)),
                    level=level,
                    acceptance=2.9 if variant == "eagle3" else None,
                )
                for level, lead in leads.items()
            ),
            variant=variant,
            ordinal=number,
            duration_s=300.0,
        )
        for number in range(1, 5)
        for variant in ("eagle3", "baseline")
    )
    was = stored_crossover("eagle3", "baseline", LEADS) if is_stored else None
    state = suite(
        levels=tuple(leads),
        variants=("eagle3", "baseline"),
        crossovers=(simulated.crossing("eagle3", "baseline", was),),
        launches=launches,
    )
    return replace(state, cases=tuple(replace(each, selected=False) for each in state.cases))


LEVELS = (1, 2, 4, 8, 16)
WOBBLE = (1.002, 0.999, 1.001, 1.0, 0.998, 1.003)


def launched(*rates: float, times: int = 2) -> tuple[tuple[float, ...], ...]:
    """Launches of a curve that differ a little from each other."""
    return tuple(
        tuple(rate * WOBBLE[(number + 3 * place) % len(WOBBLE)] for place, rate in enumerate(rates))
        for number in range(times)
    )


DRIFTED = replace(
    STORE,
    promotions=(
        *(
            replace(STORE.promotion, promoted_at=f"2025-{month:02}-01T00:00:00+00:00", throughput=rate, comparable=True)
            for month, rate in ((6, 3110.0), (9, 3040.0))
        ),
        replace(STORE.promotion, comparable=True),
    ),
)
QUIET = launched(*(1.0,) * len(LEVELS))
PLAIN, FAST = (772.0, 773.0, 774.0), (353.5, 354.0, 354.5)
RESTLESS = (2910.0, 2990.0, 2952.0, 2903.0, 2981.0, 2935.0, 2968.0, 2922.0)
NOISY = (2700.0, 2990.0, 3100.0, 2880.0, 2790.0, 3050.0, 2950.0, 2840.0)

#: One screen for each file; every word an item can show is here.
SCREENS: dict[str, SuiteRecord] = {
    "pass": case(*eagle3(2981.0, 2985.0)),
    "pass-beyond-the-margin": curve(dict.fromkeys(LEVELS, 0.01), *QUIET),
    "pass-against-itself": pairs((2984.0, 2990.0), (2986.0, 2982.0), builds=(PATCHED, PATCHED)),
    "improved": case(*eagle3(3190.0, 3201.0, 3195.0, version="0.5.3")),
    "regressed": case(*eagle3(2789.0, 2783.0, 2786.0, acceptance=2.69, version="0.5.3+g9f3e1d0.dirty")),
    "regressed-by-reference": pairs((2984.0, 2990.0, 2979.0), (2789.0, 2783.0, 2786.0)),
    "regressed-with-another-level": with_reference(
        curve(dict.fromkeys(LEVELS, 0.006), *launched(*(0.95,) * len(LEVELS), times=4)), level=2
    ),
    "regressed-after-drift": case(*eagle3(2789.0, 2783.0, 2786.0), store=(DRIFTED,)),
    "inconclusive": curve(dict.fromkeys(LEVELS, 0.02), *QUIET),
    "inconclusive-by-another-level": curve(
        dict.fromkeys(LEVELS, 0.008) | {2: 0.02}, *launched(0.985, 0.97, 1.0, 1.0, 1.0, times=4)
    ),
    "inconclusive-by-the-night": curve(
        dict.fromkeys(LEVELS, 0.01), *launched(*(0.97,) * len(LEVELS), times=8), reference=False
    ),
    "inconclusive-by-noise": case(*eagle3(*NOISY)),
    "inconclusive-by-budget": replace(
        curve(dict.fromkeys(LEVELS, 0.02), *QUIET), stopped="the budget of 1 h 00 min is spent"
    ),
    "inconclusive-exhausted": replace(case(*eagle3(*RESTLESS * 3)), max_launches=200),
    "inconclusive-set-aside": replace(
        curve({1: 0.07} | dict.fromkeys(LEVELS[1:], 0.006), *QUIET, stored_launches=24), max_launches=8
    ),
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
    "relation-saturated": saturated(),
    "output-pass": outputs(WRONG, at_least=0.75, again=("another answer", *SAID[1:])),
    "output-violated": outputs(WRONG),
    "output-invalid": outputs(again=("another answer",) * 5 + SAID[5:]),
    "crossover-pass": crossing({1: 1.29, 4: 1.13, 8: 0.95, 32: 0.62}),
    "crossover-moved-up": crossing({1: 1.30, 4: 1.35, 8: 1.4, 32: 0.62}),
    "crossover-violated": crossing({1: 1.21, 4: 0.93, 8: 0.80, 32: 0.55}),
    "crossover-inconclusive": crossing({1: 1.29, 4: 0.99, 8: 0.95, 32: 0.62}, spread=0.02),
    "crossover-no-baseline": crossing(LEADS, is_stored=False),
    "crossover-from-the-lowest-level-on": crossing({1: 80.9 / 92.7, 8: 0.7, 32: 354 / 773}, is_stored=False),
    "crossover-invalid": replace(
        crossing(LEADS),
        launches=(*crossing(LEADS).launches, launch(failed(8), variant="eagle3", ordinal=5)),
    ),
}


def only(state: SuiteRecord) -> Verdict:
    """The verdict that is shown: the first."""
    return judge(state)[0]


def every_word() -> SuiteRecord:
    """A suite in whose table every verdict stands; two levels were also launched with the reference build."""
    levels = (1, 2, 8, 16, 30, 250)
    store = tuple(nights(100.0 * level, level, cv=0.08 if level == 16 else 0.008, count=24) for level in levels[:4])
    launches: list[LaunchRecord] = []
    for number, (luck, *_) in enumerate(launched(1.0, times=5), start=1):
        same = (measured(level * 100.0 / luck, level=level) for level in (2, 8))
        plain = (
            measured(level * rate * luck, level=level)
            for level, rate in ((1, 100.0), (2, 93.0), (8, 120.0), (16, 90.0 + 4 * number), (30, 98.0))
        )
        speculative = (
            measured(level * rate, level=level, acceptance=2.2, ttft_s=1.0)
            for level, rate in ((1, 80.0 * luck), (2, 110.0), (8, 80.0 + 20 * number), (16, 60.0), (30, 50.0))
        )
        launches += [
            launch(*same, ordinal=number, arm="reference"),
            launch(*plain, *([failed(250)] if number == 1 else []), ordinal=number),
            launch(*speculative, measured(3000.0, level=250), variant="eagle3", ordinal=number),
        ]
    relations = tuple(relation("baseline", "eagle3", level=level) for level in (2, 8, 30, 250))
    return suite(
        levels=levels,
        variants=("baseline", "eagle3"),
        store=store,
        relations=relations,
        launches=tuple(launches),
        reference=True,
    )


def night() -> Campaign:
    """A campaign on two GPUs: a suite that passes, and one with a case of every kind."""
    gpus = tuple(
        Gpu(
            name="NVIDIA H200",
            uuid=f"GPU-{number}",
            power_limit_w=700.0,
            clocks_mhz=None,
            persistent=None,
            pcie=None,
            nvlinks=None,
        )
        for number in range(2)
    )
    first, second = (replace(each, build=PATCHED) for each in eagle3(2981.0, 2985.0))
    passing = replace(case(replace(first, notes=("the clocks were held down: power cap",)), second), name="quiet")
    return replace(campaign(passing, every_word()), rig=replace(RIG, gpus=gpus, driver="580.95"))


def texts() -> Iterator[tuple[str, str]]:
    """Every golden file's name and what it should hold."""
    for name, state in SCREENS.items():
        yield f"{name}.txt", report.screen(only(state), PROMOTE, FOLDER) + "\n"
    verdicts = judge(every_word())
    yield "table.txt", f"{report.table(verdicts)}\n\n{report.tally(verdicts)}\n"
    yield "table.md", report.table(verdicts, for_markdown=True) + "\n"
    yield "campaign.md", report.markdown(night(), PROMOTE, FOLDER)
    yield "not-measured.md", report.not_measured({"kimi": "kimi needs 8 GPUs; seen: 0 GPUs. Run it on the rig"})


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


SIMULATED = (1, 8, 32, 128)


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_no_screen_contradicts_its_own_numbers(seed: int, *, reference: bool) -> None:
    """Nights of the product's own campaign, unchanged and with losses: where word and interval differ, it says why."""
    truth = simulation.Truth(throughput=(100.0, 400.0, 900.0, 1500.0), spread=(0.02, 0.01, 0.01, 0.008))
    losses = (0.0, 0.0, -0.04, -0.04) if seed % 2 else (-0.03,) * 4 if seed % 4 else (0.0,) * 4
    rig = simulation.SimulatedRig({"plain": truth}, SIMULATED, seed=seed, changes={"plain": np.array(losses)})
    night = rig.run(simulation.suite(rig.store(4, 4, launches=2), reference=reference, max_launches=6))
    for verdict in judge(night):
        assert isinstance(verdict, CaseVerdict)
        assert verdict.judgement is not None
        lo, hi = verdict.judgement.lo, verdict.judgement.hi
        head, *rest = report.screen(verdict, PROMOTE, FOLDER).splitlines()
        told = {line[:18].strip() for line in rest}
        excluded = {Word.PASS: lo > -0.03, Word.REGRESSED: hi < 0, Word.IMPROVED: lo > 0}
        if verdict.word is Word.INCONCLUSIVE:
            assert ("spans the margin" in head) == (lo <= -0.03 <= hi)
            assert {"why", "could see", "do"} <= told
        else:
            assert ("interval" in told) != excluded[verdict.word]
        if verdict.word is Word.REGRESSED:
            assert "no change" not in head
            if reference:
                assert any("the reference build tonight" in line for line in rest)
        assert "launches" in told


def test_both_arms_of_one_build_are_noted_below_the_table() -> None:
    state = SCREENS["pass-against-itself"]
    assert "builds: A against A: both arms ran sglang 0.5.3" in report.remarks(state, judge(state))


def test_a_percentage_is_shown_only_where_it_means_something() -> None:
    undecided = report.screen(only(SCREENS["inconclusive"]), PROMOTE, FOLDER)
    assert "%" not in next(line for line in undecided.splitlines() if "output throughput" in line)
    table = report.table(judge(every_word()))
    cells = {line.split()[0]: line for line in table.splitlines()[2:] if line}
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
    assert f"{FOLDER}/eagle3-3/server.log" in report.screen(verdict, PROMOTE, FOLDER)
    violated = only(SCREENS["violated"])
    assert isinstance(violated, RelationVerdict)
    assert f"{FOLDER}/baseline-3/server.log" in report.screen(violated, PROMOTE, FOLDER)


def test_the_reason_of_a_failure_is_told_with_its_numbers() -> None:
    assert FAILED.seen in report.screen(only(SCREENS["invalid"]), PROMOTE, FOLDER)


# Markdown


def parts(markdown: str) -> tuple[list[str], str]:
    """As CommonMark reads it: the code blocks, and everything outside of them."""
    blocks: list[str] = []
    outside: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        ticks = re.match(r" {0,3}(`{3,})", line)
        if not fence and ticks:
            fence = ticks[1]
            blocks.append("")
        elif fence and ticks and len(ticks[1]) >= len(fence) and not line.strip(" `"):
            fence = ""
        elif fence:
            blocks[-1] += line + "\n"
        else:
            outside.append(line)
    assert not fence, "a code block that does not end"
    return blocks, "\n".join(outside)


def bare(text: str) -> str:
    """What is left of text outside of code blocks when code spans are taken away: what may mean something."""
    return re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", re.sub("<code>[^<]*</code>", "", text))


HOSTILE = "</details>\n```\n<script>alert(1)</script> @everyone **bold** | [x](http://x) ``` ` \x1b[31m #1 \ud800"


def hostile_night(text: str) -> Campaign:
    """A campaign in which everything that comes from outside is `text`."""
    reason = Reason(name=text, seen=text, advice=text)
    build = Build(sglang=text, torch=text, cuda=None, commit=text, dirty=text, kernels=(), packages=text)
    taken = replace(eagle3(2789.0)[0], model=text, server_version=text, build=build, notes=(text,))
    store = replace(STORE, model=text, server_version=text, promotions=(replace(STORE.promotion, reason=text),))
    judged = replace(case(taken, taken, store=(store,)), stopped=text)
    failing = replace(case(launch(failed(16, reason), variant="eagle3")), advisory=text, name="other")
    gpu = Gpu(name=text, uuid=text, power_limit_w=None, clocks_mhz=None, persistent=None, pcie=None, nvlinks=None)
    return replace(campaign(judged, failing), rig=replace(RIG, gpus=(gpu,), driver=text, cpu=text, kernel=text))


@given(st.text(st.sampled_from("`~<>/|[]()@#*_!-\\\n\r\t ab\x00\x1b\u202e\u2028"), max_size=40) | st.text(max_size=40))
def test_no_text_from_outside_means_anything_in_markdown(text: str) -> None:
    blocks, outside = parts(report.markdown(hostile_night(text), PROMOTE, FOLDER))
    harmless_blocks, harmless = parts(report.markdown(hostile_night("harmless"), PROMOTE, FOLDER))
    assert len(blocks) == len(harmless_blocks)
    assert bare(outside) == bare(harmless)


def test_hostile_text_is_shown_as_text() -> None:
    text = report.markdown(hostile_night(HOSTILE), PROMOTE, FOLDER)
    blocks, outside = parts(text)
    assert "<script>alert(1)</script> @everyone" in "".join(blocks)
    assert bare(outside).count("<details>") == bare(outside).count("</details>") == 3
    for sign in ("@", "<script", "**bold", "http"):
        assert sign not in bare(outside)
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())


def test_why_nothing_was_measured_ends_no_block_either() -> None:
    blocks, outside = parts(report.not_measured({"kimi": f"no GPU\n```\n{HOSTILE}"}))
    assert len(blocks) == 1
    assert outside.split("\n\n") == ["## sglang-perf: INVALID", "Nothing was measured.", "`kimi`:", ""]


def test_the_worst_comes_first_and_what_passes_has_no_screen() -> None:
    text = report.markdown(night(), PROMOTE, FOLDER)
    assert text.index("### `sim`") < text.index("### `quiet`")
    words = re.findall(r"<summary>([A-Z_]+) ", text)
    assert list(dict.fromkeys(words)) == [str(word) for word in WORST_FIRST if word is not Word.PASS]
    assert "<summary>PASS" not in text


def long_night(cases: int) -> Campaign:
    """One case that regressed, among many that failed at length."""
    reason = replace(FAILED, seen="x" * 1000)
    levels = tuple(range(1, cases + 1))
    measurements = [failed(level, reason) for level in levels[:-1]] + [measured(90.0, level=cases)]
    store = (stored(100.0, 100.0, 100.0, level=cases),)
    launches = tuple(replace(launch(*measurements), name=f"baseline-{n}", ordinal=n) for n in (1, 2, 3))
    return campaign(suite(levels=levels, store=store, launches=launches))


@pytest.mark.parametrize("cases", [10, 40, 300])
def test_a_long_campaign_stays_below_what_a_comment_may_have_and_keeps_its_table(cases: int) -> None:
    text = report.markdown(long_night(cases), PROMOTE, FOLDER)
    assert len(text) < 65_536
    assert len(text.encode()) < 2**20
    assert len(re.findall(r"^\| `baseline/c\d+`", text, re.MULTILINE)) == cases
    blocks, _ = parts(text)
    assert blocks[0].startswith("REGRESSED")
    left_out = sum(map(int, re.findall(r"For length, (\d+) of the texts", text)))
    assert len(blocks) + left_out == cases
    assert (left_out > 0) == (cases > 10)


def test_properties_are_plain_numbers_and_what_is_not_known_is_not_there() -> None:
    regressed = dict(report.properties(only(SCREENS["regressed"])))
    assert (regressed.pop("verdict"), regressed.pop("route")) == ("REGRESSED", "store alone")
    assert {name: round(float(value), 3) for name, value in regressed.items()} == {
        "output_throughput": 2785.999,
        "baseline_throughput": 2983.995,
        "change": -0.066,
        "lo": -0.081,
        "hi": -0.051,
    }
    assert report.properties(only(SCREENS["invalid"])) == (("verdict", "INVALID"),)
    one_launch = dict(report.properties(only(SCREENS["inconclusive-by-one-launch"])))
    assert one_launch.keys() == {"verdict", "output_throughput"}
    undecided = dict(report.properties(next(each for each in judge(every_word()) if each.id.endswith("eagle3/c008"))))
    assert undecided.keys() == {"verdict", "output_throughput"}


def write_goldens() -> None:
    """Write every golden file anew."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for name, text in texts():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_goldens()


SLOW = (2700.0, 2705.0, 2698.0)


def alike(*, command: tuple[str, ...] = (), reference: Build = UNPATCHED) -> CaseVerdict:
    """A night on which both arms are alike, and 9 % slower than what is stored."""
    night = pairs(SLOW, SLOW, builds=(reference, PATCHED))
    launches = tuple(replace(each, command=(*each.command, *command)) for each in night.launches)
    stored_build = tuple(
        replace(case, stored=replace(case.stored, build=UNPATCHED)) for case in night.cases if case.stored
    )
    (found,) = judge(replace(night, launches=launches, cases=stored_build))
    assert isinstance(found, CaseVerdict)
    return found


def test_a_night_on_which_both_builds_are_slow_says_so_beside_its_pass() -> None:
    found = alike(reference=replace(UNPATCHED, packages="of another day"))
    assert found.word is Word.PASS
    told = "reference: it runs itself about -9 % beside its stored baseline"
    assert told in report.remarks(pairs(SLOW, SLOW), [found])


@pytest.mark.parametrize(
    ("night", "seen"),
    [
        ({"command": ("--slow",)}, "command: now with --slow"),
        ({"reference": replace(UNPATCHED, commit="f" * 40)}, "build sglang"),
    ],
)
def test_what_slows_both_arms_and_is_the_suites_own_is_not_cleared_by_their_being_alike(
    night: dict[str, tuple[str, ...] | Build], seen: str
) -> None:
    found = alike(**night)  # type: ignore[arg-type]
    assert [each.name for each in found.reasons] == ["reference is not what is stored"]
    assert seen in found.reasons[0].seen
    assert found.word is Word.INVALID
