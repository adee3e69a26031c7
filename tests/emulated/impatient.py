"""For an inner pytest, `-p tests.emulated.impatient`: it waits seconds for a token, where the suite waits minutes.

Far above what two answers at 20 ms a step take on a busy machine.
"""

from dataclasses import dataclass

from perf import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(load.Limits):
    """Bounds of one request, in seconds."""

    first_token_s: float = 6.0
    between_tokens_s: float = 4.0


load.Limits = Limits  # type: ignore[misc]
