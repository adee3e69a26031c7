"""`python -m perf compare A B`: B judged with A in the place of the stored baseline."""

from dataclasses import replace
from pathlib import Path

import pytest

from perf.__main__ import main
from perf.record import SuiteRecord
from tests.unit.simulated import campaign, failed, launch, measured, relation, stored, suite, written

FIRST, SECOND = "20260201-020000", "20260202-020000"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, and we are in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def at(*throughputs: float, level: int = 1) -> SuiteRecord:
    """One case, launched once for each throughput; a stored baseline that compare must not use."""
    launches = tuple(
        launch(measured(value, level=level), ordinal=number) for number, value in enumerate(throughputs, start=1)
    )
    return suite(levels=(level,), store=(stored(1.0, 1.0, level=level),), launches=launches)


def compare(place: Path, before: SuiteRecord, after: SuiteRecord) -> int:
    for id, state in ((FIRST, before), (SECOND, after)):
        written(place / ".perf" / "campaigns", campaign(state, id=id))
    return main(["compare", FIRST, SECOND])


@pytest.mark.parametrize(
    ("before", "after", "code", "word"),
    [
        ((99.9, 100.0, 100.1, 100.0), (99.9, 100.1), 0, "1 PASS; overall PASS"),
        ((99.9, 100.0, 100.1, 100.0), (79.9, 80.1, 80.0), 1, "REGRESSED  output throughput 80.0 tok/s, baseline 100.0"),
        ((79.9, 80.0, 80.1, 80.0), (99.9, 100.1, 100.0), 0, "IMPROVED  output throughput 100.0 tok/s, baseline 80.0"),
        ((90.0, 110.0), (80.0, 110.0), 2, "INCONCLUSIVE  interval"),
    ],
)
def test_the_second_is_judged_against_the_first(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    before: tuple[float, ...],
    after: tuple[float, ...],
    code: int,
    word: str,
) -> None:
    assert compare(place, at(*before), at(*after)) == code
    text = capsys.readouterr().out
    assert word in text
    assert f"{SECOND} against {FIRST}: the column baseline is {FIRST}" in text


def test_launches_of_a_reference_build_are_not_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On both nights the candidate was faster than its reference, and on the second slower than on the first."""

    def paired(candidate: float, reference: float) -> SuiteRecord:
        ours = at(*(candidate + luck for luck in (-0.1, 0.0, 0.1, 0.0)))
        theirs = tuple(
            launch(measured(reference), arm="reference", ordinal=each.ordinal, version="0.5.1")
            for each in ours.launches
        )
        both = tuple(each for pair in zip(ours.launches, theirs, strict=True) for each in pair)
        return replace(ours, launches=both, reference=True)

    assert compare(place, paired(100.0, 60.0), paired(80.0, 60.0)) == 1
    text = capsys.readouterr().out
    assert "REGRESSED  output throughput 80.0 tok/s, baseline 100.0" in text
    assert "0.5.1" not in text


def test_a_case_that_only_one_of_them_measured_is_named_and_never_green(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both, one = measured(100.0), measured(200.0, level=8)
    before = suite(levels=(1, 8), launches=(launch(both, one, ordinal=1), launch(both, one, ordinal=2)))
    new = measured(300.0, level=16)
    after = suite(levels=(1, 16), launches=(launch(both, new, ordinal=1), launch(both, new, ordinal=2)))
    assert compare(place, before, after) == 3
    lines = capsys.readouterr().out.splitlines()
    assert f"sim/baseline/c016 is not in {FIRST} on cpu-simulated-01234567" in lines
    assert f"sim/baseline/c008 is not in {SECOND} on cpu-simulated-01234567" in lines
    assert not any(line.startswith("baseline/c008") for line in lines)
    assert any(line.startswith("baseline/c016") and line.endswith("NO_BASELINE") for line in lines)


def test_what_was_asked_otherwise_is_not_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = at(100.0, 100.0)
    before = replace(before, cases=tuple(replace(case, workload_digest="other") for case in before.cases))
    assert compare(place, before, at(100.0, 100.0)) == 3
    assert "was asked another workload (digest other, now digest-1)" in capsys.readouterr().out


def test_a_case_that_is_invalid_in_the_first_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = suite(levels=(1, 8), launches=(launch(measured(100.0), failed(8)),))
    after = suite(levels=(1, 8), launches=(launch(measured(100.0), measured(200.0, level=8)),))
    assert compare(place, before, after) == 3
    text = capsys.readouterr().out
    assert text.count("sim/baseline/c008 is ") == 1
    assert f"sim/baseline/c008 is INVALID in {FIRST}" in text


def test_campaigns_without_a_common_case_are_a_usage_error(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(place, at(100.0), at(100.0, level=8)) == 64
    assert capsys.readouterr().err.startswith(f"error: {FIRST} and {SECOND} have no case in common that can be judged:")


def test_campaigns_of_two_rigs_are_not_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(place, at(100.0), replace(at(100.0), rig_id="another-rig")) == 64
    assert "sim/baseline/c001 is not in 20260201-020000 on another-rig" in capsys.readouterr().err


def test_relations_are_within_one_campaign_and_not_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def both(throughput: float) -> SuiteRecord:
        launches = tuple(
            launch(measured(throughput), variant=variant, ordinal=ordinal)
            for ordinal in (1, 2)
            for variant in ("baseline", "eagle3")
        )
        return suite(variants=("baseline", "eagle3"), relations=(relation("baseline", "eagle3"),), launches=launches)

    compare(place, both(100.0), both(100.0))
    assert "expect/" not in capsys.readouterr().out


def test_a_campaign_that_was_interrupted_is_not_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(place / ".perf" / "campaigns", campaign(at(100.0), id=FIRST, complete=False))
    written(place / ".perf" / "campaigns", campaign(at(100.0), id=SECOND))
    assert main(["compare", FIRST, SECOND]) == 64
    assert "is not complete" in capsys.readouterr().err
