"""A file is the old one or the new one, never a part; and an error about it says what, which and what to do."""

import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from perf import files
from perf.files import FileError, read_json, to_json, write_text

ROOT = Path(__file__).parents[2]

#: Writers that are killed; each after a few of its writes.
KILLS = 8
#: A writer begins within this, whatever else the machine does.
START_S = 30.0


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folders_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "baseline.json"
    write_text(path, "Größe\r\nline\n")
    assert path.read_bytes() == "Größe\r\nline\n".encode()
    assert names(path.parent) == ["baseline.json"]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_text(path, "old and longer")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["baseline.json"]


def test_a_file_has_the_mode_that_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "baseline.json", "new")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "baseline.json").stat().st_mode) == 0o640


def test_a_link_is_replaced_and_what_it_points_to_is_left(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("elsewhere")
    (tmp_path / "baseline.json").symlink_to(tmp_path / "target")
    write_text(tmp_path / "baseline.json", "new")
    assert (tmp_path / "target").read_text() == "elsewhere"
    assert (tmp_path / "baseline.json").read_text() == "new"


def test_a_target_that_cannot_be_replaced_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").mkdir()
    with pytest.raises(FileError) as caught:
        write_text(tmp_path / "baseline.json", "new")
    assert str(caught.value) == (f"{tmp_path}/baseline.json: cannot be written: Is a directory; nothing was changed")
    assert names(tmp_path) == ["baseline.json"]


def test_a_text_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "x" * 1_000_000 + "\ud800")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.md"]


def test_a_folder_that_is_a_file_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("a file")
    with pytest.raises(FileError, match=r"baselines/rig/a.json: cannot be written: Not a directory; nothing was"):
        write_text(tmp_path / "baselines" / "rig" / "a.json", "new")


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_text(path, "old")
    program = f"""
import resource, signal
from pathlib import Path
from perf.files import FileError, write_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_text(Path({str(path)!r}), "n" * 100_000)
except FileError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{path}: cannot be written: File too large; nothing was changed\n"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["baseline.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_text(path, "old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileError, match="Permission denied; nothing was changed"):
            write_text(path, "new")
    finally:
        tmp_path.chmod(0o700)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["baseline.json"]


def test_a_writer_that_is_killed_leaves_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    program = f"""
import itertools
from pathlib import Path
from perf.files import write_text
for n in itertools.count():
    write_text(Path({str(path)!r}), str(n % 10) * 300_000)
"""
    for kill in range(KILLS):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as writer:
            try:
                end_s = time.monotonic() + START_S
                while not path.exists() and time.monotonic() < end_s:
                    time.sleep(0.001)
                time.sleep(0.003 * kill)
            finally:
                writer.send_signal(signal.SIGKILL)
        text = path.read_text()
        assert len(text) == 300_000
        assert len(set(text)) == 1
    assert [name for name in names(tmp_path) if name.endswith(".json")] == ["baseline.json"]


# Reading.


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    name: str
    values: tuple[float, ...]


THINGS = TypeAdapter(Thing)


def refusal(path: Path) -> str:
    with pytest.raises(FileError) as caught:
        read_json(path, THINGS, "a baseline")
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "a baseline" in message
    return message.removeprefix(f"{path}: ")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", to_json({"name": "Größe \u2028", "values": [1, 0.1]}))
    assert read_json(tmp_path / "a.json", THINGS, "a baseline") == Thing(name="Größe \u2028", values=(1.0, 0.1))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "the whole file: Invalid JSON"),
        ('{"name": "a", "values": [1', "the whole file: Invalid JSON"),
        ("[" * 10_000, "the whole file: Invalid JSON"),
        ("[]", "the whole file: Input should be an object"),
        ('{"name": "a"}', "values: Field required"),
        ('{"name": "a", "values": [1, "x"]}', "values.1: Input should be a valid number"),
    ],
)
def test_a_file_that_cannot_be_believed_is_refused_with_its_place(text: str, fragment: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    assert fragment in refusal(tmp_path / "a.json")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.json")
    assert "Is a directory" in refusal(tmp_path)
    (tmp_path / "a.json").write_bytes(b'{"name": "\xff"}')
    assert "not a baseline" in refusal(tmp_path / "a.json")


def test_a_file_far_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 100)
    (tmp_path / "a.json").write_text(to_json({"name": "a", "values": [0.0] * 100}))
    assert "bytes are too many" in refusal(tmp_path / "a.json")


def test_numbers_that_are_none_are_not_written() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            to_json({"value": value})
    assert to_json({"a": "\u2028"}).isascii()
    assert json.loads(to_json([0.1, 1e-300])) == [0.1, 1e-300]
