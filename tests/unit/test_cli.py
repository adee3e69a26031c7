"""`python -m perf`: what only reads files and writes baselines. Exit codes are a promise to scripts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perf import record
from perf.__main__ import main
from perf.history import History, Place
from perf.record import Campaign, SuiteRecord
from perf.sample import StoredCase
from tests.unit.simulated import campaign, failed, launch, measured, relation, stored, suite, written
from tests.unit.test_history import night

ROOT = Path(__file__).parents[2]

STORE = (stored(99.9, 100.0, 100.1, 100.0),)


def one(*throughputs: float, store: tuple[StoredCase, ...] = STORE) -> SuiteRecord:
    launches = tuple(launch(measured(value), ordinal=number) for number, value in enumerate(throughputs, start=1))
    return suite(store=store, launches=launches)


PASSING, IMPROVED, REGRESSED = one(99.9, 100.1), one(119.9, 120.0, 120.1), one(79.9, 80.0, 80.1)
INCONCLUSIVE, UNKNOWN = one(80.0, 110.0), one(100.0, 100.0, store=())
INVALID = suite(store=STORE, launches=(launch(failed()),))
VIOLATED = replace(
    suite(
        variants=("baseline", "eagle3"),
        relations=(relation("baseline", "eagle3"),),
        launches=tuple(
            launch(measured(value), variant=variant, ordinal=ordinal)
            for ordinal in (1, 2)
            for variant, value in (("baseline", 50.0), ("eagle3", 100.0))
        ),
    ),
    cases=tuple(replace(each, selected=False) for each in suite(variants=("baseline", "eagle3")).cases),
)
ADVISORY = replace(REGRESSED, advisory="shown, never gated")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, and we are in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(place: Path, *suites: SuiteRecord, id: str = "20260201-020000", complete: bool = True) -> Campaign:
    whole = campaign(*suites, id=id, complete=complete)
    written(place / ".perf" / "campaigns", whole)
    return whole


def run(*arguments: str) -> int:
    """The exit code, also where argparse ends the process itself."""
    try:
        return main(list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


# check


@pytest.mark.parametrize(
    ("suites", "code"),
    [
        ((PASSING,), 0),
        ((IMPROVED,), 0),
        ((REGRESSED,), 1),
        ((VIOLATED,), 1),
        ((INCONCLUSIVE,), 2),
        ((INVALID,), 3),
        ((UNKNOWN,), 3),
        ((PASSING, REGRESSED, INVALID), 1),
        ((INCONCLUSIVE, UNKNOWN), 3),
        ((PASSING, INCONCLUSIVE), 2),
        ((ADVISORY,), 0),
        ((ADVISORY, INCONCLUSIVE), 2),
        ((replace(INVALID, advisory="shown, never gated"),), 3),
        ((), 3),
    ],
)
def test_the_exit_code_of_check_is_that_of_the_worst_verdict(
    place: Path, suites: tuple[SuiteRecord, ...], code: int
) -> None:
    save(place, *suites)
    assert run("check") == code


def test_check_shows_the_table_the_tally_and_the_screen_of_what_failed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(place, PASSING, REGRESSED)
    assert run("check") == 1
    text = capsys.readouterr().out
    assert "sim on cpu-simulated-01234567, margin 3 %, campaign 20260201-020000" in text
    assert "1 PASS; overall PASS" in text
    assert "1 REGRESSED; overall REGRESSED" in text
    assert text.count("moved with it") == 1
    assert "REGRESSED  output throughput 80.0 tok/s, baseline 100.0: -20.0 %" in text
    assert "20260201-020000/baseline-3/server.log" in text


def test_check_judges_the_newest_campaign_or_the_one_that_is_named(place: Path) -> None:
    save(place, REGRESSED, id="20260201-020000")
    save(place, PASSING, id="20260202-020000")
    assert run("check") == 0
    assert run("check", "20260201-020000") == 1
    assert run("check", str(place / ".perf" / "campaigns" / "20260201-020000")) == 1
    (place / ".perf").rename(place / "kept")
    assert run("check", "--campaign-dir", "kept/campaigns") == 0


def test_check_uses_the_baseline_that_the_campaign_was_judged_with_or_the_store_that_is_named(place: Path) -> None:
    save(place, REGRESSED)
    assert run("check") == 1
    assert run("check", "--baselines", "elsewhere") == 3  # nothing is stored there
    assert run("promote", "--reason", "accepted", "--baselines", "elsewhere") == 0
    assert run("check", "--baselines", "elsewhere") == 0
    assert run("check") == 1


def test_check_refuses_a_campaign_that_is_not_complete(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place, PASSING, complete=False)
    assert run("check") == 64
    assert capsys.readouterr().err == (
        "error: campaign 20260201-020000 is not complete (interrupted, or still running): it has no verdict\n"
    )


@pytest.mark.parametrize("arguments", [("check",), ("check", "20260201-020000"), ("check", "--campaign-dir", "x")])
def test_check_of_nothing_is_a_usage_error(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert place.is_dir()
    assert run(*arguments) == 64
    assert capsys.readouterr().err.startswith("error: no campaign")


def test_check_of_a_damaged_file_is_a_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place, PASSING)
    file = place / ".perf" / "campaigns" / "20260201-020000" / record.FILE_NAME
    file.write_text(file.read_text()[:100])
    assert run("check") == 64
    assert "not a campaign file" in capsys.readouterr().err


def test_check_against_a_damaged_store_is_a_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = save(place, PASSING)
    file = place / "baselines" / whole.rig.id / "sim" / "baseline.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert run("check", "--baselines", "baselines") == 64
    assert "not a baseline file" in capsys.readouterr().err


# promote


def test_promote_says_what_it_did_and_where(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place, UNKNOWN)
    assert run("promote", "--reason", "first baseline") == 0
    assert capsys.readouterr().out == (
        "promoted  sim/baseline/c001: - -> 100.0 tok/s, 2 launches\n"
        'campaign 20260201-020000 -> baselines, "first baseline"\n'
    )
    save(place, IMPROVED, id="20260202-020000")
    assert run("promote", "20260202-020000", "--reason", "faster", "--case", "*/c001") == 0
    assert "sim/baseline/c001: 100.0 -> 120.0 tok/s (+20.0 %), 3 launches" in capsys.readouterr().out
    stored_cases = json.loads((place / "baselines" / "cpu-simulated-01234567" / "sim" / "baseline.json").read_text())
    assert [each["reason"] for each in stored_cases["benchmarks"][0]["extra_info"]["promotions"]] == [
        "first baseline",
        "faster",
    ]


def test_promote_says_where_a_loss_is_accepted_and_where_launches_become_fewer(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(place, one(99.9, 100.0, 100.1, 100.0, store=()))
    save(place, REGRESSED, id="20260202-020000")
    assert run("promote", "20260201-020000", "--reason", "first") == 0
    assert run("promote", "20260202-020000", "--reason", "accepted") == 0
    last = capsys.readouterr().out.splitlines()[-2]
    assert last == ("promoted  sim/baseline/c001: 100.0 -> 80.0 tok/s (-20.0 %), 3 launches, there were 4, REGRESSED")


def test_promote_joins_the_launches_of_the_reference_build_where_it_is_asked_to(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(place, UNKNOWN)
    blocks = (measured(80.0), measured(101.0), measured(99.0), measured(80.0))
    launches = tuple(
        launch(taken, arm="reference" if number in (2, 3) else "candidate", ordinal=ordinal, block=(number + 1) // 2)
        for number, ordinal, taken in zip((1, 2, 3, 4), (1, 1, 2, 2), blocks, strict=True)
    )
    save(place, suite(launches=launches, reference=True, store=(stored(100.0, 100.0),)), id="20260202-020000")
    assert run("promote", "20260201-020000", "--reason", "first") == 0
    assert run("promote", "20260202-020000", "--reason", "one night more", "--reference") == 0
    assert (
        "promoted  sim/baseline/c001: 100.0 -> 100.0 tok/s (+0.0 %), 4 launches\n" in capsys.readouterr().out
    )  # REGRESSED is the candidate


def test_promote_adds_where_it_is_asked_to(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place, UNKNOWN)
    save(place, PASSING, id="20260202-020000")
    assert run("promote", "20260201-020000", "--reason", "first") == 0
    assert run("promote", "20260202-020000", "--reason", "more", "--add") == 0
    assert "4 launches" in capsys.readouterr().out


def test_promote_names_what_it_refused_and_fails(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = suite(levels=(1, 8), launches=(launch(measured(100.0), failed(8)),))
    save(place, mixed)
    assert run("promote", "--reason", "why") == 1
    text = capsys.readouterr().out
    assert "promoted  sim/baseline/c001" in text
    assert "refused   sim/baseline/c008: INVALID: requests failed" in text


@pytest.mark.parametrize(
    ("state", "complete", "arguments"),
    [
        (INVALID, True, ("--reason", "why")),
        (ADVISORY, True, ("--reason", "why")),
        (PASSING, False, ("--reason", "why")),
        (PASSING, True, ("--reason", "")),
        (PASSING, True, ("--reason", "two\nlines")),
        (PASSING, True, ("--reason", "why", "--case", "nothing")),
        (PASSING, True, ("--reason", "why", "--baselines", "/dev/null/x")),
        (PASSING, True, ("20990101-000000", "--reason", "why")),
    ],
)
def test_promote_that_is_refused_fails_and_writes_nothing(
    place: Path, state: SuiteRecord, complete: bool, arguments: tuple[str, ...]
) -> None:
    save(place, state, complete=complete)
    assert run("promote", *arguments) == 1
    assert not (place / "baselines").exists()


# usage


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("promote",),
        ("promote", "--reason"),
        ("nonsense",),
        ("check", "--nonsense"),
        ("check", "a", "b"),
        ("check", "--reason", "why"),
    ],
)
def test_a_usage_error_is_64_since_2_means_inconclusive(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 64
    assert "usage: python -m perf" in capsys.readouterr().err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "promote" in capsys.readouterr().out


def test_the_module_runs_as_a_process_with_the_same_exit_codes(place: Path) -> None:
    save(place, INCONCLUSIVE)

    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "perf", *arguments],
            cwd=place,
            env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    checked = process("check")
    assert (checked.returncode, checked.stderr) == (2, "")
    assert "INCONCLUSIVE  interval" in checked.stdout
    assert process("promote", "--reason", "as it is").returncode == 0
    wrong = process("nonsense")
    assert (wrong.returncode, wrong.stdout) == (64, "")
    assert "Traceback" not in wrong.stderr


def test_a_link_to_itself_is_a_usage_error_and_no_traceback(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "loop.toml").symlink_to("loop.toml")
    for arguments in (("plan", "--suite", "loop.toml"), ("docs", "--root", "loop.toml"), ("check", "loop.toml")):
        assert run(*arguments) in (1, 64)
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux that is always full")
@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        ("check", False),
        ("report", False),
        ("trend sim/baseline/c001", False),
        ("import 20260201-020000", True),
        ("promote --reason why", True),
        ("prune --keep 1", True),
        ("baselines --suite rehearsal", False),
        ("plan --suite rehearsal", False),
        ("promote --help", False),
    ],
)
def test_a_full_disk_under_the_output_is_a_sentence_that_says_whether_the_work_was_done(
    place: Path, arguments: str, done: bool
) -> None:
    save(place, PASSING)
    (place / "baselines").mkdir()
    History.beside(place / ".perf" / "campaigns").append(
        {Place(rig_id="r", suite="sim", variant="baseline"): (night(),)}
    )
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "perf", *arguments.split()],
            cwd=place,
            env={"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    told = "error: the output cannot be written: No space left on device"
    told += "; what was asked for was done all the same" if done else ""
    assert (ended.returncode, ended.stderr) == (64, told + "\n")
    assert bool(list((place / "baselines").rglob("baseline.json"))) == arguments.startswith("promote --reason")


def test_a_campaign_is_not_compared_with_itself(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(place, PASSING)
    assert run("compare", "20260201-020000", "20260201-020000") == 64
    assert "against itself says nothing" in capsys.readouterr().err
