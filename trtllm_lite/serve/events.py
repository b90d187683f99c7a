"""Writes server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from typing import Any

import msgspec

from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.http.messages import EventSink, Request

encode_json = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """An event with JSON as its data."""
    return b"data: " + encode_json(content) + b"\n\n"


def named_event(content: dict[str, Any]) -> bytes:
    """An event whose name is the ``type`` in its data."""
    return b"event: %b\n%b" % (content["type"].encode(), event(content))


class EventWriter:
    """Writes the events that answer a request.

    The response begins with the first event, so that errors before it have a status.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._stream: EventSink | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the client has received the response's head."""
        return self._stream is not None

    def write(self, events: bytes) -> None:
        """Send one or several events."""
        if self._stream is None:
            self._stream = self._request.connection.open_stream(self._request.answer_headers)
        self._stream.write(events)

    def fail(self, error: ApiError) -> None:
        """End a response that has begun with an error."""
        self.write(event({"error": error.content}) + DONE)
        self.end()

    def end(self) -> None:
        """End the response."""
        if self._stream is not None:
            self._stream.end()
