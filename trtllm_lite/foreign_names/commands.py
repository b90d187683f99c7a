"""Options and commands of other engines.

The options are those of TensorRT-LLM's convert_checkpoint.py, quantize.py, trtllm-build, run.py and trtllm-serve, and
of `vllm serve` and `vllm bench serve`.
"""

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import merge, same
from trtllm_lite.vocabulary import PLAIN_DTYPES

_ON = ("", "enable", "auto", "true", "1", "yes", "on")
_ON_IN_ANY_DTYPE = (*_ON, *PLAIN_DTYPES)
_OFF = ("disable", "false", "0", "no", "off", "none")


_DIVIDED = (
    "engines are divided among devices by --tp_size, --moe_ep_size and --pp_size of `trtllm-lite build`, and in no "
    "other way yet"
)
_ANY_NUMBER = "a checkpoint is the same for any number of GPUs: use --tp_size and --pp_size of `trtllm-lite build`"
_SHARDED = "`trtllm-lite build --tp_size` shares embeddings out by rows of the vocabulary"
_INT8_WEIGHTS = "use `trtllm-lite build --qformat int8_wo`"
_MIXED = "use --autoq_format and --auto_quantize_bits of `trtllm-lite quantize`"
_LORA = "adapters are given when an engine runs; --max_lora_rank makes room for them, at every linear layer"

_EVERYWHERE = merge(
    [
        same("log_level", "there is no log; errors say what to do, and --debug shows where they arose", harmless=True),
        same("workers", "one process is enough here", ("1",), harmless=True),
    ]
)
_PARALLEL = merge(
    [
        same("cp_size", _DIVIDED, ("1",)),
        same("moe_tp_size", "it is tp_size / moe_ep_size: use these options of `trtllm-lite build`", ("1",)),
        same("world_size", "use --tp_size and --pp_size of `trtllm-lite build`", ("1",)),
        same("auto_parallel", _DIVIDED, ("1", *_OFF)),
        same("gpus_per_node cluster_key", _DIVIDED),
    ]
)
_QUANTIZED = merge(
    [
        same("use_weight_only", _INT8_WEIGHTS, _OFF),
        same("weight_only_precision", _INT8_WEIGHTS),
        same("per_channel per_token", "every scheme has the scales that suit it; see `trtllm-lite quantize`", _OFF),
        same("use_fp8 enable_fp8", "use --qformat fp8 of `trtllm-lite quantize` or `build`", _OFF),
        same("use_fp8_rowwise", "use --qformat fp8_rowwise of `trtllm-lite quantize` or `build`", _OFF),
        same("smoothquant use_smooth_quant", "use --qformat int8_sq of `trtllm-lite quantize` or `build`", _OFF),
        same("int8_kv_cache", "use --kv_cache_dtype int8 of `trtllm-lite quantize` or `build`", _OFF),
        same("fp8_kv_cache", "use --kv_cache_dtype fp8 of `trtllm-lite quantize` or `build`", _OFF),
        same("per_group", "use a --qformat of 4 bits, and --group_size, of `trtllm-lite quantize` or `build`", _OFF),
        same("quant_mode quant_config", remedies.SCHEMES, _OFF),
        same("quant_ckpt_path modelopt_quant_ckpt_path", remedies.QUANTIZED_CHECKPOINT),
        same("awq_block_size", "use --group_size of `trtllm-lite quantize` or `build`"),
        same("dataset_cache_dir", "--calib_dataset of `trtllm-lite quantize` is a file", harmless=True),
        same("autoq_format auto_quantize_bits", _MIXED, _OFF),
    ]
)
_CALIBRATION = "calib_dataset calib_size calib_max_seq_length"
_LATER = "use it with `trtllm-lite quantize`, which comes after `convert`"

CONVERT = merge(
    [
        _EVERYWHERE,
        _PARALLEL,
        same("tp_size pp_size moe_ep_size", _ANY_NUMBER, ("1",)),
        _QUANTIZED,
        same("qformat", _LATER, ("full_prec", "none")),
        same(f"{_CALIBRATION} quantize_lm_head", _LATER, _OFF),
        same("kv_cache_dtype", "use `trtllm-lite build --kv_cache_dtype`", ("auto", "none")),
        same("load_by_shard load_model_on_cpu", "weights are always streamed on the CPU", harmless=True),
        same("use_parallel_embedding embedding_sharding_dim", _SHARDED, harmless=True),
        same("use_embedding_sharing", "tied embeddings are always stored once", harmless=True),
        same("export_format", "there is one format; leave it out", ("tensorrt_llm",)),
        same("device", "converting needs no GPU", harmless=True),
        same(
            "trust_remote_code",
            "code that comes with a checkpoint is never run; families are declared in trtllm_lite/convert/families",
            _OFF,
        ),
    ]
)

_BUILT_IN = "the fused operators are built in"
_FUSED = "engines fuse what they can; `trtllm-lite inspect` says what"
_STANDARD = "every engine does this"
_BUILD = merge(
    [
        _EVERYWHERE,
        _PARALLEL,
        _QUANTIZED,
        same("max_beam_width", "a search may have up to --max_batch_size beams", ("1",), harmless=True),
        same("opt_num_tokens", "every size of step up to --max_num_tokens is as fast", harmless=True),
        same("max_output_len", "the output may fill what the prompt leaves of --max_seq_len; set that instead"),
        same("max_encoder_input_len max_prompt_embedding_table_size max_multimodal_len", remedies.TEXT_ONLY, ("0",)),
        same("kv_cache_type", "the KV cache is always paged; leave it out", ("paged",)),
        same("paged_kv_cache remove_input_padding use_inflight_batching", _STANDARD, _ON, harmless=True),
        same("context_fmha enable_context_fmha use_paged_context_fmha reduce_fusion", _STANDARD, _ON, harmless=True),
        same("use_fused_mlp enable_xqa use_custom_all_reduce strongly_typed", _STANDARD, _ON, harmless=True),
        same("context_fmha_fp32_acc bert_context_fmha_fp32_acc", "sums are always float32", _ON, harmless=True),
        same("gpt_attention_plugin bert_attention_plugin gemm_plugin", _BUILT_IN, _ON_IN_ANY_DTYPE, harmless=True),
        same("use_gpt_attention_plugin use_gemm_plugin use_rmsnorm_plugin", _BUILT_IN, harmless=True),
        same("gemm_swiglu_plugin low_latency_gemm_plugin low_latency_gemm_swiglu_plugin", _BUILT_IN, harmless=True),
        same("nccl_plugin user_buffer gemm_allreduce_plugin pp_reduce_scatter", _BUILT_IN, harmless=True),
        same("use_fp8_context_fmha", "attention computes in the type of activations; leave it out", _OFF),
        same("norm_quant_fusion fuse_fp4_quant", _FUSED, harmless=True),
        same("fp8_rowwise_gemm_plugin weight_only_quant_matmul_plugin", _BUILT_IN, harmless=True),
        same("weight_only_groupwise_quant_matmul_plugin smooth_quant_gemm_plugin", _BUILT_IN, harmless=True),
        same("smooth_quant_plugins quantize_per_token_plugin quantize_tensor_plugin", _BUILT_IN, harmless=True),
        same("qserve_gemm_plugin", remedies.SCHEMES, _OFF),
        same("rmsnorm_quantization_plugin layernorm_quantization_plugin", _BUILT_IN, harmless=True),
        same("moe_plugin", _BUILT_IN, harmless=True),
        same("mamba_conv1d_plugin", "state space models are not supported; leave it out", (*_OFF, "auto")),
        same("lora_plugin", _LORA, _OFF),
        same("dora_plugin", "DoRA is not supported; merge the adapter into the model before converting it", _OFF),
        same("lora_dir lora_ckpt_source lora_target_modules", _LORA),
        same("multiple_profiles", "engines have no profiles; every size of step is as fast", harmless=True),
        same("streamingllm paged_state", "engines have no such variants; leave it out", (*_OFF, "auto")),
        same("speculative_decoding_mode", remedies.GUESSES, ("none",)),
        same("weight_streaming weight_sparsity", "weights are stored and read as they are; leave it out", _OFF),
        same("builder_opt enable_debug_output profiling_verbosity", "see `trtllm-lite inspect`", harmless=True),
        same("dtype", "the type is chosen earlier, with `trtllm-lite convert --dtype`"),
        same("visualize_network", "use `trtllm-lite inspect`, or open network.onnx of the checkpoint in Netron", _OFF),
        same("logits_dtype", "logits are float32; leave it out", ("float32",)),
        same(
            "gather_generation_logits",
            "always available: ModelRunner.generate(output_generation_logits=True)",
            harmless=True,
        ),
        same("gather_all_token_logits", "use --gather_context_logits", _OFF),
        same("build_config", "pass --checkpoint_dir and the limits as flags"),
        same("model_dir", "use --checkpoint_dir, with a directory that `trtllm-lite convert` made of the model"),
    ]
)

_PREDICTS = "`plan` writes nothing and predicts the memory"
BUILD = merge(
    [
        _BUILD,
        same("dry_run", "use `trtllm-lite plan` with the same flags", _OFF),
        same("monitor_memory", "use `trtllm-lite plan`, which predicts the memory", _OFF),
    ]
)
# `plan` also accepts the options that only `build` has, so that a command line of `build` works with `plan` as well.
PLAN = merge(
    [
        _BUILD,
        same("dry_run monitor_memory", _PREDICTS, _ON, harmless=True),
        same(f"{_CALIBRATION} calib_seed calib_dir max_accuracy_loss", _PREDICTS, harmless=True),
        same("output_dir strip_plan input_timing_cache output_timing_cache fast_build", _PREDICTS, harmless=True),
    ]
)

GENERATE = merge(
    [
        _EVERYWHERE,
        same("input_text", "use --prompt"),
        same("input_file", "use --prompt - and pipe the file in"),
        same("max_output_len", "use --max_new_tokens"),
        same("max_input_length", "prompts are never cut; leave it out"),
        same("tokenizer_dir tokenizer_type vocab_file", "the tokenizer travels in the engine", harmless=True),
        same("streaming streaming_interval", "text is always streamed, token by token", harmless=True),
        same("use_py_session", "there is one runtime", harmless=True),
        same("no_prompt_template", "prompts are plain text unless --chat is given", harmless=True),
        same("run_profiling", "use `trtllm-lite bench latency`", _OFF),
        same("output_csv output_npy output_logits_npy", "use ModelRunner.generate(return_dict=True) in Python"),
        same("output_log_probs_npy output_cum_log_probs_npy", "use ModelRunner.generate(output_log_probs=True)"),
        same("max_attention_window_size", remedies.WINDOWS),
        same("sink_token_length", remedies.SINKS, ("0", "none")),
        same("multi_block_mode cuda_graph_mode", "engines for GPUs choose this themselves", harmless=True),
        same("enable_context_fmha_fp32_acc", "sums are always float32", harmless=True),
        same("gpu_weights_percent", "weights are always on the device; leave it out", ("1", "1.0", "100")),
        same("prompt_table_path prompt_tasks input_token_extra_ids", remedies.TEXT_ONLY),
        same("medusa_choices eagle_choices lookahead_config", remedies.MEDUSA),
        same("prompt_lookup_config draft_target_model_config draft_engine_dir", remedies.GUESSES),
        same("early_stopping", "SamplingParams(early_stopping=…) in Python says when a search ends", ("1", "true")),
        same("num_return_sequences", "one answer is printed; use SamplingParams(n=…) in Python", ("1",)),
        same("eagle_posterior_threshold eagle_use_dynamic_tree eagle_dynamic_tree_max_top_k", remedies.MEDUSA, _OFF),
        same("fail_fast_on_attention_window_too_large", "limits are always errors at once", harmless=True),
        same("multimodal_input_file image_path audio_path", remedies.TEXT_ONLY),
        same("max_seq_len", "answers end by --max_new_tokens", harmless=True),
        same("model_dir", "give the engine, or its directory as --engine_dir"),
        same("seed", "use --random_seed"),
        same("stop", "use --stop_words"),
        same("max_tokens", "use --max_new_tokens"),
        same("beam_search_diversity_rate", remedies.BEAMS, ("0", "0.0")),
        same("no_repeat_ngram_size", "use --repetition_penalty", ("0",)),
        same("debug_mode", "use `trtllm-lite inspect`", _OFF),
        same("lora_task_uids lora_ckpt_source", "an adapter of PEFT's format is given with --lora_dir alone"),
        same("kv_cache_enable_block_reuse no_kv_cache_enable_block_reuse", "one prompt reuses nothing", harmless=True),
        same(
            "kv_cache_free_gpu_memory_fraction max_tokens_in_paged_kv_cache enable_chunked_context",
            "the KV cache of one prompt is made as large as it needs",
            harmless=True,
        ),
    ]
)

_ALL_FIGURES = "every latency is reported, with its mean and percentiles"
BENCH_SERVE = merge(
    [
        same("max_concurrency", "use --concurrency"),
        same("num_prompts", "use --num_requests"),
        same("random_input_len input_length", "use --input_len"),
        same("random_output_len output_length", "use --output_len"),
        same("random_range_ratio", "use --input_len LEAST:MOST and --output_len LEAST:MOST", ("0", "0.0")),
        same("random_prefix_len", "use --prefix_len"),
        same("dataset_name", "prompts are random; --input_len sharegpt has lengths like ShareGPT's", ("random",)),
        same("dataset_path dataset", "no data set is read; --input_len sharegpt has lengths like ShareGPT's"),
        same("sharegpt_output_len", "use --output_len"),
        same("host port", "use --base_url http://HOST:PORT"),
        same("backend endpoint_type", "use --endpoint /v1/completions or /v1/chat/completions", ("openai", "vllm")),
        same("served_model_name", "use --model, with the name that the server knows"),
        same("percentile_metrics metric_percentiles", _ALL_FIGURES, harmless=True),
        same("save_result save_detailed", "use --json FILE"),
        same("result_dir result_filename append_result", "use --json FILE"),
        same("disable_tqdm", "progress is shown in terminals alone", harmless=True),
        same("tokenizer_mode skip_tokenizer_init", "--tokenizer is only read for prompts as text", harmless=True),
        same("trust_remote_code", remedies.NO_CODE, _OFF, harmless=True),
        same("temperature", "the likeliest tokens are asked for; leave it out", ("0", "0.0")),
        same("top_p top_k min_p", "the likeliest tokens are asked for; leave it out"),
        same("header extra_body", "requests have no other fields; --api_key_file gives a key"),
        same("insecure", "certificates are always verified; use http for a server that has none"),
        same("profile logprobs use_beam_search", "requests ask for tokens alone; leave it out", _OFF),
        same("ramp_up_strategy ramp_up_start_rps ramp_up_end_rps", "measure each --request_rate by itself"),
    ]
)

_TASKS = "an encoder's engine embeds, a decoder's generates"
_OWN_DEFAULTS = "a model's own defaults are part of its engine, and requests may say otherwise"
_GRAMMARS = "llguidance compiles grammars, as requests ask for them; leave it out"
_ADAPTERS = "adapters need no such room"
_TLS = "the server speaks HTTP alone: let a proxy in front of it do TLS"
SERVE = merge(
    [
        _EVERYWHERE,
        same("data_parallel_size", _DIVIDED, ("1",)),
        same("gpu_memory_utilization", "use --kv_cache_free_gpu_memory_fraction, a share of what weights leave free"),
        same("kv_cache_memory_bytes", "use --max_tokens_in_paged_kv_cache"),
        same("seed", "a request's seed is its own field; leave it out"),
        same("revision", "give the directory of the revision that is to be served"),
        same("max_log_len disable_log_requests", "prompts are never logged", harmless=True),
        same("stream_interval", "every token is sent as it comes; slow readers get larger chunks", ("1",)),
        same("api_key", "keys on a command line are seen by all users of a machine: use --api_key_file"),
        same("backend", "there is one runtime; leave it out", ("tensorrt",)),
        same("max_beam_width", "a search may have up to --max_batch_size beams", ("1",), harmless=True),
        same("enable_auto_tool_choice", "tools are always taken where their form is known", harmless=True),
        same(
            "enable_prefix_caching", "prefixes are shared; --no_kv_cache_block_reuse switches that off", harmless=True
        ),
        same("enable_chunked_prefill enable_chunked_context", "prompts are spread over steps", _ON, harmless=True),
        same("enable_lora", "adapters are taken by engines that are built with --max_lora_rank", harmless=True),
        same("trust_remote_code", remedies.NO_CODE, _OFF),
        same("ssl_keyfile ssl_certfile ssl_ca_certs", _TLS),
        same("uvicorn_log_level disable_uvicorn_access_log", "use --no_access_log"),
        same("allowed_methods allowed_headers", "pages of --allowed_origins may use all methods and headers"),
        same("config extra_llm_api_options", "pass what it holds as flags"),
        same("num_postprocess_workers api_server_count", "one process is enough here", ("1", "0"), harmless=True),
        same("quantization", "build an engine with `trtllm-lite build --qformat`, and serve that"),
        same("kv_cache_dtype", "build an engine with `trtllm-lite build --kv_cache_dtype`, and serve that", ("auto",)),
        same("enforce_eager", _STANDARD, _OFF, harmless=True),
        same("chat_template", "the model's own is taken; convert the model again with another tokenizer_config.json"),
        same("root_path", "let the proxy in front of the server remove the path"),
        same("disable_log_stats", "figures are at /metrics alone", harmless=True),
        same("enable_log_requests enable_log_outputs", "prompts and answers are never logged", _OFF),
        same("generation_config", _OWN_DEFAULTS, ("auto",)),
        same("override_generation_config", _OWN_DEFAULTS, ("{}",)),
        same("max_logprobs", "requests are bounded by OpenAI's limits", harmless=True),
        same("block_size", "build an engine with `trtllm-lite build --tokens_per_block`, and serve that"),
        same("download_dir", "set the variable HF_HOME"),
        same("hf_token", "set the variable HF_TOKEN: tokens on a command line are seen by all users of a machine"),
        same("load_format tokenizer_mode config_format model_impl", "there is one way; leave it out", ("auto", "hf")),
        same("swap_space", "use --host_cache_size, in bytes, with --capacity_scheduler_policy", ("0", "4")),
        same("cpu_offload_gb", "weights are always on the device; leave it out", ("0", "0.0")),
        same(
            "task runner", "an encoder's engine embeds, a decoder's generates", ("auto", "generate", "embed", "pooling")
        ),
        same("convert", "an encoder's engine embeds, a decoder's generates", ("auto", "none")),
        same("async_scheduling disable_async_output_proc", "steps always overlap", harmless=True),
        same("limit_mm_per_prompt mm_processor_kwargs", remedies.TEXT_ONLY, ("{}",)),
        same("allowed_local_media_path allowed_media_domains interleave_mm_strings", remedies.TEXT_ONLY),
        same("compilation_config cuda_graph_sizes max_seq_len_to_capture", remedies.KERNELS, harmless=True),
        same("disable_custom_all_reduce disable_cascade_attn attention_backend", remedies.KERNELS, harmless=True),
        same("uds", "let a proxy listen there, and send requests to --host and --port"),
        same("enable_reasoning", "--reasoning_parser alone says that", harmless=True),
        same("structured_outputs_config guided_decoding_backend", _GRAMMARS, ("{}", "auto", "guidance")),
        same("hf_overrides", "change the model's config.json", ("{}",)),
        same("tokenizer_revision code_revision", "give the directory of the revision as --tokenizer"),
        same("hf_config_path", "give the model's directory"),
        same("num_gpu_blocks_override", "use --max_tokens_in_paged_kv_cache"),
        same("device", "use --target cpu, or --target sm_90", ("auto",)),
        same("max_lora_extra_vocab_size fully_sharded_loras lora_dtype", _ADAPTERS, harmless=True),
        same("response_role", "answers are the assistant's", ("assistant",)),
        same("chat_template_content_format", "the template itself shows which form it takes", ("auto",), harmless=True),
        same("tool_parser_plugin logits_processors middleware", "code of others is never run; leave it out"),
        same("enable_server_load_tracking", "load is at /load", harmless=True),
        same("enable_prompt_tokens_details", "usage always tells how many tokens were cached", harmless=True),
        same("disable_frontend_multiprocessing", "one process is enough here", harmless=True),
        same("node_rank nnodes data_parallel_rank", "--distributed_executor_backend ray spreads stages", ("0", "1")),
        same("calculate_kv_scales", "`trtllm-lite build --kv_cache_dtype fp8` finds the scales", _OFF),
        same("kv_transfer_config kv_events_config", "prompts and answers are computed by one engine; leave it out"),
        same("log_config_file", "the access log is lines on stderr; --no_access_log leaves it out"),
    ]
)

COMMANDS = merge(
    [
        same("run complete", "use `trtllm-lite generate`"),
        same("chat", "use `trtllm-lite generate --chat`, or `trtllm-lite serve`, whose page at / is for chats"),
        same("convert_checkpoint convert_hf_to_gguf", "use `trtllm-lite convert`"),
        same("summarize mmlu lm_eval evaluate", "use `trtllm-lite eval`"),
        same("refit prune", "use `trtllm-lite build` again, which takes seconds"),
        same("run_batch", "use `trtllm-lite serve`, and send it the requests"),
        same("prepare_dataset", "use `trtllm-lite bench`, which makes its prompts itself"),
        same("trtllm_build", "use `trtllm-lite build`"),
        same("trtllm_serve openai api_server", "use `trtllm-lite serve`"),
        same("trtllm_bench benchmark", "use `trtllm-lite bench`"),
    ]
)
