"""Makes the documents' tables of mixtures of experts on GPUs, from reports of ``measure_experts.sh``."""

import json
from pathlib import Path

from documents.latencies import (
    Report,
    commit_of,
    is_of_first_token,
    latency_row,
    lengths_of,
    measured_on,
    shape_of_model,
)
from documents.variants import markdown

MODELS = {
    "Qwen3MoeForCausalLM": "Qwen3-30B-A3B",
    "GptOssForCausalLM": "gpt-oss-20b",
    "MixtralForCausalLM": "Mixtral 8x7B",
}


def experts_table(path: Path) -> str:
    """The Markdown of one baseline file; floors count the experts that were read, if a report has their number."""
    reports = json.loads(path.read_text())
    of_latency = [report for report in reports if report["benchmark"] == "latency"]
    rows = [latency_row(MODELS, report, _read_by_steps(report)) for report in of_latency]
    rows += [_throughput_row(report) for report in reports if report["benchmark"] == "throughput"]
    first = of_latency[0]
    return (
        f"{measured_on(first)}; random weights and prompts. The floor of a token is the time to read the weights and "
        "the KV cache once. Of a layer's experts it includes those that a step has read, as the column says, or, where "
        "they were not counted, those that this many rows choose on average if all are equally likely "
        f"({first['terms']['memory_bandwidth']:,.0f} GB/s). With --qformat fp8_rowwise experts are in FP8, too, and "
        "their rows in 16 bits.\n\n"
        f"{markdown(['', 'measured', 'experts read', 'its floor', 'reached', 'commit'], rows)}\n\n"
        f"Measured by `trtllm-lite bench latency` ({lengths_of(first)}) and `bench throughput`; `bash "
        "scripts/measure_experts.sh OUT` runs both.\n"
    )


def _read_by_steps(report: Report) -> str:
    return "" if is_of_first_token(report) else _read(report)  # counts are of the steps after the first token


def _read(report: Report) -> str:
    """The experts of a layer that a decode step has read, and the imbalance of ranks, if they were counted."""
    figures = report["figures"]
    if "experts_read" not in figures:
        return "not counted"
    uneven = f", busiest rank {figures['rank_imbalance']:.2f}x" if "rank_imbalance" in figures else ""
    return f"{figures['experts_read']:.1f}{uneven}"


def _throughput_row(report: Report) -> list[str]:
    shape, cache = report["shape"], report["engine"]["kv_cache_dtype"]
    lengths = f"{shape['input_len']} in, {shape['output_len']} out, {shape['num_requests']} requests"
    rate = f"{report['figures']['output_tokens_per_s']:,.0f} tok/s"
    title = f"{shape_of_model(MODELS, report)}, {lengths}, {cache} KV cache"
    return [title, rate, _read(report), "", "", commit_of(report)]
