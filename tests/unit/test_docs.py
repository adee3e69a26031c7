"""The documents say what the product does: every option, marker, verdict and command, and screens that are real."""

import argparse
import re
from pathlib import Path

import pytest

from perf import plugin
from perf.__main__ import EXIT_BY_WORD, parser
from perf.gate import Word
from perf.trace import Failure, FailureName

ROOT = Path(__file__).parents[2]
READING = ROOT / "docs" / "reading-the-output.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
GOLDEN = Path(__file__).parent / "golden"

_SCREEN = re.compile(r"<!-- golden: (\S+) -->\n```\n(.*?)```", flags=re.DOTALL)


def test_every_option_and_ini_key_is_documented(pytestconfig: pytest.Config) -> None:
    text = READING.read_text()
    options = ["suite", *(option.name for option in plugin.OPTIONS)]
    for name in options:
        assert f"`--perf-{name}=" in text
        assert f"`perf_{name.replace('-', '_')}`" in text
        pytestconfig.getini(f"perf_{name.replace('-', '_')}")  # an ini twin exists


def test_every_marker_is_documented(pytestconfig: pytest.Config) -> None:
    text = READING.read_text()
    ours = [line.split(":")[0] for line in pytestconfig.getini("markers")]
    for name in {*plugin.MARKERS, "needs_sglang", "calibration"}:
        assert name in ours
        assert f"`{name}`" in text


def test_every_command_and_its_options_are_documented() -> None:
    text = READING.read_text()
    verbs = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    for name, verb in verbs.choices.items():
        assert re.search(rf"`python -m perf {name}[ `]", text)
        for action in verb._actions:
            assert all(f"`{option}" in text for option in action.option_strings if option not in ("-h", "--help"))


@pytest.mark.parametrize("word", list(Word))
def test_every_verdict_is_documented_with_the_exit_code_it_gives(word: Word) -> None:
    row = re.search(rf"^\| {word} \|.*\| (\d) \|$", READING.read_text(), flags=re.MULTILINE)
    assert row
    assert int(row.group(1)) == EXIT_BY_WORD[word]


@pytest.mark.parametrize("name", list(FailureName))
def test_every_failure_of_a_request_is_documented(name: FailureName) -> None:
    label = Failure(name=name, detail="", status=500).label
    assert f"`{label}`" in READING.read_text()


def test_the_screens_in_the_documents_are_the_golden_ones() -> None:
    screens = _SCREEN.findall(READING.read_text())
    assert len(screens) >= 8
    for name, shown in screens:
        assert shown == (GOLDEN / name).read_text(), f"{name}: run {Path(__file__).name} as a script to renew the page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


if __name__ == "__main__":  # renew the screens of the page from the golden files
    READING.write_text(
        _SCREEN.sub(
            lambda match: f"<!-- golden: {match[1]} -->\n```\n{(GOLDEN / match[1]).read_text()}```", READING.read_text()
        )
    )
