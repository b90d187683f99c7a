"""Locations of real models, which scripts/fetch_model.sh downloads."""

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
CACHE = REPOSITORY / ".cache"
FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "gemma-3-270m": "gemma-3-270m.Q4_K_M.gguf",
    "all-minilm-l6-v2": "all-MiniLM-L6-v2",
}
# Limits of the engine of SmolLM2 that tests share.
SMOLLM2_LIMITS = {
    **{"max_batch_size": 64, "max_input_len": 128, "max_seq_len": 256, "max_num_tokens": 256},
    "tokens_per_block": 16,
}


def find_smollm2() -> Path:
    """The GGUF file of SmolLM2: TRTLLM_LITE_SMOLLM2 if set, else the cached one, fetched once.

    Raises subprocess.CalledProcessError if it cannot be fetched.
    """
    given = os.environ.get("TRTLLM_LITE_SMOLLM2")
    if given:
        return Path(given)
    cached = CACHE / FILES["smollm2-135m"]
    if not cached.is_file():
        subprocess.run(["bash", "scripts/fetch_model.sh", "smollm2-135m"], cwd=REPOSITORY, check=True)
    return cached
