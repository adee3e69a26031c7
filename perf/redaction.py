"""Keeps secrets out of logs, screens and records: finds the values, replaces them by `[secret]`.

Found are the API key, command-line and environment values whose name says so (an option's, a variable's, a header's, a
key's in JSON), what follows `Bearer` or `Basic`, and passwords in URLs. A name is read by its words: `--admin-api-key`
and `HF_TOKEN` hold secrets; `--tokenizer-path`, `--max-total-tokens` and `--ssl-keyfile` do not. It does not guess by
the look of a value.
"""

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, unquote_to_bytes

MARK = "[secret]"
# Shorter values are left in free text: replacing every "a" or "42" would shred a log and hide nothing that
# could not be guessed. Where a command or an environment is shown, they are hidden by their place instead.
MIN_LENGTH = 4
# Values of secret-sounding names that everyone knows; SGLang's own examples use the API key "EMPTY".
NOT_SECRET = frozenset({"true", "false", "none", "null", "auto", "empty"})
# Long enough for a signed token as user name; a bound because a stream holds back this much of an open URL.
MAX_USERINFO = 1024

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TELLING = ("secret", "password", "passwd", "passphrase", "credential", "apikey", "authorization", "cookie")
_HEADER = re.compile(r"\s*([\w-]+):\s*(\S.*)", re.DOTALL)
# Behind these words stands what opens the door, unless it is a word of prose ("basic implementation").
_SCHEME = re.compile(
    r"\b(?:[Bb]earer|BEARER|[Bb]asic|BASIC)\s+(?!(?:[A-Z]?[a-z]+)(?![\w.~+/=-]))([\w.~+/=-]{4,})", re.ASCII
)
_USERINFO_BYTE = rb"""[^\s/?#"'<>\\\x00-\x20\x7f]"""
_USERINFO = rb"(?<=://)" + _USERINFO_BYTE + rb"{1,%d}(?=@)" % MAX_USERINFO
_OPEN_USERINFO = re.compile(_USERINFO_BYTE + rb"{0,%d}" % MAX_USERINFO)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Known secret values. Their text is not in `repr()`."""

    values: tuple[str, ...] = field(repr=False)

    @classmethod
    def collect(
        cls,
        command: tuple[str, ...],
        env: Mapping[str, str],
        api_key: str | None,
        urls: tuple[str, ...] = (),
    ) -> "Secrets":
        """The secrets that a server started so, or reached at these URLs, could print."""
        found = {api_key or ""}
        for hidden in _hidden_in_command(command):
            found.update(hidden)
        for name, value in env.items():
            found.update((value,) if _holds_secret(name, value, anywhere=True) else _hidden_in_value(value))
        for text in (*command, *env.values(), *urls):
            found.update(_url_passwords(text))
            found.update(_SCHEME.findall(text))
        for url in urls:  # what a server that is asked so gets to see of its user part
            for user in re.findall(_USERINFO, url.encode("utf-8", "surrogatepass")):
                found.add(base64.b64encode(unquote_to_bytes(user if b":" in user else user + b":")).decode())
        return cls(tuple(sorted(v for v in found if len(v) >= MIN_LENGTH and v.lower() not in NOT_SECRET)))

    def redact(self, text: str, *, cut: bool = False) -> str:
        """The text with every known secret, and the user part of any URL, replaced.

        Where the text was `cut`, an end that may be the beginning of a secret is left out.
        """
        stream = Redactor(self)
        raw = text.encode("utf-8", "surrogatepass")
        return (stream.feed(raw) + (b"" if cut else stream.finish())).decode("utf-8", "surrogatepass")

    def redact_argv(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command to show or store: the values of secret options are hidden by place, however short."""
        shown = []
        for argument, hidden in zip(command, _hidden_in_command(command), strict=True):
            for value in sorted(filter(None, hidden), key=len, reverse=True):
                argument = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: MARK, argument)  # noqa: PLW2901
            shown.append(self.redact(argument))
        return tuple(shown)

    def redact_env(self, env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """An environment to show or store, sorted by name: the values of secret names are hidden."""
        return tuple(
            (name, MARK if _holds_secret(name, value, anywhere=True) else self.redact(value))
            for name, value in sorted(env.items())
        )


class Redactor:
    """Replaces secrets in a stream of bytes, also where one is split over two chunks.

    Holds back only what may still become a secret: fewer bytes than the longest one, or an open URL.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._pattern, self._forms = _compiled(secrets.values)
        self._passed = b""  # the last bytes already given out: "://" may be among them
        self._pending = b""

    def feed(self, chunk: bytes) -> bytes:
        """What is certain after this chunk."""
        return self._advance(chunk, last=False)

    def finish(self) -> bytes:
        """What was held back; the stream has ended."""
        return self._advance(b"", last=True)

    def _advance(self, chunk: bytes, *, last: bool) -> bytes:
        buffer = self._passed + self._pending + chunk
        position = len(self._passed)
        certain = len(buffer) if last else self._certain(buffer, position)
        out = []
        while (match := self._pattern.search(buffer, position)) and match.start() < certain:
            out += [buffer[position : match.start()], MARK.encode()]
            position = match.end()
            if position > certain:
                certain = self._certain(buffer, position)
        out.append(buffer[position:certain])
        position = max(position, certain)
        self._passed = buffer[max(0, position - 3) : position]
        self._pending = buffer[position:]
        return b"".join(out)

    def _certain(self, buffer: bytes, position: int) -> int:
        """Up to here no later byte can change what is a secret: the first place where one may have begun."""
        certain = len(buffer)
        userinfo = buffer.rfind(b"://", max(0, position - 3)) + 3
        if userinfo >= max(3, position) and _OPEN_USERINFO.fullmatch(buffer, userinfo):
            certain = userinfo
        for form in self._forms:
            start = buffer.find(form[:1], max(position, len(buffer) - len(form) + 1))
            while 0 <= start < certain and not form.startswith(buffer[start:]):
                start = buffer.find(form[:1], start + 1)
            if start >= 0:
                certain = min(certain, start)
        return certain


@lru_cache(maxsize=64)
def _compiled(values: tuple[str, ...]) -> tuple[re.Pattern[bytes], tuple[bytes, ...]]:
    """The pattern of all written forms, longest first, and the forms."""
    written = {
        form.encode("utf-8", "surrogatepass")
        for value in values
        for form in (
            value,
            quote(value, safe="", errors="replace"),
            quote_plus(value, errors="replace"),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            repr(value)[1:-1],  # SGLang prints its arguments as a Python dict
        )
    }
    forms = tuple(sorted(written, key=lambda form: (-len(form), form)))
    return re.compile(b"|".join([_USERINFO, *map(re.escape, forms)])), forms


def _names_secret(name: str, *, anywhere: bool) -> bool:
    """Does a value of this name hold a secret? `key` and `token` count as last word, or `anywhere`.

    Plural tokens are an amount (`--max-total-tokens`); a file's name is not the secret in it.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in ("file", "path", "dir"):
        return False
    if any(part in "".join(words) for part in _TELLING) or words[-1] in ("auth", "bearer", "pass"):
        return True
    if words[-1] == "pwd":
        return len(words) > 1  # PWD itself is the working directory
    return not {"key", "keys", "token"}.isdisjoint(words if anywhere else words[-1:])


def _holds_secret(name: str, value: str, *, anywhere: bool) -> bool:
    if not value or not _names_secret(name, anywhere=anywhere):
        return False
    # `--bucket-time-to-first-token 0.125` and the like: a short number after "token" measures tokens.
    return not ("token" in name.lower() and re.fullmatch(r"[\d.]{1,7}", value))


def _hidden_in_command(command: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """For each argument, the secrets inside it (in free text as in the value of an option)."""
    hidden: list[tuple[str, ...]] = []
    option = ""  # the last option, when values may still follow: `--api-key A B` is one option for vLLM
    first = False
    for argument in command:
        name, equals, value = argument.partition("=")
        said = (*_hidden_in_value(argument), *_hidden_in_value(value))
        if option and not argument.startswith("--") and (first or not argument.startswith("-")):
            hidden.append((argument,) if _holds_secret(option, argument, anywhere=False) else said)
            first = False
            continue
        option, first = "", True
        if re.search(r"\s", name):
            hidden.append((*said, *_hidden_in_shell(argument)))
        elif equals:
            secret = _holds_secret(name, value, anywhere=not name.startswith("-"))
            hidden.append((value,) if secret else said)
        else:
            hidden.append(said)
            option = argument if argument.startswith("-") and _names_secret(argument, anywhere=False) else ""
    return tuple(hidden)


def _hidden_in_value(text: str) -> tuple[str, ...]:
    """The secrets that a value names itself: `Authorization: ...`, `{"api_key": "..."}`."""
    header = _HEADER.fullmatch(text)
    if header and _holds_secret(header[1], header[2], anywhere=False):
        return (header[2], *_SCHEME.findall(header[2]))
    if not text.lstrip().startswith(("{", "[")):
        return ()
    try:
        return tuple(_hidden_in_json(json.loads(text), ""))
    except (ValueError, RecursionError):  # not JSON, whatever it looks like
        return ()


def _hidden_in_json(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _hidden_in_json(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _hidden_in_json(each, key)
    elif isinstance(value, str) and _holds_secret(key, value, anywhere=False):
        yield value


def _hidden_in_shell(text: str) -> Iterator[str]:
    """The same for a command line inside one argument: `bash -c "serve --api-key ..."`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:  # an open quote: not a command line
        return
    for hidden in _hidden_in_command(words):
        yield from hidden


def _url_passwords(text: str) -> Iterator[str]:
    for match in re.finditer(_USERINFO, text.encode("utf-8", "surrogatepass")):
        user, colon, password = match.group().decode("utf-8", "surrogatepass").partition(":")
        secret = password if colon else user
        yield from (secret, unquote(secret))
