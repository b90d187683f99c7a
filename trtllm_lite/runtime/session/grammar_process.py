"""The process that tries grammars: started when it is first needed, and again after one that had to end.

A grammar comes with a request, so it is data to distrust, and the library that compiles it recurses as deeply, computes
as long and takes as much memory as the grammar says. So it is first compiled, and a text is written under it, where
nobody else's request runs: in a process of its own for each (``grammar_worker``), of bounded memory, time and stack.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtllm_lite import errors
from trtllm_lite.errors import EngineError, LimitError, OverloadedError
from trtllm_lite.printable import one_line
from trtllm_lite.runtime.session.grammar_texts import CompiledForm

MAX_MEMORY_BYTES = 256 << 20
"""A compiled grammar that takes more is refused: of 1 MB of schemas it takes about half as much."""
MAX_CPU_SECONDS = 2.0
"""A grammar that computes longer is refused: 1,000 structural tags take a fifth of it."""
MAX_WALL_SECONDS = 30.0
"""A grammar that is not compiled by then, as on a machine that has much else to do, is refused."""
MAX_AT_ONCE = 4
"""Grammars that are compiled at once; others wait, up to ``MAX_WALL_SECONDS``."""
_SPARE_SECONDS = 5.0  # beyond the time in which the process ends by itself
_WORKER = Path(__file__).with_name("grammar_worker.py")


class GrammarProcess:
    """Tries the grammars of one engine. Threads share it.

    ``arguments`` are those of ``_core.GrammarCompiler`` but for ``tokenize``, and ``guesses``, whether there is one.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = json.dumps(dict(arguments)).encode()
        self._places = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def start(self) -> None:
        """Start the process, if there is none; it gets ready meanwhile. Raises EngineError if Python does not start."""
        self._ready_worker()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Be one of those that compile at once. Raises OverloadedError if ``MAX_AT_ONCE`` others do for too long."""
        if not self._places.acquire(timeout=MAX_WALL_SECONDS):
            raise OverloadedError(
                f"expected at most {MAX_AT_ONCE} grammars that compile at once, found more for {MAX_WALL_SECONDS:g} s; "
                "send the request again later"
            )
        try:
            yield
        finally:
            self._places.release()

    def try_out(self, form: CompiledForm) -> int:
        """The bytes of memory that a grammar takes once it is compiled.

        Raises what ``compile`` does, LimitError for a grammar that needs more than it may have, and OverloadedError if
        this machine has no time for it.
        """
        limits = {
            "memory_bytes": MAX_MEMORY_BYTES,
            "cpu_seconds": MAX_CPU_SECONDS,
            "wall_seconds": MAX_WALL_SECONDS,
        }
        request = json.dumps({"grammar": asdict(form), **limits}).encode()
        # A process that has ended meanwhile, as by somebody's signal, says nothing about the grammar.
        answer = self._asked(request) or self._asked(request)
        if answer is None:
            raise EngineError(
                "the process that tries grammars ended twice: see what ends it, and send the request again"
            )
        if "error" in answer:
            raise getattr(errors, answer["error"])(answer["message"])
        if answer.get("status") == -signal.SIGALRM:  # it did not get the time that it may compute
            raise _too_busy(MAX_WALL_SECONDS)
        if "status" in answer:
            raise LimitError(f"expected a grammar {_why_it_ended(answer['status'])}; simplify it")
        return int(answer["bytes"])

    def _asked(self, request: bytes) -> dict[str, Any] | None:
        worker = self._ready_worker()
        try:
            answer = worker.ask(request)
        except TimeoutError as error:
            self._replace(worker)
            raise _too_busy(MAX_WALL_SECONDS + _SPARE_SECONDS) from error
        if answer is None:
            self._replace(worker)
        return answer

    def _replace(self, worker: "_Worker") -> None:
        """End ``worker``; the next grammar starts another."""
        with self._lock:
            if self._worker is worker:
                self._worker = None
        worker.stop()

    def _ready_worker(self) -> "_Worker":
        with self._lock:
            if self._worker is None or self._worker.owner != os.getpid():  # a fork leaves it to the parent
                self._worker = _Worker(self._arguments)
            return self._worker


class _Worker:
    """A process that tries grammars; conversations with it run side by side. It ends with this object."""

    def __init__(self, arguments: bytes) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        with theirs:
            process = _start(arguments, theirs)
        self.stop = weakref.finalize(self, _stop, process, self._requests, self.owner)

    def ask(self, request: bytes) -> dict[str, Any] | None:
        """The answer (see ``grammar_worker``); None if the process ended. Raises TimeoutError without any in time."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(MAX_WALL_SECONDS + _SPARE_SECONDS)
            try:
                with theirs, self._lock:
                    socket.send_fds(self._requests, [b"+"], [theirs.fileno()])
                ours.sendall(request)
                ours.shutdown(socket.SHUT_WR)
                with ours.makefile("rb") as reader:
                    line = reader.readline()
            except TimeoutError:
                raise
            except OSError:
                return None
        return json.loads(line) if line else None


def _stop(process: "subprocess.Popen[bytes]", requests: socket.socket, owner: int) -> None:
    requests.close()  # then it ends what it has started, and itself
    if owner != os.getpid():
        return
    try:
        process.wait(_SPARE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(arguments: bytes, requests: socket.socket) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MALLOC_ARENA_MAX": "1",  # a thread's own arena would count as memory of the grammar
        "OMP_NUM_THREADS": "1",  # it forks, and must have no threads
    }
    with open(os.memfd_create("arguments"), "r+b") as file:
        file.write(arguments)
        file.seek(0)
        try:
            return subprocess.Popen(
                [sys.executable, "-P", str(_WORKER), str(file.fileno())],
                stdin=requests.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(file.fileno(),),
                process_group=0,  # Ctrl-C in a terminal is not meant for it; a session of its own would not be nicer
            )
        except (OSError, TypeError) as error:  # TypeError: a Python inside another program has no executable
            raise EngineError(
                f"grammars are tried in a process of their own, and Python ({sys.executable}) does not start "
                f"({one_line(str(error))}): allow it, or leave guided_decoding out"
            ) from error


def _too_busy(seconds: float) -> OverloadedError:
    return OverloadedError(
        f"expected the process that tries grammars to answer within {seconds:g} s, found this machine too busy with "
        "other work; send the request again later"
    )


def _why_it_ended(status: int) -> str:
    """What a grammar was expected to keep, by how the process that tried it ended."""
    if status == -signal.SIGPROF:
        return f"that compiles within {MAX_CPU_SECONDS:g} s of computing, found one that takes longer"
    if status in (-signal.SIGSEGV, -signal.SIGBUS):
        return "whose rules, references and brackets lie at most some hundred deep (1 MiB of stack), found a deeper one"
    return (
        f"that takes at most {MAX_MEMORY_BYTES >> 20} MiB of memory, found one over which the process that tried it "
        f"ended (status {status})"
    )
