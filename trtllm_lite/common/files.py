"""Writes output directories and files that appear whole or not at all.

An output is written as a temporary sibling and renamed into place, so that a crash, a full disk or Ctrl-C never leaves
half of it, and a reader never sees a mixture of old and new.

An engine that a process runs must be replaced by such a rename, too. Engines are mapped into memory, and the process
goes on with the old file for as long as it runs, because a rename leaves that file as it was. ``cp`` over the file, or
any other write into it, changes the weights of the running process, or ends it (SIGBUS) if the file became shorter.
"""

import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.temporaries import temporary_directory, temporary_name
from trtllm_lite.errors import ConvertError, OutputError, shown

PRODUCER_PREFIX = "trtllm_lite"

_REMEDIES = {
    errno.ENOSPC: "free some space or choose another output directory",
    errno.EDQUOT: "your disk quota is used up: free some space or choose another output directory",
    errno.EFBIG: "the file size limit (ulimit -f, or the file system's) is too small: raise it or write elsewhere",
    errno.EACCES: "check the permissions or choose another output directory",
    errno.EPERM: "check the permissions or choose another output directory",
    errno.EROFS: "the file system is read-only: choose another output directory",
    errno.ENOTDIR: "a parent of it is a file: choose another output directory",
    errno.EEXIST: "a parent of it is a file: choose another output directory",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EBUSY: "it is in use, perhaps as a mount point: choose a directory below it",
}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def library_directories() -> list[str]:
    """The directories in which packages such as nvidia-cublas put their shared libraries."""
    places = [Path(entry) / "nvidia" for entry in sys.path]
    return [str(path) for place in places for path in sorted(place.glob("*/lib"))]


def cache_directory(kind: str) -> Path:
    """The cache directory for a kind of reproducible files: ``$XDG_CACHE_HOME/trtllm_lite/<kind>``.

    Without the variable it is below ``~/.cache``.

    Raises OutputError if there is neither the variable nor a home directory.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "trtllm_lite" / kind
    except RuntimeError as error:
        raise OutputError("this user has no home directory to keep a cache in: set XDG_CACHE_HOME") from error


@contextmanager
def writing(what: str, remedy: str) -> Iterator[None]:
    """Turn an OSError about writing ``what`` into an OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {what}: {error.strerror}: {remedy}") from error


@contextmanager
def reading_model(model: str) -> Iterator[None]:
    """Turn an OSError about the files of ``model`` into a ConvertError."""
    try:
        yield
    except OSError as error:
        name = one_line(str(error.filename or model))
        raise ConvertError(f"cannot read {name}: {error.strerror}: check the path and its permissions") from error


def is_there(path: Path) -> bool:
    """Whether ``path`` exists; no file has a NUL in its name.

    Raises OSError where that cannot be said, such as for a name that is too long or below a directory that may not be
    read; ``Path.exists`` returns False in these cases from Python 3.14 on.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return True


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` to the file ``path``, which keeps its old content if this raises OSError."""
    temporary = temporary_name(path)
    try:
        temporary.write_bytes(data)
        _sync_one(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def require_writable(path: Path) -> None:
    """Raise OSError if :func:`write_file` could not write ``path`` now, so that this shows before the work is done."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = temporary_name(path)
    temporary.touch()
    temporary.unlink()


@contextmanager
def atomic_directory(
    path: Path, marker: str, optional: Collection[str] = (), parts: Collection[str] = ()
) -> Iterator[Path]:
    """Yield an empty temporary sibling of ``path`` that takes its place when the body succeeds.

    ``marker`` is a JSON file in the directory whose ``producer`` starts with ``trtllm_lite``: an existing non-empty
    directory is replaced only if its marker says that this package wrote it, and only if it holds nothing but files
    that are written again or have an ``optional`` name; anything else is the user's and stays. The body writes plain
    files, and subdirectories with names of ``parts``, which are replaced, too, if their own marker says so.

    Raises OutputError if ``path`` cannot be replaced or written; on this and every other exception the temporary
    directory is removed and ``path`` is as it was.
    """
    path = _resolve(path)
    for place in (path, *(path / part for part in parts)):
        _check_replaceable(place, marker)
    with _appearing(path, lambda temporary: _replace(temporary, path, optional, parts)) as temporary:
        yield temporary


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Like :func:`atomic_directory`, for an output with subdirectories, which never replaces anything.

    Raises OutputError also if ``path`` is a directory that is not empty.
    """
    path = _resolve(path)
    if path.exists() and not path.is_dir():
        raise OutputError(f"the output directory {path} is a file: choose another output directory")
    if path.is_dir() and (path == Path.cwd() or any(path.iterdir())):
        raise OutputError(
            f"expected the output directory {path} to be absent or empty, but it holds files or is the working "
            "directory: remove it yourself or choose another output directory"
        )
    with _appearing(path, lambda temporary: temporary.rename(path)) as temporary:
        yield temporary


@contextmanager
def _appearing(path: Path, place: Callable[[Path], object]) -> Iterator[Path]:
    """Yield an empty temporary sibling of ``path``, which ``place`` moves to ``path`` when the body succeeds."""
    created = _make_parents(path)
    try:
        with ExitStack() as stack:
            with _as_output_error(path, None):
                temporary = stack.enter_context(temporary_directory(path))
            with _as_output_error(path, temporary):
                yield temporary
                for directory, _, _ in os.walk(temporary):
                    _sync(Path(directory))
                place(temporary)
                _sync_one(path.parent)
    except BaseException:
        _remove_parents(created)
        raise


def require_replaceable(path: Path, marker: str) -> None:
    """Raise OutputError if :func:`atomic_directory` could not begin now, so that this shows before the work is done."""
    with suppress(_TriedError), atomic_directory(path, marker):
        raise _TriedError


class _TriedError(Exception):
    """Raised in the body of an output that is only tried, to end it."""


def require_space(directory: Path, num_bytes: int) -> None:
    """Raise OutputError if ``num_bytes`` do not fit on the file system that holds ``directory``."""
    free = shutil.disk_usage(directory).free
    if num_bytes > free:
        raise OutputError(
            f"the output needs {num_bytes:,} bytes, but the file system of {directory.parent} has {free:,} free: "
            f"{_REMEDIES[errno.ENOSPC]}"
        )


def _resolve(path: Path) -> Path:
    """``path`` without links; OutputError if no directory can have that name."""
    try:
        resolved = Path(path).resolve()
        is_there(resolved)
    except (OSError, ValueError, RuntimeError) as error:  # a path that is too long, has a NUL, or a circle of links
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{shown(str(path))} cannot be an output directory ({reason}): choose another one") from error
    return resolved


def _check_replaceable(path: Path, marker: str) -> None:
    """Raise OutputError if ``path`` holds another program's files or is the working directory of this process."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"the output directory {path} is a file: choose another output directory")
    if path == Path.cwd():
        raise OutputError(
            f"the output directory {path} is the working directory, and would be replaced under your shell: choose "
            "another one, such as a new directory below it"
        )
    try:
        if not path.is_dir() or not any(path.iterdir()):
            return
        producer = json.loads((path / marker).read_text())["producer"]
        if str(producer).startswith(PRODUCER_PREFIX):
            return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise OutputError(
        f"expected the output directory {path} to be absent, empty, or an earlier output of {PRODUCER_PREFIX} "
        f"(a {marker} that says so), but it holds other files: empty it yourself or choose another output directory"
    )


def _replace(temporary: Path, path: Path, optional: Collection[str], parts: Collection[str]) -> None:
    """Put ``temporary`` in the place of ``path`` and delete the files that were there before."""
    if not path.is_dir() or not any(path.iterdir()):
        temporary.rename(path)
        return
    replaced = {entry.name for entry in temporary.iterdir()} | set(optional)
    unknown = sorted(
        entry.name
        for entry in path.iterdir()
        if entry.name not in (parts if entry.is_dir() and not entry.is_symlink() else replaced)
    )
    if unknown:
        raise OutputError(
            f"{path} holds {', '.join(unknown)}, which the new output does not replace: "
            "move them away or choose another output directory"
        )
    shutil.copymode(path, temporary)
    _exchange(temporary, path)
    for name in parts:
        shutil.rmtree(temporary / name, ignore_errors=True)
    for name in replaced.difference(parts):
        (temporary / name).unlink(missing_ok=True)
    temporary.rmdir()


def _exchange(left: Path, right: Path) -> None:
    """Swap two directories atomically (renameat2, Linux 3.15); elsewhere by renames, undone if one fails."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE) == 0:
            return
        # EINVAL and ENOSYS: this file system or kernel has no exchange.
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), str(right))
    aside = left.with_suffix(".old")
    right.rename(aside)
    try:
        left.rename(right)
    except BaseException:
        aside.rename(right)
        raise
    aside.rename(left)


def _sync(directory: Path) -> None:
    """Flush every file and the directory itself, so that the rename never points at data still in memory."""
    for entry in directory.iterdir():
        _sync_one(entry)
    _sync_one(directory)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_parents(path: Path) -> list[Path]:
    """Create the missing parents of ``path``; returns them, outermost first."""
    missing: list[Path] = []
    parent = path.parent
    while not parent.exists():
        missing.insert(0, parent)
        parent = parent.parent
    with _as_output_error(path, None):
        path.parent.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_parents(created: list[Path]) -> None:
    for parent in reversed(created):
        try:
            parent.rmdir()
        except OSError:
            return  # another process uses the directory by now


@contextmanager
def _as_output_error(path: Path, temporary: Path | None) -> Iterator[None]:
    """Turn an OSError about writing ``path`` into an OutputError; errors about other files pass unchanged.

    ``temporary`` is None as long as the temporary directory is not made: every error is then about ``path``.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES or not _concerns(error, path, temporary):
            raise
        raise OutputError(
            f"cannot write {path}: {error.strerror} ({_space(path, temporary)}): {_REMEDIES[error.errno]}"
        ) from error


def _concerns(error: OSError, path: Path, temporary: Path | None) -> bool:
    """Whether ``error`` concerns the output: one of its files, a parent that had to be made, or an unknown file."""
    if error.filename is None or temporary is None:
        return True
    subject = Path(os.fsdecode(error.filename))
    return subject in path.parents or subject.is_relative_to(path) or subject.is_relative_to(temporary)


def _space(path: Path, temporary: Path | None) -> str:
    """The part of a message about space: bytes written so far, and bytes free on the file system of ``path``."""
    parent = next(parent for parent in path.parents if parent.exists())
    try:
        free = f"{shutil.disk_usage(parent).free:,} bytes free"
        written = sum(entry.stat().st_size for entry in temporary.iterdir()) if temporary else 0
    except OSError:
        return "free space unknown"
    return f"{written:,} bytes written, {free}"
