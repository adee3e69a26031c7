"""Which machine this is: the GPUs by NVML, the CPU, and the name its baselines are stored under."""

import hashlib
import os
import platform
import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pynvml

from perf.nvml import (
    PcieLink,
    memory_used_bytes,
    pcie_most,
    pcie_now,
    pids_on,
    process_name,
    reasons_now,
    slowed_by,
    told,
    utilisation,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None where the driver does not tell.

    `power_limit_w` is the enforced limit in watts, `clocks_mhz` the application clocks of cores and memory: where
    somebody set them, it holds them there. Of locked clocks NVML has no word. `pcie` is the most that its link can
    where it sits, since an idle one runs slower; `nvlinks` counts the links of NVLink that are up.
    """

    name: str
    uuid: str
    power_limit_w: float | None
    clocks_mhz: tuple[int, int] | None
    persistent: bool | None
    pcie: PcieLink | None
    nvlinks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The fingerprint of a machine. `machine` is a digest of its id, never the id.

    `cuda` is the newest version that the driver runs, `governor` the CPU's frequency policy as Linux calls it. `pairs`
    says how many pairs of GPUs meet where, nearest first; empty where the driver does not tell, and for one GPU.
    """

    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda: str | None
    cpu: str
    governor: str | None
    machine: str
    kernel: str
    pairs: tuple[tuple[str, int], ...]
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
            ("links", self.links),
            ("CPU", self.cpu),
            ("CPU governor", self.governor),
            ("Linux", self.kernel),
        )
        return tuple((name, value) for name, value in told if value)

    @property
    def links(self) -> str:
        """How GPUs reach the host and each other: `PCIe 5.0 x16, no NVLink`; "" where nothing is known."""
        pcie = sorted({str(gpu.pcie) for gpu in self.gpus if gpu.pcie is not None})
        up = sorted({gpu.nvlinks for gpu in self.gpus if gpu.nvlinks is not None})
        nvlinks = [f"{count} NVLinks" if count else "no NVLink" for count in up]
        pairs = [f"{count} {'pair' if count == 1 else 'pairs'} by {where}" for where, count in self.pairs]
        return ", ".join([*pcie, *nvlinks, *pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU at this moment, numbered as NVML does; None and empty where the driver does not tell.

    `slowed_by` are the reasons for which its clocks are held down, idleness not among them. `pcie` is how its link runs
    now, which says something only while it works: `utilisation` is the share of the last moment in which it did.
    """

    index: int
    uuid: str
    processes: tuple[GpuProcess, ...]
    memory_used_bytes: int | None
    slowed_by: tuple[str, ...]
    celsius: int | None
    persistent: bool | None
    power_limit_w: float | None
    pcie: PcieLink | None = None
    utilisation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTelemetry:
    """How one GPU fared while a round was measured; None where the board or its driver does not tell.

    `index` is as NVML numbers it. Clocks (MHz) are of the samples in which it was not idle, without the first and the
    last of those; idle were `idle_samples` among `samples`. `slowed_by` has the share of samples for each reason that
    occurred. Errors of memory (`ecc_*`) are what came in the window, and `xids` the driver's numbers for errors that it
    reported in it. `foreign` are processes on it that are not of the server; None too where none of the server's own
    could be seen, as from within some containers. `utilisation_mean` is a share, `pcie` the fastest that its link was
    seen to run and `pcie_most` what it can.
    """

    index: int | None
    uuid: str
    samples: int
    idle_samples: int
    sm_clock_median_mhz: float | None
    sm_clock_mean_mhz: float | None
    sm_clock_min_mhz: float | None
    memory_clock_median_mhz: float | None
    power_mean_w: float | None
    power_max_w: float | None
    temperature_max_celsius: int | None
    utilisation_mean: float | None
    slowed_by: tuple[tuple[str, float], ...] | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    xids: tuple[int, ...] | None
    foreign: tuple[GpuProcess, ...] | None
    pcie: PcieLink | None
    pcie_most: PcieLink | None


#: Where the ways of two GPUs to each other meet, nearest first (NVML, nvmlGpuTopologyLevel_t).
_MEETING = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "their board",
    pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "a host bridge",
    pynvml.NVML_TOPOLOGY_NODE: "a NUMA node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "the link between CPUs",
}

#: What nobody tells where NVML does not answer.
_UNSEEN = "clocks, throttling, power, temperature, errors, memory and processes of GPUs cannot be seen"

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
    pairs: tuple[tuple[str, int], ...] = ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        amd = _amd_gpus(Path("/sys/class/kfd/kfd/topology/nodes"))
        there = f"; {amd} of AMD {'is' if amd == 1 else 'are'} there" if amd else ""
        note = f"no GPU is seen: NVML answers {error}{there}; {_UNSEEN}"
    else:
        try:
            driver = _string(pynvml.nvmlSystemGetDriverVersion())
            cuda = told(pynvml.nvmlSystemGetCudaDriverVersion_v2)
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            gpus = visible(tuple(_gpu(handle) for handle in handles), os.environ.get("CUDA_VISIBLE_DEVICES"))
            pairs = _pairs([pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus])
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
        pairs=pairs,
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
    mode = told(pynvml.nvmlDeviceGetPersistenceMode, handle)
    limit = told(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuState(
        index=index,
        uuid=_string(pynvml.nvmlDeviceGetUUID(handle)),
        processes=tuple(GpuProcess(pid=pid, name=process_name(pid)) for pid in pids_on(handle) or ()),
        memory_used_bytes=memory_used_bytes(handle),
        slowed_by=slowed_by(reasons_now(handle) or 0),
        celsius=told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        persistent=None if mode is None else bool(mode),
        power_limit_w=None if limit is None else limit / 1000,
        pcie=pcie_now(handle),
        utilisation=utilisation(handle),
    )


def _pairs(handles: list[object]) -> tuple[tuple[str, int], ...]:
    levels = Counter(
        told(pynvml.nvmlDeviceGetTopologyCommonAncestor, one, other) for one, other in combinations(handles, 2)
    )
    return tuple((text, levels[level]) for level, text in _MEETING.items() if levels[level])


def _amd_gpus(nodes: Path) -> int:
    """How many GPUs the driver of AMD has, by its list of compute nodes: a CPU's has no SIMD units."""
    count = 0
    for path in nodes.glob("*/properties"):
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        count += re.search(r"^simd_count [1-9]", text, flags=re.MULTILINE) is not None
    return count


def _gpu(handle: object) -> Gpu:
    limit = told(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    mode = told(pynvml.nvmlDeviceGetPersistenceMode, handle)
    core = told(pynvml.nvmlDeviceGetApplicationsClock, handle, pynvml.NVML_CLOCK_GRAPHICS)
    memory = told(pynvml.nvmlDeviceGetApplicationsClock, handle, pynvml.NVML_CLOCK_MEM)
    return Gpu(
        name=_string(pynvml.nvmlDeviceGetName(handle)),
        uuid=_string(pynvml.nvmlDeviceGetUUID(handle)),
        power_limit_w=None if limit is None else limit / 1000,
        clocks_mhz=None if core is None or memory is None else (int(core), int(memory)),
        persistent=None if mode is None else bool(mode),
        pcie=pcie_most(handle),
        # Which numbers a board's links have differs, so all are asked for; one without any answers none.
        nvlinks=sum(
            bool(told(pynvml.nvmlDeviceGetNvLinkState, handle, link)) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        ),
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
