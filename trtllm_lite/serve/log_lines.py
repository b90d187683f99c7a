"""Makes the lines of the server's log: text for people, or JSON objects for programs."""

import io
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtllm_lite.common.printable import one_line

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_LEADING = ("time", "client", "method", "path", "status", "seconds")
_QUOTED = ("warning",)


def now() -> str:
    """The time, in UTC, as RFC 3339 writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def text_line(fields: Mapping[str, Any]) -> str:
    """A line for people about an answered request: first the values of ``_LEADING``, then the rest as NAME=VALUE."""
    named = dict(fields)
    when, who, method, path, status, seconds = (named.pop(name) for name in _LEADING)
    words = [when, who, f'"{method} {one_line(path)}"', str(status), f"{seconds:.3f}s"]
    words += [
        f'{name}="{value}"' if name in _QUOTED else f"{name}={one_line(str(value))}" for name, value in named.items()
    ]
    return " ".join(words) + "\n"


def json_line(fields: Mapping[str, Any]) -> str:
    """A line with a JSON object, in ASCII."""
    return json.dumps(fields) + "\n"


class MessagesAsJson(io.RawIOBase):
    """Makes each line that is written, in UTF-8, an object of ``time`` and ``message``, and writes it to ``file``."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._begun = b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: "ReadableBuffer") -> int:
        given = bytes(data)
        *whole, self._begun = (self._begun + given).split(b"\n")
        for line in whole:
            if line:
                self._file.write(json_line({"time": now(), "message": line.decode(errors="replace")}).encode())
        return len(given)
