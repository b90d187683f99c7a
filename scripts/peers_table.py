"""The README's table of this project beside others, from reports and the peers' figures in configs/baselines."""

import json
from typing import Any

from measured_tables import BASELINES
from variant_tables import markdown, variant

TITLES = ("", "trtllm_lite", "TensorRT-LLM", "vLLM 0.26", "llama.cpp")
NONE = "–"  # not measured
# Titles of rows, and those of the peers' figures: milliseconds, or tokens per second.
LATENCIES = {1: "time per token, batch 1", 256: "time per token, batch 256"}
PROMPT = 8192


def peers_table() -> str:
    """A row for each figure that some peer has, and what was measured on which machine."""
    gpu, cpu = _load("nvidia-h200"), _load("cpu-xeon-amx-2-cores")
    peers, server = _load("peers-nvidia-h200"), _load("server-nvidia-h200")
    served = _load("peers-server-nvidia-h200")["figures"]["1B, 256 streams"]
    rows = []
    for name, *form in (("bfloat16",), ("FP8", "fp8", "float8_e4m3fn")):
        key = "/".join(("figures", *form))
        reports = [report for report in gpu if _form(report) == tuple(form)]
        rows += [_latency(f"H200, 8B, {name}", reports, peers[key], batch) for batch in LATENCIES]
        rows.append(_throughput(f"H200, 8B, {name}", reports, peers[key]))
    http = server["1B"]["http"]["figures"]["output_tokens_per_s"]
    rows.append(["H200, 1B, HTTP server, 256 streams", f"**{http:,.0f}** tok/s", NONE, f"{served:,.0f} tok/s", NONE])
    rows += [_on_cpu(cpu, way) for way in ("prefill", "decode")]
    return markdown(TITLES, rows) + "\n"


def _load(name: str) -> Any:
    return json.loads((BASELINES / f"{name}.json").read_text())


def _form(report: dict[str, Any]) -> tuple[str, ...]:
    """How an 8B engine of the bare shape is quantized; other engines have no form that is asked for."""
    engine = report["engine"]
    if engine["hidden_size"] != 4096 or not engine["stripped"] or variant(report):
        return ("other",)
    form = (engine["qformat"], engine["kv_cache_dtype"])
    return () if form == ("full_prec", "bfloat16") else form


def _latency(title: str, reports: list[dict[str, Any]], peers: dict[str, float], batch: int) -> list[str]:
    (found,) = (
        report
        for report in reports
        if report["benchmark"] == "latency"
        and [report["shape"][name] for name in ("batch_size", "input_len", "output_len")] == [batch, 128, 129]
    )
    measured = found["figures"]["inter_token_latency_s"] * 1e3
    return [f"{title}, {LATENCIES[batch]}", f"**{measured:.2f}** ms", NONE, f"{peers[LATENCIES[batch]]:.2f} ms", NONE]


def _throughput(title: str, reports: list[dict[str, Any]], peers: dict[str, float]) -> list[str]:
    (found,) = (
        report
        for report in reports
        if report["benchmark"] == "throughput"
        and (report["shape"]["input_len"], report["shape"]["num_requests"]) == ("1000", 512)
        and report["shape"]["output_len"] == "1000"
    )
    measured, peer = found["figures"]["output_tokens_per_s"], peers["1000 in, 1000 out, 512 requests"]
    title += ", 512 requests of 1000 + 1000 tokens"
    return [title, f"**{measured:,.0f}** tok/s", NONE, f"{peer:,.0f} tok/s", NONE]


def _on_cpu(reports: list[dict[str, Any]], way: str) -> list[str]:
    """SmolLM2 from the same GGUF file."""
    (found,) = (
        report
        for report in reports
        if report["benchmark"] == "latency" and report["engine"].get("qformat", "").startswith("gguf")
    )
    measured, peer = found["figures"][f"{way}_tokens_per_s"], found["llama_cpp"][f"{way}_tokens_per_s"]
    return [f"2 CPU cores, 135M, Q4_1, {way}", f"**{measured:,.0f}** tok/s", NONE, NONE, f"{peer:,.0f} tok/s"]
