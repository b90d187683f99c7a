"""GPU programs of encoders: which kernels they use, and that they compute what transformers computes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.classifiers import expected_scores
from tests.e2e.llm import random_prompts
from tests.encoders import expected_rows, write_pooling
from tests.models import ENCODER_FAMILIES, round_matrices, save_tiny_model
from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from trtllm_lite._core import Engine
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.checkpoint import checkpoint_of_shape, open_checkpoint
from trtllm_lite.builder.cuda.planning import WORKSPACE_BYTES, Lowered, lower_network
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.builder.pipeline import fuse_into_plugins
from trtllm_lite.convert import convert_checkpoint, open_model_config
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.network import Recipe, no_calibration, quantize_network

LIMITS = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 64, "max_num_tokens": 200}
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}  # heads of 16 elements
TEXTS = [[3 if token in (1, 2) else token for token in text] for text in random_prompts(seed=3, count=4)]


def _lowered(directory: Path, targets: str = "sm_90", qformat: str = "full_prec") -> Lowered:
    """The programs of the checkpoint ``directory``, without machine code."""
    checkpoint, limits = open_checkpoint(directory), BuildLimits(**LIMITS)
    model = quantize_network(checkpoint.model, Recipe(qformat, group_size=32), no_calibration)[0]
    fused = fuse_into_plugins(model, AUTO_DTYPE, limits)
    limits = replace(limits, cache_groups=fused.cache_groups)
    return lower_network(
        fused.graph, checkpoint.kind.name, checkpoint.config.dtype, limits, parse_targets(targets.split(","))
    )


def _inputs(texts: list[list[int]]) -> dict[str, np.ndarray]:
    lengths = [len(text) for text in texts]
    return {
        "token_ids": np.concatenate(texts).astype(np.int32),
        "position_ids": np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_programs_compute_what_transformers_does(family: str, dtype: str, tmp_path: Path) -> None:
    model = round_matrices(save_tiny_model(family, tmp_path / "model", **SHAPE), dtype)
    write_pooling(tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype=dtype)
    card = CudaInterpreter(_lowered(tmp_path / "checkpoint"))
    assert [program.name for program in card.plan.programs][-1] == "mixed"
    assert not any(program.decode_only for program in card.plan.programs)
    for texts in (TEXTS, TEXTS[:1]):
        for program in {program.name for program in card.plan.programs if program.max_tokens >= sum(map(len, texts))}:
            card.run(_inputs(texts), program, {})
            rows = card.output("sentence_embedding")
            assert rows.dtype == np.float32
            assert_close(rows, expected_rows(model, texts, normalize=True), dtype, table=ROUNDED_TOLERANCES)
    assert ("rotate" in card.ran) == (family == "modernbert")
    assert not {"cache_slots", "sample"} & {*card.ran}


@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_programs_compute_scores(family: str, tmp_path: Path) -> None:
    """A head is products and rows by text, of which the last are float32."""
    model = save_tiny_model(family, tmp_path / "model", classifies=True, num_labels=3, **SHAPE)
    model = round_matrices(model, "float16")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="float16")
    card = CudaInterpreter(_lowered(tmp_path / "checkpoint"))
    for texts in (TEXTS, TEXTS[:1]):
        card.run(_inputs(texts), "mixed", {})
        scores = card.output("scores")
        assert scores.dtype == np.float32
        assert_close(scores, expected_scores(model, texts), "float16", table=ROUNDED_TOLERANCES)


@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo", "fp8_rowwise"])
def test_scores_with_quantized_weights(qformat: str, tmp_path: Path) -> None:
    """The product that makes scores stays in 16 bits, so that there may be any number of labels."""
    shape = {**SHAPE, "intermediate_size": 128}
    save_tiny_model("bert", tmp_path / "model", classifies=True, num_labels=3, **shape)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")
    rows = []
    for format_ in ("full_prec", qformat):
        card = CudaInterpreter(_lowered(tmp_path / "checkpoint", "sm_90", format_))
        card.run(_inputs(TEXTS), "mixed", {})
        rows.append(card.output("scores"))
    assert 0.95 < (rows[0] * rows[1]).sum() / np.linalg.norm(rows[0]) / np.linalg.norm(rows[1]) < 1


@pytest.mark.parametrize("num_labels", [1, 16])
def test_engines_of_classifiers_are_read_back(num_labels: int, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")
    save_tiny_model("bert", tmp_path / "model", classifies=True, num_labels=num_labels, **SHAPE)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")
    manifest = build_engine(tmp_path / "checkpoint", tmp_path / "engine", target="sm_90", **LIMITS)
    assert [str(port) for port in manifest.module.outputs] == [f"scores float32 [num_seqs, {num_labels}]"]
    assert Engine(str(tmp_path / "engine" / ENGINE_FILE)).manifest


@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo"])
def test_quantized_weights(qformat: str, tmp_path: Path) -> None:
    """One target dequantizes weights in kernels, the other before kernels run."""
    save_tiny_model("bert", tmp_path / "model", **{**SHAPE, "intermediate_size": 128})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")
    rows = []
    for target, format_ in (("sm_90", "full_prec"), ("sm_90", qformat), ("sm_80", qformat)):
        card = CudaInterpreter(_lowered(tmp_path / "checkpoint", target, format_))
        card.run(_inputs(TEXTS), "mixed", {})
        rows.append(card.output("sentence_embedding"))
    assert_close(rows[1], rows[2], "bfloat16", table=ROUNDED_TOLERANCES)
    similarity = (rows[0] * rows[1]).sum(1) / np.linalg.norm(rows[0], axis=1) / np.linalg.norm(rows[1], axis=1)
    assert 0.97 < similarity.min() < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 8}, "head_dim is 8, expected a multiple of 16 up to 256"),
        ({"hidden_size": 60, "num_attention_heads": 2}, "expected a multiple of 8"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(changes: dict[str, int], message: str, tmp_path: Path) -> None:
    save_tiny_model("bert", tmp_path / "model", **{**SHAPE, **changes})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")
    with pytest.raises(BuildError, match=message):
        _lowered(tmp_path / "checkpoint")


def test_matrices_of_32_bits_are_refused(tmp_path: Path) -> None:
    save_tiny_model("bert", tmp_path / "model", **SHAPE)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    with pytest.raises(BuildError, match="GPU engines compute in float16 or bfloat16: convert again with --dtype"):
        _lowered(tmp_path / "checkpoint")


@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_engines_are_read_back(family: str, tmp_path: Path) -> None:
    """An engine for several architectures is read by the runtime, and takes the memory that the planner predicts."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")
    save_tiny_model(family, tmp_path / "model", **SHAPE)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")
    targets = ["sm_80", "sm_90"]
    manifest = build_engine(tmp_path / "checkpoint", tmp_path / "engine", target=targets, **LIMITS)
    assert manifest.module.outputs[0].size == 64
    assert (manifest.kv_cache.num_blocks, manifest.kv_cache.groups) == (0, ())
    assert Engine(str(tmp_path / "engine" / ENGINE_FILE)).manifest
    memory = plan_memory(tmp_path / "checkpoint", target=targets, **LIMITS)
    assert memory.kv_cache == 0
    assert memory.weights == manifest.memory.weights


def test_memory_of_steps_beside_long_texts(tmp_path: Path) -> None:
    """It holds the values of a step of 512 tokens, of which those of different places share no memory."""
    save_tiny_model("bert", tmp_path / "model", **SHAPE, max_position_embeddings=3000)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")

    def memory(longest: int, num_tokens: int) -> MemoryPlan:
        limits = {**LIMITS, "max_input_len": longest, "max_seq_len": longest, "max_num_tokens": num_tokens}
        return plan_memory(tmp_path / "checkpoint", target="sm_90", **limits)

    small, large = memory(512, 512), memory(2048, 4096)
    assert small.beside == 0
    least = small.arena + small.step_inputs + WORKSPACE_BYTES
    assert least <= large.beside < least + 2 * small.arena
    assert large.workspace == large.arena + large.step_inputs + large.beside + large.scratch
    assert memory(2048, 8192).beside == large.beside


@pytest.mark.parametrize("family", ENCODER_FAMILIES)
def test_a_model_config_tells_the_programs_and_the_memory(family: str, tmp_path: Path) -> None:
    """No weight is asked for, because there is none; all but the weights is as in an engine of a checkpoint."""
    save_tiny_model(family, tmp_path / "model", **SHAPE)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype="bfloat16")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    shape = open_model_config(tmp_path / "config.json")
    checkpoint = checkpoint_of_shape(shape.config, shape.network)
    assert plan_memory(checkpoint, target="sm_90", **LIMITS) == plan_memory(
        tmp_path / "checkpoint", target="sm_90", **LIMITS
    )
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")
    options: dict[str, Any] = {"target": "sm_90", "strip_plan": True, **LIMITS}
    build_engine(checkpoint, tmp_path / "of_shape", **options)
    build_engine(tmp_path / "checkpoint", tmp_path / "of_weights", **options)
    of_shape, of_weights = (read_engine(tmp_path / name) for name in ("of_shape", "of_weights"))
    assert of_shape.plan == of_weights.plan
    assert of_shape.manifest.memory == of_weights.manifest.memory
