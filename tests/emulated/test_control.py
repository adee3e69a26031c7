"""Control calls: what a server tells of itself between rounds, and what one that tells nothing is taken for."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2

from perf.ports import hold_port
from perf.sglang import Control
from perf.trace import Counters

READY_LIMIT_S = 30.0


@contextmanager
def emulator(*flags: str) -> Iterator[str]:
    port = hold_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "perf.emulator", "--port", str(port.number), "--step-ms", "1:1", *flags],
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port.number}"
    deadline = time.monotonic() + READY_LIMIT_S
    try:
        while time.monotonic() < deadline:
            try:
                if httpx2.get(f"{url}/health").status_code == 200:
                    break
            except httpx2.HTTPError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(READY_LIMIT_S)
        port.release()


def ask(url: str, tokens: int) -> None:
    body = {"model": "m", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
    assert httpx2.post(f"{url}/v1/completions", json=body, timeout=READY_LIMIT_S).status_code == 200


def test_the_counters_of_a_speculative_server_are_read_and_subtracted() -> None:
    speculative = ("--enable-metrics", "--speculative-algorithm", "EAGLE3", "--acceptance", "2")
    with emulator(*speculative) as url:
        control = Control(url, None)
        before = control.counters()
        assert before is not None
        ask(url, 33)
        after = control.settled_counters(before, 33)
        assert after is not None
        counted = after.since(before)
        assert counted.generated == 33
        assert counted.prompt is not None
        assert counted.verify_steps is not None
        assert 11 <= counted.verify_steps < 32  # between one and three tokens a step, the first from prefill
        assert control.info().speculative_algorithm == "EAGLE3"
        assert control.info().version
        assert control.flush_cache()
        control.close()


def test_a_server_without_metrics_has_no_counters_rather_than_zeros() -> None:
    with emulator() as url:
        control = Control(url, None)
        assert control.counters() is None
        assert control.settled_counters(None, 10) is None
        control.close()


def test_a_strangers_server_tells_nothing_and_nothing_breaks(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("this is no Prometheus text {{{ \x00")
    (tmp_path / "server_info").write_text('["not an object"]')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        control = Control(f"http://127.0.0.1:{server.server_port}", None)
        assert control.counters() is None
        assert control.info().version is None
        assert not control.flush_cache()
        control.close()
        server.shutdown()


def test_a_counter_that_went_down_says_nothing() -> None:
    assert Counters(generated=5).since(Counters(generated=9)).generated is None
    assert Counters(generated=5).since(Counters()).generated == 5
