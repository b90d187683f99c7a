"""Lists options of other engines' servers and benchmarks: trtllm-serve, `vllm serve` and `vllm bench serve`."""

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.commands import EVERYWHERE, OFF, ON
from trtllm_lite.foreign_names.engine import ENGINE
from trtllm_lite.foreign_names.entry import merge, same
from trtllm_lite.foreign_names.llama_cpp import LLAMA_SERVER

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
        same("temperature", "requests ask for the likeliest tokens; leave it out", ("0", "0.0")),
        same("top_p top_k min_p", "requests ask for the likeliest tokens; leave it out"),
        same("header extra_body", "requests have no other fields; --api_key_file gives a key"),
        same("insecure", "certificates are always verified; use http for a server that has none"),
        same("profile logprobs use_beam_search", "requests ask for tokens alone; leave it out", OFF),
        same("ramp_up_strategy ramp_up_start_rps ramp_up_end_rps", "measure each --request_rate by itself"),
    ]
)

_TLS = "the server speaks HTTP alone: let a proxy in front of it do TLS"
_BOTH = "it is another name of an option here"
_PROMPTS = "prompts and answers are never logged"
_ALWAYS = "the server always does this"
_ONE_SERVER = "one process is enough here"
SERVE = merge(
    [
        LLAMA_SERVER,
        EVERYWHERE,
        ENGINE,
        same("max_num_seqs", _BOTH, becomes="max_batch_size"),
        same("max_model_len", _BOTH, becomes="max_seq_len"),
        same("max_num_batched_tokens", _BOTH, becomes="max_num_tokens"),
        same("no_enable_prefix_caching", _BOTH, becomes="no_kv_cache_block_reuse"),
        same("tp_size -tp", _BOTH, becomes="tensor_parallel_size"),
        same("pp_size -pp", _BOTH, becomes="pipeline_parallel_size"),
        same("ep_size", _BOTH, becomes="moe_expert_parallel_size"),
        same("shutdown_timeout", _BOTH, becomes="drain_timeout"),
        same("extra_llm_api_options", _BOTH, becomes="config"),
        same("tool_parser", _BOTH, becomes="tool_call_parser"),
        same("model", "give the model, or its directory, without an option"),
        same("gpu_memory_utilization", "use --kv_cache_free_gpu_memory_fraction, a share of what weights leave free"),
        same("kv_cache_memory_bytes num_gpu_blocks_override", "use --max_tokens_in_paged_kv_cache"),
        same("swap_space", "use --host_cache_size, in bytes, with --capacity_scheduler_policy", ("0", "4")),
        same("max_log_len disable_log_requests", _PROMPTS, harmless=True),
        same("enable_log_requests enable_log_outputs enable_log_deltas", _PROMPTS, OFF),
        same("api_key", "keys on a command line are seen by all users of a machine: use --api_key_file"),
        same("hf_token", "set the variable HF_TOKEN: tokens on a command line are seen by all users of a machine"),
        same("backend", "there is one runtime; leave it out", ("tensorrt", "pytorch")),
        same("enable_auto_tool_choice", "tools always work if their format is known", harmless=True),
        same("exclude_tools_when_tool_choice_none", "send no tools that are not to be in the prompt", OFF),
        same("tool_server", "the server runs no tools of its own; leave it out"),
        same("enable_prefix_caching", "prefixes are shared; --no_kv_cache_block_reuse switches that off", ON),
        same("enable_chunked_prefill enable_chunked_context", "prompts are spread over steps", ON, harmless=True),
        same("no_enable_chunked_prefill no_async_scheduling", "prompts are always spread over steps", harmless=True),
        same("enable_lora", "adapters are taken by engines that are built with --max_lora_rank", harmless=True),
        same("ssl_keyfile ssl_certfile ssl_ca_certs ssl_ciphers", _TLS),
        same("enable_ssl_refresh ssl_cert_reqs", _TLS, ("0", *OFF)),
        same("uvicorn_log_level disable_uvicorn_access_log disable_access_log_for_endpoints", "use --no_access_log"),
        same("allowed_methods allowed_headers", "pages of --allowed_origins may use all methods and headers"),
        same("allow_credentials", "keys come in a header, never in cookies; leave it out", OFF),
        same("quantization", "use --qformat; a model that is quantized already is served as it is"),
        same("block_size", _BOTH, becomes="tokens_per_block"),
        same("mamba_ssm_cache_dtype", _BOTH, ("auto",), becomes="state_dtype"),
        same("chat_template", "the model has its template; convert it again with another tokenizer_config.json"),
        same("default_chat_template_kwargs", "requests have chat_template_kwargs", ("{}",)),
        same("trust_request_chat_template", "requests name templates of the model alone; leave it out", OFF),
        same(
            "chat_template_content_format", "the template itself shows which format it takes", ("auto",), harmless=True
        ),
        same("response_role", "every answer has the role assistant", ("assistant",)),
        same("root_path", "let the proxy in front of the server remove the path"),
        same("uds", "let a proxy listen there, and send requests to --host and --port"),
        same("enable_reasoning", "--reasoning_parser alone enables it", harmless=True),
        same("device", "use --target cpu, or --target sm_90", ("auto",)),
        same("enable_server_load_tracking", "load is at /load", harmless=True),
        same("enable_per_request_metrics", "figures are at /metrics alone", OFF),
        same("enable_prompt_tokens_details", _ALWAYS, harmless=True),
        same("enable_request_id_headers enable_offline_docs", _ALWAYS, harmless=True),
        same("enable_force_include_usage", "requests ask for usage with stream_options; leave it out", OFF),
        same("enable_tokenizer_info_endpoint", "/tokenize and /detokenize are always there", OFF),
        same("return_tokens_as_token_ids", "tokens are named by their texts and bytes; leave it out", OFF),
        same("disable_fastapi_docs log_error_stack", "leave it out", OFF),
        same("tokens_only headless", "the server takes texts, too; leave it out", OFF),
        same("disable_frontend_multiprocessing", _ONE_SERVER, harmless=True),
        same("h11_max_incomplete_event_size h11_max_header_count", "use --max_body_size", harmless=True),
        same("log_config_file", "use --log_format json for objects instead of text, and --no_access_log for none"),
        same("metadata_server_config_file server_role", "prompts and answers are computed by one engine; leave it out"),
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
