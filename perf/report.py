"""From verdicts to text: the table, the screen of one verdict, a campaign in markdown. Pure; judges nothing itself."""

import html
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from perf.gate import WORST_FIRST, Judgement, Word, worst
from perf.record import Campaign, SuiteRecord
from perf.text import duration, milliseconds, percent, printable, share, throughput
from perf.validity import Reason
from perf.verdict import CaseVerdict, Moved, RelationVerdict, Verdict, judge

#: How many reasons of an INVALID case its screen shows; the campaign has them all.
MAX_REASONS = 5

#: Characters of one line of a screen: the last words of a server that died, with their path, fit in.
MAX_LINE = 1200

#: Characters of a campaign in markdown. GitHub refuses a comment of more than 65,536; the rest is for words around it.
MAX_MARKDOWN = 60_000

_HEADERS = ("case", "tok/s", "baseline", "change", "interval", "TTFT ms", "TPOT ms", "accept", "launches", "verdict")
_ALIGN = ("left", *("right",) * 8, "left")


def word(verdict: Verdict) -> str:
    """The word an item shows: the verdict's own, but ADVISORY where it was measured and not gated."""
    return "ADVISORY" if verdict.advisory and verdict.word is not Word.INVALID else verdict.word.value


def passes(verdict: Verdict) -> bool:
    """Does the item pass?"""
    return verdict.word in (Word.PASS, Word.IMPROVED) or word(verdict) == "ADVISORY"


def table(verdicts: Sequence[Verdict], *, for_markdown: bool = False) -> str:
    """All verdicts of one suite, one line each, in the order of the suite: a curve over levels is read so."""
    rows = [_row(verdict) for verdict in verdicts]
    if for_markdown:
        rows = [(_code(name).replace("|", r"\|"), *cells) for name, *cells in rows]
    return tabulate(
        rows,
        headers=_HEADERS,
        tablefmt="pipe" if for_markdown else "simple",
        disable_numparse=True,
        colalign=_ALIGN,
        headersglobalalign=None,
    )


def tally(verdicts: Sequence[Verdict]) -> str:
    """`14 PASS, 1 REGRESSED; overall REGRESSED`."""
    overall = _overall(verdicts)
    return _counts(verdicts) + (f"; overall {overall}" if overall else "")


def _counts(verdicts: Sequence[Verdict]) -> str:
    words = [word(verdict) for verdict in verdicts]
    return ", ".join(f"{words.count(each)} {each}" for each in dict.fromkeys(sorted(words)))


def remarks(suite: SuiteRecord, verdicts: Sequence[Verdict]) -> str:
    """What differs from the baselines, of cases that passed too, and what launches noted; each once, with where."""
    seen: dict[str, list[str]] = {}
    if suite.rerun:
        seen["only what failed before was measured again: how often that is a false alarm is not stated"] = [suite.name]
    for verdict in verdicts:
        for note in verdict.notes if isinstance(verdict, CaseVerdict) else ():
            seen.setdefault(f"not as in the baseline: {note}", []).append(verdict.id.split("/", 1)[1])
    for launch in suite.launches:
        for note in launch.notes:
            seen.setdefault(printable(note), []).append(launch.name)
    if client := _client(suite):
        seen[client] = ["over all rounds"]
    return "\n".join(
        f"{note}  ({', '.join(where[:2])}{f' and {len(where) - 2} more' if len(where) > 2 else ''})"
        for note, where in seen.items()
    )


def _client(suite: SuiteRecord) -> str | None:
    """How the client fared where it fared worst; None where no round tells."""
    rounds = (each for launch in suite.launches for taken in launch.measurements for each in taken.rounds)
    fared = [each.client for each in rounds if each.client is not None]
    if not fared:
        return None
    worst_of = {
        "away": max(each.away_share for each in fared),
        "streams idle": max(each.turnaround_share for each in fared),
        "waiting for a core": max((each.run_queue_share or 0.0) for each in fared),
        "using one": max(each.cpu_share for each in fared),
    }
    lags = [each.lag_p99_s for each in fared if each.lag_p99_s is not None]
    late = f"reads up to {milliseconds(max(lags))} ms late (p99), " if lags else ""
    return f"the client at its worst: {late}" + ", ".join(
        f"{what} {share(round(n, 3))}" for what, n in worst_of.items()
    )


def properties(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """A verdict for machines, as JUnit carries it: tok/s and shares as plain numbers; what is not there is left out."""
    numbers: dict[str, float | None] = {}
    if isinstance(verdict, CaseVerdict) and verdict.measured is not None:
        numbers["output_throughput"] = verdict.measured.output_throughput
    if (judgement := verdict.judgement) is not None:
        numbers |= {"output_throughput": judgement.after, "baseline_throughput": judgement.before}
        numbers |= {"change": judgement.change, "lo": judgement.lo, "hi": judgement.hi}
    plain = ((name, f"{value:.6f}") for name, value in numbers.items() if value is not None and math.isfinite(value))
    return (("verdict", word(verdict)), *plain)


def markdown(campaign: Campaign, promote: str, folder: str, *, limit: int = MAX_MARKDOWN) -> str:
    """A complete campaign for a pull request or the summary of a build; worst first.

    The screens of what is not PASS are folded away. Of more than `limit` characters, whole screens are left out, the
    least grave first, and it is said; no table ever is. `promote` and `folder` as for `screen`.
    """
    suites = [(each, judge(each)) for each in campaign.suites]
    suites.sort(key=lambda pair: _rank(_overall(pair[1])))
    head = _head(campaign, [verdict for _, verdicts in suites for verdict in verdicts], folder)
    tables = [_suite(suite, verdicts) for suite, verdicts in suites]
    folded = [
        (_rank(rank), position, text)
        for position, (suite, verdicts) in enumerate(suites)
        for rank, text in _folded(suite, verdicts, promote, folder)
    ]
    room = limit - sum(len(text) + 2 for text in (head, *tables, _left_out(len(folded))))
    shown: list[list[str]] = [[] for _ in suites]
    for _, position, text in sorted(folded, key=lambda each: each[0]):
        if len(text) + 2 <= room:
            room -= len(text) + 2
            shown[position].append(text)
    missing = len(folded) - sum(map(len, shown))
    parts = [head, *([_left_out(missing)] if missing else [])]
    for text, screens in zip(tables, shown, strict=True):
        parts += [text, *screens]
    return "\n\n".join(parts) + "\n"


def not_measured(problems: Mapping[str, str]) -> str:
    """In markdown, why suites could not be measured, where no campaign was begun that would say it. By their names."""
    parts = [f"## sglang-perf: {Word.INVALID}", "Nothing was measured."]
    for suite, problem in problems.items():
        parts += [f"{_code(suite)}:", _block("\n".join(printable(line, MAX_LINE) for line in problem.splitlines()))]
    return "\n\n".join(parts) + "\n"


_MEANING = {
    Word.PASS: "No case lost more than its margin.",
    Word.IMPROVED: "Nothing lost more than its margin, and something is faster.",
    Word.REGRESSED: "Throughput was lost, and not by chance.",
    Word.VIOLATED: "What is expected between variants does not hold.",
    Word.INVALID: "Not everything that was measured may be believed, neither as a loss nor as a pass.",
    Word.NO_BASELINE: "Not everything has a stored baseline that it can be judged against.",
    Word.INCONCLUSIVE: "Launches differ too much to exclude a loss beyond the margin.",
}


def _head(campaign: Campaign, verdicts: Sequence[Verdict], folder: str) -> str:
    """Headline, one sentence, and the circumstances."""
    overall = _overall(verdicts)
    says = "Nothing is judged: what was measured is only shown." if overall is None else _MEANING[overall]
    gravest = [verdict for verdict in verdicts if word(verdict) == overall]
    if overall in (Word.REGRESSED, Word.VIOLATED):
        change, id = min((verdict.judgement.change, verdict.id) for verdict in gravest if verdict.judgement)
        says += f" Worst: {_code(id)}, {percent(change)}."
    elif gravest and overall is not Word.PASS:
        says += f" For example {_code(gravest[0].id)}."
    rig = campaign.rig
    gpus = [f"{sum(gpu.name == name for gpu in rig.gpus)} x {name}" for name in dict.fromkeys(g.name for g in rig.gpus)]
    machine = [*gpus, *([] if rig.driver is None else [f"driver {rig.driver}"]), rig.cpu, f"kernel {rig.kernel}"]
    shown = campaign.id if folder == f".perf/campaigns/{campaign.id}" else shlex.quote(folder)
    facts = [
        f"campaign {_code(campaign.id)}, begun {_code(campaign.started_at)}",
        f"machine {', '.join(map(_code, machine))}",
        *_builds(campaign),
        f"look closer: {_code(f'python -m perf check {shown}')}",
    ]
    return "\n\n".join(
        [f"## sglang-perf: {overall or 'ADVISORY'}", says, _counts(verdicts), "\n".join(f"- {each}" for each in facts)]
    )


def _builds(campaign: Campaign) -> Iterable[str]:
    """What was measured, and in which variants, by their last launches."""
    launched = {f"{suite.name}/{launch.variant}": launch for suite in campaign.suites for launch in suite.launches}
    variants: dict[str, list[str]] = {}
    for name, launch in launched.items():
        told = [str(launch.build)] if launch.build else []
        told += [f"server {launch.server_version}"] if launch.server_version else []
        variants.setdefault(", ".join(told) or "unknown", []).append(name)
    return (f"build {_code(build)} in {', '.join(map(_code, names))}" for build, names in variants.items())


def _suite(suite: SuiteRecord, verdicts: Sequence[Verdict]) -> str:
    where = f"{_code(suite.name)} on {_code(suite.rig_id)}, margin {share(suite.margin)}"
    return f"### {where}: {_overall(verdicts) or 'ADVISORY'}\n\n{table(verdicts, for_markdown=True)}"


def _folded(
    suite: SuiteRecord, verdicts: Sequence[Verdict], promote: str, folder: str
) -> Iterable[tuple[Word | None, str]]:
    """What stands below a table, each with the word that says how grave it is."""
    for verdict in verdicts:
        if word(verdict) != Word.PASS:
            yield verdict.word, _details(word(verdict), verdict.id, screen(verdict, promote, folder))
    if noted := remarks(suite, verdicts):
        yield None, _details("Remarks", suite.name, noted)


def _overall(verdicts: Sequence[Verdict]) -> Word | None:
    """The worst of what is judged; None where nothing is."""
    gated = [verdict.word for verdict in verdicts if word(verdict) != "ADVISORY"]
    return worst(gated) if gated else None


def _rank(word: Word | None) -> int:
    return len(WORST_FIRST) if word is None else WORST_FIRST.index(word)


def _left_out(count: int) -> str:
    return f"**For length, {count} of the texts below the tables are left out here**: the command above shows them all."


def _details(label: str, name: str, text: str) -> str:
    summary = f"{label} <code>{html.escape(printable(name))}</code>"
    # The blank line ends the HTML, so that markdown begins again.
    return f"<details><summary>{summary}</summary>\n\n{_block(text)}\n\n</details>"


def _block(text: str) -> str:
    """A code block that nothing in its text can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def _code(text: str) -> str:
    """A code span of one line of text from anywhere: no markdown, HTML or mention in it means anything."""
    plain = printable(text) or "-"
    ticks = "`" * (_longest_run(plain) + 1)
    pad = " " if "`" in plain else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def screen(verdict: Verdict, promote: str, folder: str) -> str:
    """Everything a reader of one verdict needs: what happened, what was seen, what to do.

    `promote` is the command that promotes this campaign, `folder` where its logs lie.
    """
    lines = _case_screen(verdict) if isinstance(verdict, CaseVerdict) else _relation_screen(verdict)
    if verdict.advisory:
        lines.append(_line("advisory", verdict.advisory))
    if word(verdict) in (Word.REGRESSED, Word.VIOLATED, Word.INVALID):
        lines += [_line("server log", f"{folder}/{launch}/server.log") for launch in verdict.logs]
    if not verdict.advisory:
        lines += _advice(verdict, promote)
    return "\n".join(lines)


def _advice(verdict: Verdict, promote: str) -> list[str]:
    """What to do where the verdict is meant to be so."""
    promote = f'{promote} --case "{verdict.id}" --reason'
    match verdict.word:
        case Word.REGRESSED:
            return [f'  If the loss is intended: {promote} "why"']
        case Word.VIOLATED:
            return ["  If this is intended: change its [[expect]] in the suite file"]
        case Word.IMPROVED:
            return [f'  To hold it from now on: {promote} "why"']
        case Word.NO_BASELINE:
            first = isinstance(verdict, CaseVerdict) and verdict.stored is None
            return [f'  Record it: {promote} "{"first baseline" if first else "why"}"']
        case _:
            return []


def _row(verdict: Verdict) -> tuple[str, ...]:
    judgement = verdict.judgement
    name = verdict.id.split("/", 1)[1]  # the suite is said above the table
    change, interval = "-", "-"
    if judgement is not None:
        change, interval = _change(verdict.word, judgement), _interval(judgement)
    before = "-" if judgement is None else throughput(judgement.before)
    if isinstance(verdict, RelationVerdict):
        after = "-" if judgement is None else throughput(judgement.after)
        return (name, after, before, change, interval, "-", "-", "-", "-", word(verdict))
    measured = verdict.measured
    if measured is None:
        return (name, "-", before, change, interval, "-", "-", "-", str(verdict.launches), word(verdict))
    return (
        name,
        throughput(measured.output_throughput),
        before,
        change,
        interval,
        milliseconds(measured.ttft_s),
        milliseconds(measured.tpot_s),
        "-" if measured.acceptance_length is None else f"{measured.acceptance_length:.2f}",
        str(measured.launches),
        word(verdict),
    )


def _case_screen(verdict: CaseVerdict) -> list[str]:
    judgement = verdict.judgement
    if verdict.word is Word.INVALID:
        return _invalid_screen(verdict.reasons)
    if judgement is None:
        seen = verdict.measured
        numbers = "" if seen is None else f": {throughput(seen.output_throughput)} tok/s in {_launches(seen.launches)}"
        return [f"{word(verdict)}  {verdict.id} on {verdict.rig_id}{numbers}", _line("why", verdict.why or "-")]
    seen_now = f"output throughput {throughput(judgement.after)} tok/s, baseline {throughput(judgement.before)}"
    if verdict.word is Word.INCONCLUSIVE:
        spans = f"interval {_interval(judgement)} spans the margin of {share(verdict.margin)}"
        lines = [f"{word(verdict)}  {spans}", _line("seen", seen_now), *_inconclusive(verdict, judgement)]
    else:
        change = _change(verdict.word, judgement).replace("~", "no change seen (~)")
        interval = f"interval {_interval(judgement)}, margin {share(verdict.margin)}"
        lines = [f"{word(verdict)}  {seen_now}: {change}, {interval}"]
    if verdict.moved:
        lines.append(_line("moved with it", ", ".join(map(_moved, verdict.moved))))
    lines += [_line("different", note) for note in verdict.notes]
    if verdict.stored is not None:
        promotion = verdict.stored.promotion
        said = f'{printable(promotion.promoted_at[:10], 10)}, "{printable(promotion.reason, 120)}"'
        counts = f"{_launches(judgement.launches_before)}, tonight {judgement.launches_after}"
        lines.append(_line("baseline", f"{said}, {counts}"))
    return lines


def _relation_screen(verdict: RelationVerdict) -> list[str]:
    judgement = verdict.judgement
    if judgement is None or verdict.best is None:
        return _invalid_screen(verdict.reasons)
    place = f"level {verdict.level}" + (" (saturation)" if verdict.saturation else "")
    factor = "" if verdict.at_least == 1 else f"{verdict.at_least:g} x "
    claim = (
        f"{verdict.variant} {throughput(judgement.after)} tok/s, expected at least {factor}{verdict.best} "
        f"{throughput(judgement.before / verdict.at_least)} at {place}"
    )
    of = "" if verdict.at_least == 1 else " of what is expected"
    interval = f"[{1 + judgement.lo:.3f}, {1 + judgement.hi:.3f}]"
    if verdict.word is Word.INCONCLUSIVE:
        spans = f"interval {interval} of the ratio spans the margin of {share(verdict.margin)} below 1"
        return [f"{word(verdict)}  {spans}", _line("seen", claim), *_inconclusive(verdict, judgement)]
    ratio = f"ratio {1 + judgement.change:.3f}{of}, interval {interval}, margin {share(verdict.margin)}"
    return [f"{word(verdict)}  {claim}: {ratio}"]


def _invalid_screen(reasons: tuple[Reason, ...]) -> list[str]:
    lines: list[str] = []
    for reason in reasons[:MAX_REASONS]:
        head = "INVALID  " if not lines else "         "
        lines.append(f"{head}{printable(reason.name)}: {printable(reason.seen, MAX_LINE)}")
        lines.append(_line("do", reason.advice))
    if len(reasons) > MAX_REASONS:
        lines.append(f"         and {len(reasons) - MAX_REASONS} more reasons, in the campaign file")
    return lines


def _inconclusive(verdict: Verdict, judgement: Judgement) -> list[str]:
    """Why it is not decided, and what would decide it."""
    whose = ("tonight", "in the baseline")
    if isinstance(verdict, RelationVerdict):
        whose = (f"in {verdict.variant}", f"in {verdict.best}")
    noise = [
        f"{name} by {share(round(value, 3))}"
        for name, value in zip(whose, (judgement.noise_after, judgement.noise_before), strict=True)
        if value is not None
    ]
    varies = f"launches vary {', '.join(noise)}; " if noise else ""
    lines = [_line("why", varies + (verdict.stopped or f"{_launches(judgement.launches_after)} measured"))]
    seen, margin, needed = judgement.could_see, share(verdict.margin), judgement.launches_needed
    if seen is None:
        lines.append(_line("could see", "nothing: one launch on each side says nothing of noise"))
        return [*lines, _line("do", f"allow more launches: --perf-max-launches={judgement.launches_after + 1}")]
    lines.append(_line("could see", f"a loss of {share(round(seen, 3))} or more"))
    if needed is not None:
        minutes = f" ({duration(needed * verdict.launch_s)})" if verdict.launch_s else ""
        option = f"--perf-max-launches={judgement.launches_after + needed}"
        option += " and --perf-budget-minutes" if verdict.stopped else ""
        more = "1 more launch" if needed == 1 else f"{needed} more launches"
        advice = f"{margin} needs about {more}{minutes}: {option}, or a quieter rig"
    elif isinstance(verdict, RelationVerdict):
        advice = f"quiet the rig, or launch both more often: {margin} is far below this noise; --perf-max-launches"
    else:
        advice = f"quiet the rig, or promote a baseline of more launches: no number of launches tonight shows {margin}"
    return [*lines, _line("do", advice)]


def _moved(moved: Moved) -> str:
    judgement = moved.judgement
    if moved.moved is None:
        return f"{moved.name} unclear (?)"
    if not moved.moved:
        return f"{moved.name} unchanged (~)"
    show = milliseconds if moved.unit == "ms" else throughput
    unit = f" {moved.unit}" if moved.unit else ""
    return f"{moved.name} {show(judgement.before)} -> {show(judgement.after)}{unit} ({percent(judgement.change)})"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


def _change(outcome: Word, judgement: Judgement) -> str:
    """A percentage only where it means something: `?` where the margin is spanned, `~` where no change is possible."""
    if outcome is Word.INCONCLUSIVE:
        return "?"
    if judgement.lo <= 0 <= judgement.hi:
        return "~"
    return percent(judgement.change)


def _interval(judgement: Judgement) -> str:
    return f"[{percent(judgement.lo)}, {percent(judgement.hi)}]"


def _line(label: str, text: str) -> str:
    return f"  {label:<15} {printable(text, MAX_LINE)}"
