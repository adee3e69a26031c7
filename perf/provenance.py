"""Which build of SGLang a server runs: asked of its own interpreter, without importing anything of it.

The installed build is the provenance, not what a workflow says it checked out (vllm-ascend#16070). For an editable
install that is the state of its checkout: the commit, and a digest of what differs from it.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from perf.sample import Build

#: An interpreter that reads the metadata of its packages, and git on a large checkout, take a second or two.
PROBE_TIMEOUT_S = 30.0

#: What git does not track counts where it can be a part of the build; kernels are tuned by JSON files. A log that grows
#: under a campaign is no other build.
SOURCES = frozenset(
    (".c", ".cc", ".cmake", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inl", ".json", ".py", ".pyx", ".rs", ".so", ".toml")
)

#: An untracked file beyond this is told by its size and time, not by its bytes.
MAX_UNTRACKED_BYTES = 1024 * 1024

#: Packages that bring what runs on the GPU, or choose it: told one by one, where a digest says only that one changed.
#: An NCCL, cuDNN or cuBLAS for another CUDA is another package: `nvidia-nccl-cu13`; the newest ones have no such end.
KERNELS = re.compile(
    r"sgl-kernel|sglang-kernel|sgl-fa4|flashinfer-(python|cubin|jit-cache)|flash-attn(-[34])?|flash-mla|deep-gemm|deep-ep"
    r"|sgl-deep-gemm|triton|pytorch-triton(-rocm)?|triton-kernels|tilelang|quack-kernels|torchao|vllm|aiter|amd-aiter"
    r"|nvidia-(nccl|cudnn|cublas|nvshmem)(-cu\d+)?|nvidia-cutlass-dsl"
)

#: As torch writes it into its own `version.py`.
_CUDA = re.compile(r"^cuda\b[^=]*=\s*'([0-9.]{1,20})'", re.MULTILINE)

#: Run by the server's interpreter: every package and version, where SGLang's source lies, what torch says of itself.
_PROBE = """
import importlib.metadata as metadata, json
packages, source, torch = {}, None, None
for each in metadata.distributions():
    name = str(each.metadata["Name"] or "").lower().replace("_", "-")
    packages.setdefault(name, each.version)
    if name == "sglang":
        told = json.loads(each.read_text("direct_url.json") or "{}")
        if told.get("dir_info", {}).get("editable"):
            source = told.get("url")
    if name == "torch" and torch is None:
        try:
            torch = open(each.locate_file("torch/version.py"), encoding="utf-8", errors="replace").read(100_000)
        except OSError:
            pass
print("\\n" + json.dumps({"packages": packages, "source": source, "torch": torch}))
"""


#: One argument of Python's: options without a value, then one that has it here or in the next argument.
_OPTION = re.compile(r"-([bBdEhiIOPqRsSuvVx?]*)(?:([WXmc])(.*))?", re.DOTALL)

#: Run by the server's interpreter: where it finds a package, looking first into its working directory, as for `-m`.
_FIND = """
import importlib.util, sys
found = importlib.util.find_spec(sys.argv[1])
print("\\n" + (found.origin or list(found.submodule_search_locations)[0]))
"""


def code_of(command: Sequence[str], python: str, folder: Path, env: Mapping[str, str]) -> Path | None:
    """Where a server that is started in `folder` by `{python} -m MODULE` has that module's package from; None where it
    is started otherwise, as by a script that may import from anywhere, or the interpreter does not find it."""
    after = iter(command[command.index("{python}") + 1 :] if "{python}" in command else ())
    options: list[str] = []  # -I and -P look elsewhere
    for argument in after:
        option = _OPTION.fullmatch(argument) if len(argument) > 1 else None
        if option is None or option[2] == "c":
            return None
        value = (option[3] or next(after, "")) if option[2] else ""
        if option[2] == "m":
            options += [f"-{option[1]}"] if option[1] else []
            found = (_run([python, *options, "-c", _FIND, value.partition(".")[0]], folder, env) or b"").splitlines()
            return Path(os.fsdecode(found[-1])) if found else None
        options += [f"-{option[1]}{option[2] or ''}", *([value] if option[2] else [])]
    return None


def build_of(python: str, folder: Path, env: Mapping[str, str]) -> Build | None:
    """The build behind an interpreter, as a server in `folder` with `env` finds it; None where it does not say."""
    found = _run([python, "-c", _PROBE], folder, env)
    try:
        told = json.loads((found or b"").splitlines()[-1])  # a sitecustomize may have printed before
        packages: dict[str, str] = {str(name): str(version) for name, version in told["packages"].items()}
        source, cuda = told["source"], _CUDA.search(str(told["torch"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    commit, dirty = None, None
    if isinstance(source, str) and source.startswith("file://"):
        commit, dirty = _checkout(Path(unquote(urlsplit(source).path)))
    listed = "\n".join(f"{name}=={packages[name]}" for name in sorted(packages))
    return Build(
        sglang=packages.get("sglang"),
        torch=packages.get("torch"),
        cuda=None if cuda is None else cuda[1],
        commit=commit,
        dirty=dirty,
        kernels=tuple((name, packages[name]) for name in sorted(packages) if KERNELS.fullmatch(name)),
        packages=hashlib.sha256(listed.encode()).hexdigest()[:16],
    )


def _checkout(source: Path) -> tuple[str | None, str | None]:
    """Commit and digest of the changes of the checkout that `source` lies in."""
    # Not what a hook, in which this may run, has set for the repository it is of.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> bytes | None:
        return _run(["git", *arguments], source, env)

    commit, top = git("rev-parse", "HEAD"), git("rev-parse", "--show-toplevel")
    changes = git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-relative")
    untracked = git("ls-files", "--others", "--exclude-standard", "-z", "--full-name", ":/")
    if commit is None or top is None or changes is None or untracked is None:
        return None, None
    digest = hashlib.sha256(changes)
    root = Path(os.fsdecode(top.rstrip(b"\n")))
    added = [path for name in sorted(untracked.split(b"\0")) if (path := root / os.fsdecode(name)).suffix in SOURCES]
    for path in added:
        digest.update(os.fsencode(path) + b"\0" + _told(path))
    return commit.decode().strip(), digest.hexdigest()[:16] if changes or added else None


def _told(path: Path) -> bytes:
    try:
        status = path.stat()
        if path.is_file() and status.st_size <= MAX_UNTRACKED_BYTES:
            return path.read_bytes()
    except OSError:  # gone meanwhile, or not ours to read: its name is in the digest all the same
        return b""
    return f"{status.st_size} {status.st_mtime_ns}".encode()


def _run(command: list[str], folder: Path, env: Mapping[str, str]) -> bytes | None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
