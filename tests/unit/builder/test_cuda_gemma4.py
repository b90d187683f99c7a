"""GPU programs of Gemma 4, whose layers differ in heads, share caches and have inputs of their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.tolerances import MIXTURE_TOLERANCES
from tests.unit.builder.cuda_engines import lowered_model
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.early_reads import check_early_reads
from tests.unit.builder.networks import Shape
from tests.unit.builder.test_cuda_numerics import STEPS_WITH_DRAFTS, check_step, sequences_of
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.launch import Command, Launch

# Extents that GPU kernels accept. The first two of four layers keep keys and values, the second without a window.
EXTENTS: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16, "global_head_dim": 32},
    **{"hidden_size_per_layer_input": 16, "num_hidden_layers": 4},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
CACHE = Shape(layers=2, layer_kv_heads=(2, 1), layer_head_dims=(16, 32), vocab=VOCAB_SIZE, max_seq=48)
STEPS = (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed"), ([1, 1, 1], "decode_4"))


def _network(directory: Path, dtype: str, **changes: Any) -> ir.Model:
    save_tiny_model("gemma4", directory / "model", **{**EXTENTS, **changes})
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return load_network(directory / "checkpoint")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("drafts", [0, 4])
def test_programs_compute_the_networks_logits(dtype: str, drafts: int, tmp_path: Path) -> None:
    model = _network(tmp_path, dtype)
    card = CudaInterpreter(lowered_model(model, dtype, max_draft_len=drafts))
    kept = [tensor.name for tensor in card.plan.tensors if tensor.kind == "state"]
    assert len(kept) == len(set(kept))
    state = sequences_of(CACHE, card)
    for lens, program in STEPS_WITH_DRAFTS if drafts else STEPS:
        check_step(card, state, lens, program, model)


def test_programs_of_heads_of_512(tmp_path: Path) -> None:
    """Decode attention keeps queries in shared memory, and prefill attention runs without wgmma."""
    model = _network(tmp_path, "bfloat16", global_head_dim=512)
    lowered = lowered_model(model, "bfloat16")
    card, cache = CudaInterpreter(lowered), replace(CACHE, layer_head_dims=(16, 512))
    state = sequences_of(cache, card)
    for lens, program in STEPS:
        check_step(card, state, lens, program, model)
    kernels = {command.kernel for program in lowered.programs for command in program.commands if _attends(command)}
    assert {(kernel.source, dict(kernel.defines)["TL_HEAD_DIM"]) for kernel in kernels} == {
        ("paged_attention/decode.cuh", 16),
        ("paged_attention/prefill.cuh", 16),
        ("paged_attention/decode.cuh", 512),
        ("paged_attention/prefill.cuh", 512),
    }


def _attends(command: Command) -> bool:
    return isinstance(command, Launch) and command.kernel.name.startswith("paged_attention")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_programs_with_experts_beside_mlps(dtype: str, tmp_path: Path) -> None:
    experts = {"enable_moe_block": True, "num_experts": 9, "top_k_experts": 3, "moe_intermediate_size": 48}
    # With this seed no choice of an expert is so close that rounding changes it.
    model = _network(tmp_path, dtype, **experts, hidden_size_per_layer_input=0, seed=3)
    lowered = lowered_model(model, dtype)
    assert check_early_reads(lowered) > 0
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHE, card)
    for lens, program in STEPS:
        check_step(card, state, lens, program, model, MIXTURE_TOLERANCES)
