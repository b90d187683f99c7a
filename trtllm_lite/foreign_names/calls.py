"""Lists arguments of other engines: of TensorRT-LLM's ModelRunner, and of the classes of its LLM API and of vLLM's."""

from collections.abc import Mapping

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.commands import BUILD
from trtllm_lite.foreign_names.engine import ENGINE
from trtllm_lite.foreign_names.entry import SPREAD, Foreign, merge, same
from trtllm_lite.foreign_names.quantization import VLLM
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.request_fields.fields import RequestFields

_LORA = "adapters are directories that PEFT wrote: pass them as lora_dir"
_CALLBACKS = "callbacks on logits are not supported; logit_bias and allowed_token_ids of SamplingParams are"
_PROMPT_TABLE = (
    'prompts take rows of embeddings themselves: {"prompt_token_ids": ids, "prompt_embeds": rows}, where the id '
    "vocab_size + i stands for row i"
)
_PROMPT_TUNING = "prompt tuning is not supported; leave it out"
_LOADER = "weights are read from the engine file only; leave it out"

_MODEL_RUNNER = merge(
    [
        same("max_attention_window_size", remedies.WINDOWS),
        same("sink_token_length", remedies.SINKS, (0,)),
        same("medusa_choices eagle_choices lookahead_config eagle_posterior_threshold", remedies.MEDUSA),
        same("fail_fast_on_attention_window_too_large", "limits are always errors at once; leave it out", (True,)),
    ]
)

FROM_DIR: Mapping[str, Foreign] = merge(
    [
        _MODEL_RUNNER,
        same("lora_manager", _LORA),
        same("lora_ckpt_source", _LORA, ("hf",)),
        same("gpu_weights_percent", "weights are always on the device; leave it out", (1, 100)),
        same("cuda_graph_mode stream", remedies.KERNELS),
        same("multi_block_mode enable_context_fmha_fp32_acc", remedies.KERNELS, (True,)),
        same("debug_mode debug_tensor_names", "there is no debug mode; `trtllm-lite inspect` shows an engine"),
        same("is_enc_dec cross_kv_cache_fraction mm_embedding_offloading", remedies.TEXT_ONLY),
        same("logits_processor_map", _CALLBACKS),
        same("is_orchestrator_mode", remedies.DIVIDED),
        same("gather_generation_logits", "always available: generate(output_generation_logits=True)", (True,)),
        same("use_runtime_defaults", "an engine's defaults are always used; leave it out", (True,)),
        same("use_gpu_direct_storage", _LOADER),
    ]
)

GENERATE: Mapping[str, Foreign] = merge(
    [
        _MODEL_RUNNER,
        same("output_sequence_lengths", "return_dict=True always has sequence_lengths", (True,)),
        same("return_all_generated_tokens", "iterate with streaming=True: arrays hold everything so far", (True,)),
        same("prompt_table prompt_table_path prompt_tasks input_token_extra_ids", _PROMPT_TABLE),
        same(
            "encoder_input_ids encoder_input_features encoder_output_lengths cross_attention_masks", remedies.TEXT_ONLY
        ),
        same("mrope_params position_ids input_position_ids language_adapter_uids", remedies.TEXT_ONLY),
        same("stopping_criteria", "use stop_words_list, end_id and max_new_tokens"),
        same("logits_processor logits_processor_names", _CALLBACKS),
        same("no_repeat_ngram_size", "use repetition_penalty or frequency_penalty", (0,)),
        same("beam_search_diversity_rate", remedies.BEAMS, (0,)),
        same("prompt_ignore_length top_p_decay top_p_min top_p_reset_ids", "not supported; leave it out", (0,)),
    ]
)

_SHARE = (
    "it is kv_cache_config.free_gpu_memory_fraction here, which bounds the KV cache by a share of what weights leave "
    "free, not of all memory"
)
_CACHE = "it is a field of kv_cache_config here"
_BOTH = "it is another name of an argument here"
_ADAPTERS = "max_lora_rank=… makes an engine that takes adapters; leave it out"
_BUILT = "LLM builds an engine in seconds, and keeps it; leave it out"
_SERVED = "it is an option of `trtllm-lite serve`"
LLM: Mapping[str, Foreign] = merge(
    [
        ENGINE,
        same("max_model_len", _BOTH, becomes="max_seq_len"),
        same("max_num_seqs", _BOTH, becomes="max_batch_size"),
        same("max_num_batched_tokens", _BOTH, becomes="max_num_tokens"),
        same("gpu_memory_utilization", _SHARE, harmless=True, becomes="kv_cache_config.free_gpu_memory_fraction"),
        same("kv_cache_memory_bytes", _CACHE, becomes="kv_cache_config.max_gpu_total_bytes"),
        same("enable_prefix_caching", _CACHE, becomes="kv_cache_config.enable_block_reuse"),
        same("kv_cache_dtype", _CACHE, ("auto",), becomes="kv_cache_config.dtype"),
        same("mamba_ssm_cache_dtype", _CACHE, ("auto",), becomes="kv_cache_config.state_dtype"),
        same("block_size", _CACHE, becomes="kv_cache_config.tokens_per_block"),
        same("num_gpu_blocks_override", "use kv_cache_config=KvCacheConfig(max_tokens=...)"),
        same("swap_space", remedies.OFFLOADING, (0, 4)),
        {"quantization": Foreign(remedies.QUANTIZE, becomes="qformat", values=VLLM)},
        same("quant_config", "pass a QuantConfig", becomes=SPREAD),
        same("build_config", "pass a BuildConfig", becomes=SPREAD),
        same("calib_config", remedies.CALIBRATE),
        same("enable_lora", _ADAPTERS, (True,)),
        same("lora_config peft_cache_config", "pass max_lora_rank, max_loras and max_cpu_loras themselves"),
        same("fast_build enable_build_cache", _BUILT, (True,)),
        same("backend", "there is one runtime; leave it out", ("tensorrt", "pytorch")),
        same("device", 'use target, such as "cpu" or "sm_90"', ("auto",)),
        same("embedding_parallel_mode", "embeddings are split by rows of the vocabulary", ("sharding_along_vocab",)),
        same("gather_generation_logits", "always available; leave it out", (True,)),
        same("enable_tqdm", "generate(use_tqdm=…) shows progress", harmless=True),
        same("normalize_log_probs", "length_penalty of SamplingParams does that for beams"),
        same("batched_logits_processor", _CALLBACKS),
        same("decoding_config", "pass speculative_config"),
        same("enable_prompt_adapter max_prompt_adapter_token", _PROMPT_TUNING, (0,)),
        same("served_model_name tool_call_parser chat_template reasoning_parser", _SERVED),
        same("otlp_traces_endpoint", _SERVED),
        same("scheduling_policy", "generate(priority=…) orders requests; leave it out", ("fcfs", "priority")),
    ]
)

_TABLE = "blocks that were used last are kept longest; leave it out"
SAMPLING_PARAMS: Mapping[str, Foreign] = merge(
    [
        *(
            same(" ".join(field.aliases), _BOTH, becomes=name)
            for name, field in fields_of(RequestFields).items()
            if field.aliases
        ),
        same("beam_width num_beams", "use use_beam_search=True, with best_of beams of which n are returned", (1,)),
        same("beam_width_array", "a search has the same number of beams at every token; leave it out"),
        same("beam_search_diversity_rate", remedies.BEAMS, (0,)),
        same("pad_id", "outputs have lengths of their own, without padding", harmless=True),
        same("embedding_bias", "use logit_bias"),
        same("logits_processor logits_processors apply_batched_logits_processor", _CALLBACKS),
        same("top_p_min top_p_reset_ids top_p_decay", "top_p stays as it is for all tokens; leave it out", (0, 1)),
        same("prompt_ignore_length", "penalties count all tokens of the prompt; leave it out", (0,)),
        same("no_repeat_ngram_size", "use repetition_penalty or frequency_penalty", (0,)),
        same("exclude_input_from_output", "outputs never contain the prompt; leave it out", (True,)),
        same("return_perf_metrics", "RequestOutput.metrics is always there", harmless=True),
        same("return_encoder_output", remedies.TEXT_ONLY),
        same("additional_model_outputs", "use return_context_logits or return_generation_logits"),
        same("lookahead_config", remedies.MEDUSA),
        same("add_special_tokens", "texts always get special tokens, prompts of token ids never", (True,)),
        same("spaces_between_special_tokens", "texts are decoded from all tokens together", (True,)),
        same("structured_outputs", _BOTH, becomes="guided_decoding"),
        same("output_kind", "use generate_async(streaming=...), whose outputs also have the new part alone", (0,)),
        same("extra_args logprob_token_ids", "nothing here reads it; leave it out"),
        same("flat_logprobs", "logprobs are a list of dictionaries; leave it out"),
        same("logprobs_mode", "there is one kind of log probabilities; leave it out", ("raw",)),
        same(
            "prompt_logprob_token_ids prompt_logprob_start",
            "prompt_logprobs are those of all tokens of the prompt",
            (0,),
        ),
        same("stream_interval", "each token is delivered at once", (1,), harmless=True),
        same("skip_clone", "parameters are never changed", harmless=True),
        same("thinking_token_budget", "use max_tokens, which counts thoughts, too"),
        same("repetition_detection", "use frequency_penalty"),
        same("routed_experts_prompt_start", "LLM.expert_counts() tells what routers chose", (0,)),
        same("trace_decode_token_ids", "use allowed_token_ids"),
        same("skip_reading_prefix_cache", "give requests a cache_salt of their own"),
    ]
)
KV_CACHE_CONFIG: Mapping[str, Foreign] = merge(
    [
        same("max_attention_window", remedies.WINDOWS),
        same("sink_token_length", remedies.SINKS, (0,)),
        same("event_buffer_max_size", "KV cache events are not recorded; LLM.get_stats() has its use", (0,)),
        same("secondary_offload_min_priority", _TABLE),
        same("cross_kv_cache_fraction", remedies.TEXT_ONLY),
        same("enable_partial_reuse copy_on_partial_reuse", "whole blocks are shared; leave it out", harmless=True),
        same("use_uvm", "host_cache_size holds what does not fit; leave it out"),
        same("mamba_ssm_cache_dtype", "use state_dtype", ("auto",), becomes="state_dtype"),
        same("attention_dp_events_gather_period_ms", "KV cache events are not recorded", (5,), harmless=True),
        same("max_util_for_resume", "a preempted request goes on once its blocks are free", harmless=True),
        same("use_kv_cache_manager_v2", "there is one manager of blocks", ("auto",), harmless=True),
        same("onboard_blocks", "preempted requests always get their blocks back", (True,)),
    ]
)
BUILD_CONFIG: Mapping[str, Foreign] = merge(
    [
        {name: entry for name, entry in BUILD.items() if name != "gather_context_logits"},
        same("max_draft_len", "pass num_speculative_tokens in the speculative_config of LLM", (0,)),
        same("max_encoder_input_len", remedies.TEXT_ONLY, (0, 1024)),
        same("max_beam_width", "a search may have up to max_batch_size beams", (1,), harmless=True),
        same("input_timing_cache output_timing_cache", "use `trtllm-lite build`", ("model.cache",)),
        same("speculative_decoding_mode", remedies.SPECULATION, ("none", "speculativedecodingmode.none", 1)),
        same("lora_config", "pass max_lora_rank to LLM"),
    ]
)
QUANT_CONFIG: Mapping[str, Foreign] = merge(
    [
        same("exclude_modules", "use --quantize_override of `trtllm-lite quantize`"),
        same("smoothquant_val clamp_val", "every scheme finds its own values; leave it out", (0.5,)),
        same("has_zero_point pre_quant_scale use_meta_recipe", "every scheme has its own scales; leave it out"),
        same("activated_sparsity mamba_ssm_stochastic_rounding", "not supported; leave it out"),
    ]
)
