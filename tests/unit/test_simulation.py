"""A simulated rig is as its truth says, and what the product does on it is what it does anywhere."""

from dataclasses import replace

import numpy as np
import pytest

from perf import record
from perf.gate import Word
from perf.noise import Matrix
from perf.record import Order
from perf.sample import is_sound, throughputs
from perf.simulation import HICCUP, SimulatedRig, Truth, suite
from perf.trial import stored_noise
from perf.verdict import judge
from tests.unit.simulated import campaign

LEVELS = (1, 4, 16, 64)
TRUTH = Truth(throughput=(50.0, 180.0, 600.0, 1500.0), spread=(0.01,) * 4)


def rig(truth: Truth = TRUTH, *, seed: int = 0, launch_s: float = 120.0, level_s: float = 60.0) -> SimulatedRig:
    return SimulatedRig({"plain": truth}, LEVELS, seed=seed, launch_s=launch_s, level_s=level_s)


def order(arm: record.Arm, ordinal: int, levels: tuple[int, ...] = LEVELS) -> Order:
    return Order(variant="plain", arm=arm, ordinal=ordinal, block=ordinal, levels=levels)


def logs(made: SimulatedRig, count: int, arm: record.Arm = "candidate") -> Matrix:
    """So many launches of a night, as deviations from the truth."""
    rows = []
    for ordinal in range(1, count + 1):
        taken = made.measure(order(arm, ordinal)).measurements
        rows.append([np.log(each.rounds[0].summary.output_throughput) for each in taken if each.rounds[0].summary])
    found: Matrix = np.array(rows) - np.log(made.truths["plain"].throughput)
    return found


def test_launches_of_a_night_vary_as_the_truth_says_and_share_what_it_says() -> None:
    found = logs(rig(replace(TRUTH, night=0.0, shared=0.4)), 3000)
    assert found.std(axis=0) == pytest.approx(np.full(4, 0.01), rel=0.06)
    correlation: Matrix = np.asarray(np.corrcoef(found.T))
    assert correlation[np.triu_indices(4, 1)] == pytest.approx(np.full(6, 0.4), abs=0.06)


def test_nights_differ_as_the_truth_says() -> None:
    centers: Matrix = np.array(
        [logs(rig(replace(TRUTH, night=1.0, night_level=0.5), seed=seed), 30).mean(axis=0) for seed in range(300)]
    )
    common = centers.mean(axis=1)
    assert common.std() == pytest.approx(0.01 * np.sqrt(1 + 0.25 / 4), rel=0.15)
    assert (centers - common[:, None]).std(axis=0) == pytest.approx(np.full(4, 0.005 * np.sqrt(3 / 4)), rel=0.2)


def test_the_candidate_differs_from_the_reference_by_its_change_and_nothing_else() -> None:
    change = np.array([np.log(0.97), 0.0, 0.1, 0.0])
    both = [
        SimulatedRig({"plain": replace(TRUTH, spread=(1e-6,) * 4)}, LEVELS, seed=4, changes={"plain": change})
        for _ in range(2)
    ]
    candidate, reference = logs(both[0], 1), logs(both[1], 1, "reference")
    assert candidate - reference == pytest.approx(change[None], abs=1e-9)


def test_what_the_model_leaves_out_is_there_where_it_is_asked_for() -> None:
    quiet = replace(TRUTH, night=0.0)
    spread = logs(rig(quiet), 2000).std()
    assert logs(rig(replace(quiet, scale=4.0)), 2000).std() == pytest.approx(2 * spread, rel=0.05)
    hiccups = logs(rig(replace(quiet, hiccups=0.02)), 2000) < -HICCUP / 2 * 0.01
    assert hiccups.mean() == pytest.approx(0.02, abs=0.006)
    tails = logs(rig(replace(quiet, tails="t4")), 4000)
    assert tails.std() == pytest.approx(spread, rel=0.15)
    assert (np.abs(tails) > 0.04).mean() > 10 * (np.abs(logs(rig(quiet), 4000)) > 0.04).mean()
    drifting = rig(replace(quiet, drift=-2.0))
    found = logs(drifting, 21)  # of six minutes each: two hours and six minutes
    assert found[-1, :].mean() - found[0, :].mean() == pytest.approx(-2.0 * 0.01, abs=0.02)
    assert np.polyfit(np.arange(21), found.mean(axis=1), 1)[0] < 0


def test_a_stored_baseline_is_what_this_rig_would_have_measured_on_other_nights() -> None:
    stored = rig().store(200, 50)
    assert set(stored) == {("plain", level) for level in LEVELS}
    for (_, level), case in stored.items():
        assert is_sound(case)
        assert case.nights == (200, 50)
        assert np.mean(np.log(throughputs(case.launches))) == pytest.approx(
            np.log(TRUTH.throughput[LEVELS.index(level)]), abs=0.005
        )
    found = stored_noise(suite(stored).cases)
    assert found is not None
    assert found.spread == pytest.approx(np.full(4, 0.01), rel=0.15)
    assert 0.5 < np.sqrt(found.night) / 0.005 < 2


def test_a_night_of_several_launches_is_one_night() -> None:
    stored = rig().store(3, 0, launches=4)
    assert {case.nights for case in stored.values()} == {(3, 0)}
    assert {len(case.launches) for case in stored.values()} == {12}


def test_time_is_the_rigs_own_and_a_launch_costs_its_start_and_its_levels() -> None:
    made = rig(launch_s=100.0, level_s=10.0)
    first = made.measure(order("candidate", 1, (1, 64)))
    second = made.measure(order("reference", 1, (4,)))
    assert (first.duration_s, second.duration_s, made.now_s) == (120.0, 110.0, 230.0)
    assert first.started_at < second.started_at
    assert [taken.level for taken in first.measurements] == [1, 64]


def test_the_same_seed_is_the_same_night_and_another_is_another() -> None:
    def night(seed: int) -> record.SuiteRecord:
        made = rig(seed=seed)
        return made.run(suite(made.store(20, 20)))

    assert night(1) == night(1)
    assert night(1).launches != night(2).launches


def test_what_is_simulated_is_a_campaign_that_can_be_kept_and_judged() -> None:
    made = rig(seed=3)
    done = made.run(suite(made.store(20, 20)))
    assert record._problem(done) is None
    assert campaign(done).suites == (done,)
    assert {verdict.word for verdict in judge(done)} == {Word.PASS}
    assert {verdict.id for verdict in judge(done)} == {f"simulated/plain/c{level:03d}" for level in LEVELS}
