"""Decodes images, as a program of its own, within bounds of memory.

``decoder`` starts it as ``python decoder_worker.py SETTINGS``, JSON with ``limits`` (the fields of ``ImageLimits``) and
``memory_bytes``, what it may take beyond its memory at the start. Stdin is a Unix socket. One byte on it says that the
program is ready. A request is the length of an image's file, 8 bytes, and the file. An answer is the length of a text
of JSON, 4 bytes, and the text: ``height`` and ``width``, which the pixels follow, or ``error`` (ArgumentError or
LimitError) and ``message``.
"""

import importlib
import json
import resource
import socket
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.media.images import ImageLimits, import_pillow, read_image


def main() -> None:
    """Answer until stdin ends."""
    settings = json.loads(sys.argv[1])
    limits = ImageLimits(**settings["limits"])
    warnings.simplefilter("ignore")
    import_pillow().init()  # imports the readers of all formats
    avif: Any = importlib.import_module("PIL.AvifImagePlugin")
    avif.DEFAULT_MAX_THREADS = 1  # the stack of each thread takes address space
    _bound(settings["memory_bytes"])
    with socket.socket(fileno=0) as connection, connection.makefile("rb") as reader:
        connection.sendall(b"+")
        while len(length := reader.read(8)) == 8:
            _answer(connection, reader.read(struct.unpack("<Q", length)[0]), limits)


def _bound(memory_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer(connection: socket.socket, content: bytes, limits: ImageLimits) -> None:
    try:
        pixels = read_image(content, limits)
    except (ArgumentError, LimitError) as error:
        _send(connection, {"error": type(error).__name__, "message": str(error)})
        return
    _send(connection, {"height": pixels.shape[0], "width": pixels.shape[1]})
    connection.sendall(pixels.data.cast("B"))


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    connection.sendall(struct.pack("<I", len(text)) + text)


if __name__ == "__main__":
    main()
