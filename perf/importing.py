"""Nights that others measured, from a CSV file or a page of github-action-benchmark, for the history. Never a baseline.

Both become rows of named columns, and from there on there is one way: which column holds what, which rows are wanted,
and the nights of each series.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from perf.files import MAX_JSON_BYTES, MAX_NUMBER, MIN_NUMBER, FileError, read_bytes
from perf.history import NAME, SCHEMA, Night, Place
from perf.text import printable

#: Where imported nights lie, as if it were a rig: no machine has such an id.
DEFAULT_RIG = "imported"

#: Of a page, only benches in these units are output throughput.
TOKEN_RATES = ("tok/s", "tokens/s", "token/s", "tokens/sec", "tok/sec")

#: How a bench of a page is named where nobody says otherwise: `llama c=16 throughput`, `eagle3/c016`.
DEFAULT_NAME = r"(?P<series>.*?)[\s/,_-]*\b(?:c|conc|concurrency)[\s=_-]?(?P<level>\d+)\b.*"

#: What columns are called that nobody named; the first that is there is taken.
GUESSES: Mapping[str, tuple[str, ...]] = {
    "date": ("date", "time", "timestamp", "started_at", "datetime"),
    "level": ("level", "concurrency", "c", "conc", "max_concurrency"),
    "value": ("value", "output_throughput", "throughput", "tok/s"),
    "commit": ("commit", "sha", "revision"),
    "series": ("series", "variant"),
    "acceptance": ("acceptance_length", "accept_length"),
}
REQUIRED = ("date", "level", "value")

#: Nights are named by their time with four digits of a year, and nobody measured before the time that computers count.
FIRST_YEAR = 1970
#: Nor later than now; of zones that nobody named and of clocks, so much may be wrong.
CLOCKS_APART = timedelta(days=1)

#: Of many, as many as fit on a screen.
MAX_NAMED = 12

#: A run that failed is often published so.
_NOTHING = re.compile(r"(0+(\.0*)?)?")

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to take from a file. Columns that are None are guessed; `variant` None names variants by their series.

    `where` keeps rows whose column has one of the values given for it; `name` takes apart the names of a page's benches
    by its groups, which become columns.
    """

    rig_id: str
    suite: str
    variant: str | None
    date: str | None
    level: str | None
    value: str | None
    commit: str | None
    series: str | None
    acceptance: str | None
    where: tuple[tuple[str, str], ...]
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a file gave: nights by whose they are, and which column was taken for what.

    Left out are so many rows by `where`, and those of `without_value`, whose value is empty or 0: nothing was measured.
    """

    nights: Mapping[Place, tuple[Night, ...]]
    columns: tuple[tuple[str, str], ...]
    left_out: int
    without_value: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    commit: _Commit
    date: int
    benches: tuple[_Bench, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    entries: dict[str, tuple[_Entry, ...]]


_PAGE = TypeAdapter(_Page)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One row, understood."""

    series: str
    at: datetime
    commit: str | None
    level: int
    value: float
    acceptance: float | None
    said_by: str


def read(path: Path, wanted: Wanted) -> Imported:
    """The nights of a file. Raises FileError, with what was seen and what to do; nothing is written here."""
    for what, name in (("--rig", wanted.rig_id), ("--suite", wanted.suite), ("--variant", wanted.variant)):
        if name is not None and not NAME.fullmatch(name):
            raise FileError(f"{what}: {printable(name, 80)!r} is no name: allowed are letters, digits, '.', '_', '-'")
    try:
        text = _unpacked(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not text in UTF-8: {error.reason} at byte {error.start}; convert it first") from error
    is_page = text.lstrip().startswith(("window.BENCHMARK_DATA", "{"))
    if wanted.name is not None and not is_page:
        raise FileError(f"{path}: --name takes apart the names of github-action-benchmark's data.js, and this is CSV")
    rows, names = _page(text, path, wanted) if is_page else _table(text, path)
    columns = _columns(names, path, wanted)
    kept = [(where, row) for where, row in rows if _is_wanted(row, path, wanted)]
    if not kept:
        conditions = ", ".join(f"{column}={value}" for column, value in wanted.where) or "none"
        raise FileError(f"{path}: no row is left of {len(rows)}; --where: {conditions}; columns: {_named(names)}")
    measured = [(where, row) for where, row in kept if not _NOTHING.fullmatch(row[columns["value"]])]
    cells = [_cell(row, where, columns) for where, row in measured]
    if not cells:
        raise FileError(f"{path}: no row has a {columns['value']!r} that is not 0; choose another column with --value")
    return Imported(
        nights=dict(_nights(cells, path, wanted)),
        columns=tuple(columns.items()),
        left_out=len(rows) - len(kept),
        without_value=tuple(where for where, row in kept if _NOTHING.fullmatch(row[columns["value"]])),
    )


def _unpacked(path: Path) -> bytes:
    """The bytes of a file, unpacked where it is gzip. Raises FileError, also for what would be too much."""
    data = read_bytes(path, "a file to import", MAX_JSON_BYTES)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(MAX_JSON_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path}: gzip that cannot be unpacked: {error}; fetch it again") from error
    if len(unpacked) > MAX_JSON_BYTES:
        raise FileError(f"{path}: unpacked it has more than {MAX_JSON_BYTES:,} bytes, too many for a file to import")
    return unpacked


# Rows


def _table(text: str, path: Path) -> tuple[list[tuple[str, Row]], tuple[str, ...]]:
    """Rows of a CSV file with where they stand, and its columns."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[str, Row]] = []
    try:
        names = tuple(name.strip() for name in next(reader, []))
        if len(names) < len(REQUIRED) or len(set(names)) != len(names):
            raise FileError(
                f"{path}:1: the first line must name different columns, separated by commas; seen: {_named(names)}"
            )
        for fields in reader:
            if fields:
                if len(fields) != len(names):
                    raise FileError(
                        f"{path}:{reader.line_num}: {len(fields)} fields where the first line names {len(names)} "
                        "columns; put it right, or remove the line"
                    )
                rows.append((f"{path}:{reader.line_num}", dict(zip(names, map(str.strip, fields), strict=True))))
    except csv.Error as error:
        raise FileError(f"{path}:{reader.line_num}: not CSV: {error}") from error
    return rows, names


def _page(text: str, path: Path, wanted: Wanted) -> tuple[list[tuple[str, Row]], tuple[str, ...]]:
    """Rows of a github-action-benchmark page, `window.BENCHMARK_DATA = {...}` or the JSON alone, and their columns."""
    data = re.sub(r"^\s*window\.BENCHMARK_DATA\s*=\s*", "", text).rstrip().removesuffix(";")
    try:
        page = _PAGE.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise FileError(f"{path}: not a page of github-action-benchmark: {place}: {first['msg']}") from error
    try:
        pattern = re.compile(wanted.name or DEFAULT_NAME)
    except re.error as error:
        raise FileError(f"--name: {printable(wanted.name or '', 120)!r} is no regular expression: {error}") from error
    if "level" not in pattern.groupindex:
        raise FileError(r"--name: it must have a group for the level, such as '(?P<series>\S+) c=(?P<level>\d+)'")
    rows: list[tuple[str, Row]] = []
    others: dict[str, None] = {}
    for group, entries in page.entries.items():
        for number, entry in enumerate(entries):
            day = _iso(entry.date // 1000, f"{path}: entries.{printable(group, 40)}.{number}.date")
            for bench in entry.benches:
                found = pattern.fullmatch(bench.name)
                if found is None or bench.unit.strip().lower() not in TOKEN_RATES:
                    others[f"{printable(bench.name, 80)} ({printable(bench.unit, 20)})"] = None
                    continue
                groups = {name: (value or "").strip() for name, value in found.groupdict().items()}
                known = {"date": day, "commit": entry.commit.id, "value": repr(bench.value), "bench": bench.name}
                rows.append((f"{path}: {printable(bench.name, 80)!r} of {day[:10]}", {**groups, **known}))
    if not rows:
        raise FileError(
            f"{path}: no bench in {TOKEN_RATES[0]} has a name as --name has it; seen: {_named(tuple(others))}"
        )
    return rows, (*pattern.groupindex, "date", "commit", "value", "bench")


def _columns(names: tuple[str, ...], path: Path, wanted: Wanted) -> dict[str, str]:
    """Which column is what, by what was asked for or by its name. Raises FileError."""
    asked = {
        "date": wanted.date,
        "level": wanted.level,
        "value": wanted.value,
        "commit": wanted.commit,
        "series": wanted.series,
        "acceptance": wanted.acceptance,
    }
    lower = {name.lower(): name for name in reversed(names)}
    found: dict[str, str] = {}
    for what, name in asked.items():
        if name is not None and name not in names:
            raise FileError(f"{path}: --{what}: no column {printable(name, 80)!r}; there are {_named(names)}")
        chosen = name or next((lower[guess] for guess in GUESSES[what] if guess in lower), None)
        if chosen is not None:
            found[what] = chosen
        elif what in REQUIRED:
            raise FileError(
                f"{path}: which column is the {what}? Say it with --{what} COLUMN; there are {_named(names)}"
            )
    return found


def _is_wanted(row: Row, path: Path, wanted: Wanted) -> bool:
    allowed: dict[str, set[str]] = {}
    for column, value in wanted.where:
        if column not in row:
            raise FileError(f"{path}: --where: no column {printable(column, 80)!r}; there are {_named(tuple(row))}")
        allowed.setdefault(column, set()).add(value)
    return all(row[column] in values for column, values in allowed.items())


def _named(names: Sequence[str]) -> str:
    told = ", ".join(repr(printable(name, 60)) for name in names[:MAX_NAMED])
    return (told or "none") + (f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


# Cells


def _cell(row: Row, where: str, columns: Mapping[str, str]) -> _Cell:
    def field(what: str) -> str | None:
        return row[columns[what]] or None if what in columns else None

    level = field("level") or ""
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", level):
        raise FileError(f"{where}: the level {printable(level, 40)!r} is no concurrency; leave it out with --where")
    acceptance = field("acceptance") or ""
    return _Cell(
        series=field("series") or "",
        at=_time(field("date") or "", where),
        commit=None if (commit := field("commit")) is None else printable(commit, 80),
        level=int(level),
        value=_number(field("value") or "", where, "value"),
        acceptance=None if _NOTHING.fullmatch(acceptance) else _number(acceptance, where, "acceptance length"),
        said_by=row.get("bench", ""),
    )


def _number(text: str, where: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not MIN_NUMBER <= value <= MAX_NUMBER:
        raise FileError(f"{where}: the {what} {printable(text, 40)!r} is no positive number; leave the row out")
    return value


def _time(text: str, where: str) -> datetime:
    """A time of ISO 8601, UTC where it names no zone, or seconds or milliseconds since 1970."""
    try:
        if re.fullmatch(r"[0-9]{9,10}|[0-9]{13}", text):
            at = datetime.fromtimestamp(int(text[:10]), UTC)
        elif text.isdigit() and len(text) != len("20260405"):  # of 20260405214100 nobody can tell what it counts
            raise ValueError
        else:
            found = datetime.fromisoformat(text)
            at = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise FileError(
            f"{where}: the date {printable(text, 40)!r} is not as 2026-04-05 or 2026-04-05T21:41:00Z, nor seconds "
            "(9 or 10 digits) or milliseconds (13) since 1970"
        ) from error
    if at.year < FIRST_YEAR:
        raise FileError(
            f"{where}: the date {printable(text, 40)!r} is before {FIRST_YEAR}; put it right, or leave the row out"
        )
    if at - datetime.now(UTC) > CLOCKS_APART:
        raise FileError(
            f"{where}: the date {printable(text, 40)!r} is in the future; put it right, or leave the row out"
        )
    return at.replace(microsecond=0)


def _iso(seconds: int, where: str) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        told = printable(str(seconds), 40)
        raise FileError(
            f"{where}: {told} seconds since 1970 are no date; put it right, or leave the row out"
        ) from error


# Nights


def _nights(cells: Sequence[_Cell], path: Path, wanted: Wanted) -> Iterator[tuple[Place, tuple[Night, ...]]]:
    names = _variants(cells, path, wanted)
    for variant in dict.fromkeys(names.values()):
        mine = [cell for cell in cells if names[cell.series] == variant]
        yield (
            Place(rig_id=wanted.rig_id, suite=wanted.suite, variant=variant),
            tuple(_of_variant(mine, path)),
        )


def _variants(cells: Sequence[_Cell], path: Path, wanted: Wanted) -> dict[str, str]:
    """The variant of each series. Raises FileError where two would be one, or one has no name."""
    series = tuple(dict.fromkeys(cell.series for cell in cells))
    if wanted.variant is not None:
        if len(series) > 1 and not set(series) <= {value for _, value in wanted.where}:
            raise FileError(
                f"{path}: {len(series)} series for one --variant: {_named(series)}; "
                "name those that are one by --where COLUMN=VALUE, or leave out --variant to import each by its name"
            )
        return dict.fromkeys(series, wanted.variant)
    found: dict[str, str] = {}
    for name in series:
        slug = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+")
        if not NAME.fullmatch(slug):
            what = "no series has a name" if not name else f"the series {printable(name, 80)!r} cannot name a variant"
            raise FileError(f"{path}: {what}; give --variant NAME, or --series COLUMN")
        if slug in found.values():
            other = next(each for each, its in found.items() if its == slug)
            raise FileError(
                f"{path}: the series {printable(other, 80)!r} and {printable(name, 80)!r} would both be variant "
                f"{slug}; import them one by one with --where and --variant"
            )
        found[name] = slug
    return found


def _of_variant(cells: Iterable[_Cell], path: Path) -> Iterator[Night]:
    """One night for each time, commit and level: several rows of it are its launches."""
    by_night: dict[tuple[datetime, str | None], dict[int, list[_Cell]]] = {}
    for cell in sorted(cells, key=lambda each: (each.at, each.commit or "")):
        by_night.setdefault((cell.at, cell.commit), {}).setdefault(cell.level, []).append(cell)
    taken: dict[str, int] = {}
    arm: Literal["candidate"] = "candidate"
    for (at, commit), levels in by_night.items():
        stamp = at.strftime("%Y%m%d-%H%M%S")
        taken[stamp] = taken.get(stamp, 0) + 1
        for level, found in sorted(levels.items()):
            if len(said := dict.fromkeys(cell.said_by for cell in found)) > 1:
                raise FileError(
                    f"{path}: more than one bench gives the throughput of level {level} on {at:%Y-%m-%d}: "
                    f"{_named(tuple(said))}; choose with --name or --where"
                )
            yield Night(
                schema=SCHEMA,
                campaign=stamp if taken[stamp] == 1 else f"{stamp}-{taken[stamp]}",
                started_at=at.isoformat(),
                level=level,
                arm=arm,
                output_throughput=tuple(cell.value for cell in found),
                acceptance_length=tuple(cell.acceptance for cell in found),
                version=None,
                commit=commit,
                changed=None,
                workload_digest="imported",
                source=printable(path.name, 80),
            )
