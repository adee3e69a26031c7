"""What is stored of what the suites ask, how old it is, and what nobody asks for any more: with what to do."""

import os
import re
import shutil
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from perf import coverage
from perf.__main__ import main
from perf.baseline import Store
from perf.coverage import Coverage, contents, examine, stored_for
from perf.files import FileError
from perf.sample import StoredCase
from perf.suite import Suite
from perf.suite_file import SHIPPED, parse
from tests.unit.simulated import RIG, stored
from tests.unit.test_baseline import without_root

RELEASED = Path(__file__).parents[1] / "data" / "released" / "0.1.0" / "baselines"
TODAY = date(2026, 1, 13)
RIG_A, RIG_B = RIG.id, "8x-another-01234567"

SUITE = """
[suite]
name = "sim"
{rig}
[workload]
concurrency = [1, 2, 30]
output_tokens = {tokens}
{workload}
[variants.baseline]
command = ["serve", "{port}"]
[variants.eagle3]
extends = "baseline"
"""


def suite(rig: str = "", tokens: int = 100, workload: str = "") -> Suite:
    text = SUITE.replace("{rig}", rig).replace("{tokens}", str(tokens)).replace("{workload}", workload)
    return parse(text, Path("sim.toml"))


SIM = suite()


def case(
    variant: str, level: int, *throughputs: float, asked: Suite = SIM, reason: str = "first baseline"
) -> StoredCase:
    """A stored baseline of what the suite asks."""
    found = stored(*(throughputs or (99.0, 100.0, 101.0, 100.0)), level=level, variant=variant, reason=reason)
    return replace(found, case=f"{asked.name}/{variant}/c{level:03d}", workload_digest=asked.workload.digest(level))


def whole(store: Store, rig_id: str = RIG_A, asked: Suite = SIM) -> None:
    for variant in ("baseline", "eagle3"):
        cases = tuple(case(variant, level, asked=asked) for level in (1, 2, 30))
        store.promote(rig_id, "sim", variant, cases, add=False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store in an empty project, and we are in it."""
    monkeypatch.chdir(tmp_path)
    return Store(Path("baselines"))


def examined(store: Store, *suites: Suite, here: str | None = RIG_A, all_of_them: bool = True) -> Coverage:
    return examine(suites or (SIM,), store, here, all_of_them=all_of_them)


def screen(found: Coverage) -> str:
    return coverage.text(found, TODAY)


def rows(found: Coverage) -> list[list[str]]:
    """The cells of every table."""
    return [re.split(r"  +", line) for line in screen(found).splitlines() if line.startswith(("baseline ", "eagle3 "))]


def to_do(found: Coverage) -> list[str]:
    return screen(found).partition("to do:\n")[2].splitlines()


# What is stored


def test_a_variant_whose_levels_are_alike_is_one_line(store: Store) -> None:
    whole(store)
    found = examined(store)
    line = ["all", "4", "1", "0.8 %", "-", "2026-01-01", "12 days", "20260101-000000", "first baseline"]
    assert rows(found) == [["baseline", *line], ["eagle3", *line]]
    assert f"sim on {RIG_A} (this machine): 6 of 6 cases stored" in screen(found)
    assert screen(found).endswith("nothing is to be done\n")
    assert found.whole


def test_levels_that_differ_stand_apart(store: Store) -> None:
    whole(store)
    store.promote(RIG_A, "sim", "eagle3", (case("eagle3", 2, 100.0, reason="a new kernel"),), add=False)
    assert [row[:4] + row[-1:] for row in rows(examined(store))] == [
        ["baseline", "all", "4", "1", "first baseline"],
        ["eagle3", "1, 30", "4", "1", "first baseline"],
        ["eagle3", "2", "1", "1", "a new kernel"],
    ]


def test_the_spread_is_that_between_the_launches_of_a_level(store: Store) -> None:
    whole(store)
    store.promote(RIG_A, "sim", "eagle3", (case("eagle3", 1, 90.0, 90.0, 110.0, 110.0),), add=False)
    store.promote(RIG_A, "sim", "baseline", tuple(case("baseline", level, 100.0) for level in (1, 2, 30)), add=False)
    assert [row[4] for row in rows(examined(store))] == ["-", "0.8 to 11.6 %"]


def test_launches_of_several_campaigns_are_counted_as_such(store: Store) -> None:
    whole(store)
    second = case("eagle3", 1)
    second = replace(second, launches=tuple(replace(each, campaign="20260109-000000") for each in second.launches))
    store.promote(RIG_A, "sim", "eagle3", (second,), add=True)
    assert [row[1:4] for row in rows(examined(store)) if row[0] == "eagle3"] == [["1", "8", "2"], ["2, 30", "4", "1"]]


def of_night(number: int, variant: str, level: int, *throughputs: float) -> StoredCase:
    """A stored baseline of another night."""
    found, campaign = case(variant, level, *throughputs), f"2026010{number}-000000"
    launches = tuple(replace(each, campaign=campaign) for each in found.launches)
    return replace(found, launches=launches, promotions=(replace(found.promotion, campaign=campaign),))


def test_nights_that_only_tell_of_noise_and_the_drift_over_all_promotions_are_shown(store: Store) -> None:
    whole(store)
    for number, rate in ((2, 99.0), (3, 98.0)):
        cases = tuple(of_night(number, "eagle3", level, rate + level / 10, rate + level / 10) for level in (1, 2, 30))
        store.promote(RIG_A, "sim", "eagle3", cases, add=False)
    assert [row[1:6] for row in rows(examined(store)) if row[0] == "eagle3"] == [
        ["all", "2", "1+2", "0 %", "-1.9 to +1.0 %"]
    ]


def test_a_case_that_is_not_stored_is_named_and_the_command_measures_it_alone(store: Store) -> None:
    store.promote(RIG_A, "sim", "baseline", tuple(case("baseline", level) for level in (1, 2, 30)), add=False)
    store.promote(RIG_A, "sim", "eagle3", (case("eagle3", 2),), add=False)
    found = examined(store)
    assert ["eagle3", "1, 30", "-", "-", "-", "-", "-", "-", "-", "not stored"] in rows(found)
    assert not found.whole
    measure = 'pytest -m perf --perf-suite=sim.toml -k "/eagle3/c001 or /eagle3/c030"'
    assert to_do(found) == [f'  {measure}; python -m perf promote --reason "why"']
    (store.folder / RIG_A / "sim" / "eagle3.json").unlink()
    assert '-k "/eagle3/";' in to_do(examined(store))[0]


def test_of_an_empty_store_nothing_is_shown_but_what_to_do(store: Store) -> None:
    found = examined(store)
    assert screen(found) == (
        f"sim on no rig: 0 of 6 cases stored\n\nthis machine is {RIG_A}\n\n"
        'to do:\n  pytest -m perf --perf-suite=sim.toml; python -m perf promote --reason "why"\n'
    )


def test_the_commands_name_another_store_and_a_shipped_suite_by_its_name(store: Store) -> None:
    shipped = SHIPPED / "rehearsal.toml"
    found = examined(Store(Path("my store")), parse(shipped.read_text(), shipped))
    assert to_do(found) == [
        "  pytest -m perf --perf-suite=rehearsal --perf-baselines='my store'; "
        "python -m perf promote --reason \"why\" --baselines 'my store'"
    ]
    assert store.folder.name == "baselines"


# Rigs


def test_without_the_rig_at_hand_all_rigs_are_shown_and_one_that_is_whole_is_enough(store: Store) -> None:
    whole(store, RIG_A)
    store.promote(RIG_B, "sim", "baseline", (case("baseline", 1),), add=False)
    found = examined(store, here="1x-laptop-00000000")
    assert [(each.rig_id, each.count) for each in found.suites] == [(RIG_B, 1), (RIG_A, 6)]
    assert "(this machine)" not in screen(found)
    assert "this machine is 1x-laptop-00000000" in screen(found)
    assert found.whole


def test_where_no_rig_is_whole_the_fullest_is_to_be_completed_and_named(store: Store) -> None:
    store.promote(RIG_A, "sim", "baseline", (case("baseline", 1),), add=False)
    store.promote(RIG_B, "sim", "baseline", (case("baseline", 1), case("baseline", 2)), add=False)
    (command,) = to_do(examined(store))
    assert command.endswith(f"# on {RIG_B}")


def test_a_suite_with_synthetic_time_is_stored_on_the_emulated_rig(store: Store) -> None:
    emulated = suite('rig = "emulated"')
    whole(store, "emulated", emulated)
    found = examined(store, emulated, here=None)
    assert found.whole
    assert "this machine" not in screen(found)
    assert [str(each.path) for each in examined(store).orphans] == [
        "baselines/emulated/sim/baseline.json",
        "baselines/emulated/sim/eagle3.json",
    ]


def test_an_advisory_suite_owes_nothing(store: Store) -> None:
    found = examined(store, suite(workload='level_reached = "not required"'))
    assert found.whole
    assert "sim: advisory, so nothing of it is ever stored" in screen(found)


def test_the_baselines_for_a_forecast_are_this_machines_or_of_the_only_rig_that_has_any(store: Store) -> None:
    assert stored_for(SIM, store, RIG_A) == (RIG_A, {})
    store.promote(RIG_B, "sim", "baseline", (case("baseline", 1, 5.0),), add=False)
    rig_id, cases = stored_for(SIM, store, RIG_A)
    assert (rig_id, list(cases)) == (RIG_B, [("baseline", 1)])
    whole(store, "8x-third-01234567")
    assert stored_for(SIM, store, RIG_A) == (RIG_A, {})
    whole(store, RIG_A)
    assert stored_for(SIM, store, RIG_A)[0] == RIG_A
    assert stored_for(suite('rig = "emulated"'), store, RIG_A) == ("emulated", {})


# What nobody asks for


def test_a_changed_workload_is_not_covered_and_is_to_be_measured_again(store: Store) -> None:
    whole(store)
    found = examined(store, suite(tokens=101))
    assert [row[-1] for row in rows(found)] == ["was asked something else"] * 2
    assert not found.whole
    assert to_do(found) == ['  pytest -m perf --perf-suite=sim.toml; python -m perf promote --reason "why"']


def test_a_changed_workload_on_one_rig_is_told_though_another_is_whole(store: Store) -> None:
    whole(store, RIG_A)
    whole(store, RIG_B, suite(tokens=101))
    found = examined(store)
    assert not found.whole
    assert [command.rpartition("# ")[2] for command in to_do(found)] == [f"on {RIG_B}"]


def test_a_suite_a_variant_and_a_level_that_are_gone_are_named_with_their_file(store: Store) -> None:
    whole(store)
    store.promote(RIG_A, "sim", "medusa", (case("medusa", 1),), add=False)
    store.promote(RIG_A, "sim", "baseline", (case("baseline", 8),), add=False)
    store.promote(RIG_A, "old", "baseline", (replace(case("baseline", 1), case="old/baseline/c001"),), add=False)
    found = examined(store)
    folder = f"baselines/{RIG_A}"
    assert [(str(each.path), each.why) for each in found.orphans] == [
        (f"{folder}/old/baseline.json", "of suite old"),
        (f"{folder}/sim/baseline.json", "suite sim has no level 8"),
        (f"{folder}/sim/medusa.json", "suite sim has no variant medusa"),
    ]
    assert f"  {folder}/sim/medusa.json: suite sim has no variant medusa\n" in screen(found)
    assert [command.split(" #")[0] for command in to_do(found)] == [
        f"  edit {folder}/sim/baseline.json",
        f"  remove {folder}/sim/medusa.json",
    ]
    assert not found.whole


def test_what_is_of_a_suite_that_nobody_named_is_named_and_nothing_is_to_be_done_about_it(store: Store) -> None:
    whole(store)
    store.promote(RIG_A, "old", "baseline", (replace(case("baseline", 1), case="old/baseline/c001"),), add=False)
    found = examined(store)
    told = f"not looked at, name its suite with --suite=PATH:\n  baselines/{RIG_A}/old/baseline.json: of suite old\n"
    assert told in screen(found)
    assert "stored for nobody" not in screen(found)
    assert screen(found).endswith("nothing is to be done\n")
    assert found.whole


def test_other_suites_are_no_orphans_where_one_suite_is_asked_for(store: Store) -> None:
    whole(store)
    store.promote(RIG_A, "old", "baseline", (replace(case("baseline", 1), case="old/baseline/c001"),), add=False)
    assert examined(store, all_of_them=False).whole


def test_folders_that_are_no_part_of_a_store_are_named_and_files_of_people_are_left_alone(store: Store) -> None:
    whole(store)
    for folder in ("empty", f"{RIG_A}/notes", f"{RIG_A}/sim/older", ".git/hooks"):
        (store.folder / folder).mkdir(parents=True)
    (store.folder / "stray.json").write_text("{}")
    (store.folder / RIG_A / "rig.json").write_text("{}")
    (store.folder / "README.md").write_text("ours")
    # An empty folder is what is left of a file that was removed.
    assert {str(each.path.relative_to(store.folder)) for each in examined(store).orphans} == {
        f"{RIG_A}/sim/older",
        "stray.json",
    }


# What cannot be read


def test_a_damaged_file_is_named_counted_and_not_taken_for_a_missing_one(store: Store) -> None:
    whole(store)
    file = store.folder / RIG_A / "sim" / "eagle3.json"
    file.write_text(file.read_text()[:100])
    found = examined(store)
    assert "damaged: 1\n  baselines/" in screen(found)
    assert ["eagle3", "all", "-", "-", "-", "-", "-", "-", "-", "the file is damaged"] in rows(found)
    assert [row[0] for row in rows(found)] == ["baseline", "eagle3"]
    assert to_do(found)[-1].startswith("  git checkout -- baselines ")
    assert not found.whole


def test_a_store_with_nothing_but_a_damaged_file_still_names_the_rig(store: Store) -> None:
    file = store.folder / RIG_A / "sim" / "eagle3.json"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert f"sim on {RIG_A} (this machine): 0 of 6 cases stored" in screen(examined(store))


def test_a_file_of_an_earlier_version_is_told_and_does_no_harm(store: Store) -> None:
    shutil.copytree(RELEASED, store.folder)
    found = contents(store)
    assert found.damaged == {}
    assert {(file.suite, file.older) for file in found.files} == {("old", True)}
    assert "2 files were written by an earlier version" in screen(examined(store))
    whole(store)
    assert "earlier version" not in screen(examined(store, all_of_them=False))


@pytest.mark.parametrize("mode", [0o000, 0o444])
@pytest.mark.parametrize("place", ["", RIG_A, f"{RIG_A}/sim"])
def test_a_folder_that_may_not_be_read_is_damage_and_not_an_empty_one(place: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Store(Path(folder) / "baselines")
        whole(store)
        (store.folder / place).chmod(mode)
        with without_root():
            found = examined(store)
        (store.folder / place).chmod(0o755)
    assert found.damaged
    assert all("Permission denied" in each for each in found.damaged)


def test_a_file_in_place_of_the_store_is_damage(store: Store) -> None:
    store.folder.write_text("")
    assert examined(store).damaged == ("baselines: cannot be read: Not a directory",)


def test_what_stands_in_names_and_reasons_reaches_no_terminal_raw(store: Store) -> None:
    whole(store, "rig\x1b[31m")
    store.promote("rig\x1b[31m", "sim", "eagle3", (case("eagle3", 1, reason="why\x1b[31m\n" + "x" * 500),), add=False)
    store.promote("rig\x1b[32m", "sim", "eagle3", (case("eagle3", 1),), add=False)
    (store.folder / "stray\x1b[33m.json").write_text("{}")
    text = screen(examined(store, suite(tokens=101)))
    assert "# on rig" in text
    assert "# remove by hand, it has a strange name: baselines/stray" in text
    text += screen(examined(store))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 220


# The command


@pytest.fixture
def project(store: Store) -> Store:
    """A project whose pytest.ini names an emulated suite, whole in the store."""
    Path("pytest.ini").write_text("[pytest]\nperf_suite =\n    sim.toml\n")
    Path("sim.toml").write_text(
        SUITE.replace("{rig}", 'rig = "emulated"').replace("{tokens}", "9").replace("{workload}", "")
    )
    whole(store, "emulated", suite('rig = "emulated"', tokens=9))
    return store


def test_the_command_ends_with_0_where_nothing_is_to_be_done(
    project: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baselines"]) == 0
    assert capsys.readouterr().out.endswith("nothing is to be done\n")
    assert project.folder.is_dir()


def test_the_command_ends_with_1_and_commands_where_something_is_missing(
    project: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    project.path("emulated", "sim", "eagle3").unlink()
    assert main(["baselines"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ('  pytest -m perf --perf-suite=sim.toml -k "/eagle3/"; python -m perf promote --reason "why"')
    assert main(["baselines", "--baselines", "nowhere"]) == 1
    assert not Path("nowhere").exists()


def test_without_a_pytest_ini_the_command_says_what_to_give(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert not store.folder.exists()
    assert main(["baselines"]) == 64
    assert "give --suite=PATH" in capsys.readouterr().err


def test_a_forecast_from_a_damaged_file_is_refused(store: Store) -> None:
    whole(store)
    (store.folder / RIG_A / "sim" / "eagle3.json").write_text("{")
    with pytest.raises(FileError, match="not a baseline file"):
        stored_for(SIM, store, RIG_A)
