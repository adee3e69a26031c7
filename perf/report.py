"""From verdicts to text: the table and the screen of one verdict. Pure; computes nothing that is judged."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from perf.gate import Judgement, Word, worst
from perf.text import duration, milliseconds, percent, printable, share, throughput
from perf.validity import Reason
from perf.verdict import CaseVerdict, Moved, RelationVerdict, Verdict

#: How many reasons of an INVALID case its screen shows; the campaign has them all.
MAX_REASONS = 5

#: Characters of one line of a screen: the last words of a server that died, with their path, fit in.
MAX_LINE = 1200

_HEADERS = ("case", "tok/s", "baseline", "change", "interval", "TTFT ms", "TPOT ms", "accept", "launches", "verdict")
_ALIGN = ("left", *("right",) * 8, "left")


def word(verdict: Verdict) -> str:
    """The word an item shows: the verdict's own, but ADVISORY where it was measured and not gated."""
    return "ADVISORY" if verdict.advisory and verdict.word is not Word.INVALID else verdict.word.value


def passes(verdict: Verdict) -> bool:
    """Does the item pass?"""
    return verdict.word in (Word.PASS, Word.IMPROVED) or word(verdict) == "ADVISORY"


def table(verdicts: Sequence[Verdict], *, form: str = "simple") -> str:
    """All verdicts of one suite, one line each."""
    return tabulate(
        [_row(verdict) for verdict in verdicts],
        headers=_HEADERS,
        tablefmt=form,
        disable_numparse=True,
        colalign=_ALIGN,
        headersglobalalign=None,
    )


def tally(verdicts: Sequence[Verdict]) -> str:
    """`14 PASS, 1 REGRESSED; overall REGRESSED`."""
    words = [word(verdict) for verdict in verdicts]
    counts = ", ".join(f"{words.count(each)} {each}" for each in dict.fromkeys(sorted(words)))
    gated = [verdict.word for verdict in verdicts if word(verdict) != "ADVISORY"]
    return f"{counts}; overall {worst(gated)}" if gated else counts


def remarks(verdicts: Sequence[Verdict], launches: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """What differs from the baselines, of cases that passed too, and what launches noted; each once, with where."""
    seen: dict[str, list[str]] = {}
    for verdict in verdicts:
        for note in verdict.notes if isinstance(verdict, CaseVerdict) else ():
            seen.setdefault(f"not as in the baseline: {note}", []).append(verdict.id.split("/", 1)[1])
    for launch, notes in launches:
        for note in notes:
            seen.setdefault(printable(note), []).append(launch)
    return "\n".join(
        f"{note}  ({', '.join(where[:2])}{f' and {len(where) - 2} more' if len(where) > 2 else ''})"
        for note, where in seen.items()
    )


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
