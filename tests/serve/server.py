"""Runs ``trtllm-lite serve`` in a process of its own."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from urllib.parse import urlsplit

import httpx

from tests.serve.waiting import first_of

_SECONDS = 60  # seconds without output, after which the server counts as hung


@dataclass
class Server:
    """A server that listens at ``address``; ``log`` has the lines that ``process`` has written to stderr."""

    address: str
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = Thread(target=self._read_log, daemon=True)  # a full pipe would block the server
        self._reader.start()

    def signal(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> tuple[int, str]:
        """Wait for the process's end; returns the exit code and the log."""
        self.process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        return self.process.returncode, "".join(self.log)

    def terminate(self) -> tuple[int, str]:
        """Call :meth:`signal`, then :meth:`wait`."""
        self.signal()
        return self.wait()

    def wait_until_idle(self, **headers: str) -> None:
        """Wait until no sequence is being generated or queued."""
        with httpx.Client(base_url=self.address, headers=headers) as client:

            def is_idle() -> bool:
                load = client.get("/load").json()
                running = [model["num_requests_running"] for model in load["models"].values()]
                return load["server_load"] == 0 and not any(running)

            assert first_of(is_idle), f"the server is still at work: {client.get('/load').text}"

    def exchange(self, sent: bytes) -> bytes:
        """The server's answer to these bytes, until it closes the connection."""
        address = urlsplit(self.address)
        received = b""
        with socket.create_connection((address.hostname, address.port), timeout=_SECONDS) as connection:
            connection.sendall(sent)
            while part := connection.recv(1 << 16):
                received += part
        return received

    def _read_log(self) -> None:
        self.log.extend(self.process.stderr)


@contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    """A server with these arguments, listening at a free port of this machine until the block ends."""
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
        server.wait()
