"""What a night would show is said before it is spent, from the stored noise, and nights then show it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from perf import prospect as prospects
from perf import simulation
from perf.gate import Word
from perf.plan import forecast
from perf.prospect import Chance, LevelProspect, Prospect, Question, Unchanged, VariantProspect, prospect, question
from perf.sample import StoredCase
from perf.simulation import SimulatedRig, Truth
from perf.suite import Suite
from perf.suite_file import parse
from perf.trial import Trials, stored_noise
from perf.verdict import judge

LEVELS = (1, 8, 30)
THROUGHPUT = (100.0, 300.0, 600.0)

Stored = Mapping[tuple[str, int], StoredCase]


def read(gate: str = "", more: str = "", workload: str = "") -> Suite:
    """A launch of a variant takes its start and 8 minutes at each level, as near as tokens allow."""
    return parse(
        f"""
        [suite]
        name = "sim"
        rig = "emulated"
        [workload]
        concurrency = [1, 8, 30]
        requests_per_level = 160
        output_tokens = 300
        warmup_requests = 0
        {workload}
        [gate]
        margin = 0.03
        {gate}
        [variants.plain]
        command = ["serve", "{{port}}"]
        {more}
        """,
        Path("sim.toml"),
    )


def store(*spread: float, nights: int = 20, pairs: int = 20, launches: int = 1, seed: int = 1) -> Stored:
    truth = Truth(throughput=THROUGHPUT, spread=spread)
    return SimulatedRig({"plain": truth}, LEVELS, seed=seed).store(nights, pairs, launches=launches)


def ask(suite: Suite, stored: Stored, *, reference: bool = True, nights: int = 40, **asked: float) -> Prospect:
    found = prospect(
        suite, stored, forecast(suite, stored), question(suite, reference=reference, **asked), nights=nights
    )
    assert found is not None
    return found


def simulated(stored: Stored, *, reference: bool = True, **asked: float) -> prospects._Rig:
    suite = read()
    rig = prospects._rig(suite, stored, forecast(suite, stored), question(suite, reference=reference, **asked))
    assert rig is not None
    return rig


def unchanged(stored: Stored, *, reference: bool = True, **asked: float) -> Unchanged:
    return prospects._unchanged(simulated(stored, reference=reference, **asked), 20)


def levels(found: Prospect) -> tuple[LevelProspect, ...]:
    (variant,) = found.variants
    return variant.levels


# Numbers


def test_a_chance_is_never_surer_than_its_nights() -> None:
    assert Chance(found=24, nights=24).share == 1.0
    assert Chance(found=24, nights=24).error <= prospects.WELL_ENOUGH < Chance(found=20, nights=20).error
    assert not Chance(found=10, nights=12).is_below(0.95)  # bad luck explains it
    assert not Chance(found=1, nights=1).is_below(0.95)
    assert Chance(found=15, nights=24).is_below(0.95)
    assert str(Chance(found=3, nights=24)) == "3 of 24 nights"


def test_the_interval_of_a_spread_is_that_of_chi_square() -> None:
    lo, hi = prospects.spread_interval(0.01, 3)
    assert lo == pytest.approx(0.01 * math.sqrt(3 / stats.chi2.ppf(0.975, 3)))
    assert hi == pytest.approx(0.01 * math.sqrt(3 / stats.chi2.ppf(0.025, 3)))


def test_a_rig_made_from_noise_varies_as_the_noise_says() -> None:
    noise = stored_noise(simulation.suite(store(0.005, 0.006, 0.008, nights=20, launches=4)).cases)
    assert noise is not None
    rig = SimulatedRig({"plain": simulation.truth_of(noise)}, LEVELS, seed=5)
    again = stored_noise(simulation.suite(rig.store(150, 0, launches=4)).cases)
    assert again is not None
    assert again.mean == pytest.approx(noise.mean, abs=0.001)
    assert again.spread == pytest.approx(noise.spread, rel=0.1)
    assert again.shared == pytest.approx(noise.shared, rel=0.3)
    assert again.night == pytest.approx(noise.night, rel=0.4)  # raised by a tenth, for fear of few nights


# What is found


def test_nights_then_take_what_was_said() -> None:
    stored = store(0.012, 0.015, 0.01)
    found = ask(read(), stored, nights=60)
    noise = stored_noise(simulation.suite(stored).cases)
    assert noise is not None
    minutes, decided = [], 0
    seconds = (0.0, 480.0, 160.0, 80.0)
    for seed in range(60):
        truth = simulation.truth_of(noise)
        rig = SimulatedRig({"plain": truth}, LEVELS, seed=1000 + seed, seconds={"plain": seconds})
        done = rig.run(simulation.suite(rig.store(20, 20), max_launches=12, reference=False))
        decided += all(each.word is not Word.INCONCLUSIVE for each in judge(done))
        minutes.append(rig.now_s)
    assert found.unchanged.mean_s == pytest.approx(float(np.mean(minutes)), rel=0.3)
    assert found.unchanged.longest_s == pytest.approx(float(np.quantile(minutes, 0.95)), rel=0.5)
    assert found.unchanged.decided.share == pytest.approx(decided / 60, abs=0.15)


def test_on_a_steady_rig_a_loss_of_the_margin_is_found_at_every_level_and_at_all() -> None:
    found = ask(read(), store(0.005, 0.005, 0.005))
    assert all(each.margin.share > 0.9 and each.smallest == 0.03 for each in levels(found))
    assert found.variants[0].every.share > 0.9
    assert found.unchanged.decided.share == 1.0
    assert levels(found)[0].margin.nights < 40  # 24 or so tell


def test_the_smallest_loss_is_about_what_the_gate_could_have_seen() -> None:
    """One is counted in simulated nights, the other is the gate's own formula at their end."""
    stored = store(0.012, 0.012, 0.012, nights=4, launches=4, pairs=10)
    found, rig = ask(read(), stored, reference=False, nights=24), simulated(stored, reference=False)
    seen: list[list[float]] = []
    for seed in range(20):
        done, _ = rig.night(seed, {})
        (trial,) = Trials("plain").keep_up(done)
        seen.append([-math.expm1(-(trial.gate.could_see(index) or math.inf)) for index in range(len(LEVELS))])
    quietest = int(np.argmin([each.spread for each in levels(found)]))  # what the others are compared with
    for index, (each, by_formula) in enumerate(zip(levels(found), np.mean(seen, axis=0), strict=True)):
        assert each.smallest is not None
        assert index == quietest or each.smallest == pytest.approx(by_formula, rel=0.35)
    assert max(each.smallest or 0 for each in levels(found)) > 0.03


def test_a_noisier_rig_a_smaller_margin_and_no_reference_build_cost_more() -> None:
    stored, noisy = store(0.01, 0.01, 0.01), store(0.02, 0.02, 0.02, nights=2, pairs=2)
    usual = unchanged(stored).mean_s
    assert unchanged(stored, margin=0.02).mean_s > 1.5 * usual
    assert unchanged(noisy).mean_s > 1.5 * usual
    assert unchanged(noisy, reference=False).decided.is_below(0.95)


def test_a_level_that_would_hold_up_the_others_is_named() -> None:
    found = ask(read(), store(0.004, 0.005, 0.08))
    assert [each.alone for each in levels(found)] == [False, False, True]
    assert "aside     judged by itself: c030 (launches vary by " in prospects.text(found)
    assert levels(found)[2].margin.share < 0.5 <= levels(found)[0].margin.share


def test_what_a_budget_does_not_hold_is_not_found() -> None:
    gate = "budget_minutes = 26"  # two launches, where pairs of one level take 16 minutes
    found = ask(read(gate), store(0.01, 0.01, 0.01))
    assert found.question.budget_s == 26 * 60
    assert found.unchanged.longest_s <= 26 * 60
    assert levels(found)[0].margin.share < 0.5
    assert (levels(found)[0].smallest or 1.0) > 0.03


def test_the_same_store_gives_the_same_answer() -> None:
    assert ask(read(), store(0.01, 0.01, 0.01), nights=8) == ask(read(), store(0.01, 0.01, 0.01), nights=8)


def test_a_store_that_was_asked_something_else_tells_of_noise_all_the_same() -> None:
    stored = store(0.005, 0.005, 0.005)
    other = {key: replace(each, workload_digest="other", power_limits_w=(300.0,)) for key, each in stored.items()}
    assert ask(read(), other, nights=5) == ask(read(), stored, nights=5)


def test_a_variant_without_stored_noise_is_launched_and_not_judged() -> None:
    more = '[variants.fast]\ncommand = ["serve", "{port}", "--fast"]\nexpected_tok_s = { 1 = 400 }\n'
    stored = store(0.005, 0.005, 0.005)
    found = ask(read(more=more), stored, nights=5)
    assert (found.unknown, [each.name for each in found.variants]) == (("fast",), ["plain"])
    assert found.unchanged.launches >= 1 + 4
    assert "not judged fast: nothing tells how launches vary" in prospects.text(found)


def test_a_level_that_is_not_stored_is_left_out() -> None:
    expected = "expected_tok_s = { 1 = 100, 30 = 600 }"
    stored = {key: each for key, each in store(0.005, 0.005, 0.005).items() if key[1] != 8}
    assert [each.level for each in levels(ask(read(more=expected), stored, nights=5))] == [1, 30]


# Nothing to say


@pytest.mark.parametrize(
    ("workload", "stored", "said"),
    [
        ("", {}, "nothing is stored, and nothing can be promised"),
        ("", store(0.01, 0.01, 0.01, nights=1, pairs=0), "one stored launch says nothing of how launches vary"),
        ("", {("plain", 1): store(0.01, 0.01, 0.01)["plain", 1]}, "no forecast for plain"),
        ('level_reached = "not required"', store(0.01, 0.01, 0.01), "the suite is advisory"),
    ],
)
def test_where_nothing_can_be_simulated_it_says_why(workload: str, stored: Stored, said: str) -> None:
    suite = read(workload=workload)
    known = forecast(suite, stored)
    assert prospect(suite, stored, known, question(suite)) is None
    assert said in prospects.why_not(suite, known, stored)


# Text


def level(
    name: str, spread: float, *, found: int = 24, smallest: float | None = 0.03, alone: bool = False
) -> LevelProspect:
    return LevelProspect(
        level=int(name[1:]),
        name=name,
        spread=spread,
        freedom=9.0,
        alone=alone,
        margin=Chance(found=found, nights=24),
        smallest=smallest,
    )


GOLDEN = """\
eagle3: 12 launches of 3 nights stored, and 8 launches of 2 nights that tell of noise alone
  launches  vary by 0.62 % to 7.1 %; 25 % of that variance moves all levels alike
  nights    differ by 0.5 % at all levels alike, and by 0.1 % at each level by itself
  aside     judged by itself: c250 (launches vary by 7.1 %)

case                   launches vary by    degrees of freedom    3 % less is found in    smallest loss found
-------------------  ------------------  --------------------  ----------------------  ---------------------
eagle3/c016                      0.62 %                     9         24 of 24 nights                    3 %
eagle3/c030                         2 %                     9         15 of 24 nights                  3.7 %
eagle3/c250                       7.1 %                     9          0 of 24 nights          not even 34 %
eagle3, every level                   -                     -         24 of 24 nights                      -

unchanged  42 min 00 s and 4.25 launches on average, at most 1 h 20 min in 95 % of nights; decided in 98 of 100 nights
asked      margin 3 %, power 95 %, alpha 1 %, with a reference build
within     200 launches of each build of a variant, and a budget of 6 h 00 min
found      REGRESSED in simulated nights in which that level alone is so much slower;
           smallest is the first loss tried, from the margin on, that 95 % of them found
           24 of 24 nights show a chance of 88 % or more, with 95 % confidence

Simulated nights, with the stored noise taken for the truth: they promise no more than the store knows.
Least is known of eagle3/c016: its launches may vary by 0.69 to 1.8 times that, and minutes go with the square.
Few nights are stored: how much nights differ is partly assumed.
"""


def test_what_a_night_would_show_is_the_golden_text() -> None:
    found = Prospect(
        question=Question(margin=0.03, alpha=0.01, power=0.95, reference=True, max_launches=200, budget_s=6 * 3600),
        variants=(
            VariantProspect(
                name="eagle3",
                launches=12,
                nights=3,
                others=8,
                others_nights=2,
                shared=0.25,
                night=0.005,
                night_level=0.001,
                levels=(
                    level("c016", 0.00622),
                    level("c030", 0.02, found=15, smallest=0.0371),
                    level("c250", 0.0712, found=0, smallest=None, alone=True),
                ),
                every=Chance(found=24, nights=24),
            ),
        ),
        unknown=(),
        unchanged=Unchanged(mean_s=42 * 60, longest_s=80 * 60, launches=4.25, decided=Chance(found=98, nights=100)),
    )
    assert prospects.text(found) == GOLDEN
