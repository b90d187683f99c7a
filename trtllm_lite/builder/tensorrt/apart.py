"""Runs TensorRT's compiler in a process of its own: its crash is an error of the build, its memory is given back."""

import mmap
import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import BinaryIO

from trtllm_lite.builder.tensorrt.compile import Compiled
from trtllm_lite.errors import BuildError

Progress = Callable[[int, int], None]


def compile_apart(compile_with: Callable[[Progress], Compiled], progress: Progress) -> Compiled:
    """What ``compile_with`` gives for a progress callback, in a fork of this process; its image is a mapped file.

    Raises BuildError, as ``compile_with`` does, or if the process ends before its work is done.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    with TemporaryFile() as file:
        process = context.Process(target=_work, args=(compile_with, file, sending), daemon=True)
        process.start()
        sending.close()
        try:
            result = _receive(receiving, progress)
            process.join()
        finally:
            process.kill()
        if result is None:
            raise BuildError(
                f"TensorRT's compiler ended with exit code {process.exitcode}: if memory was short, build on a machine "
                "with more; otherwise report this with network.onnx"
            )
        return replace(result, image=memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _receive(receiving: Connection, progress: Progress) -> Compiled | None:
    """The result that the other process sends, or None if it ends without one. Raises the error that it sends."""
    while True:
        try:
            message = receiving.recv()
        except EOFError:
            return None
        if isinstance(message, BuildError):
            raise message
        if isinstance(message, Compiled):
            return message
        progress(*message)


def _work(compile_with: Callable[[Progress], Compiled], file: BinaryIO, sending: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends this one
    try:
        compiled = compile_with(lambda done, total: sending.send((done, total)))
        file.write(compiled.image)
        file.flush()
        sending.send(replace(compiled, image=b""))
    except BuildError as error:
        sending.send(error)
