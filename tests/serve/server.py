"""Runs ``trtllm-lite serve`` in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_SECONDS = 60  # after which a server that says nothing is taken to hang


@dataclass
class Server:
    """A server that listens at ``address``; ``process`` is its process, whose log is on stderr."""

    address: str
    process: subprocess.Popen[str]

    def terminate(self) -> tuple[int, str]:
        """Send SIGTERM; returns the exit code, and the rest of the log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=_SECONDS)
        return self.process.returncode, log


@contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    """A server of these arguments, which listens at a free port of this machine until the block ends."""
    command = [sys.executable, "-m", "trtllm_lite", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("serving at "):
            break
    else:
        raise AssertionError("".join(lines))
    server = Server(line.removeprefix("serving at ").strip(), process)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
