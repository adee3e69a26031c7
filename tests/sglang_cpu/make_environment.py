"""Make an environment in which real SGLang serves tiny random models on a CPU.

`python tests/sglang_cpu/make_environment.py TARGET_DIR`, with any Python from 3.11 and nothing installed, makes
TARGET_DIR/venv and TARGET_DIR/models. The environment is apart from the one that measures, since SGLang pins an
openai package older than the suite's. What is complete and unchanged is left as it is; a stamp, written last,
tells it from what was interrupted.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SGLANG = "sglang==0.5.23"
HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
MAKE_MODEL = HERE / "make_model.py"
# Minutes on a good line. An hour is for a slow one, where torch comes with CUDA and is several times as big.
STEP_TIMEOUT_S = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="directory that gets venv/ and models/")
    target: Path = parser.parse_args().target.resolve()
    venv, models, stamp = target / "venv", target / "models", target / "stamp"
    python = venv / "bin" / "python"

    digest = inputs_digest()
    if stamp.exists() and stamp.read_text(encoding="ascii") == digest and python.exists():
        say(f"{target} is complete: nothing to do")
        return

    target.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    if models.exists():
        shutil.rmtree(models)

    # Isolated (-I): a PYTHONPATH of the caller must not decide what is installed. pip's own settings (index,
    # cache, proxy) still count.
    pip = [str(python), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq"]
    step(
        f"create {venv}",
        [sys.executable, "-I", "-m", "venv", "--clear", str(venv)],
        "Debian and Ubuntu ship venv apart: apt-get install python3-venv.",
    )
    step(
        f"install {REQUIREMENTS.name}",
        [*pip, "-r", str(REQUIREMENTS)],
        "pip says why above. No versions at all: is the package index reachable? Only this one missing: no wheel "
        "for this Python; 3.11 and 3.12 were seen to work.",
    )
    step(f"install {SGLANG}", [*pip, "--no-deps", SGLANG], "pip says why above.")
    step(f"make {models}", [str(python), "-I", str(MAKE_MODEL), str(models)], "Its message is above.")

    unfinished = stamp.with_suffix(".unfinished")
    unfinished.write_text(digest, encoding="ascii")
    os.replace(unfinished, stamp)
    say(f"{target} is complete")


def inputs_digest() -> str:
    """Digest of all that decides what the environment holds: the files beside this one, this one, the Python."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (Path(__file__), REQUIREMENTS, MAKE_MODEL):
        content = path.read_bytes()
        digest.update(b"%d\n" % len(content))
        digest.update(content)
    return digest.hexdigest()


def step(what: str, command: list[str], help_text: str) -> None:
    """Run one command and leave the program with a sentence where it fails."""
    say(what)
    try:
        status = subprocess.run(command, check=False, timeout=STEP_TIMEOUT_S).returncode
    except subprocess.TimeoutExpired:
        sys.exit(f"failed to {what}: not done after {STEP_TIMEOUT_S:.0f} s. Run it again: what is cached stays.")
    if status != 0:
        sys.exit(f"failed to {what}: exit status {status} of {' '.join(command)}\n{help_text}")


def say(line: str) -> None:
    sys.stdout.write(f"sglang-cpu: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
