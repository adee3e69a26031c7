"""A driver of NVIDIA's that is only simulated: what it answers stands in `script.json` beside this file.

Put the folder of a copy of this file first on the module path and everybody there asks it. Names, constants and errors
are those of the real module; of its questions it knows those that the suite asks. The script is read again for every
question, so it may change while somebody asks, and has

    {"driver": "590.48", "cuda": 13010, "gpus": [{"uuid": "GPU-a", "name": "...", "sm_mhz": 2400, ...}],
     "meeting": 20, "init": "DRIVER_NOT_LOADED", "hangs": true, "dies": true, "no_events": true}

A list is answered one entry after the other, over and over; a word in capitals is the error of that name; what a GPU
does not have is NOT_SUPPORTED. `xids` are the numbers of errors since it was asked last, so each is told once by a
process: those that the script has beyond the ones told before. One as `[1.5, 79]` comes so many seconds after the
process has first asked for a clock. `init` is why there is no driver; what `no_events` has
dies when it is asked for them.
"""

# ruff: noqa: N802, N803, ARG001 - names and arguments are the driver's

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_HERE = Path(__file__).resolve().parent
_SCRIPT = _HERE / "script.json"


def _the_real_one() -> Any:
    others = [each for each in sys.path if Path(each).resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("pynvml", others)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


real = _the_real_one()
globals().update({name: value for name, value in vars(real).items() if not name.startswith("_")})

_began_s: list[float] = []

_asked: Counter[tuple[int, str]] = Counter()
_told: Counter[int] = Counter()


def _script() -> dict[str, Any]:
    script: dict[str, Any] = json.loads(_SCRIPT.read_text())
    if script.get("dies"):
        os._exit(9)
    if script.get("hangs"):
        time.sleep(600)
    return script


def _error(name: str) -> Exception:
    error: Exception = real.NVMLError(getattr(real, f"NVML_ERROR_{name}"))
    return error


def _answer(handle: int, name: str) -> Any:
    value = _script()["gpus"][handle].get(name, "NOT_SUPPORTED")
    if isinstance(value, list) and name not in ("processes", "xids", "nvlinks"):
        _asked[handle, name] += 1
        value = value[(_asked[handle, name] - 1) % len(value)]
    if isinstance(value, str) and hasattr(real, f"NVML_ERROR_{value}"):
        raise _error(value)
    return value


def nvmlInit() -> None:
    if (problem := _script().get("init")) is not None:
        raise _error(problem)


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return str(_script()["driver"])


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return int(_script()["cuda"])


def nvmlDeviceGetCount() -> int:
    return len(_script()["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    for index, gpu in enumerate(_script()["gpus"]):
        if gpu["uuid"] == uuid:
            return index
    raise _error("NOT_FOUND")


def nvmlDeviceGetIndex(handle: int) -> int:
    return handle


def nvmlDeviceGetUUID(handle: int) -> str:
    return str(_answer(handle, "uuid"))


def nvmlDeviceGetName(handle: int) -> str:
    return str(_answer(handle, "name"))


def nvmlDeviceGetEnforcedPowerLimit(handle: int) -> Any:
    return _answer(handle, "power_limit_mw")


def nvmlDeviceGetPersistenceMode(handle: int) -> Any:
    return _answer(handle, "persistence")


def nvmlDeviceGetApplicationsClock(handle: int, type: int) -> Any:
    return _answer(handle, "application_mhz" if type == real.NVML_CLOCK_GRAPHICS else "application_memory_mhz")


def nvmlDeviceGetClockInfo(handle: int, type: int) -> Any:
    _began_s[1:] = []
    _began_s.append(time.monotonic())
    return _answer(handle, "sm_mhz" if type == real.NVML_CLOCK_SM else "memory_mhz")


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> Any:
    return _answer(handle, "reasons")


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: int) -> Any:
    return _answer(handle, "throttle_reasons")


def nvmlDeviceGetPowerUsage(handle: int) -> Any:
    return _answer(handle, "power_mw")


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> Any:
    assert sensor == real.NVML_TEMPERATURE_GPU
    return _answer(handle, "celsius")


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=_answer(handle, "utilisation"), memory=0)


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Any:
    """The first version counts what the driver keeps for itself as used."""
    assert version in (None, real.nvmlMemory_v2)
    return SimpleNamespace(used=_answer(handle, "memory_used" if version else "memory_used_v1"))


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> Any:
    return [SimpleNamespace(pid=pid) for pid in _answer(handle, "processes")]


def nvmlDeviceGetTotalEccErrors(handle: int, errorType: int, counterType: int) -> Any:
    assert counterType == real.NVML_VOLATILE_ECC
    corrected = errorType == real.NVML_MEMORY_ERROR_TYPE_CORRECTED
    return _answer(handle, "ecc_corrected" if corrected else "ecc_uncorrected")


def nvmlDeviceGetCurrPcieLinkGeneration(handle: int) -> Any:
    return _answer(handle, "pcie_generation")


def nvmlDeviceGetCurrPcieLinkWidth(handle: int) -> Any:
    return _answer(handle, "pcie_width")


def nvmlDeviceGetMaxPcieLinkGeneration(handle: int) -> Any:
    return _answer(handle, "pcie_generation_most")


def nvmlDeviceGetMaxPcieLinkWidth(handle: int) -> Any:
    return _answer(handle, "pcie_width_most")


def nvmlDeviceGetNvLinkState(device: int, link: int) -> Any:
    links = _answer(device, "nvlinks")
    if link >= len(links):
        raise _error("INVALID_ARGUMENT")
    return links[link]


def nvmlDeviceGetTopologyCommonAncestor(device1: int, device2: int) -> Any:
    meeting = _script().get("meeting", "NOT_SUPPORTED")
    if isinstance(meeting, str):
        raise _error(meeting)
    return meeting


def nvmlEventSetCreate() -> list[int]:
    if _script().get("no_events"):
        os._exit(9)
    return []


def nvmlDeviceRegisterEvents(handle: int, eventTypes: int, eventSet: list[int]) -> None:
    assert eventTypes == real.nvmlEventTypeXidCriticalError
    _answer(handle, "xids")
    eventSet.append(handle)


def nvmlEventSetWait_v2(eventSet: list[int], timeoutms: int) -> Any:
    assert timeoutms == 0
    for handle in eventSet:
        age_s = time.monotonic() - _began_s[0] if _began_s else 0.0
        entries = (each if isinstance(each, list) else [0.0, each] for each in _answer(handle, "xids"))
        xids = [number for after_s, number in entries if age_s >= after_s]
        if _told[handle] < len(xids):
            _told[handle] += 1
            return SimpleNamespace(device=handle, eventData=xids[_told[handle] - 1])
    raise _error("TIMEOUT")
