"""The shipped suites ask what they say they ask, of servers that can be measured, and their page tells of each."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from perf.measured import SIMULATED_ACCEPTANCE
from perf.suite import Suite, Variant
from perf.suite_file import load
from tests.emulated.test_published_figures import FLAGS, PUBLISHED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "shipped-suites.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
SUITES = {path.stem: load(path) for path in sorted((ROOT / "perf" / "suites").glob("*.toml"))}
VARIANTS = [(suite, variant) for suite in SUITES.values() for variant in suite.variants]

#: What SGLang 0.5.23 lets a speculative server run at once where it is not told (arg_groups/speculative_hook.py).
SPECULATIVE_DEFAULT = 48

every_suite = pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
every_gpu_suite = pytest.mark.parametrize(
    "suite", [each for each in SUITES.values() if each.requires == "gpu"], ids=lambda suite: suite.name
)
every_sglang_server = pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, id=f"{suite.name}/{variant.name}")
        for suite, variant in VARIANTS
        if "sglang.launch_server" in variant.command
    ],
)


def variant_of(suite: str, name: str) -> Variant:
    return next(each for each in SUITES[suite].variants if each.name == name)


def flags(variant: Variant) -> dict[str, str]:
    """The flags of a command and their values, empty for a switch; of two equal ones the last counts, as in SGLang."""
    found: dict[str, str] = {}
    for place, part in enumerate(variant.command):
        if part.startswith("--"):
            rest = variant.command[place + 1 :]
            found[part] = rest[0] if rest and not rest[0].startswith("--") else ""
    return found


def model_paths(suite: Suite) -> set[str]:
    return {part for variant in suite.variants for part in variant.command if part.startswith("/models/")}


@every_suite
def test_a_suite_is_asked_for_by_the_name_of_its_file(suite: Suite) -> None:
    assert suite.name == suite.source.stem


@every_gpu_suite
def test_a_suite_for_gpus_starts_sglang_and_is_selected_by_the_marker_gpu(suite: Suite) -> None:
    assert suite.marker == "gpu"
    for variant in suite.variants:
        assert variant.command[:3] == ("{python}", "-m", "sglang.launch_server")
        assert int(flags(variant).get("--tp", 1)) == suite.gpus


@every_sglang_server
def test_a_server_is_reached_from_this_machine_only_and_tells_its_counters(variant: Variant) -> None:
    told = flags(variant)
    assert told["--host"] == "127.0.0.1"
    assert told["--port"] == "{port}"
    assert told["--enable-metrics"] == told["--enable-cache-report"] == ""


@every_suite
def test_a_suite_reaches_its_levels_or_says_that_it_does_not(suite: Suite) -> None:
    reached = all(suite.workload.requests(level) >= level for level in suite.workload.levels)
    assert suite.advisory is not reached


@every_gpu_suite
def test_the_servers_of_a_suite_run_equally_many_requests_at_once_and_all_that_are_in_flight(suite: Suite) -> None:
    (told,) = {flags(variant).get("--max-running-requests") for variant in suite.variants}
    in_flight = max(min(level, suite.workload.requests(level)) for level in suite.workload.levels)
    assert int(told or SPECULATIVE_DEFAULT) >= in_flight


def test_the_published_protocol_asks_thirty_requests_of_512_tokens_at_every_level() -> None:
    suite = SUITES["kimi-published-protocol"]
    assert suite.workload.levels == (1, 2, 5, 10, 30, 70, 100, 250)
    for level in suite.workload.levels:
        assert (suite.workload.requests(level), suite.workload.tokens(level)) == (30, 512)


@pytest.mark.parametrize("name", ["baseline", "eagle3"])
def test_the_published_protocol_asks_the_servers_of_the_gated_suite(name: str) -> None:
    gated = flags(variant_of("kimi-k2.5-int4", name))
    assert gated.pop("--max-running-requests")
    assert flags(variant_of("kimi-published-protocol", name)) == gated


def test_the_overlap_variant_differs_from_eagle3_by_a_chain_of_drafts_and_the_variable_of_older_versions() -> None:
    tree, chain = (variant_of("kimi-k2.5-int4", name) for name in ("eagle3", "eagle3-overlap"))
    changed = {"--speculative-eagle-topk": "1", "--speculative-num-draft-tokens": "3"}
    assert flags(chain) == {**flags(tree), **changed}
    assert flags(tree) != flags(chain)
    assert chain.env == (*tree.env, ("SGLANG_ENABLE_SPEC_V2", "1"))
    assert replace(chain, name=tree.name, command=tree.command, env=tree.env) == tree


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("kimi-k2.5-int4", "eagle3-overlap"),
        ("small-dense", "standalone"),
        ("sglang-cpu-speculative", "eagle3-overlap"),
        ("sglang-cpu-speculative", "adaptive"),
    ],
)
def test_a_chain_of_drafts_is_one_token_longer_than_its_steps_as_sglang_would_make_it(suite: str, name: str) -> None:
    told = flags(variant_of(suite, name))
    assert told["--speculative-eagle-topk"] == "1"
    assert int(told["--speculative-num-draft-tokens"]) == int(told["--speculative-num-steps"]) + 1


def test_the_plain_kimi_is_held_against_the_better_of_the_speculative_ones_at_saturation() -> None:
    suite = SUITES["kimi-k2.5-int4"]
    (relation,) = suite.relations
    assert (relation.variant, relation.at_least, relation.level) == ("baseline", 1.0, None)
    assert set(relation.of) == {variant.name for variant in suite.variants if variant.speculative}


def test_the_same_output_is_expected_of_servers_that_differ_by_their_drafts() -> None:
    expected = {name: each for name, suite in SUITES.items() for each in suite.same_outputs}
    assert {"rehearsal", "kimi-k2.5-int4"} <= set(expected)
    for name, each in expected.items():
        speculate = [variant_of(name, variant).speculative for variant in each.variants]
        assert speculate == [False, *(True for _ in each.variants[1:])]
        assert not any(SIMULATED_ACCEPTANCE in dict(variant_of(name, variant).env) for variant in each.variants)
    assert expected["rehearsal"].at_least == 1


@every_suite
def test_acceptance_is_pinned_where_the_weights_are_random_and_nowhere_else(suite: Suite) -> None:
    for variant in suite.variants:
        told = flags(variant)
        pinned = dict(variant.env).get(SIMULATED_ACCEPTANCE)
        assert (pinned is not None) is (variant.speculative and told.get("--load-format") == "dummy")
        if pinned is not None:
            assert 1 < float(pinned) <= int(told["--speculative-num-steps"]) + 1


def test_a_server_with_pinned_acceptance_says_what_it_drafted_and_not_one_token_for_ever() -> None:
    assert dict(variant_of("small-dense", "standalone").env)["SGLANG_SIMULATE_ACC_TOKEN_MODE"] == "real-draft-token"


def test_the_emulated_figures_are_asked_at_the_published_levels_of_the_servers_that_are_held_to_them() -> None:
    suite = SUITES["published-emulated"]
    assert suite.emulated
    assert {variant.name for variant in suite.variants} == set(PUBLISHED)
    for name, figures in PUBLISHED.items():
        assert set(suite.workload.levels) == set(figures)
        told = flags(variant_of(suite.name, name))
        asked = list(FLAGS[name])
        assert {flag: told[flag] for flag in asked[::2]} == dict(zip(asked[::2], asked[1::2], strict=True))
        assert ("--speculative-algorithm" in told) is ("--speculative-algorithm" in asked)
    for level in suite.workload.levels:
        assert (suite.workload.requests(level), suite.workload.tokens(level)) == (30, 512)
    assert [relation.level for relation in suite.relations] == list(suite.workload.levels)


def test_the_page_has_a_section_for_every_shipped_suite_and_for_no_other() -> None:
    assert set(SECTIONS) == set(SUITES)


@every_suite
def test_the_page_says_how_a_suite_is_asked_for(suite: Suite, pytestconfig: pytest.Config) -> None:
    named = "" if suite.name in pytestconfig.getini("perf_suite") else f" --perf-suite={suite.name}"
    assert f"\n`pytest -m {suite.marker or 'perf'}{named}`\n" in SECTIONS[suite.name]


@every_suite
def test_the_page_says_what_a_suite_answers_needs_and_does_not_answer(suite: Suite) -> None:
    section = SECTIONS[suite.name]
    for word in ("Answers", "Needs", "Does not answer"):
        assert f"\n- **{word}:** " in section
    needs = section.partition("**Needs:**")[2].partition("**Does not answer:**")[0]
    assert re.findall(r"(\d+) GPU", needs) == ([str(suite.gpus)] if suite.gpus else [])


@every_suite
def test_the_page_names_the_paths_of_models_that_are_to_be_edited(suite: Suite) -> None:
    assert set(re.findall(r"/models/[\w.-]+", SECTIONS[suite.name])) == model_paths(suite)
