"""Mixtures with experts published in MXFP4: kept in 4 bits or expanded, on one rank and on several."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.e2e.test_generate import check_greedy, generate, random_prompts
from tests.gguf_writer import dequantized, write_gguf
from tests.models import round_matrices, tiny_model
from tests.onnx_runner import OnnxRunner
from tests.quantized_writer import write_mxfp4_experts
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.graph import nodes_of, operands
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.convert import convert_checkpoint, open_model_config
from trtllm_lite.convert.mapping import open_source
from trtllm_lite.errors import ConvertError
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.network import quantized_as
from trtllm_lite.runtime import ModelRunner

SIZES: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2},
    **{"num_local_experts": 6, "num_experts_per_tok": 3},
}
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_input_len": 96, "max_seq_len": 128, "tokens_per_block": 16}


def _written(directory: Path) -> PreTrainedModel:
    return write_mxfp4_experts(tiny_model("gpt_oss", **SIZES), directory / "model")


def _check(model: PreTrainedModel, engine: Path, dtype: str = "float32") -> None:
    prompts = random_prompts(5, 4)
    for prompt, (tokens, logits) in zip(prompts, generate(ModelRunner.from_dir(engine), prompts, 12), strict=True):
        check_greedy(model, prompt, tokens, logits, dtype)


@pytest.mark.parametrize(
    "mapping", [{}, {"tp_size": 2}, {"tp_size": 2, "moe_ep_size": 2}, {"pp_size": 3}], ids=["one", "tp", "ep", "pp"]
)
def test_engines_compute_what_the_blocks_mean(mapping: dict[str, int], tmp_path: Path) -> None:
    model = _written(tmp_path)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    assert quantized_as(load_network(tmp_path / "checkpoint")) == "mxfp4, weights only"
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **mapping, **LIMITS)
    _check(model, tmp_path / "engine")


def test_a_shape_says_how_its_experts_are_stored(tmp_path: Path) -> None:
    """An engine built from a preset, like one built from the checkpoint, has MXFP4 experts, as `inspect` shows."""
    _written(tmp_path)
    network = open_model_config(tmp_path / "model" / "config.json").network
    assert quantized_as(network) == "mxfp4, weights only"


def test_gguf_files_stay_in_4_bits(tmp_path: Path) -> None:
    """llama.cpp divides a row into blocks and orders their elements in another way."""
    kinds = {f"ffn_{name}_exps": "MXFP4" for name in ("gate", "up", "down")}
    model = tiny_model("gpt_oss", **SIZES)
    path = write_gguf(model, tmp_path / "model.gguf", kinds)
    convert_checkpoint(str(path), tmp_path / "checkpoint", "float32")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    _check(dequantized(model, kinds), tmp_path / "engine")
    fused, _ = run_passes(load_network(tmp_path / "checkpoint"))
    weights = [operands(node)["weight"] for node in nodes_of(fused.graph, "GroupedLinear", DOMAIN)]
    assert {weight.dtype for weight in weights} == {ir.DataType.FLOAT4E2M1}


def test_experts_stay_in_4_bits(tmp_path: Path) -> None:
    _written(tmp_path)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    model, _ = run_passes(load_network(tmp_path / "checkpoint"))
    shapes = {"GroupedGatedLinear": ((6, 2, 96, 64), (6, 2, 96, 2)), "GroupedLinear": ((6, 64, 96), (6, 64, 3))}
    for op_type, (elements, scales) in shapes.items():
        for node in nodes_of(model.graph, op_type, DOMAIN):
            weight, scale = (operands(node)[name] for name in ("weight", "weight_scale"))
            assert (weight.dtype, tuple(weight.shape)) == (ir.DataType.FLOAT4E2M1, elements)
            assert (scale.dtype, tuple(scale.shape)) == (ir.DataType.BFLOAT16, scales)


def test_a_dequantized_network_has_what_transformers_expands(tmp_path: Path) -> None:
    model = _written(tmp_path)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16", dequantize=True)
    round_matrices(model, "bfloat16")
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 9)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None])).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 16).step([ids])[0], expected, "bfloat16")
    for name in ("gate_up_proj", "down_proj"):
        found = open_source(str(tmp_path / "model")).read(f"model.layers.1.mlp.experts.{name}")
        np.testing.assert_array_equal(found, getattr(model.model.layers[1].mlp.experts, name).detach().numpy())


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("gate_up_proj_blocks", lambda t: t[..., :8].clone(), "expected 16 bytes in each block of .*, found 8"),
        ("down_proj_scales", lambda t: t[:, :-1].clone(), r"expected down_proj_scales to have the shape \[6, 64, 3\]"),
        ("down_proj_scales", lambda t: torch.full_like(t, 255), "a scale of down_proj_scales is not a number"),
        ("gate_up_proj_scales", lambda t: t.float(), "expected gate_up_proj_scales to be of uint8, found float32"),
    ],
)
def test_damage_is_named(tensor: str, change: Any, message: str, tmp_path: Path) -> None:
    _written(tmp_path)
    path, name = tmp_path / "model" / "model.safetensors", f"model.layers.2.mlp.experts.{tensor}"
    tensors = load_file(path)
    save_file({**tensors, name: change(tensors[name])}, path, metadata={"format": "pt"})
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
