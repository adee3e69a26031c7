"""`python -m perf doctor --noise CASE` launches a real server against itself, and says what could be told from that."""

import math
import re
from pathlib import Path

import pytest

from perf import doctor as looking
from perf import validity
from perf.doctor import Fitness
from perf.rig import probe
from perf.suite_file import load
from tests.emulated.inner import PACED, Desk, alive_with


def doctor(desk: Desk, suite: Path) -> str:
    return desk.perf("doctor", f"--suite={suite}", "--noise", "small/baseline/c002").out


def test_a_steady_server_is_fit_and_an_unsteady_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    desk = Desk(tmp_path)
    steady = desk.suite({"baseline": PACED}, gate="margin = 0.5")
    text = doctor(desk, steady)
    assert text.count("tok/s in") == 4
    varies = r"4 launches of one and the same vary by [\d.]+ % \([\d.]+ % to [\d.]+ % with 95 % confidence\)"
    assert re.search(
        rf"ok     noise       small/baseline/c002 on emulated: {varies}; the second of a pair was up to", text
    )
    assert "ok     margin      a loss of 50 % is found in 24 of 24 nights of fresh pairs within 12 launches" in text
    unsteady = desk.suite({"baseline": (*PACED, "--launch-cv", "0.3")}, gate="margin = 0.01")
    text = doctor(desk, unsteady)
    assert re.search(r"ok     noise .* vary by [\d.]+ %", text)  # whether that is much, only a margin can tell
    assert re.search(
        r"UNFIT  margin      a loss of 1 % is found in \d+ of \d+ nights of fresh pairs within 12 launches", text
    )
    assert "do: quiet the machine, allow more launches or minutes, or ask for a larger margin" in text
    assert text.endswith("not fit to measure: see UNFIT above\n")
    assert not list(tmp_path.glob("campaigns/*"))  # a look, not a campaign
    assert not list(tmp_path.glob("temporary/sglang-perf-doctor-*"))  # nothing names what lay there
    assert alive_with("perf.emulator --launch-cv 0.3") == []


def test_a_server_that_fails_is_unfit_with_its_reason(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    broken = desk.suite({"baseline": (*PACED, "--fault", "http-500")})
    text = doctor(desk, broken)
    assert "UNFIT  noise       small/baseline/c002 on emulated: " in text
    assert "http_500" in text
    log = re.search(r"^ +do: .+ \(server log: (\S+/server\.log)\)$", text, flags=re.MULTILINE)
    assert log
    assert Path(log.group(1)).is_file()


@pytest.mark.parametrize("disturbed", [1, 2])
def test_one_disturbed_launch_is_repeated_and_said_and_two_are_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disturbed: int
) -> None:
    """In so many launches no time away is allowed; else all is, so that nothing but that disturbs."""
    for allowed in ("MAX_TURNAROUND_SHARE", "MAX_UNREAD_CHUNKS", "MAX_CPU_SHARE", "MAX_RUN_QUEUE_SHARE"):
        monkeypatch.setattr(validity, allowed, math.inf)
    monkeypatch.setattr(validity, "MAX_AWAY_SHARE", -1.0)

    def show(line: str) -> None:
        if line.startswith(f"doctor.baseline-{disturbed + 1}: ready"):
            monkeypatch.setattr(validity, "MAX_AWAY_SHARE", math.inf)

    chosen = load(Desk(tmp_path).suite({"baseline": PACED}, gate="margin = 0.5"))
    (case,) = chosen.cases
    found = list(looking.noise(chosen, case, 0.5, probe(), tmp_path / "doctor", show))
    told = "launch 1 was disturbed and repeated: client was the bottleneck: it was away "
    assert told in found[0].seen
    if disturbed == 1:
        assert [each.fitness for each in found] == [Fitness.OK, Fitness.OK]
        assert "4 launches of one and the same vary by " in found[0].seen
    else:
        assert [each.fitness for each in found] == [Fitness.UNFIT]
        assert found[0].seen.startswith("small/baseline/c002 on emulated: client was the bottleneck: it was away ")
