"""Launches drawn from the model of `perf.noise`, as arrays: for what judges them without a record."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perf.evidence import Observed
from perf.gate import Gate, Rule
from perf.noise import Matrix, Night, Noise, Vector

#: A loss of the margin, as a log-ratio.
LOSS = float(np.log(0.97))

RULE = Rule(margin=0.03, alpha=0.01, power=0.95, families=1, reference=True)
ALONE = Rule(margin=0.03, alpha=0.01, power=0.95, families=1, reference=False)


def known(
    spread: float | Sequence[float] = 0.01,
    *,
    levels: int = 8,
    share: float = 0.25,
    night: float = 0.5,
    night_level: float = 0.0,
    launches: int = 20,
) -> Noise:
    """Noise that is known exactly, of a store of so many launches on as many nights, whose mean is 0.

    `share` is of a launch's variance, `night` and `night_level` standard deviations in units of `spread`.
    """
    each = np.full(levels, spread) if isinstance(spread, float) else np.asarray(spread)
    typical = float(np.median(each)) ** 2
    shared, apart = share * typical, night**2 * typical
    own = each**2 - share * np.minimum(typical, each**2)
    by_itself = night_level**2 * each**2
    return Noise(
        mean=np.zeros(len(each)),
        spread=each,
        own=own,
        shared=shared,
        night=apart,
        night_level=by_itself,
        stored=(shared + np.diag(own)) / launches + (apart + np.diag(by_itself)) * (1 + 1 / launches),
        freedom=np.full(len(each), float(launches)),
        launches=launches,
        nights=launches,
    )


@dataclass(slots=True)
class Tonight:
    """One night on a rig with exactly this noise, and a candidate that differs by `change`."""

    noise: Noise
    change: Vector
    seed: int
    block: int = 0
    hours: float = 0.0
    ran: list[Observed] = field(default_factory=list)
    luck: np.random.Generator = field(init=False)
    center: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.luck = np.random.default_rng(self.seed)
        self.center = self.luck.multivariate_normal(self.noise.mean, self.noise.stored)

    def launch(self, levels: Sequence[int] | None = None, *, candidate: bool = True) -> Observed:
        """One launch in the present block."""
        noise = self.noise
        count = len(noise.mean)
        own = np.sqrt(noise.own) * self.luck.standard_normal(count)
        logs = self.center + np.sqrt(noise.shared) * self.luck.standard_normal() + own
        if candidate:
            logs = logs + self.change
        there = np.zeros(count, dtype=bool)
        there[list(range(count) if levels is None else levels)] = True
        self.ran.append(
            Observed(candidate=candidate, block=self.block, hours=self.hours, logs=np.where(there, logs, np.nan))
        )
        self.hours += 1 / 6
        return self.ran[-1]

    def lone(self, levels: Sequence[int] | None = None) -> Observed:
        """A candidate launch in a block of its own."""
        self.block += 1
        return self.launch(levels)

    def pair(self, levels: Sequence[int] | None = None) -> tuple[Observed, Observed]:
        """A launch of each arm in a block of their own."""
        self.block += 1
        arms = (True, False) if self.block % 2 else (False, True)
        first, second = (self.launch(levels, candidate=arm) for arm in arms)
        return first, second


def judged(noise: Noise, launches: Sequence[Observed], rule: Rule = RULE) -> Gate:
    """The gate after these launches."""
    gate = Gate(noise, rule)
    for launch in launches:
        gate.add(launch)
    return gate


def drawn(
    seed: int,
    *,
    spread: Sequence[float],
    nights: int,
    launches: int,
    share: float = 0.25,
    night: float = 0.5,
    night_level: float = 0.0,
) -> list[Night]:
    """Nights of a store, of so many launches each; standard deviations of nights in units of the median `spread`."""
    luck = np.random.default_rng(seed)
    each = np.asarray(spread)
    typical = float(np.median(each))
    common = share * np.minimum(each, typical) ** 2
    stored = []
    for number in range(nights):
        center = typical * night * luck.standard_normal() + night_level * each * luck.standard_normal(len(each))
        alike = np.sqrt(common) * luck.standard_normal((launches, 1))
        own: Matrix = np.sqrt(each**2 - common) * luck.standard_normal((launches, len(each)))
        stored.append(Night(name=f"night-{number:04d}", logs=center + alike + own))
    return stored
