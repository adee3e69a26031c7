"""`python -m perf doctor --noise CASE` launches a real server again and again, and says how much it varies."""

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
    assert re.search(r"ok     noise       small/baseline/c002 on emulated: 4 launches .* vary by [\d.]+ %", text)
    unsteady = desk.suite({"baseline": (*PACED, "--launch-cv", "0.3")}, gate="margin = 0.01")
    text = doctor(desk, unsteady)
    assert re.search(r"UNFIT  noise .* vary by [\d.]+ %, more than a third of the margin of 1 %", text)
    assert not list(tmp_path.glob("campaigns/*"))  # a look, not a campaign
    assert alive_with("perf.emulator --launch-cv 0.3") == []


def test_a_server_that_fails_is_unfit_with_its_reason(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    broken = desk.suite({"baseline": (*PACED, "--fault", "http-500")})
    text = doctor(desk, broken)
    assert "UNFIT  noise       small/baseline/c002 on emulated: " in text
    assert "http_500" in text
