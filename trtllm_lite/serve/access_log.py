"""Writes a line for each request."""

import contextlib
import queue
import threading
from typing import Any, TextIO

from trtllm_lite.serve.http.messages import Request
from trtllm_lite.serve.log_lines import json_line, now, text_line

_LONGEST_PATH = 200
_MAX_WAITING = 10_000  # lines that wait to be written, at most
_CLOSING_SECONDS = 1.0


class AccessLog:
    """Writes a line for each answered request.

    A line has the time, client, request, status, seconds, model and version, tokens, id and warning, as text or with
    ``as_json`` as a JSON object; with ``file`` None nothing is written. A thread writes, so that a blocked file delays
    no request: lines that it cannot keep up with are dropped, and a later line counts them.
    """

    def __init__(self, file: TextIO | None, *, as_json: bool = False) -> None:
        self._file = file
        self._as_json = as_json
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._write_lines, name="trtllm_lite access log", daemon=True)
        if file is not None:
            self._thread.start()

    def write(self, request: Request, status: int) -> None:
        """Log a request that has been answered, or whose client went away (status 499)."""
        if self._file is None:
            return
        if self._num_dropped and not self._lines.full():
            note = f"{self._num_dropped} lines of the access log were dropped"
            self._put(json_line({"time": now(), "message": note}) if self._as_json else f"{note}\n")
            self._num_dropped = 0
        fields = _fields(request, status)
        if not self._put(json_line(fields) if self._as_json else text_line(fields)):
            self._num_dropped += 1

    def close(self) -> None:
        """Write waiting lines, for a second at most; later requests are not logged."""
        if self._file is not None:
            self._file = None
            with contextlib.suppress(queue.Full):
                self._lines.put(None, timeout=_CLOSING_SECONDS)
            self._thread.join(_CLOSING_SECONDS)

    def _put(self, line: str) -> bool:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            return False
        return True

    def _write_lines(self) -> None:
        file = self._file
        assert file is not None
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # if the disk is full, or nobody reads, the server goes on
                file.write(line)
                if self._lines.empty():
                    file.flush()


def _fields(request: Request, status: int) -> dict[str, Any]:
    """The fields of a request's line, by name."""
    connection = request.connection
    fields: dict[str, Any] = {
        "time": now(),
        "client": connection.client,
        "method": request.method,
        "path": request.path[:_LONGEST_PATH],
        "status": status,
        "seconds": round(connection.seconds_since(request.received), 3),
    }
    if request.model:
        fields["model"] = request.model
        if request.version:
            fields["version"] = request.version
        fields["prompt_tokens"] = request.num_prompt_tokens
        fields["completion_tokens"] = request.num_generated_tokens
    fields["request_id"] = request.id
    if request.warning:
        fields["warning"] = request.warning
    return fields
