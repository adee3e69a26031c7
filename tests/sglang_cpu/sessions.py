"""Sessions of this suite on real SGLang, and what is done to their servers meanwhile."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
# A session of seven launches takes 6 minutes where nothing else runs; a shared machine is several times as slow.
SESSION_TIMEOUT_S = 3600.0
ANSWER_TIMEOUT_S = 60.0
POLL_S = 0.2


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments`, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SESSION_TIMEOUT_S,
        check=False,
    )


def session(folder: Path, suite: str | Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A session with stored baselines and campaigns of its own; its campaign is the newest there."""
    campaigns = folder / "campaigns"
    before = set(campaigns.glob("*"))
    stores = [f"--perf-baselines={folder / 'baselines'}", f"--perf-campaign-dir={campaigns}"]
    done = run("pytest", "-m", "sglang_cpu", "tests/perf", f"--perf-suite={suite}", *stores, *options)
    assert set(campaigns.glob("*")) > before, done.stdout + done.stderr
    return done


def ask(base_url: str, path: str, body: object = None) -> bytes:
    """GET, or POST where there is a body. Raises URLError."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(base_url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=ANSWER_TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content


@contextmanager
def slowed(*sleeps_s: float | None) -> Iterator[list[str]]:
    """Within this, every SGLang that we start is told as soon as it is ready to sleep before each of its steps.

    It is told one number of seconds after the other; None is to sleep no more. What it was told is noted.
    """
    told: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        known: set[int] = set()
        while not stop.wait(POLL_S):
            for port in _ports() - known:
                try:
                    ask(f"http://127.0.0.1:{port}", "/health")
                    for sleep_s in sleeps_s:
                        ask(f"http://127.0.0.1:{port}", "/slow_down", {"forward_sleep_time": sleep_s})
                        told.append(f"{port}: {sleep_s}")
                except (urllib.error.URLError, OSError):
                    continue
                known.add(port)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join()


def _ports() -> set[int]:
    """Where the servers listen, or will, that this process or one of its children started."""
    found: set[int] = set()
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if "sglang.launch_server" in command and "--port" in command:
            found.add(int(command[command.index("--port") + 1]))
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port


@contextmanager
def serving(command: list[str], env: dict[str, str], folder: Path) -> Iterator[str]:
    """A server of our own until we leave; its URL. `folder` gets its log."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT / "perf" / "suites", env=env, stdout=log, stderr=log)
    try:
        base_url = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
        deadline = time.monotonic() + 600
        while True:
            try:
                ask(base_url, "/health")
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (folder / "server.log").read_text()[-4000:]
                assert time.monotonic() < deadline, "not ready"
                time.sleep(POLL_S)
        yield base_url
    finally:
        if process.poll() is None:
            root = psutil.Process(process.pid)
            for each in (*root.children(recursive=True), root):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()
