"""The campaign file: everything of a session, and what is not whole or not ours is never used."""

import json
import multiprocessing
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf import record
from perf.compact import compact
from perf.files import FileError, to_json
from perf.record import ID, Campaign, LaunchRecord, Order, Outputs, SuiteRecord, no_outputs
from perf.report import markdown
from perf.rig import Gpu, Rig
from perf.sample import StoredCase
from perf.validity import Reason
from perf.verdict import judge
from tests.unit.simulated import (
    RIG,
    campaign,
    crossing,
    failed,
    launch,
    measured,
    relation,
    same_output,
    saying,
    stored,
    stored_crossover,
    suite,
    written,
)

STORE = stored(99.0, 101.0, acceptance=2.5)


def full() -> SuiteRecord:
    """A suite with something in every field."""
    return replace(
        suite(
            levels=(1, 8),
            variants=("baseline", "eagle3"),
            store=(STORE,),
            relations=(relation("baseline", "eagle3"), relation("eagle3", "baseline", at_least=1.5, level=1)),
            crossovers=(crossing("eagle3", "baseline", stored_crossover("eagle3", "baseline", {1: 1.2, 8: 0.7})),),
            launches=(
                saying(
                    launch(measured(1 / 3, acceptance=2.1), failed(8), env={"NCCL_PROTO": "LL"}),
                    *("one\n", "\x1b[31mtwo", '"3"', ""),
                    again=("one\n", "", '"3"', "four"),
                ),
                replace(
                    launch(measured(0.1 + 0.2), measured(8.0, level=8), variant="eagle3"),
                    outputs=no_outputs(Reason(name="no output", seen="HTTP 500", advice="read the server log")),
                ),
            ),
        ),
        same_outputs=(same_output("baseline", "eagle3", at_least=0.75),),
        power_limits_w=(600.0, None),
        stopped="the budget of 1 min 00 s is spent",
        advisory="shown, never gated",
        rerun=True,
    )


def test_a_campaign_is_read_back_as_it_was(tmp_path: Path) -> None:
    gpu = Gpu(
        name="NVIDIA H200", uuid="GPU-0", power_limit_w=700.0, clocks_mhz=None, persistent=None, pcie=None, nvlinks=None
    )
    rig = Rig(
        gpus=(gpu,),
        driver="570",
        cuda="12.8",
        cpu="Xeon",
        governor="powersave",
        machine="m",
        kernel="6",
        pairs=(),
        note="a note",
    )
    for whole in (campaign(full(), suite()), replace(campaign(), rig=rig), campaign(complete=False)):
        assert record.read(written(tmp_path / str(whole.complete) / str(len(whole.suites)), whole)) == whole


def test_a_campaign_that_was_read_back_has_the_same_verdicts(tmp_path: Path) -> None:
    whole = campaign(full())
    assert judge(record.read(written(tmp_path, whole)).suites[0]) == judge(whole.suites[0])


def test_a_campaign_with_bytes_that_are_no_text_is_read_as_their_escapes(tmp_path: Path) -> None:
    def holding(text: str) -> Campaign:
        one = replace(launch(), command=(text, "{port}"), env=(("HOME", text),), python=text)
        return campaign(replace(suite(launches=(one,)), source=text))

    raw = os.fsdecode(b"/srv/caf\xe9\xff/") + "\U0001f600 \\ud800 \\\\udc80 é"
    shown = "/srv/caf\\udce9\\udcff/\U0001f600 \\ud800 \\\\udc80 é"
    assert record.read(written(tmp_path, holding(raw))) == holding(shown)


@given(st.lists(st.sampled_from(("\\", "u", "dc80", '"', "é", "\U0001f600", "\ud83d", "\udcff"))).map("".join))
def test_whatever_text_is_stored_it_is_read_and_text_that_is_whole_is_read_as_it_was(text: str) -> None:
    again = json.loads(to_json(text))
    again.encode()
    assert again == text or re.search("[\ud800-\udfff]", text)


def test_a_campaign_under_another_name_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, campaign())
    moved = folder.rename(tmp_path / "20260301-000000")
    with pytest.raises(FileError, match=r"its file says it is campaign '20260201-020000'; give the folder back"):
        record.read(moved)


# Folders


def folders_of_one_process(campaigns: Path, results: "multiprocessing.Queue[list[str]]") -> None:
    results.put([record.create_folder(campaigns).name for _ in range(20)])


def test_campaigns_begun_at_once_by_several_processes_get_a_folder_each(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[str]] = context.Queue()
    workers = [context.Process(target=folders_of_one_process, args=(tmp_path / "c", results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    names = [name for _ in workers for name in results.get(timeout=60)]
    for worker in workers:
        worker.join(timeout=60)
    assert len(set(names)) == 60
    assert all(ID.fullmatch(name) for name in names)


def test_campaigns_begun_at_once_by_several_threads_get_a_folder_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: record.create_folder(tmp_path), range(64)))
    assert len(set(folders)) == 64
    assert {folder.name for folder in folders} == {path.name for path in tmp_path.iterdir()}


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot be created: Not a directory; see --perf-campaign-dir"):
        record.create_folder(tmp_path / "file" / "campaigns")


# Finding


def test_the_newest_campaign_is_found_where_none_is_named(tmp_path: Path) -> None:
    for name in ("20260201-020000", "20260201-020000-2", "20260201-020000-10", "20250101-000000", "not-a-campaign"):
        (tmp_path / name).mkdir()
    (tmp_path / "20270101-000000").write_text("a file is no campaign")
    assert record.find(tmp_path, None).name == "20260201-020000-10"


def test_a_campaign_is_found_by_id_and_by_path(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", campaign())
    assert record.find(tmp_path / "a", folder.name) == folder
    assert record.find(tmp_path / "elsewhere", str(folder)) == folder


@pytest.mark.parametrize("name", ["20990101-000000", "..", "", "x" * 5000])
def test_an_unknown_campaign_is_an_error_that_names_the_last_ones(tmp_path: Path, name: str) -> None:
    written(tmp_path, campaign())
    with pytest.raises(FileError, match=r"^no campaign .*; there: 20260201-020000$"):
        record.find(tmp_path, name)


def test_no_campaign_at_all_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileError, match="measure one with pytest first"):
            record.find(folder, None)
    with pytest.raises(FileError, match="there: none"):
        record.find(tmp_path, "x")


# What is damaged, or was not written by us


def said(record: LaunchRecord) -> Outputs:
    """What a launch said to one prompt."""
    outputs = saying(record, "a").outputs
    assert outputs is not None
    return outputs


def refused(folder: Path, whole: Campaign | str) -> str:
    """The error of a campaign that must not be read."""
    folder.mkdir(exist_ok=True)
    place = folder / "20260201-020000"
    place.mkdir(exist_ok=True)
    if isinstance(whole, Campaign):
        record.save(place, whole)
    else:
        (place / record.FILE_NAME).write_text(whole)
    with pytest.raises(FileError) as error:
        record.read(place)
    return str(error.value)


@pytest.mark.parametrize("number", [1e150, 1e-200, float(2**64)])
def test_what_could_not_be_read_again_is_not_saved_and_what_was_saved_stays(tmp_path: Path, number: float) -> None:
    folder = written(tmp_path, campaign(full(), complete=False))
    before = (folder / record.FILE_NAME).read_bytes()
    state = full()
    first, *others = state.launches
    bad = replace(state, launches=(replace(first, duration_s=number), *others))
    with pytest.raises(FileError, match=r"what was measured last holds .*; the file remains as it was saved last: "):
        record.save(folder, campaign(bad))
    assert (folder / record.FILE_NAME).read_bytes() == before


def test_a_truncated_campaign_is_an_error(tmp_path: Path) -> None:
    text = (written(tmp_path, campaign(full())) / record.FILE_NAME).read_text()
    for end in (0, 1, len(text) // 2, len(text) - 3):
        assert "not a campaign file" in refused(tmp_path, text[:end])


@pytest.mark.parametrize("foreign", ["[]", "null", '{"kind": "another tool\'s"}', "\x00", "[" * 100_000])
def test_a_foreign_file_is_an_error(tmp_path: Path, foreign: str) -> None:
    assert "not a campaign file" in refused(tmp_path, foreign)


def test_a_campaign_of_another_schema_is_an_error(tmp_path: Path) -> None:
    text = (written(tmp_path, campaign()) / record.FILE_NAME).read_text()
    assert "a campaign file written by a newer version (schema 3, this one reads up to 2); update it" in refused(
        tmp_path, text.replace('"schema": 2', '"schema": 3')
    )
    assert "schema: Input should be 2" in refused(tmp_path, text.replace('"schema": 2', '"schema": 0'))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_no_number_is_an_error(tmp_path: Path, value: str) -> None:
    whole = campaign(suite(launches=(launch(measured(123.25)),)))
    text = (written(tmp_path, whole) / record.FILE_NAME).read_text()
    assert "finite number" in refused(
        tmp_path, text.replace('"output_throughput": 123.25', f'"output_throughput": {value}')
    )


HOSTILE_NAMES = ["../../outside", "", "a/b", "\x1b[2J", "-rf", "..", "a\nb", "é"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("field", ["name", "rig_id"])
def test_a_name_that_would_leave_the_store_or_touch_the_terminal_is_refused(
    tmp_path: Path, field: str, name: str
) -> None:
    hostile = replace(suite(), **{field: name})  # type: ignore[arg-type]
    message = refused(tmp_path, campaign(hostile))
    assert message.endswith("not as the suite writes it; measure again")
    assert message.isprintable()


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_case_a_launch_and_a_relation_are_named_like_the_suite_names_them(tmp_path: Path, name: str) -> None:
    good = full()
    case, bound, first, same = good.cases[0], good.relations[0], good.launches[0], good.same_outputs[0]
    for hostile in (
        replace(good, cases=(replace(case, variant=name), *good.cases[1:])),
        replace(good, cases=(replace(case, id=f"sim/{name}/c001"), *good.cases[1:])),
        replace(good, cases=(replace(case, id=name), *good.cases[1:])),
        replace(good, launches=(replace(first, name=name),)),
        replace(good, launches=(replace(first, variant=name),)),
        replace(good, relations=(replace(bound, relation=replace(bound.relation, id=name)),)),
        replace(good, relations=(replace(bound, relation=replace(bound.relation, of=(name,))),)),
        replace(good, same_outputs=(replace(same, same_output=replace(same.same_output, id=name)),)),
        replace(good, same_outputs=(replace(same, same_output=replace(same.same_output, variants=("a", name))),)),
    ):
        assert "not as the suite writes it" in refused(tmp_path, campaign(hostile))


def again(ordinal: int = 1, block: int | None = None) -> LaunchRecord:
    """A launch of the reference build."""
    return launch(arm="reference", ordinal=ordinal, block=block)


def in_blocks() -> SuiteRecord:
    """Lone candidates, pairs in either order, and a pair whose second launch is still to come, of two variants."""
    return suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        reference=True,
        launches=(
            launch(measured(100.0), measured(800.0, level=8)),
            launch(measured(100.0), variant="eagle3"),
            launch(measured(801.0, level=8), measured(101.0), ordinal=2),
            launch(measured(100.0), variant="eagle3", arm="reference"),
            replace(again(block=2), measurements=(measured(110.0), measured(880.0, level=8))),
            again(ordinal=2, block=3),
            launch(ordinal=3),
            again(ordinal=3, block=4),
        ),
    )


def test_launches_of_both_arms_are_read_back_with_their_blocks(tmp_path: Path) -> None:
    whole = campaign(in_blocks())
    read = record.read(written(tmp_path, whole))
    assert read == whole
    assert [each.name for each in read.suites[0].launches if each.arm == "reference"] == [
        "eagle3+reference-1",
        "baseline+reference-1",
        "baseline+reference-2",
        "baseline+reference-3",
    ]


def test_a_launch_is_named_as_it_was_ordered_also_beside_other_suites(tmp_path: Path) -> None:
    order = Order(variant="baseline", arm="reference", ordinal=1, block=1, levels=(1,))
    assert order.name == again().name
    prefixed = replace(again(), name=f"sim.{order.name}")
    whole = campaign(suite(launches=(prefixed,), reference=True))
    assert record.read(written(tmp_path, whole)) == whole


def test_the_order_in_which_levels_were_measured_changes_nothing_that_is_said(tmp_path: Path) -> None:
    taken = tuple(measured(100.0 * level, level=level, acceptance=2.5) for level in (1, 4, 8))
    first, second = launch(*taken), launch(*taken, ordinal=2)
    state = suite(levels=(1, 4, 8), store=tuple(stored(99.0 * n, 101.0 * n, level=n) for n in (1, 4, 8)))
    upwards = campaign(replace(state, launches=(first, second)))
    shuffled = campaign(
        replace(
            state,
            launches=(
                replace(first, measurements=(taken[2], taken[0], taken[1])),
                replace(second, measurements=taken[::-1]),
            ),
        )
    )
    assert record.read(written(tmp_path, shuffled)) == shuffled
    assert judge(shuffled.suites[0]) == judge(upwards.suites[0])
    assert compact(shuffled) == compact(upwards)
    assert markdown(shuffled, "promote", "folder") == markdown(upwards, "promote", "folder")


def with_stored(case: StoredCase) -> SuiteRecord:
    return suite(store=(case,))


def holding(stored_case: StoredCase) -> SuiteRecord:
    """A suite whose case is judged with this, whatever it is of."""
    one = suite()
    return replace(one, cases=(replace(one.cases[0], stored=stored_case),))


def test_a_baseline_that_was_stored_before_a_higher_level_widened_the_ids_is_its_cases(tmp_path: Path) -> None:
    whole = campaign(holding(replace(STORE, case="sim/baseline/c0001")))
    assert record.read(written(tmp_path, whole)) == whole


@pytest.mark.parametrize(
    ("hostile", "problem"),
    [
        (replace(full(), margin=0.0), "the rule it is judged by"),
        (replace(full(), alpha=1.5), "the rule it is judged by"),
        (replace(full(), power=1e-9), "the rule it is judged by"),
        (replace(full(), family=0), "the number of its verdicts"),
        (replace(full(), cases=full().cases[1:]), "the number of its verdicts"),
        (replace(suite(), cases=(replace(suite().cases[0], level=7),)), "a case whose id is another's"),
        (replace(suite(), cases=(replace(suite().cases[0], variant="other"),)), "a case whose id is another's"),
        (replace(full(), max_launches=0), "the rule it is judged by"),
        (replace(suite(), same_outputs=(same_output("baseline", "nobody"),)), "the same output of variants that are"),
        (replace(suite(), same_outputs=(same_output("baseline"),)), "the same output of variants that are"),
        (replace(suite(), same_outputs=(same_output("baseline", "baseline"),)), "the same output of variants that are"),
        (replace(full(), same_outputs=(same_output("baseline", "eagle3", at_least=1.5),)), "without a share"),
        (suite(launches=(saying(launch()),)), "outputs that are none of its prompts"),
        (suite(launches=(saying(launch(), "a", "b", again=("a",)),)), "outputs that are none of its prompts"),
        (suite(launches=(saying(launch(), "a" * 5000),)), "outputs that are none of its prompts"),
        (
            suite(launches=(replace(launch(), outputs=replace(said(launch()), digests=("none",))),)),
            "outputs that are none of its prompts",
        ),
        (
            suite(launches=(saying(launch(), "a"), saying(launch(ordinal=2), "a", "b"))),
            "outputs that are none of its prompts",
        ),
        (replace(full(), requests=()), "a level without a number of requests"),
        (suite(relations=(relation("baseline", "nobody"),)), "a relation between cases that are not in it"),
        (suite(relations=(relation("baseline", "baseline", level=99),)), "a relation between cases that are not in it"),
        (suite(relations=(relation("baseline", "baseline", at_least=0.0),)), "a relation with a factor"),
        (
            replace(suite(relations=(relation("a", "b"),)), cases=(), family=1),
            "a relation between cases that are not in it",
        ),
        (suite(launches=(launch(measured(1.0, level=2)),)), "a measurement of a case that is not in it"),
        (suite(launches=(launch(measured(1.0), variant="other"),)), "a measurement of a case that is not in it"),
        (suite(launches=(launch(ordinal=2),)), "the number of launch baseline-2"),
        (suite(launches=(launch(ordinal=2), launch())), "the number of launch baseline-2"),
        (suite(launches=(replace(launch(), name="baseline-2"),)), "the number of launch baseline-2"),
        (suite(launches=(replace(launch(), name="other.baseline-1"),)), "the number of launch other.baseline-1"),
        (suite(launches=(launch(), launch(ordinal=3)), reference=True), "the number of launch baseline-3"),
        (suite(launches=(launch(), again(ordinal=2)), reference=True), "the number of launch baseline+reference-2"),
        (suite(launches=(again(),)), "launch baseline+reference-1 of a reference build where there is none"),
        (suite(launches=(launch(block=-1),)), "the block of launch baseline-1"),
        (suite(launches=(launch(block=2), launch(ordinal=2, block=2))), "the block of launch baseline-2"),
        (suite(launches=(launch(block=2), launch(ordinal=2, block=1))), "the block of launch baseline-2"),
        (suite(launches=(launch(block=2), again()), reference=True), "the block of launch baseline+reference-1"),
        (
            suite(launches=(again(), launch(), again(ordinal=2, block=1)), reference=True),
            "the block of launch baseline+reference-2",
        ),
        (suite(variants=("a+reference",)), "the name 'a+reference'"),
        (suite(launches=(launch(variant="a+reference"),)), "the name 'a+reference'"),
        (with_stored(replace(STORE, launches=())), "a stored baseline without positive numbers"),
        (with_stored(replace(STORE, promotions=())), "a stored baseline without positive numbers"),
        (
            with_stored(replace(STORE, launches=(replace(STORE.launches[0], output_throughput=(-1.0,)),))),
            "a stored baseline without positive numbers",
        ),
        (holding(replace(STORE, case="sim/eagle3/c001")), "a stored baseline that is another case's"),
        (holding(replace(STORE, case="other/baseline/c001")), "a stored baseline that is another case's"),
        (holding(replace(STORE, case="sim/baseline/c002")), "a stored baseline that is another case's"),
        (holding(replace(STORE, level=2)), "a stored baseline that is another case's"),
        (holding(replace(STORE, case="sim/baseline/c002", level=2)), "a stored baseline that is another case's"),
    ],
)
def test_a_suite_that_cannot_be_judged_is_refused(tmp_path: Path, hostile: SuiteRecord, problem: str) -> None:
    assert problem in refused(tmp_path, campaign(hostile))


@pytest.mark.parametrize(
    "time",
    [
        *("", "<b>", "2026-02-01", "2026-02-01T02:00:00+00:00\n", "2026-02-01 02:00:00+00:00"),
        *("2026-02-30T00:00:00+00:00", "2026-02-01T25:00:00+00:00", "0000-02-01T02:00:00+00:00"),
    ],
)
def test_a_time_that_is_not_as_the_suite_writes_it_is_refused(tmp_path: Path, time: str) -> None:
    for hostile in (
        replace(campaign(), started_at=time),
        replace(campaign(), finished_at=time),
        campaign(suite(launches=(replace(launch(), started_at=time),))),
    ):
        assert f"the time {time!r}: not as the suite writes it" in refused(tmp_path, hostile)


def test_the_time_is_written_as_it_is_read(tmp_path: Path) -> None:
    whole = replace(campaign(), started_at=record.now_utc(), finished_at=record.now_utc())
    assert record.read(written(tmp_path, whole)) == whole


def test_a_campaign_that_is_complete_but_never_finished_is_refused(tmp_path: Path) -> None:
    assert "complete, but never finished" in refused(tmp_path, replace(campaign(suite()), finished_at=None))


@pytest.mark.parametrize("value", ["0.0", "124.25"])
def test_a_throughput_that_is_not_its_tokens_by_its_time_is_refused(tmp_path: Path, value: str) -> None:
    text = (written(tmp_path, campaign(suite(launches=(launch(measured(123.25)),)))) / record.FILE_NAME).read_text()
    broken = re.sub(r'"output_throughput": 123.25', f'"output_throughput": {value}', text)
    assert "a throughput that is not its tokens by its time" in refused(tmp_path, broken)


def test_a_file_that_is_missing_or_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "20260201-020000").mkdir()
    with pytest.raises(FileError, match="cannot be read as a campaign file: No such file"):
        record.read(tmp_path / "20260201-020000")
    (tmp_path / "20260201-020000" / record.FILE_NAME).mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        record.read(tmp_path / "20260201-020000")


def test_the_rig_of_a_campaign_is_a_name_and_no_machine_id() -> None:
    assert re.fullmatch(r"cpu-simulated-[0-9a-f]{8}", RIG.id)
