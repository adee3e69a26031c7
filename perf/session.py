"""The one measurement of a session: which suites, judged with what, kept where. Knows no pytest.

A suite is measured when the first verdict of it is asked for, for exactly what was selected of it; the campaign is
complete only when the session says that it ran to its end.
"""

import os
import resource
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import perf
from perf import campaign as campaigns
from perf import history, leftovers, load, plan, record, report, rig_lock, verdict
from perf.baseline import Store
from perf.capacity import Capacity
from perf.carrier import Carried
from perf.crossover import StoredCrossover
from perf.files import FileError
from perf.history import History
from perf.measure import Bench, Show, api_key, run_by, shared_code
from perf.measured import measurements, sample, told_of_clocks
from perf.promotion import command
from perf.record import (
    Campaign,
    CaseRecord,
    CrossoverRecord,
    LaunchRecord,
    Measurement,
    Order,
    RelationRecord,
    SameOutputRecord,
    SuiteRecord,
    WorkloadRecord,
    no_outputs,
)
from perf.redaction import Secrets
from perf.rig import EMULATED_RIG_ID, Rig, probe, states
from perf.sample import StoredCase, throughputs
from perf.suite import Gate, Suite
from perf.telemetry import Sampler
from perf.text import duration, printable
from perf.validity import Reason, level_never_reached
from perf.verdict import CaseVerdict, Verdict

#: Open files that a session allows itself, where it may: far more streams than any level has.
OPEN_FILES = 65_536

#: How soon the end of tox is seen; a look costs a microsecond.
PARENT_POLL_S = 0.5


class CannotMeasureError(Exception):
    """A suite that cannot be measured here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a session: folders, and where they are given what goes before the suite's own."""

    baselines: Path
    campaigns: Path
    margin: float | None
    budget_minutes: float | None
    max_launches: int | None
    base_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict with what its item shows; `carried` is None where there is no number that could be believed."""

    verdict: Verdict
    screen: str
    carried: Carried | None


class Session:
    """One campaign: suite after suite, each measured when the first verdict of it is asked for.

    `selected` are the ids of the cases and relations to be judged, `rerun` says that they are what failed before.
    """

    def __init__(
        self, settings: Settings, suites: Sequence[Suite], selected: frozenset[str], show: Show, *, rerun: bool
    ) -> None:
        self.settings = settings
        self.suites = {each.name: each for each in suites}
        self.selected = selected
        self.show = show
        self.rerun = rerun
        self.folder: Path | None = None
        self.campaign: Campaign | None = None
        self.verdicts: dict[str, Verdict] = {}
        self.errors: dict[str, str] = {}
        self._lock: rig_lock.RigLock | None = None  # once this session measures, to its end

    @property
    def promote(self) -> str:
        """The command that promotes this campaign."""
        return command(self._folder(), self.settings.baselines)

    @property
    def shown(self) -> str:
        """The campaign's folder as a user would type it."""
        return str(record.as_typed(self._folder()))

    def judged(self, suite: str, id: str) -> Judged:
        """The verdict of a case or relation; measures its suite first where that has not been done.

        Raises CannotMeasureError, the same one for whatever else is asked of a suite that could not be measured.
        """
        if id not in self.verdicts and suite not in self.errors:
            try:
                self._measure(self.suites[suite])
            except (FileError, CannotMeasureError) as error:
                self.errors[suite] = str(error)
        if suite in self.errors:
            raise CannotMeasureError(self.errors[suite])
        found = self.verdicts[id]
        return Judged(
            verdict=found,
            screen=report.screen(found, self.promote, self.shown),
            carried=self._carried(found, suite),
        )

    def _carried(self, found: Verdict, suite_name: str) -> Carried | None:
        if not isinstance(found, CaseVerdict) or found.measured is None:
            return None
        owner = next(each for each in self._campaign().suites if each.name == suite_name)
        taken = measurements(owner, found.variant, found.level)
        return Carried(
            case=found.id,
            level=found.level,
            throughputs=throughputs(sample(launch, measurement) for launch, measurement in taken),
            extra_info=(("verdict", report.word(found)), ("campaign", self._folder().name)),
        )

    def finish(self) -> None:
        """The session ran to its end: only now is the campaign complete. Raises FileError.

        A suite that was selected and not measured to its end is in it all the same, with the reason: whoever reads the
        campaign later must not take the rest of it for the whole.
        """
        if self._lock is not None:
            self._lock.release()
        if self.campaign is None:
            return
        suites = {each.name: each for each in self.campaign.suites}
        for chosen in self.suites.values():
            problem = self.errors.get(chosen.name)
            if chosen.name not in suites:
                suites[chosen.name] = self._record(chosen, self.campaign.rig, {}, {})
                problem = problem or "the session ended before it was measured"
            if problem is not None:
                suites[chosen.name] = replace(suites[chosen.name], problem=problem)
        done = replace(self.campaign, suites=tuple(suites.values()), finished_at=record.now_utc(), complete=True)
        record.save(self._folder(), done)
        self.campaign = done
        try:
            History.beside(self._folder().parent).append(history.nights(done))
        except FileError as error:  # the verdicts stand without it
            again = f"python -m perf import {self.shown}"
            self.show.line(f"this night is not in the history: {error}; put that right, then: {again}")

    def markdown(self) -> str:
        """What a build's summary says of the session."""
        if self.campaign is None:
            return report.not_measured(self.errors)
        return report.markdown(self.campaign, self.promote, self.shown)

    def _measure(self, chosen: Suite) -> None:
        rig = probe() if self.campaign is None else self.campaign.rig
        if self.settings.base_url is None and len(rig.gpus) < chosen.gpus:
            seen = f"{len(rig.gpus)} GPUs" + (f" ({rig.note})" if rig.note else "")
            raise CannotMeasureError(
                f"{chosen.name} needs {chosen.gpus} GPUs; seen: {seen}. Run it on the rig, or choose another suite"
            )
        for variant in chosen.variants:
            api_key(variant, chosen.source.parent)  # a missing key is said before minutes are spent
        if self.settings.base_url is None and (shared := shared_code(chosen)):
            raise CannotMeasureError(shared)
        if self.settings.base_url is None and self._lock is None:
            self._lock = self._rig_alone(rig)
        if self.campaign is None:
            self.folder = record.create_folder(self.settings.campaigns)
            if self._lock is not None:
                self._lock.tell(f"campaign {os.path.abspath(self.folder)}")
            self.campaign = Campaign(
                kind="sglang-perf campaign",
                schema=2,
                id=self.folder.name,
                started_at=record.now_utc(),
                finished_at=None,
                complete=False,
                tool_version=perf.__version__,
                rig=rig,
                suites=(),
            )
        before = self.campaign.suites

        def save(state: SuiteRecord) -> None:
            self.campaign = replace(self._campaign(), suites=(*before, state))
            record.save(self._folder(), self.campaign)

        variants = [variant.name for variant in chosen.variants]
        store = Store(self.settings.baselines)
        stored = store.by_case(_rig_id(chosen, rig), chosen.name, variants)
        crossovers = store.crossovers(_rig_id(chosen, rig), chosen.name) if chosen.crossovers else {}
        start = self._record(chosen, rig, stored, crossovers)
        save(start)
        # Where time is synthetic, and on a server that already ran, the GPUs here say nothing of what is measured.
        sampled = rig.gpus if chosen.gpus and not chosen.emulated and self.settings.base_url is None else ()
        telemetry = Sampler([gpu.uuid for gpu in sampled]) if sampled else None
        bench = Bench(
            suite=chosen,
            folder=self._folder(),
            prefix=f"{chosen.name}." if len(self.suites) > 1 else "",
            base_url=self.settings.base_url,
            show=self.show,
            limits=load.Limits(),
            capacity=Capacity(rig, self.show.live),
            gpus=lambda: states(rig) if chosen.gpus and self.settings.base_url is None else (),
            same_outputs=tuple(each.same_output for each in start.same_outputs if each.selected),
            telemetry=telemetry,
        )
        for case in start.cases:
            reason = level_never_reached(case.level, chosen.workload.requests(case.level))
            if case.selected and chosen.workload.level_must_be_reached and reason:
                self.show.line(f"{case.id} will be INVALID: {reason.seen}: {reason.advice}")
        gate = self._gate(chosen)
        began, budget_s = time.monotonic(), None if gate.budget_minutes is None else 60 * gate.budget_minutes
        if self.settings.base_url is None and all(case.selected for case in start.cases):
            self.show.line(plan.line(plan.forecast(replace(chosen, gate=gate), stored)))
        _raise_open_files()
        with ExitStack() as stack, _interruptible():
            if telemetry is not None:
                stack.enter_context(telemetry)
            done = campaigns.run(
                start,
                measure=lambda order: told_of_clocks(self._campaign().suites[-1], _guarded(bench, order)),
                save=save,
                clock=time.monotonic,
                budget_s=budget_s,
            )
            for order in _owed_to_outputs(done):
                if budget_s is not None and time.monotonic() - began >= budget_s:
                    self.show.line(f"{order.name}: not launched: the budget of {duration(budget_s)} is spent")
                    continue
                done = replace(done, launches=(*done.launches, _guarded(bench, order)))
                save(done)
            bench.say_what_is_left()
        save(done)
        self.verdicts |= {each.id: each for each in verdict.judge(done)}

    def _rig_alone(self, rig: Rig) -> rig_lock.RigLock:
        """The locks of all that this session measures; nobody is left of an earlier one."""
        if found := leftovers.find():
            raise CannotMeasureError(
                "processes of an earlier run that was killed still live, and would be measured along: "
                f"{'; '.join(map(str, found))}. End them: {leftovers.advice(found)}"
            )
        try:
            return rig_lock.RigLock(rig_lock.needs(self.suites.values(), rig), "no campaign yet")
        except rig_lock.RigTakenError as error:
            raise CannotMeasureError(str(error)) from error

    def _record(
        self,
        chosen: Suite,
        rig: Rig,
        stored: Mapping[tuple[str, int], StoredCase],
        crossovers: Mapping[str, StoredCrossover],
    ) -> SuiteRecord:
        """What is known of a suite before its first launch."""
        gate = self._gate(chosen)
        advisory = None
        if self.settings.base_url is not None:
            advisory = "measured on a server that already ran: shown, never gated, never promoted"
        elif chosen.advisory:
            advisory = 'level_reached = "not required": shown, never gated, never promoted'
        return SuiteRecord(
            name=chosen.name,
            source=str(chosen.source),
            rig_id=_rig_id(chosen, rig),
            power_limits_w=() if chosen.emulated else rig.power_limits_w,
            fingerprint=() if chosen.emulated else rig.fingerprint,
            margin=gate.margin,
            alpha=chosen.gate.alpha,
            power=chosen.gate.power,
            family=chosen.family,
            max_launches=plan.most_launches(gate),
            # A server that already ran is no build of anybody's.
            reference=chosen.reference is not None and self.settings.base_url is None,
            order_seed=secrets.randbits(32),
            workload=WorkloadRecord(
                prompt_set=chosen.workload.prompt_set,
                endpoint=chosen.workload.endpoint,
                temperature=chosen.workload.temperature,
                rounds=chosen.workload.rounds,
                warmup_requests=chosen.workload.warmup_requests,
                output_tokens=tuple((level, chosen.workload.tokens(level)) for level in chosen.workload.levels),
            ),
            requests=tuple((level, chosen.workload.requests(level)) for level in chosen.workload.levels),
            level_must_be_reached=chosen.workload.level_must_be_reached,
            advisory=advisory,
            rerun=self.rerun,
            cases=tuple(
                CaseRecord(
                    id=case.id,
                    variant=case.variant,
                    level=case.level,
                    workload_digest=case.workload_digest,
                    selected=case.id in self.selected,
                    stored=stored.get((case.variant, case.level)),
                )
                for case in chosen.cases
            ),
            relations=tuple(
                RelationRecord(relation=relation, selected=relation.id in self.selected)
                for relation in chosen.relations
            ),
            crossovers=tuple(
                CrossoverRecord(
                    crossover=crossover, selected=crossover.id in self.selected, stored=crossovers.get(crossover.id)
                )
                for crossover in chosen.crossovers
            ),
            launches=(),
            stopped=None,
            problem=None,
            same_outputs=tuple(
                SameOutputRecord(same_output=same_output, selected=same_output.id in self.selected)
                for same_output in chosen.same_outputs
            ),
        )

    def _gate(self, chosen: Suite) -> Gate:
        """What is asked of the verdict, where options go before the suite."""
        return replace(
            chosen.gate,
            margin=self.settings.margin or chosen.gate.margin,
            budget_minutes=self.settings.budget_minutes or chosen.gate.budget_minutes,
            max_launches=self.settings.max_launches or chosen.gate.max_launches,
        )

    def _campaign(self) -> Campaign:
        if self.campaign is None:
            raise CannotMeasureError("no campaign was begun")
        return self.campaign

    def _folder(self) -> Path:
        if self.folder is None:
            raise CannotMeasureError("no campaign was begun")
        return self.folder


def _rig_id(chosen: Suite, rig: Rig) -> str:
    return EMULATED_RIG_ID if chosen.emulated else rig.id


def _owed_to_outputs(suite: SuiteRecord) -> tuple[Order, ...]:
    """Launches without a level: of variants whose output is to be compared, and which nothing else launched."""
    launched = {launch.variant for launch in suite.launches if launch.arm == "candidate"}
    wanted = [each.same_output.variants for each in suite.same_outputs if each.selected and suite.stopped is None]
    owed = dict.fromkeys(name for variants in wanted for name in variants if name not in launched)
    return tuple(Order(variant=name, arm="candidate", ordinal=1, block=1, levels=()) for name in owed)


def _guarded(bench: Bench, order: Order) -> LaunchRecord:
    """The one broad except of the house: whatever goes wrong in a launch makes its cases INVALID, never a pass."""
    began = time.monotonic()
    try:
        return bench.measure(order)
    except FileError:
        raise  # a full disk, a folder that was removed: it says so itself, and nothing more could be kept
    except Exception as error:
        ran = run_by(bench.suite, order)
        hidden = Secrets.collect(ran.command, dict(ran.env), api_key(ran, bench.suite.source.parent))
        reason = Reason(
            name="the suite itself failed",
            seen=printable(hidden.redact("".join(traceback.format_exception_only(error)))),
            advice="this is a defect of the suite or of its files: report it with the traceback above",
        )
        bench.show.line(hidden.redact("".join(traceback.format_exception(error))))
        return LaunchRecord(
            name=f"{bench.prefix}{order.name}",
            variant=order.variant,
            arm=order.arm,
            ordinal=order.ordinal,
            block=order.block,
            started_at=record.now_utc(),
            start_s=None,
            duration_s=time.monotonic() - began,
            command=(),
            variant_env=(),
            python=None,
            env=(),
            model=None,
            server_version=None,
            build=None,
            notes=(),
            measurements=tuple(Measurement(level=level, rounds=(), reasons=(reason,)) for level in order.levels),
            outputs=no_outputs(reason),
            server_arguments=(),
        )


def _raise_open_files() -> None:
    """A stream is an open file, here and in the server, which inherits the limit: the usual soft one is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a measurement as Ctrl-C does, with teardown; a second signal does not cut it short.

    tox sends Ctrl-C twice, and on SIGTERM ends without a word to its command: there its end counts as SIGTERM. Under
    nohup, where SIGHUP is ignored, the terminal may close.
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    interrupted = False
    over = threading.Event()

    def interrupt(number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    def watch(parent: int) -> None:
        while not over.wait(PARENT_POLL_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    held = {each: signal.signal(each, interrupt) for each in signals}
    if "TOX_ENV_NAME" in os.environ:  # only there: under nohup a parent may end and the measurement goes on
        threading.Thread(target=watch, args=(os.getppid(),), name="perf-parent", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        if not interrupted:  # else they stay ignored: pytest's own end is teardown too
            for each, handler in held.items():
                signal.signal(each, handler)
