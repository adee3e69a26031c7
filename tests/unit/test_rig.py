"""Which machine a baseline belongs to."""

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perf import nvml, rig
from perf.nvml import PcieLink
from perf.rig import Gpu, GpuProcess, Rig, visible
from perf.validity import check_gpus
from tests.nvml.script import CONSUMER, OLDER, WORKING, Driver

BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def gpus(*uuids: str, name: str = BLACKWELL) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(name=name, uuid=uuid, power_limit_w=600.0, clocks_mhz=None, persistent=None, pcie=None, nvlinks=None)
        for uuid in uuids
    )


def machine(*cards: Gpu) -> Rig:
    return Rig(
        gpus=cards,
        driver="590.1",
        cuda="13.1",
        cpu="AMD EPYC 9575F 64-Core Processor",
        governor="performance",
        machine="0123456789abcdef",
        kernel="6.1",
        pairs=(),
    )


def test_a_gpu_rig_is_named_by_count_name_and_uuids() -> None:
    name = machine(*gpus("GPU-a", "GPU-b")).id
    assert re.fullmatch(r"2x-rtx-pro-6000-blackwell-server-edition-[0-9a-f]{8}", name)


def test_the_order_in_which_gpus_are_listed_does_not_matter() -> None:
    assert machine(*gpus("GPU-a", "GPU-b")).id == machine(*gpus("GPU-b", "GPU-a")).id


def test_another_gpu_of_the_same_name_is_another_rig() -> None:
    assert machine(*gpus("GPU-a", "GPU-b")).id != machine(*gpus("GPU-a", "GPU-c")).id


def test_a_machine_without_a_gpu_is_named_by_its_cpu_and_its_id() -> None:
    assert machine().id == "cpu-amd-epyc-9575f-64-core-01234567"


def test_power_limits_go_with_the_uuids_not_with_the_order_of_listing() -> None:
    first, second = gpus("GPU-a")[0], replace(gpus("GPU-b")[0], power_limit_w=450.0)
    assert machine(first, second).power_limits_w == machine(second, first).power_limits_w == (600.0, 450.0)


def test_the_fingerprint_names_what_may_change_and_leaves_out_what_is_not_known() -> None:
    cards = (
        Gpu(
            name=BLACKWELL,
            uuid="GPU-b",
            power_limit_w=None,
            clocks_mhz=(2430, 1593),
            persistent=True,
            pcie=None,
            nvlinks=None,
        ),
        Gpu(
            name=BLACKWELL,
            uuid="GPU-a",
            power_limit_w=None,
            clocks_mhz=(1980, 1593),
            persistent=True,
            pcie=None,
            nvlinks=None,
        ),
    )
    assert machine(*cards).fingerprint == (
        ("driver", "590.1"),
        ("CUDA of the driver", "13.1"),
        ("application clocks", "1980/1593 MHz, 2430/1593 MHz"),
        ("persistence mode", "on"),
        ("CPU", "AMD EPYC 9575F 64-Core Processor"),
        ("CPU governor", "performance"),
        ("Linux", "6.1"),
    )
    assert [name for name, _ in replace(machine(), driver=None, cuda=None, governor=None).fingerprint] == [
        "CPU",
        "Linux",
    ]


def test_links_are_told_once_for_all_cards_and_pairs_are_counted_by_where_they_meet() -> None:
    one, other = (replace(each, pcie=PcieLink(generation=5, width=16), nvlinks=0) for each in gpus("GPU-a", "GPU-b"))
    two = replace(machine(one, other), pairs=(("a host bridge", 1),))
    assert two.links == "PCIe 5.0 x16, no NVLink, 1 pair by a host bridge"
    assert ("links", two.links) in two.fingerprint
    linked = machine(replace(one, nvlinks=18), replace(other, nvlinks=18, pcie=PcieLink(generation=4, width=8)))
    assert linked.links == "PCIe 4.0 x8, PCIe 5.0 x16, 18 NVLinks"
    assert machine(*gpus("GPU-a")).links == ""


def test_governors_that_differ_are_both_told(tmp_path: Path) -> None:
    assert rig._governor(tmp_path) is None
    for cpu, governor in (("cpu0", "powersave"), ("cpu1", "performance"), ("cpu10", "performance")):
        (tmp_path / cpu / "cpufreq").mkdir(parents=True)
        (tmp_path / cpu / "cpufreq" / "scaling_governor").write_text(f"{governor}\n")
    assert rig._governor(tmp_path) == "performance, powersave"


def test_only_what_cuda_will_see_counts() -> None:
    cards = gpus("GPU-a1", "GPU-a2", "GPU-b1")
    assert visible(cards, None) == cards
    assert visible(cards, "") == ()
    assert visible(cards, "2,0") == (cards[2], cards[0])
    assert visible(cards, "GPU-b") == (cards[2],)
    assert visible(cards, "0,9,1") == (cards[0],)  # as CUDA reads it: up to the first entry that names no device
    assert visible(cards, "GPU-a") == ()  # two begin so


def test_this_machine_can_be_named_and_its_id_never_leaves_it() -> None:
    found = rig.probe()
    assert re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{8}", found.id)
    assert found.gpus or found.note


# What a driver answers


def simulated(monkeypatch: pytest.MonkeyPatch, folder: Path, *cards: dict[str, Any], **whole: object) -> Driver:
    """This process asks a simulated driver from now on."""
    driver = Driver(folder, *cards, **whole)
    module = driver.module()
    for each in (nvml, rig):
        monkeypatch.setattr(each, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return driver


def test_a_machine_is_what_its_driver_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    links = [1, 1, 0]
    cards = [WORKING | {"uuid": f"GPU-{number}", "nvlinks": links} for number in range(3)]
    simulated(monkeypatch, tmp_path, *cards, meeting=pynvml.NVML_TOPOLOGY_HOSTBRIDGE)
    found = rig.probe()
    assert found.note is None
    assert found.links == "PCIe 5.0 x16, 2 NVLinks, 3 pairs by a host bridge"
    assert (found.driver, found.cuda, found.power_limits_w) == ("590.48", "13.1", (600.0,) * 3)
    assert {gpu.clocks_mhz for gpu in found.gpus} == {(2430, 1593)}
    assert found.gpus[0].pcie == PcieLink(generation=5, width=16)


def test_what_a_consumers_board_does_not_tell_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulated(monkeypatch, tmp_path, CONSUMER)
    (gpu,) = rig.probe().gpus
    assert (gpu.clocks_mhz, gpu.nvlinks) == (None, 0)


def test_a_gpu_is_seen_as_it_is_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = 2**22 + 1  # no process has such a number
    driver = simulated(
        monkeypatch, tmp_path, WORKING | {"processes": [pid], "reasons": 0x40 | 0x4, "pcie_generation": 1}
    )
    here = rig.probe()
    (state,) = rig.states(here)
    assert state.processes == (GpuProcess(pid=pid, name="not seen from here"),)
    assert state.slowed_by == (nvml.POWER_CAP, "heat (the hardware)")
    assert (state.memory_used_bytes, state.celsius, state.utilisation) == (3 * 1024**2, 62, 0.97)
    assert state.pcie == PcieLink(generation=1, width=16)
    driver.change(reasons=0x1 | 0x40)
    assert rig.states(here)[0].slowed_by == ()  # of an idle card nothing holds the clocks down


def test_what_a_driver_keeps_of_an_idle_cards_memory_takes_it_from_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Up to a gigabyte on large boards, which the first version of the question counts as used."""
    driver = simulated(monkeypatch, tmp_path, WORKING | {"memory_used_v1": 1024**3})
    here = rig.probe()
    assert check_gpus(rig.states(here)) == ()
    driver.change(memory_used=2 * 1024**3)
    assert [each.name for each in check_gpus(rig.states(here))] == ["GPU not ours"]
    driver.change(memory_used="FUNCTION_NOT_FOUND")
    assert rig.states(here)[0].memory_used_bytes is None


def test_an_older_driver_tells_what_slows_a_card_by_the_older_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulated(monkeypatch, tmp_path, OLDER)
    (state,) = rig.states(rig.probe())
    assert state.slowed_by == ("heat (the hardware)",)


def test_without_a_driver_it_is_said_what_cannot_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    simulated(monkeypatch, tmp_path / "nvml", init="DRIVER_NOT_LOADED")
    found = rig.probe()
    assert found.gpus == ()
    assert found.note is not None
    assert found.note.startswith("no GPU is seen: NVML answers Driver Not Loaded")
    assert "clocks, throttling, power, temperature, errors, memory and processes of GPUs cannot be seen" in found.note


def test_gpus_of_amd_are_counted_and_its_processors_are_not(tmp_path: Path) -> None:
    assert rig._amd_gpus(tmp_path) == 0
    for node, simd in (("0", 0), ("1", 1216), ("2", 1216)):
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd}\nmem_banks_count 1\n")
    assert rig._amd_gpus(tmp_path) == 2


def test_the_simulated_driver_is_asked_as_the_real_one_is(tmp_path: Path) -> None:
    """What it defines is there in the real module, with the same arguments by the same names."""
    fake = Driver(tmp_path, WORKING).module()
    questions = [
        name for name, each in vars(fake).items() if inspect.isfunction(each) and each.__module__ == fake.__name__
    ]
    asked = [name for name in questions if not name.startswith("_")]
    assert len(asked) > 25
    for name in asked:
        arguments = {which: list(inspect.signature(getattr(which, name)).parameters) for which in (fake, pynvml)}
        assert arguments[fake] == arguments[pynvml], name


def test_every_name_of_the_driver_that_is_used_is_there_and_takes_what_it_is_given() -> None:
    for module in ("nvml", "rig", "telemetry"):
        tree = ast.parse((Path(rig.__file__).parent / f"{module}.py").read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_nvml(node.value)}
        assert len(names) > 10
        assert {name for name in names if not hasattr(pynvml, name)} == set()
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            told = isinstance(call.func, ast.Name) and call.func.id == "told"
            function, *arguments = call.args if told else [call.func, *call.args]
            if isinstance(function, ast.Attribute) and _is_nvml(function.value):
                inspect.signature(getattr(pynvml, function.attr)).bind(*arguments)


def _is_nvml(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "pynvml"
