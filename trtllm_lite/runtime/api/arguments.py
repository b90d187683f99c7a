"""The arguments that TensorRT-LLM's ModelRunner and LLM have and this runtime does not support, and what replaces them.

An argument with a value that asks for nothing (``device_ids=None``) is accepted, so that old calls keep working. Any
other value is an error that says what replaces the argument. An argument that neither has is an error, too.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import ArgumentError, shown


@dataclass(frozen=True)
class Unsupported:
    """An argument that is accepted only if its value asks for nothing: None, False, empty, or one of ``neutral``."""

    remedy: str
    neutral: tuple[Any, ...] = ()


def _same(names: str, remedy: str, *neutral: Any) -> dict[str, Unsupported]:
    return {name: Unsupported(remedy, neutral) for name in names.split()}


_LORA = "adapters are directories that PEFT wrote: pass them as lora_dir"
_AUTOMATIC = "engines for GPUs choose this themselves; leave it out"
_DIVIDED = (
    "engines are divided among devices by tensor_parallel_size, moe_expert_parallel_size and pipeline_parallel_size, "
    "and in no other way yet; leave it out"
)
_WINDOWS = "attention windows are part of the model and travel in the engine; leave it out"
_SINKS = "attention sinks are not supported; leave it out"
_SPECULATION = "speculative decoding is not supported yet; leave it out"
_TEXT_ONLY = "only decoder models of text are supported; leave it out"
_CALLBACKS = "callbacks on logits are not supported; logit_bias and allowed_token_ids of SamplingParams are"
_PROMPT_TUNING = "prompt tuning is not supported; leave it out"
_LOADER = "weights are read from the engine file only; leave it out"

_MODEL_RUNNER = {
    **_same("max_attention_window_size", _WINDOWS),
    **_same("sink_token_length", _SINKS, 0),
    **_same("medusa_choices eagle_choices lookahead_config eagle_posterior_threshold", _SPECULATION),
    **_same("fail_fast_on_attention_window_too_large", "limits are always errors at once; leave it out", True),
}

FROM_DIR: Mapping[str, Unsupported] = {
    **_MODEL_RUNNER,
    **_same("lora_manager", _LORA),
    **_same("lora_ckpt_source", _LORA, "hf"),
    **_same("gpu_weights_percent", "weights are always on the device; leave it out", 1, 100),
    **_same("cuda_graph_mode stream", _AUTOMATIC),
    **_same("multi_block_mode enable_context_fmha_fp32_acc", _AUTOMATIC, True),
    **_same("debug_mode debug_tensor_names", "there is no debug mode; `trtllm-lite inspect` shows an engine"),
    **_same("is_enc_dec cross_kv_cache_fraction mm_embedding_offloading", _TEXT_ONLY),
    **_same("logits_processor_map", _CALLBACKS),
    **_same("is_orchestrator_mode", _DIVIDED),
    **_same("gather_generation_logits", "always available: generate(output_generation_logits=True)", True),
    **_same("use_runtime_defaults", "an engine's defaults are always used; leave it out", True),
    **_same("use_gpu_direct_storage", _LOADER),
}

GENERATE: Mapping[str, Unsupported] = {
    **_MODEL_RUNNER,
    **_same("output_sequence_lengths", "return_dict=True always has sequence_lengths", True),
    **_same("return_all_generated_tokens", "iterate with streaming=True: arrays hold everything so far", True),
    **_same("prompt_table prompt_table_path prompt_tasks input_token_extra_ids", _PROMPT_TUNING),
    **_same("encoder_input_ids encoder_input_features encoder_output_lengths cross_attention_masks", _TEXT_ONLY),
    **_same("mrope_params position_ids input_position_ids language_adapter_uids", _TEXT_ONLY),
    **_same("stopping_criteria", "use stop_words_list, end_id and max_new_tokens"),
    **_same("logits_processor logits_processor_names", _CALLBACKS),
    **_same("no_repeat_ngram_size", "use repetition_penalty or frequency_penalty", 0),
    **_same("beam_search_diversity_rate", "beams are ranked by their probability alone; leave it out", 0),
    **_same("prompt_ignore_length top_p_decay top_p_min top_p_reset_ids", "not supported; leave it out", 0),
}

LLM: Mapping[str, Unsupported] = {
    **_same("trust_remote_code", "code that comes with a model is never run; leave it out"),
    **_same("context_parallel_size gpus_per_node", _DIVIDED, 1),
    **_same(
        "moe_tensor_parallel_size", "it is tensor_parallel_size / moe_expert_parallel_size: pass these instead", 1, -1
    ),
    **_same("moe_cluster_parallel_size", _DIVIDED, 1, -1),
    **_same("enable_attention_dp", _DIVIDED),
    **_same("allreduce_strategy", "an engine's own counts: build it with --allreduce_strategy, and pass it", "AUTO"),
    **_same("cuda_graph_config attn_backend torch_compile_config sampler_type", _AUTOMATIC, "auto"),
    **_same("backend", "there is one runtime; leave it out", "tensorrt"),
    **_same("enforce_eager disable_overlap_scheduler", _AUTOMATIC),
    **_same("guided_decoding_backend", "llguidance compiles grammars; leave it out", "llguidance"),
    **_same("enable_lora", "max_lora_rank=… makes an engine that takes adapters; leave it out", True),
    **_same("lora_config peft_cache_config", "pass max_lora_rank, max_loras and max_cpu_loras themselves"),
    **_same("quant_config calib_config quantization", "quantization is not supported yet; dtype says how it is stored"),
    **_same("build_config", "pass its limits as arguments: max_batch_size, max_input_len, max_seq_len, ..."),
    **_same("fast_build", "what LLM builds it builds in seconds; leave it out", True),
    **_same("max_beam_width", "a search may have up to max_batch_size beams; leave it out", 1),
    **_same("gather_generation_logits", "always available; leave it out", True),
    **_same("skip_tokenizer_init", "the tokenizer loads in milliseconds; leave it out"),
    **_same("tokenizer_mode load_format", "there is one way; leave it out", "auto"),
    **_same("revision tokenizer_revision", "download that revision, and pass its directory as the model"),
    **_same("max_model_len", "its name here is max_seq_len"),
    **_same("max_num_seqs", "its name here is max_batch_size"),
    **_same("max_num_batched_tokens", "its name here is max_num_tokens"),
    **_same("gpu_memory_utilization", "use kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=...)"),
    **_same("kv_cache_dtype", "use kv_cache_config=KvCacheConfig(dtype=...)", "auto"),
    **_same("seed", "use SamplingParams(seed=...)", 0),
}


def reject_unsupported(
    function: str, given: Mapping[str, Any], table: Mapping[str, Unsupported], supported: Iterable[str]
) -> None:
    """Raise ArgumentError for the first of ``given`` that is unknown, or unsupported with a value that asks for it."""
    for name, value in given.items():
        entry = table.get(name)
        if entry is None:
            raise ArgumentError(_unknown(function, name, list(supported)))
        if not _is_neutral(value, entry.neutral):
            raise ArgumentError(f"{function}: {name}={shown(value)} is not supported: {entry.remedy}")


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether ``value`` asks for nothing; a list does if each of its items does."""
    if value is None or value is False:
        return True
    if isinstance(value, list | tuple):
        return all(_is_neutral(item, neutral) for item in value)
    if isinstance(value, dict | set | str) and not value:
        return True
    return type(value) in (int, float, bool, str) and value in neutral


def _unknown(function: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(sorted(known))}"
    return f"{function} has no argument {shown(name)}: {hint}"
