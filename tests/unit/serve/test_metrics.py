"""What /metrics exposes of a server over a fake session, whose timings are known."""

import asyncio
import math
import pickle
from collections import Counter
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.runtime.doubles import fake_session
from tests.unit.serve.served import ask
from trtllm_lite.serve.metrics.counted_parser import CountedParser
from trtllm_lite.serve.metrics.histogram import Histogram, count_bounds
from trtllm_lite.serve.metrics.replicas import labelled, text_of_all
from trtllm_lite.serve.metrics.server_metrics import ServerMetrics
from trtllm_lite.serve.parsers import Tool, make_parser
from trtllm_lite.serve.served_engine import ModelSettings
from trtllm_lite.serve.served_model import ServedModel

PROMPT = [3, 4, 5]


def test_ended_sequences_add_up():
    async def talk(server):
        assert (await server.complete(PROMPT, max_tokens=4, n=2)).status == 200
        assert (await server.complete([PROMPT, PROMPT, PROMPT], max_tokens=1)).status == 200
        return await server.samples()

    found = ask(talk)
    assert found["vllm:request_success_total", "length"] == 5
    assert found["trtllm_request_success_total", "length"] == 5
    assert found["vllm:request_success_total", "stop"] == 0
    assert found["vllm:prompt_tokens_total",] == found["trtllm_prompt_tokens_total",] == 5 * 3
    assert found["vllm:generation_tokens_total",] == found["trtllm_generation_tokens_total",] == 2 * 4 + 3
    assert found["vllm:request_prompt_tokens_bucket", "2.0"] == 0
    assert found["vllm:request_prompt_tokens_bucket", "5.0"] == 5
    assert found["vllm:request_generation_tokens_sum",] == 11
    assert found["vllm:request_params_max_tokens_sum",] == 11
    assert found["vllm:request_max_num_generation_tokens_sum",] == 11
    older = {"time_per_output_token_seconds_count": "inter_token_latency_seconds_count"}
    older["gpu_cache_usage_perc"] = "kv_cache_usage_perc"
    assert all(found[f"vllm:{old}",] == found[f"vllm:{new}",] for old, new in older.items())
    assert (found["vllm:request_params_n_count",], found["vllm:request_params_n_sum",]) == (4, 5)


def test_times_are_those_of_the_runtime():
    async def talk(server):
        await server.complete(PROMPT, max_tokens=3)
        await server.complete(PROMPT, max_tokens=1)
        return await server.samples()

    found = ask(talk)
    seconds = {
        "time_to_first_token_seconds": 0.5 + 0.5,
        "e2e_request_latency_seconds": 1.0 + 1.0,
        "request_queue_time_seconds": 0.25 + 0.25,
        "request_prefill_time_seconds": 0.25 + 0.25,
        "request_decode_time_seconds": 0.25 + 0.0,
        "request_inference_time_seconds": 0.5 + 0.25,
    }
    for name, expected in seconds.items():
        for prefix in ("vllm:", "trtllm_"):
            assert found[f"{prefix}{name}_sum",] == expected
            assert found[f"{prefix}{name}_count",] == found[f"{prefix}{name}_bucket", "+Inf"] == 2
    assert found["vllm:time_to_first_token_seconds_bucket", "0.25"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket", "0.5"] == 2
    assert found["vllm:request_time_per_output_token_seconds_count",] == 1, "an answer of one token has no such time"
    assert found["trtllm_time_per_output_token_seconds_sum",] == 0.125
    assert found["vllm:inter_token_latency_seconds_count",] == 2


def test_a_cancelled_request_counts_once():
    async def talk(server):
        server.loop.num_steps_allowed = 0
        task = asyncio.ensure_future(server.complete(PROMPT))
        while not server.loop.running:
            await asyncio.sleep(0)
        running = await server.samples()
        task.cancel()
        await asyncio.wait([task])
        while server.model.counts.reasons.total() == 0:
            await asyncio.sleep(0)
        return running, await server.samples()

    running, ended = ask(talk)
    assert running["vllm:num_requests_running",] == running["trtllm_num_requests_running",] == 1
    assert running["vllm:request_success_total", "abort"] == 0
    assert ended["vllm:num_requests_running",] == 0
    assert ended["vllm:request_success_total", "abort"] == 1
    assert ended["trtllm_request_success_total", "cancelled"] == 1
    assert ended["vllm:prompt_tokens_total",] == ended["vllm:time_to_first_token_seconds_count",] == 0
    assert ended["http_requests_total", "/v1/completions", "POST", "4xx"] == 1


def test_a_request_whose_answer_nobody_wants_any_more_counts_too():
    async def talk(server):
        server.loop.num_steps_allowed = 0
        submit = server.loop.submit
        task = asyncio.ensure_future(server.complete(PROMPT))

        def cancel_and_submit(*arguments, **options):
            server.model.loop.call_soon_threadsafe(task.cancel)
            return submit(*arguments, **options)

        server.loop.submit = cancel_and_submit
        await asyncio.wait([task])
        while server.model.counts.reasons.total() == 0:
            await asyncio.sleep(0)
        return await server.samples()

    assert ask(talk)["vllm:request_success_total", "abort"] == 1


def test_errors_are_no_success_in_tensorrt_llms_words():
    async def talk(server):
        server.loop.fail = "no memory"
        assert (await server.complete(PROMPT)).status == 500
        return await server.samples()

    found = ask(talk)
    assert found["vllm:request_success_total", "error"] == found["trtllm_request_error_total",] == 1
    assert sum(value for (name, *_), value in found.items() if name == "trtllm_request_success_total") == 0


def test_what_waits_and_what_is_refused():
    async def talk(server):
        server.loop.num_steps_allowed = 0
        tasks = [asyncio.ensure_future(server.complete(PROMPT, max_tokens=1)) for _ in range(5)]
        while len(server.loop.running) < 5:
            await asyncio.sleep(0)
        assert (await server.complete(PROMPT)).status == 429
        found = await server.samples()
        server.loop.num_steps_allowed = math.inf
        server.loop.step()
        await asyncio.wait(tasks)
        return found

    found = ask(talk, {"max_queue_size": 1})
    assert found["vllm:num_requests_running",] == 4
    assert found["vllm:num_requests_waiting",] == found["vllm:num_requests_waiting_by_reason", "capacity"] == 1
    assert found["vllm:admission_rejections_total", "queue_full"] == 1
    assert found["vllm:admission_rejections_total", "overloaded"] == 0
    assert found["http_requests_total", "/v1/completions", "POST", "4xx"] == 1


def test_requests_are_counted_by_known_routes_alone():
    async def talk(server):
        for path in ("/health", "/v1/models/tiny", "/v1/models/other", "/a", "/b"):
            await server.ask("GET", path)
        await server.ask("BREW", "/health")
        await server.ask("GET", "/prometheus/metrics")
        return await server.samples()

    found = ask(talk)
    counted = {key[1:]: value for key, value in found.items() if key[0] == "http_requests_total"}
    assert counted == {
        ("/health", "GET", "2xx"): 1,
        ("/health", "other", "4xx"): 1,
        ("/v1/models/", "GET", "2xx"): 1,
        ("/v1/models/", "GET", "4xx"): 1,
        ("none", "GET", "4xx"): 2,
        ("/prometheus/metrics", "GET", "2xx"): 1,
    }
    assert found["process_resident_memory_bytes",] > 0


def test_speculation_is_there_where_tokens_are_drafted():
    async def talk(server):
        without = await server.samples()
        server.loop.drafts = (3, [3, 2], [2, 1])
        return without, await server.samples()

    without, found = ask(talk)
    assert not [name for name, *_ in without if "spec_decode" in name]
    assert found["vllm:spec_decode_num_drafts_total",] == 3
    assert found["vllm:spec_decode_num_draft_tokens_total",] == 5
    assert found["vllm:spec_decode_num_accepted_tokens_total",] == 3
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", "0"] == 2
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total", "1"] == 1


def test_models_have_samples_of_their_own_and_adapters_are_named():
    async def talk(server):
        adapters = SimpleNamespace(in_use=lambda: (["a"], ["b", "c", "b"]), loaded=lambda: ("a",), max_loras=2)
        with_adapters = ServedModel(
            SimpleNamespace(session=fake_session(), tokenizer=None),
            ModelSettings(names=("large",), tool_parser="hermes"),
            server.model.loop,
        )
        with_adapters.session.adapters = adapters
        metrics = ServerMetrics([server.model, with_adapters])
        await server.complete(PROMPT, max_tokens=1)
        found = metrics.text().decode()
        with_adapters.session.close()
        return found

    lines = ask(talk).splitlines()
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 3.0' in lines
    assert 'vllm:prompt_tokens_total{engine="0",model_name="large"} 0.0' in lines
    assert 'vllm:num_requests_waiting{engine="0",model_name="large"} 3.0' in lines
    assert 'vllm:num_requests_waiting_by_reason{engine="0",model_name="large",reason="deferred"} 3.0' in lines
    assert [line.split("}")[0] for line in lines if line.startswith("vllm:lora_requests_info{")] == [
        'vllm:lora_requests_info{engine="0",max_lora="2",model_name="large",running_lora_adapters="a",'
        'waiting_lora_adapters="b,c"'
    ]
    parsers = [line for line in lines if line.startswith("vllm:tool_call_parser_invocations_total{")]
    assert len(parsers) == 2, "only a model with a parser has these metrics"


def test_a_parser_is_counted_by_what_it_found():
    outcomes = Counter()
    for text in ("Hello.", '<tool_call>{"name": "look", "arguments": {}}</tool_call>'):
        parser = CountedParser(make_parser(tool_parser="hermes", tools=[Tool("look")]), outcomes)
        parser.push(text)
        parser.finish()
    assert outcomes == {"tool_call": 1, "no_tool_call": 1}


def test_values_on_a_bound_are_below_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.sample() == ([("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)], 6.0)
    assert count_bounds(40) == (1.0, 2.0, 5.0, 10.0, 20.0)


def test_the_metrics_of_replicas_are_told_apart():
    async def talk(server):
        assert (await server.complete(PROMPT, max_tokens=4)).status == 200
        return pickle.loads(pickle.dumps([labelled(server.app.metrics, name) for name in ("a", "b")]))

    text = text_of_all(ask(talk)).decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    (tokens,) = [family for family in families if family.name == "vllm:generation_tokens"]
    assert [(sample.labels["replica"], sample.value) for sample in tokens.samples] == [("a", 4), ("b", 4)]


def test_routers_of_experts_are_shown_by_rank():
    async def talk(server):
        layer = {"choices": [5, 3, 0, 4], "experts_read": [4, 2], "steps": 3, "busiest_choices": 9}
        session = server.model.session
        session.executor = SimpleNamespace(expert_counts=lambda: [layer, layer])
        return await server.samples()

    found = ask(talk)
    assert found["trtllm_moe_routed_steps_total",] == 6
    assert (found["trtllm_moe_expert_choices_total", "0"], found["trtllm_moe_expert_choices_total", "1"]) == (16, 8)
    assert (found["trtllm_moe_experts_read_total", "0"], found["trtllm_moe_experts_read_total", "1"]) == (8, 4)
    assert found["trtllm_moe_busiest_rank_choices_total",] == 18
