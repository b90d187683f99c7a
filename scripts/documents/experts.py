"""Makes the documents' tables of mixtures of experts on GPUs, from reports of ``measure_experts.sh``."""

import json
from pathlib import Path
from typing import Any

from documents.variants import markdown

Report = dict[str, Any]
MODELS = {
    "Qwen3MoeForCausalLM": "Qwen3-30B-A3B",
    "GptOssForCausalLM": "gpt-oss-20b",
    "MixtralForCausalLM": "Mixtral 8x7B",
}
LEAST_OUTPUT_LEN = 16  # reports with fewer tokens measure the time to the first token


def experts_table(path: Path) -> str:
    """The Markdown of one baseline file; floors count the experts that were read, if a report has their number."""
    reports = json.loads(path.read_text())
    of_latency = [report for report in reports if report["benchmark"] == "latency"]
    rows = [_latency_row(report) for report in of_latency]
    rows += [_throughput_row(report) for report in reports if report["benchmark"] == "throughput"]
    first = of_latency[0]
    lengths = f"{first['shape']['input_len']} tokens in, {first['shape']['output_len']} out"
    return (
        f"{first['machine']['gpu']}, driver {first['versions']['driver']}, {first['date'][:10]}; random weights and "
        "prompts. The floor of a token is the time to read the weights and the KV cache once. Of a layer's "
        "experts it includes those that a step has read, as the column says, or, where they were not counted, those "
        "that this many rows choose on average if all are equally likely "
        f"({first['terms']['memory_bandwidth']:,.0f} GB/s). With --qformat fp8_rowwise experts are in FP8, too, and "
        "their rows in 16 bits.\n\n"
        f"{markdown(['', 'measured', 'experts read', 'its floor', 'reached', 'commit'], rows)}\n\n"
        f"Measured by `trtllm-lite bench latency` ({lengths}) and `bench throughput`; `bash scripts/measure_experts.sh "
        "OUT` runs both.\n"
    )


def _model(report: Report) -> str:
    engine = report["engine"]
    weights = engine["dtype"] if engine["qformat"] == "full_prec" else engine["qformat"]
    return f"{MODELS[engine['architecture']]} shape, {weights}"


def _latency_row(report: Report) -> list[str]:
    figures, shape = report["figures"], report["shape"]
    if shape["output_len"] < LEAST_OUTPUT_LEN:
        time, floor = figures["time_to_first_token_s"], figures["floor_time_to_first_token_s"]
        title = f"{_model(report)}, first token, prompt of {shape['input_len']:,}"
        read = ""  # the counts are of the steps after the first token
    else:
        time, floor = figures["inter_token_latency_s"], figures["floor_inter_token_latency_s"]
        title, read = f"{_model(report)}, time per token, batch {shape['batch_size']}", _read(figures)
    return [title, f"{time * 1e3:.2f} ms", read, f"{floor * 1e3:.2f} ms", f"{floor / time:.0%}", _commit(report)]


def _commit(report: Report) -> str:
    return str(report["commit"])[:10]


def _read(figures: dict[str, float]) -> str:
    """The experts of a layer that a decode step has read, and the imbalance of ranks, if they were counted."""
    if "experts_read" not in figures:
        return "not counted"
    uneven = f", busiest rank {figures['rank_imbalance']:.2f}x" if "rank_imbalance" in figures else ""
    return f"{figures['experts_read']:.1f}{uneven}"


def _throughput_row(report: Report) -> list[str]:
    shape, cache = report["shape"], report["engine"]["kv_cache_dtype"]
    title = f"{_model(report)}, {shape['input_len']} in, {shape['output_len']} out, {shape['num_requests']} requests"
    rate = f"{report['figures']['output_tokens_per_s']:,.0f} tok/s"
    return [f"{title}, {cache} KV cache", rate, _read(report["figures"]), "", "", _commit(report)]
