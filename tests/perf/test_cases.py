"""The product: one item for every case, relation and crossover of the suites that were asked for."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from perf import report
from perf.carrier import CLOCK, replay
from perf.session import Judged


# A relation, a crossover, and a case without numbers, has nothing to replay.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
@pytest.mark.benchmark(timer=CLOCK)
def test_verdict(judged: Judged, benchmark: BenchmarkFixture) -> None:
    try:
        if judged.carried is not None:
            replay(benchmark, judged.carried)
    finally:  # a carrier that fails hides no verdict
        if not report.passes(judged.verdict):
            pytest.fail(judged.screen, pytrace=False)
