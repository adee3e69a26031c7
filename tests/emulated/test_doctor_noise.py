"""`python -m perf doctor --noise CASE` launches a real server against itself, and says what could be told from that."""

import re
from pathlib import Path

from tests.emulated.inner import PACED, Desk, alive_with


def doctor(desk: Desk, suite: Path) -> str:
    return desk.perf("doctor", f"--suite={suite}", "--noise", "small/baseline/c002").out


def test_a_steady_server_is_fit_and_an_unsteady_one_is_not(tmp_path: Path) -> None:
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
    assert alive_with("perf.emulator --launch-cv 0.3") == []


def test_a_server_that_fails_is_unfit_with_its_reason(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    broken = desk.suite({"baseline": (*PACED, "--fault", "http-500")})
    text = doctor(desk, broken)
    assert "UNFIT  noise       small/baseline/c002 on emulated: " in text
    assert "http_500" in text
