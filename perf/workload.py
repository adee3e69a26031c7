"""What is asked: prompts, levels, lengths, and the exact requests of every round. Pure but for reading a prompt set.

A request is a real task behind a seeded prefix of fixed length that stands before everything else the model reads
from us, so that no two requests of a launch share the beginning a prefix cache looks for. The prefix depends on seed,
phase, level, round and index alone: every launch and every variant is asked the same.
"""

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SHIPPED_SETS = Path(__file__).parent / "prompts"

#: Raised whenever the way a request is built changes: it is part of every workload digest.
REQUEST_SCHEME = 1

#: Hexadecimal digits of a prefix: 64 bits, so that two requests of a launch never meet in practice (and it is checked).
PREFIX_DIGITS = 16

#: A prompt set beyond this is a mistake (a model file, a log), not a prompt set.
MAX_SET_BYTES = 256 * 1024 * 1024

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")
Endpoint = Literal["chat", "completions"]


class WorkloadError(ValueError):
    """A prompt set or a plan that cannot be used; the text says what was seen and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task of a set: its turns, the last of them the user's."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request as it will be sent."""

    index: int
    prompt_id: str
    messages: tuple[Message, ...]

    def completion_prompt(self) -> str:
        """The turns as one text, for `/v1/completions`."""
        return "\n\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The requests of one round and of the warm-up before it."""

    level: int
    index: int
    warmup: tuple[PlannedRequest, ...]
    measured: tuple[PlannedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked at every level. Lengths in tokens; the first request of each stream is sent within
    `start_spread_s`. By how many `client_processes` it is asked is the client's matter, and not in the digest."""

    prompt_set: str
    prompts: tuple[Prompt, ...]
    levels: tuple[int, ...]
    requests_per_level: int | None
    min_requests: int
    requests_per_stream: int
    output_tokens: int
    output_tokens_by_level: tuple[tuple[int, int], ...]
    rounds: int
    warmup_requests: int
    seed: int
    endpoint: Endpoint
    temperature: float
    level_must_be_reached: bool
    start_spread_s: float
    client_processes: int

    def requests(self, level: int) -> int:
        """Requests of one round at `level`."""
        if self.requests_per_level is not None:
            return self.requests_per_level
        return max(self.min_requests, self.requests_per_stream * level)

    def tokens(self, level: int) -> int:
        """Output tokens of every request at `level`."""
        return dict(self.output_tokens_by_level).get(level, self.output_tokens)

    def digest(self, level: int) -> str:
        """Identify what a case at `level` is asked: two cases with one digest were asked the same.

        Levels other than this one do not enter, so that adding a level orphans no stored baseline.
        """
        content = {
            "scheme": REQUEST_SCHEME,
            "prompts": [[prompt.id, *([m.role, m.content] for m in prompt.messages)] for prompt in self.prompts],
            "level": level,
            "requests": self.requests(level),
            "tokens": self.tokens(level),
            "rounds": self.rounds,
            "warmup": self.warmup_requests,
            "seed": self.seed,
            "endpoint": self.endpoint,
            "temperature": self.temperature,
        }
        if self.start_spread_s:  # not in the digests that were stored before it could be said
            content["start_spread_s"] = self.start_spread_s
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def plan(self, level: int, round_index: int, *, salt: str = "", wave: int = 0) -> RoundPlan:
        """The requests of one round. `salt` sets a running server apart whose cache cannot be flushed; `wave` counts
        the warm-ups of the round, each with requests of its own.

        Raises WorkloadError where a warm-up request equals a measured one, before any load.
        """
        plan = RoundPlan(
            level=level,
            index=round_index,
            warmup=self._phase("warmup", level, round_index, self.warmup_requests, salt, wave),
            measured=self._phase("measured", level, round_index, self.requests(level), salt, 0),
        )
        refuse_leaks(plan)
        return plan

    def _phase(
        self, phase: str, level: int, round_index: int, count: int, salt: str, wave: int
    ) -> tuple[PlannedRequest, ...]:
        key = f"{self.seed}/{salt}/{phase}/{level}/{round_index}"
        order = list(self.prompts)
        random.Random(key).shuffle(order)
        return tuple(
            _behind_prefix(index, order[index % len(order)], _prefix(f"{key}/{index}"))
            for index in range(wave * count, (wave + 1) * count)
        )


def refuse_leaks(plan: RoundPlan) -> None:
    """Refuse a round in which a request stands twice, in the warm-up or among the measured."""
    seen: dict[tuple[Message, ...], str] = {}
    for phase, requests in (("the warm-up", plan.warmup), ("the measured requests", plan.measured)):
        for request in requests:
            if request.messages in seen:
                raise WorkloadError(
                    f"prompt {request.prompt_id!r} stands in {seen[request.messages]} and again in {phase} of "
                    f"level {plan.level}: its second answer would come from the prefix cache; make every request differ"
                )
            seen[request.messages] = phase


def _prefix(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:PREFIX_DIGITS]


def _behind_prefix(index: int, prompt: Prompt, prefix: str) -> PlannedRequest:
    first, *rest = prompt.messages
    marked = Message(role=first.role, content=f"{prefix}\n\n{first.content}")
    return PlannedRequest(index=index, prompt_id=prompt.id, messages=(marked, *rest))


def find_set(name: str, folder: Path) -> Path:
    """Where a prompt set lies: a file named by a path relative to `folder`, else one that is shipped."""
    beside = folder / name
    try:
        if beside.is_file():
            return beside
    except OSError as error:  # a name too long, a folder that may not be entered
        raise WorkloadError(f"prompt set {_short(name)}: {error.strerror}; give the path of a file") from error
    shipped = SHIPPED_SETS / f"{name}.jsonl"
    if "/" not in name and shipped.is_file():
        return shipped
    known = ", ".join(sorted(path.stem for path in SHIPPED_SETS.glob("*.jsonl")))
    raise WorkloadError(
        f"no prompt set {_short(name)}: neither the file {beside} nor one of the shipped sets ({known})"
    )


def read_set(path: Path) -> tuple[Prompt, ...]:
    """Read a prompt set: JSON lines of `{"id", "prompt"}` or `{"id", "messages"}`. Raises WorkloadError."""
    try:
        if path.stat().st_size > MAX_SET_BYTES:
            raise WorkloadError(f"{path}: larger than {MAX_SET_BYTES} bytes; is it a prompt set?")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read as a UTF-8 prompt set: {error}") from error
    return parse_set(text.split("\n"), str(path))


def parse_set(lines: Iterable[str], source: str) -> tuple[Prompt, ...]:
    """Parse the lines of a prompt set; `source` names it in errors."""
    prompts: list[Prompt] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        prompt = _parse_prompt(line, where)
        if prompt.id in seen:
            raise WorkloadError(f"{where}: the id {prompt.id!r} stands twice; every prompt needs its own")
        seen.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        raise WorkloadError(f"{source}: no prompts in it; a set is JSON lines of {{'id', 'prompt'}}")
    return tuple(prompts)


def _parse_prompt(line: str, where: str) -> Prompt:
    allowed = "a line is a JSON object with 'id' and either 'prompt' or 'messages'"
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{where}: not JSON ({error}); {allowed}") from error
    if not isinstance(record, dict):
        raise WorkloadError(f"{where}: seen {_short(record)}; {allowed}")
    if unknown := sorted(map(str, set(record) - {"id", "prompt", "messages"})):
        raise WorkloadError(f"{where}: unknown key {unknown[0]!r}; {allowed}")
    identity = record.get("id")
    if not isinstance(identity, str) or not identity:
        raise WorkloadError(f"{where}: 'id' is {_short(identity)}; allowed: a text that is not empty")
    if ("prompt" in record) == ("messages" in record):
        raise WorkloadError(f"{where}: {allowed}")
    if "prompt" in record:
        return Prompt(id=identity, messages=(Message(role="user", content=_text(record["prompt"], where, "prompt")),))
    turns = record["messages"]
    if not isinstance(turns, list) or not turns:
        raise WorkloadError(f"{where}: 'messages' is {_short(turns)}; allowed: a list of turns that is not empty")
    messages = tuple(_parse_message(turn, f"{where}, message {place}") for place, turn in enumerate(turns, start=1))
    if messages[-1].role != "user":
        raise WorkloadError(f"{where}: the last message is the {messages[-1].role}'s; allowed: the user's")
    return Prompt(id=identity, messages=messages)


def _parse_message(turn: object, where: str) -> Message:
    if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
        raise WorkloadError(f"{where}: seen {_short(turn)}; allowed: an object with 'role' and 'content'")
    for role in ROLES:
        if turn["role"] == role:
            return Message(role=role, content=_text(turn["content"], where, "content"))
    raise WorkloadError(f"{where}: 'role' is {_short(turn['role'])}; allowed: {', '.join(ROLES)}")


def _text(value: object, where: str, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WorkloadError(f"{where}: {key!r} is {_short(value)}; allowed: a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a lone surrogate cannot be sent
        raise WorkloadError(f"{where}: {key!r} holds a character that cannot be sent ({error.reason})") from error
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
