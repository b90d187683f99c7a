"""Reads a file and computes its digest, on several threads and without the interpreter's lock."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.core import core

CHUNK_BYTES = 1 << 22
MAX_THREADS = 8
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Contents:
    """The contents of a file; ``digest`` is computed from the digests of its chunks."""

    data: memoryview
    digest: bytes


def read_contents(descriptor: int, size: int) -> Contents:
    """Read the ``size`` bytes of an open file. Raises EngineError if it has become shorter, or OSError.

    The bytes are copied, because truncating a mapped file would kill the process.
    """
    data = np.empty(size, np.uint8).data

    def read_chunk(begin: int) -> bytes:
        chunk = data[begin : begin + CHUNK_BYTES]
        _fill(chunk, descriptor, begin)
        return digest_of(chunk)

    with ThreadPoolExecutor(min(core().resolve_num_threads(), MAX_THREADS)) as pool:
        return Contents(data, digest_of(b"".join(pool.map(read_chunk, range(0, size, CHUNK_BYTES)))))


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest of some bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _fill(chunk: memoryview, descriptor: int, begin: int) -> None:
    num_read = 0
    while num_read < len(chunk):
        count = os.preadv(descriptor, [chunk[num_read:]], begin + num_read)
        if count == 0:
            raise EngineError(
                f"a file of the adapter became shorter while it was read: expected {begin + len(chunk)} bytes or more, "
                f"found {begin + num_read}; put a whole file in its place before requests name the adapter"
            )
        num_read += count
