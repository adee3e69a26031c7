"""Servers by command: real processes that start, fail, hang, die and refuse to die."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx2
import psutil
import pytest

from perf import ports, supervisor
from perf import server as servers
from perf.leftovers import MARK
from perf.server import INHERITED_ENV, Server, ServerError, ServerSpec, attach, launch, recorded_command, recorded_env

ROOT = Path(__file__).resolve().parents[2]
# For what takes well under a second; only a broken promise waits so long.
PATIENCE_S = 30.0

STUB = """
import http.server, json, os, signal, subprocess, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, body = answer(self)
        body = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

def answer(request):
    if request.path == "/v1/models":
        return 200, '{"data": [{"id": "stub-model"}]}'
    return (200, "") if request.path == "/health" else (404, "")

def note(name, value):
    with open(name + ".part", "w") as out:
        json.dump(value, out)
    os.rename(name + ".part", name)

def serve():
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# A daemon as they are made: its parent is gone, it has a session of its own, and it ignores SIGTERM.
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("daemon", os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists("daemon"):
    time.sleep(0.01)
"""


def stub(folder: Path, code: str = "", **changes: object) -> ServerSpec:
    """A server that runs in the folder: the stub above, the code, then `serve()`."""
    script = folder / "stub.py"
    script.write_text(f"{STUB}\n{code}\nserve()\n")
    fields: dict[str, object] = {
        "name": "stub-1",
        "command": ("{python}", str(script), "{port}"),
        "python": None,
        "env": (),
        "cwd": folder,
        "ready_path": "/health",
        "ready_timeout_s": PATIENCE_S,
        "model": None,
        "api_key": None,
    }
    return ServerSpec(**(fields | changes))  # type: ignore[arg-type]


def start(spec: ServerSpec, *, grace_s: float = 5.0) -> Server:
    return launch(spec, spec.cwd / "server.log", grace_s=grace_s)


def failure(spec: ServerSpec) -> ServerError:
    with pytest.raises(ServerError) as caught:
        start(spec, grace_s=0.5)
    return caught.value


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def noted(folder: Path, name: str) -> int:
    """A number that the stub wrote down, as soon as it did."""
    assert eventually((folder / name).exists)
    number = json.loads((folder / name).read_text())
    assert isinstance(number, int)
    return number


def script(
    folder: Path, spec: ServerSpec, then: str, *, name: str = "outer", before: str = ""
) -> subprocess.Popen[bytes]:
    """Another process that launches the server and then does something; it stands for pytest."""
    path = folder / f"{name}.py"
    path.write_text(
        "import os, pathlib, signal, sys, threading, time\n"
        "from pathlib import PosixPath\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from perf import ports\n"
        "from perf.server import ServerSpec, launch\n"
        f"{before}\n"
        f"spec = ServerSpec(name={name!r}, command={spec.command!r}, python=None, env=(), cwd={spec.cwd!r},\n"
        "    ready_path='/health', ready_timeout_s=60, model=None, api_key=None)\n"
        f"server = launch(spec, pathlib.Path({str(folder)!r}, {name + '.log'!r}), grace_s=1.0)\n"
        f"{then}\n"
    )
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


# -- it starts


def test_a_server_is_started_asked_for_its_model_and_stopped(tmp_path: Path) -> None:
    with start(stub(tmp_path)) as server:
        assert httpx2.get(f"{server.base_url}/health", trust_env=False).status_code == 200
        assert server.base_url == f"http://127.0.0.1:{server.port}"
        assert server.model == "stub-model"
        assert server.exit_status() is None
        assert server.notes == ()
        assert server.start_s is not None
        assert server.start_s > 0
        pid = server.pid
        assert pid is not None
        assert lives(pid)

    assert not lives(pid)
    server.stop()
    status = server.exit_status()
    assert status is not None
    assert status.signal == "SIGTERM"


def test_a_server_that_loads_is_waited_for_until_it_answers_200(tmp_path: Path) -> None:
    code = """
asked = []
def answer(request):
    asked.append(request.path)
    return (200, '') if len(asked) > 3 else (503, 'loading')
"""
    with start(stub(tmp_path, code, model="given")) as server:
        assert server.model == "given"


def test_a_server_is_ready_only_when_it_has_generated_a_token(tmp_path: Path) -> None:
    code = """
asked = []
def answer(request):
    asked.append(request.path)
    if request.path != "/health_generate":
        return 200, ''
    note("generated", asked.count("/health_generate"))
    return (200, '') if asked.count("/health_generate") > 2 else (503, '')
"""
    with start(stub(tmp_path, code, model="given")):
        assert noted(tmp_path, "generated") == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422, 501])
def test_a_server_that_has_no_path_to_generate_at_is_not_asked_for_a_token(tmp_path: Path, status: int) -> None:
    code = f"""
def answer(request):
    return ({status}, "no such path") if request.path == "/health_generate" else (200, "")
"""
    with start(stub(tmp_path, code, model="given")) as server:
        assert server.model == "given"
        note = f"HTTP {status} on /health_generate: not known to generate before it was measured"
        assert (note in server.notes) is (status not in (404, 405, 501))


def test_a_server_without_a_health_path_is_ready_when_it_lists_its_models(tmp_path: Path) -> None:
    with start(stub(tmp_path, ready_path="/no/such/path")) as server:
        assert server.model == "stub-model"


def test_the_port_is_put_everywhere_and_braces_of_others_are_left(tmp_path: Path) -> None:
    code = "note('argv', sys.argv[2:])"
    spec = stub(tmp_path, code)
    spec = stub(tmp_path, code, command=(*spec.command, "--a={port}:{port}", '{"b": {port}}', "{c}"))

    with start(spec) as server:
        p = server.port
        assert json.loads((tmp_path / "argv").read_text()) == [f"--a={p}:{p}", f'{{"b": {p}}}', "{c}"]


def test_the_server_gets_the_listed_environment_and_the_variants_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_STRAY", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef")
    spec = stub(tmp_path, "note('env', dict(os.environ))", env=(("NCCL_PROTO", "LL"),))

    with start(spec):
        env = json.loads((tmp_path / "env").read_text())

    # A Python in the C locale sets LC_CTYPE itself.
    assert set(env) - {*INHERITED_ENV, "LC_CTYPE"} == {"NCCL_PROTO", "PYTHONPATH", MARK}
    assert env["PYTHONPATH"] == str(ROOT)
    assert env["HF_TOKEN"] == "hf_abcdef"
    recorded = dict(recorded_env(spec))
    assert recorded["HF_TOKEN"] == "[secret]"
    assert MARK not in recorded  # it is another in every launch, and tells nothing of how a server runs
    assert {name: value for name, value in env.items() if name not in ("LC_CTYPE", "HF_TOKEN", MARK)} == {
        name: value for name, value in recorded.items() if name != "HF_TOKEN"
    }


def test_another_interpreter_does_not_get_our_packages(tmp_path: Path) -> None:
    assert "PYTHONPATH" not in dict(recorded_env(stub(tmp_path, python="/opt/sglang/bin/python")))
    assert recorded_command(stub(tmp_path, python="/opt/sglang/bin/python"))[0] == "/opt/sglang/bin/python"


def test_two_campaigns_at_once_get_different_ports(tmp_path: Path) -> None:
    first = ports.hold_port()
    first.release()
    # Few ports, and servers that listen late: without locks both would see them free and often take the same.
    before = f"ports.MAX_TRIES, ports.PORTS = 3, range({first.number}, {first.number + 3})"
    spec = stub(tmp_path, "time.sleep(1)")
    then = "print(server.port, flush=True); time.sleep(600)"
    outers = [script(tmp_path, spec, then, name=f"outer-{i}", before=before) for i in (1, 2)]
    try:
        numbers = [int(outer.stdout.readline()) for outer in outers if outer.stdout]
    finally:
        for outer in outers:
            outer.kill()
            outer.communicate()

    assert len(set(numbers)) == 2


def test_a_held_port_is_not_given_to_another_process_before_it_is_released() -> None:
    held = ports.hold_port()
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from perf import ports; ports.MAX_TRIES = 1\n"
        f"ports.PORTS = range({held.number}, {held.number + 1}); print(ports.hold_port().number)"
    )

    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    held.release()
    given = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "PortError: no free port" in refused.stderr
    assert given.stdout == f"{held.number}\n"


def test_a_folder_for_port_locks_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"sglang-perf-ports-{os.getuid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)

    assert "is not a folder of this user alone" in str(failure(stub(tmp_path)))


# -- it does not start


def test_a_server_that_dies_at_its_start_is_told_at_once_with_its_traceback(tmp_path: Path) -> None:
    began = time.monotonic()

    error = failure(stub(tmp_path, "raise RuntimeError('CUDA out of luck')", ready_timeout_s=600))

    assert time.monotonic() - began < PATIENCE_S
    assert "server stub-1: ended before it was ready: exit code 1" in error.reason
    assert "RuntimeError: CUDA out of luck" in str(error)
    assert str(tmp_path / "server.log") in str(error)
    assert error.tail.splitlines()[-1] == "RuntimeError: CUDA out of luck"


def test_a_server_killed_at_its_start_is_told_with_the_signal(tmp_path: Path) -> None:
    assert "killed by SIGKILL" in failure(stub(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")).reason


def test_a_server_that_is_never_ready_is_told_with_its_last_answer(tmp_path: Path) -> None:
    code = """
def answer(request):
    return 503, 'still \\x1b[31mloading\\x1b[0m'
print('weights: 10%\\rweights: 20%', flush=True)
"""
    error = failure(stub(tmp_path, code, ready_timeout_s=1.5))

    assert "not ready after" in error.reason
    assert "HTTP 503 on /health still loading" in error.reason
    assert error.tail == "weights: 20%"


def test_a_server_that_calls_itself_healthy_and_generates_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "GENERATE_TIMEOUT_S", 1.0)
    code = """
def answer(request):
    return (503, 'no token') if request.path == "/health_generate" else (200, '')
print("ValueError: of a scheduler", flush=True)
"""
    error = failure(stub(tmp_path, code, model="given"))
    assert "server stub-1: ready but cannot generate: HTTP 503 on /health_generate no token" in error.reason
    assert error.reason.endswith("; its log says: ValueError: of a scheduler")


def test_an_answer_that_is_not_http_is_not_readiness(tmp_path: Path) -> None:
    code = """
import socket
def serve():
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        connection, _ = listener.accept()
        connection.sendall(b'\\x00\\x01 no http\\r\\n')
        connection.close()
"""
    assert "no HTTP answer on /health" in failure(stub(tmp_path, code, ready_timeout_s=1)).reason


@pytest.mark.parametrize("drip", [r"HTTP/1.1 200 OK\r\nX-Slow: ", r"HTTP/1.1 102 Processing\r\n\r\n"])
def test_a_head_without_end_is_waited_for_no_longer_than_the_server_has(tmp_path: Path, drip: str) -> None:
    """The first is sent once and then a letter at a time; of the second there is one after the other."""
    code = f"""
import socket
def serve():
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    def answer(connection):
        connection.recv(65536)
        head = b"{drip}"
        connection.sendall(head)
        while True:
            time.sleep(0.1)
            connection.sendall(b"a" if head.endswith(b" ") else head)
    while True:
        threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()
"""
    began = time.monotonic()
    error = failure(stub(tmp_path, code, ready_timeout_s=1))
    assert "no HTTP answer on /health (ReadTimeout: no whole head of an answer in" in error.reason
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("answer", ["(404, '')", "(200, '{\"data\": []}')", "(200, '<html>')"])
def test_a_server_that_names_no_model_is_refused_with_what_to_do(tmp_path: Path, answer: str) -> None:
    code = f"def answer(request): return (200, '') if request.path == '/health' else {answer}"

    assert "set `model` in the suite" in failure(stub(tmp_path, code)).reason


def test_a_stranger_on_the_port_is_not_taken_for_the_server(tmp_path: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    strangers: list[http.server.HTTPServer] = []

    def move_in() -> None:
        strangers.append(http.server.HTTPServer(("127.0.0.1", noted(tmp_path, "port")), Handler))
        strangers[0].serve_forever()

    thread = threading.Thread(target=move_in)
    thread.start()
    try:
        error = failure(stub(tmp_path, "note('port', int(sys.argv[1])); time.sleep(600)"))
    finally:
        strangers[0].shutdown()
        thread.join()
        strangers[0].server_close()

    assert "a stranger answers on port" in error.reason
    assert f"pid {os.getpid()} " in error.reason


def test_what_cannot_be_run_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "not-a-program").write_text("text")
    not_found = stub(tmp_path, command=("no-such-server", "{port}"))
    forbidden = stub(tmp_path, command=("./not-a-program", "{port}"))

    assert "command not found" in failure(not_found).reason
    assert "no-such-server" in failure(not_found).reason
    assert "cannot be run: [Errno 13] Permission denied" in failure(forbidden).reason
    with pytest.raises(ServerError, match=r"working directory is no folder: .*nowhere"):
        launch(stub(tmp_path, cwd=tmp_path / "nowhere"), tmp_path / "server.log")
    with pytest.raises(ServerError, match=r"cannot start with log .*No such file"):
        launch(stub(tmp_path), tmp_path / "nowhere" / "server.log")


# -- its log


def test_secrets_are_not_in_the_log_also_when_written_in_pieces(tmp_path: Path) -> None:
    key = "sk-0123456789"
    code = """
print({'api_key': sys.argv[3]}, flush=True)
for piece in (sys.argv[3][:5], sys.argv[3][5:], ' and ', os.environ['MY_TOKEN'], ' on http://127.0.0.1:1\\n'):
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.05)
"""
    spec = stub(tmp_path, code, api_key=key, env=(("MY_TOKEN", "token-of-mine"),))
    spec = stub(tmp_path, code, api_key=key, env=spec.env, command=(*spec.command, "--api-key", key), name="keyed-1")

    with start(spec) as server:
        assert server.authorization == f"Bearer {key}"
        assert server.log_tail() == "{'api_key': '[secret]'}\n[secret] and [secret] on http://127.0.0.1:1"
        assert server.log_tail(lines=1) == "[secret] and [secret] on http://127.0.0.1:1"

    assert recorded_command(spec)[-2:] == ("--api-key", "[secret]")
    assert key not in repr(spec)
    assert key not in (tmp_path / "server.log").read_text()


def test_what_cannot_be_read_among_the_events_of_a_supervisor_is_passed_over(tmp_path: Path) -> None:
    code = """
with open(f"/proc/{os.getppid()}/fd/1", "wb", buffering=0) as events:
    events.write(b'{"event": "log_failed", "reason": "caf\\\\udce9"}\\nno event\\n')
"""
    server = launch(stub(tmp_path, code), tmp_path / "server.log")
    server.stop()

    status = server.exit_status()
    assert status is not None
    assert status.signal == "SIGTERM"  # as was told after it
    assert server.notes == ()


def test_the_api_key_is_sent_to_a_server_that_wants_it(tmp_path: Path) -> None:
    code = """
def answer(request):
    known = request.headers['Authorization'] == 'Bearer sk-0123456789'
    return (200, '{"data": [{"id": "guarded"}]}') if known else (401, '')
"""
    with start(stub(tmp_path, code, api_key="sk-0123456789")) as server:
        assert server.model == "guarded"
    assert "HTTP 401 on /health" in failure(stub(tmp_path, code, ready_timeout_s=1)).reason


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full, a disk that is full, is a thing of Linux")
def test_a_full_disk_does_not_block_the_server_and_is_told(tmp_path: Path) -> None:
    spec = stub(tmp_path, "print('x' * 1_000_000, flush=True)")  # more than any pipe holds

    with launch(spec, Path("/dev/full")) as server:
        assert any("the log could not be written" in note and "No space left" in note for note in server.notes)


#: Prints numbered lines of one length without end, a secret in each.
FLOOD = """
def flood():
    for number in itertools.count():
        print(f'{number:09d} {sys.argv[3]} ' + 'x' * 85)
import itertools
threading.Thread(target=flood, daemon=True).start()
"""
FLOOD_KEY = "sk-0123456789"
FLOOD_LINE = re.compile(rb"(\d{9}) \[secret\] x{85}\n")
FLOOD_LINE_BYTES = 105
LEFT_OUT = re.compile(rb"\n\[([\d,]+) bytes of this log were left out here\]\n")


def flooding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that never stops printing, with a log that is cut many times a second."""
    small = partial(supervisor.Order, log_head_bytes=1 << 18, log_tail_bytes=1 << 20)
    monkeypatch.setattr(servers, "Order", small)
    spec = stub(folder, FLOOD, api_key=FLOOD_KEY)
    return start(stub(folder, FLOOD, api_key=FLOOD_KEY, command=(*spec.command, "--api-key", FLOOD_KEY)))


def left_out_of(log: bytes) -> int:
    """How much a flooded log says it left out, after proof that this is true and nothing else is missing."""
    head, line, tail = log, b"", b""
    if gap := LEFT_OUT.search(log):
        head, line, tail = log[: gap.start()], gap[1], log[gap.end() :]
    left_out = int(line.replace(b",", b"") or b"0")
    written = 0
    for part, begins in ((head, 0), (tail, len(head) + left_out)):
        assert begins == 0 or begins % FLOOD_LINE_BYTES == 0
        whole = len(part) // FLOOD_LINE_BYTES
        numbers = [int(number) for number in FLOOD_LINE.findall(part)]
        assert numbers == list(range(begins // FLOOD_LINE_BYTES, begins // FLOOD_LINE_BYTES + whole))
        written += whole
    assert written
    assert len(log) <= (1 << 18) + (1 << 20)
    assert log.count(b"left out here") <= 1
    return left_out


def test_a_log_keeps_its_beginning_and_its_end_and_says_how_much_is_missing_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flooding(tmp_path, monkeypatch) as server:
        seen: set[int] = set()

        def read() -> bool:
            seen.add(left_out_of((tmp_path / "server.log").read_bytes()))
            assert re.fullmatch(r"\d{9} \[secret\] x+", server.log_tail(2).splitlines()[0])
            return len(seen) > 20

        assert eventually(read)
        assert server.notes == ()

    assert left_out_of((tmp_path / "server.log").read_bytes()) >= max(seen)
    assert [path.name for path in tmp_path.glob("server.log*")] == ["server.log"]


@pytest.mark.parametrize("how", ["os.mkfifo(log)", "os.symlink('private', log)", "os.link('private', log)"])
def test_what_a_server_puts_in_the_place_of_its_log_is_not_read(tmp_path: Path, how: str) -> None:
    (tmp_path / "private").write_text("somebody else's\n")
    code = f"log = os.path.abspath('server.log'); os.unlink(log); {how}"
    with start(stub(tmp_path, code)) as server:
        assert server.log_tail() == ""
        assert server.why() is None


@pytest.mark.parametrize("number", range(4))
def test_a_supervisor_that_is_killed_while_it_cuts_a_log_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with flooding(tmp_path, monkeypatch) as server:
        above = psutil.Process(server.pid).parent()
        assert above is not None
        part = tmp_path / "server.log.part"
        deadline = time.monotonic() + PATIENCE_S
        while not part.exists() and time.monotonic() < deadline:
            pass  # without a pause: the moment is short
        time.sleep(number / 4000)
        above.kill()
        assert eventually(lambda: server.exit_status() is not None)
        left_out_of((tmp_path / "server.log").read_bytes())


def test_a_disk_that_is_too_full_to_cut_a_log_is_told_and_the_log_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.log.part").mkdir()
    with flooding(tmp_path, monkeypatch) as server:
        assert eventually(lambda: bool(server.notes))
        assert server.notes[0].startswith("the log could not be written and is cut: ")
        assert left_out_of((tmp_path / "server.log").read_bytes()) == 0
        assert server.exit_status() is None


# -- it ends


def test_a_server_that_dies_later_is_seen(tmp_path: Path) -> None:
    code = "threading.Timer(1.0, lambda: (print('illegal memory access', flush=True), os._exit(3))).start()"

    with start(stub(tmp_path, code)) as server:
        assert eventually(lambda: server.exit_status() is not None)
        status = server.exit_status()
        assert status is not None
        assert status.code == 3
        assert status.describe() == "exit code 3"
        assert server.log_tail() == "illegal memory access"


def test_nobody_is_left_though_they_ignore_sigterm_and_became_daemons(tmp_path: Path) -> None:
    with start(stub(tmp_path, f"{DAEMON}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"), grace_s=0.5) as server:
        daemon = noted(tmp_path, "daemon")
        assert lives(daemon)
        assert server.pid is not None

    assert not lives(daemon)
    assert not lives(server.pid)
    status = server.exit_status()
    assert status is not None
    assert status.signal == "SIGKILL"


def test_what_a_dead_server_left_behind_is_ended_too(tmp_path: Path) -> None:
    failure(stub(tmp_path, f"{DAEMON}\nsys.exit(1)"))

    assert not lives(noted(tmp_path, "daemon"))


def test_a_server_may_use_its_grace_time_to_end_in_order(tmp_path: Path) -> None:
    code = """
def end(*_):
    time.sleep(0.5)
    print('x' * 300_000 + ' flushed', flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
"""
    with start(stub(tmp_path, code), grace_s=PATIENCE_S) as server:
        pass

    status = server.exit_status()
    assert status is not None
    assert status.code == 0
    assert (tmp_path / "server.log").read_text().endswith("x flushed\n")


def test_the_supervisor_ends_nobody_but_its_own(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        with start(stub(tmp_path)):
            pass
        assert bystander.poll() is None
        bystander.kill()


def test_after_sigkill_of_the_campaign_nobody_is_left(tmp_path: Path) -> None:
    outer = script(tmp_path, stub(tmp_path, DAEMON), "print(server.pid, flush=True); time.sleep(600)")
    assert outer.stdout is not None
    with outer.stdout:
        pid, daemon = int(outer.stdout.readline()), noted(tmp_path, "daemon")
        assert lives(pid)
        assert lives(daemon)

        outer.kill()
        outer.wait()

    assert eventually(lambda: not lives(pid) and not lives(daemon))


def test_a_forked_helper_of_a_killed_campaign_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    then = """
helper = os.fork()
if helper:
    print(server.pid, helper, flush=True)
time.sleep(600)
"""
    outer = script(tmp_path, stub(tmp_path), then)
    assert outer.stdout is not None
    with outer.stdout:
        pid, helper = map(int, outer.stdout.readline().split())
        outer.kill()
        outer.wait()
    try:
        assert eventually(lambda: not lives(pid))
    finally:
        os.kill(helper, signal.SIGKILL)


def test_ctrl_c_while_a_server_starts_leaves_nobody(tmp_path: Path) -> None:
    spec = stub(tmp_path, f"{DAEMON}\nnote('server', os.getpid())\ntime.sleep(600)")
    outer = script(tmp_path, spec, "")
    assert outer.stdout is not None
    with outer.stdout:
        pid = noted(tmp_path, "server")
        outer.send_signal(signal.SIGINT)
        assert outer.wait(PATIENCE_S) != 0

    assert not lives(pid)
    assert not lives(noted(tmp_path, "daemon"))


def test_a_second_ctrl_c_while_a_server_is_stopped_leaves_nobody(tmp_path: Path) -> None:
    spec = stub(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: note('asked', 1))")
    outer = script(tmp_path, spec, "print(server.pid, flush=True); server.stop()")
    assert outer.stdout is not None
    with outer.stdout:
        pid = int(outer.stdout.readline())
        noted(tmp_path, "asked")
        outer.send_signal(signal.SIGINT)
        assert outer.wait(PATIENCE_S) != 0

    assert eventually(lambda: not lives(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_supervisor_that_is_told_to_end_ends_the_server_first(tmp_path: Path, number: signal.Signals) -> None:
    with start(stub(tmp_path, DAEMON), grace_s=0.5) as server:
        assert server.pid is not None
        supervisor = psutil.Process(server.pid).ppid()
        os.kill(supervisor, number)
        assert eventually(lambda: not lives(supervisor))

        assert not lives(server.pid)
        assert not lives(noted(tmp_path, "daemon"))
        status = server.exit_status()
        assert status is not None
        assert status.signal == "SIGTERM"


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is a thing of Linux")
def test_a_killed_supervisor_takes_the_server_along_and_who_is_left_is_named(tmp_path: Path) -> None:
    code = """
if os.fork() == 0:
    note('child', os.getpid())
    time.sleep(600)
"""
    server = start(stub(tmp_path, code))
    assert server.pid is not None
    child = noted(tmp_path, "child")
    os.kill(psutil.Process(server.pid).ppid(), signal.SIGKILL)
    try:
        assert eventually(lambda: not lives(server.pid or 0))
        assert eventually(lambda: server.exit_status() is not None)
        status = server.exit_status()
        assert status is not None
        assert status.describe() == "its supervisor was killed"
        with pytest.raises(
            ServerError, match=rf"left processes that did not end: {child} .*\nend them: kill -9 {child}\n"
        ):
            server.stop()
    finally:
        os.kill(child, signal.SIGKILL)


# -- it runs already


def test_a_running_server_is_attached_to_and_not_stopped(tmp_path: Path) -> None:
    code = """
def answer(request):
    note('authorization', request.headers['Authorization'])
    return 200, '{"data": [{"id": "stub-model"}]}'
"""
    with start(stub(tmp_path, code)) as running:
        with attach(f"http://me:p%40ss@127.0.0.1:{running.port}/v1/") as server:
            assert server.base_url == running.base_url
            assert server.model == "stub-model"
            assert server.authorization == "Basic bWU6cEBzcw=="
            assert json.loads((tmp_path / "authorization").read_text()) == server.authorization
            assert (server.pid, server.log_path, server.start_s) == (None, None, None)
            assert server.log_tail() == ""
        assert server.exit_status() is None
        assert running.exit_status() is None


@pytest.mark.parametrize(
    "url", ["127.0.0.1:30000", "ftp://me:hunter22@host", "http://me:hunter22@host/path", "http://me:hunter22@host:x"]
)
def test_what_is_no_servers_url_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(ServerError) as caught:
        attach(url)

    assert "URL" in str(caught.value)
    assert "hunter22" not in str(caught.value)


def test_nobody_at_the_url_is_told_without_showing_the_password() -> None:
    held = ports.hold_port()
    with pytest.raises(ServerError, match=r"not ready after 0\.5 s") as caught:
        attach(f"http://me:hunter22@127.0.0.1:{held.number}", ready_timeout_s=0.5)
    held.release()

    assert "hunter22" not in str(caught.value)
