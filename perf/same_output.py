"""Do variants say the same at temperature 0? From the first launch of each, which was asked for its output. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf.gate import Word
from perf.measured import SIMULATED_ACCEPTANCE, last_log
from perf.record import LaunchRecord, Outputs, SameOutputRecord, SuiteRecord
from perf.text import printable
from perf.validity import Reason

#: Characters of two outputs that are shown where they part: a few words from a little before that place.
SHOWN_BEFORE, SHOWN_BEHIND = 16, 24

#: Of a yardstick's outputs, the share that must be the same twice; what says less of itself says nothing of others.
LEAST_REPEATED = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two outputs to a prompt part: at which character, and a few of both around it, as they are kept.

    What is kept may be the same, with secrets replaced or the rest left out: then `at` is its end.
    """

    prompt: str
    at: int
    yardstick: str
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """In how many `of` so many prompts a variant says what the yardstick says; `first` is where it first does not."""

    variant: str
    alike: int
    of: int
    first: Difference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameOutputVerdict:
    """The verdict of one expectation of the same output: no interval, and nothing stored.

    `agreements` are those of the variants behind the first, as far as they said anything; each is of the prompts that
    the first, the yardstick, answered alike twice, of `asked` with `tokens` each.
    """

    id: str
    variants: tuple[str, ...]
    at_least: float
    word: Word
    advisory: str | None
    asked: int
    tokens: int
    agreements: tuple[Agreement, ...]
    reasons: tuple[Reason, ...]
    logs: tuple[str, ...]


def judge(suite: SuiteRecord, record: SameOutputRecord) -> SameOutputVerdict:
    """The verdict on what variants say, from the first launch of each.

    A prompt that the yardstick itself answers in two ways tells nothing of the others and is left out: which prompts
    count is up to the yardstick alone, so no draft gains by it. Where fewer than three of four are left, it is
    no yardstick. A variant that says something else is VIOLATED, whatever is wrong with a third one.
    """
    expected = record.same_output
    launches = {name: _first_launch(suite, name) for name in expected.variants}
    faults = {name: found for name, launch in launches.items() if (found := _unsaid(suite, name, launch)) is not None}
    said = {name: each.outputs for name, each in launches.items() if each and each.outputs and name not in faults}
    yardstick, *others = expected.variants
    agreements: list[Agreement] = []
    measure = said.get(yardstick)
    if measure is not None:
        # Of one that was not asked again nothing counts.
        pairs = zip(measure.texts, measure.digests, measure.again, strict=False)
        steady = [place for place, (text, digest, again) in enumerate(pairs) if text and digest == again]
        if len(steady) < LEAST_REPEATED * len(measure.prompts):
            faults[yardstick] = Reason(
                name="output not repeatable",
                seen=f"asked twice, alone and at temperature 0, {yardstick} said the same, and anything at all, to "
                f"{len(steady)} of {len(measure.prompts)} prompts",
                advice="find out what is not deterministic in it, or name another variant as the yardstick",
            )
        else:
            agreements = [_agreement(name, measure, said[name], steady) for name in others if name in said]
    violated = [each.variant for each in agreements if each.alike < expected.at_least * each.of]
    concerned = [yardstick, *violated] if violated else list(faults)
    return SameOutputVerdict(
        id=expected.id,
        variants=expected.variants,
        at_least=expected.at_least,
        word=Word.VIOLATED if violated else Word.INVALID if faults else Word.PASS,
        advisory=suite.advisory,
        asked=0 if measure is None else len(measure.prompts),
        tokens=0 if measure is None else measure.tokens,
        agreements=tuple(agreements),
        reasons=tuple(faults.values()),
        logs=tuple(name for each in concerned if (launch := launches[each]) for name in last_log([launch])),
    )


def _first_launch(suite: SuiteRecord, variant: str) -> LaunchRecord | None:
    ours = (each for each in suite.launches if each.variant == variant and each.arm == "candidate")
    return next(ours, None)


def _unsaid(suite: SuiteRecord, variant: str, launch: LaunchRecord | None) -> Reason | None:
    """Why nothing that a variant said may be compared."""
    if suite.problem is not None:
        return Reason(name="not measured", seen=suite.problem, advice="put that right, and measure again")
    if launch is None or launch.outputs is None:
        return Reason(
            name="not measured",
            seen=suite.stopped or f"{variant} was not asked for its output",
            advice="give the campaign more minutes with --perf-budget-minutes, or measure again",
        )
    if (reason := launch.outputs.reason) is not None:
        return replace(reason, seen=f"{variant}: {reason.seen}")
    if (value := dict(launch.variant_env).get(SIMULATED_ACCEPTANCE)) is not None:
        return Reason(
            name="acceptance is simulated",
            seen=f"{SIMULATED_ACCEPTANCE} is {printable(value, 32)} in {variant}: what it says is not its model's",
            advice="expect the same output of variants without it",
        )
    return None


def _agreement(variant: str, yardstick: Outputs, other: Outputs, steady: Sequence[int]) -> Agreement:
    apart = [place for place in steady if yardstick.digests[place] != other.digests[place]]
    first = None
    if apart:
        texts = yardstick.texts[apart[0]], other.texts[apart[0]]
        at = next((at for at, (one, two) in enumerate(zip(*texts, strict=False)) if one != two), min(map(len, texts)))
        shown = slice(max(0, at - SHOWN_BEFORE), at + SHOWN_BEHIND)
        first = Difference(prompt=yardstick.prompts[apart[0]], at=at, yardstick=texts[0][shown], other=texts[1][shown])
    return Agreement(variant=variant, alike=len(steady) - len(apart), of=len(steady), first=first)
