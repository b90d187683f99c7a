"""Protects the server from blocked or closed standard streams."""

import io
import os
import select
import sys
from typing import TYPE_CHECKING

from trtllm_lite.serve.log_lines import MessagesAsJson

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD = (0, 1, 2)
_ERRORS = 2
_SURE_BYTES = select.PIPE_BUF  # a pipe that is ready takes at least this many bytes without blocking


def drop_what_stderr_does_not_take(*, as_json: bool = False) -> None:
    """Let no later write to ``sys.stderr`` fail or block, and with ``as_json`` make each line a JSON object.

    Text that a full disk, a blocked pipe, or a closed file does not take is dropped. Standard streams that are closed
    become ``/dev/null``: otherwise the next file that is opened would take their place, and their text.
    """
    _open_closed()
    raw = MessagesAsJson(_Dropping()) if as_json else _Dropping()
    sys.stderr = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _open_closed() -> None:
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            assert opened == number
            os.set_inheritable(opened, True)


class _Dropping(io.RawIOBase):
    """A file that writes to stderr whatever it takes without blocking."""

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
