"""Declares every figure of reports: its name for people, its unit, and which direction is better."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trtllm_lite.common.units import format_bytes
from trtllm_lite.common.vocabulary import MAX_DRAFT_LEN

# Parts of a distribution that a comparison judges. The 99th percentile is left out: in a short run it is a single
# request.
JUDGED = ("p50", "p95")


class Better(Enum):
    """The direction in which a figure should go."""

    LOWER = "lower"
    HIGHER = "higher"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.2f}"


def _rate(unit: str) -> Callable[[float], str]:
    return lambda value: f"{_number(value)} {unit}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _gigabytes_per_s(value: float) -> str:
    return f"{value / 1e9:,.1f} GB/s"


def _operations(value: float) -> str:
    return f"{value / 1e9:,.2f} GFLOP"


def _price(value: float) -> str:
    return f"{value:.4g}"


@dataclass(frozen=True)
class Metric:
    """A figure; ``better`` is None for figures that describe a run and not its quality."""

    title: str
    text: Callable[[float], str]
    better: Better | None = None


METRICS: Mapping[str, Metric] = {
    # figures of serving
    "failed_requests": Metric("failed requests", _number, Better.LOWER),
    "time_to_first_token_s": Metric("time to first token", _seconds, Better.LOWER),
    "time_per_output_token_s": Metric("time per output token", _seconds, Better.LOWER),
    "inter_token_latency_s": Metric("inter-token latency", _seconds, Better.LOWER),
    "end_to_end_latency_s": Metric("end-to-end latency", _seconds, Better.LOWER),
    "queue_s": Metric("  of it queued", _seconds),
    "held_back_s": Metric("held back unsent", _seconds),
    "output_tokens_per_s": Metric("output tokens", _rate("tok/s"), Better.HIGHER),
    "total_tokens_per_s": Metric("output and prompt tokens", _rate("tok/s"), Better.HIGHER),
    "requests_per_s": Metric("requests", _rate("/s"), Better.HIGHER),
    "goodput_requests_per_s": Metric("requests that met the objectives", _rate("/s"), Better.HIGHER),
    "goodput_share": Metric("share that met the objectives", _share, Better.HIGHER),
    "cost_per_million_output_tokens": Metric("price of a million output tokens", _price, Better.LOWER),
    "cost_per_million_total_tokens": Metric("price of a million tokens, prompts too", _price, Better.LOWER),
    "seconds": Metric("total time", _seconds),
    "prompt_tokens": Metric("prompt tokens", _number),
    "output_tokens": Metric("output tokens", _number),
    "output_tokens_per_chunk": Metric("output tokens per chunk", _number),
    "client_cpu_share": Metric("CPU of the busiest client process", _share),
    "cached_prompt_share": Metric("prompt tokens found in the cache", _share),
    "preemptions": Metric("preemptions", _number),
    "kv_use_mean": Metric("KV cache in use, mean", _share),
    "kv_use_peak": Metric("KV cache in use, peak", _share),
    "steps": Metric("steps", _number),
    "output_tokens_per_step": Metric("output tokens per step", _number),
    **{
        f"acceptance_{place}": Metric(f"draft tokens accepted in place {place}", _share)
        for place in range(1, MAX_DRAFT_LEN + 1)
    },
    "mean_acceptance_length": Metric("mean acceptance length: tokens of a row with draft tokens", _number),
    "host_s_per_step": Metric("host time per step", _seconds),
    "host_s_per_decode_step": Metric("host time per step that only decodes", _seconds),
    # figures of mixtures of experts, means over steps and layers
    "experts_read": Metric("experts read", _number),
    "rank_rows": Metric("rows of a rank's experts", _number),
    "busiest_rank_rows": Metric("rows of the busiest rank's experts", _number),
    "rank_imbalance": Metric("busiest rank over the mean", _number),
    # figures of the latency of one batch
    "prefill_tokens_per_s": Metric("prefill", _rate("tok/s"), Better.HIGHER),
    "decode_tokens_per_s": Metric("decode", _rate("tok/s"), Better.HIGHER),
    "floor_inter_token_latency_s": Metric("floor of a token", _seconds),
    "fraction_of_floor": Metric("fraction of that floor reached", _share),
    "floor_time_to_first_token_s": Metric("floor of the first token", _seconds),
    "fraction_of_first_token_floor": Metric("fraction of that floor reached", _share),
    "ceiling_output_tokens_per_s": Metric("ceiling of output tokens", _rate("tok/s")),
    "fraction_of_ceiling": Metric("fraction of the ceiling reached", _share),
    "read_bandwidth_bytes_per_s": Metric("memory read bandwidth", _gigabytes_per_s),
    "weight_bytes_per_step": Metric("weights read per step", format_bytes),
    "kv_bytes_per_step": Metric("KV cache read per step", format_bytes),
    "step_operations": Metric("operations of a step", _operations),
    "prompts_operations": Metric("operations of the prompts", _operations),
    "prompts_weight_bytes": Metric("weights read for the prompts", format_bytes),
    "peak_operations_per_s": Metric("peak of operations", lambda value: f"{value / 1e12:,.1f} TFLOPS"),
    "load_s": Metric("load", _seconds, Better.LOWER),
    "start_up_s": Metric("load and first token", _seconds, Better.LOWER),
    "floor_start_up_s": Metric("copying the weights at full speed", _seconds),
    "fraction_of_start_up_floor": Metric("fraction of that floor reached", _share),
    "weight_bytes": Metric("weights", format_bytes),
    "kv_cache_bytes": Metric("KV cache", format_bytes),
    "workspace_bytes": Metric("workspace", format_bytes),
    "peak_memory_bytes": Metric("peak memory of the process", format_bytes),
    "memory_overhead_bytes": Metric("  beyond weights and KV cache", format_bytes, Better.LOWER),
}


def flatten(figures: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Name, part (such as ``p95``; empty for a plain figure) and value of every number in ``figures``."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            for part, number in value.items():
                yield name, part, number
        else:
            yield name, "", value


def judged_direction(name: str, part: str) -> Better | None:
    """The direction in which a number should go, or None if it is not judged. KeyError for undeclared figures."""
    return METRICS[name].better if not part or part in JUDGED else None
