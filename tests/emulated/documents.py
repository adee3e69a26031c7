"""The commands of the documents, and a clone in which they can be run as they stand."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from perf import record, suite_file
from perf.__main__ import EXIT_BY_WORD
from perf.gate import Word, worst
from perf.suite import Suite
from tests.emulated.inner import DISTURBED, EMULATOR, REPOSITORY, Run, run

_FENCE = "```"
#: A code span that has its line to itself is meant to be run; one within a sentence only names a command.
_ALONE = re.compile(r"`((?:pytest|python -m perf|tox) [^`]+)`")
_SAVED = re.compile(r"\bsave this as `([\w.-]+)`:$", flags=re.IGNORECASE)
_RUN_KEY = re.compile(r"\s*(?:- )?run: (.+)")
_COMMENT = re.compile(r"(?:^|\s+)# ")
_ENDING = re.compile(r"\bends ([A-Z_]+)")

#: What a shell takes for the beginning of another command.
_BETWEEN_COMMANDS = ("&&", "||", ";", "|", "(")

#: The suite's own tests stay behind: collecting them at every command takes longer than the measurement.
_LEFT_BEHIND = re.compile(r"tests/(?:unit|emulated|sglang_cpu)/test_\w+\.py|baselines/.*")

#: Documents name no level above this one, and each level costs its time.
_HIGHEST_LEVEL = 10

#: A name, and a text for the commits whose message the document leaves to the reader.
_GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "reader",
    "GIT_AUTHOR_EMAIL": "reader@localhost",
    "GIT_COMMITTER_NAME": "reader",
    "GIT_COMMITTER_EMAIL": "reader@localhost",
    "GIT_EDITOR": "sed -i 1s/^/message/",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A block that the reader saves under a name."""

    line: int
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and the comment beside it, which may promise a verdict: "ends REGRESSED"."""

    line: int
    text: str
    comment: str = ""

    @property
    def ending(self) -> Word | None:
        said = _ENDING.search(self.comment)
        return Word(said[1]) if said else None

    @property
    def programs(self) -> tuple[str, ...]:
        """The program of each command of the line; of `python -m NAME` all three words. Raises ValueError."""
        words = list(shlex.shlex(self.text, posix=True, punctuation_chars=True))
        begins = [0, *(place + 1 for place, word in enumerate(words) if word in _BETWEEN_COMMANDS)]
        return tuple(
            " ".join(words[place : place + 3]) if words[place : place + 2] == ["python", "-m"] else words[place]
            for place in begins
        )


def wrong(command: Command, ran: Run) -> str | None:
    """What is wrong with the end of a command, if anything.

    What judges must end as its page says. Where the page says nothing it must give verdicts that can be believed, and
    their exit code: nothing is planted, but the machine is noisy. Anything else must end well. The answers of `doctor`
    and `baselines` may be 1: they depend on the machine, and on what else is stored.
    """
    measures = "pytest" in command.programs
    answers = command.text.startswith(("python -m perf doctor", "python -m perf baselines")) and not ran.error
    expected = (0, 1) if answers else (0,)
    if measures or command.text.startswith(("python -m perf check", "python -m perf compare")):
        tallies = re.findall(r"^\d+ [A-Z_]+\b.*", ran.out, flags=re.MULTILINE)
        said = [word for tally in tallies for word in re.findall(r"\d+ ([A-Z_]+)", tally)]
        if not said:
            return "it gave no verdict"
        word = worst([Word(each) for each in said if each != "ADVISORY"] or [Word.PASS])
        if word is Word.INVALID if command.ending is None else word is not command.ending:
            return f"it ended {word}, and the page says {command.ending or 'nothing of it'}"
        expected = (min(EXIT_BY_WORD[word], 1) if measures else EXIT_BY_WORD[word],)
    if ran.code in expected:
        return None
    return f"its exit code is {ran.code}, not {' or '.join(map(str, expected))}"


def steps(page: str) -> Iterator[Command | SavedFile]:
    """What a reader of a page does, in its order."""
    prose = ""
    for number, line, language, block in _blocks(page):
        if language is None:
            prose = line or prose
            if alone := _ALONE.fullmatch(line):
                yield Command(line=number, text=alone[1])
        elif language in ("sh", "yaml"):
            yield from _commands(number, block, only_run_keys=language == "yaml")
        elif saved := _SAVED.search(prose):
            yield SavedFile(line=number, name=saved[1], text="\n".join(block) + "\n")


def _blocks(page: str) -> Iterator[tuple[int, str, str | None, tuple[str, ...]]]:
    """The lines of a page, a fenced block in one: number of its first line, the line, its language, its lines."""
    lines = iter(enumerate(page.splitlines(), start=1))
    for number, line in lines:
        if line.startswith(_FENCE):
            block = takewhile(lambda each: not each[1].startswith(_FENCE), lines)
            yield number + 1, line, line.removeprefix(_FENCE), tuple(each for _, each in block)
        else:
            yield number, line, None, ()


def _commands(number: int, block: tuple[str, ...], *, only_run_keys: bool) -> Iterator[Command]:
    for place, line in enumerate(block):
        key = _RUN_KEY.fullmatch(line)
        if only_run_keys and key is None:
            continue
        text, *comment = _COMMENT.split(key[1] if key else line, maxsplit=1)
        if text:
            yield Command(line=number + place, text=text, comment="".join(comment))


def unmarked(page: str) -> tuple[str, ...]:
    """Commands in a block that is not marked `sh`: nobody would run them."""
    looks_like_one = re.compile(r"(?:\$ )?(?:pytest|python3? -m|python3? \S+\.py|tox|pip|git) .*")
    return tuple(
        line
        for _, _, language, block in _blocks(page)
        if language not in (None, "sh", "yaml")
        for line in block
        if looks_like_one.fullmatch(line)
    )


def mentioned(page: str) -> tuple[str, ...]:
    """The commands that a page names in its sentences and tables."""
    prose = "\n".join(line for _, line, language, _ in _blocks(page) if language is None)
    return tuple(re.findall(r"`((?:pytest|python -m perf) [^`]+)`", prose))


def stand_in(chosen: Suite) -> str:
    """A suite file of the same name, marker, variants and low levels, with emulated servers and little work.

    Its margin is wide: what is tried is the command. All servers are equally fast.
    """
    levels = sorted(level for level in chosen.workload.levels if level <= _HIGHEST_LEVEL)
    head = [
        f'[suite]\nname = "{chosen.name}"\nrig = "emulated"',
        f'marker = "{chosen.marker}"' if chosen.marker else "",
        f"[workload]\nconcurrency = {[levels[0], levels[-1]]}\nmin_requests = 2\nrequests_per_stream = 1",
        f'output_tokens = 5\nwarmup_requests = 1\nlevel_reached = "{"not " if chosen.advisory else ""}required"',
        "[gate]\nmargin = 0.5\nalpha = 0.4\nmax_launches = 2",
    ]
    variants = [f"[variants.{each.name}]\ncommand = {json.dumps(EMULATOR)}" for each in chosen.variants]
    expectations = [
        f"[[expect]]\nvariant = {json.dumps(each.variant)}\nof = {json.dumps(each.of)}\nat = {json.dumps(each.at)}"
        for each in chosen.expectations
    ]
    return "\n".join([*head, *variants, *expectations, ""])


class Clone:
    """A copy of the working tree with a git repository of its own, and with stand-ins for its suites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_the_repository(cls, folder: Path) -> "Clone":
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if not _LEFT_BEHIND.fullmatch(name) and (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name)
        clone = cls(folder)
        for each in clone.suites():
            clone._emulate(each.source)
        # Commands find the environment of these tests on PATH, activated or not.
        activate = folder / ".tox" / "rehearse" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.touch()
        clone.must("git init -q && git add -A && git commit -q -m clone")
        return clone

    def copy(self, folder: Path) -> "Clone":
        shutil.copytree(self.folder, folder)
        return Clone(folder)

    def suites(self) -> tuple[Suite, ...]:
        """The shipped ones."""
        return tuple(suite_file.load(path) for path in sorted((self.folder / "perf" / "suites").glob("*.toml")))

    def save(self, file: SavedFile) -> None:
        """As a reader would; where the server is not the emulator, a stand-in for it."""
        path = self.folder / file.name
        path.write_text(file.text)
        if path.suffix == ".toml" and "perf.emulator" not in file.text:
            self._emulate(path)

    def run(self, text: str) -> Run:
        """A line of shell in the clone. The campaigns that it names are the newest ones of this clone.

        Run again, as a reader would, where the machine had no core for the client just then.
        """
        here = f"cd {shlex.quote(str(self.folder))} && {self._with_our_campaigns(text)}"
        command, env = ["sh", "-c", here], {**_GIT, "GITHUB_STEP_SUMMARY": ""}
        ran = run(command, env=env)
        return run(command, env=env) if DISTURBED.search(ran.out) else ran

    def must(self, text: str) -> None:
        ran = self.run(text)
        assert ran.code == 0, f"{text}\n{ran.screen}"

    def _emulate(self, path: Path) -> None:
        path.write_text(stand_in(suite_file.load(path)))

    def _with_our_campaigns(self, text: str) -> str:
        named = list(dict.fromkeys(re.findall(r"\b\d{8}-\d{6}\b", text)))
        ours = sorted(record.folders(self.folder / ".perf" / "campaigns"), key=record.age)[-len(named) :]
        for id, folder in zip(reversed(named), reversed(ours), strict=False):
            text = text.replace(id, folder.name)
        return text
