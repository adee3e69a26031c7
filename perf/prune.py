from pathlib import Path

from perf.baseline import Store

DEFAULT_KEEP = 60


def prune(campaigns: Path, store: Store, *, keep: int, dry_run: bool) -> int:
    raise NotImplementedError
