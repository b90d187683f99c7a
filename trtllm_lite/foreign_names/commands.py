"""Lists options and commands of other engines.

The options are those of TensorRT-LLM's convert_checkpoint.py, quantize.py, trtllm-build and run.py.
"""

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import merge, same
from trtllm_lite.request_fields.field import fields_of
from trtllm_lite.request_fields.fields import RequestFields

ON = ("", "enable", "auto", "true", "1", "yes", "on")
_ON_IN_ANY_DTYPE = (*ON, *PLAIN_DTYPES)
OFF = ("disable", "false", "0", "no", "off", "none")


DIVIDED = (
    "engines are divided among devices by --tp_size, --moe_ep_size and --pp_size of `trtllm-lite build`, and in no "
    "other way"
)
_ANY_NUMBER = "a checkpoint is the same for any number of GPUs: use --tp_size and --pp_size of `trtllm-lite build`"
_SHARDED = "`trtllm-lite build --tp_size` shares embeddings out by rows of the vocabulary"
_INT8_WEIGHTS = "use `trtllm-lite build --qformat int8_wo`"
_MIXED = "use --autoq_format and --auto_quantize_bits of `trtllm-lite quantize`"
_LORA = "adapters are given when an engine runs; --max_lora_rank makes room for them, at every linear layer"

EVERYWHERE = merge(
    [
        same("log_level", "there is no log; errors say what to do, and --debug shows where they arose", harmless=True),
        same("workers", "one process is enough here", ("1",), harmless=True),
    ]
)
_PARALLEL = merge(
    [
        same("cp_size", DIVIDED, ("1",)),
        same("moe_tp_size", "it is tp_size / moe_ep_size: use these options of `trtllm-lite build`", ("1",)),
        same("world_size", "use --tp_size and --pp_size of `trtllm-lite build`", ("1",)),
        same("auto_parallel", DIVIDED, ("1", *OFF)),
        same("gpus_per_node cluster_key", DIVIDED),
    ]
)
_QUANTIZED = merge(
    [
        same("use_weight_only", _INT8_WEIGHTS, OFF),
        same("weight_only_precision", _INT8_WEIGHTS),
        same("per_channel per_token", "every scheme has the scales that suit it; see `trtllm-lite quantize`", OFF),
        same("use_fp8 enable_fp8", "use --qformat fp8 of `trtllm-lite quantize` or `build`", OFF),
        same("use_fp8_rowwise", "use --qformat fp8_rowwise of `trtllm-lite quantize` or `build`", OFF),
        same("smoothquant use_smooth_quant", "use --qformat int8_sq of `trtllm-lite quantize` or `build`", OFF),
        same("int8_kv_cache", "use --kv_cache_dtype int8 of `trtllm-lite quantize` or `build`", OFF),
        same("fp8_kv_cache", "use --kv_cache_dtype fp8 of `trtllm-lite quantize` or `build`", OFF),
        same("per_group", "use a 4-bit --qformat, and --group_size, of `trtllm-lite quantize` or `build`", OFF),
        same("quant_mode quant_config", remedies.SCHEMES, OFF),
        same("quant_ckpt_path modelopt_quant_ckpt_path", remedies.QUANTIZED_CHECKPOINT),
        same("awq_block_size", "use --group_size of `trtllm-lite quantize` or `build`"),
        same("dataset_cache_dir", "--calib_dataset of `trtllm-lite quantize` is a file", harmless=True),
        same("autoq_format auto_quantize_bits", _MIXED, OFF),
    ]
)
_CALIBRATION = "calib_dataset calib_size calib_max_seq_length"
_LATER = "use it with `trtllm-lite quantize`, which comes after `convert`"

CONVERT = merge(
    [
        EVERYWHERE,
        _PARALLEL,
        same("tp_size pp_size moe_ep_size", _ANY_NUMBER, ("1",)),
        _QUANTIZED,
        same("qformat", _LATER, ("full_prec", "none")),
        same(f"{_CALIBRATION} quantize_lm_head", _LATER, OFF),
        same("kv_cache_dtype", "use `trtllm-lite build --kv_cache_dtype`", ("auto", "none")),
        same("load_by_shard load_model_on_cpu", "weights are always streamed on the CPU", harmless=True),
        same("use_parallel_embedding embedding_sharding_dim", _SHARDED, harmless=True),
        same("use_embedding_sharing", "tied embeddings are always stored once", harmless=True),
        same("export_format", "there is one format; leave it out", ("tensorrt_llm",)),
        same("device", "converting needs no GPU", harmless=True),
        same(
            "trust_remote_code",
            "code that comes with a checkpoint is never run; families are declared in trtllm_lite/convert/families",
            OFF,
        ),
    ]
)

_BUILT_IN = "the fused operators are built in"
_FUSED = "builds fuse all operators that they can; `trtllm-lite inspect` lists them"
_PROFILES = "engines have no profiles; every size of step is as fast"
_STANDARD = "every engine does this"
_BUILD = merge(
    [
        EVERYWHERE,
        _PARALLEL,
        _QUANTIZED,
        same("opt_num_tokens", "every size of step up to --max_num_tokens is as fast", harmless=True),
        same("max_output_len", "prompt and output together are bounded by --max_seq_len; set it instead"),
        same("max_encoder_input_len max_prompt_embedding_table_size max_multimodal_len", remedies.TEXT_ONLY, ("0",)),
        same("kv_cache_type", "the KV cache is always paged; leave it out", ("paged",)),
        same("paged_kv_cache remove_input_padding use_inflight_batching", _STANDARD, ON, harmless=True),
        same("context_fmha enable_context_fmha use_paged_context_fmha reduce_fusion", _STANDARD, ON, harmless=True),
        same("use_fused_mlp enable_xqa use_custom_all_reduce strongly_typed", _STANDARD, ON, harmless=True),
        same("context_fmha_fp32_acc bert_context_fmha_fp32_acc", "sums are always float32", ON, harmless=True),
        same("gpt_attention_plugin bert_attention_plugin gemm_plugin", _BUILT_IN, _ON_IN_ANY_DTYPE, harmless=True),
        same("use_gpt_attention_plugin use_gemm_plugin use_rmsnorm_plugin", _BUILT_IN, harmless=True),
        same("gemm_swiglu_plugin low_latency_gemm_plugin low_latency_gemm_swiglu_plugin", _BUILT_IN, harmless=True),
        same("nccl_plugin user_buffer gemm_allreduce_plugin pp_reduce_scatter", _BUILT_IN, harmless=True),
        same("use_fp8_context_fmha", "attention computes in the type of activations; leave it out", OFF),
        same("norm_quant_fusion fuse_fp4_quant", _FUSED, harmless=True),
        same("fp8_rowwise_gemm_plugin weight_only_quant_matmul_plugin", _BUILT_IN, harmless=True),
        same("weight_only_groupwise_quant_matmul_plugin smooth_quant_gemm_plugin", _BUILT_IN, harmless=True),
        same("smooth_quant_plugins quantize_per_token_plugin quantize_tensor_plugin", _BUILT_IN, harmless=True),
        same("qserve_gemm_plugin", remedies.SCHEMES, OFF),
        same("rmsnorm_quantization_plugin layernorm_quantization_plugin", _BUILT_IN, harmless=True),
        same("moe_plugin", _BUILT_IN, harmless=True),
        same("mamba_conv1d_plugin", "recurrent layers need no plugin; leave it out", (*OFF, "auto")),
        same("lora_plugin", _LORA, OFF),
        same("dora_plugin", "DoRA is not supported; merge the adapter into the model before converting it", OFF),
        same("lora_dir lora_ckpt_source lora_target_modules", _LORA),
        same("multiple_profiles", _PROFILES, harmless=True),
        same("streamingllm paged_state", "engines have no such variants; leave it out", (*OFF, "auto")),
        same("speculative_decoding_mode", remedies.SPECULATION, ("none",)),
        same("weight_streaming weight_sparsity", "weights are stored and read as they are; leave it out", OFF),
        same("builder_opt enable_debug_output profiling_verbosity", "see `trtllm-lite inspect`", harmless=True),
        same("dtype", "the type is chosen earlier, with `trtllm-lite convert --dtype`"),
        same("visualize_network", "use `trtllm-lite inspect`, or open network.onnx of the checkpoint in Netron", OFF),
        same("logits_dtype", "logits are float32; leave it out", ("float32",)),
        same(
            "gather_generation_logits",
            "always available: ModelRunner.generate(output_generation_logits=True)",
            harmless=True,
        ),
        same("gather_all_token_logits", "use --gather_context_logits", OFF),
        same(
            "opt_batch_size force_num_profiles",
            _PROFILES,
            harmless=True,
        ),
        same("use_refit", "weights are stored once, and a build takes seconds; leave it out", OFF),
        same("use_mrope", remedies.TEXT_ONLY, OFF),
        same("plugin_config auto_parallel_config", _BUILT_IN, harmless=True),
        same("lora_config", _LORA),
        same("build_config", "pass --checkpoint_dir and the limits as flags"),
        same("model_dir", "use --checkpoint_dir, with a directory that `trtllm-lite convert` made of the model"),
    ]
)

_PREDICTS = "`plan` writes nothing and predicts the memory"
BUILD = merge(
    [
        _BUILD,
        same("use_strip_plan", "use --strip_plan", OFF),
        same("dry_run", "use `trtllm-lite plan` with the same flags", OFF),
        same("monitor_memory", "use `trtllm-lite plan`, which predicts the memory", OFF),
    ]
)
# `plan` also accepts the options that only `build` has, so that a command line of `build` works with `plan` as well.
PLAN = merge(
    [
        _BUILD,
        same("dry_run monitor_memory", _PREDICTS, ON, harmless=True),
        same(f"{_CALIBRATION} calib_seed calib_dir max_accuracy_loss", _PREDICTS, harmless=True),
        same(
            "output_dir strip_plan use_strip_plan input_timing_cache output_timing_cache fast_build",
            _PREDICTS,
            harmless=True,
        ),
    ]
)

GENERATE = merge(
    [
        EVERYWHERE,
        same("input_text", "use --prompt"),
        same("input_file", "use --prompt - and pipe the file in"),
        same("max_output_len", "use --max_new_tokens"),
        same("max_input_length", "prompts are never cut; leave it out"),
        same("tokenizer_dir tokenizer_type vocab_file", "the tokenizer travels in the engine", harmless=True),
        same("streaming streaming_interval", "text is always streamed, token by token", harmless=True),
        same("use_py_session", "there is one runtime", harmless=True),
        same("no_prompt_template", "prompts are plain text unless --chat is given", harmless=True),
        same("run_profiling", "use `trtllm-lite bench latency`", OFF),
        same("output_csv output_npy output_logits_npy", "use ModelRunner.generate(return_dict=True) in Python"),
        same("output_log_probs_npy output_cum_log_probs_npy", "use ModelRunner.generate(output_log_probs=True)"),
        same("max_attention_window_size", remedies.WINDOWS),
        same("sink_token_length", remedies.SINKS, ("0", "none")),
        same("multi_block_mode cuda_graph_mode", "engines for GPUs choose this themselves", harmless=True),
        same("enable_context_fmha_fp32_acc", "sums are always float32", harmless=True),
        same("gpu_weights_percent", "weights are always on the device; leave it out", ("1", "1.0", "100")),
        same("prompt_table_path prompt_tasks input_token_extra_ids", remedies.TEXT_ONLY),
        same("medusa_choices eagle_choices lookahead_config", remedies.MEDUSA),
        same("prompt_lookup_config draft_target_model_config draft_engine_dir", remedies.SPECULATION),
        same("early_stopping", "SamplingParams(early_stopping=…) in Python says when a search ends", ("1", "true")),
        same("num_return_sequences", "one answer is printed; use SamplingParams(n=…) in Python", ("1",)),
        same("eagle_posterior_threshold eagle_use_dynamic_tree eagle_dynamic_tree_max_top_k", remedies.MEDUSA, OFF),
        same("fail_fast_on_attention_window_too_large", "limits are always errors at once", harmless=True),
        same("multimodal_input_file image_path audio_path", remedies.TEXT_ONLY),
        same("max_seq_len", "answers end by --max_new_tokens", harmless=True),
        same("model_dir", "give the engine, or its directory as --engine_dir"),
        *(
            same(" ".join({name, *field.aliases} - {field.runner}), f"use --{field.runner}")
            for name, field in fields_of(RequestFields).items()
            if field.option is not None and field.runner is not None
        ),
        same("stop", "use --stop_words"),
        same("max_tokens", "use --max_new_tokens"),
        same("beam_search_diversity_rate", remedies.BEAMS, ("0", "0.0")),
        same("no_repeat_ngram_size", "use --repetition_penalty", ("0",)),
        same("debug_mode", "use `trtllm-lite inspect`", OFF),
        same("lora_task_uids lora_ckpt_source", "an adapter of PEFT's format is given with --lora_dir alone"),
        same("kv_cache_enable_block_reuse no_kv_cache_enable_block_reuse", "one prompt reuses nothing", harmless=True),
        same(
            "kv_cache_free_gpu_memory_fraction max_tokens_in_paged_kv_cache enable_chunked_context",
            "the KV cache of one prompt is made as large as it needs",
            harmless=True,
        ),
    ]
)

COMMANDS = merge(
    [
        same("run complete", "use `trtllm-lite generate`"),
        same("chat", "use `trtllm-lite generate --chat`, or `trtllm-lite serve`, whose page at / is for chats"),
        same("convert_checkpoint convert_hf_to_gguf", "use `trtllm-lite convert --model_dir MODEL --output_dir CKPT`"),
        same("summarize mmlu lm_eval evaluate", "use `trtllm-lite eval`"),
        same("refit prune", "use `trtllm-lite build` again, which takes seconds"),
        same("run_batch", "use `trtllm-lite serve`, and send it the requests"),
        same("prepare_dataset", "use `trtllm-lite bench`, which makes its prompts itself"),
        same("trtllm_build", "use `trtllm-lite build`"),
        same("trtllm_serve openai api_server", "use `trtllm-lite serve`"),
        same("trtllm_bench benchmark", "use `trtllm-lite bench`"),
    ]
)
