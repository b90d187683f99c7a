"""Opens files of foreign origin: only plain files, of bounded size, and optionally only inside their directory.

A model, an engine or an adapter that was downloaded can hold anything under the name of a file: a pipe, on which
opening waits for ever, a device that never ends, a link to a file of the machine, or an impossible name. All foreign
files are opened here. A refusal is an OSError whose ``strerror`` gives the reason, so that callers report it like any
other file that cannot be read.
"""

import errno
import hashlib
import os
import stat
from io import BufferedReader
from pathlib import Path

from trtllm_lite.common.vocabulary import MAX_BYTES


def open_foreign(path: Path, most_bytes: int, *, inside: Path | None = None) -> BufferedReader:
    """Open a plain file of at most ``most_bytes`` for reading.

    Links are followed, as Hugging Face's cache requires. Raises OSError, also if ``inside`` is a directory and the
    file lies outside of it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # does not wait for a pipe's writer
    except ValueError as error:  # the path contains a NUL
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if inside is not None and not _place_of(descriptor, path).is_relative_to(inside.resolve()):
            raise OSError(errno.EPERM, "it is a link to a file outside of its directory", str(path))
        if status.st_size > most_bytes:
            found = f"it has {status.st_size:,} bytes, which exceeds the limit of {most_bytes:,}"
            raise OSError(errno.EFBIG, found, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_foreign(path: Path, most_bytes: int, *, inside: Path | None = None) -> bytes:
    """The content of a file that :func:`open_foreign` opens. Raises OSError, also if the file grows meanwhile."""
    with open_foreign(path, most_bytes, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)
    if len(data) > size:
        raise OSError(errno.EBUSY, "it grows while it is read", str(path))
    return data


def sha256_of(path: Path, *, inside: Path | None = None) -> str:
    """The SHA-256 digest of a file that :func:`open_foreign` opens, in hexadecimal. Raises OSError."""
    with open_foreign(path, MAX_BYTES, inside=inside) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_plain_file(path: Path) -> bool:
    """Whether ``path`` is a plain file; False for impossible names."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _place_of(descriptor: int, path: Path) -> Path:
    """The path without links of the file that was opened as ``path``, even if links have changed since."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:  # systems other than Linux
        return path.resolve()
