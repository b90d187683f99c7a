"""Makes classes that TensorRT-LLM and vLLM export and that this package has under other names, or not at all.

A class of MADE makes an object of a class of this package. An object of a harmless class of CLASSES changes nothing.
Programs often import the other classes and use them only in some cases. So the import works, and the first use raises
the remedy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, NoReturn

from trtllm_lite.errors import ArgumentError
from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.arguments import own_arguments
from trtllm_lite.foreign_names.entry import Foreign, merge, same


@dataclass(frozen=True)
class Made:
    """A class that makes ``trtllm_lite.<own>`` with the fields ``fixed``; ``arguments`` translates its arguments."""

    own: str
    fixed: Mapping[str, Any]
    arguments: Mapping[str, Foreign]


_FIELD = "it is another name of a field here"
_OUTCOME = "generated tokens do not depend on it"
_TREES = "drafts are a chain, not a tree; leave it out"
_SPECULATION = merge(
    [
        same("max_draft_len prompt_lookup_num_tokens", _FIELD, becomes="num_speculative_tokens"),
        same("num_nextn_predict_layers", _FIELD, becomes="num_speculative_tokens"),
        same("max_matching_ngram_size", _FIELD, becomes="prompt_lookup_max"),
        same("speculative_model speculative_model_dir", _FIELD, becomes="model"),
        same("is_keep_all is_use_oldest is_public_pool", _OUTCOME, (True,), harmless=True),
        same(
            "eagle3_one_model eagle3_layers_to_capture num_eagle_layers greedy_sampling",
            _OUTCOME,
            (True,),
            harmless=True,
        ),
        same("load_format eagle3_model_arch", _OUTCOME, ("llama3", "auto"), harmless=True),
        same("eagle_choices use_dynamic_tree dynamic_tree_max_topK max_non_leaves_per_layer", _TREES),
        same("max_total_draft_tokens", _TREES),
        same(
            "posterior_threshold use_relaxed_acceptance_for_thinking relaxed_topk relaxed_delta", remedies.EXACT, (0, 1)
        ),
        same("max_concurrency draft_len_schedule acceptance_window acceptance_length_threshold", remedies.PACED, (0,)),
        same("pytorch_weights_path", "give the head's engine as speculative_model"),
        same("decoding_type", "the class sets it; leave it out", ("ngram", "eagle", "eagle3", "mtp", "draft_target")),
    ]
)
_FORMS = merge(
    [
        same("disable_any_whitespace disable_additional_properties", "llguidance decides that; leave it out"),
        same("whitespace_pattern disable_fallback", "llguidance decides that; leave it out"),
    ]
)
MADE: Mapping[str, Made] = {
    "NGramDecodingConfig": Made("SpeculativeConfig", {"method": "ngram"}, _SPECULATION),
    "DraftTargetDecodingConfig": Made("SpeculativeConfig", {"method": "draft_model"}, _SPECULATION),
    "MTPDecodingConfig": Made("SpeculativeConfig", {"method": "mtp"}, _SPECULATION),
    "EagleDecodingConfig": Made("SpeculativeConfig", {"method": "eagle3"}, _SPECULATION),
    "Eagle3DecodingConfig": Made("SpeculativeConfig", {"method": "eagle3"}, _SPECULATION),
    "StructuredOutputsParams": Made("GuidedDecodingParams", {}, _FORMS),
}

_ARGUMENTS = "pass the arguments to LLM itself"
CLASSES: Mapping[str, Foreign] = merge(
    [
        same("LlmArgs TorchLlmArgs TrtLlmArgs EngineArgs AsyncEngineArgs", _ARGUMENTS),
        same("CalibConfig", remedies.CALIBRATE),
        same("LoraConfig PeftCacheConfig", "pass max_lora_rank, max_loras and max_cpu_loras to LLM"),
        same("MedusaDecodingConfig LookaheadDecodingConfig UserProvidedDecodingConfig", remedies.MEDUSA),
        same("AutoDecodingConfig PARDDecodingConfig SaveHiddenStatesDecodingConfig", remedies.MEDUSA),
        same(
            "CudaGraphConfig TorchCompileConfig MoeConfig Nvfp4GemmConfig PluginConfig", remedies.KERNELS, harmless=True
        ),
        same("ExtendedRuntimePerfKnobConfig", remedies.KERNELS, harmless=True),
        same("BatchingType DynamicBatchConfig", "requests are always batched in flight", harmless=True),
        same("BuildCacheConfig", "LLM always keeps the engines that it makes", harmless=True),
        same("KVCacheType", "the KV cache is always paged", harmless=True),
        same("KvCacheRetentionConfig", "blocks that were used last are kept longest; leave it out"),
        same("CacheTransceiverConfig DisaggregatedParams", "prompts and answers are computed by one engine"),
        same("AttentionDpConfig CpConfig", remedies.DIVIDED),
        same("MultimodalEncoder", remedies.TEXT_ONLY),
        same("MpiCommSession", "one process runs all ranks; leave it out"),
        same("RequestError", "errors are in trtllm_lite.errors"),
        same("LLMEngine AsyncLLMEngine AsyncLLM", "use LLM, whose generate_async threads and coroutines may share"),
        same("PoolingParams PoolingRequestOutput EmbeddingRequestOutput", "use LLM.embed, which takes texts"),
        same("BeamSearchParams", "use SamplingParams(use_beam_search=True)"),
        same("TextPrompt TokensPrompt", "pass a text, a list of token ids, or a dictionary of either"),
    ]
)


class _Foreign(type):
    """The metaclass of classes without a counterpart here: each use raises an error unless the class is harmless."""

    def __call__(cls, *arguments: Any, **given: Any) -> Any:
        if not CLASSES[cls.__name__].harmless:
            cls.refuse()
        del arguments, given
        return super().__call__()

    def __getattr__(cls, name: str) -> str:
        """A member of an enumeration, by its name."""
        if name.startswith("_"):
            raise AttributeError(name)
        if not CLASSES[cls.__name__].harmless:
            cls.refuse()
        return name

    def refuse(cls) -> NoReturn:
        """Raise ArgumentError with the class's remedy."""
        raise ArgumentError(f"{cls.__name__} is no class of trtllm_lite: {CLASSES[cls.__name__].remedy}")


class _Maker(type):
    """The metaclass of the classes of MADE, which make objects of this package's classes."""

    def __call__(cls, **given: Any) -> Any:
        made = MADE[cls.__name__]
        own: Any = getattr(import_module("trtllm_lite"), made.own)
        known = [field.name for field in fields(own) if field.name not in made.fixed]
        return own(**made.fixed, **own_arguments(cls.__name__, given, made.arguments, known))


def foreign_class(module: str, name: str) -> type:
    """A class that stands for one of another engine in ``module``. Raises AttributeError for unknown names."""
    if name in MADE:
        doc = f"Makes a :class:`{MADE[name].own}`, by TensorRT-LLM's or vLLM's names."
        return _Maker(name, (), {"__doc__": doc, "__module__": module})
    if name not in CLASSES:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _Foreign(name, (), {"__doc__": CLASSES[name].remedy, "__module__": module})
