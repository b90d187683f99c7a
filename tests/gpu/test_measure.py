"""Autotuning on this machine's GPU finds a kernel for each product, which the engine then uses."""

from pathlib import Path

import pytest

from tests.gpu.test_engine import LIMITS, SHAPE
from tests.models import save_tiny_model
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.cuda.products.timing_cache import CUBLASLT, load_timing_cache
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.quantize.schemes import FULL_PRECISION
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.workflows.inspect import inspect_path


@pytest.mark.parametrize("qformat", [FULL_PRECISION, "fp8_rowwise", "int8_wo", "int4_wo"])
def test_what_was_measured_is_kept_and_used(tmp_path: Path, qformat: str) -> None:
    shape = SHAPE | {"intermediate_size": 128}  # a multiple of the granularity of rows of 4-bit elements
    save_tiny_model("llama", tmp_path / "model", **shape, head_dim=16)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    limits = LIMITS | {"max_batch_size": 300, "max_num_tokens": 600}
    build_engine(
        tmp_path / "checkpoint",
        tmp_path / "engine",
        **limits,
        qformat=qformat,
        group_size=32,
        target="sm_90",
        output_timing_cache=tmp_path / "cache.json",
        fast_build=True,
    )
    cache = load_timing_cache(tmp_path / "cache.json")
    of_library = {timing for timing in cache.kernels if timing.product.dtype == "bfloat16"}
    measured = {(timing.product, timing.rows) for timing in of_library}
    tuned = {(timing.product, timing.rows) for timing in cache.kernels if timing.kernel == CUBLASLT}
    assert measured == tuned  # every task of 16-bit weights has this kernel
    assert {64, 128, 256, 512} <= {timing.rows for timing in set(cache.kernels) - of_library or of_library}
    assert all(timing.microseconds > 0 for timing in (*cache.kernels, *cache.products))
    assert all(timing.microseconds <= timing.heuristic_microseconds for timing in cache.products)
    tactics = inspect_path(tmp_path / "engine").tactics
    assert any(f"fastest on {cache.device}" in tactic.reason for tactic in tactics)
    runner = ModelRunner.from_dir(tmp_path / "engine")
    prompt = [5, 7, 11]
    for num_rows in (*range(1, 34), 63, 65, 127, 129, 199):  # rows of logits; other products have three times as many
        tokens = runner.generate([prompt] * num_rows, max_new_tokens=3, end_id=-1)
        assert tokens.shape == (num_rows, 1, len(prompt) + 3)


@pytest.mark.parametrize("qformat", [FULL_PRECISION, "fp8_rowwise", "int4_wo"])
def test_tiles_of_experts_are_measured(tmp_path: Path, qformat: str) -> None:
    """A build that reads the timings of another makes the same choices."""
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 16}
    save_tiny_model("qwen3_moe", tmp_path / "model", **{**SHAPE, **sizes})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    limits = LIMITS | {"max_batch_size": 80, "max_num_tokens": 600}
    how = {"qformat": qformat, "group_size": 32, "target": "sm_90"}
    measured = {"output_timing_cache": tmp_path / "cache.json", "fast_build": True}
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **limits, **how, **measured)
    cache = load_timing_cache(tmp_path / "cache.json")
    tasks = {(timing.product.gated, timing.rows) for timing in cache.kernels if timing.product.experts}
    assert tasks == {(gated, rows) for gated in (True, False) for rows in (64, 128, 256, 384, 512)}
    tactics = inspect_path(tmp_path / "engine").tactics
    of_experts = [tactic for tactic in tactics if tactic.site.startswith(("grouped_linear_", "grouped_gated_linear_"))]
    assert any(f"fastest on {cache.device}" in tactic.reason for tactic in of_experts)
    build_engine(
        tmp_path / "checkpoint", tmp_path / "other", **limits, **how, input_timing_cache=tmp_path / "cache.json"
    )
    assert inspect_path(tmp_path / "other").tactics == tactics
    runner = ModelRunner.from_dir(tmp_path / "other")
    for num_rows in (1, 16, 17, 65, 80):
        tokens = runner.generate([[5, 7, 11]] * num_rows, max_new_tokens=3, end_id=-1)
        assert tokens.shape == (num_rows, 1, 6)
