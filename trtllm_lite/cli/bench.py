"""``trtllm-lite bench``: latency and throughput, as a table and as JSON."""

import json
from pathlib import Path
from typing import Any

import click

from trtllm_lite.cli.framework import Group

# What the latency of a CPU engine is held to: at least so many times transformers in float32, on two cores.
_PREFILL_GATE = 1.2
_DECODE_GATES = {"bfloat16": 4.0, "float16": 4.0, "float32": 2.4}
_MEMORY_GATE_BYTES = 250e6
_LOAD_GATE_S = 0.5
_BUSY_SHARE = 0.3


@click.group(cls=Group)
def bench() -> None:
    """Measure an engine.

    \b
    Examples:
      trtllm-lite bench latency --engine_dir engine --input_len 128 --output_len 128 --json latency.json
      trtllm-lite bench latency --engine_dir engine --compare_transformers model.gguf
      trtllm-lite bench throughput --engine_dir engine --num_requests 64
    """


@bench.command()
@click.option("--engine_dir", required=True, metavar="ENGINE", help="Directory that `build` wrote.")
@click.option("--input_len", default=128, show_default=True, help="Tokens of each prompt (random ids).")
@click.option("--output_len", default=128, show_default=True, help="Tokens to generate, the end id ignored.")
@click.option("--batch_size", default=1, show_default=True, help="Sequences side by side.")
@click.option("--repeats", default=5, show_default=True, help="Runs to take the median of, after one to warm up.")
@click.option("--num_threads", type=int, help="Threads that compute. [default: all cores]")
@click.option("--seed", default=0, show_default=True, help="Of the prompts.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Also write the figures to this file.")
@click.option(
    "--compare_transformers",
    metavar="GGUF|DIR",
    help="Run transformers in float32 on this model beside it, and print the ratios.",
)
def latency(engine_dir: str, json_path: str | None, compare_transformers: str | None, **options: Any) -> None:
    """Time to first token and time per token of one batch, memory, and the fraction of the bandwidth floor reached.

    The floor is the time to read the weights of one step once, at the memory bandwidth measured in the same run.
    """
    from trtllm_lite.bench.latency import LatencyShape, measure_latency
    from trtllm_lite.bench.report import report
    from trtllm_lite.bench.transformers_baseline import check_model, measure_transformers
    from trtllm_lite.cli.console import progress_bars

    shape = LatencyShape(**options)
    if compare_transformers:
        check_model(compare_transformers)
    busy = _warn_if_busy()
    with progress_bars() as show:
        figures = measure_latency(engine_dir, shape, lambda done, total: show("engine", done, total))
        baseline = None
        if compare_transformers:
            show("transformers", 0, 1)
            baseline = measure_transformers(compare_transformers, shape)
            show("transformers", 1, 1)
    result = report("latency", engine_dir, shape, figures)
    result["busy_cores_before"] = busy
    result["gates"] = _gates(result["engine"]["dtype"], figures, baseline)
    result["baseline"] = baseline
    _print_latency(shape, figures, baseline)
    _print_gates(result["gates"])
    _write_json(json_path, result)


@bench.command()
@click.option("--engine_dir", required=True, metavar="ENGINE", help="Directory that `build` wrote.")
@click.option("--num_requests", default=32, show_default=True, help="Requests, all queued at the start.")
@click.option("--input_len", default=128, show_default=True, help="Longest prompt; lengths vary from half of it.")
@click.option("--output_len", default=128, show_default=True, help="Longest output; lengths vary from half of it.")
@click.option("--num_threads", type=int, help="Threads that compute. [default: all cores]")
@click.option("--seed", default=0, show_default=True, help="Of the prompts and lengths.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Also write the figures to this file.")
def throughput(engine_dir: str, json_path: str | None, **options: Any) -> None:
    """Tokens per second over many requests of random lengths."""
    from trtllm_lite.bench.report import report
    from trtllm_lite.bench.throughput import ThroughputShape, measure_throughput
    from trtllm_lite.cli.console import print_table, progress_bars

    shape = ThroughputShape(**options)
    busy = _warn_if_busy()
    with progress_bars() as show:
        figures = measure_throughput(engine_dir, shape, lambda done, total: show("requests", done, total))
    rows = [
        ["output tok/s", f"{figures['output_tokens_per_s']:.1f}"],
        ["output and prompt tok/s", f"{figures['total_tokens_per_s']:.1f}"],
        ["requests/s", f"{figures['requests_per_s']:.2f}"],
        ["median time to first token", f"{figures['median_time_to_first_token_s']:.2f} s"],
        ["output tokens per step", f"{figures['output_tokens_per_step']:.1f}"],
        ["total time", f"{figures['seconds']:.1f} s"],
    ]
    title = f"{shape.num_requests} requests, prompts up to {shape.input_len}, outputs up to {shape.output_len} tokens"
    print_table(title, ["", engine_dir], rows)
    _write_json(json_path, {**report("throughput", engine_dir, shape, figures), "busy_cores_before": busy})


def _warn_if_busy() -> float:
    """Say so if other work will spoil the figures; returns the load before the measurement."""
    from trtllm_lite.bench.machine import busy_cores, num_cores

    busy = busy_cores()
    if busy > _BUSY_SHARE * num_cores():
        click.echo(f"warning: {busy:.1f} of {num_cores()} cores were busy just now; figures will be too low", err=True)
    return busy


def _print_latency(shape: Any, figures: dict[str, Any], baseline: dict[str, Any] | None) -> None:
    from trtllm_lite.cli.console import megabytes, print_table

    rows = [
        ["prefill", *_compare("prefill_tokens_per_s", "{:.1f} tok/s", figures, baseline)],
        ["time to first token", *_compare("time_to_first_token_s", "{:.3f} s", figures, baseline)],
        ["decode", *_compare("decode_tokens_per_s", "{:.1f} tok/s", figures, baseline)],
        ["time per token", *_compare("inter_token_latency_s", "{:.4f} s", figures, baseline)],
        ["fraction of bandwidth floor", f"{figures['fraction_of_floor']:.0%}"],
        ["memory read bandwidth", f"{figures['read_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s"],
        ["weights read per step", megabytes(figures["weight_bytes_per_step"])],
        ["peak memory", megabytes(figures["peak_memory_bytes"])],
        ["  beyond weights and KV cache", megabytes(figures["memory_overhead_bytes"])],
        ["load", f"{figures['load_s']:.3f} s"],
    ]
    header = ["", "engine", *(["transformers float32", "ratio"] if baseline else [])]
    title = f"batch {shape.batch_size}, {shape.input_len} tokens in, {shape.output_len} out"
    print_table(title, header, [row + [""] * (len(header) - len(row)) for row in rows])


def _compare(name: str, form: str, figures: dict[str, Any], baseline: dict[str, Any] | None) -> list[str]:
    if baseline is None:
        return [form.format(figures[name])]
    return [form.format(figures[name]), form.format(baseline[name]), f"{figures[name] / baseline[name]:.2f}x"]


def _gates(dtype: str, figures: dict[str, Any], baseline: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Each requirement with its bound and what was reached."""
    gates = [
        _gate(
            "memory beyond weights and KV cache, MB", figures["memory_overhead_bytes"] / 1e6, _MEMORY_GATE_BYTES / 1e6
        ),
        _gate("load, s", figures["load_s"], _LOAD_GATE_S),
    ]
    if baseline is not None:
        prefill, decode = (figures[name] / baseline[name] for name in ("prefill_tokens_per_s", "decode_tokens_per_s"))
        gates.append(_gate("prefill, times transformers", prefill, _PREFILL_GATE, at_least=True))
        gates.append(_gate("decode, times transformers", decode, _DECODE_GATES[dtype], at_least=True))
    return gates


def _gate(name: str, value: float, bound: float, at_least: bool = False) -> dict[str, Any]:
    met = value >= bound if at_least else value <= bound
    return {"name": name, "value": value, "bound": bound, "direction": ">=" if at_least else "<=", "met": met}


def _print_gates(gates: list[dict[str, Any]]) -> None:
    for gate in gates:
        state = "met" if gate["met"] else "MISSED"
        click.echo(f"{gate['name']}: {gate['value']:.2f} (goal {gate['direction']} {gate['bound']:g}): {state}")


def _write_json(path: str | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    from trtllm_lite.bench.machine import describe
    from trtllm_lite.errors import OutputError

    try:
        Path(path).write_text(json.dumps({**describe(), **result}, indent=2) + "\n")
    except OSError as error:
        raise OutputError(f"cannot write {path} ({error.strerror}): choose another file for --json") from error
    click.echo(f"wrote {path}")
