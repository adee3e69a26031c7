"""Keeps secrets out of logs, screens and records: finds the values, replaces them by `[secret]`.

Found are the API key, command-line and environment values whose name says so (an option's, a variable's, a header's, a
key's in JSON, the name before a `=` inside a value), what follows `Bearer` or `Basic`, and passwords in URLs. A name is
read by its words: `--admin-api-key` and `HF_TOKEN` hold secrets; `--tokenizer-path`, `--max-total-tokens` and
`--ssl-keyfile` do not. It does not guess by the look of a value.

Terminal sequences are left out of what is redacted: whoever shows it drops them, and would join a secret's halves.
"""

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, unquote_to_bytes

from perf.text import OPEN_SEQUENCE, SEQUENCE

MARK = "[secret]"
# Shorter values are left in free text: replacing every "a" or "42" would shred a log and hide nothing that
# could not be guessed. Where a command or an environment is shown, they are hidden by their place instead.
MIN_LENGTH = 4
# Values of secret-sounding names that everyone knows; SGLang's own examples use the API key "EMPTY".
NOT_SECRET = frozenset({"true", "false", "none", "null", "auto", "empty"})
# Long enough for a signed token as user name; a bound because a stream holds back this much of an open URL.
MAX_USERINFO = 1024

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TELLING = (
    *("secret", "password", "passwd", "passphrase", "credential", "authorization", "cookie"),
    *("apikey", "apitoken", "authtoken", "accesstoken"),
)
# `SSHKEY`, `MYTOKEN`, `APITOKENS`; the plural of token alone is an amount, and these animals and games open no door
# (nor after `-D`).
_TELLING_END = re.compile(r"(?!d?(?:mon|don|tur|hoc|joc|whis)keys?$)\w*(?:keys?|token|(?<=\w)tokens)")
_AMOUNT = re.compile(r"-?\d[\d.,_ ]*[kKmM]?")
# One line, and those indented under it.
_HEADER = re.compile(r"^[ \t]*([\w-]+):[ \t]*(\S.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
# A URL's query, a connection string, `-Dname=value`. The value is matched apart: it may be a pair itself.
_PAIR_NAME = re.compile(r"([;&?]?[A-Za-z][\w.-]*)=")
_PAIR_VALUE = re.compile(r"""("[^"]+"|'[^']+'|[^\s;"']+)""")
# The white space that `shlex` knows: at any other, splitting would get no further.
_SPACE = re.compile(r"[ \t\r\n]")
# Behind these words stands what opens the door, unless it is a word of prose ("basic implementation").
_SCHEME = re.compile(
    r"\b(?:[Bb]earer|BEARER|[Bb]asic|BASIC)\s+(?!(?:[A-Z]?[a-z]+)(?![\w.~+/=-]))([\w.~+/=-]{4,})", re.ASCII
)
_USERINFO_BYTE = rb"""[^\s/?#"'<>\\\x00-\x20\x7f]"""
_USERINFO = rb"(?<=://)" + _USERINFO_BYTE + rb"{1,%d}(?=@)" % MAX_USERINFO
_OPEN_USERINFO = re.compile(_USERINFO_BYTE + rb"{0,%d}" % MAX_USERINFO)
_SEQUENCES = re.compile(SEQUENCE.encode())
_OPEN_SEQUENCE = re.compile(OPEN_SEQUENCE.encode())


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
        for url in urls:
            found.update(_hidden_in_value(url))
        for text in (*command, *env.values(), *urls):
            found.update(_url_passwords(text))
            found.update(_SCHEME.findall(text))
        for url in urls:  # what a server that is asked so gets to see of its user part
            for user in re.findall(_USERINFO, url.encode("utf-8", "surrogatepass")):
                found.add(base64.b64encode(unquote_to_bytes(user if b":" in user else user + b":")).decode())
        return cls(tuple(sorted(v for v in found if len(v) >= MIN_LENGTH and v.lower() not in NOT_SECRET)))

    def redact(self, text: str, *, cut: bool = False) -> str:
        """The text without terminal sequences, and with every known secret, and the user part of any URL, replaced.

        Where the text was `cut`, an end that may be the beginning of a secret is left out.
        """
        stream = Redactor(self)
        raw = text.encode("utf-8", "surrogatepass")
        return (stream.feed(raw) + (b"" if cut else stream.finish())).decode("utf-8", "surrogatepass")

    def redact_argv(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """A command to show or store: the values of secret options are hidden by place, however short."""
        hidden = _hidden_in_command(command)
        return tuple(self._shown(argument, inside) for argument, inside in zip(command, hidden, strict=True))

    def redact_env(self, env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """An environment to show or store, sorted by name: the values of secret names are hidden."""
        return tuple(
            (name, MARK if _holds_secret(name, value, anywhere=True) else self._shown(value, _hidden_in_value(value)))
            for name, value in sorted(env.items())
        )

    def _shown(self, text: str, hidden: tuple[str, ...]) -> str:
        for value in sorted(filter(None, hidden), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: MARK, text)
        return self.redact(text)


class Redactor:
    """Replaces secrets in a stream of bytes, also where one is split over two chunks or by terminal sequences.

    These are left out. Holds back only what may still become a secret, fewer bytes than the longest one or an open URL,
    and an open sequence.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._pattern, self._forms = _compiled(secrets.values)
        self._passed = b""  # the last bytes already given out: "://" may be among them
        self._pending = b""
        self._sequence = b""  # the beginning of one

    def feed(self, chunk: bytes) -> bytes:
        """What is certain after this chunk."""
        return self._advance(self._plain(chunk, last=False), last=False)

    def finish(self) -> bytes:
        """What was held back; the stream has ended."""
        return self._advance(self._plain(b"", last=True), last=True)

    def _plain(self, chunk: bytes, *, last: bool) -> bytes:
        text = self._sequence + chunk
        begun = None if last else _OPEN_SEQUENCE.search(text)
        end = begun.start() if begun else len(text)
        self._sequence = text[end:]
        return _SEQUENCES.sub(b"", text[:end])

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
    stripped = (re.sub(SEQUENCE, "", value) for value in values)  # as what it is looked for in
    written = {
        form.encode("utf-8", "surrogatepass")
        for value in (*values, *(plain for plain in stripped if len(plain) >= MIN_LENGTH))
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

    Plural tokens are an amount (`--max-total-tokens`), save in a variable's name, where the value decides; a file's
    name is not the secret in it.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in ("file", "path", "dir"):
        return False
    if any(part in "".join(words) for part in _TELLING) or words[-1] in ("auth", "bearer", "pass"):
        return True
    if words[-1] == "pwd":
        return len(words) > 1 or name[0] in ";&?"  # PWD itself is the working directory
    if _TELLING_END.fullmatch(words[-1]) or (anywhere and words[-1] == "tokens"):
        return True
    return anywhere and not {"key", "keys", "token"}.isdisjoint(words)


def _holds_secret(name: str, value: str, *, anywhere: bool) -> bool:
    if not value or not _names_secret(name, anywhere=anywhere):
        return False
    # `--bucket-time-to-first-token 0.125` and the like: a short number after "token" measures tokens.
    if "token" in name.lower() and re.fullmatch(r"[\d.]{1,7}", value):
        return False
    return not (name.lower().endswith("tokens") and _AMOUNT.fullmatch(value))


def _hidden_in_command(command: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """For each argument, the secrets inside it (in free text as in the value of an option)."""
    hidden: list[tuple[str, ...]] = []
    option = ""  # the last option, when values may still follow: `--api-key A B` is one option for vLLM
    first = False
    for argument in command:
        name, equals, value = argument.partition("=")
        said = (*_hidden_in_value(argument), *(_hidden_in_value(value) if equals else ()))
        if option and not argument.startswith("--") and (first or not argument.startswith("-")):
            hidden.append((argument,) if _holds_secret(option, argument, anywhere=False) else said)
            first = False
            continue
        option, first = "", True
        if equals and re.fullmatch(r"[\w.-]+", name):
            secret = _holds_secret(name, value, anywhere=not name.startswith("-"))
            hidden.append((value,) if secret else said)
        else:
            hidden.append(said)
            bare = not equals and not _SPACE.search(argument)
            option = argument if bare and argument.startswith("-") and _names_secret(argument, anywhere=False) else ""
    return tuple(hidden)


def _hidden_in_value(text: str) -> tuple[str, ...]:
    """The secrets that a value names itself: `Authorization: ...`, `{"api_key": "..."}`, `?token=...`."""
    found = [*_hidden_in_pairs(text)]
    for name, value in _HEADER.findall(text):
        if _holds_secret(name, value, anywhere=False):
            found += [value, *_SCHEME.findall(value)]
    if text.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):  # not JSON, whatever it looks like
            found += _hidden_in_json(json.loads(text), "")
    if _SPACE.search(text):
        found += _hidden_in_shell(text)
    return tuple(found)


def _hidden_in_json(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _hidden_in_json(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _hidden_in_json(each, key)
    elif isinstance(value, str):
        yield from (value,) if _holds_secret(key, value, anywhere=False) else _hidden_in_value(value)


def _hidden_in_pairs(text: str) -> Iterator[str]:
    query = text.find("?") if "?" in text else len(text)
    for match in _PAIR_NAME.finditer(text):
        if not _names_secret(match[1], anywhere=False) or not (written := _PAIR_VALUE.match(text, match.end())):
            continue
        value = written[1].strip("\"'")
        if match.start() >= query or match[1].startswith("&"):
            value = re.split("[&#]", value, maxsplit=1)[0]
        if _holds_secret(match[1], value, anywhere=False) and value.lower() not in NOT_SECRET:
            # Of a list of pairs the first alone is printed too; a password may have a comma in it.
            yield from (value, unquote(value), value.split(",")[0])


def _hidden_in_shell(text: str) -> Iterator[str]:
    """The same for a command line inside one argument: `bash -c "serve --api-key ..."`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:  # an open quote: words all the same
        words = tuple(text.split())
    for hidden in _hidden_in_command(words):
        for value in hidden:
            yield from (value, value.rstrip(";&|)"))  # `serve --api-key ...; sleep 1`


def _url_passwords(text: str) -> Iterator[str]:
    for match in re.finditer(_USERINFO, text.encode("utf-8", "surrogatepass")):
        user, colon, password = match.group().decode("utf-8", "surrogatepass").partition(":")
        secret = password if colon else user
        yield from (secret, unquote(secret))
