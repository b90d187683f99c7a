"""Reports errors to clients: in the form of OpenAI's API, or of another API (ErrorBody)."""

import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from trtllm_lite.errors import ArgumentError, EngineError, LimitError, OverloadedError, TrtllmLiteError
from trtllm_lite.serve.http.messages import Response

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_WORD = re.compile(r"[A-Za-z_]\w*")
_FIRST_WORDS = 3
_TOO_LONG = re.compile(r"exceeds max_(input|seq)_len")
_WORDS_OF_OPENAI = " (this model's maximum context length is exceeded)"  # words by which LiteLLM recognises the error


class ApiError(Exception):
    """A request that gets an error instead of an answer.

    ``param`` is the field of the request that is at fault, ``code`` a word for programs; ``headers`` are added to the
    response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.headers = dict(headers or {})

    @property
    def content(self) -> dict[str, Any]:
        """The value of ``error`` in the body, or in an event."""
        return {"message": self.message, "type": _TYPES[self.status], "param": self.param, "code": self.code}

    def response(self, body: "ErrorBody") -> Response:
        """The response to a request that fails before it is answered."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(self.status, msgspec.json.encode(body(self)), headers=headers)


ErrorBody = Callable[[ApiError], dict[str, Any]]
"""Makes the body of a response from an error."""


def openai_error(error: ApiError) -> dict[str, Any]:
    """The body of an error in OpenAI's API."""
    return {"error": error.content}


def api_error(error: Exception, fields: Collection[str] = ()) -> ApiError:
    """The error that a client gets for ``error``; ``param`` is the first of ``fields`` near its message's start."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OverloadedError):
        return ApiError(429, str(error), code="overloaded", retry_after=1)
    if isinstance(error, LimitError):
        message, code = str(error), "limit_exceeded"
        if _TOO_LONG.search(message):
            message, code = message + _WORDS_OF_OPENAI, "context_length_exceeded"
        return ApiError(400, message, param=_field(error, fields), code=code)
    if isinstance(error, ArgumentError):
        return ApiError(400, str(error), param=_field(error, fields), code="invalid_value")
    if isinstance(error, EngineError):
        return ApiError(500, str(error), code="engine_error")
    if isinstance(error, TrtllmLiteError):
        return ApiError(500, str(error), code="server_error")
    traceback.print_exception(error, file=sys.stderr)
    return ApiError(500, "the server failed on this request: its log says why", code="internal_error")


def _field(error: Exception, fields: Collection[str]) -> str | None:
    """The first of the message's words that is a field of the request."""
    words = _WORD.findall(str(error))[:_FIRST_WORDS]
    return next((word for word in words if word in fields), None)
