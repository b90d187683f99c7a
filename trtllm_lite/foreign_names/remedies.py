"""Lists the sentences that several names share."""

SPECULATION = (
    "engines of `trtllm-lite build --max_draft_len` take draft tokens, and `trtllm-lite serve --speculative_config`, "
    "or speculative_config in Python, says how drafts are made"
)
MEDUSA = (
    "heads of Medusa, EAGLE-1 and EAGLE-2, and lookahead decoding, are not supported; speculative_config has ngram, "
    "suffix, draft_model, eagle3 and mtp instead"
)
QUANTIZE = (
    "qformat quantizes an unquantized model, as `trtllm-lite build --qformat` does; a model that is quantized already "
    "is converted as it is"
)
SCHEMES = "`trtllm-lite quantize --help` lists the schemes; choose one with --qformat"
QUANTIZED_CHECKPOINT = "`trtllm-lite convert` takes the directory of a quantized model as it is"
NO_CODE = "code that comes with a model is never run; leave it out"
TEXT_ONLY = "only models of text are supported; leave it out"
SINKS = "only attention sinks of the model itself are supported; leave it out"
WINDOWS = "attention windows are part of the model and travel in the engine; leave it out"
BEAMS = "beams are ranked by their probability alone; leave it out"
KERNELS = "engines choose this themselves; leave it out"
DIVIDED = (
    "engines are divided among devices by tensor_parallel_size, moe_expert_parallel_size and pipeline_parallel_size, "
    "and in no other way; leave it out"
)
EXPERTS = "it is tensor_parallel_size / moe_expert_parallel_size: pass these instead"
CACHE_SCALES = "`trtllm-lite quantize --kv_cache_dtype` finds the scales of a KV cache; leave it out"
OFFLOADING = "host_cache_size is the host memory, in bytes, for what the KV cache has no room for"
GRAMMARS = "llguidance compiles grammars, as requests ask for them; leave it out"
CALIBRATE = "`trtllm-lite quantize` calibrates, with --calib_dataset, --calib_size and --calib_max_seq_length"
EXACT = "a draft is kept if it is the token that would have been sampled in its place; leave it out"
PACED = "only as many tokens are drafted as save time: see enable_adaptive_verification"
