"""What is stored of what the suites ask: which cases have a baseline, how old and how steady it is, and the rest."""

import math
import os
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tabulate import tabulate

from perf import migration
from perf.baseline import CROSSOVERS, Store
from perf.crossover import StoredCrossover, sentence
from perf.files import FileError
from perf.promotion import DEFAULT_BASELINES
from perf.rig import EMULATED_RIG_ID
from perf.sample import Promotion, StoredCase, throughputs
from perf.suite import Crossover, Suite
from perf.suite_file import SHIPPED
from perf.text import percent, printable, share

#: Beside the suites of a rig: its fingerprint.
_FINGERPRINT = "rig.json"

#: Why a level has nothing that it can be judged against.
_NOT_STORED = "not stored"
_CHANGED = "was asked something else"
_DAMAGED = "the file is damaged"


# The store


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a store that could be read. `older` says that an earlier version wrote it."""

    path: Path
    rig_id: str
    suite: str
    variant: str
    cases: tuple[StoredCase, ...]
    older: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCrossovers:
    """A file of crossovers that could be read, by their ids."""

    path: Path
    rig_id: str
    suite: str
    crossovers: Mapping[str, StoredCrossover]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything in a store: its files, those that are damaged with the reason, and what has no place in a store."""

    files: tuple[StoredFile, ...]
    crossovers: tuple[StoredCrossovers, ...]
    damaged: Mapping[Path, str]
    strange: tuple[Path, ...]


def contents(store: Store) -> Contents:
    """Read a whole store. What is hidden, or no JSON, is somebody else's; a store that is not there is empty."""
    files: list[StoredFile] = []
    crossovers: list[StoredCrossovers] = []
    damaged: dict[Path, str] = {}
    strange: list[Path] = []

    def inside(folder: Path) -> list[Path]:
        """What may be ours in a folder: folders and JSON files."""
        try:
            paths = [folder / name for name in sorted(os.listdir(folder)) if not name.startswith(".")]
            return [path for path in paths if path.suffix == ".json" or path.is_dir()]
        except OSError as error:
            damaged[folder] = f"{folder}: cannot be read: {error.strerror}"
            return []

    for rig in inside(store.folder) if os.path.lexists(store.folder) else ():
        suites = [path for path in inside(rig) if path.name != _FINGERPRINT] if rig.is_dir() else []
        if not rig.is_dir():  # an empty folder is what is left when somebody removed what was in it
            strange.append(rig)
        for suite in suites:
            variants = inside(suite) if suite.is_dir() else []
            if not suite.is_dir():
                strange.append(suite)
            for path in variants:
                if path.suffix != ".json":
                    strange.append(path)
                    continue
                try:
                    if path.stem == CROSSOVERS:
                        found = store.crossovers(rig.name, suite.name)
                        crossovers.append(
                            StoredCrossovers(path=path, rig_id=rig.name, suite=suite.name, crossovers=found)
                        )
                    else:
                        files.append(_read(store, path))
                except (FileError, OSError) as error:
                    damaged[path] = str(error)
    return Contents(files=tuple(files), crossovers=tuple(crossovers), damaged=damaged, strange=tuple(strange))


def _read(store: Store, path: Path) -> StoredFile:
    rig_id, suite, variant = path.parts[-3], path.parts[-2], path.stem
    cases = store.read(rig_id, suite, variant)
    data = path.read_bytes()
    older = migration.baseline(data) != data
    return StoredFile(path=path, rig_id=rig_id, suite=suite, variant=variant, cases=cases, older=older)


def stored_for(suite: Suite, store: Store, here: str) -> tuple[str, dict[tuple[str, int], StoredCase]]:
    """The stored cases of a suite by variant and level, and their rig: this machine's, else the only one that has any.

    Raises FileError.
    """
    rigs = {path.parent.name for path in store.folder.glob(f"*/{suite.name}") if os.path.isdir(path)}
    rig_id = EMULATED_RIG_ID if suite.emulated else here
    if not suite.emulated and here not in rigs and len(others := rigs - {EMULATED_RIG_ID}) == 1:
        (rig_id,) = others
    return rig_id, store.by_case(rig_id, suite.name, [variant.name for variant in suite.variants])


# Coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Levels of a variant that are stored alike, or are not stored for one reason: then `promotion` is None.

    `launches` of how many `nights` (campaigns); `others` are nights that only tell of noise. `spread` is the least and
    the largest coefficient of variation between the launches of one level, None where a level has but one; `drift` the
    least and the largest change since the oldest comparable promotion, None where there is but one.
    """

    variant: str
    levels: tuple[int, ...]
    why: str | None
    launches: int = 0
    nights: int = 0
    others: int = 0
    spread: tuple[float, float] | None = None
    drift: tuple[float, float] | None = None
    promotion: Promotion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A suite on one rig, None where no rig has any of it; `crossovers` are those of the suite that are stored."""

    suite: Suite
    rig_id: str | None
    rows: tuple[Alike, ...]
    crossovers: tuple[StoredCrossover, ...] = ()

    @property
    def missing(self) -> dict[str, tuple[int, ...]]:
        """The levels that nothing can be judged against, by variant."""
        found: dict[str, tuple[int, ...]] = {}
        for row in self.rows:
            if row.promotion is None:
                found[row.variant] = (*found.get(row.variant, ()), *row.levels)
        return found

    @property
    def count(self) -> int:
        """How many cases are stored as they are asked now."""
        return sum(len(row.levels) for row in self.rows if row.promotion is not None)

    @property
    def missing_crossovers(self) -> tuple[Crossover, ...]:
        """The crossovers that are not stored."""
        stored = {each.crossover for each in self.crossovers}
        return tuple(each for each in self.suite.crossovers if each.id not in stored)

    @property
    def whole(self) -> bool:
        """Is every case and crossover stored, or none owed?"""
        return self.suite.advisory or not (self.missing or self.missing_crossovers)

    @property
    def changed(self) -> bool:
        """Is some of it stored that was asked something else?"""
        return any(row.why == _CHANGED for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """What no suite knows any more: a file or folder, or some of a file's levels.

    `named` is False for what is of a suite that nobody named: it may be another's, and is not looked at.
    """

    path: Path
    why: str
    levels: tuple[int, ...] = ()
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Every suite on every rig that has some of it; what the store holds for nobody; what of it cannot be read.

    `here` is this machine's rig, None where no suite asks for one; `older` counts files of earlier versions.
    """

    store: Path
    here: str | None
    suites: tuple[Covered, ...]
    orphans: tuple[Orphan, ...]
    damaged: tuple[str, ...]
    older: int

    @property
    def wanting(self) -> tuple[Covered, ...]:
        """What is to be measured: each suite that is whole on no rig, where most of it is, and whatever was changed."""
        found: list[Covered] = []
        for name in dict.fromkeys(each.suite.name for each in self.suites):
            places = [each for each in self.suites if each.suite.name == name]
            most = max(places, key=lambda each: (each.count, each.rig_id == self.here))
            nowhere = not any(each.whole for each in places)
            found += [each for each in places if each.changed or (nowhere and each is most)]
        return tuple(found)

    @property
    def whole(self) -> bool:
        """Every suite is whole on a rig, and the store holds nothing else but what is of suites that nobody named."""
        return not (self.wanting or self.damaged or any(each.named for each in self.orphans))


def examine(suites: Sequence[Suite], store: Store, here: str | None, *, all_of_them: bool) -> Coverage:
    """Hold suites against a store. `all_of_them`: what belongs to no suite of these belongs to none."""
    found = contents(store)
    by_name = {suite.name: suite for suite in suites}
    orphans = [Orphan(path=path, why="is no place of a baseline, and never read") for path in found.strange]
    older = 0
    for file in found.files:
        suite = by_name.get(file.suite)
        if suite is not None or all_of_them:
            older += file.older
            orphans += _orphaned(file, suite)
    for of in found.crossovers:
        if by_name.get(of.suite) is not None or all_of_them:
            orphans += _orphaned_crossovers(of, by_name.get(of.suite))
    return Coverage(
        store=store.folder,
        here=here,
        suites=tuple(each for suite in suites for each in _covered(suite, found)),
        orphans=tuple(orphans),
        damaged=tuple(found.damaged.values()),
        older=older,
    )


def _orphaned(file: StoredFile, suite: Suite | None) -> Iterator[Orphan]:
    if suite is None:
        yield Orphan(path=file.path, why=f"of suite {file.suite}", named=False)
    elif not _is_rig_of(suite, file.rig_id):
        yield Orphan(path=file.path, why=f"suite {suite.name} is {'' if suite.emulated else 'not '}emulated")
    elif file.variant not in {variant.name for variant in suite.variants}:
        yield Orphan(path=file.path, why=f"suite {suite.name} has no variant {file.variant}")
    elif gone := tuple(case.level for case in file.cases if case.level not in suite.workload.levels):
        yield Orphan(path=file.path, why=f"suite {suite.name} has no level {_levels(gone)}", levels=gone)


def _orphaned_crossovers(file: StoredCrossovers, suite: Suite | None) -> Iterator[Orphan]:
    if suite is None:
        yield Orphan(path=file.path, why=f"of suite {file.suite}", named=False)
    elif not _is_rig_of(suite, file.rig_id):
        yield Orphan(path=file.path, why=f"suite {suite.name} is {'' if suite.emulated else 'not '}emulated")
    elif not file.crossovers.keys() & {each.id for each in suite.crossovers}:
        yield Orphan(path=file.path, why=f"suite {suite.name} has no such crossover")


def _is_changed(case: StoredCase, suite: Suite) -> bool:
    return case.level in suite.workload.levels and case.workload_digest != suite.workload.digest(case.level)


def _is_rig_of(suite: Suite, rig_id: str) -> bool:
    return suite.emulated == (rig_id == EMULATED_RIG_ID)


def _covered(suite: Suite, found: Contents) -> Iterator[Covered]:
    places = [(file.rig_id, file.suite) for file in found.files]
    places += [(path.parts[-3], path.parts[-2]) for path in found.damaged if path.suffix == ".json"]
    rigs = sorted({rig for rig, name in places if name == suite.name and _is_rig_of(suite, rig)})
    for rig_id in rigs:
        files = [file for file in found.files if (file.rig_id, file.suite) == (rig_id, suite.name)]
        stored = {(file.variant, case.level): case for file in files for case in file.cases}
        damaged = {path.stem for path in found.damaged if path.parts[-3:-1] == (rig_id, suite.name)}
        rows = tuple(
            row
            for variant in suite.variants
            for row in _rows(suite, variant.name, stored, _DAMAGED if variant.name in damaged else None)
        )
        crossovers = {
            id: each
            for of in found.crossovers
            if (of.rig_id, of.suite) == (rig_id, suite.name)
            for id, each in of.crossovers.items()
        }
        yield Covered(
            suite=suite,
            rig_id=rig_id,
            rows=rows,
            crossovers=tuple(crossovers[each.id] for each in suite.crossovers if each.id in crossovers),
        )
    if not rigs:
        rows = tuple(row for variant in suite.variants for row in _rows(suite, variant.name, {}, None))
        yield Covered(suite=suite, rig_id=None, rows=rows)


def _rows(
    suite: Suite, variant: str, stored: Mapping[tuple[str, int], StoredCase], damage: str | None
) -> Iterator[Alike]:
    """The levels of a variant in the order of the suite, those that are alike as one."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for level in suite.workload.levels:
        case = stored.get((variant, level))
        if case is None or _is_changed(case, suite):
            why = damage or (_NOT_STORED if case is None else _CHANGED)
            groups.setdefault((why,), []).append(level)
        else:
            told = (case.promotion.promoted_at[:10], case.promotion.campaign, case.promotion.reason)
            groups.setdefault((len(case.launches), *case.nights, *told), []).append(level)
    for key, levels in groups.items():
        if len(key) == 1:
            yield Alike(variant=variant, levels=tuple(levels), why=str(key[0]))
            continue
        cases = [stored[variant, level] for level in levels]
        spreads = [spread for case in cases if (spread := _spread(case)) is not None]
        drifts = [drift for case in cases if (drift := case.drift) is not None]
        nights, others = cases[0].nights
        yield Alike(
            variant=variant,
            levels=tuple(levels),
            why=None,
            launches=len(cases[0].launches),
            nights=nights,
            others=others,
            spread=(min(spreads), max(spreads)) if spreads else None,
            drift=(min(drifts), max(drifts)) if drifts else None,
            promotion=cases[0].promotion,
        )


def _spread(case: StoredCase) -> float | None:
    """The coefficient of variation between launches, as the gate has it: the standard deviation of the logarithms."""
    logs = [math.log(value) for value in throughputs(case.launches)]
    return statistics.stdev(logs) if len(logs) > 1 else None


# Text


def text(found: Coverage, today: date) -> str:
    """The coverage for a reader; where something is to be done, its end says what."""
    parts = [_suite(each, found.here, today) for each in found.suites]
    for title, named in (("not looked at, name its suite with --suite=PATH:", False), ("stored for nobody:", True)):
        orphans = [each for each in found.orphans if each.named is named]
        if orphans:
            told = (f"  {printable(str(each.path))}: {printable(each.why)}" for each in orphans)
            parts.append("\n".join([title, *told]))
    if found.damaged:
        reasons = (f"  {printable(reason, 1000)}" for reason in found.damaged)
        parts.append("\n".join([f"damaged: {len(found.damaged)}", *reasons]))
    if found.older:
        files = "1 file was" if found.older == 1 else f"{found.older} files were"
        parts.append(f"{files} written by an earlier version: read as they are, renewed by the next promotion")
    if found.here is not None:
        parts.append(f"this machine is {found.here}")
    parts.append(
        "nothing is to be done"
        if found.whole
        else "\n".join(["to do:", *(f"  {printable(line, 1000)}" for line in _advice(found))])
    )
    return "\n\n".join(parts) + "\n"


def _suite(each: Covered, here: str | None, today: date) -> str:
    suite, levels = each.suite, each.suite.workload.levels
    if suite.advisory and each.rig_id is None:
        return f"{suite.name}: advisory, so nothing of it is ever stored"
    place = "on no rig" if each.rig_id is None else f"on {printable(each.rig_id)}"
    head = f"{suite.name} {place}{' (this machine)' if each.rig_id == here else ''}"
    head += f": {each.count} of {len(suite.cases)} cases stored"
    if each.rig_id is None:
        return head
    table = tabulate(
        [_cells(row, levels, today) for row in each.rows],
        headers=(
            "variant",
            "levels",
            "launches",
            "nights",
            "spread",
            "drift",
            "promoted",
            "age",
            "by campaign",
            "reason",
        ),
        disable_numparse=True,
        colalign=("left", "left", *("right",) * 6, "left", "left"),
    )
    return "\n\n".join([head, table, *(["\n".join(_crossovers(each))] if suite.crossovers else [])])


def _crossovers(each: Covered) -> Iterator[str]:
    for stored in each.crossovers:
        name = stored.crossover.rpartition("/")[2]
        where = f"campaign {printable(stored.campaign, 40)}, {printable(stored.reason, 60)}"
        yield f"{name}: {sentence(stored.crossing, stored.first, stored.second)} ({where})"
    for missing in each.missing_crossovers:
        yield f"{missing.id.rpartition('/')[2]}: not stored"


def _cells(row: Alike, levels: tuple[int, ...], today: date) -> tuple[str, ...]:
    name = "all" if row.levels == levels else _levels(row.levels)
    if row.promotion is None:
        return (row.variant, name, *("-",) * 7, row.why or "-")
    return (
        row.variant,
        name,
        str(row.launches),
        f"{row.nights}+{row.others}" if row.others else str(row.nights),
        "-" if row.spread is None else _range(*(share(round(value, 3)) for value in row.spread)),
        "-" if row.drift is None else _range(*map(percent, row.drift)),
        printable(row.promotion.promoted_at[:10]),
        _age(row.promotion.promoted_at, today),
        printable(row.promotion.campaign, 40),
        printable(row.promotion.reason, 60),
    )


def _levels(levels: Sequence[int]) -> str:
    return ", ".join(map(str, levels))


def _range(least: str, most: str) -> str:
    return most if least == most else f"{least.removesuffix(' %')} to {most}"


def _age(promoted_at: str, today: date) -> str:
    try:
        days = (today - date.fromisoformat(promoted_at[:10])).days
    except ValueError:
        return "-"
    return "1 day" if days == 1 else f"{days} days"


def _advice(found: Coverage) -> Iterator[str]:
    """Commands, one a line; what has to be known of them stands behind."""
    folder = shlex.quote(str(found.store))
    measure, promote = "", ""
    if found.store.resolve() != DEFAULT_BASELINES.resolve():
        measure, promote = f" --perf-baselines={folder}", f" --baselines {folder}"
    for each in found.wanting:
        elsewhere = each.rig_id not in (None, EMULATED_RIG_ID, found.here)
        yield (
            f"pytest -m perf --perf-suite={_name(each.suite)}{_selection(each)}{measure}; "
            f'python -m perf promote --reason "why"{promote}{f" # on {each.rig_id}" if elsewhere else ""}'
        )
    for orphan in (each for each in found.orphans if each.named):
        path = str(orphan.path)
        if path != printable(path, len(path)):
            yield f"# remove by hand, it has a strange name: {path}"
        elif orphan.levels:
            yield f"edit {shlex.quote(path)} # a level is a line: delete what no suite asks for"
        else:
            yield f"remove {shlex.quote(path)} # {orphan.why}"
    if found.damaged:
        yield f"git checkout -- {folder} # or remove what is damaged, and promote again"


def _selection(each: Covered) -> str:
    """What of a suite is to be measured, as an option of pytest; nothing where it is all of it."""
    if not each.count:
        return ""
    words = [
        word
        for variant, levels in each.missing.items()
        for word in (
            [f"/{variant}/"]
            if levels == each.suite.workload.levels
            else [f"/{variant}/{each.suite.level_name(level)}" for level in levels]
        )
    ]
    words += [missing.id.partition("/")[2] for missing in each.missing_crossovers]
    return f' -k "{" or ".join(words)}"'


def _name(suite: Suite) -> str:
    """How the suite is asked for from the current folder."""
    if suite.source.parent == SHIPPED:
        return suite.source.stem
    path = suite.source
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
