"""Which machine this is: the GPUs by NVML, the CPU, and the name its baselines are stored under."""

import hashlib
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import pynvml

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None where the driver does not tell.

    `power_limit_w` is the enforced limit in watts, `clocks_mhz` the application clocks of cores and memory: where
    somebody set them, it holds them there. Of locked clocks NVML has no word.
    """

    name: str
    uuid: str
    power_limit_w: float | None
    clocks_mhz: tuple[int, int] | None
    persistent: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The fingerprint of a machine. `machine` is a digest of its id, never the id.

    `cuda` is the newest version that the driver runs, `governor` the CPU's frequency policy as Linux calls it.
    """

    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda: str | None
    cpu: str
    governor: str | None
    machine: str
    kernel: str
    note: str | None = None

    @property
    def id(self) -> str:
        """`<count>x-<name>-<8 hex of the UUIDs>`, without a GPU `cpu-<model>-<8 hex of the machine id>`."""
        if not self.gpus:
            return f"cpu-{_slug(self.cpu)}-{self.machine[:8]}"
        uuids = hashlib.sha256("\n".join(sorted(gpu.uuid for gpu in self.gpus)).encode()).hexdigest()[:8]
        names = "-and-".join(sorted({_slug(gpu.name) for gpu in self.gpus}))
        return f"{len(self.gpus)}x-{names}-{uuids}"

    @property
    def power_limits_w(self) -> tuple[float | None, ...]:
        """The power limits in the order of the UUIDs: a hard field, since they set the clocks."""
        return tuple(gpu.power_limit_w for gpu in sorted(self.gpus, key=lambda gpu: gpu.uuid))

    @property
    def fingerprint(self) -> tuple[tuple[str, str], ...]:
        """The soft fields by their names for people, those that are known: they may change, and a change is told."""
        clocks = sorted({gpu.clocks_mhz for gpu in self.gpus if gpu.clocks_mhz is not None})
        persistent = sorted({gpu.persistent for gpu in self.gpus if gpu.persistent is not None})
        told = (
            ("driver", self.driver),
            ("CUDA of the driver", self.cuda),
            ("application clocks", ", ".join(f"{core}/{memory} MHz" for core, memory in clocks)),
            ("persistence mode", ", ".join("on" if each else "off" for each in persistent)),
            ("CPU", self.cpu),
            ("CPU governor", self.governor),
            ("Linux", self.kernel),
        )
        return tuple((name, value) for name, value in told if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU at this moment, numbered as NVML does; None and empty where the driver does not tell.

    `slowed_by` are the reasons for which its clocks are held down, idleness not among them.
    """

    index: int
    uuid: str
    processes: tuple[GpuProcess, ...]
    memory_used_bytes: int | None
    slowed_by: tuple[str, ...]
    celsius: int | None
    persistent: bool | None
    power_limit_w: float | None


#: Reasons for held down clocks that spoil a measurement, by their bits. Idle, and clocks somebody set, are not among
#: them (NVML, nvmlClocksEventReasons).
_SLOWED_BY = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "its power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "the hardware (heat, power brake or a fast trigger)",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat (the driver)",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (the hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "the power brake",
}

#: How the note of a rig begins whose GPUs are there and do not answer.
UNREADABLE = "the GPUs cannot be read"

#: The rig of a suite whose time is synthetic: its baselines hold on any machine.
EMULATED_RIG_ID = "emulated"


def probe() -> Rig:
    """Look at this machine. Without NVML there are no GPUs, and the note says why."""
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: int | None = None
    note: str | None = None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        note = f"no GPU is seen: NVML answers {error}"
    else:
        try:
            driver = _string(pynvml.nvmlSystemGetDriverVersion())
            cuda = _told(pynvml.nvmlSystemGetCudaDriverVersion_v2)
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            gpus = visible(tuple(_gpu(handle) for handle in handles), os.environ.get("CUDA_VISIBLE_DEVICES"))
        except pynvml.NVMLError as error:
            note = f"{UNREADABLE}: NVML answers {error}"
        finally:
            pynvml.nvmlShutdown()
    return Rig(
        gpus=gpus,
        driver=driver,
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        cpu=_cpu_model(),
        governor=_governor(Path("/sys/devices/system/cpu")),
        machine=hashlib.sha256(_machine_id().encode()).hexdigest()[:16],
        kernel=platform.release(),
        note=note,
    )


def states(rig: Rig) -> tuple[GpuState, ...]:
    """The rig's GPUs as they are now: not those that CUDA_VISIBLE_DEVICES hides. None without NVML."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        ours = {gpu.uuid for gpu in rig.gpus}
        found = tuple(_state(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return tuple(state for state in found if state.uuid in ours)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _state(index: int) -> GpuState:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    running = _told(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, handle)
    reasons = _told(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
    mode = _told(pynvml.nvmlDeviceGetPersistenceMode, handle)
    limit = _told(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuState(
        index=index,
        uuid=_string(pynvml.nvmlDeviceGetUUID(handle)),
        processes=tuple(GpuProcess(pid=each.pid, name=_process_name(each.pid)) for each in running),
        memory_used_bytes=None if memory is None else int(memory.used),
        slowed_by=tuple(text for bit, text in _SLOWED_BY.items() if reasons & bit),
        celsius=_told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        persistent=None if mode is None else bool(mode),
        power_limit_w=None if limit is None else limit / 1000,
    )


def _told(ask: Callable[..., T], *arguments: object) -> T | None:
    """What NVML answers; None where this board or driver does not tell."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:  # of another container, or just ended
        return "not seen from here"


def _gpu(handle: object) -> Gpu:
    limit = _told(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    mode = _told(pynvml.nvmlDeviceGetPersistenceMode, handle)
    core = _told(pynvml.nvmlDeviceGetApplicationsClock, handle, pynvml.NVML_CLOCK_GRAPHICS)
    memory = _told(pynvml.nvmlDeviceGetApplicationsClock, handle, pynvml.NVML_CLOCK_MEM)
    return Gpu(
        name=_string(pynvml.nvmlDeviceGetName(handle)),
        uuid=_string(pynvml.nvmlDeviceGetUUID(handle)),
        power_limit_w=None if limit is None else limit / 1000,
        clocks_mhz=None if core is None or memory is None else (int(core), int(memory)),
        persistent=None if mode is None else bool(mode),
    )


def visible(gpus: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """What CUDA_VISIBLE_DEVICES leaves, by index or by the beginning of a UUID, as CUDA reads it: up to the first
    entry that names no device."""
    if setting is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        matches = (
            [gpus[int(entry)]]
            if entry.isdigit() and int(entry) < len(gpus)
            else [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        )
        if len(matches) != 1:
            break
        chosen += matches
    return tuple(chosen)


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def _governor(cpus: Path) -> str | None:
    """The frequency policy of the CPUs, several where they differ; None where Linux has none, as in most guests."""
    found = set()
    for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            found.add(path.read_text(encoding="ascii", errors="replace").strip())
        except OSError:
            continue
    return ", ".join(sorted(found)) or None


def _machine_id() -> str:
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        try:
            text = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            continue
        if text:
            return text
    return platform.node()


def _slug(text: str) -> str:
    words = re.sub(r"\(r\)|\(tm\)|@.*$|\b(nvidia|geforce|cpu|processor)\b", " ", text.lower())
    return "-".join(re.findall(r"[a-z0-9]+", words))[:40].strip("-") or "unknown"


def _string(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
