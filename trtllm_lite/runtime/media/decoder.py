"""Reads images in a process of bounded memory and time: started when it is first needed, and again after it ended.

An image comes from a client, so it is untrusted, and the libraries that decode it are written in C. A server therefore
decodes in another process (``decoder_worker``), which can crash or be ended without harm to others.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite import errors
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, shown
from trtllm_lite.runtime.media.images import ImageLimits, Pixels, check_bytes, check_pixels, import_pillow

MAX_SECONDS = 10.0
"""An image whose pixels are not there after this many seconds is refused."""
_START_SECONDS = 60.0
_BYTES_PER_PIXEL = 24  # Pillow has 4 bytes for each, and at most 5 copies while it lays an image on white
_SPARE_BYTES = 1 << 26
_WORKER = Path(__file__).with_name("decoder_worker.py")
_ERRORS = {"ArgumentError": ArgumentError, "LimitError": LimitError}


class ImageDecoder:
    """Reads images like ``read_image``, one at a time, in a process that lives as long as this object.

    Threads share it and take turns. ``max_seconds`` bounds the time of one image.
    """

    def __init__(self, limits: ImageLimits, max_seconds: float = MAX_SECONDS) -> None:
        """Raises ArgumentError if Pillow is not installed, or ``max_seconds`` is not positive."""
        import_pillow()
        if not max_seconds > 0:
            raise ArgumentError(f"max_seconds is {shown(max_seconds)}: expected a positive number")
        self._limits = limits
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def read(self, content: bytes) -> Pixels:
        """The pixels of the image in a file with this ``content``: uint8 [height, width, 3], RGB.

        Raises the errors of ``read_image``; LimitError if the image takes too much time; ArgumentError if it ends the
        process; EngineError if the process does not start. The next image has a fresh process then.
        """
        check_bytes(len(content), self._limits)
        with self._lock:
            worker = self._ready_worker()
            try:
                return worker.ask(content, self._limits, self._max_seconds)
            except errors.TrtllmLiteError:
                raise
            except TimeoutError as error:
                self._stop()
                raise LimitError(
                    f"the image is not decoded after {self._max_seconds:g} s: send a smaller one, or a PNG or JPEG file"
                ) from error
            except OSError as error:
                status = self._stop()
                raise ArgumentError(
                    f"the process that decodes images ended (status {status}) over this one: expected an image that "
                    "is whole and undamaged"
                ) from error
            except BaseException:  # after half a request or answer, the start of the next one is unknown
                self._stop()
                raise

    def close(self) -> None:
        """End the process, if there is one; a further image starts another."""
        with self._lock:
            self._stop()

    def _ready_worker(self) -> "_Worker":
        if self._worker is not None and not self._worker.is_usable():
            self._stop()
        if self._worker is None:
            self._worker = _Worker(self._limits)
        return self._worker

    def _stop(self) -> int | None:
        """End the process; returns its exit status, or None if there is none."""
        worker, self._worker = self._worker, None
        return None if worker is None else worker.stop()


class _Worker:
    """A process that decodes images. It ends with this object."""

    def __init__(self, limits: ImageLimits) -> None:
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = _start(limits, theirs)
        self.stop = weakref.finalize(self, _stop, self._process, self._socket, self._owner)
        try:
            _receive(self._socket, 1, time.monotonic() + _START_SECONDS)
        except OSError as error:
            raise EngineError(
                f"the process that decodes images does not start (status {self.stop()}): see what ends it"
            ) from error

    def is_usable(self) -> bool:
        """Whether the process runs and is of this process: a fork leaves it to the parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, content: bytes, limits: ImageLimits, seconds: float) -> Pixels:
        """The pixels of an image. Raises the worker's errors; TimeoutError; OSError if the process ends."""
        deadline = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        self._socket.sendall(struct.pack("<Q", len(content)))
        self._socket.sendall(content)
        (length,) = struct.unpack("<I", _receive(self._socket, 4, deadline))
        answer = json.loads(_receive(self._socket, length, deadline))
        if "error" in answer:
            raise _ERRORS[answer["error"]](answer["message"])
        height, width = int(answer["height"]), int(answer["width"])
        check_pixels(height, width, limits)  # libraries that an image has taken over may answer anything
        pixels = _receive(self._socket, height * width * 3, deadline)
        return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytearray:
    """``length`` bytes. Raises TimeoutError at the ``deadline``, ConnectionError if the peer closes before."""
    result = bytearray(length)
    rest = memoryview(result)
    while rest:
        connection.settimeout(max(deadline - time.monotonic(), 1e-6))
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionResetError("the process has ended")
        rest = rest[count:]
    return result


def _start(limits: ImageLimits, connection: socket.socket) -> "subprocess.Popen[bytes]":
    memory = _SPARE_BYTES + _BYTES_PER_PIXEL * limits.max_image_pixels + 2 * limits.max_image_bytes
    command = [sys.executable, "-P", str(_WORKER), json.dumps({"limits": asdict(limits), "memory_bytes": memory})]
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",  # of numpy, which computes nothing there
    }
    try:
        return subprocess.Popen(
            command,
            stdin=connection.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # no Ctrl-C from a terminal
        )
    except (OSError, TypeError) as error:  # TypeError: a Python inside another program has no executable
        raise EngineError(
            f"images are decoded in a process of their own, and Python ({sys.executable}) does not start "
            f"({one_line(str(error))}): let this process start Python"
        ) from error


def _stop(process: "subprocess.Popen[bytes]", connection: socket.socket, owner: int) -> int | None:
    """End the process, which may be decoding. A status other than that of SIGKILL says how it ended by itself."""
    if owner != os.getpid():
        connection.close()
        return None
    process.kill()  # has no effect on a process that has ended
    connection.close()
    return process.wait()
