"""The server's OpenAPI description, and requests of all kinds that schemathesis makes from it."""

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi import checks as openapi_checks

from tests.models import save_tiny_model
from tests.rounds import all_run, rounds
from tests.serve.distinct_cases import DistinctCases
from tests.serve.server import serving
from trtllm_lite.serve.openapi import describe
from trtllm_lite.serve.routes import ROUTES

CHECKS = (
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.unsupported_method,
    openapi_checks.allow_header_conformance,
)
MODEL = "tiny"
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
MESSAGES = [{"role": "system", "content": "Hello"}]  # without it the template inserts a longer system message
INPUTS = {"prompt": "Hello", "input": "Hello", "messages": MESSAGES}
BODIES = {path: route.body for path, found in ROUTES.items() for route in found if route.is_work and route.body}

schema = schemathesis.openapi.from_dict(describe(ROUTES, has_keys=False))
distinct = DistinctCases(schema.raw_schema)


@schema.hook
def filter_case(context, case):
    return all_run() or distinct.is_new(context, case)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a tiny model, because each of thousands of requests takes a step."""
    directory = tmp_path_factory.mktemp("schemathesis")
    save_tiny_model("llama", directory / "model", max_position_embeddings=1024)
    options = ("--max_batch_size", 8, "--max_seq_len", 1024, "--max_input_len", 512, "--gather_context_logits")
    with serving(f"{MODEL}={directory / 'model'}", "--tool_call_parser", "hermes", *options) as running:
        yield running


@pytest.fixture(scope="module")
def client():
    with requests.Session() as session:
        yield session


def test_the_description_is_one(server, client):
    found = client.get(f"{server.address}/openapi.json")
    assert found.json() == describe(ROUTES, has_keys=False)
    schema.validate()


@schema.parametrize()
@settings(
    max_examples=rounds(10),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_requests_of_all_kinds_are_answered_as_described(case, server, client):
    case.body = _workable(case.path, case.body)
    response = case.call(base_url=server.address, session=client, timeout=20)
    case.validate_response(response, checks=CHECKS)


def _workable(path, body):
    """The same body with few tokens to generate, an input, and mostly the name of the existing model."""
    if path not in BODIES or not isinstance(body, dict):
        return body
    names = {field.name for field in msgspec.structs.fields(BODIES[path])}.intersection(LIMITS)
    limits = {name: 1 for name in names if isinstance(body.get(name, 0), int | None)}
    inputs = {name: value for name, value in INPUTS.items() if body.get(name) in ("", [], [{}])}
    model = {"model": MODEL} if isinstance(body.get("model"), str) else {}
    return {**body, **limits, **inputs, **model}
