"""Promotion: the only way a baseline is written, and never without a person's reason."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from perf import baseline
from perf.baseline import Store
from perf.campaign import FIRST_BASELINE_LAUNCHES
from perf.files import FileError
from perf.gate import Word
from perf.promotion import MAX_REASON, Outcome, PromotionError, promote
from perf.promotion import told as told_lines
from perf.record import Arm, Campaign, LaunchRecord, Measurement, SuiteRecord
from perf.rig import Gpu, Rig
from perf.sample import Build, StoredCase, throughputs
from perf.verdict import judge
from tests.unit.simulated import RIG, SimulatedRig, campaign, failed, launch, measured, relation, stored, suite
from tests.unit.test_long_life import disk_of

BUILD = Build(sglang="0.5.23", torch=None, cuda=None, commit="a", dirty=None, kernels=(), packages="p")
PATCHED = replace(BUILD, commit="b")

#: A store that knows how little its launches vary.
STEADY = stored(*(100.0, 100.1, 99.9, 100.0) * 2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def night(*throughputs: float, store: tuple[StoredCase, ...] = (), level: int = 1) -> SuiteRecord:
    """A suite of one case, measured."""
    launches = tuple(
        launch(measured(value, level=level), ordinal=number) for number, value in enumerate(throughputs, start=1)
    )
    return suite(levels=(level,), store=store, launches=launches)


def run(
    whole: Campaign,
    store: Store,
    *,
    reason: str = "why",
    pattern: str | None = None,
    add: bool = False,
    arm: Arm = "candidate",
) -> Outcome:
    return promote(whole, store, reason=reason, pattern=pattern, add=add, arm=arm)


def read(store: Store, variant: str = "baseline") -> tuple[StoredCase, ...]:
    return store.read(RIG.id, "sim", variant)


def told(done: Outcome) -> list[tuple[str, float | None, float, int]]:
    """What was promoted, without rounding."""
    return [
        (
            each.case,
            None if each.before is None else round(each.before.throughput, 9),
            round(each.after.throughput, 9),
            each.after.launches,
        )
        for each in done.promoted
    ]


# What may be promoted


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (night(100.0, 100.0), Word.NO_BASELINE),
        (night(100.0, 100.0, store=(stored(100.0, 100.1),)), Word.PASS),
        (night(110.0, 110.1, 109.9, 110.0, store=(STEADY,)), Word.IMPROVED),
        (night(80.0, 80.1, 79.9, 80.0, store=(STEADY,)), Word.REGRESSED),
        (night(80.0, 110.0, store=(stored(100.0, 100.1),)), Word.INCONCLUSIVE),
    ],
)
def test_every_case_that_may_be_believed_can_be_promoted(store: Store, state: SuiteRecord, word: Word) -> None:
    assert judge(state)[0].word is word
    done = run(campaign(state), store, reason="  accepted, #42 ")
    assert [each.case for each in done.promoted] == ["sim/baseline/c001"]
    assert done.refused == ()
    (case,) = read(store)
    assert (case.promotion.reason, case.promotion.campaign) == ("accepted, #42", "20260201-020000")
    assert len(case.launches) == case.promotion.launches == len(state.launches)


def test_an_invalid_case_can_never_become_a_baseline(store: Store) -> None:
    state = suite(launches=(launch(measured(100.0)), launch(failed(), ordinal=2)))
    done = run(campaign(state), store)
    assert done == Outcome(promoted=(), crossovers=(), refused=(("sim/baseline/c001", "INVALID: requests failed"),))
    assert not store.folder.exists()


def test_what_no_later_night_could_be_judged_by_is_refused_before_anything_is_written(store: Store) -> None:
    twice = suite(launches=(launch(measured(100.0)), launch(measured(101.0))))  # one name: unsound as stored
    done = run(campaign(twice), store)
    said = "nothing can be judged by what was measured, such as a clock of 0: measure it again"
    assert done.refused == (("sim/baseline/c001", said),)
    assert not store.folder.exists()


def test_an_advisory_case_can_never_become_a_baseline(store: Store) -> None:
    state = replace(night(100.0, 100.0), advisory="measured on a server that already ran")
    done = run(campaign(state), store)
    assert done.refused == (("sim/baseline/c001", "measured on a server that already ran"),)
    assert not store.folder.exists()


def test_a_campaign_that_is_not_complete_is_refused_as_a_whole(store: Store) -> None:
    with pytest.raises(PromotionError, match=r"not complete \(interrupted, or still running\): measure again"):
        run(campaign(night(100.0), complete=False), store)
    assert not store.folder.exists()


def test_what_can_be_promoted_is_and_what_cannot_is_named(store: Store) -> None:
    state = suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        launches=(
            launch(measured(100.0), failed(8)),
            launch(measured(50.0), measured(90.0, level=8), variant="eagle3"),
        ),
    )
    done = run(campaign(state), store)
    assert [each.case for each in done.promoted] == ["sim/baseline/c001", "sim/eagle3/c001", "sim/eagle3/c008"]
    assert done.refused == (("sim/baseline/c008", "INVALID: requests failed"),)
    assert [case.level for case in read(store)] == [1]
    assert [case.level for case in read(store, "eagle3")] == [1, 8]


def test_a_relation_is_not_a_sample_and_is_not_promoted(store: Store) -> None:
    state = suite(
        variants=("baseline", "eagle3"),
        relations=(relation("baseline", "eagle3"),),
        launches=(launch(measured(100.0)), launch(measured(50.0), variant="eagle3")),
    )
    done = run(campaign(state), store)
    assert [each.case for each in done.promoted] == ["sim/baseline/c001", "sim/eagle3/c001"]


def test_old_and_new_are_told(store: Store) -> None:
    assert told(run(campaign(night(100.0, 100.0)), store)) == [("sim/baseline/c001", None, 100.0, 2)]
    assert told(run(campaign(night(110.0)), store)) == [("sim/baseline/c001", 100.0, 110.0, 1)]


def test_what_one_run_promoted_the_next_run_judges(store: Store) -> None:
    rig = SimulatedRig(truth=lambda _variant, _level: 500.0, cv=0.001)
    first = rig.run(suite())
    assert len(first.launches) == FIRST_BASELINE_LAUNCHES
    run(campaign(first), store)
    again = rig.run(suite(store=read(store)))
    assert [each.word for each in judge(again)] == [Word.PASS]
    assert len(again.launches) < FIRST_BASELINE_LAUNCHES


# Why


@pytest.mark.parametrize("reason", ["", "   ", "two\nlines", "x" * (MAX_REASON + 1), "\x1b[2J", "a\tb", "a\u202eb"])
def test_a_reason_is_one_printable_line(store: Store, reason: str) -> None:
    with pytest.raises(PromotionError, match="--reason must be one printable line of at most 500 characters"):
        run(campaign(night(100.0)), store, reason=reason)
    assert not store.folder.exists()


def test_a_reason_in_any_language_is_kept_as_it_was_said(store: Store) -> None:
    run(campaign(night(100.0)), store, reason="schneller — 42 % für alle, 速い")
    assert read(store)[0].promotion.reason == "schneller — 42 % für alle, 速い"


# Which


def two_levels() -> SuiteRecord:
    return suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        launches=(
            launch(measured(100.0), measured(700.0, level=8)),
            launch(measured(50.0), measured(400.0, level=8), variant="eagle3"),
        ),
    )


@pytest.mark.parametrize(
    ("pattern", "promoted"),
    [
        ("*/eagle3/c008", ["sim/eagle3/c008"]),
        ("sim/baseline/*", ["sim/baseline/c001", "sim/baseline/c008"]),
        ("*c00[12]", ["sim/baseline/c001", "sim/eagle3/c001"]),
    ],
)
def test_a_pattern_chooses_cases(store: Store, pattern: str, promoted: list[str]) -> None:
    assert [each.case for each in run(campaign(two_levels()), store, pattern=pattern).promoted] == promoted


@pytest.mark.parametrize("pattern", ["eagle3", "*/EAGLE3/*", ""])
def test_a_pattern_that_matches_nothing_is_refused_and_shows_how_cases_are_written(store: Store, pattern: str) -> None:
    with pytest.raises(PromotionError, match="its cases are written like 'sim/baseline/c001'"):
        run(campaign(two_levels()), store, pattern=pattern)
    assert not store.folder.exists()


def test_a_campaign_without_cases_is_refused(store: Store) -> None:
    with pytest.raises(PromotionError, match="no case of campaign 20260201-020000 was measured"):
        run(campaign(), store)


# Joining


def test_added_launches_join_the_stored_ones(store: Store) -> None:
    run(campaign(night(100.0, 100.0)), store)
    done = run(campaign(night(121.0, 121.0), id="20260301-020000"), store, add=True)
    assert told(done) == [("sim/baseline/c001", 100.0, 110.0, 4)]


def test_launches_that_cannot_join_are_refused_and_the_stored_ones_stay(store: Store) -> None:
    run(campaign(night(100.0, 100.0)), store)
    other = night(50.0)
    other = replace(other, cases=(replace(other.cases[0], workload_digest="other"),))
    done = run(campaign(other, id="20260301-020000"), store, add=True)
    assert done.promoted == ()
    assert done.refused[0][1].endswith("leave out --add")
    assert throughputs(read(store)[0].launches) == pytest.approx((100.0, 100.0))


@pytest.mark.parametrize(
    "other",
    [
        launch(measured(50.0), extra=("--cuda-graph-max-bs", "8")),
        launch(measured(50.0), env={"NCCL_PROTO": "LL"}),
        launch(
            measured(50.0),
            build=PATCHED,
        ),
    ],
    ids=["command", "environment", "build"],
)
def test_launches_of_something_else_never_join(store: Store, other: LaunchRecord) -> None:
    first = launch(
        measured(100.0),
        build=BUILD,
    )
    run(campaign(suite(launches=(first,))), store)
    done = run(campaign(suite(launches=(other,)), id="20260301-020000"), store, add=True)
    assert (done.promoted, done.refused[0][0]) == ((), "sim/baseline/c001")
    assert "ran another workload, build, command or environment" in done.refused[0][1]
    assert throughputs(read(store)[0].launches) == pytest.approx((100.0,))


# Launches of the reference build


def paired(*references: Measurement, build: Build | None = BUILD, id: str = "20260301-020000") -> Campaign:
    """A campaign of a patched build, with its reference in each block."""
    launches = tuple(
        each
        for number, taken in enumerate(references, start=1)
        for each in (
            launch(measured(150.0), ordinal=number, build=PATCHED),
            launch(taken, arm="reference", ordinal=number, build=build),
        )
    )
    return campaign(suite(launches=launches, reference=True), id=id)


def test_only_the_candidate_is_promoted_where_the_reference_is_not_asked_for(store: Store) -> None:
    run(paired(measured(100.0), measured(101.0)), store)
    (case,) = read(store)
    assert throughputs(case.launches) == pytest.approx((150.0, 150.0))
    assert case.build == PATCHED


def test_every_night_the_reference_adds_to_the_store_of_its_own_build(store: Store) -> None:
    run(
        campaign(
            suite(launches=(launch(measured(99.0), build=BUILD), launch(measured(100.0), ordinal=2, build=BUILD)))
        ),
        store,
    )
    done = run(paired(measured(101.0), measured(102.0)), store, arm="reference")
    assert [each.after.launches for each in done.promoted] == [4]
    (case,) = read(store)
    assert throughputs(case.launches) == pytest.approx((99.0, 100.0, 101.0, 102.0))
    assert [each.launch for each in case.launches[2:]] == ["baseline+reference-1", "baseline+reference-2"]
    assert (case.build, case.nights) == (BUILD, (2, 0))


def test_a_reference_that_is_another_build_than_the_stored_one_does_not_join(store: Store) -> None:
    run(paired(measured(100.0), measured(101.0), id="20260201-020000"), store)  # the patched build
    done = run(paired(measured(100.0), measured(101.0)), store, arm="reference")
    assert done.promoted == ()
    assert "ran another build than the reference" in done.refused[0][1]
    assert throughputs(read(store)[0].launches) == pytest.approx((150.0, 150.0))


def test_where_nothing_is_stored_the_reference_is_the_first_baseline(store: Store) -> None:
    run(paired(measured(100.0), measured(101.0)), store, arm="reference")
    assert (read(store)[0].build, read(store)[0].promotion.launches) == (BUILD, 2)


def test_a_campaign_without_a_reference_has_none_to_promote(store: Store) -> None:
    done = run(campaign(night(100.0, 100.0)), store, arm="reference")
    assert done.refused == (("sim/baseline/c001", "no reference launch of this campaign measured it"),)


def test_a_reference_that_must_not_be_believed_is_not_promoted(store: Store) -> None:
    done = run(paired(measured(100.0), failed()), store, arm="reference")
    assert [case for case, _ in done.refused] == ["sim/baseline/c001"]
    assert not store.folder.exists()


# What is told


def test_a_loss_that_came_in_small_steps_is_told(store: Store) -> None:
    for number, rate in enumerate((100.0, 98.5, 97.5), start=1):
        text = "\n".join(told_lines(run(campaign(night(rate, rate), id=f"2026020{number}-020000"), store)))
        assert "drifted" not in text
    done = run(campaign(night(96.5, 96.5), id="20260204-020000"), store)
    since = f"-3.5 % since {read(store)[0].promotions[0].promoted_at[:10]}"
    assert list(told_lines(done)) == [
        f"promoted  sim/baseline/c001: 97.5 -> 96.5 tok/s (-1.0 %), 2 launches, {since}",
        f"drifted   sim/baseline/c001: {since}: no step lost the margin of 3 %, together they did",
    ]


def test_a_loss_that_somebody_accepted_at_once_is_no_drift(store: Store) -> None:
    for number, rate in enumerate((100.0, 90.0, 89.0), start=1):
        text = "\n".join(told_lines(run(campaign(night(rate, rate), id=f"2026020{number}-020000"), store)))
        assert "drifted" not in text


def test_what_was_asked_something_else_has_no_change_in_percent(store: Store) -> None:
    run(campaign(night(100.0, 100.0)), store)
    other = night(50.0, 50.0)
    other = replace(other, cases=(replace(other.cases[0], workload_digest="other"),))
    (line,) = told_lines(run(campaign(other, id="20260301-020000"), store))
    assert line == "promoted  sim/baseline/c001: 100.0 -> 50.0 tok/s (asked something else), 2 launches"


def test_a_baseline_of_one_launch_is_told_with_what_it_cannot_do_and_what_to_do(store: Store) -> None:
    advice = (
        "measure again and promote with --add, or measure with an empty --perf-baselines folder: "
        f"{FIRST_BASELINE_LAUNCHES} launches"
    )
    assert list(told_lines(run(campaign(night(100.0)), store))) == [
        "promoted  sim/baseline/c001: - -> 100.0 tok/s, 1 launch",
        "thin      sim/baseline/c001 is stored as one launch, which says nothing of how launches vary: as long as "
        f"nothing else does, verdicts are INCONCLUSIVE; {advice}",
    ]
    state = SimulatedRig(truth=lambda _variant, _level: 100.0, cv=0.001).run(suite(store=read(store)))
    assert [each.word for each in judge(state)] == [Word.INCONCLUSIVE]
    done = run(campaign(night(100.0, 101.0, 100.5, 99.8), id="20260202-020000"), store, add=True)
    assert not any(line.startswith("thin") for line in told_lines(done))
    done = run(campaign(night(99.0), id="20260203-020000"), store)
    assert list(told_lines(done)) == [
        "promoted  sim/baseline/c001: 100.3 -> 99.0 tok/s (-1.3 %), 1 launch, there were 5, "
        f"-1.0 % since {read(store)[0].promotions[0].promoted_at[:10]}",
        f"thin      sim/baseline/c001 is stored as one launch, which says little of how fast it is; {advice}",
    ]


def test_baselines_of_one_launch_are_one_line_however_many_they_are(store: Store) -> None:
    state = suite(levels=(1, 8), launches=(launch(measured(100.0), measured(90.0, level=8)),))
    lines = list(told_lines(run(campaign(state), store)))
    assert [line.split()[0] for line in lines] == ["promoted", "promoted", "thin"]
    assert lines[2].startswith("thin      2 cases are stored as one launch")


# What is in the files


def test_nothing_of_the_machine_but_its_fingerprint_is_stored(store: Store) -> None:
    state = night(100.0)
    private = replace(
        state.launches[0],
        python="/home/somebody/venv/bin/python",
        env=(("PATH", "/home/somebody/bin"), ("OPENAI_API_KEY", "<hidden>")),
        notes=("/home/somebody",),
    )
    whole = campaign(replace(state, launches=(private,), source="/home/somebody/suite.toml"))
    run(whole, store)
    text = "".join(path.read_text() for path in store.folder.rglob("*") if path.is_file())
    assert "sim/baseline/c001" in text
    for secret in ("somebody", "OPENAI_API_KEY", "/home", whole.rig.machine):
        assert secret not in text


def test_the_fingerprint_of_the_rig_lies_beside_its_baselines(store: Store) -> None:
    gpu = Gpu(
        name="NVIDIA H200",
        uuid="GPU-1",
        power_limit_w=700.0,
        clocks_mhz=(1980, 2619),
        persistent=True,
        pcie=None,
        nvlinks=None,
    )
    rig = Rig(
        gpus=(gpu,),
        driver="570.1",
        cuda="12.8",
        cpu="Xeon",
        governor="performance",
        machine="m",
        kernel="6.1",
        pairs=(),
    )
    state = replace(night(100.0), rig_id=rig.id, power_limits_w=rig.power_limits_w, fingerprint=rig.fingerprint)
    run(replace(campaign(state), rig=rig), store)
    assert json.loads((store.folder / rig.id / "rig.json").read_text()) == {
        "id": rig.id,
        "gpus": [
            {
                "name": "NVIDIA H200",
                "uuid": "GPU-1",
                "power_limit_w": 700.0,
                "clocks_mhz": [1980, 2619],
                "persistent": True,
                "pcie": None,
                "nvlinks": None,
            }
        ],
        "pairs": [],
        "driver": "570.1",
        "cuda": "12.8",
        "cpu": "Xeon",
        "governor": "performance",
        "kernel": "6.1",
    }
    (case,) = store.read(rig.id, "sim", "baseline")
    assert case.power_limits_w == (700.0,)
    assert dict(case.fingerprint)["CUDA of the driver"] == "12.8"


def test_a_rig_of_synthetic_time_has_no_fingerprint(store: Store) -> None:
    run(campaign(replace(night(100.0), rig_id="emulated")), store)
    assert not list(store.folder.rglob("rig.json"))


def test_a_damaged_file_stops_a_promotion_before_anything_is_written(store: Store) -> None:
    damaged = store.path(RIG.id, "sim", "eagle3")
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    with pytest.raises(FileError, match=r"eagle3.json: not a baseline file"):
        run(campaign(two_levels()), store)
    assert [path.name for path in store.folder.rglob("*.json")] == ["eagle3.json"]


def of_variants(id: str, *variants: str) -> Campaign:
    launches = tuple(launch(measured(100.0), variant=variant, ordinal=n) for variant in variants for n in (1, 2))
    return replace(campaign(suite(variants=variants, launches=launches)), id=id)


def test_where_the_disk_is_full_nothing_is_changed_and_nothing_is_left(store: Store) -> None:
    """It fills up at the second file, which is the larger one."""
    state = suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        launches=(
            launch(measured(100.0), failed(8)),
            launch(measured(50.0), measured(90.0, level=8), variant="eagle3"),
        ),
    )
    elsewhere = Store(store.folder.with_name("elsewhere"))
    run(campaign(state), elsewhere)
    room = elsewhere.path(RIG.id, "sim", "baseline").stat().st_size + 100
    with disk_of(room), pytest.raises(FileError) as caught:
        run(campaign(state), store)
    path = store.path(RIG.id, "sim", "eagle3")
    assert str(caught.value) == f"{path}: cannot be written: File too large; nothing was changed"
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == [".lock"]


def test_what_was_changed_before_a_file_that_cannot_take_its_place_is_named(store: Store) -> None:
    (store.folder / RIG.id / "rig.json").mkdir(parents=True)
    with pytest.raises(FileError) as caught:
        run(campaign(night(100.0)), store)
    told = f"rig.json: cannot be written: Is a directory; changed is {store.path(RIG.id, 'sim', 'baseline')}"
    assert str(caught.value).endswith(told)
    assert len(read(store)) == 1


def test_of_two_promotions_at_once_the_last_one_holds_whole(store: Store) -> None:
    variants = tuple(f"v{number}" for number in range(6))
    nights = [of_variants("20260201-020000", *variants), of_variants("20260202-020000", *reversed(variants))]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            list(pool.map(lambda whole: run(whole, store), nights))
            assert len({case.promotion.campaign for variant in variants for case in read(store, variant)}) == 1


def test_a_promotion_that_waited_too_long_says_who_is_in_its_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "LOCK_TIMEOUT_S", 0.1)
    with store.locked(), pytest.raises(FileError) as caught:
        run(campaign(night(100.0)), store)
    assert f"/.lock: process {os.getpid()} (" in str(caught.value)
    assert str(caught.value).endswith(" has held it for 0 s; nothing was changed: wait for it, then again")
    assert [path.name for path in store.folder.iterdir()] == [".lock"]


def test_what_a_killed_promotion_left_goes_with_the_next(store: Store) -> None:
    run(campaign(night(100.0)), store)
    left = [store.folder / RIG.id / ".rig.json.abc.tmp", store.folder / RIG.id / "sim" / ".gone.json.abc.tmp"]
    for path in left:
        path.write_text("{")
    run(campaign(night(100.0)), store)
    assert not any(path.exists() for path in left)
