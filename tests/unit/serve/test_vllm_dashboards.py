"""Panels of vLLM's dashboards for Grafana find what they ask for.

The names are those in queries of the files of https://github.com/vllm-project/vllm/tree/main/examples/observability:
prometheus_grafana/grafana.json at commit 4b5c627c, and of dashboards/grafana performance_statistics.json at 5961e8d3,
query_statistics.json at 030ea52e, vllm_overview.json and vllm_instances.json at 0b9faa41, vllm_kv_cache.json at
5836216b, vllm_service_status.json at 712d7547, and vllm_speculative_decoding.json at 8aed4e52.
"""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.serve.served import ask

REFERENCE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
LATENCIES = [f"vllm:{name}_seconds" for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency")]
PHASES = [f"vllm:request_{name}_time_seconds" for name in ("queue", "prefill", "decode")]
TOKENS = [f"vllm:request_{name}_tokens" for name in ("prompt", "generation")]
HISTOGRAMS = [*LATENCIES, *PHASES, *TOKENS, "vllm:request_time_per_output_token_seconds"]
SUMS = ["vllm:iteration_tokens_total", "vllm:request_max_num_generation_tokens", "http_request_duration_seconds"]
SUMS += ["vllm:request_prefill_kv_computed_tokens"]
SPECULATION = [f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")]
SAMPLES = [
    *(f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")),
    *(f"{name}_{part}" for name in SUMS for part in ("sum", "count")),
    *(f"vllm:{name}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")),
    *(f"vllm:{name}_total" for name in ("prompt_tokens", "generation_tokens", "prompt_tokens_cached")),
    *(f"vllm:prefix_cache_{name}_total" for name in ("hits", "queries")),
    *("vllm:num_preemptions_total", "vllm:cache_config_info", *SPECULATION),
    *(f"process_{name}" for name in ("start_time_seconds", "cpu_seconds_total", "open_fds", "max_fds")),
    "process_resident_memory_bytes",
]
LABELLED = [
    ("vllm:request_success_total", "finished_reason", "error"),
    ("vllm:num_requests_waiting_by_reason", "reason", "capacity"),
    ("vllm:prompt_tokens_by_source_total", "source", "local_compute"),
    ("vllm:prompt_tokens_by_source_total", "source", "local_cache_hit"),
    ("vllm:prompt_tokens_by_source_total", "source", "external_kv_transfer"),
    ("vllm:prompt_tokens_cached_by_source_total", "source", "device"),
    ("vllm:engine_sleep_state", "sleep_state", "awake"),
    ("vllm:engine_sleep_state", "sleep_state", "discard_all"),
    ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", "0"),
    ("http_requests_total", "status", "2xx"),
    ("http_requests_total", "handler", "/health"),
    ("http_request_duration_seconds_sum", "handler", "/health"),
    # Each limit for a good latency that these dashboards offer is a bound of a bucket.
    *(
        ("vllm:time_to_first_token_seconds_bucket", "le", f"{most}")
        for most in (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
    ),
    *(
        ("vllm:request_time_per_output_token_seconds_bucket", "le", f"{most}")
        for most in (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)
    ),
]
LEFT_OUT = [
    *("vllm:external_prefix_cache_hits_total", "vllm:mm_cache_queries_total", "vllm:kv_block_lifetime_seconds_bucket"),
    *("vllm:kv_block_idle_before_evict_seconds_sum", "vllm:kv_block_reuse_gap_seconds_count"),
    *("vllm:num_requests_kv_fetch_by_stage", "vllm:nixl_xfer_time_seconds_sum", "vllm:kv_offload_load_bytes_total"),
    *("vllm:simple_kv_offload_used_blocks", "vllm:sleep_mode_operation_duration_seconds_sum"),
    *("vllm:rl_weight_update_operation_duration_seconds_count", "vllm:estimated_flops_per_gpu_total"),
]


@pytest.fixture(scope="module")
def samples():
    async def talk(server):
        server.loop.drafts = (1, [1], [1])
        await server.ask("GET", "/health")
        await server.complete([3, 4], max_tokens=3)
        return (await server.ask("GET", "/metrics")).body.decode()

    return [sample for family in text_string_to_metric_families(ask(talk)) for sample in family.samples]


@pytest.mark.parametrize("name", SAMPLES)
def test_names_of_queries_are_there(samples, name):
    found = [sample.labels for sample in samples if sample.name == name]
    assert found
    if name.startswith("vllm:"):
        assert all({"model_name", "engine"} <= labels.keys() for labels in found)


@pytest.mark.parametrize(("name", "label", "value"), LABELLED)
def test_values_of_labels_of_queries_are_there(samples, name, label, value):
    assert any(sample.labels[label] == value for sample in samples if sample.name == name)


def test_engines_are_awake_and_prompts_have_their_sources(samples):
    values = {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples}
    assert values["vllm:engine_sleep_state", "0", "awake", "tiny"] == 1
    assert values["vllm:prompt_tokens_by_source_total", "0", "local_compute", "tiny"] == 2
    assert values["vllm:request_prefill_kv_computed_tokens_sum", "0", "tiny"] == 2
    assert values["http_request_duration_seconds_sum", "/v1/completions", "POST"] == 2.0  # as the connection reports


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_documented(samples, name):
    assert not [sample for sample in samples if sample.name == name]
    patterns = re.findall(r"`([a-z_]+\*?\w*)`", REFERENCE[REFERENCE.index("these are left out") :])
    assert any(re.match(pattern.replace("*", ".*"), name.removeprefix("vllm:")) for pattern in patterns)
