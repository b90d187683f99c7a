"""A full server refuses requests, one with keys requires them, and one that shuts down lets its streams end first."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.real_models import find_smollm2
from tests.serve.server import serving

LIMITS = ("--dtype", "bfloat16", "--max_batch_size", 1, "--max_seq_len", 1024, "--max_input_len", 512)
ASKED = {"model": "smollm2", "prompt": "Water boils at", "extra_body": {"ignore_eos": True}}
KEY = "sk-one"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A server that takes one sequence at a time, small bodies, and two keys."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# of the tests\n{KEY}\n\nsk-two\n")
    more = ("--max_queue_size", 0, "--max_body_size", 1000, "--api_key_file", keys)
    with serving(f"smollm2={find_smollm2()}", *LIMITS, *more) as running:
        yield running


def client_of(server, key=KEY):
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key=key, max_retries=0)


def test_a_full_server_says_when_to_come_again(small):
    client = client_of(small)
    with client.completions.create(**ASKED, max_tokens=900, stream=True) as running:
        next(iter(running))
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**ASKED, max_tokens=1)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["Retry-After"]) >= 1
    small.wait_until_idle(authorization=f"Bearer {KEY}")
    assert client.completions.create(**ASKED, max_tokens=1).usage.completion_tokens == 1


def test_a_body_beyond_the_limit_is_measured(small):
    with pytest.raises(openai.APIStatusError, match=r"bytes, which exceeds the 1000 of max_body_size") as caught:
        client_of(small).completions.create(**{**ASKED, "prompt": "a" * 1000})
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer sk-three"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"x-api-key": "sk-on"}, 401),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": "bearer sk-two"}, 200),
        ({"x-api-key": KEY}, 200),
    ],
)
def test_a_key_opens_what_is_not_open(small, headers, status):
    answers = {path: httpx.get(f"{small.address}{path}", headers=headers) for path in ("/v1/models", "/load")}
    assert {answer.status_code for answer in answers.values()} == {status}
    if status == 401:
        assert answers["/load"].headers["WWW-Authenticate"] == "Bearer"
    for path in ("/health", "/ready", "/version"):
        assert httpx.get(f"{small.address}{path}", headers=headers).status_code == 200


def test_a_wrong_key_is_an_error_of_authentication(small):
    with pytest.raises(openai.AuthenticationError) as caught:
        client_of(small, "sk-three").completions.create(**ASKED)
    assert caught.value.code == "invalid_api_key"


def test_a_server_that_ends_lets_its_streams_end():
    with serving(f"smollm2={find_smollm2()}", *LIMITS) as server:
        client = client_of(server)
        with_usage = {"stream": True, "stream_options": {"include_usage": True}}
        running = client.completions.create(**ASKED, max_tokens=100, **with_usage)
        chunks = [next(running)]
        assert httpx.get(f"{server.address}/ready").status_code == 200
        server.signal()
        while httpx.get(f"{server.address}/ready").status_code == 200:
            chunks.append(next(running))
        assert httpx.get(f"{server.address}/health").status_code == 200
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(**ASKED, max_tokens=1)
        assert (caught.value.status_code, caught.value.code) == (503, "draining")
        chunks += running
        code, log = server.wait()
    assert chunks[-1].usage.completion_tokens == 100
    assert chunks[-2].choices[0].finish_reason == "length"
    assert code == 0
    assert "ending: 1 requests may run for 30 s more" in log
    assert "cut off" not in log


def test_a_server_that_may_not_wait_ends_its_answers_with_errors():
    with serving(f"smollm2={find_smollm2()}", *LIMITS, "--drain_timeout", 0.1) as server, ThreadPoolExecutor(1) as pool:
        client = client_of(server)
        running = client.completions.create(**ASKED, max_tokens=1000, stream=True)
        next(running)
        whole = pool.submit(client.completions.create, **ASKED, max_tokens=1000)
        while httpx.get(f"{server.address}/load").json()["server_load"] < 2:
            next(running)
        server.signal()
        with pytest.raises(openai.APIError, match="shut down before the answer was whole"):
            list(running)
        with pytest.raises(openai.InternalServerError) as caught:
            whole.result()
        code, log = server.wait()
    assert (caught.value.status_code, caught.value.code) == (503, "draining")
    assert code == 0
    assert "ending: 2 requests are cut off" in log
    assert "Traceback" not in log
