"""What the calibration found: kept cell by cell, collected in docs/calibration.json, shown in docs/statistics.md.

`python -m tests.calibration.results` collects what `pytest -m calibration` has left under .perf/calibration.
"""

import ast
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from perf import campaign, evidence, gate, noise, simulation, trial
from tests.calibration.cells import ALL, CELLS, NONE, ONE, TABLES, Cell, Counts, lower, upper

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".perf" / "calibration"
PUBLISHED = ROOT / "docs" / "calibration.json"
PAGE = ROOT / "docs" / "statistics.md"

#: What the figures depend on: the method, and the rig it is tried on.
_MODULES = (noise, evidence, gate, trial, campaign, simulation)

_REGION = re.compile(r"(<!-- calibration: ([^\n]+) -->\n)(.*?)(<!-- /calibration -->)", flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A cell as it was run: the digests of what was simulated and of the code that judged."""

    name: str
    definition: str
    code: str
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All cells of one code, with the constants of the method, and the share of each cell's suites that was run."""

    constants: tuple[tuple[str, float], ...]
    share: float
    results: tuple[Result, ...]


def _code() -> str:
    """A digest of the modules as python reads them: without comments and layout."""
    sources = [ast.dump(ast.parse(Path(module.__file__ or "").read_bytes())) for module in _MODULES]
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:12]


#: Of the code as it was imported: a file that is edited during a long run is not what runs.
CODE = _code()


def constants() -> tuple[tuple[str, float], ...]:
    """Every number of the method that has a name."""
    return tuple(
        (f"{module.__name__}.{name}", value)
        for module in _MODULES
        for name, value in sorted(vars(module).items())
        if name.isupper() and isinstance(value, int | float)
    )


# Cell by cell


def keep(cell: Cell, counts: Counts, folder: Path = FOLDER) -> None:
    """Keep what a cell has found."""
    folder.mkdir(parents=True, exist_ok=True)
    result = Result(name=cell.name, definition=cell.definition, code=CODE, counts=counts)
    unfinished = folder / f".{cell.name}.tmp"
    unfinished.write_text(json.dumps(asdict(result)))
    unfinished.replace(folder / f"{cell.name}.json")


def kept(cell: Cell, suites: int, folder: Path = FOLDER) -> Counts | None:
    """What a cell has found before; None where it, the code or the simulation is another, or the suites are fewer."""
    path = folder / f"{cell.name}.json"
    if not path.exists():
        return None
    result = TypeAdapter(Result).validate_json(path.read_bytes())
    same = (result.definition, result.code) == (cell.definition, CODE)
    return result.counts if same and result.counts.suites >= suites else None


# All of them


def collect(folder: Path = FOLDER, share: float = 1.0) -> Published:
    """Every cell, of at least this share of its suites. Raises ValueError where one was not run by this code."""
    results = []
    for cell in CELLS:
        counts = kept(cell, math.ceil(share * cell.suites), folder)
        if counts is None:
            whole = "in whole" if share == 1 else f"with {share:g} of its suites"
            raise ValueError(f"{cell.name}: was not run {whole} by this code; run tox -e calibration")
        results.append(Result(name=cell.name, definition=cell.definition, code=CODE, counts=counts))
    return Published(constants=constants(), share=share, results=tuple(results))


def read(path: Path = PUBLISHED) -> Published:
    """The published results."""
    return TypeAdapter(Published).validate_json(path.read_bytes())


def write(published: Published, path: Path = PUBLISHED) -> None:
    """Publish results, a cell in each line."""
    lines = ",\n".join(json.dumps(asdict(each)) for each in published.results)
    head = f'"constants": {json.dumps(published.constants)},\n"share": {published.share}'
    path.write_text(f'{{{head},\n"results": [\n{lines}\n]}}\n')


# Tables


def row(cell: Cell, counts: Counts) -> str:
    """A cell as a row: shares in percent, each with the bound that says most."""
    suites, loses = counts.suites, min(cell.changes) < 0
    cells = (
        cell.noise,
        cell.lost,
        f"{suites:,}",
        _least(counts.found, suites) if loses else _most(counts.red, suites),
        _most(counts.innocent, suites),
        _most(counts.passed, suites) if loses else _least(counts.passed, suites),
        _share(counts.undecided, suites),
        _least(counts.improved, suites) if max(cell.changes) > 0 else _most(counts.improved, suites),
        f"{counts.minutes:.1f} ({counts.minutes_95:.0f})",
    )
    return f"| {' | '.join(cells)} |"


def table(name: str, by_name: Mapping[str, Counts]) -> Iterator[str]:
    """The lines of one table: a row for each cell, or for each kind of noise."""
    cells = [cell for cell in CELLS if cell.table == name and cell.name in by_name]
    if any(cell.lost not in (NONE, ONE, ALL) for cell in cells):
        yield "| noise | change | suites | REGRESSED | wrong level | all PASS | else | IMPROVED | minutes |"
        yield f"|---|---|{'---:|' * 7}"
        for cell in cells:
            yield row(cell, by_name[cell.name])
        return
    yield (
        "| noise | suites | false REGRESSED | false IMPROVED | all PASS | -3 % at one: found | wrong level | missed | "
        "at all: found | missed | minutes: none | one | all |"
    )
    yield f"|---|{'---:|' * 12}"
    for kind in dict.fromkeys(cell.noise for cell in cells):
        counts = {cell.lost: by_name[cell.name] for cell in cells if cell.noise == kind}
        yield f"| {' | '.join((kind, *_three(counts)))} |"


def _three(counts: Mapping[str, Counts]) -> Iterator[str]:
    """A row of no loss, a loss at one level, and one at all, where there are so many levels."""
    none, one, everything = counts[NONE], counts[ONE], counts.get(ALL)
    of = [each for each in (none, one, everything) if each is not None]
    yield " / ".join(dict.fromkeys(f"{each.suites:,}" for each in of))
    yield _most(none.red, none.suites)
    yield _most(none.improved, none.suites)
    yield _least(none.passed, none.suites)
    yield _least(one.found, one.suites)
    yield _most(one.innocent, one.suites)
    yield _most(one.passed, one.suites)
    yield "" if everything is None else _least(everything.found, everything.suites)
    yield "" if everything is None else _most(everything.passed, everything.suites)
    yield f"{none.minutes:.1f} ({none.minutes_95:.0f})"
    yield f"{one.minutes:.0f}"
    yield "" if everything is None else f"{everything.minutes:.0f}"


def renewed(text: str, published: Published) -> str:
    """A page with every table of it as published. Raises ValueError for a table that there is not."""
    by_name = {each.name: each.counts for each in published.results}

    def inside(found: re.Match[str]) -> str:
        opening, name, _, closing = found.groups()
        if name not in TABLES:
            raise ValueError(f"no table is called {name!r}; there are: {', '.join(TABLES)}")
        return "\n".join((opening, *table(name, by_name), "", closing))

    return _REGION.sub(inside, text)


def shown(text: str) -> tuple[str, ...]:
    """The names of the tables that a page has."""
    return tuple(found.group(2) for found in _REGION.finditer(text))


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.2f}"


def _most(count: int, of: int) -> str:
    return f"{_share(count, of)} (<{100 * upper(count, of):.2f})"


def _least(count: int, of: int) -> str:
    return f"{_share(count, of)} (>{100 * lower(count, of):.2f})"


def main() -> None:
    """Collect, publish, and renew the page. The one argument is the share of suites that was run, 1 without it."""
    try:
        write(collect(share=float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
    except ValueError as error:
        sys.exit(str(error))
    PAGE.write_text(renewed(PAGE.read_text(), read()))


if __name__ == "__main__":
    main()
