"""Tiny engines, for tests of the code around engines."""

from pathlib import Path
from typing import Any

from tests.models import save_tiny_model
from trtllm_lite import LLM


def make_tiny_engine(directory: Path, *, max_seq_len: int, **options: Any) -> Path:
    """An engine of random weights for CPUs, which takes one request at a time; returns its directory."""
    save_tiny_model("llama", directory / "model", max_position_embeddings=max_seq_len)
    with LLM(directory / "model", max_batch_size=1, max_seq_len=max_seq_len, max_input_len=64, **options) as llm:
        llm.save(directory / "engine")
    return directory / "engine"
