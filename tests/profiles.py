"""How many inputs the properties are tried with: few by default, many with `--hypothesis-profile=fuzz`.

Not of tests/conftest.py: performance cases need no hypothesis.
"""

from hypothesis import settings


def register() -> None:
    """Before any property is seen. No deadlines: that a machine was busy for a second is no finding.

    The few are the same on every machine, so that a build is red for what was changed; `fuzz` looks for others.
    """
    settings.register_profile("few", deadline=None, derandomize=True)
    settings.register_profile("fuzz", max_examples=3000, deadline=None, print_blob=True)
    settings.load_profile("few")
