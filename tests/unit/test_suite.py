"""A suite file says exactly what it means, or an error names the file, the key, what was seen and what is allowed."""

import os
import stat
import string
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.suite import Suite, Variant
from perf.suite_file import MAX_MISTAKES, MAX_SUITE_BYTES, SuiteError, load, parse
from perf.workload import Message, Prompt

ROOT = Path(__file__).parents[2]
SOURCE = Path("night.toml")

SUITE = '[suite]\nname = "night"\n'
WORKLOAD = "[workload]\nconcurrency = [1, 16]\noutput_tokens = 32\n"
PLAIN = '[variants.plain]\ncommand = ["serve", "--port", "{port}"]\n'
DRAFT = '[variants.draft]\nextends = "plain"\nargs = ["--speculative-algorithm", "EAGLE3"]\n'
MINIMAL = SUITE + WORKLOAD + PLAIN
PAIR = MINIMAL + DRAFT


def read(text: str) -> Suite:
    return parse(text, SOURCE)


def refusal(text: str) -> str:
    with pytest.raises(SuiteError) as caught:
        read(text)
    return str(caught.value)


def variant(text: str, name: str) -> Variant:
    return next(each for each in read(text).variants if each.name == name)


def in_suite(line: str) -> str:
    return SUITE + line + "\n" + WORKLOAD + PLAIN


def in_workload(line: str) -> str:
    key = line.partition("=")[0].strip()
    kept = "".join(each for each in WORKLOAD.splitlines(keepends=True) if not each.startswith(f"{key} "))
    return SUITE + kept + line + "\n" + PLAIN


def in_gate(line: str) -> str:
    return MINIMAL + f"[gate]\n{line}\n"


def in_variant(line: str) -> str:
    return MINIMAL + line + "\n"


def expecting(lines: str) -> str:
    return PAIR + f"[[expect]]\n{lines}\n"


#: A variant that a reference build can run, too.
WITH_PYTHON = MINIMAL.replace('"serve"', '"{python}", "-m", "serve"') + 'python = "bin/new"\n'


def referring(lines: str) -> str:
    return WITH_PYTHON + f"[reference]\n{lines}\n"


LEVELS_ALLOWED = "whole numbers from 1 to 100000, none twice"
TOKENS_ALLOWED = "a whole number from 1 to 10000000, or a table"

#: What is written, the dotted key of the error, and what else the error says: what was seen, what is allowed.
MISTAKES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # The whole file.
    "not TOML": (MINIMAL + "gate = = 3", "not TOML", ("line 8",)),
    "a key twice": (in_suite('name = "day"'), "not TOML", ("line 3",)),
    "a table twice": (MINIMAL + PLAIN, "not TOML", ("plain", "twice")),
    "thousands of digits": (in_workload(f"seed = {'9' * 5000}"), "not TOML", ("digits",)),
    "nested a thousandfold": (in_variant(f"args = {'[' * 3000}{']' * 3000}"), "not TOML", ("recursion",)),
    "tables nested a thousandfold": (
        in_variant("model." + "a." * 20_000 + "b = 1"),
        "variants.plain.model",
        ("too large to be shown",),
    ),
    "empty": ("", "suite", ("missing",)),
    "no workload": (SUITE + PLAIN, "workload", ("missing",)),
    "no variants": (SUITE + WORKLOAD, "variants", ("missing", "at least one")),
    "an empty table of variants": (SUITE + WORKLOAD + "[variants]\n", "variants", ("seen {}", "at least one")),
    "an unknown table": (
        MINIMAL + "[gates]\nmargin = 0.1\n",
        "gates",
        ("unknown key", "gate, reference, suite, variants, workload"),
    ),
    "a text for a table": ('gate = "strict"\n' + MINIMAL, "gate", ("'strict'", "a table")),
    # [suite]
    "no name": ("[suite]\n" + WORKLOAD + PLAIN, "suite.name", ("missing", "a name: letters")),
    "a number for a name": (MINIMAL.replace('"night"', "7"), "suite.name", ("seen 7", "a name: letters")),
    "a name with a slash": (MINIMAL.replace("night", "a/b"), "suite.name", ("'a/b'", "a name: letters")),
    "a name of dots": (MINIMAL.replace("night", ".."), "suite.name", ("'..'", "the first a letter or digit")),
    "a name with a newline": (MINIMAL.replace("night", "a\\n"), "suite.name", (r"'a\n'", "a name: letters")),
    "a name too long": (MINIMAL.replace("night", "n" * 101), "suite.name", ("nnn...", "at most 100")),
    "an empty name": (MINIMAL.replace("night", ""), "suite.name", ("''", "a name: letters")),
    "requires a TPU": (in_suite('requires = "tpu"'), "suite.requires", ("'tpu'", '"gpu" or "cpu"')),
    "GPUs on a CPU": (
        in_suite('requires = "cpu"\ngpus = 2'),
        "suite.gpus",
        ("seen 2", '1 or more where requires is "gpu"'),
    ),
    "a GPU suite without one": (in_suite('requires = "gpu"\ngpus = 0'), "suite.gpus", ("seen 0", "1 or more")),
    "half a GPU": (in_suite('requires = "gpu"\ngpus = 0.5'), "suite.gpus", ("seen 0.5", "a whole number")),
    "true GPUs": (in_suite('requires = "gpu"\ngpus = true'), "suite.gpus", ("seen true", "a whole number")),
    "an unknown marker": (in_suite('marker = "slow"'), "suite.marker", ("'slow'", "gpu, sglang_cpu, rehearsal")),
    "an unknown rig": (in_suite('rig = "mine"'), "suite.rig", ("'mine'", '"emulated"')),
    "an unknown key of the suite": (
        in_suite("gpu = 8"),
        "suite.gpu",
        ("unknown key", "gpus, marker, name, requires, rig"),
    ),
    # [workload]
    "true is not a level": (
        in_workload("concurrency = [1, true]"),
        "workload.concurrency[1]",
        ("seen true", LEVELS_ALLOWED),
    ),
    "a level of 1.0": (in_workload("concurrency = [1.0]"), "workload.concurrency[0]", ("seen 1.0", LEVELS_ALLOWED)),
    "a level of 0": (in_workload("concurrency = [0]"), "workload.concurrency[0]", ("seen 0", LEVELS_ALLOWED)),
    "a level too high": (in_workload("concurrency = [100001]"), "workload.concurrency[0]", ("100001", LEVELS_ALLOWED)),
    "a level as text": (in_workload('concurrency = ["16"]'), "workload.concurrency[0]", ("'16'", LEVELS_ALLOWED)),
    "a level twice": (in_workload("concurrency = [1, 16, 1]"), "workload.concurrency", ("1 twice", LEVELS_ALLOWED)),
    "no level": (in_workload("concurrency = []"), "workload.concurrency", ("seen []", LEVELS_ALLOWED)),
    "a level alone": (in_workload("concurrency = 16"), "workload.concurrency", ("seen 16", LEVELS_ALLOWED)),
    "no concurrency": (
        SUITE + "[workload]\noutput_tokens = 8\n" + PLAIN,
        "workload.concurrency",
        ("missing", LEVELS_ALLOWED),
    ),
    "no lengths": (
        SUITE + "[workload]\nconcurrency = [1]\n" + PLAIN,
        "workload.output_tokens",
        ("missing", TOKENS_ALLOWED),
    ),
    "no tokens": (in_workload("output_tokens = 0"), "workload.output_tokens", ("seen 0", TOKENS_ALLOWED)),
    "tokens of true": (in_workload("output_tokens = true"), "workload.output_tokens", ("seen true", TOKENS_ALLOWED)),
    "tokens beyond all numbers": (
        in_workload(f"output_tokens = 0x{'9' * 5000}"),
        "workload.output_tokens",
        ("too large to be shown", TOKENS_ALLOWED),
    ),
    "a length for a level that is not there": (
        in_workload('output_tokens = { default = 8, "7" = 3 }'),
        "workload.output_tokens.7",
        ("a level of this suite (1, 16)",),
    ),
    "a length for a level written otherwise": (
        in_workload("output_tokens = { default = 8, 01 = 3 }"),
        "workload.output_tokens.01",
        ("a level of this suite (1, 16)",),
    ),
    "a level without a length": (
        in_workload("output_tokens = { 1 = 3 }"),
        "workload.output_tokens",
        ("level 16", "`default`, or every level"),
    ),
    "no lengths in the table": (in_workload("output_tokens = {}"), "workload.output_tokens", ("level 1", "`default`")),
    "a length as text": (
        in_workload('output_tokens = { default = "long" }'),
        "workload.output_tokens",
        ("'long'", TOKENS_ALLOWED),
    ),
    "a negative length of a level": (
        in_workload("output_tokens = { default = 8, 16 = -1 }"),
        "workload.output_tokens.16",
        ("seen -1", TOKENS_ALLOWED),
    ),
    "both ways to count requests, min": (
        in_workload("requests_per_level = 30\nmin_requests = 4"),
        "workload.min_requests",
        ("requests_per_level", "one or the other"),
    ),
    "both ways to count requests, stream": (
        in_workload("requests_per_level = 30\nrequests_per_stream = 4"),
        "workload.requests_per_stream",
        ("requests_per_level", "one or the other"),
    ),
    "no requests": (in_workload("requests_per_level = 0"), "workload.requests_per_level", ("seen 0", "at least 1")),
    "no requests per stream": (
        in_workload("requests_per_stream = 0"),
        "workload.requests_per_stream",
        ("seen 0", "at least 1"),
    ),
    "no least requests": (in_workload("min_requests = -2"), "workload.min_requests", ("seen -2", "at least 1")),
    "no rounds": (in_workload("rounds = 0"), "workload.rounds", ("seen 0", "from 1 to 1000")),
    "negative warm-up": (in_workload("warmup_requests = -1"), "workload.warmup_requests", ("seen -1", "from 0")),
    "a negative seed": (in_workload("seed = -1"), "workload.seed", ("seen -1", "at least 0")),
    "an unknown endpoint": (
        in_workload('endpoint = "generate"'),
        "workload.endpoint",
        ("'generate'", '"chat" or "completions"'),
    ),
    "temperature of true": (in_workload("temperature = true"), "workload.temperature", ("seen true", "from 0 to 2")),
    "temperature that is no number": (
        in_workload("temperature = nan"),
        "workload.temperature",
        ("seen nan", "from 0 to 2"),
    ),
    "too hot": (in_workload("temperature = 2.1"), "workload.temperature", ("seen 2.1", "from 0 to 2")),
    "a level that need not": (
        in_workload("level_reached = false"),
        "workload.level_reached",
        ("seen false", '"not required"'),
    ),
    "a start before the round": (
        in_workload("start_spread_s = -1"),
        "workload.start_spread_s",
        ("seen -1", "0 to 600"),
    ),
    "starts spread over hours": (
        in_workload("start_spread_s = 601"),
        "workload.start_spread_s",
        ("seen 601", "to 600"),
    ),
    "no process": (in_workload("client_processes = 0"), "workload.client_processes", ("seen 0", "from 1 to 64")),
    "an army": (in_workload("client_processes = 65"), "workload.client_processes", ("seen 65", "from 1 to 64")),
    "half a process": (
        in_workload("client_processes = 1.5"),
        "workload.client_processes",
        ("seen 1.5", "from 1 to 64"),
    ),
    "a prompt set that is not there": (
        in_workload('prompts = "poems"'),
        "workload.prompts",
        ("'poems'", "neither the file", "coding-agentic"),
    ),
    "an empty name of a prompt set": (in_workload('prompts = ""'), "workload.prompts", ("''", "a shipped prompt set")),
    "a prompt set with a zero byte": (in_workload('prompts = "a\\u0000b"'), "workload.prompts", (r"'a\x00b'",)),
    "a prompt set's name too long": (
        in_workload(f'prompts = "{"p" * 5000}"'),
        "workload.prompts",
        ("too long", "path of a file"),
    ),
    "an unknown key of the workload": (in_workload("levels = [1]"), "workload.levels", ("unknown key", "concurrency")),
    # [gate]
    "a margin in percent": (in_gate("margin = 3"), "gate.margin", ("seen 3", "0.03 for 3 %")),
    "a margin of text": (in_gate('margin = "3%"'), "gate.margin", ("'3%'", "0.03 for 3 %")),
    "a margin far below any noise": (
        in_gate("margin = 0.00009"),
        "gate.margin",
        ("seen 9e-05", "allowed: a relative loss from 0.0001 to below 1, such as 0.03 for 3 %"),
    ),
    "no margin": (in_gate("margin = 0"), "gate.margin", ("seen 0", "0.03 for 3 %")),
    "a margin that is no number": (in_gate("margin = nan"), "gate.margin", ("seen nan", "0.03 for 3 %")),
    "an alpha of a coin": (in_gate("alpha = 0.5"), "gate.alpha", ("seen 0.5", "between 0 and 0.5")),
    "certain power": (in_gate("power = 1.0"), "gate.power", ("seen 1.0", "below 1")),
    "a budget without end": (in_gate("budget_minutes = inf"), "gate.budget_minutes", ("seen inf", "more than 0")),
    "no budget": (in_gate("budget_minutes = 0"), "gate.budget_minutes", ("seen 0", "more than 0")),
    "no launch": (in_gate("max_launches = 0"), "gate.max_launches", ("seen 0", "from 1 to 1000")),
    "an unknown key of the gate": (
        in_gate("threshold = 3"),
        "gate.threshold",
        ("unknown key", "alpha, budget_minutes"),
    ),
    # [variants.NAME]
    "no command": (SUITE + WORKLOAD + "[variants.plain]\n", "variants.plain.command", ("missing", "{port}")),
    "an empty command": (
        SUITE + WORKLOAD + "[variants.plain]\ncommand = []\n",
        "variants.plain.command",
        ("seen []", "{port}"),
    ),
    "a command without a port": (
        SUITE + WORKLOAD + '[variants.plain]\ncommand = ["serve"]\n',
        "variants.plain.command",
        ("seen a list of 1 without {port}", "{port}"),
    ),
    "a command as one text": (
        SUITE + WORKLOAD + '[variants.plain]\ncommand = "serve {port}"\n',
        "variants.plain.command",
        ("seen a text of 12 characters", "a list"),
    ),
    "an argument that is a number": (
        in_variant('args = ["--tp", 8]'),
        "variants.plain.args[1]",
        ("seen a value of type int", "a list of texts"),
    ),
    "an environment value that is a number": (
        in_variant("env = { A = 1 }"),
        "variants.plain.env.A",
        ("seen a value of type int", "a table of texts"),
    ),
    "a bad name of an environment variable": (
        in_variant('env = { "A=B" = "1" }'),
        "variants.plain.env.'A=B'",
        ("seen a text of 1 characters", "letters, digits and '_'"),
    ),
    "a relative ready path": (
        in_variant('ready_path = "health"'),
        "variants.plain.ready_path",
        ("'health'", 'begins with "/"'),
    ),
    "no time to get ready": (in_variant("ready_timeout_s = 0"), "variants.plain.ready_timeout_s", ("seen 0", "86400")),
    "a secret for the name of a variable": (
        in_variant('api_key_env = "sk-123"'),
        "variants.plain.api_key_env",
        ("the name of an environment variable",),
    ),
    "both ways to give a key": (
        in_variant('api_key_env = "KEY"\napi_key_file = "key"'),
        "variants.plain.api_key_env",
        ("beside api_key_file", "one of the two"),
    ),
    "speculative by text": (
        in_variant('speculative = "yes"'),
        "variants.plain.speculative",
        ("'yes'", "true or false"),
    ),
    "no throughput expected": (
        in_variant("expected_tok_s = { 1 = 0 }"),
        "variants.plain.expected_tok_s.1",
        ("seen 0", "more than 0"),
    ),
    "a throughput expected as text": (
        in_variant('expected_tok_s = { 16 = "fast" }'),
        "variants.plain.expected_tok_s.16",
        ("'fast'", "for the forecast of `plan` alone"),
    ),
    "a throughput expected without end": (
        in_variant("expected_tok_s = { 1 = inf }"),
        "variants.plain.expected_tok_s.1",
        ("seen inf",),
    ),
    "a throughput expected at no level": (
        in_variant("expected_tok_s = { saturation = 773 }"),
        "variants.plain.expected_tok_s.saturation",
        ("a level, a whole number from 1 to 100000",),
    ),
    "a throughput expected at level 0": (
        in_variant("expected_tok_s = { 0 = 773 }"),
        "variants.plain.expected_tok_s.0",
        ("a level",),
    ),
    "a throughput expected beyond all levels": (
        in_variant("expected_tok_s = { 100001 = 773 }"),
        "variants.plain.expected_tok_s.100001",
        ("a level",),
    ),
    "a throughput expected, alone": (
        in_variant("expected_tok_s = 773"),
        "variants.plain.expected_tok_s",
        ("seen 773", "a table of levels"),
    ),
    "an unknown key of a variant": (in_variant('arg = "--tp"'), "variants.plain.arg", ("unknown key", "api_key_env")),
    "a variant extends nobody": (in_variant('extends = "base"'), "variants.plain.extends", ("'base'", "one of plain")),
    "a variant extends itself": (
        in_variant('extends = "plain"'),
        "variants.plain.extends",
        ("plain -> plain", "a chain that ends"),
    ),
    "variants in a circle": (
        PAIR.replace("[variants.draft]", "[variants.draft]\nready_timeout_s = 5").replace(
            "[variants.plain]", '[variants.plain]\nextends = "draft"'
        ),
        "variants.plain.extends",
        ("plain -> draft -> plain", "a chain that ends"),
    ),
    "a variant named expect": (MINIMAL + PLAIN.replace("plain", "expect"), "variants.expect", ("any name but expect",)),
    "a variant named crossover": (
        MINIMAL + PLAIN.replace("plain", "crossover"),
        "variants.crossover",
        ("any name but",),
    ),
    "a variant with a slash": (MINIMAL + PLAIN.replace("plain", '"a/b"'), "variants.'a/b'", ("a name: letters",)),
    # [[expect]]
    "an expectation of nobody": (
        expecting('variant = "fast"\nof = ["draft"]'),
        "expect[0].variant",
        ("'fast'", "plain, draft"),
    ),
    "an expectation without others": (
        expecting('variant = "plain"\nof = []'),
        "expect[0].of",
        ("seen []", "other variants"),
    ),
    "an expectation of itself": (
        expecting('variant = "plain"\nof = ["plain"]'),
        "expect[0].of",
        ("['plain']", "none twice: draft"),
    ),
    "an expectation of one twice": (
        expecting('variant = "plain"\nof = ["draft", "draft"]'),
        "expect[0].of",
        ("['draft', 'draft']", "none twice: draft"),
    ),
    "no variant": (expecting('of = ["draft"]'), "expect[0].variant", ("missing", "the name of a variant")),
    "an expectation at a level that is not there": (
        expecting('variant = "plain"\nof = ["draft"]\nat = 7'),
        "expect[0].at",
        ("seen 7", "a level of this suite (1, 16)"),
    ),
    "an expectation somewhere": (
        expecting('variant = "plain"\nof = ["draft"]\nat = "peak"'),
        "expect[0].at",
        ("'peak'", '"every level" or "saturation"'),
    ),
    "an expectation at true": (
        expecting('variant = "plain"\nof = ["draft"]\nat = true'),
        "expect[0].at",
        ("seen true", "a level"),
    ),
    "at least nothing": (
        expecting('variant = "plain"\nof = ["draft"]\nat_least = 0'),
        "expect[0].at_least",
        ("seen 0", "more than 0"),
    ),
    "one expectation twice": (
        expecting('variant = "plain"\nof = ["draft"]\n[[expect]]\nvariant = "plain"\nof = ["draft"]'),
        "expect",
        ("night/expect/plain-of-draft/saturation twice", "every expectation once"),
    ),
    "an expectation that is one table": (
        PAIR + '[expect]\nvariant = "plain"\n',
        "expect",
        ("{'variant': 'plain'}", "[[expect]]"),
    ),
    # [reference]
    "a reference without an interpreter": (WITH_PYTHON + "[reference]\n", "reference.python", ("missing", "the path")),
    "a reference that is a text": (
        'reference = "old"\n' + WITH_PYTHON,
        "reference",
        ("a text of 3 characters", "a table"),
    ),
    "a reference with an empty path": (referring('python = ""'), "reference.python", ("seen ''", "the path")),
    "an unknown key of the reference": (
        referring('python = "/opt/old"\nbuild = "1"'),
        "reference.build",
        ("unknown key", "env, python"),
    ),
    "a reference with a name of the environment that is none": (
        referring('python = "/opt/old"\nenv = { "A B" = "secret" }'),
        "reference.env.'A B'",
        ("a text of 6 characters", "merged into every variant's env"),
    ),
    "a reference with a number in its environment": (
        referring('python = "/opt/old"\nenv = { A = 12345 }'),
        "reference.env.A",
        ("a value of type int", "a table of texts"),
    ),
    "a reference that a variant would not run": (
        WITH_PYTHON + '[variants.other]\ncommand = ["serve", "{port}"]\n[reference]\npython = "/opt/old"\n',
        "variants.other.command",
        ("no {python} beside [reference]", "A against A"),
    ),
    "a reference that is a variant's own": (
        referring('python = "./bin/../bin/new"'),
        "reference.python",
        ("that of the variant plain too", "another than those of the variants", "A against A"),
    ),
    "a reference that is what runs pytest": (
        referring(f'python = "{sys.executable}"').replace('python = "bin/new"\n', ""),
        "reference.python",
        ("that of the variant plain too", "A against A"),
    ),
    "a crossover of one": (
        expecting('crossover = ["draft"]'),
        "expect[0].crossover",
        ("seen ['draft']", "two variants of this file"),
    ),
    "a crossover of three": (
        expecting('crossover = ["draft", "plain", "draft"]'),
        "expect[0].crossover",
        ("seen ['draft', 'plain', 'draft']", "two variants of this file"),
    ),
    "a crossover with itself": (
        expecting('crossover = ["draft", "draft"]'),
        "expect[0].crossover",
        ("seen ['draft', 'draft']", "two variants of this file: plain, draft"),
    ),
    "a crossover of nobody": (
        expecting('crossover = ["draft", "turbo"]'),
        "expect[0].crossover",
        ("seen ['draft', 'turbo']", "two variants of this file: plain, draft"),
    ),
    "a crossover that is a text": (
        expecting('crossover = "draft"'),
        "expect[0].crossover",
        ("seen 'draft'", "two variants of this file"),
    ),
    "a crossover of numbers": (
        expecting("crossover = [1, 16]"),
        "expect[0].crossover[0]",
        ("seen 1", "two variants of this file"),
    ),
    "a crossover at a level": (
        expecting('crossover = ["draft", "plain"]\nat = 16'),
        "expect[0].at",
        ("unknown key", "allowed here: crossover"),
    ),
    "the same output of one": (
        expecting('same_output = ["plain"]'),
        "expect[0].same_output",
        ("seen ['plain']", "two or more variants of this file", "the first the yardstick"),
    ),
    "the same output of one twice": (
        expecting('same_output = ["plain", "draft", "plain"]'),
        "expect[0].same_output",
        ("seen ['plain', 'draft', 'plain']", "none twice: plain, draft"),
    ),
    "the same output of nobody": (
        expecting('same_output = ["plain", "turbo"]'),
        "expect[0].same_output",
        ("seen ['plain', 'turbo']", "variants of this file, none twice: plain, draft"),
    ),
    "the same output of numbers": (
        expecting("same_output = [1, 16]"),
        "expect[0].same_output[0]",
        ("seen 1", "two or more variants of this file"),
    ),
    "the same output that is a text": (
        expecting('same_output = "plain"'),
        "expect[0].same_output",
        ("seen 'plain'", "two or more variants of this file"),
    ),
    "more than all outputs": (
        expecting('same_output = ["plain", "draft"]\nat_least = 1.5'),
        "expect[0].at_least",
        ("seen 1.5", "a share of its prompts, more than 0 and at most 1"),
    ),
    "the same output to no prompt": (
        expecting('same_output = ["plain", "draft"]\nat_least = 0'),
        "expect[0].at_least",
        ("seen 0", "a share of its prompts, more than 0 and at most 1"),
    ),
    "the same output at a level": (
        expecting('same_output = ["plain", "draft"]\nat = 16'),
        "expect[0].at",
        ("unknown key", "allowed here: at_least, same_output"),
    ),
    "the same output of a crossover": (
        expecting('crossover = ["plain", "draft"]\nsame_output = ["plain", "draft"]'),
        "expect[0].same_output",
        ("unknown key", "allowed here: crossover"),
    ),
    "one expectation of the same output twice": (
        expecting('same_output = ["plain", "draft"]\n[[expect]]\nsame_output = ["plain", "draft"]\nat_least = 0.5'),
        "expect",
        ("night/expect/same-output-of-plain-and-draft twice", "every expectation once"),
    ),
    "the second expectation of nobody": (
        expecting('crossover = ["draft", "plain"]\n[[expect]]\nvariant = "turbo"\nof = ["plain"]'),
        "expect[1].variant",
        ("'turbo'", "one of plain, draft"),
    ),
    "one crossover twice": (
        expecting('crossover = ["draft", "plain"]\n[[expect]]\ncrossover = ["draft", "plain"]'),
        "expect",
        ("night/expect/crossover-of-draft-and-plain twice", "every expectation once"),
    ),
}


@pytest.mark.parametrize(
    "text",
    [
        SUITE + WORKLOAD + '[variants.plain]\ncommand = "serve {port} --api-key hunter22"\n',
        SUITE + WORKLOAD + '[variants.plain]\ncommand = ["serve", "--api-key", "hunter22"]\n',
        'variants.plain = "serve {port} --api-key hunter22"\n' + SUITE + WORKLOAD,
        'variants = "hunter22"\n' + SUITE + WORKLOAD,
        in_variant('args = "--api-key=hunter22"'),
        in_variant('args = [["--api-key", "hunter22"]]'),
        in_variant('env = "API_KEY=hunter22"'),
        in_variant('env = { API_KEY = ["hunter22"] }'),
        in_variant('env = { "A=B" = "hunter22" }'),
        in_variant('api_key_env = "sk-hunter22"'),
        in_variant('api_key_file = ["hunter22"]'),
        WITH_PYTHON + '[[reference]]\nenv = { API_KEY = "hunter22" }\n',
        referring('python = "/opt/old"\nenv = { "A=B" = "hunter22" }'),
    ],
)
def test_what_may_hold_a_secret_is_refused_without_being_shown(text: str) -> None:
    message = refusal(text)
    assert "seen " in message
    assert "hunter22" not in message


@pytest.mark.parametrize(("text", "key", "fragments"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_with_its_file_its_key_what_was_seen_and_what_is_allowed(
    text: str, key: str, fragments: tuple[str, ...]
) -> None:
    message = refusal(text)
    lines = [line for line in message.splitlines() if line.startswith(f"{SOURCE}: {key}: ")]
    assert lines, message
    for fragment in fragments:
        assert fragment in lines[-1]


def test_every_mistake_of_a_file_is_named_at_once() -> None:
    message = refusal(SUITE + "[workload]\nconcurrency = [0]\n" + PLAIN + "tp = 8\n[gate]\nmargin = 3\n")
    for key in ("workload.concurrency[0]", "workload.output_tokens", "variants.plain.tp", "gate.margin"):
        assert f"{SOURCE}: {key}: " in message


def test_a_file_of_nothing_but_mistakes_does_not_flood_the_screen() -> None:
    message = refusal(in_variant(f"args = [{'1, ' * 5000}]"))
    assert len(message.splitlines()) == MAX_MISTAKES


HOSTILE = "\\u001b]0;owned\\u0007\\u001b[31m\\r\\n\\u202E\\u0000/../x"


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL.replace('"night"', f'"{HOSTILE}"'),
        MINIMAL + PLAIN.replace("plain", f'"{HOSTILE}"'),
        in_variant(f'"{HOSTILE}" = 1'),
        in_variant(f'extends = "{HOSTILE}"'),
        in_variant(f'env = {{ "{HOSTILE}" = "1" }}'),
        in_variant(f'env = {{ "{HOSTILE}" = 1 }}'),
        referring(f'python = "/opt/old"\nenv = {{ "{HOSTILE}" = "1" }}'),
        referring(f'python = "/opt/old"\n"{HOSTILE}" = "1"'),
        in_variant(f'[variants."{HOSTILE}"]\nextends = "{HOSTILE}"'),
        in_workload(f'output_tokens = {{ default = 8, "{HOSTILE}" = 1 }}'),
        in_workload(f'prompts = "{HOSTILE}"'),
        in_workload('prompts = "\\u001b[31m\\n\\u202e"'),
        expecting(f'variant = "{HOSTILE}"\nof = ["plain"]'),
        expecting(f'variant = "plain"\nof = ["{HOSTILE}"]'),
        MINIMAL + f'["{HOSTILE}"]\na = 1\n',
        MINIMAL + "\x1b[31m = 1\n",
    ],
)
def test_hostile_names_are_harmless_in_the_error_about_them(text: str) -> None:
    for line in refusal(text).split("\n"):
        assert line.isprintable()
        assert line.startswith(f"{SOURCE}: ")


def test_a_hostile_path_is_harmless_in_the_error_about_it(tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        load(tmp_path / "\x1b[31mred\nnight.toml")
    assert str(caught.value).isprintable()
    assert "No such file" in str(caught.value)


def test_a_minimal_suite_has_the_documented_defaults() -> None:
    suite = read(MINIMAL)
    work, gate, plain = suite.workload, suite.gate, suite.variants[0]
    assert (suite.requires, suite.gpus, suite.marker, suite.emulated) == ("cpu", 0, None, False)
    rig = read(in_suite('requires = "gpu"'))
    assert (rig.requires, rig.gpus, rig.marker) == ("gpu", 1, "gpu")
    assert work.prompt_set == "coding-agentic"
    assert len(work.prompts) > 1
    assert (work.requests_per_level, work.min_requests, work.requests_per_stream) == (None, 30, 4)
    assert (work.requests(1), work.requests(16)) == (30, 64)
    assert (work.rounds, work.warmup_requests, work.seed) == (1, 8, 20)
    assert (work.endpoint, work.temperature, work.level_must_be_reached) == ("chat", 0, True)
    assert (work.start_spread_s, work.client_processes) == (0, 1)
    assert (gate.margin, gate.alpha, gate.power) == (0.03, 0.01, 0.95)
    assert (gate.budget_minutes, gate.max_launches) == (None, None)
    assert (plain.python, plain.env, plain.model, plain.speculative) == (None, (), None, False)
    assert (plain.api_key_env, plain.api_key_file) == (None, None)
    assert (plain.ready_path, plain.ready_timeout_s) == ("/health", 1800)
    assert plain.expected_tok_s == ()
    assert (suite.reference, suite.expectations) == (None, ())
    assert not suite.advisory


def test_a_gpu_suite_asks_for_one_gpu_unless_it_says_more() -> None:
    assert read(in_suite('requires = "gpu"')).gpus == 1
    assert read(in_suite('requires = "gpu"\ngpus = 8')).gpus == 8


def test_a_suite_whose_levels_need_not_be_reached_is_advisory() -> None:
    suite = read(in_workload('level_reached = "not required"\nrequests_per_level = 30'))
    assert suite.advisory
    assert suite.workload.requests(16) == 30


DESIGN_SAMPLE = """
[suite]
name = "kimi-k2.5-int4"
requires = "gpu"
gpus = 8
marker = "gpu"

[workload]
prompts = "coding-agentic"
concurrency = [1, 2, 5, 10, 30, 70, 100, 250]
requests_per_level = 30
output_tokens = { default = 512, 250 = 256 }
rounds = 1
warmup_requests = 8
seed = 20
endpoint = "chat"
temperature = 0
level_reached = "not required"

[gate]
margin = 0.03
alpha = 0.01
power = 0.95
budget_minutes = 360
max_launches = 12

[variants.baseline]
command = ["{python}", "-m", "sglang.launch_server", "--model-path", "/models/Kimi-K2.5-INT4", "--tp", "8",
           "--enable-metrics", "--enable-cache-report", "--host", "127.0.0.1", "--port", "{port}"]
python = "/opt/sglang-candidate/bin/python"
env = { NCCL_PROTO = "LL" }
ready_path = "/health"
ready_timeout_s = 1800

[variants.eagle3]
extends = "baseline"
args = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/eagle3-kimi",
        "--speculative-num-steps", "2", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16"]
speculative = true

[[expect]]
variant = "baseline"
at_least = 1.0
of = ["eagle3"]
at = "saturation"
"""


def test_a_suite_that_uses_every_key_is_read_as_written() -> None:
    suite = read(DESIGN_SAMPLE)
    assert (suite.name, suite.requires, suite.gpus, suite.marker) == ("kimi-k2.5-int4", "gpu", 8, "gpu")
    assert suite.workload.levels == (1, 2, 5, 10, 30, 70, 100, 250)
    assert (suite.workload.tokens(100), suite.workload.tokens(250)) == (512, 256)
    assert (suite.gate.budget_minutes, suite.gate.max_launches) == (360, 12)
    baseline, eagle3 = suite.variants
    assert baseline.python == eagle3.python == "/opt/sglang-candidate/bin/python"
    assert eagle3.command[: len(baseline.command)] == baseline.command
    assert eagle3.command[len(baseline.command) :][:2] == ("--speculative-algorithm", "EAGLE3")
    assert (baseline.speculative, eagle3.speculative) == (False, True)
    assert [relation.id for relation in suite.relations] == ["kimi-k2.5-int4/expect/baseline-of-eagle3/saturation"]


# Inheritance.

FAMILY = (
    SUITE
    + WORKLOAD
    + """
[variants.youngest]
extends = "middle"
args = ["--three"]
env = { B = "youngest", C = "youngest" }
ready_path = "/v1/models"

[variants.middle]
extends = "oldest"
args = ["--two"]
env = { B = "middle" }
python = "/opt/middle/python"
api_key_file = "key.txt"

[variants.oldest]
command = ["serve", "{port}"]
args = ["--one"]
env = { A = "oldest", B = "oldest" }
python = "/opt/oldest/python"
ready_timeout_s = 60
model = "tiny"
api_key_env = "KEY"
speculative = true
expected_tok_s = { 250 = 773, 1 = 92.7 }

[variants.other]
extends = "oldest"
command = ["other", "{port}"]
speculative = false
expected_tok_s = { 2 = 100 }
"""
)


def test_arguments_append_from_the_oldest_variant_to_the_youngest() -> None:
    assert variant(FAMILY, "youngest").command == ("serve", "{port}", "--one", "--two", "--three")


def test_the_environment_merges_by_name_and_the_youngest_wins() -> None:
    assert dict(variant(FAMILY, "youngest").env) == {"A": "oldest", "B": "youngest", "C": "youngest"}
    assert dict(variant(FAMILY, "oldest").env) == {"A": "oldest", "B": "oldest"}


def test_everything_else_replaces_and_is_inherited() -> None:
    youngest = variant(FAMILY, "youngest")
    assert youngest.python == "/opt/middle/python"
    assert (youngest.ready_path, youngest.ready_timeout_s) == ("/v1/models", 60)
    assert (youngest.model, youngest.speculative) == ("tiny", True)
    assert youngest.expected_tok_s == ((1, 92.7), (250, 773.0))
    other = variant(FAMILY, "other")
    assert other.command == ("other", "{port}", "--one")
    assert not other.speculative
    assert other.expected_tok_s == ((2, 100.0),)


def test_one_way_to_give_a_key_replaces_the_other() -> None:
    oldest, youngest = variant(FAMILY, "oldest"), variant(FAMILY, "youngest")
    assert (oldest.api_key_env, oldest.api_key_file) == ("KEY", None)
    assert (youngest.api_key_env, youngest.api_key_file) == (None, "key.txt")


def test_a_variant_does_not_change_the_one_it_extends() -> None:
    alone = FAMILY[: FAMILY.index("[variants.youngest]")] + FAMILY[FAMILY.index("[variants.oldest]") :]
    assert variant(FAMILY, "oldest") == variant(alone, "oldest")


def test_the_reference_build_runs_a_variant_with_its_own_interpreter_and_more_environment_and_nothing_else() -> None:
    suite = read(
        WITH_PYTHON
        + 'env = { A = "variant", B = "variant" }\nmodel = "tiny"\n[variants.other]\nextends = "plain"\n'
        + '[reference]\npython = "/opt/old/bin/python"\nenv = { B = "reference", C = "reference" }\n'
    )
    assert suite.reference is not None
    plain, other = suite.variants
    running = suite.reference.running(plain)
    assert running == replace(plain, python="/opt/old/bin/python", env=running.env)
    assert dict(running.env) == {"A": "variant", "B": "reference", "C": "reference"}
    assert dict(plain.env) == {"A": "variant", "B": "variant"}
    assert suite.reference.running(other) == replace(running, name="other")


def test_two_environments_of_one_interpreter_are_two_builds(tmp_path: Path) -> None:
    """As `venv` makes them: their interpreters are links to one and the same."""
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").symlink_to(sys.executable)
    text = WITH_PYTHON.replace("bin/new", "new/python") + '[reference]\npython = "old/python"\n'
    assert parse(text, tmp_path / "night.toml").reference is not None


def test_the_port_may_come_with_the_arguments() -> None:
    text = SUITE + WORKLOAD + '[variants.plain]\ncommand = ["serve"]\nargs = ["--port={port}"]\n'
    assert read(text).variants[0].command == ("serve", "--port={port}")


@pytest.mark.parametrize(
    ("args", "speculative"),
    [
        ('["--speculative-algorithm", "EAGLE3"]', True),
        ('["--speculative-algorithm=NGRAM"]', True),
        ('["--speculative-num-steps", "2"]', False),
        ('["--note", "without --speculative-algorithm"]', False),
    ],
)
def test_speculation_is_seen_from_the_arguments(args: str, speculative: bool) -> None:
    assert read(in_variant(f"args = {args}")).variants[0].speculative is speculative
    stated = "false" if speculative else "true"
    assert read(in_variant(f"args = {args}\nspeculative = {stated}")).variants[0].speculative is not speculative


# Cases and relations.


@pytest.mark.parametrize(
    ("levels", "names"),
    [
        ("[1]", ["c001"]),
        ("[1, 16, 250]", ["c001", "c016", "c250"]),
        ("[250, 1, 1000]", ["c0250", "c0001", "c1000"]),
        ("[100000, 5]", ["c100000", "c000005"]),
    ],
)
def test_case_ids_are_padded_to_the_widest_level_so_that_none_is_part_of_another(levels: str, names: list[str]) -> None:
    suite = read(in_workload(f"concurrency = {levels}"))
    assert [case.id for case in suite.cases] == [f"night/plain/{name}" for name in names]
    ids = [case.id for case in suite.cases]
    assert not any(one in other for one in ids for other in ids if one != other)


def test_cases_come_variant_by_variant_in_the_order_of_the_file() -> None:
    assert [case.id for case in read(PAIR).cases] == [
        "night/plain/c001",
        "night/plain/c016",
        "night/draft/c001",
        "night/draft/c016",
    ]


@pytest.mark.parametrize(
    ("lines", "ids"),
    [
        ('of = ["draft"]', ["plain-of-draft/saturation"]),
        ('of = ["draft"]\nat = 16', ["plain-of-draft/c016"]),
        ('of = ["draft"]\nat = "every level"', ["plain-of-draft/c001", "plain-of-draft/c016"]),
        ('of = ["draft"]\nat_least = 0.9', ["plain-0.9x-of-draft/saturation"]),
        ('of = ["draft", "tree"]\nat_least = 1.25', ["plain-1.25x-of-draft-tree/saturation"]),
    ],
)
def test_a_relation_is_named_by_what_it_says_and_where(lines: str, ids: list[str]) -> None:
    suite = read(PAIR + DRAFT.replace("draft", "tree") + f'[[expect]]\nvariant = "plain"\n{lines}\n')
    assert [relation.id for relation in suite.relations] == [f"night/expect/{each}" for each in ids]


def test_a_relation_carries_its_level_or_none_at_saturation() -> None:
    suite = read(expecting('variant = "plain"\nof = ["draft"]\nat = "every level"'))
    assert [relation.level for relation in suite.relations] == [1, 16]
    suite = read(expecting('variant = "plain"\nof = ["draft"]'))
    assert [relation.level for relation in suite.relations] == [None]


def test_all_cases_and_relations_share_the_false_alarms_of_the_suite() -> None:
    assert read(MINIMAL).family == 2
    assert read(PAIR).family == 4
    assert read(expecting('variant = "plain"\nof = ["draft"]\nat = "every level"')).family == 6
    assert read(expecting('crossover = ["draft", "plain"]')).family == 5


def test_a_crossover_is_one_item_beside_the_relations() -> None:
    suite = read(
        expecting('crossover = ["draft", "plain"]\n[[expect]]\nvariant = "plain"\nof = ["draft"]')
        + '[[expect]]\ncrossover = ["plain", "draft"]\n'
    )
    assert [(each.id, each.suite, each.first, each.second) for each in suite.crossovers] == [
        ("night/expect/crossover-of-draft-and-plain", "night", "draft", "plain"),
        ("night/expect/crossover-of-plain-and-draft", "night", "plain", "draft"),
    ]
    assert [each.id for each in suite.relations] == ["night/expect/plain-of-draft/saturation"]
    assert suite.family == 4 + 1 + 2


def test_the_same_output_is_one_item_and_takes_nothing_of_alpha() -> None:
    suite = read(
        expecting('same_output = ["plain", "draft"]')
        + '[[expect]]\nsame_output = ["draft", "plain"]\nat_least = 0.75\n'
    )
    assert [(each.id, each.suite, each.variants, each.at_least) for each in suite.same_outputs] == [
        ("night/expect/same-output-of-plain-and-draft", "night", ("plain", "draft"), 1.0),
        ("night/expect/same-output-of-draft-and-plain", "night", ("draft", "plain"), 0.75),
    ]
    assert (suite.relations, suite.crossovers) == ((), ())
    assert suite.family == read(PAIR).family


# The digest of what a case is asked.


def digest(text: str, level: int = 16) -> str:
    return next(case.workload_digest for case in read(text).cases if case.level == level)


@pytest.mark.parametrize(
    "line",
    [
        "concurrency = [1, 16, 250]",
        "concurrency = [16]",
        "concurrency = [16, 1]",
        "output_tokens = { default = 32, 1 = 8 }",
        'level_reached = "not required"',
        "requests_per_level = 64",  # the number it was before
        "temperature = 0.0",
        "seed = 20",
        "start_spread_s = 0",
        "client_processes = 4",
    ],
)
def test_what_another_level_is_asked_does_not_change_a_digest(line: str) -> None:
    assert digest(in_workload(line)) == digest(MINIMAL)


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL.replace("night", "day"),
        in_suite('requires = "gpu"'),
        in_gate("margin = 0.2\nalpha = 0.1\nmax_launches = 3"),
        PAIR,
        in_variant('args = ["--tp", "8"]\nenv = { A = "1" }'),
        in_variant("expected_tok_s = { 1 = 92.7 }"),
        expecting('variant = "plain"\nof = ["draft"]'),
        referring('python = "/opt/old"\nenv = { A = "1" }'),
    ],
)
def test_who_is_asked_and_how_it_is_judged_does_not_change_a_digest(text: str) -> None:
    assert digest(text) == digest(MINIMAL)


def test_everything_a_case_is_asked_changes_its_digest(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"id": "a", "prompt": "Sort a list."}\n')
    lines = [
        "output_tokens = 33",
        "requests_per_level = 63",
        "requests_per_stream = 5",
        "min_requests = 65",
        "rounds = 2",
        "warmup_requests = 9",
        "seed = 21",
        'endpoint = "completions"',
        "temperature = 0.5",
        "start_spread_s = 2",
        "start_spread_s = 2.5",
        f'prompts = "{tmp_path}/one.jsonl"',
    ]
    digests = [digest(MINIMAL), digest(MINIMAL, 1), *(digest(in_workload(line)) for line in lines)]
    assert len(set(digests)) == len(digests)


def test_what_is_said_in_two_ways_has_one_digest() -> None:
    assert digest(in_workload("output_tokens = 33")) == digest(in_workload("output_tokens = { 1 = 8, 16 = 33 }"))
    assert digest(in_workload("min_requests = 64")) == digest(in_workload("requests_per_level = 64"))


def test_every_part_of_a_prompt_changes_the_digest(tmp_path: Path) -> None:
    texts = [
        '{"id": "a", "prompt": "Sort a list."}',
        '{"id": "a", "prompt": "Sort a list!"}',
        '{"id": "b", "prompt": "Sort a list."}',
        '{"id": "a", "messages": [{"role": "system", "content": "Sort a list."}, {"role": "user", "content": "x"}]}',
        '{"id": "a", "messages": [{"role": "user", "content": "Sort a list."}, {"role": "user", "content": "x"}]}',
        '{"id": "a", "prompt": "Sort a list."}\n{"id": "b", "prompt": "Sort a list."}',
        '{"id": "b", "prompt": "Sort a list."}\n{"id": "a", "prompt": "Sort a list."}',
    ]
    digests = []
    for text in texts:
        (tmp_path / "set.jsonl").write_text(text)
        digests.append(digest(in_workload(f'prompts = "{tmp_path}/set.jsonl"')))
    assert len(set(digests)) == len(texts)
    (tmp_path / "other.jsonl").write_text("\n" + texts[0] + "\n\n")
    assert digest(in_workload(f'prompts = "{tmp_path}/other.jsonl"')) == digests[0]


def test_a_digest_stays_what_stored_baselines_hold() -> None:
    prompts = (Prompt(id="a", messages=(Message(role="user", content="Sort \u00fc."),)),)
    assert replace(read(MINIMAL).workload, prompts=prompts).digest(16) == "0537dda84cab21fc"


# Files.


def test_a_prompt_set_is_found_beside_the_suite_file(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "mine.jsonl").write_text('{"id": "a", "prompt": "Sort a list."}\n')
    suite_file = tmp_path / "night.toml"
    suite_file.write_text(in_workload('prompts = "sets/mine.jsonl"'))
    assert [prompt.id for prompt in load(suite_file).workload.prompts] == ["a"]


@pytest.mark.parametrize(
    ("content", "fragments"),
    [
        (MINIMAL.encode() + b"# \xff\n", ("not UTF-8", "a suite is a TOML file")),
        (b"#" * (MAX_SUITE_BYTES + 1), ("larger than", "is it a suite file?")),
        (b"\x00" * 10, ("not TOML",)),
    ],
)
def test_a_file_that_is_no_suite_is_refused_with_its_name(
    content: bytes, fragments: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "night.toml"
    path.write_bytes(content)
    with pytest.raises(SuiteError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_folder_a_missing_and_an_endless_file_are_refused(tmp_path: Path) -> None:
    for path, fragment in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none.toml", "No such file"),
        (tmp_path / "none" / "none.toml", "No such file"),
        (tmp_path / ("n" * 300), "too long"),
        (Path("/dev/zero"), "larger than"),
    ):
        with pytest.raises(SuiteError, match=fragment):
            load(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "night.toml"
    path.write_text(MINIMAL)
    path.chmod(stat.S_IWUSR)
    with pytest.raises(SuiteError, match="Permission denied"):
        load(path)


# No text whatever makes the reader fail in another way.

KEYS = st.sampled_from(
    [
        *("suite", "workload", "gate", "variants", "expect", "reference", "name", "requires", "gpus", "marker", "rig"),
        *("prompts", "concurrency", "requests_per_level", "min_requests", "requests_per_stream", "output_tokens"),
        *("rounds", "warmup_requests", "seed", "endpoint", "temperature", "level_reached", "margin", "alpha", "power"),
        *("budget_minutes", "max_launches", "plain", "draft", "extends", "command", "args", "python", "env"),
        *("ready_path", "ready_timeout_s", "model", "api_key_env", "api_key_file", "speculative", "expected_tok_s"),
        *("variant", "at_least", "of", "at", "crossover", "default", "1", "16", "\x1b[31m", "", "a b", "a\nb"),
    ]
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 16, 10**30]),
    st.floats(),
    st.text(max_size=10).filter(lambda text: text.isprintable() and "\\" not in text and "'" not in text),
    st.sampled_from(["gpu", "cpu", "plain", "draft", "{port}", "saturation", "coding-agentic", "/", "..", "\x1b]0;"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def written(value: object) -> str:
    """TOML text of a value."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(c if c in SAFE else f"\\U{ord(c):08x}" for c in value) + '"'
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            return "{" + ", ".join(f"{written(key)} = {written(each)}" for key, each in value.items()) + "}"
        case _:
            return repr(value)


SAFE = string.ascii_letters + string.digits + " -_./{}"


def changed(tree: dict[str, object], places: Iterator[int], value: object, key: str) -> dict[str, object]:
    """A copy of a suite's tables with one value, somewhere down, put in place of what was there."""
    copy = dict(tree)
    names = [*copy, key]
    name = names[next(places) % len(names)]
    inner = copy.get(name)
    if isinstance(inner, dict) and next(places) % 4:
        copy[name] = changed(inner, places, value, key)
    else:
        copy[name] = value
    return copy


SAMPLE = tomllib.loads(expecting('variant = "plain"\nof = ["draft"]\nat = 16') + "[gate]\nmargin = 0.1\n")


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 100), min_size=12, max_size=12), VALUES, KEYS)
def test_a_suite_with_one_thing_changed_is_read_or_refused(places: list[int], value: object, key: str) -> None:
    tables = changed(SAMPLE, iter(places), value, key)
    text = "\n".join(f"{written(name)} = {written(table)}" for name, table in tables.items())
    assert tomllib.loads(text).keys() == tables.keys()
    read_or_refuse(text)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_tables_are_read_or_refused(tables: dict[str, object]) -> None:
    read_or_refuse("\n".join(f"{written(name)} = {written(table)}" for name, table in tables.items()))


@settings(deadline=None, max_examples=100)
@given(st.text(), st.integers(0, len(PAIR)), st.integers(0, 20))
def test_any_text_is_read_or_refused(text: str, start: int, length: int) -> None:
    read_or_refuse(text)
    read_or_refuse(PAIR[:start] + text + PAIR[start + length :])


def read_or_refuse(text: str) -> None:
    try:
        suite = read(text)
    except SuiteError as error:
        for line in str(error).split("\n"):
            assert line.isprintable()
            assert line.startswith(f"{SOURCE}: ")
    else:
        assert suite.cases
        assert all(case.id.isprintable() and case.id.count("/") == 2 for case in suite.cases)
