"""Files that are whole or not there: written to a temporary name, synced, renamed. And JSON read with clear errors."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

#: A campaign of a thousand rounds has a megabyte or two; a larger file is not one of ours.
MAX_JSON_BYTES = 64 * 1024 * 1024


class FileError(Exception):
    """A file that cannot be read, written or believed; the text says what, which and what to do."""


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 so that a reader sees the old file or the new one, never a part. Raises FileError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error


def read_json(
    path: Path, adapter: TypeAdapter[T], what: str, upgrade: Callable[[bytes], bytes] = lambda data: data
) -> T:
    """Read and validate a JSON file; `what` names its kind in errors, `upgrade` brings an older one up to date.

    `upgrade` raises ValueError for a file that it knows and cannot bring up to date. Raises FileError.
    """
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise FileError(f"{path}: {size:,} bytes are too many for {what}")
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read as {what}: {error.strerror}") from error
    try:
        return adapter.validate_json(upgrade(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise FileError(f"{path}: not {what}: {place}: {first['msg']}") from error
    except ValueError as error:
        raise FileError(f"{path}: {what} {error}") from error


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON text, ASCII, with a newline at its end; numbers that are no numbers are refused."""
    return json.dumps(value, indent=indent, ensure_ascii=True, allow_nan=False) + "\n"


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
