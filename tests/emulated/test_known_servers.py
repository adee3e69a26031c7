"""Servers that once misled somebody's tool, each with its source; the table is in tests/unit/test_known_inputs.py."""

from pathlib import Path

from tests.emulated.inner import Desk

#: Before its first answer, which is the warm-up's, it compiles for two seconds.
SLOW_UNTIL_WARM = """
SERVED = 0
class Handler(Handler):
    def stream(self, *asked):
        global SERVED
        SERVED += 1
        time.sleep(2 if SERVED <= 1 else 0)
        super().stream(*asked)
"""


def test_a_server_that_is_slow_until_it_is_warm_is_measured_warm(tmp_path: Path) -> None:
    """sglang#28062: the first, cold run was published, 124 tok/s against 249."""
    desk = Desk(tmp_path)
    suite = desk.suite({"served": desk.stranger(SLOW_UNTIL_WARM)}, name="cold")
    desk.measure(suite, "--perf-max-launches=1")
    (measured,) = desk.campaign().suites
    (launch,) = measured.launches
    (case,) = launch.measurements
    (one_round,) = case.rounds
    assert one_round.summary is not None, case
    assert one_round.summary.requests == 4
    # Two streams of 50 tok/s; with a cold one among the four requests it were a third of that.
    assert 60 < one_round.summary.output_throughput <= 101
