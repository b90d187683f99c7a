"""Reads header, manifest and plan of an engine file, but not its weights.

The runtime has a reader in C++, which checks everything again, weights included; this reader serves inspection. Sizes
are checked before they are trusted, so that a hostile file costs neither memory nor time.
"""

import os
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from trtllm_lite._core import crc32c
from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import FORMAT, FORMAT_VERSION, MAX_BYTES, MAX_JSON_BYTES, PLAN_VERSION, STORED_BYTES
from trtllm_lite.engine.format import (
    CHECKSUM_KEY,
    ENGINE_FILE,
    LENGTH_BYTES,
    MANIFEST_ENTRY,
    MAX_HEADER_BYTES,
    MAX_STORED_RANK,
    PLAN_ENTRY,
    ZERO_CHECKSUM,
    align,
    engine_file,
)
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.plan import Plan
from trtllm_lite.engine.records import from_json, parse_json
from trtllm_lite.errors import EngineError

_REMEDY = "copy it again or build it again"


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the file: safetensors dtype name, physical shape, byte range in the data section."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.data_offsets[1] - self.data_offsets[0]


@dataclass(frozen=True)
class EngineFile:
    """An engine file's description of itself; weights stay on disk.

    ``checksums`` are the file's checksums of its entries: the CRC-32C of each, as eight hexadecimal digits.
    """

    path: Path
    file_bytes: int
    tensors: dict[str, StoredTensor]
    checksums: dict[str, str]
    manifest: Manifest
    plan: Plan

    def stored(self, entry: str) -> StoredTensor:
        """The file's entry that the plan names ``entry``. Raises EngineError if the file has none."""
        if entry not in self.tensors:
            raise EngineError(self._lacks("the entry", entry))
        return self.tensors[entry]

    def checksum(self, entry: str) -> str:
        """The checksum of an entry that the plan names. Raises EngineError if the file has none."""
        if entry not in self.checksums:
            raise EngineError(self._lacks("a checksum of", entry))
        return self.checksums[entry]

    def _lacks(self, what: str, entry: str) -> str:
        return f"{self.path} is damaged: expected {what} {one_line(entry)}, which its plan names: {_REMEDY}"


def find_engine(path: Path) -> Path:
    """The engine file of an engine directory, or ``path`` itself if it is a file. Raises EngineError."""
    path = Path(path)
    if not path.exists():
        raise EngineError(f"expected an engine directory or file, but {path} does not exist: check the path")
    file = path / ENGINE_FILE if path.is_dir() else path
    if not file.is_file():
        raise EngineError(
            f"expected an engine directory (one that holds {ENGINE_FILE}), but {path} holds none: "
            "pass the output_dir of `trtllm-lite build`"
        )
    return file


def read_engine(path: Path) -> EngineFile:
    """Read the header, manifest and plan of an engine directory or file.

    Raises EngineError if the file is absent, truncated, not an engine, of another version, or if one of the three is
    damaged.
    """
    path = find_engine(path)
    try:
        with open_foreign(path, MAX_BYTES) as file:
            return _read(path, file)
    except OSError as error:
        raise EngineError(
            f"cannot read the engine {path}: {error.strerror}: check the path and its permissions"
        ) from error


def read_stages(path: Path) -> list[EngineFile]:
    """The engines of the first rank of each stage, in order. Raises EngineError as :func:`read_engine` does."""
    first = read_engine(path)
    mapping = first.manifest.mapping
    others = range(mapping.tp_size, mapping.num_ranks, mapping.tp_size)
    return [first, *(read_engine(first.path.parent / engine_file(rank)) for rank in others)]


def _read(path: Path, file: BinaryIO) -> EngineFile:
    file_bytes = os.fstat(file.fileno()).st_size
    header = _read_header(path, file, file_bytes)
    raw = parse_json(header, f"{path}: header")
    metadata = raw.pop("__metadata__", None) if isinstance(raw, dict) else None
    checksums = _check_metadata(path, header, metadata)
    tensors = {name: from_json(StoredTensor, entry, f"{path}: {name}") for name, entry in raw.items()}
    data_start = LENGTH_BYTES + len(header)
    _check_tensors(path, tensors, file_bytes - data_start)

    def text(name: str) -> str:
        return _read_json_entry(path, file, data_start, name, tensors.get(name), checksums.get(name))

    manifest = Manifest.from_json(text(MANIFEST_ENTRY))
    return EngineFile(path, file_bytes, tensors, checksums, manifest, Plan.from_json(text(PLAN_ENTRY)))


def _read_header(path: Path, file: BinaryIO, file_bytes: int) -> bytes:
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    room = min(file_bytes - LENGTH_BYTES, MAX_HEADER_BYTES)
    if not 0 < length <= room or align(LENGTH_BYTES + length) != LENGTH_BYTES + length:
        raise EngineError(
            f"{path} is not an engine or is truncated: its header should have between 1 and {max(room, 0)} bytes, "
            f"but claims {length}: {_REMEDY}"
        )
    return file.read(length)


def _check_metadata(path: Path, header: bytes, metadata: Any) -> dict[str, str]:
    """Check format, versions and the header's own checksum; returns the checksums of the entries."""
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise EngineError(f"{path} is not an engine: expected the format {FORMAT} in its header: {_REMEDY}")
    for key, supported in (("format_version", FORMAT_VERSION), ("plan_version", PLAN_VERSION)):
        found = metadata.get(key)
        if found != str(supported):
            raise EngineError(
                f"{path} has {key} {one_line(str(found))}, and this installation reads {supported}: "
                "install the matching trtllm_lite or build the engine again"
            )
    pattern = re.escape(CHECKSUM_KEY.encode()) + rb"([0-9a-f]{8})"
    found = re.findall(pattern, header)
    unsealed = re.sub(pattern, (CHECKSUM_KEY + ZERO_CHECKSUM).encode(), header)
    if len(found) != 1 or int(found[0], 16) != crc32c(unsealed):
        raise EngineError(f"{path} is damaged: the checksum of its header does not match: {_REMEDY}")
    return from_json(
        _Checksums, {"entries": parse_json(str(metadata.get("checksums", "")), f"{path}: checksums")}, ""
    ).entries


@dataclass(frozen=True)
class _Checksums:
    entries: dict[str, str]


def _check_tensors(path: Path, tensors: dict[str, StoredTensor], data_bytes: int) -> None:
    """Check that entries tile the data section exactly, and that the length of each agrees with its shape."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        item_bytes = STORED_BYTES.get(tensor.dtype)
        sane = (
            len(tensor.data_offsets) == 2 and len(tensor.shape) <= MAX_STORED_RANK and min(tensor.shape, default=1) > 0
        )
        if item_bytes is None or not sane:
            raise EngineError(f"{path} is damaged: the entry {name} has no valid dtype, shape or range: {_REMEDY}")
        if tensor.data_offsets[0] != end or tensor.num_bytes != prod(tensor.shape) * item_bytes:
            raise EngineError(
                f"{path} is damaged: expected the entry {name} to start at {end} and to match its shape, "
                f"found the range {list(tensor.data_offsets)}: {_REMEDY}"
            )
        end = tensor.data_offsets[1]
    if end != data_bytes:
        raise EngineError(
            f"{path} is truncated or damaged: expected {end} bytes of data, found {data_bytes}: {_REMEDY}"
        )


def _read_json_entry(
    path: Path, file: BinaryIO, data_start: int, name: str, tensor: StoredTensor | None, checksum: str | None
) -> str:
    if tensor is None or tensor.num_bytes > MAX_JSON_BYTES:
        raise EngineError(f"{path} is damaged: expected an entry {name} of at most {MAX_JSON_BYTES} bytes: {_REMEDY}")
    file.seek(data_start + tensor.data_offsets[0])
    data = file.read(tensor.num_bytes)
    if checksum != f"{crc32c(data):08x}":
        raise EngineError(f"{path} is damaged: the checksum of its {name} does not match: {_REMEDY}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise EngineError(f"{path} is damaged: its {name} is not UTF-8: {_REMEDY}") from error
