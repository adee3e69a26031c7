"""`python -m perf doctor`: what would spoil a night is named before it is spent."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perf import doctor, nvml, rig
from perf.__main__ import main
from perf.doctor import Finding, Fitness
from perf.nvml import POWER_CAP, PcieLink
from perf.rig import Gpu, GpuProcess, GpuState
from perf.suite_file import load
from tests.nvml.script import WORKING, Driver
from tests.unit.simulated import RIG, stored

ROOT = Path(__file__).parents[2]

CALM = GpuState(
    index=0,
    uuid="GPU-1",
    processes=(),
    memory_used_bytes=3 * 1024**2,
    slowed_by=(),
    celsius=31,
    persistent=True,
    power_limit_w=600.0,
)
GPUS = replace(
    RIG,
    gpus=(
        Gpu(
            name="RTX PRO 6000",
            uuid="GPU-1",
            power_limit_w=600.0,
            clocks_mhz=None,
            persistent=None,
            pcie=None,
            nvlinks=None,
        ),
    ),
    driver="580.1",
)

SUITE = """
[suite]
name = "mine"
{suite}
[workload]
concurrency = [{level}]
output_tokens = 8
[variants.baseline]
command = {command}
{variant}
"""


def gpus(state: GpuState) -> list[Finding]:
    return list(doctor.gpus(GPUS, (state,)))


def test_a_calm_gpu_is_fit() -> None:
    assert [str(each) for each in gpus(CALM)] == [f"ok     gpu         {GPUS.id}, driver 580.1"]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"processes": (GpuProcess(pid=4711, name="python"),)}, "others are on it: python (pid 4711)"),
        ({"memory_used_bytes": 9 * 1024**3}, "9.0 GiB of its memory are taken and nobody is seen on it"),
        ({"slowed_by": ("its power cap", "heat (the driver)")}, "slowed by its power cap, heat (the driver)"),
        ({"celsius": 83}, "83 degrees Celsius before any load"),
    ],
)
def test_what_spoils_a_gpu_is_unfit_and_says_what_to_do(change: dict[str, object], seen: str) -> None:
    found = gpus(replace(CALM, **change))  # type: ignore[arg-type]
    (unfit,) = (each for each in found if each.fitness is Fitness.UNFIT)
    assert (unfit.name, unfit.seen) == ("GPU 0", seen)
    assert unfit.advice


def test_a_card_at_its_power_cap_alone_is_noted_as_most_loaded_cards_are_there() -> None:
    (_, found) = gpus(replace(CALM, slowed_by=(POWER_CAP,)))
    assert (found.fitness, found.name, found.seen) == (Fitness.NOTE, "GPU 0", "slowed by its power cap")
    assert found.advice


def test_what_a_driver_does_not_tell_is_no_finding() -> None:
    silent = replace(CALM, memory_used_bytes=None, celsius=None, persistent=None, power_limit_w=None)
    assert [each.fitness for each in gpus(silent)] == [Fitness.OK]


def test_cards_of_different_power_limits_are_noted() -> None:
    found = list(doctor.gpus(GPUS, (CALM, replace(CALM, index=1, power_limit_w=450.0))))
    assert [each.seen for each in found if each.name == "power"] == ["power limits differ: 450 W, 600 W"]


def test_how_the_cards_are_linked_is_said_and_a_slow_link_only_of_a_card_that_works() -> None:
    (gpu,) = GPUS.gpus
    here = replace(GPUS, gpus=(replace(gpu, pcie=PcieLink(generation=5, width=16), nvlinks=0),))
    slow = replace(CALM, pcie=PcieLink(generation=1, width=16), utilisation=0.0)
    idle = [str(each) for each in doctor.gpus(here, (slow,))]
    assert idle[1:] == ["ok     links       PCIe 5.0 x16, no NVLink"]
    (_, _, found) = doctor.gpus(here, (replace(slow, utilisation=0.9),))
    assert (found.fitness, found.seen) == (Fitness.NOTE, "its link runs at PCIe 1.0 x16 under load, of PCIe 5.0 x16")


def test_what_a_driver_says_of_a_hot_and_busy_card_is_what_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hot = WORKING | {"uuid": "GPU-1", "reasons": 0x40, "celsius": 88, "pcie_width": 4, "processes": [2**22 + 1]}
    driver = Driver(tmp_path, WORKING, hot, meeting=50)
    module = driver.module()
    for each in (nvml, rig):
        monkeypatch.setattr(each, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = rig.probe()
    found = [(each.fitness, each.name, each.seen) for each in doctor.gpus(here, rig.states(here))]
    assert found == [
        (Fitness.OK, "gpu", f"{here.id}, driver 590.48"),
        (Fitness.OK, "links", "PCIe 5.0 x16, no NVLink, 1 pair by the link between CPUs"),
        (Fitness.UNFIT, "GPU 1", f"others are on it: not seen from here (pid {2**22 + 1})"),
        (Fitness.UNFIT, "GPU 1", "slowed by heat (the hardware)"),
        (Fitness.UNFIT, "GPU 1", "88 degrees Celsius before any load"),
        (Fitness.NOTE, "GPU 1", "its link runs at PCIe 5.0 x4 under load, of PCIe 5.0 x16"),
    ]


def test_a_machine_without_a_gpu_says_why() -> None:
    (found,) = doctor.gpus(replace(RIG, note="no GPU is seen: NVML answers not found"), ())
    assert (found.fitness, found.seen) == (Fitness.NOTE, "no GPU is seen: NVML answers not found")


def write(folder: Path, *, suite: str = "", level: int = 1, command: str = "", variant: str = "") -> Path:
    path = folder / "mine.toml"
    command = command or '["{python}", "-m", "perf.emulator", "--port", "{port}"]'
    path.write_text(SUITE.format(suite=suite, level=level, command=command, variant=variant))
    return path


def examine(capsys: pytest.CaptureFixture[str], suite: Path, *more: str) -> tuple[int, str]:
    code = main(["doctor", f"--suite={suite}", "--campaign-dir", str(suite.parent / "campaigns"), *more])
    return code, capsys.readouterr().out


def test_a_suite_that_has_what_it_needs_is_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = examine(capsys, write(tmp_path))
    assert "ok     suite       mine: has what it needs" in text
    assert "ok     ports " in text
    assert f"GiB free for {tmp_path / 'campaigns'}" in text


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"suite": 'requires = "gpu"\ngpus = 900'}, "mine: needs 900 GPUs, seen "),
        ({"command": '["{python}", "-m", "x", "--model-path", "/models/none", "{port}"]'}, "/models/none is not there"),
        ({"command": '["{python}", "-m", "x", "--model=/models/none", "{port}"]'}, "/models/none is not there"),
        ({"command": '["/opt/none/serve", "{port}"]'}, "/opt/none/serve is not there"),
        ({"variant": 'python = "/opt/none/bin/python"'}, "/opt/none/bin/python is not there"),
    ],
)
def test_what_a_suite_lacks_is_unfit_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], seen: str
) -> None:
    code, text = examine(capsys, write(tmp_path, **change))  # type: ignore[arg-type]
    assert code == 1
    assert seen in text
    assert text.splitlines()[-1] == "not fit to measure: see UNFIT above"


REFERENCE = '[reference]\npython = "./reference"'
PYTHON = '["{python}", "-m", "x", "--model-path", "org/model", "{port}"]'


def interpreter(folder: Path, name: str, *, sglang: str) -> None:
    """An interpreter that finds this SGLang besides what is installed here."""
    packages = folder / f"{name}-packages"
    info = packages / f"sglang-{sglang}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {sglang}\n")
    script = f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(packages))} exec {shlex.quote(sys.executable)} "$@"\n'
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def needs(folder: Path) -> list[Finding]:
    """What is found of a suite with a reference build; the interpreters are what was put there."""
    path = write(folder, command=PYTHON, variant=f'python = "./new"\n{REFERENCE}')
    return list(doctor.suite_needs(load(path), RIG, asked=True))


def test_a_reference_build_that_is_not_there_is_unfit(tmp_path: Path) -> None:
    interpreter(tmp_path, "new", sglang="0.5.1")
    (found,) = needs(tmp_path)
    assert (found.fitness, found.seen) == (Fitness.UNFIT, f"mine: {tmp_path / 'reference'} is not there")


def test_a_reference_build_that_is_the_candidates_own_is_noted(tmp_path: Path) -> None:
    interpreter(tmp_path, "new", sglang="0.5.1")
    interpreter(tmp_path, "reference", sglang="0.5.1")
    fit, noted = needs(tmp_path)
    assert (fit.fitness, fit.seen) == (
        Fitness.OK,
        "mine: has what it needs; sglang 0.5.1; reference sglang 0.5.1",
    )
    assert (noted.fitness, noted.name) == (Fitness.NOTE, "reference")
    assert noted.seen == "mine: the reference build is the same as that of baseline: sglang 0.5.1"


def test_a_reference_build_of_its_own_is_named_and_no_more_is_said(tmp_path: Path) -> None:
    interpreter(tmp_path, "new", sglang="0.5.1")
    interpreter(tmp_path, "reference", sglang="0.5.0")
    (fit,) = needs(tmp_path)
    assert (fit.fitness, fit.seen) == (Fitness.OK, "mine: has what it needs; sglang 0.5.1; reference sglang 0.5.0")


def test_a_model_that_is_a_name_and_not_a_path_is_not_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = '["{python}", "-m", "x", "--model-path", "org/model", "{port}"]'
    _, text = examine(capsys, write(tmp_path, command=named))
    assert "is not there" not in text


def test_suites_that_nobody_asked_for_do_not_make_a_machine_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, suite='requires = "gpu"\ngpus = 900')
    (tmp_path / "pytest.ini").write_text("[pytest]\nperf_suite =\n    mine.toml\n    rehearsal\n")
    main(["doctor"])
    text = capsys.readouterr().out
    assert "note   suite       mine cannot be measured here: needs 900 GPUs, seen " in text
    assert "ok     suite       rehearsal: has what it needs" in text


def test_too_few_file_handles_for_the_level_are_unfit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perf", "doctor", f"--suite={write(tmp_path, level=2000)}"]
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 512; exec {shlex.join(command)}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "level 2000 needs about 2256 open files, allowed are 512" in done.stdout
    assert "do: raise the hard limit: ulimit -Hn" in done.stdout


def test_a_folder_that_cannot_be_written_is_unfit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", f"--suite={write(tmp_path)}", "--campaign-dir", "/proc/campaigns"])
    assert code == 1
    assert "UNFIT  disk        /proc/campaigns cannot be written" in capsys.readouterr().out


def test_an_unknown_case_is_a_usage_error_that_names_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", f"--suite={write(tmp_path)}", "--noise", "mine/baseline/c999"]) == 64
    assert "no case 'mine/baseline/c999'; there are mine/baseline/c001" in capsys.readouterr().err


def varying(*throughputs: float, margin: float = 0.03, gate: str = "", folder: Path) -> Finding:
    """What is said of the margin of a suite at one level, from launches of one and the same."""
    suite = load(write(folder, suite="[gate]\n" + gate if gate else ""))
    case = suite.cases[0]
    return doctor._margin(suite, case, margin, stored(*throughputs, level=case.level).launches)


def test_how_launches_vary_is_told_with_what_chance_alone_shows() -> None:
    found = doctor._variation("here", (100.0, 99.0, 100.0, 102.0))
    assert found.fitness is Fitness.OK
    assert found.seen == (
        "here: 4 launches of one and the same vary by 1.3 % (0.71 % to 4.7 % with 95 % confidence); "
        "the second of a pair was up to 1 % slower, and is by chance alone up to 4.1 %"
    )


def test_launches_that_are_steady_enough_for_the_margin_are_fit(tmp_path: Path) -> None:
    found = varying(1000.0, 1001.0, 999.0, 1000.0, folder=tmp_path)
    assert (found.fitness, found.name) == (Fitness.OK, "margin")
    assert found.seen.startswith(
        "a loss of 3 % is found in 24 of 24 nights of fresh pairs within 12 launches of each build"
    )


def test_launches_that_vary_too_much_for_the_margin_are_unfit_with_what_is_found(tmp_path: Path) -> None:
    found = varying(1000.0, 1030.0, 980.0, 1010.0, folder=tmp_path)
    assert found.fitness is Fitness.UNFIT
    assert re.search(
        r"a loss of 3 % is found in \d+ of \d+ nights of fresh pairs within 12 .*; [\d.]+ % is found", found.seen
    )
    assert varying(1000.0, 1030.0, 980.0, 1010.0, margin=0.15, folder=tmp_path).fitness is Fitness.OK
    assert varying(1000.0, 1030.0, 980.0, 1010.0, gate="max_launches = 100", folder=tmp_path).fitness is Fitness.OK


def test_a_budget_that_ends_before_the_margin_is_found_is_unfit(tmp_path: Path) -> None:
    found = varying(1000.0, 1005.0, 999.0, 1000.0, gate="budget_minutes = 0.4", folder=tmp_path)  # two launches
    assert found.fitness is Fitness.UNFIT
    assert "within 200 launches of each build and 24 s; " in found.seen


def test_without_suites_it_says_where_they_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 64
    assert "pytest.ini: cannot be read" in capsys.readouterr().err
