"""Control calls: what a server tells of itself between rounds, and what one that tells nothing is taken for."""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import httpx2
import pytest

from perf.ports import hold_port
from perf.sglang import MAX_BODY_BYTES, Control
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


@contextmanager
def answering(body: Iterable[bytes]) -> Iterator[str]:
    """A server that answers with these bytes of a head and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):
                for piece in body:
                    self.wfile.write(piece)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what is asked stands in the test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = server.block_on_close = False
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("answer", "silent"),
    [(b"404 Not Found", False), (b"501 Not Implemented", False), (b"500 Internal Server Error", True), (b"", True)],
)
def test_a_server_that_does_not_tell_its_arguments_is_told_from_one_that_cannot(answer: bytes, silent: bool) -> None:
    said = [b"HTTP/1.1 ", answer, b"\r\ncontent-length: 0\r\n\r\n"] if answer else []
    with answering(said) as url, closing(Control(url, None)) as control:
        assert control.info().silent is silent


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"\r\n"], ids=["from the start", "in the head", "in the body"])
def test_an_endless_drip_ends_with_the_time_of_one_call(said: bytes) -> None:
    ended = Event()

    def drip() -> Iterator[bytes]:
        yield said
        for _ in range(round(6 * READY_LIMIT_S)):
            if ended.wait(1 / 6):
                return
            yield b"a"
        ended.set()

    with answering(drip()) as url:
        control = Control(url, None, call_timeout_s=1.0)
        assert control.counters() is None
        dripping = not ended.is_set()
        ended.set()
        control.close()
    assert dripping


def test_a_body_without_end_is_not_kept() -> None:
    sent = 0

    def flood() -> Iterator[bytes]:
        nonlocal sent
        yield HEAD + b"\r\n"
        while sent < 8 * MAX_BODY_BYTES:
            yield b"# a comment of Prometheus\n" * 40_000
            sent += 26 * 40_000

    with answering(flood()) as url:
        control = Control(url, None)
        assert control.counters() is None
        control.close()
    assert sent < 4 * MAX_BODY_BYTES


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e150"])
def test_a_number_that_is_no_count_is_no_counter_and_does_not_hide_the_others(value: str) -> None:
    body = f'sglang:generation_tokens_total{{a="b"}} {value}\nsglang:prompt_tokens_total 7.0\n'.encode()
    with answering(iter([HEAD + b"\r\n" + body])) as url:
        control = Control(url, None)
        assert control.counters() == Counters(prompt=7)
        control.close()


@pytest.mark.parametrize(("named", "algorithm"), [("none", None), ("NONE", None), ("EAGLE3", "EAGLE3")])
def test_an_algorithm_that_is_called_none_is_none(named: str, algorithm: str | None) -> None:
    body = f'{{"speculative_algorithm": "{named}"}}'.encode()
    with answering(iter([HEAD + b"\r\n" + body])) as url, closing(Control(url, None)) as control:
        assert control.info().speculative_algorithm == algorithm


def test_a_counter_that_went_down_says_nothing() -> None:
    assert Counters(generated=5).since(Counters(generated=9)).generated is None
    assert Counters(generated=5).since(Counters()).generated == 5
