"""Every command in README.md and docs/ is run as it stands there, in the order of its page, in a clone of its own.

The clone has stand-ins for all suites: the same names, markers, variants and low levels, but emulated servers and
little work, so that `pytest -m gpu -k "/eagle3/c010"` runs as written where there is no GPU. A suite file that a page
tells the reader to save is saved, and gets a stand-in too unless it starts the emulator itself. The environment is the
one that runs these tests.

A comment beside a command may promise a verdict ("# ends NO_BASELINE"), which gives its exit code; see `wrong`.
"""

import argparse
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from perf import plugin, suite_file
from perf.__main__ import parser
from perf.gate import Word
from tests.emulated.documents import Clone, Command, SavedFile, mentioned, steps, unmarked, wrong
from tests.emulated.inner import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(REPOSITORY)): page.read_text() for page in PAGES}
STEPS = {page: tuple(steps(text)) for page, text in TEXTS.items()}

#: What a document may run here. Nothing that installs, reaches beyond the clone, or needs a password.
PROGRAMS = (".", "echo", "git", "ls", "pytest", "pytest-benchmark", "python -m perf", "sed", "tail")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A command that is not run here: why, and the line of a file that runs it."""

    why: str
    file: str
    line: str


MAKE_TOX = "python3 -m venv .venv && .venv/bin/pip install -q tox && "
NOT_RUN_HERE = {
    f"{MAKE_TOX}.venv/bin/tox -e rehearse": Elsewhere(
        why="installs an environment", file=".ci/run", line=f"{MAKE_TOX}.venv/bin/tox -e rehearse"
    ),
    f"{MAKE_TOX}.venv/bin/tox": Elsewhere(
        why="installs an environment", file=".ci/run", line=f"{MAKE_TOX}.venv/bin/tox"
    ),
    "tox -e sglang-cpu": Elsewhere(why="installs SGLang", file=".ci/run", line=".venv/bin/tox -e sglang-cpu"),
    "python tests/sglang_cpu/make_environment.py .perf/sglang-cpu": Elsewhere(
        why="installs SGLang",
        file="tox.ini",
        line="    python tests/sglang_cpu/make_environment.py {tox_root}/.perf/sglang-cpu",
    ),
    'python -m perf promote --reason "one night more" --reference': Elsewhere(
        why="no suite of the clone has a reference build",
        file="tests/unit/test_cli.py",
        line='    assert run("promote", "20260202-020000", "--reason", "one night more", "--reference") == 0',
    ),
}


def verbs_of(command: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The commands below a command."""
    return {
        name: verb
        for each in command._actions
        if isinstance(each, argparse._SubParsersAction)
        for name, verb in each.choices.items()
    }


VERBS = verbs_of(parser())
PERF_OPTIONS = {"--perf-suite", *(f"--perf-{option.name}" for option in plugin.OPTIONS)}

#: What is run of each page.
COMMANDS = {
    page: tuple(step for step in found if isinstance(step, Command) and step.text not in NOT_RUN_HERE)
    for page, found in STEPS.items()
}

TEACH = (
    "Where it is harmless in a scratch clone, add it to PROGRAMS; else add it to NOT_RUN_HERE, with the reason "
    "and the line of a file that runs it."
)
MEND = 'Mend the command, or write beside it what verdict it ends with, such as "# ends NO_BASELINE". Its output:'


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone whose rehearsal has stored baselines and two campaigns, as they come with the repository and by tox."""
    clone = Clone.of_the_repository(tmp_path_factory.mktemp("clone"))
    clone.run("pytest -m rehearsal")
    clone.must('python -m perf promote --reason "first baseline"')
    clone.run("pytest -m rehearsal")
    return clone


@pytest.mark.parametrize("page", [page for page, commands in COMMANDS.items() if commands])
def test_every_command_of_a_page_ends_as_the_page_says(page: str, rehearsed: Clone, tmp_path: Path) -> None:
    clone = rehearsed.copy(tmp_path / "clone")
    for step in STEPS[page]:
        if isinstance(step, SavedFile):
            clone.save(step)
        elif step in COMMANDS[page]:
            place = f"{page}:{step.line}: {step.text}"
            if unknown := set(step.programs) - set(PROGRAMS):
                pytest.fail(f"{place}\nnobody runs {', '.join(sorted(unknown))} here. {TEACH}", pytrace=False)
            ran = clone.run(step.text)
            if step.ending is Word.PASS and "overall INCONCLUSIVE" in ran.out:
                ran = clone.run(step.text)  # as a reader would whose machine was busy just then
            if problem := wrong(step, ran):
                pytest.fail(f"{place}\n{problem}. {MEND}\n{ran.screen}", pytrace=False)


def test_the_first_suite_loads_with_the_readers_own_server_in_the_place_that_it_marks() -> None:
    text = next(step.text for step in STEPS["docs/first-hour.md"] if isinstance(step, SavedFile))
    text = re.sub(r"^command = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'^# (command = |python = |\s+")', r"\1", text, flags=re.MULTILINE)
    text = re.sub(r'^rig = "emulated" .*in place of this line: +', "", text, flags=re.MULTILINE)
    chosen = suite_file.parse(text, Path("mine.toml"))
    assert (chosen.requires, chosen.emulated) == ("gpu", False)
    assert "sglang.launch_server" in chosen.variants[0].command


@pytest.mark.parametrize(("command", "elsewhere"), NOT_RUN_HERE.items(), ids=NOT_RUN_HERE)
def test_a_command_that_is_not_run_here_is_in_a_page_and_is_run_elsewhere(command: str, elsewhere: Elsewhere) -> None:
    assert any(isinstance(each, Command) and each.text == command for found in STEPS.values() for each in found)
    assert elsewhere.line in (REPOSITORY / elsewhere.file).read_text().splitlines()


@pytest.mark.parametrize("page", TEXTS)
def test_a_block_of_commands_is_marked_as_one(page: str) -> None:
    assert unmarked(TEXTS[page]) == (), "mark the block ```sh, so that it is run by these tests"


@pytest.mark.parametrize("page", TEXTS)
def test_a_command_that_a_sentence_names_exists_with_its_options_and_markers(page: str) -> None:
    for text in mentioned(TEXTS[page]):
        words = shlex.split(text)
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        if words[0] == "pytest":
            markers = {each for before, word in pairwise(words) if before == "-m" for each in re.findall(r"\w+", word)}
            assert markers <= {*plugin.MARKERS, "needs_sglang", "calibration"}, text
            assert {each for each in options if each.startswith("--perf-")} <= PERF_OPTIONS, text
        else:
            verb = VERBS.get(words[3])
            assert verb is not None, text
            known = {option for each in (verb, *verbs_of(verb).values()) for option in each._option_string_actions}
            assert options <= known, text
