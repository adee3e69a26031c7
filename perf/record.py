"""The campaign file: everything one pytest session measured, and what it was judged against.

`campaign.json` is written after every launch, each time whole; `complete` becomes true with the last writing. What is
not complete is never judged against, promoted or compared. Verdicts are not stored: they are computed from what is.
"""

import fcntl
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from perf import migration
from perf.crossover import StoredCrossover
from perf.crossover import is_sound as is_sound_crossover
from perf.files import MAX_JSON_BYTES, FileError, read_json, refuse_doubtful, to_json, write_text
from perf.metrics import RoundSummary
from perf.rig import GpuTelemetry, Rig
from perf.sample import Build, Fingerprint, StoredCase, is_sound
from perf.server_log import ServerLog
from perf.suite import Crossover, Relation, SameOutput
from perf.trace import ClientHealth
from perf.validity import Reason

FILE_NAME = "campaign.json"
ID = re.compile(r"\d{8}-\d{6}(-\d+)?")

#: Locked by the process that measures a campaign, for as long as it lives.
LOCK_NAME = ".lock"

#: Campaigns begun in one second on one machine get a number behind the time; more than this is not one machine.
MAX_PER_SECOND = 1000

#: Campaigns that are read to find the newest complete one: who has more that are not asks for one by name.
MAX_LOOKED_THROUGH = 20

#: Names in a campaign file become paths and stand on screens: whatever else is there was not written by us.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

#: Characters kept of an output, many times what its few tokens have; and outputs of one launch.
MAX_OUTPUT = 4096
MAX_OUTPUTS = 100

_DIGEST = re.compile(r"[0-9a-f]{32}")

#: As `now_utc` writes it.
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00")

#: What a launch runs: the variant as the suite has it, or the same command with the reference build.
Arm = Literal["candidate", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round: its numbers, or why it has none. A summary beside reasons is for diagnosis, never for a verdict.

    `client` is how the client fared; None in a file of version 0.1, and where nothing was asked. `gpus` is how the GPUs
    did; None where they were not sampled: no NVML, none needed, synthetic time, a server that already ran. `server_log`
    is what the server's log said meanwhile; None where it said nothing of decoding, was cut, or is not ours.
    """

    index: int
    summary: RoundSummary | None
    reasons: tuple[Reason, ...]
    client: ClientHealth | None
    gpus: tuple[GpuTelemetry, ...] | None
    server_log: ServerLog | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One case in one launch. `reasons` are those that concern no single round: a server that never came up."""

    level: int
    rounds: tuple[RoundRecord, ...]
    reasons: tuple[Reason, ...]

    @property
    def all_reasons(self) -> tuple[Reason, ...]:
        """Every reason not to believe it."""
        return (*self.reasons, *(reason for each in self.rounds for reason in each.reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a launch is asked to do: `ordinal`, `block` as in its record, `levels` in the order to be measured."""

    variant: str
    arm: Arm
    ordinal: int
    block: int
    levels: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the launch is called, without the prefix of its suite. No variant's name holds a '+'."""
        return _launch_name(self.variant, self.arm, self.ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What a server said to a few prompts, each alone and at temperature 0, in at most `tokens` tokens.

    `prompts` are ids; `texts` are in their order, to be shown: secrets replaced, and no more than their beginnings.
    `digests` are those of all that was said, to be compared within a campaign, and so are those `again`, of the same
    asked once more: empty where that was not asked. `reason` says why there is none of all that.
    """

    tokens: int
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    digests: tuple[str, ...]
    again: tuple[str, ...]
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """One server process life. Times are seconds; secrets are replaced.

    `ordinal` counts the launches of this variant and arm, from 1. `block` counts the blocks of the variant, from 1: a
    block is one launch alone, or a launch of each arm back to back. `measurements` are in the order measured.

    `command` and `variant_env` are the suite's, with `{python}` and `{port}` in place; `python` and `env` are what this
    machine made of them. All are empty for a server that already ran. `outputs` is None where nothing compares them.
    `server_arguments` are those that decide its speed, by name, as SGLang resolved them: what is off is left out, and
    all are where it tells none.
    """

    name: str
    variant: str
    arm: Arm
    ordinal: int
    block: int
    started_at: str
    start_s: float | None
    duration_s: float
    command: tuple[str, ...]
    variant_env: tuple[tuple[str, str], ...]
    python: str | None
    env: tuple[tuple[str, str], ...]
    model: str | None
    server_version: str | None
    build: Build | None
    notes: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    outputs: Outputs | None
    server_arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """What was asked, in words; that two cases were asked the same is told by their digests. Lengths in tokens."""

    prompt_set: str
    endpoint: str
    temperature: float
    rounds: int
    warmup_requests: int
    output_tokens: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord:
    """A case of the suite: selected or not, and the stored baseline it was judged with."""

    id: str
    variant: str
    level: int
    workload_digest: str
    selected: bool
    stored: StoredCase | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRecord:
    """A relation of the suite."""

    relation: Relation
    selected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverRecord:
    """A crossover of the suite: selected or not, and the stored one it was judged with."""

    crossover: Crossover
    selected: bool
    stored: StoredCrossover | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameOutputRecord:
    """An expectation of the same output."""

    same_output: SameOutput
    selected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRecord:
    """One suite of a campaign: the rule it is judged by, its cases and its launches.

    `family` counts its cases, relations and crossovers, and serves only to find a file that lacks one. `max_launches`
    is the cap of the launches of each arm of a variant. `reference` says that there is a reference build to launch.
    `order_seed` randomises the order of levels within a launch; it is 0, and `workload` None, in a file of version 0.1.
    `power_limits_w` is the hard part of the fingerprint that the rig's id does not hold, `fingerprint` the soft part;
    both are empty where time is synthetic. `rerun` says that only what failed before was measured, `problem` why the
    suite could not be measured to its end: then all of it is INVALID.
    """

    name: str
    source: str
    rig_id: str
    power_limits_w: tuple[float | None, ...]
    fingerprint: Fingerprint
    margin: float
    alpha: float
    power: float
    family: int
    max_launches: int
    reference: bool
    order_seed: int
    workload: WorkloadRecord | None
    requests: tuple[tuple[int, int], ...]
    level_must_be_reached: bool
    advisory: str | None
    rerun: bool
    cases: tuple[CaseRecord, ...]
    relations: tuple[RelationRecord, ...]
    crossovers: tuple[CrossoverRecord, ...]
    launches: tuple[LaunchRecord, ...]
    stopped: str | None
    problem: str | None
    same_outputs: tuple[SameOutputRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One campaign."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)  # holds for what is inside, too

    kind: Literal["sglang-perf campaign"]
    schema: Literal[2]
    id: str
    started_at: str
    finished_at: str | None
    complete: bool
    tool_version: str
    rig: Rig
    suites: tuple[SuiteRecord, ...]


_ADAPTER = TypeAdapter(Campaign)


def _launch_name(variant: str, arm: Arm, ordinal: int) -> str:
    return f"{variant}{'+reference' if arm == 'reference' else ''}-{ordinal}"


def no_outputs(reason: Reason) -> Outputs:
    """Of a launch that should have been asked for them."""
    return Outputs(tokens=0, prompts=(), texts=(), digests=(), again=(), reason=reason)


def now_utc() -> str:
    """The time as it is stored: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def create_folder(campaigns: Path) -> Path:
    """A fresh folder for a campaign, named by the time (UTC); two at once get two. Raises FileError.

    Until the end of this process, however it comes, `is_measured` is true of it.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    try:
        campaigns.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{campaigns}: cannot be created: {error.strerror}; see --perf-campaign-dir") from error
    for number in range(1, MAX_PER_SECOND):
        folder = campaigns / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise FileError(f"{folder}: cannot be created: {error.strerror}; see --perf-campaign-dir") from error
        with suppress(OSError):  # a file system without locks: then `is_measured` does not know
            # Never closed: the system does it, and frees the lock, when the process ends.
            fcntl.flock(os.open(folder / LOCK_NAME, os.O_CREAT | os.O_WRONLY, 0o644), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return folder
    raise FileError(f"{campaigns}: {MAX_PER_SECOND} campaigns of this second are there already")


def is_measured(folder: Path) -> bool | None:
    """Is the process that measures the campaign alive? None where that cannot be told: 0.1 held no lock."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def save(folder: Path, campaign: Campaign) -> None:
    """Write the campaign file, whole, into the folder that `create_folder` made. Raises FileError.

    What could not be read again is not written: a session that kept it would be green, and nobody could judge it.
    """
    if not folder.is_dir():
        raise FileError(f"{folder}: the folder of this campaign was removed: nothing more can be kept; measure again")
    text = to_json(asdict(campaign), indent=1)
    if len(text) > MAX_JSON_BYTES:
        raise FileError(
            f"{folder / FILE_NAME}: this campaign has grown to {len(text):,} bytes, more than is ever read; "
            "it remains as it was saved last: measure fewer rounds or launches at once"
        )
    try:
        refuse_doubtful(text.encode())
    except ValueError as error:
        raise FileError(
            f"{folder / FILE_NAME}: what was measured last {error}; the file remains as it was saved last: see what "
            "the server or the driver tells, and measure again"
        ) from error
    write_text(folder / FILE_NAME, text)


def read(folder: Path) -> Campaign:
    """Read a campaign, complete or not. Raises FileError."""
    campaign = read_json(folder / FILE_NAME, _ADAPTER, "a campaign file", migration.campaign)
    if campaign.id != folder.name or not ID.fullmatch(campaign.id):
        raise FileError(f"{folder}: its file says it is campaign {campaign.id[:40]!r}; give the folder back its name")
    if campaign.complete != (campaign.finished_at is not None):
        raise FileError(
            f"{folder / FILE_NAME}: complete, but never finished: not as the suite writes it; measure again"
        )
    for time in (campaign.started_at, campaign.finished_at):
        if time is not None and not _is_time(time):
            raise FileError(f"{folder / FILE_NAME}: the time {time[:40]!r}: not as the suite writes it; measure again")
    for suite in campaign.suites:
        if problem := _problem(suite):
            raise FileError(f"{folder / FILE_NAME}: {problem}: not as the suite writes it; measure again")
    return campaign


def read_complete(folder: Path) -> Campaign:
    """Read a campaign that may be judged and promoted. Raises FileError, which names the newest one that may."""
    try:
        campaign = read(folder)
        if campaign.complete:
            return campaign
        state = {True: "still running", False: "interrupted", None: "interrupted, or still running"}
        problem = f"campaign {campaign.id} is not complete ({state[is_measured(folder)]}): it has no verdict"
    except FileError as error:
        problem = str(error)
    other = _newest_complete(folder.parent)
    raise FileError(problem + (f"; the newest complete one there is {other}" if other else ""))


def _newest_complete(campaigns: Path) -> str | None:
    with suppress(FileError):
        for folder in sorted(folders(campaigns), key=age, reverse=True)[:MAX_LOOKED_THROUGH]:
            with suppress(FileError):
                if read(folder).complete:
                    return folder.name
    return None


def _problem(suite: SuiteRecord) -> str | None:
    """Why a suite that parsed cannot be judged or promoted, None where it can."""
    names = [suite.name, suite.rig_id]
    names += [name for launch in suite.launches for name in (launch.name, launch.variant)]
    names += [part for case in suite.cases for part in (*case.id.split("/", 2), case.variant)]
    for each in suite.relations:
        names += [*each.relation.id.split("/", 3), each.relation.variant, *each.relation.of]
    for crossing in (each.crossover for each in suite.crossovers):
        names += [*crossing.id.split("/", 2), crossing.first, crossing.second]
    for same in (each.same_output for each in suite.same_outputs):
        names += [*same.id.split("/", 2), *same.variants]
    variants = [*(case.variant for case in suite.cases), *(launch.variant for launch in suite.launches)]
    if strange := [*(each for each in names if not _NAME.fullmatch(each)), *(each for each in variants if "+" in each)]:
        return f"the name {strange[0][:40]!r}"
    ids = [*(case.id for case in suite.cases), *(each.crossover.id for each in suite.crossovers)]
    ids += [each.same_output.id for each in suite.same_outputs]
    if any(id.count("/") != 2 for id in ids) or any(each.relation.id.count("/") != 3 for each in suite.relations):
        return "the name of a case or expectation"
    shares = (suite.margin, suite.alpha, suite.power)
    if not all(0 < share < 1 for share in shares) or suite.power < 0.5 or not 1 <= suite.max_launches <= 1000:
        return "the rule it is judged by"
    if suite.family != len(suite.cases) + len(suite.relations) + len(suite.crossovers):
        return "the number of its verdicts"
    if any(case.level < 1 or not _names(case.id, suite, case) for case in suite.cases):
        return "a case whose id is another's"
    cases = {(case.variant, case.level) for case in suite.cases}
    if not {level for _, level in cases} <= dict(suite.requests).keys():
        return "a level without a number of requests"
    levels = tuple(level for _, level in cases)
    for relation in (each.relation for each in suite.relations):
        level = max(levels, default=0) if relation.level is None else relation.level
        if not relation.of or not {(name, level) for name in (relation.variant, *relation.of)} <= cases:
            return "a relation between cases that are not in it"
        if relation.at_least <= 0:
            return "a relation with a factor that is not positive"
    for record in suite.crossovers:
        pair = (record.crossover.first, record.crossover.second)
        if not levels or not {(name, level) for name in pair for level in levels} <= cases or pair[0] == pair[1]:
            return "a crossover of variants that are not in it"
        if record.stored is not None and (
            not is_sound_crossover(record.stored)
            or (record.stored.crossover, record.stored.first, record.stored.second) != (record.crossover.id, *pair)
        ):
            return "a stored crossover that is another's, or not as it was promoted"
    for same in (each.same_output for each in suite.same_outputs):
        if not 2 <= len(set(same.variants)) == len(same.variants) or not set(same.variants) <= {v for v, _ in cases}:
            return "an expectation of the same output of variants that are not in it"
        if not 0 < same.at_least <= 1:
            return "an expectation of the same output without a share"
    said = [launch.outputs for launch in suite.launches if launch.outputs is not None and launch.outputs.reason is None]
    if len({each.prompts for each in said}) > 1 or not all(_are_sound(each) for each in said):
        return "outputs that are none of its prompts"
    if not all(case.stored is None or is_sound(case.stored) for case in suite.cases):
        return "a stored baseline without positive numbers, or not as it was promoted"
    if any(
        case.stored is not None and (case.stored.level != case.level or not _names(case.stored.case, suite, case))
        for case in suite.cases
    ):
        return "a stored baseline that is another case's"
    if len({launch.name for launch in suite.launches}) != len(suite.launches) or any(
        len({taken.level for taken in launch.measurements}) != len(launch.measurements) for launch in suite.launches
    ):
        return "a launch, or a case of one, that stands twice"
    if strange := [launch.started_at for launch in suite.launches if not _is_time(launch.started_at)]:
        return f"the time {strange[0][:40]!r}"
    if any((launch.variant, taken.level) not in cases for launch in suite.launches for taken in launch.measurements):
        return "a measurement of a case that is not in it"
    if problem := _launch_problem(suite):
        return problem
    if suite.workload is not None and any(
        len(taken.rounds) != suite.workload.rounds
        for launch in suite.launches
        for taken in launch.measurements
        if not taken.all_reasons
    ):
        return "a measurement that lacks rounds without a reason"
    rounds = (each for launch in suite.launches for taken in launch.measurements for each in taken.rounds)
    for numbers in (taken.summary for taken in rounds if taken.summary is not None):
        if min(numbers.output_throughput, numbers.window_s) <= 0 or not math.isclose(
            numbers.output_throughput * numbers.window_s, numbers.output_tokens, rel_tol=1e-6
        ):
            return "a throughput that is not its tokens by its time"
    return None


def _are_sound(outputs: Outputs) -> bool:
    count = len(outputs.prompts)
    return (
        0 < count == len(outputs.texts) == len(outputs.digests) <= MAX_OUTPUTS
        and len(outputs.again) in (0, count)
        and max(map(len, outputs.texts)) <= MAX_OUTPUT
        and all(_DIGEST.fullmatch(each) for each in (*outputs.digests, *outputs.again))
    )


def _names(id: str, suite: SuiteRecord, case: CaseRecord) -> bool:
    """Is it the id of the case? With more or fewer zeros it is that of a suite whose highest level was another."""
    place, _, level = id.rpartition("/c")
    return place == f"{suite.name}/{case.variant}" and level.lstrip("0") == str(case.level)


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:  # such as 30 February
        return False
    return True


def _launch_problem(suite: SuiteRecord) -> str | None:
    """Why launches are not numbered, named and paired as campaigns do it: comparisons within a block rely on that."""
    seen = Counter[tuple[str, Arm]]()
    blocks: dict[str, dict[Arm, int]] = {}  # of each variant, where each arm was launched last
    for launch in suite.launches:
        seen[launch.variant, launch.arm] += 1
        name = _launch_name(launch.variant, launch.arm, seen[launch.variant, launch.arm])
        if launch.ordinal != seen[launch.variant, launch.arm] or launch.name not in (name, f"{suite.name}.{name}"):
            return f"the number of launch {launch.name[:40]}"
        last = blocks.setdefault(launch.variant, {})
        if launch.block < max((last.get(launch.arm, 0) + 1, *last.values())):
            return f"the block of launch {launch.name[:40]}"
        last[launch.arm] = launch.block
        if launch.arm == "reference" and not suite.reference:
            return f"launch {launch.name[:40]} of a reference build where there is none"
    return None


def find(campaigns: Path, name: str | None) -> Path:
    """The folder of a campaign by id or path; without a name the newest. Raises FileError."""
    if name is not None:
        for folder in (campaigns / name, Path(name)):
            # These are False for whatever cannot be looked at, unlike those of Path. A folder of ours without the file
            # is that of a campaign killed before it was written: whoever reads it says so.
            if os.path.isfile(folder / FILE_NAME) or (ID.fullmatch(folder.name) and os.path.isdir(folder)):
                return as_typed(folder)
        raise FileError(f"no campaign {name!r} in {campaigns}; there: {_known(campaigns)}")
    newest = max(folders(campaigns), key=age, default=None)
    if newest is None:
        raise FileError(f"no campaign in {campaigns}; measure one with pytest first")
    return as_typed(newest)


def as_typed(folder: Path) -> Path:
    """A campaign's folder as somebody would name it from the current one."""
    whole, here = Path(os.path.abspath(folder)), Path.cwd()  # a link stays one
    return whole.relative_to(here) if here in whole.parents else whole


def folders(campaigns: Path) -> Iterator[Path]:
    """Every campaign folder, whole or not."""
    try:
        entries = list(os.scandir(campaigns))
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError(f"{campaigns}: cannot be read: {error.strerror}") from error
    for entry in entries:
        if ID.fullmatch(entry.name) and os.path.isdir(
            entry.path
        ):  # a link that leads nowhere or in a ring is no folder
            yield Path(entry.path)


def age(folder: Path) -> tuple[str, int]:
    """What orders campaign folders, oldest first."""
    date, time, *number = folder.name.split("-")
    return date + time, int(number[0]) if number else 1


def _known(campaigns: Path) -> str:
    names = [folder.name for folder in sorted(folders(campaigns), key=age)[-5:]]
    return ", ".join(names) if names else "none"
