"""The emulator as a client meets it: its own process, real HTTP, what SGLang was captured to answer."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import aiohttp
import psutil
import pytest
from openai import APIError, AsyncOpenAI

from perf.emulator import PROCESS_FAULTS, PROFILES, REQUEST_FAULTS, parser, read_options

REPOSITORY = Path(__file__).parents[2]
CAPTURES = REPOSITORY / "tests" / "data" / "sglang"
# A start imports aiohttp and binds a port; far above what a busy machine needs.
START_S = 30.0
# An end, and any single answer of a server that is this fast.
END_S = 20.0
POLL_S = 0.02
FAST = ("--step-ms", "1:2", "--prefill-ms", "2", "--prefill-token-ms", "0", "--enable-metrics")
SPECULATIVE = ("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--acceptance", "2.5")
CHAT: dict[str, object] = {
    "messages": [{"role": "user", "content": "Write a function that adds two numbers."}],
    "max_tokens": 24,
    "ignore_eos": True,
}
STREAM: dict[str, object] = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    truth_file: Path

    def truth(self, kind: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.truth_file.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind]

    def requests(self) -> list[dict[str, float]]:
        return [
            {key: value for key, value in line.items() if isinstance(value, int | float)}
            for line in self.truth("request")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One answer: the data of its events, or the one body."""

    status: int
    content_type: str
    body: bytes
    clean_end: bool

    def events(self) -> list[str]:
        return [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]

    def objects(self) -> list[dict[str, object]]:
        return [json.loads(data) for data in self.events() if data != "[DONE]"]

    def usage(self) -> dict[str, object] | None:
        usages = [event["usage"] for event in self.objects() if event.get("usage")]
        return usages[-1] if usages and isinstance(usages[-1], dict) else None

    def finishes(self) -> list[str]:
        return re.findall(r'"finish_reason":"(\w+)"', self.body.decode())

    def words(self) -> list[str]:
        return "".join(re.findall(r'"(?:content|text)":"([^"]*)"', self.body.decode())).split()


@contextmanager
def emulator(directory: Path, *flags: str) -> Iterator[Emulator]:
    """A running emulator, healthy unless it is not meant to be; ended, if need be by SIGKILL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log, truth = directory / f"{port}.log", directory / f"{port}.jsonl"
    command = [sys.executable, "-m", "perf.emulator", "--port", str(port), "--truth", str(truth), *flags]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=REPOSITORY, stderr=stderr)
    server = Emulator(url=f"http://127.0.0.1:{port}", process=process, log=log, truth_file=truth)
    try:
        wait_until(lambda: process.poll() is not None or "Uvicorn running" in log.read_text(), START_S)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(POLL_S)


async def ask(
    session: aiohttp.ClientSession, url: str, body: object | None = None, *, method: str = "POST", key: str = "none"
) -> Seen:
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    received, clean_end = b"", True
    async with session.request(method, url, data=data, headers={"Authorization": f"Bearer {key}"}) as response:
        try:
            async for part in response.content.iter_any():
                received += part
        except aiohttp.ClientError:
            clean_end = False
        return Seen(
            status=response.status,
            content_type=response.headers.get("Content-Type", ""),
            body=received,
            clean_end=clean_end,
        )


def answers(
    url: str, *bodies: object, path: str = "/v1/chat/completions", limit_s: float = END_S, key: str = "none"
) -> list[Seen]:
    """All bodies asked at once."""

    async def gather() -> list[Seen]:
        timeout = aiohttp.ClientTimeout(total=limit_s)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(*(ask(session, url + path, body, key=key) for body in bodies))

    return asyncio.run(gather())


def answer(url: str, body: object, *, path: str = "/v1/chat/completions", key: str = "none") -> Seen:
    return answers(url, body, path=path, key=key)[0]


def get(url: str, path: str, *, key: str = "none") -> Seen:
    async def once() -> Seen:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=END_S)) as session:
            return await ask(session, url + path, method="GET", key=key)

    return asyncio.run(once())


def counter(url: str, name: str) -> float | None:
    """The sum over labels of one of SGLang's metrics; None where it is absent."""
    values = re.findall(rf"^sglang:{name}{{.*}} (\S+)$", get(url, "/metrics").body.decode(), re.MULTILINE)
    return sum(map(float, values)) if values else None


def captured(name: str) -> Seen:
    head, _, body = (CAPTURES / f"{name}.txt").read_text().partition("\n\n")
    headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])
    status = int(head.split()[1])
    return Seen(status=status, content_type=headers["content-type"], body=body.strip().encode(), clean_end=True)


def shape(value: object) -> object:
    """Keys in their order and the kinds of values, without the values."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def stream_shape(seen: Seen) -> list[object]:
    """The shapes of a stream's events, runs of the same shape as one."""
    shapes = ["[DONE]" if data == "[DONE]" else shape(json.loads(data)) for data in seen.events()]
    return [one for one, _ in groupby(shapes)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("plain"), *FAST) as server:
        yield server


@pytest.fixture(scope="module")
def speculative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("speculative"), *FAST, *SPECULATIVE) as server:
        yield server


CONTINUOUS = {**STREAM, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
COMPLETION = {"prompt": "def add(a, b):", "max_tokens": 24, "ignore_eos": True}


@pytest.mark.parametrize(
    ("capture", "path", "body"),
    [
        ("chat_stream", "/v1/chat/completions", STREAM),
        ("chat_stream_contusage", "/v1/chat/completions", CONTINUOUS),
        ("chat_stream_nousage", "/v1/chat/completions", {**CHAT, "stream": True}),
        (
            "completions_stream",
            "/v1/completions",
            {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}},
        ),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "speculative"])
def test_a_stream_has_the_shape_of_sglangs(
    request: pytest.FixtureRequest, kind: str, capture: str, path: str, body: Mapping[str, object]
) -> None:
    server: Emulator = request.getfixturevalue(kind)
    seen, real = answer(server.url, body, path=path), captured(capture)
    assert (seen.status, seen.content_type) == (real.status, real.content_type)
    assert stream_shape(seen) == stream_shape(real)
    assert len(seen.words()) == 24


@pytest.mark.parametrize(
    ("capture", "path", "body"),
    [
        ("chat_nonstream", "/v1/chat/completions", CHAT),
        ("completions_nonstream", "/v1/completions", COMPLETION),
        ("err_bad_json", "/v1/chat/completions", b'{"messages'),
        ("err_bad_maxtokens", "/v1/chat/completions", {**CHAT, "max_tokens": -2}),
        ("get_load", "/get_load", {}),
    ],
)
def test_a_body_has_the_shape_of_sglangs(plain: Emulator, capture: str, path: str, body: object) -> None:
    seen, real = answer(plain.url, body, path=path), captured(capture)
    assert (seen.status, shape(json.loads(seen.body))) == (real.status, shape(json.loads(real.body)))


def test_the_error_texts_a_client_may_match_are_sglangs(plain: Emulator) -> None:
    seen = answer(plain.url, {**CHAT, "max_tokens": -2})
    assert seen.body == captured("err_bad_maxtokens").body
    assert get(plain.url, "/get_load").body == captured("get_load").body


def test_the_models_list_has_the_shape_of_sglangs(plain: Emulator) -> None:
    assert shape(json.loads(get(plain.url, "/v1/models").body)) == shape(json.loads(captured("v1_models").body))


def test_a_stream_that_is_aborted_has_the_shape_of_a_captured_abort(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, *SPECULATIVE, "--fault", "abort", "--enable-cache-report") as server:
        seen = answer(server.url, STREAM)
    assert stream_shape(seen) == stream_shape(captured("abort_stream"))
    assert seen.finishes() == captured("abort_stream").finishes() == ["abort"]


def test_a_speculative_stream_packs_several_tokens_into_one_chunk(speculative: Emulator) -> None:
    seen = answer(speculative.url, {**CONTINUOUS, "max_tokens": 250})
    usages = [event["usage"] for event in seen.objects() if event["choices"] and event.get("usage")]
    totals = [0, *(usage["completion_tokens"] for usage in usages if isinstance(usage, dict))]
    steps = [after - before for before, after in pairwise(totals)]
    assert steps[0] == 1
    assert set(steps[1:-1]) == {1, 2, 3, 4}
    assert totals[-1] == len(seen.words()) == 250


def test_the_openai_client_reads_the_stream(plain: Emulator) -> None:
    async def read() -> tuple[str, str | None, int]:
        text, finish, tokens = "", None, 0
        async with AsyncOpenAI(base_url=f"{plain.url}/v1", api_key="none", max_retries=0, timeout=END_S) as client:
            stream = await client.chat.completions.create(
                model="anything",
                messages=[{"role": "user", "content": "Hello"}],
                max_completion_tokens=40,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
                tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, finish, tokens

    text, finish, tokens = asyncio.run(read())
    assert (len(text.split()), finish, tokens) == (40, "length", 40)


def test_without_ignore_eos_a_prompt_ends_by_itself_always_at_the_same_length(plain: Emulator) -> None:
    body = {**STREAM, "max_tokens": 2000, "ignore_eos": False}
    first, second = answers(plain.url, body, body)
    assert first.finishes() == second.finishes() == ["stop"]
    assert first.words() == second.words()
    assert 1 < len(first.words()) < 2000


def test_a_prompt_of_more_than_a_mebibyte_is_accepted_and_counted_by_its_characters(plain: Emulator) -> None:
    body = {**STREAM, "messages": [{"role": "user", "content": "é" * 200_001}]}
    assert len(json.dumps(body)) > 2**20
    usage = answer(plain.url, body).usage()
    assert usage is not None
    assert usage["prompt_tokens"] == 50_001


def test_a_prompt_longer_than_the_context_is_refused(plain: Emulator) -> None:
    seen = answer(plain.url, {**STREAM, "messages": [{"role": "user", "content": "x" * 4 * 262_144}]})
    assert seen.status == 400
    assert b"longer than the model's context length" in seen.body


def test_the_token_counter_grows_by_what_usage_says(plain: Emulator) -> None:
    names = ("generation_tokens_total", "prompt_tokens_total", "num_requests_total", "cached_tokens_total")
    before = {name: counter(plain.url, name) or 0 for name in names}
    seen = answers(plain.url, STREAM, CHAT, STREAM)
    usage = seen[0].usage()
    assert usage is not None
    grown = {name: (counter(plain.url, name) or 0) - before[name] for name in names}
    assert grown == {
        "generation_tokens_total": 3 * 24,
        "prompt_tokens_total": 3 * int(str(usage["prompt_tokens"])),
        "num_requests_total": 3,
        "cached_tokens_total": 0,
    }
    assert counter(plain.url, "spec_verify_calls_total") is None


def test_without_enable_metrics_there_are_none(tmp_path: Path) -> None:
    with emulator(tmp_path) as server:
        assert get(server.url, "/metrics").status == 404


def test_acceptance_by_counters_by_server_info_and_by_truth_agree(speculative: Emulator) -> None:
    assert answer(speculative.url, None, path="/flush_cache").status == 200
    info = json.loads(get(speculative.url, "/server_info").body)
    assert "avg_spec_accept_length" not in info["internal_states"][0]
    steps_before = counter(speculative.url, "spec_verify_calls_total")
    answers(speculative.url, *[{**STREAM, "max_tokens": 200}] * 4)
    steps_after = counter(speculative.url, "spec_verify_calls_total")
    assert steps_before is not None
    assert steps_after is not None
    assert 4 * 200 / (steps_after - steps_before) == pytest.approx(2.5, rel=0.02)
    assert counter(speculative.url, "spec_accept_length") == pytest.approx(2.5, rel=0.02)
    info = json.loads(get(speculative.url, "/server_info").body)
    assert info["internal_states"][0]["avg_spec_accept_length"] == pytest.approx(2.5, rel=0.02)
    assert (info["speculative_algorithm"], info["speculative_num_steps"]) == ("EAGLE3", 3)
    last = speculative.requests()[-4:]
    assert sum(line["verify_steps"] for line in last) == steps_after - steps_before


def test_old_and_new_names_of_the_information_answer_alike(plain: Emulator) -> None:
    for new, old in (("/server_info", "/get_server_info"), ("/model_info", "/get_model_info")):
        assert get(plain.url, new).body == get(plain.url, old).body
    info = json.loads(get(plain.url, "/server_info").body)
    assert (info["version"], info["speculative_algorithm"]) == ("0.5.23-emulated", None)
    assert json.loads(get(plain.url, "/v1/loads").body)["version"] == "0.5.23-emulated"
    assert get(plain.url, "/health_generate").status == 200


def test_slow_down_adds_its_seconds_to_every_step_until_it_is_taken_back(plain: Emulator) -> None:
    def step_s() -> float:
        answer(plain.url, {**STREAM, "max_tokens": 6})
        line = plain.requests()[-1]
        return (line["last_token_s"] - line["first_token_s"]) / 5

    before_s = step_s()
    assert answer(plain.url, {"forward_sleep_time": 0.05}, path="/slow_down").body == b"null"
    assert step_s() == pytest.approx(before_s + 0.05)
    answer(plain.url, {"forward_sleep_time": None}, path="/slow_down")
    assert step_s() == pytest.approx(before_s)


def test_a_flush_draws_the_round_anew_and_is_refused_while_requests_run(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--round-cv", "0.1", "--launch-cv", "0.1", "--noise-seed", "5") as server:
        real = (CAPTURES / "flush_cache_post.txt").read_text()
        for seen in (get(server.url, "/flush_cache"), answer(server.url, None, path="/flush_cache")):
            assert seen.status == 200
            assert real.strip().endswith(seen.body.decode().strip())
        (start,), flushes = server.truth("start"), server.truth("flush")
        assert len({start["round_factor"], *(flush["round_factor"] for flush in flushes)}) == 3
        assert (start["noise_seed"], start["launch_factor"] != 1) == (5, True)

        async def flush_while_running() -> int:
            body = {**COMPLETION, "stream": True, "max_tokens": 2000}
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=END_S)) as session,
                session.post(server.url + "/v1/completions", json=body) as running,
            ):
                await running.content.readany()
                return (await ask(session, server.url + "/flush_cache")).status

        assert asyncio.run(flush_while_running()) == 400
        assert len(server.truth("flush")) == 2


def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST) as server:

        async def leave() -> None:
            async with aiohttp.ClientSession() as session:
                body = {**STREAM, "max_tokens": 100_000}
                async with session.post(server.url + "/v1/chat/completions", json=body) as response:
                    await response.content.readany()

        asyncio.run(leave())
        wait_until(lambda: bool(server.truth("request")), END_S)
        assert server.truth("request")[0]["finish"] == "cancelled"
        wait_until(lambda: get(server.url, "/flush_cache").status == 200, END_S)


def test_the_truth_is_what_a_client_observes_on_a_host_with_time_to_spare(tmp_path: Path) -> None:
    with emulator(tmp_path, "--profile", "published-baseline", "--speed", "4") as server:

        async def observe() -> tuple[float, int]:
            timeout = aiohttp.ClientTimeout(total=60)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                start_s = time.monotonic()
                url = server.url + "/v1/chat/completions"
                seen = await asyncio.gather(*(ask(session, url, {**STREAM, "max_tokens": 512}) for _ in range(2)))
                return time.monotonic() - start_s, sum(len(one.words()) for one in seen)

        wall_s, tokens = asyncio.run(observe())
        lines = server.requests()
    window_s = max(line["last_token_s"] for line in lines) - min(line["arrival_s"] for line in lines)
    assert tokens == sum(line["tokens"] for line in lines) == 1024
    # The two arrive some milliseconds apart.
    assert tokens / window_s == pytest.approx(4 * 157.7, rel=0.1)
    # Never faster than the truth; slower by what this machine's other work takes.
    assert window_s <= wall_s < 1.5 * window_s + 1
    (exit_line,) = server.truth("exit")
    assert 512 <= int(str(exit_line["steps"])) < 1024


def test_a_host_that_stops_for_a_while_delays_the_client_and_leaves_the_truth_alone(tmp_path: Path) -> None:
    with emulator(tmp_path, "--step-ms", "1:10") as server:

        async def read_while_stopped() -> float:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=END_S)) as session:
                start_s = time.monotonic()
                body = {**STREAM, "max_tokens": 100}
                asking = asyncio.create_task(ask(session, server.url + "/v1/chat/completions", body))
                await asyncio.sleep(0.3)
                server.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1.2)
                server.process.send_signal(signal.SIGCONT)
                assert (await asking).finishes() == ["length"]
                return time.monotonic() - start_s

        wall_s = asyncio.run(read_while_stopped())
        (line,) = server.requests()
    assert line["last_token_s"] - line["first_token_s"] == pytest.approx(99 * 0.010)
    assert wall_s >= 1.5
    (exit_line,) = server.truth("exit")
    assert float(str(exit_line["late_max_s"])) > 0.5


def test_250_streams_run_at_once_and_each_gets_all_its_tokens(tmp_path: Path) -> None:
    with emulator(tmp_path, "--step-ms", "1:40") as server:
        bodies = [
            {**STREAM, "max_tokens": 40, "messages": [{"role": "user", "content": f"Task {i}"}]} for i in range(250)
        ]
        seen = answers(server.url, *bodies, limit_s=60)
        lines = server.requests()
    usages = [one.usage() for one in seen]
    assert [usage and usage["completion_tokens"] for usage in usages] == [40] * 250
    assert {len(one.words()) for one in seen} == {40}
    assert len(lines) == 250
    assert max(line["level"] for line in lines) == 250


def test_more_than_max_running_requests_wait_their_turn(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--max-running-requests", "2") as server:
        seen = answers(server.url, *[STREAM] * 6)
        lines = server.requests()
    assert [one.finishes() for one in seen] == [["length"]] * 6
    spans = [(line["first_token_s"], line["last_token_s"]) for line in lines]
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) == 2


# Faults


def faulty(directory: Path, *flags: str, body: Mapping[str, object] = STREAM) -> Seen:
    with emulator(directory, *FAST, *flags) as server:
        return answer(server.url, body)


def test_fault_http_500_answers_an_error_object(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--fault", "http-500")
    assert (seen.status, json.loads(seen.body)["code"]) == (500, 500)


def test_fault_error_in_stream_is_an_error_the_openai_client_raises(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "error-in-stream") as server:
        seen = answer(server.url, STREAM)

        async def read(chunks: list[object]) -> None:
            async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "Hello"}], stream=True, max_tokens=50
                )
                async for chunk in stream:
                    chunks.append(chunk)

        chunks: list[object] = []
        with pytest.raises(APIError, match="KV cache pool"):
            asyncio.run(read(chunks))
        assert len(chunks) > 2
    assert seen.status == 200
    assert seen.clean_end
    assert seen.events()[-1] == "[DONE]"
    assert '"error"' in seen.events()[-2]
    assert seen.finishes() == []


def test_fault_truncated_breaks_the_body(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--fault", "truncated")
    assert not seen.clean_end
    assert len(seen.words()) == 8


def test_fault_silent_end_ends_the_body_without_finish_usage_or_done(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--fault", "silent-end")
    assert seen.clean_end
    assert (len(seen.words()), seen.finishes(), seen.usage(), "[DONE]" in seen.events()) == (8, [], None, False)


def test_fault_stalled_goes_silent_on_an_open_connection(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "stalled") as server:

        async def read(received: list[bytes]) -> None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(server.url + "/v1/chat/completions", json=STREAM) as response,
            ):
                while part := await asyncio.wait_for(response.content.readany(), 1):
                    received.append(part)

        received: list[bytes] = []
        with pytest.raises(TimeoutError):
            asyncio.run(read(received))
    assert b"".join(received).count(b'"content":" ') == 8


def test_fault_no_usage_leaves_a_stream_without_usage(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--fault", "no-usage")
    assert (seen.finishes(), seen.usage(), seen.events()[-1]) == (["length"], None, "[DONE]")


def test_fault_wrong_length_stops_after_17_tokens(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--fault", "wrong-length")
    usage = seen.usage()
    assert usage is not None
    assert (seen.finishes(), usage["completion_tokens"], len(seen.words())) == (["stop"], 17, 17)


def test_fault_usage_off_by_one_says_one_token_less(tmp_path: Path) -> None:
    usage = faulty(tmp_path, "--fault", "usage-off-by-one").usage()
    assert usage is not None
    assert usage["completion_tokens"] == 23


def test_fault_ignore_eos_ignored_stops_early(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--fault", "ignore-eos-ignored")
    assert (seen.finishes(), len(seen.words())) == (["stop"], 12)


def test_fault_cache_hits_show_in_usage_and_in_the_counter(tmp_path: Path) -> None:
    body = {**STREAM, "messages": [{"role": "user", "content": "x" * 4000}]}
    with emulator(tmp_path, *FAST, "--fault", "cache-hits", "--fault-after", "1", "--enable-cache-report") as server:
        clean, hit = answer(server.url, body).usage(), answer(server.url, body).usage()
        assert counter(server.url, "cached_tokens_total") == 980
    assert clean is not None
    assert hit is not None
    assert (clean["prompt_tokens_details"], hit["prompt_tokens_details"]) == (
        {"cached_tokens": 0},
        {"cached_tokens": 980},
    )


def test_fault_counter_off_makes_the_counter_disagree_by_6_percent(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "counter-off") as server:
        answer(server.url, {**STREAM, "max_tokens": 100})
        assert counter(server.url, "generation_tokens_total") == pytest.approx(106)


def test_fault_no_acceptance_hides_it_everywhere(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, *SPECULATIVE, "--fault", "no-acceptance") as server:
        answer(server.url, {**STREAM, "max_tokens": 100})
        assert b"spec_" not in get(server.url, "/metrics").body
        for path in ("/server_info", "/v1/loads"):
            assert b"accept_length" not in get(server.url, path).body


def test_faults_begin_after_n_requests_and_strike_every_mth(tmp_path: Path) -> None:
    flags = ("--fault", "http-500", "--fault-after", "2", "--fault-every", "3")
    with emulator(tmp_path, *FAST, *flags) as server:
        statuses = [answer(server.url, {**STREAM, "max_tokens": 1}).status for _ in range(7)]
    assert statuses == [200, 200, 500, 200, 200, 500, 200]


def test_fault_slow_start_is_unhealthy_for_its_seconds(tmp_path: Path) -> None:
    with emulator(tmp_path, "--fault", "slow-start=1.5") as server:
        assert get(server.url, "/health").status == 503
        wait_until(lambda: get(server.url, "/health").status == 200, END_S)
        assert "fired up" in server.log.read_text()


def test_fault_never_ready_never_is(tmp_path: Path) -> None:
    with emulator(tmp_path, "--fault", "never-ready") as server:
        assert get(server.url, "/health").status == 503
        assert "fired up" not in server.log.read_text()


def test_fault_exit_at_start_leaves_an_out_of_memory_traceback(tmp_path: Path) -> None:
    with emulator(tmp_path, "--fault", "exit-at-start") as server:
        assert server.process.wait(END_S) == 1
        assert "CUDA out of memory" in server.log.read_text()


def test_fault_die_mid_round_kills_the_server_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "die-mid-round", "--fault-after", "2") as server:
        assert [answer(server.url, STREAM).clean_end for _ in range(3)] == [True, True, False]
        assert server.process.wait(END_S) == -signal.SIGKILL
        assert "illegal memory access" in server.log.read_text()
        # What was known before the end is in the truth file.
        assert [line["tokens"] for line in server.requests()] == [24, 24, 8]


@pytest.mark.parametrize(
    ("kind", "number", "said"),
    [
        ("cuda-traceback", signal.SIGKILL, "The size of tensor a (8) must match the size of tensor b (10)"),
        ("segfault", signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
    ],
)
def test_faults_that_crash_leave_their_last_words_and_end_by_the_signal(
    tmp_path: Path, kind: str, number: int, said: str
) -> None:
    with emulator(tmp_path, *FAST, "--fault", kind, "--fault-after", "1") as server:
        assert [answer(server.url, STREAM).clean_end for _ in range(2)] == [True, False]
        assert server.process.wait(END_S) == -number
        assert said in server.log.read_text()


def test_fault_hang_lives_and_accepts_and_answers_nothing(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "hang", "--fault-after", "1") as server:
        assert answer(server.url, STREAM).finishes() == ["length"]
        with pytest.raises(TimeoutError):
            answers(server.url, STREAM, limit_s=1)
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), END_S):
            assert server.process.poll() is None
        server.process.kill()


def test_fault_slow_drip_sends_bytes_and_no_event_more(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "slow-drip") as server:

        async def read(received: list[bytes]) -> None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(server.url + "/v1/chat/completions", json=STREAM) as response,
            ):
                while not (received and received[-5:] == [b":"] * 5):
                    received.append(await asyncio.wait_for(response.content.readany(), END_S))

        received: list[bytes] = []
        asyncio.run(read(received))
        wait_until(lambda: bool(server.requests()), END_S)
    assert b"".join(received).count(b'"content":" ') == 8


def test_fault_restart_answers_and_begins_anew_as_the_same_process(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "restart", "--fault-after", "2") as server:
        assert [answer(server.url, STREAM).finishes() for _ in range(3)] == [["length"]] * 3
        wait_until(lambda: len(server.truth("start")) == 2, END_S)
        assert counter(server.url, "generation_tokens_total") == 0
        first, second = server.truth("start")
        assert first["pid"] == second["pid"]


def test_fault_wrong_model_names_another(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "wrong-model", "--model-path", "asked/model") as server:
        for path in ("/v1/models", "/server_info", "/model_info"):
            told = get(server.url, path).body
            assert b"another/model" in told
            assert b"asked/model" not in told


def test_fault_ignore_sigterm_serves_on(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--fault", "ignore-sigterm") as server:
        server.process.terminate()
        wait_until(lambda: "SIGTERM ignored" in server.log.read_text(), END_S)
        assert answer(server.url, STREAM).finishes() == ["length"]
        server.process.kill()


def test_fault_leave_grandchild_leaves_one_in_a_session_of_its_own(tmp_path: Path) -> None:
    with emulator(tmp_path, "--fault", "leave-grandchild") as server:
        (start,) = server.truth("start")
    grandchild = psutil.Process(int(str(start["grandchild_pid"])))
    try:
        assert server.process.returncode == 0
        assert grandchild.name() == "sleep"
    finally:
        grandchild.kill()


def test_sigterm_ends_the_server_at_once_also_with_streams_open(tmp_path: Path) -> None:
    with emulator(tmp_path, "--step-ms", "1:50") as server:

        async def cut_off() -> bool:
            async with aiohttp.ClientSession() as session:
                asking = asyncio.create_task(
                    ask(session, server.url + "/v1/chat/completions", {**STREAM, "max_tokens": 5000})
                )
                await asyncio.sleep(0.5)
                server.process.terminate()
                return (await asyncio.wait_for(asking, END_S)).clean_end

        assert not asyncio.run(cut_off())
        assert server.process.wait(END_S) == 0
        assert len(server.truth("exit")) == 1


def test_a_wrong_key_is_refused_and_the_key_is_in_the_log_but_not_in_the_truth(tmp_path: Path) -> None:
    with emulator(tmp_path, *FAST, "--api-key", "opensesame") as server:
        assert answer(server.url, STREAM).status == 401
        assert answer(server.url, STREAM, key="opensesame").finishes() == ["length"]
        assert get(server.url, "/health").status == 200
        # As SGLang prints its own: whoever keeps the log has to remove it.
        assert "opensesame" in server.log.read_text()
        assert "opensesame" not in server.truth_file.read_text()


def test_the_log_reads_like_sglangs(speculative: Emulator) -> None:
    answer(speculative.url, {**STREAM, "max_tokens": 300})
    line = (
        r"\] Decode batch, #running-req: 1, #token: \d+, .*accept len: 2\.\d+, .*gen throughput \(token/s\): \d+\.\d+"
    )
    assert re.search(line, speculative.log.read_text())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--fault", "http-501"), "http-501"),
        (("--fault", "slow-start=SECONDS"), "slow-start=SECONDS"),
        (("--step-ms", "fast"), "pairs such as"),
        (("--slowdown", "some:0.1"), "whole number"),
        (("--acceptance", "2"), "--speculative-algorithm"),
        (("--profile", "published-eagle3"), "--speculative-algorithm"),
        (("--speculative-algorithm", "EAGLE3", "--acceptance", "4"), "between 1 and 3"),
        (("--step-ms", "2:1,1:2"), "growing"),
        (("--slowdown", "10:1"), "below 1"),
        (("--speed", "0"), "above 0"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused_with_its_reason(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_options(("--port", "1", *flags))
    assert sentence in capsys.readouterr().err


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "perf.emulator", "--port", port]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=START_S)
    assert (done.returncode, port in done.stderr) == (1, True)


def test_the_documentation_names_every_flag_with_its_default_every_fault_and_every_profile() -> None:
    text = (REPOSITORY / "docs" / "emulator.md").read_text()
    actions = parser()._actions
    flags = [flag for action in actions for flag in action.option_strings if flag.startswith("--")]
    missing = [name for name in (*flags, *REQUEST_FAULTS, *PROCESS_FAULTS, *PROFILES) if f"`{name}`" not in text]
    assert missing == ["--help"]
    for action in actions:
        if isinstance(action.default, int | float | str) and action.default not in (False, "==SUPPRESS=="):
            (row,) = (
                line
                for line in text.splitlines()
                if line.startswith("|") and f"`{action.option_strings[0]}`" in line.split("|")[1]
            )
            assert f"`{action.default}`" in row
