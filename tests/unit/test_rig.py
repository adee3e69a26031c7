"""Which machine a baseline belongs to."""

import re
from dataclasses import replace
from pathlib import Path

from perf import rig
from perf.rig import Gpu, Rig, visible

BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def gpus(*uuids: str, name: str = BLACKWELL) -> tuple[Gpu, ...]:
    return tuple(Gpu(name=name, uuid=uuid, power_limit_w=600.0, clocks_mhz=None, persistent=None) for uuid in uuids)


def machine(*cards: Gpu) -> Rig:
    return Rig(
        gpus=cards,
        driver="590.1",
        cuda="13.1",
        cpu="AMD EPYC 9575F 64-Core Processor",
        governor="performance",
        machine="0123456789abcdef",
        kernel="6.1",
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
        Gpu(name=BLACKWELL, uuid="GPU-b", power_limit_w=None, clocks_mhz=(2430, 1593), persistent=True),
        Gpu(name=BLACKWELL, uuid="GPU-a", power_limit_w=None, clocks_mhz=(1980, 1593), persistent=True),
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
