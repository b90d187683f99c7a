"""Reports of made-up runs, as benchmarks write them."""

from typing import Any

from trtllm_lite.bench.figures import RequestRecord, priority_figures, serving_figures
from trtllm_lite.bench.timeline import timeline

HOSTILE = "<script>window.hacked = 1</script>\x1b[2J"


def _identity(benchmark: str, shape: dict[str, Any]) -> dict[str, Any]:
    return {
        "commit": "0123456789abcdef",
        "date": "2026-01-01T00:00:00Z",
        "versions": {"numpy": "2.1"},
        "machine": {"cpu": HOSTILE, "cores": 2, "system": "Linux"},
        "benchmark": benchmark,
        "engine": {"architecture": "LlamaForCausalLM", "qformat": HOSTILE, "limits": {"max_batch_size": 8}},
        "shape": shape,
        "runtime": {},
        "terms": {},
    }


def latency_report(batch: int, prompt: int, slower: float = 1.0) -> dict[str, Any]:
    """A report of ``bench latency`` whose times are twice the floors, multiplied by ``slower``."""
    first, step = 1e-3 * batch * prompt * slower, 4e-3 * slower
    figures = {
        "time_to_first_token_s": first,
        "inter_token_latency_s": step,
        "prefill_tokens_per_s": batch * prompt / first,
        "decode_tokens_per_s": batch / step,
        "weight_bytes_per_step": 10**8,
        "kv_bytes_per_step": 1000 * batch * prompt,
        "step_operations": 4e8 * batch,
        "prompts_operations": 4e8 * batch * prompt,
        "prompts_weight_bytes": 10**8,
        "peak_operations_per_s": 2e12,
        "read_bandwidth_bytes_per_s": 5e10,
        "floor_inter_token_latency_s": step / 2 / slower,
        "floor_time_to_first_token_s": first / 2 / slower,
    }
    shape = {"batch_size": batch, "input_len": prompt, "output_len": 9}
    peer = {"prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 50.0}
    return {**_identity("latency", shape), "figures": figures, "baseline": peer, "llama_cpp": None}


def serving_report(slower: float = 1.0) -> dict[str, Any]:
    """A report of ``bench serve-sim``."""
    records = [
        RequestRecord(0.1 * row, 0.1 * row, [0.1 * row + slower * 0.05 * (token + 1) for token in range(5)], 7, row % 2)
        for row in range(20)
    ]
    figures = serving_figures(records, 4.0) | {"ceiling_output_tokens_per_s": 200.0, "preemptions": 0}
    return {
        **_identity("serve-sim", {"num_requests": 20, "arrival": "poisson"}),
        "figures": figures,
        "by_priority": priority_figures(records),
        "timeline": timeline(records),
    }
