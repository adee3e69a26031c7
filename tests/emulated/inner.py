"""A user's desk in a temporary folder: suite files, stores, and an inner pytest that is run and read from outside."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
from junitparser import JUnitXml, Properties, TestCase

from perf import measure, record, suite_file
from perf.capacity import Capacity
from perf.load import Limits
from perf.record import Arm, Campaign, LaunchRecord, Order
from tests.unit.simulated import RIG

REPOSITORY = Path(__file__).parents[2]

#: No run here has work for a fifth of this; only a hang lasts so long.
RUN_LIMIT_S = 150.0

#: For what takes well under a second on an idle machine.
PATIENCE_S = 60.0
POLL_S = 0.05

EMULATOR = ("{python}", "-m", "perf.emulator", "--port", "{port}", "--enable-metrics", "--enable-cache-report")
#: 20 ms a step, and requests of half a second: a busy machine's milliseconds are few among them.
PACED = (*EMULATOR, "--step-ms", "1:20", "--prefill-ms", "20", "--prefill-token-ms", "0")

#: In rounds of a second or less, some milliseconds in which a shared machine runs others are seen.
DISTURBED = re.compile(r"INVALID:? +(?:client was the bottleneck|host too busy)")

#: A server that knows nothing of SGLang: paced chunks in the OpenAI format, no /health, no /metrics, no flush.
STRANGER = """
import http.server, json, os, sys, time

MODEL, ERROR, STEP_S = "stranger", None, 0.02

def said(tokens):
    return "word " * tokens

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        self.answer(*((200, models) if self.path == "/v1/models" else (404, {"detail": "Not Found"})))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.answer(404, {"detail": "Not Found"})
        elif ERROR is not None:
            self.answer(500, {"error": {"message": ERROR, "type": "server_error"}})
        elif not body["stream"]:
            message = {"role": "assistant", "content": said(body["max_tokens"])}
            self.answer(200, {"choices": [{"index": 0, "message": message, "finish_reason": "length"}]})
        else:
            self.stream(body["max_tokens"], sum(len(each["content"]) // 4 for each in body["messages"]))

    def stream(self, tokens, prompt):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        began = time.monotonic()
        self.event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        for number in range(1, tokens + 1):
            time.sleep(max(0.0, began + number * STEP_S - time.monotonic()))
            finish = "length" if number == tokens else None
            self.event([{"index": 0, "delta": {"content": "word "}, "finish_reason": finish}])
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        self.event([], usage=usage)
        self.chunk(b"data: [DONE]\\n\\n")
        self.wfile.write(b"0\\r\\n\\r\\n")

    def event(self, choices, **more):
        self.chunk(f"data: {json.dumps({'id': 'x', 'model': MODEL, 'choices': choices, **more})}\\n\\n".encode())

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\\r\\n".encode() + data + b"\\r\\n")

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass
"""
SERVE = '\nhttp.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One test case of a JUnit file; `message` is everything a failure or error says."""

    name: str
    outcome: str
    message: str
    properties: Mapping[str, str]

    @property
    def case(self) -> str:
        """The id between the brackets."""
        return self.name.partition("[")[2].removesuffix("]")

    @property
    def word(self) -> str | None:
        return self.properties.get("verdict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a command ended and what it showed."""

    code: int
    out: str
    error: str
    junit: Path | None = None

    @property
    def screen(self) -> str:
        return self.out + self.error

    def items(self) -> tuple[Item, ...]:
        assert self.junit is not None, self.screen
        assert self.junit.is_file(), self.screen
        return tuple(_item(case) for suite in JUnitXml.fromfile(str(self.junit)) for case in suite)

    def words(self) -> dict[str, str | None]:
        """The verdict of every item by its case id."""
        return {item.case: item.word for item in self.items()}

    def item(self, case: str) -> Item:
        return next(item for item in self.items() if item.case == case)


def _item(case: TestCase) -> Item:
    results = list(case.result)
    return Item(
        name=str(case.name),
        outcome=type(results[0]).__name__.lower() if results else "passed",
        message="\n".join(f"{result.message}\n{result.text}" for result in results),
        properties={
            str(each.name): str(each.value)
            for table in case.iterchildren(Properties)  # type: ignore[no-untyped-call]
            for each in table
        },
    )


class Desk:
    """A folder with suites, stored baselines and campaigns of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.baselines = folder / "baselines"
        self.campaigns = folder / "campaigns"
        self._runs = 0

    def stores(self) -> tuple[str, ...]:
        """The options of pytest that keep a run out of the repository's own folders."""
        return (f"--perf-baselines={self.baselines}", f"--perf-campaign-dir={self.campaigns}")

    def pytest_command(self, *arguments: str) -> tuple[list[str], Path]:
        """An inner pytest with a JUnit file of its own."""
        self._runs += 1
        junit = self.folder / f"junit-{self._runs}.xml"
        head = [sys.executable, "-m", "pytest", "-o", f"cache_dir={self.folder / 'cache'}", f"--junitxml={junit}"]
        return [*head, *self.stores(), *arguments], junit

    def pytest(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """An inner pytest from the repository's root, to its end."""
        command, junit = self.pytest_command(*arguments)
        return run(command, env=env, junit=junit)

    def measure(self, suite: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """Measure a suite; only the items of suites are looked at, so that a start costs little.

        Once more, as if it had not been, where the machine had no core for the client just then.
        """
        command = ("-m", "perf", f"--perf-suite={suite}", "tests/perf", *arguments)
        ran = self.pytest(*command, env=env)
        if not DISTURBED.search(ran.out):
            return ran
        shutil.rmtree(self.folders()[-1])
        return self.pytest(*command, env=env)

    def perf(self, verb: str, *arguments: str, store: bool = True) -> Run:
        """`python -m perf`, with this desk's campaigns and, unless told otherwise, its store."""
        stores = ("--baselines", str(self.baselines)) if store else ()
        return run(
            [sys.executable, "-m", "perf", verb, *arguments, *stores, "--campaign-dir", str(self.campaigns)], env=None
        )

    def folders(self) -> list[Path]:
        """Of all campaigns, oldest first."""
        return sorted(record.folders(self.campaigns), key=lambda folder: folder.stat().st_ctime_ns)

    def campaign(self) -> Campaign:
        """The newest."""
        return record.read(record.find(self.campaigns, None))

    def stranger(self, code: str = "", name: str = "stranger.py") -> tuple[str, ...]:
        """The command of a server that is not SGLang; `code` changes its constants."""
        script = self.folder / name
        script.write_text(f"{STRANGER}\n{code}\n{SERVE}")
        return ("{python}", str(script), "{port}")

    def suite(
        self,
        variants: Mapping[str, tuple[str, ...]],
        *,
        name: str = "small",
        file: str | None = None,
        levels: tuple[int, ...] = (2,),
        workload: str = "",
        suite: str = 'rig = "emulated"',
        gate: str = "margin = 0.1\nalpha = 0.2\nmax_launches = 4",
        variant: str = "",
        more: str = "",
    ) -> Path:
        """A suite file: two waves of requests a level, half a second each. Plant what is far beyond the margin."""
        tables = "\n".join(
            f"[variants.{each}]\ncommand = {json.dumps(command)}\nready_timeout_s = 60\n{variant}\n"
            for each, command in variants.items()
        )
        lengths = "" if "output_tokens" in workload else "output_tokens = 24\n"
        requests = "" if "requests" in workload else "min_requests = 2\nrequests_per_stream = 2\nwarmup_requests = 1\n"
        path = self.folder / (file or f"{name}.toml")
        path.write_text(
            f'[suite]\nname = "{name}"\n{suite}\n\n'
            f"[workload]\nconcurrency = {list(levels)}\n{lengths}{requests}{workload}\n\n"
            f"[gate]\n{gate}\n\n{tables}\n{more}\n"
        )
        return path


class Launches:
    """Launches of a suite's one variant with the levels in an order of the test's own, and what they show."""

    def __init__(self, desk: Desk, path: Path, *, prefix: str = "") -> None:
        self.said: list[str] = []
        self.bench = measure.Bench(
            suite=suite_file.load(path),
            folder=desk.folder / "campaign",
            prefix=prefix,
            base_url=None,
            show=measure.Show(line=self.said.append, live=lambda _: None),
            limits=Limits(),
            capacity=Capacity(RIG, lambda _: None),
            gpus=lambda: (),
        )

    def run(self, arm: Arm, ordinal: int = 1, levels: tuple[int, ...] = (1,)) -> LaunchRecord:
        return self.bench.measure(
            Order(variant=self.bench.suite.variants[0].name, arm=arm, ordinal=ordinal, block=ordinal, levels=levels)
        )


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """A user's at a terminal: `python` is the interpreter of these tests, and no outer pytest or build job is known."""
    outer = ("PYTEST_", "COV_", "TOX_")
    kept = {
        name: value
        for name, value in os.environ.items()
        # In a build job pytest prints every message again, whole, behind the last line.
        if not name.startswith(outer) and name not in ("CI", "BUILD_NUMBER", "GITHUB_STEP_SUMMARY")
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return kept | {"PATH": path, "COLUMNS": "200"} | dict(changes or {})


def run(command: list[str], *, env: Mapping[str, str] | None = None, junit: Path | None = None) -> Run:
    """Run a command from the repository's root, to its end."""
    with started(command, env=env) as process:
        out, error = process.communicate(timeout=RUN_LIMIT_S)
    return Run(code=process.returncode, out=out, error=error, junit=junit)


@contextmanager
def started(command: list[str], *, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, as a terminal would give it; ended with all its children if need be."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # a child may have outlived its parent; servers see that pytest is gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def running(*flags: str) -> Iterator[str]:
    """The URL of an emulator that nobody of ours started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable if part == "{python}" else part.replace("{port}", port) for part in (*PACED, *flags)]
    url = f"http://127.0.0.1:{port}"
    with started(command):
        wait_until(lambda: healthy(url), "the emulator answers")
        yield url


def healthy(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
    """Raises AssertionError with `what` when it does not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s in vain for: {what}"
        time.sleep(POLL_S)


def alive_with(token: str) -> list[int]:
    """The processes with a word of theirs in the command line that nobody else has; the dead do not count."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(token in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
