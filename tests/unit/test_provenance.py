"""Which build a server runs: told by its interpreter's packages, and by git for an editable install."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf.provenance import build_of, code_of
from perf.sample import Build

GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | GIT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


class Environment:
    """An interpreter with packages of its own, and the checkout that its SGLang is an editable install of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.python = str(folder / "venv" / "bin" / "python")
        self.env = dict(os.environ)
        self.packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        self.checkout = folder / "check out"
        (self.checkout / "python").mkdir(parents=True)
        (self.checkout / "python" / "engine.py").write_text("STEPS = 2\n")
        (self.checkout / ".gitignore").write_text("*.pyc\n")
        git(self.checkout, "init", "-q")
        git(self.checkout, "add", ".")
        git(self.checkout, "commit", "-qm", "first")

    def install(self, name: str, version: str, *, editable: bool = False) -> None:
        info = self.packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if editable:
            told = {"url": (self.checkout / "python").as_uri(), "dir_info": {"editable": True}}
            (info / "direct_url.json").write_text(json.dumps(told))

    def build(self) -> Build:
        found = build_of(self.python, self.folder, self.env)
        assert found is not None
        return found


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_an_interpreter_without_sglang_says_so(environment: Environment) -> None:
    build = environment.build()
    assert (build.sglang, build.torch, build.commit, build.dirty) == (None, None, None, None)
    assert str(build) == "no sglang installed"


def test_an_installed_release_is_its_version(environment: Environment) -> None:
    environment.install("sglang", "0.5.23")
    environment.install("torch", "2.9.0+cu129")
    build = environment.build()
    assert (build.sglang, build.torch, build.commit) == ("0.5.23", "2.9.0+cu129", None)
    assert str(build) == "sglang 0.5.23"


def test_any_package_that_changes_changes_the_digest_of_the_packages(environment: Environment) -> None:
    environment.install("sglang", "0.5.23")
    before = environment.build()
    environment.install("sgl_kernel", "0.4.1")
    after = environment.build()
    assert before.packages != after.packages
    assert before.sglang == after.sglang


def test_packages_that_bring_kernels_are_told_by_name_and_others_are_not(environment: Environment) -> None:
    for name, version in (
        ("sgl_kernel", "0.4.1"),
        ("flashinfer_python", "0.5.0"),
        ("triton", "3.5.0"),
        ("nvidia_nccl_cu13", "2.28.3"),
        ("nvidia_cublas", "13.1"),
        ("numpy", "2.3"),
        ("tritonclient", "2.60"),
    ):
        environment.install(name, version)
    assert environment.build().kernels == (
        ("flashinfer-python", "0.5.0"),
        ("nvidia-cublas", "13.1"),
        ("nvidia-nccl-cu13", "2.28.3"),
        ("sgl-kernel", "0.4.1"),
        ("triton", "3.5.0"),
    )


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("cuda: Optional[str] = '12.9'\n", "12.9"),
        ("cuda = '11.8'\n", "11.8"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", None),
        ("\0\xff", None),
        (None, None),
    ],
)
def test_the_cuda_of_torch_is_read_from_its_own_file(
    environment: Environment, written: str | None, told: str | None
) -> None:
    environment.install("torch", "2.9.0")
    if written is not None:
        (environment.packages / "torch").mkdir()
        (environment.packages / "torch" / "version.py").write_text(f"__version__ = '2.9.0'\ndebug = False\n{written}")
        (environment.packages / "torch" / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    build = environment.build()
    assert (build.torch, build.cuda) == ("2.9.0", told)


def test_an_editable_install_is_its_commit(environment: Environment) -> None:
    environment.install("sglang", "0.5.23", editable=True)
    build = environment.build()
    assert (build.commit, build.dirty) == (git(environment.checkout, "rev-parse", "HEAD"), None)
    assert str(build) == f"sglang 0.5.23 at {str(build.commit)[:12]}"


def test_a_changed_checkout_is_told_and_every_change_differs(environment: Environment) -> None:
    environment.install("sglang", "0.5.23", editable=True)
    source = environment.checkout / "python" / "engine.py"
    seen = {environment.build().dirty}
    source.write_text("STEPS = 3\n")
    seen.add(environment.build().dirty)
    source.write_text("STEPS = 4\n")
    seen.add(environment.build().dirty)
    (environment.checkout / "new kernel.cu").write_text("one")
    seen.add(environment.build().dirty)
    (environment.checkout / "new kernel.cu").write_text("two")
    build = environment.build()
    seen.add(build.dirty)
    assert len(seen) == 5
    assert str(build).endswith(f", changed ({str(build.dirty)[:8]})")
    (environment.checkout / "python" / "engine.pyc").write_text("ignored by git, and by us")
    (environment.checkout / "nohup.out").write_text("a log that grows is no other build")
    assert environment.build() == build
    git(environment.checkout, "checkout", "-q", ".")
    (environment.checkout / "new kernel.cu").unlink()
    assert environment.build().dirty is None


def test_what_the_environment_of_the_server_puts_in_front_is_the_build(environment: Environment) -> None:
    environment.install("sglang", "0.5.23")
    other = environment.folder / "other"
    (other / "sglang-9.9.9.dist-info").mkdir(parents=True)
    (other / "sglang-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.9\n")
    environment.env["PYTHONPATH"] = str(other)
    assert environment.build().sglang == "9.9.9"


def test_a_diff_program_of_the_users_does_not_hide_a_change(environment: Environment) -> None:
    environment.install("sglang", "0.5.23", editable=True)
    git(environment.checkout, "config", "diff.external", "true")
    seen = set()
    for steps in (3, 4):
        (environment.checkout / "python" / "engine.py").write_text(f"STEPS = {steps}\n")
        seen.add(environment.build().dirty)
    assert len(seen) == 2


def test_the_repository_of_a_hook_that_this_runs_in_is_not_asked(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.install("sglang", "0.5.23", editable=True)
    commit = git(environment.checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(environment.folder / "elsewhere.git"))
    assert environment.build().commit == commit


@pytest.mark.parametrize("python", ["/nowhere/bin/python", "false", "true", "ls"])
def test_what_is_no_interpreter_has_no_build(tmp_path: Path, python: str) -> None:
    assert build_of(python, tmp_path, dict(os.environ)) is None


@pytest.mark.parametrize(
    "command",
    [
        ("{python}", "-m", "mine.server"),
        ("env", "A=1", "{python}", "-u", "-m", "mine"),
        ("{python}", "-mmine.server"),
        ("{python}", "-um", "mine"),
        ("{python}", "-X", "dev", "-Wignore", "-OO", "-m", "mine"),
    ],
)
def test_what_a_server_runs_of_its_working_directory_is_found_however_python_is_asked(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()

    assert code_of(command, sys.executable, tmp_path, dict(os.environ)) == tmp_path / "mine" / "__init__.py"


@pytest.mark.parametrize(
    "command",
    [
        ("serve",),
        ("{python}",),
        ("{python}", "-m"),
        ("{python}", "-I", "-m", "mine"),
        ("{python}", "-Pm", "mine"),
        ("{python}", "-c", "import mine"),
        ("{python}", "-", "mine/__init__.py"),
        ("{python}", "-uX", "dev", "mine/__init__.py", "-m", "mine"),  # it may import from anywhere
        ("{python}", "./mine/__init__.py"),
        ("bash", "-c", "exec {python} -m mine"),
    ],
)
def test_what_is_not_run_of_the_working_directory_or_cannot_be_told_is_not_found(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()

    assert code_of(command, sys.executable, tmp_path, dict(os.environ)) is None
