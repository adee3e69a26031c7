"""The emulated engine: a scheduler with continuous batching and a model of how long its steps take.

Pure: it is told when a request arrived and says when its tokens are due. It reads no clock, so the same engine is
driven by the wall clock behind HTTP (`perf.emulator`) and by a loop of arithmetic in tests. Deadlines are absolute:
a late host delays what a client sees, never what the engine says is true.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from random import Random

# Steps in one deck of acceptance draws. Short: only the last deck of a request, played in part, moves its mean.
DECK_STEPS = 10
# Fractional part of the golden ratio: shifts by it spread evenly over [0, 1) for any number of decks.
GOLDEN_SHIFT = (math.sqrt(5) - 1) / 2
# Halvings of an interval of length 1 that reach the precision of a float.
BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long the steps take, before any noise.

    `anchors_s` holds (batch size, seconds) with growing batch sizes. Between anchors a decode step is linear in the
    batch size, before the first it is constant, beyond the last it goes on with the last slope.
    """

    anchors_s: tuple[tuple[int, float], ...]
    prefill_base_s: float
    prefill_per_token_s: float

    def __post_init__(self) -> None:
        batches = [batch for batch, _ in self.anchors_s]
        if not batches or batches[0] < 1 or sorted(set(batches)) != batches:
            raise ValueError(f"step anchors need growing batch sizes from 1 on, seen {batches}")
        if min(step_s for _, step_s in self.anchors_s) <= 0 or self.prefill_base_s < 0 or self.prefill_per_token_s < 0:
            raise ValueError("step times must be above 0, prefill times not below 0")
        if len(batches) > 1 and self.anchors_s[-1][1] < self.anchors_s[-2][1]:
            raise ValueError("the last two step anchors fall: extended, they would reach times below 0")

    def decode_s(self, batch: int) -> float:
        """Seconds of one decode step of `batch` requests."""
        first_batch, first_s = self.anchors_s[0]
        if batch <= first_batch or len(self.anchors_s) == 1:
            return first_s
        right = bisect_left(self.anchors_s, batch, key=lambda anchor: anchor[0])
        right = min(right, len(self.anchors_s) - 1)
        (low, low_s), (high, high_s) = self.anchors_s[right - 1], self.anchors_s[right]
        return low_s + (high_s - low_s) * (batch - low) / (high - low)

    def prefill_s(self, prompt_tokens: int) -> float:
        """Seconds of one prefill step over `prompt_tokens`, all prompts of the step together."""
        return self.prefill_base_s + self.prefill_per_token_s * prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Planted losses: tok/s lower by a fraction, everywhere or at one level. Negative fractions make it faster."""

    everywhere: float = 0.0
    at_level: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if max(self.everywhere, *(loss for _, loss in self.at_level), 0.0) >= 1:
            raise ValueError("a slowdown must be below 1: at 1 nothing would ever be generated")

    def factor(self, level: int) -> float:
        """What times are multiplied by at `level`: 1 / (1 - fraction), where a level's own fraction goes first."""
        return 1 / (1 - dict(self.at_level).get(level, self.everywhere))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How many tokens a verify step yields: k of 1..draft_steps + 1.

    Each draft token in turn is accepted with the same probability p, the first refusal ends the step, and the target
    model adds one token: P(k) = p^(k-1) (1 - p) for k <= draft_steps, P(draft_steps + 1) = p^draft_steps. The mean is
    1 + p + ... + p^draft_steps, from which p is found.
    """

    mean: float
    draft_steps: int

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= self.draft_steps + 1:
            raise ValueError(
                f"a mean acceptance length of {self.mean} is impossible with {self.draft_steps} draft steps: "
                f"it lies between 1 and {self.draft_steps + 1}"
            )

    def probability(self) -> float:
        """The probability p that one draft token is accepted."""
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if mean_acceptance(middle, self.draft_steps) < self.mean:
                low = middle
            else:
                high = middle
        return high

    def cumulative(self) -> tuple[float, ...]:
        """P(k <= 1), ..., P(k <= draft_steps); the last outcome has the rest."""
        probability = self.probability()
        return tuple(accumulate(probability**k * (1 - probability) for k in range(self.draft_steps)))


def mean_acceptance(probability: float, draft_steps: int) -> float:
    """Mean tokens of a verify step whose draft tokens are accepted with `probability` each."""
    return sum(probability**k for k in range(draft_steps + 1))


class Deck:
    """Acceptance draws whose mean is nearly exact after few draws.

    A deck is `DECK_STEPS` quantiles of the distribution at equal distances, shuffled; the next deck's quantiles are
    shifted, so that what one deck rounds up the next rounds down.
    """

    def __init__(self, cumulative: tuple[float, ...], random: Random) -> None:
        self._cumulative = cumulative
        self._random = random
        self._shift = random.random()
        self._cards: list[int] = []

    def draw(self) -> int:
        if not self._cards:
            self._shift = (self._shift + GOLDEN_SHIFT) % 1
            self._cards = [
                1 + bisect_right(self._cumulative, (step + self._shift) / DECK_STEPS) for step in range(DECK_STEPS)
            ]
            self._random.shuffle(self._cards)
        return self._cards.pop()


class EngineRequest:
    """One request in the engine. Times are seconds of the engine's timeline; absent until they happened."""

    __slots__ = (
        "arrival_s",
        "deck",
        "first_token_s",
        "last_token_s",
        "level",
        "output_tokens",
        "prefill_tokens",
        "tokens",
        "verify_steps",
    )

    def __init__(self, arrival_s: float, prefill_tokens: int, output_tokens: int, deck: Deck | None) -> None:
        self.arrival_s = arrival_s
        self.prefill_tokens = prefill_tokens
        self.output_tokens = output_tokens
        self.deck = deck
        self.tokens = 0
        self.verify_steps = 0
        self.level = 0
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    @property
    def finished(self) -> bool:
        return self.first_token_s is not None and self.tokens >= self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step: who got how many tokens at `deadline_s`."""

    deadline_s: float
    prefill: bool
    emissions: tuple[tuple[EngineRequest, int], ...]


class Engine:
    """Continuous batching on an absolute timeline.

    At a step boundary the requests that have arrived are admitted and get a prefill step together, which ends with
    their first token; running requests wait meanwhile. Without arrivals all running requests get a decode step.
    The caller alternates `start_step` and `finish_step`.
    """

    def __init__(
        self,
        *,
        timing: Timing,
        noise_seed: int,
        acceptance: Acceptance | None = None,
        slowdown: Slowdown | None = None,
        launch_cv: float = 0.0,
        round_cv: float = 0.0,
        speed: float = 1.0,
        max_running: int = 1024,
    ) -> None:
        self._timing = timing
        self._cumulative = None if acceptance is None else acceptance.cumulative()
        self._slowdown = slowdown or Slowdown()
        self._noise_seed = noise_seed
        self._round_cv = round_cv
        self._speed = speed
        self._max_running = max_running
        self._waiting: deque[EngineRequest] = deque()
        self._running: list[EngineRequest] = []
        self._batch: list[EngineRequest] = []
        self._batch_is_prefill = False
        self._clock_s = -math.inf
        self._level = 0
        self._submitted = 0
        self._rounds = 0
        self.extra_step_s = 0.0
        # Of the round so far, all requests together, before a last step is cut to the length asked for.
        self.verify_steps = 0
        self.accepted = 0
        self.launch_factor = lognormal_factor(launch_cv, Random(f"{noise_seed} launch"))
        self.round_factor = 1.0
        self.new_round()

    @property
    def running(self) -> int:
        return len(self._running) + (len(self._batch) if self._batch_is_prefill else 0)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def new_round(self) -> None:
        """Draw the round's factor anew and forget the acceptance so far."""
        self.verify_steps = self.accepted = 0
        self.round_factor = lognormal_factor(self._round_cv, Random(f"{self._noise_seed} round {self._rounds}"))
        self._rounds += 1

    def submit(
        self, *, arrival_s: float, prefill_tokens: int, output_tokens: int, prompt: int | None = None
    ) -> EngineRequest:
        """Queue a request. Arrivals must not go back in time.

        `prompt` identifies its text: at temperature 0 the same prompt has the same steps accepted in every launch.
        """
        self._submitted += 1
        deck = None
        if self._cumulative is not None:
            seed = f"{self._noise_seed} request {self._submitted}" if prompt is None else f"prompt {prompt}"
            deck = Deck(self._cumulative, Random(seed))
        request = EngineRequest(arrival_s, prefill_tokens, output_tokens, deck)
        self._waiting.append(request)
        self._level = max(self._level, self.running + self.waiting)
        return request

    def cancel(self, request: EngineRequest) -> None:
        """Forget a request: it gets no more tokens."""
        request.level = self._level
        self._waiting = deque(_others(self._waiting, request))
        self._running = _others(self._running, request)
        self._batch = _others(self._batch, request)
        self._reset_level_when_idle()

    def start_step(self) -> float | None:
        """Begin the next step and return its deadline in seconds, or None when there is nothing to do."""
        if not self._running:
            if not self._waiting:
                return None
            self._clock_s = max(self._clock_s, self._waiting[0].arrival_s)
        admitted: list[EngineRequest] = []
        while (
            self._waiting
            and self._waiting[0].arrival_s <= self._clock_s
            and len(self._running) + len(admitted) < self._max_running
        ):
            admitted.append(self._waiting.popleft())
        self._batch_is_prefill = bool(admitted)
        self._batch = admitted or list(self._running)
        if admitted:
            step_s = self._timing.prefill_s(sum(request.prefill_tokens for request in admitted))
        else:
            step_s = self._timing.decode_s(len(self._batch))
        factor = self.launch_factor * self.round_factor * self._slowdown.factor(self._level) / self._speed
        self._clock_s += step_s * factor + self.extra_step_s
        return self._clock_s

    def finish_step(self) -> Step:
        """End the step that was started: hand out its tokens."""
        batch, self._batch = self._batch, []
        emissions = tuple((request, self._advance(request)) for request in batch)
        if self._batch_is_prefill:
            self._running.extend(batch)
        self._running = [request for request in self._running if not request.finished]
        for request in batch:
            request.level = self._level
        self._reset_level_when_idle()
        return Step(deadline_s=self._clock_s, prefill=self._batch_is_prefill, emissions=emissions)

    def _advance(self, request: EngineRequest) -> int:
        if request.first_token_s is None:
            request.first_token_s = self._clock_s
            drawn = 1
        elif request.deck is None:
            drawn = 1
        else:
            drawn = request.deck.draw()
            request.verify_steps += 1
            self.verify_steps += 1
            self.accepted += drawn
        tokens = min(drawn, request.output_tokens - request.tokens)
        request.tokens += tokens
        request.last_token_s = self._clock_s
        return tokens

    def _reset_level_when_idle(self) -> None:
        if not self._waiting and not self._running and not self._batch:
            self._level = 0


def lognormal_factor(cv: float, random: Random) -> float:
    """A log-normal factor with median 1 and coefficient of variation `cv`: exp(z sqrt(ln(1 + cv^2)))."""
    return math.exp(random.gauss(0.0, 1.0) * math.sqrt(math.log1p(cv * cv)))


def _others(requests: Iterable[EngineRequest], one: EngineRequest) -> list[EngineRequest]:
    return [request for request in requests if request is not one]
