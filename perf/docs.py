from pathlib import Path

from perf.record import Campaign

LOG = Path("docs/eagle-fast-verify.md")


def renew(root: Path, *, check: bool) -> int:
    raise NotImplementedError


def add(root: Path, log: Path, campaign: Campaign, *, title: str) -> int:
    raise NotImplementedError
