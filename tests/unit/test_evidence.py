"""What launches say of a change, against the whole linear model written out and solved at once."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.evidence import (
    CLIPPED_AT,
    DRIFT_AT_MOST,
    DRIFT_AT_ONCE,
    DRIFT_PER_HOUR,
    GAINS,
    LOSSES,
    RAW,
    RIDGE,
    Evidence,
    Observed,
    Route,
)
from perf.noise import Matrix, Noise, Vector
from tests.unit.nights import known

MARGIN = 0.03
UNEQUAL = (0.004, 0.01, 0.012, 0.02, 0.03)


def told(noise: Noise, launches: Sequence[Observed]) -> Evidence:
    evidence = Evidence(noise, MARGIN)
    for launch in launches:
        evidence.add(launch)
    return evidence


def launches_of(
    noise: Noise, seed: int, blocks: Sequence[Sequence[bool]], *, missing: float = 0.0, order: Sequence[int] = ()
) -> list[Observed]:
    """A launch for each arm in each block (True is the candidate), some levels of it missing."""
    luck = np.random.default_rng(seed)
    made = []
    for number, arms in enumerate(blocks, 1):
        hours = 0.7 * number
        for arm in arms:
            logs = noise.mean + 0.01 * luck.standard_normal(len(noise.mean))
            there = luck.random(len(logs)) >= missing
            there[luck.integers(len(logs))] = True
            made.append(Observed(candidate=arm, block=number, hours=hours, logs=np.where(there, logs, np.nan)))
    return [made[place] for place in order] if order else made


def solved(noise: Noise, launches: Sequence[Observed], *, fresh: bool) -> tuple[Matrix, Vector]:
    """Information and score of the change, from the covariance of every number of every launch. RAW data only.

    The unknowns are tonight's reference means (around the stored ones with `noise.stored`, or unknown), the change,
    and on the fresh route one time of each block; on the stored route that is part of the covariance.
    """
    count = len(noise.mean)
    rows = [(number, launch, level) for number, launch in enumerate(launches) for level in range(count)]
    rows = [row for row in rows if np.isfinite(row[1].logs[row[2]])]
    y = np.array([launch.logs[level] - noise.mean[level] for _, launch, level in rows])
    blocks = sorted({launch.block for launch in launches})
    began = {block: next(each.hours for each in launches if each.block == block) for block in blocks}
    covariance = np.zeros((len(rows), len(rows)))
    means, changes, times = (np.zeros((len(rows), size)) for size in (count, count, len(blocks)))
    for row, (number, launch, level) in enumerate(rows):
        means[row, level] = 1
        changes[row, level] = launch.candidate
        times[row, blocks.index(launch.block)] = 1
        for column, (other, beside, _) in enumerate(rows):
            covariance[row, column] += noise.shared * (number == other) + noise.own[level] * (row == column)
            if not fresh and launch.block == beside.block:
                drift = min(DRIFT_AT_MOST, DRIFT_AT_ONCE + DRIFT_PER_HOUR * began[launch.block])
                covariance[row, column] += drift * noise.typical
    design = np.hstack((changes, means, times) if fresh else (changes, means))
    weighted = np.linalg.solve(covariance, np.column_stack((design, y)))
    precision = design.T @ weighted[:, :-1]
    about = RIDGE * np.diag(1 / noise.own) if fresh else np.linalg.inv(noise.stored)
    precision[count : 2 * count, count : 2 * count] += about
    score = design.T @ weighted[:, -1]
    inner = np.linalg.solve(precision[count:, count:], np.column_stack((precision[count:, :count], score[count:])))
    coupling = precision[:count, count:]
    return precision[:count, :count] - coupling @ inner[:, :-1], score[:count] - coupling @ inner[:, -1]


def same(route: Route, information: Matrix, score: Vector, *, within: float = 1e-9) -> None:
    """Relative to what one launch alone could say: differences of large numbers are exact to that."""
    assert np.abs(route.information - information).max() <= within * np.abs(information).max()
    assert np.abs(route.score[:, RAW] - score).max() <= within * max(np.abs(score).max(), 1.0)


C, R = True, False
NIGHTS = {
    "one launch": [[C]],
    "one pair": [[R, C]],
    "pairs, ABBA": [[R, C], [C, R], [R, C]],
    "candidates alone, then pairs": [[C], [C], [C, R], [R, C], [C]],
    "references that joined late": [[C, R], [C, R]],
    "far more of one arm": [[C]] * 7 + [[R, C]],
    "a reference alone": [[C], [R], [R, C]],
    "several of an arm in a block": [[C, R, R, C], [C, C, R]],
}


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("spread", [(0.01,), (0.01,) * 8, UNEQUAL], ids=["one level", "eight alike", "five unequal"])
@pytest.mark.parametrize("night", NIGHTS.values(), ids=NIGHTS)
def test_both_routes_are_generalised_least_squares_over_everything(
    night: list[list[bool]], spread: tuple[float, ...], missing: float
) -> None:
    noise = known(spread, night_level=0.3)
    for seed in range(3):
        launches = launches_of(noise, seed, night, missing=missing)
        evidence = told(noise, launches)
        same(evidence.stored(), *solved(noise, launches, fresh=False))
        information, score = solved(noise, launches, fresh=True)
        scale = float((1 / noise.own).mean())
        found = evidence.fresh()
        assert np.abs(found.information - information).max() <= 1e-9 * max(np.abs(information).max(), scale)
        assert np.abs(found.score[:, RAW] - score).max() <= 1e-9 * max(np.abs(score).max(), scale * 0.01)


@settings(deadline=None, max_examples=40)
@given(
    night=st.lists(st.sampled_from([[C], [R, C], [C, R]]), min_size=1, max_size=6),
    missing=st.sampled_from([0.0, 0.3, 0.8]),
    seed=st.integers(0, 2**32),
)
def test_the_running_sums_hold_for_any_order_of_blocks_and_any_levels_missing(
    night: list[list[bool]], missing: float, seed: int
) -> None:
    noise = known(UNEQUAL)
    launches = launches_of(noise, seed, night, missing=missing)
    same(told(noise, launches).stored(), *solved(noise, launches, fresh=False))


def test_a_reference_that_joins_the_block_of_a_candidate_is_a_pair_run_at_once() -> None:
    noise = known(0.01)
    first = launches_of(noise, 1, [[C], [C, R], [R, C]])
    swapped = [first[0], first[2], first[1], first[4], first[3]]
    one, other = told(noise, first), told(noise, swapped)
    for a, b in ((one.stored(), other.stored()), (one.fresh(), other.fresh())):
        assert a.information == pytest.approx(b.information, rel=1e-12)
        assert a.score == pytest.approx(b.score, rel=1e-12)


def test_candidates_alone_say_nothing_to_the_fresh_route() -> None:
    noise = known(0.01)
    lone = told(noise, launches_of(noise, 2, [[C]] * 9)).fresh()
    scale = float((1 / noise.own).mean())
    assert np.abs(lone.information).max() < 1e-6 * scale
    pair = launches_of(noise, 3, [[R, C]])
    beside = [*pair, *launches_of(noise, 3, [[R, C], *[[C]] * 9])[2:]]
    lone_added, without = told(noise, beside).fresh(), told(noise, pair).fresh()
    # What a lone candidate says of its own levels against each other is of this night, too.
    common = np.ones(8)
    assert common @ lone_added.information @ common == pytest.approx(common @ without.information @ common, rel=1e-6)


def test_nothing_at_all_is_known_before_the_first_launch() -> None:
    evidence = Evidence(known(0.01), MARGIN)
    for route in (evidence.stored(), evidence.fresh()):
        assert not route.information.any()
        assert not route.score.any()


def test_the_stored_means_may_be_anything_to_the_fresh_route() -> None:
    noise = known(0.01)
    pairs = launches_of(noise, 4, [[R, C], [C, R]])
    shifted = [
        Observed(candidate=each.candidate, block=each.block, hours=each.hours, logs=each.logs + 0.004) for each in pairs
    ]
    one, other = told(noise, pairs).fresh(), told(noise, shifted).fresh()
    assert one.information == pytest.approx(other.information)
    assert one.score[:, RAW] == pytest.approx(other.score[:, RAW], abs=1e-4 * np.abs(one.score).max())


def test_a_common_change_is_known_no_better_than_the_night_on_the_stored_route() -> None:
    noise = known(0.01)
    common = np.ones(8)
    one = np.eye(8)[0]
    for count in (1, 10, 100):
        information = told(noise, launches_of(noise, 5, [[C]] * count)).stored().information
        assert 1 / float(common @ information @ common) > noise.night
        if count > 1:
            assert 1 / float(one @ information @ one) < noise.night


def test_what_is_launched_late_in_the_night_tells_less_of_a_common_change() -> None:
    noise = known(0.01)
    common, told_of = np.ones(8), []
    for hours in (0.0, 1.0, 4.0, 40.0):
        late = [replace(each, hours=hours) for each in launches_of(noise, 7, [[C]] * 3)]
        told_of.append(float(common @ told(noise, late).stored().information @ common))
    assert told_of[0] > 1.1 * told_of[1] > told_of[2] == told_of[3]


# What is clipped


@pytest.mark.parametrize("offset", [-0.3, -0.1, -0.03, 0.03, 0.1], ids=str)
@pytest.mark.parametrize("place", [slice(None), 0], ids=["all levels", "one level"])
def test_two_arms_that_are_equally_far_from_the_store_do_not_differ(offset: float, place: slice | int) -> None:
    """Clipped around the store they would: a candidate is believed further down than a reference is."""
    noise = known(0.003)
    for night in NIGHTS.values():
        launches = launches_of(known(0.003), 6, night)
        if all(each.candidate for each in launches):
            continue
        at = np.zeros(8)
        at[place] = offset
        moved = [
            Observed(candidate=each.candidate, block=each.block, hours=each.hours, logs=0.1 * each.logs + at)
            for each in launches
        ]
        route = told(noise, moved).fresh()
        for column in (LOSSES, GAINS, RAW):
            estimate = np.linalg.pinv(route.information, rcond=1e-6, hermitian=True) @ route.score[:, column]
            assert np.abs(estimate).max() < 0.01


def test_one_odd_reference_launch_is_pulled_in_once_there_are_others() -> None:
    noise = known(0.005)
    calm = [
        Observed(candidate=arm, block=block, hours=0.0, logs=np.zeros(8)) for block in range(1, 6) for arm in (R, C)
    ]
    odd = [*calm]
    odd[0] = Observed(candidate=R, block=1, hours=0.0, logs=np.full(8, -0.3))
    for column in (LOSSES, GAINS):
        route = told(noise, odd).fresh()
        estimate = np.linalg.solve(route.information, route.score[:, column])
        assert 0 < estimate.max() < 0.01
        assert np.linalg.solve(route.information, route.score[:, RAW]).max() > 0.05


def test_a_level_far_off_counts_as_much_as_one_that_is_twice_as_far_as_asked() -> None:
    noise = known(0.01)

    def loss_of(log: float, column: int) -> float:
        logs = np.zeros(8)
        logs[0] = log
        evidence = told(noise, [Observed(candidate=True, block=1, hours=0.0, logs=logs)])
        return float(evidence.stored().score[0, column])

    assert loss_of(-0.3, LOSSES) == loss_of(-3.0, LOSSES) > loss_of(-3.0, RAW)
    assert loss_of(-0.02, LOSSES) == pytest.approx(loss_of(-0.02, RAW))
    assert loss_of(0.3, GAINS) == loss_of(3.0, GAINS) < loss_of(3.0, RAW)
    for log in (-0.5, -0.03, 0.0, 0.01, 0.2):  # gains are the mirror image
        assert loss_of(log, LOSSES) == pytest.approx(-loss_of(-log, GAINS))


@settings(deadline=None, max_examples=50)
@given(log=st.floats(-2, 2), candidate=st.booleans())
def test_what_is_taken_in_is_within_what_could_be(log: float, candidate: bool) -> None:
    noise = known(0.01)
    deviation = Evidence(noise, MARGIN).add(
        Observed(candidate=candidate, block=1, hours=0.0, logs=np.array([log] + [np.nan] * 7))
    )
    reach = CLIPPED_AT * float(np.sqrt(noise.spread[0] ** 2 + noise.night + DRIFT_AT_ONCE * noise.typical))
    assert np.isnan(deviation[1:]).all()
    limit = max(reach, MARGIN) + MARGIN / 2 if candidate else reach
    assert deviation[0] == pytest.approx(np.clip(log, -limit, limit))
