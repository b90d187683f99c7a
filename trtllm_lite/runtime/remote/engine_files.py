"""Checks that the engine files of one node equal those of another."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtllm_lite.common.foreign_files import open_foreign
from trtllm_lite.common.vocabulary import MAX_BYTES
from trtllm_lite.engine.format import LENGTH_BYTES, MAX_HEADER_BYTES
from trtllm_lite.engine.manifest import RankMapping
from trtllm_lite.errors import EngineError

# Maps the engine file of each rank of a stage to its header_digest on the node that takes requests.
Digests = Mapping[Path, str]


def header_digest(path: Path) -> str:
    """The SHA-256 digest of an engine file's header, which has the checksums of all other parts."""
    with open_foreign(path, MAX_BYTES) as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        return hashlib.sha256(file.read(min(length, MAX_HEADER_BYTES))).hexdigest()


def check_files(digests: Digests) -> None:
    """Raise EngineError if a file of ``digests`` differs on this node. Missing files are reported on opening."""
    for path, digest in digests.items():
        if path.is_file() and header_digest(path) != digest:
            raise EngineError(f"{path} differs from the engine on the node that takes requests: copy it from there")


def stages_of(files: Sequence[Path], mapping: RankMapping) -> list[Digests]:
    """The engine files of each stage, given those of all ranks."""
    digests = [(path.absolute(), header_digest(path)) for path in files]
    return [dict(digests[first : first + mapping.tp_size]) for first in range(0, len(digests), mapping.tp_size)]
