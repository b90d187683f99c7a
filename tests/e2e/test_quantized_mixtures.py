"""Quantized Hugging Face checkpoints of mixtures: experts keep their stored elements and scales."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, PreTrainedModel

from tests.e2e.test_generate import TINY_LIMITS, check_greedy, generate, random_prompts
from tests.e2e.test_tensor_parallel import LIMITS, opened, two_steps
from tests.gguf_writer import dequantized, write_gguf
from tests.models import tiny_model
from tests.onnx_runner import OnnxRunner
from tests.quantized_writer import LAYOUTS, write_quantized
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.graph import nodes_of, operands
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.activations import recognise
from trtllm_lite.quantize.formats import matrix_of
from trtllm_lite.quantize.network import quantized_as
from trtllm_lite.runtime import ModelRunner

SIZES: dict[str, Any] = {
    **{"hidden_size": 128, "intermediate_size": 192, "moe_intermediate_size": 192, "num_hidden_layers": 2},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16},
    **{"num_experts": 4, "num_experts_per_tok": 2},
}
OF_MIXTRAL = {name: size for name, size in SIZES.items() if name not in ("moe_intermediate_size", "num_experts")}
# Values and the columns of the output's matrix are padded.
OF_MIMO = {name: size for name, size in SIZES.items() if name != "num_experts"}
OF_MIMO |= {"n_routed_experts": 4, "head_dim": 24, "v_head_dim": 16, "layer_types": None}
EXPANDED = (
    *("modelopt awq", "modelopt nvfp4 awq", "gptq with act-order", "compressed-tensors int4 with act-order"),
    *("bitsandbytes nf4", "bitsandbytes nf4, twice"),
)
DTYPES = {
    **{"mixed": "INT8", "fp8": "FLOAT8E4M3FN", "fp4": "FLOAT4E2M1"},
    **{"int8": "INT8", "8 bits": "INT8", "gptq by row": "INT8"},
}


def written(directory: Path, layout: str, family: str = "qwen3_moe", **sizes: Any) -> PreTrainedModel:
    """Write a checkpoint and convert it; returns the model with dequantized weights."""
    model = write_quantized(tiny_model(family, **(sizes or SIZES)), directory / "model", LAYOUTS[layout])
    convert_checkpoint(str(directory / "model"), directory / "checkpoint")
    return model


def check_engine(model: PreTrainedModel, engine: Path) -> None:
    prompts = random_prompts(7, 3)
    for prompt, (tokens, logits) in zip(prompts, generate(ModelRunner.from_dir(engine), prompts, 8), strict=True):
        check_greedy(model, prompt, tokens, logits)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_experts_are_those_of_the_checkpoint(layout: str, tmp_path: Path) -> None:
    """Elements and scales are equal, and the inputs of experts are not rounded, even if those of other layers are."""
    model = written(tmp_path, layout)
    network = load_network(tmp_path / "checkpoint")
    for node in network.graph:
        if node.op_type == "MatMul" and ".experts." in str(node.name):
            assert recognise(node.inputs[0]) is None
    rounds = LAYOUTS[layout].round is not None
    assert quantized_as(network).endswith("weights only for experts") == rounds
    fused, _ = run_passes(network)
    dtype = None if layout in EXPANDED else next((dtype for name, dtype in DTYPES.items() if name in layout), None)
    for number, layer in enumerate(model.model.layers):
        products = [nodes_of(fused.graph, kind, DOMAIN)[number] for kind in ("GroupedGatedLinear", "GroupedLinear")]
        wanted = layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj
        for node, parameter in zip(products, wanted, strict=True):
            matrix = matrix_of(operands(node))
            found = matrix.format.dequantize({name: matrix.tensor(name).numpy() for name in matrix.operands})
            np.testing.assert_array_equal(found.reshape(parameter.shape), parameter.detach().numpy())
            stored = matrix.tensor("weight").dtype
            assert stored == ir.DataType[dtype] if dtype else (stored.bitwidth == 4) == (layout not in EXPANDED)


@pytest.mark.parametrize(
    ("layout", "family", "sizes"),
    [
        *((layout, "qwen3_moe", SIZES) for layout in ("modelopt nvfp4", "modelopt int8", "gptq with act-order")),
        *((layout, "mixtral", OF_MIXTRAL) for layout in ("awq", "gptq", "compressed-tensors int4 with zero points")),
        ("fp8 in tiles", "mimo_v2_flash", OF_MIMO),
    ],
)
def test_engines_compute_what_the_checkpoint_means(
    layout: str, family: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    model = written(tmp_path, layout, family, **sizes)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    check_engine(model, tmp_path / "engine")


@pytest.mark.parametrize("mapping", [{"tp_size": 2}, {"tp_size": 2, "moe_ep_size": 2}], ids=["features", "experts"])
@pytest.mark.parametrize("layout", ["fp8 in tiles", "awq", "modelopt mxfp4"])
def test_ranks_have_parts_of_the_blocks(layout: str, mapping: dict[str, int], tmp_path: Path) -> None:
    """Rows have 192 features in blocks of 64 or of 32; a half of a row is whole blocks only in the second case."""
    written(tmp_path, layout)
    build_engine(tmp_path / "checkpoint", tmp_path / "one", **LIMITS)
    build_engine(tmp_path / "checkpoint", tmp_path / "many", **mapping, **LIMITS)
    one, many = (two_steps(opened(tmp_path / name)) for name in ("one", "many"))
    for expected, found in zip(one, many, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("family", "kind", "dtype"),
    [
        *(("mixtral", *kind) for kind in (("Q8_0", "INT8"), ("Q4_0", "INT4"), ("Q5_1", "INT8"))),
        ("granitemoe", "Q4_1", "UINT4"),
    ],
)
def test_gguf_files_keep_their_blocks(family: str, kind: str, dtype: str, tmp_path: Path) -> None:
    """The blocks are those of experts, even if Hugging Face has gate and up of all experts in one tensor."""
    kinds = {f"ffn_{name}_{which}": kind for name in ("gate", "up", "down") for which in ("exps", "shexp")}
    shared = {"shared_intermediate_size": 96} if family == "granitemoe" else {}
    model = tiny_model(family, **{**OF_MIXTRAL, "num_hidden_layers": 1, **shared})
    convert_checkpoint(str(write_gguf(model, tmp_path / "m.gguf", kinds)), tmp_path / "checkpoint", "float32")
    fused, _ = run_passes(load_network(tmp_path / "checkpoint"))
    for op_type, features in (("GroupedGatedLinear", 128), ("GroupedLinear", 192)):
        (node,) = nodes_of(fused.graph, op_type, DOMAIN)
        given = operands(node)
        assert given["weight"].dtype == ir.DataType[dtype]
        assert given["weight_scale"].shape[-1] == features // 32
    of_shared = [operands(node)["weight"].dtype for node in nodes_of(fused.graph, "GatedLinear", DOMAIN)]
    assert of_shared == [ir.DataType[dtype]] * len(shared)
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    check_engine(dequantized(model, kinds), tmp_path / "engine")


def test_fp8_in_tiles_is_what_transformers_expands(tmp_path: Path) -> None:
    """Qwen3-30B-A3B-FP8 is published in this format; transformers supports whole tiles only."""
    sizes = {**SIZES, "intermediate_size": 256, "moe_intermediate_size": 256, "num_key_value_heads": 8}
    written(tmp_path, "fp8 in tiles", **sizes)
    expand = FineGrainedFP8Config(dequantize=True)
    expected = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, quantization_config=expand, attn_implementation="eager"
    )
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **TINY_LIMITS)
    check_engine(expected, tmp_path / "engine")
    ids = np.random.default_rng(0).integers(0, expected.config.vocab_size, 9)
    with torch.no_grad():
        wanted = expected(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], wanted)
