"""Old campaigns go; what a baseline came from, what is being measured and what is not ours never does."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from perf import prune as pruning
from perf import record
from perf.__main__ import main
from perf.baseline import Store
from perf.files import FileError
from perf.prune import SILENT_S, Pruned, prune, text
from tests.unit.simulated import RIG, campaign, stored, suite, written
from tests.unit.test_baseline import without_root

ROOT = Path(__file__).parents[2]
NAMES = tuple(f"2026020{day}-020000" for day in range(1, 8))
LATER_S = time.time() + 2 * SILENT_S


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an empty store, and we are in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "baselines").mkdir()
    return tmp_path


def measure(place: Path, *names: str, complete: bool = True) -> None:
    for name in names:
        folder = written(place / "campaigns", campaign(suite(), id=name, complete=complete))
        (folder / "baseline-1").mkdir()
        (folder / "baseline-1" / "server.log").write_text("x" * 1000)


def pruned(place: Path, *, keep: int = 60, dry_run: bool = False, now_s: float = LATER_S) -> Pruned:
    return prune(place / "campaigns", Store(place / "baselines"), keep=keep, dry_run=dry_run, now_s=now_s)


def there(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "campaigns").iterdir() if path.name != ".prune.lock")


def gone(found: Pruned) -> list[tuple[str, str]]:
    return [(each.folder.name, each.what) for each in found.gone]


# What goes


def test_the_oldest_campaigns_beyond_the_newest_go(place: Path) -> None:
    measure(place, *NAMES, "20260201-020000-10", "20260201-020000-2")
    found = pruned(place, keep=7)
    assert [name for name, _ in gone(found)] == ["20260201-020000", "20260201-020000-2"]
    assert there(place) == ["20260201-020000-10", *NAMES[1:]]
    assert (found.staying, found.failed, found.spared) == (7, (), ())


def test_an_interrupted_campaign_that_is_silent_goes_and_does_not_count_among_the_newest(place: Path) -> None:
    measure(place, *NAMES[:2])
    measure(place, NAMES[5], complete=False)
    assert gone(pruned(place, keep=2)) == [(NAMES[5], "interrupted")]
    assert there(place) == list(NAMES[:2])


def test_a_dry_run_says_the_same_and_touches_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(place, *NAMES)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    planned = pruned(place, keep=3, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    assert main(["prune", "--campaign-dir", "campaigns", "--keep", "3", "--dry-run"]) == 0
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    assert "4 would go, " in capsys.readouterr().out
    assert pruned(place, keep=3).gone == planned.gone


def test_the_bytes_are_those_of_the_files(place: Path) -> None:
    measure(place, *NAMES[:2])
    size = sum(path.stat().st_size for path in (place / "campaigns" / NAMES[0]).rglob("*") if path.is_file())
    (doomed,) = pruned(place, keep=1).gone
    assert doomed.size_bytes == size > 1000


def test_the_command_prints_what_went_and_what_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(place, *NAMES[:2])
    (place / "campaigns" / "20260209-020000").mkdir()
    assert main(["prune", "--campaign-dir", "campaigns", "--keep", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"removed   {NAMES[0]}      complete, \d\.\d kB", lines[0])
    assert lines[1].startswith("spared    20260209-020000      no campaign that this version can read: ")
    assert re.fullmatch(r"1 removed, \d\.\d kB; campaigns that stay in campaigns: 1", lines[2])


def test_where_nothing_was_measured_nothing_is_done(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune"]) == 0
    assert capsys.readouterr().out == "0 removed, 0.0 kB; campaigns that stay in .perf/campaigns: 0\n"
    assert [path.name for path in place.iterdir()] == ["baselines"]


# What a baseline came from


@pytest.mark.parametrize("earlier", [False, True], ids=["its launches", "an earlier promotion"])
def test_a_campaign_that_a_stored_baseline_came_from_stays(place: Path, earlier: bool) -> None:
    measure(place, *NAMES)
    case = stored(100.0, 100.0)
    launches = tuple(replace(each, campaign=NAMES[1]) for each in case.launches)
    first = replace(case, launches=launches, promotions=(replace(case.promotion, campaign=NAMES[0]),))
    store = Store(place / "baselines")
    store.promote(RIG.id, "sim", "baseline", (first,), add=False)
    if earlier:
        store.promote(RIG.id, "sim", "baseline", (case,), add=False)
    found = pruned(place, keep=1)
    named = [NAMES[0]] if earlier else list(NAMES[:2])
    assert there(place) == [*named, NAMES[-1]]
    assert found.spared == tuple((name, "a stored baseline came from it") for name in named)


@pytest.mark.parametrize("damage", ["a file", "a folder", "no store"])
def test_where_the_store_cannot_be_read_whole_nothing_goes(
    place: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(place, *NAMES)
    store = Store(place / "baselines")
    store.promote(RIG.id, "sim", "baseline", (stored(100.0),), add=False)
    if damage == "a file":
        store.path(RIG.id, "sim", "eagle3").write_text("{")
    elif damage == "a folder":
        (store.folder / RIG.id).rename(place / "moved")
        (store.folder / "inner").mkdir()
        (place / "moved").rename(store.folder / "inner" / RIG.id)
    else:
        store.folder.rename(place / "moved")
    assert main(["prune", "--campaign-dir", "campaigns", "--keep", "1"]) == 1
    assert "not known which campaigns" in capsys.readouterr().err
    assert there(place) == list(NAMES)


# What is being measured

MEASURING = """
import sys, time
from pathlib import Path
from perf import record
from tests.unit.simulated import campaign, suite
folder = record.create_folder(Path(sys.argv[1]))
record.save(folder, campaign(suite(), id=folder.name, complete=sys.argv[2] == "complete"))
print(folder.name, flush=True)
time.sleep(120)
"""


@contextmanager
def measuring(place: Path, state: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A process in the middle of a campaign, and the campaign's name."""
    with subprocess.Popen(
        [sys.executable, "-c", MEASURING, place / "campaigns", state], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.mark.parametrize("state", ["interrupted", "complete"])
def test_a_campaign_being_measured_stays_until_its_process_is_gone(place: Path, state: str) -> None:
    with measuring(place, state) as (name, process):
        measure(place, "20990101-000000")
        assert pruned(place, keep=1).spared == ((name, "it is being measured"),)
        assert record.is_measured(place / "campaigns" / name)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        assert record.is_measured(place / "campaigns" / name) is False
        assert gone(pruned(place, keep=1)) == [(name, state)]


@pytest.mark.parametrize("locked", [True, False], ids=["of today", "without a lock, as of 0.1"])
def test_an_interrupted_campaign_stays_for_two_days_after_it_was_written_to_last(place: Path, locked: bool) -> None:
    """The prune that ends a nightly job leaves the evidence of a night cut short; without a lock it may go on still."""
    measure(place, NAMES[0], complete=False)
    folder = place / "campaigns" / NAMES[0]
    if locked:
        (folder / record.LOCK_NAME).touch()
    assert record.is_measured(folder) is (False if locked else None)
    found = pruned(place, keep=1, now_s=time.time() + SILENT_S - 600)
    assert (found.gone, found.staying) == ((), 1)
    assert found.spared == ((NAMES[0], "not complete, and written to within 48 hours"),)
    os.utime(folder / "baseline-1" / "server.log", (LATER_S, LATER_S))  # only its log grew
    assert pruned(place, now_s=LATER_S + 600).gone == ()
    assert gone(pruned(place, now_s=LATER_S + SILENT_S + 1)) == [(NAMES[0], "interrupted")]


# What is not ours


def test_what_is_no_campaign_of_ours_is_left_and_said(place: Path) -> None:
    measure(place, *NAMES[:2])
    campaigns = place / "campaigns"
    for name in ("20260301-000000", "20260302-000000", "20260303-000000", "notes"):
        (campaigns / name).mkdir()
    (campaigns / "20260302-000000" / record.FILE_NAME).write_text('{"kind": "theirs"}')
    (campaigns / "20260303-000000" / record.FILE_NAME).write_bytes(
        (campaigns / NAMES[0] / record.FILE_NAME).read_bytes()
    )
    (campaigns / "20260304-000000").write_text("a file")
    found = pruned(place, keep=1)
    assert gone(found) == [(NAMES[0], "complete")]
    assert [name for name, _ in found.spared] == [
        *(f"2026030{day}-000000" for day in (1, 2, 3, 4)),
        "notes",
    ]
    assert all((campaigns / name).exists() for name, _ in found.spared)


def test_a_symbolic_link_is_never_followed(place: Path) -> None:
    measure(place, *NAMES[:3])
    kept = place / "kept"
    (place / "campaigns" / NAMES[0]).rename(kept)
    (place / "campaigns" / NAMES[0]).symlink_to(kept)
    (place / "campaigns" / NAMES[1] / "link").symlink_to(kept)
    (place / "campaigns" / ".pruned-20260101-000000").symlink_to(kept)
    found = pruned(place, keep=1)
    assert gone(found) == [(NAMES[1], "complete")]
    assert (NAMES[0], "a symbolic link, not followed") in found.spared
    assert (kept / "baseline-1" / "server.log").is_file()


def test_a_hostile_name_reaches_no_terminal_raw(place: Path) -> None:
    (place / "campaigns" / "\x1b[31mred").mkdir(parents=True)
    assert "\x1b" not in text(pruned(place), place / "campaigns", dry_run=False)


# What goes wrong

KILLED = """
import os, shutil, signal, sys, time
from pathlib import Path
from perf.baseline import Store
from perf import prune
killed = int(sys.argv[2])
unlink = os.unlink
def dying(*arguments, **more):
    global killed
    killed -= 1
    if killed < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    unlink(*arguments, **more)
os.unlink = dying
prune.prune(Path(sys.argv[1]), Store(Path("baselines")), keep=1, dry_run=False, now_s=time.time())
"""


@pytest.mark.parametrize("files", [0, 1, 3])
def test_a_prune_that_is_killed_leaves_no_half_of_a_campaign_and_the_next_one_goes_on(place: Path, files: int) -> None:
    measure(place, *NAMES[:4])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, place / "campaigns", str(files)],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    remains = [name for name in there(place) if name.startswith(".pruned-")]
    assert len(remains) == 1
    for folder in record.folders(place / "campaigns"):
        assert record.read(folder).complete
        assert (folder / "baseline-1" / "server.log").is_file()
    found = pruned(place, keep=1)
    assert (remains[0], "remains of a prune") in gone(found)
    assert there(place) == [NAMES[3]]
    assert found.staying == 1


PRUNING = """
import sys, time
from pathlib import Path
from perf.baseline import Store
from perf.prune import prune
print("ready", flush=True)
sys.stdin.readline()
found = prune(Path(sys.argv[1]), Store(Path("baselines")), keep=1, dry_run=False, now_s=time.time())
assert not found.failed, found
print(len(found.gone))
"""


def test_two_prunes_at_once_remove_everything_once(place: Path) -> None:
    measure(place, *(f"202603{day:02d}-000000" for day in range(1, 31)))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", PRUNING, place / "campaigns"],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    counts = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sum(counts) == 29
    assert there(place) == ["20260330-000000"]


def test_a_promotion_that_lands_while_a_prune_waits_saves_its_campaign(place: Path) -> None:
    measure(place, *NAMES)
    case = stored(100.0)
    promotion = replace(case.promotion, campaign=NAMES[0])
    Store(place / "elsewhere").promote(RIG.id, "sim", "baseline", (replace(case, promotions=(promotion,)),), add=False)
    promoting = FileLock(place / "baselines" / ".lock")
    with (
        promoting,
        subprocess.Popen(
            [sys.executable, "-c", PRUNING, place / "campaigns"],
            cwd=place,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker,
    ):
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=2)
        assert there(place) == list(NAMES)
        (place / "elsewhere" / RIG.id).rename(place / "baselines" / RIG.id)
        promoting.release()
        out, _ = worker.communicate(timeout=60)
    assert (worker.returncode, out) == (0, "ready\n5\n")
    assert there(place) == [NAMES[0], NAMES[-1]]


def test_a_prune_does_not_wait_for_ever_for_a_promotion(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(place, *NAMES[:2])
    monkeypatch.setattr(pruning, "LOCK_TIMEOUT_S", 0.1)
    lock = place / "baselines" / ".lock"
    with FileLock(lock), pytest.raises(FileError) as caught:
        pruned(place, keep=1)
    assert str(caught.value).startswith(f"{lock}: another prune or a promotion has held it for ")
    assert there(place) == list(NAMES[:2])


def test_beside_a_store_that_cannot_be_written_old_campaigns_go_all_the_same() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "baselines").mkdir()
        measure(place, *NAMES[:2])
        for each in (place, *(place / "campaigns").rglob("*"), place / "campaigns"):
            each.chmod(0o777)
        (place / "baselines").chmod(0o555)
        with without_root():
            assert gone(pruned(place, keep=1)) == [(NAMES[0], "complete")]
        assert list((place / "baselines").iterdir()) == []


def test_a_campaign_that_cannot_be_removed_is_named_and_the_others_go() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for each in (place, place / "baselines", place / "campaigns"):
            each.mkdir(exist_ok=True)
            each.chmod(0o777)
        measure(place, *NAMES[:4])
        stubborn = place / "campaigns" / NAMES[1] / "baseline-1"
        for each in (place / "campaigns").rglob("*"):
            each.chmod(0o777)
        stubborn.chmod(0o555)
        with without_root():
            found = pruned(place, keep=1)
        assert [name for name, _ in gone(found)] == [NAMES[0], NAMES[2]]
        assert found.failed == ((f".pruned-{NAMES[1]}", "cannot be removed: Permission denied, at server.log"),)
        assert found.staying == 1
        stubborn = place / "campaigns" / f".pruned-{NAMES[1]}" / "baseline-1"
        stubborn.chmod(0o777)
        assert gone(pruned(place, keep=1)) == [(f".pruned-{NAMES[1]}", "remains of a prune")]


def test_a_failed_removal_ends_the_command_with_1(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(place, *NAMES[:2])
    (place / "campaigns" / f".pruned-{NAMES[0]}").mkdir()
    (place / "campaigns" / f".pruned-{NAMES[0]}" / "held").mkdir()

    def refuse(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    assert main(["prune", "--campaign-dir", "campaigns", "--keep", "1"]) == 1
    out = capsys.readouterr().out
    assert out.count("failed    ") == 2  # the remains, and the campaign that finds its place taken
    assert "Device or resource busy" in out
    assert out.endswith("campaigns that stay in campaigns: 2\n")


def test_a_folder_that_cannot_be_written_is_a_sentence() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "baselines").mkdir()
        measure(place, *NAMES[:2])
        (place / "campaigns").chmod(0o555)
        with (
            without_root(),
            pytest.raises(FileError, match="cannot be written: Permission denied; nothing was removed"),
        ):
            pruned(place, keep=1)
        assert there(place) == list(NAMES[:2])
        (place / "campaigns").chmod(0o755)
