"""Refuses limits and options that concern generation alone, for engines of encoders."""

from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.errors import BuildError


def check_encoder(limits: BuildLimits, kv_cache_dtype: str, key_cache_dtype: str, backend: str) -> None:
    """Raise BuildError for limits, options and backends that encoders do not have."""
    problems = {
        "the backend is tensorrt: encoders are for the backend native": backend == "tensorrt",
        f"kv_cache_dtype is {kv_cache_dtype}: encoders have no KV cache": kv_cache_dtype != AUTO_DTYPE,
        f"key_cache_dtype is {key_cache_dtype}: encoders have no KV cache": key_cache_dtype != AUTO_DTYPE,
        f"max_draft_len is {limits.max_draft_len}: encoders generate nothing": limits.max_draft_len > 0,
        "gather_context_logits is given: encoders make no logits": limits.gather_context_logits,
        f"max_lora_rank is {limits.max_lora_rank}: encoders take no adapters yet": limits.max_lora_rank > 0,
        f"tp_size is {limits.tp_size}: encoders run on one device only": limits.tp_size > 1,
        f"pp_size is {limits.pp_size}: encoders run on one device only": limits.pp_size > 1,
    }
    for problem, found in problems.items():
        if found:
            raise BuildError(f"{problem}; leave it out")
    if limits.num_tokens < limits.max_input_len:
        raise BuildError(
            f"max_num_tokens is {limits.num_tokens}, below max_input_len {limits.max_input_len}: an encoder computes a "
            "text in one step, so raise max_num_tokens or lower max_input_len"
        )
