"""What a record states, as text for a page: its numbers, its verdicts, where it comes from. Pure.

A record is a campaign measured here, or figures published elsewhere. Two records contradict each other where they state
different output throughputs for one case.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from perf import figures
from perf.compact import (
    Compact,
    CompactCase,
    CompactCrossover,
    CompactJudgement,
    CompactReference,
    CompactRelation,
    CompactSameOutput,
    CompactSuite,
    CompactVariant,
)
from perf.figures import Figure, Figures
from perf.gate import Word
from perf.rig import EMULATED_RIG_ID
from perf.text import duration, launches, milliseconds, percent, printable, share, throughput
from perf.verdict import INTERVALS, against

Record = Compact | Figures
_Judged = CompactCase | CompactRelation | CompactCrossover | CompactSameOutput

NOT_STATED = "not stated"

#: A command of SGLang has some hundred characters; a record is a file, and a file may hold anything.
MAX_COMMAND = 2000


class Numbers(Protocol):
    """The numbers of one case, measured or published."""

    @property
    def output_throughput(self) -> float: ...
    @property
    def per_request_throughput(self) -> float | None: ...
    @property
    def achieved_concurrency(self) -> float | None: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...
    @property
    def acceptance_length(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number of a case: where it is, how it is written, and its unit."""

    of: Callable[[Numbers], float | None]
    write: Callable[[float], str]
    unit: str = ""
    scale: float = 1.0


def _seconds(value: float) -> str:
    """`0.249`, `5.53`, `41.0`: three significant digits of what a request takes."""
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


METRICS: dict[str, Metric] = {
    "output_throughput": Metric(of=lambda seen: seen.output_throughput, write=throughput, unit=" tok/s"),
    "per_request_throughput": Metric(of=lambda seen: seen.per_request_throughput, write=throughput, unit=" tok/s"),
    "achieved_concurrency": Metric(of=lambda seen: seen.achieved_concurrency, write="{:.1f}".format),
    "ttft_s": Metric(of=lambda seen: seen.ttft_s, write=milliseconds, unit=" ms", scale=1000),
    "tpot_s": Metric(of=lambda seen: seen.tpot_s, write=milliseconds, unit=" ms", scale=1000),
    "e2e_s": Metric(of=lambda seen: seen.e2e_s, write=_seconds, unit=" s"),
    "acceptance_length": Metric(of=lambda seen: seen.acceptance_length, write="{:.2f}".format),
}
DEFAULT_METRIC = "output_throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One case of a record. `level` is a number or `saturation`; `margin` is None for what was published.

    `numbers` is None for a case that was INVALID.
    """

    record: str
    suite: str | None
    rig: str
    model: str
    variant: str
    level: int | str
    numbers: Numbers | None
    margin: float | None

    @property
    def approximate(self) -> bool:
        """Was its output throughput printed as "about" so much?"""
        return isinstance(self.numbers, Figure) and self.numbers.approximate

    def shown(self, metric: str, *, unit: bool = True) -> str:
        """A number of it: as printed where it was published, else to a reader's precision; `-` where there is none."""
        how = METRICS[metric]
        value = None if self.numbers is None else how.of(self.numbers)
        if value is None:
            return "-"
        behind = how.unit if unit else ""
        if not isinstance(self.numbers, Figure):
            return how.write(value) + behind
        about = "about " if self.approximate and metric == DEFAULT_METRIC else ""
        printed = value if how.scale == 1 else float(f"{value * how.scale:.12g}")  # 0.0123 s are 12.3 ms
        return f"{about}{printed:,}{behind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A condition in which two records differ. None where a record does not state it: that explains nothing.

    It is one of `suites`, one of each record; and of one variant or one level where these are not None.
    """

    name: str
    one: str | None
    other: str | None
    suites: tuple[str | None, str | None]
    variant: str | None = None
    level: int | None = None

    def explains(self, one: Statement, other: Statement) -> bool:
        """Do both records state it, and has it a part in this case?"""
        return (
            None not in (self.one, self.other)
            and self.suites == (one.suite, other.suite)
            and self.variant in (None, one.variant)
            and self.level in (None, one.level)
        )


# Numbers


def problem(name: str, record: Record) -> str | None:
    """Why a record that parsed cannot be cited, None where it can."""
    if isinstance(record, Figures):
        return figures.problem(record)
    cases = statements(name, record)
    if len({(each.suite, each.variant, each.level) for each in cases}) != len(cases):
        return "a case stands twice"
    for each in cases:
        for metric, how in METRICS.items():
            value = None if each.numbers is None else how.of(each.numbers)
            if value is not None and value <= 0:
                return f"{metric} of {each.variant} at {each.level} is not positive"
    return None


def statements(name: str, record: Record) -> tuple[Statement, ...]:
    """Every case of a record, in its order."""
    if isinstance(record, Figures):
        return tuple(
            Statement(
                record=name,
                suite=None,
                rig=record.setup.rig,
                model=record.setup.model,
                variant=figure.variant,
                level=figure.level,
                numbers=figure,
                margin=None,
            )
            for figure in record.figures
        )
    return tuple(
        Statement(
            record=name,
            suite=suite.name,
            rig=suite.rig_id,
            model=_models(suite, case.variant) or "",
            variant=case.variant,
            level=case.level,
            numbers=case.numbers,
            margin=suite.margin,
        )
        for suite in record.suites
        for case in suite.cases
    )


def are_one_case(one: Statement, other: Statement) -> bool:
    """Are two statements about the same thing, so that both can only be true under different conditions?

    Campaigns: the same rig, suite, variant and level. Where one is published: the same kind of rig, model, variant and
    level, whoever asked it and how.
    """
    if (one.variant, one.level) != (other.variant, other.level):
        return False
    if one.suite is not None and other.suite is not None:
        return (one.rig, one.suite) == (other.rig, other.suite)
    rigs = sorted((_slug(one.rig), _slug(other.rig)), key=len)
    same_kind = rigs[0] == rigs[1] or rigs[1].startswith(rigs[0] + "-")
    return same_kind and _slug(one.model) == _slug(other.model)


def contradict(one: Statement, other: Statement) -> bool:
    """Do two statements about one case differ beyond the larger margin, or, published, in the digits printed?"""
    if one.numbers is None or other.numbers is None or not are_one_case(one, other):
        return False
    values = sorted((one.numbers.output_throughput, other.numbers.output_throughput))
    margin = max(one.margin or 0.0, other.margin or 0.0) * values[0]
    printed = max(_half_digit(each) for each in (one, other))
    return values[1] - values[0] > max(margin, printed) * (1 + 1e-9)


def _half_digit(statement: Statement) -> float:
    """Half of the last digit printed: 81 and 80.9 say the same."""
    if statement.margin is not None or statement.numbers is None:
        return 0.0
    return 0.5 * 10.0 ** -len(f"{statement.numbers.output_throughput}".partition(".")[2])


def change(before: Statement, after: Statement, metric: str) -> str | None:
    """How much another variant has of a metric, `-12.7 %`; None where one of them has none."""
    if before.numbers is None or after.numbers is None:
        return None
    first, second = METRICS[metric].of(before.numbers), METRICS[metric].of(after.numbers)
    if not first or not second:
        return None
    if metric == DEFAULT_METRIC and (before.approximate or after.approximate):
        return f"about {percent(second / first - 1, 0)}"
    return percent(second / first - 1)


# Tables


def throughput_table(name: str, record: Record) -> str:
    """Output throughput, rate and time of a request at every level of every variant."""
    if isinstance(record, Figures):
        return f"{_published(record)}\n\n{_throughputs(statements(name, record))}"
    parts: list[str] = []
    for suite in record.suites:
        cases = tuple(each for each in statements(name, record) if each.suite == suite.name)
        parts += [_suite_line(record, suite), _throughputs(cases)]
    return "\n\n".join(parts)


def _throughputs(cases: Sequence[Statement]) -> str:
    variants = list(dict.fromkeys(each.variant for each in cases))
    by_case = {(each.level, each.variant): each for each in cases}
    pair = len(variants) == 2
    headers = ["concurrency", "variant", "tok/s", "tok/s of a request", "time of a request"]
    rows: list[list[str]] = []
    for level, variant in product(dict.fromkeys(each.level for each in cases), variants):
        case = by_case.get((level, variant))
        if case is None:
            continue
        rows.append(
            [
                f"{level}",
                cell(variant),
                case.shown("output_throughput", unit=False),
                case.shown("per_request_throughput", unit=False),
                case.shown("e2e_s"),
            ]
        )
        if pair:
            first = by_case.get((level, variants[0]))
            rows[-1].append("" if variant == variants[0] else _ratio(first, case))
    if pair:
        headers.append(f"ratio to {cell(variants[0])}")
    return table(headers, rows, numbers=range(2, len(headers)))


def _ratio(before: Statement | None, after: Statement) -> str:
    if before is None or before.numbers is None or after.numbers is None:
        return "-"
    ratio = after.numbers.output_throughput / before.numbers.output_throughput
    return f"about {ratio:.2f}" if before.approximate or after.approximate else f"{ratio:.3f}"


def verdict_table(record: Compact) -> str:
    """Every verdict, as the terminal shows them. Published figures have none."""
    headers = ("case", "tok/s", "baseline", "change", "interval", "TTFT ms", "TPOT ms", "accept", "launches", "verdict")
    parts: list[str] = []
    for suite in record.suites:
        judged: tuple[_Judged, ...] = (*suite.cases, *suite.relations, *suite.crossovers, *suite.same_outputs)
        parts += [
            _suite_line(record, suite),
            table(headers, [_verdict_row(each, suite.margin) for each in judged], numbers=range(1, 9)),
        ]
        reasons = [(_short(each), reason) for each in judged for reason in each.reasons]
        below = list(_against(suite))
        below += [f"{_short(each)}: {cell(each.told)}" for each in suite.crossovers if each.told]
        below += [
            f"{_short(each)}: {cell(of.variant)} is like {cell(each.variants[0])} in {of.alike} of {of.of} prompts"
            for each in suite.same_outputs
            for of in each.agreements
        ]
        below += [f"INVALID: {name}: {cell(why.name)}: {cell(why.seen, 300)}" for name, why in reasons]
        if below:
            parts.append("\n".join(f"- {text}" for text in below))
    return "\n\n".join(parts)


def _against(suite: CompactSuite) -> Iterator[str]:
    """How an interval is read, and what each case was held against; nothing in a record that does not tell."""
    seen: dict[str, list[str]] = {}
    for case in suite.cases:
        if case.route is not None and case.judgement is not None:
            text = against(case.route, case.judgement.launches_before, case.nights or 1)
            seen.setdefault(text, []).append(_short(case))
    if seen:
        yield INTERVALS
    for text, names in seen.items():
        yield f"judged against {text} ({', '.join(names)})"


def _verdict_row(judged: _Judged, margin: float) -> tuple[str, ...]:
    found = judged.judgement if isinstance(judged, CompactCase | CompactRelation) else None
    word = "ADVISORY" if not judged.gated and judged.verdict != Word.INVALID.value else judged.verdict
    name = _short(judged)
    before, after, moved, interval = "-", "-", "-", "-"
    if found is not None:
        before, after = throughput(found.before), throughput(found.after)
        moved, interval = _moved(judged.verdict, found, margin), f"[{percent(_low(found))}, {percent(_high(found))}]"
    numbers = judged.numbers if isinstance(judged, CompactCase) else None
    launches = f"{judged.launches}" if isinstance(judged, CompactCase) else "-"
    if numbers is None:
        after = after if isinstance(judged, CompactRelation) else "-"
        return (name, after, before, moved, interval, "-", "-", "-", launches, cell(word))
    accept = "-" if numbers.acceptance_length is None else f"{numbers.acceptance_length:.2f}"
    return (
        name,
        throughput(numbers.output_throughput),
        before,
        moved,
        interval,
        milliseconds(numbers.ttft_s),
        milliseconds(numbers.tpot_s),
        accept,
        launches,
        cell(word),
    )


def _short(judged: _Judged) -> str:
    return cell(judged.id.partition("/")[2])  # the suite is said above the table


def _moved(word: str, found: CompactJudgement, margin: float) -> str:
    """A percentage only where it means something."""
    is_nothing = _low(found) <= 0 <= _high(found)
    if word == Word.INCONCLUSIVE.value and (is_nothing or _low(found) <= -margin <= _high(found)):
        return "?"
    return "\\~" if is_nothing else percent(found.change)


def _low(found: CompactJudgement) -> float:
    return -math.inf if found.lo is None else found.lo


def _high(found: CompactJudgement) -> float:
    return math.inf if found.hi is None else found.hi


# Where it comes from


def source(name: str, record: Record) -> str:
    """In a few words."""
    if isinstance(record, Figures):
        return _published(record)
    rigs = ", ".join(dict.fromkeys(cell(suite.rig_id) for suite in record.suites))
    advisory = ", advisory: not gated" if any(suite.advisory for suite in record.suites) else ""
    return f"measured {cell(record.started_at[:10])} on {rigs}, campaign {cell(name)}{advisory}"


def provenance(record: Record) -> str:
    """Everything that is known of how the numbers came about."""
    if isinstance(record, Figures):
        return f"{_published(record)}\n\n{table(('condition', 'stated'), list(_setup_rows(record)))}"
    return table(("condition", "recorded"), list(_campaign_rows(record)))


def _published(record: Figures) -> str:
    return (
        f"Published, not measured here: {cell(record.title)}. "
        f"Source: {cell(record.source or NOT_STATED)}; date: {record.published or NOT_STATED}."
    )


def _setup_rows(record: Figures) -> Iterator[tuple[str, str]]:
    for condition in _setup(record):
        yield cell(condition.name), NOT_STATED if condition.text is None else cell(condition.text)


def _campaign_rows(record: Compact) -> Iterator[tuple[str, str]]:
    until = f" until {_time(record.finished_at)}" if record.finished_at else ""
    yield (
        "campaign",
        f"{cell(record.campaign)}: {_time(record.started_at)}{until}, sglang-perf {cell(record.tool_version)}",
    )
    rig = record.rig
    gpus = ", ".join(f"{rig.gpus.count(gpu)}x {cell(gpu)}" for gpu in dict.fromkeys(rig.gpus)) or "no GPU"
    driver = f", driver {cell(rig.driver)}" if rig.driver else ""
    yield "machine", f"{gpus}{driver}, {cell(rig.cpu)}, kernel {cell(rig.kernel)}"
    for suite in record.suites:
        prompts = f"prompts {cell(suite.workload.prompt_set)}; " if suite.workload else ""
        advisory = f"; {cell(suite.advisory, 300)}" if suite.advisory else ""
        yield f"suite {cell(suite.name)}", f"{_place(suite)}; {prompts}{cell(_protocol(suite))}{advisory}"
        for variant in suite.variants:
            head = f"{cell(suite.name)}/" if len(record.suites) > 1 else ""
            yield head + cell(variant.name), "; ".join(_variant_parts(variant))


def _variant_parts(variant: CompactVariant) -> Iterator[str]:
    yield f"model {cell(variant.model or NOT_STATED)}"
    yield cell(_stack(variant) or f"stack {NOT_STATED}")
    yield f"{launches(variant.launches)} in {duration(variant.rig_s)}"
    if (other := variant.reference) is not None:
        ran = f"{launches(other.launches)} in {duration(other.rig_s)}"
        yield f"reference build: {cell(_stack(other) or f'stack {NOT_STATED}')}, {ran}"
    if variant.command:
        yield code(" ".join(variant.command))
    if variant.env:
        yield code(" ".join(f"{key}={value}" for key, value in variant.env))


def _suite_line(record: Compact, suite: CompactSuite) -> str:
    suite_name = f"suite {cell(suite.name)} on {_place(suite)}"
    parts = [f"Campaign {cell(record.campaign)}, {suite_name}, margin {share(suite.margin)}"]
    parts += ["a rerun of what failed: its false-alarm rate is not stated"] if suite.alpha is None else []
    parts += [cell(text, 300) for text in (suite.advisory, suite.stopped, suite.problem) if text]
    return "; ".join(parts) + "."


def _place(suite: CompactSuite) -> str:
    return "an emulated rig (its time is synthetic)" if suite.rig_id == EMULATED_RIG_ID else f"rig {cell(suite.rig_id)}"


def _time(text: str) -> str:
    return cell(text.replace("T", " ").replace("+00:00", " UTC"))


# Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A condition of one side, of one variant or one level of it where these are not None.

    A detail is compared only where both sides have it; parts are compared one by one.
    """

    name: str
    text: str | None
    detail: bool = False
    parts: tuple[str, ...] = ()
    variant: str | None = None
    level: int | None = None


def differences(one: Record, other: Record) -> tuple[Difference, ...]:
    """The conditions in which two records differ, suite by suite where they have several in common."""
    published = isinstance(one, Figures) or isinstance(other, Figures)
    sides, others = _sides(one, published), _sides(other, published)
    pairs = [(first, second) for first, second in product(sides, others) if first == second]
    pairs = pairs or list(product(sides, others))
    found: list[Difference] = []
    for first, second in pairs:
        head = f"{first or second}: " if len(pairs) > 1 else ""
        if first != second:
            found.append(Difference(name=f"{head}suite", one=first, other=second, suites=(first, second)))
        theirs = {each.name: each for each in others[second]}
        mine = {each.name: each for each in sides[first]}
        for name in dict.fromkeys((*mine, *theirs)):
            if texts := _difference(mine.get(name), theirs.get(name)):
                condition = (mine | theirs)[name]
                found.append(
                    Difference(
                        name=head + name,
                        one=texts[0],
                        other=texts[1],
                        suites=(first, second),
                        variant=condition.variant,
                        level=condition.level,
                    )
                )
    return tuple(found)


def differs_table(name: str, record: Record, other_name: str, other: Record) -> str:
    """The conditions that differ, side by side."""
    found = differences(record, other)
    if not found:
        return f"No recorded condition of {name} and {other_name} differs.\n"
    rows = [(cell(each.name), _side(each.one), _side(each.other)) for each in found]
    return table(("differs", name, other_name), rows)


def _side(text: str | None) -> str:
    return NOT_STATED if text is None else cell(text, MAX_COMMAND)


def _difference(one: _Condition | None, other: _Condition | None) -> tuple[str | None, str | None] | None:
    """What each side says, None where it is the same or must not be compared."""
    if one is None or other is None:
        known = one or other
        if known is None or known.detail or known.text is None:
            return None
        return (one.text if one else None, other.text if other else None)
    if (one.text, one.parts) == (other.text, other.parts):
        return None
    if not one.parts and not other.parts:
        return (one.text, other.text)
    only = [part for part in one.parts if part not in other.parts]
    only_other = [part for part in other.parts if part not in one.parts]
    if not only and not only_other:  # the order, or how often
        only, only_other = list(one.parts), list(other.parts)
    return (" ".join(only) or "-", " ".join(only_other) or "-")


def _sides(record: Record, published: bool) -> dict[str | None, tuple[_Condition, ...]]:
    """The conditions by suite, of published figures under no name; `published` where one of the two records is."""
    if isinstance(record, Figures):
        return {None: tuple(_setup(record))}
    return {suite.name: tuple(_conditions(record, suite, published)) for suite in record.suites}


def _setup(record: Figures) -> Iterator[_Condition]:
    setup = record.setup
    yield _Condition(name="rig", text=setup.rig)
    yield _Condition(name="interconnect", text=setup.interconnect)
    yield _Condition(name="model", text=setup.model)
    yield _Condition(name="stack", text=setup.stack)
    yield _Condition(name="prompts", text=setup.prompts)
    yield _Condition(name="harness", text=setup.harness)
    yield _Condition(name="protocol", text=setup.protocol)
    for variant in setup.variants:
        yield _Condition(name=f"variant {variant.name}", text=variant.settings, detail=True, variant=variant.name)


def _conditions(record: Compact, suite: CompactSuite, published: bool) -> Iterator[_Condition]:
    """Published figures are told of as a whole; between campaigns, what is of one case is compared case by case."""
    yield _Condition(name="rig", text=suite.rig_id)
    if published:
        yield _Condition(name="model", text=_models(suite, None))
        stacks = dict.fromkeys(stack for variant in suite.variants if (stack := _stack(variant)))
        yield _Condition(name="stack", text="; ".join(stacks) or None)
    yield _Condition(name="prompts", text=suite.workload.prompt_set if suite.workload else None)
    yield _Condition(name="harness", text=f"sglang-perf {record.tool_version}")
    yield _Condition(name="protocol", text=_protocol(suite) if published else _rules(suite))
    for case in suite.cases:
        asked = f"{case.requests:,} requests, digest {case.workload_digest}"
        yield _Condition(name=f"asked at {case.level}", text=asked, detail=True, level=case.level)
    if suite.rig_id != EMULATED_RIG_ID:  # there the machine has no part in the numbers
        yield _Condition(name="driver", text=record.rig.driver, detail=True)
        yield _Condition(name="CPU", text=record.rig.cpu, detail=True)
        yield _Condition(name="kernel", text=record.rig.kernel, detail=True)
    for variant in suite.variants:
        env = tuple(f"{key}={value}" for key, value in variant.env)
        for name, text, parts in (
            ("model", _models(suite, variant.name), ()),
            ("stack", _stack(variant), ()),
            ("reference stack", None if variant.reference is None else _stack(variant.reference), ()),
            ("command", "", variant.command),
            ("environment", "", env),
        ):
            yield _Condition(
                name=f"{name} of {variant.name}", text=text, detail=True, parts=parts, variant=variant.name
            )


def _protocol(suite: CompactSuite) -> str:
    requests = _range([case.requests for case in suite.cases])
    asked = suite.workload
    if asked is None:  # a campaign of version 0.1
        return f"{requests} requests a level"
    tokens = _range([length for _, length in asked.output_tokens])
    return f"{requests} requests of {tokens} tokens a level, {_rules(suite)}"


def _rules(suite: CompactSuite) -> str | None:
    """What holds for every level."""
    asked = suite.workload
    if asked is None:
        return None
    rounds = "1 round" if asked.rounds == 1 else f"{asked.rounds} rounds"
    return (
        f"{rounds} a launch, endpoint {asked.endpoint}, temperature {asked.temperature:g}, "
        f"warm-up requests: {asked.warmup_requests}"
    )


def _range(values: Sequence[int]) -> str:
    if not values:
        return "no"
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _stack(variant: CompactVariant | CompactReference) -> str | None:
    build = variant.build
    parts = [f"server {variant.server_version}"] if variant.server_version else []
    if build is not None:
        parts.append(f"{build}, torch {build.torch or '-'}, packages {build.packages[:8]}")
    return ", ".join(parts) or None


def _models(suite: CompactSuite, variant: str | None) -> str | None:
    """The model of a variant, or of all; without the folder it lies in."""
    names = [
        each.model.rstrip("/").rpartition("/")[2]
        for each in suite.variants
        if each.model and variant in (None, each.name)
    ]
    return ", ".join(dict.fromkeys(names)) or None


def _slug(text: str) -> str:
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower()))


# Markdown


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: range = range(0)) -> str:
    """A table; columns of `numbers` to the right. It is not padded, so that one number changes one line."""
    rule = ["---:" if column in numbers else "---" for column in range(len(headers))]
    lines = ["| " + " | ".join(row) + " |" for row in (headers, *rows)]
    return "\n".join((lines[0], "|" + "|".join(rule) + "|", *lines[1:]))


def cell(text: str, limit: int = 200) -> str:
    """Text from a record so that a page shows it as it is: no markup, no marker, no second line."""
    plain = printable(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "&#96;")
    plain = re.sub(r"([\\*\[\]|~$])", r"\\\1", plain)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", plain) or "-"


def code(text: str) -> str:
    """Text from a record as code in a table."""
    plain = printable(text, MAX_COMMAND).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain or '-'}{pad}{fence}"
