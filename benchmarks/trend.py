"""How often the trend is wrong, how soon it is right, and what it finds in real nights: `python -m benchmarks.trend`.

Simulated histories go through the product's own `trend.change_points`. The tables are those of docs/trend.md;
tests/unit/test_trend.py holds them against it.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from perf import importing, trend
from perf.history import Night, Place
from perf.trend import Findings, Floats, Series

DATA = Path(__file__).parents[1] / "tests/data/nightly/atom_nightly_2026-03-14_2026-04-30.csv.gz"

NIGHTS, LEVELS = 45, 8
#: Part of a night's luck that its levels share, and what each has of its own, in units of 1 %.
SHARED, OWN = 0.5, 1.0

Generator = np.random.Generator


# Noise


def independent(generator: Generator, nights: int, levels: int) -> Floats:
    """Normal nights, in logarithms: 1 % of each level, 0.5 % of all."""
    noise = SHARED * generator.standard_normal((nights, 1)) + OWN * generator.standard_normal((nights, levels))
    return np.asarray(0.01 * noise, dtype=np.float64)


def heavy(generator: Generator, nights: int, levels: int) -> Floats:
    """Tails of a t distribution with 2 degrees of freedom; and 6 % of cells and 2 % of nights are 10 % low."""
    noise = 0.01 * (SHARED * generator.standard_t(2, (nights, 1)) + OWN * generator.standard_t(2, (nights, levels)))
    low = (generator.random((nights, levels)) < 0.06) + 1.0 * (generator.random((nights, 1)) < 0.02)
    return np.asarray(noise + math.log(0.9) * low, dtype=np.float64)


def resembling(part: float, generator: Generator, nights: int, levels: int) -> Floats:
    """Normal nights, each `part` of the one before it, of variance as if they were independent."""
    fresh = independent(generator, nights, levels)
    found = np.empty_like(fresh)
    found[0] = fresh[0]
    for night in range(1, nights):
        found[night] = part * found[night - 1] + math.sqrt(1 - part**2) * fresh[night]
    return found


#: By the name that `trend.FALSE_ALARMS` gives them.
NOISES: dict[str, Callable[[Generator, int, int], Floats]] = {
    "independent nights": independent,
    "heavy tails": heavy,
    "each night 0.3 of the one before": partial(resembling, 0.3),
    "0.5 of it": partial(resembling, 0.5),
}


def alarms(name: str, histories: int, *, nights: int = NIGHTS, seed: int = 1) -> int:
    """Of so many unchanged histories, how many show a change point."""
    generator = np.random.default_rng(seed)
    noise = NOISES[name]
    return sum(bool(trend.change_points(noise(generator, nights, LEVELS), generator)) for _ in range(histories))


def alarms_while_growing(name: str, histories: int, *, seed: int = 2) -> int:
    """The same where each is looked at every night while it grows to `NIGHTS`: how many ever show one."""
    generator = np.random.default_rng(seed)
    found = 0
    for _ in range(histories):
        whole = NOISES[name](generator, NIGHTS, LEVELS)
        looks = range(2 * trend.MIN_NIGHTS, NIGHTS + 1)
        found += any(trend.change_points(whole[:nights], generator) for nights in looks)
    return found


def seen(change: float, levels: int, after: int, histories: int, *, seed: int = 3) -> int:
    """Of so many histories that lose `change` at some `levels` for the last `after` nights, how many show it."""
    generator = np.random.default_rng(seed)
    found = 0
    for _ in range(histories):
        logs = independent(generator, NIGHTS, LEVELS)
        logs[NIGHTS - after :, :levels] += math.log1p(change)
        found += bool(trend.change_points(logs, generator))
    return found


# Tables


def rate(count: int, of: int) -> str:
    """`0.10 % (0.03 to 0.26)`: with the Clopper-Pearson interval of 95 %."""
    bounds = binomtest(count, of).proportion_ci()
    return f"{100 * count / of:.2f} % ({100 * bounds.low:.2f} to {100 * bounds.high:.2f})"


def false_alarms(histories: int) -> Iterator[str]:
    """Rows of a table: each noise, in one look, and looked at every night."""
    yield f"| noise | of {histories:,} histories | of {histories // 10:,} that are looked at every night |"
    yield "|---|---:|---:|"
    for name in NOISES:
        fewer = histories // 10
        yield (
            f"| {name} | {rate(alarms(name, histories), histories)} | "
            f"{rate(alarms_while_growing(name, fewer), fewer)} |"
        )


def power(histories: int) -> Iterator[str]:
    """Rows of a table: how often a loss is seen, and after how many nights."""
    nights = (4, 7, 14)
    yield f"| loss | {' | '.join(f'after {each} nights' for each in nights)} |"
    yield f"|---|{'---:|' * len(nights)}"
    for change, levels in ((-0.03, LEVELS), (-0.05, LEVELS), (-0.05, 4), (-0.10, 1)):
        where = "every level" if levels == LEVELS else f"{levels} of {LEVELS} levels"
        found = " | ".join(f"{100 * seen(change, levels, each, histories) / histories:.0f} %" for each in nights)
        yield f"| {100 * change:.0f} % at {where} | {found} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """One published series: its configuration, and the tokens of input and output of a request."""

    name: str
    lengths: tuple[str, str]
    series: Series
    findings: Findings

    def night(self, index: int) -> str:
        """The date of a night."""
        return self.series.nights[index].started_at[:10]


def real() -> Iterator[Real]:
    """Every series of the published nights that is long enough.

    In the last weeks configurations have other names, `ATOM::GLM-5-FP8` for `GLM-5-FP8`, and are the same.
    """
    for lengths in (("1024", "1024"), ("1024", "8192"), ("8192", "1024")):
        wanted = importing.Wanted(
            rig_id=importing.DEFAULT_RIG,
            suite="atom",
            variant=None,
            date=None,
            level=None,
            value="throughput (tok/s)",
            commit=None,
            series="cfg",
            acceptance=None,
            where=(("isl", lengths[0]), ("osl", lengths[1])),
            name=None,
        )
        by_name: dict[str, list[Night]] = {}
        for place, nights in importing.read(DATA, wanted).nights.items():
            name = re.sub("^ATOM-(?!vLLM|SGLang)", "", place.variant).replace("-MTP3", "-mtp3")
            by_name.setdefault(name, []).extend(nights)
        for name, kept in sorted(by_name.items()):
            place = Place(rig_id=importing.DEFAULT_RIG, suite="atom", variant=name)
            in_order = sorted(kept, key=lambda night: night.started_at)
            found = trend.series(place, in_order, "candidate", newest=trend.NIGHTS)
            if found is not None and len(found.nights) >= 2 * trend.MIN_NIGHTS:
                shown = trend.examine(found, np.random.default_rng(trend.SEED))
                yield Real(name=name, lengths=lengths, series=found, findings=shown)


def findings() -> Iterator[str]:
    """What is found in the published nights: a table of all change points, and the count."""
    found = list(real())
    yield "| first night | series | tokens in, out | nights | change at the levels that moved |"
    yield "|---|---|---|---:|---|"
    rows: list[str] = []
    for each in found:
        for change in each.findings.changes:
            shifts = [shift for shift, moved in zip(change.shifts, change.moved, strict=True) if moved]
            told = f"{100 * min(shifts):+.0f} to {100 * max(shifts):+.0f} %, {len(shifts)} of {len(change.shifts)}"
            of = f"{each.name} | {', '.join(each.lengths)} | {len(each.series.nights)}"
            rows.append(f"| {each.night(change.index)} | {of} | {told} |")
    yield from sorted(rows)
    changed = sum(bool(each.findings.changes) for each in found)
    bad = sum(len(each.findings.bad) for each in found)
    cells = sum(int((~np.isnan(each.series.throughput)).sum()) for each in found)
    yield ""
    yield f"{len(rows)} change points in {changed} of {len(found)} series of at least {2 * trend.MIN_NIGHTS} nights."
    yield f"{bad} of their {cells:,} cells are bad nights ({100 * bad / cells:.1f} %)."


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--histories", type=int, default=trend.HISTORIES, help="simulated ones a row")
    count = options.parse_args().histories
    for title, rows in (
        ("False alarms", false_alarms(count)),
        ("What is seen", power(count // 10)),
        ("Real nights", findings()),
    ):
        print(f"{title}\n", flush=True)
        for row in rows:
            print(row, flush=True)
        print()


if __name__ == "__main__":
    main()
