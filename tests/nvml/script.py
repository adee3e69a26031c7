"""A simulated driver for a test: a copy of `pynvml.py` in a folder of its own, and what it answers there."""

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml

NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"

#: A card that works, with an answer to everything.
WORKING: dict[str, Any] = {
    "uuid": "GPU-0",
    "name": NAME,
    "power_limit_mw": 600_000,
    "persistence": 1,
    "application_mhz": 2430,
    "application_memory_mhz": 1593,
    "sm_mhz": 2400,
    "memory_mhz": 1593,
    "reasons": 0,
    "throttle_reasons": 0,
    "power_mw": 550_000,
    "celsius": 62,
    "utilisation": 97,
    "memory_used": 3 * 1024**2,
    "memory_used_v1": 912 * 1024**2,
    "processes": [],
    "ecc_corrected": 7,
    "ecc_uncorrected": 0,
    "xids": [],
    "pcie_generation": 5,
    "pcie_width": 16,
    "pcie_generation_most": 5,
    "pcie_width_most": 16,
    "nvlinks": [],
}

#: A consumer's board tells no errors of its memory and has no links, and under some systems reports no errors either.
CONSUMER: dict[str, Any] = {
    name: value
    for name, value in WORKING.items()
    if name not in ("ecc_corrected", "ecc_uncorrected", "xids", "nvlinks", "application_mhz")
}

#: What a driver before 535 answers, and one that knows memory by the first version of its question alone.
OLDER: dict[str, Any] = WORKING | {
    "reasons": "FUNCTION_NOT_FOUND",
    "throttle_reasons": 0x40,
    "memory_used": "FUNCTION_NOT_FOUND",
}


class Driver:
    """The script of a simulated driver in `folder`, which goes first on a module path."""

    def __init__(self, folder: Path, *gpus: Mapping[str, Any], **whole: object) -> None:
        self.folder = folder
        self._gpus = [dict(each) for each in gpus]
        self._whole = {"driver": "590.48", "cuda": 13010} | whole
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("pynvml.py"), folder)
        self._write()

    def change(self, gpu: int = 0, **answers: object) -> None:
        """What a GPU answers from now on."""
        self._gpus[gpu] |= answers
        self._write()

    def breaks(self, **how: object) -> None:
        """What the whole of it does from now on: `hangs`, `dies` or `init`."""
        self._whole |= how
        self._write()

    def module(self) -> Any:
        """It, imported here, without a change of the module path."""
        spec = importlib.util.spec_from_file_location("simulated_pynvml", self.folder / "pynvml.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def _write(self) -> None:
        whole = self.folder / "script.json.new"
        whole.write_text(json.dumps({**self._whole, "gpus": self._gpus}))
        os.replace(whole, self.folder / "script.json")


def no_driver() -> str | None:
    """Why the real NVML does not answer on this machine; None where it does."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"NVML answers {error}"
    return None if count else "NVML knows no GPU"


def path_with(driver: Driver) -> str:
    """A PYTHONPATH on which the simulated driver comes first."""
    return os.pathsep.join([str(driver.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
