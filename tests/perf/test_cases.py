"""The product: one item for every case and relation of the suites that were asked for."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from perf import report
from perf.plugin import CLOCK, Judged, replay


# A relation, and a case without numbers, has nothing to replay.
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
@pytest.mark.benchmark(timer=CLOCK)
def test_verdict(judged: Judged, benchmark: BenchmarkFixture) -> None:
    replay(benchmark, judged)
    if not report.passes(judged.verdict):
        pytest.fail(judged.screen, pytrace=False)
