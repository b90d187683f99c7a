"""``trtllm-lite bench throughput`` and ``serve-sim``: many requests, batched in flight."""

from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.bench.options import (
    adapter_options,
    arrival_options,
    ceiling_options,
    ceilings_of,
    engine_options,
    result_options,
    runtime_options,
    text_options,
    workload_options,
)
from trtllm_lite.cli.bench.results import Results, warn_if_busy
from trtllm_lite.cli.framework import Command
from trtllm_lite.errors import ArgumentError

if TYPE_CHECKING:
    from trtllm_lite.bench.workload import Workload

_RUNTIME = (
    *("num_threads", "max_batch_size", "max_num_tokens", "max_tokens_in_paged_kv_cache", "host_cache_size"),
    *("kv_cache_free_gpu_memory_fraction", "kv_cache_enable_block_reuse", "capacity_scheduler_policy"),
    *("enable_chunked_context", "speculative_config"),
)


@click.command(cls=Command)
@engine_options
@workload_options
@text_options
@adapter_options
@runtime_options
@ceiling_options
@result_options
def throughput(**options: Any) -> None:
    """Tokens per second over many requests, all queued at once."""
    _measure("throughput", {**options, "arrival": "all"}, ())


@click.command(cls=Command, name="serve-sim", short_help="Latencies of requests that arrive over time.")
@engine_options
@workload_options
@text_options
@adapter_options
@arrival_options
@runtime_options
@ceiling_options
@result_options
def serve_sim(goodput: tuple[str, ...], **options: Any) -> None:
    """Latencies of requests that arrive over time, as a server would see them.

    Requests are sent in real time. Latencies count from the instant at which a request is sent: to its first token,
    between tokens, and to its last token. The time per output token is a request's mean after its first token.

    \b
    Examples:
      trtllm-lite bench serve-sim --engine_dir engine \\
        --request_rate 4 --input_len sharegpt --output_len 16:64
      trtllm-lite bench serve-sim --engine_dir engine \\
        --arrival burst --request_rate 4 --goodput ttft:500
      trtllm-lite bench serve-sim --engine_dir engine \\
        --arrival all --concurrency 1
    """
    _measure("serve-sim", options, goodput)


def _workload(num_loras: int, lora_rank: int | None, skip_tokenizer_init: bool, **options: Any) -> "Workload":
    """The workload; reports mention adapters if there are some. Raises ArgumentError for a rank without adapters."""
    from trtllm_lite.bench.workload import AdaptedWorkload, Workload

    options["detokenize"] = not skip_tokenizer_init
    if num_loras:
        given = options if lora_rank is None else {**options, "lora_rank": lora_rank}
        return AdaptedWorkload(**given, num_loras=num_loras)
    if lora_rank is not None:
        raise ArgumentError(f"lora_rank is {lora_rank} and num_loras 0: give num_loras, or leave lora_rank out")
    return Workload(**options)


def _measure(benchmark: str, options: dict[str, Any], goodput: tuple[str, ...]) -> None:
    from trtllm_lite.bench.figures import parse_objectives
    from trtllm_lite.bench.report import identity
    from trtllm_lite.bench.serving_bench import measure_serving
    from trtllm_lite.cli.bench.tables import print_figures
    from trtllm_lite.common.progress import progress_bars
    from trtllm_lite.common.units import counted

    engine_dir, price = options.pop("engine_dir"), options.pop("price_per_hour")
    tokenizer = options.pop("tokenizer")
    ceilings = {name: options.pop(name) for name in ("memory_bandwidth", "peak_tflops")}
    results = Results.taken_from(options)
    runtime = {name: options.pop(name) for name in _RUNTIME}
    workload, objectives = _workload(**options), parse_objectives(goodput)
    terms = {"goodput": objectives, "price_per_hour": price, **ceilings}
    report = identity(benchmark, engine_dir, workload, runtime, terms)
    results.expect([report])
    report["busy_cores_before"] = warn_if_busy()
    with progress_bars() as show:
        asked = (engine_dir, workload, runtime, objectives, price, ceilings_of(**ceilings))
        report |= measure_serving(*asked, lambda done, total: show("requests", done, total), tokenizer, results.trace)
    print_figures(f"{counted(workload.num_requests, 'request')}, {workload.arrival}", report["figures"])
    for priority, latencies in report["by_priority"].items():
        print_figures(f"priority {priority}", latencies)
    results.finish([report])
