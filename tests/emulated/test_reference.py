"""The reference build of a suite: real servers, started by an interpreter and in an environment of its own."""

import json
import re
import shlex
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.emulated.inner import PACED, REPOSITORY, Desk, Launches, Run, running

REFERENCE = f"""
[reference]
python = "./old-python"
env = {{ PYTHONPATH = {json.dumps(str(REPOSITORY))}, KNOB = "old" }}
"""


def interpreter(desk: Desk, name: str, *flags: str) -> None:
    """An interpreter that notes each start of a server with what it was started with; its build adds these flags.

    The suite asks it besides what it would import, by `-c`: that is no start.
    """
    path = desk.folder / name
    run = shlex.join(["exec", sys.executable])
    path.write_text(
        f"""#!/bin/sh
        [ "$1" = -c ] && {run} "$@"
        echo "$0 $KNOB $SHARED" >> starts
        {run} "$@" {shlex.join(flags)}
        """
    )
    path.chmod(0o755)


def paired(
    folder: Path, more: str = REFERENCE, gate: str = "margin = 0.1\nalpha = 0.2\nmax_launches = 4"
) -> tuple[Desk, Path]:
    """A suite with a reference build, and the interpreters of both."""
    desk = Desk(folder)
    interpreter(desk, "new-python")
    interpreter(desk, "old-python")
    env = f'PYTHONPATH = {json.dumps(str(REPOSITORY))}, KNOB = "new", SHARED = "same"'
    variant = f'python = "./new-python"\nenv = {{ {env} }}'
    return desk, desk.suite({"plain": PACED}, levels=(1, 2), variant=variant, more=more, gate=gate)


def test_a_block_of_both_arms_runs_each_with_its_own_interpreter_and_environment(tmp_path: Path) -> None:
    desk, path = paired(tmp_path)
    launches = Launches(desk, path)
    old = launches.run("reference", levels=(2, 1))
    new = launches.run("candidate")
    assert (tmp_path / "starts").read_text().splitlines() == ["./old-python old same", "./new-python new same"]
    assert (old.name, old.arm, old.ordinal, old.block) == ("plain+reference-1", "reference", 1, 1)
    assert (new.name, new.arm, new.ordinal, new.block) == ("plain-1", "candidate", 1, 1)
    assert (old.python, new.python) == ("./old-python", "./new-python")
    assert (dict(old.env)["KNOB"], dict(new.env)["KNOB"]) == ("old", "new")
    assert dict(old.variant_env)["SHARED"] == dict(new.variant_env)["SHARED"] == "same"
    assert old.command == new.command
    assert [each.all_reasons for each in (*old.measurements, *new.measurements)] == [()] * 3


def test_levels_are_measured_in_the_order_asked_for_and_everything_is_kept_under_the_launchs_name(
    tmp_path: Path,
) -> None:
    desk, path = paired(tmp_path)
    launches = Launches(desk, path, prefix="small.")
    old = launches.run("reference", ordinal=2, levels=(2, 1))
    assert old.name == "small.plain+reference-2"
    assert [each.level for each in old.measurements] == [2, 1]
    assert launches.said[0].startswith("small.plain+reference-2: ready after ")
    assert [line.partition(": ")[0] for line in launches.said[1:]] == [f"{old.name} c002", f"{old.name} c001"]
    kept = desk.folder / "campaign" / old.name
    assert (kept / "server.log").is_file()
    assert sorted(each.name for each in (kept / "traces").iterdir()) == ["c001-1.npz", "c002-1.npz"]


def test_a_reference_build_that_does_not_start_says_so_and_gives_no_number(tmp_path: Path) -> None:
    desk, path = paired(tmp_path)
    (tmp_path / "old-python").write_text("#!/bin/sh\necho it was removed >&2\nexit 3\n")
    launches = Launches(desk, path)
    old = launches.run("reference", levels=(2, 1))
    assert [(each.level, each.rounds) for each in old.measurements] == [(2, ()), (1, ())]
    assert {reason.name for each in old.measurements for reason in each.reasons} == {"server did not start"}
    assert all("it was removed" in reason.seen for each in old.measurements for reason in each.reasons)
    assert launches.said[-1] == "plain+reference-1: server did not start"


def test_a_launch_of_a_reference_build_that_the_suite_does_not_have_is_refused(tmp_path: Path) -> None:
    desk, path = paired(tmp_path, more="")
    with pytest.raises(ValueError, match=r"plain\+reference-1: small has no \[reference\]"):
        Launches(desk, path).run("reference")


def test_a_campaign_says_whether_there_is_a_reference_build_to_launch(tmp_path: Path) -> None:
    desk, path = paired(tmp_path)
    desk.measure(path, "-k", "/plain/c001", "--perf-max-launches=1")
    (first,) = desk.campaign().suites
    assert first.reference
    with running() as url:
        desk.measure(path, "-k", "/plain/c001", f"--perf-base-url={url}")
    (second,) = desk.campaign().suites
    assert not second.reference
    assert first.order_seed != second.order_seed


# Nights of a suite whose reference build is the stored baseline's

LEVELS = ("small/plain/c001", "small/plain/c002")
SLOWER = ("--slowdown", "all:0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run, its campaign, and how often each arm was launched."""

    run: Run
    campaign: str
    launches: Counter[str]


class Rig:
    """A desk with a stored baseline of both levels; then nights on which either build may be another."""

    def __init__(self, folder: Path) -> None:
        self.desk, self.suite = paired(folder, gate="margin = 0.05\nalpha = 0.2")
        self.written = self.suite.read_text()
        first = self.night()
        assert first.run.words() == dict.fromkeys(LEVELS, "NO_BASELINE"), first.run.screen
        assert first.launches == {"candidate": 4}
        promoted = self.desk.perf("promote", "--reason", "first baseline")
        assert promoted.code == 0, promoted.screen

    def night(self, *, new: tuple[str, ...] = (), old: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> Night:
        """`new` and `old` are what the builds do by themselves, `flags` what the suite asks both of."""
        more = ", ".join(map(json.dumps, (PACED[-1], *flags)))
        self.suite.write_text(self.written.replace(f"{json.dumps(PACED[-1])}]", f"{more}]"))
        interpreter(self.desk, "new-python", *new)
        interpreter(self.desk, "old-python", *old)
        (self.desk.folder / "starts").unlink(missing_ok=True)
        ran = self.desk.measure(self.suite)
        campaign = self.desk.campaign()
        launches = Counter[str](launch.arm for launch in campaign.suites[0].launches)
        starts = Counter(line.split()[0] for line in (self.desk.folder / "starts").read_text().splitlines())
        assert starts == Counter({"./new-python": launches["candidate"], "./old-python": launches["reference"]})
        return Night(run=ran, campaign=campaign.id, launches=launches)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("rig"))


def test_an_unchanged_build_passes_against_the_store_and_no_reference_is_launched(rig: Rig) -> None:
    night = rig.night()
    assert night.run.code == 0, night.run.screen
    assert night.run.words() == dict.fromkeys(LEVELS, "PASS")
    assert night.launches["reference"] == 0
    assert {item.properties["route"] for item in night.run.items()} == {"store"}
    assert "judged against the stored baseline (4 launches of 1 night)  (" in night.run.out


def test_a_build_slower_than_the_reference_is_regressed_by_fresh_launches_of_both(rig: Rig) -> None:
    night = rig.night(new=SLOWER)
    assert night.run.code == 1, night.run.screen
    assert night.run.words() == dict.fromkeys(LEVELS, "REGRESSED"), night.run.screen
    assert night.launches["reference"] >= 3
    for item in night.run.items():
        assert item.properties["route"] == "reference"
        assert -0.13 < float(item.properties["change"]) < -0.07
        told = re.search(r"against (\d+) launches of the reference build tonight", item.message)
        assert told is not None, item.message
        assert 3 <= int(told[1]) <= night.launches["reference"]

    checked = rig.desk.perf("check", night.campaign, store=False)
    assert checked.code == 1, checked.screen
    assert re.findall(r"^plain/(c\d+) .* ([A-Z_]+)$", checked.out, re.MULTILINE) == [
        ("c001", "REGRESSED"),
        ("c002", "REGRESSED"),
    ]


def test_a_rig_on_which_both_builds_got_slower_is_not_red(rig: Rig) -> None:
    night = rig.night(new=SLOWER, old=SLOWER)
    assert night.run.code == 0, night.run.screen
    assert night.run.words() == dict.fromkeys(LEVELS, "PASS"), night.run.screen
    assert night.launches["reference"] >= 1
    assert {item.properties["route"] for item in night.run.items()} == {"reference"}
    assert re.search(r"^judged against \d+ launch(es)? of the reference build tonight", night.run.out, re.MULTILINE)
    # A suite cannot tell a slower rig from two builds that changed alike: it says that one of them happened.
    assert re.search(
        r"^reference: it runs itself about -(9|10|11) % beside its stored baseline", night.run.out, re.MULTILINE
    )
    assert rig.desk.perf("check", night.campaign, store=False).code == 0


def test_a_flag_that_slows_both_builds_is_not_cleared_by_their_being_alike(rig: Rig) -> None:
    night = rig.night(flags=SLOWER)
    assert night.run.code == 1, night.run.screen
    assert night.run.words() == dict.fromkeys(LEVELS, "INVALID"), night.run.screen
    for item in night.run.items():
        assert "reference is not what is stored" in item.message
        assert "command: now with --slowdown all:0.1" in item.message


def test_arms_that_serve_different_models_are_not_compared(rig: Rig) -> None:
    night = rig.night(new=SLOWER, old=(*SLOWER, "--model-path", "other/model"))
    assert night.run.code == 1, night.run.screen
    assert night.run.words() == dict.fromkeys(LEVELS, "INVALID"), night.run.screen
    assert all("model changed" in item.message and "other/model" in item.message for item in night.run.items())


def test_a_reference_that_would_import_the_candidates_code_is_refused_before_anything_is_launched(
    tmp_path: Path,
) -> None:
    """`-m` looks first into the working directory, the folder of the suite file, whatever the interpreter."""
    desk, path = paired(tmp_path)
    shutil.copytree(REPOSITORY / "perf", tmp_path / "perf")
    ran = desk.measure(path)
    assert ran.code == 1, ran.screen
    for item in ran.items():
        assert f"candidate and reference of plain would both run {tmp_path / 'perf' / '__init__.py'}" in item.message
    assert not (tmp_path / "starts").exists()
    doctor = desk.perf("doctor", f"--suite={path}", store=False)
    assert "would both run" in doctor.out, doctor.screen
