"""Writes an engine file in one pass over its data.

The header's size depends on names, shapes and the width of a checksum, not on the values of checksums, so it is known
before the first weight is read. Data is streamed after it, one entry in memory at a time; the header is written last,
when the checksums are known. A file whose writing was interrupted therefore never has a valid header.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import BinaryIO

from trtllm_lite._core import crc32c
from trtllm_lite.common.vocabulary import ALIGNMENT, DTYPES, FORMAT, FORMAT_VERSION, PLAN_VERSION, STORED_BYTES
from trtllm_lite.engine.format import (
    CUBIN_PREFIX,
    LENGTH_BYTES,
    MANIFEST_ENTRY,
    NETWORK_PREFIX,
    PADDING_PREFIX,
    PLAN_ENTRY,
    WEIGHT_PREFIX,
    ZERO_CHECKSUM,
    align,
)

Bytes = bytes | memoryview


@dataclass(frozen=True)
class Weight:
    """A weight as stored: ``shape`` is physical, in items of the stored type of ``dtype``; ``load`` is called once.

    ``computed``: the result of ``load`` is computed, not only read, so that other threads may call it ahead.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Bytes] = field(compare=False)
    computed: bool = False

    @property
    def num_bytes(self) -> int:
        """The bytes in the file, without the padding after them."""
        return prod(self.shape) * STORED_BYTES[DTYPES[self.dtype].stored]


@dataclass(frozen=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    load: Callable[[], Bytes]


def weight_offsets(sizes: Sequence[int], alignment: int = ALIGNMENT) -> list[int]:
    """The aligned offset of each weight in the data section, given the sizes of the weights in file order."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = align(end + size, alignment)
    return offsets


@dataclass(frozen=True)
class EngineContent:
    """The contents of an engine file; ``cubins`` and ``networks`` map keys to images."""

    weights: Sequence[Weight]
    plan: str
    manifest: str
    cubins: Mapping[str, Bytes] = field(default_factory=dict)
    networks: Mapping[str, Bytes] = field(default_factory=dict)
    alignment: int = ALIGNMENT


def write_engines(engines: Mapping[Path, EngineContent], progress: Callable[[int, int], None] | None = None) -> None:
    """Write engine files; weights lie at :func:`weight_offsets`, all other entries after them.

    The weights of several files are loaded in turns, the first of each, then the second of each, and so on.
    ``progress`` is called with (weights written, all weights). Raises OSError if a file cannot be written; the file at
    its path is then not a valid engine.
    """
    num_weights = sum(len(engine.weights) for engine in engines.values())
    files = [_write(path, engine) for path, engine in engines.items()]
    written = 0
    for turn in zip_longest(*files):
        done = sum(name is not None and name.startswith(WEIGHT_PREFIX) for name in turn)
        written += done
        if progress is not None and done:
            progress(written, num_weights)


def write_engine(path: Path, engine: EngineContent, progress: Callable[[int, int], None] | None = None) -> None:
    """:func:`write_engines` of one file."""
    write_engines({path: engine}, progress)


def _write(path: Path, engine: EngineContent) -> Iterator[str]:
    """Write one file, entry by entry; yields the names of the entries once they are written."""
    documents: dict[str, Bytes] = {CUBIN_PREFIX + key: image for key, image in engine.cubins.items()}
    documents |= {NETWORK_PREFIX + key: image for key, image in engine.networks.items()}
    documents |= {PLAN_ENTRY: engine.plan.encode(), MANIFEST_ENTRY: engine.manifest.encode()}
    entries = _lay_out(engine.weights, documents, engine.alignment)
    header_bytes = len(_header(entries, {entry.name: ZERO_CHECKSUM for entry in entries}))
    checksums: dict[str, str] = {}
    with open(path, "wb") as file:
        file.seek(LENGTH_BYTES + header_bytes)
        for entry in entries:
            checksums[entry.name] = _write_entry(file, entry)
            yield entry.name
        file.seek(0)
        file.write(header_bytes.to_bytes(LENGTH_BYTES, "little"))
        file.write(_seal(_header(entries, checksums)))
        file.flush()
        os.fsync(file.fileno())


def _lay_out(weights: Sequence[Weight], documents: Mapping[str, Bytes], alignment: int) -> list[_Entry]:
    """The entries in file order. safetensors allows no gaps, so gaps are entries of their own."""
    stored = [
        *(Weight(WEIGHT_PREFIX + weight.name, weight.dtype, weight.shape, weight.load) for weight in weights),
        *(_document(name, data) for name, data in documents.items()),
    ]
    entries: list[_Entry] = []
    offset = 0
    for weight in stored:
        entries.append(_Entry(weight.name, weight.dtype, weight.shape, offset, weight.num_bytes, weight.load))
        end = offset + weight.num_bytes
        offset = align(end, alignment)
        if offset > end and weight is not stored[-1]:
            entries.append(_padding(len(entries), end, offset - end))
    return entries


def _document(name: str, data: Bytes) -> Weight:
    return Weight(name, "uint8", (memoryview(data).nbytes,), lambda: data)


def _padding(number: int, offset: int, num_bytes: int) -> _Entry:
    return _Entry(f"{PADDING_PREFIX}{number}", "uint8", (num_bytes,), offset, num_bytes, lambda: bytes(num_bytes))


def _write_entry(file: BinaryIO, entry: _Entry) -> str:
    """Append one entry; returns its checksum."""
    data = memoryview(entry.load()).cast("B")
    if data.nbytes != entry.num_bytes:
        raise ValueError(f"{entry.name}: promised {entry.num_bytes} bytes, got {data.nbytes}")
    file.write(data)
    return f"{crc32c(data):08x}"


def _header(entries: list[_Entry], checksums: dict[str, str]) -> bytes:
    """The JSON header with a zero in place of its own checksum, padded so that the data section is aligned."""
    metadata = {
        "checksums": json.dumps(checksums, separators=(",", ":"), sort_keys=True),
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "header_crc32c": ZERO_CHECKSUM,
        "plan_version": str(PLAN_VERSION),
    }
    tensors = {
        entry.name: {
            "data_offsets": [entry.offset, entry.offset + entry.num_bytes],
            "dtype": DTYPES[entry.dtype].stored,
            "shape": list(entry.shape),
        }
        for entry in sorted(entries, key=lambda entry: entry.name)
    }
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
    return text.ljust(-(-(LENGTH_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT - LENGTH_BYTES)


def _seal(header: bytes) -> bytes:
    """``header`` with its checksum in place of the zero."""
    unsealed = f'"header_crc32c":"{ZERO_CHECKSUM}"'.encode()
    sealed = f'"header_crc32c":"{crc32c(header):08x}"'.encode()
    return header.replace(unsealed, sealed, 1)
