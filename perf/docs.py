"""The documentation that keeps itself: generated blocks in pages, the records they stand on, entries of the log.

Pages are read and rendered before the first is written, so that an error on one changes none; and none is written over
what somebody typed meanwhile. A page that cites two records which contradict each other must state what differs between
them.
"""

import difflib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter

from perf import blocks, plan, statements, suite_file
from perf.blocks import CLOSING, Block, MarkerError
from perf.compact import Compact, compact
from perf.figures import Figures
from perf.files import FileError, read_json, to_json, write_bytes, write_text
from perf.record import Campaign
from perf.statements import DEFAULT_METRIC, METRICS, Record, Statement
from perf.suite_file import SuiteError
from perf.text import printable

LOG = Path("docs/eagle-fast-verify.md")
RECORDS = Path("docs/records")

#: From the root; held while pages are written.
_LOCK = Path(".perf/docs.lock")
#: Commands that write pages wait for each other; each takes a few seconds at most.
LOCK_TIMEOUT_S = 30.0

QUERIES = (
    "provenance RECORD",
    "throughput RECORD",
    "verdicts RECORD",
    "differs RECORD RECORD",
    "source RECORD",
    "value RECORD VARIANT LEVEL [METRIC]",
    "change RECORD VARIANT VARIANT LEVEL [METRIC]",
    "rig-minutes SUITE",
)
#: These are a few words; the others are tables and stand between lines of their own.
_INLINE = ("source", "value", "change")
#: A page with one of these says where a record's numbers come from.
_TELLS_SOURCE = ("provenance", "throughput", "verdicts", "source")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

#: In a title these would be markup, or break the heading.
_MARKUP = "<>`[]|\\*"
MAX_TITLE = 120

#: Of many, as many as fit on a screen.
MAX_NAMED = 12

_ADAPTER: TypeAdapter[Record] = TypeAdapter(Annotated[Compact | Figures, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A block whose inside is not what its record says."""

    line: int
    query: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page as it is and as it should be; `path` from the root."""

    path: Path
    old: str
    new: str
    blocks: int
    stale: tuple[Stale, ...]


class _QueryError(ValueError):
    """A query without an answer."""


def rendered(root: Path) -> tuple[Page, ...]:
    """README.md and every page under docs/, with their blocks renewed; nothing is written.

    Raises FileError, with everything that is wrong on any page.
    """
    paths = _paths(root)
    if not paths:
        raise FileError(f"{root}: no README.md and no page under docs/; run it from the clone, or give --root=DIR")
    records = _records(root)
    pages: list[Page] = []
    problems: list[str] = []
    for path in paths:
        try:
            pages.append(_rendered(path, _read(root / path), records))
        except FileError as error:
            problems.append(str(error))
    if problems:
        raise FileError("\n".join(problems))
    return tuple(pages)


def write(root: Path, pages: tuple[Page, ...]) -> None:
    """Write those that are to change. Raises FileError, which says what was written before it."""
    written: list[Path] = []
    with _locked(root):
        for page in pages:
            if page.new != page.old:
                _write(root, page.path, page.old, page.new, written)
                written.append(page.path)


def difference(page: Page) -> Iterator[str]:
    """The lines of a diff for each stale block."""
    for block in page.stale:
        place = f"{page.path}:{block.line}"
        yield f"{place}  {printable(block.query)}"
        old, new = block.old.splitlines(), block.new.splitlines()
        for line in difflib.unified_diff(old, new, f"{place} as it is", f"{place} as it should be", lineterm=""):
            yield line[:1] + printable(line[1:], statements.MAX_COMMAND)


def add(root: Path, log: Path, campaign: Campaign, *, title: str) -> tuple[Path, Path]:
    """Keep a campaign's compact record, and write the skeleton of an entry about it at the end of the log.

    Returns both paths, from the root. Raises FileError; then nothing is written, or it says that the record was.
    """
    if not campaign.complete:
        raise FileError(f"campaign {campaign.id} is not complete (interrupted, or still running): it is no entry yet")
    _check_title(title)
    path = _log_path(root, log)
    with _locked(root):
        return _added(root, path, campaign, title)


def _added(root: Path, path: Path, campaign: Campaign, title: str) -> tuple[Path, Path]:
    records = dict(_records(root))
    text = to_json(asdict(compact(campaign)), indent=1)
    name, record_path = campaign.id, RECORDS / f"{campaign.id}.json"
    kept = _as_read(name, text)
    if records.setdefault(name, kept) != kept:
        raise FileError(
            f"{root / record_path}: holds something else than campaign {name} says now; "
            "remove it where it is the wrong one, or write the entry by hand"
        )
    before = _read_if_there(root / path)
    old = "# Optimisation log\n" if before is None else before
    heading = f"{campaign.started_at[:10]} {title}"
    found = _found(path, old)
    for block in found:
        if block.query.split() == ["provenance", name] or block.entry == heading:
            raise FileError(
                f"{path}:{block.line}: there is an entry about this already, {printable(block.entry, MAX_TITLE)!r}; "
                "change that one, or give another title"
            )
    cited = [each for each in _citations(found).first if each in records]
    earlier = [statements.statements(each, records[each]) for each in cited]
    entry = _entry(heading, name, _contradictions(statements.statements(name, kept), earlier))
    newline = "\r\n" if "\r\n" in old else "\n"
    gap = "" if not old else newline if old.endswith("\n") else 2 * newline
    page = _rendered(path, old + gap + entry.replace("\n", newline), records)
    written: list[Path] = []
    if not (root / record_path).exists():
        write_text(root / record_path, text)
        written.append(record_path)
    _write(root, path, before, page.new, written)
    return record_path, path


def _entry(heading: str, name: str, rivals: Iterable[str]) -> str:
    queries = [f"{query} {name}" for query in ("provenance", "throughput", "verdicts")]
    queries += [f"differs {other} {name}" for other in rivals]
    tables = "\n\n".join(f"<!-- perf: {query} -->\n{CLOSING}" for query in queries)
    return (
        f"## {heading}\n\n"
        "### Why\n\n_What was changed, and why it should help. Link the change._\n\n"
        "### Expected\n\n_Which number should move, where, by how much. Written before it was measured._\n\n"
        f"### Measured\n\n{tables}\n\n"
        "### Decision\n\n_Keep it, revert it, or try again; what was promoted; who says so._\n"
    )


def _check_title(title: str) -> None:
    if not title or title != printable(title, MAX_TITLE):
        raise FileError(f"the title must be one line of 1 to {MAX_TITLE} printable characters; seen: {title[:200]!r}")
    if bad := [character for character in title if character in _MARKUP]:
        raise FileError(f"the title has {bad[0]!r}, which is markup in a heading; leave out {' '.join(_MARKUP)}")


def _log_path(root: Path, log: Path) -> Path:
    """The log from the root. Raises FileError where its blocks would never be renewed."""
    try:
        path = (root / log).resolve().relative_to(root.resolve())
    except ValueError:
        path = log
    if path.suffix != ".md" or (path.parts[0] != "docs" and path != Path("README.md")):
        raise FileError(f"{log}: its blocks would never be renewed; a log is a file docs/NAME.md of the project")
    return path


# Pages


def _paths(root: Path) -> list[Path]:
    """README.md and docs/**/*.md, from the root. A link is left to what it points to."""
    paths = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    return [path.relative_to(root) for path in paths if path.is_file() and not path.is_symlink()]


def _read(path: Path) -> str:
    """Bytes that are no UTF-8 come back as they are when the page is written."""
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error


def _read_if_there(path: Path) -> str | None:
    return _read(path) if path.exists() else None


def _write(root: Path, path: Path, old: str | None, new: str, written: Sequence[Path]) -> None:
    """Write a page that is still `old`, where None is not there. Raises FileError, with what was written before."""
    try:
        if _read_if_there(root / path) != old:
            raise FileError(f"{root / path}: was changed meanwhile, and was left alone: run the command again")
        write_bytes(root / path, new.encode(errors="surrogateescape"))
    except FileError as error:
        if not written:
            raise
        reason = str(error).removesuffix("; nothing was changed")
        raise FileError(f"{reason}; written before that: {', '.join(map(str, written))}") from error


def _locked(root: Path) -> AbstractContextManager[object]:
    """Hold the lock of whatever writes pages of a project. Raises FileError."""
    lock = root / _LOCK
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(lock).acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout as error:
        raise FileError(
            f"{lock}: another docs command has held it for {LOCK_TIMEOUT_S:.0f} s; nothing was changed: wait for it"
        ) from error
    except OSError as error:
        raise FileError(f"{lock}: cannot be written: {error.strerror}; nothing was changed") from error


def _found(path: Path, text: str) -> tuple[Block, ...]:
    try:
        return blocks.find(text)
    except MarkerError as error:
        raise FileError(f"{path}:{error.line}: {printable(str(error))}") from error


def _rendered(path: Path, text: str, records: Mapping[str, Record]) -> Page:
    """The page with its blocks renewed. Raises FileError with everything that is wrong on it."""
    found = _found(path, text)
    answers: dict[Block, str] = {}
    problems: list[str] = []
    for block in found:
        try:
            answers[block] = _answer(block, records)
        except _QueryError as error:
            problems.append(f"{path}:{block.line}: {error}")
    if not problems:
        problems += [f"{path}:{line}: {text}" for line, text in _unexplained(found, records)]
    if problems:
        raise FileError("\n".join(problems))
    return Page(
        path=path,
        old=text,
        new=blocks.renewed(text, found, answers.__getitem__),
        blocks=len(found),
        stale=tuple(
            Stale(line=block.line, query=block.query, old=text[block.start : block.end], new=block.inside(answer))
            for block, answer in answers.items()
            if text[block.start : block.end] != block.inside(answer)
        ),
    )


# Records


def _records(root: Path) -> dict[str, Record]:
    """Every record that is kept, by name. Raises FileError for one that is damaged."""
    return {path.stem: _record(path) for path in sorted((root / RECORDS).glob("*.json"))}


def _record(path: Path) -> Record:
    record = read_json(path, _ADAPTER, "a record")
    if not _NAME.fullmatch(path.stem):
        raise FileError(
            f"{path.parent}: the record {path.stem!r}; allowed in a name: letters, digits, '.', '_' and '-'"
        )
    if isinstance(record, Compact) and (record.campaign != path.stem or not record.complete):
        raise FileError(
            f"{path}: not the record of a complete campaign {path.stem}; keep one with python -m perf docs add"
        )
    if problem := statements.problem(path.stem, record):
        raise FileError(f"{path}: {printable(problem)}; restore the file from version control, or put it right")
    return record


def _as_read(name: str, text: str) -> Record:
    """A record that is still to be written, as it will be read. Raises FileError for one that would be damaged."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.json"
            write_text(path, text)
            return _record(path)
    except FileError as error:
        reason = str(error).partition(f"{name}.json: ")[2]
        raise FileError(f"campaign {name}: its record could not be read again: {reason}") from error
    except OSError as error:
        raise FileError(f"campaign {name}: no temporary folder to check its record in: {error.strerror}") from error


# Queries


def _answer(block: Block, records: Mapping[str, Record]) -> str:
    """The inside of a block. Raises _QueryError."""
    words = block.query.split()
    if words and block.inline and words[0] not in _INLINE and words[0] in (query.split()[0] for query in QUERIES):
        raise _QueryError(f"{words[0]!r} is a table; put each of its two markers on a line of its own")
    match words:
        case ["provenance", name]:
            return statements.provenance(_named(name, records))
        case ["throughput", name]:
            return statements.throughput_table(name, _named(name, records))
        case ["verdicts", name]:
            return _verdicts(name, _named(name, records))
        case ["differs", name, other] if name != other:
            return statements.differs_table(name, _named(name, records), other, _named(other, records))
        case ["rig-minutes", name]:
            return _rig_minutes(name)
        case ["source", name]:
            return statements.source(name, _named(name, records))
        case ["value", name, variant, level, *metric] if len(metric) <= 1:
            return _value(_case(name, variant, level, records), _metric(metric))
        case ["change", name, before, after, level, *metric] if len(metric) <= 1:
            first, second = _case(name, before, level, records), _case(name, after, level, records)
            return _change(first, second, _metric(metric))
        case _:
            raise _QueryError(f"{printable(block.query)!r} is no query; allowed: {'; '.join(QUERIES)}")


def _rig_minutes(name: str) -> str:
    """Of a shipped suite: where others lie is each user's own, and not the page's."""
    try:
        costs = plan.costs(suite_file.load(suite_file.find(name, suite_file.SHIPPED)))
    except SuiteError as error:
        raise _QueryError(f"no shipped suite {printable(name, 80)!r}: {error}") from error
    headers = ("variant", "output tokens of a launch", "rig-minutes of a launch, from expected tok/s")
    rows = [(statements.code(variant), tokens, minutes) for variant, tokens, minutes in costs]
    return statements.table(headers, rows, numbers=range(1, 3))


def _verdicts(name: str, record: Record) -> str:
    if isinstance(record, Figures):
        raise _QueryError(f"{name} holds published figures, which are not judged; allowed: throughput {name}")
    return statements.verdict_table(record)


def _value(case: Statement, metric: str) -> str:
    shown = case.shown(metric)
    if shown == "-":
        raise _QueryError(f"{case.record} has no {metric} of {case.variant} at {case.level}")
    return shown


def _change(before: Statement, after: Statement, metric: str) -> str:
    found = statements.change(before, after, metric)
    if found is None:
        raise _QueryError(f"{before.record} has not both {metric} of {before.variant} and {after.variant}")
    return found


def _named(name: str, records: Mapping[str, Record]) -> Record:
    if name not in records:
        raise _QueryError(f"no record {printable(name, 80)!r} in {RECORDS}; there: {_some(records)}")
    return records[name]


def _case(name: str, variant: str, level: str, records: Mapping[str, Record]) -> Statement:
    """A case by variant, or suite/variant where several suites have the variant."""
    cases = statements.statements(name, _named(name, records))
    of_variant = [each for each in cases if variant in (each.variant, f"{each.suite}/{each.variant}")]
    if not of_variant:
        there = _some(each.variant for each in cases)
        raise _QueryError(f"no variant {printable(variant, 80)!r} in {name}; there: {there}")
    if len({each.suite for each in of_variant}) > 1:
        there = _some(f"{each.suite}/{each.variant}" for each in of_variant)
        raise _QueryError(f"{variant!r} is a variant of several suites in {name}; allowed: {there}")
    for each in of_variant:
        if f"{each.level}" == level:
            return each
    there = _some(f"{each.level}" for each in of_variant)
    raise _QueryError(f"no level {printable(level, 80)!r} of {variant} in {name}; there: {there}")


def _metric(words: list[str]) -> str:
    metric = words[0] if words else DEFAULT_METRIC
    if metric not in METRICS:
        raise _QueryError(f"{printable(metric, 80)!r} is no metric; allowed: {', '.join(METRICS)}")
    return metric


def _some(names: Iterable[str]) -> str:
    known = list(dict.fromkeys(printable(name, 80) for name in names))
    more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
    return ", ".join(known[:MAX_NAMED]) + more if known else "none"


# Contradictions


@dataclass(slots=True)
class _Citation:
    """Where a page first names a record, and whether it says where that comes from."""

    line: int
    entry: str
    told: bool = False


@dataclass(slots=True)
class _Citations:
    first: dict[str, _Citation] = field(default_factory=dict)
    differs: dict[frozenset[str], int] = field(default_factory=dict)


def _unexplained(found: tuple[Block, ...], records: Mapping[str, Record]) -> Iterator[tuple[int, str]]:
    """Records without a source on the page, and contradictions that it does not explain: line and what to do."""
    seen = _citations(found)
    for name, citation in seen.first.items():
        if not citation.told:
            yield (
                citation.line,
                f"numbers of {name} without where they come from; add <!-- perf: provenance {name} --> "
                f"and {CLOSING} on lines of their own, or <!-- perf: source {name} -->{CLOSING} in a sentence",
            )
    earlier: list[tuple[Statement, ...]] = []
    for name, citation in seen.first.items():
        cases = statements.statements(name, records[name])
        for other, pairs in _contradictions(cases, earlier).items():
            line = seen.differs.get(frozenset((name, other)))
            known = () if line is None else statements.differences(records[other], records[name])
            open_pairs = [pair for pair in pairs if not any(each.explains(*pair) for each in known)]
            if open_pairs:
                yield citation.line, _contradiction(open_pairs, seen, line)
        earlier.append(cases)


def _contradiction(found: list[tuple[Statement, Statement]], seen: _Citations, line: int | None) -> str:
    one, other = found[0]
    place = f"{one.variant} at {one.level}" + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
    sides = []
    for each in (one, other):
        cited = seen.first[each.record]
        entry = f"entry {printable(cited.entry, MAX_TITLE)!r}, line {cited.line}"
        sides.append(f"{each.shown(DEFAULT_METRIC)} in {each.record} ({entry})")
    if line is None:
        todo = (
            f"say what differs between the two: write <!-- perf: differs {one.record} {other.record} --> and {CLOSING} "
            "on lines of their own"
        )
    else:
        todo = (
            f"the differs block in line {line} has no condition of this case that both state and that differs: "
            "one of the two is not to be believed, or what made the difference was not recorded; measure again, or "
            "leave one out"
        )
    return f"contradiction: {place} is {' but '.join(sides)}; {todo}"


def _contradictions(
    cases: Iterable[Statement], earlier: Sequence[tuple[Statement, ...]]
) -> dict[str, list[tuple[Statement, Statement]]]:
    """By record, the cases that it contradicts. Of each case only the nearest earlier record that does.

    So a log of many steps has to explain each of them once, and not each against all before it.
    """
    found: dict[str, list[tuple[Statement, Statement]]] = {}
    for case in cases:
        against = (each for theirs in reversed(earlier) for each in theirs if statements.contradict(each, case))
        if rival := next(against, None):
            found.setdefault(rival.record, []).append((rival, case))
    return found


def _cited(query: str) -> tuple[str, ...]:
    """The records that a query is about; of what is no query, none."""
    match query.split():
        case ["differs", *names]:
            return tuple(names[:2])
        case [word, name, *_] if word != "rig-minutes":
            return (name,)
        case _:
            return ()


def _citations(found: tuple[Block, ...]) -> _Citations:
    seen = _Citations()
    for block in found:
        for name in _cited(block.query):
            citation = seen.first.setdefault(name, _Citation(line=block.line, entry=block.entry))
            citation.told |= block.query.startswith(_TELLS_SOURCE)
        if block.query.startswith("differs"):
            seen.differs.setdefault(frozenset(_cited(block.query)), block.line)
    return seen
