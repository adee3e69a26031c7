"""The prompt set that comes with the suite keeps what docs/prompts.md says of it."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

ROOT = Path(__file__).parents[2]
PROMPT_FILE = ROOT / "perf" / "prompts" / "coding-agentic.jsonl"
DOCUMENT = ROOT / "docs" / "prompts.md"

SHINGLE_WORDS = 5
# Unrelated texts share next to no five-word runs; a prompt with its nouns exchanged shares far more than a fifth.
DUPLICATE_JACCARD = 0.2

HOME_PATH = re.compile(r"(?<![\w.])/(?:home|Users|root)/\w|\b[A-Za-z]:\\Users\\")
SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\b(?:sk|gh[pousr]|hf|xox[abp]|glpat)[-_][A-Za-z0-9_-]{16,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}"
    r"|://[^\s/:@]+:[^\s/@]+@"
)


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        own = () if self.prompt is None else (self.prompt,)
        return own + tuple(message.content for message in self.messages or ())

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def length(self) -> str:
        words = len(self.text.split())
        return "short" if words <= 150 else "medium" if words <= 400 else "long"

    @property
    def is_conversation(self) -> bool:
        return "assistant" in [message.role for message in self.messages or ()]

    @property
    def category(self) -> str:
        return self.id.partition("-")[0]


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    """A line with an unknown key, role or type fails here, with pydantic's account of it."""
    return tuple(Entry.model_validate_json(line) for line in PROMPT_FILE.read_text("utf-8").splitlines())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(*(words[start:] for start in range(SHINGLE_WORDS)), strict=False))


def jaccard(one: frozenset[tuple[str, ...]], other: frozenset[tuple[str, ...]]) -> float:
    return len(one & other) / len(one | other)


def test_the_set_has_at_least_three_hundred_prompts(entries: tuple[Entry, ...]) -> None:
    assert len(entries) >= 300
    assert f": {len(entries)} tasks" in DOCUMENT.read_text("utf-8")


def test_every_id_is_a_unique_slug_behind_a_category(entries: tuple[Entry, ...]) -> None:
    ids = [entry.id for entry in entries]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert [name for name in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)] == []


def test_every_entry_is_either_a_prompt_or_a_conversation(entries: tuple[Entry, ...]) -> None:
    wrong = [entry.id for entry in entries if (entry.prompt is None) == (entry.messages is None)]
    assert wrong == []


def test_every_conversation_takes_turns_and_ends_with_the_user(entries: tuple[Entry, ...]) -> None:
    for entry in entries:
        if entry.messages is not None:
            roles = " ".join(message.role for message in entry.messages)
            assert re.fullmatch(r"(system )?(user assistant )*user", roles), f"{entry.id}: {roles}"


def test_no_text_is_empty_or_framed_by_blanks(entries: tuple[Entry, ...]) -> None:
    assert [entry.id for entry in entries for text in entry.texts if not text or text != text.strip()] == []


def test_every_code_fence_is_closed(entries: tuple[Entry, ...]) -> None:
    assert [entry.id for entry in entries for text in entry.texts if text.count("```") % 2] == []


def test_a_third_of_the_prompts_are_conversations_of_every_length(entries: tuple[Entry, ...]) -> None:
    conversations = [entry for entry in entries if entry.is_conversation]
    assert len(conversations) >= len(entries) / 3
    assert min(Counter(entry.length for entry in conversations).values()) >= len(entries) / 10


def test_a_third_of_the_prompts_is_short_a_third_medium_and_a_third_long(entries: tuple[Entry, ...]) -> None:
    assert [entry.id for entry in entries if not 60 <= len(entry.text.split()) <= 900] == []
    for count in Counter(entry.length for entry in entries).values():
        # A tenth of a third may sit on the other side of a border.
        assert count == pytest.approx(len(entries) / 3, rel=0.1)


def test_no_two_prompts_are_near_duplicates(entries: tuple[Entry, ...]) -> None:
    known = [(entry.id, shingles(entry.text)) for entry in entries]
    close = [
        (name, other_name)
        for (name, one), (other_name, other) in combinations(known, 2)
        if jaccard(one, other) >= DUPLICATE_JACCARD
    ]
    assert close == []


def test_a_prompt_with_a_few_words_exchanged_would_be_seen_as_a_duplicate(entries: tuple[Entry, ...]) -> None:
    for entry in entries:
        words = entry.text.split()
        words[::20] = ["exchanged"] * len(words[::20])
        assert jaccard(shingles(entry.text), shingles(" ".join(words))) >= DUPLICATE_JACCARD, entry.id


def test_no_prompt_holds_a_secret_or_the_path_of_a_home_directory(entries: tuple[Entry, ...]) -> None:
    found = [(entry.id, match[0]) for entry in entries for match in SECRET.finditer(entry.text)]
    found += [(entry.id, match[0]) for entry in entries for match in HOME_PATH.finditer(entry.text)]
    assert found == []


# Put together here, so that a scanner for secrets does not take this file for a leak.
@pytest.mark.parametrize(
    "leak",
    [
        "-----BEGIN RSA " + "PRIVATE KEY-----",
        "AKIA" + "Q" * 16,
        "Bearer sk-" + "a1" * 12,
        "ghp_" + "a1" * 18,
        "hf_" + "a1" * 17,
        "eyJ" + "a" * 20 + "." + "b" * 20,
        "postgresql://app:" + "pass" + "word@db/orders",
    ],
)
def test_the_search_for_secrets_finds_the_usual_kinds(leak: str) -> None:
    assert SECRET.search(f"run it with {leak} please")


@pytest.mark.parametrize("path", ["/home/" + "alex/app.py", "/Users/" + "alex/x", "C:\\Users\\" + "alex"])
def test_the_search_for_home_directories_finds_the_usual_kinds(path: str) -> None:
    assert HOME_PATH.search(f'File "{path}", line 3')


def test_the_table_in_the_document_counts_what_the_file_holds(entries: tuple[Entry, ...]) -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| \S.* \|$", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)
    counted = sorted(Counter(entry.category for entry in entries).items())
    assert [(category, int(count)) for category, count in rows] == counted


def test_the_table_of_lengths_in_the_document_counts_what_the_file_holds(entries: tuple[Entry, ...]) -> None:
    rows = re.findall(
        r"^\| (\w+) \| \d+ to \d+ \| (\d+) \| (\d+) \| (\d+) \|$", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE
    )
    for length, prompts, conversations, fenced in rows:
        those = [entry for entry in entries if entry.length == length]
        assert int(prompts) == len(those)
        assert int(conversations) == sum(entry.is_conversation for entry in those)
        assert int(fenced) == sum("```" in entry.text for entry in those)
    assert [row[0] for row in rows] == ["short", "medium", "long"]
