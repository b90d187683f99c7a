"""Which requests a head's host, origin and key allow, and what one client may change for the others."""

import json
from pathlib import Path

import pytest

from tests.unit.serve.served import ask
from trtllm_lite.serve.api_keys import ApiKeys
from trtllm_lite.serve.http.messages import Request
from trtllm_lite.serve.origins import Origins, host_name, is_loopback

LOCAL = Origins(hosts=frozenset({"llm.example"}), takes_local_pages=True, refuses_others=True)
OPEN = Origins(origins=frozenset({"https://chat.example"}))


def answer(origins, method="GET", path="/v1/models", host="localhost:8000", **headers):
    """Status, body and headers of the response to a request."""

    async def talk(server):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(method, path, "", named, bytearray(), server.connection, 0.0, host=host)
        response = await server.send(request)
        return response.status, response.body, response.headers

    return ask(talk, origins=origins)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000", "::1", "a.localhost", "llm.example."],
)
def test_a_server_without_keys_answers_by_the_names_of_its_machine(host):
    assert answer(LOCAL, host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example",
        "[::2]:1",
        "10.0.0.1",
        "attacker:1:2",
    ],
)
def test_it_answers_by_no_other_name(host):
    status, body, _ = answer(LOCAL, host=host)
    assert (status, json.loads(body)["error"]["code"]) == (403, "host_not_allowed")
    assert answer(Origins(), host=host)[0] == 200


@pytest.mark.parametrize(
    ("origins", "origin", "status", "allowed"),
    [
        (LOCAL, "http://localhost:3000", 200, "http://localhost:3000"),
        (LOCAL, "http://[::1]:3000", 200, "http://[::1]:3000"),
        (LOCAL, "https://attacker.example", 403, None),
        (LOCAL, "https://localhost.attacker.example", 403, None),
        (LOCAL, "null", 403, None),
        (OPEN, "https://chat.example", 200, "https://chat.example"),
        (OPEN, "https://other.example", 200, None),
        (OPEN, "http://chat.example", 200, None),
        (OPEN, "http://localhost:3000", 200, None),
        (Origins(origins=frozenset({"*"}), refuses_others=True), "https://any.example", 200, "*"),
    ],
)
def test_pages_use_the_server_if_their_origin_may(origins, origin, status, allowed):
    found, _, headers = answer(origins, origin=origin)
    assert found == status
    assert headers.get("Access-Control-Allow-Origin") == allowed
    if allowed:
        assert "X-Request-Id" in headers["Access-Control-Expose-Headers"]
        assert headers["Vary"] == "Origin"
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "content-type,x-a"}
    found, _, headers = answer(origins, "OPTIONS", "/v1/chat/completions", origin=origin, **asked)
    assert found == (200 if allowed else 403)
    if allowed:
        assert headers["Access-Control-Allow-Headers"] == "content-type,x-a"
        assert headers["Access-Control-Allow-Methods"] == "POST"


def test_the_servers_own_pages_may_use_it():
    assert answer(LOCAL, host="llm.example:80", origin="https://llm.example:80")[0] == 200


def test_errors_of_keys_can_be_read_by_pages():
    async def talk(server):
        headers = {"origin": "https://chat.example"}
        response = await server.ask("POST", "/v1/completions", {}, headers)
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (401, "https://chat.example")
        preflight = await server.ask(
            "OPTIONS", "/v1/completions", None, {**headers, "access-control-request-method": "POST"}
        )
        assert preflight.status == 200

    ask(talk, origins=OPEN, api_keys=ApiKeys(["k"]))


def test_options_without_a_page_have_no_answer():
    assert answer(OPEN, "OPTIONS")[0] == 405


def test_names_of_hosts_are_read_without_ports():
    assert [host_name(host) for host in ("A.b:1", "[::1]", "::1", "1.2.3.4", "x.")] == [
        "a.b",
        "::1",
        "::1",
        "1.2.3.4",
        "x",
    ]
    assert not is_loopback("")


LOAD = "/v1/load_lora_adapter"


@pytest.mark.parametrize(
    ("key", "path", "status"),
    [
        ("user", "/v1/models", 200),
        ("user", LOAD, 403),
        ("admin", "/v1/models", 200),
        ("admin", LOAD, 400),
        ("nobody", LOAD, 401),
    ],
)
def test_an_adapter_takes_a_key_of_the_operator_if_there_is_one(key, path, status):
    async def talk(server):
        response = await server.ask("POST" if path == LOAD else "GET", path, {}, {"x-api-key": key})
        assert response.status == status

    ask(talk, api_keys=ApiKeys(["user"]), admin_keys=ApiKeys(["admin"]))


def test_operators_keys_are_wanted_where_no_others_are():
    async def talk(server):
        assert (await server.ask("GET", "/v1/models")).status == 200
        assert (await server.ask("POST", LOAD, {})).status == 401

    ask(talk, admin_keys=ApiKeys(["admin"]))


@pytest.mark.parametrize("root", [None, Path("/tmp")])
def test_requests_do_not_unload_the_operators_adapters(root):
    async def talk(server):
        server.model.add_adapter("ours", "/adapters/ours")
        response = await server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "ours"})
        assert (response.status, json.loads(response.body)["error"]["code"]) == (403, "not_allowed")
        assert "ours" in server.model.adapters

    ask(talk, lora_root=root)


@pytest.mark.parametrize("takes", [False, True])
def test_requests_have_priorities_where_the_operator_says_so(takes):
    async def talk(server):
        response = await server.complete([3], max_tokens=1, priority=5)
        assert response.status == (200 if takes else 400)
        if not takes:
            error = json.loads(response.body)["error"]
            assert error["param"] == "priority"
            assert "--scheduling_policy priority" in error["message"]
        assert (await server.complete([3], max_tokens=1, priority=0)).status == 200

    ask(talk, model={"takes_priorities": takes})


def test_a_conversation_is_no_longer_than_a_prompt_can_be():
    async def talk(server):
        for path, is_bounded in (("/v1/chat/completions", True), ("/v1/completions", False), ("/health", True)):
            method = "GET" if path == "/health" else "POST"
            request = Request(method, path, "", {}, bytearray(), server.connection, 0.0)
            assert server.app.check_head(request) is None
            assert (request.max_body_bytes is not None) == is_bounded
            if is_bounded:
                refused = server.app.too_large("9", request.max_body_bytes, request)
                assert refused.status == 413
                assert str(request.max_body_bytes) in refused.body.decode()

    ask(talk)
