"""Campaigns live long: their files are bounded, and whatever happened to one is told in a sentence.

Every verb works on a file, or refuses it in one line: no traceback, no hang, and no verdict from half a file. A number
that was damaged into another plausible one is found where another number vouches for it (docs/files.md says where).
"""

import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perf import record
from perf.__main__ import main
from perf.baseline import Store
from perf.files import MAX_JSON_BYTES, FileError
from perf.record import Campaign, RoundRecord
from perf.rig import Rig
from perf.sample import StoredCase
from perf.suite_file import SuiteError, parse
from tests.unit.simulated import (
    campaign,
    crossing,
    failed,
    launch,
    measured,
    relation,
    stored,
    stored_crossover,
    suite,
    summary,
    written,
)

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "tests" / "data" / "released" / "0.1.0"
BASELINES = (*ROOT.glob("baselines/emulated/*/*.json"), *RELEASED.glob("baselines/*/*/*.json"))

#: A verb takes some milliseconds; what waits for a FIFO waits for ever.
LIMIT_S = 60.0

ID = "20260201-020000"
FULL = campaign(
    suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        store=(stored(99.0, 100.0, 101.0), stored(99.0, 101.0, level=8)),
        relations=(relation("baseline", "eagle3"), relation("eagle3", "baseline", at_least=1.5, level=1)),
        crossovers=(crossing("eagle3", "baseline", stored_crossover("eagle3", "baseline", {1: 1.2, 8: 0.7})),),
        launches=(
            launch(measured(99.5, acceptance=2.1), failed(8), env={"NCCL_PROTO": "LL"}),
            launch(measured(101.0), failed(8), ordinal=2),
            launch(measured(98.0), measured(8.0, level=8), variant="eagle3"),
            launch(measured(98.5), measured(8.1, level=8), variant="eagle3", ordinal=2),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a verb ended."""

    code: int
    out: str
    error: str

    @property
    def refused(self) -> bool:
        return bool(self.error)


def perf(*arguments: str) -> Outcome:
    """What a verb says: something harmless, or one line of why not. That is asserted here, of every call."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error), in_time():
        code = main(list(arguments))
    outcome = Outcome(code=code, out=out.getvalue(), error=error.getvalue())
    if outcome.refused:
        assert outcome.code in (1, 64)
        assert outcome.out == ""
        assert re.fullmatch(r"error: .+\n", outcome.error)
        assert outcome.error[:-1].isprintable()
    else:
        assert outcome.code in (0, 1, 2, 3)
        assert outcome.out.replace("\n", "").isprintable()
    return outcome


@contextmanager
def in_time() -> Iterator[None]:
    def late(_number: int, _frame: object) -> None:
        raise AssertionError(f"nothing came within {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True)
class Desk:
    """Campaigns and a store in a folder of their own."""

    folder: Path

    @property
    def campaigns(self) -> Path:
        return self.folder / "campaigns"

    @property
    def store(self) -> Path:
        return self.folder / "baselines"

    def file(self, id: str = ID) -> Path:
        """The campaign file of that id; its folder is there."""
        (self.campaigns / id).mkdir(parents=True, exist_ok=True)
        return self.campaigns / id / record.FILE_NAME

    def twin(self, id: str) -> Path:
        """The same campaign elsewhere under another id, to be compared with: none is with itself."""
        folder = self.folder / "twin" / "20250101-000000"
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.isfile(self.file(id)) and os.access(self.file(id), os.R_OK):
            data = self.file(id).read_bytes()
            (folder / record.FILE_NAME).write_bytes(data.replace(id.encode(), folder.name.encode(), 1))
        return folder

    def every_verb(self, id: str = ID) -> tuple[Outcome, ...]:
        """What each says of the campaign."""
        place = ("--campaign-dir", str(self.campaigns))
        reports = [("report", id, "--format", each) for each in ("text", "markdown", "json")]
        verbs = [("check", id), ("compare", id, str(self.twin(id))), *reports, ("promote", id, "--reason", "x")]
        shutil.rmtree(self.store, ignore_errors=True)
        return tuple(
            perf(*verb, *place, *(() if verb[0] == "check" else ("--baselines", str(self.store)))) for verb in verbs
        )

    def refusals(self, id: str = ID) -> set[str]:
        """The sentence with which every verb refuses the campaign; nothing was promoted."""
        outcomes = self.every_verb(id)
        assert all(outcome.refused for outcome in outcomes)
        assert not self.store.exists()
        return {outcome.error for outcome in outcomes}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Real campaign files by their ids: every released one, and one of today."""
    today = written(tmp_path_factory.mktemp("today"), FULL)
    folders = (*RELEASED.glob("campaigns/*"), today)
    return {folder.name: (folder / record.FILE_NAME).read_text() for folder in folders}


# Damaged campaigns


def test_every_verb_works_on_the_files_that_are_damaged_below(desk: Desk, texts: dict[str, str]) -> None:
    for id, text in texts.items():
        desk.file(id).write_text(text)
        outcomes = desk.every_verb(id)
        assert not any(outcome.refused for outcome in outcomes)


def test_a_truncated_campaign_is_refused_wherever_it_ends(desk: Desk, texts: dict[str, str]) -> None:
    for id, text in texts.items():
        for end in (*range(0, len(text) - 2, len(text) // 25), len(text) - 2):
            desk.file(id).write_text(text[:end])
            assert all("not a campaign file" in sentence for sentence in desk.refusals(id))


def test_a_flipped_bit_is_refused_or_leaves_a_campaign(desk: Desk, texts: dict[str, str]) -> None:
    luck = random.Random(1)
    for id, text in texts.items():
        for _ in range(30):
            data = bytearray(text.encode())
            data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
            desk.file(id).write_bytes(data)
            assert len({outcome.refused for outcome in desk.every_verb(id)}) == 1


Steps = tuple[str | int, ...]


def places(value: object, steps: Steps = ()) -> Iterator[Steps]:
    """Every place in a JSON value, as the keys and indices that lead there."""
    yield steps
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, (*steps, key))


def at(value: object, steps: Steps) -> object:
    """What stands in a place."""
    for step in steps:
        assert isinstance(value, dict | list)
        value = value[step]  # type: ignore[index]
    return value


def replaced(value: object, steps: Steps, new: object) -> object:
    """The value with another one in a place."""
    if not steps:
        return new
    first, *rest = steps
    if isinstance(value, dict):
        return value | {first: replaced(value[first], tuple(rest), new)}
    assert isinstance(value, list)
    return [replaced(each, tuple(rest), new) if n == first else each for n, each in enumerate(value)]


def lacking(value: object, luck: int) -> object:
    """The object or list without one of its members."""
    if isinstance(value, dict) and value:
        gone = sorted(value)[luck % len(value)]
        return {key: each for key, each in value.items() if key != gone}
    if isinstance(value, list) and value:
        return [each for n, each in enumerate(value) if n != luck % len(value)]
    return None


HOSTILE: tuple[object, ...] = (
    *(None, True, 0, -0.0, -1, 1.5, 10**14, 10**400, 9e14, 1e-99, 5e-324, float("nan"), float("inf")),
    *(
        "",
        "x" * 100_000,
        "\x1b[2J\x07",
        "\u202eabc",
        "\ud800",
        "../../x",
        "/etc",
        "a\nb",
        "<b>|`",
        "1e999",
        [],
        {},
        [[[1]]],
    ),
)


def sorts(value: object) -> dict[tuple[str, ...], list[Steps]]:
    """The places of each sort: the same but for indices. So what stands once is drawn as often as what stands often."""
    found: dict[tuple[str, ...], list[Steps]] = {}
    for steps in places(value):
        found.setdefault(tuple("#" if isinstance(step, int) else step for step in steps), []).append(steps)
    return found


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_campaign_it_is_refused_or_shown(
    desk: Desk, texts: dict[str, str], data: st.DataObject
) -> None:
    id = data.draw(st.sampled_from(sorted(texts)))
    value = json.loads(texts[id])
    found = sorts(value)
    steps = data.draw(st.sampled_from(found[data.draw(st.sampled_from(sorted(found)))]))
    old = at(value, steps)
    doubled = old * 2 if isinstance(old, list) else None
    new = data.draw(st.sampled_from((*HOSTILE, lacking(old, data.draw(st.integers(0, 9))), doubled)))
    desk.file(id).write_text(json.dumps(replaced(value, steps, new)))
    assert len(desk.every_verb(id)) == 6  # each of them as `perf` asserts


def test_a_key_that_is_missing_or_stands_twice_is_never_guessed(desk: Desk, texts: dict[str, str]) -> None:
    value = json.loads(texts[ID])
    for sort, found in sorts(value).items():
        if not sort or sort[-1] == "#" or sort == ("rig", "note"):  # a note decides nothing
            continue
        steps = found[0]
        desk.file().write_text(json.dumps(replaced(value, steps[:-1], without(at(value, steps[:-1]), steps[-1]))))
        with pytest.raises(FileError, match="Field required"):
            record.read(desk.campaigns / ID)
    desk.file().write_text(texts[ID].replace('"alpha": 0.01', '"alpha": 0.01, "alpha": 0.5', 1))
    assert all("has the key 'alpha' twice in one place" in sentence for sentence in desk.refusals())


def without(value: object, key: str | int) -> object:
    assert isinstance(value, dict)
    return {name: each for name, each in value.items() if name != key}


def test_no_field_of_a_stored_file_has_a_default_since_a_file_that_lacks_it_is_damaged() -> None:
    def types_in(hint: object) -> Iterator[type]:
        if isinstance(hint, type) and is_dataclass(hint):
            yield hint
            for each in get_type_hints(hint).values():
                yield from types_in(each)
        for each in get_args(hint):
            yield from types_in(each)

    found = {*types_in(Campaign), *types_in(StoredCase)}
    assert len(found) > 10
    defaults = {(each, field.name) for each in found for field in fields(each) if field.default is not MISSING}
    assert defaults == {(Rig, "note")}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("99.5", "99.6"),  # a throughput that is not its tokens by its time
        ("99.5", "true"),
        ("99.5", '"99.5"'),
        ("99.0\n", "99.1\n"),  # a stored launch that is not what was promoted
        ('"baseline-2"', '"baseline-1"'),
        ('"rounds": 1,', '"rounds": 2,'),
    ],
)
def test_a_value_for_which_another_vouches_is_found_to_be_damaged(desk: Desk, was: str, now: str) -> None:
    text = (written(desk.campaigns, FULL) / record.FILE_NAME).read_text()
    text, count = re.subn(rf"(?m){re.escape(was)}", now, text, count=1)
    assert count
    desk.file().write_text(text)
    desk.refusals()


# What is no file


def at_fifo(path: Path) -> None:
    os.mkfifo(path)


def at_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)
    os.chdir(here)


def at_large(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_JSON_BYTES + 1)


def at_secret(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.touch(mode=0o000)


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (at_fifo, "Not a regular file"),
    "device that never ends": (lambda path: path.symlink_to("/dev/zero"), "Not a regular file"),
    "terminal": (lambda path: path.symlink_to("/dev/tty"), "cannot be read"),
    "socket": (at_socket, "cannot be read"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "ring of links": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "link to nowhere": (lambda path: path.symlink_to("nowhere"), ""),
    "no right to read": (at_secret, "Permission denied"),
    "larger than any of ours": (at_large, "bytes are too many"),
    "empty": (lambda path: path.touch(), "Invalid JSON"),
    "zeros": (lambda path: path.write_bytes(bytes(4096)), "Invalid JSON"),
    "byte order mark": (lambda path: path.write_text("{}", "utf-8-sig"), "Invalid JSON"),
    "UTF-16": (lambda path: path.write_text("{}", "utf-16"), "Invalid JSON"),
    "nested without end": (lambda path: path.write_text('{"a":' * 100_000), "Invalid JSON"),
    "a number without end": (lambda path: path.write_text("1" * 100_000), "only a finite number"),
    "conflict of a merge": (lambda path: path.write_text("<<<<<<< HEAD\n{}"), "Invalid JSON"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_campaign_file_is_refused_at_once(desk: Desk, name: str) -> None:
    make, seen = PLACES[name]
    make(desk.file())
    assert all(seen in sentence for sentence in desk.refusals())


@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_baseline_file_is_refused_at_once(desk: Desk, name: str) -> None:
    make, seen = PLACES[name]
    written(desk.campaigns, FULL)
    place = Store(desk.store).path(FULL.suites[0].rig_id, "sim", "baseline")
    place.parent.mkdir(parents=True)
    make(place)
    stores = ("--campaign-dir", str(desk.campaigns), "--baselines", str(desk.store))
    if name == "link to nowhere":  # as if there were none
        assert not perf("check", *stores).refused
        return
    for verb in (("check",), ("promote", "--reason", "x")):
        outcome = perf(*verb, *stores)
        assert outcome.refused
        assert seen in outcome.error


@pytest.mark.parametrize("source", BASELINES, ids=lambda path: path.stem)
def test_a_damaged_baseline_is_refused_or_is_a_baseline(desk: Desk, source: Path) -> None:
    luck = random.Random(2)
    path = Store(desk.store).path("emulated", source.parent.name, source.stem)
    path.parent.mkdir(parents=True)
    text = source.read_bytes()
    value = json.loads(text)
    found = sorts(value)
    damaged = [text[:end] for end in range(0, len(text) - 2, len(text) // 20)]
    for sort in sorted(found):
        steps = luck.choice(found[sort])
        news = (*luck.sample(HOSTILE, 4), lacking(at(value, steps), luck.randrange(9)))
        damaged += [json.dumps(replaced(value, steps, new)).encode() for new in news]
    for data in damaged:
        path.write_bytes(data)
        sentence, cases = said(lambda: Store(desk.store).read("emulated", source.parent.name, source.stem))
        assert (sentence or "").isprintable()
        assert sentence or all(case.launches for case in cases or ())


def said(read: Callable[[], T]) -> tuple[str | None, T | None]:
    """With what sentence a file was refused, or what was read."""
    try:
        return None, read()
    except FileError as error:
        return str(error), None


def test_a_file_that_shrinks_and_grows_while_it_is_read_is_read_whole_or_refused(desk: Desk) -> None:
    path = written(desk.campaigns, FULL) / record.FILE_NAME
    data, over = path.read_bytes(), threading.Event()

    def unrest() -> None:
        for number in itertools.cycle(range(8)):
            if over.is_set():
                return
            path.write_bytes(data[: len(data) * number // 7])

    writer = threading.Thread(target=unrest)
    writer.start()
    try:
        for _ in range(60):
            sentence, found = said(lambda: record.read(path.parent))
            assert found == FULL or "not a campaign file" in (sentence or "")
    finally:
        over.set()
        writer.join()


def test_a_campaign_may_lie_elsewhere_behind_a_link_and_a_ring_of_links_is_none(desk: Desk, tmp_path: Path) -> None:
    folder = written(tmp_path / "large disk", FULL)
    desk.campaigns.mkdir()
    (desk.campaigns / ID).symlink_to(folder)
    (desk.campaigns / "20270101-000000").symlink_to("20270101-000000")
    (desk.campaigns / "20270101-000001").symlink_to("nowhere")
    assert record.find(desk.campaigns, None) == desk.campaigns / ID
    assert not any(outcome.refused for outcome in desk.every_verb())


def test_a_reader_who_has_seen_enough_gets_no_traceback(desk: Desk) -> None:
    written(desk.campaigns, FULL)
    command = [sys.executable, "-m", "perf", "check", "--campaign-dir", str(desk.campaigns)]
    reader, writer = os.pipe()
    os.close(reader)
    checked = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    os.close(writer)
    assert (checked.returncode, checked.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_suite_that_would_lie_where_the_fingerprint_of_the_rig_lies_is_refused() -> None:
    text = '[suite]\nname = "rig.json"\n[workload]\nconcurrency = [1]\noutput_tokens = 32\n'
    text += '[variants.plain]\ncommand = ["serve", "{port}"]\n'
    with pytest.raises(SuiteError, match=r"suite\.name: seen this name; allowed: any name but rig\.json"):
        parse(text, Path("rig.toml"))


# Interrupted


def test_every_verb_that_refuses_a_campaign_names_the_newest_complete_one(desk: Desk) -> None:
    written(desk.campaigns, replace(FULL, id="20260101-000000"))
    written(desk.campaigns, FULL)
    unfinished = replace(FULL, id="20260301-000000", complete=False, finished_at=None)
    written(desk.campaigns, unfinished)
    assert desk.refusals("20260301-000000") == {
        "error: campaign 20260301-000000 is not complete (interrupted, or still running): it has no verdict; "
        f"the newest complete one there is {ID}\n"
    }
    damaged = desk.file("20260401-000000")
    damaged.write_text("{")
    begun = desk.campaigns / "20260501-000000"
    begun.mkdir()
    for folder in (damaged.parent, begun):
        assert all(
            sentence.endswith(f"; the newest complete one there is {ID}\n") for sentence in desk.refusals(folder.name)
        )
    assert f"; the newest complete one there is {ID}\n" in perf("check", "--campaign-dir", str(desk.campaigns)).error


def test_a_campaign_that_is_being_measured_is_told_from_one_that_was_interrupted(desk: Desk) -> None:
    folder = record.create_folder(desk.campaigns)
    record.save(folder, replace(FULL, id=folder.name, complete=False, finished_at=None))
    assert all(
        "is not complete (still running): it has no verdict" in sentence for sentence in desk.refusals(folder.name)
    )


def test_a_campaign_whose_folder_is_removed_meanwhile_is_not_begun_anew(desk: Desk) -> None:
    folder = written(desk.campaigns, FULL)
    shutil.rmtree(folder)
    with pytest.raises(
        FileError, match=r"the folder of this campaign was removed: nothing more can be kept; measure ag"
    ):
        record.save(folder, FULL)
    assert not folder.exists()


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file may grow over `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_campaign_that_cannot_be_saved_remains_as_it_was_saved_last(desk: Desk) -> None:
    folder = written(desk.campaigns, FULL)
    more = replace(FULL, suites=FULL.suites * 2)
    with disk_of(20_000), pytest.raises(FileError, match="cannot be written: File too large; nothing was changed"):
        record.save(folder, more)
    assert record.read(folder) == FULL
    assert [path.name for path in folder.iterdir()] == [record.FILE_NAME]


def test_a_campaign_is_never_saved_larger_than_it_is_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(desk.campaigns, FULL)
    monkeypatch.setattr(record, "MAX_JSON_BYTES", folder.joinpath(record.FILE_NAME).stat().st_size)
    with pytest.raises(
        FileError, match="more than is ever read; it remains as it was saved last: measure fewer rounds"
    ):
        record.save(folder, replace(FULL, suites=FULL.suites * 2))
    assert record.read(folder) == FULL


# Bounds


def test_the_largest_campaign_that_is_usual_is_a_twentieth_of_what_is_read(desk: Desk) -> None:
    """Twelve launches of three variants, eight levels, five rounds: docs/files.md states its size."""
    levels, variants = (1, 2, 5, 10, 30, 70, 100, 250), ("baseline", "eagle3", "eagle3-overlap")
    numbers = replace(
        summary(1234.5678901234567, acceptance=2.8765432109876543), steady_throughput=1 / 3, itl_s=summary(1 / 7).ttft_s
    )
    rounds = tuple(
        RoundRecord(index=index, summary=numbers, reasons=(), client=None, gpus=None, server_log=None)
        for index in range(5)
    )
    launches = tuple(
        launch(
            *(replace(measured(1.0, level=level), rounds=rounds) for level in levels), variant=variant, ordinal=ordinal
        )
        for ordinal in range(1, 13)
        for variant in variants
    )
    state = suite(levels=levels, variants=variants, launches=launches, max_launches=12)
    workload = state.workload
    assert workload is not None
    folder = written(desk.campaigns, campaign(replace(state, workload=replace(workload, rounds=5))))
    size = (folder / record.FILE_NAME).stat().st_size
    assert 1_000_000 < size < MAX_JSON_BYTES / 20
    assert record.read(folder).suites[0].launches == launches
    print(f"{size:,} bytes")  # noqa: T201 - seen with pytest -s, for docs/files.md
