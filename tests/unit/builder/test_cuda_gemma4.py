"""GPU programs of Gemma 4, whose layers differ in heads, share caches and have inputs of their own."""

from pathlib import Path
from typing import Any

import pytest

from tests.models import VOCAB_SIZE, save_tiny_model
from tests.unit.builder.cuda_engines import lowered_model
from tests.unit.builder.cuda_interpreter import CudaInterpreter
from tests.unit.builder.networks import Shape
from tests.unit.builder.test_cuda_numerics import STEPS_WITH_DRAFTS, check_step, sequences_of
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.verifier import load_network

# Extents that GPU kernels accept. The first two of four layers keep keys and values, the second without a window.
EXTENTS: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16, "global_head_dim": 32},
    **{"hidden_size_per_layer_input": 16, "num_hidden_layers": 4},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
CACHE = Shape(layers=2, layer_kv_heads=(2, 1), layer_head_dims=(16, 32), vocab=VOCAB_SIZE, max_seq=48)
STEPS = (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed"), ([1, 1, 1], "decode_4"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("drafts", [0, 4])
def test_programs_compute_the_networks_logits(dtype: str, drafts: int, tmp_path: Path) -> None:
    save_tiny_model("gemma4", tmp_path / "model", **EXTENTS)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", dtype)
    model = load_network(tmp_path / "checkpoint")
    lowered = lowered_model(model, dtype, max_draft_len=drafts)
    card = CudaInterpreter(lowered)
    state = sequences_of(CACHE, card)
    for lens, program in STEPS_WITH_DRAFTS if drafts else STEPS:
        check_step(card, state, lens, program, model)
