"""One launch: start the server, ask it every level, keep what was seen. The world between `server` and `load`."""

import hashlib
import os
import re
import secrets as randomness
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from perf import answers, crew, leftovers, load, metrics, server, server_log, trace_file, validity
from perf.capacity import ROOM, Capacity
from perf.files import FileError
from perf.identity import MAX_RECORDED, MAX_VALUE, Identity, Value, check, check_attached, check_model, recorded
from perf.provenance import build_of, code_of
from perf.record import MAX_OUTPUT, LaunchRecord, Measurement, Order, Outputs, RoundRecord, no_outputs, now_utc
from perf.redaction import Secrets
from perf.rig import GpuState
from perf.sample import Build
from perf.server_log import ServerLog
from perf.sglang import Control, ServerInfo
from perf.suite import SameOutput, Suite, Variant
from perf.telemetry import Sampler
from perf.text import printable
from perf.trace import MAX_DETAIL, Counters, RequestTrace, Round
from perf.validity import Observation, Reason
from perf.workload import RoundPlan

#: A connection that broke is seen a moment before the end of the process that held it: after a failed request the
#: server's death is waited for this long, so that it is named.
DEATH_SETTLE_S = 1.0
DEATH_POLL_S = 0.05

#: A driver takes seconds to free the memory of a server that has ended; tens of them for hundreds of gigabytes.
GPU_SETTLE_S = 60.0
GPU_POLL_S = 0.5

#: How much of a text from a server stands in a record, in characters: of a name or version, and of an error.
NAME_LENGTH = 200
DETAIL_LENGTH = 300

#: Of one line of a log, which is read in pieces where it is longer.
MAX_LINE_BYTES = 64 * 1024

#: Decode steps between two lines of a log, at most: more are none that anybody asked for.
MAX_INTERVAL = 1_000_000

#: Of the digests of outputs. It ends with this process, so that no digest of a text tells of a secret in it.
_SALT = randomness.token_bytes(32)

#: A key file larger than this is another file.
MAX_KEY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """How long work shows itself: `line` stays, `live` is overwritten by the next and may be thrown away."""

    line: Callable[[str], None]
    live: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What every launch of one suite in one campaign shares.

    `base_url` is of a server that already runs. `gpus` looks at the GPUs that the suite needs to itself.
    `telemetry` samples them while a round is measured; None where that says nothing: no GPU, or synthetic time.
    `same_outputs` are those to be judged: the first launch of each of their variants is asked for its output.
    """

    suite: Suite
    folder: Path
    prefix: str
    base_url: str | None
    show: Show
    limits: load.Limits
    capacity: Capacity
    gpus: Callable[[], tuple[GpuState, ...]]
    same_outputs: tuple[SameOutput, ...] = ()
    telemetry: Sampler | None = None

    def measure(self, order: Order) -> LaunchRecord:
        """Run one launch. What goes wrong becomes reasons in the record, never a number."""
        variant, name = run_by(self.suite, order), f"{self.prefix}{order.name}"
        folder = self.folder / name
        _make(folder)
        started_at, began = now_utc(), time.monotonic()
        to_start = spec(self.suite, variant, name, key=api_key(variant, self.suite.source.parent))
        hidden = Secrets.collect(
            to_start.command, dict(to_start.env), to_start.api_key, () if not self.base_url else (self.base_url,)
        )
        record = LaunchRecord(
            name=name,
            variant=order.variant,
            arm=order.arm,
            ordinal=order.ordinal,
            block=order.block,
            started_at=started_at,
            start_s=None,
            duration_s=0.0,
            command=() if self.base_url else hidden.redact_argv(to_start.command),
            variant_env=() if self.base_url else hidden.redact_env(dict(to_start.env)),
            python=None if self.base_url else to_start.python,
            env=() if self.base_url else server.recorded_env(to_start),
            model=None,
            server_version=None,
            # Asked before every launch: a checkout may change under a campaign.
            build=None if self.base_url or self.suite.emulated else build(to_start),
            notes=(),
            measurements=(),
            outputs=None,
            server_arguments=(),
        )
        self.show.live(f"{name}: starting")
        if foreign := self._foreign():
            return replace(self._unmeasured(record, order, foreign), duration_s=time.monotonic() - began)
        try:
            with self._server(to_start, folder) as running:
                record = self._served(record, order, running, to_start, hidden)
        except server.ServerError as error:
            began_here = self.base_url is None
            reason = Reason(
                name="server did not end"
                if record.measurements or record.outputs
                else "server did not start"
                if began_here
                else "server did not answer",
                seen=_seen(error, hidden),
                advice="read the server log" if began_here else "start it, and see that the URL is its own",
            )
            self.show.line(f"{name}: {reason.name}")
            kept = record.measurements or self._nothing(order, ())
            record = replace(
                record,
                measurements=tuple(replace(each, reasons=(*each.reasons, reason)) for each in kept),
                outputs=no_outputs(reason) if self._askings(order) else None,
            )
        return replace(record, duration_s=time.monotonic() - began)

    def _served(
        self, record: LaunchRecord, order: Order, running: server.Server, started: server.ServerSpec, hidden: Secrets
    ) -> LaunchRecord:
        """What a server that answers is asked, and what it says."""
        self.show.line(f"{record.name}: ready" + (f" after {running.start_s:.1f} s" if running.start_s else ""))
        with closing(Control(running.base_url, running.authorization)) as control:
            info = control.info()
            record = replace(
                record,
                start_s=running.start_s,
                model=_name(running.model, hidden),
                server_version=_name(info.version, hidden),
                server_arguments=_arguments(info.said, hidden),
            )
            speculative = run_by(self.suite, order).speculative or info.speculative_algorithm is not None
            folder = self.folder / record.name
            launch = _Launch(self, speculative, running, control, folder, hidden, started.command, info.said)
            identity = self._identity(started, info, control, running, hidden)
            if wrong := identity.reasons:
                record = self._unmeasured(record, order, wrong)
            else:
                askings, measured = self._askings(order), launch.measure(order.levels)
                outputs = launch.outputs(askings) if askings else None
                record = replace(record, measurements=measured, outputs=outputs)
            said = (*running.notes, *identity.notes, *launch.notes)
            return replace(record, notes=tuple(hidden.redact(note) for note in said))

    def _unmeasured(self, record: LaunchRecord, order: Order, reasons: tuple[Reason, ...]) -> LaunchRecord:
        """A launch of which no level was measured, for these reasons."""
        self.show.line(f"{record.name}: INVALID: {reasons[0].name}")
        outputs = no_outputs(reasons[0]) if self._askings(order) else None
        return replace(record, measurements=self._nothing(order, reasons), outputs=outputs)

    @staticmethod
    def _nothing(order: Order, reasons: tuple[Reason, ...]) -> tuple[Measurement, ...]:
        return tuple(Measurement(level=level, rounds=(), reasons=reasons) for level in order.levels)

    def _askings(self, order: Order) -> int:
        """How often a launch is asked for its output: a yardstick twice, to see whether it agrees with itself."""
        if (order.arm, order.ordinal) != ("candidate", 1):
            return 0
        concerned = [each.variants for each in self.same_outputs if order.variant in each.variants]
        return max((2 if order.variant == variants[0] else 1 for variants in concerned), default=0)

    def say_what_is_left(self) -> None:
        """After the last launch: who still has the GPUs, where it is not seen by a launch that waits for them."""
        for reason in self._foreign():
            self.show.line(f"after the last launch: {reason.seen}; do: {reason.advice}")

    def _foreign(self) -> tuple[Reason, ...]:
        """Who else has the GPUs: what a server before this one held is waited for."""
        began = time.monotonic()
        while reasons := validity.check_gpus(gpus := self.gpus()):
            waited_s = time.monotonic() - began
            if waited_s >= GPU_SETTLE_S:
                pids = {process.pid for gpu in gpus for process in gpu.processes}
                more = "; ".join(filter(None, (f"waited {waited_s:.0f} s for it", leftovers.origin(pids))))
                return tuple(replace(each, seen=f"{each.seen}; {more}") for each in reasons)
            time.sleep(GPU_POLL_S)
        return ()

    def _identity(
        self, spec: server.ServerSpec, info: ServerInfo, control: Control, running: server.Server, hidden: Secrets
    ) -> Identity:
        """Is it the server that was asked for, by what it says of itself?"""
        command = hidden.redact_argv(spec.command)
        said = {name: hidden.redact(value) if isinstance(value, str) else value for name, value in info.said.items()}
        found = check(command, said, port=running.port) if self.base_url is None else check_attached(command, said)
        if info.silent:
            found = replace(found, notes=(*found.notes, "it says nothing of its arguments: identity not checked"))
        if spec.model is None:
            return found
        listed = tuple(hidden.redact(name) for name in control.models())
        named = check_model(hidden.redact(spec.model), said, listed)
        return Identity(wrong=(*found.wrong, *named.wrong), notes=found.notes)

    def _server(self, spec: server.ServerSpec, folder: Path) -> server.Server:
        if self.base_url is not None:
            return server.attach(self.base_url, model=spec.model, api_key=spec.api_key, ready_path=spec.ready_path)
        return server.launch(spec, folder / "server.log")


def run_by(suite: Suite, order: Order) -> Variant:
    """The variant as the arm of a launch runs it."""
    variant = next(each for each in suite.variants if each.name == order.variant)
    if order.arm == "candidate":
        return variant
    if suite.reference is None:
        raise ValueError(f"{order.name}: {suite.name} has no [reference]")
    return suite.reference.running(variant)


def spec(suite: Suite, variant: Variant, name: str, *, key: str | None) -> server.ServerSpec:
    """How a variant's server is started; `name` is the launch's, `key` the API key."""
    return server.ServerSpec(
        name=name,
        command=variant.command,
        python=variant.python,
        env=variant.env,
        cwd=suite.source.parent,
        ready_path=variant.ready_path,
        ready_timeout_s=variant.ready_timeout_s,
        model=variant.model,
        api_key=key,
    )


def build(of: server.ServerSpec) -> Build | None:
    """The build that a server would run; None where its command has no `{python}`, or that does not tell."""
    if not any("{python}" in part for part in of.command):
        return None
    return build_of(of.python or sys.executable, of.cwd, server.environment(of))


def shared_code(suite: Suite) -> str | None:
    """Why the reference build would run the candidate's code, and what to do; None where it does not as far as is seen.

    Both look into their working directory first. What is imported from there is the same for any interpreter.
    """
    if suite.reference is None:
        return None
    for variant in suite.variants:
        found: list[Path | None] = []
        for runs in (variant, suite.reference.running(variant)):
            started = spec(suite, runs, runs.name, key=None)
            found.append(
                code_of(started.command, started.python or sys.executable, started.cwd, server.environment(started))
            )
        code, folder = found[0], suite.source.parent.resolve()
        if code is not None and code == found[1] and folder in code.parents:
            return (
                f"{suite.name}: candidate and reference of {variant.name} would both run {code}, which lies in the "
                f"folder of the suite file, the working directory of both; move that file to a folder of its own"
            )
    return None


def api_key(variant: Variant, folder: Path) -> str | None:
    """The variant's key, from the environment or a file relative to the suite's folder. Raises FileError."""
    if variant.api_key_env is not None:
        key = os.environ.get(variant.api_key_env)
        if not key:
            raise FileError(f"variants.{variant.name}.api_key_env: {variant.api_key_env} is not set; export the key")
        return _sendable(key.strip(), f"variants.{variant.name}.api_key_env")
    if variant.api_key_file is None:
        return None
    path = folder / variant.api_key_file
    try:
        key = path.read_bytes()[:MAX_KEY_BYTES].decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        # Not the path: where the key itself was written in its place, it would be shown.
        raise FileError(
            f"variants.{variant.name}.api_key_file: the file cannot be read: {why}; see its path"
        ) from error
    if not key:
        raise FileError(f"variants.{variant.name}.api_key_file: the file is empty; write the key into it")
    return _sendable(key, f"variants.{variant.name}.api_key_file")


def _sendable(key: str, place: str) -> str:
    """The key, where a header can carry it. Raises FileError; said before a server is waited for."""
    if not key or not key.isascii() or not key.isprintable():
        raise FileError(f"{place}: the key has a character that no header can carry, or none; give it without")
    return key


class _Launch:
    """The rounds of one launch, while its server runs."""

    def __init__(
        self,
        bench: Bench,
        speculative: bool,
        running: server.Server,
        control: Control,
        folder: Path,
        hidden: Secrets,
        command: tuple[str, ...],
        said: Mapping[str, Value],
    ) -> None:
        self.bench = bench
        self.speculative = speculative
        self.adaptive = said.get("speculative_adaptive") is True
        self.running = running
        self.control = control
        self.folder = folder
        self.hidden = hidden
        told = said.get("decode_log_interval")
        self.log_interval = told if isinstance(told, int) and 0 < told <= MAX_INTERVAL else None
        without = re.search(r"--disable\S*-cuda-graph|--cuda-graph\S*[ =]\S*disabled", " ".join(command))
        self.graphs = without is None and said.get("device", "cuda") == "cuda"
        self.counters: Counters | None = None  # as last seen: a server that had them once has to have them still
        self.notes: tuple[str, ...] = ()

    def measure(self, levels: tuple[int, ...]) -> tuple[Measurement, ...]:
        workload, target = self.bench.suite.workload, self._target()
        # A server that already ran may know our prompts: flushed before every round, or asked under a fresh salt.
        salt = "" if self.control.flush_cache() or self.running.pid is not None else randomness.token_hex(8)
        if salt:
            self.notes = (f"its cache cannot be flushed: asked under the salt {salt}",)
        measured: list[Measurement] = []
        with crew.client(target, processes=workload.client_processes, limits=self.bench.limits) as client:
            for level in levels:
                if death := self._death():
                    seen = f"{death}; it was gone before {self.bench.suite.level_name(level)}"
                    reason = Reason(name="server died", seen=seen, advice="read the server log")
                    measured.append(Measurement(level=level, rounds=(), reasons=(reason,)))
                    continue
                rounds: list[RoundRecord] = []
                for index in range(workload.rounds):
                    rounds.append(self._round(client, level, index, salt))
                    if rounds[-1].reasons:
                        break  # the case is INVALID whatever follows
                measured.append(Measurement(level=level, rounds=tuple(rounds), reasons=()))
        has_numbers = any(each.summary for taken in measured for each in taken.rounds)
        if has_numbers and (self.counters or Counters()).generated is None:
            unchecked = "it counts no tokens at /metrics: the client's were not checked (--enable-metrics)"
            self.notes = (*self.notes, unchecked)
        return tuple(measured)

    def outputs(self, askings: int) -> Outputs:
        """What the server says to a few prompts, asked so often. The cache is empty each time, where that can be had:
        what comes from it is computed in other shapes."""
        workload, name = self.bench.suite.workload, self.running.name
        prompts = answers.chosen(workload.prompts)
        tokens = min(answers.TOKENS, *map(workload.tokens, workload.levels))
        self.bench.show.live(f"{name}: asked for its output")
        said: list[tuple[str, ...]] = []
        digests: list[tuple[str, ...]] = []
        try:
            for _ in range(askings):
                self.control.flush_cache()
                texts = answers.ask(self._target(), prompts, tokens)
                # Of all that was said: what is shown is cut, and each variant's own secrets are replaced in it.
                digests.append(tuple(_digest(text) for text in texts))
                # JSON can carry half a surrogate pair, and a file would hold its escape, which is longer.
                whole = (text.encode("utf-8", errors="backslashreplace").decode() for text in texts)
                said.append(tuple(self.hidden.redact(text)[:MAX_OUTPUT] for text in whole))
        except answers.NoAnswerError as error:
            death = self._death(suspected=True)
            seen = death or printable(self.hidden.redact(str(error)), DETAIL_LENGTH)
            reason = Reason(name="server died" if death else "no output", seen=seen, advice="read the server log")
            self.bench.show.line(f"{name}: INVALID: {reason.name}")
            return no_outputs(reason)
        return Outputs(
            tokens=tokens,
            prompts=tuple(each.id for each in prompts),
            texts=said[0],
            digests=digests[0],
            again=(*digests, ())[1],
            reason=None,
        )

    def _target(self) -> load.Target:
        workload = self.bench.suite.workload
        return load.Target(
            base_url=self.running.base_url,
            model=self.running.model,
            authorization=self.running.authorization,
            endpoint=workload.endpoint,
            temperature=workload.temperature,
        )

    def _round(self, client: crew.AnyClient, level: int, index: int, salt: str) -> RoundRecord:
        suite = self.bench.suite
        tokens = suite.workload.tokens(level)
        plan = suite.workload.plan(level, index, salt=salt)
        label = f"{self.running.name} {suite.level_name(level)}" + (
            f" round {index + 1}/{suite.workload.rounds}" if suite.workload.rounds > 1 else ""
        )
        telemetry = self.bench.telemetry
        if telemetry is not None:
            telemetry.start()
        if reasons := self._warm_up(client, plan, label, salt):
            self.bench.show.line(f"{label}: INVALID: {reasons[0].name}")
            return RoundRecord(index=index, summary=None, reasons=reasons, client=None, gpus=None, server_log=None)
        self.control.flush_cache()
        before = self.control.counters()
        log_end = self._log_end()
        if telemetry is not None:
            telemetry.begin(self.running.pid)
        measured = client.run_round(
            plan,
            tokens,
            start_spread_s=suite.workload.start_spread_s,
            died=self._is_dead,
            show=lambda progress: self.bench.show.live(f"{label}: {_live(progress)}"),
        )
        gpus = None if telemetry is None else telemetry.end()
        expected = sum(request.output_tokens or 0 for request in measured.requests)
        after = self.control.settled_counters(before, expected)
        log = self._log_since(log_end)
        measured = _redacted(measured, self.hidden)
        observation = Observation(
            round=measured,
            before=before or self.counters,
            last=self.counters,
            after=after,
            speculative=self.speculative,
            adaptive=self.adaptive,
            level_must_be_reached=suite.workload.level_must_be_reached,
            death=self._death(suspected=any(request.failure for request in measured.requests)),
        )
        self.counters = after or observation.before
        reasons = (*validity.check(observation), *validity.check_telemetry(gpus or ()))
        counted = observation.counted
        said = [*validity.remarks(measured), *validity.gpu_remarks(gpus or ())]
        if telemetry is not None and gpus is None and telemetry.problem is not None:
            said.append(telemetry.problem)
        self.notes = (*self.notes, *(f"{suite.level_name(level)}: {each}" for each in said))
        try:
            trace_file.write(trace_file.path(self.folder, suite.level_name(level), index), measured, counted)
        except trace_file.TooLargeError as error:
            self.notes = (*self.notes, str(error))
        summary = metrics.summarize(measured, verify_steps=None if counted is None else counted.verify_steps)
        if summary is not None and not reasons:
            reasons = self._capacity(measured, summary.window_s)
        outcome = f"INVALID: {reasons[0].name}" if reasons else "no numbers"
        if summary is not None and not reasons:
            outcome = f"{summary.output_throughput:,.1f} tok/s in {summary.window_s:.1f} s"
            if log is not None:
                self._note_of_log(log, level, summary.steady_throughput or summary.output_throughput)
        self.bench.show.line(f"{label}: {outcome}")
        return RoundRecord(
            index=index, summary=summary, reasons=reasons, client=measured.client, gpus=gpus, server_log=log
        )

    def _note_of_log(self, log: ServerLog, level: int, throughput: float) -> None:
        """What the log says beside the client, once a level: rounds differ in the numbers alone."""
        name = self.bench.suite.level_name(level)
        for each in server_log.remarks(log, level=level, throughput=throughput, graphs=self.graphs):
            begun = re.split(r"\d", each)[0]
            if not any(note.startswith(f"{name}: {begun}") for note in self.notes):
                self.notes = (*self.notes, f"{name}: {each}")

    def _warm_up(self, client: crew.AnyClient, plan: RoundPlan, label: str, salt: str) -> tuple[Reason, ...]:
        """Ask the warm-up, again while the server still speeds up; why the round must not be measured."""
        waves: list[Round] = []
        tokens = self.bench.suite.workload.tokens(plan.level)
        while plan.warmup and not validity.is_warm(waves):
            self.bench.show.live(f"{label}: warm-up" + (f" {len(waves) + 1}" if waves else ""))
            if waves:
                plan = self.bench.suite.workload.plan(plan.level, plan.index, salt=salt, wave=len(waves))
            waves.append(_redacted(client.warm_up(plan, tokens, died=self._is_dead), self.hidden))
            failed = any(request.failure for request in waves[-1].requests)
            if reasons := validity.check_warmup(waves, self._death(suspected=failed)):
                return reasons
        return ()

    def _capacity(self, measured: Round, window_s: float) -> tuple[Reason, ...]:
        """Was the client shown to carry more than this?"""
        processes = 1 if measured.client is None else measured.client.processes
        chunks_s = sum(len(request.chunk_times_s) for request in measured.requests) / window_s
        carried = self.bench.capacity.prove(measured.level, ROOM * chunks_s, processes)
        return validity.check_capacity(chunks_s, measured.level, carried, ROOM, self.bench.capacity.why_not)

    def _is_dead(self) -> bool:
        return self.running.exit_status() is not None

    def _death(self, *, suspected: bool = False) -> str | None:
        deadline = time.monotonic() + (DEATH_SETTLE_S if suspected else 0.0)
        while (status := self.running.exit_status()) is None and time.monotonic() < deadline:
            time.sleep(DEATH_POLL_S)
        if status is not None:
            how = status.describe()
        elif suspected and server_log.is_ending(self.running.log_tail(server.REASON_LINES)):
            how = "it is about to end itself"
        else:
            return None
        if why := self.running.why():
            return f"{how}; its log says: {self.hidden.redact(why)}"
        last = self.hidden.redact(self.running.log_tail().strip().rpartition("\n")[2])
        return f"{how}; its last line: {printable(last)}" if last else how

    def _log_end(self) -> tuple[int, int] | None:
        """Which file the log is, and how long; None without one."""
        try:
            now = None if self.running.log_path is None else self.running.log_path.lstat()
        except OSError:  # removed: its server goes on
            return None
        return None if now is None else (now.st_ino, now.st_size)

    def _log_since(self, end: tuple[int, int] | None) -> ServerLog | None:
        """What the log says since it ended there; None where it does not, or was cut meanwhile."""
        if end is None or self.running.log_path is None:
            return None
        try:
            with server.open_log(self.running.log_path) as log:
                now = os.fstat(log.fileno())
                if now.st_ino != end[0] or now.st_size < end[1]:
                    return None
                log.seek(end[1])
                return server_log.summarize(_lines(log, now.st_size), interval=self.log_interval)
        except OSError:
            return None


def _lines(log: BinaryIO, end: int) -> Iterator[bytes]:
    while log.tell() < end and (line := log.readline(MAX_LINE_BYTES)):
        yield line


def _arguments(said: Mapping[str, Value], hidden: Secrets) -> tuple[tuple[str, str], ...]:
    shown = hidden.redact_env(recorded(said))
    return tuple((hidden.redact(name), printable(value, MAX_VALUE)) for name, value in shown)[:MAX_RECORDED]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16, key=_SALT).hexdigest()


def _redacted(measured: Round, hidden: Secrets) -> Round:
    """Whatever text of the server's a request keeps: it may quote the key that it was sent."""

    def clean(request: RequestTrace) -> RequestTrace:
        failure = request.failure
        if failure is not None:
            failure = replace(failure, detail=_clean(failure.detail, hidden, DETAIL_LENGTH))
        finish = None if request.finish_reason is None else _clean(request.finish_reason, hidden, NAME_LENGTH)
        return replace(request, failure=failure, finish_reason=finish)

    return replace(measured, requests=tuple(clean(request) for request in measured.requests))


def _clean(text: str, hidden: Secrets, limit: int) -> str:
    """Cut only after secrets were replaced: half a secret is not found any more."""
    return hidden.redact(text, cut=len(text) >= MAX_DETAIL)[:limit]


def _name(text: str | None, hidden: Secrets) -> str | None:
    """A model's name or a version, as a server gives it, for a record."""
    return None if text is None else printable(hidden.redact(text), NAME_LENGTH)


def _seen(error: server.ServerError, hidden: Secrets) -> str:
    """The reason and the end of the log on one line; what ended a server stands in its last lines, not in its first."""
    tail = [printable(hidden.redact(line), 130) for line in error.tail.splitlines()[-8:]]
    reason = printable(hidden.redact(error.reason), 400)
    return reason + (f"; the end of its log: {' | '.join(tail)}" if tail else "")


def _live(progress: load.Progress) -> str:
    rate = (progress.tokens or progress.chunks) / progress.elapsed_s if progress.elapsed_s > 0 else 0.0
    return f"{progress.finished}/{progress.planned} requests, {rate:,.0f} {'tok' if progress.tokens else 'chunks'}/s"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be created: {error.strerror}") from error
