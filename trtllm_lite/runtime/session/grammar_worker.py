"""Tries grammars, as a program of its own.

``grammar_process`` starts it as ``python grammar_worker.py FILE``. FILE is the descriptor of a file with JSON: the
arguments of ``_core.GrammarCompiler``, and ``forces``, whether grammars are to find forced tokens. Each byte of stdin,
a Unix socket, carries another socket for one conversation. A conversation begins with a trial as JSON: ``grammar``, the
arguments of ``compile``, and its bounds: ``memory_bytes`` beyond this program's memory, ``cpu_seconds`` and
``wall_seconds``. The trial runs in a fork of this program, which has already read the tokenizer; if it exceeds its
bounds or its stack, the fork dies. The fork answers with a line of JSON: ``bytes`` (the size of the compiled grammar),
or ``error`` (the name of a class of ``trtllm_lite.errors``) and ``message``. After the fork's end this program writes
its exit ``status``, and closes the socket.

The program imports little of this package, so that it starts at once.
"""

import json
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trtllm_lite import _core
from trtllm_lite.errors import LimitError, TrtllmLiteError

_NICENESS = 8  # other processes go first
_TRIED_TOKENS = 16  # length of the random text that is generated under a grammar


class _Children:
    """The processes that try grammars now, each with the socket on which its result is awaited."""

    def __init__(self) -> None:
        self._waiting: dict[int, socket.socket] = {}

    def start(self, compiler: Any, waiting: socket.socket, requests: socket.socket) -> None:
        pid = os.fork()
        if pid == 0:
            # The peer of a socket sees that it is closed only when no other process has it open.
            for other in (requests, *self._waiting.values()):
                other.close()
            _try_and_exit(compiler, waiting)
        self._waiting[pid] = waiting

    def collect(self) -> None:
        """Write the exit status of each process that has ended to its socket."""
        for pid in list(self._waiting):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self._waiting.pop(pid) as waiting:
                    _answer(waiting, {"status": os.waitstatus_to_exitcode(status)})

    def kill(self) -> None:
        for pid in self._waiting:
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    requests = socket.socket(fileno=0)
    with open(int(sys.argv[1]), "rb") as arguments:
        compiler = _make_compiler(json.load(arguments))
    os.nice(_NICENESS)
    children, ended = _Children(), _signals_of_ends()
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if ended in ready:
                ended.recv(1 << 10)
                children.collect()
            if requests in ready:
                waiting = _next(requests)
                if waiting is None:
                    break
                children.start(compiler, waiting, requests)
    children.kill()


def _make_compiler(arguments: Mapping[str, Any]) -> Any:
    # The spelling of draft tokens depends on the tokenizer, and is not part of a trial.
    tokenize = _spell_nothing if arguments["forces"] else None
    names = ("library", "tokenizer_json", "vocab_size", "end_ids")
    return _core.GrammarCompiler(**{name: arguments[name] for name in names}, tokenize=tokenize)


def _spell_nothing(piece: bytes) -> list[int]:
    del piece
    return []


def _next(requests: socket.socket) -> socket.socket | None:
    """The next conversation; None after the last."""
    content, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
    return socket.socket(fileno=descriptors[0]) if content else None


def _signals_of_ends() -> socket.socket:
    """A socket that becomes readable whenever a child has ended."""
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    signal.set_wakeup_fd(writes.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reads


def _read_all(conversation: socket.socket) -> bytes:
    with conversation.makefile("rb") as reader:
        return reader.read()


def _answer(conversation: socket.socket, answer: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the other end may be closed
        conversation.sendall(json.dumps(answer).encode() + b"\n")


def _try_and_exit(compiler: Any, conversation: socket.socket) -> None:
    """Try the grammar, answer, and exit, all in the fork."""
    signal.set_wakeup_fd(-1)
    try:
        trial = json.loads(_read_all(conversation))
        _limit(trial)
        _answer(conversation, _tried(compiler, trial))
    finally:
        os._exit(0)


def _limit(trial: Mapping[str, Any]) -> None:
    with open("/proc/self/statm") as statm:
        limit = int(statm.read().split()[0]) * resource.getpagesize() + trial["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.setitimer(signal.ITIMER_PROF, trial["cpu_seconds"])  # SIGPROF ends the process then
    signal.setitimer(signal.ITIMER_REAL, trial["wall_seconds"])  # or SIGALRM ends it


def _tried(compiler: Any, trial: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"bytes": compiler.try_out(**trial["grammar"], num_tokens=_TRIED_TOKENS)}
    except TrtllmLiteError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        limit = trial["memory_bytes"] >> 20
        message = f"expected a grammar that takes at most {limit} MiB of memory, found one that takes more; simplify it"
        return {"error": LimitError.__name__, "message": message}


if __name__ == "__main__":
    main()
