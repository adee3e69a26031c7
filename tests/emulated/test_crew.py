"""A level shared by processes: asked and told as by one, and nobody is left, whoever ends whom. Real processes."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from perf import crew, interpreter
from perf.crew import AnyClient, client
from perf.load import Limits, Progress, Target
from perf.metrics import summarize
from perf.trace import Round
from perf.workload import Message, PlannedRequest, RoundPlan
from tests.emulated.inner import PACED, Desk, started, wait_until
from tests.emulated.test_load import END, GOOD, PATIENCE_S, SOME, TOKENS, Stub, answer, head, stream, stub, then_silence
from tests.emulated.test_null_server import null_server

#: An answer that is still on its way when everything else has been told to everybody.
SLOW_S = 2.0

#: Longer than a process at work is silent on a busy machine.
SHORT_SILENCE_S = 5

#: Arrivals are stamped by the kernel on another clock, and put on ours.
KERNEL_CLOCK_S = 0.001

#: A client of two processes in the middle of a round that takes minutes.
AT_WORK = """
import sys
from tests.emulated.test_crew import asking, plan
with asking(sys.argv[1], 2) as client:
    client.run_round(plan(4, 400), 64, show=lambda seen: print(seen.chunks, flush=True))
"""


def plan(level: int, requests: int) -> RoundPlan:
    """Requests of which the null server's truth knows each by its beginning."""

    def asked(phase: str, count: int) -> tuple[PlannedRequest, ...]:
        texts = [f"{phase}{n:015x}\n\nSort." for n in range(count)]
        return tuple(
            PlannedRequest(index=n, prompt_id=f"p{n}", messages=(Message(role="user", content=text),))
            for n, text in enumerate(texts)
        )

    return RoundPlan(level=level, index=0, warmup=asked("w", 5), measured=asked("m", requests))


def asking(url: str, processes: int, *, authorization: str | None = None, limits: Limits | None = None) -> AnyClient:
    target = Target(base_url=url, model="null", authorization=authorization, endpoint="chat", temperature=0)
    return client(target, processes=processes, limits=limits)


def at(server: Stub) -> str:
    return f"http://127.0.0.1:{server.port}"


def at_work() -> list[psutil.Process]:
    """The processes of the crews that this process has."""
    return [each for each in psutil.Process().children() if any("perf.crew" in word for word in each.cmdline())]


def labels(measured: Round) -> list[str]:
    return [request.failure.label if request.failure else "good" for request in measured.requests]


def details(measured: Round) -> set[str]:
    return {request.failure.detail for request in measured.requests if request.failure}


def once(act: Callable[[], None]) -> Callable[[Progress], None]:
    """Does it when the first tokens have come, and never again."""
    done: list[Progress] = []

    def show(seen: Progress) -> None:
        if seen.chunks and not done:
            done.append(seen)
            act()

    return show


def kill_one() -> None:
    at_work()[0].kill()


def suspend_one() -> None:
    at_work()[0].suspend()


# The same as one process.


@pytest.mark.parametrize("processes", [1, 3])
def test_several_processes_ask_and_tell_what_one_does(processes: int, tmp_path: Path) -> None:
    shown: list[Progress] = []
    with null_server(tmp_path, "--tokens-per-chunk", "3", "--step-ms", "20") as server:
        with asking(server.url, processes) as client:
            warm = client.warm_up(plan(7, 21), 4)
            # Spread, so that each process begins at another time.
            measured = client.run_round(plan(7, 21), 20, start_spread_s=0.2, show=shown.append)
        truth = server.end()
    assert labels(warm) == ["good"] * 5
    assert labels(measured) == ["good"] * 21
    assert [request.prompt_id for request in measured.requests] == [f"p{n}" for n in range(21)]
    assert (measured.level, measured.planned_requests, measured.requested_tokens) == (7, 21, 20)
    assert measured.client is not None
    assert measured.client.processes == processes
    summary = summarize(measured)
    assert summary is not None
    assert (summary.output_tokens, summary.peak_concurrency) == (21 * 20, 7)
    assert (shown[-1].finished, shown[-1].planned, shown[-1].tokens) == (21, 21, 21 * 20)
    told = {request.id: request for request in truth.requests}
    assert len(told) == 5 + 21
    for request in measured.requests:
        sent = told[f"m{request.index:015x}"]
        assert list(request.chunk_tokens or ()) == sent.tokens.tolist()
        # On one clock, whichever process it was: nothing arrives before it is sent.
        assert measured.zero_s + request.sent_s < sent.arrival_s + KERNEL_CLOCK_S
        assert measured.zero_s + request.chunk_times_s[-1] > sent.sent_s[-1] - KERNEL_CLOCK_S


def test_exactly_the_level_is_in_flight_and_the_first_wave_waits_until_everybody_is_connected() -> None:
    level, in_flight, most, connected = 8, 0, 0, set[int]()
    changed = asyncio.Condition()

    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        nonlocal in_flight, most
        connected.add(server.connections)
        async with changed:
            in_flight += 1
            most = max(most, in_flight)
            changed.notify_all()
            await changed.wait_for(lambda: most == level)
        await asyncio.sleep(0.02)
        in_flight -= 1
        writer.write(stream(*GOOD) + END)

    with stub(respond) as server, asking(at(server), 3) as client:
        measured = client.run_round(plan(level, 32), TOKENS)
    assert labels(measured) == ["good"] * 32
    assert most == level
    assert connected == {level}


def test_a_level_takes_no_more_processes_than_it_has_streams_and_they_stay_for_the_next() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, asking(at(server), 4) as client:
        seen = [client.run_round(plan(level, 4), TOKENS) for level in (1, 3, 2)]
        assert len(at_work()) == 3
    assert [each.client and each.client.processes for each in seen] == [1, 3, 2]
    assert all(labels(each) == ["good"] * 4 for each in seen)


@pytest.mark.parametrize("processes", [1, 3])
def test_starts_are_spread_over_the_same_moments_in_every_launch_however_many_processes_there_are(
    processes: int,
) -> None:
    level, spread_s = 15, 1.0
    chosen = random.Random(f"{level}/0")
    moments = sorted(chosen.uniform(0, spread_s) for _ in range(level))
    with stub(then_silence(stream(*SOME))) as server:
        limits = Limits(between_tokens_s=2 * spread_s)
        with asking(at(server), processes, limits=limits) as client:
            client.warm_up(RoundPlan(level=1, index=0, warmup=(), measured=()), TOKENS)
            before_s = time.perf_counter()
            measured = client.run_round(plan(level, level), TOKENS, start_spread_s=spread_s)
    sent = sorted(measured.zero_s + request.sent_s for request in measured.requests)
    assert len(sent) == level
    late = [one_s - before_s - moment_s for one_s, moment_s in zip(sent, moments, strict=True)]
    assert min(late) >= 0
    # Other moments, or all at once, would differ from these by 0.7 s and more.
    assert max(late) - min(late) < 0.4 * spread_s


@pytest.mark.parametrize("end", ["a failure", "the death of the server"])
def test_starts_that_are_yet_to_come_are_not_waited_for(end: str) -> None:
    spread_s = 10 * PATIENCE_S
    dead = end == "the death of the server"
    refuse = answer(head("text/plain", status="500 Internal Server Error") + END)
    with stub(refuse) as server, asking(at(server), 1) as client:
        began_s = time.monotonic()
        measured = client.run_round(plan(500, 500), TOKENS, start_spread_s=spread_s, died=lambda: dead)
        took_s = time.monotonic() - began_s
    assert set(labels(measured)) <= {"http_500", "connection"}
    assert len(measured.requests) < 50
    assert took_s < spread_s / 2


# Failures.


def test_after_a_failure_in_one_process_nobody_sends_anything_more() -> None:
    async def respond(server: Stub, writer: asyncio.StreamWriter) -> None:
        if len(server.asked) == 4:
            while len(server.asked) < 6:  # all of the first wave
                await asyncio.sleep(0.01)
            await answer(head("text/plain", status="500 Internal Server Error") + END)(server, writer)
        else:
            await asyncio.sleep(SLOW_S)
            await answer(stream(*GOOD) + END)(server, writer)

    with stub(respond) as server, asking(at(server), 3) as client:
        measured = client.run_round(plan(6, 60), TOKENS)
    assert sorted(labels(measured)) == ["good"] * 5 + ["http_500"]
    assert measured.planned_requests == 60
    assert len(server.asked) == 6


def test_a_server_that_died_ends_the_round_of_every_process_at_once() -> None:
    with stub(then_silence(stream(*SOME))) as server, asking(at(server), 2) as client:
        began_s = time.monotonic()
        measured = client.run_round(plan(4, 40), TOKENS, died=lambda: len(server.asked) >= 4)
        took_s = time.monotonic() - began_s
    assert labels(measured) == ["connection"] * 4
    assert details(measured) == {"the server exited while this request was in flight"}
    assert took_s < Limits().between_tokens_s


def test_a_process_that_is_killed_fails_the_requests_of_its_share_and_is_replaced_for_the_next_round(
    tmp_path: Path,
) -> None:
    with null_server(tmp_path, "--step-ms", "20") as server, asking(server.url, 2) as client:
        measured = client.run_round(plan(4, 400), 20, show=once(kill_one))
        after = client.run_round(plan(4, 8), 4)
    failed = [request.index for request in measured.requests if request.failure]
    assert failed in ([n for n in range(400) if n % 4 % 2 == share] for share in (0, 1))
    assert set(labels(measured)) == {"good", "connection"}
    assert details(measured) == {"a process of the client ended: signal 9 (Killed)"}
    assert len(measured.requests) < 400
    assert summarize(measured) is None
    assert labels(after) == ["good"] * 8
    assert after.client is not None
    assert after.client.processes == 2


def test_a_process_that_says_nothing_any_more_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with null_server(tmp_path, "--step-ms", "20") as server, asking(server.url, 2) as client:
        client.run_round(plan(2, 2), 4)
        monkeypatch.setattr(crew, "SILENT_S", SHORT_SILENCE_S)
        measured = client.run_round(plan(2, 200), 20, show=once(suspend_one))
    assert details(measured) == {
        f"a process of the client ended: it said nothing for {SHORT_SILENCE_S} s and was killed"
    }
    assert labels(measured).count("connection") == 100


def test_a_process_that_cannot_start_is_told_with_the_last_line_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_BOOT", "raise SystemExit('no room for me')")
    with stub(answer(stream(*GOOD) + END)) as server, asking(at(server), 2) as client:
        measured = client.run_round(plan(2, 4), TOKENS)
    assert labels(measured) == ["connection"] * 4
    assert details(measured) == {"a process of the client ended: exit code 1: no room for me"}
    assert server.asked == []


# Nobody is left, and nobody tells.


def test_a_crew_that_is_done_leaves_no_process_not_even_a_dead_one() -> None:
    with stub(answer(stream(*GOOD) + END)) as server, asking(at(server), 3) as client:
        client.run_round(plan(3, 3), TOKENS)
        processes = at_work()
        assert len(processes) == 3
    assert not any(process.is_running() for process in processes)


def test_an_interrupt_of_a_process_of_the_crew_disturbs_nothing(tmp_path: Path) -> None:
    def interrupt() -> None:
        for process in at_work():
            process.send_signal(signal.SIGINT)

    with null_server(tmp_path, "--step-ms", "20") as server, asking(server.url, 2) as client:
        measured = client.run_round(plan(4, 16), 20, show=once(interrupt))
    assert labels(measured) == ["good"] * 16


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_the_client_ends_its_processes(end: signal.Signals, tmp_path: Path) -> None:
    with (
        null_server(tmp_path, "--step-ms", "20") as server,
        started([sys.executable, "-c", AT_WORK, server.url]) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdecimal()
        crew = psutil.Process(process.pid).children()
        assert len(crew) == 2
        if end is signal.SIGINT:
            os.killpg(process.pid, end)  # as a terminal does
        else:
            process.send_signal(end)
        _, error = process.communicate(timeout=PATIENCE_S)
        wait_until(lambda: not any(each.is_running() and each.status() != "zombie" for each in crew), "they are gone")
    assert process.returncode == -end
    assert error.count("Traceback") == (1 if end is signal.SIGINT else 0)


def test_a_key_is_sent_to_the_server_and_stands_in_no_command_line_and_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = "s3cret-7f"
    monkeypatch.setenv("THE_KEY", secret)
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    told: list[str] = []

    def look() -> None:
        told.extend(
            Path(f"/proc/{process.pid}/{file}").read_text(encoding="utf-8")
            for process in at_work()
            for file in ("cmdline", "environ")
        )

    async def respond(_: Stub, writer: asyncio.StreamWriter) -> None:
        writer.write(stream(*SOME))
        await asyncio.sleep(SLOW_S)
        writer.close()

    with stub(respond) as server, asking(at(server), 2, authorization=f"Bearer {secret}") as client:
        client.run_round(plan(2, 2), TOKENS, show=once(look))
    assert len(told) == 4
    assert "perf.crew" in told[0]
    assert "PATH=" in told[1]
    assert not any(secret in text for text in told)
    assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {secret}"] * 2


# In a suite.


def test_a_suite_says_how_many_processes_share_its_levels_and_every_round_says_how_many_did(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"plain": PACED}, levels=(1, 2), workload="client_processes = 2\nstart_spread_s = 0.1")
    measured = desk.measure(suite, "--perf-max-launches=1")
    assert set(measured.words().values()) == {"NO_BASELINE"}, measured.screen
    (launch,) = desk.campaign().suites[0].launches
    rounds = {each.level: each.rounds[0] for each in launch.measurements}
    assert {level: seen.client and seen.client.processes for level, seen in rounds.items()} == {1: 1, 2: 2}
