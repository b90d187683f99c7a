"""Defines the options of everything that serves engines over HTTP."""

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from trtllm_lite.cli.config_file import config_option
from trtllm_lite.cli.foreign_options import foreign_options
from trtllm_lite.cli.option_types import COUNT, COUNT_OR_ZERO, Finite, JsonObject, each_name
from trtllm_lite.cli.quantize_options import CACHE_DTYPE_TYPE, KEY_DTYPE_TYPE, QFORMAT_TYPE, STATE_DTYPE_TYPE
from trtllm_lite.common.vocabulary import DEFAULT_MAX_LORAS
from trtllm_lite.foreign_names.serving import SERVE
from trtllm_lite.serve.http.limits import HttpLimits

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_OPTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option(
        "--served_model_name", multiple=True, help="Name of the model in requests; may be given several times."
    ),
    click.option(
        "--model_weights",
        multiple=True,
        metavar="NAME=MODEL:WEIGHT,…",
        help="A name that several models share, and their shares of its requests, such as chat=v1:90,v2:10; "
        "may be given several times.",
    ),
    click.option("--tokenizer", metavar="DIR", help="Directory whose tokenizer.json replaces the model's own."),
    click.option(
        "--target",
        help="Target, cpu or sm_90, of the engine that is built if a model is not one. "
        "[default: this machine's GPUs, or its CPU]",
    ),
    click.option(
        "--dtype", default="auto", show_default=True, help="Type of the matrices, for models that are not engines."
    ),
    click.option(
        "--qformat",
        type=QFORMAT_TYPE,
        metavar="QFORMAT",
        help="Quantization of the matrices, as in `build --qformat`, for models that are not engines.",
    ),
    click.option(
        "--kv_cache_dtype",
        type=CACHE_DTYPE_TYPE,
        default="auto",
        show_default=True,
        help="Type of the KV cache, as in `build --kv_cache_dtype`, for models that are not engines.",
    ),
    click.option(
        "--key_cache_dtype",
        type=KEY_DTYPE_TYPE,
        default="auto",
        show_default=True,
        help="Type of keys beside values in 8 bits, as in `build --key_cache_dtype`, for models that are not engines.",
    ),
    click.option(
        "--state_dtype",
        type=STATE_DTYPE_TYPE,
        help="Type of the matrices of recurrent layers, as in `build --state_dtype`, for models that are not engines.",
    ),
    click.option(
        "--tokens_per_block", type=COUNT, help="Tokens of a block of the KV cache, for models that are not engines."
    ),
    click.option(
        "--max_batch_size",
        type=COUNT,
        help="Sequences that run side by side. [default: the engine's]",
    ),
    click.option("--max_input_len", type=COUNT, help="Tokens of a prompt at most. [default: the engine's]"),
    click.option(
        "--max_seq_len",
        type=COUNT,
        help="Tokens of prompt and answer at most. [default: the engine's]",
    ),
    click.option(
        "--max_num_tokens",
        type=COUNT,
        help="Tokens of one step. [default: the engine's]",
    ),
    click.option(
        "--kv_cache_free_gpu_memory_fraction",
        type=Finite(0, 1, min_open=True),
        help="Share of free memory for the KV cache.",
    ),
    click.option(
        "--max_tokens_in_paged_kv_cache", type=COUNT, help="Tokens that the KV cache holds. [default: a full batch]"
    ),
    click.option(
        "--host_cache_size",
        type=COUNT_OR_ZERO,
        help="Bytes of host memory for prefixes and preempted requests that the KV cache has no room for.",
    ),
    click.option(
        "--capacity_scheduler_policy",
        default="GUARANTEED_NO_EVICT",
        show_default=True,
        help="GUARANTEED_NO_EVICT, or MAX_UTILIZATION, which admits more requests and preempts some.",
    ),
    click.option(
        "--no_kv_cache_block_reuse",
        is_flag=True,
        help="Do not share the cache blocks of equal prefixes.",
    ),
    click.option(
        "--state_snapshot_interval",
        type=COUNT,
        help="Keep states of recurrent layers after every so many blocks of a prompt, and where prompts end or part.",
    ),
    click.option("--speculative_config", type=JsonObject(), help="Fields of SpeculativeConfig, as JSON."),
    click.option(
        "--deterministic", is_flag=True, help="Make the result of a request independent of the others, bit for bit."
    ),
    click.option("--gather_context_logits", is_flag=True, help="Make log probabilities of prompt tokens available."),
    click.option(
        "--max_lora_rank", type=COUNT, help="Take adapters of up to this rank, for models that are not engines."
    ),
    click.option("--max_loras", type=COUNT, help=f"Adapters in use at once. [default: {DEFAULT_MAX_LORAS}]"),
    click.option("--max_cpu_loras", type=COUNT, help="Adapters in host memory. [default: twice max_loras]"),
    click.option(
        "--lora_modules",
        multiple=True,
        metavar="NAME=DIR",
        help="An adapter and its directory, or vLLM's JSON for one; may be given several times.",
    ),
    click.option("--lora_root", metavar="DIR", help="Let requests load adapters below this directory. [default: none]"),
    click.option(
        "--tool_call_parser", default="auto", show_default=True, help="Format of tool calls: hermes, …, none."
    ),
    click.option("--reasoning_parser", default="auto", show_default=True, help="Format of reasoning: qwen3, …, none."),
    click.option(
        "--tensor_parallel_size",
        type=COUNT,
        help="Devices that split every layer, for models that are not engines. [default: 1]",
    ),
    click.option(
        "--pipeline_parallel_size",
        type=COUNT,
        help="Pipeline stages, each with some of the layers, for models that are not engines. [default: 1]",
    ),
    click.option(
        "--moe_expert_parallel_size",
        type=COUNT,
        help="Groups of devices, each with some of the experts, for models that are not engines. [default: 1]",
    ),
    click.option(
        "--distributed_executor_backend",
        help="ray: each stage runs in a Ray actor, except the last stage on GPUs. [default: all stages run here]",
    ),
    click.option("--num_threads", type=COUNT, help="Threads that compute on the CPU. [default: all cores]"),
    click.option(
        "--max_queue_size",
        type=COUNT_OR_ZERO,
        default=1024,
        show_default=True,
        help="Sequences that may wait; requests beyond them get status 429.",
    ),
    click.option(
        "--max_body_size",
        type=COUNT,
        default=HttpLimits.max_body_bytes,
        show_default=True,
        help="Maximum number of bytes of a request's body.",
    ),
    click.option(
        "--drain_timeout",
        type=Finite(min=0),
        default=30.0,
        show_default=True,
        help="Seconds that running requests may take after SIGTERM.",
    ),
    click.option(
        "--ignore_unknown_fields",
        is_flag=True,
        help="Drop fields of requests that are not known, instead of refusing them; X-Ignored-Fields names them.",
    ),
    click.option(
        "--refuse_special_tokens",
        is_flag=True,
        help="Refuse chats whose texts spell special tokens, such as <|im_end|>, which end a message anywhere.",
    ),
    click.option(
        "--api_key_file", metavar="FILE", help="File of API keys, one a line; a request must have one of them."
    ),
    click.option(
        "--admin_key_file",
        metavar="FILE",
        help="File of keys, one a line, with which requests may load adapters. These keys open all endpoints.",
    ),
    click.option("--allow_no_api_key", is_flag=True, help="Let other machines use the server without a key."),
    click.option(
        "--allowed_hosts",
        multiple=True,
        callback=each_name,
        help="Host names that requests may use; may be given several times. [default: all; without keys at a "
        "loopback address: none but localhost]",
    ),
    click.option(
        "--allowed_origins",
        multiple=True,
        callback=each_name,
        help="Origins whose pages may use the server (CORS), such as https://chat.example, or *; may be given several "
        "times. [default: those of this machine, at a loopback address]",
    ),
    click.option(
        "--scheduling_policy",
        type=click.Choice(["fcfs", "priority"]),
        default="fcfs",
        show_default=True,
        help="fcfs: requests that give a priority are refused. priority: greater priorities come first.",
    ),
    click.option("--no_access_log", is_flag=True, help="Do not write a line for each request."),
    click.option(
        "--log_format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of log lines on stderr; json writes an object per line.",
    ),
    click.option("--otlp_traces_endpoint", metavar="URL", help="Send a span for each request to this collector."),
    config_option,
    foreign_options(SERVE),
)


def server_options(function: Decorated) -> Decorated:
    """A decorator that adds the options, which ``trtllm_lite.serve.opening`` reads."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), function)
