"""From verdicts to text: the table and the screen of one verdict. Pure; computes nothing that is judged."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from perf.gate import Judgement, Word, worst
from perf.text import duration, milliseconds, percent, printable, share, throughput
from perf.validity import Reason
from perf.verdict import CaseVerdict, Moved, RelationVerdict, Verdict

#: How many reasons of an INVALID case its screen shows; the campaign has them all.
MAX_REASONS = 5

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


def tally(verdicts: Iterable[Verdict]) -> str:
    """`14 PASS, 1 REGRESSED; overall REGRESSED`."""
    words = [word(verdict) for verdict in verdicts]
    counts = ", ".join(f"{words.count(each)} {each}" for each in dict.fromkeys(sorted(words)))
    gated = [verdict.word for verdict in verdicts if word(verdict) != "ADVISORY"]
    return f"{counts}; overall {worst(gated)}" if gated else counts


def screen(verdict: Verdict, campaign: str, folder: str) -> str:
    """Everything a reader of one verdict needs: what happened, what was seen, what to do."""
    lines = _case_screen(verdict, campaign) if isinstance(verdict, CaseVerdict) else _relation_screen(verdict)
    if verdict.advisory:
        lines.append(_line("advisory", verdict.advisory))
    if verdict.launches and verdict.word in (Word.REGRESSED, Word.VIOLATED, Word.INVALID):
        lines.append(_line("server log", f"{folder}/{verdict.launches[-1]}/server.log"))
    return "\n".join(lines)


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
        return (name, "-", before, change, interval, "-", "-", "-", str(len(verdict.launches)), word(verdict))
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


def _case_screen(verdict: CaseVerdict, campaign: str) -> list[str]:
    promote = f'python -m perf promote {campaign} --case "{verdict.id}" --reason "why"'
    if verdict.word is Word.INVALID:
        return _invalid_screen(verdict.reasons)
    if verdict.judgement is None:
        lines = [f"NO_BASELINE  {verdict.id} on {verdict.rig_id}"]
        if verdict.measured is not None:
            lines[0] += f": {throughput(verdict.measured.output_throughput)} tok/s measured"
        lines.append(_line("why", verdict.why or ""))
        return [*lines, f"  record it: {promote.replace('why', 'first baseline')}"]
    judgement = verdict.judgement
    numbers = (
        f"output throughput {throughput(judgement.after)} tok/s, baseline {throughput(judgement.before)}: "
        f"{_change(verdict.word, judgement)}, interval {_interval(judgement)}, margin {share(verdict.margin)}"
    )
    lines = [f"{verdict.word}  {numbers}"]
    if verdict.word is Word.INCONCLUSIVE:
        lines = [f"INCONCLUSIVE  interval {_interval(judgement)} spans the margin of {share(verdict.margin)}"]
        lines.append(_line("seen", numbers.rsplit(", interval", 1)[0]))
        lines += _inconclusive(verdict)
    if verdict.moved:
        lines.append(_line("moved with it", ", ".join(_moved(each) for each in verdict.moved)))
    if verdict.notes:
        lines.append(_line("different", "; ".join(verdict.notes)))
    if verdict.stored is not None:
        promotion = verdict.stored.promotion
        lines.append(
            _line(
                "baseline",
                f'{printable(promotion.promoted_at[:10], 10)}, "{printable(promotion.reason, 120)}", '
                f"{judgement.launches_before} launches; tonight {judgement.launches_after}",
            )
        )
    if verdict.word is Word.REGRESSED:
        lines.append(f"  If the loss is intended: {promote}")
    if verdict.word is Word.IMPROVED:
        lines.append(f"  To hold it from now on: {promote}")
    return lines


def _relation_screen(verdict: RelationVerdict) -> list[str]:
    if verdict.judgement is None:
        return _invalid_screen(verdict.reasons)
    judgement = verdict.judgement
    place = f"level {verdict.level}" + (" (saturation)" if verdict.saturation else "")
    factor = "" if verdict.at_least == 1 else f"{verdict.at_least:g} x "
    claim = (
        f"{verdict.variant} {throughput(judgement.after)} tok/s, expected at least {factor}{verdict.best} "
        f"{throughput(judgement.before / verdict.at_least)} at {place}"
    )
    ratio = (
        f"ratio {1 + judgement.change:.3f}, interval [{1 + judgement.lo:.3f}, {1 + judgement.hi:.3f}], "
        f"margin {share(verdict.margin)}"
    )
    if verdict.word is Word.INCONCLUSIVE:
        lines = [f"INCONCLUSIVE  {ratio.split(', ', 1)[1]}: it spans the margin", _line("seen", claim)]
        return lines + _inconclusive(verdict)
    return [f"{verdict.word}  {claim}: {ratio}"]


def _invalid_screen(reasons: tuple[Reason, ...]) -> list[str]:
    lines: list[str] = []
    for reason in reasons[:MAX_REASONS]:
        head = "INVALID  " if not lines else "         "
        lines += [f"{head}{reason.name}: {printable(reason.seen, 1200)}", _line("do", printable(reason.advice))]
    if len(reasons) > MAX_REASONS:
        lines.append(f"         and {len(reasons) - MAX_REASONS} more reasons, in the campaign file")
    return lines


def _inconclusive(verdict: Verdict) -> list[str]:
    judgement = verdict.judgement
    if judgement is None:
        return []
    noise = [
        f"{name} launches vary by {share(value)}"
        for name, value in (("tonight's", judgement.noise_after), ("the baseline's", judgement.noise_before))
        if value is not None
    ]
    stopped = verdict.stopped or f"the cap of {judgement.launches_after} launches is reached"
    lines = [_line("why", "; ".join([*noise, stopped]))]
    if judgement.could_see is None:
        lines.append(_line("could see", "nothing yet: one launch on each side says nothing about noise"))
        return lines
    if judgement.launches_needed is None:
        more = f"no number of launches tonight would show {share(verdict.margin)}: store a baseline of more launches"
    else:
        minutes = duration(judgement.launches_needed * verdict.launch_s) if verdict.launch_s else "-"
        more = f"{share(verdict.margin)} needs about {judgement.launches_needed} more launches ({minutes}): "
        more += "--perf-max-launches, --perf-budget-minutes"
    lines.append(_line("could see", f"a loss of {share(round(judgement.could_see, 4))} or more; {more}"))
    return lines


def _moved(moved: Moved) -> str:
    judgement = moved.judgement
    if judgement.lo <= 0 <= judgement.hi:
        return f"{moved.name} unchanged (~)"
    if moved.unit == "ms":
        values = f"{milliseconds(judgement.before)} -> {milliseconds(judgement.after)} ms"
    else:
        digits = 2 if judgement.before < 100 else 0
        values = f"{judgement.before:.{digits}f} -> {judgement.after:.{digits}f}"
    return f"{moved.name} {values} ({percent(judgement.change)})"


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
    return f"  {label:<15} {text}"
