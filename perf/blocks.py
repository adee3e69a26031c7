"""Generated blocks in a markdown page: where they are, and the page with new insides. Pure.

`<!-- perf: QUERY -->` opens a block and `<!-- /perf -->` closes it: both on lines of their own around a table, or both
in one line around a few words. In fenced code and in code spans they are text. What is outside of blocks stays.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

CLOSING = "<!-- /perf -->"

_OPEN = re.compile(r"<!--[ \t]*perf:(.*)-->")
_CLOSE = re.compile(r"<!--[ \t]*/perf[ \t]*-->")
#: Whatever was meant as a marker, so that a misspelt one is an error and not a comment.
_MEANT = re.compile(r"<!--\s*/?\s*perf\b.*?(?:-->|$)", flags=re.IGNORECASE)

#: What may stand before the content of a line in a quotation or a list.
_INDENT = re.compile(r"(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*")
_FENCE = re.compile(_INDENT.pattern + r"(`{3,}(?!.*`)|~{3,})")
_FENCE_END = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
_ENTRY = re.compile(r" {0,3}##?[ \t]+(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: its query, the line of its opening marker, the heading it stands under, and where its inside lies."""

    query: str
    line: int
    entry: str
    inline: bool
    newline: str
    start: int
    end: int

    def inside(self, answer: str) -> str:
        """What stands between the markers. Blank lines around a table, or markdown would not see one."""
        return answer if self.inline else f"\n{answer}\n\n".replace("\n", self.newline)


class MarkerError(ValueError):
    """A marker that cannot be understood; `line` is where it stands."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


@dataclass(slots=True)
class _Page:
    """What is known at a line."""

    entry: str = "the top of the page"
    fence: str = ""
    fence_line: int = 0
    hidden_line: int | None = None
    opened: Block | None = None


def find(text: str) -> tuple[Block, ...]:
    """Every block of a page. Raises MarkerError."""
    blocks: list[Block] = []
    page = _Page()
    start = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if page.opened is not None:
            block = _closed(page.opened, line.strip(), number, start)
            if block is not None:
                blocks.append(block)
                page.opened = None
        elif page.fence:
            _in_fence(page, line, number)
        elif fence := _FENCE.match(line):
            page.fence, page.fence_line, page.hidden_line = fence.group(1), number, None
        else:
            if heading := _ENTRY.fullmatch(line.rstrip()):
                page.entry = heading.group(1).strip()
            blocks += _in_line(page, line, number, start)
        start += len(line) + 1
    if page.opened is not None:
        raise MarkerError(page.opened.line, f"the block is never closed; write {CLOSING} on a line of its own below it")
    if page.fence and page.hidden_line is not None:
        raise MarkerError(
            page.fence_line,
            f"the code that begins here never ends, and there is a marker in line {page.hidden_line} of it",
        )
    return tuple(blocks)


def renewed(text: str, blocks: tuple[Block, ...], answer: Callable[[Block], str]) -> str:
    """The page with each block's inside replaced by its answer."""
    parts: list[str] = []
    done = 0
    for block in blocks:
        parts += (text[done : block.start], block.inside(answer(block)))
        done = block.end
    return "".join((*parts, text[done:]))


def _closed(opened: Block, line: str, number: int, start: int) -> Block | None:
    """The opened block with its end, where this line closes it. Inside, only a line that is a marker counts."""
    if _CLOSE.fullmatch(line):
        return replace(opened, end=start)
    if _OPEN.fullmatch(line):
        raise MarkerError(number, f"a block in the block of line {opened.line}; write {CLOSING} above it")
    return None


def _in_fence(page: _Page, line: str, number: int) -> None:
    end = _FENCE_END.fullmatch(line.rstrip("\r"))
    if end and end.group(1).startswith(page.fence):
        page.fence = ""
    elif page.hidden_line is None and _MEANT.search(line):
        page.hidden_line = number


def _in_line(page: _Page, line: str, number: int, start: int) -> Iterator[Block]:
    """The blocks of one line; one that goes on in the next lines is left in `page.opened`."""
    shown = _CODE_SPAN.sub(lambda span: "." * len(span.group()), line.rstrip("\r"))
    markers = list(_MEANT.finditer(shown))
    while markers:
        marker = markers.pop(0)
        if _CLOSE.fullmatch(marker.group()):
            raise MarkerError(number, f"{CLOSING} closes nothing; write <!-- perf: QUERY --> before it")
        opening = _OPEN.fullmatch(marker.group())
        if opening is None:
            raise MarkerError(
                number,
                f"{marker.group()[:80]!r} is no marker; allowed: <!-- perf: QUERY --> and {CLOSING}, each in one line",
            )
        block = Block(
            query=opening.group(1).strip(),
            line=number,
            entry=page.entry,
            inline=bool(markers),
            newline="\r\n" if line.endswith("\r") else "\n",
            start=start + (marker.end() if markers else len(line) + 1),
            end=start + (markers[0].start() if markers else 0),
        )
        if not markers:
            if shown.rstrip() != marker.group():
                raise MarkerError(
                    number,
                    f"the block is not closed in its line; write {CLOSING} behind it, or, for a table, each marker on "
                    "a line of its own, from its beginning",
                )
            page.opened = block
        elif not _CLOSE.fullmatch(markers[0].group()):
            raise MarkerError(number, f"a block in a block; write {CLOSING} behind the first")
        elif _INDENT.fullmatch(line[: marker.start()]):  # there, markdown ends the paragraph at a comment
            raise MarkerError(number, "a block in a sentence must not begin its line; move a word in front of it")
        else:
            markers.pop(0)
            yield block
