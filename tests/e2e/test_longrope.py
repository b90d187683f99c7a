"""LongRoPE: an engine has the factors for its longest sequence, like transformers for sequences of that length."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite import _core
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint

ORIGINAL = 32
ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 50.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.2, 3.0, 9.0],
}


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize(("max_seq_len", "length"), [(ORIGINAL, 5), (ORIGINAL, 32), (64, 33), (64, 64)])
def test_an_engine_has_the_factors_of_its_longest_sequence(
    max_seq_len: int, length: int, tp_size: int, tmp_path: Path
) -> None:
    fields = {"original_max_position_embeddings": ORIGINAL, "rope_parameters": ROPE, "sliding_window": None}
    model = save_tiny_model("phi3", tmp_path / "model", **fields)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float32")
    limits = {"max_batch_size": 1, "max_input_len": max_seq_len - 1, "max_seq_len": max_seq_len, "tokens_per_block": 16}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", tp_size=tp_size, **limits)
    ids = np.random.default_rng(0).integers(0, VOCAB_SIZE, length).astype(np.int32)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None]).long()).logits[0, -1:].numpy()
    assert_close(_logits(tmp_path / "engine", tp_size, ids), expected)


def _logits(directory: Path, tp_size: int, ids: np.ndarray) -> np.ndarray:
    """Logits of the last token, computed in two steps: one for all other tokens, and one for the last."""
    ranks = [_core.Engine(str(directory / f"rank{rank}.engine")) for rank in range(tp_size)]
    executor, table = _core.open_executor(ranks), np.arange(4, dtype=np.int32)[None]
    found = np.empty(0)
    for past, new in ((0, len(ids) - 1), (len(ids) - 1, 1)):
        lens, lasts = np.array([new], np.int32), np.array([new - 1], np.int32)
        tables = table[:, : -(-len(ids) // 16)]
        found = _core.step(executor, ids[past : past + new], lens, np.array([past], np.int32), tables, lasts)
    return found
