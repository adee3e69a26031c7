"""What must hold of the gate for every night, whatever is measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perf.evidence import GAINS, LOSSES, RAW, Observed
from perf.gate import Gate, Rule, Word
from perf.noise import Noise, Vector
from tests.unit.nights import ALONE, RULE, Tonight, judged, known

#: No limit on the time of one example: the machine that runs the tests may be busy with anything.
unhurried = settings(deadline=None, max_examples=60)

#: From nothing to far more than any margin.
changes = st.sampled_from([0.0, 0.0, 0.0, -0.01, -0.02, -0.03, -0.05, -0.3, 0.01, 0.03, 0.1])
small = st.sampled_from([0.0, 0.0, -0.01, 0.01, 0.02])
rules = st.builds(
    Rule,
    margin=st.sampled_from([0.01, 0.03, 0.1]),
    alpha=st.sampled_from([0.05, 0.01]),
    power=st.sampled_from([0.9, 0.95]),
    families=st.integers(1, 4),
    reference=st.booleans(),
)


@st.composite
def nights(draw: st.DrawFn, *, most: int = 5, lone: bool = True, calm: bool = False) -> Tonight:
    """A rig of 1 to 5 levels and what it ran: lone candidates and pairs, of all levels or some.

    On a calm night nothing is far from the store but what little the candidate changed.
    """
    levels = draw(st.integers(1, 5))
    spread = tuple(draw(st.sampled_from([0.002, 0.005, 0.01, 0.02])) for _ in range(levels))
    noise = known(spread, night_level=draw(st.sampled_from([0.0, 0.3])), launches=draw(st.sampled_from([2, 20])))
    change = np.array([draw(small if calm else changes) for _ in range(levels)])
    rig = Tonight(noise, change, draw(st.integers(0, 2**32)))
    if not calm:
        rig.center = rig.center + draw(st.sampled_from([0.0, 0.0, -0.02, 0.1]))
    some = st.sets(st.integers(0, levels - 1), min_size=1).map(sorted)
    for _ in range(draw(st.integers(1, most))):
        chosen = None if draw(st.booleans()) else draw(some)
        if lone and draw(st.booleans()):
            rig.lone(chosen)
        else:
            rig.pair(chosen)
    return rig


def words(gate: Gate) -> list[Word]:
    return [gate.word(level) for level in range(len(gate.noise.mean))]


def changed(launches: Sequence[Observed], logs: Callable[[Observed], Vector]) -> list[Observed]:
    """The same launches with other numbers."""
    return [replace(each, logs=logs(each)) for each in launches]


@unhurried
@given(night=nights(), rule=rules)
def test_every_level_has_exactly_one_of_four_words_and_the_same_launches_give_the_same(
    night: Tonight, rule: Rule
) -> None:
    gate = judged(night.noise, night.ran, rule)
    for level, word in enumerate(words(gate)):
        lost, gained = gate.losses.convicted[level], gate.gains.convicted[level]
        assert not (lost and gained)
        possible = bool(gate.losses.live[level])
        told = [lost, gained, not lost and not gained and not possible, not lost and not gained and possible]
        assert told.count(True) == 1
        assert word is (Word.REGRESSED, Word.IMPROVED, Word.PASS, Word.INCONCLUSIVE)[told.index(True)]
    again = judged(night.noise, night.ran, rule)
    assert words(again) == words(gate)
    assert again.losses.mixture == gate.losses.mixture


@unhurried
@given(night=nights(most=12), rule=rules)
def test_the_store_alone_never_convicts_where_there_is_a_reference_build(night: Tonight, rule: Rule) -> None:
    candidates = [each for each in night.ran if each.candidate]
    assert not judged(night.noise, candidates, replace(rule, reference=True)).decided.any()


@unhurried
@given(night=nights(most=10, lone=False), rule=rules, offset=st.floats(-0.5, 0.5), data=st.data())
def test_arms_that_are_alike_in_every_pair_convict_nobody_whatever_is_stored(
    night: Tonight, rule: Rule, offset: float, data: st.DataObject
) -> None:
    """Not one offset of all levels, and not another for each."""
    levels = len(night.noise.mean)
    each = np.array(
        [offset] * levels if data.draw(st.booleans()) else [data.draw(st.floats(-0.5, 0.5)) for _ in range(levels)]
    )
    of_block = {launch.block: launch.logs for launch in night.ran if not launch.candidate}
    alike = changed(night.ran, lambda launch: of_block[launch.block] + each)
    assert not judged(night.noise, alike, replace(rule, reference=True)).decided.any()


@unhurried
@given(night=nights(), rule=rules)
def test_a_launch_exactly_as_stored_is_neither_red_nor_improved(night: Tonight, rule: Rule) -> None:
    same = changed(night.ran, lambda launch: np.where(np.isfinite(launch.logs), night.noise.mean, np.nan))
    assert set(words(judged(night.noise, same, rule))) <= {Word.PASS, Word.INCONCLUSIVE}


@unhurried
@given(night=nights(), rule=rules, factor=st.floats(1e-6, 1e6))
def test_scaling_both_sides_changes_nothing(night: Tonight, rule: Rule, factor: float) -> None:
    moved = changed(night.ran, lambda launch: launch.logs + np.log(factor))
    gate = judged(night.noise, night.ran, rule)
    scaled = judged(replace(night.noise, mean=night.noise.mean + np.log(factor)), moved, rule)
    assert words(scaled) == words(gate)
    for level in np.flatnonzero(gate.launches[True]):
        one, other = gate.change(int(level)), scaled.change(int(level))
        assert abs(one.estimate - other.estimate) < 1e-6
        assert one.fresh is other.fresh


def is_believed(gate: Gate) -> bool:
    """Was nothing clipped: is everything taken in as it was measured?"""
    return all(
        np.allclose(route.score[:, column], route.score[:, RAW], rtol=1e-9, atol=1e-6)
        for route in (gate.stored, gate.fresh)
        for column in (LOSSES, GAINS)
    )


@unhurried
@given(night=nights(calm=True), rule=rules, factor=st.floats(0.97, 0.999))
def test_slowing_every_candidate_launch_by_one_factor_never_improves_the_worst_verdict(
    night: Tonight, rule: Rule, factor: float
) -> None:
    """The order is IMPROVED, PASS, INCONCLUSIVE, REGRESSED; what is slower stays or moves down it.

    Of what is clipped that cannot be said: there a level's own loss may drown in the loss of all.
    """
    downhill = (Word.IMPROVED, Word.PASS, Word.INCONCLUSIVE, Word.REGRESSED)
    slower = changed(night.ran, lambda launch: launch.logs + (np.log(factor) if launch.candidate else 0.0))
    before, after = judged(night.noise, night.ran, rule), judged(night.noise, slower, rule)
    assume(is_believed(before) and is_believed(after))
    assert max(map(downhill.index, words(after))) >= max(map(downhill.index, words(before)))


@unhurried
@given(night=nights(), rule=rules)
def test_gains_are_the_mirror_image_of_losses(night: Tonight, rule: Rule) -> None:
    """All but the guard's look at the first launch, which leaves out the lowest level: it looks away here."""
    ran = night.ran
    if len(night.noise.mean) > 2:
        first = next(each for each in ran if each.candidate)
        flat = replace(first, logs=np.where(np.isfinite(first.logs), night.noise.mean, np.nan))
        ran = [flat if each is first else each for each in ran]
    mirrored = changed(ran, lambda launch: -launch.logs)
    one, other = judged(night.noise, ran, rule), judged(night.noise, mirrored, rule)
    for gate in (one, other):  # where both are to be had at one launch, the loss comes first, and frees its level
        assume(not (gate.losses.convicted.any() and gate.gains.convicted.any()))
    assert one.losses.convicted.tolist() == other.gains.convicted.tolist()
    assert one.gains.convicted.tolist() == other.losses.convicted.tolist()
    assert one.losses.excluded.tolist() == other.gains.excluded.tolist()
    assert one.guard.factor == other.guard.factor


@unhurried
@given(night=nights(), rule=rules)
def test_what_is_decided_stays_decided(night: Tonight, rule: Rule) -> None:
    """More launches come from the rule, never because something reads badly: none takes a red back."""
    gate = Gate(night.noise, rule)
    before = gate.decided
    for launch in night.ran:
        gate.add(launch)
        assert (gate.decided >= before).all()
        before = gate.decided


@unhurried
@given(night=nights(most=12), rule=rules)
def test_a_level_that_is_called_looks_like_it_when_it_is(night: Tonight, rule: Rule) -> None:
    gate = Gate(night.noise, rule)
    before = gate.decided
    for launch in night.ran:
        gate.add(launch)
        for level in np.flatnonzero(gate.decided & ~before):
            change = gate.change(int(level)).estimate
            assert change < 0 if gate.losses.convicted[level] else change > 0
        before = gate.decided


@unhurried
@given(night=nights(), rule=rules)
def test_the_order_of_levels_changes_nothing(night: Tonight, rule: Rule) -> None:
    count = len(night.noise.mean)
    turned = [*range(1, count), 0]
    gate = judged(night.noise, night.ran, rule)
    other = judged(night.noise.of(turned), changed(night.ran, lambda launch: launch.logs[turned]), rule)
    assert [words(other)[turned.index(level)] for level in range(count)] == words(gate)


@unhurried
@given(night=nights(), rule=rules)
def test_every_change_lies_in_its_interval_and_what_could_be_seen_is_positive(night: Tonight, rule: Rule) -> None:
    gate = judged(night.noise, night.ran, rule)
    for level in np.flatnonzero(gate.launches[True]):
        found = gate.change(int(level))
        assert found.lo <= found.estimate <= found.hi
        assert found.error > 0
        seen = gate.could_see(int(level))
        assert seen is None or seen > 0


def noisier(noise: Noise, factor: float) -> Noise:
    return replace(
        noise,
        spread=noise.spread * factor,
        own=noise.own * factor**2,
        shared=noise.shared * factor**2,
        night=noise.night * factor**2,
        night_level=noise.night_level * factor**2,
        stored=noise.stored * factor**2,
    )


@unhurried
@given(night=nights(), reference=st.booleans())
def test_a_noisier_store_sees_less(night: Tonight, reference: bool) -> None:
    rule = RULE if reference else ALONE
    flat = changed(night.ran, lambda launch: np.where(np.isfinite(launch.logs), 0.0, np.nan))
    for level in np.flatnonzero(judged(night.noise, flat, rule).launches[True]):
        quiet = judged(night.noise, flat, rule).could_see(int(level))
        loud = judged(noisier(night.noise, 2.0), flat, rule).could_see(int(level))
        assert quiet is not None
        assert loud is not None
        assert loud > quiet
