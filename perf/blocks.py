"""Generated blocks in a markdown page: where they are, and the page with new insides. Pure.

`<!-- perf: QUERY -->` opens a block and `<!-- /perf -->` closes it: both on lines of their own around a table, or both
in one line around a few words. In fenced code and in code spans they are text. What is outside of blocks stays.

Where code begins and ends depends in markdown on the lists and paragraphs around it, which are not followed here.
Instead fences and code spans are read in two ways, and a marker that is code in one and text in the other is an error.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

CLOSING = "<!-- /perf -->"

_OPEN = re.compile(r"<!--[ \t]*perf:(.*)-->")
_CLOSE = re.compile(r"<!--[ \t]*/perf[ \t]*-->")
#: Whatever was meant as a marker, so that a misspelt one is an error and not a comment.
_MEANT = re.compile(r"<!--\s*(?:/\s*)?perf\b.*?(?:-->|$)", flags=re.IGNORECASE)

#: What may stand before the content of a line in a quotation or a list.
_INDENT = re.compile(r"(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*")
_FENCE = re.compile(rf"({_INDENT.pattern})(`{{3,}}+(?!.*`)|~{{3,}})")
_FENCE_END = re.compile(r" *(`{3,}|~{3,}) *")
#: From left to right: an escaped character, a code span (it alone has the group), or backticks without a partner.
_BACKTICKS = re.compile(r"\\[\\`]|(`+)(?!`).+?(?<!`)\1(?!`)|`+", flags=re.DOTALL)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """Fenced code that is open: its line, its mark, and the quotations and the column its lines stand in."""

    line: int
    mark: str
    quotes: int
    column: int


@dataclass(slots=True)
class _Page:
    """What is known at a line."""

    entry: str = "the top of the page"
    flat: _Fence | None = None
    nested: _Fence | None = None
    hidden_line: int = 0
    opened: Block | None = None


def find(text: str) -> tuple[Block, ...]:
    """Every block of a page. Raises MarkerError."""
    blocks: list[Block] = []
    page = _Page()
    start = 0
    lines = text.split("\n")
    paragraph: list[str] = []
    paragraph_line = 1
    for number, line in enumerate(lines, start=1):
        if page.opened is not None:
            block = _closed(page.opened, line.strip(), number, start)
            if block is not None:
                blocks.append(block)
                page.opened = None
        elif not _in_fence(page, line, number):
            if heading := _ENTRY.fullmatch(line.rstrip()):
                page.entry = heading.group(1).strip()
            if number >= paragraph_line + len(paragraph):
                paragraph, paragraph_line = _paragraph(lines, number), number
            blocks += _in_line(page, line, paragraph[number - paragraph_line], number, start)
        start += len(line) + 1
    if page.opened is not None:
        raise MarkerError(page.opened.line, f"the block is never closed; write {CLOSING} on a line of its own below it")
    for fence in (page.flat, page.nested):
        if fence is not None and page.hidden_line >= fence.line:
            raise MarkerError(
                fence.line,
                f"the code that begins here never ends, and there is a marker in line {page.hidden_line} of it; "
                f"write {fence.mark} below it",
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
    if meant := _MEANT.search(_without_spans(line)):  # a command of a record may have one in code
        raise MarkerError(
            number,
            f"{meant.group()[:80]!r} does not close the block of line {opened.line}; "
            f"write {CLOSING} on a line of its own, with nothing beside it",
        )
    return None


def _in_fence(page: _Page, line: str, number: int) -> bool:
    """Whether the line is fenced code. Raises MarkerError where there is a marker in it and that is not certain."""
    shown = line.rstrip("\r").expandtabs(4)
    page.flat, flat = _fenced(page.flat, shown, number, nested=False)
    page.nested, nested = _fenced(page.nested, shown, number, nested=True)
    if (flat or nested) and _MEANT.search(line):
        began = max(fence.line for fence in (page.flat, page.nested) if fence is not None)
        if flat != nested:
            raise MarkerError(
                number,
                f"it is not certain whether this marker is in the code of line {began}; indent all lines of that code "
                "alike, by three blanks at most, or move the marker above it",
            )
        if page.hidden_line < began:
            page.hidden_line = number
    return flat or nested


def _fenced(fence: _Fence | None, line: str, number: int, *, nested: bool) -> tuple[_Fence | None, bool]:
    """The fence that is open after a line, and whether the line is code.

    Nested, an indented fence stands in a list, which a line with a smaller indent ends. Otherwise there is a list only
    where the line of the fence begins one, and four blanks make a fence text.
    """
    if fence is not None:
        quotes = re.match(rf"(?: {'*' if nested else '{0,3}'}> ?){{{fence.quotes}}}", line)
        rest = line[quotes.end() :] if quotes else ""
        indent = len(rest) - len(rest.lstrip(" "))
        if quotes and (indent >= fence.column or indent == len(rest)):
            end = _FENCE_END.fullmatch(rest)
            ends = end and end.group(1).startswith(fence.mark) and indent <= fence.column + 3
            return (None if ends else fence), True
    opening = _FENCE.match(line)
    if opening is None or (not nested and " " * 4 in opening.group(1)):
        return None, False
    place = opening.group(1).rpartition(">")
    inner = place[2].removeprefix(" ") if place[1] else place[2]
    column = len(inner) if nested or inner.strip() else 0
    return _Fence(line=number, mark=opening.group(2), quotes=opening.group(1).count(">"), column=column), True


def _paragraph(lines: list[str], number: int) -> list[str]:
    """The lines from here to the next one that is empty or a fence, without the code spans in them."""
    end = number
    while end < len(lines) and lines[end].strip() and not _FENCE.match(lines[end]):
        end += 1
    return _without_spans("\n".join(lines[number - 1 : end])).split("\n")


def _without_spans(text: str) -> str:
    return _BACKTICKS.sub(lambda found: re.sub(".", ".", found.group()) if found.group(1) else found.group(), text)


def _in_line(page: _Page, line: str, in_paragraph: str, number: int, start: int) -> Iterator[Block]:
    """The blocks of one line; one that goes on in the next lines is left in `page.opened`.

    `in_paragraph` is the line without the code spans of its paragraph, those over several lines too.
    """
    shown = _without_spans(line.rstrip("\r"))
    markers = list(_MEANT.finditer(shown))
    if [marker.group() for marker in markers] != _MEANT.findall(in_paragraph.rstrip("\r")):
        raise MarkerError(
            number,
            "it is not certain whether a marker is in code here, as a backtick in a line near it has no partner in its "
            "line; close code in the line that opens it, and write \\` for a backtick that is text",
        )
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
