"""Checks the header of a GGUF file before the ``gguf`` package reads it, which trusts every count.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. After the magic come the version, the numbers of
tensors and of metadata entries (little-endian), and the entries: a key, a type, a value. After them each tensor has a
name, a number of dimensions, its extents, a type and the offset of its data from the start of all data.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.vocabulary import MAX_BYTES
from trtllm_lite.errors import ConvertError

_UINT32, _STRING, _ARRAY = 4, 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MIN_STRING_BYTES = 8  # a string begins with its length
_MIN_TENSOR_BYTES = 24  # bytes of the shortest entry: a name's length, the number of dimensions, a type, an offset
_ALIGNMENT = 32  # default alignment of the tensors' data


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's entry: ``shape`` and ``kind``, a number, give its size, ``offset`` its start in the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def check_header(path: Path) -> None:
    """Raise ConvertError if a count is more than the file can hold, or a value has a type that llama.cpp refuses."""
    with _opened(path) as header:
        header.check()


def read_text(path: Path, key: str) -> str | None:
    """The text of the metadata entry ``key``; None if there is none. Raises ConvertError as :func:`check_header`."""
    check_header(path)
    with _opened(path) as header:
        return header.find_text(key.encode())


def read_keys(path: Path) -> list[str]:
    """The keys of the metadata. Raises ConvertError as :func:`check_header`."""
    with _opened(path) as header:
        return header.keys()


def read_tensors(path: Path) -> tuple[int, list[TensorEntry]]:
    """Return the start of the tensors' data, and the tensors. Raises ConvertError as :func:`check_header`."""
    with _opened(path) as header:
        return header.tensors()


@contextmanager
def _opened(path: Path) -> Iterator["_Header"]:
    with open_foreign(path, MAX_BYTES) as file:
        if os.fstat(file.fileno()).st_size < 24:
            raise _damaged(path, "a file that ends within its header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Header(path, data)


class _Header:
    """Walks over the metadata of one file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 4
        self._num_tensors = 0

    def check(self) -> None:
        for _ in self._entries():
            pass

    def find_text(self, wanted: bytes) -> str | None:
        for key, kind, start in self._entries():
            if key == wanted and kind == _STRING:
                return self._data[start + _MIN_STRING_BYTES : self._position].decode(errors="replace")
        return None

    def keys(self) -> list[str]:
        return [key.decode(errors="replace") for key, _, _ in self._entries()]

    def tensors(self) -> tuple[int, list[TensorEntry]]:
        alignment = _ALIGNMENT
        for key, kind, start in self._entries():
            if key == b"general.alignment" and kind == _UINT32:
                alignment = max(struct.unpack_from("<I", self._data, start)[0], 1)
        entries = [self._tensor() for _ in range(self._num_tensors)]
        return -(-self._position // alignment) * alignment, entries

    def _tensor(self) -> TensorEntry:
        length = self._number(8)
        self._skip(length)
        name = self._data[self._position - length : self._position].decode(errors="replace")
        dimensions = self._number(4)
        self._require("dimensions of a tensor", dimensions, 8)
        shape = tuple(self._number(8) for _ in range(dimensions))
        return TensorEntry(name, shape, self._number(4), self._number(8))

    def _entries(self) -> Iterator[tuple[bytes, int, int]]:
        """The key, the type and the place of the value of each entry; the reader then stands after the value."""
        version = self._number(4)
        if version not in (2, 3):
            raise ConvertError(
                f"expected {self._path} to be a little-endian GGUF file of version 2 or 3, found version {version}: "
                "convert it with a current llama.cpp"
            )
        self._num_tensors, num_entries = self._number(8), self._number(8)
        self._require("tensors", self._num_tensors, _MIN_TENSOR_BYTES)
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
