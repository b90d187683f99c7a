"""``trtllm-lite serve``: an OpenAI-compatible server over one or several engines."""

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.framework import Command, replaced_options
from trtllm_lite.cli.option_types import COUNT, COUNT_OR_ZERO, Finite, JsonObject
from trtllm_lite.cli.replaced import SERVE
from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.serve.http.limits import HttpLimits
from trtllm_lite.vocabulary import DEFAULT_MAX_LORAS

if TYPE_CHECKING:
    from trtllm_lite.llm import LLM
    from trtllm_lite.serve.served_model import ModelSettings
    from trtllm_lite.serve.tracing import Traces

_AUTO, _NONE = "auto", "none"


@click.command(cls=Command, short_help="Serve engines over HTTP, with OpenAI's API.")
@click.argument("models", metavar="[NAME=]MODEL...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen at; 0 for a free one.",
)
@click.option("--served_model_name", multiple=True, help="What requests call the model; may be given several times.")
@click.option("--tokenizer", metavar="DIR", help="Directory with another tokenizer.json than the model's own.")
@click.option("--target", help="What an engine is built for, of models that are none: cpu or sm_90. [default: cpu]")
@click.option("--dtype", default="auto", show_default=True, help="Type of the matrices, of models that are no engine.")
@click.option(
    *("--max_batch_size", "--max_num_seqs"),
    type=COUNT,
    help="Sequences that run side by side. [default: the engine's]",
)
@click.option("--max_input_len", type=COUNT, help="Tokens of a prompt at most. [default: the engine's]")
@click.option(
    *("--max_seq_len", "--max_model_len"),
    type=COUNT,
    help="Tokens of prompt and answer at most. [default: the engine's]",
)
@click.option(
    *("--max_num_tokens", "--max_num_batched_tokens"), type=COUNT, help="Tokens of one step. [default: the engine's]"
)
@click.option(
    "--kv_cache_free_gpu_memory_fraction",
    type=Finite(0, 1, min_open=True),
    help="Share of free memory for the KV cache.",
)
@click.option(
    "--max_tokens_in_paged_kv_cache", type=COUNT, help="Tokens that the KV cache holds. [default: a full batch]"
)
@click.option(
    "--host_cache_size", type=COUNT_OR_ZERO, help="Bytes of host memory for requests that MAX_UTILIZATION preempts."
)
@click.option(
    "--capacity_scheduler_policy", default="GUARANTEED_NO_EVICT", show_default=True, help="Or MAX_UTILIZATION."
)
@click.option(
    *("--no_kv_cache_block_reuse", "--no_enable_prefix_caching"),
    is_flag=True,
    help="Do not share the cache blocks of equal prefixes.",
)
@click.option("--speculative_config", type=JsonObject(), help="Fields of SpeculativeConfig, as JSON.")
@click.option("--deterministic", is_flag=True, help="What a request gets must not depend on the others, bit for bit.")
@click.option("--gather_context_logits", is_flag=True, help="Log probabilities of prompts must be there.")
@click.option("--max_lora_rank", type=COUNT, help="Take adapters of up to this rank, of models that are no engine.")
@click.option("--max_loras", type=COUNT, help=f"Adapters in use at once. [default: {DEFAULT_MAX_LORAS}]")
@click.option("--max_cpu_loras", type=COUNT, help="Adapters in memory. [default: twice as many]")
@click.option(
    "--lora_modules", multiple=True, metavar="NAME=DIR", help="An adapter, or vLLM's JSON; may be given several times."
)
@click.option("--lora_root", metavar="DIR", help="Let requests load adapters below this directory. [default: none]")
@click.option("--tool_call_parser", default=_AUTO, show_default=True, help="Form of tool calls: hermes, …, none.")
@click.option("--reasoning_parser", default=_AUTO, show_default=True, help="Form of reasoning: qwen3, …, none.")
@click.option(
    *("--tensor_parallel_size", "--tp_size"),
    type=COUNT,
    help="Devices that share out every layer, of models that are no engine. [default: 1]",
)
@click.option(
    *("--pipeline_parallel_size", "--pp_size"),
    type=COUNT,
    help="Stages that have some of the layers each, of models that are no engine. [default: 1]",
)
@click.option(
    "--distributed_executor_backend",
    help="ray: each stage computes in an actor of Ray. [default: all compute in this process]",
)
@click.option("--num_threads", type=COUNT, help="Threads that compute on the CPU. [default: all cores]")
@click.option(
    "--max_queue_size",
    type=COUNT_OR_ZERO,
    default=1024,
    show_default=True,
    help="Sequences that may wait; then status 429.",
)
@click.option(
    "--max_body_size",
    type=COUNT,
    default=HttpLimits.max_body_bytes,
    show_default=True,
    help="Bytes of a request's body at most.",
)
@click.option(
    *("--drain_timeout", "--shutdown_timeout"),
    type=Finite(min=0),
    default=30.0,
    show_default=True,
    help="Seconds for what runs when SIGTERM comes.",
)
@click.option("--api_key_file", metavar="FILE", help="Keys, one a line, of which requests must show one.")
@click.option("--allow_no_api_key", is_flag=True, help="Let other machines use the server without a key.")
@click.option("--no_access_log", is_flag=True, help="Do not write a line for each request.")
@click.option("--otlp_traces_endpoint", metavar="URL", help="Send a span for each request to this collector.")
@replaced_options(SERVE)
def serve(models: tuple[str, ...], host: str, port: int, **options: Any) -> None:
    """Serve engines over HTTP, with the API of OpenAI.

    MODEL is an engine, or a model of which an engine is made as LLM does: a checkpoint, a Hugging Face or GGUF model.
    Several are told apart by NAME, which requests give as their model.

    \b
    Examples:
      trtllm-lite serve engine
      trtllm-lite serve engine --host 0.0.0.0 --api_key_file keys.txt
      trtllm-lite serve small=engine-1b large=engine-8b --port 9000
    """
    from trtllm_lite.cli.lora_modules import give_adapters
    from trtllm_lite.serve.access_log import AccessLog
    from trtllm_lite.serve.api_keys import ApiKeys
    from trtllm_lite.serve.app import Settings
    from trtllm_lite.serve.run import ServerOptions, check_address, run

    keys = None if options["api_key_file"] is None else ApiKeys.from_file(Path(options["api_key_file"]))
    check_address(host, has_keys=keys is not None, allow_no_key=options["allow_no_api_key"])
    traces = _traces(options["otlp_traces_endpoint"])
    settings = Settings(
        api_keys=keys,
        lora_root=None if options["lora_root"] is None else Path(options["lora_root"]),
        access_log=AccessLog(None if options["no_access_log"] else sys.stderr),
        traces=traces,
    )
    served = ServerOptions(
        host=host,
        port=port,
        drain_timeout=options["drain_timeout"],
        limits=HttpLimits(max_body_bytes=options["max_body_size"]),
    )
    loaded: list[tuple[LLM, ModelSettings]] = []
    try:
        for name, path in _named(models):
            loaded.append(_load(name, path, len(models) > 1, options))
        give_adapters(loaded, options["lora_modules"], settings.lora_root)
        run(loaded, settings, served, lambda address: click.echo(f"serving at {address}", err=True))
    finally:
        while loaded:
            loaded.pop()[0].shutdown()
        if traces is not None:
            traces.close()
        gc.collect()  # engines give their memory back before the interpreter ends


def _traces(endpoint: str | None) -> "Traces | None":
    if endpoint is None:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ArgumentError(
            f"otlp_traces_endpoint is {shown(endpoint)}: expected the URL where a collector takes OTLP over HTTP, such "
            "as http://localhost:4318/v1/traces"
        )
    from trtllm_lite.serve.tracing import Traces

    return Traces.to(endpoint)


def _named(models: tuple[str, ...]) -> list[tuple[str, str]]:
    """Names and paths of ``[NAME=]MODEL``. Raises ArgumentError if two have one name."""
    pairs = []
    for model in models:
        name, equals, path = model.partition("=")
        pairs.append((name, path) if equals and not Path(model).exists() else (Path(model).name or model, model))
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ArgumentError(f"two models are called {shown(max(names, key=names.count))}: write NAME=MODEL")
    return pairs


def _load(name: str, path: str, is_one_of_several: bool, options: dict[str, Any]) -> "tuple[LLM, ModelSettings]":
    from trtllm_lite.llm import LLM
    from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig
    from trtllm_lite.serve.parsers import check_names, guess
    from trtllm_lite.serve.served_model import ModelSettings

    names = options["served_model_name"]
    if names and is_one_of_several:
        raise ArgumentError("served_model_name is for one model, and there are several: write NAME=MODEL")
    same = (
        *("tokenizer", "target", "dtype", "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"),
        *("speculative_config", "deterministic", "gather_context_logits", "max_lora_rank", "max_loras"),
        *("max_cpu_loras", "num_threads", "tensor_parallel_size", "pipeline_parallel_size"),
        "distributed_executor_backend",
    )
    llm = LLM(
        path,
        **{name: options[name] for name in same},
        kv_cache_config=KvCacheConfig(
            enable_block_reuse=not options["no_kv_cache_block_reuse"],
            free_gpu_memory_fraction=options["kv_cache_free_gpu_memory_fraction"],
            max_tokens=options["max_tokens_in_paged_kv_cache"],
            host_cache_size=options["host_cache_size"],
        ),
        scheduler_config=SchedulerConfig(capacity_scheduler_policy=options["capacity_scheduler_policy"]),
    )
    template = None if llm.tokenizer is None else llm.tokenizer.chat_template
    guessed = guess(None if template is None else template.text)
    tool_parser, reasoning_parser = map(_chosen, (options["tool_call_parser"], options["reasoning_parser"]), guessed)
    check_names(tool_parser, reasoning_parser)
    settings = ModelSettings(
        names=names or (name,),
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        max_queue_size=options["max_queue_size"],
    )
    return llm, settings


def _chosen(given: str, guessed: str | None) -> str | None:
    if given == _AUTO:
        return guessed
    return None if given == _NONE else given
