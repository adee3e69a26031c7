"""Files of earlier versions, as this version would have written them. Pure; every step is tested on a real old file.

A step adds what its schema added, as "not known", and changes no number; where that is there already, the file is not
as old as it says, and is refused. What is no file of ours is passed on as it is: whoever reads it says what is wrong.
"""

import json
from collections.abc import Callable, Mapping

from perf import crossover
from perf.sample import SCHEMA

#: The schema of campaign files.
CAMPAIGN_SCHEMA = 2

BASELINE_VERSION = f"sglang-perf baseline {SCHEMA}"

_Object = dict[str, object]


class NewerFileError(ValueError):
    """A file that a later version wrote."""

    def __init__(self, schema: int, known: int) -> None:
        super().__init__(f"written by a newer version (schema {schema}, this one reads up to {known}); update it")


def campaign(data: bytes) -> bytes:
    """The text of a campaign file, brought to CAMPAIGN_SCHEMA. Raises ValueError, such as NewerFileError."""
    file = _object(data)
    if file is None or file.get("kind") != "sglang-perf campaign":
        return data
    return _brought(data, file, file.get("schema"), CAMPAIGN_SCHEMA, {1: _campaign_2})


def baseline(data: bytes) -> bytes:
    """The text of a baseline file, brought to the schema of samples. Raises ValueError, such as NewerFileError."""
    return _versioned(data, "sglang-perf baseline", SCHEMA, {1: _baseline_2})


def crossovers(data: bytes) -> bytes:
    """The text of a file of crossovers, which has one schema as yet. Raises ValueError, such as NewerFileError."""
    return _versioned(data, "sglang-perf crossovers", crossover.SCHEMA, {})


def _versioned(data: bytes, kind: str, newest: int, steps: Mapping[int, Callable[[_Object], None]]) -> bytes:
    """A file whose version is its kind and a number."""
    file = _object(data)
    head, _, number = str(file.get("version") if file else "").rpartition(" ")
    if file is None or head != kind or not number.isdecimal() or len(number) > 4:
        return data
    return _brought(data, file, int(number), newest, steps)


def _brought(
    data: bytes, file: _Object, schema: object, newest: int, steps: Mapping[int, Callable[[_Object], None]]
) -> bytes:
    if type(schema) is not int or schema == newest:  # `true` is an int, too
        return data
    if schema > newest:
        raise NewerFileError(schema, newest)
    for number in range(schema, newest):
        if number not in steps:
            return data
        steps[number](file)
    return json.dumps(file).encode()


def _campaign_2(file: _Object) -> None:
    """0.2: builds and arms of launches, how the client fared, what the workload was, and stored baselines alike.

    Every launch was a candidate in a block of its own, its levels in the order of the suite.
    """
    file["schema"] = 2
    for suite in _objects(file.get("suites")):
        _add(suite, "workload")
        _add(suite, "reference", value=False)
        _add(suite, "order_seed", value=0)
        for launch in _objects(suite.get("launches")):
            _add(launch, "build")
            _add(launch, "outputs")
            _add(launch, "arm", value="candidate")
            _add(launch, "block", value=launch.get("ordinal"))
            _add(launch, "server_arguments", value=[])
            for measurement in _objects(launch.get("measurements")):
                for taken in _objects(measurement.get("rounds")):
                    _add(taken, "client")
                    _add(taken, "gpus")
                    _add(taken, "server_log")
        for case in _objects(suite.get("cases")):
            _stored_2(case.get("stored"))
        _add(suite, "fingerprint", value=[])
        _add(suite, "crossovers", value=[])
        _add(suite, "same_outputs", value=[])
    _rig_2(file.get("rig"))


def _baseline_2(file: _Object) -> None:
    file["version"] = "sglang-perf baseline 2"
    for benchmark in _objects(file.get("benchmarks")):
        _stored_2(benchmark.get("extra_info"))
        _add(benchmark, "digest")


def _rig_2(rig: object) -> None:
    """0.2: what else of the machine is told."""
    if isinstance(rig, dict):
        _add(rig, "cuda")
        _add(rig, "governor")
        _add(rig, "pairs", value=[])
        for gpu in _objects(rig.get("gpus")):
            _add(gpu, "clocks_mhz")
            _add(gpu, "persistent")
            _add(gpu, "pcie")
            _add(gpu, "nvlinks")


#: What 0.2 keeps of each round of a stored launch, to say what moved.
_OF_ROUNDS_2 = (
    "ttft_mean_s",
    "e2e_mean_s",
    "achieved_concurrency",
    "itl_p99_s",
    "turnaround_share",
    "away_share",
    "cpu_share",
)


def _stored_2(case: object) -> None:
    """0.2: build and fingerprint, what else tells of noise, and of each launch what says what moved."""
    if isinstance(case, dict) and type(case.get("schema")) is int and case["schema"] == 1:
        case["schema"] = 2
        _add(case, "build")
        for launch in _objects(case.get("launches")):
            _add(launch, "start_s")
            rounds = launch.get("output_throughput")
            for key in _OF_ROUNDS_2:
                _add(launch, key, value=[None] * len(rounds) if isinstance(rounds, list) else None)
            _add(launch, "pace", value=[])
        _add(case, "fingerprint", value=[])
        _add(case, "others", value=[])
        _add(case, "server_arguments", value=[])
        for promotion in _objects(case.get("promotions")):
            _add(promotion, "comparable")


def _add(to: _Object, key: str, *, value: object = None) -> None:
    if key in to:
        raise ValueError(f"says it is of an older version, but has the key {key!r} of a later one; restore it")
    to[key] = value


def _object(data: bytes) -> _Object | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _objects(value: object) -> list[_Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
