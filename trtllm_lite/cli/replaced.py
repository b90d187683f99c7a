"""Tables of what replaces the options of other tools.

They are TensorRT-LLM's convert_checkpoint.py, quantize.py, trtllm-build and run.py, and `vllm bench serve`.
"""

from collections.abc import Iterable, Mapping

from trtllm_lite.cli.framework import Replaced
from trtllm_lite.vocabulary import PLAIN_DTYPES

_ON = ("", "enable", "auto", "true", "1", "yes", "on")
_ON_IN_ANY_DTYPE = (*_ON, *PLAIN_DTYPES)
_OFF = ("disable", "false", "0", "no", "off", "none")


def _same(names: str, remedy: str, neutral: tuple[str, ...] = (), harmless: bool = False) -> dict[str, Replaced]:
    return {name: Replaced(remedy, neutral, harmless) for name in names.split()}


def _merge(tables: Iterable[Mapping[str, Replaced]]) -> dict[str, Replaced]:
    return {name: entry for table in tables for name, entry in table.items()}


_DIVIDED = (
    "engines are divided among devices by --tp_size, --moe_ep_size and --pp_size of `trtllm-lite build`, and in no "
    "other way yet"
)
_ANY_NUMBER = "a checkpoint is the same for any number of GPUs: use --tp_size and --pp_size of `trtllm-lite build`"
_SHARDED = "`trtllm-lite build --tp_size` shares embeddings out by rows of the vocabulary"
_INT8_WEIGHTS = "use `trtllm-lite build --qformat int8_wo`"
_NOT_QUANTIZED = "this quantization is not supported yet; `trtllm-lite quantize --help` lists the schemes that are"
_LORA = "adapters are given when an engine runs; --max_lora_rank makes room for them, at every linear layer"
_SPECULATION = "speculative decoding is not supported yet; leave it out"
_ENCODER = "only decoder models of text are supported; leave it out"

_EVERYWHERE = _merge(
    [
        _same("log_level", "there is no log; errors say what to do, and --debug shows where they arose", harmless=True),
        _same("workers", "one process is enough here", ("1",), harmless=True),
    ]
)
_PARALLEL = _merge(
    [
        _same("cp_size", _DIVIDED, ("1",)),
        _same("moe_tp_size", "it is tp_size / moe_ep_size: use these options of `trtllm-lite build`", ("1",)),
        _same("world_size", "use --tp_size and --pp_size of `trtllm-lite build`", ("1",)),
        _same("auto_parallel", _DIVIDED, ("1", *_OFF)),
        _same("gpus_per_node cluster_key", _DIVIDED),
    ]
)
_QUANTIZED = _merge(
    [
        _same("use_weight_only", _INT8_WEIGHTS, _OFF),
        _same("weight_only_precision", _INT8_WEIGHTS),
        _same("per_channel per_token", "every scheme has the scales that suit it; see `trtllm-lite quantize`", _OFF),
        _same("use_fp8 enable_fp8", "use --qformat fp8 of `trtllm-lite quantize` or `build`", _OFF),
        _same("use_fp8_rowwise", "use --qformat fp8_rowwise of `trtllm-lite quantize` or `build`", _OFF),
        _same("smoothquant use_smooth_quant", "use --qformat int8_sq of `trtllm-lite quantize` or `build`", _OFF),
        _same("int8_kv_cache fp8_kv_cache quant_mode per_group", _NOT_QUANTIZED, _OFF),
        _same("quant_ckpt_path quant_config modelopt_quant_ckpt_path", _NOT_QUANTIZED),
        _same("awq_block_size", "use --group_size"),
        _same("dataset_cache_dir", "--calib_dataset of `trtllm-lite quantize` is a file", harmless=True),
        _same("autoq_format auto_quantize_bits", _NOT_QUANTIZED, _OFF),
    ]
)
_CALIBRATION = "calib_dataset calib_size calib_max_seq_length"
_LATER = "use it with `trtllm-lite quantize`, which comes after `convert`"

CONVERT = _merge(
    [
        _EVERYWHERE,
        _PARALLEL,
        _same("tp_size pp_size moe_ep_size", _ANY_NUMBER, ("1",)),
        _QUANTIZED,
        _same("qformat", _LATER, ("full_prec", "none")),
        _same(f"{_CALIBRATION} quantize_lm_head", _LATER, _OFF),
        _same("kv_cache_dtype", "use `trtllm-lite build --kv_cache_dtype`", ("auto", "none")),
        _same("load_by_shard load_model_on_cpu", "weights are always streamed on the CPU", harmless=True),
        _same("use_parallel_embedding embedding_sharding_dim", _SHARDED, harmless=True),
        _same("use_embedding_sharing", "tied embeddings are always stored once", harmless=True),
        _same("export_format", "there is one format; leave it out", ("tensorrt_llm",)),
        _same("device", "converting needs no GPU", harmless=True),
        _same(
            "trust_remote_code",
            "code that comes with a checkpoint is never run; families are declared in trtllm_lite/convert/families",
            _OFF,
        ),
    ]
)

_BUILT_IN = "the fused operators are built in"
_STANDARD = "every engine does this"
_BUILD = _merge(
    [
        _EVERYWHERE,
        _PARALLEL,
        _QUANTIZED,
        _same("max_beam_width", "a search may have up to --max_batch_size beams", ("1",), harmless=True),
        _same("opt_num_tokens", "every size of step up to --max_num_tokens is as fast", harmless=True),
        _same("max_output_len", "the output may fill what the prompt leaves of --max_seq_len; set that instead"),
        _same("max_encoder_input_len max_prompt_embedding_table_size max_multimodal_len", _ENCODER, ("0",)),
        _same("kv_cache_type", "the KV cache is always paged; leave it out", ("paged",)),
        _same("paged_kv_cache remove_input_padding use_inflight_batching", _STANDARD, _ON, harmless=True),
        _same("context_fmha enable_context_fmha use_paged_context_fmha reduce_fusion", _STANDARD, _ON, harmless=True),
        _same("use_fused_mlp enable_xqa use_custom_all_reduce strongly_typed", _STANDARD, _ON, harmless=True),
        _same("context_fmha_fp32_acc bert_context_fmha_fp32_acc", "sums are always float32", _ON, harmless=True),
        _same("gpt_attention_plugin bert_attention_plugin gemm_plugin", _BUILT_IN, _ON_IN_ANY_DTYPE, harmless=True),
        _same("use_gpt_attention_plugin use_gemm_plugin use_rmsnorm_plugin", _BUILT_IN, harmless=True),
        _same("gemm_swiglu_plugin low_latency_gemm_plugin low_latency_gemm_swiglu_plugin", _BUILT_IN, harmless=True),
        _same("nccl_plugin user_buffer gemm_allreduce_plugin pp_reduce_scatter", _BUILT_IN, harmless=True),
        _same("use_fp8_context_fmha norm_quant_fusion fp8_rowwise_gemm_plugin fuse_fp4_quant", _NOT_QUANTIZED, _OFF),
        _same("weight_only_quant_matmul_plugin weight_only_groupwise_quant_matmul_plugin", _NOT_QUANTIZED, _OFF),
        _same("smooth_quant_gemm_plugin smooth_quant_plugins quantize_per_token_plugin", _NOT_QUANTIZED, _OFF),
        _same("quantize_tensor_plugin qserve_gemm_plugin rmsnorm_quantization_plugin", _NOT_QUANTIZED, _OFF),
        _same("layernorm_quantization_plugin", _NOT_QUANTIZED, _OFF),
        _same("moe_plugin mamba_conv1d_plugin", "such layers are not supported yet; leave it out", (*_OFF, "auto")),
        _same("lora_plugin", _LORA, _OFF),
        _same("dora_plugin", "DoRA is not supported; merge the adapter into the model before converting it", _OFF),
        _same("lora_dir lora_ckpt_source lora_target_modules", _LORA),
        _same("multiple_profiles", "engines have no profiles; every size of step is as fast", harmless=True),
        _same("streamingllm paged_state", "engines have no such variants; leave it out", (*_OFF, "auto")),
        _same("speculative_decoding_mode", _SPECULATION, ("none",)),
        _same("weight_streaming weight_sparsity", "weights are stored and read as they are; leave it out", _OFF),
        _same("builder_opt enable_debug_output profiling_verbosity", "see `trtllm-lite inspect`", harmless=True),
        _same("dtype", "the type is chosen earlier, with `trtllm-lite convert --dtype`"),
        _same("visualize_network", "use `trtllm-lite inspect`, or open network.onnx of the checkpoint in Netron", _OFF),
        _same("logits_dtype", "logits are float32; leave it out", ("float32",)),
        _same(
            "gather_generation_logits",
            "always available: ModelRunner.generate(output_generation_logits=True)",
            harmless=True,
        ),
        _same("gather_all_token_logits", "use --gather_context_logits", _OFF),
        _same("build_config", "pass --checkpoint_dir and the limits as flags"),
        _same("model_dir", "use --checkpoint_dir, with a directory that `trtllm-lite convert` made of the model"),
    ]
)

_PREDICTS = "`plan` writes nothing and predicts the memory"
BUILD = _merge(
    [
        _BUILD,
        _same("dry_run", "use `trtllm-lite plan` with the same flags", _OFF),
        _same("monitor_memory", "use `trtllm-lite plan`, which predicts the memory", _OFF),
    ]
)
# `plan` also accepts the options that only `build` has, so that a command line of `build` works with `plan` as well.
PLAN = _merge(
    [
        _BUILD,
        _same("dry_run monitor_memory", _PREDICTS, _ON, harmless=True),
        _same(f"{_CALIBRATION} calib_seed calib_dir max_accuracy_loss", _PREDICTS, harmless=True),
        _same("output_dir strip_plan input_timing_cache output_timing_cache fast_build", _PREDICTS, harmless=True),
    ]
)

GENERATE = _merge(
    [
        _EVERYWHERE,
        _same("input_text", "use --prompt"),
        _same("input_file", "use --prompt - and pipe the file in"),
        _same("max_output_len", "use --max_new_tokens"),
        _same("max_input_length", "prompts are never cut; leave it out"),
        _same("tokenizer_dir tokenizer_type vocab_file", "the tokenizer travels in the engine", harmless=True),
        _same("streaming streaming_interval", "text is always streamed, token by token", harmless=True),
        _same("use_py_session", "there is one runtime", harmless=True),
        _same("no_prompt_template", "prompts are plain text unless --chat is given", harmless=True),
        _same("run_profiling", "use `trtllm-lite bench latency`", _OFF),
        _same("output_csv output_npy output_logits_npy", "use ModelRunner.generate(return_dict=True) in Python"),
        _same("output_log_probs_npy output_cum_log_probs_npy", "use ModelRunner.generate(output_log_probs=True)"),
        _same("max_attention_window_size", "attention windows are part of the model and travel in the engine"),
        _same("sink_token_length", "attention sinks are not supported; leave it out", ("0", "none")),
        _same("multi_block_mode cuda_graph_mode", "engines for GPUs choose this themselves", harmless=True),
        _same("enable_context_fmha_fp32_acc", "sums are always float32", harmless=True),
        _same("gpu_weights_percent", "weights are always on the device; leave it out", ("1", "1.0", "100")),
        _same("prompt_table_path prompt_tasks input_token_extra_ids", _ENCODER),
        _same("medusa_choices eagle_choices lookahead_config", _SPECULATION),
        _same("beam_search_diversity_rate", "beams are ranked by their probability; leave it out", ("0", "0.0")),
        _same("no_repeat_ngram_size", "use --repetition_penalty", ("0",)),
        _same("debug_mode", "use `trtllm-lite inspect`", _OFF),
        _same("lora_task_uids lora_ckpt_source", "an adapter of PEFT's format is given with --lora_dir alone"),
        _same("kv_cache_enable_block_reuse no_kv_cache_enable_block_reuse", "one prompt reuses nothing", harmless=True),
        _same(
            "kv_cache_free_gpu_memory_fraction max_tokens_in_paged_kv_cache enable_chunked_context",
            "the KV cache of one prompt is made as large as it needs",
            harmless=True,
        ),
    ]
)

_ALL_FIGURES = "every latency is reported, with its mean and percentiles"
BENCH_SERVE = _merge(
    [
        _same("max_concurrency", "use --concurrency"),
        _same("num_prompts", "use --num_requests"),
        _same("random_input_len input_length", "use --input_len"),
        _same("random_output_len output_length", "use --output_len"),
        _same("random_range_ratio", "use --input_len LEAST:MOST and --output_len LEAST:MOST", ("0", "0.0")),
        _same("random_prefix_len", "use --prefix_len"),
        _same("dataset_name", "prompts are random; --input_len sharegpt has lengths like ShareGPT's", ("random",)),
        _same("dataset_path dataset", "no data set is read; --input_len sharegpt has lengths like ShareGPT's"),
        _same("sharegpt_output_len", "use --output_len"),
        _same("host port", "use --base_url http://HOST:PORT"),
        _same("backend endpoint_type", "use --endpoint /v1/completions or /v1/chat/completions", ("openai", "vllm")),
        _same("served_model_name", "use --model, with the name that the server knows"),
        _same("percentile_metrics metric_percentiles", _ALL_FIGURES, harmless=True),
        _same("save_result save_detailed", "use --json FILE"),
        _same("result_dir result_filename append_result", "use --json FILE"),
        _same("disable_tqdm", "progress is shown in terminals alone", harmless=True),
        _same("tokenizer_mode skip_tokenizer_init", "--tokenizer is only read for prompts as text", harmless=True),
        _same("trust_remote_code", "code that comes with a model is never run", _OFF, harmless=True),
        _same("temperature", "the likeliest tokens are asked for; leave it out", ("0", "0.0")),
        _same("top_p top_k min_p", "the likeliest tokens are asked for; leave it out"),
        _same("header extra_body", "requests have no other fields; --api_key_file gives a key"),
        _same("insecure", "certificates are always verified; use http for a server that has none"),
        _same("profile logprobs use_beam_search", "requests ask for tokens alone; leave it out", _OFF),
        _same("ramp_up_strategy ramp_up_start_rps ramp_up_end_rps", "measure each --request_rate by itself"),
    ]
)

_TLS = "the server speaks HTTP alone: let a proxy in front of it do TLS"
_NO_CODE = "code that comes with a model is never run; leave it out"
SERVE = _merge(
    [
        _EVERYWHERE,
        _same("data_parallel_size", _DIVIDED, ("1",)),
        _same("gpu_memory_utilization", "use --kv_cache_free_gpu_memory_fraction, a share of what weights leave free"),
        _same("kv_cache_memory_bytes", "use --max_tokens_in_paged_kv_cache"),
        _same("seed", "a request's seed is its own field; leave it out"),
        _same("revision", "give the directory of the revision that is to be served"),
        _same("max_log_len disable_log_requests", "prompts are never logged", harmless=True),
        _same("stream_interval", "every token is sent as it comes; slow readers get larger chunks", ("1",)),
        _same("api_key", "keys on a command line are seen by all users of a machine: use --api_key_file"),
        _same("backend", "there is one runtime; leave it out", ("tensorrt",)),
        _same("max_beam_width", "a search may have up to --max_batch_size beams", ("1",), harmless=True),
        _same("enable_auto_tool_choice", "tools are always taken where their form is known", harmless=True),
        _same(
            "enable_prefix_caching", "prefixes are shared; --no_kv_cache_block_reuse switches that off", harmless=True
        ),
        _same("enable_chunked_prefill enable_chunked_context", "prompts are spread over steps", _ON, harmless=True),
        _same("enable_lora", "adapters are taken by engines that are built with --max_lora_rank", harmless=True),
        _same("trust_remote_code", _NO_CODE, _OFF),
        _same("ssl_keyfile ssl_certfile ssl_ca_certs", _TLS),
        _same("uvicorn_log_level disable_uvicorn_access_log", "use --no_access_log"),
        _same("allowed_methods allowed_headers", "pages of --allowed_origins may use all methods and headers"),
        _same("config extra_llm_api_options", "pass what it holds as flags"),
        _same("num_postprocess_workers api_server_count", "one process is enough here", ("1", "0"), harmless=True),
        _same("quantization", "build an engine with `trtllm-lite build --qformat`, and serve that"),
        _same("kv_cache_dtype", "build an engine with `trtllm-lite build --kv_cache_dtype`, and serve that", ("auto",)),
        _same("enforce_eager", _STANDARD, _OFF, harmless=True),
        _same("chat_template", "the model's own is taken; convert the model again with another tokenizer_config.json"),
        _same("root_path", "let the proxy in front of the server remove the path"),
    ]
)
