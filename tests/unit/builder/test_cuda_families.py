"""GPU programs of networks that differ from Llama: the kernels that they use, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import GPU_TOLERANCES
from tests.unit.builder.cuda_engines import CUDA_VARIANTS, cuda_plan, cuda_shape, lowered, lowered_model
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.early_reads import check_early_reads
from tests.unit.builder.networks import Shape
from tests.unit.builder.test_cuda_numerics import check_step, sequences_of
from trtllm_lite.builder.cuda.planning import Lowered
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.plan import LaunchInstruction, Plan
from trtllm_lite.errors import BuildError
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.launch import Launch


def _kernels(plan: Plan, program: int) -> list[str]:
    instructions = plan.programs[program].instructions
    return [plan.kernels[i.kernel].name for i in instructions if isinstance(i, LaunchInstruction)]


def _kernels_by_program(engine: Lowered) -> dict[str, set[str]]:
    return {
        program.name: {command.kernel.name for command in program.commands if isinstance(command, Launch)}
        for program in engine.programs
    }


def test_soft_caps_of_logits_run_as_rowwise() -> None:
    plan = cuda_plan(CUDA_VARIANTS["gemma2"])
    for program in range(len(plan.programs)):
        kernels = _kernels(plan, program)
        assert kernels.count("rowwise") == 1
        assert kernels[-2:] == ["rowwise", "sample"]


def test_layer_norms_are_kernels_of_their_own() -> None:
    kernels = _kernels(cuda_plan(CUDA_VARIANTS["plain"]), 0)
    assert kernels.count("layer_norm") == 5
    assert kernels.count("position_embedding") == 1
    assert "rowwise" not in kernels  # GEMV kernels apply their activation in the epilogue
    assert "rope_cache" not in kernels


def test_partial_rope_of_no_whole_tiles_is_a_kernel_behind_the_product() -> None:
    assert _kernels(cuda_plan(CUDA_VARIANTS["phi3"]), 0).count("rope_cache") == 2
    assert "rope_cache" not in _kernels(cuda_plan(cuda_shape(head_dim=32, rotary_dim=16)), 0)


def test_rope_of_an_odd_part_is_refused() -> None:
    with pytest.raises(BuildError, match="RoPE rotates 10 elements of a head, expected a multiple of 4"):
        cuda_plan(cuda_shape(rotary_dim=10))


def test_a_network_without_rope_has_slots_and_no_table() -> None:
    kernels = _kernels(cuda_plan(CUDA_VARIANTS["gpt2"]), 0)
    assert kernels[:3] == ["cache_slots", "embedding", "position_embedding"]
    assert "rotary_table" not in kernels


def test_weights_that_no_kernel_reads_are_expanded() -> None:
    """FP8 rows that are not whole blocks are expanded; weights that kernels can read as stored are not."""
    (reason,) = {item.reason for item in lowered(cuda_shape(inter=80), qformat="fp8_wo").expansions}
    assert reason.startswith("GPU kernels multiply 16-bit rows by")
    for qformat in ("fp8_wo", "int8_wo"):
        assert not lowered(cuda_shape(), qformat=qformat).expansions


@pytest.mark.parametrize("tokens", [20, 70, 160])
def test_small_int8_products_are_tiled_or_dequantized(tokens: int) -> None:
    """Tiles must fit the step sizes that they are chosen for, whatever the limits of the engine."""
    lowered(cuda_shape(), qformat="int8_wo", max_batch_size=20, max_num_tokens=tokens, max_seq_len=128)


def test_int8_rows_of_no_whole_tiles_are_refused() -> None:
    with pytest.raises(
        BuildError, match=r"whose 72 elements a row have 1 scales: expected rows of a multiple of 16 elements"
    ):
        lowered(cuda_shape(inter=72), qformat="int8_wo")


def test_a_table_of_too_few_positions_is_refused() -> None:
    with pytest.raises(BuildError, match="has 40 positions: set max_seq_len"):
        cuda_plan(cuda_shape(learned_positions=True, max_seq=40))


@pytest.mark.parametrize("qformat", ["fp8", "int8_sq"])
def test_rows_of_bytes_are_tiled_where_they_are_not_streamed(qformat: str) -> None:
    """The product of queries, keys and values, with its rotation, is tiled like the others."""
    kernels = _kernels_by_program(lowered(cuda_shape(), qformat=qformat, max_batch_size=24))
    assert {"qkv_linear", "gated_linear", "linear"} <= kernels["decode_16"]
    assert {"linear_tiled", "gated_linear_tiled", "qkv_linear_tiled"} <= kernels["step_64"]
    assert "rope_cache" not in kernels["step_64"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_steps_of_many_rows_dequantize_a_weight_once(deterministic: bool) -> None:
    """Engines whose rows must have the same bits in every program dequantize in each tile."""
    shape, rows = cuda_shape(inter=128), 2048
    engine = lowered(shape, qformat="int4_wo", max_num_tokens=rows, max_batch_size=64, deterministic=deterministic)
    kernels = _kernels_by_program(engine)
    assert "linear_tiled" in kernels["step_1024"]
    assert "dequantize" not in kernels["step_1024"]
    assert ("dequantize" in kernels["mixed"]) == (not deterministic)


_EXTENTS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
_LATENTS: dict[str, Any] = {
    **{"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 128, "v_head_dim": 16, "head_dim": 64},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 64},
}
_CACHE = Shape(layers=3, kv_heads=2, head_dim=16, vocab=VOCAB_SIZE, max_seq=48)
_FAMILIES: dict[str, tuple[dict[str, Any], Shape]] = {
    **{family: ({}, _CACHE) for family in ("cwm", "jais2", "vaultgemma")},
    "gemma4_unified": (
        {"global_head_dim": 32},
        replace(_CACHE, layer_kv_heads=(2, 2, 1), layer_head_dims=(16, 16, 32)),
    ),
    "youtu": (_LATENTS, replace(_CACHE, kv_heads=1, head_dim=64, value_dim=128)),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", _FAMILIES)
def test_programs_of_dense_families_compute_the_networks_logits(family: str, dtype: str, tmp_path: Path) -> None:
    own, cache = _FAMILIES[family]
    save_tiny_model(family, tmp_path / "model", **{**_EXTENTS, **own})
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype)
    model = load_network(tmp_path / "checkpoint")
    engine = lowered_model(model, dtype)
    check_early_reads(engine)
    card = CudaInterpreter(engine)
    state = sequences_of(cache, card)
    for lens in ([31, 1, 4], [1, 1, 1], [1, 6, 2], [1, 1, 1]):
        check_step(card, state, lens, "decode_4" if max(lens) == 1 else "mixed", model, GPU_TOLERANCES)
