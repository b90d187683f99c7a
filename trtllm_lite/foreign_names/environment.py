"""Lists environment variables of other engines, which ``trtllm-lite serve`` looks for when it starts."""

from collections.abc import Mapping

from trtllm_lite.foreign_names import remedies
from trtllm_lite.foreign_names.entry import Foreign, merge, same

_KEYS = "put the keys into a file, one a line, and give it as --api_key_file"
_FLAGS = "only llama.cpp reads the variable: give the option"

VARIABLES: Mapping[str, Foreign] = merge(
    [
        same("VLLM_API_KEY LLAMA_API_KEY", _KEYS),
        same("LLAMA_ARG_API_KEY_FILE", _KEYS),
        same("VLLM_ATTENTION_BACKEND VLLM_USE_FLASHINFER_SAMPLER VLLM_USE_DEEP_GEMM", remedies.KERNELS, harmless=True),
        same("LLAMA_ARG_MODEL LLAMA_ARG_HF_REPO", _FLAGS + " MODEL", harmless=True),
        same("LLAMA_ARG_CTX_SIZE", _FLAGS + " --max_seq_len", harmless=True),
        same("LLAMA_ARG_N_PARALLEL", _FLAGS + " --max_batch_size", harmless=True),
        same("LLAMA_ARG_THREADS", _FLAGS + " --num_threads", harmless=True),
        same("LLAMA_ARG_HOST VLLM_HOST_IP", "give the option --host", harmless=True),
        same("LLAMA_ARG_PORT VLLM_PORT", "give the option --port", harmless=True),
        same("LLAMA_ARG_ALIAS", _FLAGS + " --served_model_name", harmless=True),
        same("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "give the option --lora_root", harmless=True),
        same("VLLM_CPU_KVCACHE_SPACE", "give the option --max_tokens_in_paged_kv_cache", harmless=True),
        same("VLLM_CPU_OMP_THREADS_BIND", "give the option --num_threads", harmless=True),
        same("VLLM_CACHE_ROOT", "set the variable XDG_CACHE_HOME", harmless=True),
        same("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "the model's own limit applies", harmless=True),
        same("VLLM_USE_MODELSCOPE", "models come from the hub of Hugging Face, or a directory", harmless=True),
        same("TLLM_LOG_LEVEL VLLM_LOGGING_LEVEL", "there is no log; --debug shows where an error arose", harmless=True),
    ]
)
