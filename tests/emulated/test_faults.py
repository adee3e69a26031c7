"""The fault matrix: whatever a server or a machine does, nothing passes silently, nothing is left and nothing is lost.

docs/faults.md has a row for each; the last tests hold the page to the tests that it names.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which

import psutil
import pytest

from perf.__main__ import main
from perf.emulator import PROCESS_FAULTS, REQUEST_FAULTS
from tests.emulated.inner import PACED, REPOSITORY, Desk, Run, alive_with, run
from tests.unit import simulated
from tests.unit.test_baseline import without_root

PAGE = REPOSITORY / "docs" / "faults.md"

SPECULATIVE = ("--speculative-algorithm", "EAGLE3", "--acceptance", "2")
#: Warm-up and one request of the round are well.
LATER = ("--fault-after", "2")
#: Warm-up and the first round, of four requests, are well but for what comes after the last of them.
AFTER_A_ROUND = ("--fault-after", "4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A variant with something planted, and what its verdict says; None where it must be measured all the same."""

    flags: tuple[str, ...] = ()
    stranger: str | None = None
    reason: str | None


SAYS_IT_SPECULATES = """
class Handler(Handler):
    def do_GET(self):
        if self.path == "/server_info":
            self.answer(200, {"version": "1.0", "speculative_algorithm": "EAGLE3"})
        else:
            super().do_GET()
"""
#: It tells a counter as long as there is one.
COUNTS = """
class Handler(Handler):
    def do_GET(self):
        if self.path == "/metrics" and COUNTED is not None:
            body = f"sglang:generation_tokens_total {COUNTED}\\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            super().do_GET()
"""
LOSES_ITS_COUNTERS = f"""{COUNTS}
COUNTED = "5000"
class Handler(Handler):
    def stream(self, *asked):
        super().stream(*asked)
        global COUNTED, SERVED
        SERVED += 1
        COUNTED = "NaN" if SERVED > 1 else COUNTED  # the first is the warm-up
SERVED = 0
"""
#: As long as they are, and with the last words of SGLang's launcher behind them.
TRACEBACK = """
for number in range(40):
    print(f'  File "/opt/somewhere/far/down/in/site-packages/module_{number}.py", line {number}, in a_function_of_it')
print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. " + "GPU 0 has so much. " * 20)
print("Received sigquit from a child process. It usually means the child failed.")
raise SystemExit(1)
"""
#: Tells the test its port, and leaves it to a stranger.
LEAVES_ITS_PORT = """
from pathlib import Path
Path(__file__).with_name("port.part").write_text(sys.argv[1])
Path(__file__).with_name("port.part").rename(Path(__file__).with_name("port"))
time.sleep(600)
"""

#: By what the suites call the variant.
FAULTS: dict[str, Fault] = {
    "abort": Fault(flags=("--fault", "abort", *LATER), reason="requests failed: .* aborted"),
    "truncated": Fault(flags=("--fault", "truncated", *LATER), reason="requests failed: .* truncated"),
    "silent-end": Fault(flags=("--fault", "silent-end", *LATER), reason="requests failed: .* truncated"),
    "error-in-stream": Fault(
        flags=("--fault", "error-in-stream", *LATER), reason="requests failed: .* error_in_stream"
    ),
    "no-usage": Fault(flags=("--fault", "no-usage", *LATER), reason="requests failed: .* no_usage"),
    "wrong-length": Fault(flags=("--fault", "wrong-length", *LATER), reason="requests failed: .* wrong_length"),
    "usage-off-by-one": Fault(flags=("--fault", "usage-off-by-one", *LATER), reason="requests failed: .* wrong_length"),
    "ignore-eos-ignored": Fault(
        flags=("--fault", "ignore-eos-ignored", *LATER), reason="requests failed: .* wrong_length"
    ),
    "cold": Fault(flags=("--fault", "http-500"), reason="warm-up failed: 1 of 1 requests failed in round 1 .*http_500"),
    "http-500": Fault(flags=("--fault", "http-500", *LATER), reason="requests failed: .* http_500"),
    "cache-hits": Fault(flags=("--fault", "cache-hits"), reason="prefix cache hits: "),
    "counter-off": Fault(flags=("--fault", "counter-off"), reason="server and client disagree: "),
    "die-mid-round": Fault(flags=("--fault", "die-mid-round", *LATER), reason="server died: killed by SIGKILL"),
    "die-in-warm-up": Fault(flags=("--fault", "die-mid-round"), reason="server died: killed by SIGKILL"),
    "cuda-traceback": Fault(flags=("--fault", "cuda-traceback", *LATER), reason="server died: killed by SIGKILL"),
    "segfault": Fault(flags=("--fault", "segfault", *LATER), reason="server died: killed by SIGSEGV"),
    "restart": Fault(flags=("--fault", "restart", *LATER), reason="requests failed: .* connection"),
    "wrong-model": Fault(flags=("--fault", "wrong-model"), reason="wrong server: "),
    "exit-at-start": Fault(flags=("--fault", "exit-at-start"), reason="server did not start: .* exit code 1"),
    "no-acceptance": Fault(flags=("--fault", "no-acceptance", *SPECULATIVE), reason="acceptance missing: "),
    "says-it-speculates": Fault(stranger=SAYS_IT_SPECULATES, reason="acceptance missing: "),
    "loses-its-counters": Fault(
        stranger=LOSES_ITS_COUNTERS, reason="server counters unusable: generated 5,000 before the round, none after"
    ),
    "traceback": Fault(stranger=TRACEBACK, reason="server did not start: .* CUDA out of memory"),
    "slow-start": Fault(flags=("--fault", "slow-start=3"), reason=None),
    "leave-grandchild": Fault(flags=("--fault", "leave-grandchild"), reason=None),
    "good": Fault(flags=SPECULATIVE, reason=None),
}
#: Where what is waited for has to come in seconds, and of two rounds.
SLOW_FAULTS: dict[str, Fault] = {
    "restart-between": Fault(
        flags=("--fault", "restart", *AFTER_A_ROUND),
        reason="(warm-up failed: .* connection|server counters unusable: )",
    ),
    "stalled": Fault(flags=("--fault", "stalled", *LATER), reason="requests failed: .* stalled"),
    "slow-drip": Fault(flags=("--fault", "slow-drip", *LATER), reason="requests failed: .* stalled"),
    "hang": Fault(flags=("--fault", "hang", *LATER), reason="requests failed: .* timeout"),
    "hang-in-warm-up": Fault(flags=("--fault", "hang"), reason="warm-up failed: .* timeout"),
    "never-ready": Fault(
        flags=("--fault", "never-ready"), reason="server did not start: .* not ready after .* HTTP 503 on /health"
    ),
    "stranger-on-the-port": Fault(
        stranger=LEAVES_ITS_PORT, reason="server did not start: .* a stranger answers on port"
    ),
    "ignore-sigterm": Fault(flags=("--fault", "ignore-sigterm"), reason=None),
}
ALL_FAULTS = FAULTS | SLOW_FAULTS
UNBELIEVABLE = {name: fault.reason for name, fault in ALL_FAULTS.items() if fault.reason is not None}
MEASURED_ALL_THE_SAME = [name for name, fault in ALL_FAULTS.items() if fault.reason is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An inner pytest over servers with faults, and what was there when it had ended."""

    desk: Desk
    run: Run
    folder: Path
    orphans: tuple[int, ...]
    stored: dict[str, bytes]
    lost: tuple[str, ...]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below, by its path there, but for locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def play(desk: Desk, name: str, faults: dict[str, Fault], rounds: int, *arguments: str) -> Session:
    """A variant for each fault, beside a store that has a baseline of another suite."""
    token = f"emulated/{uuid.uuid4().hex}"
    known = simulated.written(desk.folder / "known", simulated.campaign(simulated.suite(launches=KNOWN)))
    assert desk.perf("promote", str(known), "--reason", "first").code == 0
    stored = files(desk.baselines)
    variants = {
        variant: (*PACED, "--model-path", token, "--truth", str(desk.folder / f"{variant}.jsonl"), *fault.flags)
        if fault.stranger is None
        else desk.stranger(fault.stranger, f"stranger-{variant}.py")
        for variant, fault in faults.items()
    }
    never = variants.pop("never-ready", None)
    more = f"[variants.never-ready]\ncommand = {json.dumps(never)}\nready_timeout_s = 3\n" if never else ""
    suite = desk.suite(variants, name=name, workload=f"rounds = {rounds}", more=more)
    with stranger_moves_in(desk.folder):
        ran = desk.measure(suite, "--perf-max-launches=1", *arguments)
    # What is on this desk has its folder in the command line, or the name of its model.
    assert desk.folders(), ran.screen
    orphans = (*alive_with(token), *alive_with(str(desk.folder)))
    now = files(desk.baselines)
    lost = tuple(path for path in now.keys() | stored.keys() if now.get(path) != stored.get(path))
    return Session(desk=desk, run=ran, folder=desk.folders()[-1], orphans=orphans, stored=stored, lost=lost)


KNOWN = tuple(simulated.launch(simulated.measured(100.0 + n), ordinal=n) for n in (1, 2, 3))


@contextmanager
def stranger_moves_in(folder: Path) -> Iterator[None]:
    """Whoever writes its port into `port` finds somebody else there, who says that all is well."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    over, strangers = threading.Event(), list[ThreadingHTTPServer]()

    def move_in() -> None:
        while not over.wait(0.02):
            if (folder / "port").exists():
                strangers.append(ThreadingHTTPServer(("127.0.0.1", int((folder / "port").read_text())), Handler))
                strangers[0].serve_forever()
                return

    thread = threading.Thread(target=move_in)
    thread.start()
    try:
        yield
    finally:
        over.set()
        for each in strangers:
            each.shutdown()
            each.server_close()
        thread.join()


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Session]:
    """Two at once, since most of their time is waiting; by the faults that were planted."""
    quick, slow = (Desk(tmp_path_factory.mktemp("faults")) for _ in range(2))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(play, quick, "quick", FAULTS, 1)
        second = pool.submit(play, slow, "slow", SLOW_FAULTS, 2, "-p", "tests.emulated.impatient")
    return {name: first.result() if name in FAULTS else second.result() for name in ALL_FAULTS}


def case(name: str) -> str:
    return f"{'quick' if name in FAULTS else 'slow'}/{name}/c002"


# Servers that must not be believed


@pytest.mark.parametrize("fault", UNBELIEVABLE)
def test_a_faulty_server_is_invalid_with_the_reason_by_name(sessions: dict[str, Session], fault: str) -> None:
    session = sessions[fault]
    item = session.run.item(case(fault))
    assert (item.outcome, item.word) == ("failure", "INVALID")
    reason = re.compile(f"INVALID  {UNBELIEVABLE[fault]}")
    assert reason.search(item.message), item.message
    assert reason.search(session.run.out)
    assert "change" not in item.properties
    assert f"{session.folder}/{fault}-1/server.log" in item.message


@pytest.mark.parametrize("fault", MEASURED_ALL_THE_SAME)
def test_a_server_that_is_slow_to_start_or_hard_to_end_is_measured_all_the_same(
    sessions: dict[str, Session], fault: str
) -> None:
    assert sessions[fault].run.words()[case(fault)] == "NO_BASELINE"


@pytest.mark.parametrize("name", ["good", "ignore-sigterm"])
def test_a_session_of_faulty_servers_fails_leaves_nobody_and_changes_no_baseline(
    sessions: dict[str, Session], name: str
) -> None:
    session = sessions[name]
    assert session.run.code == pytest.ExitCode.TESTS_FAILED
    assert (session.orphans, session.lost) == ((), ())
    told = "".join(truth.read_text() for truth in session.desk.folder.glob("*.jsonl"))
    grandchildren = [int(pid) for pid in re.findall(r'"grandchild_pid": (\d+)', told)]
    assert len(grandchildren) == ("leave-grandchild" in (FAULTS if name == "good" else SLOW_FAULTS))
    assert not any(map(psutil.pid_exists, grandchildren))
    assert "the suite itself failed" not in session.run.screen
    assert "INTERNALERROR" not in session.run.screen
    assert session.desk.perf("check", store=False).code == 3


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("exit-at-start", "server did not start: .* CUDA out of memory"),
        ("traceback", "server did not start: .* CUDA out of memory"),
        ("cuda-traceback", r"server died: .*The size of tensor a \(8\) must match the size of tensor b \(10\)"),
        ("segfault", "server died: .*Segmentation fault"),
        ("die-mid-round", "server died: .*CUDA error: an illegal memory access"),
    ],
)
def test_the_line_of_its_log_that_says_why_a_server_ended_is_in_the_message(
    sessions: dict[str, Session], fault: str, why: str
) -> None:
    message = sessions[fault].run.item(case(fault)).message
    assert re.search(why, message), message
    assert re.search(why, sessions[fault].run.out)


def test_what_is_invalid_is_never_promoted_and_what_is_good_beside_it_is(sessions: dict[str, Session]) -> None:
    desk, stored = sessions["good"].desk, sessions["good"].stored
    alone = desk.perf("promote", "--reason", "x", "--case", "*/abort/*")
    assert (alone.code, alone.out.count("refused"), alone.out.count("promoted ")) == (1, 1, 0)
    assert files(desk.baselines) == stored
    promoted = desk.perf("promote", "--reason", "x")
    assert promoted.code == 1
    for fault in UNBELIEVABLE.keys() & FAULTS.keys():
        assert f"refused   quick/{fault}/c002: INVALID: " in promoted.out
    good = [name for name in FAULTS if name in MEASURED_ALL_THE_SAME]
    assert re.findall(r"^promoted +(\S+):", promoted.out, re.MULTILINE) == [case(name) for name in good]
    now = files(desk.baselines)
    assert {path: data for path, data in now.items() if path in stored} == stored
    assert {Path(path).stem for path in now.keys() - stored.keys()} == set(good)


def test_the_figures_of_the_matrix_are_those_of_the_page(
    sessions: dict[str, Session], capsys: pytest.CaptureFixture[str]
) -> None:
    silent = [name for name in UNBELIEVABLE if sessions[name].run.words()[case(name)] != "INVALID"]
    each = [sessions[name] for name in ("good", "ignore-sigterm")]
    orphans, lost = sum(len(session.orphans) for session in each), sum(len(session.lost) for session in each)
    line = f"{len(UNBELIEVABLE)} faults: {len(silent)} silent passes, {orphans} orphans, {lost} changed baselines"
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")
    assert line in PAGE.read_text()


#: Its counters are right for a warm-up and four requests, and gone from then on.
COUNTS_FOR_ONE_ROUND = f"""{COUNTS}
COUNTED, SERVED = 0, 0
class Handler(Handler):
    def stream(self, tokens, prompt):
        super().stream(tokens, prompt)
        global COUNTED, SERVED
        SERVED += 1
        COUNTED = COUNTED + tokens if SERVED <= 5 else None
"""
#: Its counters begin anew with every warm-up: as if the server had been replaced while nobody asked it.
COUNTS_ANEW = f"""{COUNTS}
COUNTED, SERVED = 1000, 0
class Handler(Handler):
    def stream(self, tokens, prompt):
        global COUNTED, SERVED
        if SERVED == 5:
            COUNTED = 0
        super().stream(tokens, prompt)
        COUNTED, SERVED = COUNTED + tokens, SERVED + 1
"""


def test_counters_that_are_gone_or_begin_anew_in_a_later_round_are_missed_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    variants = {
        "forgetful": desk.stranger(COUNTS_FOR_ONE_ROUND, "forgetful.py"),
        "replaced": desk.stranger(COUNTS_ANEW, "replaced.py"),
    }
    ran = desk.measure(desk.suite(variants, workload="rounds = 2"), "--perf-max-launches=1")
    assert set(ran.words().values()) == {"INVALID"}
    assert "server counters unusable: generated 120 before" in ran.item("small/forgetful/c002").message
    assert (
        "server counters unusable: generated 1,120 after the round before, 24 before this one"
        in ran.item("small/replaced/c002").message
    )


# The machine

LIMITED = """
import os, resource, sys
kind, bound = map(int, sys.argv[1:3])
resource.setrlimit(kind, (bound, bound))
os.execv(sys.argv[3], sys.argv[3:])
"""


def limited(kind: int, bound: int, command: list[str]) -> Run:
    """Run a command of which no process may have more than that."""
    return run([sys.executable, "-c", LIMITED, str(kind), str(bound), *command])


def test_a_disk_that_fills_up_while_a_campaign_is_written_ends_it_in_a_sentence(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"one": PACED, "other": PACED}, levels=(1, 2))
    command, junit = desk.pytest_command("-m", "perf", f"--perf-suite={suite}", "tests/perf", "--perf-max-launches=1")
    ran = limited(resource.RLIMIT_FSIZE, 7000, command)  # the first launch does not fit any more
    assert ran.code == pytest.ExitCode.TESTS_FAILED, ran.screen
    items = Run(code=ran.code, out=ran.out, error=ran.error, junit=junit).items()
    assert {(item.outcome, item.word) for item in items} == {("error", None)}
    for item in items:
        assert "campaign.json: cannot be written: File too large; nothing was changed" in item.message
    assert not desk.campaign().complete
    assert desk.perf("promote", "--reason", "x").code == 1
    assert not desk.baselines.exists()
    assert alive_with(str(tmp_path)) == []


def known_campaign(folder: Path) -> Path:
    """A simulated campaign that can be promoted."""
    return simulated.written(folder, simulated.campaign(simulated.suite(launches=KNOWN)))


@pytest.mark.parametrize("verb", ["promote", "import"])
def test_a_disk_that_is_full_leaves_baselines_and_history_as_they_were(tmp_path: Path, verb: str) -> None:
    desk = Desk(tmp_path)
    folder = known_campaign(desk.campaigns)
    arguments = (str(folder), *(("--reason", "x") if verb == "promote" else ()))
    before = files(tmp_path)
    places = ("--baselines", str(desk.baselines), "--campaign-dir", str(desk.campaigns))
    ran = limited(resource.RLIMIT_FSIZE, 100, [sys.executable, "-m", "perf", verb, *arguments, *places])
    assert ran.code == 1
    assert re.fullmatch(r"error: .*: cannot be written: File too large; nothing was changed\n", ran.error), ran.screen
    assert files(tmp_path) == before
    assert desk.perf(verb, *arguments).code == 0


def test_a_store_that_is_read_only_is_told_and_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        baselines, campaigns = folder / "baselines", folder / "campaigns"
        known_campaign(campaigns)
        places = ("--baselines", str(baselines), "--campaign-dir", str(campaigns))
        assert main(["promote", "--reason", "first", *places]) == 0
        before = files(folder)
        folder.chmod(0o755)
        for each in (baselines, *baselines.rglob("*")):
            each.chmod(0o555 if each.is_dir() else 0o444)
        capsys.readouterr()
        with without_root():
            code = main(["promote", "--reason", "second", *places])
        assert (code, files(folder)) == (1, before)
        assert re.fullmatch(r"error: .*: Permission denied.*\n", capsys.readouterr().err)
        for each in (baselines, *baselines.rglob("*")):
            each.chmod(0o755)


def test_a_client_without_file_handles_measures_nothing_and_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    suite = desk.suite({"plain": PACED}, levels=(64,))
    command, junit = desk.pytest_command("-m", "perf", f"--perf-suite={suite}", "tests/perf")
    ran = limited(resource.RLIMIT_NOFILE, 48, command)
    assert ran.code == pytest.ExitCode.TESTS_FAILED, ran.screen
    item = Run(code=ran.code, out=ran.out, error=ran.error, junit=junit).item("small/plain/c064")
    assert item.word == "INVALID"
    assert re.search("INVALID  requests failed: .* Too many open files", item.message), item.message
    assert desk.perf("promote", "--reason", "x").code == 1
    assert alive_with(str(tmp_path)) == []


#: For 10 ms the wall clock is an hour ahead, then as long an hour behind: for whoever asks, and in what the kernel says
#: of when bytes arrived.
STEPPED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

typedef int clock_reader(clockid_t, struct timespec *);
typedef ssize_t receiver(int, struct msghdr *, int);

static long long read_ns(clockid_t clock) {
    struct timespec at;
    ((clock_reader *)dlsym(RTLD_NEXT, "clock_gettime"))(clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static int ahead_s(long long steady_ns) {
    return steady_ns / 10000000 % 2 ? 3600 : -3600;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = ((clock_reader *)dlsym(RTLD_NEXT, "clock_gettime"))(clock, at);
    if (clock == CLOCK_REALTIME && !failed) at->tv_sec += ahead_s(read_ns(CLOCK_MONOTONIC));
    return failed;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    out->tv_sec = at.tv_sec;
    out->tv_usec = at.tv_nsec / 1000;
    return 0;
}

ssize_t recvmsg(int link, struct msghdr *message, int flags) {
    ssize_t size = ((receiver *)dlsym(RTLD_NEXT, "recvmsg"))(link, message, flags);
    if (size < 0) return size;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each)) {
        struct timespec at;
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SO_TIMESTAMPNS) continue;
        memcpy(&at, CMSG_DATA(each), sizeof at);
        long long ago_ns = read_ns(CLOCK_REALTIME) - at.tv_sec * 1000000000LL - at.tv_nsec;
        at.tv_sec += ahead_s(read_ns(CLOCK_MONOTONIC) - ago_ns);
        memcpy(CMSG_DATA(each), &at, sizeof at);
    }
    return size;
}
"""


@pytest.mark.skipif(which("cc") is None, reason="no C compiler: the wall clock of a process cannot be replaced")
def test_a_wall_clock_that_jumps_by_hours_changes_no_number(tmp_path: Path) -> None:
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(STEPPED_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    stepped = {"LD_PRELOAD": str(library)}
    look = "import time; a = time.time(); print(max(abs(time.time() - a) for _ in range(200) if not time.sleep(0.001)))"
    assert float(run([sys.executable, "-c", look], env=stepped).out) > 3600

    desk, truth = Desk(tmp_path), tmp_path / "truth.jsonl"
    suite = desk.suite({"plain": (*PACED, "--truth", str(truth))}, workload="rounds = 3")
    ran = desk.measure(suite, "--perf-max-launches=1", env=stepped)
    assert ran.words() == {"small/plain/c002": "NO_BASELINE"}, ran.screen
    assert desk.perf("check", store=False).code == 3
    events = [json.loads(line) for line in truth.read_text().splitlines()]
    flushes = [event["time_s"] for event in events if event["event"] == "flush"][-3:]  # before them the launch's
    taken = desk.campaign().suites[0].launches[0]
    assert 0 < (taken.start_s or 0) < taken.duration_s < 3600
    for flush_s, measured in zip(flushes, taken.measurements[0].rounds, strict=True):
        asked = [event for event in events if event["event"] == "request" and event["arrival_s"] > flush_s]
        asked = sorted(asked, key=lambda event: event["arrival_s"])[:4]
        window_s = max(each["last_token_s"] for each in asked) - asked[0]["arrival_s"]
        assert measured.summary is not None
        assert measured.summary.output_throughput == pytest.approx(96 / window_s, rel=0.1)


# The page

SOURCES = "".join(path.read_text() for path in (REPOSITORY / "perf").glob("*.py"))
TESTS = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`test_" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_a_row_of_the_page_names_tests_that_exist_and_words_that_are_said(row: str) -> None:
    *_, named, _ = row.split("|")
    tests = re.findall(r"`(test_\w+)`", named)
    assert tests
    assert [name for name in tests if f"def {name}(" not in TESTS] == []
    assert [words for words in re.findall(r"\*\*(.+?)\*\*", row) if words not in SOURCES] == []


def test_every_fault_that_can_be_planted_has_a_row() -> None:
    rows = "\n".join(ROWS)
    planted = {kind.partition("=")[0] for kind in (*REQUEST_FAULTS, *PROCESS_FAULTS)}
    assert [name for name in sorted(planted | ALL_FAULTS.keys() - {"good"}) if f"`{name}`" not in rows] == []
