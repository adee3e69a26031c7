"""How often the verdict is wrong, counted: `pytest -m calibration`. An hour on two cores; what is done is kept.

tests/unit/test_short_calibration.py does the same with few suites in a few cells.
"""

import math
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.calibration.cells import CELLS, Cell, broken, counted, simulate_some
from tests.calibration.results import keep, kept, row

pytestmark = pytest.mark.calibration

#: Suites that a process simulates at a time: a second of work, or so.
CHUNK = 25


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessPoolExecutor]:
    """One for each processor, which start afresh: nothing of this process is in them."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_verdict_is_as_often_wrong_as_it_may_be(
    cell: Cell, processes: ProcessPoolExecutor, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    share: float = pytestconfig.getoption("--calibration-share", default=1.0)
    wanted = max(CHUNK, math.ceil(share * cell.suites))
    counts = kept(cell, wanted)
    if counts is None:
        parts = [
            processes.submit(simulate_some, cell, first, min(CHUNK, wanted - first))
            for first in range(0, wanted, CHUNK)
        ]
        counts = counted([outcome for part in parts for outcome in part.result()])
        keep(cell, counts)
    with capsys.disabled():
        pytestconfig.get_terminal_writer().line(f"\n{row(cell, counts)}")
    assert not broken(cell, counts)
