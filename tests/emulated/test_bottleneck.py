"""The client is never what was measured: it keeps up where it must, and where it does not its round is not believed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from perf import capacity, health, measure, suite_file
from perf.capacity import Capacity, Proof
from perf.load import Client, Limits, Progress, Target
from perf.metrics import summarize
from perf.null_server import read_truth
from perf.record import LaunchRecord, Order
from perf.rig import GpuProcess, GpuState
from perf.trace import Round
from perf.validity import Observation, check
from perf.workload import Message, PlannedRequest, RoundPlan
from tests.emulated.inner import PACED, REPOSITORY, Desk, started, wait_until
from tests.unit.simulated import RIG

#: The flip: a plain server sends a chunk for every token, one that speculates a chunk for three of them.
STREAMS = 250
PLAIN = ("--step-ms", "20")  # 12,500 tok/s
SPECULATIVE = ("--step-ms", "75", "--tokens-per-chunk", "3")  # 10,000 tok/s
TOKENS = 120

#: Of 700 steps of 2 ms; three hundred chunks come meanwhile.
PAUSE_S = 0.6

#: How far from what the server's own log says a throughput may be.
ERROR = 0.01


TAKEN = GpuState(
    index=0,
    uuid="GPU-1",
    processes=(GpuProcess(pid=4711, name="python"),),
    memory_used_bytes=9 * 1024**3,
    slowed_by=(),
    celsius=31,
    persistent=True,
    power_limit_w=600.0,
)


def plan(level: int, requests: int) -> RoundPlan:
    asked = tuple(
        PlannedRequest(index=index, prompt_id=f"{index}", messages=(Message(role="user", content=f"{index:016x}"),))
        for index in range(requests)
    )
    return RoundPlan(level=level, index=0, warmup=asked[:8], measured=asked)


@contextmanager
def null_server(*flags: str) -> Iterator[str]:
    command = [sys.executable, "-m", "perf.null_server", "--port", "0", *flags]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()


@contextmanager
def both_cores_busy() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        yield


def client(url: str) -> Client:
    return Client(Target(base_url=url, model="null", authorization=None, endpoint="chat", temperature=0.0))


def throughput(folder: Path, *flags: str) -> tuple[float, float]:
    """Tokens per second as the client measured them, and as the server logged that it sent them."""
    truth_file = folder / "truth.npz"
    with null_server(*flags, "--truth", str(truth_file)) as url, client(url) as asking:
        measured = asking.run_round(plan(STREAMS, STREAMS), TOKENS)
    summary = summarize(measured)
    assert summary is not None
    sent = read_truth(truth_file).requests
    window_s = max(request.sent_s[-1] for request in sent) - measured.zero_s
    return summary.output_throughput, STREAMS * TOKENS / window_s


@pytest.mark.parametrize("burst", [(), ("--burst",)], ids=["spread", "in lock step"])
@pytest.mark.parametrize("busy", [False, True], ids=["calm", "both cores busy"])
def test_a_plain_server_is_not_made_slower_than_one_that_speculates(
    burst: tuple[str, ...], busy: bool, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        if busy:
            stack.enter_context(both_cores_busy())
        plain, plain_sent = throughput(tmp_path, *PLAIN, *burst)
        speculative, speculative_sent = throughput(tmp_path, *SPECULATIVE, *burst)
    assert plain == pytest.approx(plain_sent, rel=ERROR)
    assert speculative == pytest.approx(speculative_sent, rel=ERROR)
    assert plain / speculative == pytest.approx(plain_sent / speculative_sent, rel=ERROR)


def reasons(measured: Round) -> list[str]:
    observation = Observation(
        round=measured, before=None, after=None, speculative=False, level_must_be_reached=True, death=None
    )
    return [reason.name for reason in check(observation)]


def test_a_client_that_is_kept_from_reading_is_no_ratio_but_a_reason() -> None:
    """Something else in its process takes nearly all of its time, as a slow display would."""
    with null_server("--step-ms", "5") as url, client(url) as asking:
        calm = asking.run_round(plan(4, 40), 20)
        held = asking.run_round(plan(4, 40), 20, show=lambda _: time.sleep(0.5))
    assert "client was the bottleneck" not in reasons(calm)
    assert "client was the bottleneck" in reasons(held)


def test_a_pause_of_the_client_in_mid_answer_is_seen_though_the_newest_bytes_had_just_come() -> None:
    """What comes last in a pause had not lain long; what came first in it had, and the next request does not tell."""

    def pause(progress: Progress) -> None:
        if progress.elapsed_s < PAUSE_S:
            time.sleep(PAUSE_S)

    with null_server("--step-ms", "2") as url, client(url) as asking:
        calm = asking.run_round(plan(1, 1), 700)
        paused = asking.run_round(plan(1, 1), 700, show=pause)
    assert paused.client is not None
    assert paused.client.lag_max_s is not None
    assert paused.client.lag_max_s > PAUSE_S / 2
    assert "client was the bottleneck" not in reasons(calm)
    assert "client was the bottleneck" in reasons(paused)


def test_a_client_that_is_stopped_nine_tenths_of_the_time_is_named_as_what_was_measured(tmp_path: Path) -> None:
    """Bytes bear the kernel's time and so are not late; but the next request waits for the client."""
    desk = Desk(tmp_path)
    suite = desk.suite(
        {"plain": PACED}, levels=(2,), workload="min_requests = 12\nwarmup_requests = 0", gate="max_launches = 2"
    )
    command, junit = desk.pytest_command("-m", "perf", f"--perf-suite={suite}", "tests/perf")
    with started(command) as process:
        wait_until(lambda: bool(list(desk.campaigns.glob("*/plain-1/server.log"))), "the server was started")
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.63)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.07)
        process.communicate()
    assert process.returncode == 1
    assert "client was the bottleneck" in junit.read_text()
    assert "streams stood idle" in junit.read_text()


def test_a_client_that_is_stopped_within_long_answers_says_for_how_long_it_was_away() -> None:
    """Nothing of it shows in the closed loop, and little in the lag: what came meanwhile bears the time of its end."""
    stop_s = 0.3
    with null_server("--step-ms", "20") as url, client(url) as asking:
        measured = asking.run_round(plan(4, 4), 100, show=lambda _: time.sleep(stop_s))
    fared = measured.client
    assert fared is not None
    assert fared.turnaround_share == 0
    assert fared.away_max_s > 0.9 * (stop_s - health.BEAT_S)
    assert fared.away_share > 0.3
    assert "client was the bottleneck" in reasons(measured)


def test_how_the_client_fared_is_kept_with_every_round(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.measure(desk.suite({"plain": PACED}))
    (launch, *_) = desk.campaign().suites[0].launches
    health = launch.measurements[0].rounds[0].client
    assert health is not None
    assert health.processes == 1
    assert health.lag_p99_s is not None
    assert 0 <= health.lag_p99_s < 1
    assert 0 < health.cpu_share < 1
    assert health.run_queue_share is not None


@pytest.mark.parametrize("told", ["0 0 0\n", "", "1 x 3\n", None])
def test_a_kernel_that_does_not_count_the_wait_for_a_core_is_not_taken_for_a_calm_one(
    told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SCHEDSTAT", tmp_path / "schedstat")
    if told is not None:
        health.SCHEDSTAT.write_text(told)
    with closing(asyncio.new_event_loop()) as loop:
        fared = health.Watch(loop).health(array("d"), turnaround_s=0.0, answering_s=1.0)
    assert fared.run_queue_share is None


def test_a_server_is_not_started_on_gpus_that_others_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "GPU_SETTLE_S", 1.0)
    looks = iter([(TAKEN,), (), *[(TAKEN,)] * 99])  # free at the second look, and later not at all
    bench = measure.Bench(
        suite=suite_file.load(Desk(tmp_path).suite({"plain": PACED})),
        folder=tmp_path,
        prefix="",
        base_url=None,
        show=measure.Show(line=lambda _: None, live=lambda _: None),
        limits=Limits(),
        capacity=Capacity(RIG, lambda _: None),
        gpus=lambda: next(looks),
    )

    def launched(ordinal: int) -> LaunchRecord:
        return bench.measure(Order(variant="plain", arm="candidate", ordinal=ordinal, block=ordinal, levels=(2,)))

    assert launched(1).measurements[0].all_reasons == ()
    (taken,) = launched(2).measurements
    assert [reason.name for reason in taken.reasons] == ["GPU not ours"]
    assert (tmp_path / "plain-1" / "server.log").exists()
    assert not (tmp_path / "plain-2" / "server.log").exists()


# The proof of what the client can carry.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sglang-perf" / "capacity.json"


def test_what_was_carried_is_shown_once_and_remembered(cache: Path) -> None:
    said: list[str] = []
    first = Capacity(RIG, said.append).prove(8, 400.0, 1)
    assert first >= 400
    assert len(said) == 1
    assert "null server" in said[0]
    again = Capacity(RIG, said.append)
    assert again.prove(8, 400.0, 1) == again.prove(4, 200.0, 2) == first
    assert len(said) == 1
    assert json.loads(cache.read_text())["proofs"]


def test_what_was_shown_for_few_streams_or_more_processes_is_not_shown_for_others(cache: Path) -> None:
    cache.parent.mkdir()
    known = Capacity(RIG, lambda _: None)
    known.proofs = (Proof(streams=8, processes=2, chunks_s=1000.0), Proof(streams=4, processes=1, chunks_s=500.0))
    assert known.carried(8, 2) == 1000
    assert known.carried(9, 2) == 0
    assert known.carried(8, 1) == 0
    assert known.carried(2, 1) == 500


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"host": 1, "proofs": []}'])
def test_a_damaged_cache_is_shown_anew(text: str, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    assert Capacity(RIG, lambda _: None).proofs == ()


def test_a_proof_of_another_machine_or_version_counts_for_nothing(cache: Path) -> None:
    kept = {"host": "another", "proofs": [{"streams": 999, "processes": 1, "chunks_s": 1e9}]}
    cache.parent.mkdir()
    cache.write_text(json.dumps(kept))
    assert Capacity(RIG, lambda _: None).carried(1, 1) == 0


def test_a_level_that_the_client_was_not_shown_to_carry_is_not_believed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_UNREAD_CHUNKS", -1)  # fewer than none are left unread by nobody
    tried = Capacity(RIG, lambda _: None)
    assert tried.prove(2, 100.0, 1) == 0.0
    assert tried.why_not == "about 0 chunks of a stream lay unread"
    assert not cache.exists()


def test_many_streams_of_a_slow_server_are_shown_at_a_rate_that_is_enough(cache: Path) -> None:
    """A chunk every half a second on each: more than was asked for, and no longer than it must."""
    assert Capacity(RIG, lambda _: None).prove(400, 50.0, 1) >= 50
    assert cache.exists()
