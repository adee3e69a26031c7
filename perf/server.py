"""Servers by command: start one, wait until it answers, and leave nobody behind.

Any command with a `{port}` in it that then serves HTTP there. The server lives under a supervisor
(`perf.supervisor`) that outlives pytest, so that neither Ctrl-C nor SIGKILL leaves a server on the GPUs.
"""

import asyncio
import base64
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, Self
from urllib.parse import unquote, urlsplit

import httpx2
import psutil
from pydantic import BaseModel, Field, ValidationError

from perf import interpreter, leftovers, server_log
from perf.files import FileError
from perf.ports import HeldPort, PortError, hold_port
from perf.redaction import Secrets
from perf.sglang import NO_SUCH_PATH
from perf.supervisor import KILL_WAIT_S, Birth, Order

# What a server gets of our environment: what it needs to find programs, models, GPUs and caches. Everything
# else would be an unrecorded influence on what is measured; a variant can add what it needs.
INHERITED_ENV = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH"),
    *("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "TRANSFORMERS_OFFLINE"),
    *("XDG_CACHE_HOME", "TRITON_CACHE_DIR"),
)
MODELS_PATH = "/v1/models"
# SGLang's own: it generates one token.
GENERATE_PATH = "/health_generate"
# From SIGTERM to SIGKILL. An idle server needs a second or two; a busy one is not worth waiting for.
STOP_GRACE_S = 10.0
# For the supervisor, an interpreter without heavy imports, to start or to end: far more than it needs.
SUPERVISOR_WAIT_S = 30.0
# One question to a server that may be half up; it is asked again until `ready_timeout_s` is over.
PROBE_TIMEOUT_S = 5.0
# Adds at most this much to `start_s`, and is no load.
POLL_INTERVAL_S = 0.1
# For the first token of a server that calls itself healthy: SGLang itself gives up on it after 20 s.
GENERATE_TIMEOUT_S = 60.0
# The kernel closes the sockets of a process as it ends; nothing of ours listens a moment later.
PORT_FREE_S = 5.0
MAX_MODELS_BYTES = 1 << 20
MAX_ANSWER_BYTES = 4096  # read of a body for a message; redacted whole, then cut to MAX_SHOWN
MAX_SHOWN = 240  # characters of an answer in a message
MAX_TAIL_BYTES = 65536
MAX_TAIL_COLUMNS = 400
# In which the line is looked for that says why a server ended.
REASON_LINES = 2000

_EVERY_ADDRESS = ("0.0.0.0", "::")
_LOCAL_ADDRESSES = ("127.0.0.1", "::ffff:127.0.0.1", *_EVERY_ADDRESS)
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class ServerError(Exception):
    """A server that did not start, did not get ready or did not end. `str()` is the whole message."""

    def __init__(self, reason: str, log_path: Path | None = None, tail: str = "") -> None:
        lines = [reason]
        if tail:
            lines += ["its last lines:", *(f"  {line}" for line in tail.splitlines())]
        if log_path is not None:
            lines.append(f"its log: {log_path}")
        super().__init__("\n".join(lines))
        self.reason = reason
        self.log_path = log_path
        self.tail = tail


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """What to start; made from a suite's variant. What may hold secrets is not in `repr()`."""

    name: str  # of the launch, for messages: "eagle3-1"
    command: tuple[str, ...] = field(repr=False)  # with {port} and {python} still in it
    python: str | None  # replaces {python}; None is the interpreter that runs this
    env: tuple[tuple[str, str], ...] = field(repr=False)  # the variant's own
    cwd: Path
    ready_path: str  # "/health"; where there is none, /v1/models
    ready_timeout_s: float
    model: str | None  # None: the first of /v1/models
    api_key: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a server ended. Both are None when its supervisor was killed."""

    code: int | None
    signal: str | None  # "SIGKILL"

    def describe(self) -> str:
        """In words, for a message."""
        if self.signal is not None:
            return f"killed by {self.signal}" + (" (out of memory?)" if self.signal == "SIGKILL" else "")
        return "its supervisor was killed" if self.code is None else f"exit code {self.code}"


class Server:
    """A server that answers, made by `launch` or `attach`. A context manager: leaving it stops the server.

    `base_url` has no path and no userinfo; `authorization` is the header's value to send, if any. `pid`,
    `log_path` and `start_s` (seconds from start to readiness) are None for one that was only attached to.
    """

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        port: int,
        model: str,
        api_key: str | None,
        authorization: str | None,
        start_s: float | None = None,
        notes: tuple[str, ...] = (),
        process: "_Process | None" = None,
        held_port: HeldPort | None = None,
    ) -> None:
        self.name = name
        self.base_url = base_url
        self.port = port
        self.model = model
        self.api_key = api_key
        self.authorization = authorization
        self.start_s = start_s
        self._notes = notes
        self._process = process
        self._held_port = held_port

    @property
    def pid(self) -> int | None:
        """Of the command's own process; its descendants have others."""
        return self._process.pid if self._process else None

    @property
    def log_path(self) -> Path | None:
        """Where its output goes, secrets replaced."""
        return self._process.log_path if self._process else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be made sure of, in words; may grow while it runs."""
        return self._notes + (self._process.notes() if self._process else ())

    def exit_status(self) -> ExitStatus | None:
        """None while it lives (always, when only attached to). Does not block."""
        return self._process.exit_status() if self._process else None

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log, control characters replaced; "" without a log."""
        return self._process.log_tail(lines) if self._process else ""

    def why(self) -> str | None:
        """The line of its log that says why it ended; None where none does."""
        return self._process.why() if self._process else None

    def stop(self) -> None:
        """End it and all its descendants, and see its port free, within the grace time and a bound. May be called
        again.

        Raises ServerError naming the processes that are left, or who listens on the port. After KeyboardInterrupt in
        here the supervisor ends them all the same.
        """
        try:
            if self._process:
                self._process.stop()
                if self._held_port:  # once it is given back, others may listen there
                    self._process.wait_port_free(self.port)
        finally:
            if self._held_port:
                self._held_port.release()
                self._held_port = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self.stop, error)


def _end(stop: Callable[[], None], error: BaseException | None) -> None:
    """Stop what has to end. An interrupt that is under way is not replaced by what goes wrong here, and tells it."""
    try:
        stop()
    except (ServerError, subprocess.TimeoutExpired) as trouble:
        if error is None or isinstance(error, Exception):
            raise
        error.add_note(str(trouble))


def launch(spec: ServerSpec, log_path: Path, *, grace_s: float = STOP_GRACE_S) -> Server:
    """Start a server; return when it is ready. `log_path` is overwritten.

    Raises ServerError with the reason and the end of the log; whatever is raised, nobody is left running.
    """
    env = environment(spec)
    with ExitStack() as undo:
        try:
            held_port = hold_port()
        except PortError as error:
            raise ServerError(f"server {spec.name}: {error}") from error
        undo.callback(held_port.release)
        port = held_port.number
        command = tuple(argument.replace("{port}", str(port)) for argument in _command(spec))
        secrets = Secrets.collect(command, env, spec.api_key)
        try:
            note = leftovers.new_note()
        except FileError as error:
            raise ServerError(f"server {spec.name}: no note of it can be kept: {error}") from error
        process = _Process(spec.name, command, env, spec.cwd, secrets, log_path, grace_s, note)
        undo.push(lambda _kind, error, _trace: _end(process.stop, error))
        process.wait_started()
        started = time.monotonic()
        authorization = f"Bearer {spec.api_key}" if spec.api_key else None
        with _Client(f"http://127.0.0.1:{port}", authorization) as client:
            ready = (spec.ready_path, MODELS_PATH)
            seen = _wait_ready(client, ready, spec.ready_timeout_s, process.wait_exited)
            cannot = None
            refused: list[int] = []
            if seen is None:
                cannot = _wait_ready(
                    client,
                    (GENERATE_PATH, *ready),
                    GENERATE_TIMEOUT_S,
                    process.wait_exited,
                    GENERATE_TIMEOUT_S / 2,
                    refused.append,
                )
            start_s = time.monotonic() - started
            if (status := process.exit_status()) is not None:
                raise process.error(f"ended before it was ready: {status.describe()}, after {start_s:.1f} s")
            if seen is not None:
                raise process.error(
                    f"not ready after {start_s:.0f} s (ready_timeout_s = {spec.ready_timeout_s:g}); "
                    f"last seen on port {port}: {secrets.redact(seen)[:MAX_SHOWN]}"
                )
            if cannot is not None:
                raise process.error(f"ready but cannot generate: {secrets.redact(cannot)[:MAX_SHOWN]}")
            notes = process.check_owner(port)
            if refused:
                notes += (f"HTTP {refused[-1]} on {GENERATE_PATH}: not known to generate before it was measured",)
            try:
                model = spec.model or _first_model(client)
            except _NoModelError as error:
                raise process.error(secrets.redact(str(error))[: 2 * MAX_SHOWN]) from error
        undo.pop_all()
    return Server(
        name=spec.name,
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        model=model,
        api_key=spec.api_key,
        authorization=authorization,
        start_s=start_s,
        notes=notes,
        process=process,
        held_port=held_port,
    )


def attach(
    base_url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    ready_path: str = "/health",
    ready_timeout_s: float = 30.0,
) -> Server:
    """A server that runs already: the same interface, no process. Raises ServerError.

    `user:password@` in the URL becomes basic authorization (unless there is an API key); a path `/v1` is
    dropped, since people copy it from client settings.
    """
    shown = Secrets(()).redact(base_url)
    try:
        url = urlsplit(base_url)
        port = url.port or (443 if url.scheme == "https" else 80)
        (url.hostname or "").encode("idna")  # UnicodeError is a ValueError
    except ValueError as error:
        raise ServerError(f"{shown!r} is no URL: {error}") from error
    path = url.path.rstrip("/")
    if url.scheme not in ("http", "https") or not url.hostname or path not in ("", "/v1") or url.query:
        raise ServerError(f"{shown!r} is no server's URL: write it like http://127.0.0.1:30000")
    address = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    authorization = None
    if api_key:
        authorization = f"Bearer {api_key}"
    elif url.username is not None:
        userinfo = f"{unquote(url.username)}:{unquote(url.password or '')}"
        authorization = "Basic " + base64.b64encode(userinfo.encode()).decode()

    def never(wait_s: float) -> bool:
        time.sleep(wait_s)
        return False

    secrets = Secrets.collect((), {}, api_key, (base_url,))
    with _Client(address, authorization) as client:
        seen = _wait_ready(client, (ready_path, MODELS_PATH), ready_timeout_s, never)
        if seen is not None:
            raise ServerError(f"{address} not ready after {ready_timeout_s:g} s: {secrets.redact(seen)[:MAX_SHOWN]}")
        try:
            model = model or _first_model(client)
        except _NoModelError as error:
            raise ServerError(f"{address}: {secrets.redact(str(error))[: 2 * MAX_SHOWN]}") from error
    return Server(
        name=address,
        base_url=address,
        port=port,
        model=model,
        api_key=api_key,
        authorization=authorization,
    )


def open_log(path: Path) -> BinaryIO:
    """The log, to be read. Raises OSError for anything else that a server puts in its place: the content of a link is
    another file's, and that of a FIFO may never come."""

    def at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW)

    with ExitStack() as undo:
        log = undo.enter_context(open(path, "rb", opener=at_once))
        status = os.fstat(log.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise OSError(f"{path} is not the log")
        undo.pop_all()
        return log


def recorded_env(spec: ServerSpec) -> tuple[tuple[str, str], ...]:
    """The environment the server gets, sorted by name, secrets replaced: for the campaign."""
    env = environment(spec)
    return Secrets.collect(_command(spec), env, spec.api_key).redact_env(env)


def recorded_command(spec: ServerSpec) -> tuple[str, ...]:
    """The command with `{python}` replaced, `{port}` kept, secrets replaced: for the campaign."""
    command = _command(spec)
    return Secrets.collect(command, environment(spec), spec.api_key).redact_argv(command)


def _command(spec: ServerSpec) -> tuple[str, ...]:
    python = spec.python or sys.executable
    return tuple(argument.replace("{python}", python) for argument in spec.command)


def environment(spec: ServerSpec) -> dict[str, str]:
    """All of the environment a server is started with."""
    env = {name: os.environ[name] for name in INHERITED_ENV if name in os.environ}
    env.update(spec.env)
    if spec.python is None and any("{python}" in argument for argument in spec.command):
        # So that `{python} -m perf.emulator` works from any folder, as it does from ours.
        paths = [path for path in (env.get("PYTHONPATH"), str(interpreter.PACKAGE_ROOT)) if path]
        env["PYTHONPATH"] = os.pathsep.join(paths)
    return env


# -- asking the server


class _NoModelError(Exception):
    pass


class _Model(BaseModel):
    id: Annotated[str, Field(min_length=1, max_length=500)]


class _Models(BaseModel):
    data: Annotated[list[_Model], Field(min_length=1)]


class _Client:
    """Asks a server that may be half up. A context manager."""

    def __init__(self, base_url: str, authorization: str | None) -> None:
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": authorization} if authorization else {})
        self._runner = asyncio.Runner()  # only a loop can end an answer that drips
        # trust_env=False: a proxy or a .netrc of the user's has no part in talking to our own server.
        self._client = httpx2.AsyncClient(base_url=base_url, headers=headers, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._client.aclose())
        finally:
            self._runner.close()

    def get(self, path: str, timeout_s: float, max_bytes: int) -> tuple[int, bytes]:
        """Status and the first bytes of the body, as far as they came in time. Raises httpx2.HTTPError."""
        return self._runner.run(self._get(path, timeout_s, max_bytes))

    async def _get(self, path: str, timeout_s: float, max_bytes: int) -> tuple[int, bytes]:
        status: int | None = None
        body = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._client.stream("GET", path, timeout=timeout_s) as response:
                status = response.status_code
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) >= max_bytes:
                        break
        if status is None:
            raise httpx2.ReadTimeout(f"no whole head of an answer in {timeout_s:.1f} s")
        return status, body[:max_bytes]


def _wait_ready(
    client: _Client,
    paths: tuple[str, ...],
    timeout_s: float,
    wait_exited: Callable[[float], bool],
    probe_s: float = PROBE_TIMEOUT_S,
    refused: Callable[[int], None] = lambda _: None,
) -> str | None:
    """None when the first of the paths that is there answers 200; else, when the time is up or the server ended, what
    was answered last. `refused` is told of a status with which GENERATE_PATH is refused, as a gateway may do."""
    deadline = time.monotonic() + timeout_s
    seen = "nothing"
    while True:
        for path in paths:
            limit_s = min(probe_s, max(POLL_INTERVAL_S, deadline - time.monotonic()))
            try:
                status, body = client.get(path, limit_s, MAX_ANSWER_BYTES)
            except httpx2.HTTPError as error:
                seen = f"no HTTP answer on {path} ({type(error).__name__}: {_printable(str(error))})"
                break
            if status == httpx2.codes.OK:
                return None
            seen = f"HTTP {status} on {path} {_printable(body.decode(errors='replace'))}".rstrip()
            if status in NO_SUCH_PATH:
                continue
            if path != GENERATE_PATH or not httpx2.codes.is_client_error(status):
                break
            refused(status)
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 or wait_exited(min(POLL_INTERVAL_S, remaining_s)):
            return seen


def _first_model(client: _Client) -> str:
    advice = "set `model` in the suite"
    try:
        # Asked once of a server that says it is ready, so with more patience than the probes.
        status, body = client.get(MODELS_PATH, 4 * PROBE_TIMEOUT_S, MAX_MODELS_BYTES)
    except httpx2.HTTPError as error:
        raise _NoModelError(f"{MODELS_PATH} does not answer ({type(error).__name__}): {advice}") from error
    if status != httpx2.codes.OK:
        raise _NoModelError(f"{MODELS_PATH} answers HTTP {status}: {advice}")
    try:
        name = _Models.model_validate_json(body).data[0].id
    except ValidationError as error:
        start = _printable(body[:MAX_ANSWER_BYTES].decode(errors="replace"))
        raise _NoModelError(f"{MODELS_PATH} names no model: {advice}; it answers {start!r}") from error
    if not name.isprintable():
        raise _NoModelError(f"{MODELS_PATH} names a model with control characters, {name!r}: {advice}")
    return name


# -- the process and its supervisor


class _Event(BaseModel):
    """A line from the supervisor; see there."""

    event: str
    pid: int = 0
    began: str = ""
    code: int | None = None
    signal: str | None = None
    reason: str = ""
    left: tuple[str, ...] = ()


class _Process:
    """A command under its supervisor."""

    def __init__(
        self,
        name: str,
        command: tuple[str, ...],
        env: Mapping[str, str],
        cwd: Path,
        secrets: Secrets,
        log_path: Path,
        grace_s: float,
        note: Path,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._mark = note.stem
        self._secrets = secrets
        self._grace_s = grace_s
        self._events: dict[str, _Event] = {}
        self._ended = False  # the supervisor; an event without a name
        self._changed = threading.Condition()
        order = Order(
            name=name,
            note_path=str(note.absolute()),
            command=command,
            env=dict(env) | {leftovers.MARK: self._mark},  # not recorded: it is another in every launch
            cwd=str(cwd.absolute()),
            log_path=str(log_path.absolute()),
            secrets=secrets.values,
            grace_s=grace_s,
            parent=os.getpid(),
        )
        try:
            with log_path.open("w+b") as log:
                # Given as stderr, so that a traceback of the supervisor itself is found there too; it is also read
                # there, when the supervisor bounds it.
                self._supervisor = subprocess.Popen(
                    interpreter.command("perf.supervisor"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at the terminal is for pytest alone
                )
        except OSError as error:
            raise ServerError(f"server {name}: cannot start with log {log_path}: {error}") from error
        # A thread, since whoever asks for the exit status must never wait for a pipe.
        self._listener = threading.Thread(target=self._listen, name=f"perf-{name}", daemon=True)
        self._listener.start()
        assert self._supervisor.stdin is not None
        with suppress(BrokenPipeError):  # it died: `wait_started` says so
            self._supervisor.stdin.write(order.to_json().encode() + b"\n")
            self._supervisor.stdin.flush()

    def _listen(self) -> None:
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as lines:
            for line in lines:
                with suppress(ValidationError), self._changed:  # what cannot be read is missed, the rest is heard
                    event = _Event.model_validate_json(line)
                    self._events[event.event] = event
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait(self, event: str, timeout_s: float) -> _Event | None:
        """The event, or None when it did not come in time or will not come any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or event in self._events, timeout_s)
            return self._events.get(event)

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._events["started"].pid

    def wait_started(self) -> None:
        """Until the command runs. Raises ServerError."""
        if self._wait("started", SUPERVISOR_WAIT_S) is None:
            failed = self._events.get("failed")
            raise self.error(f"cannot start: {failed.reason if failed else 'its supervisor did not run'}")

    def wait_exited(self, timeout_s: float) -> bool:
        """True as soon as it has ended."""
        return self._wait("exited", timeout_s) is not None or self._ended

    def exit_status(self) -> ExitStatus | None:
        """None while it runs."""
        with self._changed:
            exited = self._events.get("exited")
            if exited is not None:
                return ExitStatus(code=exited.code, signal=exited.signal)
            return ExitStatus(code=None, signal=None) if self._ended else None

    def notes(self) -> tuple[str, ...]:
        """Trouble that is no reason to stop."""
        told = {
            "log_failed": "the log could not be written and is cut",
            "not_noted": "no note of it could be kept: a later run will not find who outlived its supervisor",
        }
        return tuple(f"{text}: {self._events[event].reason}" for event, text in told.items() if event in self._events)

    def log_tail(self, lines: int) -> str:
        """See Server."""
        try:
            with open_log(self.log_path) as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - MAX_TAIL_BYTES))
                text = log.read(MAX_TAIL_BYTES).decode(errors="replace")
        except OSError:  # removed, or another thing: no reason to lose the message that wanted the tail
            return ""
        # Of a progress bar that rewrites its line, what was visible last.
        shown = [_printable(line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n")]
        return "\n".join([line[:MAX_TAIL_COLUMNS] for line in shown if line][-lines:] if lines > 0 else [])

    def why(self) -> str | None:
        """See Server."""
        return server_log.reason(self.log_tail(REASON_LINES))

    def error(self, reason: str) -> ServerError:
        """With what the log says ended it, and its end."""
        why = self.why()
        reason = "; ".join((reason, *((f"its log says: {why}",) if why else ()), *self.notes()))
        return ServerError(f"server {self.name}: {reason}", self.log_path, self.log_tail(20))

    def check_owner(self, port: int) -> tuple[str, ...]:
        """Notes when it cannot be told who listens. Raises ServerError when it is a stranger."""
        try:
            found = _listening(port)
            ours = {child.pid for child in psutil.Process(self._supervisor.pid).children(recursive=True)}
        except (psutil.Error, OSError) as error:
            found, ours = set(), set()
            why = f" ({type(error).__name__})"
        else:
            why = ""
        listening = {pid for pid, _ in found}
        strangers = sorted(pid for pid in listening - ours if pid is not None)
        if strangers or listening == {None}:  # the kernel hides the owner of a socket only where it is another user
            who = "; ".join(f"pid {_described(pid, self._secrets)}" for pid in strangers) or "a process of another user"
            raise self.error(
                f"a stranger answers on port {port}: {who}; stop it, or start again (a server that runs elsewhere, "
                "such as in a container, is measured with --perf-base-url)"
            )
        if not listening or None in listening:
            return (f"who listens on port {port} could not be determined{why}",)
        if everywhere := [address for _, address in found if address in _EVERY_ADDRESS]:
            return (
                f"it listens on {everywhere[0]}: whoever reaches this machine can ask it, which may also disturb what "
                "is measured; --host 127.0.0.1, or what its option for that is, keeps it here",
            )
        return ()

    def wait_port_free(self, port: int) -> None:
        """Raises ServerError naming who listens there all the time."""
        deadline = time.monotonic() + PORT_FREE_S
        while True:
            try:
                pids = {pid for pid, _ in _listening(port)}
            except (psutil.Error, OSError):  # it cannot be told here; the next server gets another port anyway
                return
            if not pids:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL_S)
        who = "; ".join(_described(pid, self._secrets) if pid else "a process of another user" for pid in pids)
        raise ServerError(
            f"server {self.name} has ended, and {PORT_FREE_S:.0f} s later somebody listens on its port {port}: {who}\n"
            "end it, if it is a remnant of the server",
            self.log_path,
        )

    def stop(self) -> None:
        """End it with all descendants; see Server."""
        assert self._supervisor.stdin is not None
        with suppress(BrokenPipeError):
            self._supervisor.stdin.close()  # this is the order to stop; it cannot get lost
        stopped = self._wait("stopped", self._grace_s + KILL_WAIT_S + SUPERVISOR_WAIT_S)
        if stopped is None and not self._ended:
            raise ServerError(
                f"server {self.name} is still being stopped by its supervisor, pid {self._supervisor.pid}",
                self.log_path,
            )
        self._supervisor.wait(SUPERVISOR_WAIT_S)
        left = stopped.left if stopped else self._left_without_supervisor()
        if left:
            pids = " ".join(line.split()[0] for line in left)
            raise ServerError(
                f"server {self.name} left processes that did not end: {'; '.join(left)}\nend them: kill -9 {pids}",
                self.log_path,
            )

    def _left_without_supervisor(self) -> tuple[str, ...]:
        """Who is left of it as far as can be told. Not killed: without the supervisor it is not proven ours."""
        started = self._events.get("started")
        server = Birth(pid=started.pid, began=started.began) if started else None
        return tuple(_described(each.pid, self._secrets) for each in leftovers.alive(self._mark, server))


def _listening(port: int) -> set[tuple[int | None, str]]:
    """Who listens on a loopback port, and on which address; no pid where another user does. Raises psutil.Error."""
    return {
        (connection.pid, connection.laddr.ip)
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and connection.laddr.ip in _LOCAL_ADDRESSES
    }


def _described(pid: int, secrets: Secrets) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} {' '.join(secrets.redact_argv(tuple(process.cmdline()))) or process.name()}"
    except psutil.Error:
        return f"{pid} ?"


def _printable(text: str) -> str:
    """Without colours; other control characters, which could rewrite the screen, made visible."""
    plain = _ANSI.sub("", text).replace("\t", " ")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
