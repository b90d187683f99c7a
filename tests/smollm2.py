"""Where the tests find SmolLM2-135M-Instruct."""

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
_CACHED = REPOSITORY / ".cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_smollm2() -> Path:
    """The GGUF file: TRTLLM_LITE_SMOLLM2 if set, else the cached one, fetched once.

    Raises subprocess.CalledProcessError if it cannot be fetched.
    """
    given = os.environ.get("TRTLLM_LITE_SMOLLM2")
    if given:
        return Path(given)
    if not _CACHED.is_file():
        subprocess.run(["bash", "scripts/fetch_smollm2.sh"], cwd=REPOSITORY, check=True)
    return _CACHED
