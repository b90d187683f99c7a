"""Fixtures shared by all tests: the real model, SmolLM2-135M-Instruct, as its GGUF file, reference and checkpoint."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
_CACHED = REPOSITORY / ".cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The GGUF file: TRTLLM_LITE_SMOLLM2 if set, else the cached one, fetched once."""
    given = os.environ.get("TRTLLM_LITE_SMOLLM2")
    if given:
        return Path(given)
    if not _CACHED.is_file():
        subprocess.run(["bash", "scripts/fetch_smollm2.sh"], cwd=REPOSITORY, check=True)
    return _CACHED


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_gguf: Path):
    """transformers' own reading of the GGUF file, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@pytest.fixture(scope="session")
def smollm2_checkpoint(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 converted with float32 matrices."""
    from trtllm_lite.convert import convert_checkpoint

    directory = tmp_path_factory.mktemp("smollm2") / "checkpoint"
    convert_checkpoint(str(smollm2_gguf), directory, "float32")
    return directory


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, here and in child processes, also where this process was started with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
