"""Ahead-of-time engine compiler and runtime for large language models."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trtllm_lite.foreign_names.quantization import QuantAlgo
    from trtllm_lite.llm import LLM
    from trtllm_lite.runtime.api.classification import ClassificationOutput
    from trtllm_lite.runtime.api.embedding import EmbeddingOutput
    from trtllm_lite.runtime.api.engine_configs import BuildConfig, QuantConfig
    from trtllm_lite.runtime.api.request_output import CompletionOutput, RequestOutput
    from trtllm_lite.runtime.lora.request import LoRARequest
    from trtllm_lite.runtime.session.config import (
        CapacitySchedulerPolicy,
        ContextChunkingPolicy,
        KvCacheConfig,
        SchedulerConfig,
        SpeculativeConfig,
    )
    from trtllm_lite.runtime.session.guided_decoding import GuidedDecodingParams
    from trtllm_lite.runtime.session.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "BuildConfig",
    "CapacitySchedulerPolicy",
    "ClassificationOutput",
    "CompletionOutput",
    "ContextChunkingPolicy",
    "EmbeddingOutput",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LoRARequest",
    "QuantAlgo",
    "QuantConfig",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "SpeculativeConfig",
]

# Modules of the names above, which are imported when they are first used, so that the command line starts at once.
_MODULES = {
    "LLM": "trtllm_lite.llm",
    "BuildConfig": "trtllm_lite.runtime.api.engine_configs",
    "CapacitySchedulerPolicy": "trtllm_lite.runtime.session.config",
    "ClassificationOutput": "trtllm_lite.runtime.api.classification",
    "CompletionOutput": "trtllm_lite.runtime.api.request_output",
    "ContextChunkingPolicy": "trtllm_lite.runtime.session.config",
    "EmbeddingOutput": "trtllm_lite.runtime.api.embedding",
    "GuidedDecodingParams": "trtllm_lite.runtime.session.guided_decoding",
    "KvCacheConfig": "trtllm_lite.runtime.session.config",
    "LoRARequest": "trtllm_lite.runtime.lora.request",
    "QuantAlgo": "trtllm_lite.foreign_names.quantization",
    "QuantConfig": "trtllm_lite.runtime.api.engine_configs",
    "RequestOutput": "trtllm_lite.runtime.api.request_output",
    "SamplingParams": "trtllm_lite.runtime.session.sampling_params",
    "SchedulerConfig": "trtllm_lite.runtime.session.config",
    "SpeculativeConfig": "trtllm_lite.runtime.session.config",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from trtllm_lite.foreign_names.classes import foreign_class

        return foreign_class(__name__, name)
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
