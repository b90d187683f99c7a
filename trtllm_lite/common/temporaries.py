"""Makes temporary directories beside an output directory, and removes those that killed processes left behind.

The process that fills a temporary directory holds a lock (flock) on it, which the kernel drops when the process ends,
however it ends. A temporary directory that can be locked therefore belongs to no running process.
"""

import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtllm_lite.errors import OutputError

_RANDOM_BYTES = 4


def temporary_name(path: Path) -> Path:
    """An unused name beside ``path``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}.tmp")


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """Yield a new, empty directory beside ``path``, to be renamed; it is removed if the body raises.

    Temporary directories that killed processes left behind are removed first. Raises OSError, or OutputError if the
    parent of ``path`` takes no directories.
    """
    sweep(path.parent, glob.escape(path.name))
    descriptor = None
    while descriptor is None:
        temporary = temporary_name(path)
        _make(temporary, path)
        descriptor = _claim(temporary)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def sweep(parent: Path, name: str = "*") -> None:
    """Remove the temporary directories of outputs that match the pattern ``name`` in ``parent``, unless locked."""
    pattern = f".{name}.{'[0-9a-f]' * (2 * _RANDOM_BYTES)}.tmp"
    for directory in parent.glob(pattern):
        try:
            descriptor = _open(directory)
        except OSError:
            continue
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _make(temporary: Path, path: Path) -> None:
    try:
        temporary.mkdir()
    except FileNotFoundError as error:  # the parent exists, but takes no new entries: /proc, /sys
        raise OutputError(
            f"cannot write {path}: {path.parent} takes no new directories: choose another output directory"
        ) from error


def _claim(directory: Path) -> int | None:
    """A descriptor that holds the lock of the new ``directory``; None if another process has swept it by mistake."""
    try:
        descriptor = _open(directory)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # the file system has no locks, so nobody can sweep either
        return descriptor
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), directory.stat()):
            return descriptor
    os.close(descriptor)
    return None


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
