"""The types of recurrent states: what builds take, measure, choose and record."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.e2e.test_recurrent_engine import EVEN
from tests.models import save_tiny_model
from trtllm_lite import LLM
from trtllm_lite.builder import build_engine, checkpoint_of_shape, plan_memory, state_dtype
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.common.vocabulary import STATE_BUDGET
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.inspect import inspect_engine
from trtllm_lite.errors import ArgumentError, BuildError
from trtllm_lite.runtime.session.config import KvCacheConfig

LIMITS: dict[str, Any] = {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64, "max_draft_len": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qwen3_next")
    save_tiny_model("qwen3_next", root / "model")
    convert_checkpoint(str(root / "model"), root / "checkpoint")
    return root / "checkpoint"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("target", "stored"), [("cpu", "float32"), ("sm_90", "bfloat16")])
def test_sizes_follow_from_the_type(target: str, stored: str, dtype: str, tmp_path: Path) -> None:
    """The matrix of a head, 32 x 48, has 16 bits; 19 tokens of 32 + 48 + 1 numbers and a length have 32.

    Together they are padded to a multiple of 32 bytes.
    """
    save_tiny_model("qwen3_5", tmp_path / "model", **EVEN)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", stored)
    build = {"target": target, "state_dtype": dtype, **LIMITS}
    manifest = build_engine(tmp_path / "checkpoint", tmp_path / "engine", **build)
    states = manifest.kv_cache.groups[-1]
    matrices = [cache for cache in states.caches if cache.name == "recurrent_state"]
    assert {cache.dtype for cache in matrices} == {manifest.kv_cache.state_dtype} == {dtype}
    of_head = 2 * 32 * 48 + 4 * (19 * (32 + 48 + 1) + 1)
    assert {cache.num_bytes for cache in matrices} == {8 * (of_head + 16)}
    assert (of_head + 16) % 32 == 0
    assert {cache.dtype for cache in states.caches if cache not in matrices} == {"float32"}
    assert plan_memory(tmp_path / "checkpoint", **build).kv_cache == manifest.memory.kv_cache
    use = inspect_engine(tmp_path / "engine").cache_use
    assert use is not None
    assert f"recurrent_state {dtype}" in use.groups[-1].describe()


def test_auto_is_the_cheapest_within_the_budget(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = build_engine(checkpoint, tmp_path / "engine", state_dtype="auto", **LIMITS)
    rounding = manifest.state_rounding
    assert rounding is not None
    assert rounding.dtype == manifest.kv_cache.state_dtype == "float16"
    assert 0 < rounding.changes["float16"] < STATE_BUDGET
    assert rounding.changes["bfloat16"] > 4 * rounding.changes["float16"]
    assert rounding.sites == ("layers.0.recurrent.rule", "layers.1.recurrent.rule")
    assert "float16 by" in inspect_engine(tmp_path / "engine").states["change of results"]
    monkeypatch.setattr(state_dtype, "STATE_BUDGET", rounding.changes["float16"] / 2)
    strict = build_engine(checkpoint, tmp_path / "strict", state_dtype="auto", **LIMITS)
    assert strict.kv_cache.state_dtype == "float32"
    assert strict.state_rounding is not None
    assert strict.state_rounding.changes == rounding.changes


def test_an_explicit_type_is_measured_but_not_float32(checkpoint: Path, tmp_path: Path) -> None:
    coarse = build_engine(checkpoint, tmp_path / "coarse", state_dtype="bfloat16", **LIMITS).state_rounding
    usual = build_engine(checkpoint, tmp_path / "usual", **LIMITS).state_rounding
    assert coarse is not None
    assert usual is not None
    assert 0 < coarse.changes["bfloat16"] < 0.05
    assert (usual.dtype, usual.changes, usual.num_tokens) == ("float32", {}, 0)


def test_what_a_build_says_of_states(checkpoint: Path, tmp_path: Path) -> None:
    options = ["--checkpoint_dir", str(checkpoint), "--output_dir", str(tmp_path / "engine"), "--target", "cpu"]
    result = CliRunner().invoke(cli, ["build", *options, "--state_dtype", "auto", "--max_seq_len", "64"])
    assert result.exit_code == 0, result.output
    assert "states: matrices in float16; results change by " in result.output
    assert "states: all forms of CausalConv, GatedDeltaRule agree within 0.0e+00" in result.output
    planned = CliRunner().invoke(cli, ["plan", *options[:2], *options[4:], "--state_dtype", "auto"])
    assert planned.exit_code == 0, planned.output
    assert "recurrent_state float16" in planned.output.replace("\n", " ")


def test_wrong_types_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="state_dtype is 'int8': expected one of float32, float16, bfloat16, auto"):
        build_engine(checkpoint, tmp_path / "engine", state_dtype="int8", **LIMITS)
    save_tiny_model("llama", tmp_path / "llama")
    convert_checkpoint(str(tmp_path / "llama"), tmp_path / "plain")
    with pytest.raises(BuildError, match="state_dtype is auto, and no layer has a matrix as its state: leave"):
        build_engine(tmp_path / "plain", tmp_path / "engine", state_dtype="auto", **LIMITS)
    opened = open_checkpoint(checkpoint)
    shape = checkpoint_of_shape(opened.config, opened.model)
    with pytest.raises(BuildError, match="state_dtype is auto, which is measured with weights, and there are none"):
        plan_memory(shape, target="sm_90", state_dtype="auto", **LIMITS)
    assert plan_memory(shape, state_dtype="float16", **LIMITS).kv_cache > 0
    with pytest.raises(ArgumentError, match="state_dtype"):
        KvCacheConfig(state_dtype="int8")


def test_a_model_is_built_with_the_type_that_is_asked_for(checkpoint: Path) -> None:
    config = KvCacheConfig(mamba_ssm_cache_dtype="bfloat16")  # TensorRT-LLM's name
    assert config == KvCacheConfig(state_dtype="bfloat16")
    with LLM(checkpoint.parent / "model", kv_cache_config=config, max_batch_size=2, max_seq_len=64) as llm:
        assert llm.session.manifest.kv_cache.state_dtype == "bfloat16"


def test_an_engine_of_another_type_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    build_engine(checkpoint, tmp_path / "engine", state_dtype="float16", **LIMITS)
    for accepted in (None, "auto", "float16"):
        LLM(tmp_path / "engine", kv_cache_config=KvCacheConfig(state_dtype=accepted)).shutdown()
    with pytest.raises(ArgumentError, match="state_dtype is bfloat16, but the type of this engine's states is float16"):
        LLM(tmp_path / "engine", kv_cache_config=KvCacheConfig(state_dtype="bfloat16"))
