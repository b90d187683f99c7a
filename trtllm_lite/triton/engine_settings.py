"""Reads how the model ``tensorrt_llm`` runs its engine: optional parameters of its ``config.pbtxt``."""

from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.llm import LLM
from trtllm_lite.runtime.session.engine_dir import engine_path
from trtllm_lite.triton.python_backend import Parameters

SETTINGS = (
    "kv_cache_free_gpu_mem_fraction",
    "max_tokens_in_paged_kv_cache",
    "enable_kv_cache_reuse",
    "enable_chunked_context",
    "batch_scheduler_policy",
    "num_threads",
)
"""The names are those of Triton's TensorRT-LLM backend, except num_threads, for CPU engines."""

_FLAGS = {"true": True, "false": False}


def open_engine(parameters: Parameters) -> LLM:
    """The engine that ``engine_dir`` names.

    Raises EngineError if there is no engine, ArgumentError for a parameter of another form, and the errors of
    :class:`LLM`.
    """
    kv_cache = {
        "free_gpu_memory_fraction": _number(parameters, "kv_cache_free_gpu_mem_fraction"),
        "max_tokens": whole_number_of(parameters, "max_tokens_in_paged_kv_cache"),
        "enable_block_reuse": _flag(parameters, "enable_kv_cache_reuse"),
    }
    policy = parameters.text("batch_scheduler_policy")
    settings: dict[str, Any] = {
        "kv_cache_config": _given(kv_cache),
        "scheduler_config": _given({"capacity_scheduler_policy": policy and policy.upper()}),
        "enable_chunked_prefill": _flag(parameters, "enable_chunked_context"),
        "num_threads": whole_number_of(parameters, "num_threads"),
    }
    directory = parameters.path("engine_dir")
    engine_path(directory, rank=0)  # raises for a model, which LLM would accept
    return LLM(directory, **_given(settings))


def whole_number_of(parameters: Parameters, name: str) -> int | None:
    """The value of a parameter, None if it is absent. Raises ArgumentError unless it is a whole number above 0."""
    text = parameters.text(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text[:18]) == 0:
        raise _wrong(name, text, "a whole number above 0")
    return int(text[:18])


def _number(parameters: Parameters, name: str) -> float | None:
    text = parameters.text(name)
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise _wrong(name, text, "a number") from error


def _flag(parameters: Parameters, name: str) -> bool | None:
    text = parameters.text(name)
    if text is not None and text.lower() not in _FLAGS:
        raise _wrong(name, text, "true or false")
    return None if text is None else _FLAGS[text.lower()]


def _wrong(name: str, value: str | None, expected: str) -> ArgumentError:
    return ArgumentError(f"config.pbtxt has {name} {shown(value)}: expected {expected}")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
