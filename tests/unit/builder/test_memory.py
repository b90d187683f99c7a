import os
from pathlib import Path

import pytest

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from tests.unit.builder.networks import Shape
from trtllm_lite._core import SCRATCH_BYTES_PER_THREAD, SHARED_SCRATCH_BYTES, resolve_num_threads
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.errors import EngineError


def test_the_prediction_is_what_the_engine_says(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    predicted = plan_memory(checkpoint, **LIMITS, num_threads=3)
    memory = build_engine(checkpoint, tmp_path / "engine", **LIMITS).memory
    assert predicted.weights == memory.weights
    assert predicted.kv_cache == memory.kv_cache
    assert predicted.workspace == memory.workspace + 3 * SCRATCH_BYTES_PER_THREAD + SHARED_SCRATCH_BYTES
    assert predicted.total == predicted.weights + predicted.kv_cache + predicted.workspace
    assert predicted.to_dict()["total"] == predicted.total


def test_bytes_of_the_cache(tmp_path: Path) -> None:
    plan = plan_memory(save_checkpoint(tmp_path / "checkpoint"), **LIMITS)
    layers, sides, blocks, heads, head_dim, tokens, float32 = 2, 2, 9, 2, 10, 16, 4
    assert plan.kv_cache == layers * sides * blocks * heads * head_dim * tokens * float32


def test_windows_save_blocks(tmp_path: Path) -> None:
    """Two of three layers have a window and lie in two groups, because a block has room for one layer."""
    shape = Shape(layers=3, windows=(5, 0, 5))
    limits = {**LIMITS, "max_seq_len": 40, "tokens_per_block": 16}
    plan = plan_memory(save_checkpoint(tmp_path / "checkpoint", shape), **limits)
    assert [(group.name, group.num_layers, group.num_blocks) for group in plan.cache_use.groups] == [
        ("full", 1, 3),
        ("window_5", 1, 2),
        ("window_5.1", 1, 2),
    ]
    block = 2 * 2 * 10 * 16 * 4
    assert (plan.cache_use.num_bytes, plan.cache_use.full_bytes) == (7 * block, 9 * block)
    steady, prompt = 7, 9  # blocks of a sequence in decoding, and while its prompt is computed in one step
    assert plan.kv_cache == (2 * steady + prompt) * block
    assert plan.cache_use.describe() == "17.5 KiB for a sequence of 40 tokens, 22% less than 22.5 KiB without windows"


def test_no_weight_is_read(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    expected = plan_memory(checkpoint, **LIMITS)
    size = (checkpoint / "weights.safetensors").stat().st_size
    (checkpoint / "weights.safetensors").unlink()
    with open(checkpoint / "weights.safetensors", "wb") as file:
        os.truncate(file.fileno(), size)
    assert plan_memory(checkpoint, **LIMITS) == expected


def test_threads_default_to_those_of_the_runtime(tmp_path: Path) -> None:
    plan = plan_memory(save_checkpoint(tmp_path / "checkpoint"), **LIMITS)
    assert plan.num_threads == resolve_num_threads()
    assert plan.scratch == plan.num_threads * SCRATCH_BYTES_PER_THREAD + SHARED_SCRATCH_BYTES


def test_a_network_without_attention_is_refused(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", Shape(layers=0, windows=()))
    with pytest.raises(EngineError, match="inputs: expected 5, found 3"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS)
