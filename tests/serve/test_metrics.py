"""The metrics of a real server agree with the answers that its clients got."""

import urllib.request

import openai
import pytest

from tests.unit.serve.served import samples

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def metrics_of(server):
    with urllib.request.urlopen(f"{server.address}/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=")
        return samples(response.read().decode())


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_counters_add_up(server, client):
    before = metrics_of(server)
    drawn = client.completions.create(
        model="smollm2", prompt="One two", n=3, max_tokens=5, extra_body={"ignore_eos": True}
    )
    prompts = client.completions.create(model="smollm2", prompt=["Three four", "Five"], max_tokens=4, temperature=0)
    asked = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 6, "temperature": 0}
    *_, chat = client.chat.completions.create(
        model="smollm2", **asked, stream=True, stream_options={"include_usage": True}, tools=[TOOL]
    )
    after = metrics_of(server)
    grown = {key: value - before.get(key, 0) for key, value in after.items()}
    usages = [drawn.usage, prompts.usage, chat.usage]
    choices = [*drawn.choices, *prompts.choices]
    assert grown["vllm:generation_tokens_total",] == sum(usage.completion_tokens for usage in usages)
    assert grown["vllm:request_generation_tokens_sum",] == grown["vllm:generation_tokens_total",]
    each = 3 * drawn.usage.prompt_tokens + prompts.usage.prompt_tokens + chat.usage.prompt_tokens
    assert grown["vllm:prompt_tokens_total",] == grown["vllm:request_prompt_tokens_sum",] == each
    assert sum(value for key, value in grown.items() if key[0] == "vllm:request_success_total") == 6
    assert grown["vllm:request_success_total", "length"] >= sum(choice.finish_reason == "length" for choice in choices)
    assert grown["vllm:request_params_n_sum",] == 3 + 1 + 1 + 1
    assert (
        grown["vllm:time_to_first_token_seconds_count",]
        == grown["vllm:e2e_request_latency_seconds_bucket", "+Inf"]
        == 6
    )
    most = grown["vllm:generation_tokens_total",] - 6  # steps whose tokens are delivered together have one gap
    assert 0 < grown["vllm:inter_token_latency_seconds_count",] <= most
    assert 0 <= grown["vllm:prefix_cache_hits_total",] <= grown["vllm:prefix_cache_queries_total",]
    assert grown["vllm:prefix_cache_queries_total",] > 0
    assert grown["vllm:iteration_tokens_total_count",] > 0
    assert sum(value for key, value in grown.items() if key[0] == "vllm:tool_call_parser_invocations_total") == 1
    assert grown["http_requests_total", "/v1/completions", "POST", "2xx"] == 2
    assert after["vllm:num_requests_running",] == after["vllm:num_requests_waiting",] == 0
