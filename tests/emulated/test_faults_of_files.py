"""Whatever happens to a file that the suite reads, every verb that reads it says so and writes nothing over it.

A kind of file is a row; the damage is the same to all. What one kind needs beyond (bits, numbers, names) stands with
it: `test_long_life.py`, `test_baseline.py`, `test_history.py`, `test_trace_file.py`, `test_importing.py`.
"""

import gzip
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perf import record
from perf.__main__ import main
from perf.capacity import Capacity, cache_file
from perf.files import FileError
from perf.history import History, nights
from perf.measure import api_key
from perf.suite_file import load
from tests.emulated.inner import PACED, REPOSITORY, Desk
from tests.unit.simulated import RIG, campaign, written
from tests.unit.test_crossings import alone, rig, state
from tests.unit.test_verify import ID, Place

TWIN = "20260201-010000"
CROSSED = "20260202-020000"
RECORD = "docs/records/published-parallel.json"
SUITE = """
[suite]
name = "sim"
rig = "emulated"
[workload]
concurrency = [1]
output_tokens = 8
prompts = "prompts.jsonl"
[variants.baseline]
command = ["{python}", "-m", "perf.emulator", "--port", "{port}"]
api_key_file = "key"
"""
TABLE = "date,concurrency,tok/s\n2025-01-01,1,100.5\n2025-01-02,1,101.5\n"
DATA = """window.BENCHMARK_DATA = {"entries": {"Benchmark": [{"commit": {"id": "abc"}, "date": 1767225600000,
"benches": [{"name": "baseline c=1", "value": 100.5, "unit": "tok/s"}]}]}}"""
IMPORTED = ("--suite", "elsewhere", "--variant", "v")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a file of every kind, which every verb below reads without a complaint."""
    folder = tmp_path_factory.mktemp("whole")
    measured = Place(folder)
    crossed = alone(state())
    written(measured.campaigns, replace(record.read(measured.folder), id=TWIN))
    written(measured.campaigns, replace(campaign(rig(cv=0.003, seed=3).run(crossed)), id=CROSSED))
    for each in (ID, CROSSED):
        assert verb(folder, "promote", each, "--reason", "first").code == 0
    History.beside(measured.campaigns).append(nights(record.read(measured.folder)))
    (folder / RECORD).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / RECORD, folder / RECORD)
    (folder / "docs" / "page.md").write_text("# Page\n\n<!-- perf: throughput published-parallel -->\n<!-- /perf -->\n")
    assert verb(folder, "docs").code == 0
    (folder / "sim.toml").write_text(SUITE)
    (folder / "key").write_text("a-key\n")
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "Write a test."}\n')
    (folder / "nights.csv").write_text(TABLE)
    (folder / "nights.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    (folder / "data.js").write_text(DATA)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    code: int
    out: str
    error: str


def verb(folder: Path, *arguments: str) -> Said:
    """What a verb says in the folder of a project."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            out, error = (folder / f".{name}" for name in ("out", "error"))
            with out.open("w+") as shown, error.open("w+") as told:
                patch.setattr("sys.stdout", shown)
                patch.setattr("sys.stderr", told)
                code = main(list(arguments))
        return Said(code=code, out=out.read_text(), error=error.read_text())
    finally:
        os.chdir(here)


STORE = ("--baselines", "baselines")
OF_CAMPAIGN = (
    ("check", ID),
    ("compare", ID, TWIN),
    ("compare", TWIN, ID),
    ("report", ID),
    ("export", ID, "--case", "sim/baseline/c001", "--format", "csv"),
    ("promote", ID, "--reason", "again"),
    ("import", ID),
    ("docs", "add", ID, "--title", "T", "--log", "docs/log.md"),
)
OF_STORE = (
    ("check", ID, *STORE),
    ("promote", ID, "--reason", "again"),
    ("baselines", "--suite", "sim.toml"),
    ("prune", "--keep", "1"),
)
OF_SUITE = (("plan", "--suite", "sim.toml"), ("baselines", "--suite", "sim.toml"))

#: A file of each kind, and the verbs that read it.
KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    f".perf/campaigns/{ID}/campaign.json": OF_CAMPAIGN,
    f".perf/campaigns/{ID}/baseline-1/traces/c001-1.npz": (
        ("check", ID),
        ("export", ID, "--case", "sim/baseline/c001", "--format", "csv"),
    ),
    f"baselines/{RIG.id}/sim/baseline.json": OF_STORE,
    f"baselines/{RIG.id}/sim/crossover.json": (
        ("check", CROSSED, *STORE),
        ("promote", CROSSED, "--reason", "again"),
        ("baselines", "--suite", "sim.toml"),
        ("prune", "--keep", "1"),
    ),
    f".perf/history/{RIG.id}/sim/baseline.jsonl": (("trend", "sim/baseline/*"), ("import", ID)),
    RECORD: (("docs",), ("docs", "--check")),
    "sim.toml": OF_SUITE,
    "prompts.jsonl": OF_SUITE,
    "nights.csv": (("import", "nights.csv", *IMPORTED),),
    "nights.csv.gz": (("import", "nights.csv.gz", *IMPORTED),),
    "data.js": (("import", "data.js", *IMPORTED),),
}
#: Text that may end at any line, or within a value, and still says something: nobody can tell.
MAY_END_ANYWHERE = ("sim.toml", "prompts.jsonl", "nights.csv")

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda _: b"",
    "cut at a tenth": lambda data: data[: len(data) // 10],
    "cut at a half": lambda data: data[: len(data) // 2],
    "cut at nine tenths": lambda data: data[: 9 * len(data) // 10],
    "cut before its end": lambda data: data[:-3],
    "a list": lambda _: b"[]\n",
    "a string": lambda _: b'"text"\n',
    "a number": lambda _: b"5\n",
    "nothing": lambda _: b"null\n",
    "zeros": lambda data: bytes(len(data)),
    "no text": lambda _: b"\xff\xfe\x00\x80" * 64,
    "another's": lambda _: b'{"kind": "something else", "schema": 1}\n',
}
CASES = [
    (kind, damage) for kind in KINDS for damage in DAMAGE if not (kind in MAY_END_ANYWHERE and damage.startswith("cut"))
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_reads_the_files_that_are_damaged_below(whole: Path, tmp_path: Path, kind: str) -> None:
    project = Path(shutil.copytree(whole, tmp_path / "project"))
    assert (project / kind).stat().st_size > 20
    for arguments in KINDS[kind]:
        said = verb(project, *arguments)
        assert said.error == "", arguments


@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_a_damaged_file_is_refused_in_one_line_by_every_verb_that_reads_it_and_never_written_over(
    whole: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    project = Path(shutil.copytree(whole, tmp_path / "project"))
    damaged = DAMAGE[damage]((project / kind).read_bytes())
    (project / kind).write_bytes(damaged)
    before = contents(project)
    for arguments in KINDS[kind]:
        said = verb(project, *arguments)
        assert said.code in (1, 64), (arguments, said)
        if said.error:
            lines = r"error: .+\n" if kind != "sim.toml" else r"error: (.+\n)+"  # one for everything that it lacks
            assert re.fullmatch(lines, said.error), (arguments, said)
            assert all(Path(kind).stem in line for line in said.error.splitlines()), (arguments, said)
        else:  # it shows what it can, and names the file
            assert arguments[0] in ("baselines", "docs"), (arguments, said)
            assert Path(kind).stem in said.out, (arguments, said)
        assert "Traceback" not in said.out + said.error
        assert contents(project) == before, arguments


def contents(project: Path) -> dict[str, bytes]:
    """Of every file, but for locks and what `verb` keeps."""
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in project.rglob("*")
        if path.is_file() and path.name not in (".out", ".error") and not path.name.endswith("lock")
    }


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_the_client_was_shown_to_carry_is_shown_again_where_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cache_file()
    assert path is not None
    path.parent.mkdir()
    host = Capacity(RIG, lambda _: None)._host
    path.write_bytes(DAMAGE[damage](f'{{"host": "{host}", "proofs": []}}\n'.encode()))
    assert Capacity(RIG, lambda _: None).proofs == ()


@pytest.mark.parametrize("key", [b"", b"\n", b"\xff\xfe", b"two\nlines", b"\x00" * 8])
def test_a_key_file_without_a_key_is_a_sentence_that_does_not_show_it(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "sim.toml").write_text(SUITE)
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Write a test."}\n')
    (tmp_path / "key").write_bytes(key)
    (variant,) = load(tmp_path / "sim.toml").variants
    with pytest.raises(FileError, match=r"variants.baseline.api_key_file: the ") as caught:
        api_key(variant, tmp_path)
    assert "\n" not in str(caught.value)
    assert "two" not in str(caught.value)


@pytest.mark.parametrize("what", ["baseline", "key"])
def test_a_session_with_a_damaged_file_measures_nothing_and_fails_in_a_sentence(tmp_path: Path, what: str) -> None:
    desk = Desk(tmp_path)
    keyed = 'api_key_file = "key"'
    path = desk.suite({"plain": (*PACED, "--api-key", "a-key")}, variant=keyed, name="sim")
    damaged = tmp_path / "key" if what == "key" else desk.baselines / "emulated" / "sim" / "plain.json"
    (tmp_path / "key").write_text("a-key")
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(b"\xff{")
    ran = desk.measure(path)
    assert ran.code == pytest.ExitCode.TESTS_FAILED
    (item,) = ran.items()
    assert (item.outcome, item.word) == ("error", None)
    assert damaged.name in item.message or "variants.plain.api_key_file" in item.message
    assert "Traceback" not in ran.screen
    assert not list(desk.campaigns.rglob("server.log"))
    assert damaged.read_bytes() == b"\xff{"
