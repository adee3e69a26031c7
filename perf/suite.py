"""What a suite is: variants, levels, what is asked of the verdict, and which cases and relations follow from them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from perf.workload import Workload

Requires = Literal["gpu", "cpu"]
Place = int | Literal["saturation", "every level"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is asked of the verdict. `margin` is a relative loss, `alpha` the false alarms of the whole suite."""

    margin: float
    alpha: float
    power: float
    budget_minutes: float | None
    max_launches: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A named way to run the server; `command` still holds `{port}` and `{python}`.

    What may hold secrets is not in `repr()`. `expected_tok_s` is the output throughput that somebody expects, by level,
    ascending: for a forecast, never for a verdict.
    """

    name: str
    command: tuple[str, ...] = field(repr=False)
    python: str | None
    env: tuple[tuple[str, str], ...] = field(repr=False)
    ready_path: str
    ready_timeout_s: float
    model: str | None
    api_key_env: str | None
    api_key_file: str | None
    speculative: bool
    expected_tok_s: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The reference build: an interpreter, and what it needs in the environment besides the variant's."""

    python: str
    env: tuple[tuple[str, str], ...] = field(repr=False)

    def running(self, variant: Variant) -> Variant:
        """The variant as the reference build runs it."""
        return replace(variant, python=self.python, env=tuple((dict(variant.env) | dict(self.env)).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`variant` is at least `at_least` times the best of `of`, at a level, every level, or saturation."""

    variant: str
    at_least: float
    of: tuple[str, ...]
    at: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Variant x level: the unit of verdict, and one pytest item."""

    id: str
    suite: str
    variant: str
    level: int
    workload_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One expectation at one place: one pytest item. `level` is None where the place is saturation."""

    id: str
    suite: str
    variant: str
    at_least: float
    of: tuple[str, ...]
    level: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """The level from which `second` is faster than `first`: estimated, stored, judged. One pytest item."""

    id: str
    suite: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SameOutput:
    """What `variants` say alone at temperature 0 agrees with what the first of them says. One pytest item.

    `at_least` is the share of prompts whose outputs agree to the end.
    """

    id: str
    suite: str
    variants: tuple[str, ...]
    at_least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One suite file, resolved."""

    name: str
    source: Path
    requires: Requires
    gpus: int
    marker: str | None
    emulated: bool
    workload: Workload
    gate: Gate
    variants: tuple[Variant, ...]
    reference: Reference | None
    expectations: tuple[Expectation, ...]
    crossovers: tuple[Crossover, ...]
    same_outputs: tuple[SameOutput, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """Every case, variant by variant in the order of the file."""
        return tuple(
            Case(
                id=f"{self.name}/{variant.name}/{self.level_name(level)}",
                suite=self.name,
                variant=variant.name,
                level=level,
                workload_digest=self.workload.digest(level),
            )
            for variant in self.variants
            for level in self.workload.levels
        )

    @property
    def relations(self) -> tuple[Relation, ...]:
        """Every relation; `every level` is one for each."""
        return tuple(self._relations())

    @property
    def family(self) -> int:
        """How many verdicts share the suite's alpha, whatever part of it is selected; outputs agree without any."""
        return len(self.cases) + len(self.relations) + len(self.crossovers)

    @property
    def advisory(self) -> bool:
        """Measured and shown, never gated: the protocol does not claim to reach its levels."""
        return not self.workload.level_must_be_reached

    def level_name(self, level: int) -> str:
        """`c016`: padded to the widest level of the suite, at least 3, since `-k` matches substrings."""
        width = max(3, *(len(str(each)) for each in self.workload.levels))
        return f"c{level:0{width}d}"

    def _relations(self) -> Iterator[Relation]:
        for expectation in self.expectations:
            factor = "" if expectation.at_least == 1 else f"{expectation.at_least:g}x-"
            stem = f"{self.name}/expect/{expectation.variant}-{factor}of-{'-'.join(expectation.of)}"
            levels: tuple[int | None, ...]
            if expectation.at == "saturation":
                levels = (None,)
            elif expectation.at == "every level":
                levels = self.workload.levels
            else:
                levels = (expectation.at,)
            for level in levels:
                yield Relation(
                    id=f"{stem}/{'saturation' if level is None else self.level_name(level)}",
                    suite=self.name,
                    variant=expectation.variant,
                    at_least=expectation.at_least,
                    of=expectation.of,
                    level=level,
                )
