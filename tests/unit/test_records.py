"""What is kept of a measurement: the compact record and its published schema, and the figures of others."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import jsonschema
import pytest

from perf import docs, record
from perf.__main__ import main
from perf.compact import compact, json_schema
from perf.files import to_json
from perf.record import Campaign
from tests.unit.simulated import campaign, failed, launch, measured, relation, stored, suite

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "schemas" / "record-1.json"
#: Campaigns that version 0.1.0 wrote.
RELEASED = sorted((ROOT / "tests" / "data" / "released").glob("*/campaigns/*"))

SIMULATED = campaign(
    suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        store=(stored(100.0, 100.1, 99.9),),
        relations=(relation("baseline", "eagle3"),),
        launches=(
            launch(measured(100.0), measured(300.0, level=8), env={"NCCL_PROTO": "LL"}),
            launch(measured(101.0), measured(301.0, level=8), ordinal=2),
            launch(measured(90.0, acceptance=2.5), failed(8), variant="eagle3"),
        ),
    )
)


def published() -> dict[str, object]:
    """Figures as a person writes them."""
    return {
        "kind": "sglang-perf figures",
        "schema": 1,
        "title": "A comparison",
        "source": None,
        "published": "2026-01-31",
        "setup": {
            "rig": "8x RTX PRO 6000 Blackwell",
            "interconnect": None,
            "model": "Kimi K2.5 INT4",
            "stack": None,
            "prompts": "one set",
            "harness": "theirs",
            "protocol": None,
            "variants": [{"name": "eagle3", "settings": None}],
        },
        "figures": [{"variant": "eagle3", "level": 1, "output_throughput": 80.9}],
    }


# The schema


def test_the_published_schema_is_that_of_the_record() -> None:
    assert json.loads(SCHEMA.read_text()) == json_schema(), f"run {Path(__file__).name} as a script to renew it"


def test_the_published_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("measured_campaign", [SIMULATED, *map(record.read, RELEASED)], ids=lambda each: each.id)
def test_the_record_of_a_campaign_is_what_the_schema_says(measured_campaign: Campaign) -> None:
    kept = json.loads(to_json(asdict(compact(measured_campaign))))
    assert kept["suites"]
    jsonschema.validate(kept, json.loads(SCHEMA.read_text()), jsonschema.Draft202012Validator)


def test_a_rerun_of_what_failed_states_no_false_alarm_rate() -> None:
    assert compact(SIMULATED).suites[0].alpha == 0.01
    rerun = replace(SIMULATED, suites=(replace(SIMULATED.suites[0], rerun=True),))
    kept = json.loads(to_json(asdict(compact(rerun))))
    assert kept["suites"][0]["alpha"] is None
    jsonschema.validate(kept, json.loads(SCHEMA.read_text()))


def test_a_case_says_how_many_launches_measured_it_also_where_its_numbers_must_not_be_believed() -> None:
    cases = {each.id: each for each in compact(SIMULATED).suites[0].cases}
    assert {id: each.launches for id, each in cases.items()} == {
        "sim/baseline/c001": 2,
        "sim/baseline/c008": 2,
        "sim/eagle3/c001": 1,
        "sim/eagle3/c008": 1,
    }
    assert cases["sim/eagle3/c008"].numbers is None


def test_a_record_says_what_a_case_was_held_against_and_what_moved() -> None:
    reference = tuple(launch(measured(100.0, acceptance=2.0), arm="reference", ordinal=n) for n in (1, 2, 3))
    ours = tuple(launch(measured(90.0, acceptance=1.8), ordinal=n, duration_s=90.0) for n in (1, 2, 3))
    both = tuple(each for pair in zip(ours, reference, strict=True) for each in pair)
    old = stored(99.9, 100.0, 100.1, 100.0, acceptance=2.0)
    found = compact(campaign(suite(store=(old,), launches=both, reference=True))).suites[0]
    (case,), (variant,) = found.cases, found.variants
    assert (case.verdict, case.route, case.nights, case.set_aside, case.ended) == (
        "REGRESSED",
        "reference",
        1,
        False,
        None,
    )
    assert case.launches == 3
    assert case.moved is not None
    acceptance, steps = case.moved.parts
    assert (acceptance.name, steps.name) == ("acceptance length", "steps/s")
    assert (acceptance.before, acceptance.after) == pytest.approx((2.0, 1.8))
    assert (steps.before, steps.after) == pytest.approx((50.0, 50.0))
    assert (acceptance.share, steps.share) == pytest.approx((1.0, 0.0), abs=1e-9)
    assert acceptance.effect.change == pytest.approx(-0.1)
    assert (variant.launches, variant.rig_s) == (3, 270.0)
    assert variant.reference is not None
    assert (variant.reference.launches, variant.reference.rig_s) == (3, 180.0)


def test_a_record_that_was_kept_before_it_told_all_of_that_is_read(project: Path) -> None:
    kept = json.loads(to_json(asdict(compact(SIMULATED))))
    for each in kept["suites"]:
        for variant in each["variants"]:
            del variant["reference"]
        for case in each["cases"]:
            for name in ("route", "nights", "set_aside", "ended", "could_see", "drift", "moved"):
                del case[name]
    keep(project, SIMULATED.id, kept)
    assert main(["docs", "--root", str(project)]) == 0
    jsonschema.validate(kept, json.loads(SCHEMA.read_text()))


def test_the_schema_refuses_what_is_no_record() -> None:
    kept = json.loads(to_json(asdict(compact(SIMULATED))))
    kept["suites"][0]["cases"][0]["numbers"]["output_throughput"] = "fast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(kept, json.loads(SCHEMA.read_text()))


# Reading records


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose one page has no block."""
    (tmp_path / "docs" / "records").mkdir(parents=True)
    (tmp_path / "docs" / "log.md").write_text("# Log\n")
    return tmp_path


def refusal(project: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `docs` says when it fails."""
    assert main(["docs", "--root", str(project)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    return said.err


def keep(project: Path, name: str, value: object) -> Path:
    path = project / docs.RECORDS / f"{name}.json"
    path.write_text(json.dumps(value))
    return path


def test_a_campaigns_record_and_published_figures_are_records(project: Path) -> None:
    keep(project, SIMULATED.id, asdict(compact(SIMULATED)))
    keep(project, "theirs", published())
    assert main(["docs", "--root", str(project)]) == 0


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("kind",), "something else", "kind"),
        (("schema",), 2, "schema"),
        (("title",), "", "title"),
        (("extra",), 1, "extra"),
        (("published",), "last year", "published"),
        (("setup", "rig"), None, "setup.rig"),
        (("setup", "tuning"), "none", "setup.tuning"),
        (("setup", "variants", 0, "name"), "plain", "a figure of the variant 'eagle3'; setup.variants has plain"),
        (("figures",), [], "figures"),
        (("figures", 0, "level"), 0, "figures.0.level"),
        (("figures", 0, "level"), "all", "figures.0.level"),
        (("figures", 0, "output_throughput"), "80.9", "figures.0.output_throughput"),
        (("figures", 0, "output_throughput"), 0, "figures.0.output_throughput"),
        (("figures", 0, "output_throughput"), True, "figures.0.output_throughput"),
        (("figures", 0, "output_throughput"), float("nan"), "NaN"),
        (("figures", 0, "through_put"), 80.9, "figures.0.through_put"),
    ],
)
def test_published_figures_are_read_strictly_and_an_error_names_the_place(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    place: tuple[str | int, ...],
    value: object,
    said: str,
) -> None:
    whole = published()
    inner: object = whole
    for key in place[:-1]:
        inner = inner[key]  # type: ignore[index]
    inner[place[-1]] = value  # type: ignore[index]
    path = keep(project, "theirs", whole)
    text = refusal(project, capsys)
    assert str(path) in text
    assert said in text


def test_a_figure_that_stands_twice_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = {"variant": "eagle3", "level": 1, "output_throughput": 80.9}
    keep(project, "theirs", published() | {"figures": [figure, figure | {"output_throughput": 96.1}]})
    assert "stands twice" in refusal(project, capsys)


@pytest.mark.parametrize(
    "changed",
    [
        replace(compact(SIMULATED), campaign="20260101-000000"),
        replace(compact(SIMULATED), complete=False, finished_at=None),
    ],
    ids=["under the name of another", "not complete"],
)
def test_a_record_that_is_not_of_the_complete_campaign_it_is_named_for_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], changed: object
) -> None:
    keep(project, SIMULATED.id, asdict(changed))  # type: ignore[call-overload]
    assert f"not the record of a complete campaign {SIMULATED.id}" in refusal(project, capsys)


def test_a_record_with_a_number_that_cannot_be_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = json.loads(to_json(asdict(compact(SIMULATED))))
    kept["suites"][0]["cases"][0]["numbers"]["output_throughput"] = 0.0
    keep(project, SIMULATED.id, kept)
    assert "output_throughput of baseline at 1 is not positive" in refusal(project, capsys)


def test_a_record_that_is_cut_off_is_a_sentence(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keep(project, "theirs", published())
    path.write_text(path.read_text()[:100])
    assert f"{path}: not a record: the whole file: " in refusal(project, capsys)


def test_a_record_that_is_far_too_large_is_not_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with keep(project, "theirs", published()).open("r+b") as file:
        file.truncate(2**40)  # a hole: nothing of it is on the disk
    assert "bytes are too many for a record" in refusal(project, capsys)


def test_a_folder_in_the_place_of_a_record_is_a_sentence(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / docs.RECORDS / "theirs.json").mkdir()
    assert "cannot be read as a record: Is a directory" in refusal(project, capsys)


@pytest.mark.parametrize("name", ["a b", "a|b", "<b>", "-a", "ä", "a`b", "_a"])
def test_a_record_whose_name_would_be_markup_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    keep(project, name, published())
    assert "allowed in a name" in refusal(project, capsys)


if __name__ == "__main__":  # renew the published schema
    SCHEMA.write_text(to_json(json_schema(), indent=1))
