"""Old campaigns go: only what certainly is a campaign of ours, is not being measured, and is nobody's source.

A campaign is first renamed to what no command takes for a campaign, then removed: whoever kills this leaves whole
campaigns, and remains that the next prune removes. Records of campaigns (docs/records) are copies and protect nothing.
"""

import math
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from perf import record
from perf.baseline import Store
from perf.coverage import contents
from perf.files import FileError
from perf.text import printable

DEFAULT_KEEP = 60

#: Two prunes at once wait for each other, and for a promotion; removing a campaign takes well under a second.
LOCK_TIMEOUT_S = 60.0

#: An interrupted campaign stays until nothing of it was written for so long: a nightly job may end with a prune, and it
#: is the evidence of a night cut short. Where no lock tells, it may still be measured: a server may take a day to be
#: ready (`ready_timeout_s`), and need not write a word meanwhile.
SILENT_S = 2 * 86_400.0

_REMAINS = ".pruned-"
_REMAINS_WORD = "remains of a prune"
_REMAINS_OF = re.compile(re.escape(_REMAINS) + record.ID.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """What goes: a campaign, or the remains of one; `what` says which of them."""

    folder: Path
    what: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sorted:
    """What is to become of everything in a folder of campaigns: `spared` as (name, why), the rest just stays."""

    doomed: tuple[Doomed, ...]
    spared: tuple[tuple[str, str], ...]
    staying: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What went, or would go in a dry run; what could not be removed, as (name, why)."""

    gone: tuple[Doomed, ...]
    failed: tuple[tuple[str, str], ...]
    spared: tuple[tuple[str, str], ...]
    staying: int


def prune(campaigns: Path, store: Store, *, keep: int, dry_run: bool, now_s: float) -> Pruned:
    """Remove the oldest complete campaigns beyond the newest `keep`, and silent interrupted ones; `now_s` is Unix time.

    Never those that a stored baseline names, nor those being measured. Raises FileError where the store cannot be read
    whole, since then nobody knows which these are. No promotion lands between the look at the store and the removal.
    """
    if dry_run or not os.path.lexists(campaigns):
        found = _sorted_out(campaigns, _sources(store), keep, now_s)
        return Pruned(gone=found.doomed, failed=(), spared=found.spared, staying=found.staying)
    try:
        with FileLock(campaigns / ".prune.lock", timeout=LOCK_TIMEOUT_S), _without_promotions(store):
            return _carried_out(_sorted_out(campaigns, _sources(store), keep, now_s))
    except Timeout as error:
        raise FileError(
            f"{error.lock_file}: another prune or a promotion has held it for {LOCK_TIMEOUT_S:.0f} s; nothing was "
            "removed: wait for it, and prune again"
        ) from error
    except OSError as error:
        place = error.filename or campaigns
        raise FileError(f"{place}: cannot be written: {error.strerror}; nothing was removed") from error


def _without_promotions(store: Store) -> AbstractContextManager[object]:
    """Hold the store's lock. A store that cannot be written needs none: no promotion can write it either."""
    if not os.access(store.folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return nullcontext()
    return FileLock(store.folder / ".lock", timeout=LOCK_TIMEOUT_S)


def _sources(store: Store) -> set[str]:
    """The campaigns that any stored baseline names. Raises FileError."""
    if not os.path.isdir(store.folder):
        raise FileError(
            f"{store.folder}: no store of baselines is here, so it is not known which campaigns they came from; "
            "name it with --baselines, or make an empty folder if there is none"
        )
    found = contents(store)
    unread = [*found.damaged.values(), *(f"{path}: is no place of a baseline" for path in found.strange)]
    if unread:
        raise FileError(
            f"{store.folder} cannot be read whole, so it is not known which campaigns its baselines came from; nothing "
            f"was removed. {len(unread)} to be repaired, see python -m perf baselines; the first: {unread[0]}"
        )
    cases = [case for file in found.files for case in file.cases]
    launches = {launch.campaign for case in cases for launch in case.launches}
    crossovers = {each.campaign for file in found.crossovers for each in file.crossovers.values()}
    return launches | crossovers | {promotion.campaign for case in cases for promotion in case.promotions}


def _sorted_out(campaigns: Path, sources: set[str], keep: int, now_s: float) -> _Sorted:
    """Look at everything in the folder, and touch nothing. Raises FileError."""
    doomed: list[Doomed] = []
    spared: list[tuple[str, str]] = []
    complete: list[Path] = []
    interrupted: list[Path] = []
    for entry in _entries(campaigns):
        path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        if is_folder and _REMAINS_OF.fullmatch(entry.name):
            doomed.append(Doomed(folder=path, what=_REMAINS_WORD, size_bytes=_size(path)))
        elif entry.name.startswith("."):
            continue
        elif entry.is_symlink():
            spared.append((entry.name, "a symbolic link, not followed"))
        elif not is_folder or not record.ID.fullmatch(entry.name):
            spared.append((entry.name, "not a campaign"))
        else:
            try:
                (complete if record.read(path).complete else interrupted).append(path)
            except FileError as error:
                spared.append((entry.name, f"no campaign that this version can read: {error}"))
    complete.sort(key=record.age, reverse=True)
    for path in sorted((*complete[keep:], *interrupted), key=record.age):
        if path.name in sources:
            spared.append((path.name, "a stored baseline came from it"))
        elif record.is_measured(path):
            spared.append((path.name, "it is being measured"))
        elif path in interrupted and now_s - _last_written_s(path) < SILENT_S:
            spared.append((path.name, f"not complete, and written to within {SILENT_S / 3600:.0f} hours"))
        else:
            what = "interrupted" if path in interrupted else "complete"
            doomed.append(Doomed(folder=path, what=what, size_bytes=_size(path)))
    campaigns_doomed = sum(each.what != _REMAINS_WORD for each in doomed)
    return _Sorted(
        doomed=tuple(doomed), spared=tuple(spared), staying=len(complete) + len(interrupted) - campaigns_doomed
    )


def _entries(campaigns: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(campaigns), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"{campaigns}: cannot be read: {error.strerror}") from error


def _carried_out(found: _Sorted) -> Pruned:
    gone: list[Doomed] = []
    failed: list[tuple[str, str]] = []
    for each in found.doomed:
        remains = each.folder
        try:
            if each.what != _REMAINS_WORD:
                remains = each.folder.rename(each.folder.with_name(_REMAINS + each.folder.name))
            shutil.rmtree(remains)
            gone.append(each)
        except OSError as error:
            failed.append((remains.name, f"cannot be removed: {error.strerror}, at {error.filename}"))
    staying = found.staying + sum(os.path.isdir(each.folder) for each in found.doomed if each.what != _REMAINS_WORD)
    return Pruned(gone=tuple(gone), failed=tuple(failed), spared=found.spared, staying=staying)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    """Of everything in a folder; links are not followed, and what vanishes meanwhile is left out."""
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            with suppress(OSError):
                yield os.lstat(os.path.join(place, name))


def _last_written_s(folder: Path) -> float:
    return max((each.st_mtime for each in _stats(folder)), default=math.inf)


def _size(folder: Path) -> int:
    """The bytes of its files."""
    return sum(each.st_size for each in _stats(folder) if not stat.S_ISDIR(each.st_mode))


def text(found: Pruned, campaigns: Path, *, dry_run: bool) -> str:
    """One line for everything that does not simply stay, and the sum."""
    word = "would go" if dry_run else "removed"
    lines = [(word, each.folder.name, f"{each.what}, {_bytes(each.size_bytes)}") for each in found.gone]
    lines += [("spared", name, why) for name, why in found.spared]
    lines += [("failed", name, why) for name, why in found.failed]
    said = [f"{what:<9} {printable(name, 60):<20} {printable(why, 600)}" for what, name, why in lines]
    total = _bytes(sum(each.size_bytes for each in found.gone))
    said.append(
        f"{len(found.gone)} {word}, {total}; campaigns that stay in {printable(str(campaigns))}: {found.staying}"
        + ("; a dry run: nothing was touched" if dry_run else "")
    )
    return "\n".join(said) + "\n"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
