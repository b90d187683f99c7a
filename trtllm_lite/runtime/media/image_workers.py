"""Reads and processes images in processes of bounded memory and time, which are started when they are needed.

An image comes from a client, so it is untrusted, and the libraries that decode it are written in C. A server therefore
decodes in other processes (``image_worker``), which can crash or be ended without harm to others. These also cut the
image into patches, so that the server's own process has no work with pixels.
"""

import asyncio
import fcntl
import json
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trtllm_lite import _core
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ArgumentError, EngineError, LimitError, OverloadedError, TrtllmLiteError, shown
from trtllm_lite.runtime.media.headers import stated_extents
from trtllm_lite.runtime.media.images import ImageLimits, check_bytes, check_pixels, import_pillow
from trtllm_lite.runtime.media.prepared import PreparedImage
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, Patches
from trtllm_lite.runtime.media.processors.resizing import MAX_RESIZED_PIXELS

MAX_SECONDS = 10.0
"""An image whose patches are not there after this many seconds is refused."""
MAX_WORKERS = 4
"""How many processes there are at most, unless a number is given."""
MAX_WAITING = 256
"""How many images wait for a process at most, unless a number is given; further ones are refused."""
_START_SECONDS = 60.0
_BYTES_PER_PIXEL = 24  # Pillow has 4 bytes for each, and at most 5 copies while it lays an image on white
_SPARE_BYTES = 1 << 26
_SHARED_BYTES = 2 * 3 * MAX_RESIZED_PIXELS  # the tiles of parts, and that of the whole image
_KEPT_BYTES = 1 << 24  # shared memory beyond this is given back after an image that needed it
_MAX_ANSWER_BYTES = 1 << 20
_MAX_TOKENS = 1 << 24
_WORKER = Path(__file__).with_name("image_worker.py")
_ERRORS = {"ArgumentError": ArgumentError, "LimitError": LimitError}


class ImageWorkers:
    """Prepares images for one ``processor``, like ``prepare``, in processes that live as long as this object.

    There are up to ``num_workers`` processes, by default one for each core but at most MAX_WORKERS; up to
    ``max_waiting`` images wait for one. ``max_seconds`` bounds the time of one image. Threads share this object.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        limits: ImageLimits,
        num_workers: int | None = None,
        max_waiting: int = MAX_WAITING,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Raises ArgumentError if Pillow is not installed, or a number is not positive."""
        import_pillow()
        if num_workers is None:
            num_workers = min(MAX_WORKERS, _core.resolve_num_threads(0))
        numbers = {"num_workers": num_workers, "max_waiting": max_waiting, "max_seconds": max_seconds}
        for name, number in numbers.items():
            if not number > 0:
                raise ArgumentError(f"{name} is {shown(number)}: expected a positive number")
        self._processor = processor
        self._limits = limits
        self._num_workers = num_workers
        self._max_waiting = max_waiting
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._renew()

    def submit(self, content: bytes, is_alone: bool = True) -> Future[PreparedImage]:
        """Have an image prepared, given the ``content`` of its file.

        ``is_alone`` says that its prompt has no other images. Raises LimitError at once if the file, or the number of
        pixels that its header states, exceeds the limits, and OverloadedError if too many images wait. The future
        raises the errors of ``prepare``; LimitError if the image takes too much time; ArgumentError if it ends the
        process; EngineError if a process does not start. The next image has a fresh process then.
        """
        check_bytes(len(content), self._limits)
        extents = stated_extents(content)
        if extents is not None and min(extents) > 0:
            check_pixels(*extents, self._limits)
        with self._lock:
            if self._owner != os.getpid():  # a fork leaves threads and processes to the parent
                self._renew()
            if self._num_outstanding >= self._num_workers + self._max_waiting:
                raise OverloadedError(
                    f"expected at most {self._max_waiting} images that wait to be prepared, found more; send the "
                    "request again later"
                )
            future = self._threads.submit(self._prepare, content, is_alone)
            self._num_outstanding += 1
        future.add_done_callback(self._end)
        return future

    async def prepare(self, content: bytes, is_alone: bool = True) -> PreparedImage:
        """Like ``submit``, awaited. An image that still waits when this is cancelled is not prepared."""
        return await asyncio.wrap_future(self.submit(content, is_alone))

    def prepare_all(self, contents: Iterable[bytes], is_alone: bool = True) -> Iterator[PreparedImage]:
        """Prepare images in their order, a few ahead of the one that is asked for. Raises the errors of ``submit``."""
        ahead: deque[Future[PreparedImage]] = deque()
        try:
            for content in contents:
                ahead.append(self.submit(content, is_alone))
                if len(ahead) > self._num_workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def close(self) -> None:
        """End the processes. Images that wait are cancelled; a further image must not be submitted."""
        self._threads.shutdown(cancel_futures=True)
        while self._idle:
            self._idle.pop().stop()

    def _renew(self) -> None:
        self._owner = os.getpid()
        self._idle: list[_Worker] = []
        self._num_outstanding = 0
        self._threads = ThreadPoolExecutor(self._num_workers, thread_name_prefix="images")

    def _end(self, future: Future[PreparedImage]) -> None:
        del future
        with self._lock:
            self._num_outstanding -= 1

    def _prepare(self, content: bytes, is_alone: bool) -> PreparedImage:
        worker = self._ready_worker()
        try:
            answer = self._asked(worker, content, is_alone)
        except BaseException:  # after half a request or answer, the start of the next one is unknown
            worker.stop()
            raise
        self._idle.append(worker)
        if isinstance(answer, TrtllmLiteError):
            raise answer
        return answer

    def _ready_worker(self) -> "_Worker":
        while self._idle:
            try:
                worker = self._idle.pop()
            except IndexError:  # another thread has taken it
                break
            if worker.is_usable():
                return worker
            worker.stop()
        return _Worker(self._processor, self._limits)

    def _asked(self, worker: "_Worker", content: bytes, is_alone: bool) -> PreparedImage | TrtllmLiteError:
        try:
            return worker.ask(content, is_alone, self._max_seconds)
        except TimeoutError as error:
            raise LimitError(
                f"the image is not prepared after {self._max_seconds:g} s: send a smaller one, or a PNG or JPEG file"
            ) from error
        except (OSError, ValueError, LookupError, TypeError) as error:  # all but OSError: the answer is nonsense
            raise ArgumentError(
                f"the process that prepares images ended (status {worker.stop()}) over this one: expected an image "
                "that is whole and undamaged"
            ) from error


class _Worker:
    """A process that prepares images. It ends with this object."""

    def __init__(self, processor: ImageProcessor, limits: ImageLimits) -> None:
        self._owner = os.getpid()
        self._processor = processor
        self._limits = limits
        self._socket, theirs = socket.socketpair()
        with theirs, open(os.memfd_create("patches", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b") as file:
            file.truncate(_SHARED_BYTES)
            # A process that cut this memory off would end its readers.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._shared = mmap.mmap(file.fileno(), 0)
            self._process = _start(limits, theirs, file.fileno())
        self.stop = weakref.finalize(self, _stop, self._process, self._socket, self._owner)
        try:
            self._socket.sendall(_sized(pickle.dumps(processor)))
            _receive(self._socket, 1, time.monotonic() + _START_SECONDS)
        except OSError as error:
            raise EngineError(
                f"the process that prepares images does not start (status {self.stop()}): see what ends it"
            ) from error

    def is_usable(self) -> bool:
        """Whether the process runs and is of this process: a fork leaves it to the parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, content: bytes, is_alone: bool, seconds: float) -> PreparedImage | TrtllmLiteError:
        """An image, prepared, or the error that refuses it.

        Raises TimeoutError; OSError if the process ends; ValueError, LookupError or TypeError if it answers nonsense.
        """
        deadline = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        self._socket.sendall(bytes([is_alone]) + struct.pack("<Q", len(content)))
        self._socket.sendall(content)
        (length,) = struct.unpack("<Q", _receive(self._socket, 8, deadline))
        if length > _MAX_ANSWER_BYTES:
            raise ValueError("an answer of this length")
        answer = json.loads(_receive(self._socket, length, deadline))
        if "error" in answer:
            return _ERRORS[answer["error"]](answer["message"])
        return self._prepared(answer)

    def _prepared(self, answer: dict[str, Any]) -> PreparedImage:
        """What an answer says. Libraries that an image has taken over may answer anything, but not harm this process.

        Raises ValueError, LookupError or TypeError for nonsense.
        """
        height, width = map(int, answer["extents"])
        grids = tuple(Grid(int(rows), int(columns)) for rows, columns in answer["grids"])
        parts = Grid(*map(int, answer["parts"]))
        num_rows, num_columns, num_tokens = (int(answer[key]) for key in ("rows", "columns", "num_tokens"))
        is_sound = (
            1 <= height * width <= self._limits.max_image_pixels
            and min(map(min, grids)) >= 1
            and sum(grid.rows * grid.columns for grid in grids) == num_rows
            and num_columns == 3 * self._processor.patch_size**2
            and num_rows * num_columns <= len(self._shared)
            and min(parts) >= 0
            and parts.rows * parts.columns <= len(grids)
            and 1 <= num_tokens <= _MAX_TOKENS
        )
        if not is_sound:
            raise ValueError("an answer whose numbers do not agree")
        size = num_rows * num_columns
        rows = np.frombuffer(self._shared, np.uint8, size).reshape(num_rows, num_columns).copy()
        if size > _KEPT_BYTES:
            self._shared.madvise(mmap.MADV_REMOVE)
        patches = Patches(rows, grids, num_tokens, parts)
        return PreparedImage(patches, self._processor.text(patches), height, width, bytes.fromhex(answer["digest"]))


def _sized(message: bytes) -> bytes:
    return struct.pack("<Q", len(message)) + message


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


def _start(limits: ImageLimits, connection: socket.socket, shared: int) -> "subprocess.Popen[bytes]":
    pixels = limits.max_image_pixels + MAX_RESIZED_PIXELS
    memory = _SPARE_BYTES + _BYTES_PER_PIXEL * pixels + 2 * limits.max_image_bytes
    settings = {"limits": asdict(limits), "memory_bytes": memory, "shared": shared}
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPENBLAS_NUM_THREADS": "1",  # of numpy, which multiplies nothing there
        # Memory of one image is kept for the next one, up to this, as fresh pages take a sixth of the time.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 27),
    }
    try:
        return subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), json.dumps(settings)],
            stdin=connection.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=(shared,),
            process_group=0,  # no Ctrl-C from a terminal
        )
    except (OSError, TypeError) as error:  # TypeError: a Python inside another program has no executable
        raise EngineError(
            f"images are prepared in processes of their own, and Python ({sys.executable}) does not start "
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
