"""`python -m perf docs`: prose is never touched, numbers are never typed, and a page does not contradict itself."""

import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from perf import docs, record
from perf.__main__ import main
from perf.blocks import CLOSING, find
from perf.compact import Compact, compact
from perf.figures import Figure, Figures
from perf.files import MAX_NUMBER, FileError
from perf.record import Campaign, SuiteRecord
from perf.sample import Build
from perf.statements import METRICS
from perf.validity import Reason
from perf.verdict import INTERVALS, judge
from tests.unit.simulated import campaign, failed, launch, measured, relation, select, stored, suite, written
from tests.unit.test_long_life import disk_of
from tests.unit.test_records import RELEASED, published

ROOT = Path(__file__).parents[2]
KEEPING = ROOT / "docs" / "keeping-the-record.md"
LOG = ROOT / docs.LOG

FIRST, SECOND = "20260201-020000", "20260301-020000"

BUILD = Build(sglang="0.5.2", torch="2.9", cuda=None, commit="a" * 40, dirty=None, kernels=(), packages="b" * 16)


def state(*throughputs: float, **changes: object) -> SuiteRecord:
    """A suite of one case; the machine's luck is small against its margin of 3 %."""
    launches = tuple(
        launch(measured(value), ordinal=number, **changes)  # type: ignore[arg-type]
        for number, value in enumerate(throughputs, start=1)
    )
    return suite(launches=launches)


def with_workload(state: SuiteRecord, **changes: object) -> SuiteRecord:
    """The suite, asking otherwise."""
    assert state.workload
    return replace(state, workload=replace(state.workload, **changes))  # type: ignore[arg-type]


class Project:
    """A folder with pages and records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / docs.RECORDS).mkdir(parents=True)

    def keep(self, id: str, *suites: SuiteRecord) -> None:
        """Keep the record of a campaign."""
        self.keep_as(id, asdict(compact(campaign(*suites, id=id))))

    def keep_as(self, name: str, value: object) -> None:
        (self.folder / docs.RECORDS / f"{name}.json").write_text(json.dumps(value))

    def page(self, text: str | bytes, name: str = "docs/log.md") -> Path:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def docs(self, *arguments: str) -> int:
        return main(["docs", *arguments, "--root", str(self.folder)])

    def add(self, *arguments: str) -> int:
        """Of campaigns under the project's own folder."""
        try:
            return self.docs("add", *arguments, "--campaign-dir", str(self.folder / "campaigns"))
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else -1

    def measured(self, measured_campaign: Campaign) -> None:
        written(self.folder / "campaigns", measured_campaign)

    def content(self) -> dict[str, bytes]:
        """Every file but campaigns, and the lock."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and "campaigns" not in path.parts and ".perf" not in path.parts
        }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project that keeps one campaign of 100 tok/s."""
    made = Project(tmp_path)
    made.keep(FIRST, state(100.0, 100.0))
    return made


def table(query: str) -> str:
    return f"<!-- perf: {query} -->\n{CLOSING}\n"


def inline(query: str, inside: str = "") -> str:
    return f"<!-- perf: {query} -->{inside}{CLOSING}"


VALUE = f"value {FIRST} baseline 1"
SOURCE = table(f"provenance {FIRST}")


# This repository


def test_the_repositorys_own_pages_say_what_their_records_say() -> None:
    """As a user or a build job would run it."""
    done = subprocess.run(
        [sys.executable, "-m", "perf", "docs", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    blocks = re.search(r"generated blocks: (\d+) in", done.stdout)
    assert blocks
    assert int(blocks.group(1)) >= len(find(LOG.read_text())) >= 15


def test_no_throughput_in_the_log_was_typed_by_a_person() -> None:
    text, rate = LOG.read_text(), re.compile(r"\d\s*tok/s")
    assert rate.search(text)
    for block in reversed(find(text)):
        text = text[: block.start] + text[block.end :]
    assert rate.search(text) is None


def test_what_the_log_says_in_words_is_what_the_published_figures_say() -> None:
    figures = json.loads((ROOT / docs.RECORDS / "published-parallel.json").read_text())["figures"]
    by_case = {(each["variant"], each["level"]): each["output_throughput"] for each in figures}
    levels = {level for _, level in by_case}
    assert len(levels) == 3
    assert all(by_case["eagle3", level] < by_case["baseline", level] for level in levels)
    assert by_case["eagle3", "saturation"] < by_case["baseline", "saturation"] / 2


def test_every_query_metric_and_option_is_explained() -> None:
    text = KEEPING.read_text()
    for word in (*docs.QUERIES, *METRICS, "--check", "--root DIR", "--title T", "--log FILE", "--campaign-dir DIR"):
        assert f"`{word}`" in text, word


def test_the_example_of_published_figures_is_one() -> None:
    example = re.search(r"```json\n(.*?)```", KEEPING.read_text(), flags=re.DOTALL)
    assert example
    assert TypeAdapter(Figures).validate_json(example.group(1)).figures


def test_a_figure_may_have_every_metric_that_a_measurement_has() -> None:
    assert set(Figure.__dataclass_fields__) >= set(METRICS)


# Only the inside of blocks


def test_blocks_are_filled_and_prose_is_left_alone(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    page = project.page(f"# Log\n\nIt gave {inline(VALUE)} then.\n\n{table(f'throughput {FIRST}')}\nEnd")
    assert project.docs() == 0
    assert capsys.readouterr().out == "renewed  docs/log.md: 2 of 2\n"
    assert page.read_text() == (
        f"# Log\n\nIt gave {inline(VALUE, '100.0 tok/s')} then.\n\n"
        f"<!-- perf: throughput {FIRST} -->\n\n"
        f"Campaign {FIRST}, suite sim on rig cpu-simulated-01234567, margin 3 %.\n\n"
        "| concurrency | variant | tok/s | tok/s of a request | time of a request |\n"
        "|---|---|---:|---:|---:|\n"
        "| 1 | baseline | 100.0 | 100.0 | 5.12 s |\n\n"
        f"{CLOSING}\n\nEnd"
    )


FRAGMENTS = st.sampled_from(
    [
        *(
            b"words",
            b" ",
            b"  \n",
            b"\n",
            b"\r\n",
            b"\r",
            b"\xff\xfe",
            "ü – 漢".encode(),
            b"\xef\xbb\xbf",
            b"\x0c",
            b"\x85",
        ),
        *(
            b"```\n",
            b"````\n",
            b"~~~\n",
            b"```sh\n",
            b"`",
            b"``",
            b"> ",
            b"- ",
            b"1. ",
            b"    ",
            b"| a |",
            b"# Entry\n",
        ),
        *(b"<!-- note -->", b"<!--", b"-->", b"\\"),
        *[f"it {inline(VALUE, '@@')}".encode()] * 3,
        *[f"\n<!-- perf: provenance {FIRST} -->\n@@\n{CLOSING}\n".encode()] * 2,
        f"\r\n<!-- perf: provenance {FIRST} -->\r\n@@\r\n{CLOSING}\r\n".encode(),
    ]
)


@settings(deadline=None, max_examples=120)
@given(st.lists(FRAGMENTS, max_size=12).map(b"".join))
def test_whatever_a_page_is_made_of_nothing_but_insides_changes_and_a_second_run_changes_nothing(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.keep(FIRST, state(100.0, 100.0))
        project.page(SOURCE, "README.md")
        assert project.docs() == 0
        answer = (
            (project.folder / "README.md").read_bytes().removeprefix(f"<!-- perf: provenance {FIRST} -->\n".encode())
        )
        answer = answer.removesuffix(f"\n{CLOSING}\n".encode())
        page = project.page(text + b"\n" + SOURCE.encode())
        before = page.read_bytes()
        code = project.docs()
        after = page.read_bytes()
        if code != 0:
            assert after == before
            return
        insides = [b"@@", b"100.0 tok/s", answer, answer.replace(b"\n", b"\r\n")]
        either = b"(?:" + b"|".join(map(re.escape, insides)) + b")"
        end = CLOSING.encode() + b"\n"
        parts = before.removesuffix(end).split(b"@@")
        assert re.fullmatch(either.join(map(re.escape, parts)) + either + b"?\n?" + re.escape(end), after)
        assert project.docs("--check") == 0
        assert project.docs() == 0
        assert page.read_bytes() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"A\r\n\r\nIt gave %s.\r\n", b"A\r\n\r\nIt gave %s.\r\n"),
        (b"no newline at the end: %s", b"no newline at the end: %s"),
        (
            b"trailing blanks   \nand \xff\xfe no UTF-8: %s  \n\n\n",
            b"trailing blanks   \nand \xff\xfe no UTF-8: %s  \n\n\n",
        ),
        ("Größe \N{GREEK SMALL LETTER ALPHA}, %s\u2028\x0b\x85".encode(), "Größe α, %s\u2028\x0b\x85".encode()),
        (b"| a | %s |\n|---|---|\n", b"| a | %s |\n|---|---|\n"),
    ],
)
def test_bytes_outside_of_blocks_stay_as_they_are(project: Project, before: bytes, after: bytes) -> None:
    page = project.page(before.replace(b"%s", inline(VALUE, "old").encode()) + b"\n" + SOURCE.encode())
    assert project.docs() == 0
    wanted = after.replace(b"%s", inline(VALUE, "100.0 tok/s").encode())
    assert page.read_bytes().startswith(wanted + b"\n<!-- perf: provenance")


def test_a_table_in_a_page_with_windows_line_ends_has_them_too(project: Project) -> None:
    page = project.page(SOURCE.replace("\n", "\r\n"))
    assert project.docs() == 0
    assert b"\n" not in page.read_bytes().replace(b"\r\n", b"")
    assert page.read_bytes().count(b"\r\n") > 5
    assert project.docs("--check") == 0


@pytest.mark.parametrize(
    "text",
    [
        "```\n%s\n```\n",
        "```html\n%s\n```\n",
        "~~~\n```\n%s\n~~~\n",
        "````\n```\n%s\n```\n````\n",
        "- a list\n  ```\n  %s\n  ```\n",
        "1. ```\n   %s\n   ```\n",
        "> ```\n> %s\n> ```\n",
        "Write `%s` in a line.\n",
        "Write ``a ` %s`` in a line.\n",
    ],
)
def test_in_code_a_marker_is_text(project: Project, text: str) -> None:
    page = project.page(text.replace("%s", inline("nonsense", "old")))
    assert project.docs() == 0
    assert "old" in page.read_text()


def test_after_code_blocks_are_blocks_again(project: Project) -> None:
    page = project.page(f"```\n{inline('nonsense')}\n```\n`x` {inline(VALUE)}\n{SOURCE}")
    assert project.docs() == 0
    assert inline(VALUE, "100.0 tok/s") in page.read_text()


def test_readme_and_every_page_under_docs_is_renewed_and_no_other(project: Project) -> None:
    (project.folder / "docs" / "deep" / "er").mkdir(parents=True)
    text = f"{SOURCE}It gave {inline(VALUE)}."
    ours = [project.page(text, name) for name in ("README.md", "docs/a.md", "docs/deep/er/b.md")]
    others = [project.page(text, name) for name in ("CHANGES.md", "docs/a.txt")]
    assert project.docs() == 0
    assert all("100.0 tok/s" in page.read_text() for page in ours)
    assert all(page.read_text() == text for page in others)


def test_a_page_that_is_right_is_not_written(project: Project) -> None:
    page = project.page(SOURCE)
    assert project.docs() == 0
    before = page.stat()
    project.page(SOURCE, "README.md")
    assert project.docs() == 0
    assert "| campaign |" in (project.folder / "README.md").read_text()
    assert (page.stat().st_ino, page.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_link_to_a_page_stays_a_link(project: Project) -> None:
    page = project.page(SOURCE)
    (project.folder / "README.md").symlink_to(page)
    assert project.docs() == 0
    assert (project.folder / "README.md").is_symlink()
    assert "| campaign |" in (project.folder / "README.md").read_text()


# What blocks show


def answer(project: Project, query: str) -> str:
    """The inside of a block with this query."""
    alone = query.split(maxsplit=1)[0] not in ("value", "change", "source")
    text = table(query) if alone else f"x {inline(query)}\n"
    kept = {path.stem for path in (project.folder / docs.RECORDS).iterdir()}
    page = project.page(text + "".join(table(f"provenance {name}") for name in query.split() if name in kept))
    assert project.docs() == 0
    shown = page.read_text().removeprefix("x ").partition("-->")[2].partition(CLOSING)[0]
    return shown.strip()


BOTH = suite(
    levels=(1, 8),
    variants=("baseline", "eagle3"),
    store=(stored(100.0, 100.1, 99.9),),
    relations=(relation("baseline", "eagle3"),),
    launches=(
        launch(measured(90.0), measured(400.0, level=8), env={"NCCL_PROTO": "LL"}),
        launch(measured(90.1), measured(401.0, level=8), ordinal=2, env={"NCCL_PROTO": "LL"}),
        launch(measured(90.05), measured(400.5, level=8), ordinal=3, env={"NCCL_PROTO": "LL"}),
        launch(measured(180.0, acceptance=2.5), failed(8), variant="eagle3"),
    ),
)


def test_a_campaign_is_shown_with_its_verdicts_throughputs_and_where_it_comes_from(project: Project) -> None:
    project.keep(SECOND, BOTH)
    line = f"Campaign {SECOND}, suite sim on rig cpu-simulated-01234567, margin 3 %."
    assert answer(project, f"verdicts {SECOND}") == (
        f"{line}\n\n"
        "| case | tok/s | baseline | change | interval | TTFT ms | TPOT ms | accept | launches | verdict |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n"
        "| baseline/c001 | 90.0 | 100.0 | -9.9 % | [-11.3 %, -8.6 %] | 100 | 11.1 | - | 3 | REGRESSED |\n"
        "| baseline/c008 | 400.5 | - | - | - | 100 | 20.0 | - | 3 | NO_BASELINE |\n"
        "| eagle3/c001 | 180.0 | - | - | - | 100 | 5.6 | 2.50 | 1 | NO_BASELINE |\n"
        "| eagle3/c008 | - | - | - | - | - | - | - | 1 | INVALID |\n"
        "| expect/baseline-of-eagle3/saturation | - | - | - | - | - | - | - | - | INVALID |\n\n"
        f"- {INTERVALS}\n"
        "- judged against the stored baseline (3 launches of 1 night); no reference build: "
        "the night itself is in the interval (baseline/c001)\n"
        "- INVALID: eagle3/c008: requests failed: 3 of 128 requests failed in round 2 (3 x http_500; "
        'first: "KV cache pool is full")\n'
        "- INVALID: expect/baseline-of-eagle3/saturation: sim/eagle3/c008 is INVALID: requests failed: "
        '3 of 128 requests failed in round 2 (3 x http_500; first: "KV cache pool is full")'
    )
    assert answer(project, f"throughput {SECOND}") == (
        f"{line}\n\n"
        "| concurrency | variant | tok/s | tok/s of a request | time of a request | ratio to baseline |\n"
        "|---|---|---:|---:|---:|---:|\n"
        "| 1 | baseline | 90.0 | 90.0 | 5.69 s |  |\n"
        "| 1 | eagle3 | 180.0 | 180.0 | 2.84 s | 1.999 |\n"
        "| 8 | baseline | 400.5 | 50.1 | 10.2 s |  |\n"
        "| 8 | eagle3 | - | - | - | - |"
    )
    shown = answer(project, f"provenance {SECOND}")
    for part in (SECOND, "2026-02-01 02:00:00 UTC", "no GPU, Simulated CPU", "prompts simulated", "`NCCL_PROTO=LL`"):
        assert part in shown
    assert "`{python} -m server --variant eagle3 --port {port}`" in shown


def test_launches_of_the_reference_build_are_told_beside_the_candidates(project: Project) -> None:
    """What they ran, how long it took, and which verdicts rest on them; they are never taken for the variant's own."""
    reference = tuple(
        launch(measured(100.0), arm="reference", ordinal=number, build=replace(BUILD, commit="c" * 40))
        for number in (1, 2, 3)
    )
    ours = tuple(launch(measured(90.0), ordinal=number, build=BUILD) for number in (1, 2, 3))
    both = tuple(each for pair in zip(ours, reference, strict=True) for each in pair)
    project.keep(SECOND, suite(store=(stored(99.9, 100.0, 100.1, 100.0),), launches=both, reference=True))
    shown = answer(project, f"verdicts {SECOND}")
    assert "| baseline/c001 | 90.0 | 100.0 | -10.0 % |" in shown
    assert "| 3 | REGRESSED |" in shown
    assert f"- {INTERVALS}\n- judged against 3 launches of the reference build tonight (baseline/c001)" in shown
    told = answer(project, f"provenance {SECOND}")
    assert (
        "sglang 0.5.2 at aaaaaaaaaaaa, torch 2.9, packages bbbbbbbb; 3 launches in 3 min 00 s; reference build: "
        in told
    )
    assert "sglang 0.5.2 at cccccccccccc, torch 2.9, packages bbbbbbbb, 3 launches in 3 min 00 s;" in told


def test_what_was_not_gated_is_advisory(project: Project) -> None:
    project.keep(SECOND, replace(BOTH, advisory="its levels are not reached"))
    shown = answer(project, f"verdicts {SECOND}")
    assert shown.count("ADVISORY") == 3
    assert shown.count("INVALID |") == 2
    assert "; its levels are not reached." in shown
    assert answer(project, f"source {SECOND}").endswith(f"campaign {SECOND}, advisory: not gated")
    assert "temperature 0, warm-up requests: 8; its levels are not reached |" in answer(project, f"provenance {SECOND}")


def test_a_rerun_of_what_failed_says_that_its_false_alarm_rate_is_not_stated(project: Project) -> None:
    said = "; a rerun of what failed: its false-alarm rate is not stated"
    project.keep(SECOND, BOTH)
    assert said not in answer(project, f"verdicts {SECOND}")
    project.keep(SECOND, replace(BOTH, rerun=True))
    assert said in answer(project, f"verdicts {SECOND}")


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (f"value {SECOND} baseline 8", "400.5 tok/s"),
        (f"value {SECOND} sim/baseline 8", "400.5 tok/s"),
        (f"value {SECOND} baseline 1 per_request_throughput", "90.0 tok/s"),
        (f"value {SECOND} baseline 1 e2e_s", "5.69 s"),
        (f"value {SECOND} baseline 1 ttft_s", "100 ms"),
        (f"value {SECOND} eagle3 1 acceptance_length", "2.50"),
        (f"value {SECOND} baseline 8 achieved_concurrency", "8.0"),
        (f"change {SECOND} baseline eagle3 1", "+99.9 %"),
        (f"change {SECOND} eagle3 baseline 1 tpot_s", "+99.9 %"),
        (f"source {SECOND}", f"measured 2026-02-01 on cpu-simulated-01234567, campaign {SECOND}"),
        ("value theirs eagle3 1", "80.9 tok/s"),
        ("value theirs eagle3 1 ttft_s", "12.3 ms"),
        ("value theirs eagle3 2", "130 tok/s"),
        ("value theirs eagle3 2 per_request_throughput", "65.0 tok/s"),
        ("value theirs eagle3 saturation", "about 1,354 tok/s"),
        ("change theirs eagle3 plain 1", "+14.6 %"),
        ("change theirs eagle3 plain saturation", "about -26 %"),
        ("source theirs", "Published, not measured here: A comparison. Source: not stated; date: 2026-01-31."),
    ],
)
def test_one_number_stands_in_a_sentence_measured_to_a_readers_precision_and_published_as_printed(
    project: Project, query: str, shown: str
) -> None:
    project.keep(SECOND, BOTH)
    project.keep_as("theirs", THEIRS)
    assert answer(project, query) == shown


THEIRS = published() | {
    "setup": {
        **published()["setup"],  # type: ignore[dict-item]
        "variants": [{"name": "eagle3", "settings": None}, {"name": "plain", "settings": "none"}],
    },
    "figures": [
        {"variant": "eagle3", "level": 1, "output_throughput": 80.9, "ttft_s": 0.0123},
        {"variant": "plain", "level": 1, "output_throughput": 92.7},
        {"variant": "eagle3", "level": 2, "output_throughput": 130, "per_request_throughput": 65.0},
        {"variant": "eagle3", "level": "saturation", "output_throughput": 1354, "approximate": True},
        {"variant": "plain", "level": "saturation", "output_throughput": 1000},
    ],
}


def test_published_figures_always_say_that_they_were_not_measured_here(project: Project) -> None:
    project.keep_as("theirs", THEIRS)
    for query in ("provenance theirs", "throughput theirs", "source theirs"):
        shown = answer(project, query)
        assert shown.startswith("Published, not measured here: A comparison. Source: not stated; date: 2026-01-31.")
    assert "| stack | not stated |" in answer(project, "provenance theirs")
    assert "| saturation | eagle3 | about 1,354 | - | - |  |" in answer(project, "throughput theirs")


# --check


def test_check_shows_a_diff_of_each_stale_block_and_the_command_and_changes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.page(f"# Log\n\nIt gave {inline(VALUE, '99.9 tok/s')} then.\n{SOURCE}")
    before = project.content()
    assert project.docs("--check") == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:6] == [
        f"docs/log.md:3  {VALUE}",
        "--- docs/log.md:3 as it is",
        "+++ docs/log.md:3 as it should be",
        "@@ -1 +1 @@",
        "-99.9 tok/s",
        "+100.0 tok/s",
    ]
    assert any(line.startswith("docs/log.md:4  provenance") for line in shown)
    assert shown[-1] == f"stale blocks: 2 of 2; renew them: python -m perf docs --root={project.folder}"
    assert project.content() == before


def test_check_passes_once_the_blocks_are_renewed(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.page(SOURCE)
    assert project.docs() == 0
    capsys.readouterr()
    assert project.docs("--check") == 0
    assert capsys.readouterr().out == "generated blocks: 1 in 1 pages, all as their records say\n"


def test_a_stale_inside_with_terminal_sequences_is_shown_without_them(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.page(f"x {inline(VALUE, chr(27) + '[2Jgone')}\n{SOURCE}")
    assert project.docs("--check") == 1
    assert "\x1b" not in capsys.readouterr().out


# Errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"\nx {inline('nonsense')}", [":2:", "'nonsense' is no query", "provenance RECORD", "change RECORD"]),
        (f"\nx {inline('')}", [":2:", "'' is no query"]),
        (f"x {inline('value')}", [":1:", "'value' is no query"]),
        (f"x {inline(f'{VALUE} ttft_s more')}", ["is no query"]),
        (table(f"differs {FIRST} {FIRST}"), ["is no query"]),
        (table("provenance 20990101-000000"), ["no record '20990101-000000'", f"there: {FIRST}, theirs"]),
        (f"x {inline(f'value {FIRST} eagle3 1')}", [":1:", "no variant 'eagle3'", "there: baseline"]),
        (f"x {inline(f'value {FIRST} baseline 2')}", ["no level '2' of baseline", "there: 1"]),
        (f"x {inline('value theirs eagle3 250')}", ["no level '250'", "there: 1, 2, saturation"]),
        (f"x {inline(f'{VALUE} speed')}", ["'speed' is no metric", "output_throughput", "e2e_s"]),
        (f"x {inline(f'{VALUE} acceptance_length')}", ["no acceptance_length of baseline at 1"]),
        (f"x {inline('change theirs eagle3 plain 1 e2e_s')}", ["has not both e2e_s"]),
        (table("verdicts theirs"), ["published figures, which are not judged"]),
        (f"x {inline(f'throughput {FIRST}')}", ["'throughput' is a table", "a line of its own"]),
        (f"\n\n<!-- perf: provenance {FIRST} -->\n| old |\n", [":3:", "never closed", CLOSING]),
        (f"<!-- perf: provenance {FIRST} -->\n{SOURCE}", [":2:", "a block in the block of line 1"]),
        (f"x <!-- perf: {VALUE} -->\n{CLOSING}\n", [":1:", "not closed in its line"]),
        (f" <!-- perf: provenance {FIRST} -->\n{CLOSING}\n", [":1:", "from its beginning"]),
        (f"x <!-- perf: a --> <!-- perf: b --> {CLOSING}", [":1:", "a block in a block"]),
        (f"x\n{CLOSING}\n", [":2:", "closes nothing"]),
        (f"{inline(VALUE)} first\n", [":1:", "must not begin its line"]),
        (f"- {inline(VALUE)} first\n", [":1:", "must not begin its line"]),
        (f"x <!-- perf {VALUE} -->{CLOSING}", [":1:", "is no marker", "<!-- perf: QUERY -->"]),
        (f"x <!-- Perf: {VALUE} -->{CLOSING}", ["is no marker"]),
        (f"x <!-- perf: {VALUE}\n-->{CLOSING}", ["is no marker"]),
        (f"x <!-- perf: {VALUE} --> <!-- / perf -->", ["a block in a block"]),
        (f"text\n```\ncode\n{SOURCE}", [":2:", "never ends", "line 4"]),
    ],
)
def test_an_error_names_page_and_line_what_was_seen_and_what_is_allowed_and_changes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str], text: str, said: list[str]
) -> None:
    project.keep_as("theirs", THEIRS)
    project.page(text)
    project.page(SOURCE, "README.md")  # stale, and right but for the other page
    before = project.content()
    for arguments in ((), ("--check",)):
        assert project.docs(*arguments) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("error: docs/log.md:")
        for part in said:
            assert part in shown.err
    assert project.content() == before


def test_every_error_of_every_page_is_shown_at_once(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.page(f"x {inline('one')} y {inline('two')}\n")
    project.page(f"x {inline('three')}\n", "README.md")
    assert project.docs() == 1
    assert [line.partition(" is no")[0] for line in capsys.readouterr().err.splitlines()] == [
        "error: README.md:1: 'three'",
        "docs/log.md:1: 'one'",
        "docs/log.md:1: 'two'",
    ]


def test_a_variant_of_several_suites_must_be_named_with_its_suite(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.keep(SECOND, BOTH, replace(state(7.0), name="other", cases=()))
    other = replace(state(7.0), name="other")
    cases = tuple(replace(each, id=each.id.replace("sim", "other")) for each in other.cases)
    project.keep(SECOND, BOTH, replace(other, cases=cases))
    assert answer(project, f"value {SECOND} other/baseline 1") == "7.00 tok/s"
    capsys.readouterr()
    project.page(f"x {inline(f'value {SECOND} baseline 1')}\n{table(f'provenance {SECOND}')}")
    assert project.docs() == 1
    assert "allowed: sim/baseline, other/baseline" in capsys.readouterr().err


def test_a_folder_without_pages_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        assert main(["docs", "--check", "--root", str(root)]) == 1
        assert "no README.md and no page under docs/" in capsys.readouterr().err


def test_a_page_whose_number_has_no_source_is_refused(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.page(f"# Log\nIt gave {inline(VALUE)}.\n")
    assert project.docs() == 1
    assert f"docs/log.md:2: numbers of {FIRST} without where they come from" in capsys.readouterr().err
    project.page(f"# Log\nIt gave {inline(VALUE)} ({inline(f'source {FIRST}')}).\n")
    assert project.docs() == 0


def test_a_disk_that_is_full_leaves_the_page_as_it_was(project: Project) -> None:
    page = project.page("x" * 10_000 + "\n" + SOURCE)
    before = project.content()

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [sys.executable, "-B", "-m", "perf", "docs", "--root", str(project.folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=no_room,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {page}: cannot be written: File too large; nothing was changed\n"
    assert project.content() == before


def test_a_disk_that_fills_up_at_the_second_page_names_the_first(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.page(SOURCE, "README.md")
    page = project.page("x" * 10_000 + "\n" + SOURCE)
    with disk_of(4096):
        assert project.docs() == 1
    assert capsys.readouterr().err == (
        f"error: {page}: cannot be written: File too large; written before that: README.md\n"
    )
    assert "| campaign |" in (project.folder / "README.md").read_text()


def test_what_was_typed_while_the_blocks_were_renewed_is_not_overwritten(project: Project) -> None:
    page = project.page(SOURCE)
    pages = docs.rendered(project.folder)
    page.write_text("typed\n" + SOURCE)
    with pytest.raises(FileError, match=r"log\.md: was changed meanwhile, and was left alone: run the command again"):
        docs.write(project.folder, pages)
    assert page.read_text() == "typed\n" + SOURCE


# Contradictions


def their(value: float, **setup: object) -> dict[str, object]:
    whole = published()
    return whole | {
        "setup": {**whole["setup"], **setup},  # type: ignore[dict-item]
        "figures": [{"variant": "eagle3", "level": 1, "output_throughput": value}],
    }


def page_of(*names: str, differs: str = "") -> str:
    entries = "\n".join(
        f"## Entry {number}\n\n{table(f'throughput {name}')}" for number, name in enumerate(names, start=1)
    )
    return f"# Log\n\n{entries}\n{table(differs) if differs else ''}"


@pytest.mark.parametrize("arguments", [(), ("--check",)])
def test_two_published_numbers_for_one_case_need_the_difference_stated(
    project: Project, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    project.keep_as("late", their(80.9, prompts="ours", harness="h"))
    project.keep_as("early", their(96.1, prompts="others", harness="h"))
    project.page(page_of("late", "early"))
    before = project.content()
    assert project.docs(*arguments) == 1
    assert capsys.readouterr().err == (
        "error: docs/log.md:10: contradiction: eagle3 at 1 is 80.9 tok/s in late (entry 'Entry 1', line 5) but "
        "96.1 tok/s in early (entry 'Entry 2', line 10); say what differs between the two: write "
        f"<!-- perf: differs late early --> and {CLOSING} on lines of their own\n"
    )
    assert project.content() == before
    for differs in ("differs late early", "differs early late"):
        page = project.page(page_of("late", "early", differs=differs))
        assert project.docs() == 0
        assert "| prompts | " in page.read_text()
        assert "| harness |" not in page.read_text()


@pytest.mark.parametrize("setup", [{}, {"stack": "0.5.2"}], ids=["nothing", "what only one states"])
def test_a_difference_that_explains_nothing_does_not_settle_a_contradiction(
    project: Project, capsys: pytest.CaptureFixture[str], setup: dict[str, object]
) -> None:
    project.keep_as("late", their(80.9))
    project.keep_as("early", their(96.1, **setup))
    project.page(page_of("late", "early", differs="differs late early"))
    assert project.docs() == 1
    assert "the differs block in line 13 has no condition of this case that both state and that differs" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [(80.9, 80.9, False), (80.9, 81, False), (80.9, 80.8, True), (80.9, 82, True), (80.94, 80.9, False)],
)
def test_published_numbers_are_compared_to_the_digits_that_were_printed(
    project: Project, one: float, other: float, contradict: bool
) -> None:
    project.keep_as("late", their(one))
    project.keep_as("early", their(other))
    project.page(page_of("late", "early"))
    assert project.docs() == (1 if contradict else 0)


@pytest.mark.parametrize(
    "other",
    [
        their(96.1, rig="4x RTX PRO 6000 Blackwell"),
        their(96.1, model="another"),
        {**their(96.1), "figures": [{"variant": "eagle3", "level": 2, "output_throughput": 96.1}]},
    ],
    ids=["another rig", "another model", "another level"],
)
def test_numbers_of_different_cases_are_no_contradiction(project: Project, other: dict[str, object]) -> None:
    project.keep_as("late", their(80.9))
    project.keep_as("early", other)
    project.page(page_of("late", "early"))
    assert project.docs() == 0


def test_campaigns_of_one_suite_may_differ_by_its_margin(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.page(page_of(FIRST, SECOND))
    project.keep(SECOND, state(102.5, 102.5))
    assert project.docs() == 0
    project.keep(SECOND, state(103.5, 103.5, extra=("--page-size", "1")))
    assert project.docs() == 1
    assert "baseline at 1 is 100.0 tok/s in 20260201-020000 (entry 'Entry 1', line 5) but 103.5 tok/s" in (
        capsys.readouterr().err
    )
    project.page(page_of(FIRST, SECOND, differs=f"differs {FIRST} {SECOND}"))
    assert project.docs() == 0


def test_a_campaign_and_a_published_number_of_its_kind_of_rig_and_model_are_one_case(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = state(103.5, model="/models/Kimi-K2.5-INT4/")
    kept = compact(campaign(ours, id=SECOND))
    rig = "8x-rtx-pro-6000-blackwell-server-edition-1f3a9c20"
    cases = tuple(replace(each, variant="eagle3") for each in kept.suites[0].cases)
    variants = tuple(replace(each, name="eagle3") for each in kept.suites[0].variants)
    suites = (replace(kept.suites[0], rig_id=rig, cases=cases, variants=variants),)
    project.keep_as(SECOND, asdict(replace(kept, suites=suites)))
    project.keep_as("theirs", their(80.9))
    project.page(page_of("theirs", SECOND))
    assert project.docs() == 1
    assert "eagle3 at 1 is 80.9 tok/s in theirs" in capsys.readouterr().err
    page = project.page(page_of("theirs", SECOND, differs=f"differs theirs {SECOND}"))
    assert project.docs() == 0
    assert "| harness | theirs | sglang-perf 0.1.0 |" in page.read_text()


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        (state(120.0, extra=("--page-size", "1")), "| command of baseline | - | --page-size 1 |"),
        (state(120.0, env={"NCCL_PROTO": "LL"}), "| environment of baseline | - | NCCL_PROTO=LL |"),
        (state(120.0, version="0.6"), "| stack of baseline | server 0.5.2 | server 0.6 |"),
        (state(120.0, build=BUILD), "| stack of baseline | server 0.5.2 | server 0.5.2, sglang 0.5.2 at a"),
        (state(120.0, model="other"), "| model of baseline | model | other |"),
        (
            replace(state(120.0), requests=((1, 60),)),
            "| asked at 1 | 30 requests, digest digest-1 | 60 requests, digest digest-1 |",
        ),
        (
            with_workload(state(120.0), rounds=2),
            "| protocol | 1 round a launch, endpoint chat, temperature 0, warm-up requests: 8 | 2 rounds a launch,",
        ),
    ],
)
def test_a_difference_between_campaigns_is_named(project: Project, changed: SuiteRecord, row: str) -> None:
    project.keep(SECOND, changed)
    assert row in answer(project, f"differs {FIRST} {SECOND}")


def test_prompts_that_changed_are_told_by_their_digest(project: Project) -> None:
    other = state(120.0)
    project.keep(SECOND, replace(other, cases=(replace(other.cases[0], workload_digest="other"),)))
    assert "| asked at 1 | 30 requests, digest digest-1 | 30 requests, digest other |" in (
        answer(project, f"differs {FIRST} {SECOND}")
    )


def state_of_two(eagle3: float, *, baseline: float = 100.0, **changes: object) -> SuiteRecord:
    """A suite of two variants at two levels; at the second each gives 3 times as much."""
    return suite(
        levels=(1, 8),
        variants=("baseline", "eagle3"),
        launches=(
            launch(measured(baseline), measured(3 * baseline, level=8), **changes),  # type: ignore[arg-type]
            launch(measured(eagle3), measured(3 * eagle3, level=8), variant="eagle3"),
        ),
    )


TWO = state_of_two(200.0)
SLOWER = state_of_two(200.0, baseline=80.0)


def with_eagle3(state: SuiteRecord, **changes: object) -> SuiteRecord:
    """The suite with another launch of eagle3."""
    launches = (state.launches[0], replace(state.launches[1], **changes))  # type: ignore[arg-type]
    return replace(state, launches=launches)


def asked_otherwise_at(level: int, state: SuiteRecord) -> SuiteRecord:
    cases = (replace(each, workload_digest="other") if each.level == level else each for each in state.cases)
    return replace(state, cases=tuple(cases))


def other_suite(state: SuiteRecord) -> SuiteRecord:
    cases = tuple(replace(each, id=each.id.replace("sim", "other")) for each in state.cases)
    return replace(state, name="other", cases=cases)


@pytest.mark.parametrize(
    "second",
    [
        (SLOWER,),
        (with_eagle3(SLOWER, command=("another",)),),
        (with_eagle3(SLOWER, variant_env=(("A", "1"),)),),
        (with_eagle3(SLOWER, server_version="0.6"),),
        (with_eagle3(SLOWER, build=BUILD),),
        (with_eagle3(SLOWER, model="other"),),
        (select(SLOWER, "sim/baseline/c001"),),
        (asked_otherwise_at(8, SLOWER),),
        (SLOWER, other_suite(state(7.0, 7.0, extra=("--more",)))),
    ],
    ids=["nothing", "command", "environment", "version", "build", "model", "selected", "asked", "suite"],
)
def test_what_differs_elsewhere_does_not_explain_a_case(
    project: Project, capsys: pytest.CaptureFixture[str], second: tuple[SuiteRecord, ...]
) -> None:
    """Of another variant, at another level, in another suite, or only in what was selected."""
    first = "20260401-020000"
    project.keep(first, TWO, other_suite(state(7.0, 7.0)))
    project.keep(SECOND, *second)
    project.page(page_of(first, SECOND, differs=f"differs {first} {SECOND}"))
    assert project.docs() == 1
    said = capsys.readouterr().err
    assert "contradiction: baseline at 1 " in said
    assert "no condition of this case that both state and that differs" in said


@pytest.mark.parametrize(
    "second",
    [
        state_of_two(200.0, baseline=80.0, extra=("--slow",)),
        state_of_two(200.0, baseline=80.0, version="0.6"),
        asked_otherwise_at(8, asked_otherwise_at(1, SLOWER)),
        with_workload(SLOWER, temperature=0.5),
    ],
    ids=["its command", "its stack", "what it is asked", "the protocol"],
)
def test_what_differs_of_a_case_explains_it(project: Project, second: SuiteRecord) -> None:
    first = "20260401-020000"
    project.keep(first, TWO)
    project.keep(SECOND, second)
    project.page(page_of(first, SECOND, differs=f"differs {first} {SECOND}"))
    assert project.docs() == 0


# docs add


@pytest.fixture
def log(project: Project) -> Path:
    project.measured(campaign(BOTH, id=SECOND))
    return project.page("# Log\n", str(docs.LOG))


def test_add_keeps_the_record_and_writes_the_skeleton_of_an_entry(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.add("--title", "Tree mask in shared memory, #42") == 0
    assert capsys.readouterr().out == (
        f"campaign {SECOND} -> docs/records/{SECOND}.json\nwrite its story: docs/eagle-fast-verify.md\n"
    )
    text = log.read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Log",
        "## 2026-02-01 Tree mask in shared memory, #42",
        "### Why",
        "### Expected",
        "### Measured",
        "### Decision",
    ]
    assert [block.query for block in find(text)] == [
        f"{word} {SECOND}" for word in ("provenance", "throughput", "verdicts")
    ]
    assert text.count("\n_") == 3
    assert "| REGRESSED |" in text
    assert text.endswith("_\n")
    kept = json.loads((project.folder / docs.RECORDS / f"{SECOND}.json").read_text())
    assert TypeAdapter(Compact).validate_python(kept) == compact(campaign(BOTH, id=SECOND))
    assert project.docs("--check") == 0


@pytest.mark.parametrize("folder", RELEASED, ids=lambda each: each.name)
def test_add_takes_a_campaign_that_was_really_measured(project: Project, folder: Path) -> None:
    assert project.docs("add", str(folder), "--title", "A real one", "--log", "docs/real.md") == 0
    assert record.read(folder).suites[0].name in (project.folder / "docs" / "real.md").read_text()
    assert project.docs("--check") == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# L\r\n\r\nText", b"# L\r\n\r\nText\r\n\r\n## 2026-02-01 T\r\n\r\n### Why\r\n"),
        (b"# L\n\xff\n", b"# L\n\xff\n\n## 2026-02-01 T\n\n### Why\n"),
        (b"", b"## 2026-02-01 T\n\n### Why\n"),
    ],
)
def test_add_leaves_the_log_before_its_entry_as_it_was(
    project: Project, log: Path, before: bytes, after: bytes
) -> None:
    log.write_bytes(before)
    assert project.add("--title", "T") == 0
    assert log.read_bytes().startswith(after)
    if b"\r" in before:
        assert b"\n" not in log.read_bytes().replace(b"\r\n", b"")
    assert project.docs("--check") == 0


def test_add_states_the_difference_to_an_entry_that_the_new_one_contradicts(project: Project, log: Path) -> None:
    log.write_text(page_of(FIRST))
    assert project.add("--title", "T") == 0
    assert f"<!-- perf: differs {FIRST} {SECOND} -->" in log.read_text()
    assert "| environment of baseline | - | NCCL_PROTO=LL |" in log.read_text()
    assert project.docs("--check") == 0


def test_add_refuses_a_number_that_changed_while_nothing_else_did(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(page_of(FIRST))
    third = "20260401-020000"
    project.measured(campaign(state(120.0, 120.0), id=third))
    before = project.content()
    assert project.add(third, "--title", "T") == 1
    assert "no condition of this case that both state and that differs" in capsys.readouterr().err
    assert project.content() == before


def test_of_many_entries_each_is_explained_against_the_last_that_it_contradicts(project: Project, log: Path) -> None:
    ids = [f"202604{day:02d}-020000" for day in range(1, 7)]
    for number, id in enumerate(ids):
        value = 100.0 * 1.05**number
        project.measured(campaign(state(value, value, extra=("--step", f"{number}")), id=id))
        assert project.add(id, "--title", id) == 0
    queries = [block.query for block in find(log.read_text()) if block.query.startswith("differs")]
    assert queries == [f"differs {before} {after}" for before, after in pairwise(ids)]
    assert project.docs("--check") == 0


def test_a_case_that_the_last_entry_lacks_is_explained_against_the_one_before(project: Project, log: Path) -> None:
    third = "20260401-020000"
    project.measured(campaign(TWO, id="20260202-020000"))
    project.measured(campaign(state(120.0, extra=("--a", "1")), id="20260302-020000"))
    changed = state_of_two(200.0, baseline=150.0, extra=("--b", "1"))
    project.measured(campaign(changed, id=third))
    for id in ("20260202-020000", "20260302-020000", third):
        assert project.add(id, "--title", id) == 0
    queries = [block.query for block in find(log.read_text()) if block.query.startswith("differs")]
    assert queries[-2:] == [f"differs 20260302-020000 {third}", f"differs 20260202-020000 {third}"]


@pytest.mark.parametrize("query", ["", "differs", "provenance"])
def test_add_to_a_log_with_a_block_without_a_query_is_a_sentence(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str], query: str
) -> None:
    log.write_text(f"# Log\n\n{table(query)}")
    before = project.content()
    assert project.add("--title", "T") == 1
    assert f"{docs.LOG}:3: {query!r} is no query" in capsys.readouterr().err
    assert project.content() == before


def test_what_add_writes_is_read_again_also_where_an_interval_is_beyond_every_number(
    project: Project, log: Path
) -> None:
    wide = suite(store=(stored(100.0, 200.0),), launches=(launch(measured(90.0)),))
    assert judge(wide)[0].judgement.hi > MAX_NUMBER  # type: ignore[union-attr]
    project.measured(campaign(wide, id="20260401-020000"))
    assert project.add("20260401-020000", "--title", "T") == 0
    assert project.docs("--check") == 0
    assert "| [-100.0 %, +inf] |" in log.read_text()


def test_add_refuses_a_campaign_whose_record_could_not_be_read_again(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log.is_file()
    launches = tuple(launch(measured(90.0), ordinal=number, duration_s=1e15) for number in (1, 2))
    project.measured(campaign(suite(launches=launches), id="20260401-020000"))
    before = project.content()
    assert project.add("20260401-020000", "--title", "T") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: campaign 20260401-020000: its record could not be read again: a record holds 20")
    assert project.content() == before


def test_add_without_room_for_a_temporary_file_is_a_sentence(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.is_file()
    monkeypatch.setattr(tempfile, "tempdir", str(project.folder / "missing"))
    before = project.content()
    assert project.add("--title", "T") == 1
    assert "no temporary folder to check its record in: No such file or directory" in capsys.readouterr().err
    assert project.content() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("20990101-000000", "--title", "T"), "no campaign '20990101-000000'"),
        (("20260501-020000", "--title", "T"), "is not complete (interrupted, or still running)"),
        (("--title", ""), "one line of 1 to 120"),
        (("--title", " "), "one line of 1 to 120"),
        (("--title", "two\nlines"), "one line of 1 to 120"),
        (("--title", "a\x1b[2Jb"), "one line of 1 to 120"),
        (("--title", "a \u202e b"), "one line of 1 to 120"),
        (("--title", "x" * 121), "one line of 1 to 120"),
        (("--title", "a <b>"), "the title has '<'"),
        (("--title", "a `b`"), "the title has '`'"),
        (("--title", "a [b](c)"), "the title has '['"),
        (("--title", "T", "--log", "../log.md"), "its blocks would never be renewed"),
        (("--title", "T", "--log", "/elsewhere/log.md"), "its blocks would never be renewed"),
        (("--title", "T", "--log", "log.md"), "its blocks would never be renewed"),
        (("--title", "T", "--log", "docs/log.txt"), "its blocks would never be renewed"),
        (("--title", "T", "--log", "docs/damaged.md"), "docs/damaged.md:2: the block is never closed"),
    ],
)
def test_add_that_is_refused_says_why_and_changes_nothing(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert log.is_file()
    project.measured(campaign(BOTH, id="20260501-020000", complete=False))
    project.page("# L\n<!-- perf: a -->\n", "docs/damaged.md")
    before = project.content()
    if not arguments[0].startswith("2"):
        arguments = (SECOND, *arguments)
    assert project.add(*arguments) == 1
    assert said in capsys.readouterr().err
    assert project.content() == before


def test_add_refuses_an_entry_that_is_there_already(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log.is_file()
    assert project.add("--title", "T") == 0
    project.measured(campaign(BOTH, id="20260201-030000"))
    before = project.content()
    assert project.add(SECOND, "--title", "Another") == 1
    assert (
        "docs/eagle-fast-verify.md:15: there is an entry about this already, '2026-02-01 T'" in capsys.readouterr().err
    )
    assert project.add("20260201-030000", "--title", "T") == 1
    assert "there is an entry about this already" in capsys.readouterr().err
    assert project.content() == before


def test_add_refuses_to_replace_a_record_and_takes_one_that_is_the_same(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.keep(SECOND, state(100.0))
    before = project.content()
    assert project.add("--title", "T") == 1
    assert (
        f"docs/records/{SECOND}.json: holds something else than campaign {SECOND} says now" in capsys.readouterr().err
    )
    assert project.content() == before
    project.keep(SECOND, BOTH)
    assert project.add("--title", "T") == 0
    assert "## 2026-02-01 T" in log.read_text()


def test_add_with_no_room_for_the_entry_says_that_the_record_was_kept(
    project: Project, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text("x" * 200_000)
    with disk_of(100_000):
        assert project.add("--title", "T") == 1
    kept = docs.RECORDS / f"{SECOND}.json"
    assert capsys.readouterr().err == (
        f"error: {log}: cannot be written: File too large; written before that: {kept}\n"
    )
    assert (project.folder / kept).is_file()
    assert project.add("--title", "T") == 0


def test_add_waits_for_another_that_is_at_work_and_keeps_its_entry(project: Project, log: Path) -> None:
    (project.folder / ".perf").mkdir()
    command = [sys.executable, "-m", "perf", "docs", "add", "--root", str(project.folder), "--title", "T"]
    working = FileLock(project.folder / ".perf" / "docs.lock")
    with (
        working,
        subprocess.Popen(
            [*command, str(project.folder / "campaigns" / SECOND)], cwd=ROOT, stdout=subprocess.DEVNULL
        ) as waiting,
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=3)
        log.write_text("# Log\n\n## The entry of the other\n")
        working.release()
        assert waiting.wait(timeout=60) == 0
    assert log.read_text().startswith("# Log\n\n## The entry of the other\n\n## 2026-02-01 T\n")


def test_add_with_check_is_a_usage_error(project: Project, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = log.read_bytes()
    with pytest.raises(SystemExit) as caught:
        main(["docs", "--check", "add", "--title", "T", "--root", str(project.folder)])
    assert caught.value.code == 64
    assert "leave out --check" in capsys.readouterr().err
    assert log.read_bytes() == before


# Hostile records

EVIL = [
    "a | b || c",
    "x <!-- /perf --> y",
    f"\n{CLOSING}\n",
    "--> <script>alert(1)</script>",
    "``` ` `` code",
    "[a](javascript:alert(1)) ![b](c)",
    "# heading\n\n| t |\n|---|\n",
    "\x1b[2J\x00\u202e\u2028",
    "*bold* _it_ ~~gone~~ $x$ \\| &lt;",
    "%s" * 5000,
    "",
]


def hostile(kept: Compact, evil: str) -> dict[str, object]:
    """The record with a text in every place that takes any."""
    reason = Reason(name=evil, seen=evil, advice=evil)
    suites = tuple(
        replace(
            each,
            name=evil,
            rig_id=evil,
            advisory=evil,
            stopped=evil,
            workload=each.workload and replace(each.workload, prompt_set=evil, endpoint=evil),
            variants=tuple(
                replace(variant, command=(evil, evil), env=((evil, evil),), model=evil, server_version=evil, build=None)
                for variant in each.variants
            ),
            cases=tuple(replace(case, id=f"{evil}/{evil}", verdict=evil, reasons=(reason,)) for case in each.cases),
        )
        for each in kept.suites
    )
    rig = replace(kept.rig, id=evil, gpus=(evil, evil), driver=evil, cpu=evil, kernel=evil)
    return asdict(replace(kept, started_at=evil, tool_version=evil, rig=rig, suites=suites))


def hostile_figures(evil: str) -> dict[str, object]:
    """Published figures with a text in every place that takes any."""
    text = evil or "-"
    setup = dict.fromkeys(("rig", "interconnect", "model", "stack", "prompts", "harness", "protocol"), text)
    return published() | {
        "title": text,
        "source": text,
        "setup": setup | {"variants": [{"name": text, "settings": text}]},
        "figures": [{"variant": text, "level": 1, "output_throughput": 80.9}],
    }


def columns(row: str) -> int:
    """Cells of a table's row: a bar counts unless a backslash stands before it, whatever stands before that."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_nothing_in_a_record_breaks_out_of_its_block(project: Project, evil: str) -> None:
    def put(name: str, value: object) -> None:
        path = project.folder / docs.RECORDS / f"{name}.json"
        path.write_text(json.dumps(value))

    put(SECOND, hostile(compact(campaign(BOTH, id=SECOND)), evil))
    put("theirs", hostile_figures(evil))
    tables = ("provenance", "throughput", "verdicts")
    queries = [f"{word} {SECOND}" for word in tables] + [f"{word} theirs" for word in tables[:2]]
    queries += [f"differs {SECOND} theirs", f"differs {FIRST} {SECOND}"]
    before = "".join(f"before\n\n{table(query)}\nafter\n" for query in queries)
    before += f"x {inline(f'source {SECOND}')} y {inline('source theirs')} z\n" + SOURCE
    page = project.page(before)
    assert project.docs() == 0
    text = page.read_text(encoding="utf-8")
    assert project.docs("--check") == 0
    assert [block.query for block in find(text)] == [block.query for block in find(before)]
    outside = text
    for block in reversed(find(text)):
        inside = text[block.start : block.end].strip()
        outside = outside[: block.start] + outside[block.end :]
        words = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)|\[[-+][^\]]*\]", "", inside)  # code spans and intervals
        assert not re.search(r"^(?:- )?#", inside, flags=re.MULTILINE)
        assert not re.search(r"[<>]|(?<!\\)[\[\]`]", words), inside
        assert "\x1b" not in inside
        assert len(inside) < 60_000
        heights = [
            [columns(row) for row in part.splitlines()] for part in inside.split("\n\n") if part.startswith("| ")
        ]
        assert all(len(set(widths)) == 1 for widths in heights), inside
        assert len(heights) == (0 if block.inline else 1), inside
    assert outside == before


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_run_that_is_killed_leaves_whole_pages(project: Project, when: str) -> None:
    """SIGKILL when a page is about to be renamed: each page is the old or the new one, and the next run goes on."""
    project.page(SOURCE, "README.md")
    project.page(SOURCE)
    old = project.content()
    program = f"""
import os, sys
real, calls = os.replace, []
def replace(*arguments):
    calls.append(arguments)
    if len(calls) == {1 if when == "before" else 2}:
        os.kill(os.getpid(), 9)
    return real(*arguments)
os.replace = replace
from perf.__main__ import main
main(["docs", "--root", sys.argv[1]])
"""
    done = subprocess.run([sys.executable, "-c", program, project.folder], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    left = {name: data for name, data in project.content().items() if not name.endswith(".tmp")}
    changed = [name for name in old if left[name] != old[name]]
    assert changed == ([] if when == "before" else ["README.md"])
    assert left.keys() == old.keys()
    assert project.docs() == 0
    assert project.docs("--check") == 0
