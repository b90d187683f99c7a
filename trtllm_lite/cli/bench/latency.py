"""``trtllm-lite bench latency``."""

import functools
import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.bench.options import ceiling_options, ceilings_of, engine_options, result_options
from trtllm_lite.cli.bench.results import Report, Results, warn_if_busy
from trtllm_lite.cli.framework import Command
from trtllm_lite.errors import shown

if TYPE_CHECKING:
    from trtllm_lite.bench.latency_shape import LatencyShape

# Each entry is printed as a separate table, which fits into 80 columns.
_POINT_METRICS = {
    "measured": ("time_to_first_token_s", "inter_token_latency_s", "prefill_tokens_per_s", "decode_tokens_per_s"),
    "floors": (
        *("floor_time_to_first_token_s", "fraction_of_first_token_floor"),
        *("floor_inter_token_latency_s", "fraction_of_floor", "host_s_per_decode_step"),
    ),
    "mixtures of experts": ("experts_read", "rank_rows", "busiest_rank_rows", "rank_imbalance"),
}
_ENGINE_METRICS = (
    *("read_bandwidth_bytes_per_s", "weight_bytes_per_step", "kv_bytes_per_step", "weight_bytes", "kv_cache_bytes"),
    *("workspace_bytes", "peak_memory_bytes", "memory_overhead_bytes", "load_s", "start_up_s"),
    *("floor_start_up_s", "fraction_of_start_up_floor"),
)
_RATIO_METRICS = ("prefill_tokens_per_s", "decode_tokens_per_s")
# Other engines that are measured on the same prompts, by their entry in a report.
_PEERS = {"baseline": "transformers in float32", "llama_cpp": "llama.cpp on a GGUF file"}


class NumberList(click.ParamType):
    """Whole numbers separated by commas."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers as a tuple, in the order given."""
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{shown(value)} is not a list of whole numbers such as 1,8,64", param, ctx)


@click.command(cls=Command, short_help="Times to first token and per token of whole batches.")
@engine_options
@click.option(
    "--batch_size",
    type=NumberList(),
    default="1",
    show_default=True,
    help="Sequences in a batch; one or several numbers.",
)
@click.option(
    "--input_len",
    type=NumberList(),
    default="128",
    show_default=True,
    help="Tokens of each prompt (random ids); one or several numbers.",
)
@click.option("--output_len", default=129, show_default=True, help="Tokens to generate; end tokens are ignored.")
@click.option("--repeats", default=5, show_default=True, help="Runs to take the median of, after one to warm up.")
@click.option(
    "--compare_transformers",
    metavar="GGUF|DIR",
    help="Also run transformers in float32 on this model, and print the ratios.",
)
@click.option(
    "--compare_llama_cpp",
    metavar="GGUF",
    help="Also run llama.cpp on this file (batch_size 1), and print the ratios.",
)
@click.option(
    "--llama_cpp_python",
    metavar="PYTHON",
    help="The Python of the environment that has llama-cpp-python. [default: this one]",
)
@ceiling_options
@click.option(
    "--host_bandwidth",
    type=float,
    metavar="GB/S",
    help="Bandwidth from the host's memory to the device, for the floor of the start-up. [default: no floor]",
)
@result_options
def latency(
    engine_dir: str,
    batch_size: tuple[int, ...],
    input_len: tuple[int, ...],
    num_threads: int | None,
    compare_transformers: str | None,
    compare_llama_cpp: str | None,
    llama_cpp_python: str | None,
    memory_bandwidth: float | None,
    peak_tflops: float | None,
    host_bandwidth: float | None,
    **options: Any,
) -> None:
    """Time to first token and time per token of whole batches, memory, and the fraction of the floor reached.

    Every combination of batch size and prompt length is measured, in one load of the engine. The time per token is
    (time from when all sequences have their first token to the last token of all) / (output_len - 1). The floor of the
    time per token is the time to read the weights once (or to compute the products, if that is longer) plus the time to
    read the KV cache. The floor of the first token is the time of its arithmetic, or the time to read the weights if
    that is longer. In an engine with pipeline stages a token passes all stages, and each computes for a part of the
    batch; the slowest may hold up the others. In a mixture of experts floors count the experts that the rows are
    expected to choose if all are equally likely: an expectation, not measured; real choices are skewed and read less.
    """
    from trtllm_lite.bench.latency import LatencyBench
    from trtllm_lite.bench.latency_shape import LatencyShape
    from trtllm_lite.bench.llama_cpp_baseline import measure_llama_cpp
    from trtllm_lite.bench.report import identity
    from trtllm_lite.bench.transformers_baseline import check_model, measure_transformers
    from trtllm_lite.common.progress import progress_bars

    pairs = itertools.product(batch_size, input_len)
    results = Results.taken_from(options)
    shapes = [LatencyShape(batch_size=batch, input_len=length, **options) for batch, length in pairs]
    if compare_transformers:
        check_model(compare_transformers)
    runtime = {"num_threads": num_threads}
    ceilings = {"memory_bandwidth": memory_bandwidth, "peak_tflops": peak_tflops, "host_bandwidth": host_bandwidth}
    reports = [identity("latency", engine_dir, shape, runtime, ceilings) for shape in shapes]
    results.expect(reports)
    busy = warn_if_busy()
    with progress_bars() as show:
        bench = LatencyBench(
            engine_dir, shapes, num_threads=num_threads, ceilings=ceilings_of(**ceilings), trace=results.trace
        )
        for shape, report in zip(shapes, reports, strict=True):
            label = f"batch {shape.batch_size}, prompt {shape.input_len}"
            report["figures"] = bench.measure(shape, functools.partial(show, label))
            report["busy_cores_before"] = busy
        for shape in shapes:
            bench.trace_kernels(shape)
        for done, (shape, report) in enumerate(zip(shapes, reports, strict=True)):
            report["baseline"] = None
            if compare_transformers:
                report["baseline"] = measure_transformers(compare_transformers, shape, num_threads)
                show("transformers", done + 1, len(shapes))
            report["llama_cpp"] = None
            if compare_llama_cpp:
                python = llama_cpp_python or sys.executable
                report["llama_cpp"] = measure_llama_cpp(python, compare_llama_cpp, shape, bench.vocab_size, num_threads)
                show("llama.cpp", done + 1, len(shapes))
    _print_points(shapes, reports)
    _print_engine(reports[-1])
    results.finish(reports)


def _print_points(shapes: "Sequence[LatencyShape]", reports: Sequence[Report]) -> None:
    """Print tables with a row for each shape; the last tables have the ratios to measured peers."""
    from trtllm_lite.bench.metrics import METRICS
    from trtllm_lite.cli.console import print_table
    from trtllm_lite.common.units import counted

    points = [f"{shape.batch_size}, {shape.input_len}" for shape in shapes]
    lengths = f"{counted(shapes[0].output_len, 'token')} out; medians of {counted(shapes[0].repeats, 'run')}"
    for title, names in _POINT_METRICS.items():
        known = [name for name in names if name in reports[0]["figures"]]
        if known:
            rows = [
                [point, *(METRICS[name].text(report["figures"][name]) for name in known)]
                for point, report in zip(points, reports, strict=True)
            ]
            print_table(f"{title}; {lengths}", ["batch, prompt", *(METRICS[name].title for name in known)], rows)
    for peer, title in _PEERS.items():
        if not all(report.get(peer) for report in reports):
            continue
        rows = [
            [point, *(f"{report['figures'][name] / report[peer][name]:.2f}×" for name in _RATIO_METRICS)]
            for point, report in zip(points, reports, strict=True)
        ]
        header = ["batch, prompt", *(f"{METRICS[name].title}, × {title.split()[0]}" for name in _RATIO_METRICS)]
        print_table(f"beside {title}; {lengths}", header, rows)


def _print_engine(report: Report) -> None:
    from trtllm_lite.cli.bench.tables import print_figures

    figures = report["figures"]
    print_figures("engine and machine", {name: figures[name] for name in _ENGINE_METRICS if name in figures})
