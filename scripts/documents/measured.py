"""Makes the documents' tables on single devices, from reports of ``trtllm-lite bench latency`` and ``throughput``."""

import json
from pathlib import Path
from typing import Any

from documents.variants import adapters_table, deterministic_table, speculation_table, variant

BASELINES = Path(__file__).resolve().parents[2] / "configs" / "baselines"
PLAIN = "full_prec"
COLUMNS = (
    "weights",
    "prefill tok/s (× transformers, × llama.cpp)",
    "decode tok/s (× transformers, × llama.cpp)",
    "of the bandwidth floor",
    "32 requests, 16 at a time, tok/s",
    "memory beyond weights and KV",
    "load",
)


def record(name: str, reports: list[Path], commit: str | None) -> None:
    """Store ``reports`` in the baseline ``name``, in place of reports of the same model, type and shape.

    A report that does not know its commit gets ``commit``.
    """
    loaded = [report for path in reports for report in json.loads(path.read_text())]
    for report in loaded:
        report["commit"] = report["commit"] or commit
    path = BASELINES / f"{name}.json"
    known = json.loads(path.read_text()) if path.is_file() else []
    by_subject = {subject(report): report for report in (*known, *loaded)}
    path.write_text(json.dumps(list(by_subject.values()), indent=1) + "\n")


def record_all(path: Path, directory: Path, commit: str | None) -> None:
    """Store the reports of ``directory`` in the baseline file ``path``, in place of all earlier ones.

    A report that does not know its commit gets ``commit``.
    """
    reports = [report for file in sorted(directory.glob("*.json")) for report in json.loads(file.read_text())]
    for report in reports:
        report["commit"] = report["commit"] or commit
    path.write_text(json.dumps(reports, indent=1, sort_keys=True) + "\n")


def subject(report: dict[str, Any]) -> str:
    """The part of a report that identifies the measurement."""
    engine = report["engine"]
    parts = (report["benchmark"], engine["hidden_size"], weights(report), engine["stripped"], report["shape"])
    return json.dumps((*parts, *quantized(report), *variant(report)), sort_keys=True)


def weights(report: dict[str, Any]) -> str:
    """The dtype of matrices, or their quantization."""
    engine = report["engine"]
    qformat = engine.get("qformat", PLAIN)
    return str(engine["dtype"] if qformat == PLAIN else qformat)


def quantized(report: dict[str, Any]) -> tuple[str, ...]:
    """The quantization of weights, activations and the KV cache; empty if there is none."""
    engine = report["engine"]
    qformat, cache = engine.get("qformat", PLAIN), engine.get("kv_cache_dtype", engine["dtype"])
    return () if (qformat, cache) == (PLAIN, engine["dtype"]) else (qformat, cache)


def row(latency: dict[str, Any], throughput: dict[str, Any]) -> list[str]:
    """The line of the table for one storage type."""
    figures = latency["figures"]
    peers = [peer for peer in (latency["baseline"], latency.get("llama_cpp")) if peer]

    def beside(name: str) -> str:
        return f"{figures[name]:,.0f} ({', '.join(f'{figures[name] / peer[name]:.1f}×' for peer in peers)})"

    return [
        weights(latency),
        beside("prefill_tokens_per_s"),
        beside("decode_tokens_per_s"),
        f"{figures['fraction_of_floor']:.0%}",
        f"{throughput['figures']['output_tokens_per_s']:,.0f}",
        f"{figures['memory_overhead_bytes'] / 2**20:.0f} MiB",
        f"{figures['load_s']:.2f} s",
    ]


def table(path: Path) -> str:
    """The Markdown of one baseline file."""
    reports = json.loads(path.read_text())
    small, large = ([report for report in reports if report["engine"]["hidden_size"] == size] for size in (576, 4096))
    by_kind = {(report["benchmark"], weights(report)): report for report in small}
    dtypes = [dtype for kind, dtype in by_kind if kind == "latency"]
    first = by_kind["latency", dtypes[0]]
    shape, figures = first["shape"], first["figures"]
    peers = {"transformers in float32": first["baseline"], "llama.cpp on the Q4_1 file": first.get("llama_cpp")}
    speeds = [
        f"{peer}, in the same run: {measured['prefill_tokens_per_s']:.0f} and "
        f"{measured['decode_tokens_per_s']:.1f} tok/s."
        for peer, measured in peers.items()
        if measured
    ]
    rows = [row(by_kind["latency", dtype], by_kind["throughput", dtype]) for dtype in dtypes]
    lines = ["| " + " | ".join(cells) + " |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    return (
        f"{first['machine']['cpu']}, {first['machine']['cores']} cores, "
        f"{figures['read_bandwidth_bytes_per_s'] / 1e9:.0f} GB/s; SmolLM2-135M-Instruct, batch {shape['batch_size']}, "
        f"{shape['input_len']} tokens in, {shape['output_len']} out; {first['date'][:10]}, "
        f"commit {str(first['commit'])[:10]}. {' '.join(speeds)}\n\n"
        + "\n".join(lines)
        + "".join(f"\n\n{_large(report)}" for report in large)
        + f"\n\nMeasured by `bash scripts/measure_cpu.sh {path.stem}` (`trtllm-lite bench latency` and `throughput`).\n"
    )


def _large(report: dict[str, Any]) -> str:
    """A sentence on the shape of Mistral 7B."""
    figures, peer = report["figures"], report["llama_cpp"]
    return (
        f"Random {weights(report).removeprefix('gguf ')} blocks in the shape of Mistral 7B, {report['date'][:10]}: "
        f"{figures['prefill_tokens_per_s']:.1f} tok/s prefill, {figures['decode_tokens_per_s']:.1f} tok/s decode, "
        f"{figures['fraction_of_floor']:.0%} of the floor; llama.cpp on the same file "
        f"{peer['prefill_tokens_per_s']:.1f} and {peer['decode_tokens_per_s']:.1f} tok/s."
    )


# Reports with fewer generated tokens measure the first token only.
LEAST_OUTPUT_LEN = 64
OTHER_SHAPES = {2048: "1B", 8192: "70B"}  # models other than 8B, by hidden size
GPU_COLUMNS = ("measured", "floor", "reached", "vLLM 0.26 on an H200")
PUBLISHED = "TensorRT-LLM 1.0, published"
SPECULATION = (
    "With drafts in the Llama-3.1-8B shape, bfloat16. No drafter predicts random weights, so 0.8 of the drafts are "
    "made to be right if those before them are right (`synthetic`):"
)
ADAPTERS = "With adapters (`--max_lora_rank 16`) of all projections, in the same shape:"
DETERMINISTIC = "What `--deterministic` costs in the same shape:"


def gpu_table(path: Path) -> str:
    """The Markdown of one GPU's baseline file, with the peers' figures of ``peers-<same name>`` for its shapes.

    Titles of figures that a peer published omit the number of requests, which the peer chose.
    """
    everything = json.loads(path.read_text())
    peers = json.loads((path.parent / f"peers-{path.name}").read_text())
    kinds = [variant(report)[:1] for report in everything]

    def of_kind(*kind: str) -> list[dict[str, Any]]:
        return [report for report, its_kind in zip(everything, kinds, strict=True) if its_kind == kind]

    plain = of_kind()
    reports = [report for report in plain if not quantized(report)]
    forms = sorted({quantized(report) for report in plain})
    tables = [rows_of(form, [report for report in plain if quantized(report) == form], peers) for form in forms]
    speculation, deterministic = of_kind("speculation"), of_kind("deterministic")
    adapters = of_kind("adapters")
    tables += [f"{SPECULATION}\n\n{speculation_table(speculation)}"] if speculation else []
    tables += [f"{ADAPTERS}\n\n{adapters_table(adapters, reports)}"] if adapters else []
    tables += [f"{DETERMINISTIC}\n\n{deterministic_table(deterministic, plain)}"] if deterministic else []
    first = reports[0]
    terms = {name: value for report in reports for name, value in report["terms"].items()}
    floors = [f"{terms['memory_bandwidth']:,.0f} GB/s", f"{terms['peak_tflops']:,.0f} TFLOPS"]
    if "host_bandwidth" in terms:
        floors.append(f"{terms['host_bandwidth']:,.0f} GB/s from the host's memory")
    on_host = sorted(
        (report["shape"]["batch_size"], report["figures"]["host_s_per_decode_step"] * 1e6)
        for report in reports
        if report["benchmark"] == "latency"
        and report["engine"]["hidden_size"] not in OTHER_SHAPES
        and report["shape"]["output_len"] >= LEAST_OUTPUT_LEN
    )
    return (
        f"{first['machine']['gpu']}, driver {first['versions']['driver']}, {first['date'][:10]}; greedy, random "
        f"weights and prompts. Floors: {', '.join(floors)}, measured on such a card. {peers['source']} "
        f"{peers['published_source']}\n\n"
        + "\n\n".join(tables)
        + f"\n\nThe host's part of a decode step takes {', '.join(f'{time:.0f}' for _, time in on_host)} µs at batch "
        f"{', '.join(str(batch) for batch, _ in on_host)}, while the GPU runs the previous step.\n\n"
        "Measured by `bash scripts/measure_gpu.sh OUT`, the start-up, drafts, adapters and `--deterministic` by its "
        "parts `start-up`, `speculation`, `adapters` and `deterministic` (`trtllm-lite bench latency` and "
        "`throughput`).\n"
    )


def rows_of(form: tuple[str, ...], reports: list[dict[str, Any]], peers: dict[str, Any]) -> str:
    """The Markdown of the reports of engines with the same quantization."""
    name = ", ".join(("bfloat16",) if not form else (form[0], f"KV cache {form[1]}"))
    measured, published = peers["/".join(("figures", *form))], peers.get("/".join(("published", *form)))
    rows = sorted((gpu_row(report, measured, published) for report in reports), key=place_of_row)
    head = [f"Llama-3.1-8B shape, {name}", *GPU_COLUMNS, *([] if published is None else [PUBLISHED]), "commit"]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def place_of_row(cells: list[str]) -> tuple[int, int]:
    """The sorting key of a report: times per token, first tokens, the start-up, throughput, then other models."""
    kinds = ("time per token", "first token", "start-up", "", *OTHER_SHAPES.values())
    kind = next(kind for kind in sorted(kinds, reverse=True) if cells[0].startswith(kind))
    last = cells[0].split()[-1]
    return kinds.index(kind), int(last) if kind and last.isdigit() else 0


def gpu_row(report: dict[str, Any], peers: dict[str, float], published: dict[str, float] | None) -> list[str]:
    """The line of one report: the measurement, its floor, the fraction reached, the peers' figures, the commit."""
    figures, shape = report["figures"], report["shape"]
    unit, digits, scale = "ms", 2, 1e3
    if report["benchmark"] == "throughput":
        unit, digits, scale = "tok/s", 0, 1
        title = f"{shape['input_len']} in, {shape['output_len']} out, {shape['num_requests']} requests"
        value, floor = figures["output_tokens_per_s"], figures["ceiling_output_tokens_per_s"]
        reached = figures["fraction_of_ceiling"]
    elif not report["engine"]["stripped"]:
        unit, scale = "s", 1
        title = f"start-up to first token, {figures['weight_bytes'] / 1e9:.1f} GB of weights in the page cache"
        value, floor = figures["start_up_s"], figures["floor_start_up_s"]
        reached = figures["fraction_of_start_up_floor"]
    elif shape["output_len"] < LEAST_OUTPUT_LEN:
        title = f"first token, prompt {shape['input_len']}"
        value, floor = figures["time_to_first_token_s"], figures["floor_time_to_first_token_s"]
        reached = figures["fraction_of_first_token_floor"]
    else:
        title = f"time per token, batch {shape['batch_size']}"
        value, floor = figures["inter_token_latency_s"], figures["floor_inter_token_latency_s"]
        reached = figures["fraction_of_floor"]
    other = OTHER_SHAPES.get(report["engine"]["hidden_size"])
    title = title if other is None else f"{other}, {title}"
    others = [peers.get(title)]
    if published is not None:
        others.append(published.get(title.rpartition(", ")[0]))
    texts = ["" if x is None else f"{x:,.{digits}f} {unit}" for x in (value * scale, floor * scale, *others)]
    title += "" if shape.get("detokenize", True) else ", token ids alone"
    return [title, *texts[:2], f"{reached:.0%}", *texts[2:], str(report["commit"])[:10]]
