"""Malicious bodies: each is answered, and the server continues."""

import pytest
import requests

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BASES = {
    CHAT: '"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1',
    COMPLETION: '"prompt": "Hello", "max_tokens": 1',
}
NUMBERS = ("1e400", "-1e400", "9" * 400, "-9223372036854775809", "18446744073709551616", "NaN", "Infinity", "-5")
FIELDS = ("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "priority", "timeout", "logprobs")
MESSAGES = (
    "{}",
    '{"role": 1}',
    '{"role": "user", "content": %s}' % ("[" * 900 + "]" * 900),
    '{"role": "user", "content": "\\ud800"}',
    '{"role": "user", "content": [{"type": "text", "text": "\\ud800"}]}',
    '{"role": "assistant", "tool_calls": [1]}',
    '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "%s"}}]}' % ("[" * 100_000),
    '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "%s"}}]}' % ("9" * 5000),
)
BODIES = (b"", b"[]", b"null", b"\xff\xfe", b'{"prompt": "\xed\xa0\x80"}', b"[" * 100_000, b'{"prompt": []}')
SCHEMAS = ("[]", '{"type": "x"}', '{"$ref": "http://x/y"}', '{"multipleOf": 0, "type": "number"}', '{"pattern": "("}')


@pytest.fixture(scope="module")
def send(server):
    """Send a body; there must be an answer, and not a server error."""
    with requests.Session() as session:

        def send(path, body, content_type="application/json"):
            body = body if isinstance(body, bytes) else body.encode()
            answer = session.post(f"{server.address}{path}", body, headers={"Content-Type": content_type}, timeout=20)
            assert answer.status_code < 500, (answer.text, body[:200])
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert error["message"]
                assert {"type", "param", "code"} <= error.keys()
            return answer

        yield send


@pytest.mark.parametrize("path", BASES)
def test_numbers_out_of_range(send, path):
    for field in FIELDS:
        for number in NUMBERS:
            send(path, f'{{{BASES[path]}, "{field}": {number}}}')
        assert send(path, f'{{{BASES[path]}, "{field}": 1e400}}').status_code == 400
    assert send(path, f'{{{BASES[path]}, "n": -5}}').json()["error"]["param"] == "n"


def test_messages_of_odd_forms(send):
    for message in MESSAGES:
        send(CHAT, f'{{"max_tokens": 1, "messages": [{message}]}}')


@pytest.mark.parametrize("path", BASES)
def test_bodies_that_are_no_requests(send, path):
    for body in BODIES:
        assert send(path, body).status_code == 400


@pytest.mark.parametrize("path", BASES)
def test_other_content_types(send, path):
    for content_type in ("", "text/plain", "multipart/form-data", "\xe9"):
        assert send(path, f"{{{BASES[path]}}}", content_type).status_code == 415
    assert send(path, f"{{{BASES[path]}}}", "Application/JSON; charset=utf-8").status_code == 200


def test_schemas_that_cannot_be_followed(send):
    for schema in SCHEMAS:
        form = f'"response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}'
        send(CHAT, f"{{{BASES[CHAT]}, {form}}}")


def test_a_method_that_a_path_does_not_have(server):
    answer = requests.delete(f"{server.address}/v1/models", timeout=20)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_names_in_paths_are_decoded(server):
    assert requests.get(f"{server.address}/v1/models/smollm%32", timeout=20).json()["id"] == "smollm2"
    assert requests.get(f"{server.address}/v1/models/%00%F0%28", timeout=20).status_code == 404
