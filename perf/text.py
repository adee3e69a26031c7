"""Text for people: what comes from outside made harmless, numbers made readable. Pure."""

import math
import re

#: Terminal sequences: CSI, OSC, two-character escapes. Bounded, by far above any in use, and an OSC by its line too: a
#: stream holds back this much of an open one.
SEQUENCE = r"\x1b\[[0-?]{0,128}[ -/]{0,16}[@-~]|\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|\x1b[@-_]?"
#: The beginning of one, at the end of a text, that more text may make another.
OPEN_SEQUENCE = r"\x1b(?:\[[0-?]{0,128}[ -/]{0,16}|\][^\x07\x1b\n]{0,4096}\x1b?)?\Z"

_SEQUENCES = re.compile(SEQUENCE)

#: No launch is measured so well, by far; and squares of much smaller margins are no numbers any more.
MIN_MARGIN = 0.0001


def printable(text: str, limit: int = 300) -> str:
    """One harmless line of text from outside: no terminal sequences, no controls, at most `limit` characters."""
    plain = _SEQUENCES.sub("", text[: 4 * limit])
    line = "".join(c if c.isprintable() else " " for c in plain)  # controls, surrogates, bidirectional overrides
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def throughput(value: float) -> str:
    """`2,984`, `92.7`, `0.84`: at least three significant digits of a rate in tok/s."""
    if value >= 999.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(change: float, digits: int = 1) -> str:
    """A relative change with its sign: `-6.5 %`. Infinite ends of an interval are shown as such."""
    if math.isinf(change) or change > 99:
        return "+inf" if change > 0 else "-inf"
    rounded = round(100 * change, digits)
    return f"{rounded + 0.0:+.{digits}f} %"


def share(value: float) -> str:
    """A relative size without sign: `3 %`, `0.6 %`."""
    return f"{100 * value:.3g} %"


def rough(value: float) -> float:
    """A number to two digits, for where no more is known."""
    return float(f"{value:.2g}")


def parse_margin(text: str) -> float:
    """A relative loss of at least `MIN_MARGIN`. Raises ValueError."""
    value = parse_share(text)
    if value < MIN_MARGIN:
        raise ValueError(text)
    return value


def parse_share(text: str) -> float:
    """A share from `3%` or `0.03`. Raises ValueError; a bare `3` is refused, since it could mean either."""
    number = text.strip()
    value = float(number.removesuffix("%")) / 100 if number.endswith("%") else float(number)
    if not 0 < value < 1:
        raise ValueError(number)
    return value


def milliseconds(seconds: float | None) -> str:
    """`12.4`, or `-` where there is none."""
    if seconds is None:
        return "-"
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def launches(count: int) -> str:
    """`1 launch`, `12 launches`."""
    return "1 launch" if count == 1 else f"{count} launches"
