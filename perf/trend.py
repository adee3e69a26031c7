"""The trend of a variant over its nights: how much nights vary, where its speed changed, and a drawing. Pure.

A change point is advisory: it says where to look, and no verdict knows of it. It is looked for in all levels of a
variant at once, since what moves a server moves several of them, and by ranks, so that a single bad night, however
bad, weighs no more than one night can.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, rankdata
from tabulate import tabulate

from perf.history import Night, Place
from perf.record import Arm
from perf.sample import Promotion, geometric_mean
from perf.text import percent, printable, share, throughput

Floats = NDArray[np.float64]

#: A history of unchanged nights in any order shows a change point with this probability, each time it is looked at.
ALPHA = 0.001

#: A change has lasted so many nights on both sides. Fewer may be a bad host, and could not reach ALPHA in any case:
#: 3 of 20 nights are the lowest by chance once in 1,140.
MIN_NIGHTS = 4

#: A change is so many times what nights vary by, in the root mean square over levels. Nights that resemble their
#: neighbours wander, and then no order of them is as likely as any other; but they seldom wander so far.
MIN_NOISES = 2.0
#: And at one level at least it is this, the third of the default margin that is material for a verdict, too.
MIN_CHANGE = 0.01

#: Nights that are all alike vary by less than anything that is measured.
NO_NOISE = 1e-9

#: Orders of the nights that are tried in one go, and at most.
ORDERS_AT_ONCE = 250
MAX_ORDERS = 5_000
#: With so many that look as changed, the p-value ends above ALPHA however many more are tried.
ENOUGH = round(ALPHA * MAX_ORDERS) + 1

#: Within a history, a change that was taken back is looked for from and to so many places: its ends are found later.
GRID = 12

#: A night is bad at a level where it is so far below the median around it; published nightly series have such nights at
#: 1 to 3 % of plain and 3 to 10 % of speculative cells.
BAD_NIGHT = 0.10
BAD_NOISES = 5.0

#: Per level, a change is given in numbers where the rank sum test of both sides says so: an explanation, no verdict.
MOVED_P = 0.05

#: Of so many simulated histories of 45 unchanged nights at 8 levels, how many show a change point: `python -m
#: benchmarks.trend` measures it anew, and tests/unit/test_trend.py holds it.
HISTORIES = 1000
FALSE_ALARMS = (
    ("independent nights", 0),
    ("heavy tails", 0),
    ("each night 0.3 of the one before", 0),
    ("0.5 of it", 18),
)

#: What `python -m perf trend` draws of a history by default: a quarter of a year, and what fits on a line.
NIGHTS = 90
#: And at most: years. Time and memory grow with nights times stretches.
MAX_NIGHTS = 2_000

#: The same nights have the same change points.
SEED = 20260405


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One arm of a variant: `throughput` in tok/s has a row for each night and a column for each level, NaN for none.

    `other_workload` counts the cells that were left out, since another workload was asked than on the newest night.
    """

    place: Place
    arm: Arm
    nights: tuple[Night, ...]  # one of each night, for its time, build and source
    levels: tuple[int, ...]
    throughput: Floats
    other_workload: int

    @property
    def width(self) -> int:
        """Digits of a level in the id of its case."""
        return max(3, len(str(max(self.levels))))

    def case(self, level: int) -> str:
        """The id of a level's case, `mine/eagle3/c016`."""
        return f"{self.place.suite}/{self.place.variant}/c{level:0{self.width}d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point: `index` is the first night after it, `p` how often nights in any order look so changed.

    `shifts` has the change of the median of each level, as a share, between the change points on either side; NaN where
    a side has no night. `moved` says of which levels that is more than chance.
    """

    index: int
    p: float
    shifts: tuple[float, ...]
    moved: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNight:
    """One night at one level far below the nights around it; `change` as a share of their median."""

    index: int
    level: int
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a series shows. `noise` is the robust CV from night to night of each level, NaN where there are too few."""

    noise: tuple[float, ...]
    changes: tuple[Change, ...]
    bad: tuple[BadNight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How to draw: with ASCII alone, with colour."""

    ascii: bool
    colour: bool


def series(place: Place, nights: Sequence[Night], arm: Arm, *, newest: int) -> Series | None:
    """The newest nights of one arm, None where there are none.

    Of each level only what was asked as on its newest night: another workload is another series.
    """
    ours = [night for night in nights if night.arm == arm]
    digests = {night.level: night.workload_digest for night in ours}  # oldest first: the newest stays
    same = [night for night in ours if night.workload_digest == digests[night.level]]
    rows = {(night.started_at, night.campaign): night for night in same}
    kept = sorted(rows)[-newest:]
    if not kept:
        return None
    levels = sorted({night.level for night in same if (night.started_at, night.campaign) >= kept[0]})
    table = np.full((len(kept), len(levels)), np.nan)
    for night in same:
        if (night.started_at, night.campaign) >= kept[0]:
            row = kept.index((night.started_at, night.campaign))
            table[row, levels.index(night.level)] = geometric_mean(night.output_throughput)
    table.setflags(write=False)
    return Series(
        place=place,
        arm=arm,
        nights=tuple(rows[key] for key in kept),
        levels=tuple(levels),
        throughput=table,
        other_workload=len(ours) - len(same),
    )


# What it shows


def examine(found: Series, generator: np.random.Generator) -> Findings:
    """Noise, change points and bad nights. The same generator finds the same."""
    logs = np.log(found.throughput)
    points = change_points(logs, generator)
    return Findings(
        noise=tuple(float(value) for value in night_noise(logs)),
        changes=_described(logs, points),
        bad=_bad(logs, [index for index, _ in points], found.levels),
    )


def night_noise(logs: Floats) -> Floats:
    """The robust standard deviation of each level from night to night: of differences of neighbours, which a change
    moves once only.

    1.4826 times the median size of normal numbers around 0 is their standard deviation; a difference has twice the
    variance of a night. The size, not the deviation from the median: where every second night is on a slower machine,
    most steps are as deep as the median step. NaN where a level has fewer than `MIN_NIGHTS` differences.
    """
    found = np.full(logs.shape[1], np.nan)
    for column, values in enumerate(logs.T):
        steps = np.diff(values[~np.isnan(values)])
        if len(steps) >= MIN_NIGHTS:
            found[column] = 1.4826 * np.median(np.abs(steps)) / math.sqrt(2)
    return found


def change_points(logs: Floats, generator: np.random.Generator) -> tuple[tuple[int, float], ...]:
    """Where nights x levels of logarithms change: the first row after each change, and its p-value.

    Segmentation: the strongest difference in all nights, then in each part, as long as one is found; then each change
    once more between its neighbours, since it was placed while others were still in the data. What does not stand out
    from the noise of nights is no change.
    """
    noise = night_noise(logs)
    kept: list[tuple[int, float]] = []
    found = _split(logs, generator)
    for number, _ in enumerate(found):
        start = kept[-1][0] if kept else 0
        end = found[number + 1] if number + 1 < len(found) else len(logs)
        part = logs[start:end]
        again = strongest(part, generator)
        if again is not None and again[1] <= ALPHA and _stands_out(part, index := _place(part, noise), noise):
            kept.append((start + index, again[1]))
    return tuple(kept)


def _split(logs: Floats, generator: np.random.Generator) -> list[int]:
    found = strongest(logs, generator)
    if found is None or found[1] > ALPHA:
        return []
    ends = [0, *found[0], len(logs)]
    points: list[int] = []
    for start, end in pairwise(ends):
        points += [start, *(start + each for each in _split(logs[start:end], generator))]
    return points[1:]


def strongest(logs: Floats, generator: np.random.Generator) -> tuple[tuple[int, ...], float] | None:
    """Where nights differ most, and the p-value of that; None with too few nights.

    One index parts the nights before it from those from it on, two part those between them from the others: a change
    that was taken back. The p-value is by permutation: in how many random orders of the nights, each with all its
    levels, the strongest difference is as strong. It holds for any noise whose nights are exchangeable, whatever its
    tails and however its levels hang together; where nights lack levels it is close, not exact.
    """
    if len(logs) < 2 * MIN_NIGHTS:
        return None
    parts = _parts(len(logs))
    inside = np.array([[start <= night < end for night in range(len(logs))] for start, end in parts], dtype=np.float64)
    ranks, known = _ranks(logs)
    strengths = _strengths(ranks[None], known[None], inside)[0]
    seen = strengths.max() - 1e-9  # the same ranks may add up to a little less in another order
    rows = np.tile(np.arange(len(logs)), (ORDERS_AT_ONCE, 1))
    as_strong = tried = 0
    while tried < MAX_ORDERS and as_strong < ENOUGH:
        order = generator.permuted(rows, axis=1)
        there = known[None] if known.all() else known[order]
        as_strong += int((_strengths(ranks[order], there, inside).max(axis=1) >= seen).sum())
        tried += ORDERS_AT_ONCE
    start, end = parts[int(strengths.argmax())]
    return (end,) if start == 0 else (start, end), (as_strong + 1) / (tried + 1)


def _parts(nights: int) -> list[tuple[int, int]]:
    """Stretches of nights that are held against the others: from the first night on every one, within them a grid."""
    last = nights - MIN_NIGHTS
    grid = range(MIN_NIGHTS, last + 1, max(1, round(nights / GRID)))
    inner = [(start, end) for start in grid for end in grid if end - start >= MIN_NIGHTS]
    return [(0, end) for end in range(MIN_NIGHTS, last + 1)] + inner


def _place(logs: Floats, noise: Floats) -> int:
    """The split whose sides lie closest around their medians: ranks say that there is a change, not how large.

    By absolute deviations, in units of each level's noise; so a night weighs at most what the medians differ by.
    """
    units = np.maximum(np.nan_to_num(noise, nan=np.inf), NO_NOISE)

    def misfit(index: int) -> float:
        sides = (logs[:index], logs[index:])
        return float(sum(np.nansum(np.abs(side - _medians(side)) / units) for side in sides))

    return min(range(MIN_NIGHTS, len(logs) - MIN_NIGHTS + 1), key=misfit)


def _ranks(logs: Floats) -> tuple[Floats, Floats]:
    """The ranks of each level's nights with mean 0 and variance 1, 0 for a night that lacks it; and 1 where it is."""
    ranks, known = np.zeros(logs.shape), (~np.isnan(logs)).astype(np.float64)
    for column, values in enumerate(logs.T):
        there = ~np.isnan(values)
        if len(set(values[there].tolist())) > 1:
            of_level = rankdata(values[there])
            ranks[there, column] = (of_level - of_level.mean()) / of_level.std(ddof=1)
    return ranks, known


def _strengths(ranks: Floats, known: Floats, inside: Floats) -> Floats:
    """How different the nights inside of each stretch are from the others, of orders x nights x levels: the sum over
    levels of the squared rank-sum statistic (Wilcoxon), each in units of its standard deviation. Any direction counts.
    """
    counts, total = inside @ known, known.sum(axis=1, keepdims=True)
    variance = counts * (total - counts) / np.maximum(total, 1)
    weights = np.divide(1.0, variance, out=np.zeros_like(variance), where=variance > 0)
    return np.asarray(((inside @ ranks) ** 2 * weights).sum(axis=2), dtype=np.float64)


def _stands_out(logs: Floats, index: int, noise: Floats) -> bool:
    shifts = np.abs(_medians(logs[index:]) - _medians(logs[:index]))
    known = ~np.isnan(shifts) & ~np.isnan(noise)
    if not known.any() or np.nanmax(shifts) < math.log1p(MIN_CHANGE):
        return False
    sizes = shifts[known] / np.maximum(noise[known], NO_NOISE)
    return bool(np.sqrt(np.mean(sizes**2)) >= MIN_NOISES)


def _medians(logs: Floats) -> Floats:
    """The median of each level over the nights that have it; NaN where none has."""
    return np.array([np.median(known) if len(known := column[~np.isnan(column)]) else np.nan for column in logs.T])


def _described(logs: Floats, points: Sequence[tuple[int, float]]) -> tuple[Change, ...]:
    bounds = [0, *(index for index, _ in points), len(logs)]
    found: list[Change] = []
    for number, (index, p) in enumerate(points):
        before, after = logs[bounds[number] : index], logs[index : bounds[number + 2]]
        shifts = np.expm1(_medians(after) - _medians(before))
        moved = tuple(_differ(*sides) for sides in zip(before.T, after.T, strict=True))
        found.append(Change(index=index, p=p, shifts=tuple(float(each) for each in shifts), moved=moved))
    return tuple(found)


def _differ(before: Floats, after: Floats) -> bool:
    one, other = before[~np.isnan(before)], after[~np.isnan(after)]
    if not len(one) or not len(other) or len({*one.tolist(), *other.tolist()}) == 1:
        return False
    return float(mannwhitneyu(one, other).pvalue) < MOVED_P


def _bad(logs: Floats, points: Sequence[int], levels: tuple[int, ...]) -> tuple[BadNight, ...]:
    noise = night_noise(logs)
    found: list[BadNight] = []
    for start, end in pairwise([0, *points, len(logs)]):
        below = logs[start:end] - _medians(logs[start:end])
        least = np.maximum(-math.log1p(-BAD_NIGHT), BAD_NOISES * np.nan_to_num(noise))
        found += [
            BadNight(index=start + int(row), level=levels[column], change=math.expm1(below[row, column]))
            for row, column in np.argwhere(below <= -least)
        ]
    return tuple(sorted(found, key=lambda each: (each.index, each.level)))


# Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLOT = "●─═└│─"
#: What a terminal must know to be drawn on without ASCII.
CHARACTERS = _BLOCKS + _PLOT + "·"
_DIGITS = "12345678"

#: A drawing of less than this between its lowest and highest would show noise as if it were something.
MIN_SPAN = 0.06

PLOT_LINES = 12

#: Of many, the newest; the history has all.
MAX_LISTED = 10


def is_of(case: str, place: Place) -> bool:
    """Is a case, or a pattern of cases, of this variant?"""
    suite, _, rest = case.partition("/")
    variant = rest.partition("/")[0]
    return rest.count("/") <= 1 and fnmatchcase(place.suite, suite) and fnmatchcase(place.variant, variant or "*")


def texts(
    case: str, place: Place, nights: Sequence[Night], promotions: Mapping[int, Promotion], look: Look, *, newest: int
) -> Iterator[str]:
    """The trend of each arm that has it: of one level where `case` names it, else of all levels of the variant."""
    named = re.fullmatch(r"c0*([1-9][0-9]*)", case.rpartition("/")[2] if case.count("/") == 2 else "")
    level = None if named is None else int(named.group(1))
    arms: tuple[Arm, ...] = ("candidate", "reference")
    for arm in arms:
        found = series(place, nights, arm, newest=newest)
        if found is not None and (level is None or level in found.levels):
            shown = examine(found, np.random.default_rng(SEED))
            yield text(found, shown, promotions if arm == "candidate" else {}, look, level=level)


def text(
    found: Series, shown: Findings, promotions: Mapping[int, Promotion], look: Look, *, level: int | None = None
) -> str:
    """The trend for a reader: of all levels a line each, or of one level a plot and its newest nights.

    `promotions` holds what is stored as the baseline of a level, where anything is.
    """
    parts = [_head(found)]
    if level is None:
        parts.append(_table(found, shown, promotions, look))
    else:
        parts += [_plot(found, shown, promotions.get(level), look, level), _newest(found, level)]
    return "\n\n".join([*parts, _changes(found, shown, look, level), _bad_nights(found, shown, level)]) + "\n"


def _head(found: Series) -> str:
    first, last = (night.started_at[:10] for night in (found.nights[0], found.nights[-1]))
    count = f"{len(found.nights)} nights" if len(found.nights) > 1 else "1 night"
    told = f"{found.place}, {found.arm}: {count}, {first} to {last}"
    if sources := dict.fromkeys(printable(night.source, 80) for night in found.nights if night.source is not None):
        told += f"; imported from {', '.join(sources)}"
    if found.other_workload:
        told += f"; left out, since they were asked another workload: {found.other_workload} levels of nights"
    return told


def _table(found: Series, shown: Findings, promotions: Mapping[int, Promotion], look: Look) -> str:
    rows = []
    for column, level in enumerate(found.levels):
        values = found.throughput[:, column]
        now, stored = _now(found, shown, column), promotions.get(level)
        rows.append(
            (
                f"c{level:0{found.width}d}",
                throughput(now),
                "-" if stored is None else throughput(stored.throughput),
                "-" if stored is None else percent(now / stored.throughput - 1),
                _noise(shown.noise[column]),
                _spark(values, {each.index for each in shown.bad if each.level == level}, look),
            )
        )
    table = tabulate(
        rows,
        headers=("level", "tok/s now", "baseline", "change", "noise", "nights"),
        disable_numparse=True,
        colalign=("left", "right", "right", "right", "right", "left"),
    )
    indent = " " * (table.splitlines()[1].rindex(" ") + 1)  # where the drawings begin
    return "\n".join([table, *(indent + line for line in _axis(found, shown))])


def _axis(found: Series, shown: Findings) -> list[str]:
    """What stands below a drawing: the letters of changes, and the first and the last date."""
    first, last = (night.started_at[:10] for night in (found.nights[0], found.nights[-1]))
    count = len(found.nights)
    dates = f"{first}{last:>{count - 10}}" if count >= 21 else f"{first} to {last}"
    return [*filter(None, [_marks(shown, count)]), dates]


def _now(found: Series, shown: Findings, column: int) -> float:
    """The median since the last change that has a night of the level."""
    start = shown.changes[-1].index if shown.changes else 0
    values = found.throughput[start:, column]
    known = values[~np.isnan(values)]
    return float(np.median(known if len(known) else found.throughput[~np.isnan(found.throughput[:, column]), column]))


def _noise(value: float) -> str:
    return "-" if math.isnan(value) else share(round(value, 3))


def _range(values: Floats, bad: set[int]) -> tuple[float, float]:
    """What a drawing spans: all but bad nights, and at least `MIN_SPAN`."""
    good = [value for index, value in enumerate(values.tolist()) if not math.isnan(value) and index not in bad]
    low, high = min(good), max(good)
    more = max(0.0, MIN_SPAN * (low + high) / 2 - (high - low)) / 2
    return low - more, high + more


def _spark(values: Floats, bad: set[int], look: Look) -> str:
    """A night a character: how high, `!` for a bad one, a dot for none."""
    steps, none = (_DIGITS, ".") if look.ascii else (_BLOCKS, "·")
    low, high = _range(values, bad)
    marks = []
    for index, value in enumerate(values.tolist()):
        if math.isnan(value):
            marks.append(none)
        elif index in bad:
            marks.append("!")
        else:
            marks.append(steps[min(len(steps) - 1, int((value - low) / (high - low) * len(steps)))])
    return "".join(marks)


def _letters(number: int) -> str:
    """What stands for a change, counted from 0: a to z, aa to az, ba and so on. So long ones do not touch: there are
    `MIN_NIGHTS` between changes.
    """
    more, last = divmod(number, len(ascii_lowercase))
    return (_letters(more - 1) if more else "") + ascii_lowercase[last]


def _marks(shown: Findings, count: int) -> str:
    """Letters under the first night after each change."""
    line = [" "] * count
    for number, change in enumerate(shown.changes):
        letters = _letters(number)
        line[change.index : change.index + len(letters)] = letters
    return "".join(line).rstrip()


def _plot(found: Series, shown: Findings, stored: Promotion | None, look: Look, level: int) -> str:
    column = found.levels.index(level)
    values = found.throughput[:, column]
    bad = {each.index for each in shown.bad if each.level == level}
    low, high = _range(values, bad)
    if stored is not None:
        low, high = min(low, stored.throughput), max(high, stored.throughput)
    dot, line, base, corner, side, under = tuple("o-=+|-" if look.ascii else _PLOT)

    def row(value: float) -> int:
        return min(PLOT_LINES - 1, max(0, round((value - low) / (high - low) * (PLOT_LINES - 1))))

    grid = [[" "] * len(values) for _ in range(PLOT_LINES)]
    if stored is not None:
        grid[row(stored.throughput)] = [base] * len(values)
    for start, end in pairwise([0, *(change.index for change in shown.changes), len(values)]):
        if not math.isnan(
            median := float(np.exp(_medians(np.log(found.throughput[start:end, column : column + 1])))[0])
        ):
            grid[row(median)][start:end] = [line] * (end - start)
    for index, value in enumerate(values.tolist()):
        if not math.isnan(value):
            grid[row(value)][index] = "!" if index in bad else dot
    names = [throughput(low + (high - low) * number / (PLOT_LINES - 1)) for number in range(PLOT_LINES)]
    wide = max(map(len, names))
    shown_at = {0, PLOT_LINES // 2, PLOT_LINES - 1}
    lines = [
        f"{names[number] if number in shown_at else '':>{wide}} {side}{''.join(grid[number])}".rstrip()
        for number in reversed(range(PLOT_LINES))
    ]
    pad = " " * (wide + 2)
    lines.append(f"{'':>{wide}} {corner}{under * len(values)}")
    lines += [pad + line for line in _axis(found, shown)]
    key = f"{dot} a night, ! a bad one, {line} the median between changes"
    if stored is not None:
        reason = printable(stored.reason, 80)
        key += f", {base} the stored baseline, {throughput(stored.throughput)} ({stored.promoted_at[:10]}, {reason})"
    head = f"{found.case(level)}, tok/s; from night to night it varies by {_noise(shown.noise[column])}"
    return "\n".join([head, "", *lines, "", key])


def _newest(found: Series, level: int) -> str:
    column = found.levels.index(level)
    indices = [index for index in range(len(found.nights)) if not math.isnan(found.throughput[index, column])]
    rows = [
        (
            found.nights[index].started_at[:16].replace("T", " "),
            found.nights[index].campaign,
            _build(found.nights[index]),
            throughput(float(found.throughput[index, column])),
        )
        for index in indices[-MAX_LISTED:]
    ]
    return tabulate(
        rows,
        headers=("night (UTC)", "campaign", "build", "tok/s"),
        disable_numparse=True,
        colalign=("left", "left", "left", "right"),
    )


def _build(night: Night) -> str:
    told = [printable(night.version, 40)] if night.version else []
    told += [f"at {printable(night.commit, 60)[:12]}"] if night.commit else []
    told += [f"changed ({printable(night.changed, 60)[:8]})"] if night.changed else []
    return ", ".join(told) or "-"


def _changes(found: Series, shown: Findings, look: Look, level: int | None) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in FALSE_ALARMS)
    alarms = f"  false alarms in {HISTORIES:,} simulated unchanged histories: {counts}"
    if len(found.nights) < 2 * MIN_NIGHTS:
        return f"change points: not looked for, {2 * MIN_NIGHTS} nights are the least"
    if not shown.changes:
        return f"change points: none\n{alarms}"
    lines = ["change points (advisory: where to look; no verdict knows of them)"]
    wide = len(_letters(len(shown.changes) - 1))
    for number, change in enumerate(shown.changes):
        before, after = found.nights[change.index - 1], found.nights[change.index]
        seen = f"first seen {_night(after)}, last before it {_night(before)}; p = {change.p:.4f}"
        lines.append(f"  {_letters(number):<{wide}}  {seen}")
        lines.append(f"  {'':<{wide}}  " + ", ".join(_shifts(found, change, look, level)))
    return "\n".join([*lines, alarms])


def _shifts(found: Series, change: Change, look: Look, level: int | None) -> list[str]:
    told = []
    for number, shift, moved in zip(found.levels, change.shifts, change.moved, strict=True):
        if level not in (None, number):
            continue
        name = f"c{number:0{found.width}d}"
        if math.isnan(shift):
            told.append(f"{name} -")
        elif not moved:
            told.append(f"{name} ~")
        else:
            told.append(f"{name} {_coloured(percent(shift), loss=shift < 0, look=look)}")
    return told


def _coloured(words: str, *, loss: bool, look: Look) -> str:
    return f"\x1b[{31 if loss else 32}m{words}\x1b[0m" if look.colour else words


def _night(night: Night) -> str:
    build = _build(night)
    return night.started_at[:16].replace("T", " ") + ("" if build == "-" else f" ({build})")


def _bad_nights(found: Series, shown: Findings, level: int | None) -> str:
    listed = [each for each in shown.bad if level in (None, each.level)]
    if not listed:
        return "bad nights: none"
    told = [
        f"{found.nights[each.index].started_at[:10]} c{each.level:0{found.width}d} {percent(each.change)}"
        for each in listed[-MAX_LISTED:]
    ]
    more = f", and {len(listed) - MAX_LISTED} before" if len(listed) > MAX_LISTED else ""
    return f"bad nights (single, no change): {', '.join(told)}{more}"
