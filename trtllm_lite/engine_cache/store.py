"""Manages the entries of the cache: locks them while they are made, lists them, trims them to a size, clears them.

An entry is a directory, with a lock file beside it, which also holds the name of the model. The date of the directory
is that of the entry's last use. An entry may be removed while a process uses it: the process keeps its open files.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from trtllm_lite.common.files import cache_directory
from trtllm_lite.common.temporaries import sweep
from trtllm_lite.common.units import format_bytes, parse_bytes
from trtllm_lite.errors import ArgumentError, OutputError, shown

ENGINES, CHECKPOINTS, NETWORKS = KINDS = "engines", "checkpoints", "networks"
SIZE_VARIABLE = "TRTLLM_LITE_CACHE_SIZE"
_DEFAULT_SIZE = "64 GiB"
_LOCK = ".lock"


@dataclass(frozen=True)
class Entry:
    """An entry; ``kind`` is one of KINDS, ``model`` the name of the model, ``used`` is in seconds since 1970."""

    path: Path
    kind: str
    model: str
    num_bytes: int
    used: float


def cache_limit() -> int:
    """The limit in bytes of all entries together: ``TRTLLM_LITE_CACHE_SIZE``, or 64 GiB.

    Raises ArgumentError if the variable is no size.
    """
    text = os.environ.get(SIZE_VARIABLE) or _DEFAULT_SIZE
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ArgumentError(f"{SIZE_VARIABLE} is {shown(text)}: expected a size such as 20 GiB") from error


def list_cache() -> list[Entry]:
    """All entries in the order of their last use, the latest first."""
    entries = [
        entry
        for kind in KINDS
        for path in _directories(cache_directory(kind))
        if (entry := _describe(path, kind)) is not None
    ]
    return sorted(entries, key=lambda entry: -entry.used)


def trim(keep: Collection[Path]) -> None:
    """Remove entries until the cache is within its limit, the least recently used first, but none of ``keep``."""
    for kind in KINDS:
        sweep(cache_directory(kind))
    limit, entries = cache_limit(), list_cache()
    total = sum(entry.num_bytes for entry in entries)
    for entry in reversed(entries):
        if total <= limit:
            return
        try:
            if entry.path not in keep and _remove(entry.path):
                total -= entry.num_bytes
        except OutputError as error:  # the entry belongs to another user
            print(f"trtllm_lite: the engine cache is larger than {format_bytes(limit)}, and {error}", file=sys.stderr)
            return


def clear_cache() -> tuple[int, int]:
    """Remove all entries except those being made; returns their number and bytes. Raises OutputError."""
    for kind in KINDS:
        sweep(cache_directory(kind))
    removed = [entry for entry in list_cache() if _remove(entry.path)]
    return len(removed), sum(entry.num_bytes for entry in removed)


def touch(entry: Path) -> None:
    """Record the use of ``entry`` now, unless the cache is read-only."""
    with suppress(OSError):
        os.utime(entry)


@contextmanager
def locked(entry: Path, model: str) -> Iterator[None]:
    """Hold the lock of ``entry``, made from ``model``; the lock ends with this process at the latest."""
    while True:
        with _lock_file(entry) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _has_name(lock, entry):  # the lock file was removed with its entry while this process waited for it
                continue
            lock.truncate(0)
            lock.write(model)
            lock.flush()
            yield
            return


def _lock_file(entry: Path) -> TextIO:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        return open(entry.with_suffix(_LOCK), "a", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise OutputError(
            f"cannot write the engine cache {entry.parent}: {error.strerror}: free space there or set XDG_CACHE_HOME"
        ) from error


def _has_name(lock: TextIO, entry: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock.fileno()), entry.with_suffix(_LOCK).stat())
    return False


def _directories(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return [path for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _describe(path: Path, kind: str) -> Entry | None:
    """The entry at ``path``; None if it is removed meanwhile."""
    try:
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        used = path.stat().st_mtime
    except OSError:
        return None
    model = ""
    with suppress(OSError):
        model = path.with_suffix(_LOCK).read_text(encoding="utf-8", errors="replace")
    return Entry(path, kind, model, num_bytes, used)


def _remove(path: Path) -> bool:
    """Remove an entry and its lock file; False if a process is making it, or using it to make another entry."""
    with _lock_file(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            shutil.rmtree(path)
            path.with_suffix(_LOCK).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot remove {path}: {error.strerror}: check the permissions") from error
    return True
