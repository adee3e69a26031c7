"""Published figures: numbers that somebody else measured, with all that is known of how. Pure.

They are read strictly, shown as they were printed, and never judged with.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

#: 92 and 92.0 are kept apart: a figure is shown as it was printed.
Positive = Annotated[int | float, Field(gt=0)]
Words = Annotated[str, Field(min_length=1)]

#: A concurrency, or "saturation" where the source says no more than that the server was full.
Level = Annotated[int, Field(gt=0)] | Literal["saturation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One case as it was printed, in tok/s and seconds; `approximate` where it says "about"."""

    variant: Words
    level: Level
    approximate: bool = False
    output_throughput: Positive
    per_request_throughput: Positive | None = None
    achieved_concurrency: Positive | None = None
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    e2e_s: Positive | None = None
    acceptance_length: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureVariant:
    """How a variant ran, in words; None where it is not stated."""

    name: Words
    settings: Words | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Under which conditions; None where the source does not state it.

    `rig` is written like the beginning of a rig's id, `8x RTX PRO 6000 Blackwell`, and `model` like the name of its
    folder, so that what is measured here later is seen to be the same case.
    """

    rig: Words
    interconnect: Words | None
    model: Words
    stack: Words | None
    prompts: Words | None
    harness: Words | None
    protocol: Words | None
    variants: tuple[FigureVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one source published. `source` and `published` (a date) are None where they are not known."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    kind: Literal["sglang-perf figures"]
    schema: Literal[1]
    title: Words
    source: Words | None
    published: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None
    setup: Setup
    figures: Annotated[tuple[Figure, ...], Field(min_length=1)]


def problem(figures: Figures) -> str | None:
    """Why figures that parsed cannot be cited, None where they can."""
    names = [variant.name for variant in figures.setup.variants]
    cases = Counter((figure.variant, figure.level) for figure in figures.figures)
    if unknown := [variant for variant, _ in cases if variant not in names]:
        return f"a figure of the variant {unknown[0][:40]!r}; setup.variants has {', '.join(names)[:200] or 'none'}"
    if len(set(names)) != len(names) or max(cases.values()) > 1:
        return "a variant or a figure stands twice"
    return None
