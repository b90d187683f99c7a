"""Lists arguments of TensorRT-LLM's and vLLM's ``LLM`` that are options of their servers as well."""

from collections.abc import Mapping

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import Foreign, merge, same

_TASKS = "an encoder's engine embeds or classifies, a decoder's generates"
_ONE_WAY = "models are read in one way; leave it out"
_OWN_DEFAULTS = "a model's own defaults are part of its engine, and requests may override them"
_CONFIG = "change the model's config.json, or pass ignore_config_keys"
_STEPS = "prompts are spread over steps as they fit; leave it out"
_MAPPED = "files of weights are mapped into memory; leave it out"
_OVERLAP = "steps always overlap"
_METRICS = "metrics are always collected"
_WORKERS = "one process is enough here"
_NODES = 'distributed_executor_backend="ray" spreads stages among machines'
_TRANSFER = "prompts and answers are computed by one engine; leave it out"
_RELEASE = "shutdown() gives the memory back; leave it out"
_WAITING = "a step begins as soon as a request is there; leave it out"
_LOGPROBS = "there is one kind of log probabilities; leave it out"
_STATE_SPACES = "what convolutions keep is float32, and states are kept by blocks of tokens; leave it out"

_PARALLEL = merge(
    [
        same("context_parallel_size prefill_context_parallel_size", remedies.DIVIDED, (1,)),
        same("decode_context_parallel_size data_parallel_size gpus_per_node cluster_size", remedies.DIVIDED, (1,)),
        same("moe_cluster_parallel_size", remedies.DIVIDED, (1, -1)),
        same("moe_tensor_parallel_size", remedies.EXPERTS, (1, -1)),
        same("enable_expert_parallel", "pass moe_expert_parallel_size, the number of groups of devices", ("false",)),
        same("enable_attention_dp enable_lm_head_tp_in_adp attention_dp_config cp_config", remedies.DIVIDED),
        same("pp_partition", "layers are split evenly among stages; leave it out"),
        same("nnodes node_rank data_parallel_rank master_addr master_port", _NODES, (0, 1, "127.0.0.1", 29501)),
        same("all2all_backend expert_placement_strategy", remedies.KERNELS, harmless=True),
        same("enable_eplb eplb_config enable_dbo", "experts stay on their devices; leave it out", ("false", "{}")),
        same("allreduce_strategy", "each build sets it: see `trtllm-lite build --allreduce_strategy`", ("auto",)),
        same("orchestrator_type mpi_session", _NODES),
        same("max_parallel_loading_workers ray_workers_use_nsight", _MAPPED, harmless=True),
    ]
)
_MODEL = merge(
    [
        same("trust_remote_code", remedies.NO_CODE, ("false",)),
        same("custom_tokenizer custom_module_dirs io_processor_plugin reasoning_parser_plugin", remedies.NO_CODE),
        same("tool_parser_plugin logits_processors middleware scheduler_cls", remedies.NO_CODE),
        same("worker_cls worker_extension_cls ray_worker_extension_cls", remedies.NO_CODE, ("auto",)),
        same("load_format", "weights are those of the model; leave it out", ("auto", "safetensors", "hf")),
        same("tokenizer_mode config_format model_impl", _ONE_WAY, ("auto", "hf")),
        same("checkpoint_format checkpoint_loader", _ONE_WAY, ("hf",)),
        same("skip_tokenizer_init", "the tokenizer loads in milliseconds; leave it out", ("false",)),
        same("revision code_revision", "download that revision, and pass its directory as the model"),
        same("tokenizer_revision", "download that revision, and pass its directory as tokenizer"),
        same("hf_config_path", "pass the model's directory"),
        same("hf_overrides model_kwargs rope_scaling rope_theta", _CONFIG, ("{}",)),
        same("disable_sliding_window", "attention windows are part of the model; leave it out", ("false",)),
        same("download_dir", "set the variable HF_HOME"),
        same("hf_token", "set the variable HF_TOKEN"),
        same("safetensors_load_strategy model_loader_extra_config use_tqdm_on_load", _MAPPED, harmless=True),
        same("pt_load_map_location ignore_patterns", _MAPPED, harmless=True),
        same("task runner", _TASKS, ("auto", "generate", "embed", "classify", "pooling")),
        same("convert", _TASKS, ("auto", "none")),
        same("pooler_config override_pooler_config", "an encoder's own pooling is used; leave it out", ("{}",)),
        same("generation_config", _OWN_DEFAULTS, ("auto",)),
        same("override_generation_config", _OWN_DEFAULTS, ("{}",)),
        same("logits_processor_pattern", _OWN_DEFAULTS),
        same("sparse_attention_config", "attention is the model's own; leave it out"),
        same("mamba_cache_dtype mamba_block_size", _STATE_SPACES, ("auto",)),
        same("enable_mm_embeds interleave_mm_strings mm_encoder_only", remedies.TEXT_ONLY, ("false",)),
        same("allowed_local_media_path allowed_media_domains", remedies.TEXT_ONLY),
        same("limit_mm_per_prompt mm_processor_kwargs mm_processor_cache_gb", remedies.TEXT_ONLY, harmless=True),
        same("media_io_kwargs disable_mm_preprocessor_cache", remedies.TEXT_ONLY, harmless=True),
        same("quantization_param_path calculate_kv_scales", remedies.CACHE_SCALES, ("false",)),
        same("force_dynamic_quantization", remedies.QUANTIZE, ("false",)),
    ]
)
_RUNNING = merge(
    [
        same("enforce_eager", "engines are compiled ahead, and run as they are", harmless=True),
        same("compilation_config max_seq_len_to_capture cuda_graph_sizes", remedies.KERNELS, harmless=True),
        same("cuda_graph_config torch_compile_config enable_piecewise_cuda_graph", remedies.KERNELS, harmless=True),
        same("disable_custom_all_reduce disable_cascade_attn attention_backend", remedies.KERNELS, harmless=True),
        same("attention_config kernel_config attn_backend sampler_type", remedies.KERNELS, harmless=True),
        same("moe_config nvfp4_gemm_config enable_autotuner", remedies.KERNELS, harmless=True),
        same("additional_config extended_runtime_perf_knob_config enable_min_latency", remedies.KERNELS),
        same("sampler_force_async_worker optimization_level performance_mode", remedies.KERNELS, harmless=True),
        same("async_scheduling disable_async_output_proc disable_overlap_scheduler", _OVERLAP, harmless=True),
        same("max_num_partial_prefills max_long_partial_prefills", _STEPS, (1,)),
        same("long_prefill_token_threshold", _STEPS, (0,)),
        same("batch_wait_timeout_ms batch_wait_timeout_iters batch_wait_max_tokens_ratio", _WAITING, (0,)),
        same("batching_type", "requests are always batched in flight", ("inflight", "batchingtype.inflight")),
        same("prefix_caching_hash_algo", "prefixes are compared by their tokens; leave it out", harmless=True),
        same("cpu_offload_gb", "weights are always on the device; leave it out", (0,)),
        same("kv_offloading_size kv_offloading_backend", remedies.OFFLOADING, ("native",)),
        same("enable_sleep_mode enable_sleep", _RELEASE, ("false",)),
        same("seed", "a request's seed is its own field; leave it out", (0,)),
        same("max_beam_width", "a search may have up to max_batch_size beams", (1,), harmless=True),
        same("max_logprobs", "a request may have at most 20 log probabilities; leave it out", harmless=True),
        same("logprobs_mode", _LOGPROBS, ("raw_logprobs",)),
        same("stream_interval", "each token is delivered at once; slow readers get larger chunks", (1,), harmless=True),
        same("num_postprocess_workers api_server_count", _WORKERS, (0, 1), harmless=True),
        same("postprocess_tokenizer_dir workspace garbage_collection_gen0_threshold", _WORKERS, harmless=True),
        same("disable_log_stats", _METRICS, harmless=True),
        same(
            "enable_iter_perf_stats enable_iter_req_stats return_perf_metrics print_iter_log", _METRICS, harmless=True
        ),
        same(
            "iter_stats_max_iterations request_stats_max_iterations perf_metrics_max_requests", _METRICS, harmless=True
        ),
        same(
            "collect_detailed_traces enable_layerwise_nvtx_marker profiler_config", "use Nsight Systems; leave it out"
        ),
        same("kv_transfer_config kv_events_config kv_connector_config cache_transceiver_config", _TRANSFER),
        same("fail_fast_on_attention_window_too_large", "limits are always errors at once", harmless=True),
        same("enable_return_routed_experts", "LLM.expert_counts() tells what routers chose; leave it out", ("false",)),
        same("fully_sharded_loras lora_dtype max_lora_extra_vocab_size", "adapters need no such room", harmless=True),
        same("structured_outputs_config", remedies.GRAMMARS, ("{}",)),
        same("guided_decoding_backend", remedies.GRAMMARS, ("auto", "guidance", "llguidance")),
        same("env_overrides layer_wise_benchmarks_config", "nothing here reads it; leave it out", ("{}",)),
    ]
)

ENGINE: Mapping[str, Foreign] = merge([_PARALLEL, _MODEL, _RUNNING])
