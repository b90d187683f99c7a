"""Makes the README's table of this project beside others, from reports and the peers' figures in configs/baselines."""

import json
from collections.abc import Sequence
from typing import Any

from documents.measured import BASELINES
from documents.variants import markdown, variant

TITLES = ("", "trtllm_lite", "TensorRT-LLM 1.0, published", "vLLM 0.26", "llama.cpp")
NONE = "–"  # not measured
# Titles of rows, with the peers' titles: milliseconds, or tokens per second.
LATENCIES = {1: "time per token, batch 1", 256: "time per token, batch 256"}
# Tokens of a prompt and of its answer, and the number of requests that were queued at once.
LOADS = ((128, 128, 2048), (128, 2048, 512), (1000, 1000, 512), (2048, 128, 512))


def peers_table() -> str:
    """A row for each figure that some peer has, with the machine of the measurement; the best of a row is bold."""
    gpu, cpu = _load("nvidia-h200"), _load("cpu-xeon-amx-2-cores")
    peers, server = _load("peers-nvidia-h200"), _load("server-nvidia-h200")
    served = _load("peers-server-nvidia-h200")["figures"]["1B, 256 streams"]
    rows = []
    for name, *form in (("bfloat16",), ("FP8", "fp8", "float8_e4m3fn")):
        key = "/".join(("figures", *form))
        reports = [report for report in gpu if _form(report) == tuple(form)]
        rows += [_latency(f"H200, 8B, {name}", reports, peers[key], batch) for batch in LATENCIES]
        published = peers.get("/".join(("published", *form)), {})
        rows += [_throughput(f"H200, 8B, {name}", reports, peers[key], published, load) for load in LOADS]
    http = server["1B"]["http"]["figures"]["output_tokens_per_s"]
    rows.append(_rates("H200, 1B, HTTP server, 256 streams", http, None, served, None))
    rows += [_on_cpu(report, way) for report in cpu if _is_gguf(report) for way in ("prefill", "decode")]
    return markdown(TITLES, rows) + "\n"


def _load(name: str) -> Any:
    return json.loads((BASELINES / f"{name}.json").read_text())


def _rates(title: str, *figures: float | None) -> list[str]:
    """A row of tokens per second, of which the highest is the best; None stands for an engine that was not measured."""
    texts = [None if x is None else f"{x:,.{1 if x < 10 else 0}f} tok/s" for x in figures]
    return _row(title, texts, figures.index(_most(figures)))


def _most(figures: Sequence[float | None]) -> float:
    return max(x for x in figures if x is not None)


def _row(title: str, texts: Sequence[str | None], best: int) -> list[str]:
    return [title, *(NONE if x is None else f"**{x}**" if place == best else x for place, x in enumerate(texts))]


def _form(report: dict[str, Any]) -> tuple[str, ...]:
    """The quantization of an 8B engine without variants, () if it has none; ("other",) for other engines."""
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
    measured, peer = found["figures"]["inter_token_latency_s"] * 1e3, peers[LATENCIES[batch]]
    best = 0 if measured <= peer else 2
    return _row(f"{title}, {LATENCIES[batch]}", [f"{measured:.2f} ms", None, f"{peer:.2f} ms", None], best)


def _throughput(
    title: str,
    reports: list[dict[str, Any]],
    peers: dict[str, float],
    published: dict[str, float],
    load: tuple[int, int, int],
) -> list[str]:
    """The row of one load; published figures are for another number of requests."""
    (found,) = (
        report
        for report in reports
        if report["benchmark"] == "throughput"
        and [report["shape"][name] for name in ("input_len", "output_len", "num_requests")]
        == [str(load[0]), str(load[1]), load[2]]
    )
    lengths = f"{load[0]} in, {load[1]} out"
    measured, peer = found["figures"]["output_tokens_per_s"], peers[f"{lengths}, {load[2]} requests"]
    return _rates(f"{title}, {load[0]:,} + {load[1]:,} tokens", measured, published.get(lengths), peer, None)


def _is_gguf(report: dict[str, Any]) -> bool:
    return report["benchmark"] == "latency" and report["engine"].get("qformat", "").startswith("gguf")


def _on_cpu(report: dict[str, Any], way: str) -> list[str]:
    """A row of a GGUF file that both engines read: SmolLM2's, or random weights in the shape of Mistral 7B."""
    size = {576: "135M", 4096: "7B shape"}[report["engine"]["hidden_size"]]
    blocks = report["engine"]["qformat"].removeprefix("gguf ").split(",")[0]
    measured, peer = report["figures"][f"{way}_tokens_per_s"], report["llama_cpp"][f"{way}_tokens_per_s"]
    return _rates(f"2 CPU cores, {size}, {blocks}, {way}", measured, None, None, peer)
