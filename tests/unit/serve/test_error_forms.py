"""Errors have the form of the API that was asked, wherever they come from."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.api_keys import ApiKeys
from trtllm_lite.serve.app import Application, Settings
from trtllm_lite.serve.http.messages import Request
from trtllm_lite.serve.routes import ROUTES
from trtllm_lite.serve.turns import Lanes

KEY = {"x-api-key": "k", "content-type": "application/json"}


def error(path: str, headers: dict[str, str], body: bytes = b"{}", *, is_draining: bool = False) -> dict[str, Any]:
    """The body of the error that a request gets."""
    with Lanes() as lanes:
        app = Application([], ROUTES, Settings(api_keys=ApiKeys(["k"]), access_log=AccessLog(None)), lanes)
        app.is_draining = is_draining
        connection: Any = SimpleNamespace(client="192.0.2.1", seconds_since=lambda _: 0.0)
        request = Request("POST", path, "", headers, bytearray(body), connection, 0.0)
        response = app.check_head(request) or asyncio.run(app.handle(request))
    assert response is not None
    content: dict[str, Any] = json.loads(response.body)
    return content


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropics_endpoints_have_anthropics_errors(path: str) -> None:
    for content, kind in (
        (error(path, {}), "authentication_error"),
        (error(path, {**KEY, "content-type": "text/plain"}), "invalid_request_error"),
        (error(path, KEY, b"{"), "invalid_request_error"),
    ):
        assert (content["type"], content["error"]["type"]) == ("error", kind)
        assert set(content["error"]) == {"type", "message"}
    assert error("/v1/messages", KEY, is_draining=True)["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/nothing"])
def test_others_have_openais(path: str) -> None:
    content = error(path, KEY, b"{")
    assert set(content) == {"error"}
    assert set(content["error"]) == {"message", "type", "param", "code"}
