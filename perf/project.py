"""Which suites a command without a server is about: those it is given, else those that pytest.ini names."""

from pathlib import Path

from iniconfig import IniConfig, ParseError

from perf import suite
from perf.suite import Suite, SuiteError

INI = "pytest.ini"


def suites(names: list[str] | None, folder: Path) -> tuple[Suite, ...]:
    """Suites by path or name from `folder`; without names those of its pytest.ini. Raises SuiteError."""
    return tuple(suite.load(suite.find(name, folder)) for name in dict.fromkeys(names or _named(folder / INI)))


def _named(ini: Path) -> list[str]:
    """The lines of `perf_suite`, read as pytest reads them."""
    try:
        text = str(IniConfig(ini).get("pytest", "perf_suite", default=""))
    except (OSError, UnicodeDecodeError, ParseError) as error:
        raise SuiteError(f"{ini}: cannot be read: {error}; give --suite=PATH, or run from the clone") from error
    if names := [line.strip() for line in text.splitlines() if line.strip()]:
        return names
    raise SuiteError(f"{ini}: names no suite under perf_suite; give --suite=PATH")
