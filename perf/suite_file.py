"""Suite files: TOML text to a `Suite`. Strict: an error names the file, the dotted key, what was seen, what is allowed.

The keys, their defaults and what is allowed stand once, in the `_File` models below: the loader, its messages and the
reference in docs/suite-files.md all come from them.
"""

import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from perf.suite import (
    Crossover,
    Expectation,
    Gate,
    Place,
    Reference,
    Requires,
    SameOutput,
    Suite,
    Variant,
)
from perf.text import MIN_MARGIN, printable
from perf.workload import Endpoint, Workload, WorkloadError, find_set, read_set

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMES = "letters, digits, '.', '_' and '-', the first a letter or digit, at most 100"

#: Markers a suite may carry; every case has the marker `perf` besides.
MARKERS = ("gpu", "sglang_cpu", "rehearsal")

#: Names that stand for something else in case ids and among the files of a baseline store.
RESERVED_VARIANTS = ("expect", "crossover")
#: The fingerprint of a rig lies beside the folders of its suites.
RESERVED_SUITE = "rig.json"

SHIPPED = Path(__file__).parent / "suites"

MAX_LEVEL = 100_000
MAX_TOKENS = 10_000_000
#: More processes than any host has cores to spare for a client.
MAX_CLIENT_PROCESSES = 64
#: Ten minutes: starts spread over more would be a round of ramp-up.
MAX_START_SPREAD_S = 600
MAX_SUITE_BYTES = 4 * 1024 * 1024

#: A file with more mistakes is another kind of file: the first ones say so.
MAX_MISTAKES = 20

#: Longer lines of an error help nobody (the values and keys they show are cut much shorter).
MAX_ERROR_LINE = 1000


class SuiteError(ValueError):
    """A suite file that cannot be used. One harmless line for each thing that is wrong."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(printable(line, MAX_ERROR_LINE) for line in lines))


# The file, as written. `description` is what is allowed: the words of every error and of the reference.


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class _SuiteTable(_Table):
    name: str = Field(pattern=f"^{NAME.pattern}$", description=f"a name: {NAMES}")
    requires: Requires = Field(default="cpu", description='"gpu" or "cpu"')
    gpus: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description='a whole number of GPUs; 1 or more where requires is "gpu", else 0',
    )
    marker: Literal["gpu", "sglang_cpu", "rehearsal"] | None = Field(
        default=None, description=f'one of {", ".join(MARKERS)}; left out it is gpu where requires is "gpu"'
    )
    rig: Literal["emulated"] | None = Field(default=None, description='"emulated" where time is synthetic, or left out')


class _WorkloadTable(_Table):
    prompts: _Text = Field(
        default="coding-agentic", description="a shipped prompt set, or a path relative to the suite file"
    )
    concurrency: list[Annotated[int, Field(ge=1, le=MAX_LEVEL)]] = Field(
        min_length=1,
        max_length=1000,
        description=f"a list of whole numbers from 1 to {MAX_LEVEL}, none twice",
    )
    requests_per_level: _Count | None = Field(
        default=None, description="a whole number of at least 1, without min_requests and requests_per_stream"
    )
    min_requests: _Count | None = Field(default=None, description="a whole number of at least 1 (default 30)")
    requests_per_stream: _Count | None = Field(default=None, description="a whole number of at least 1 (default 4)")
    output_tokens: int | dict[str, int] = Field(
        description=f"a whole number from 1 to {MAX_TOKENS}, or a table of such numbers with `default` and levels"
    )
    rounds: Annotated[int, Field(ge=1, le=1000)] = Field(default=1, description="a whole number from 1 to 1000")
    warmup_requests: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=8, description="a whole number from 0 to 100000"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(default=20, description="a whole number of at least 0")
    endpoint: Endpoint = Field(default="chat", description='"chat" or "completions"')
    temperature: Annotated[float, Field(ge=0, le=2)] = Field(default=0.0, description="a number from 0 to 2")
    level_reached: Literal["required", "not required"] = Field(
        default="required", description='"required" or "not required"'
    )
    start_spread_s: Annotated[float, Field(ge=0, le=MAX_START_SPREAD_S)] = Field(
        default=0.0, description=f"seconds, from 0 to {MAX_START_SPREAD_S}"
    )
    client_processes: Annotated[int, Field(ge=1, le=MAX_CLIENT_PROCESSES)] = Field(
        default=1, description=f"a whole number from 1 to {MAX_CLIENT_PROCESSES}"
    )


class _GateTable(_Table):
    margin: Annotated[float, Field(ge=MIN_MARGIN, lt=1)] = Field(
        default=0.03, description=f"a relative loss from {MIN_MARGIN} to below 1, such as 0.03 for 3 %"
    )
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Field(default=0.01, description="a number between 0 and 0.5")
    power: Annotated[float, Field(ge=0.5, lt=1)] = Field(default=0.95, description="a number from 0.5 to below 1")
    budget_minutes: Annotated[float, Field(gt=0)] | None = Field(default=None, description="minutes, more than 0")
    max_launches: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None,
        description="a whole number from 1 to 1000, of each build of a variant "
        "(default 12; 200 where budget_minutes is given)",
    )


class _VariantTable(_Table):
    extends: str | None = Field(default=None, description="the name of another variant of this file")
    command: list[_Text] | None = Field(
        default=None,
        min_length=1,
        description="a list of texts that is not empty and has {port} in one of them",
    )
    args: list[_Text] = Field(default=[], description="a list of texts, appended to the command")
    python: _Text | None = Field(
        default=None, description="the path of the interpreter that {python} stands for (default: what runs pytest)"
    )
    env: dict[str, str] = Field(default={}, description="a table of texts: names are letters, digits and '_'")
    ready_path: str | None = Field(
        default=None, pattern=r"^/[!-~]*$", description='a path that begins with "/" (default "/health")'
    )
    ready_timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = Field(
        default=None, description="seconds, more than 0 and at most 86400 (default 1800)"
    )
    model: _Text | None = Field(
        default=None, description="the name of the model to ask for (default: the first of /v1/models)"
    )
    api_key_env: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="the name of an environment variable"
    )
    api_key_file: _Text | None = Field(default=None, description="the path of a file, relative to the suite file")
    speculative: bool | None = Field(default=None, description="true or false (default: seen from the arguments)")
    expected_tok_s: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="a table of levels with the tok/s expected there, more than 0: for the forecast of `plan` alone",
    )


class _ReferenceTable(_Table):
    python: _Text = Field(
        description="the path of the interpreter of the reference build, another than those of the variants"
    )
    env: dict[str, str] = Field(
        default={}, description="a table of texts, merged into every variant's env: names are letters, digits and '_'"
    )


class _ExpectTable(_Table):
    variant: str = Field(description="the name of a variant of this file")
    at_least: Annotated[float, Field(gt=0, le=1000)] = Field(default=1.0, description="a factor, more than 0")
    of: list[str] = Field(min_length=1, description="a list of other variants of this file, none twice")
    at: Place = Field(default="saturation", description='a level of this suite, "every level" or "saturation"')


class _CrossoverTable(_Table):
    crossover: list[str] = Field(
        min_length=2,
        max_length=2,
        description="two variants of this file, the second faster from some level on; no other key beside it",
    )


class _SameOutputTable(_Table):
    same_output: list[str] = Field(
        min_length=2,
        description="two or more variants of this file, none twice, the first the yardstick; only at_least beside it",
    )
    at_least: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="beside same_output: a share of its prompts, more than 0 and at most 1"
    )


#: Which table an expectation is read as, by the key that no other one has.
_EXPECT_TABLES: dict[str, type[_Table]] = {
    "crossover": _CrossoverTable,
    "same_output": _SameOutputTable,
    "relation": _ExpectTable,
}


def _kind_of_expectation(table: object) -> str:
    return next((key for key in _EXPECT_TABLES if isinstance(table, dict) and key in table), "relation")


_Expect = Annotated[
    Annotated[_ExpectTable, Tag("relation")]
    | Annotated[_CrossoverTable, Tag("crossover")]
    | Annotated[_SameOutputTable, Tag("same_output")],
    Discriminator(_kind_of_expectation),
]


class _File(_Table):
    suite: _SuiteTable = Field(description="a table")
    workload: _WorkloadTable = Field(description="a table")
    gate: _GateTable = Field(default=_GateTable(), description="a table")
    variants: dict[str, _VariantTable] = Field(min_length=1, description="a table for each variant, at least one")
    reference: _ReferenceTable | None = Field(default=None, description="a table")
    expect: list[_Expect] = Field(default=[], description="a list of tables, [[expect]]")


#: Defaults of a variant's keys that `extends` can inherit.
DEFAULT_READY_PATH = "/health"
DEFAULT_READY_TIMEOUT_S = 1800.0
DEFAULT_MIN_REQUESTS = 30
DEFAULT_REQUESTS_PER_STREAM = 4


def find(name: str, base: Path) -> Path:
    """A suite file by its path from `base`, or a shipped suite by name."""
    shipped = SHIPPED / f"{name}.toml"
    if NAME.fullmatch(name) and shipped.is_file() and not (base / name).is_file():
        return shipped
    return (base / name).resolve()


def load(path: Path) -> Suite:
    """Read a suite file and its prompt set. Raises SuiteError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SUITE_BYTES + 1)
        if len(data) > MAX_SUITE_BYTES:
            raise SuiteError(f"{path}: larger than {MAX_SUITE_BYTES} bytes; is it a suite file?")
        text = data.decode()
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror}; give the path of a suite file") from error
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path}: not UTF-8 text at byte {error.start}; a suite is a TOML file") from error
    return parse(text, path)


def parse(text: str, source: Path) -> Suite:
    """Turn the text of a suite file into a Suite; `source` names it in errors and anchors relative paths."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise SuiteError(f"{source}: not TOML: {error}") from error
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise SuiteError(*islice(_messages(error, source), MAX_MISTAKES)) from error
    return _Resolver(file, source).suite()


def _messages(error: ValidationError, source: Path) -> Iterator[str]:
    said: set[str] = set()
    for detail in error.errors(include_url=False):
        message = f"{source}: {_explain(detail)}"
        if message not in said:  # a value that fits no branch of a union is reported once for each branch
            said.add(message)
            yield message


def _explain(detail: ErrorDetails) -> str:
    place, table, field = _locate(detail["loc"])
    if detail["type"] == "extra_forbidden":
        keys = ", ".join(sorted(table.model_fields))
        return f"{place}: unknown key; allowed here: {keys}"
    allowed = table.model_fields[field].description if field else "a table"
    if detail["type"] == "missing":
        return f"{place}: missing; needed: {allowed}"
    shown = _kind if field in _MAY_HOLD_SECRETS else _toml
    return f"{place}: seen {shown(detail['input'])}; allowed: {allowed}"


def _locate(loc: tuple[int | str, ...]) -> tuple[str, type[_Table], str | None]:
    """The dotted key of an error, the table it belongs to, and the table's field."""
    tables: dict[str, type[_Table]] = {
        "suite": _SuiteTable,
        "workload": _WorkloadTable,
        "gate": _GateTable,
        "variants": _VariantTable,
        "reference": _ReferenceTable,
        "expect": _ExpectTable,
    }
    head = str(loc[0]) if loc else ""
    if head == "expect" and len(loc) > 2:  # behind the place stands as which of the tables it was read
        tables["expect"] = _EXPECT_TABLES[str(loc[2])]
        loc = (*loc[:2], *loc[3:])
    nested = head in ("variants", "expect")
    depth = 2 if nested else 1
    if head not in tables or len(loc) < depth + 1:
        return _dotted(loc), _File, head if head in tables else None
    table = tables[head]
    field = str(loc[depth])
    known = field in table.model_fields
    # Behind the field only list places and the keys of tables are the user's; the rest names branches of a union.
    tail = (part for part in loc[depth + 1 :] if isinstance(part, int) or field in ("env", "expected_tok_s"))
    return _dotted((*loc[: depth + 1], *tail)), table, field if known else None


def _dotted(parts: tuple[int | str, ...]) -> str:
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", part) else _toml(part))
    return text or "the file"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, tables nested thousandfold
        return "a value too large to be shown"
    return text if len(text) <= 80 else text[:77] + "..."


#: Values of these keys are never shown: a key pasted into the wrong place must not stand in a build's log.
_MAY_HOLD_SECRETS = ("command", "args", "env", "api_key_env", "api_key_file", "variants", "reference")


def _kind(value: object) -> str:
    """What a value is, without the value."""
    if value in ("", [], {}):
        return _toml(value)
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a table of {len(value)}"
    return f"a value of type {type(value).__name__}"


class _Resolver:
    """From the tables of one file to the values the rest of the suite works with."""

    def __init__(self, file: _File, source: Path) -> None:
        self.file = file
        self.source = source

    def suite(self) -> Suite:
        table = self.file.suite
        gpus = table.gpus if table.gpus is not None else int(table.requires == "gpu")
        if (gpus > 0) != (table.requires == "gpu"):
            raise self.error("suite.gpus", str(gpus), _allowed(_SuiteTable, "gpus"))
        if table.name == RESERVED_SUITE:
            raise self.error("suite.name", "this name", f"any name but {RESERVED_SUITE}")
        names = tuple(self.file.variants)
        for name in names:
            if not NAME.fullmatch(name):
                raise self.error(_dotted(("variants", name)), "this name", f"a name: {NAMES}")
            if name in RESERVED_VARIANTS:
                raise self.error(f"variants.{name}", "this name", f"any name but {' and '.join(RESERVED_VARIANTS)}")
        workload = self.workload()
        expectations = tuple(
            self.expectation(place, each, names, workload.levels)
            for place, each in enumerate(self.file.expect)
            if isinstance(each, _ExpectTable)
        )
        crossovers = tuple(
            self.crossover(place, each, names)
            for place, each in enumerate(self.file.expect)
            if isinstance(each, _CrossoverTable)
        )
        same_outputs = tuple(
            self.same_output(place, each, names)
            for place, each in enumerate(self.file.expect)
            if isinstance(each, _SameOutputTable)
        )
        gate = self.file.gate
        variants = tuple(self.variant(name) for name in names)
        suite = Suite(
            name=table.name,
            source=self.source,
            requires=table.requires,
            gpus=gpus,
            marker=table.marker or ("gpu" if table.requires == "gpu" else None),  # else -m gpu would leave it out
            emulated=table.rig == "emulated",
            workload=workload,
            gate=Gate(
                margin=gate.margin,
                alpha=gate.alpha,
                power=gate.power,
                budget_minutes=gate.budget_minutes,
                max_launches=gate.max_launches,
            ),
            variants=variants,
            reference=self.reference(variants),
            expectations=expectations,
            crossovers=crossovers,
            same_outputs=same_outputs,
        )
        ids = [*(each.id for each in suite.relations), *(each.id for each in suite.crossovers)]
        ids += [each.id for each in suite.same_outputs]
        for expectation in ids:
            if ids.count(expectation) > 1:
                raise self.error("expect", f"{expectation} twice", "every expectation once")
        return suite

    def workload(self) -> Workload:
        table = self.file.workload
        levels = tuple(table.concurrency)
        for level in levels:
            if levels.count(level) > 1:
                raise self.error("workload.concurrency", f"{level} twice", _allowed(_WorkloadTable, "concurrency"))
        for key in ("min_requests", "requests_per_stream"):
            if table.requests_per_level is not None and getattr(table, key) is not None:
                raise self.error(
                    f"workload.{key}",
                    "this key beside requests_per_level",
                    "one or the other: a number or the two keys",
                )
        default, by_level = self.output_tokens(table.output_tokens, levels)
        try:
            prompts = read_set(find_set(table.prompts, self.source.parent))
        except WorkloadError as error:
            raise SuiteError(f"{self.source}: workload.prompts: {error}") from error
        return Workload(
            prompt_set=table.prompts,
            prompts=prompts,
            levels=levels,
            requests_per_level=table.requests_per_level,
            min_requests=table.min_requests or DEFAULT_MIN_REQUESTS,
            requests_per_stream=table.requests_per_stream or DEFAULT_REQUESTS_PER_STREAM,
            output_tokens=default,
            output_tokens_by_level=by_level,
            rounds=table.rounds,
            warmup_requests=table.warmup_requests,
            seed=table.seed,
            endpoint=table.endpoint,
            temperature=table.temperature,
            level_must_be_reached=table.level_reached == "required",
            start_spread_s=table.start_spread_s,
            client_processes=table.client_processes,
        )

    def output_tokens(
        self, value: int | dict[str, int], levels: tuple[int, ...]
    ) -> tuple[int, tuple[tuple[int, int], ...]]:
        allowed = _allowed(_WorkloadTable, "output_tokens")
        table = {"default": value} if isinstance(value, int) else value
        for key, tokens in table.items():
            where = "workload.output_tokens"
            if value is table:
                where += f".{_dotted((key,))}"
            if not 1 <= tokens <= MAX_TOKENS:
                raise self.error(where, _toml(tokens), allowed)
            if key != "default" and key not in map(str, levels):
                raise self.error(where, "this key", f"default, or a level of this suite ({_list(levels)})")
        if "default" not in table and set(map(str, levels)) - set(table):
            missing = next(level for level in levels if str(level) not in table)
            raise self.error("workload.output_tokens", f"no number for level {missing}", "`default`, or every level")
        by_level = tuple((level, table[str(level)]) for level in levels if str(level) in table)
        return table.get("default", by_level[0][1] if by_level else 1), by_level

    def variant(self, name: str) -> Variant:
        command: list[str] | None = None
        args: list[str] = []
        env: dict[str, str] = {}
        expected: tuple[tuple[int, float], ...] = ()
        settings: dict[str, object] = {}
        for ancestor, table in self.lineage(name):
            for key in sorted(table.model_fields_set):
                if key == "args":
                    args += table.args
                elif key == "env":
                    env |= self.checked_env(("variants", ancestor), table.env, _allowed(_VariantTable, "env"))
                elif key == "command":
                    command = table.command
                elif key == "expected_tok_s":
                    expected = self.checked_expected(ancestor, table.expected_tok_s)
                elif key != "extends":
                    settings[key] = getattr(table, key)
                    # The two ways to give a key replace each other.
                    other = {"api_key_env": "api_key_file", "api_key_file": "api_key_env"}.get(key)
                    if other in table.model_fields_set:
                        raise self.error(f"variants.{ancestor}.{key}", f"this key beside {other}", "one of the two")
                    if other:
                        settings.pop(other, None)
        where = f"variants.{name}.command"
        if command is None:
            raise SuiteError(f"{self.source}: {where}: missing; needed: {_allowed(_VariantTable, 'command')}")
        whole = (*command, *args)
        if not any("{port}" in part for part in whole):
            raise self.error(where, f"{_kind(list(whole))} without {{port}}", _allowed(_VariantTable, "command"))
        merged = _VariantTable.model_validate(settings)
        return Variant(
            name=name,
            command=whole,
            python=merged.python,
            env=tuple(env.items()),
            ready_path=merged.ready_path or DEFAULT_READY_PATH,
            ready_timeout_s=merged.ready_timeout_s or DEFAULT_READY_TIMEOUT_S,
            model=merged.model,
            api_key_env=merged.api_key_env,
            api_key_file=merged.api_key_file,
            speculative=_speculates(whole) if merged.speculative is None else merged.speculative,
            expected_tok_s=expected,
        )

    def lineage(self, name: str) -> list[tuple[str, _VariantTable]]:
        """The variant's tables from its oldest ancestor to itself."""
        tables: list[tuple[str, _VariantTable]] = []
        current: str | None = name
        while current is not None:
            if current in (seen for seen, _ in tables):
                cycle = " -> ".join([*(seen for seen, _ in tables), current])
                raise self.error(f"variants.{name}.extends", f"a circle ({cycle})", "a chain that ends")
            table = self.file.variants[current]
            tables.append((current, table))
            if table.extends is not None and table.extends not in self.file.variants:
                raise self.error(
                    f"variants.{current}.extends",
                    _toml(table.extends),
                    f"one of {_list(tuple(self.file.variants))}",
                )
            current = table.extends
        return tables[::-1]

    def reference(self, variants: tuple[Variant, ...]) -> Reference | None:
        """The reference build; refused where a variant would be compared with itself."""
        table = self.file.reference
        if table is None:
            return None

        def path(python: str) -> str:
            """Not through links: those of two environments may lead to one interpreter."""
            return posixpath.normpath(self.source.parent / python) if "/" in python else python

        for variant in variants:
            if not any("{python}" in part for part in variant.command):
                raise self.error(
                    f"variants.{variant.name}.command",
                    "no {python} beside [reference]",
                    "{python} in the command of every variant, since the reference's takes its place: without it both "
                    "would run the same build, A against A",
                )
            if path(table.python) == path(variant.python or sys.executable):
                raise self.error(
                    "reference.python",
                    f"{_toml(table.python)}, which is that of the variant {variant.name} too",
                    f"{_allowed(_ReferenceTable, 'python')}: else it would be A against A",
                )
        env = self.checked_env(("reference",), table.env, _allowed(_ReferenceTable, "env"))
        return Reference(python=table.python, env=tuple(env.items()))

    def checked_env(self, place: tuple[str, ...], env: dict[str, str], allowed: str) -> dict[str, str]:
        for name, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\x00" in value:
                raise self.error(_dotted((*place, "env", name)), _kind(value), allowed)
        return env

    def checked_expected(self, variant: str, table: dict[str, float]) -> tuple[tuple[int, float], ...]:
        """Any level may be given, not only those of the suite: what lies between is interpolated."""
        for level in table:
            if not re.fullmatch(r"[1-9][0-9]{0,5}", level) or int(level) > MAX_LEVEL:
                allowed = f"a level, a whole number from 1 to {MAX_LEVEL}"
                raise self.error(_dotted(("variants", variant, "expected_tok_s", level)), "this key", allowed)
        return tuple(sorted((int(level), value) for level, value in table.items()))

    def expectation(
        self, place: int, table: _ExpectTable, names: tuple[str, ...], levels: tuple[int, ...]
    ) -> Expectation:
        where = f"expect[{place}]"
        if table.variant not in names:
            raise self.error(f"{where}.variant", _toml(table.variant), f"one of {_list(names)}")
        others = tuple(name for name in names if name != table.variant)
        for name in table.of:
            if name not in others or table.of.count(name) > 1:
                raise self.error(f"{where}.of", _toml(table.of), f"other variants, none twice: {_list(others)}")
        if isinstance(table.at, int) and table.at not in levels:
            allowed = f'a level of this suite ({_list(levels)}), "every level" or "saturation"'
            raise self.error(f"{where}.at", _toml(table.at), allowed)
        return Expectation(variant=table.variant, at_least=table.at_least, of=tuple(table.of), at=table.at)

    def crossover(self, place: int, table: _CrossoverTable, names: tuple[str, ...]) -> Crossover:
        first, second = table.crossover
        if first == second or not {first, second} <= set(names):
            allowed = f"two variants of this file: {_list(names)}"
            raise self.error(f"expect[{place}].crossover", _toml(table.crossover), allowed)
        suite = self.file.suite.name
        return Crossover(
            id=f"{suite}/expect/crossover-of-{first}-and-{second}", suite=suite, first=first, second=second
        )

    def same_output(self, place: int, table: _SameOutputTable, names: tuple[str, ...]) -> SameOutput:
        chosen, suite = tuple(table.same_output), self.file.suite.name
        if not set(chosen) <= set(names) or len(set(chosen)) != len(chosen):
            allowed = f"variants of this file, none twice: {_list(names)}"
            raise self.error(f"expect[{place}].same_output", _toml(table.same_output), allowed)
        return SameOutput(
            id=f"{suite}/expect/same-output-of-{'-and-'.join(chosen)}",
            suite=suite,
            variants=chosen,
            at_least=table.at_least,
        )

    def error(self, key: str, seen: str, allowed: str) -> SuiteError:
        return SuiteError(f"{self.source}: {key}: seen {seen}; allowed: {allowed}")


def _speculates(command: tuple[str, ...]) -> bool:
    return any(part.split("=", 1)[0] == "--speculative-algorithm" for part in command)


def _allowed(table: type[_Table], field: str) -> str:
    return str(table.model_fields[field].description)


def _list(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values)) or "none"


def reference() -> tuple[tuple[str, str, str], ...]:
    """Every key of a suite file as (dotted key, default, what is allowed), for the documentation.

    The default is TOML, or "required", or empty where a key left out is none or its default is among what is allowed.
    """
    rows: list[tuple[str, str, str]] = []
    for prefix, table in (
        ("suite", _SuiteTable),
        ("workload", _WorkloadTable),
        ("gate", _GateTable),
        ("variants.NAME", _VariantTable),
        ("reference", _ReferenceTable),
        ("expect[]", _ExpectTable),
        ("expect[]", _CrossoverTable),
        ("expect[]", _SameOutputTable),
    ):
        for name, key in table.model_fields.items():
            default = "" if key.default in (None, [], {}) else _toml(key.default)
            rows.append((f"{prefix}.{name}", "required" if key.is_required() else default, str(key.description)))
    return tuple(rows)
