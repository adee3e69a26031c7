"""Files that are whole or not there: written to a temporary name, synced, renamed. And JSON read with clear errors.

And the folders where processes of one machine meet.
"""

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

#: A campaign of a thousand rounds has a megabyte or two; a larger file is not one of ours.
MAX_JSON_BYTES = 64 * 1024 * 1024

#: Seconds, tokens, bytes and rates that are not 0 lie between these by far; beyond them sums, ratios and their printing
#: would overflow.
MIN_NUMBER = 1e-100
MAX_NUMBER = 1e15

#: In ASCII JSON: half of a surrogate pair, second, after what only looks like one, first: an escaped backslash, a pair.
_HALF = re.compile(r"(\\\\|\\ud[89ab]..\\ud[c-f]..)|(\\ud[89a-f]..)")

#: Names the folder where runs on one machine find each other, in place of what `machine_folder` chooses: for containers
#: that share GPUs, and for tests.
MACHINE_FOLDER_ENV = "SGLANG_PERF_LOCK_DIR"


class FileError(Exception):
    """A file that cannot be read, written or believed; the text says what, which and what to do."""


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, its line ends as they are, like `write_bytes`. Raises FileError."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part. Raises FileError."""
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files like `write_bytes`: where the disk is too full for one of them, none. Raises FileError.

    They take their places one after the other, once each lies whole beside its own.
    """
    temporaries: dict[Path, str] = {}
    done: list[str] = []
    path = Path()
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporaries[path] = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporaries[path], 0o644 & ~_umask())
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
            done.append(str(path))
        for folder in dict.fromkeys(path.parent for path in files):
            _sync_folder(folder)
    except OSError as error:
        changed = f"changed is {', '.join(done)}" if done else "nothing was changed"
        raise FileError(f"{path}: cannot be written: {error.strerror}; {changed}") from error
    finally:
        for temporary in temporaries.values():
            Path(temporary).unlink(missing_ok=True)


def read_json(
    path: Path, adapter: TypeAdapter[T], what: str, upgrade: Callable[[bytes], bytes] = lambda data: data
) -> T:
    """Read and validate a JSON file; `what` names its kind in errors, `upgrade` brings an older one up to date.

    `upgrade` raises ValueError for a file that it knows and cannot bring up to date. Types are taken as they are: `"5"`
    and `true` are no numbers. Raises FileError.
    """
    data = read_bytes(path, what, MAX_JSON_BYTES)
    try:
        refuse_doubtful(data)
        return adapter.validate_json(upgrade(data), strict=True)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(f"{path}: not {what}: the whole file: Invalid JSON: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise FileError(f"{path}: not {what}: {place}: {first['msg']}") from error
    except ValueError as error:
        raise FileError(f"{path}: {what} {error}") from error


def read_bytes(path: Path, what: str, limit: int) -> bytes:
    """The bytes of a regular file: from a FIFO or a device they may never come, or never end. Raises FileError."""

    def at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    try:
        with open(path, "rb", opener=at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(f"{path}: cannot be read as {what}: Not a regular file")
            data = b"" if status.st_size > limit else file.read(limit + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read as {what}: {error.strerror}") from error
    size = max(status.st_size, len(data))  # it may have grown meanwhile
    if size > limit:
        raise FileError(f"{path}: {size:,} bytes are too many for {what}")
    return data


def refuse_doubtful(data: bytes) -> None:
    """Raises ValueError for JSON that two readers may understand differently, or that holds what we never write."""

    def number(text: str) -> float:
        value = float(text)
        if value != 0 and not MIN_NUMBER <= abs(value) <= MAX_NUMBER:
            raise ValueError(f"holds {text[:40]}, where only a finite number of a size that can be measured may stand")
        return value

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key in found if sum(key == each for each, _ in pairs) > 1)
            raise ValueError(f"has the key {twice[:40]!r} twice in one place")
        return found

    json.loads(
        data.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=members
    )


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON text, ASCII, with a newline at its end; numbers that are no numbers are refused.

    A byte of a path or of the environment that is not UTF-8 is half of a surrogate pair in Python and nothing in JSON,
    which readers refuse: it becomes the text of its escape, `\\udcff`.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=True, allow_nan=False)
    return _HALF.sub(lambda found: found[1] or "\\" + found[2], text) + "\n"


def machine_folder() -> Path:
    """Where all users of this machine look for what holds for all of it, whatever their TMPDIR. Raises FileError.

    `/run/lock` first: services may be given a `/tmp` of their own, and an aged file is not removed from it.
    """
    if given := os.environ.get(MACHINE_FOLDER_ENV):
        if not os.path.isdir(given):
            raise FileError(f"{MACHINE_FOLDER_ENV}={given}: there is no such folder: make it, or unset the variable")
        return Path(given)
    # By its mode, not by what this user may: root may write where nobody else would look.
    shared = (path for path in (Path("/run/lock"), Path("/tmp")) if _is_shared(path))
    return next(shared, Path(tempfile.gettempdir()))


def _is_shared(folder: Path) -> bool:
    """May everybody make files there, and remove no others' files?"""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777


def private_folder(path: Path) -> Path:
    """A folder of this user alone, made where it is not there: in a shared one, others could plant links or hold our
    locks. Raises FileError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise FileError(f"{path}: cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FileError(f"{path} is not a folder of this user alone (mode 0700): remove it")
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
