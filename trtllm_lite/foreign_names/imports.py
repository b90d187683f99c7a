"""Makes classes that TensorRT-LLM and vLLM export and that have no counterpart here.

Programs often import classes that they use only in some cases. So the import works, and the first use raises the
remedy.
"""

from typing import Any, NoReturn

from trtllm_lite.errors import ArgumentError
from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import Foreign, merge, same

_STRINGS = "pass the name as a string, such as "

CLASSES = merge(
    [
        same("BuildConfig", "pass its limits to LLM as arguments: max_batch_size, max_input_len, max_seq_len, ..."),
        same("LlmArgs TorchLlmArgs TrtLlmArgs EngineArgs AsyncEngineArgs", "pass the arguments to LLM itself"),
        same("QuantConfig QuantAlgo CalibConfig", remedies.QUANTIZE),
        same("NGramDecodingConfig", 'use SpeculativeConfig(method="ngram")'),
        same("DraftTargetDecodingConfig", 'use SpeculativeConfig(method="draft_model")'),
        same("MTPDecodingConfig", 'use SpeculativeConfig(method="mtp")'),
        same("EagleDecodingConfig", 'use SpeculativeConfig(method="eagle3")'),
        same("MedusaDecodingConfig LookaheadDecodingConfig UserProvidedDecodingConfig", remedies.MEDUSA),
        same("CapacitySchedulerPolicy", _STRINGS + 'SchedulerConfig(capacity_scheduler_policy="MAX_UTILIZATION")'),
        same("ContextChunkingPolicy", _STRINGS + '"FIRST_COME_FIRST_SERVED"'),
        same("CudaGraphConfig TorchCompileConfig MoeConfig ExtendedRuntimePerfKnobConfig", remedies.KERNELS),
        same("BatchingType DynamicBatchConfig", "requests are always batched in flight; leave it out"),
        same("BuildCacheConfig", "LLM always keeps the engines that it makes; leave it out"),
        same("KvCacheRetentionConfig", "blocks that were used last are kept longest; leave it out"),
        same("CacheTransceiverConfig DisaggregatedParams", "prompts and answers are computed by one engine"),
        same("MultimodalEncoder", remedies.TEXT_ONLY),
        same("MpiCommSession", "one process runs all ranks; leave it out"),
        same("RequestError", "errors are in trtllm_lite.errors"),
        same("LLMEngine AsyncLLMEngine AsyncLLM", "use LLM, whose generate_async threads and coroutines may share"),
        same("PoolingParams PoolingRequestOutput EmbeddingRequestOutput", "use LLM.embed, which takes texts"),
        same("StructuredOutputsParams", "use GuidedDecodingParams"),
        same("BeamSearchParams", "use SamplingParams(use_beam_search=True)"),
    ]
)


class _Foreign(type):
    """The type of classes that cannot be used: each use raises ArgumentError with the class's remedy."""

    def __call__(cls, *arguments: Any, **given: Any) -> NoReturn:
        del arguments, given
        raise ArgumentError(f"{cls.__name__} is no class of trtllm_lite: {CLASSES[cls.__name__].remedy}")

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        cls()


def foreign_class(module: str, name: str) -> type:
    """A class that stands for one of another engine in ``module``. Raises AttributeError for unknown names."""
    entry: Foreign | None = CLASSES.get(name)
    if entry is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _Foreign(name, (), {"__doc__": entry.remedy, "__module__": module})
