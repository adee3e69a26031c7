"""Secrets are found where they hide, and replaced wherever they are printed."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.redaction import MARK, MAX_USERINFO, Redactor, Secrets
from perf.text import printable

# Options of SGLang 0.5.23 whose names look like secrets and are none.
HARMLESS = (
    *("--tokenizer-path", "/models/tokens-and-keys", "--tokenizer-mode", "auto-mode"),
    *("--tokenizer-worker-num", "1234", "--detokenizer-worker-num", "1234", "--skip-tokenizer-init"),
    *("--max-total-tokens", "32768", "--max-prefill-tokens", "16384", "--swa-full-tokens-ratio", "0.825"),
    *("--speculative-num-draft-tokens", "1616", "--speculative-token-map", "/models/token_map.pt"),
    *("--ssl-keyfile", "/etc/ssl/server.key", "--chat-template", "chatml", "--served-model-name", "keystone"),
    *("--bucket-time-to-first-token", "0.125", "0.25", "--prompt-tokens-buckets", "default"),
    *("--tokenizer-metrics-allowed-custom-labels", "tenant", "--api-key-file", "/run/key.txt"),
    "--max-total-tokens=32768",
    '--json-model-override-args={"num_tokens": "many", "key": 1}',
    *("--json-model-override-args", '{"rope_scaling": {"rope_type": "yarn"}}', "--load-format", "[not JSON"),
    *("--auth-type", "basic-or-digest", "--note", "basic implementation, bearer bonds", "--pwd", "/srv/models"),
    *("--hook", "https://host/keys/api-token?rev=main1&max_tokens=2048&tokenizer=auto-mode#top-of-page"),
    *(
        "--dsn",
        "Server=host;Database=tokens;Keyspace=mine1",
        "--opts=--tokenizer-path tiny-model --max-total-tokens 32768",
    ),
    *("--java", "-Dtokenizer=fast1 -Dmonkey=banana", "--wide", "a\u00a0word", "--headers", "Accept: json\nHost: host1"),
    *("--say", "don't --ssl-keyfile /etc/ssl/server.key", "--headers=X-Request-Id=12345"),
    *("--dist-init-addr", "host:20000", "--lora-paths", "adapter: /models/adapter", "--bypass", "cache-of-tokens"),
)


def collected(*command: str, **env: str) -> tuple[str, ...]:
    return Secrets.collect(command, env, None).values


def streamed(secrets: Secrets, chunks: list[bytes]) -> bytes:
    redactor = Redactor(secrets)
    return b"".join([*(redactor.feed(chunk) for chunk in chunks), redactor.finish()])


def test_options_that_only_sound_like_secrets_are_left_alone() -> None:
    assert collected(*HARMLESS) == ()
    assert Secrets(()).redact_argv(HARMLESS) == HARMLESS


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--api-key", "hunter22"),
        ("serve", "--api-key=hunter22"),
        ("serve", "--api_key", "hunter22"),
        ("serve", "--API-KEY", "hunter22"),
        ("serve", "-apiKey=hunter22"),
        ("serve", "--admin-api-key", "hunter22", "--port", "20000"),
        ("serve", "--ssl-keyfile-password", "hunter22"),
        ("serve", "--hf-token", "hunter22"),
        ("serve", "--client-secret-value", "hunter22"),
        ("serve", "--api-key", "-hunter22"),
        ("env", "HF_TOKEN=hunter22", "serve"),
        ("bash", "-c", "exec serve --api-key hunter22 --port 20000"),
        ("bash", "-c", "OPENAI_API_KEY='hunter22' bash -c 'serve --port 20000'"),
        ("serve", "--proxy", "http://user:hunter22@proxy:3128/"),
        ("serve", "--auth", "user:hunter22"),
        ("serve", "--bearer", "hunter22"),
        ("serve", "--db-pass=hunter22"),
        ("serve", "--header", "Authorization: Bearer hunter22"),
        ("serve", "--header=X-Api-Key: hunter22"),
        ("serve", "-H", "Cookie: session=hunter22; theme=dark"),
        ("bash", "-c", "exec serve --header 'Authorization: Basic hunter22'"),
        ("serve", "--say", "Bearer hunter22"),
        ("serve", "--config", '{"remote": [{"api_key": "hunter22", "port": 1}]}'),
        ("serve", '--config={"api_keys": ["hunter22"]}'),
        ("serve", '--config={"hook": "https://host/cb?token=hunter22"}'),
        ("serve", "--hook", "https://host/cb?token=hunter22"),
        ("serve", "--hook=https://host/cb?a=1&api_key=hunter22&b=2"),
        ("serve", "https://host/cb#access_token=hunter22"),
        ("serve", "--opts=--api-key hunter22"),
        ("serve", "--opts", "a=b --api-key hunter22 --tp 2"),
        ("serve", "--opts", "don't --api-key hunter22"),
        ("serve", "--java=-Dtoken=hunter22"),
        ("serve", "--dsn", "Server=host;Password=hunter22;Database=mine"),
        ("serve", "--dsn=Uid=me;Pwd=hunter22;"),
        ("serve", "--dsn", "Server=host;Password='hunter22 and more'"),
        ("serve", "--headers=X-Api-Key=hunter22"),
        ("serve", "--headers", "Accept: json\nX-Api-Key: hunter22\nHost: host"),
    ],
)
def test_a_secret_in_a_command_is_found_and_not_shown(command: tuple[str, ...]) -> None:
    secrets = Secrets.collect(command, {}, None)

    shown = secrets.redact_argv(command)

    assert any("hunter22" in value for value in secrets.values)
    assert "hunter22" not in " ".join(shown)
    assert MARK in " ".join(shown)
    assert len(shown) == len(command)
    assert shown[0] == command[0]


def test_several_keys_after_one_option_are_all_secret_and_the_next_option_is_not() -> None:
    command = ("serve", "--api-key", "first-key", "second-key", "--model-path", "tiny-model")

    secrets = Secrets.collect(command, {}, None)

    assert secrets.values == ("first-key", "second-key")
    assert secrets.redact_argv(command) == ("serve", "--api-key", MARK, MARK, "--model-path", "tiny-model")


def test_a_short_secret_is_hidden_in_the_command_but_does_not_shred_the_log() -> None:
    command = ("serve", "--api-key", "a", "--password=b", "--data", "abba")

    secrets = Secrets.collect(command, {}, "a")

    assert secrets.redact_argv(command) == ("serve", "--api-key", MARK, f"--password={MARK}", "--data", "abba")
    assert secrets.redact("a banana") == "a banana"


def test_environment_values_are_secret_by_the_words_of_their_name() -> None:
    env = {
        "HF_TOKEN": "value-1",
        "AWS_SECRET_ACCESS_KEY_ID": "value-2",
        "DB_PASSWORD": "value-3",
        "my_credential": "value-4",
        "TOKENIZERS_PARALLELISM": "value-5",
        "SGLANG_MAX_NEW_TOKENS_ESTIMATION": "value-6",
        "MONKEY": "value-7",
        "HF_TOKEN_PATH": "/value-8",
        "SGLANG_USE_KEY_CACHE": "true",
        "HTTP_PROXY": "http://user:value%2D9@proxy",
        "PWD": "/srv/models",
        "OLDPWD": "/srv/others",
        "SSH_AUTH_SOCK": "/run/agent.sock",
        "SSH_ASKPASS": "/usr/bin/ask",
    }

    secrets = Secrets.collect((), env, None)

    assert secrets.values == ("value%2D9", "value-1", "value-2", "value-3", "value-4", "value-9")
    shown = dict(secrets.redact_env(env))
    assert shown["HF_TOKEN"] == MARK
    assert shown["MONKEY"] == "value-7"
    assert shown["HTTP_PROXY"] == f"http://{MARK}@proxy"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AUTHORIZATION", "hunter22"),
        ("PROXY_AUTHORIZATION_HEADER", "Bearer hunter22"),
        ("SESSION_COOKIE", "hunter22"),
        ("BASIC_AUTH", "user:hunter22"),
        ("DB_PASS", "hunter22"),
        ("DB_PWD", "hunter22"),
        ("EXTRA_HEADERS", '{"Authorization": "Bearer hunter22"}'),
        ("EXTRA_HEADER", "X-Api-Key: hunter22"),
        ("GREETING", "say Basic hunter22, please"),
    ],
)
def test_an_environment_that_opens_doors_is_not_shown(name: str, value: str) -> None:
    secrets = Secrets.collect((), {name: value}, None)
    assert "hunter22" not in str(secrets.redact_env({name: value}))
    assert "hunter22" not in secrets.redact(f"got {value!r}")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HOOK", "https://host/cb?token=sk-1&rev=main", f"https://host/cb?token={MARK}&rev=main"),
        ("HOOK", "https://host/cb?a=1&api_key=x#top", f"https://host/cb?a=1&api_key={MARK}#top"),
        ("HOOK", "https://host/cb?max_tokens=2048&tokenizer=auto", None),
        ("EXTRA_ARGS", "--api-key sk-1 --tp 2", f"--api-key {MARK} --tp 2"),
        ("EXTRA_ARGS", "--tokenizer-path tiny --max-total-tokens 32768 --ssl-keyfile a.key", None),
        ("JAVA_OPTS", "-Dtoken=x -Xmx1g", f"-Dtoken={MARK} -Xmx1g"),
        ("JAVA_OPTS", "-Dtokenizer=x", None),
        ("DSN", "Server=host;Password=x;Database=mine", f"Server=host;Password={MARK};Database=mine"),
        ("DSN", "Server=host;Keyspace=mine", None),
        ("HTTP_HEADERS", "X-Api-Key=x", f"X-Api-Key={MARK}"),
        ("HTTP_HEADERS", "X-Request-Id=x", None),
        ("HTTP_HEADERS", "Accept: json\nX-Api-Key: x\nHost: host", f"Accept: json\nX-Api-Key: {MARK}\nHost: host"),
        ("HTTP_HEADERS", "Accept: json\nX-Keyboard: x", None),
        *((name, "x", MARK) for name in ("SSHKEY", "MYTOKEN", "OPENAIKEY", "SSHKEYS", "APITOKENS", "API_TOKENS")),
        *((name, "x", MARK) for name in ("MYSECRET", "DBPASSWORD", "MYTOKEN2", "sshkey", "--mytoken")),
        *((name, "x", None) for name in ("MONKEY", "TURKEYS", "KEYBOARD", "TOKENIZERS_PARALLELISM", "SSL_KEYFILE")),
        *((name, "1234567890", None) for name in ("MAX_TOKENS", "NUM_TOKENS", "SGLANG_TOTAL_TOKENS", "MAXTOKENS")),
        ("PROMPT_TOKENS", "128, 1024, 32k", None),
    ],
)
def test_inside_a_variable_only_the_secret_is_hidden_however_short(name: str, value: str, shown: str | None) -> None:
    secrets = Secrets.collect((), {name: value}, None)
    assert dict(secrets.redact_env({name: value}))[name] == (value if shown is None else shown)
    assert shown is not None or secrets.values == ()


def test_what_a_value_names_is_hidden_in_the_log_by_itself() -> None:
    command = ("bash", "-c", "serve --api-key first-key; wait", "--hook", "https://host?token=second%2Bkey&a=1")
    secrets = Secrets.collect(command, {"DSN": "Server=h;AccountKey=third==;"}, None, ("http://host/?key=fourth",))
    log = "keys first-key second%2Bkey second+key third== fourth"
    assert secrets.redact(log) == f"keys {MARK} {MARK} {MARK} {MARK} {MARK}"


def test_what_follows_the_scheme_is_a_secret_of_its_own() -> None:
    for command in (("--header", "Authorization: Bearer hunter22"), ("--auth", "Bearer hunter22")):
        assert Secrets.collect(command, {}, None).redact("key hunter22 refused") == f"key {MARK} refused"


def test_the_user_part_of_a_servers_url_is_not_shown_as_it_was_sent_either() -> None:
    secrets = Secrets.collect((), {}, None, ("http://me:open%20sesame@host:1/v1",))
    sent = base64.b64encode(b"me:open sesame").decode()
    assert secrets.redact(f"refused 'Basic {sent}' of open sesame") == f"refused 'Basic {MARK}' of {MARK}"


def test_of_a_text_that_was_cut_the_beginning_of_a_secret_is_not_shown() -> None:
    secrets = Secrets(("hunter22-and-more",))
    assert secrets.redact("refused hunter22-and-more and hunter22-an", cut=True) == f"refused {MARK} and "
    assert secrets.redact("refused nobody", cut=True) == "refused nobody"


def test_the_user_part_of_any_url_is_hidden_though_nobody_declared_it() -> None:
    text = "to https://me:p@ss@host:1/x, git+ssh://tok@host and http://127.0.0.1:30000/a@b, mail a@b"

    assert Secrets(()).redact(text) == (
        f"to https://{MARK}@host:1/x, git+ssh://{MARK}@host and http://127.0.0.1:30000/a@b, mail a@b"
    )


@pytest.mark.parametrize("written", [str, lambda v: quote(v, safe=""), json.dumps, repr, lambda v: f"x{v}y"])
def test_a_secret_is_hidden_in_every_way_of_writing_it(written: Callable[[str], str]) -> None:
    value = "pä ss/'wörd\"\\&"

    shown = Secrets((value,)).redact(f"api_key={written(value)};")

    assert MARK in shown
    assert "ss" not in shown


def test_of_overlapping_secrets_the_longest_is_replaced() -> None:
    assert Secrets(("abcd", "abcdefgh")).redact("abcdefgh abcde") == f"{MARK} {MARK}e"


def test_secrets_are_not_in_their_own_repr() -> None:
    assert "hunter22" not in repr(Secrets(("hunter22",)))


SECRETS = Secrets(("abab", "ababc", "bcab", "b://a"))
PIECES = st.lists(
    st.sampled_from(
        [b"a", b"b", b"c", b"ab", b"://", b"@", b"/", b"\n", b"\x1b", b"\x1b[", b"0m", b"\x1b]", b"\x07", b"\\"]
    ),
    max_size=40,
)


@given(PIECES, st.data())
def test_a_stream_is_redacted_as_the_whole_text_however_it_is_cut(pieces: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    out = streamed(SECRETS, chunks)

    assert out.decode() == SECRETS.redact(text.decode())
    assert not any(value.encode() in out.replace(MARK.encode(), b"|") for value in SECRETS.values)
    shown = printable(out.decode(), 1000)  # as whoever shows it does, which must not join what was apart
    assert not any(value in shown.replace(MARK, "|") for value in SECRETS.values)


@given(st.text("ab", max_size=60), st.integers(1, 7))
def test_a_stream_never_holds_back_as_much_as_a_secret(text: str, size: int) -> None:
    secrets = Secrets(("abbab", "aaaaa"))
    redactor = Redactor(secrets)
    out = ""
    for start in range(0, len(text), size):
        out += redactor.feed(text[start : start + size].encode()).decode()

        passed = len(out.replace(MARK, "....."))  # as long as what was replaced
        assert len(text[: start + size]) - passed < 5
        assert secrets.redact(text).startswith(out)


def test_a_line_passes_at_once_and_an_endless_url_is_not_kept() -> None:
    redactor = Redactor(Secrets(("hunter22",)))

    assert redactor.feed(b"Uvicorn running on http://127.0.0.1:30000\n") == (
        b"Uvicorn running on http://127.0.0.1:30000\n"
    )
    passed = b"".join(redactor.feed(b"x" * 100) for _ in range(100))
    assert len(redactor.feed(b"see http://")) + len(passed) == 10_000 + len("see http://")
    passed = b"".join(redactor.feed(b"x" * 100) for _ in range(100))
    assert len(passed) >= 10_000 - MAX_USERINFO


@pytest.mark.parametrize(
    "parted", ["\x1b[0m", "\x1b]0;x\x07", "\x1b]8;;http://x\x1b\\", "\x1b", "\x1bM", "\x1b[1m\x1b[31m"]
)
def test_a_secret_whose_halves_a_terminal_sequence_parts_is_hidden_in_text_and_in_a_stream(parted: str) -> None:
    secrets = Secrets(("tigerlion7342",))
    text = f"bad key tige{parted}rlion7342"

    assert printable(secrets.redact(text)) == f"bad key {MARK}"
    for cut in range(len(text)):
        assert streamed(secrets, [text[:cut].encode(), text[cut:].encode()]) == f"bad key {MARK}".encode()


def test_a_secret_that_has_a_terminal_sequence_in_itself_is_hidden() -> None:
    assert Secrets(("tige\x1b[0mrlion7342",)).redact("bad key tige\x1b[0mrlion7342") == f"bad key {MARK}"


def test_an_endless_terminal_sequence_is_not_kept_and_hides_no_other_line() -> None:
    redactor = Redactor(Secrets(("hunter22",)))
    passed = redactor.feed(b"\x1b]0;") + b"".join(redactor.feed(b"x" * 100) for _ in range(100))
    assert len(passed) >= 5_000
    assert streamed(Secrets(()), [b"\x1b]0;x\nTraceback\n"]) == b"\nTraceback\n"
