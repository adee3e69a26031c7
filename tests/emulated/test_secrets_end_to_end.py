"""No secret reaches a file or a screen, and text from outside can neither break a report nor steer a terminal."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from junitparser import JUnitXml

from tests.emulated.inner import PACED, Desk, Run, running

SHORT = "output_tokens = 8\nmin_requests = 2\nrequests_per_stream = 1\nwarmup_requests = 0"

#: A stranger that tells everything it knows: in its log, and in the errors it answers with.
TELLTALE = """
print(sys.argv, dict(os.environ), flush=True)
class Handler(Handler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print(self.headers, flush=True)
        told = f"refused {self.headers['Authorization']} with {sys.argv} and {dict(os.environ)}"
        self.answer(401, {"error": {"message": told}})
"""
#: An error so long that it is cut, and the cut goes through the key.
CUT = """
class Handler(Handler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Authorization"].removeprefix("Bearer ")
        self.answer(401, {"error": {"message": "x" * 280 + key * 20}})
"""
#: The key stands in what the server says of itself, in the head of its answers and in how they end.
SAID = """
import threading
KEY = os.environ["SUITE_KEY_TOO"]
PARTED = KEY[:9] + "\\x1b[0m" + KEY[9:]  # which whoever shows it joins
MODEL = f"model-of-{KEY}"
class Handler(Handler):
    def do_GET(self):
        if self.path == "/server_info":
            said = {"speculative_algorithm": None, f"{KEY}_backend": "x", "attention_backend": PARTED}
            self.answer(200, {"version": f"1.0 {PARTED} {KEY} " + "v" * 1000, **said})
        else:
            super().do_GET()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        FINISH
        self.wfile.write(b"0\\r\\n\\r\\n")
    def head(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
"""
KINDS = SAID.replace("FINISH", """self.head("text/" + "x" * 70 + KEY)""")
FINISHES = SAID.replace(
    "FINISH",
    """self.head("text/event-stream")
        self.event([{"index": 0, "delta": {"content": "x"}, "finish_reason": "x" * 30 + KEY}])
        self.event([], usage={"prompt_tokens": 9, "completion_tokens": 8})""",
)
#: The same, at its start, with which it ends.
DYING = """
print(sys.argv, dict(os.environ), flush=True)
key = os.environ["SUITE_KEY_TOO"]
raise SystemExit(f"cannot start with {sys.argv} {dict(os.environ)} {key[:9]}\\x1b[0m{key[9:]}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """The values that nobody may read afterwards, by where they come from."""

    key: str
    argument: str
    password: str
    token: str
    own: str

    def values(self) -> tuple[str, ...]:
        return (self.key, self.argument, self.password, self.token, self.own)


@pytest.fixture(scope="module")
def secret() -> Secret:
    return Secret(**{name: f"{name}_{uuid.uuid4().hex}" for name in ("key", "argument", "password", "token", "own")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    desk: Desk
    shown: tuple[Run, ...]

    def places(self) -> Iterator[tuple[str, str]]:
        """Everything that was written or shown; the suite file is the user's own."""
        for number, run in enumerate(self.shown):
            yield f"screen {number}", run.screen
            if run.junit is not None and run.junit.exists():
                yield str(run.junit), run.junit.read_text()
        for folder in (self.desk.campaigns, self.desk.baselines):
            for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                yield str(path), path.read_bytes().decode(errors="replace")
            for path in sorted(folder.rglob("*.npz")):
                with np.load(path) as trace:
                    yield f"{path}, unpacked", trace["round"].tobytes().decode()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, secret: Secret) -> Told:
    """Servers that print what they were given; the run is promoted and checked."""
    desk = Desk(tmp_path_factory.mktemp("told"))
    suite = desk.suite(
        {
            "keyed": (*PACED, "--api-key", secret.key),
            "telltale": (*desk.stranger(TELLTALE, "telltale.py"), "--auth-token", secret.argument),
            "cut": desk.stranger(CUT, "cut.py"),
            "kinds": desk.stranger(KINDS, "kinds.py"),
            "finishes": desk.stranger(FINISHES, "finishes.py"),
            "dying": (*desk.stranger(DYING, "dying.py"), f"--password={secret.argument}"),
        },
        workload=SHORT,
        variant=f'api_key_env = "SUITE_KEY"\n'
        f'env = {{ DB_PASSWORD = "{secret.password}", SUITE_KEY_TOO = "{secret.key}" }}',
    )
    env = {"SUITE_KEY": secret.key, "HF_TOKEN": secret.token, "OPENAI_API_KEY": secret.own}
    measured = desk.measure(suite, "--perf-max-launches=1", f"--benchmark-json={desk.campaigns}/numbers.json", env=env)
    return Told(desk=desk, shown=(measured, desk.perf("promote", "--reason", "x"), desk.perf("check", store=False)))


def test_the_servers_were_started_with_the_secrets_and_told_of_them(told: Told) -> None:
    assert told.shown[0].words() == {
        "small/keyed/c002": "NO_BASELINE",  # the emulator answers only to its key
        "small/telltale/c002": "INVALID",
        "small/cut/c002": "INVALID",
        "small/kinds/c002": "INVALID",
        "small/finishes/c002": "INVALID",
        "small/dying/c002": "INVALID",
    }, told.shown[0].screen
    logs = {path.parent.name: path.read_text() for path in told.desk.campaigns.rglob("server.log")}
    assert "'api_key': '[secret]'" in logs["keyed-1"]
    for name in ("telltale-1", "dying-1"):
        assert "'HF_TOKEN': '[secret]'" in logs[name]
        assert "'DB_PASSWORD': '[secret]'" in logs[name]
    assert "Bearer [secret]" in logs["telltale-1"]
    assert "refused Bearer [secret] with" in told.shown[0].item("small/telltale/c002").message
    kinds, finishes = (told.shown[0].item(f"small/{name}/c002").message for name in ("kinds", "finishes"))
    assert "x[secret]" in kinds
    assert 'finish_reason "xxx' in finishes
    assert "x[secret]" in finishes
    models = {
        launch.variant: (launch.model, launch.server_version) for launch in told.desk.campaign().suites[0].launches
    }
    model, version = models["kinds"]
    assert model == "model-of-[secret]"
    assert version is not None
    assert version.startswith("1.0 [secret] [secret] vvv")
    (said,) = (each.server_arguments for each in told.desk.campaign().suites[0].launches if each.variant == "kinds")
    assert {("attention_backend", "[secret]"), ("[secret]_backend", "[secret]")} <= {*said}
    assert len(version) <= 200
    assert "cannot start with" in told.shown[0].item("small/dying/c002").message
    assert [path.name for path in told.desk.baselines.rglob("*.json")] == ["keyed.json"]


def test_no_secret_is_in_any_file_or_on_any_screen(told: Told, secret: Secret) -> None:
    begun = [value[:16] for value in secret.values()]  # nor a part of one, where a text was cut
    leaks = [(where, value) for where, text in told.places() for value in begun if value in text]
    assert leaks == []
    assert any(where.endswith(", unpacked") and "[secret]" in text for where, text in told.places())


def test_a_developers_own_key_is_not_sent_to_a_server(told: Told) -> None:
    log = next(told.desk.campaigns.glob("*/telltale-1/server.log")).read_text()
    assert "OPENAI_API_KEY" not in log


def test_a_password_in_a_url_is_used_and_not_shown(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"plain": PACED}, workload=SHORT)
    with running() as url:
        run = desk.measure(suite, f"--perf-base-url={url.replace('://', '://somebody:open-sesame@')}")
    assert run.code == 0, run.screen
    wrong = desk.measure(suite, "--perf-base-url=ftp://somebody:open-sesame@127.0.0.1/v1/more")
    assert wrong.code == pytest.ExitCode.USAGE_ERROR
    assert "--perf-base-url: seen " in wrong.error
    told = Told(desk=desk, shown=(run, wrong, desk.perf("promote", "--reason", "x"), desk.perf("check", store=False)))
    assert [where for where, text in told.places() if "sesame" in text or "somebody" in text] == []


def test_a_missing_key_is_said_before_anything_is_started(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    run = desk.measure(desk.suite({"plain": PACED}, variant='api_key_env = "NO_SUCH_KEY"'))
    assert run.code == 1
    assert "NO_SUCH_KEY is not set" in run.items()[0].message
    assert not desk.campaigns.exists()


# Text from outside

#: Colours, a title, a cleared screen, line breaks of three kinds, markup, an end of CDATA, text that runs backwards.
HOSTILE = (
    "\x1b[31mred\x1b[2J\x1b]0;title\x07 a\r\nb\u2028c\x85d\x9b1m <i>&amp;</i> ]]> \u202ebackwards\u2066 \x00\x08\ufffe"
)
MARKUP = "<b>&amp;]]>\"'%s{0}"
LONG = 100_000
ALLOWED = {"\n"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Run]:
    desk = Desk(tmp_path_factory.mktemp("hostile"))
    prompts = [{"id": f"{HOSTILE}-{number}", "prompt": f"{HOSTILE} {'x' * LONG} {number}"} for number in range(3)]
    (desk.folder / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
    text = repr(HOSTILE)
    suite = desk.suite(
        {
            "errors": desk.stranger(f"ERROR = {text} + 'y' * {LONG}", "errors.py"),
            "markup": desk.stranger(f"MODEL = {MARKUP!r}", "markup.py"),
            "control": desk.stranger(f"MODEL = {text}", "control.py"),
            "lengthy": desk.stranger(f"MODEL = 'm' * {LONG}", "lengthy.py"),
            "dies": desk.stranger(f"print({text} + 'z' * {LONG}, {text}); raise SystemExit({text})", "dies.py"),
        },
        workload=f'{SHORT}\nprompts = "prompts.jsonl"',
    )
    return desk, desk.measure(suite, "--perf-max-launches=1", "-rA")


def test_hostile_servers_get_the_verdict_they_deserve(hostile: tuple[Desk, Run]) -> None:
    desk, run = hostile
    assert run.words() == {
        "small/errors/c002": "INVALID",
        "small/markup/c002": "NO_BASELINE",
        "small/control/c002": "INVALID",
        "small/lengthy/c002": "INVALID",
        "small/dies/c002": "INVALID",
    }, run.screen
    assert desk.campaign().suites[0].launches[1].model == MARKUP  # stored as it is
    assert "http_500" in run.item("small/errors/c002").message


def test_no_text_from_outside_reaches_the_terminal_raw(hostile: tuple[Desk, Run]) -> None:
    desk, run = hostile
    for shown in (run, desk.perf("promote", "--reason", "x"), desk.perf("check", store=False)):
        raw = {char for char in shown.screen if not char.isprintable()} - ALLOWED
        assert raw == set()
        assert max(map(len, shown.screen.splitlines())) < 2000


def test_the_table_stays_one_line_a_case(hostile: tuple[Desk, Run]) -> None:
    _, run = hostile
    table = run.out.split("case  ")[-1].split("overall")[0]
    rows = [line for line in table.splitlines()[2:] if line.strip()]
    assert [row.split("/")[0] for row in rows[:5]] == ["errors", "markup", "control", "lengthy", "dies"]
    assert all(re.search(r"(INVALID|NO_BASELINE)$", row) for row in rows[:5])


def test_junit_stays_well_formed_and_short(hostile: tuple[Desk, Run]) -> None:
    _, run = hostile
    assert run.junit is not None
    text = run.junit.read_text()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text)
    suites = list(JUnitXml.fromfile(str(run.junit)))
    assert [(each.tests, each.failures, each.errors) for each in suites] == [(5, 5, 0)]
    assert all(len(item.message) < 10_000 for item in run.items())


def test_a_hostile_suite_file_is_quoted_harmlessly(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    path = desk.folder / "bad.toml"
    path.write_text('[suite]\nname = "\\u001b[31m\\u202e"\n"\\u001b[2J" = 1\n[variants."\\u001b]0;x\\u0007"]\n')
    run = desk.measure(path)
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "suite.name: seen " in run.error
    assert {char for char in run.screen if not char.isprintable()} <= ALLOWED


@pytest.mark.parametrize("text", ["\x1b[31mred", "two\nlines", "\u202ebackwards"])
def test_a_hostile_reason_is_refused_and_not_repeated(hostile: tuple[Desk, Run], text: str) -> None:
    desk, _ = hostile
    run = desk.perf("promote", "--reason", text)
    assert run.code == 1
    assert "must be one printable line" in run.error
    assert {char for char in run.screen if not char.isprintable()} <= ALLOWED
