"""Runs the processes that render chat templates: started when they are first needed, and again after one was ended.

A template comes with a model, so it is untrusted. Jinja's sandbox keeps it from Python objects, but bounds neither
memory nor time; a process bounds both. Large requests have a separate process of low priority, so that small ones do
not wait for them.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ArgumentError, EngineError, LimitError

MAX_RENDERED_CHARS = 1 << 24
MAX_REQUEST_CHARS = 1 << 25  # bytes of the messages and the other names, as JSON
_MEMORY_BYTES = 1 << 29
_CPU_SECONDS = 2
_PIPE_BYTES = 1 << 16
_SMALL_CHARS = 1 << 17  # bytes of a request that is rendered in some milliseconds
_LARGE_NICENESS = 10
_WORKER = Path(__file__).with_name("template_worker.py")


def render_template(source: str, names: Mapping[str, Any]) -> str:
    """The text that the Jinja template ``source`` renders to, given ``names`` (JSON values).

    Raises EngineError if ``source`` is not a valid template, ArgumentError if it refuses the names, needs too much
    memory or time, or renders to more than MAX_RENDERED_CHARS characters, LimitError if the names are too large.
    """
    request = _as_json({"source": source, "names": names})
    if len(request) > MAX_REQUEST_CHARS:
        raise LimitError(
            f"the messages and the chat template come to {len(request):,} characters of JSON, which exceeds "
            f"{MAX_REQUEST_CHARS:,}: shorten the messages"
        )
    answer = (_small if len(request) <= _SMALL_CHARS else _large).ask(request)
    if "invalid" in answer:
        raise EngineError(
            f"the chat template is not valid Jinja ({one_line(answer['invalid'])}): convert again with one that is"
        )
    if "refused" in answer:
        raise ArgumentError(f"the model's chat template refuses these messages: {one_line(answer['refused'])}")
    return str(answer["text"])


def _as_json(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"the messages or the arguments of the chat template are not JSON ({one_line(str(error))}): expected "
            "dictionaries, lists, strings, numbers, True, False and None"
        ) from error


class _TemplateProcess:
    """One process for all templates; threads take turns. ``niceness`` is added to that of this process."""

    def __init__(self, niceness: int) -> None:
        self._niceness = niceness
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: bytes) -> dict[str, str]:
        """The answer to ``request`` (see ``template_worker``). Raises ArgumentError if it ended the process."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _start(self._niceness)
            process = self._process
            try:
                answer = _exchange(process, request)
            except BaseException:  # after half a request or answer, the start of the next one is unknown
                self.stop()
                raise
            if answer is None:
                self.stop()
        if answer is None:
            raise ArgumentError(_why_it_ended(process.returncode))
        return answer

    def stop(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with process:  # leaving the block closes the pipes and waits for the process
                process.kill()


def _start(niceness: int) -> "subprocess.Popen[bytes]":
    numbers = (_MEMORY_BYTES, _CPU_SECONDS, MAX_RENDERED_CHARS, niceness)
    command = [sys.executable, "-P", str(_WORKER), *map(str, numbers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,  # a fork must not inherit half a request
            process_group=0,  # no Ctrl-C from a terminal; in a new session niceness would have no effect
        )
    except (OSError, TypeError) as error:  # TypeError: a Python inside another program has no executable
        raise EngineError(
            f"chat templates are rendered in a process of their own, and Python ({sys.executable}) does not start "
            f"({one_line(str(error))}): let this process start Python, or render the prompt yourself and pass the text"
        ) from error


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> Any:
    """The answer to a request, or None if the process ended before answering."""
    assert process.stdin is not None
    assert process.stdout is not None
    rest = memoryview(request + b"\n")
    try:
        while rest:
            rest = rest[process.stdin.write(rest) or 0 :]
    except BrokenPipeError:
        return None
    answer = bytearray()
    while not answer.endswith(b"\n"):
        piece = process.stdout.read(_PIPE_BYTES)
        if not piece:
            return None
        answer += piece
    return json.loads(answer)


def _why_it_ended(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"the model's chat template computes for more than {_CPU_SECONDS} s: shorten the messages"
    return (
        f"the process that renders chat templates ended (status {status}), perhaps because it needed more than "
        f"{_MEMORY_BYTES >> 20} MiB of memory: shorten the messages"
    )


def _forget_after_fork() -> None:
    """Reset the state in a fork: the processes, and locks that other threads may have held, belong to the parent."""
    global _small, _large
    _small, _large = _TemplateProcess(0), _TemplateProcess(_LARGE_NICENESS)


def _stop() -> None:
    _small.stop()
    _large.stop()


_small, _large = _TemplateProcess(0), _TemplateProcess(_LARGE_NICENESS)
os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop)
