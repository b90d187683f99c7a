"""Reads and processes images, as a program of its own, within bounds of memory.

``image_workers`` starts it as ``python image_worker.py SETTINGS``, JSON with ``limits`` (the fields of
``ImageLimits``), ``memory_bytes``, what it may take beyond its memory at the start, and ``shared``, the descriptor of
memory that the patches are written to. Stdin is a Unix socket, on which numbers of bytes have 8 bytes. The first
message is a number of bytes and a pickled ``ImageProcessor``; one byte says that the program is ready. A request is a
byte, 1 if the image is alone in its prompt or else 0, and the number of bytes of its file, and the file. An answer is
a number of bytes and a text of JSON: either ``extents`` of the image, ``digest``, ``rows`` and ``columns`` of the
patches, ``grids``, ``parts`` and ``num_tokens``, or ``error`` (ArgumentError or LimitError) and ``message``.
"""

import importlib
import json
import mmap
import pickle
import resource
import socket
import struct
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.media.images import ImageLimits, import_pillow
from trtllm_lite.runtime.media.prepared import prepare
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, Rows


def main() -> None:
    """Answer until stdin ends."""
    settings = json.loads(sys.argv[1])
    limits = ImageLimits(**settings["limits"])
    shared = mmap.mmap(settings["shared"], 0)
    warnings.simplefilter("ignore")
    import_pillow().init()  # imports the readers of all formats
    avif: Any = importlib.import_module("PIL.AvifImagePlugin")
    avif.DEFAULT_MAX_THREADS = 1  # the stack of each thread takes address space
    with socket.socket(fileno=0) as connection, connection.makefile("rb") as reader:
        processor: ImageProcessor = pickle.loads(_sized(reader))  # of the process that started this one
        _bound(settings["memory_bytes"])
        connection.sendall(b"+")
        while is_alone := reader.read(1):
            answer = json.dumps(_answer(_sized(reader), limits, processor, is_alone == b"\x01", shared)).encode()
            connection.sendall(struct.pack("<Q", len(answer)) + answer)


def _sized(reader: IO[bytes]) -> bytes:
    return reader.read(*struct.unpack("<Q", reader.read(8)))


def _bound(memory_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer(
    content: bytes, limits: ImageLimits, processor: ImageProcessor, is_alone: bool, shared: mmap.mmap
) -> dict[str, Any]:
    try:
        image = prepare(content, limits, processor, is_alone, partial(_shared_rows, shared))
    except (ArgumentError, LimitError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    rows, columns = image.patches.rows.shape
    return {
        "extents": (image.height, image.width),
        "digest": image.digest.hex(),
        "rows": rows,
        "columns": columns,
        "grids": image.patches.grids,
        "parts": image.patches.parts,
        "num_tokens": image.patches.num_tokens,
    }


def _shared_rows(shared: mmap.mmap, rows: int, columns: int) -> Rows:
    if rows * columns > len(shared):
        raise LimitError(
            f"the model's processor makes {rows * columns:,} bytes of patches of the image, which exceeds "
            f"{len(shared):,}: send a smaller one"
        )
    return np.frombuffer(shared, np.uint8, rows * columns).reshape(rows, columns)


if __name__ == "__main__":
    main()
