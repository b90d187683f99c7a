"""The standard streams of a server, which goes on when nobody reads or keeps what it says."""

import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD = (0, 1, 2)
_ERRORS = 2
_SURE_BYTES = select.PIPE_BUF  # a pipe that is ready takes as many at once


def drop_what_stderr_does_not_take() -> None:
    """Let nothing that is written to ``sys.stderr`` from now on fail or wait.

    What a full disk, a pipe that nobody reads, or a closed file does not take is dropped. Standard streams that are
    closed become ``/dev/null``: otherwise the next file that is opened would take their place, and their text.
    """
    _open_closed()
    sys.stderr = io.TextIOWrapper(_Dropping(), encoding="utf-8", errors="backslashreplace", write_through=True)


def _open_closed() -> None:
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, and so this one
            assert opened == number
            os.set_inheritable(opened, True)


class _Dropping(io.RawIOBase):
    """Writes to stderr what it takes at once."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(_ERRORS)

    def fileno(self) -> int:
        return _ERRORS

    def write(self, data: "ReadableBuffer") -> int:
        whole = memoryview(data).cast("B")
        ready = select.poll()
        ready.register(_ERRORS, select.POLLOUT)
        try:
            rest = whole
            while rest and ready.poll(0):
                rest = rest[os.write(_ERRORS, rest[:_SURE_BYTES]) :]
        except OSError:
            pass
        return len(whole)
