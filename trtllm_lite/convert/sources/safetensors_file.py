"""Reads and writes the safetensors container: a bounded reader over a memory map, and a streaming writer.

Format: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data
(https://github.com/huggingface/safetensors). numpy alone is enough, so neither side needs torch.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.nibbles import paired
from trtllm_lite.common.vocabulary import DTYPES, MAX_BYTES, PLAIN_DTYPES, num_bytes, stored_shape
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.dtypes import NUMPY

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
MAX_RANK = 8  # tensors have at most 4 dimensions: experts stacked by layer
ALIGNMENT = 64
_READABLE = (*PLAIN_DTYPES, "int64", "int32", "int8", "uint8", "float8_e4m3fn", "float8_e8m0fnu")
_NAMES = {**{DTYPES[name].stored: name for name in _READABLE}, "BOOL": "uint8"}


@dataclass(frozen=True)
class TensorInfo:
    """Type and shape of a tensor: ``shape`` as in Hugging Face, in elements of ``dtype``, a name of the vocabulary."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the data."""
        return num_bytes(self.dtype, self.shape)


class SafetensorsFile:
    """Tensors of one file; ``read`` gives views of the map, so nothing is copied until it is used."""

    def __init__(self, path: Path) -> None:
        """Raises ConvertError for a file that is truncated, malformed or has types that weights cannot have."""
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self._offsets: dict[str, int] = {}
        with open_foreign(path, MAX_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            header, data_start = _read_header(file, path, size)
            for name, entry in header.items():
                info, start = _parse_entry(path, name, entry, size - data_start)
                self.tensors[name], self._offsets[name] = info, data_start + start
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, name: str) -> NDArray:
        """The tensor's values, read-only, in its own dtype."""
        info = self.tensors[name]
        count = math.prod(info.shape)
        return np.frombuffer(self._map, NUMPY[info.dtype], count, self._offsets[name]).reshape(info.shape)


def _read_header(file: BinaryIO, path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The JSON header without its metadata, and where the data starts."""
    if size < 8:
        raise _damaged(path, f"only {size} bytes")
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise _damaged(path, f"a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"a header that is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "a header that is not a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _parse_entry(path: Path, name: str, entry: Any, data_bytes: int) -> tuple[TensorInfo, int]:
    """Return one tensor's type and its offset from the start of the data."""
    try:
        code, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"a malformed entry for {name}") from error
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise _damaged(path, f"a malformed entry for {name}")
    if len(shape) > MAX_RANK:
        raise _damaged(path, f"{name} with {len(shape)} dimensions, at most {MAX_RANK} expected")
    if not isinstance(code, str) or code not in _NAMES:
        raise ConvertError(
            f"{path} stores {name} as {code}, expected one of {', '.join(_NAMES)}: "
            "convert from the unquantized checkpoint"
        )
    info = TensorInfo(_NAMES[code], shape)
    if stop > data_bytes:
        raise _damaged(path, f"only {data_bytes} bytes of data while {name} ends at byte {stop}")
    if stop - start != info.num_bytes:
        raise _damaged(path, f"{stop - start} bytes for {name} of shape {list(shape)} and dtype {code}")
    return info, start


def _damaged(path: Path, found: str) -> ConvertError:
    return ConvertError(f"expected {path} to be a complete safetensors file, found {found}: download it again")


@dataclass(frozen=True)
class Layout:
    """The place of each tensor: ``offsets`` in bytes from the start of the file, ``order`` of the data, ``header``."""

    header: bytes
    order: tuple[str, ...]
    offsets: dict[str, int]
    num_bytes: int


def plan_layout(tensors: dict[str, TensorInfo]) -> Layout:
    """Place tensors so that the data, and every tensor for which that is possible, start at a multiple of 64 bytes.

    The format has no gaps, so tensors of a multiple of 64 bytes come first, then the others, widest elements first.
    """

    def key(name: str) -> tuple[bool, int]:
        info = tensors[name]
        return info.num_bytes % ALIGNMENT != 0, -DTYPES[info.dtype].bits

    order = sorted(tensors, key=key)
    # transformers refuses files that do not name a framework; the data are the same for all frameworks.
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in order:
        info = tensors[name]
        end = position + info.num_bytes
        entries[name] = {
            "dtype": DTYPES[info.dtype].stored,
            "shape": list(stored_shape(info.dtype, info.shape)),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start = 8 + len(text)
    offsets = {name: start + entries[name]["data_offsets"][0] for name in order}
    return Layout(struct.pack("<Q", len(text)) + text, tuple(order), offsets, start + position)


def write_safetensors(path: Path, layout: Layout, tensor: Callable[[str], NDArray]) -> None:
    """Write the file, asking ``tensor`` for one array at a time, in order, already in its final dtype and shape."""
    with open(path, "wb") as file:
        file.write(layout.header)
        for name in layout.order:
            file.write(np.ascontiguousarray(paired(tensor(name))).reshape(-1).view(np.uint8).data)
