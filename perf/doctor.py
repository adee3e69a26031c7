from pathlib import Path

from perf.baseline import Store


def examine(suites: list[str] | None, campaigns: Path, store: Store, *, noise: bool) -> int:
    raise NotImplementedError
