"""One way through the house: which module may import which, and what the pure ones must not know."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "perf"
MODULES = {path.stem: path for path in sorted(PACKAGE.glob("*.py")) if path.stem != "__init__"}

#: What each module may import of the package. An arrow that is not here is a decision to be made, not an accident.
ALLOWED: dict[str, set[str]] = {
    # Words and data.
    "text": set(),
    "trace": set(),
    "sample": {"text"},
    "redaction": {"text"},
    "interpreter": set(),
    "server_log": {"text"},
    # Pure.
    "noise": set(),
    "evidence": {"noise"},
    "gate": {"evidence", "noise"},
    "interval": {"gate", "sample"},
    "measured": {"record", "rig", "sample", "text", "validity"},
    "trial": {"evidence", "gate", "measured", "noise", "record", "sample"},
    "metrics": {"trace"},
    "moved": {"sample", "text"},
    "stream": {"trace"},
    "validity": {"nvml", "rig", "text", "trace"},
    "identity": {"redaction", "text", "validity"},
    "workload": set(),
    "suite": {"workload"},
    "suite_file": {"suite", "text", "workload"},
    "migration": {"crossover", "sample"},
    "compact": {
        "crossover",
        "files",
        "measured",
        "metrics",
        "moved",
        "record",
        "same_output",
        "sample",
        "validity",
        "verdict",
    },
    "blocks": set(),
    "figures": set(),
    "statements": {"compact", "figures", "gate", "rig", "text", "verdict"},
    "relations": {"gate", "interval", "record", "sample", "saturation", "suite"},
    "crossover": {"gate", "interval", "noise", "sample"},
    "saturation": {"noise", "sample"},
    "same_output": {"gate", "measured", "record", "text", "validity"},
    "verdict": {
        "crossover",
        "gate",
        "interval",
        "measured",
        "moved",
        "record",
        "relations",
        "same_output",
        "sample",
        "text",
        "trial",
        "validity",
    },
    "campaign": {"gate", "measured", "noise", "record", "relations", "text", "trial", "verdict"},
    "simulation": {"campaign", "metrics", "noise", "record", "sample", "trial"},
    "report": {
        "crossover",
        "gate",
        "interval",
        "measured",
        "moved",
        "record",
        "same_output",
        "text",
        "validity",
        "verdict",
    },
    # Files.
    "files": set(),
    "record": {
        "crossover",
        "files",
        "metrics",
        "migration",
        "rig",
        "sample",
        "server_log",
        "suite",
        "trace",
        "validity",
    },
    "baseline": {"carrier", "crossover", "files", "migration", "sample", "text"},
    "trace_file": {"files", "trace"},
    "promotion": {
        "baseline",
        "campaign",
        "crossover",
        "files",
        "gate",
        "measured",
        "record",
        "same_output",
        "sample",
        "text",
        "verdict",
    },
    # The world.
    "nvml": set(),
    "rig": {"nvml"},
    "telemetry": {"interpreter", "nvml", "rig"},
    "carrier": {"rig", "sample"},
    "provenance": {"sample"},
    "ports": {"files"},
    "sglang": {"identity", "trace"},
    "supervisor": {"redaction"},
    "leftovers": {"files", "supervisor", "text"},
    "rig_lock": {"files", "rig", "suite", "text"},
    "server": {"files", "interpreter", "leftovers", "ports", "redaction", "server_log", "sglang", "supervisor"},
    "health": {"trace"},
    "transport": {"stream", "trace", "workload"},
    "load": {"health", "trace", "transport", "workload"},
    "crew": {"interpreter", "load", "trace", "workload"},
    "answers": {"load", "workload"},
    "capacity": {"crew", "files", "load", "metrics", "null_server", "rig", "server", "validity", "workload"},
    "measure": {
        "answers",
        "capacity",
        "crew",
        "files",
        "identity",
        "leftovers",
        "load",
        "metrics",
        "provenance",
        "record",
        "redaction",
        "rig",
        "sample",
        "server",
        "server_log",
        "sglang",
        "suite",
        "telemetry",
        "text",
        "trace",
        "trace_file",
        "validity",
        "workload",
    },
    # Servers of their own, which know nothing of who measures them.
    "emulator_engine": set(),
    "emulator_wire": {"emulator_engine"},
    "emulator": {"emulator_engine", "emulator_wire"},
    "null_server": {"files"},
    # The history, and what is drawn of it.
    "history": {"files", "measured", "record", "sample", "text"},
    "importing": {"files", "history", "text"},
    "trend": {"history", "record", "sample", "text"},
    # Verbs of `python -m perf`.
    "compare": {"files", "gate", "promotion", "record", "sample", "verdict"},
    "coverage": {
        "baseline",
        "crossover",
        "files",
        "migration",
        "promotion",
        "rig",
        "sample",
        "suite",
        "suite_file",
        "text",
    },
    "docs": {"blocks", "compact", "figures", "files", "plan", "record", "statements", "suite_file", "text"},
    "doctor": {
        "capacity",
        "files",
        "leftovers",
        "load",
        "measure",
        "measured",
        "noise",
        "nvml",
        "plan",
        "ports",
        "prospect",
        "record",
        "rig",
        "rig_lock",
        "sample",
        "simulation",
        "suite",
        "suite_file",
        "text",
        "validity",
    },
    "export": {"text", "trace"},
    "plan": {"campaign", "interval", "sample", "suite", "text"},
    "project": {"suite", "suite_file"},
    "prospect": {
        "campaign",
        "gate",
        "noise",
        "plan",
        "record",
        "sample",
        "simulation",
        "suite",
        "text",
        "trial",
        "verdict",
    },
    "prune": {"baseline", "coverage", "files", "record", "text"},
    "verify": {"files", "metrics", "record", "trace_file", "validity"},
    # The two ways in.
    "session": {
        "baseline",
        "campaign",
        "capacity",
        "carrier",
        "crossover",
        "files",
        "history",
        "leftovers",
        "load",
        "measure",
        "measured",
        "plan",
        "promotion",
        "record",
        "redaction",
        "report",
        "rig",
        "rig_lock",
        "sample",
        "suite",
        "telemetry",
        "text",
        "validity",
        "verdict",
    },
    "plugin": {
        "carrier",
        "files",
        "gate",
        "measure",
        "redaction",
        "report",
        "session",
        "suite",
        "suite_file",
        "text",
        "verdict",
    },
    "__main__": {
        "baseline",
        "compact",
        "compare",
        "coverage",
        "docs",
        "doctor",
        "export",
        "files",
        "gate",
        "history",
        "importing",
        "measured",
        "plan",
        "project",
        "promotion",
        "prospect",
        "prune",
        "record",
        "report",
        "rig",
        "suite_file",
        "text",
        "trace_file",
        "trend",
        "verdict",
        "verify",
    },
}

#: Given what they need, these compute: no clock, no process, no network, no pytest.
PURE = {
    "blocks",
    "campaign",
    "compact",
    "crossover",
    "export",
    "evidence",
    "figures",
    "gate",
    "identity",
    "interval",
    "measured",
    "metrics",
    "migration",
    "moved",
    "noise",
    "plan",
    "prospect",
    "redaction",
    "relations",
    "report",
    "sample",
    "saturation",
    "server_log",
    "simulation",
    "statements",
    "stream",
    "suite",
    "suite_file",
    "text",
    "trace",
    "trend",
    "trial",
    "validity",
    "verdict",
    "workload",
}
IMPURE_IMPORTS = {"aiohttp", "asyncio", "httpx2", "openai", "os", "psutil", "pytest", "socket", "subprocess", "time"}

#: Pure but for reading the prompt set and the suite file they are named for; a suite names the path of its file.
MAY_READ_FILES = {"workload", "suite", "suite_file"}


def imports(module: str) -> set[str]:
    """Every module that `module` imports, anywhere in it; of our own with `perf.` in front."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            name = node.module or ""
            found |= {f"perf.{alias.name}" for alias in node.names} if name == "perf" else {name}
    return found


def ours(module: str) -> set[str]:
    return {name.removeprefix("perf.").split(".")[0] for name in imports(module) if name.startswith("perf.")}


def foreign(module: str) -> set[str]:
    return {name.split(".")[0] for name in imports(module) if not name.startswith("perf")}


def test_the_table_names_every_module() -> None:
    assert set(ALLOWED) == set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_arrows(module: str) -> None:
    assert ours(module) <= ALLOWED[module]


@pytest.mark.parametrize("module", MODULES)
def test_the_table_allows_nothing_that_is_not_used(module: str) -> None:
    assert ours(module) >= ALLOWED[module]


def test_nothing_flows_back() -> None:
    """No module imports, over any number of steps, itself."""

    def reach(module: str, seen: set[str]) -> set[str]:
        for name in ALLOWED[module] - seen:
            seen |= {name} | reach(name, seen | {name})
        return seen

    assert [module for module in ALLOWED if module in reach(module, set())] == []


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_knows_no_clock_no_process_and_no_network(module: str) -> None:
    assert foreign(module) & IMPURE_IMPORTS == set()
    if module not in MAY_READ_FILES:
        assert "pathlib" not in foreign(module)
        assert not any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
            for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        )


def test_only_the_plugin_knows_pytest() -> None:
    assert [module for module in MODULES if "pytest" in foreign(module)] == ["plugin"]


def test_only_the_load_knows_the_openai_client() -> None:
    assert [module for module in MODULES if "openai" in foreign(module)] == ["load"]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_opens_with_what_it_is_for(module: str) -> None:
    said = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    assert said
    assert said.splitlines()[0].rstrip().endswith((".", ":", "?")) or len(said.splitlines()) > 1


def test_no_module_hides_one_of_the_standard_library_that_others_import() -> None:
    """A file run by its path finds its neighbours first. `trace` of the standard library is a command, not a part."""
    assert set(MODULES) & (sys.stdlib_module_names - {"__main__", "trace"}) == set()
