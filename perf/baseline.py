"""Stored baselines: raw per-launch samples, one file for each rig, suite and variant, written by promotion only.

Beside them one file of crossovers, the levels from which one variant is faster than another. A file of a variant is
valid pytest-benchmark JSON, so that `pytest-benchmark compare` reads it. The sample stands once, in
`extra_info`; the statistics beside it are computed from it when the file is written and never read. A digest of the
sample stands beside it: what was changed since it was promoted, by whomever, is no baseline.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from filelock import FileLock, Timeout
from pydantic import ConfigDict, TypeAdapter
from pytest_benchmark.stats import Stats

from perf import carrier, migration
from perf.crossover import StoredCrossover
from perf.crossover import is_sound as is_sound_crossover
from perf.files import FileError, read_json, to_json, write_text
from perf.sample import SCHEMA, StoredCase, is_sound, joined, may_join, succeeded, throughputs
from perf.text import printable

_RESTORE = "restore the file from version control, or remove it and promote again"

#: Promotions, and a prune, wait for each other; a promotion takes milliseconds, a prune some seconds at most.
LOCK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Benchmark:
    digest: str | None  # of `extra_info`; None in what version 0.1 stored
    extra_info: StoredCase


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    node: str  # the rig


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)  # holds for what is inside, too
    machine_info: _Machine
    version: Literal["sglang-perf baseline 2"]
    benchmarks: tuple[_Benchmark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crossovers:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)
    version: Literal["sglang-perf crossovers 1"]
    rig: str
    crossovers: tuple[StoredCrossover, ...]


_ADAPTER = TypeAdapter(_File)
_CROSSOVERS = TypeAdapter(_Crossovers)

#: The file of all crossovers of a suite; no variant is called so.
CROSSOVERS = "crossover"


class Store:
    """A folder of baselines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, rig_id: str, suite: str, variant: str) -> Path:
        """Where a variant's baselines lie."""
        return self.folder / rig_id / suite / f"{variant}.json"

    def read(self, rig_id: str, suite: str, variant: str) -> tuple[StoredCase, ...]:
        """The stored cases of a variant, none where there is no file. Raises FileError for a file that is damaged."""
        path = self.path(rig_id, suite, variant)
        if not _is_there(path, "a baseline file"):
            return ()
        changed: list[int] = []

        def upgrade(data: bytes) -> bytes:
            changed.extend(_changed(data))  # the digest is of what is written there, by whatever version
            return migration.baseline(data)

        file = read_json(path, _ADAPTER, "a baseline file", upgrade)
        cases = tuple(benchmark.extra_info for benchmark in file.benchmarks)
        if file.machine_info.node != rig_id:
            raise FileError(f"{path}: is of rig {printable(file.machine_info.node, 80)}, not of this one; {_RESTORE}")
        for case in cases:
            _believe(case, path, f"{suite}/{variant}")
        if changed:
            raise FileError(f"{path}: level {cases[changed[0]].level} was changed since it was promoted; {_RESTORE}")
        if len({case.level for case in cases}) != len(cases):
            raise FileError(f"{path}: a level stands twice, as after a merge; {_RESTORE}")
        return cases

    def by_case(self, rig_id: str, suite: str, variants: Iterable[str]) -> dict[tuple[str, int], StoredCase]:
        """The stored cases of a suite by variant and level. Raises FileError."""
        return {(name, case.level): case for name in variants for case in self.read(rig_id, suite, name)}

    def promote(self, rig_id: str, suite: str, variant: str, cases: tuple[StoredCase, ...], *, add: bool) -> Path:
        """Store `cases`, each in place of what stood for its level, and leave the other levels alone.

        What is replaced is kept for what it says about noise. With `add`, the launches of a stored case are kept and
        the new ones join them; all is refused where some may not. Raises FileError.
        """
        with self.locked():
            whole = self.with_cases(rig_id, suite, variant, cases, add=add)
            write_text(path := self.path(rig_id, suite, variant), render(rig_id, whole))
        return path

    def with_cases(
        self, rig_id: str, suite: str, variant: str, cases: tuple[StoredCase, ...], *, add: bool
    ) -> tuple[StoredCase, ...]:
        """The stored cases of a variant as `promote` would leave them. Raises FileError."""
        path = self.path(rig_id, suite, variant)
        levels = {case.level: case for case in self.read(rig_id, suite, variant)}
        for case in cases:
            old = levels.get(case.level)
            if old is not None and add and not may_join(old, case):
                raise FileError(
                    f"{path}: level {case.level}: another promotion stored what these launches cannot join; "
                    "nothing was changed"
                )
            levels[case.level] = case if old is None else (joined if add else succeeded)(old, case)
        return tuple(levels[level] for level in sorted(levels))

    def crossovers(self, rig_id: str, suite: str) -> dict[str, StoredCrossover]:
        """The stored crossovers of a suite by their ids, none where there is no file.

        Raises FileError for a file that is damaged.
        """
        path = self.path(rig_id, suite, CROSSOVERS)
        if not _is_there(path, "a file of crossovers"):
            return {}
        file = read_json(path, _CROSSOVERS, "a file of crossovers", migration.crossovers)
        if file.rig != rig_id:
            raise FileError(f"{path}: is of rig {printable(file.rig, 80)}, not of this one; {_RESTORE}")
        for each in file.crossovers:
            if not is_sound_crossover(each):
                raise FileError(
                    f"{path}: {printable(each.crossover, 120)}: a stored crossover must be finite numbers from which "
                    f"its estimate follows, as it was promoted; {_RESTORE}"
                )
            if each.crossover != f"{suite}/expect/crossover-of-{each.first}-and-{each.second}":
                raise FileError(f"{path}: holds {printable(each.crossover, 120)}, which belongs elsewhere; {_RESTORE}")
        found = {each.crossover: each for each in file.crossovers}
        if len(found) != len(file.crossovers):
            raise FileError(f"{path}: a crossover stands twice, as after a merge; {_RESTORE}")
        return found

    def promote_crossovers(self, rig_id: str, suite: str, crossovers: Iterable[StoredCrossover]) -> Path:
        """Store these, each in place of what stood for it, and leave the others alone. Raises FileError."""
        with self.locked():
            path, text = self.with_crossovers(rig_id, suite, crossovers)
            write_text(path, text)
        return path

    def with_crossovers(self, rig_id: str, suite: str, crossovers: Iterable[StoredCrossover]) -> tuple[Path, str]:
        """What `promote_crossovers` would write: the file, and its text. Raises FileError."""
        whole = self.crossovers(rig_id, suite) | {each.crossover: each for each in crossovers}
        file = _Crossovers(
            version="sglang-perf crossovers 1", rig=rig_id, crossovers=tuple(whole[id] for id in sorted(whole))
        )
        return self.path(rig_id, suite, CROSSOVERS), to_json(asdict(file), indent=1)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While files are read and written again: no other promotion or prune meanwhile. Raises FileError."""
        lock = self.folder / ".lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=LOCK_TIMEOUT_S):
                for left in (*self.folder.glob("*/.*.json.*.tmp"), *self.folder.glob("*/*/.*.json.*.tmp")):
                    left.unlink(missing_ok=True)  # of a promotion that was killed: ours is the lock
                yield
        except Timeout as error:
            who = _holder(lock) or "another promotion or a prune"
            raise FileError(
                f"{lock}: {who} has held it for {LOCK_TIMEOUT_S:.0f} s; nothing was changed: wait for it, then again"
            ) from error
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be written: {error.strerror}; nothing was changed") from error


def _holder(lock: Path) -> str | None:
    """Who holds a lock, `process 4711 (python -m perf promote ...)`; None where it is not of this machine."""
    try:
        status = lock.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        pid = next(words[4] for words in held if words[5] == place and words[1] == "FLOCK")
        told = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
    except (OSError, StopIteration, LookupError):
        return None
    return f"process {pid} ({printable(told, 200)})"


def _is_there(path: Path, what: str) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError(f"{path}: cannot be read as {what}: {error.strerror}") from error
    return True


def _believe(case: StoredCase, path: Path, place: str) -> None:
    if not is_sound(case):
        raise FileError(
            f"{path}: level {case.level}: a stored sample must be different launches of positive numbers, as "
            f"they were promoted, under schema {SCHEMA}; {_RESTORE}"
        )
    head, _, level = case.case.rpartition("/c")
    if head != place or level.lstrip("0") != str(case.level):
        raise FileError(f"{path}: holds {printable(case.case, 120)}, which belongs elsewhere; {_RESTORE}")


def _changed(data: bytes) -> list[int]:
    """The places of samples that are not as their digests say; in what is no file of ours there are none."""
    try:
        return [
            place
            for place, benchmark in enumerate(json.loads(data)["benchmarks"])
            if "digest" in benchmark and benchmark["digest"] != _digest(benchmark["extra_info"])
        ]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []  # whoever reads it says what is wrong


def _digest(sample: object) -> str:
    """A digest of a sample as it stands in a file. Numbers are taken as read: `1.0` and `1.00` are the same."""
    return hashlib.sha256(json.dumps(sample).encode()).hexdigest()[:16]


def render(rig_id: str, cases: tuple[StoredCase, ...]) -> str:
    """The text of a variant's file. One case a line, so that a change of one level is a change of one line."""
    lines = ",\n".join("  " + to_json(_benchmark(case)).strip() for case in cases)
    newest = max(cases, key=lambda case: case.promotion.promoted_at)
    head = {
        "machine_info": {"node": rig_id},
        "commit_info": carrier.commit_info(newest.build, newest.server_version),
        "version": migration.BASELINE_VERSION,
        "datetime": newest.promotion.promoted_at,
    }
    return to_json(head).rstrip()[:-1] + ', "benchmarks": [\n' + lines + "\n]}\n"


def _benchmark(case: StoredCase) -> dict[str, object]:
    stats = Stats()  # type: ignore[no-untyped-call]
    stats.data += [1 / value for value in throughputs(case.launches)]
    sample = asdict(case)
    return {
        **carrier.names(case.case, case.level),
        "digest": _digest(json.loads(to_json(sample))),
        "extra_info": sample,
        "options": {"disable_gc": False, "timer": carrier.TIMER, "min_rounds": 1, "warmup": False},
        "stats": {name: getattr(stats, name) for name in stats.fields} | {"iterations": 1},
    }
