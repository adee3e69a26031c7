"""How pytest-benchmark carries our numbers: the benchmarks, the machine and the commit in its files. Never the gate.

A launch is a round, its time the seconds per output token: then `ops`, one by the mean of the rounds, is tok/s (the
harmonic mean over launches). Runs and stored baselines name a case alike, so that either is compared with the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle

from pluggy import HookimplMarker
from pytest_benchmark import plugin
from pytest_benchmark.fixture import BenchmarkFixture

from perf.rig import EMULATED_RIG_ID, Rig, probe
from perf.sample import Build

#: The name of the timer in the files; by it our benchmarks are known among others.
TIMER = "seconds per output token"


class ReplayClock:
    """The timer of pytest-benchmark for our items: it advances by the seconds per token of a launch, not by itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.__name__ = TIMER  # as functions have it: so it stands in the files

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let the benchmarked function have taken `seconds`."""
        self.now += seconds


CLOCK = ReplayClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A case as pytest-benchmark carries it: tok/s of each launch, and what else its `extra_info` says."""

    case: str
    level: int
    throughputs: tuple[float, ...]
    extra_info: tuple[tuple[str, str], ...]


def names(case: str, level: int) -> dict[str, object]:
    """What a benchmark is called: the case by its id, in the group of its variant."""
    return {
        "group": case.rpartition("/")[0],
        "name": case,
        "fullname": case,
        "params": {"concurrency": level},
        "param": case,
    }


def replay(benchmark: BenchmarkFixture, carried: Carried) -> None:
    """Give pytest-benchmark the launches of a case."""
    for name, value in names(carried.case, carried.level).items():
        setattr(benchmark, name, value)
    benchmark.extra_info |= dict(carried.extra_info)
    launches = cycle(carried.throughputs)  # --benchmark-cprofile asks for one more
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        CLOCK.advance, setup=lambda: ((1 / next(launches),), {}), rounds=len(carried.throughputs)
    )


def machine_info(rig: Rig) -> dict[str, object]:
    """The rig, and nothing that changes from run to run: pytest-benchmark warns of whatever differs."""
    return {
        "node": rig.id,
        "cpu": {"brand_raw": rig.cpu},
        "release": rig.kernel,
        "gpus": [asdict(gpu) for gpu in rig.gpus],
        "driver": rig.driver,
    }


def commit_info(build: Build | None, server_version: str | None) -> dict[str, object]:
    """What was measured: the commit where it is known, else the version."""
    commit = None if build is None else build.commit
    version = server_version or (None if build is None else build.sglang)
    return {
        "id": commit or version or "unknown",
        "project": "sglang",
        "dirty": None if build is None or commit is None else build.dirty is not None,
        "version": version,
    }


# Hooks of pytest-benchmark; optional, for it may be switched off.

_hook = HookimplMarker("pytest")


@_hook(optionalhook=True)
def pytest_benchmark_generate_machine_info() -> dict[str, object]:
    """The machine of a file is the rig."""
    return machine_info(probe())


@_hook(optionalhook=True)
def pytest_benchmark_compare_machine_info(
    machine_info: dict[str, object], compared_benchmark: dict[str, dict[str, object]]
) -> None:
    """A stored baseline names its rig alone: without this, pytest-benchmark would warn of all that it does not say."""
    saved = compared_benchmark["machine_info"]
    if "gpus" not in saved and saved.get("node") in (machine_info["node"], EMULATED_RIG_ID):
        compared_benchmark["machine_info"] = machine_info


@_hook(optionalhook=True)
def pytest_benchmark_scale_unit(
    config: object,
    unit: str,
    benchmarks: Sequence[Mapping[str, Mapping[str, object]]],
    best: Mapping[str, float],
    worst: Mapping[str, float],
    sort: str,
) -> tuple[str, float]:
    """tok/s are shown as they are: the heading is `OPS (tok/s as ops/s)`, not Kops/s; times as pytest-benchmark does.

    `pytest-benchmark compare` takes it from the conftest.
    """
    if unit == "operations" and all(each["options"].get("timer") == TIMER for each in benchmarks):
        return "tok/s as ", 1.0
    scaled: tuple[str, float] = plugin.pytest_benchmark_scale_unit(  # type: ignore[no-untyped-call]
        config, unit, benchmarks, best, worst, sort
    )
    return scaled
