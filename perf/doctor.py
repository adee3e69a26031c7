"""Is this machine fit to measure? Looks, and with `noise` measures one server against itself; changes nothing.

Findings are data: `OK` and `NOTE` are said, `UNFIT` is a reason not to believe what would be measured here. What is
looked at is what spoils a night: other work, slowed clocks, a full disk, a missing model, a client without handles.
"""

import importlib.metadata
import os
import re
import resource
import shutil
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import expm1, log, sqrt
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from scipy import special

from perf import leftovers, load, plan, ports, rig_lock, suite_file
from perf.capacity import DOCTOR_STREAMS, FIRST_RATE, LAST_RATE, ROOM, Capacity
from perf.files import FileError
from perf.measure import Bench, Show, build, shared_code, spec
from perf.measured import sample
from perf.noise import LEAST_SPREAD
from perf.nvml import POWER_CAP
from perf.prospect import BOUND, prospect, question, spread_interval
from perf.record import Order
from perf.rig import EMULATED_RIG_ID, UNREADABLE, GpuState, Rig, states
from perf.sample import Build, LaunchSample, geometric_mean, throughputs
from perf.simulation import SimulatedRig, Truth, stored_case
from perf.suite import Case, Suite, Variant
from perf.text import duration, printable, rough, share
from perf.validity import LOADED_SHARE, taken

#: A quiet machine's own housekeeping stays below this share of its cores.
MAX_BUSY = 0.10
#: Taken by the host from a virtual machine: nothing measured while it happens is the server's.
MAX_STOLEN = 0.02
#: How long the processors are watched. Most housekeeping comes in bursts shorter than this.
WATCH_S = 2.0
#: A campaign with all its logs is far smaller; the rest is for whatever else writes to this disk over a night.
MIN_FREE_BYTES = 2 * 1024**3
#: Sockets of a round, its pipes and files, and the interpreter's own.
SPARE_HANDLES = 256
#: Hotter than this before any load, a card will slow down under it.
MAX_IDLE_CELSIUS = 65

#: Launches of a server against itself. Four tell a spread within a factor of about two, in a minute or two.
NOISE_LAUNCHES = 4
#: What a machine did to a launch. One such launch is repeated: more of them are no accident.
DISTURBANCES = ("client was the bottleneck", "host too busy")
#: A finding that says so names what its folder is kept for.
SERVER_LOG = "server log:"
#: A settled baseline is of so many nights of as many launches: more would hardly be known better.
SETTLED_NIGHTS = 30
#: Of the emulated server: enough streams to keep the client busy, few enough for any machine.
STEADY_LEVEL = 30


class Fitness(StrEnum):
    """How a finding counts."""

    OK = "ok"
    NOTE = "note"
    UNFIT = "UNFIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at: `seen` on one line, and for what is unfit what to do."""

    fitness: Fitness
    name: str
    seen: str
    advice: str | None = None

    def __str__(self) -> str:
        line = f"{self.fitness:<5}  {self.name:<10}  {printable(self.seen, 400)}"
        return line if self.advice is None else f"{line}\n{'':<19}do: {printable(self.advice, 400)}"


def machine(folders: tuple[Path, ...]) -> Iterator[Finding]:
    """This machine, whatever is measured on it. `folders` are where campaigns and baselines are written."""
    yield from _versions()
    yield from _processors()
    for folder in folders:
        yield _disk(folder)
    yield _port()


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    missing: list[str] = []
    try:
        needed = [Requirement(text) for text in importlib.metadata.requires("sglang-perf") or ()]
    except importlib.metadata.PackageNotFoundError:
        seen = f"Python {python}; this suite runs from its folder and is not installed, so its needs are not known"
        yield Finding(fitness=Fitness.NOTE, name="versions", seen=seen, advice="pip install -e . in the clone")
        return
    for each in needed:
        if each.marker is not None:  # of an extra
            continue
        try:
            there = importlib.metadata.version(each.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{each.name} is missing")
            continue
        if not each.specifier.contains(there, prereleases=True):
            missing.append(f"{each.name} {there}, needed {each.specifier}")
    if missing:
        yield Finding(fitness=Fitness.UNFIT, name="versions", seen="; ".join(missing), advice="pip install -e .")
    else:
        yield Finding(fitness=Fitness.OK, name="versions", seen=f"Python {python}, every package as needed")


def _processors() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    before = {process.pid: process for process in psutil.process_iter()}
    for process in before.values():
        _cpu_percent(process)
    times = psutil.cpu_times_percent(interval=WATCH_S)
    busy = 1 - (times.idle + getattr(times, "iowait", 0.0)) / 100
    stolen = getattr(times, "steal", 0.0) / 100
    hungry = sorted(((_cpu_percent(each), each.pid, _name(each)) for each in before.values()), reverse=True)
    who = ", ".join(f"{name} (pid {pid}, {used:.0f} %)" for used, pid, name in hungry[:3] if used >= 5)
    seen = f"{share(round(busy, 3))} of {cores} cores busy over {WATCH_S:.0f} s, load {os.getloadavg()[0]:.1f}"
    if busy > MAX_BUSY:
        advice = "end other work, or measure when it is over"
        yield Finding(fitness=Fitness.UNFIT, name="idle", seen=seen + (f": {who}" if who else ""), advice=advice)
    else:
        yield Finding(fitness=Fitness.OK, name="idle", seen=seen)
    if stolen > MAX_STOLEN:
        seen = f"the host took {share(round(stolen, 3))} of the time from this virtual machine"
        yield Finding(fitness=Fitness.UNFIT, name="stolen", seen=seen, advice="measure on a host of your own")
    if (governors := set(_governors())) - {"performance"}:
        yield Finding(
            fitness=Fitness.NOTE,
            name="clocks",
            seen=f"the processors' governor is {', '.join(sorted(governors))}",
            advice="cpupower frequency-set -g performance, for steadier numbers",
        )


def _governors() -> Iterator[str]:
    for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor"):
        with suppress(OSError):  # of a processor that was just taken offline
            yield path.read_text(encoding="ascii", errors="replace").strip()


def _cpu_percent(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent())
    except psutil.Error:  # gone, or another user's
        return 0.0


def _name(process: psutil.Process) -> str:
    try:
        return printable(process.name(), 40)
    except psutil.Error:
        return "ended"


def _disk(folder: Path) -> Finding:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
    except OSError as error:
        seen = f"{folder} cannot be written: {error.strerror}"
        return Finding(fitness=Fitness.UNFIT, name="disk", seen=seen, advice="give another folder, or its rights")
    seen = f"{free / 1024**3:,.0f} GiB free for {folder}"
    if free < MIN_FREE_BYTES:
        advice = "python -m perf prune, or another folder"
        return Finding(fitness=Fitness.UNFIT, name="disk", seen=seen, advice=advice)
    return Finding(fitness=Fitness.OK, name="disk", seen=seen)


def _port() -> Finding:
    try:
        held = ports.hold_port()
    except ports.PortError as error:
        return Finding(fitness=Fitness.UNFIT, name="ports", seen=str(error), advice="free the ports it names")
    try:
        with socket.create_server(("127.0.0.1", held.number)):
            seen = f"{ports.PORTS.start} to {ports.PORTS.stop - 1} can be had on 127.0.0.1"
            return Finding(fitness=Fitness.OK, name="ports", seen=seen)
    except OSError as error:
        seen = f"127.0.0.1:{held.number} cannot be listened on: {error.strerror}"
        return Finding(fitness=Fitness.UNFIT, name="ports", seen=seen, advice="let servers listen on loopback")
    finally:
        held.release()


def gpus(rig: Rig, states: tuple[GpuState, ...]) -> Iterator[Finding]:
    """The GPUs, from what NVML said of them."""
    if not rig.gpus:
        broken = (rig.note or "").startswith(UNREADABLE)
        advice = "nvidia-smi names the board; a lost one comes back with a reset or a restart" if broken else None
        seen = rig.note or "no GPU is seen"
        yield Finding(fitness=Fitness.UNFIT if broken else Fitness.NOTE, name="gpu", seen=seen, advice=advice)
        return
    yield Finding(fitness=Fitness.OK, name="gpu", seen=f"{rig.id}, driver {rig.driver or 'not told'}")
    if rig.links:
        yield Finding(fitness=Fitness.OK, name="links", seen=rig.links)
    for state in states:
        name = f"GPU {state.index}"
        if why := taken(state):
            advice = "the suite measures GPUs that are its own: end what runs there, in other containers too"
            yield Finding(fitness=Fitness.UNFIT, name=name, seen=why, advice=advice)
        if state.slowed_by:
            # At its cap a card may be by design; what that does to its clocks is looked at while a round is measured.
            capped = set(state.slowed_by) == {POWER_CAP}
            yield Finding(
                fitness=Fitness.NOTE if capped else Fitness.UNFIT,
                name=name,
                seen=f"slowed by {', '.join(state.slowed_by)}",
                advice="lock clocks that it holds below the cap: docs/telemetry.md"
                if capped
                else "cool it, or lift the limit it names: nvidia-smi -q -d PERFORMANCE",
            )
        if state.celsius is not None and state.celsius > MAX_IDLE_CELSIUS:
            seen = f"{state.celsius} degrees Celsius before any load"
            yield Finding(fitness=Fitness.UNFIT, name=name, seen=seen, advice="wait, or look at its fans")
        most = next((gpu.pcie for gpu in rig.gpus if gpu.uuid == state.uuid), None)
        # An idle card lets its link run slower: that says nothing.
        if None not in (state.pcie, most) and state.pcie != most and (state.utilisation or 0.0) >= LOADED_SHARE:
            seen = f"its link runs at {state.pcie} under load, of {most}"
            advice = "look at its slot, riser and bifurcation: transfers between GPUs take longer"
            yield Finding(fitness=Fitness.NOTE, name=name, seen=seen, advice=advice)
        if state.persistent is False:
            advice = "nvidia-smi -pm 1: without it each launch waits for the driver"
            yield Finding(fitness=Fitness.NOTE, name=name, seen="persistence mode is off", advice=advice)
    limits = sorted({state.power_limit_w for state in states if state.power_limit_w is not None})
    if len(limits) > 1:
        seen = f"power limits differ: {', '.join(f'{limit:.0f} W' for limit in limits)}"
        yield Finding(fitness=Fitness.NOTE, name="power", seen=seen, advice="the slowest card sets the pace")


def others(chosen: Sequence[Suite], rig: Rig) -> Iterator[Finding]:
    """Who is left of an earlier run, and who measures here now."""
    try:
        found, measuring = leftovers.find(), rig_lock.holders()
        in_the_way = ""
        try:
            rig_lock.RigLock(rig_lock.needs(chosen, rig), "python -m perf doctor").release()
        except rig_lock.RigTakenError as error:
            in_the_way = str(error)
    except FileError as error:
        advice = "give this user the rights, or name another folder with SGLANG_PERF_LOCK_DIR"
        yield Finding(fitness=Fitness.UNFIT, name="others", seen=str(error), advice=advice)
        return
    for each in found:
        seen = f"of an earlier run that was killed there live {each}"
        yield Finding(fitness=Fitness.UNFIT, name="left", seen=seen, advice=leftovers.advice((each,)))
    if in_the_way:
        yield Finding(fitness=Fitness.UNFIT, name="others", seen=in_the_way, advice="wait for it, or end it")
    elif measuring:
        seen = f"on other GPUs, or while nothing real is measured here: {'; '.join(measuring)}"
        yield Finding(fitness=Fitness.NOTE, name="others", seen=seen)
    elif not found:
        seen = "nobody else measures here, and nobody is left of an earlier run"
        yield Finding(fitness=Fitness.OK, name="others", seen=seen)


def suite_needs(chosen: Suite, rig: Rig, *, asked: bool) -> Iterator[Finding]:
    """What a suite needs of this machine. That one which nobody `asked` for cannot be measured here is only noted."""
    unfit: list[Finding] = []

    def lacks(seen: str, advice: str) -> None:
        unfit.append(Finding(fitness=Fitness.UNFIT, name="suite", seen=f"{chosen.name}: {seen}", advice=advice))

    if len(rig.gpus) < chosen.gpus:
        lacks(f"needs {chosen.gpus} GPUs, seen {len(rig.gpus)}", "run it on the rig")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # One socket a stream here, and one in the server, which inherits our limit; a session raises the soft one.
    if hard != resource.RLIM_INFINITY and hard < max(chosen.workload.levels) + SPARE_HANDLES:
        lacks(
            f"level {max(chosen.workload.levels)} needs about {max(chosen.workload.levels) + SPARE_HANDLES} open "
            f"files, allowed are {hard}",
            "raise the hard limit: ulimit -Hn, limits.conf, or the container's",
        )
    references = () if chosen.reference is None else tuple(map(chosen.reference.running, chosen.variants))
    named = (path for each in (*chosen.variants, *references) for path in _paths(each, chosen.source.parent))
    for path in dict.fromkeys(named):
        if not path.exists():
            lacks(f"{path} is not there", f"point it at your own, in {chosen.source}")
    if shared := shared_code(chosen):
        unfit.append(Finding(fitness=Fitness.UNFIT, name="reference", seen=shared))
    builds, fixed = _builds(chosen, chosen.variants), _builds(chosen, references)
    if unfit and not asked:
        seen = f"{chosen.name} cannot be measured here: {unfit[0].seen.removeprefix(f'{chosen.name}: ')}"
        yield Finding(fitness=Fitness.NOTE, name="suite", seen=seen)
    elif unfit:
        yield from unfit
    else:
        told = "".join(
            f"; {arm}{', '.join(sorted(set(map(str, found.values()))))}"
            for arm, found in (("", builds), ("reference ", fixed))
            if found
        )
        yield Finding(fitness=Fitness.OK, name="suite", seen=f"{chosen.name}: has what it needs{told}")
    if same := [name for name, found in builds.items() if found == fixed.get(name)]:
        seen = f"{chosen.name}: the reference build is the same as that of {', '.join(same)}: {builds[same[0]]}"
        advice = "as long as nothing was changed that is right; else point python in [reference] at another environment"
        yield Finding(fitness=Fitness.NOTE, name="reference", seen=seen, advice=advice)


def _builds(chosen: Suite, variants: tuple[Variant, ...]) -> dict[str, Build]:
    """The build of each variant that tells it. What is installed beside an emulated server is not what it runs."""
    found = ((each.name, build(spec(chosen, each, each.name, key=None))) for each in variants if not chosen.emulated)
    return {name: told for name, told in found if told is not None}


def _paths(variant: Variant, folder: Path) -> Iterator[Path]:
    """The files and folders a command names: program, interpreter, and what an option for a path or model says."""
    programs = (variant.command[0], variant.python or "")
    yield from (folder / name for name in programs if "/" in name and "{" not in name)
    words = [word for part in variant.command for word in part.split("=", 1)]
    for option, value in pairwise(words):
        if re.fullmatch(r"--[a-z-]*(path|model|tokenizer)", option) and value.startswith(("/", "./", "../")):
            yield folder / value


def client(rig: Rig) -> Finding:
    """What the client can carry here, shown on a null server or remembered."""
    capacity = Capacity(rig, lambda _: None)
    carried = capacity.explore()
    at_most = "at least " if carried >= LAST_RATE else ""
    seen = (
        f"one process carries {at_most}{carried:,.0f} chunks/s over {DOCTOR_STREAMS} streams: "
        f"enough to believe rounds of {carried / ROOM:,.0f} chunks/s"
    )
    if carried < FIRST_RATE:
        advice = "quiet this machine, or raise client_processes in [workload]"
        return Finding(fitness=Fitness.UNFIT, name="client", seen=f"{seen} ({capacity.why_not})", advice=advice)
    return Finding(fitness=Fitness.OK, name="client", seen=seen)


def noise(
    chosen: Suite, case: Case, margin: float, rig: Rig, folder: Path, show: Callable[[str], None]
) -> Iterator[Finding]:
    """A against A: one case is launched again and again, in pairs of which nothing tells the second from the first.

    Says how launches vary, what change a pair shows where there is none, and whether fresh pairs that vary so find a
    loss of the margin within the suite's budget and cap. Raises FileError.
    """
    level = case.level
    workload = replace(chosen.workload, levels=(level,), level_must_be_reached=True)
    variants = tuple(each for each in chosen.variants if each.name == case.variant)
    alone = replace(chosen, workload=workload, variants=variants, expectations=())
    bench = Bench(
        suite=alone,
        folder=folder,
        prefix="doctor.",
        base_url=None,
        show=Show(line=show, live=lambda _: None),
        limits=load.Limits(),
        capacity=Capacity(rig, lambda _: None),
        gpus=lambda: states(rig) if chosen.gpus else (),
    )
    where = f"{case.id} on {EMULATED_RIG_ID if chosen.emulated else rig.id}"
    samples: list[LaunchSample] = []
    try:
        lock = rig_lock.RigLock(rig_lock.needs((chosen,), rig), "python -m perf doctor --noise")
    except rig_lock.RigTakenError as error:
        yield Finding(fitness=Fitness.UNFIT, name="noise", seen=str(error), advice="wait for it, or end it")
        return
    with lock:
        repeated = ""
        for ordinal in range(1, NOISE_LAUNCHES + 2):
            order = Order(variant=case.variant, arm="candidate", ordinal=ordinal, block=ordinal, levels=(level,))
            launch = bench.measure(order)
            for measurement in launch.measurements:
                reasons = measurement.all_reasons
                told = "".join(f"{each.name}: {each.seen}" for each in reasons[:1])
                if not reasons:
                    samples.append(sample(launch, measurement, campaign="doctor"))
                elif not repeated and all(each.name in DISTURBANCES for each in reasons):
                    repeated = f"; launch {ordinal} was disturbed and repeated: {told}"
                else:
                    advice = f"{reasons[0].advice} ({SERVER_LOG} {folder / launch.name / 'server.log'})"
                    yield Finding(fitness=Fitness.UNFIT, name="noise", seen=f"{where}: {told}{repeated}", advice=advice)
                    return
            if len(samples) == NOISE_LAUNCHES:
                break
        bench.say_what_is_left()
    yield _variation(where, throughputs(samples), repeated)
    yield _margin(alone, case, margin, tuple(samples))


def _variation(where: str, values: tuple[float, ...], repeated: str = "") -> Finding:
    """How launches vary, and what loss a pair of them shows although nothing changed; then what was `repeated`."""
    logs = [log(value) for value in values]
    spread, freedom = statistics.stdev(logs), len(logs) - 1
    lo, hi = spread_interval(spread, freedom)
    worst = max(0.0, *(first - second for first, second in zip(logs[::2], logs[1::2], strict=True)))
    # Student's t: the spread is known from these launches alone.
    by_chance = float(special.stdtrit(freedom, BOUND)) * sqrt(2) * spread
    seen = (
        f"{where}: {len(logs)} launches of one and the same vary by {share(rough(spread))} "
        f"({share(rough(lo))} to {share(rough(hi))} with {share(BOUND)} confidence); the second of a pair was up to "
        f"{share(rough(-expm1(-worst)))} slower, and is by chance alone up to {share(rough(-expm1(-by_chance)))}"
        f"{repeated}"
    )
    return Finding(fitness=Fitness.OK, name="noise", seen=seen)


def _margin(alone: Suite, case: Case, margin: float, samples: tuple[LaunchSample, ...]) -> Finding:
    """Would fresh pairs of launches that vary so find a loss of the margin? Asked as `plan` asks of a whole suite.

    That so few launches tell little is for the interval of their spread to say: here a settled baseline is assumed.
    """
    values = throughputs(samples)
    truth = Truth(throughput=(geometric_mean(values),), spread=(max(LEAST_SPREAD, statistics.stdev(map(log, values))),))
    rig = SimulatedRig({case.variant: truth}, (case.level,), seed=0)
    forecast = plan.forecast(alone, {(case.variant, case.level): stored_case(case.id, case.level, samples)})
    asked = question(alone, margin=margin, reference=True)
    found = prospect(alone, rig.store(SETTLED_NIGHTS, 0, launches=NOISE_LAUNCHES), forecast, asked)
    if found is None:
        raise RuntimeError(f"{case.id} was measured, so a night of it can be simulated")
    (level,), unchanged = found.variants[0].levels, found.unchanged
    within = f"{asked.max_launches} launches of each build"
    if asked.budget_s is not None:
        within += f" and {duration(asked.budget_s)}"
    if level.margin.is_below(asked.power):
        larger = "no larger one that was tried is" if level.smallest is None else f"{share(rough(level.smallest))} is"
        seen = f"a loss of {share(margin)} is found in {level.margin} of fresh pairs within {within}; {larger} found"
        advice = "quiet the machine, allow more launches or minutes, or ask for a larger margin"
        return Finding(fitness=Fitness.UNFIT, name="margin", seen=seen, advice=advice)
    seen = (
        f"a loss of {share(margin)} is found in {level.margin} of fresh pairs within {within}; "
        f"an unchanged one takes {unchanged.launches:.2g} launches, {duration(unchanged.mean_s)}"
    )
    return Finding(fitness=Fitness.OK, name="margin", seen=seen)


def steady_case() -> tuple[Suite, Case]:
    """A case whose server is of constant speed: what varies is this machine, and the client on it."""
    rehearsal = suite_file.load(suite_file.find("rehearsal", suite_file.SHIPPED))
    calm = tuple(replace(each, command=(*each.command, "--launch-cv", "0")) for each in rehearsal.variants)
    workload = replace(rehearsal.workload, requests_per_level=4 * STEADY_LEVEL, warmup_requests=STEADY_LEVEL)
    chosen = replace(rehearsal, name="doctor", workload=workload, variants=calm, expectations=())
    return chosen, next(case for case in chosen.cases if case.level == STEADY_LEVEL)
