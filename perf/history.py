"""The history: every valid night of a variant on a rig, one JSON line for a night, a level and an arm.

`<folder>/<rig>/<suite>/<variant>.jsonl` grows by what each complete campaign measured, and by what `python -m perf
import` brings from elsewhere. It is what `python -m perf trend` draws. It is never a baseline: nothing is judged by it.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from perf.files import MAX_JSON_BYTES, MAX_NUMBER, MIN_NUMBER, FileError, read_bytes, to_json, write_text
from perf.measured import measurements, reasons, sample
from perf.record import Arm, Campaign, CaseRecord, LaunchRecord, SuiteRecord
from perf.sample import throughputs
from perf.text import printable

SCHEMA: Literal[1] = 1

#: Beside the folder of campaigns.
FOLDER_NAME = "history"

#: Names become paths; as in a suite file, and a rig's id.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")

#: As a campaign is named; an imported night is named by its time in the same way.
_ID = r"^\d{8}-\d{6}(-\d+)?$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$"

#: An append takes milliseconds; who holds the lock for longer hangs.
LOCK_TIMEOUT_S = 30.0

_Rate = Annotated[float, Field(ge=MIN_NUMBER, le=MAX_NUMBER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One level of one arm on one night: output throughput in tok/s and acceptance length, once for every launch.

    `version` is SGLang's where the server's interpreter told it, else the server's own; `commit` and `changed` (a
    digest) are of an editable install. `source` is the file that an imported night came from, None where it was
    measured here. What is not known is None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    schema: Literal[1]
    campaign: Annotated[str, Field(pattern=_ID)]
    started_at: Annotated[str, Field(pattern=_TIME)]
    level: Annotated[int, Field(ge=1, le=10**9)]
    arm: Arm
    output_throughput: Annotated[tuple[_Rate, ...], Field(min_length=1)]
    acceptance_length: tuple[_Rate | None, ...]
    version: str | None
    commit: str | None
    changed: str | None
    workload_digest: str
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Whose history it is."""

    rig_id: str
    suite: str
    variant: str

    def __str__(self) -> str:
        """`mine/eagle3 on cpu-simulated-01234567`."""
        return f"{self.suite}/{self.variant} on {self.rig_id}"


_ADAPTER = TypeAdapter(Night)


# What of a campaign is kept


def nights(campaign: Campaign) -> Mapping[Place, tuple[Night, ...]]:
    """What a campaign adds. Nothing of one that is not complete, nor of what is advisory or INVALID."""
    found: dict[Place, tuple[Night, ...]] = {}
    for suite in campaign.suites if campaign.complete else ():
        for case in suite.cases:
            if suite.advisory is None and not reasons(suite, case):
                place = Place(rig_id=suite.rig_id, suite=suite.name, variant=case.variant)
                found[place] = (*found.get(place, ()), *_of_case(campaign, suite, case))
    return found


def _of_case(campaign: Campaign, suite: SuiteRecord, case: CaseRecord) -> Iterator[Night]:
    arms: tuple[Arm, ...] = ("candidate", "reference")
    for arm in arms:
        taken = measurements(suite, case.variant, case.level, arm)
        if not taken:
            continue
        samples = [sample(launch, measurement) for launch, measurement in taken]
        version, commit, changed = _build(taken[-1][0])
        yield Night(
            schema=SCHEMA,
            campaign=campaign.id,
            started_at=campaign.started_at,
            level=case.level,
            arm=arm,
            output_throughput=throughputs(samples),
            acceptance_length=tuple(_mean(each.acceptance_length) for each in samples),
            version=version,
            commit=commit,
            changed=changed,
            workload_digest=case.workload_digest,
            source=None,
        )


def _build(launch: LaunchRecord) -> tuple[str | None, str | None, str | None]:
    if launch.build is None or launch.build.sglang is None:
        return launch.server_version, None, None
    return launch.build.sglang, launch.build.commit, launch.build.dirty


def _mean(rounds: tuple[float | None, ...]) -> float | None:
    known = [value for value in rounds if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(rounds) else None


# Files


class History:
    """A folder of histories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def beside(cls, campaigns: Path) -> "History":
        """The history that belongs to a folder of campaigns."""
        return cls(Path(os.path.abspath(campaigns)).parent / FOLDER_NAME)

    def path(self, place: Place) -> Path:
        """Where a variant's history lies. Raises FileError for a name that is none."""
        for name in (place.rig_id, place.suite, place.variant):
            if not NAME.fullmatch(name):
                raise FileError(
                    f"the name {printable(name, 80)!r} cannot name a history: allowed are letters, digits, "
                    "'.', '_', '+' and '-', and the first is a letter or digit"
                )
        return self.folder / place.rig_id / place.suite / f"{place.variant}.jsonl"

    def places(self) -> tuple[Place, ...]:
        """Every variant that has a history, in the order of their names. Raises FileError."""
        try:
            paths = sorted(self.folder.glob("*/*/*.jsonl"))
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be read: {error.strerror}") from error
        found = (Place(rig_id=path.parts[-3], suite=path.parts[-2], variant=path.stem) for path in paths)
        return tuple(each for each in found if all(map(NAME.fullmatch, (each.rig_id, each.suite, each.variant))))

    def read(self, place: Place) -> tuple[Night, ...]:
        """A variant's nights, oldest first; none where there is no file. Raises FileError with file and line."""
        path = self.path(place)
        if not os.path.lexists(path):
            return ()
        found: dict[tuple[str, int, Arm], Night] = {}
        lines = read_bytes(path, "a history", MAX_JSON_BYTES).splitlines()
        if not lines:  # never written so: whoever takes it for none at all loses what was in it
            raise FileError(f"{path}: is empty, as no history is; restore the file from a copy, or remove it")
        for number, line in enumerate(lines, start=1):
            night = _parsed(line, f"{path}:{number}", "restore the file from a copy, or remove that line")
            if found.setdefault(_key(night), night) is not night:
                raise FileError(
                    f"{path}:{number}: level {night.level} of campaign {night.campaign} stands twice, as after a "
                    "merge; remove one of the two lines"
                )
        return _sorted(found.values())

    def append(self, added: Mapping[Place, tuple[Night, ...]]) -> Mapping[Place, int]:
        """Add nights to their files, each written whole; how many lines were new. What is there is left alone.

        Raises FileError: for a file that is damaged, and for a night that is there with other content. Then nothing of
        that file is changed.
        """
        count: dict[Place, int] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", timeout=LOCK_TIMEOUT_S):
                for place, more in added.items():
                    count[place] = self._append(place, more)
        except Timeout as error:
            raise FileError(
                f"{self.folder / '.lock'}: a campaign or import has held it for {LOCK_TIMEOUT_S:.0f} s; wait for it"
            ) from error
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be written: {error.strerror}") from error
        return count

    def _append(self, place: Place, more: tuple[Night, ...]) -> int:
        path = self.path(place)
        there = {_key(night): night for night in self.read(place)}
        new: dict[tuple[str, int, Arm], Night] = {}
        for night in (_as_read(each, path) for each in more):
            if (there.get(_key(night)) or new.setdefault(_key(night), night)) != night:
                raise FileError(
                    f"{path}: holds something else of campaign {night.campaign}, level {night.level}, than is to be "
                    "added; it was left alone: remove its lines first where they are the wrong ones"
                )
        if len({night.source is None for night in (*there.values(), *new.values())}) > 1:
            raise FileError(
                f"{path}: nights that were measured here and nights that were imported are not one history; "
                "import under another --rig, --suite or --variant"
            )
        if new:
            lines = [to_json(asdict(night)) for night in _sorted((*there.values(), *new.values()))]
            if (size := sum(map(len, lines))) > MAX_JSON_BYTES:
                raise FileError(f"{path}: would grow to {size:,} bytes, more than is ever read; move it away")
            write_text(path, "".join(lines))
        return len(new)


def _key(night: Night) -> tuple[str, int, Arm]:
    return night.campaign, night.level, night.arm


def _sorted(found: Iterable[Night]) -> tuple[Night, ...]:
    return tuple(sorted(found, key=lambda night: (night.started_at, *_key(night))))


def _as_read(night: Night, path: Path) -> Night:
    """A night as it is read once it is written. Raises FileError for one that could not be."""
    where = f"{path}: cannot hold level {night.level} of campaign {printable(night.campaign, 40)}"
    return _parsed(to_json(asdict(night)).encode(), where, "nothing of this file was changed; leave that night out")


def _parsed(line: bytes, where: str, repair: str) -> Night:
    """One line. Raises FileError."""
    try:
        value = json.loads(line)
        schema = value.get("schema") if isinstance(value, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise FileError(
                f"{where}: written by a newer version (schema {schema}, this one knows {SCHEMA}): update sglang-perf"
            )
        night = _ADAPTER.validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole line"
        raise FileError(f"{where}: not a line of a history: {place}: {first['msg']}; {repair}") from error
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError and JSONDecodeError
        raise FileError(f"{where}: not a line of a history: {printable(str(error), 160)}; {repair}") from error
    if len(night.acceptance_length) != len(night.output_throughput):
        raise FileError(f"{where}: not a line of a history: acceptance_length: one for each launch; {repair}")
    return night
