"""The benchmark of clients, run small: its tables have the shape they promise and our client makes no error in it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Twenty seconds where nothing else runs.
PATIENCE_S = 240.0

CLIENTS = ["AsyncOpenAI", "AsyncOpenAI, aiohttp", "aiohttp, JSON per event", "sglang-perf"]


def tables(markdown: str) -> dict[str, list[list[str]]]:
    """The rows of each table behind its head, by the first words of its title."""
    found: dict[str, list[list[str]]] = {}
    for part in markdown.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        found[title] = rows
    return found


def test_the_quick_benchmark_compares_all_clients_and_ours_makes_no_error(tmp_path: Path) -> None:
    file = tmp_path / "tables.md"
    command = [sys.executable, "-m", "benchmarks.client", "--quick", "--markdown", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    found = tables(file.read_text(encoding="utf-8"))
    assert [title.split(" ")[0] for title in found] == ["Sustained", "Truth", "200", "250"]
    for title, (head, _, *rows) in found.items():
        assert title in ended.stdout
        assert "run-queue wait" in head
        assert [row[0] for row in rows] == CLIENTS
        ours = dict(zip(head, rows[-1], strict=True))
        assert ": met" in ours["target"] or ": missed" in ours["target"]
    head, _, *rows = found["200 streams"]
    crowd = dict(zip(head, rows[-1], strict=True))
    assert (crowd["connections"], crowd["errors"]) == ("200", "0")
