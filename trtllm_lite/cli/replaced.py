"""Options of TensorRT-LLM's convert_checkpoint.py, trtllm-build and run.py: what replaces each of them here."""

from collections.abc import Iterable, Mapping

from trtllm_lite.cli.framework import Replaced

_ON = ("enable", "auto", "true", "1", "yes", "on")
_OFF = ("disable", "false", "0", "no", "off", "none")
_AUTO = (*_ON, "float16", "bfloat16", "float32")


def _same(names: str, remedy: str, neutral: tuple[str, ...] = (), flag: bool = False) -> dict[str, Replaced]:
    return {name: Replaced(remedy, neutral, flag) for name in names.split()}


def _merge(tables: Iterable[Mapping[str, Replaced]]) -> dict[str, Replaced]:
    return {name: entry for table in tables for name, entry in table.items()}


_ONE_DEVICE = "engines run on one device so far; leave it out"
_NOT_QUANTIZED = "quantized weights are not supported yet; choose the storage type with --dtype"
_LORA = "LoRA is not supported yet; merge the adapter into the model before converting it"
_BEAMS = "beam search needs nothing at build time: up to max_batch_size beams at run time; leave it out"
_ALWAYS = "is what every engine does here; leave it out"

CONVERT = _merge(
    [
        _same("tp_size pp_size cp_size moe_tp_size moe_ep_size", _ONE_DEVICE, ("1",)),
        _same("use_weight_only per_channel per_token", _NOT_QUANTIZED, flag=True),
        _same("int8_kv_cache fp8_kv_cache use_fp8 use_fp8_rowwise", _NOT_QUANTIZED, flag=True),
        _same("weight_only_precision smoothquant quant_ckpt_path group_size", _NOT_QUANTIZED),
        _same("calib_dataset calib_size calib_max_seq_length", _NOT_QUANTIZED),
        _same("load_by_shard load_model_on_cpu", "weights are always streamed on the CPU; leave it out", flag=True),
        _same("use_parallel_embedding", _ONE_DEVICE, flag=True),
        _same("workers", "one process is enough here; leave it out", ("1",)),
        _same(
            "trust_remote_code",
            "code that comes with a checkpoint is never run; families are declared in trtllm_lite/convert/families",
            flag=True,
        ),
    ]
)

BUILD = _merge(
    [
        _same("max_beam_width", _BEAMS, ("1",)),
        _same("opt_num_tokens", "engines have no optimisation profiles; every size up to --max_num_tokens is as fast"),
        _same("max_encoder_input_len max_prompt_embedding_table_size", "decoder-only models; leave it out", ("0",)),
        _same("kv_cache_type", "the KV cache is always paged; leave it out", ("paged",)),
        _same("paged_kv_cache remove_input_padding", "this " + _ALWAYS, _ON),
        _same("context_fmha use_paged_context_fmha reduce_fusion", "this fusion " + _ALWAYS, _ON),
        _same("gpt_attention_plugin gemm_plugin bert_attention_plugin", "the fused operators are built in", _AUTO),
        _same("gemm_swiglu_plugin low_latency_gemm_plugin", "the fused operators are built in", (*_AUTO, *_OFF)),
        _same("nccl_plugin user_buffer", _ONE_DEVICE, (*_AUTO, *_OFF)),
        _same("use_fp8_context_fmha norm_quant_fusion", _NOT_QUANTIZED, _OFF),
        _same("lora_plugin moe_plugin", "not supported yet; leave it out", _OFF),
        _same("lora_dir lora_target_modules max_lora_rank", _LORA),
        _same("multiple_profiles streamingllm", "engines have no such variants; leave it out", _OFF),
        _same("speculative_decoding_mode max_draft_len", "speculative decoding is not supported yet; leave it out"),
        _same("weight_streaming", "weights are mapped from the engine file as needed; leave it out", flag=True),
        _same("dry_run", "use `trtllm-lite plan` with the same flags", flag=True),
        _same("monitor_memory", "use `trtllm-lite plan`, which predicts the memory", flag=True),
        _same(
            "visualize_network",
            "use `trtllm-lite inspect`, or open network.onnx of the checkpoint in Netron",
            flag=True,
        ),
        _same("profiling_verbosity", "use `trtllm-lite inspect` on the engine"),
        _same("logits_dtype", "logits are float32; leave it out", ("float32",)),
        _same(
            "gather_generation_logits",
            "always available: ModelRunner.generate(output_generation_logits=True)",
            flag=True,
        ),
        _same("gather_all_token_logits", "use --gather_context_logits", flag=True),
        _same("workers", "one process is enough here; leave it out", ("1",)),
        _same("build_config", "pass --checkpoint_dir and the limits as flags"),
    ]
)

GENERATE = _merge(
    [
        _same("input_text", "use --prompt"),
        _same("input_file", "use --prompt - and pipe the file in"),
        _same("max_output_len", "use --max_new_tokens"),
        _same("tokenizer_dir tokenizer_type vocab_file", "the tokenizer travels in the engine; leave it out"),
        _same("streaming", "text is always streamed; leave it out", flag=True),
        _same("use_py_session", "there is one runtime; leave it out", flag=True),
        _same("no_prompt_template", "prompts are plain text unless --chat is given; leave it out", flag=True),
        _same("lora_dir lora_task_uids", _LORA),
        _same("kv_cache_enable_block_reuse", "one prompt alone has nothing to reuse; leave it out", flag=True),
    ]
)
