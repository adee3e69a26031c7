"""SGLang's log is read as it is written: its decode batches, and the line that says why it died."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.server_log import MAX_DISAGREEMENT, MIN_LINES, ServerLog, is_ending, reason, remarks, summarize

CAPTURES = Path(__file__).parents[1] / "data" / "sglang"


def decode(running: int, speed: float, *, rank: str = "", queue: int = 0, accept: float | None = None) -> bytes:
    """A line of SGLang 0.5.23."""
    accepted = "" if accept is None else f"accept len: {accept:.2f}, accept rate: 0.70, "
    return (
        f"[2026-02-01 02:00:00{rank}] Decode batch, #running-req: {running}, #token: 826, token usage: 0.03, {accepted}"
        f"cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: {queue}\n"
    ).encode()


def read(*lines: bytes, interval: int | None = 40) -> ServerLog:
    said = summarize(lines, interval=interval)
    assert said is not None
    return said


# Decode batches


def test_a_round_is_summed_up_and_what_went_on_before_it_is_left_out() -> None:
    first = decode(1, 3.0, accept=1.0)  # over the time since the round before
    said = read(first, *(decode(8, speed, accept=accept) for speed, accept in ((600, 3.5), (640, 4.5), (620, 4.0))))
    assert said == ServerLog(
        lines=4,
        steps=160,
        running_median=8,
        running_max=8,
        queue_max=0,
        throughput=620,
        acceptance_length=4.0,
        eager=0,
        retractions=0,
        switches=0,
    )
    assert read(first).throughput is read(first).acceptance_length is None
    assert read(first, interval=None).steps is None


def test_numbers_that_nobody_measures_are_none_and_sums_over_ranks_are_bounded() -> None:
    tiny = decode(8, 0).replace(b"0.00,", b"1e-300, accept len: 1e-200,")
    assert read(tiny, tiny, tiny).throughput is read(tiny, tiny, tiny).acceptance_length is None
    said = read(*(f"[DP{n}] Decode batch, #running-req: 1e12, #queue-req: 1e12".encode() for n in range(1100)))
    assert said.running_median == said.running_max == said.queue_max == 1e12
    retracted = (f"[DP{n}] #retracted_reqs: 999999999\n".encode() for n in range(1100))
    assert read(decode(8, 1), *retracted).retractions == 1e12


@pytest.mark.parametrize(
    "line",
    [
        "[2026-02-01 02:00:00] Decode batch, #running-req: 18, #token: 16, token usage: 0.71, {}",
        "[2026-02-01 02:00:00 TP0] Decode batch. #running-req: 18, #token: 16, token usage: 0.71, {}",
        "[2026-02-01 02:00:00 DP0 TP0 EP0] Decode batch, #running-req: 18, #full token: 16, #swa token: 5, {}",
        "[2026-02-01 02:00:00] Decode batch [124], #running-req: 18, #token: 16, {}",
        "[gpu=0] Decode batch. #running-req: 18, #token: 16, token usage: 0.71, {}",
        "2026-02-01T02:00:00Z a-host INFO TP0] Decode batch, #running-req: 18, #full token: 9, mamba usage: 0.1, {}",
        "2026-02-01T02:00:00.1Z [2026-02-01 02:00:00 TP0] Decode batch, #running-req: 18, {}",
        "Decode batch. #running-req: 18, #token: 16, {}",
    ],
)
def test_every_spelling_of_a_decode_batch_is_read(line: str) -> None:
    text = line.format("accept len: 2.40, cuda graph: False, gen throughput (token/s): 2520.18, #queue-req: 3,\r\n")
    said = read(text.encode(), text.encode())
    assert (said.lines, said.running_max, said.queue_max, said.eager) == (2, 18, 3, 2)
    assert (said.throughput, said.acceptance_length) == (2520.18, 2.4)


def test_schedulers_that_share_the_requests_are_added_up() -> None:
    ranks = [
        decode(running, speed, rank=f" DP{number} TP0") for number, (running, speed) in enumerate([(8, 100), (6, 90)])
    ]
    said = read(*ranks, *ranks, *ranks)
    assert (said.lines, said.steps, said.running_max, said.throughput) == (6, 120, 14, 190)


def test_the_stages_of_a_pipeline_run_the_same_requests() -> None:
    first, last = (decode(8, speed, rank=f" PP{stage} TP0") for stage, speed in enumerate((100, 98)))
    said = read(first, last, first, last)
    assert (said.lines, said.steps, said.running_max, said.throughput) == (2, 80, 8, 100)
    assert summarize([last], interval=40) is None


def test_what_every_rank_says_of_the_same_requests_is_counted_once() -> None:
    full = (
        "[2026-02-01 02:00:00{}] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 9\n"
    )
    groups = [f" DP{group} TP{rank}" for group, rank in ((0, 0), (0, 1), (1, 2), (1, 3))]
    assert read(*(full.format(rank).encode() for rank in groups), decode(8, 600)).retractions == 6
    assert read(*(full.format(f" PP{stage} TP0").encode() for stage in (0, 1)), decode(8, 600)).retractions == 3


def test_requests_that_were_put_back_and_switches_of_an_adaptive_server_are_counted() -> None:
    full = b"[2026-02-01 02:00:00] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.1\n"
    switch = b"[2026-02-01 02:00:00] Switch adaptive runtime state: steps 3 -> 0, draft_tokens 4 -> 1\n"
    said = read(full, decode(8, 600), switch, full)
    assert (said.retractions, said.switches) == (6, 1)


def test_a_prompt_in_the_log_is_no_decode_batch() -> None:
    quoted = (
        b"[2026-02-01 02:00:00] Receive: obj=GenerateReqInput(text='Decode batch, #running-req: 99, #queue-req: 9')\n"
    )
    assert summarize([quoted], interval=40) is None
    assert summarize([], interval=40) is None


@pytest.mark.parametrize("value", ["nan", "inf", "-3", "1e99", "", "eight", "9" * 5000])
def test_a_number_that_cannot_be_is_none(value: str) -> None:
    line = f"Decode batch, #running-req: 8, gen throughput (token/s): {value}, #queue-req: {value}\n".encode()
    said = read(line, line)
    assert (said.throughput, said.queue_max) == (None, None)
    assert summarize([f"Decode batch, #running-req: {value}, #token: 1\n".encode()], interval=40) is None


FIELDS = (b"accept len: ", b"#queue-req: ", b"cuda graph: False", b"gen throughput (token/s): ", b"#retracted_reqs: 1")
SHARDS = (
    b"Decode batch",
    b"Decode batch, #running-req: ",
    *FIELDS,
    b"[",
    b"]",
    b", ",
    b"8",
    b"\xff\xfe",
    b"\n",
    b"1e308",
)


@given(st.lists(st.lists(st.sampled_from(SHARDS) | st.binary(max_size=20), max_size=8).map(b"".join), max_size=8))
def test_no_bytes_break_the_reading(lines: list[bytes]) -> None:
    said = summarize(lines, interval=40)
    assert said is None or (said.lines > 0 and said.running_max >= said.running_median >= 0)


def test_a_real_log_is_read() -> None:
    with (CAPTURES / "scheduler_killed.log").open("rb") as lines:
        said = read(*lines)
    assert (said.lines, said.steps, said.running_max, said.queue_max) == (9, 360, 1, 0)
    assert said.throughput == pytest.approx(199.52)
    assert said.acceptance_length == pytest.approx(1.494, abs=0.001)


# What is said of it


def log(**changes: object) -> ServerLog:
    fields: dict[str, object] = {
        "lines": 20,
        "steps": 800,
        "running_median": 100.0,
        "running_max": 100,
        "queue_max": 0,
        "throughput": 1000.0,
        "acceptance_length": None,
        "eager": 0,
        "retractions": 0,
        "switches": 0,
    }
    return ServerLog(**(fields | changes))  # type: ignore[arg-type]


def told(said: ServerLog, *, throughput: float = 1000.0, graphs: bool = True) -> list[str]:
    return list(remarks(said, level=100, throughput=throughput, graphs=graphs))


def test_a_server_that_runs_what_it_is_asked_is_not_spoken_of() -> None:
    assert told(log()) == []
    assert told(log(running_max=48)) == []  # nobody waited: the client kept no more in flight
    assert told(log(running_max=95, queue_max=5)) == []  # while a burst is prefilled


def test_a_server_that_never_runs_the_level_is_told_with_how_many_waited() -> None:
    (said,) = told(log(running_max=48, queue_max=52))
    assert "never ran more than 48 of 100 requests at once, and up to 52 waited in it" in said


def test_a_log_that_contradicts_the_client_is_a_remark_and_a_short_one_is_none() -> None:
    (said,) = told(log(), throughput=1000 * (1 - MAX_DISAGREEMENT) - 10)
    assert said == "the server's log says 1,000 tok/s while it decodes, the client saw 740: 26 % less"
    assert told(log(), throughput=1000 * (1 + MAX_DISAGREEMENT) + 10)[0].endswith("26 % more")
    assert told(log(), throughput=1000 * (1 - MAX_DISAGREEMENT) + 10) == []
    assert told(log(lines=MIN_LINES - 1), throughput=1.0) == []
    assert told(log(throughput=None), throughput=1.0) == []


def test_a_full_cache_and_missing_graphs_are_told() -> None:
    assert told(log(retractions=7)) == ["the server's cache was full: it put 7 requests back"]
    assert told(log(eager=5)) == ["decode batches without a CUDA graph: 5 of the 20 that the server logged"]
    assert told(log(eager=20), graphs=False) == []


# Why it died

TRACE = """Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 4062, in run_scheduler_process
    scheduler.run_event_loop()
    ^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
MISMATCH = "RuntimeError: The size of tensor a (8) must match the size of tensor b (4) at non-singleton dimension 1"
SIGQUIT = "[2026-02-01 02:00:00] Received sigquit from a child process. It usually means the child failed.\n"
CRASHED = "[2026-02-01 02:00:00] Subprocess detokenizer (pid=7) crashed with exit code -9. Triggering SIGQUIT\n"
HIT = f"[2026-02-01 02:00:00 TP0] Scheduler hit an exception: {TRACE}"
PEER = "RuntimeError: [../third_party/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711\n"
NOISE = """/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: There appear to be 3 leaked
  warnings.warn('resource_tracker: There appear to be %d '
Exception ignored in atexit callback: <function f at 0x7f>
Loading safetensors checkpoint shards:  50% | 1/2 [00:01<00:01]\rCapturing batches (bs=8): 100%|##########| 4/4
[rank0]:[W201 02:00:00 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called
"""
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 94 GiB"
)

DEATHS = {
    "a tensor size in the graph runner": (f"{HIT}{MISMATCH}\n\n{SIGQUIT}{NOISE}", MISMATCH),
    "sigquit is first": (f"{SIGQUIT}{HIT}{MISMATCH}\n{NOISE}", MISMATCH),
    "chained": (
        f"{HIT}{MISMATCH}\n\nDuring handling of the above exception, another exception occurred:\n\n{TRACE}"
        f"Exception: Capture CUDA graph failed: {MISMATCH[14:]}\nPossible solutions:\n1. a flag\n{SIGQUIT}",
        f"Exception: Capture CUDA graph failed: {MISMATCH[14:]}",
    ),
    "another rank loses its peer first": (
        f"{HIT.replace('TP0', 'TP1')}{PEER}\n{HIT}{OUT_OF_MEMORY}\n{SIGQUIT}",
        OUT_OF_MEMORY,
    ),
    "only the peers are left": (f"{HIT}{PEER}{SIGQUIT}", PEER.strip()),
    "out of memory": (f"{TRACE}{OUT_OF_MEMORY}\n", OUT_OF_MEMORY),
    "an illegal access": (
        f"{TRACE}torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call.\n",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    "in C++": (
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: unspecified launch failure\nException raised from here (most recent call first):\n",
        "what(): CUDA error: unspecified launch failure",
    ),
    "segfault": (
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent first):\n  File "x.py"\n'
        "[2026-02-01 02:00:00] Subprocess scheduler_0 (pid=7) crashed with exit code -11. Cleaning up.\n",
        "Fatal Python error: Segmentation fault",
    ),
    "killed, and a scheduler still writes": (
        f"{CRASHED}[2026-02-01 02:00:00] SIGQUIT received. signum=None, frame=None.\n{decode(8, 600).decode()}",
        CRASHED.partition("] ")[2].strip(),
    ),
    "NCCL": (
        f"{HIT}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error\n{SIGQUIT}",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error",
    ),
    "killed while it loads": (
        "[2026-02-01 02:00:00] Load weight begin. avail mem=90 GB\n"
        f"{TRACE}RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).\n",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).",
    ),
    "an argument": (
        "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --specluative-num-steps 3\n",
        "launch_server.py: error: unrecognized arguments: --specluative-num-steps 3",
    ),
    "a value": (
        f"{TRACE}ValueError: Unsupported speculative algorithm\n{NOISE}",
        "ValueError: Unsupported speculative algorithm",
    ),
    "an assertion without words": (f"{TRACE}AssertionError\n", "AssertionError"),
    "a class of no known kind": (f"{HIT}queue.Empty\n{SIGQUIT}", "queue.Empty"),
    "the port": (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use\n",
        "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
    ),
    "no module": ("/usr/bin/python3: No module named sglang\n", "/usr/bin/python3: No module named sglang"),
    "the traceback was cut off": (f"{HIT[:60]}\n{SIGQUIT}", HIT[:60].strip()),
    "a child failed": (SIGQUIT, SIGQUIT.partition("] ")[2].strip()),
}


@pytest.mark.parametrize("death", DEATHS)
def test_the_line_that_says_why_is_found(death: str) -> None:
    tail, why = DEATHS[death]
    found = reason(tail)
    assert found is not None
    assert found.removeprefix("[2026-02-01 02:00:00 TP0] ") == why.removeprefix("[2026-02-01 02:00:00 TP0] ")


#: What real failures of SGLang 0.5.23 say; how they were made stands beside them.
REAL = {
    "scheduler_killed": "Subprocess scheduler_0 (pid=5654) crashed with exit code -9. Triggering SIGQUIT",
    "wrong_model_path": "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find",
    "out_of_memory_at_start": "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator",
    "draft_does_not_fit": "AssertionError: Attempted to load weight (torch.Size([64, 128])) into parameter",
}


@pytest.mark.parametrize("capture", REAL)
def test_the_line_that_says_why_is_found_in_a_real_log(capture: str) -> None:
    found = reason((CAPTURES / f"{capture}.log").read_text())
    assert found is not None
    assert found.startswith(REAL[capture])


@pytest.mark.parametrize("tail", [HIT, SIGQUIT, CRASHED, (CAPTURES / "scheduler_killed.log").read_text()])
def test_a_server_that_lost_a_part_says_that_it_ends(tail: str) -> None:
    assert is_ending(f"{decode(8, 600).decode()}{tail}{NOISE}")


@pytest.mark.parametrize("tail", ["", NOISE, f"{TRACE}ValueError: of one request\n"])
def test_a_server_that_had_an_error_does_not_say_that_it_ends(tail: str) -> None:
    assert not is_ending(f"{decode(8, 600).decode()}{tail}")


def test_an_error_after_which_it_still_served_did_not_end_it() -> None:
    served = decode(8, 600).decode()
    assert reason(f"{TRACE}ValueError: of one request\n{served}") is None
    assert (
        reason(f'{TRACE}ValueError: of one request\nINFO:     127.0.0.1:5 - "POST /generate HTTP/1.1" 200 OK\n') is None
    )
    assert reason(f"{TRACE}ValueError: of one request\n{served}{TRACE}{OUT_OF_MEMORY}\n") == OUT_OF_MEMORY
    # What hit a scheduler ends the server, though another scheduler may still write a line.
    assert reason(f"{HIT}{MISMATCH}\n{served}{SIGQUIT}") == MISMATCH


@pytest.mark.parametrize("tail", ["", NOISE, decode(8, 600).decode(), "[2026-02-01 02:00:00] The server is fired up\n"])
def test_a_log_that_says_no_reason_gives_none(tail: str) -> None:
    assert reason(tail) is None


def pieces() -> Iterator[str]:
    for tail, _ in DEATHS.values():
        yield from tail.splitlines(keepends=True)
    yield from ("\x1b[2J", "\u202e", "\x00", "hit an exception: ", "a." * 50, "A" * 3000 + ": ", " " * 500)


@given(st.lists(st.sampled_from(list(pieces())) | st.text(max_size=20), max_size=30), st.integers())
def test_whatever_stands_in_a_log_its_reason_is_one_short_harmless_line(lines: list[str], seed: int) -> None:
    random.Random(seed).shuffle(lines)
    found = reason("".join(lines))
    assert found is None or (found.isprintable() and 0 < len(found) <= 300)
