"""The description of a server's routes."""

import gc
import re
import weakref
from typing import Any

import msgspec
import pytest

from tests.unit.serve.served import Asker, ask
from trtllm_lite.serve.app import Application
from trtllm_lite.serve.http.messages import TEXT, Request, Response
from trtllm_lite.serve.openapi import describe
from trtllm_lite.serve.page.docs import render_docs
from trtllm_lite.serve.route import Route
from trtllm_lite.serve.routes import ROUTES


class _Body(msgspec.Struct, kw_only=True):
    words: list[str]
    stream: bool = False


async def _endpoint(app: Application, request: Request) -> Response:
    """Do what is wanted.

    And say more.
    """
    raise NotImplementedError


def _operation(route: Route, *, path: str = "/a", has_keys: bool = False) -> dict[str, Any]:
    (item,) = describe({path: [route]}, has_keys=has_keys)["paths"].values()
    return item[route.method.lower()]


def test_a_route_says_all_that_is_described() -> None:
    found = describe({"/a": [Route("POST", _endpoint, _Body)]}, has_keys=False)
    operation = found["paths"]["/a"]["post"]
    assert (operation["summary"], operation["description"]) == ("Do what is wanted.", "And say more.")
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/_Body"}
    assert found["components"]["schemas"]["_Body"]["required"] == ["words"]
    assert operation["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}


def test_an_answer_of_another_type() -> None:
    operation = _operation(Route("GET", _endpoint, answer=TEXT))
    assert "requestBody" not in operation
    assert operation["responses"]["200"]["content"].keys() == {"text/plain"}


def test_a_prefix_has_a_parameter() -> None:
    found = describe({"/": [Route("GET", _endpoint)], "/a/": [Route("GET", _endpoint)]}, has_keys=False)["paths"]
    assert list(found) == ["/", "/a/{name}"]
    assert found["/a/{name}"]["parameters"][0]["name"] == "name"


def test_keys_are_asked_for_where_they_are() -> None:
    closed, opened = Route("GET", _endpoint), Route("GET", _endpoint, is_open=True)
    assert "security" not in _operation(closed)
    assert _operation(closed, has_keys=True)["security"] == [{"key": []}]
    assert _operation(opened, has_keys=True)["security"] == []


def test_the_page_shows_every_operation_and_its_fields() -> None:
    routes = {"/a<b>/": [Route("POST", _endpoint, _Body), Route("GET", _endpoint)]}
    page, headers = render_docs(describe(routes, has_keys=False))
    text = page.decode()
    for method in ("POST", "GET"):
        assert text.count(f"<code>{method} /a&lt;b&gt;/{{name}}</code></h2>") == 1
    assert "<code>words</code> (required)<td>array of string<td>" in text
    assert "<code>stream</code><td>boolean<td><code>false</code>" in text
    assert "<script" not in text
    assert "script-src" not in headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_a_server_that_has_described_itself_is_freed_at_its_end(path: str) -> None:
    async def talk(server: Asker) -> weakref.ref[Application]:
        assert (await server.ask("GET", path)).status == 200
        return weakref.ref(server.app)

    app = ask(talk)
    gc.collect()
    assert app() is None


def test_links_of_the_page_lead_somewhere() -> None:
    text = render_docs(describe(ROUTES, has_keys=True))[0].decode()
    links, names = re.findall(r'href="#([^"]+)"', text), re.findall(r'id="([^"]+)"', text)
    assert len(names) == len(set(names)) > 30
    assert set(links) <= set(names)
    assert re.search(r"<code>temperature</code><td>number or null, from 0 to \d+<td>", text)
    assert not re.findall(r'(?:href|src)="(?!#|\./|openapi\.json|data:)', text)  # nothing is loaded from a network


def test_the_page_of_all_routes_names_all_fields() -> None:
    text = render_docs(describe(ROUTES, has_keys=True))[0].decode()
    for found in ROUTES.values():
        for body in (route.body for route in found if route.body is not None):
            assert all(f"<code>{name}</code>" in text for name in (f.encode_name for f in msgspec.structs.fields(body)))
