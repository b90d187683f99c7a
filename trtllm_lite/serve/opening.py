"""Opens the engines of a server, by the options of ``trtllm_lite/cli/server_options.py``."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.llm import LLM
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig
from trtllm_lite.serve.access_log import AccessLog
from trtllm_lite.serve.api_keys import ApiKeys
from trtllm_lite.serve.app import Settings
from trtllm_lite.serve.lora_modules import give_adapters
from trtllm_lite.serve.model_weights import check_kinds, shares_of
from trtllm_lite.serve.origins import Origins, host_name, is_loopback
from trtllm_lite.serve.parsers import check_names, detect
from trtllm_lite.serve.served_engine import ModelSettings

if TYPE_CHECKING:
    from trtllm_lite.serve.tracing import Traces

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
_AUTO, _NONE = "auto", "none"  # values besides the names of parsers

Opened = list[tuple[LLM, ModelSettings]]


def named(models: Sequence[str]) -> list[tuple[str, str]]:
    """Names and paths of ``[NAME=]MODEL``. Raises ArgumentError if two have the same name."""
    pairs = []
    for model in models:
        name, equals, path = model.partition("=")
        pairs.append((name, path) if equals and not Path(model).exists() else (Path(model).name or model, model))
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ArgumentError(f"two models are called {shown(max(names, key=names.count))}: write NAME=MODEL")
    return pairs


def settings_of(options: Mapping[str, Any], host: str | None) -> Settings:
    """The operator's settings, for a server at ``host``, or behind another server if ``host`` is None.

    Raises ArgumentError for missing files and invalid addresses.
    """
    api_keys, admin_keys = _keys("api_key_file", options), _keys("admin_key_file", options)
    return Settings(
        api_keys=api_keys,
        admin_keys=admin_keys,
        origins=_origins(options, is_local=host is not None and is_loopback(host), has_keys=api_keys is not None),
        lora_root=None if options["lora_root"] is None else Path(options["lora_root"]),
        ignore_unknown_fields=options["ignore_unknown_fields"],
        access_log=AccessLog(None if options["no_access_log"] else sys.stderr, as_json=logs_json(options)),
        traces=_traces(options["otlp_traces_endpoint"]),
    )


def logs_json(options: Mapping[str, Any]) -> bool:
    """Whether the log has a JSON object on each line."""
    return bool(options["log_format"] == "json")


def _keys(option: str, options: Mapping[str, Any]) -> ApiKeys | None:
    return None if options[option] is None else ApiKeys.from_file(option, Path(options[option]))


def _origins(options: Mapping[str, Any], *, is_local: bool, has_keys: bool) -> Origins:
    """The allowed origins. A server that only this machine can reach allows this machine's pages.

    Without keys such a server refuses other pages, unless ``allowed_origins`` names their origins.
    """
    for origin in options["allowed_origins"]:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise ArgumentError(
                f"allowed_origins has {shown(origin)}: expected a scheme and a host without a path, such as "
                "https://chat.example, or *"
            )
    hosts = frozenset(map(host_name, options["allowed_hosts"]))
    guards = is_local and not has_keys
    return Origins(
        hosts=hosts if hosts or guards else None,
        origins=frozenset(options["allowed_origins"]),
        takes_local_pages=is_local,
        refuses_others=guards,
    )


@contextmanager
def opened(models: Sequence[tuple[str, str]], settings: Settings, options: Mapping[str, Any]) -> Iterator[Opened]:
    """Open the engines of named models, with their settings, until the block ends."""
    shares = shares_of(options["model_weights"], [name for name, _ in models])
    loaded: Opened = []
    try:
        for name, path in models:
            llm, chosen = _open(name, path, len(models) > 1, options)
            loaded.append((llm, replace(chosen, shares=shares.get(name, {}))))
        check_kinds(loaded)
        give_adapters(loaded, options["lora_modules"], settings.lora_root)
        yield loaded
    finally:
        while loaded:
            loaded.pop()[0].shutdown()
        if settings.traces is not None:
            settings.traces.close()


def _open(name: str, path: str, is_one_of_several: bool, options: Mapping[str, Any]) -> tuple[LLM, ModelSettings]:
    names = options["served_model_name"]
    if names and is_one_of_several:
        raise ArgumentError("served_model_name is for one model, and there are several: write NAME=MODEL")
    same = (
        *(
            "tokenizer",
            "target",
            "dtype",
            "qformat",
            "max_batch_size",
            "max_input_len",
            "max_seq_len",
            "max_num_tokens",
        ),
        *("max_num_tokens", "speculative_config", "deterministic", "gather_context_logits", "max_lora_rank"),
        *("max_loras", "max_cpu_loras", "num_threads", "tensor_parallel_size", "pipeline_parallel_size"),
        *("moe_expert_parallel_size", "distributed_executor_backend"),
    )
    llm = LLM(
        path,
        **{name: options[name] for name in same},
        kv_cache_config=KvCacheConfig(
            enable_block_reuse=not options["no_kv_cache_block_reuse"],
            free_gpu_memory_fraction=options["kv_cache_free_gpu_memory_fraction"],
            max_tokens=options["max_tokens_in_paged_kv_cache"],
            host_cache_size=options["host_cache_size"],
            tokens_per_block=options["tokens_per_block"],
            dtype=options["kv_cache_dtype"],
            key_cache_dtype=options["key_cache_dtype"],
            state_dtype=options["state_dtype"],
            state_snapshot_interval=options["state_snapshot_interval"],
        ),
        scheduler_config=SchedulerConfig(capacity_scheduler_policy=options["capacity_scheduler_policy"]),
    )
    template = None if llm.tokenizer is None else llm.tokenizer.chat_template
    detected = detect(None if template is None else template.text)
    tool_parser, reasoning_parser = map(_chosen, (options["tool_call_parser"], options["reasoning_parser"]), detected)
    check_names(tool_parser, reasoning_parser)
    settings = ModelSettings(
        names=names or (name,),
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        refuses_special_tokens=options["refuse_special_tokens"],
        max_queue_size=options["max_queue_size"],
        takes_priorities=options["scheduling_policy"] == "priority",
    )
    return llm, settings


def _chosen(given: str, detected: str | None) -> str | None:
    if given == _AUTO:
        return detected
    return None if given == _NONE else given


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
