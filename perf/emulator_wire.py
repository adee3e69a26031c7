"""What the emulator reads and writes: requests, and answers in SGLang's shapes. No sockets."""

import asyncio
import json
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from perf.emulator_engine import EngineRequest

# Context of the model the published profiles are about; longer prompts get SGLang's 400.
CONTEXT_TOKENS = 262_144
CHARACTERS_PER_TOKEN = 4
EOS_TOKEN_ID = 2
# Without ignore_eos a request ends by itself after this many tokens, and up to NATURAL_SPREAD more by its prompt.
NATURAL_TOKENS = 32
NATURAL_SPREAD = 224
# Tokens before a stream breaks: more than one chunk, also with speculation.
FEW_TOKENS = 8
WRONG_LENGTH_TOKENS = 17
CACHED_SHARE = 0.98

TEXT = (
    "the value of each step is read from a list and then we return it to the caller so that every test can "
    "check what was stored before a new run starts with another seed while the loop goes on until no item is left"
)
TOKENS = tuple(f" {word}".encode() for word in TEXT.split())

# Faults that cut a stream short, and after how many tokens.
CUTS: Mapping[str, int] = {
    "error-in-stream": FEW_TOKENS,
    "abort": FEW_TOKENS,
    "truncated": FEW_TOKENS,
    "silent-end": FEW_TOKENS,
    "stalled": FEW_TOKENS,
    "slow-drip": FEW_TOKENS,
    "die-mid-round": FEW_TOKENS,
    "cuda-traceback": FEW_TOKENS,
    "segfault": FEW_TOKENS,
    "wrong-length": WRONG_LENGTH_TOKENS,
}
# Of these, the ones whose stream has neither finish_reason nor usage.
WITHOUT_END = CUTS.keys() - {"abort", "wrong-length"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A generation request as the client sent it, checked."""

    chat: bool
    stream: bool
    model: str
    prompt_tokens: int
    prompt_hash: int
    max_tokens: int
    ignore_eos: bool
    include_usage: bool
    continuous_usage: bool


class BadRequestError(Exception):
    """A request that SGLang would answer with 400."""

    def __init__(self, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.body = error_body(message, kind, 400)


def error_body(message: str, kind: str, code: int) -> dict[str, object]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def validation_error(kind: str, location: str, message: str) -> BadRequestError:
    detail = [{"type": kind, "loc": ("body", location), "msg": message}]
    return BadRequestError(f"1 validation error:\n  {detail[0]}\n", "Bad Request")


def read_object(body: bytes) -> dict[str, object]:
    """A body that is a JSON object. Raises BadRequestError."""
    try:
        sent: object = json.loads(body)
    except ValueError as error:
        raise validation_error("json_invalid", "0", f"JSON decode error: {error}") from error
    if not isinstance(sent, dict):
        raise validation_error("model_attributes_type", "", "Input should be a valid dictionary")
    return sent


def read_ask(body: bytes, *, chat: bool, default_model: str) -> Ask:
    """What a request body asks for. Raises BadRequestError."""
    sent = read_object(body)
    prompt_characters = prompt_text(sent, chat=chat)
    prompt_tokens = max(1, -(-len(prompt_characters) // CHARACTERS_PER_TOKEN))
    if prompt_tokens >= CONTEXT_TOKENS:
        raise BadRequestError(
            f"The input ({prompt_tokens} tokens) is longer than the model's context length ({CONTEXT_TOKENS} tokens)."
        )
    limits = (sent.get("max_completion_tokens"), sent.get("max_tokens"), CONTEXT_TOKENS - prompt_tokens)
    max_tokens = next(limit for limit in limits if limit is not None)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        raise validation_error("int_parsing", "max_tokens", "Input should be a valid integer")
    if max_tokens < 0:
        raise BadRequestError(f"max_new_tokens must be at least 0, got {max_tokens}.")
    stream_options = sent.get("stream_options")
    if not isinstance(stream_options, dict):
        stream_options = {}
    return Ask(
        chat=chat,
        stream=sent.get("stream") is True,
        model=str(sent.get("model") or default_model),
        prompt_tokens=prompt_tokens,
        prompt_hash=zlib.crc32(prompt_characters.encode()),
        max_tokens=max_tokens,
        ignore_eos=sent.get("ignore_eos") is True,
        include_usage=stream_options.get("include_usage") is True,
        continuous_usage=stream_options.get("continuous_usage_stats") is True,
    )


def prompt_text(sent: Mapping[str, object], *, chat: bool) -> str:
    """The characters that count as the prompt: all message contents, or the one prompt string."""
    if not chat:
        prompt = sent.get("prompt")
        if not isinstance(prompt, str):
            raise validation_error("string_type", "prompt", "Input should be a valid string")
        return prompt
    messages = sent.get("messages")
    if not isinstance(messages, list) or not messages:
        raise validation_error("missing", "messages", "Field required")
    texts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            texts.append(text if isinstance(text, str) else "")
    return "\n".join(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one request will be answered."""

    tokens: int
    finish: str
    faults: frozenset[str]
    cached_tokens: int


def plan_reply(ask: Ask, faults: frozenset[str]) -> Plan:
    """Length and end of an answer, from what was asked and what is planted."""
    natural = NATURAL_TOKENS + ask.prompt_hash % NATURAL_SPREAD
    if "ignore-eos-ignored" in faults:
        natural = min(natural, max(1, ask.max_tokens // 2))
    if (ask.ignore_eos and "ignore-eos-ignored" not in faults) or natural >= ask.max_tokens:
        tokens, finish = ask.max_tokens, "length"
    else:
        tokens, finish = natural, "stop"
    for kind in CUTS.keys() & faults:
        tokens = min(tokens, CUTS[kind])
    if "wrong-length" in faults:
        finish = "stop"
    if "abort" in faults:
        finish = "abort"
    cached = int(ask.prompt_tokens * CACHED_SHARE) if "cache-hits" in faults else 0
    return Plan(tokens=tokens, finish=finish, faults=faults, cached_tokens=cached)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


class Reply:
    """The answer to one request, in SGLang's words. Bytes that do not depend on the step are built once."""

    def __init__(self, ask: Ask, plan: Plan, request: EngineRequest, *, cache_report: bool) -> None:
        self.ask = ask
        self.plan = plan
        self.request = request
        self.id = uuid.uuid4().hex
        self.created = int(time.time())
        self.started = asyncio.Event()
        self.done = asyncio.Event()
        self._details = {"cached_tokens": plan.cached_tokens} if cache_report else None
        self._tokens = 0
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        head = compact({"id": self.id, "object": kind, "created": self.created, "model": ask.model})[:-1]
        self._choice = b'data: %b,"choices":[{"index":0,' % head
        self._no_choice = b'data: %b,"choices":[],' % head

    def emit(self, tokens: int) -> None:
        """Send the tokens of one step, and with the last of them the end."""
        if self.ask.stream:
            self._write(self._events(tokens))
        self._tokens += tokens
        self.started.set()
        if self.request.finished and not self.plan.faults & {"stalled", "slow-drip"}:
            self.done.set()

    def attach(self, transport: asyncio.Transport) -> None:
        """From now on write to the connection itself: the head of the response has been sent."""
        self._transport = transport
        if self._pending:
            self._write(b"")

    def take_pending(self) -> bytes:
        """What was emitted before the head of the response was sent."""
        pending = bytes(self._pending)
        self._pending.clear()
        return pending

    def drip(self) -> None:
        """A byte more of a comment that never ends."""
        self._write(b":")

    def cut(self) -> None:
        """Close the connection in the middle of the body."""
        if self._transport is not None:
            self._transport.close()

    def whole(self) -> dict[str, object]:
        """The body of an answer that is not streamed."""
        text = self._text(0, self._tokens).decode()
        end: dict[str, object] = {"logprobs": None, "finish_reason": self.plan.finish, "matched_stop": self._stop()}
        message = {"role": "assistant", "content": text, "reasoning_content": None}
        body: dict[str, object] = {
            "id": self.id,
            "object": "chat.completion" if self.ask.chat else "text_completion",
            "created": self.created,
            "model": self.ask.model,
            "choices": [{"index": 0, **({"message": message} if self.ask.chat else {"text": text}), **end}],
        }
        if "no-usage" not in self.plan.faults:
            body["usage"] = self._usage(self._tokens)
        versions = [{"version": "default", "start": 0, "end": self._tokens}]
        return {**body, "metadata": {"weight_version": "default", "weight_versions": versions}}

    def _write(self, events: bytes) -> None:
        if self._transport is None:
            self._pending += events
            return
        data = self.take_pending() + events
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _events(self, tokens: int) -> bytes:
        last = self.request.finished
        ended = last and not self.plan.faults & WITHOUT_END
        total = self._tokens + tokens
        text = self._text(self._tokens, total)
        usage = b""
        if self.ask.continuous_usage and "no-usage" not in self.plan.faults:
            usage = b',"usage":%b' % compact(self._usage(total))
        parts: list[bytes] = []
        if self.ask.chat:
            if self._tokens == 0:
                parts.append(self._delta(b',"role":"assistant","content":""', b"null", b"null", b""))
            if tokens:
                parts.append(self._delta(b',"content":"%b"' % text, b"null", b"null", usage))
            if ended:
                parts.append(self._delta(b"", *self._finish(), b""))
        else:
            finish, stop = self._finish() if ended else (b"null", b"null")
            parts.append(
                b'%b"text":"%b","logprobs":null,"finish_reason":%b,"matched_stop":%b}]%b}\n\n'
                % (self._choice, text, finish, stop, usage or b',"usage":null')
            )
        if last and "error-in-stream" in self.plan.faults:
            error = error_body("KV cache pool is full", "InternalServerError", 500)
            parts.append(event(compact({"error": error})) + event(b"[DONE]"))
        elif ended:
            if self.ask.include_usage and "no-usage" not in self.plan.faults:
                parts.append(b'%b"usage":%b}\n\n' % (self._no_choice, compact(self._usage(total, final=True))))
            parts.append(event(b"[DONE]"))
        return b"".join(parts)

    def _delta(self, content: bytes, finish: bytes, stop: bytes, usage: bytes) -> bytes:
        return (
            b'%b"delta":{"reasoning_content":null%b},"logprobs":null,"finish_reason":%b,"matched_stop":%b}]%b}\n\n'
            % (self._choice, content, finish, stop, usage)
        )

    def _finish(self) -> tuple[bytes, bytes]:
        return compact(self.plan.finish), compact(self._stop())

    def _stop(self) -> int | None:
        return EOS_TOKEN_ID if self.plan.finish == "stop" else None

    def _text(self, start: int, end: int) -> bytes:
        first = self.ask.prompt_hash + start
        return b"".join(TOKENS[(first + token) % len(TOKENS)] for token in range(end - start))

    def _usage(self, tokens: int, *, final: bool = False) -> dict[str, object]:
        if "usage-off-by-one" in self.plan.faults:
            tokens -= 1
        prompt = self.ask.prompt_tokens
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
        }
        details = self._details
        # The last chunk of a streamed completion leaves out what is null.
        if final and not self.ask.chat:
            return {**usage, **({"prompt_tokens_details": details} if details else {}), "reasoning_tokens": 0}
        return {**usage, "prompt_tokens_details": details, "reasoning_tokens": 0, "completion_tokens_details": None}
