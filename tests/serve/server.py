"""Runs ``trtllm-lite serve`` in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

_SECONDS = 60  # after which a server that says nothing is taken to hang


@dataclass
class Server:
    """A server that listens at ``address``; ``process`` is its process, ``log`` what it has said since it listens."""

    address: str
    process: subprocess.Popen[str]
    log: list[str]
    _reader: Thread

    def terminate(self) -> tuple[int, str]:
        """Send SIGTERM; returns the exit code, and the log."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=_SECONDS)
        self._reader.join()
        return code, "".join(self.log)


@contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    """A server of these arguments, which listens at a free port of this machine until the block ends."""
    command = [sys.executable, "-m", "trtllm_lite", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("serving at "):
            break
    else:
        raise AssertionError("".join(lines))
    log: list[str] = []
    reader = Thread(target=log.extend, args=(process.stderr,))  # the server would wait for a pipe that is full
    reader.start()
    try:
        yield Server(line.removeprefix("serving at ").strip(), process, log, reader)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        process.stderr.close()
