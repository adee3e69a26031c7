"""Which suites a command without a server is about: those it is given, else those that pytest.ini names."""

from pathlib import Path

from iniconfig import IniConfig, ParseError

from perf import suite_file
from perf.suite import Suite
from perf.suite_file import SuiteError

INI = "pytest.ini"


def suites(names: list[str] | None, folder: Path) -> tuple[Suite, ...]:
    """Suites by path or name from `folder`; without names those of its pytest.ini. Raises SuiteError."""
    paths = dict.fromkeys(suite_file.find(name, folder).resolve() for name in names or _named(folder / INI))
    loaded = tuple(map(suite_file.load, paths))
    for each in loaded:
        if other := next((one for one in loaded if one.name == each.name and one is not each), None):
            raise SuiteError(f"{other.source}: suite.name: {each.name!r} is also the name of {each.source}")
    return loaded


def _named(ini: Path) -> list[str]:
    """The lines of `perf_suite`, read as pytest reads them."""
    try:
        text = str(IniConfig(ini).get("pytest", "perf_suite", default=""))
    except (OSError, UnicodeDecodeError, ParseError) as error:
        raise SuiteError(f"{ini}: cannot be read: {error}; give --suite=PATH, or run from the clone") from error
    if names := [line.strip() for line in text.splitlines() if line.strip()]:
        return names
    raise SuiteError(f"{ini}: names no suite under perf_suite; give --suite=PATH")
