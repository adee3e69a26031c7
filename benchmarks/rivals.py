"""Other tools, as their makers ship them: each in an environment of its own under `.perf/bench-client/`, made once.

A tool that cannot be installed or run is a `RivalError` that says why; whoever compares shows it as a row.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: For what SGLang imports and an environment without a GPU does not have.
STAND_IN = ROOT / "tests" / "sglang_cpu" / "stand_in"
FOLDER = ROOT / ".perf" / "bench-client"

#: Minutes on a good line; SGLang comes with torch.
INSTALL_TIMEOUT_S = 3600.0
#: A run has seconds of load; what the tools do before and after it takes far longer.
RUN_TIMEOUT_S = 300.0
PROMPT_TOKENS = 64


class RivalError(Exception):
    """A tool that cannot be installed or run; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a tool is asked to do: `streams` requests at once, one each."""

    url: str
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a tool said: output tok/s, and its median TTFT in seconds."""

    rate: float
    ttft_p50_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A tool with its version, and how it is run with a folder for its files."""

    name: str
    run: Callable[[Load, Path], Reported]


def _command(command: list[str], timeout_s: float, log: Path) -> None:
    """Run to the end, output to a file. Raises RivalError with the last line that says something."""
    with log.open("w", encoding="utf-8") as file:
        try:
            ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=timeout_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RivalError(f"{type(error).__name__}: {error}"[:200]) from error
    if ended.returncode:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        raise RivalError(f"exit {ended.returncode}: {lines[-1].strip()[:200] if lines else 'no word'}")


def _sglang() -> tuple[str, str]:
    """Interpreter and model folder (its tokenizer is what all tools count a prompt with) of an SGLang for CPUs."""
    target = FOLDER / "sglang"
    FOLDER.mkdir(parents=True, exist_ok=True)
    python, log = target / "venv" / "bin" / "python", FOLDER / "sglang.log"
    make = [sys.executable, str(ROOT / "tests" / "sglang_cpu" / "make_environment.py"), str(target)]
    _command(make, INSTALL_TIMEOUT_S, log)
    if not list(target.glob("venv/lib/*/site-packages/datasets")):  # of its benchmark alone
        _command([str(python), "-m", "pip", "install", "-q", "datasets"], INSTALL_TIMEOUT_S, log)
    return str(python), str(target / "model")


def _tool(name: str, requirement: str) -> str:
    """The command of a tool that pip can install."""
    target = FOLDER / name
    command = target / "bin" / name
    if not command.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        log = FOLDER / f"{name}.log"
        _command([sys.executable, "-m", "venv", "--clear", str(target)], INSTALL_TIMEOUT_S, log)
        _command([str(target / "bin" / "pip"), "install", "-q", requirement], INSTALL_TIMEOUT_S, log)
    return str(command)


def _json(file: Path) -> dict[str, object]:
    try:
        told: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RivalError(f"no readable result: {error}") from error
    if not isinstance(told, dict):
        raise RivalError(f"no readable result in {file.name}")
    return told


def _number(told: object, *path: str | int) -> float:
    """A number somewhere in JSON. Raises RivalError where it is not."""
    for step in path:
        if isinstance(told, dict) and isinstance(step, str):
            told = told.get(step)
        elif isinstance(told, list) and isinstance(step, int) and step < len(told):
            told = told[step]
        else:
            told = None
    if not isinstance(told, int | float):
        raise RivalError(f"its result has no {'.'.join(map(str, path))}")
    return float(told)


def _sglang_bench(load: Load, folder: Path, module: str) -> Reported:
    python, model = _sglang()
    result = folder / "result.jsonl"
    command = [
        *("env", f"PYTHONPATH={STAND_IN}", python, "-m", module, "--backend", "sglang-oai-chat"),
        *("--base-url", load.url),
        *("--model", "null", "--tokenizer", model, "--dataset-name", "random-ids", "--num-prompts", str(load.streams)),
        *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)),
        *("--random-range-ratio", "1.0", "--max-concurrency", str(load.streams), "--output-file", str(result)),
        "--disable-tqdm",
    ]
    _command(command, RUN_TIMEOUT_S, folder / "log")
    told = _json(result)
    return Reported(rate=_number(told, "output_throughput"), ttft_p50_s=_number(told, "median_ttft_ms") / 1e3)


def _bench_serving(load: Load, folder: Path) -> Reported:
    return _sglang_bench(load, folder, "sglang.benchmark.serving")


def _rust_bench(load: Load, folder: Path) -> Reported:
    return _sglang_bench(load, folder, "sglang.benchmark.rust_client")


def _guidellm(load: Load, folder: Path) -> Reported:
    _, model = _sglang()
    result = folder / "result.json"
    command = [
        *(_tool("guidellm", "guidellm==0.8.1"), "run", "--backend", f"kind=openai_http,target={load.url},model=any"),
        *("--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.streams}", "--tokenizer", f"kind=hf_auto,model={model}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"),
        *("--output", f"kind=json,path={result}", "--disable-console"),
    ]
    _command(command, RUN_TIMEOUT_S, folder / "log")
    metrics = ("benchmarks", 0, "metrics")
    told = _json(result)
    return Reported(
        rate=_number(told, *metrics, "output_tokens_per_second", "successful", "mean"),
        ttft_p50_s=_number(told, *metrics, "time_to_first_token_ms", "successful", "median") / 1e3,
    )


def _aiperf(load: Load, folder: Path) -> Reported:
    _, model = _sglang()
    command = [
        *(
            _tool("aiperf", "aiperf==0.13.0"),
            "profile",
            "--model",
            "null",
            "--url",
            load.url,
            "--endpoint-type",
            "chat",
        ),
        *("--streaming", "--concurrency", str(load.streams), "--request-count", str(load.streams)),
        *("--tokenizer", model, "--synthetic-input-tokens-mean", str(PROMPT_TOKENS)),
        *("--output-tokens-mean", str(load.tokens), "--output-tokens-stddev", "0", "--use-server-token-count"),
        *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(folder), "--ui", "none"),
    ]
    _command(command, RUN_TIMEOUT_S, folder / "log")
    told = _json(folder / "profile_export_aiperf.json")
    return Reported(
        rate=_number(told, "output_token_throughput", "avg"),
        ttft_p50_s=_number(told, "time_to_first_token", "p50") / 1e3,
    )


RIVALS = (
    Rival(name="sglang bench_serving 0.5.23", run=_bench_serving),
    Rival(name="sglang Rust bench 0.5.23", run=_rust_bench),
    Rival(name="guidellm 0.8.1", run=_guidellm),
    Rival(name="aiperf 0.13.0", run=_aiperf),
)
