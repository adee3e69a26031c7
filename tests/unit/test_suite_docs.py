"""docs/suite-files.md says what the loader does: its example loads, its table and its error are the loader's own."""

import re
from pathlib import Path

import pytest

from perf.suite_file import SuiteError, parse, reference

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "suite-files.md").read_text(encoding="utf-8")
SOURCE = Path("night.toml")


def block(language: str) -> str:
    """The first fenced block of that language."""
    found = re.search(rf"^```{language}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_a_suite_with_the_ids_that_the_text_names() -> None:
    suite = parse(block("toml"), SOURCE)
    ids = [*(case.id for case in suite.cases), *(relation.id for relation in suite.relations)]
    assert "nightly/eagle3/c008" in ids
    assert "nightly/expect/baseline-of-eagle3/saturation" in ids
    for name in ("nightly/eagle3/c008", "nightly/expect/baseline-of-eagle3/saturation"):
        assert f"`{name}`" in DOCUMENT
    assert [variant.speculative for variant in suite.variants] == [False, True]


def test_a_relation_with_a_factor_has_the_id_that_the_text_names() -> None:
    more = '[[expect]]\nvariant = "eagle3"\nat_least = 1.2\nof = ["baseline"]\nat = 8\n'
    relation = parse(block("toml") + more, SOURCE).relations[-1]
    assert f"`{relation.id}`" in DOCUMENT


def test_the_example_shows_every_key() -> None:
    shown = set(re.findall(r"^(?:# )?([a-z_]+) = ", block("toml"), re.MULTILINE))
    assert shown == {key.rpartition(".")[2] for key, _, _ in reference()}


def test_the_keys_that_the_example_leaves_out_are_allowed_where_it_says_so() -> None:
    text = block("toml")
    parse(text.replace("# rig = ", "rig = "), SOURCE)
    parse(
        re.sub(r"^(min_requests|requests_per_stream) ", r"# \1 ", text, flags=re.MULTILINE).replace(
            "# requests_per_level", "requests_per_level"
        ),
        SOURCE,
    )
    parse(text.replace("api_key_env", "# api_key_env").replace("# api_key_file", "api_key_file"), SOURCE)


def test_the_table_is_the_loaders_own() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) ?\| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert [(key, default.strip("`"), allowed) for key, default, allowed in rows] == list(reference())


def test_the_error_that_is_shown_is_what_the_loader_says() -> None:
    with pytest.raises(SuiteError) as caught:
        parse(block("toml").replace("[1, 8, 32]", "[1, true]"), SOURCE)
    assert str(caught.value) == block("text").strip()


def test_the_least_suite_is_what_the_text_says() -> None:
    least = """
[suite]
name = "least"
[workload]
concurrency = [1]
output_tokens = 8
[variants.only]
command = ["serve", "{port}"]
"""
    assert [case.id for case in parse(least, SOURCE).cases] == ["least/only/c001"]
    optional = ("expect", "reference")  # tables with required keys that may be left out as a whole
    required = {key for key, default, _ in reference() if default == "required" and not key.startswith(optional)}
    assert required == {"suite.name", "workload.concurrency", "workload.output_tokens"}
    for key in required:
        assert f"`{key}`" in DOCUMENT
