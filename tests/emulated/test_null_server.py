"""The null server as a client sees it, and its truth beside what was received. Real processes, real HTTP."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest

from perf.files import FileError
from perf.load import Client, Target
from perf.null_server import MAX_TOKENS, Truth, read_truth
from perf.workload import Message, PlannedRequest, RoundPlan

ROOT = Path(__file__).parents[2]

#: What takes milliseconds where nothing else runs; only a hang lasts so long.
PATIENCE_S = 30.0

STEP_MS = 20.0


@dataclass(slots=True, kw_only=True)
class Running:
    url: str
    port: int
    process: subprocess.Popen[str]
    file: Path

    def end(self) -> Truth:
        """End it as the product does; what it then left behind."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        return read_truth(self.file)


@contextmanager
def null_server(folder: Path, *options: str) -> Iterator[Running]:
    file = folder / "truth.npz"
    command = [sys.executable, "-m", "perf.null_server", "--port", "0", "--truth", str(file), *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            yield Running(url=url, port=int(url.rpartition(":")[2]), process=process, file=file)
        finally:
            process.kill()


def body(tokens: int, text: str = "0123456789abcdef, and what comes then") -> dict[str, object]:
    return {"model": "null", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": True}


def events(text: str) -> list[str]:
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text[:-2].split("\n\n")]


def raw_request(content: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nCONTENT-LENGTH: %d\r\n\r\n%b" % (len(content), content)


def read_until(connection: socket.socket, end: bytes) -> bytes:
    seen = b""
    while not seen.endswith(end):
        data = connection.recv(1 << 16)
        assert data, f"closed after {seen!r}"
        seen += data
    return seen


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def planned(level: int, requests: int) -> RoundPlan:
    asked = tuple(
        PlannedRequest(index=n, prompt_id="task", messages=(Message(role="user", content=f"{n:016x}\n\nSort."),))
        for n in range(requests)
    )
    return RoundPlan(level=level, index=0, warmup=(), measured=asked)


def target(server: Running) -> Target:
    return Target(base_url=server.url, model="null", authorization=None, endpoint="chat", temperature=0)


# What it answers.


def test_a_chat_streams_what_sglang_streams_with_usage_in_every_chunk(tmp_path: Path) -> None:
    with null_server(tmp_path, "--tokens-per-chunk", "3") as server:
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body(7))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *told, done = events(answer.text)
    assert done == "[DONE]"
    role, *content, finish, usage = map(json.loads, told)
    assert role["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert [chunk["usage"]["completion_tokens"] for chunk in content] == [3, 6, 7]
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in content)
    assert finish["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 7)
    captured = (ROOT / "tests/data/sglang/chat_stream_contusage.txt").read_bytes()
    _, *likewise = [json.loads(line[6:]) for line in captured.split(b"\n") if line.startswith(b"data: {")]
    assert set(content[0]) == set(likewise[0])
    assert set(content[0]["choices"][0]) == set(likewise[0]["choices"][0])
    assert set(content[0]["usage"]) == set(likewise[0]["usage"])


def test_every_event_is_a_piece_of_its_own_and_goes_out_by_itself(tmp_path: Path) -> None:
    with null_server(tmp_path, "--step-ms", str(STEP_MS)) as server, connect(server) as connection:
        connection.sendall(raw_request(json.dumps(body(4)).encode()))
        seen = read_until(connection, b"\r\n0\r\n\r\n")
    pieces = seen.split(b"\r\n\r\n", 1)[1].split(b"\r\n")[1::2]
    assert [piece.count(b"data: ") for piece in pieces] == [1] * (1 + 4 + 1 + 1 + 1) + [0]


def test_the_openai_package_reads_completions_and_models(tmp_path: Path) -> None:
    with (
        null_server(tmp_path) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["null"]
        chunks = list(
            client.completions.create(model="null", prompt="feedfacefeedface tell", max_tokens=5, stream=True)
        )
        assert httpx2.get(f"{server.url}/health").status_code == 200
        truth = server.end()
    assert [len(chunk.choices) for chunk in chunks] == [1] * 5 + [0]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 4 + ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert [request.id for request in truth.requests] == ["feedfacefeedface"]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"{", "Expecting"),
        (b"[]", "'stream': true"),
        (json.dumps({**body(4), "stream": False}).encode(), "'stream': true"),
        (json.dumps(body(0)).encode(), "max_tokens must be"),
        (json.dumps(body(MAX_TOKENS + 1)).encode(), f"from 1 to {MAX_TOKENS}"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_sentence_and_the_connection_lives(
    tmp_path: Path, sent: bytes, said: str
) -> None:
    with null_server(tmp_path) as server, httpx2.Client(base_url=server.url) as client:
        refused = client.post("/v1/chat/completions", content=sent)
        assert (refused.status_code, said in refused.json()["message"]) == (400, True)
        assert client.get("/nothing").status_code == 404
        assert client.post("/v1/chat/completions", json=body(2)).status_code == 200
        truth = server.end()
    assert len(truth.accepted_s) == 1


def test_a_request_may_come_in_any_pieces(tmp_path: Path) -> None:
    request = raw_request(json.dumps(body(2)).encode())
    with null_server(tmp_path) as server, connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(request)):
            connection.sendall(request[place : place + 1])
        read_until(connection, b"\r\n0\r\n\r\n")
        before_s = time.perf_counter()
        connection.sendall(request + request)
        answers = b""
        while answers.count(b"\r\n0\r\n\r\n") < 2:
            answers += read_until(connection, b"\r\n0\r\n\r\n")
        truth = server.end()
    assert [len(request.sent_s) for request in truth.requests] == [2, 2, 2]
    assert truth.requests[1].arrival_s >= before_s


def test_what_is_no_request_is_cut_off_before_it_fills_the_memory(tmp_path: Path) -> None:
    with null_server(tmp_path) as server:
        for sent in (b"x" * (1 << 17) + b"\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n"):
            with connect(server) as connection:
                connection.sendall(sent)
                assert connection.recv(1) == b""
        assert httpx2.get(f"{server.url}/health").status_code == 200


# What it says it did.


def test_the_truth_agrees_with_what_was_received(tmp_path: Path) -> None:
    level, requests, tokens = 8, 24, 10
    with null_server(tmp_path, "--tokens-per-chunk", "4", "--step-ms", "5") as server:
        with Client(target(server)) as client:
            before_s = time.perf_counter()
            measured = client.run_round(planned(level, requests), tokens)
            after_s = time.perf_counter()
        truth = server.end()
    assert [request.failure for request in measured.requests] == [None] * requests
    told = {request.id: request for request in truth.requests}
    assert set(told) == {f"{n:016x}" for n in range(requests)}
    for request in measured.requests:
        sent = told[f"{request.index:016x}"]
        assert sent.tokens.tolist() == list(request.chunk_tokens or ()) == [4, 4, 2]
        assert before_s < sent.arrival_s <= sent.sent_s[0]
        assert sent.sent_s[-1] < after_s
        # On the client's clock nothing takes less time than on the server's, but for the grain of the kernel's stamps.
        assert request.chunk_times_s[-1] - request.sent_s > sent.sent_s[-1] - sent.arrival_s - 1e-3
    assert 0 < truth.busy_s < after_s - before_s
    assert truth.on_cpu_s is None or 0 < truth.on_cpu_s <= truth.busy_s * 1.05


def test_connections_are_used_again_and_each_is_counted(tmp_path: Path) -> None:
    with null_server(tmp_path) as server:
        with Client(target(server)) as client:
            for _ in range(2):
                client.run_round(planned(4, 20), 3)
        truth = server.end()
    assert len(truth.accepted_s) == 4
    assert {request.connection for request in truth.requests} == {0, 1, 2, 3}


def test_hundreds_of_streams_are_sent_in_step_and_none_is_forgotten(tmp_path: Path) -> None:
    streams, tokens = 400, 20
    with null_server(tmp_path, "--step-ms", "100") as server:

        async def one(number: int) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(raw_request(json.dumps(body(tokens, f"{number:016x}")).encode()))
            seen = await reader.readuntil(b"\r\n0\r\n\r\n")
            writer.close()
            return seen.count(b"data: ")

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*(one(number) for number in range(streams)))

        assert asyncio.run(all_of_them()) == [tokens + 4] * streams
        truth = server.end()
    assert [len(request.sent_s) for request in truth.requests] == [tokens] * streams
    # On schedule in the long run, however late single chunks were: nothing drifts.
    spans = [request.sent_s[-1] - request.due_s for request in truth.requests]
    assert float(np.median(spans)) == pytest.approx(0.1 * (tokens - 1), rel=0.1)


def due_places(tmp_path: Path, *options: str) -> list[float]:
    """Where in the step the first chunk of each of 16 streams was due, in steps behind that of the first stream."""
    with null_server(tmp_path, "--step-ms", str(STEP_MS), *options) as server:
        with Client(target(server)) as client:
            client.run_round(planned(16, 16), 3)
        truth = server.end()
    assert len(truth.lateness_s()) == 16 * 3
    assert float(truth.lateness_s().min()) >= 0
    assert all(0 <= request.due_s - request.arrival_s <= STEP_MS / 1e3 + 1e-6 for request in truth.requests)
    first_s = truth.requests[0].due_s
    return sorted((request.due_s - first_s) / (STEP_MS / 1e3) % 1 for request in truth.requests)


def test_streams_are_spread_over_the_step(tmp_path: Path) -> None:
    places = due_places(tmp_path)
    gaps = np.diff([*places, places[0] + 1])
    assert float(gaps.max()) < 2 / 16


def test_in_a_burst_all_streams_are_due_at_one_instant(tmp_path: Path) -> None:
    turns = np.exp(2j * np.pi * np.array(due_places(tmp_path, "--burst")))
    assert abs(turns.mean() - 1) < 1e-3


def test_the_first_chunk_waits_as_long_as_was_asked(tmp_path: Path) -> None:
    with null_server(tmp_path, "--first-ms", "150") as server:
        httpx2.post(f"{server.url}/v1/chat/completions", json=body(2))
        (request,) = server.end().requests
    assert request.sent_s[0] - request.arrival_s >= 0.15


# Clients that do not behave.


def test_a_client_that_reads_nothing_holds_up_only_itself(tmp_path: Path) -> None:
    with null_server(tmp_path) as server, connect(server) as idle:
        idle.sendall(raw_request(json.dumps(body(MAX_TOKENS, "i" * 16)).encode()))
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body(50, "o" * 16))
        assert events(answer.text)[-1] == "[DONE]"
        held = len(read_until(idle, b"\r\n0\r\n\r\n"))
        truth = server.end()
    told = {request.id: request for request in truth.requests}
    assert held > MAX_TOKENS * 300
    assert told["i" * 16].blocked > 0
    assert len(told["i" * 16].sent_s) == MAX_TOKENS
    assert bool(np.all(np.diff(told["i" * 16].sent_s) >= 0))
    assert told["o" * 16].blocked == 0


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_away_in_mid_stream_harms_nobody(tmp_path: Path, reset: bool) -> None:
    with null_server(tmp_path, "--step-ms", "2") as server:
        leaving = connect(server)
        leaving.sendall(raw_request(json.dumps(body(MAX_TOKENS, "l" * 16)).encode()))
        assert leaving.recv(1 << 16)
        if reset:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        leaving.close()
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body(20, "s" * 16))
        assert events(answer.text)[-1] == "[DONE]"
        truth = server.end()
    told = {request.id: len(request.sent_s) for request in truth.requests}
    assert told["s" * 16] == 20
    assert 0 < told["l" * 16] < MAX_TOKENS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_with_the_truth_so_far(tmp_path: Path, number: signal.Signals) -> None:
    with null_server(tmp_path, "--step-ms", "1000") as server, connect(server) as connection:
        connection.sendall(raw_request(json.dumps(body(1000)).encode()))
        assert connection.recv(1 << 16)
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE_S) == 0
    (request,) = read_truth(server.file).requests
    assert 1 <= len(request.sent_s) < 10


def test_nothing_asked_is_a_truth_too(tmp_path: Path) -> None:
    with null_server(tmp_path) as server:
        truth = server.end()
    assert (truth.requests, len(truth.accepted_s), truth.busy_s) == ((), 0, 0)


def test_another_file_is_no_truth(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    with pytest.raises(FileError, match="cannot be read as the truth of a null server"):
        read_truth(tmp_path / "other")


def test_a_taken_port_and_impossible_options_are_sentences(tmp_path: Path) -> None:
    with null_server(tmp_path) as server:
        for options, said in (
            (["--port", str(server.port)], "Choose another --port"),
            (["--port", "0", "--step-ms", "-1"], "--step-ms must be 0 or more, seen -1.0"),
            (["--port", "0", "--tokens-per-chunk", "0"], "--tokens-per-chunk must be 1 or more, seen 0"),
        ):
            command = [sys.executable, "-m", "perf.null_server", *options]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert ended.returncode in {1, 2}
            assert said in ended.stderr
