"""Checks the header of a GGUF file before the ``gguf`` package reads it, which takes every count at its word.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. After the magic come the version, the numbers of
tensors and of metadata entries (little-endian), and the entries: a key, a type, a value.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from trtllm_lite.errors import ConvertError

_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MIN_STRING_BYTES = 8  # a string begins with its length
_MIN_TENSOR_BYTES = 24  # a tensor's entry has at least a name's length, the number of dimensions, a type, an offset


def check_header(path: Path) -> None:
    """Raise ConvertError if a count is more than the file can hold, or a value of a type that llama.cpp refuses too."""
    with open(path, "rb") as file:
        if path.stat().st_size < 24:
            raise _damaged(path, "a file that ends within its header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(path, data).check()


def read_text(path: Path, key: str) -> str | None:
    """The text of the metadata entry ``key``; None if there is none. Raises ConvertError as :func:`check_header`."""
    check_header(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Header(path, data).find_text(key.encode())


class _Header:
    """Walks over the metadata of one file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 4

    def check(self) -> None:
        for _ in self._entries():
            pass

    def find_text(self, wanted: bytes) -> str | None:
        for key, kind, start in self._entries():
            if key == wanted and kind == _STRING:
                return self._data[start + _MIN_STRING_BYTES : self._position].decode(errors="replace")
        return None

    def _entries(self) -> Iterator[tuple[bytes, int, int]]:
        """The key, the type and the place of the value of each entry; the position is behind it."""
        version = self._number(4)
        if version not in (2, 3):
            raise ConvertError(
                f"expected {self._path} to be a little-endian GGUF file of version 2 or 3, found version {version}: "
                "convert it with a current llama.cpp"
            )
        num_tensors, num_entries = self._number(8), self._number(8)
        self._require("tensors", num_tensors, _MIN_TENSOR_BYTES)
        self._require("metadata entries", num_entries, _MIN_STRING_BYTES)
        for _ in range(num_entries):
            length = self._number(8)
            self._skip(length)
            key, kind = self._data[self._position - length : self._position], self._number(4)
            start = self._position
            self._skip_value(kind)
            yield key, kind, start

    def _skip_value(self, kind: int) -> None:
        if kind != _ARRAY:
            self._skip(self._number(8) if kind == _STRING else self._scalar_bytes(kind))
            return
        kind, count = self._number(4), self._number(8)
        if kind != _STRING:
            self._skip(count * self._scalar_bytes(kind))
            return
        self._require("strings in an array", count, _MIN_STRING_BYTES)
        for _ in range(count):
            self._skip(self._number(8))

    def _scalar_bytes(self, kind: int) -> int:
        if kind not in _SCALAR_BYTES:
            raise _damaged(self._path, f"a metadata value of type {kind}")
        return _SCALAR_BYTES[kind]

    def _require(self, what: str, count: int, item_bytes: int) -> None:
        left = len(self._data) - self._position
        if count * item_bytes > left:
            raise _damaged(self._path, f"{count} {what} in {left} bytes")

    def _skip(self, num_bytes: int) -> None:
        self._require("bytes of a value", num_bytes, 1)
        self._position += num_bytes

    def _number(self, num_bytes: int) -> int:
        start = self._position
        self._skip(num_bytes)
        return int(struct.unpack_from("<I" if num_bytes == 4 else "<Q", self._data, start)[0])


def _damaged(path: Path, found: str) -> ConvertError:
    return ConvertError(f"expected {path} to be a complete GGUF file, found {found}: download it again")
