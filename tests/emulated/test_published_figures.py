"""The suite measures the published figures of the emulator's profiles: what it says is what the server did."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.emulated.inner import EMULATOR, Desk, Launches

#: Output throughput in tok/s by concurrency: Kimi K2.5 INT4 on 8x RTX PRO 6000 over PCIe, 512 tokens a request.
PUBLISHED = {
    "baseline": {1: 92.7, 2: 157.7, 30: 773.0},
    "eagle3": {1: 80.9, 2: 128.3, 30: 354.0},
}
FLAGS = {
    "baseline": ("--profile", "published-baseline"),
    "eagle3": (
        *("--profile", "published-eagle3", "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2"),
        *("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16"),
    ),
}
#: Asked first and for little: the first requests of a process are slow by a tenth of a second.
WARM_LEVEL = 3
LEVELS = (WARM_LEVEL, 30, 2, 1)
CASES = [(variant, level) for variant, levels in PUBLISHED.items() for level in levels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """tok/s by level, as the suite measured them and by the server's own account."""

    measured: dict[int, float]
    true: dict[int, float]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Figures]]]:
    """Both profiles at the same time: nearly all of it is waiting for tokens."""
    folders = {variant: tmp_path_factory.mktemp(variant) for variant in PUBLISHED}
    with ThreadPoolExecutor() as pool:
        yield {variant: pool.submit(_figures, variant, folders[variant]) for variant in PUBLISHED}


def _figures(variant: str, folder: Path) -> Figures:
    desk = Desk(folder)
    truth = folder / "truth.jsonl"
    suite = desk.suite(
        {variant: (*EMULATOR, *FLAGS[variant], "--truth", str(truth))},
        levels=LEVELS,
        workload=f"output_tokens = {{ default = 512, {WARM_LEVEL} = 8 }}\n"
        "min_requests = 2\nrequests_per_stream = 1\nwarmup_requests = 0",
    )
    launch = Launches(desk, suite).run("candidate", levels=LEVELS)
    assert [each.all_reasons for each in launch.measurements] == [()] * len(LEVELS)
    return Figures(
        measured={
            measurement.level: each.summary.output_throughput
            for measurement in launch.measurements
            for each in measurement.rounds
            if each.summary is not None
        },
        true=dict(zip(LEVELS, _true_rates(truth), strict=True)),
    )


def _true_rates(truth: Path) -> Iterator[float]:
    """Of every round, as docs/emulator.md has it; a flush stands before each."""
    rounds: list[list[dict[str, float]]] = []
    for line in truth.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "flush":
            rounds.append([])
        elif event["event"] == "request":
            rounds[-1].append(event)
    for requests in filter(None, rounds):
        window_s = max(each["last_token_s"] for each in requests) - min(each["arrival_s"] for each in requests)
        yield sum(each["tokens"] for each in requests) / window_s


@pytest.mark.parametrize(("variant", "level"), CASES)
def test_the_suite_measures_the_published_throughput_within_two_percent(
    figures: dict[str, Future[Figures]], variant: str, level: int
) -> None:
    assert figures[variant].result().measured[level] == pytest.approx(PUBLISHED[variant][level], rel=0.02)


@pytest.mark.parametrize(("variant", "level"), CASES)
def test_what_is_measured_is_within_one_percent_of_what_the_server_did(
    figures: dict[str, Future[Figures]], variant: str, level: int
) -> None:
    found = figures[variant].result()
    assert found.measured[level] == pytest.approx(found.true[level], rel=0.01)
