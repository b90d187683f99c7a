"""Defines the options that several benchmarks share."""

from typing import TYPE_CHECKING

import click

from trtllm_lite.cli.framework import together
from trtllm_lite.cli.option_types import Finite, JsonObject

if TYPE_CHECKING:
    from trtllm_lite.bench.floor import Ceilings

REGRESSED = 3  # the exit code of a regression; 1 is an error, 2 a wrong option
_LENGTHS = "tokens: N, LEAST:MOST, lognormal:MEDIAN:P95 or sharegpt"


ceiling_options = together(
    click.option(
        "--memory_bandwidth",
        type=float,
        metavar="GB/S",
        help="Bandwidth of the device's memory, for floors. [default: measured for CPU engines, no floor for others]",
    ),
    click.option("--peak_tflops", type=float, help="Peak rate of matrix products, for floors. [default: no floor]"),
)

seed_option = click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")

engine_options = together(
    click.option("--engine_dir", required=True, metavar="ENGINE", help="Directory that `build` wrote."),
    click.option("--num_threads", type=int, help="Threads that compute on the CPU. [default: all cores]"),
    seed_option,
)

result_options = together(
    click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Also write the reports to this file."),
    click.option(
        "--html",
        "html_path",
        metavar="FILE",
        help="Also write curves and tables as a page for a browser, which needs no network.",
    ),
    click.option(
        "--trace",
        "trace_path",
        metavar="FILE",
        help="Also write requests and steps (latency: kernels, too) over time, as JSON for ui.perfetto.dev.",
    ),
    click.option(
        "--compare",
        metavar="BASELINE",
        help=f"Compare with a file that --json wrote; a regression ends with exit code {REGRESSED}.",
    ),
    click.option(
        "--tolerance",
        multiple=True,
        metavar="[METRIC=]SHARE",
        help="Share by which --compare lets figures get worse, for all metrics or one; may be given several times. "
        "[default: 0.05]",
    ),
)

workload_options = together(
    click.option("--num_requests", default=32, show_default=True, help="Number of requests."),
    click.option("--input_len", default="64:128", show_default=True, help=f"Length of the prompts in {_LENGTHS}."),
    click.option(
        "--output_len", default="64:128", show_default=True, help="Length of the outputs, in the same formats."
    ),
    click.option(
        "--prefix_len", default=0, help="Tokens of a prefix that prompts share, before input_len of their own."
    ),
    click.option("--prefix_share", default=1.0, show_default=True, help="Share of the prompts that have the prefix."),
    click.option("--priorities", default="0", show_default=True, help="Priorities and their weights, as in 0:9,50:1."),
    click.option(
        "--price_per_hour", type=Finite(min=0), help="Price of the machine; adds the price of a million tokens."
    ),
)

adapter_options = together(
    click.option("--num_loras", default=0, help="Random adapters, which requests use in turn. [default: 0, none]"),
    click.option("--lora_rank", type=int, help="Rank of the random adapters. [default: 16]"),
)

text_options = together(
    click.option("--tokenizer", metavar="DIR", help="Directory with a tokenizer.json. [default: the engine's]"),
    click.option("--skip_tokenizer_init", is_flag=True, help="Measure token ids alone, without detokenization."),
)

arrival_options = together(
    click.option(
        "--arrival",
        type=click.Choice(["all", "poisson", "burst"]),
        default="poisson",
        show_default=True,
        help="When requests come: all at once, as a Poisson process, or in bursts.",
    ),
    click.option("--request_rate", type=float, help="Mean number of requests per second, unless all come at once."),
    click.option(
        "--burstiness",
        type=float,
        help="Shape of the distribution of gaps: 1 is a Poisson process, less is burstier. [default: 0.25]",
    ),
    click.option(
        "--concurrency",
        type=int,
        help="Maximum number of requests in flight; others wait unsent. [default: any number]",
    ),
    click.option(
        "--goodput",
        multiple=True,
        metavar="NAME:MS",
        help="An objective in milliseconds (ttft, tpot, e2el); may be given several times.",
    ),
)

# Options that become arguments of ModelRunner.from_dir.
runtime_options = together(
    click.option("--max_batch_size", type=int, help="Requests that run side by side. [default: the engine's]"),
    click.option("--max_num_tokens", type=int, help="Tokens of one step. [default: the engine's]"),
    click.option(
        "--max_tokens_in_paged_kv_cache", type=int, help="Tokens that the KV cache holds. [default: a full batch]"
    ),
    click.option(
        "--kv_cache_free_gpu_memory_fraction",
        type=float,
        help="Share of the device's free memory that the KV cache may take. [default: 0.9 of a GPU's]",
    ),
    click.option("--kv_cache_enable_block_reuse", is_flag=True, help="Share the cache blocks of equal prefixes."),
    click.option(
        "--host_cache_size",
        type=int,
        help="Bytes of host memory for what the KV cache has no room for. [default: none]",
    ),
    click.option(
        "--capacity_scheduler_policy",
        default="GUARANTEED_NO_EVICT",
        show_default=True,
        help="GUARANTEED_NO_EVICT, or MAX_UTILIZATION, which admits more requests and preempts some.",
    ),
    click.option(
        "--enable_chunked_context",
        type=bool,
        default=True,
        show_default=True,
        help="Split prompts into chunks for several steps.",
    ),
    click.option(
        "--speculative_config",
        type=JsonObject(),
        help='How draft tokens are found, such as {"method": "ngram"}: fields of SpeculativeConfig. '
        "[default: not at all]",
    ),
)


def ceilings_of(
    memory_bandwidth: float | None, peak_tflops: float | None, host_bandwidth: float | None = None
) -> "Ceilings":
    """The ceilings that the options give in GB/s and TFLOPS, converted to bytes and operations per second."""
    from trtllm_lite.bench.floor import Ceilings

    return Ceilings(
        bandwidth=None if memory_bandwidth is None else memory_bandwidth * 1e9,
        flops=None if peak_tflops is None else peak_tflops * 1e12,
        host_bandwidth=None if host_bandwidth is None else host_bandwidth * 1e9,
    )
