"""Crossovers in the product: measured, judged, shown, stored and judged against."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perf import coverage, report, suite_file
from perf.baseline import Store
from perf.campaign import FIRST_BASELINE_LAUNCHES
from perf.compact import ADAPTER, compact
from perf.compare import compared
from perf.crossover import StoredCrossover
from perf.files import FileError
from perf.gate import Word
from perf.promotion import PromotionError, promote, told
from perf.prune import prune
from perf.record import CrossoverRecord, SuiteRecord, read
from perf.statements import verdict_table
from perf.verdict import CrossoverVerdict, bound, judge, judge_crossover, judge_relation
from tests.unit import simulated
from tests.unit.simulated import (
    SimulatedRig,
    campaign,
    crossing,
    failed,
    launch,
    measured,
    relation,
    select,
    stored,
    stored_crossover,
    written,
)

LEVELS = (1, 4, 8, 32)
VARIANTS = ("eagle3", "baseline")
ID = "sim/expect/crossover-of-eagle3-and-baseline"

#: How much faster eagle3 is at each level: the lines cross between 4 and 8.
LEAD = {1: 1.2, 4: 1.1, 8: 0.9, 32: 0.6}


def truth(variant: str, level: int) -> float:
    return 90.0 * level * (LEAD[level] if variant == "eagle3" else 1.0)


STORE = SimulatedRig(truth=truth, cv=0.005, seed=5).store(6, levels=LEVELS, variants=VARIANTS)


def state(was: StoredCrossover | None = None, *, known: bool = True) -> SuiteRecord:
    return simulated.suite(
        levels=LEVELS,
        variants=VARIANTS,
        store=STORE if known else (),
        crossovers=(crossing("eagle3", "baseline", was),),
        max_launches=12,
    )


def alone(whole: SuiteRecord) -> SuiteRecord:
    return select(whole, ID)


def verdict(done: SuiteRecord) -> CrossoverVerdict:
    return judge_crossover(done, done.crossovers[0])


def counts(done: SuiteRecord) -> set[int]:
    return {count for _, each in verdict(done).launches for count in each}


def rig(lead: dict[int, float] | None = None, *, cv: float = 0.005, seed: int = 1) -> SimulatedRig:
    leads = LEAD | (lead or {})
    return SimulatedRig(
        truth=lambda variant, level: 90.0 * level * (leads[level] if variant == "eagle3" else 1.0), cv=cv, seed=seed
    )


@pytest.fixture(scope="module")
def first() -> SuiteRecord:
    """The night whose crossover is promoted."""
    return rig(cv=0.003, seed=3).run(alone(state()))


@pytest.fixture(scope="module")
def was(first: SuiteRecord, tmp_path_factory: pytest.TempPathFactory) -> StoredCrossover:
    store = Store(tmp_path_factory.mktemp("baselines"))
    promote(campaign(first), store, reason="first", pattern=None, add=False)
    return store.crossovers(first.rig_id, "sim")[ID]


# Measured


def test_a_crossover_selected_alone_measures_both_variants_at_every_level_so_that_it_can_be_stored() -> None:
    done = rig().run(alone(state()))
    assert counts(done) == {FIRST_BASELINE_LAUNCHES}
    assert verdict(done).word is Word.NO_BASELINE
    assert verdict(done).why == "no crossover is stored for these variants on this rig"


def test_one_launch_of_each_is_enough_where_nothing_moved_and_noise_is_known(was: StoredCrossover) -> None:
    done = rig(seed=8).run(alone(state(was)))
    assert verdict(done).word is Word.PASS
    assert counts(done) == {1}


def test_only_the_levels_that_are_open_are_launched_again(was: StoredCrossover) -> None:
    done = rig({4: 0.98}, cv=0.01, seed=4).run(alone(state(was)))
    measured_at = {level: max(each) for level, each in verdict(done).launches}
    assert measured_at[4] > 1
    assert {measured_at[level] for level in (1, 8, 32)} == {1}


def test_a_crossover_costs_no_launch_on_an_unchanged_night(was: StoredCrossover) -> None:
    plain, with_it = (
        rig(seed=6).run(each) for each in (replace(state(was), crossovers=(), family=len(STORE)), state(was))
    )
    assert len(plain.launches) == len(with_it.launches)


def test_an_advisory_crossover_is_launched_once_and_never_stored(tmp_path: Path) -> None:
    done = rig().run(replace(alone(state()), advisory="shown, never gated"))
    assert counts(done) == {1}
    outcome = promote(campaign(done), Store(tmp_path), reason="why", pattern=None, add=False)
    assert outcome.refused == ((ID, "shown, never gated"),)


def test_what_is_invalid_at_one_level_ends_the_crossover() -> None:
    broken = replace(rig(), replaced=lambda _variant, _ordinal, level: failed(level) if level == 8 else None)
    done = broken.run(alone(state()))
    assert [each.variant for each in done.launches] == ["eagle3"]
    found = verdict(done)
    assert found.word is Word.INVALID
    assert [each.name for each in found.reasons] == ["sim/eagle3/c008 is INVALID"]
    assert found.logs == ("eagle3-1",)


# Judged


def test_a_speculative_variant_that_stops_paying_earlier_is_violated_and_says_where(was: StoredCrossover) -> None:
    done = rig({4: 0.9}, seed=2).run(alone(state(was)))
    found = verdict(done)
    assert found.word is Word.VIOLATED
    screen = report.screen(found, "python -m perf promote x", "folder")
    assert screen.startswith("VIOLATED  eagle3 no longer pays at level 4: eagle3 is faster up to about c=")
    assert "\n  stored          eagle3 is faster up to about c=5" in screen
    assert '"first")' in screen
    assert "\n  level 4         eagle3 -10" in screen
    assert "VIOLATED, margin 3 %" in screen
    assert f'  If this is intended: python -m perf promote x --case "{ID}" --reason "why"' in screen


def test_an_advantage_that_grew_is_a_pass_with_a_note(was: StoredCrossover) -> None:
    done = rig({8: 1.1}, seed=2).run(alone(state(was)))
    found = verdict(done)
    assert found.word is Word.PASS
    assert found.notes[0].startswith("the crossover moved up: eagle3 is faster at c=8")
    assert found.notes[0] in report.remarks(done, judge(done))


def test_too_much_noise_is_inconclusive_and_says_what_to_do(was: StoredCrossover) -> None:
    loud = replace(alone(state(was)), max_launches=1)
    done = rig({4: 1.0}, cv=0.03, seed=1).run(replace(loud, cases=tuple(replace(c, stored=None) for c in loud.cases)))
    found = verdict(done)
    assert found.word is Word.INCONCLUSIVE
    assert "  do              allow more launches: --perf-max-launches=2" in report.screen(found, "promote", "folder")


def test_what_was_asked_something_else_is_no_baseline(was: StoredCrossover) -> None:
    done = rig().run(alone(state(was)))
    other = replace(done, cases=tuple(replace(each, workload_digest="another") for each in done.cases))
    assert verdict(other).word is Word.NO_BASELINE
    assert verdict(other).why == "the stored crossover was asked another workload at c=1, c=4, c=8, c=32"
    limited = replace(done, power_limits_w=(300.0,))
    assert verdict(limited).why == "the stored crossover ran under other power limits"


def test_baseline_that_is_faster_everywhere_is_said_to_be_so() -> None:
    """Published: 92.7 against 80.9 tok/s at one stream, and so at every level."""
    slow = dict.fromkeys(LEVELS, 80.9 / 92.7)
    found = verdict(rig(slow).run(alone(state())))
    assert report.screen(found, "promote", "folder").startswith(
        "NO_BASELINE  baseline is faster from the lowest level on, c=1"
    )
    assert report._row(found)[4] == "at or below c=1"


def test_acceptance_that_is_simulated_on_one_side_alone_makes_a_crossover_invalid(was: StoredCrossover) -> None:
    """sglang#31609: a speedup of made-up acceptance is no speedup."""
    done = rig().run(alone(state(was)))
    env = (("SGLANG_SIMULATE_ACC_LEN", "3.0"),)
    one = tuple(replace(each, variant_env=env) if each.variant == "eagle3" else each for each in done.launches)
    found = verdict(replace(done, launches=one))
    assert (found.word, found.reasons[0].name) == (Word.INVALID, "acceptance is not simulated alike")
    both = verdict(replace(done, launches=tuple(replace(each, variant_env=env) for each in done.launches)))
    assert both.word is Word.NO_BASELINE
    assert both.why == "acceptance is not simulated as it was for the stored crossover"


@pytest.mark.parametrize(("lead", "noted"), [({8: 1.4, 32: 1.5}, True), ({}, False)])
def test_a_lead_of_speculation_that_grows_with_load_is_noted_and_nothing_more(
    lead: dict[int, float], noted: bool, was: StoredCrossover
) -> None:
    quick = rig(lead, seed=9)
    fast = replace(
        quick,
        replaced=lambda variant, _o, level: measured(
            quick.throughput(variant, level), level=level, acceptance=2.9 if variant == "eagle3" else None
        ),
    )
    found = verdict(fast.run(alone(state(was))))
    assert found.word is Word.PASS
    notes = [note for note in found.notes if "grows with load" in note]
    assert len(notes) == noted
    if noted:
        assert notes[0].startswith("the lead of eagle3 grows with load (+")


def test_relations_and_crossovers_share_what_is_spent_on_them() -> None:
    one = state()
    more = replace(one, relations=(), crossovers=(*one.crossovers, *one.crossovers))
    assert bound(more).tail == pytest.approx(bound(one).tail / 2)


def test_what_the_last_look_decided_is_not_opened_by_a_launch_between_looks(was: StoredCrossover) -> None:
    """Two launches of each decide; a third of eagle3, which some case wanted, is far off."""
    done = rig(cv=0.001, seed=2).run(alone(state(was)))
    strange = launch(
        *(measured(truth("eagle3", level) * math.exp(0.3 * (-1) ** level), level=level) for level in LEVELS),
        variant="eagle3",
        ordinal=2,
    )
    assert verdict(done).word is Word.PASS
    assert verdict(replace(done, launches=(*done.launches, strange))).word is Word.PASS


def test_two_campaigns_are_compared_without_crossovers(first: SuiteRecord) -> None:
    both = replace(first, cases=tuple(replace(each, selected=True) for each in first.cases))
    found = compared(campaign(both), campaign(both, id="20260202-020000"))
    assert all(not isinstance(each, CrossoverVerdict) for suite in found.suites for each in judge(suite))


# Shown


def test_every_way_to_show_a_campaign_tells_of_its_crossovers(first: SuiteRecord) -> None:
    night = campaign(first)
    (found,) = judge(first)
    assert dict(report.properties(found))["verdict"] == "NO_BASELINE"
    assert 4 < float(dict(report.properties(found))["crossover"]) < 8
    assert "| NO_BASELINE" in report.markdown(night, "promote", "folder")
    kept = compact(night)
    assert ADAPTER.validate_json(ADAPTER.dump_json(kept)) == kept
    (told_of,) = kept.suites[0].crossovers
    assert (told_of.verdict, told_of.shape, len(told_of.levels)) == ("NO_BASELINE", "crosses", len(LEVELS))
    assert f"crossover-of-eagle3-and-baseline: {told_of.told}" in verdict_table(kept)


def test_a_campaign_whose_only_verdict_is_a_violated_crossover_has_a_headline(was: StoredCrossover) -> None:
    done = rig({4: 0.9}, seed=2).run(alone(state(was)))
    assert f"Worst: `{ID}`, -1" in report.markdown(campaign(done), "promote", "folder")


# How often it is wrong


def test_what_lost_just_the_margin_is_violated_no_more_often_than_it_may_be() -> None:
    """The crossover's own noise and that of a relation are drawn anew each night, and so is what is stored."""
    nights, margin = 150, 0.03
    relation_of = relation("eagle3", "baseline", level=4)
    wrong = 0
    for seed in range(nights):
        stored_rig = rig({4: 1.0}, cv=0.01, seed=seed)
        store = stored_rig.store(5, levels=(4,), variants=VARIANTS)
        one = simulated.suite(levels=(4,), variants=VARIANTS, store=store, relations=(relation_of,), max_launches=12)
        done = rig({4: 1.0}, cv=0.01, seed=10_000 + seed).run(replace(select(one, relation_of.id), alpha=0.5))
        wrong += judge_relation(done, done.relations[0]).word is Word.VIOLATED
        was = stored_crossover("eagle3", "baseline", {4: 1.2})
        two = simulated.suite(
            levels=(4,),
            variants=VARIANTS,
            store=store,
            crossovers=(crossing("eagle3", "baseline", was),),
            max_launches=12,
        )
        lost = rig({4: 1 - margin}, cv=0.01, seed=20_000 + seed).run(replace(alone(two), alpha=0.5))
        wrong += verdict(lost).word is Word.VIOLATED
    # Of 0.4 alpha, half is for either side; each is a night of its own.
    allowed = 0.4 * 0.5 / 2
    assert wrong / (2 * nights) < allowed + 3 * math.sqrt(allowed / (2 * nights))


# Stored


def test_a_crossover_is_promoted_from_launches_alone_and_judged_by_the_next_night(
    tmp_path: Path, first: SuiteRecord
) -> None:
    store = Store(tmp_path)
    outcome = promote(campaign(first), store, reason="first", pattern=ID, add=False)
    (line,) = told(outcome)
    assert line.startswith(f"promoted  {ID}: - -> eagle3 is faster up to about c=")
    assert (outcome.promoted, outcome.refused) == ((), ())
    kept = store.crossovers(first.rig_id, "sim")[ID]
    assert (kept.campaign, kept.reason, len(kept.levels)) == ("20260201-020000", "first", len(LEVELS))
    assert verdict(rig(seed=21).run(alone(state(kept)))).word is Word.PASS


def test_cases_and_crossover_of_a_campaign_are_promoted_together(tmp_path: Path) -> None:
    store = Store(tmp_path)
    done = rig(cv=0.003).run(state(known=False))
    outcome = promote(campaign(done), store, reason="first", pattern=None, add=False)
    assert len(outcome.promoted) == len(LEVELS) * 2
    assert [each.after.crossover for each in outcome.crossovers] == [ID]
    again = promote(campaign(done), store, reason="again", pattern=None, add=False)
    assert again.crossovers[0].before == outcome.crossovers[0].after
    assert list(told(again))[-1].startswith(f"promoted  {ID}: eagle3 is faster up to about c=")


def test_a_night_that_is_added_moves_no_crossover_but_gives_the_first_one(tmp_path: Path, first: SuiteRecord) -> None:
    store = Store(tmp_path)
    added = promote(campaign(first), store, reason="first", pattern=None, add=True)
    assert len(added.crossovers) == 1
    later = promote(campaign(first, id="20260301-020000"), store, reason="night", pattern=None, add=True)
    assert (later.crossovers, later.refused) == ((), ())
    assert store.crossovers(first.rig_id, "sim")[ID].reason == "first"
    with pytest.raises(PromotionError):
        promote(campaign(first), store, reason="of the reference", pattern=ID, add=True, arm="reference")


def test_what_shows_nothing_and_what_is_invalid_is_not_promoted(tmp_path: Path) -> None:
    even = rig(dict.fromkeys(LEVELS, 1.0), cv=0.05).run(replace(alone(state(known=False)), max_launches=2))
    broken = replace(rig(), replaced=lambda _v, _o, level: failed(level)).run(alone(state()))
    for done, why in ((even, "there is nothing to hold"), (broken, "INVALID: sim/eagle3/c001 is INVALID")):
        outcome = promote(campaign(done), Store(tmp_path), reason="why", pattern=None, add=False)
        assert not outcome.crossovers
        assert why in outcome.refused[0][1]


def test_a_campaign_file_holds_the_crossover_it_was_judged_with(tmp_path: Path, was: StoredCrossover) -> None:
    done = rig().run(alone(state(was)))
    folder = written(tmp_path, campaign(done))
    assert read(folder).suites[0] == done


def broken_records(was: StoredCrossover) -> dict[str, tuple[CrossoverRecord, str]]:
    good = crossing("eagle3", "baseline", was)
    return {
        "of nobody": (crossing("eagle3", "nobody"), "a crossover of variants that are not in it"),
        "of one": (crossing("eagle3", "eagle3"), "a crossover of variants that are not in it"),
        "another's": (replace(good, stored=replace(was, first="other")), "a stored crossover that is another's"),
        "typed": (replace(good, stored=replace(was, estimate=2.0)), "not as it was promoted"),
        "a path": (replace(good, crossover=replace(good.crossover, id="sim/../x")), "the name"),
    }


@pytest.mark.parametrize("kind", ["of nobody", "of one", "another's", "typed", "a path"])
def test_a_campaign_with_a_crossover_that_it_cannot_have_is_refused(
    tmp_path: Path, kind: str, was: StoredCrossover
) -> None:
    record, why = broken_records(was)[kind]
    folder = written(tmp_path, campaign(replace(state(), crossovers=(record,))))
    with pytest.raises(FileError, match=why):
        read(folder)


def test_a_crossover_counts_as_one_verdict(tmp_path: Path) -> None:
    folder = written(tmp_path, campaign(replace(state(), family=len(STORE))))
    with pytest.raises(FileError, match="the number of its verdicts"):
        read(folder)


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "no JSON": (lambda text: text[:-20], "not a file of crossovers"),
    "a later version": (lambda text: text.replace("crossovers 1", "crossovers 7"), "written by a newer version"),
    "another rig": (lambda text: text.replace('"rig": "', '"rig": "x'), "not of this one; restore the file"),
    "another suite": (lambda text: text.replace('"sim/expect', '"sam/expect'), "which belongs elsewhere"),
    "an estimate that was typed": (lambda text: text.replace('"estimate": ', '"estimate": 1'), "its estimate follows"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_of_crossovers_is_refused_with_a_sentence_and_never_written_over(
    tmp_path: Path, kind: str, first: SuiteRecord
) -> None:
    store = Store(tmp_path)
    promote(campaign(first), store, reason="first", pattern=None, add=False)
    path = store.path(first.rig_id, "sim", "crossover")
    change, why = DAMAGE[kind]
    damaged = change(path.read_text())
    path.write_text(damaged)
    with pytest.raises(FileError, match=why):
        store.crossovers(first.rig_id, "sim")
    with pytest.raises((FileError, PromotionError), match=why):
        promote(campaign(first), store, reason="again", pattern=None, add=False)
    assert path.read_text() == damaged
    found = coverage.contents(store)
    assert list(found.damaged) == [path]


def test_the_file_names_its_version_and_holds_all_crossovers_of_the_suite(tmp_path: Path, was: StoredCrossover) -> None:
    store = Store(tmp_path)
    other = replace(was, crossover="sim/expect/crossover-of-eagle3-and-plain", second="plain")
    store.promote_crossovers("rig", "sim", [was])
    store.promote_crossovers("rig", "sim", [other])
    assert store.crossovers("rig", "sim") == {was.crossover: was, other.crossover: other}
    file = json.loads(store.path("rig", "sim", "crossover").read_text())
    assert (file["version"], file["rig"], len(file["crossovers"])) == ("sglang-perf crossovers 1", "rig", 2)


STRANGE: st.SearchStrategy[object] = st.sampled_from(
    [0, -1, 1, 2, 10**15, 5e-324, 1e-99, 0.49, -1e14, 1e14, 1e300, None, "", "x", [], {}, True]
)


def leaves(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where in a JSON value a plain value stands."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for key, child in children for leaf in leaves(child, (*place, key))]
    return found or [place]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=STRANGE)
def test_whatever_stands_in_a_file_of_crossovers_it_is_refused_or_judged_with(
    tmp_path: Path, was: StoredCrossover, first: SuiteRecord, data: st.DataObject, value: object
) -> None:
    store = Store(tmp_path)
    path = store.path("rig", "sim", "crossover")
    path.unlink(missing_ok=True)
    store.promote_crossovers("rig", "sim", [was])
    file = json.loads(path.read_text())
    *way, last = data.draw(st.sampled_from(leaves(file)))
    inside = file
    for key in way:
        inside = inside[key]
    inside[last] = value
    path.write_text(json.dumps(file))
    try:
        found = store.crossovers("rig", "sim")
    except FileError:
        return
    judged = replace(first, crossovers=tuple(replace(each, stored=found.get(ID)) for each in first.crossovers))
    assert report.markdown(campaign(judged), "promote", "folder")
    assert ADAPTER.dump_json(compact(campaign(judged)))


SUITE = """
[suite]
name = "sim"
[workload]
concurrency = [1, 4, 8, 32]
output_tokens = 16
[variants.eagle3]
command = ["server", "{port}"]
[variants.baseline]
command = ["server", "{port}"]
"""
EXPECT = '[[expect]]\ncrossover = ["eagle3", "baseline"]\n'


def test_coverage_knows_a_crossover_that_is_stored_one_that_is_not_and_one_of_nobody(
    tmp_path: Path, was: StoredCrossover
) -> None:
    store = Store(tmp_path / "baselines")
    source = tmp_path / "sim.toml"
    rig_id = campaign(state()).rig.id
    source.write_text(SUITE + EXPECT)
    asked = suite_file.load(source)
    for variant in VARIANTS:
        cases = tuple(
            replace(stored(100.0, 101.0, level=level, variant=variant), workload_digest=asked.workload.digest(level))
            for level in LEVELS
        )
        store.promote(rig_id, "sim", variant, cases, add=False)
    found = coverage.examine([asked], store, rig_id, all_of_them=True)
    assert not found.whole
    text = coverage.text(found, date(2026, 3, 1))
    assert "crossover-of-eagle3-and-baseline: not stored" in text
    assert '-k "expect/crossover-of-eagle3-and-baseline"' in text
    store.promote_crossovers(rig_id, "sim", [was])
    found = coverage.examine([asked], store, rig_id, all_of_them=True)
    assert (found.whole, found.orphans) == (True, ())
    assert "crossover-of-eagle3-and-baseline: eagle3 is faster up to" in coverage.text(found, date(2026, 3, 1))
    source.write_text(SUITE)
    found = coverage.examine([suite_file.load(source)], store, rig_id, all_of_them=True)
    assert [each.why for each in found.orphans] == ["suite sim has no such crossover"]


def test_prune_spares_the_campaign_that_a_crossover_came_from(tmp_path: Path, was: StoredCrossover) -> None:
    store = Store(tmp_path / "baselines")
    store.promote_crossovers("rig", "sim", [replace(was, campaign="20260201-020000")])
    for id in ("20260201-020000", "20260202-020000", "20260203-020000"):
        written(tmp_path / "campaigns", campaign(state(), id=id))
    found = prune(tmp_path / "campaigns", store, keep=1, dry_run=True, now_s=2e9)
    assert ("20260201-020000", "a stored baseline came from it") in found.spared
