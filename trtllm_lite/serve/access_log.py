"""A line for each request."""

import time
from typing import TextIO

from trtllm_lite.printable import one_line
from trtllm_lite.serve.http.messages import Request

_LONGEST_PATH = 200


class AccessLog:
    """Writes when a request was answered: when, who, what, status, seconds, model, tokens of prompt and answer, id.

    ``file`` None writes nothing.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def write(self, request: Request, status: int) -> None:
        """Note a request that has been answered, or whose client went away (status 499)."""
        if self._file is None:
            return
        connection = request.connection
        fields = [
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            connection.client,
            f'"{request.method} {one_line(request.path[:_LONGEST_PATH])}"',
            str(status),
            f"{connection.seconds_since(request.received):.3f}s",
        ]
        if request.model:
            fields += [f"model={one_line(request.model)}"]
            fields += [
                f"prompt_tokens={request.num_prompt_tokens}",
                f"completion_tokens={request.num_generated_tokens}",
            ]
        fields.append(f"request_id={request.id}")
        self._file.write(" ".join(fields) + "\n")
        self._file.flush()
