"""Lists arguments of other engines: of TensorRT-LLM's ModelRunner, and of the classes of its LLM API and of vLLM's."""

from collections.abc import Mapping

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import Foreign, merge, same
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.request_fields.fields import RequestFields

_LORA = "adapters are directories that PEFT wrote: pass them as lora_dir"
_DIVIDED = (
    "engines are divided among devices by tensor_parallel_size, moe_expert_parallel_size and pipeline_parallel_size, "
    "and in no other way yet; leave it out"
)
_CALLBACKS = "callbacks on logits are not supported; logit_bias and allowed_token_ids of SamplingParams are"
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
        same("is_orchestrator_mode", _DIVIDED),
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
        same("prompt_table prompt_table_path prompt_tasks input_token_extra_ids", _PROMPT_TUNING),
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
_STATS = "LLM.get_stats() and RequestOutput.metrics are always there"
_BUILT = "what LLM builds it builds in seconds, and keeps; leave it out"
_SERVED = "it is an option of `trtllm-lite serve`"
_DEFAULTS = "a model's own defaults are part of its engine; SamplingParams says otherwise for a call"
_LLM_OF_BOTH = merge(
    [
        same("trust_remote_code", remedies.NO_CODE),
        same("quantization quant_config calib_config", remedies.QUANTIZE),
        same("guided_decoding_backend", "llguidance compiles grammars; leave it out", ("llguidance", "auto")),
        same("enable_lora", _ADAPTERS, (True,)),
        same("skip_tokenizer_init", "the tokenizer loads in milliseconds; leave it out"),
        same("tokenizer_mode load_format", "there is one way; leave it out", ("auto",)),
        same("revision tokenizer_revision", "download that revision, and pass its directory as the model"),
        same("reasoning_parser", _SERVED),
    ]
)
_LLM_OF_TENSORRT_LLM = merge(
    [
        same("context_parallel_size gpus_per_node", _DIVIDED, (1,)),
        same(
            "moe_tensor_parallel_size",
            "it is tensor_parallel_size / moe_expert_parallel_size: pass these instead",
            (1, -1),
        ),
        same("moe_cluster_parallel_size", _DIVIDED, (1, -1)),
        same("enable_attention_dp enable_lm_head_tp_in_adp attention_dp_config cp_config", _DIVIDED),
        same("orchestrator_type", 'one process is enough; distributed_executor_backend="ray" spreads stages'),
        same(
            "allreduce_strategy", "an engine's own counts: build it with --allreduce_strategy, and pass it", ("AUTO",)
        ),
        same("cuda_graph_config attn_backend torch_compile_config sampler_type", remedies.KERNELS, ("auto",)),
        same("moe_config extended_runtime_perf_knob_config enable_min_latency", remedies.KERNELS),
        same("enable_autotuner disable_overlap_scheduler", remedies.KERNELS, (True,)),
        same("backend", "there is one runtime; leave it out", ("tensorrt", "pytorch")),
        same("lora_config peft_cache_config", "pass max_lora_rank, max_loras and max_cpu_loras themselves"),
        same("build_config", "pass its limits as arguments: max_batch_size, max_input_len, max_seq_len, ..."),
        same("fast_build enable_build_cache", _BUILT, (True,)),
        same("max_beam_width", "a search may have up to max_batch_size beams; leave it out", (1,)),
        same("gather_generation_logits", "always available; leave it out", (True,)),
        same("enable_iter_perf_stats enable_iter_req_stats return_perf_metrics print_iter_log", _STATS, harmless=True),
        same("iter_stats_max_iterations request_stats_max_iterations", _STATS, harmless=True),
        same("enable_tqdm", "generate(use_tqdm=…) shows progress", harmless=True),
        same("num_postprocess_workers", "one process is enough here", (0,), harmless=True),
        same("stream_interval", "every token is there as it comes", (1,), harmless=True),
        same("garbage_collection_gen0_threshold workspace", "nothing here needs it", harmless=True),
        same("normalize_log_probs", "length_penalty of SamplingParams does that for beams"),
        same("batched_logits_processor", _CALLBACKS),
        same("fail_fast_on_attention_window_too_large", "limits are always errors at once", (True,), harmless=True),
        same("decoding_config", "pass speculative_config"),
        same("enable_prompt_adapter max_prompt_adapter_token", _PROMPT_TUNING, (0,)),
        same("checkpoint_format checkpoint_loader", _LOADER, ("HF",)),
        same("cache_transceiver_config", "prompts and answers are computed by one engine; leave it out"),
    ]
)
_LLM_OF_VLLM = merge(
    [
        same("max_model_len", _BOTH, becomes="max_seq_len"),
        same("max_num_seqs", _BOTH, becomes="max_batch_size"),
        same("max_num_batched_tokens", _BOTH, becomes="max_num_tokens"),
        same("gpu_memory_utilization", _SHARE, harmless=True, becomes="kv_cache_config.free_gpu_memory_fraction"),
        same("kv_cache_memory_bytes", _CACHE, becomes="kv_cache_config.max_gpu_total_bytes"),
        same("enable_prefix_caching", _CACHE, becomes="kv_cache_config.enable_block_reuse"),
        same("kv_cache_dtype", _CACHE, ("auto",), becomes="kv_cache_config.dtype"),
        same("block_size", _CACHE, becomes="kv_cache_config.tokens_per_block"),
        same("num_gpu_blocks_override", "use kv_cache_config=KvCacheConfig(max_tokens=...)"),
        same("device", 'use target, such as "cpu" or "sm_90"', ("auto",)),
        same("seed", "use SamplingParams(seed=...)", (0,)),
        same("enforce_eager", "engines are compiled ahead, and run as they are", harmless=True),
        same("disable_custom_all_reduce compilation_config max_seq_len_to_capture", remedies.KERNELS, harmless=True),
        same("swap_space", "host_cache_size of kv_cache_config is the memory for preempted requests", (0, 4)),
        same("cpu_offload_gb", "weights are always on the device; leave it out", (0,)),
        same("disable_log_stats", "there is no log; get_stats() tells", (True,), harmless=True),
        same("max_logprobs", "SamplingParams bounds logprobs itself", harmless=True),
        same("download_dir", "set the variable HF_HOME"),
        same("hf_token", "set the variable HF_TOKEN"),
        same("hf_overrides", "change the model's config.json, or pass ignore_config_keys"),
        same("task runner", "an encoder's engine embeds, a decoder's generates", ("generate", "auto")),
        same("convert model_impl", "the model's config.json says what it is; leave it out", ("auto",)),
        same("generation_config", _DEFAULTS, ("auto",)),
        same("override_generation_config logits_processor_pattern", _DEFAULTS),
        same("logits_processors", _CALLBACKS),
        same("limit_mm_per_prompt mm_processor_kwargs allowed_local_media_path", remedies.TEXT_ONLY, harmless=True),
        same("data_parallel_size", _DIVIDED, (1,)),
        same("served_model_name tool_call_parser chat_template", _SERVED),
        same("async_scheduling disable_async_output_proc", "steps always overlap", harmless=True),
    ]
)

LLM: Mapping[str, Foreign] = merge([_LLM_OF_TENSORRT_LLM, _LLM_OF_VLLM, _LLM_OF_BOTH])

_TABLE = "blocks that were used last are kept longest; leave it out"
SAMPLING_PARAMS: Mapping[str, Foreign] = merge(
    [
        *(
            same(" ".join(field.aliases), _BOTH, becomes=name)
            for name, field in fields_of(RequestFields).items()
            if field.aliases
        ),
        same("beam_width num_beams", "use use_beam_search=True, with best_of beams of which n are returned", (1,)),
        same("beam_width_array", "a search has as many beams at each token; leave it out"),
        same("beam_search_diversity_rate", remedies.BEAMS, (0,)),
        same("pad_id", "outputs have lengths of their own, without padding", harmless=True),
        same("embedding_bias", "use logit_bias"),
        same("logits_processor logits_processors apply_batched_logits_processor", _CALLBACKS),
        same("top_p_min top_p_reset_ids top_p_decay", "top_p stays as it is for all tokens; leave it out", (0, 1)),
        same("prompt_ignore_length", "penalties count all tokens of the prompt; leave it out", (0,)),
        same("no_repeat_ngram_size", "use repetition_penalty or frequency_penalty", (0,)),
        same("exclude_input_from_output", "outputs never have the prompt in them; leave it out", (True,)),
        same("return_perf_metrics", "RequestOutput.metrics is always there", harmless=True),
        same("return_encoder_output", remedies.TEXT_ONLY),
        same("additional_model_outputs", "return_context_logits and return_generation_logits are what there is"),
        same("lookahead_config", remedies.MEDUSA),
        same("add_special_tokens", "prompts as token ids are taken as they are, and texts get them", (True,)),
        same("spaces_between_special_tokens", "texts are what the tokenizer makes of all tokens", (True,)),
        same("structured_outputs", "use guided_decoding=GuidedDecodingParams(...)"),
        same("output_kind", "generate_async(streaming=...) chooses, and outputs have the new part, too", (0,)),
        same("extra_args logprob_token_ids", "there is nothing that takes it; leave it out"),
        same("flat_logprobs", "logprobs are a list of dictionaries; leave it out"),
        same("skip_reading_prefix_cache", "give requests a cache_salt of their own"),
    ]
)
KV_CACHE_CONFIG: Mapping[str, Foreign] = merge(
    [
        same("secondary_offload_min_priority", _TABLE),
        same("cross_kv_cache_fraction", remedies.TEXT_ONLY),
        same("enable_partial_reuse copy_on_partial_reuse", "whole blocks are shared; leave it out", harmless=True),
        same("use_uvm", "host_cache_size holds what does not fit; leave it out"),
        same("mamba_ssm_cache_dtype", "state space models are not supported; leave it out", ("auto",)),
        same("attention_dp_events_gather_period_ms", "KV cache events are not recorded", (5,), harmless=True),
        same("max_util_for_resume", "a preempted request goes on once its blocks are free", harmless=True),
        same("onboard_blocks", "preempted requests always get their blocks back", (True,)),
    ]
)
