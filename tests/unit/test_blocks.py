"""Where a block is one and where it is text: markers in and beside code, closing markers, and pages made to be slow."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from perf.blocks import CLOSING, MarkerError, find, renewed

ROOT = Path(__file__).parents[2]
NUMBER = f"It gave <!-- perf: value -->old{CLOSING}."
TABLE = f"<!-- perf: table -->\n\nold\n\n{CLOSING}"


def renew(page: str) -> str:
    return renewed(page, find(page), lambda _: "new")


@pytest.mark.parametrize(
    "page",
    [
        f"> ```\n> code\n\n{NUMBER}\n\n```sh\nls\n```\n",
        f"> ```\n> code\n{NUMBER}\n",
        f"> > ```\n> > code\n> {NUMBER}\n",
        f"- ```\n  code\n\n{NUMBER}\n\n```sh\nls\n```\n",
        f"- ```\n  code\n  ```\n  {NUMBER}\n",
        f"- one\n  - two\n    ```sh\n    ls\n    ```\n\n{NUMBER}\n",
        f"```\n> ```\n```\n{NUMBER}\n",
        f"    ```\n{NUMBER}\n    ```\n",
        f"text\n\n\t```\n{TABLE}\n\t```\n",
        f"```\n    ```\n```\n{NUMBER}\n",
        f"\\`{NUMBER}\\`\n",
        f"\\\\`code` {NUMBER} \\`\n",
        f"a ` alone {NUMBER}\n",
        f"```\ncode\n```\n{NUMBER}\n```sh\nls\n```\n",
        f"`code\nover two lines` and\n{NUMBER}\n",
        f"> ```\n> code\n\n{TABLE}\n\n```sh\nls\n```\n",
    ],
)
def test_a_block_beside_code_is_renewed(page: str) -> None:
    assert renew(page) == page.replace("old", "new")


@pytest.mark.parametrize(
    "page",
    [
        f"```\n    ```\n{NUMBER}\n```\n",
        f"````\n```\n    ````\n{TABLE}\n````\n",
        f"```\n> ```\n{NUMBER}\n```\n",
        f"> ```\n> > ```\n> {NUMBER}\n> ```\n",
        f"- ```\n      ```\n  {NUMBER}\n  ```\n",
        f"```\n\n{NUMBER}\n~~~\n```\n",
        f"\\``{NUMBER}`\n",
        f"\\\\`{NUMBER}\\`\n",
    ],
)
def test_a_block_in_code_stays_as_it_is(page: str) -> None:
    assert renew(page) == page


@pytest.mark.parametrize(
    ("page", "line", "said"),
    [
        (f"    ```\n    {NUMBER}\n    ```\n", 2, "code of line 1"),
        (f"- one\n\n\t```\n\t{NUMBER}\n\t```\n", 4, "code of line 3"),
        (f"  ```\n  code\n{NUMBER}\n  ```\n", 3, "code of line 1"),
        (f"> ```\n    > code\n> {NUMBER}\n", 3, "code of line 1"),
        (f"a `code\nspan {NUMBER} over` lines\n", 2, "no partner"),
        (f"a `code {NUMBER}\nspan` over lines\n", 1, "no partner"),
        (f"a `code\nspan` {NUMBER} `\n", 2, "no partner"),
        (f"a `code\n{TABLE.replace(chr(10) * 2, chr(10))}\nspan`\n", 2, "no partner"),
        (f"a `code\r\nspan {NUMBER} over` lines\r\n", 2, "no partner"),
    ],
)
def test_a_marker_that_may_be_code_or_not_is_an_error_with_its_line(page: str, line: int, said: str) -> None:
    with pytest.raises(MarkerError, match=said) as error:
        find(page)
    assert error.value.line == line


@pytest.mark.parametrize("page", [f"    ```\n    ls\n    ```\n\n{NUMBER}\n", f"`code\nspan`\n\n{NUMBER}\n"])
def test_code_read_in_two_ways_is_no_error_where_both_leave_the_marker_alone(page: str) -> None:
    assert renew(page) == page.replace("old", "new")


@pytest.mark.parametrize(
    "marker",
    [
        f"{CLOSING} and text",
        f"and text {CLOSING}",
        f"| cell | {CLOSING}",
        "<!-- / perf -->.",
        "<!-- / perf -->",
        "<!-- /Perf -->",
        "<!-- perf -->",
        "<!-- /perf",
        NUMBER,
    ],
)
def test_in_a_table_every_marker_but_the_lone_closing_one_is_an_error_with_its_line(marker: str) -> None:
    with pytest.raises(MarkerError, match="does not close the block of line 1") as error:
        find(f"<!-- perf: table -->\n\nold\n\n{marker}\n\nprose\n\n{CLOSING}\n")
    assert error.value.line == 5


def test_a_marker_in_the_code_of_a_table_is_text() -> None:
    page = f"<!-- perf: table -->\n\n| `echo '{CLOSING}'` |\n\n{CLOSING}\nprose\n"
    assert renew(page) == f"<!-- perf: table -->\n\nnew\n\n{CLOSING}\nprose\n"


@pytest.mark.parametrize(
    "page",
    [
        lambda n: "<!--" + " " * n,
        lambda n: "<!--" + " " * n + "/" + " " * n,
        lambda n: "<!-- " * n,
        lambda n: "`" * n + " `",
        lambda n: " " * n + "`",
        lambda n: "`\\" * n,
        lambda n: f"{NUMBER}\n" * (n // 50),
        lambda n: f"x {NUMBER}" * (n // 50),
        lambda n: "```\n" + "    ```\n" * (n // 8),
    ],
    ids=range(9),
)
def test_a_long_hostile_page_has_blocks_or_a_sentence(page: Callable[[int], str]) -> None:
    """Patterns that go back and forth over it would take minutes."""
    with suppress(MarkerError):
        find(page(200_000))


def test_every_page_of_the_project_is_understood() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    assert sum(len(find(page.read_text(encoding="utf-8"))) for page in pages) >= 15
