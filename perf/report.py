"""From verdicts to text: the table, the screen of one verdict, a campaign in markdown. Pure; judges nothing itself."""

import html
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from perf import crossover
from perf.gate import WORST_FIRST, Word, worst
from perf.interval import Judgement
from perf.measured import build_text
from perf.moved import lines as moved_lines
from perf.record import Campaign, SuiteRecord
from perf.same_output import Agreement, SameOutputVerdict
from perf.text import duration, launches, milliseconds, percent, printable, share, throughput
from perf.validity import Reason
from perf.verdict import (
    INTERVALS,
    MAX_RELATION_LAUNCHES,
    CaseVerdict,
    CrossoverVerdict,
    RelationVerdict,
    Verdict,
    against,
    judge,
)

#: How many reasons of an INVALID case its screen shows; the campaign has them all.
MAX_REASONS = 5

#: A ratio beyond it says no more than that nothing is known.
MOST_RATIO = 100

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
    """All verdicts of one suite, one line each, in the order of the suite: a curve over levels is read so.

    Below it how an interval is read, and what each verdict was held against.
    """
    rows = [_row(verdict) for verdict in verdicts]
    if for_markdown:
        rows = [(_code(name).replace("|", r"\|"), *cells) for name, *cells in rows]
    lines = tabulate(
        rows,
        headers=_HEADERS,
        tablefmt="pipe" if for_markdown else "simple",
        disable_numparse=True,
        colalign=_ALIGN,
        headersglobalalign=None,
    )
    below = [f"- {text}" if for_markdown else text for text in _below(verdicts, for_markdown=for_markdown)]
    return "\n\n".join([lines, *(["\n".join(below)] if below else [])])


def _below(verdicts: Sequence[Verdict], *, for_markdown: bool) -> Iterable[str]:
    if any(_judgement(verdict) for verdict in verdicts):
        yield INTERVALS
    seen: dict[str, list[str]] = {}
    for verdict in verdicts:
        if text := _against(verdict):
            name = verdict.id.split("/", 1)[1]
            seen.setdefault(f"judged against {text}", []).append(_code(name) if for_markdown else name)
    for text, where in seen.items():
        yield f"{text}  ({_where(where)})"


def _against(verdict: Verdict) -> str | None:
    """What a case was held against; None where it was not, and for what is between variants."""
    if not isinstance(verdict, CaseVerdict) or verdict.route is None or verdict.stored is None:
        return None
    text = against(verdict.route, len(verdict.before), verdict.stored.nights[0])
    if verdict.proved_with:
        text += f"; with level {', '.join(map(str, verdict.proved_with))} against the reference build tonight"
    return text


def _where(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


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
        for label, text in _told_beside(verdict) if isinstance(verdict, CaseVerdict) else ():
            seen.setdefault(f"{label}: {text}", []).append(verdict.id.split("/", 1)[1])
        for note in verdict.notes if isinstance(verdict, CrossoverVerdict) and passes(verdict) else ():
            seen.setdefault(note, []).append(verdict.id.split("/", 1)[1])
    for launch in suite.launches:
        for note in launch.notes:
            seen.setdefault(printable(note), []).append(launch.name)
    if client := _client(suite):
        seen[client] = ["over all rounds"]
    return "\n".join(f"{note}  ({_where(where)})" for note, where in seen.items())


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
    if isinstance(verdict, CrossoverVerdict) and (found := verdict.crossing) is not None:
        numbers |= {"crossover": found.estimate, "crossover_lo": found.lo, "crossover_hi": found.hi}
    if isinstance(verdict, SameOutputVerdict) and (least := _least_alike(verdict)) is not None:
        numbers["same_output"] = least.alike / least.of
    if (judgement := _judgement(verdict)) is not None:
        numbers |= {"output_throughput": judgement.after, "baseline_throughput": judgement.before}
        numbers |= {"change": judgement.change, "lo": judgement.lo, "hi": judgement.hi}
    plain = ((name, f"{value:.6f}") for name, value in numbers.items() if value is not None and math.isfinite(value))
    route = (("route", verdict.route),) if isinstance(verdict, CaseVerdict) and verdict.route else ()
    return (("verdict", word(verdict)), *route, *plain)


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
        change, id = min((_loss(verdict), verdict.id) for verdict in gravest)
        says += f" Worst: {_code(id)}, {percent(change) if math.isfinite(change) else 'another output'}."
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
    """What was measured, and in which variants, by the last launches of each arm."""
    launched = {(s.name, launch.variant, launch.arm): launch for s in campaign.suites for launch in s.launches}
    variants: dict[str, list[str]] = {}
    for (suite, variant, arm), launch in launched.items():
        told = [str(launch.build)] if launch.build else []
        told += [f"server {launch.server_version}"] if launch.server_version else []
        head = "reference build" if arm == "reference" else "build"
        build = f"{head} {_code(', '.join(told) or 'unknown')}"
        variants.setdefault(build, []).append(f"{suite}/{variant}")
    return (f"{build} in {', '.join(map(_code, names))}" for build, names in variants.items())


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
    if isinstance(verdict, CaseVerdict):
        lines = _case_screen(verdict)
    elif isinstance(verdict, RelationVerdict):
        lines = _relation_screen(verdict)
    elif isinstance(verdict, SameOutputVerdict):
        lines = _output_screen(verdict)
    else:
        lines = _crossover_screen(verdict)
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
        case Word.VIOLATED if isinstance(verdict, CrossoverVerdict):
            return [f'  If this is intended: {promote} "why"']
        case Word.VIOLATED:
            return ["  If this is intended: change its [[expect]] in the suite file"]
        case Word.IMPROVED:
            return [f'  To hold it from now on: {promote} "why"']
        case Word.NO_BASELINE:
            first = isinstance(verdict, CaseVerdict | CrossoverVerdict) and verdict.stored is None
            return [f'  Record it: {promote} "{"first baseline" if first else "why"}"']
        case _:
            return []


def _row(verdict: Verdict) -> tuple[str, ...]:
    judgement = _judgement(verdict)
    name = verdict.id.split("/", 1)[1]  # the suite is said above the table
    if isinstance(verdict, CrossoverVerdict):
        where = "-" if verdict.crossing is None else crossover.short(verdict.crossing)
        return (name, "-", "-", "-", where, "-", "-", "-", "-", word(verdict))
    if isinstance(verdict, SameOutputVerdict):
        least = _least_alike(verdict)
        alike = "-" if least is None else f"{least.alike} of {least.of} alike"
        return (name, "-", "-", "-", alike, "-", "-", "-", "-", word(verdict))
    change, interval = "-", "-"
    if judgement is not None:
        change, interval = _change(verdict, judgement), _interval(judgement)
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
        numbers = "" if seen is None else f": {throughput(seen.output_throughput)} tok/s in {launches(seen.launches)}"
        lines = [f"{word(verdict)}  {verdict.id} on {verdict.rig_id}{numbers}", _line("why", verdict.why or "-")]
        if verdict.word is Word.INCONCLUSIVE and not verdict.advisory:
            lines.append(
                _line("do", "measure the baseline's build again, and let it join: python -m perf promote --add")
            )
        return lines
    other = "reference" if verdict.route == "reference" else "baseline"
    seen_now = f"output throughput {throughput(judgement.after)} tok/s, {other} {throughput(judgement.before)}"
    margin = f"margin of {share(verdict.margin)}"
    margin, interval = f"margin {share(verdict.margin)}", f"interval {_interval(judgement)}"
    held = _line("launches", f"{judgement.launches_after} of the candidate, against {_against(verdict)}")
    change = _change(verdict, judgement)
    if verdict.word is Word.INCONCLUSIVE and not verdict.advisory:
        says = f"{interval} spans the margin of {share(verdict.margin)}"
        if not judgement.lo <= -verdict.margin <= judgement.hi:
            says = f"not decided: {interval}, {margin}"
        lines = [f"{word(verdict)}  {says}", _line("seen", seen_now), held, *_open_case(verdict, judgement)]
    else:
        if change == "~":
            change = "no change seen (~)" if verdict.word is Word.PASS else "unclear by itself (~)"
        lines = [f"{word(verdict)}  {seen_now}: {change}, {interval}, {margin}", held]
        lines += _how_to_read(verdict, judgement)
    if verdict.others_noise is not None and judgement.noise_before is not None:
        here, others = (share(round(each, 3)) for each in (judgement.noise_before, verdict.others_noise))
        lines.append(_line("set aside", f"judged by itself: launches vary by {here} here, others by {others}"))
    if word(verdict) != Word.PASS and (moved := verdict.moved) is not None:
        lines += [_line(*each) for each in moved_lines(moved, on_gpus=verdict.on_gpus)]
    lines += [_line(*each) for each in (*_builds_tonight(verdict), *_reference_moved(verdict))]
    lines += [_line("different", note) for note in verdict.notes]
    if verdict.stored is not None:
        promotion = verdict.stored.promotion
        said = f'{printable(promotion.promoted_at[:10], 10)}, "{printable(promotion.reason, 120)}"'
        lines += [_line("baseline", said), *(_line(*each) for each in _drift(verdict))]
    return lines


def _how_to_read(verdict: CaseVerdict, judgement: Judgement) -> list[str]:
    """Where the interval of a level seems to say something else than its verdict does."""
    agrees = judgement.lo > -verdict.margin if verdict.word is Word.PASS else not judgement.lo <= 0 <= judgement.hi
    if agrees or verdict.word is Word.INCONCLUSIVE:
        return []
    if verdict.together > 1:
        text = f"of this level alone: the verdict takes all {verdict.together} levels together"
    else:
        text = "of a change of any size: the verdict asks for one of the margin"
    return [_line("interval", f"{text}, and counts an extreme launch less")]


def _builds_tonight(verdict: CaseVerdict) -> Iterable[tuple[str, str]]:
    """The builds of both arms, where both ran."""
    if verdict.builds is not None:
        candidate, reference = verdict.builds
        if candidate is not None and candidate == reference:
            yield "builds", f"A against A: both arms ran {build_text(candidate)}"
        else:
            yield "builds", f"tonight {build_text(candidate)}; reference {build_text(reference)}"


def _reference_moved(verdict: CaseVerdict) -> Iterable[tuple[str, str]]:
    """Tonight's reference is far from what is stored: whoever changed both builds alike learns it here alone."""
    if verdict.route == "reference" and verdict.judgement is not None and verdict.stored is not None:
        change = verdict.judgement.before / verdict.stored.promotion.throughput - 1
        if abs(change) > verdict.margin:
            why = "the rig is not as it was, or both builds changed alike"
            yield "reference", f"it runs itself about {round(100 * change):+d} % beside its stored baseline: {why}"


def _told_beside(verdict: CaseVerdict) -> Iterable[tuple[str, str]]:
    return (*_builds_tonight(verdict), *_reference_moved(verdict), *_drift(verdict))


def _drift(verdict: CaseVerdict) -> Iterable[tuple[str, str]]:
    """The loss that promotions accepted in steps, none of them beyond the margin."""
    stored = verdict.stored
    if stored is not None and stored.drift is not None and stored.has_drifted(verdict.margin):
        since = printable(stored.history[0].promoted_at[:10], 10)
        steps = f"in {len(stored.history) - 1} steps within the margin of {share(verdict.margin)}"
        yield "drift", f"the baseline itself lost {share(round(-stored.drift, 3))} since {since}, {steps}"


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
    interval = f"[{1 + judgement.lo:.3f}, {_ratio(1 + judgement.hi)}]"
    saturation = [] if verdict.saturation is None else [_line("saturation", verdict.saturation)]
    if verdict.word is Word.INCONCLUSIVE:
        spans = f"interval {interval} of the ratio spans the margin of {share(verdict.margin)} below 1"
        return [f"{word(verdict)}  {spans}", _line("seen", claim), *saturation, *_open_relation(verdict, judgement)]
    ratio = f"ratio {1 + judgement.change:.3f}{of}, interval {interval}, margin {share(verdict.margin)}"
    return [f"{word(verdict)}  {claim}: {ratio}", *saturation]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < MOST_RATIO else "inf"


def _crossover_screen(verdict: CrossoverVerdict) -> list[str]:
    if verdict.crossing is None:
        return _invalid_screen(verdict.reasons)
    told = crossover.sentence(verdict.crossing, verdict.first, verdict.second)
    lost = [str(each.level) for each in verdict.levels if each.word is Word.VIOLATED]
    if lost:
        told = f"{verdict.first} no longer pays at level {', '.join(lost)}: {told}"
    lines = [f"{word(verdict)}  {told}"]
    if verdict.stored is not None:
        was = verdict.stored
        where = f'{printable(was.promoted_at[:10], 10)}, "{printable(was.reason, 120)}"'
        lines.append(_line("stored", f"{crossover.sentence(was.crossing, was.first, was.second)} ({where})"))
    if verdict.why is not None:
        lines.append(_line("why", verdict.why))
    if word(verdict) != Word.PASS:
        for each in verdict.levels:
            lead = f"{verdict.first} {percent(each.advantage)} against {verdict.second}"
            judged = "" if each.word is None else f": {each.word}, margin {share(verdict.margin)}"
            lines.append(_line(f"level {each.level}", f"{lead} [{percent(each.lo)}, {percent(each.hi)}]{judged}"))
    lines += [_line("note", note) for note in verdict.notes]
    if verdict.word is Word.INCONCLUSIVE and not verdict.advisory:
        lines.append(_line("do", f"allow more launches: {_option(verdict, 1)}, or quiet the rig"))
    return lines


def _output_screen(verdict: SameOutputVerdict) -> list[str]:
    if not verdict.agreements:
        return _invalid_screen(verdict.reasons)
    yardstick = verdict.variants[0]
    told = ", ".join(f"{each.variant} in {each.alike} of {each.of} prompts" for each in verdict.agreements)
    wanted = "all" if verdict.at_least == 1 else f"at least {share(verdict.at_least)}"
    lines = [f"{word(verdict)}  says what {yardstick} says: {told}; expected in {wanted}"]
    lines.append(_line("asked", f"one at a time at temperature 0, {verdict.tokens} output tokens each"))
    if (left_out := verdict.asked - verdict.agreements[0].of) > 0:
        lines.append(_line("left out", f"{left_out} of {verdict.asked} prompts, to which {yardstick} says two things"))
    for each in verdict.agreements:
        if each.first is not None:
            where = f"{printable(each.first.prompt, 80)}, from character {each.first.at + 1} on"
            lines.append(_line("apart", f"{each.variant} first in prompt {where}"))
            lines += [_line(yardstick, repr(each.first.yardstick)), _line(each.variant, repr(each.first.other))]
    if verdict.reasons:
        lines += _invalid_screen(verdict.reasons)
    if word(verdict) == Word.VIOLATED:
        why = "a draft must not change what is said: look at how it is verified. Near ties may flip on a GPU"
        lines.append(_line("do", f"{why}: for these at_least allows a share"))
    return lines


def _least_alike(verdict: SameOutputVerdict) -> Agreement | None:
    return min(verdict.agreements, key=lambda each: each.alike, default=None)


def _judgement(verdict: Verdict) -> Judgement | None:
    return verdict.judgement if isinstance(verdict, CaseVerdict | RelationVerdict) else None


def _loss(verdict: Verdict) -> float:
    """The change of what is REGRESSED or VIOLATED; of a crossover, where it is worst. Another output is no change."""
    if isinstance(verdict, SameOutputVerdict):
        return -math.inf
    if isinstance(verdict, CrossoverVerdict):
        return min((each.advantage for each in verdict.levels if each.word is Word.VIOLATED), default=0.0)
    return verdict.judgement.change if verdict.judgement else 0.0


def _invalid_screen(reasons: tuple[Reason, ...]) -> list[str]:
    lines: list[str] = []
    for reason in reasons[:MAX_REASONS]:
        head = "INVALID  " if not lines else "         "
        lines.append(f"{head}{printable(reason.name)}: {printable(reason.seen, MAX_LINE)}")
        lines.append(_line("do", reason.advice))
    if len(reasons) > MAX_REASONS:
        lines.append(f"         and {len(reasons) - MAX_REASONS} more reasons, in the campaign file")
    return lines


def _open_case(verdict: CaseVerdict, judgement: Judgement) -> list[str]:
    """Why a case is not decided, and what would decide it."""
    lines = [_line("why", f"{verdict.why}; {_ended(verdict)}")]
    if judgement.could_see is not None:
        alone = " at this level alone" if verdict.together > 1 else ""
        lines.append(_line("could see", f"a loss of {share(round(judgement.could_see, 3))} or more{alone}"))
    needed = None if verdict.ended == "exhausted" else judgement.launches_needed
    if needed is not None:
        pairs = " of each arm" if verdict.route == "reference" else ""
        needs = _needs(verdict, f"{needed} more launches{pairs}", needed)
        ways = f"{_option(verdict, needed)}, or a quieter rig"
        if verdict.ended == "set aside":
            ways = "quiet the rig, or leave the level out"
        return [*lines, _line("do", f"{needs}: {ways}")]
    ways = "promote launches of more nights, or quiet the rig"
    if verdict.route == "store alone":
        return [*lines, _line("do", f"give the suite a [reference] build, {ways}")]
    return [*lines, _line("do", f"allow more launches: {_option(verdict, 1)}; {ways}")]


def _open_relation(verdict: RelationVerdict, judgement: Judgement) -> list[str]:
    """Why a relation is not decided, and what would decide it."""
    sides = ((verdict.variant, judgement.noise_after), (verdict.best, judgement.noise_before))
    noise = [f"in {name} by {share(round(value, 3))}" for name, value in sides if value is not None]
    varies = f"launches vary {', '.join(noise)}; " if noise else ""
    lines = [_line("why", varies + (verdict.stopped or f"{launches(judgement.launches_after)} measured"))]
    needed = judgement.launches_needed
    if judgement.could_see is None:
        lines.append(_line("could see", "nothing: one launch on each side says nothing of noise"))
        return [*lines, _line("do", f"allow more launches: {_option(verdict, 1)}")]
    lines.append(_line("could see", f"a loss of {share(round(judgement.could_see, 3))} or more"))
    if needed is not None and judgement.launches_after + needed <= MAX_RELATION_LAUNCHES:
        needs = _needs(verdict, f"{needed} more launches", needed)
        return [*lines, _line("do", f"{needs}: {_option(verdict, needed)}, or a quieter rig")]
    far = f"{share(verdict.margin)} is far below this noise"
    if verdict.max_launches >= MAX_RELATION_LAUNCHES and not verdict.stopped:
        most = f"a relation is looked at up to {MAX_RELATION_LAUNCHES} launches of each"
        return [*lines, _line("do", f"quiet the rig: {far}, and {most}")]
    return [*lines, _line("do", f"quiet the rig, or launch both more often: {far}; --perf-max-launches")]


def _needs(verdict: CaseVerdict | RelationVerdict, what: str, count: int) -> str:
    minutes = f" ({duration(count * verdict.launch_s)})" if verdict.launch_s else ""
    return f"{share(verdict.margin)} needs about {what if count > 1 else what.replace('launches', 'launch')}{minutes}"


def _ended(verdict: CaseVerdict) -> str:
    ran = f"{launches(verdict.launches)} measured"
    match verdict.ended:
        case "budget":
            return verdict.stopped or ran
        case "cap":
            return f"the cap of {launches(verdict.max_launches)} is reached"
        case "exhausted":
            return "more launches tonight would add next to nothing: a reference build would"
        case "set aside":
            return f"{ran}: what is set aside holds up no other level"
        case _:
            return ran


def _option(verdict: CaseVerdict | RelationVerdict | CrossoverVerdict, more: int) -> str:
    """The option that allows so many more launches."""
    return "--perf-budget-minutes" if verdict.stopped else f"--perf-max-launches={verdict.max_launches + more}"


def _change(verdict: CaseVerdict | RelationVerdict, judgement: Judgement) -> str:
    """A percentage only where it means something: `?` where it is not decided, `~` where no change is possible."""
    lo, hi = judgement.lo, judgement.hi
    if verdict.word is Word.INCONCLUSIVE and (lo <= -verdict.margin <= hi or lo <= 0 <= hi):
        return "?"
    return "~" if lo <= 0 <= hi else percent(judgement.change)


def _interval(judgement: Judgement) -> str:
    return f"[{percent(judgement.lo)}, {percent(judgement.hi)}]"


def _line(label: str, text: str) -> str:
    return f"  {label:<15} {printable(text, MAX_LINE)}"
