"""Runs the process that tries grammars: started when it is first needed, and again after it had to be ended.

A grammar comes with a request, so it is untrusted, and the grammar decides how deeply the compiling library recurses,
how long it computes and how much memory it takes. Therefore each grammar is first compiled, and a text is generated
under it, in a process of its own (``grammar_worker``) with bounded memory, time and stack.
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
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import EngineError, LimitError, OverloadedError
from trtllm_lite.runtime.session.grammar_texts import CompilerInput

MAX_MEMORY_BYTES = 256 << 20
"""A compiled grammar that takes more bytes is refused; 1 MB of schemas takes about half as much."""
MAX_CPU_SECONDS = 2.0
"""A grammar that computes for more seconds is refused; 1,000 structural tags take a fifth of it."""
MAX_WALL_SECONDS = 30.0
"""A grammar that is not compiled within this many seconds, as on a busy machine, is refused."""
MAX_AT_ONCE = 4
"""How many grammars are compiled at the same time; others wait for up to ``MAX_WALL_SECONDS``."""
_SPARE_SECONDS = 5.0  # waited after the time limit at which the process ends by itself
_WORKER = Path(__file__).with_name("grammar_worker.py")


class GrammarProcess:
    """Tries the grammars of one engine. Threads share it.

    ``arguments`` are those of ``_core.GrammarCompiler`` except ``tokenize``, and ``forces``, whether ``tokenize`` is
    given.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = json.dumps(dict(arguments)).encode()
        self._places = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def start(self) -> None:
        """Start the process, unless it runs; it initialises in the background.

        Raises EngineError if Python does not start.
        """
        self._ready_worker()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of ``MAX_AT_ONCE`` places for compilations. Raises OverloadedError if none becomes free in time."""
        if not self._places.acquire(timeout=MAX_WALL_SECONDS):
            raise OverloadedError(
                f"expected at most {MAX_AT_ONCE} grammars that compile at once, found more for {MAX_WALL_SECONDS:g} s; "
                "send the request again later"
            )
        try:
            yield
        finally:
            self._places.release()

    def try_out(self, given: CompilerInput) -> int:
        """The bytes of memory that a compiled grammar takes.

        Raises the errors of ``compile``, LimitError for a grammar that exceeds its bounds, and OverloadedError if this
        machine is too busy.
        """
        limits = {
            "memory_bytes": MAX_MEMORY_BYTES,
            "cpu_seconds": MAX_CPU_SECONDS,
            "wall_seconds": MAX_WALL_SECONDS,
        }
        request = json.dumps({"grammar": asdict(given), **limits}).encode()
        # If the process ended for a reason other than the grammar, such as a signal from outside, the grammar is tried
        # once more.
        answer = self._asked(request) or self._asked(request)
        if answer is None:
            raise EngineError(
                "the process that tries grammars ended twice: see what ends it, and send the request again"
            )
        if "error" in answer:
            raise getattr(errors, answer["error"])(answer["message"])
        if answer.get("status") == -signal.SIGALRM:  # the process did not get its share of CPU time
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
        """End ``worker``; the next grammar starts a new one."""
        with self._lock:
            if self._worker is worker:
                self._worker = None
        worker.stop()

    def _ready_worker(self) -> "_Worker":
        with self._lock:
            if self._worker is None or self._worker.owner != os.getpid():  # a fork leaves the worker to the parent
                self._worker = _Worker(self._arguments)
            return self._worker


class _Worker:
    """A process that tries grammars, several at the same time. It ends with this object."""

    def __init__(self, arguments: bytes) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        with theirs:
            process = _start(arguments, theirs)
        self.stop = weakref.finalize(self, _stop, process, self._requests, self.owner)

    def ask(self, request: bytes) -> dict[str, Any] | None:
        """The answer (see ``grammar_worker``); None if the process ended. Raises TimeoutError if none comes."""
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
    requests.close()  # the process then ends its children and itself
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
        "OMP_NUM_THREADS": "1",  # the process forks, and must have no threads
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
                process_group=0,  # no Ctrl-C from a terminal; in a new session niceness would have no effect
            )
        except (OSError, TypeError) as error:  # TypeError: a Python inside another program has no executable
            raise EngineError(
                f"grammars are tried in a process of their own, and Python ({sys.executable}) does not start "
                f"({one_line(str(error))}): let this process start Python, or leave guided_decoding out"
            ) from error


def _too_busy(seconds: float) -> OverloadedError:
    return OverloadedError(
        f"expected the process that tries grammars to answer within {seconds:g} s, found this machine too busy with "
        "other work; send the request again later"
    )


def _why_it_ended(status: int) -> str:
    """The limit that a grammar exceeded, by the exit status of the process that tried it."""
    if status == -signal.SIGPROF:
        return f"that compiles within {MAX_CPU_SECONDS:g} s of computing, found one that takes longer"
    if status in (-signal.SIGSEGV, -signal.SIGBUS):
        return "whose rules, references and brackets lie at most some hundred deep (1 MiB of stack), found a deeper one"
    return (
        f"that takes at most {MAX_MEMORY_BYTES >> 20} MiB of memory, found one over which the process that tried it "
        f"ended (status {status})"
    )
