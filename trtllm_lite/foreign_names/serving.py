"""Lists options of other engines' servers and benchmarks: trtllm-serve, `vllm serve` and `vllm bench serve`."""

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.commands import DIVIDED, EVERYWHERE, OFF, ON, STANDARD
from trtllm_lite.foreign_names.entry import merge, same

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
        same("trust_remote_code", remedies.NO_CODE, OFF, harmless=True),
        same("temperature", "the likeliest tokens are asked for; leave it out", ("0", "0.0")),
        same("top_p top_k min_p", "the likeliest tokens are asked for; leave it out"),
        same("header extra_body", "requests have no other fields; --api_key_file gives a key"),
        same("insecure", "certificates are always verified; use http for a server that has none"),
        same("profile logprobs use_beam_search", "requests ask for tokens alone; leave it out", OFF),
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
        EVERYWHERE,
        same("data_parallel_size", DIVIDED, ("1",)),
        same("gpu_memory_utilization", "use --kv_cache_free_gpu_memory_fraction, a share of what weights leave free"),
        same("kv_cache_memory_bytes", "use --max_tokens_in_paged_kv_cache"),
        same("seed", "a request's seed is its own field; leave it out", ("0",)),
        same("revision", "give the directory of the revision that is to be served"),
        same("max_log_len disable_log_requests", "prompts are never logged", harmless=True),
        same("stream_interval", "every token is sent as it comes; slow readers get larger chunks", ("1",)),
        same("api_key", "keys on a command line are seen by all users of a machine: use --api_key_file"),
        same("backend", "there is one runtime; leave it out", ("tensorrt",)),
        same("max_beam_width", "a search may have up to --max_batch_size beams", ("1",), harmless=True),
        same("enable_auto_tool_choice", "tools are always taken where their form is known", harmless=True),
        same("enable_prefix_caching", "prefixes are shared; --no_kv_cache_block_reuse switches that off", ON),
        same("enable_chunked_prefill enable_chunked_context", "prompts are spread over steps", ON, harmless=True),
        same("enable_lora", "adapters are taken by engines that are built with --max_lora_rank", harmless=True),
        same("trust_remote_code", remedies.NO_CODE, OFF),
        same("ssl_keyfile ssl_certfile ssl_ca_certs", _TLS),
        same("uvicorn_log_level disable_uvicorn_access_log", "use --no_access_log"),
        same("allowed_methods allowed_headers", "pages of --allowed_origins may use all methods and headers"),
        same("num_postprocess_workers api_server_count", "one process is enough here", ("1", "0"), harmless=True),
        same("quantization", "build an engine with `trtllm-lite build --qformat`, and serve that"),
        same("kv_cache_dtype", "build an engine with `trtllm-lite build --kv_cache_dtype`, and serve that", ("auto",)),
        same("enforce_eager", STANDARD, OFF, harmless=True),
        same("chat_template", "the model's own is taken; convert the model again with another tokenizer_config.json"),
        same("root_path", "let the proxy in front of the server remove the path"),
        same("disable_log_stats", "figures are at /metrics alone", harmless=True),
        same("enable_log_requests enable_log_outputs", "prompts and answers are never logged", OFF),
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
        same("calculate_kv_scales", "`trtllm-lite build --kv_cache_dtype fp8` finds the scales", OFF),
        same("kv_transfer_config kv_events_config", "prompts and answers are computed by one engine; leave it out"),
        same("log_config_file", "the access log is lines on stderr; --no_access_log leaves it out"),
    ]
)

# Destinations of the fields of TensorRT-LLM's configurations in a file of --extra_llm_api_options.
SERVE_FIELDS = {
    "kv_cache_config.free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
    "kv_cache_config.max_tokens": "max_tokens_in_paged_kv_cache",
    "kv_cache_config.host_cache_size": "host_cache_size",
    "kv_cache_config.enable_block_reuse": "enable_prefix_caching",
    "scheduler_config.capacity_scheduler_policy": "capacity_scheduler_policy",
}
