"""The reference build of a suite: real servers, started by an interpreter and in an environment of its own."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from perf import measure, suite
from perf.capacity import Capacity
from perf.load import Limits
from perf.record import Arm, LaunchRecord, Order
from tests.emulated.inner import PACED, REPOSITORY, Desk, running
from tests.unit.simulated import RIG

REFERENCE = f"""
[reference]
python = "./old-python"
env = {{ PYTHONPATH = {json.dumps(str(REPOSITORY))}, KNOB = "old" }}
"""


def interpreter(desk: Desk, name: str) -> None:
    """An interpreter that notes each start of a server with what it was started with."""
    path = desk.folder / name
    path.write_text(f'#!/bin/sh\necho "$0 $KNOB $SHARED" >> starts\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)


def paired(folder: Path, more: str = REFERENCE) -> tuple[Desk, Path]:
    """A suite with a reference build, and the interpreters of both."""
    desk = Desk(folder)
    interpreter(desk, "new-python")
    interpreter(desk, "old-python")
    env = f'PYTHONPATH = {json.dumps(str(REPOSITORY))}, KNOB = "new", SHARED = "same"'
    variant = f'python = "./new-python"\nenv = {{ {env} }}'
    return desk, desk.suite({"plain": PACED}, levels=(1, 2), variant=variant, more=more)


class Launches:
    """Launches of the suite's one variant, and what they show."""

    def __init__(self, desk: Desk, path: Path, *, prefix: str = "") -> None:
        self.said: list[str] = []
        self.bench = measure.Bench(
            suite=suite.load(path),
            folder=desk.folder / "campaign",
            prefix=prefix,
            base_url=None,
            show=measure.Show(line=self.said.append, live=lambda _: None),
            limits=Limits(),
            capacity=Capacity(RIG, lambda _: None),
            gpus=lambda: (),
        )

    def run(self, arm: Arm, ordinal: int = 1, levels: tuple[int, ...] = (1,)) -> LaunchRecord:
        return self.bench.measure(Order(variant="plain", arm=arm, ordinal=ordinal, block=ordinal, levels=levels))


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
