"""What NVML is asked of one GPU, of a rig and while it is sampled; None where the board or its driver does not tell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil
import pynvml

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """How fast a PCIe link runs, or can."""

    generation: int
    width: int

    def __str__(self) -> str:
        """`PCIe 5.0 x16`."""
        return f"PCIe {self.generation}.0 x{self.width}"


#: What holds the clocks of most loaded cards: it is judged by what it does to them.
POWER_CAP = "its power cap"

#: Reasons for held down clocks that spoil a measurement, by their bits. Idle, and clocks somebody set, are not among
#: them (NVML, nvmlClocksEventReasons).
_SLOWED_BY = {
    pynvml.nvmlClocksEventReasonSwPowerCap: POWER_CAP,
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "the hardware (heat, power brake or a fast trigger)",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat (the driver)",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (the hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "the power brake",
}


def told(ask: Callable[..., T], *arguments: object) -> T | None:
    """What NVML answers; None where this board or driver does not tell."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def slowed_by(reasons: int) -> tuple[str, ...]:
    """What holds clocks down, in words, by the bits that NVML answers. Of an idle GPU nothing does."""
    if reasons & pynvml.nvmlClocksEventReasonGpuIdle:
        return ()
    return tuple(text for bit, text in _SLOWED_BY.items() if reasons & bit)


def pids_on(handle: object) -> tuple[int, ...] | None:
    """Whose contexts are on a GPU; None where the driver does not tell."""
    running = told(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if running is None else tuple(int(each.pid) for each in running)


def utilisation(handle: object) -> float | None:
    """The share of the driver's last sample period in which a GPU worked."""
    rates = told(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return None if rates is None else int(rates.gpu) / 100


def pcie_now(handle: object) -> PcieLink | None:
    """How its PCIe link runs at this moment."""
    generation = told(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)
    width = told(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
    return None if generation is None or width is None else PcieLink(generation=int(generation), width=int(width))


def pcie_most(handle: object) -> PcieLink | None:
    """The most that its PCIe link can, where it sits."""
    generation = told(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = told(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return None if generation is None or width is None else PcieLink(generation=int(generation), width=int(width))


def reasons_now(handle: object) -> int | None:
    """The bits of why its clocks are what they are; drivers before 535 know the question by another name."""
    reasons = told(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    return told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) if reasons is None else reasons


def memory_used_bytes(handle: object) -> int | None:
    """What is taken of its memory, without what the driver keeps for itself.

    That is hundreds of megabytes on a healthy idle card. The first version of the question counts it as used, so where
    a driver knows no other nothing is known.
    """
    memory = told(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return None if memory is None else int(memory.used)


def process_name(pid: int) -> str:
    """What a process is called."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:  # of another container, or just ended
        return "not seen from here"
