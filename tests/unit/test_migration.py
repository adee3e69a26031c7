"""Files of every released version are read, judged and promoted by this one; tests/data/released holds them.

Each was written by its version measuring the emulator; only paths and the machine's names were made neutral.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from perf import compact, migration, record
from perf.__main__ import main
from perf.baseline import Store
from perf.files import FileError
from perf.record import Campaign
from perf.sample import SCHEMA
from perf.verdict import judge
from tests.unit.simulated import campaign, launch, stored, suite, written

RELEASED = Path(__file__).parents[1] / "data" / "released"
CAMPAIGNS = sorted(RELEASED.glob("*/campaigns/*"))
BASELINES = sorted(RELEASED.glob("*/baselines/*/*/*.json"))

#: What is said of each campaign. Version 0.1 said REGRESSED of a loss of half at one level after two launches, and PASS
#: of the level beside it; now a loss of one level is called after three.
TOLD = {
    "20261129-204248": {"NO_BASELINE": 4, "PASS": 1},
    "20261129-204335": {"PASS": 3, "INCONCLUSIVE": 2, "INVALID": 5},
}


def name(path: Path) -> str:
    return str(path.relative_to(RELEASED))


def test_there_are_files_of_every_schema_before_this_one() -> None:
    schemas = {json.loads((folder / record.FILE_NAME).read_text())["schema"] for folder in CAMPAIGNS}
    assert schemas >= set(range(1, migration.CAMPAIGN_SCHEMA))
    versions = {json.loads(path.read_text())["version"].rpartition(" ")[2] for path in BASELINES}
    assert versions >= set(map(str, range(1, SCHEMA)))


@pytest.mark.parametrize("folder", CAMPAIGNS, ids=name)
def test_an_old_campaign_is_judged_by_the_gate_of_today(folder: Path) -> None:
    words = [str(verdict.word) for suite in record.read(folder).suites for verdict in judge(suite)]
    assert {word: words.count(word) for word in words} == TOLD[folder.name]


@pytest.mark.parametrize("folder", CAMPAIGNS, ids=name)
def test_an_old_campaign_is_reported_to_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--format", "json"]) == 0
    told = compact.ADAPTER.validate_json(capsys.readouterr().out)
    words = [case.verdict for suite in told.suites for case in suite.cases]
    words += [relation.verdict for suite in told.suites for relation in suite.relations]
    assert {word: words.count(word) for word in words} == TOLD[folder.name]
    assert {variant.build for suite in told.suites for variant in suite.variants} == {None}


def test_two_old_campaigns_are_compared_as_the_second_was_judged_against_the_promoted_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = CAMPAIGNS
    assert main(["compare", str(first), str(second)]) == 3
    text = capsys.readouterr().out
    assert "2 INCONCLUSIVE, 2 PASS; overall INCONCLUSIVE" in text
    assert re.search(r"^eagle3/c004 +55\.0 +107\.4 +-48\.8 %", text, flags=re.MULTILINE)
    assert "a loss is called after 3 launches; the cap of 2 launches is reached" in text


@pytest.mark.parametrize("folder", CAMPAIGNS, ids=name)
def test_an_old_campaign_keeps_every_number(folder: Path) -> None:
    before = json.loads((folder / record.FILE_NAME).read_text())
    after = json.loads(migration.campaign((folder / record.FILE_NAME).read_bytes()))

    def known(old: object, new: object) -> bool:
        """Everything old is in the new, unchanged, but for the numbers of schemas."""
        if isinstance(old, dict) and isinstance(new, dict):
            return all(key == "schema" or known(value, new[key]) for key, value in old.items())
        if isinstance(old, list) and isinstance(new, list):
            return len(old) == len(new) and all(map(known, old, new))
        return old == new

    assert known(before, after)


@pytest.mark.parametrize("path", BASELINES, ids=name)
def test_an_old_baseline_is_read_with_every_launch(path: Path) -> None:
    rig, suite, variant = path.parts[-3], path.parts[-2], path.stem
    cases = Store(path.parents[2]).read(rig, suite, variant)
    raw = json.loads(path.read_text())["benchmarks"]
    assert [case.case for case in cases] == [each["name"] for each in raw]
    assert [launch.output_throughput for case in cases for launch in case.launches] == [
        tuple(launch["output_throughput"]) for each in raw for launch in each["extra_info"]["launches"]
    ]


def test_a_promotion_into_an_old_store_keeps_what_it_does_not_replace(tmp_path: Path) -> None:
    shutil.copytree(RELEASED / "0.1.0" / "baselines", tmp_path / "baselines")
    stores = ("--baselines", str(tmp_path / "baselines"), "--campaign-dir", str(RELEASED / "0.1.0" / "campaigns"))
    assert main(["promote", "20261129-204335", "--case", "old/eagle3/c004", "--reason", "meant", *stores]) == 0
    before = Store(RELEASED / "0.1.0" / "baselines").read("emulated", "old", "eagle3")
    after = Store(tmp_path / "baselines").read("emulated", "old", "eagle3")
    assert after[0] == before[0]
    assert [promotion.reason for promotion in after[1].promotions] == ["first baseline", "meant"]
    head = json.loads((tmp_path / "baselines" / "emulated" / "old" / "eagle3.json").read_text())
    assert head["version"] == migration.BASELINE_VERSION


def test_a_baseline_of_a_later_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    place = tmp_path / "emulated" / "old"
    place.mkdir(parents=True)
    text = (RELEASED / "0.1.0" / "baselines" / "emulated" / "old" / "baseline.json").read_text()
    (place / "baseline.json").write_text(text.replace("sglang-perf baseline 1", "sglang-perf baseline 9"))
    with pytest.raises(FileError, match=r"a baseline file written by a newer version \(schema 9, .* up to 2\); update"):
        Store(tmp_path).read("emulated", "old", "baseline")


SAMPLE = stored(99.0, 101.0)
WITHOUT_WORKLOAD = replace(suite(), workload=None)


@pytest.mark.parametrize(
    ("whole", "key"),
    [
        (campaign(suite()), "workload"),
        (campaign(replace(WITHOUT_WORKLOAD, launches=(launch(),))), "build"),
        (campaign(replace(suite(store=(SAMPLE,)), workload=None)), "build"),
    ],
)
def test_a_campaign_of_today_that_says_it_is_old_is_refused_and_loses_nothing(
    tmp_path: Path, whole: Campaign, key: str
) -> None:
    folder = written(tmp_path, whole)
    file = folder / record.FILE_NAME
    text = file.read_text()
    older = text.replace('"schema": 2', '"schema": 1')
    if key == "build":  # what comes before it in bringing a file up to date
        older, count = re.subn(r'"(workload|reference|order_seed)": (null|false|20),', "", older)
        assert count == 3
    file.write_text(older)
    with pytest.raises(FileError, match=f"a campaign file says it is of an older version, but has the key '{key}'"):
        record.read(folder)
    file.write_text(text.replace('"schema": 2', '"schema": true'))
    with pytest.raises(FileError, match="schema: Input should be 2"):
        record.read(folder)


@pytest.mark.parametrize("key", ["build", "start_s"])
def test_a_baseline_of_today_that_says_it_is_old_is_refused_and_loses_nothing(tmp_path: Path, key: str) -> None:
    path = Store(tmp_path).promote("emulated", "sim", "baseline", (SAMPLE,), add=False)
    text = path.read_text().replace("sglang-perf baseline 2", "sglang-perf baseline 1")
    older = re.sub(r'"schema": 2', '"schema": 1', text)
    if key == "start_s":
        older, count = re.subn(r'"build": (null|\{[^}]*\}), ', "", older)
        assert count == 1
    path.write_text(older)
    with pytest.raises(FileError, match=f"a baseline file says it is of an older version, but has the key '{key}'"):
        Store(tmp_path).read("emulated", "sim", "baseline")
    path.write_text(text)
    with pytest.raises(FileError, match="a baseline file says it is of an older version, but has the key 'digest'"):
        Store(tmp_path).read("emulated", "sim", "baseline")
    path.write_text(re.sub(r'"digest": "[0-9a-f]{16}", ', "", text.replace('"schema": 2', '"schema": true')))
    with pytest.raises(FileError, match="not a baseline file"):
        Store(tmp_path).read("emulated", "sim", "baseline")


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"kind": "sglang-perf campaign"}', "\x00", '"x"'])
def test_what_is_no_file_of_ours_is_passed_on_as_it_is(text: str) -> None:
    assert migration.campaign(text.encode()) == text.encode()
    assert migration.baseline(text.encode()) == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "sglang-perf campaign", "schema": 1, "suites": 7}',
        '{"kind": "sglang-perf campaign", "schema": 1, "suites": [7, {"launches": {}, "cases": [null]}]}',
        '{"kind": "sglang-perf campaign", "schema": true}',
        '{"kind": "sglang-perf campaign", "schema": -5}',
        '{"version": "sglang-perf baseline 1", "benchmarks": [{"extra_info": []}, 3]}',
        '{"version": "sglang-perf baseline 99999999999999999999"}',
    ],
)
def test_an_old_file_that_is_damaged_is_refused_and_never_a_traceback(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "20260101-000000"
    folder.mkdir()
    (folder / record.FILE_NAME).write_text(text)
    with pytest.raises(FileError, match="not a campaign file"):
        record.read(folder)
    place = tmp_path / "emulated" / "old"
    place.mkdir(parents=True)
    (place / "baseline.json").write_text(text)
    with pytest.raises(FileError, match="not a baseline file"):
        Store(tmp_path).read("emulated", "old", "baseline")
