"""How much launches vary, as it is read from stores whose truth is known."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from perf.noise import (
    ASSUMED_SPREAD,
    LEAST_SPREAD,
    NIGHT_ALLOWANCE,
    PRIOR_NIGHT,
    PRIOR_NIGHT_SPREAD,
    PRIOR_SHARED,
    Night,
    Noise,
    estimate,
)
from perf.trial import stored_noise
from tests.unit.nights import drawn
from tests.unit.simulated import stored, suite

EIGHT = (0.01,) * 8


def night(*rows: tuple[float, ...], name: str = "night") -> Night:
    return Night(name=name, logs=np.array(rows))


def same(one: Noise, other: Noise, *, within: float = 0.0) -> bool:
    return all(
        np.allclose(value, asdict(other)[name], rtol=within, atol=within, equal_nan=True)
        for name, value in asdict(one).items()
    )


# What large stores say


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6])
@pytest.mark.parametrize("between", [0.5, 1.0])
def test_a_large_store_tells_the_spread_what_a_launch_shares_and_the_night(share: float, between: float) -> None:
    found = estimate(drawn(1, spread=EIGHT, nights=600, launches=3, share=share, night=between))
    assert found.spread == pytest.approx(np.full(8, 0.01), rel=0.03)
    assert found.shared / found.typical == pytest.approx(share, abs=0.04)
    assert found.own == pytest.approx(found.spread**2 - found.shared)
    assert found.night / found.typical == pytest.approx(NIGHT_ALLOWANCE * between**2, rel=0.15)
    assert found.night_level.max() < 0.03 * found.typical
    assert (found.launches, found.nights) == (1800, 600)
    assert found.freedom == pytest.approx(np.full(8, 1200.0))


def test_a_large_store_tells_what_a_night_does_to_single_levels() -> None:
    found = estimate(drawn(2, spread=EIGHT, nights=600, launches=3, night_level=0.5))
    assert found.night_level / found.spread**2 == pytest.approx(np.full(8, 0.25), rel=0.15)
    assert found.night / found.typical == pytest.approx(NIGHT_ALLOWANCE * 0.25, rel=0.3)


def test_levels_that_differ_in_noise_keep_their_own_spread() -> None:
    """Published: steady at every level but one."""
    truth = (0.0028, 0.0026, 0.0026, 0.0011, 0.0015, 0.0254, 0.005, 0.005)
    found = estimate(drawn(3, spread=truth, nights=300, launches=3))
    assert found.spread == pytest.approx(np.array(truth), rel=0.08)
    assert np.all(found.own > 0)


def test_what_the_store_knows_of_its_mean_is_its_launches_and_the_nights_then_and_now() -> None:
    """One launch a night: (launch variance + night) over their number, and tonight's own night."""
    found = estimate(drawn(4, spread=EIGHT, nights=25, launches=1))
    there = (found.shared + np.diag(found.own)) / 25 + (found.night + np.diag(found.night_level)) * (1 + 1 / 25)
    assert found.stored == pytest.approx(there)


def test_many_launches_of_one_night_do_not_average_the_night_out() -> None:
    many = estimate(drawn(5, spread=EIGHT, nights=1, launches=200))
    assert many.stored == pytest.approx(np.full((8, 8), 2 * many.night), rel=0.1)


# Stores of every shape


@pytest.mark.parametrize(
    ("spread", "nights", "launches"),
    [
        (EIGHT, 20, 1),
        (EIGHT, 1, 4),
        (EIGHT, 2, 1),
        (EIGHT, 1, 2),
        (EIGHT, 4, 3),
        ((0.01,), 10, 1),
        ((0.01,), 1, 4),
        ((0.02, 0.03), 3, 2),
        ((0.01,) * 12, 10, 2),
        ((0.01,) * 16, 1, 4),
    ],
)
def test_a_store_of_any_shape_gives_noise_that_can_be_worked_with(
    spread: tuple[float, ...], nights: int, launches: int
) -> None:
    for seed in range(20):
        store = drawn(seed, spread=spread, nights=nights, launches=launches)
        found = estimate(store)
        check(found)
        assert found.mean == pytest.approx(np.vstack([each.logs for each in store]).mean(axis=0))
        assert (found.launches, found.nights) == (nights * launches, nights)
        assert found.freedom.any()


def check(found: Noise) -> None:
    assert np.all(found.spread >= LEAST_SPREAD)
    assert np.all(found.own > 0)
    assert found.shared > 0
    assert found.night > 0
    assert np.all(found.night_level >= 0)
    assert found.stored == pytest.approx(found.stored.T)
    assert np.linalg.eigvalsh(found.stored).min() > 0


def test_levels_that_some_launches_lack_are_estimated_from_those_that_have_them() -> None:
    store = drawn(6, spread=EIGHT, nights=200, launches=3)
    luck = np.random.default_rng(6)
    holes = [replace(each, logs=np.where(luck.random(each.logs.shape) < 0.4, np.nan, each.logs)) for each in store]
    found = estimate(holes)
    check(found)
    assert found.spread == pytest.approx(np.full(8, 0.01), rel=0.08)
    assert found.shared / found.typical == pytest.approx(0.25, abs=0.06)
    assert found.mean == pytest.approx(np.nanmean(np.vstack([each.logs for each in holes]), axis=0))


def test_a_level_that_was_never_launched_twice_in_a_night_is_as_noisy_as_the_others() -> None:
    rows = drawn(7, spread=EIGHT, nights=1, launches=5)[0].logs
    rows[1:, 3] = np.nan
    found = estimate([night(*map(tuple, rows))])
    check(found)
    assert found.freedom[3] == 0
    assert found.spread[3] == pytest.approx(float(np.exp(np.median(np.log(np.delete(found.spread, 3))))), rel=0.2)


@settings(deadline=None, max_examples=150)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5)),
    holes=st.sampled_from([0.0, 0.3, 0.7]),
    spread=st.sampled_from([0.0, 1e-6, 0.01, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_stored_gives_noise_or_an_error_that_says_why(
    shape: tuple[int, int, int], holes: float, spread: float, seed: int
) -> None:
    nights, launches, levels = shape
    luck = np.random.default_rng(seed)
    store = []
    for number in range(nights):
        logs = 5 + spread * luck.standard_normal((launches, levels))
        logs[luck.random(logs.shape) < holes] = np.nan
        store.append(Night(name=str(number), logs=logs))
    if np.isfinite(np.vstack([each.logs for each in store])).any(axis=0).all():
        check(estimate(store))
    else:
        with pytest.raises(ValueError, match="without a stored launch"):
            estimate(store)


def test_one_stored_launch_tells_no_noise_and_one_percent_is_assumed() -> None:
    found = estimate([night((1.0, 2.0))])
    assert not found.freedom.any()
    assert found.spread == pytest.approx(np.full(2, ASSUMED_SPREAD))
    check(found)


def test_launches_without_any_spread_are_not_taken_for_exact() -> None:
    assert estimate([night(*[(1.0, 2.0)] * 50)]).spread == pytest.approx(np.full(2, LEAST_SPREAD), rel=0.02)


# What small stores may claim


def test_a_small_store_is_widened_as_a_t_quantile_is() -> None:
    """Nights of the same two launches: the variance seen is the same, how sure it is is not."""
    pair = ((0.0,), (0.02 / np.sqrt(2),))

    def seen(count: int) -> float:
        return float(estimate([night(*pair, name=str(number)) for number in range(count)]).spread[0])

    for count in (1, 2, 3, 6):  # from 8 numbers on, winsorising may have a say
        widened = stats.t.ppf(0.95, count) / stats.norm.ppf(0.95)
        assert seen(count) == pytest.approx(0.01 * widened, rel=1e-6)


def test_levels_steady_each_other_where_each_has_few_launches() -> None:
    """Eight levels of one truth, three launches: by themselves their estimates differ by a factor of about ten."""
    ratios = []
    for seed in range(30):
        store = drawn(seed, spread=EIGHT, nights=1, launches=3)
        found = estimate(store).spread
        ratios.append((found.max() / found.min(), store[0].logs.std(axis=0, ddof=1)))
    assert np.median([ratio for ratio, _ in ratios]) < 1.5
    assert np.median([raw.max() / raw.min() for _, raw in ratios]) > 3


def test_a_small_store_leans_on_what_is_assumed_of_shares_and_nights() -> None:
    found = estimate(drawn(8, spread=EIGHT, nights=1, launches=2, share=0.0, night=5.0))
    assert 0.5 * PRIOR_SHARED < found.shared / found.typical < 1.5 * PRIOR_SHARED
    assert found.night == pytest.approx(NIGHT_ALLOWANCE * max(PRIOR_NIGHT * found.typical, PRIOR_NIGHT_SPREAD**2))


def test_nights_differ_however_steady_the_launches_of_the_only_one_are() -> None:
    """Emulated launches agree to the token: that is no reason to think that tonight is like that night."""
    found = estimate([night(*[(1.0, 2.0)] * 4)])
    assert found.night == pytest.approx(NIGHT_ALLOWANCE * PRIOR_NIGHT_SPREAD**2)
    assert np.sqrt(found.stored.diagonal().min()) > PRIOR_NIGHT_SPREAD


# What others may say


def test_launches_of_other_builds_tell_of_noise_and_never_of_the_mean_or_the_nights() -> None:
    baseline = drawn(9, spread=EIGHT, nights=3, launches=1)
    others = drawn(10, spread=(0.03,) * 8, nights=30, launches=2)
    found = estimate(baseline, others)
    alone = estimate(baseline)
    assert found.mean == pytest.approx(alone.mean)
    assert (found.launches, found.nights) == (alone.launches, alone.nights)
    assert found.spread == pytest.approx(np.full(8, 0.03), rel=0.25)
    moved = [replace(each, logs=each.logs + 10 * number) for number, each in enumerate(others)]
    assert same(estimate(baseline, moved), found, within=1e-9)


def test_a_night_of_two_builds_has_one_night_and_two_means() -> None:
    """Both arms of a campaign may be stored; their difference is no noise."""
    logs = drawn(11, spread=EIGHT, nights=1, launches=4)[0].logs
    apart = estimate([Night(name="a", logs=logs), Night(name="a", logs=logs + 0.3)])
    assert apart.nights == 1
    assert apart.spread.max() < 0.03


# What is odd


def test_one_launch_far_off_is_pulled_in_and_does_not_make_a_noisy_level() -> None:
    """Real nights have some that are 10 % and more low, by themselves."""
    store = drawn(12, spread=EIGHT, nights=20, launches=2)
    quiet = estimate(store).spread[2]
    bad = store[7].logs.copy()
    bad[0, 2] -= 0.3
    odd = estimate([*store[:7], replace(store[7], logs=bad), *store[8:]]).spread[2]
    assert odd < 1.5 * quiet


@settings(deadline=None, max_examples=50)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_the_order_of_stored_launches_changes_nothing(data: st.DataObject, seed: int) -> None:
    luck = np.random.default_rng(seed)
    state = suite(
        levels=(1, 8),
        store=tuple(stored(*(100 * np.exp(0.01 * luck.standard_normal(6))), level=level) for level in (1, 8)),
    )
    cases = state.cases
    found = stored_noise(cases)
    assert found is not None
    shuffled = []
    for case in cases:
        assert case.stored is not None
        mixed = tuple(data.draw(st.permutations(case.stored.launches)))
        shuffled.append(replace(case, stored=replace(case.stored, launches=mixed)))
    again = stored_noise(tuple(shuffled))
    assert again is not None
    assert same(again, found)


def test_scaling_everything_that_is_stored_moves_the_mean_alone() -> None:
    store = drawn(13, spread=EIGHT, nights=5, launches=2)
    found = estimate(store)
    scaled = estimate([replace(each, logs=each.logs + 3.0) for each in store])
    assert same(replace(scaled, mean=scaled.mean - 3.0), found, within=1e-9)


def test_noise_of_some_levels_is_that_of_all_without_the_others() -> None:
    found = estimate(drawn(14, spread=(0.01, 0.02, 0.03), nights=5, launches=2))
    chosen = found.of((2, 0))
    assert chosen.spread == pytest.approx(found.spread[[2, 0]])
    assert chosen.stored == pytest.approx(found.stored[np.ix_([2, 0], [2, 0])])
    assert (chosen.shared, chosen.night, chosen.launches) == (found.shared, found.night, found.launches)
