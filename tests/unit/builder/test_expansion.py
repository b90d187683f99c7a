"""Weights in formats that GPU kernels cannot read are expanded to 16 bits, with the values of the checkpoint."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.models import tiny_model
from tests.quantized_writer import LAYOUTS, write_mxfp4_experts, write_quantized
from tests.unit.builder.cuda_engines import cuda_shape, lowered_model, quantized
from trtllm_lite.builder import Checkpoint, open_checkpoint
from trtllm_lite.builder.cuda.expansion import Expanded, expand_weights
from trtllm_lite.builder.cuda.ops import ops_of
from trtllm_lite.builder.graph import weight_tensor
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.errors import BuildError

SHAPE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}


def _expand(checkpoint: Checkpoint, dtype: str) -> Expanded:
    model, _ = run_passes(checkpoint.model)
    return expand_weights(model.graph, dtype)


def test_matrices_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    layout, stored = LAYOUTS["compressed-tensors nvfp4"], "float4_e2m1fn in blocks of 16"
    meant = write_quantized(tiny_model("llama", **SHAPE, head_dim=64), tmp_path / "model", layout)
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "float16")
    expanded = _expand(open_checkpoint(tmp_path / "checkpoint"), "float16")
    assert {item.choice for item in expanded.expansions} == {f"{stored} becomes float16"}
    assert not any("weight_scale" in op.inputs for op in expanded.ops)
    weights = {op.name: weight_tensor(op.inputs["weight"]) for op in expanded.ops if op.kind == "Linear"}
    for number, layer in enumerate(meant.model.layers):
        found = weights[f"layers.{number}.attention.o_proj"]
        assert found is not None
        expected = layer.self_attn.o_proj.weight.detach().numpy().astype(np.float16)
        assert np.array_equal(found.numpy(), expected)


def test_experts_of_odd_rows_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """Kernels read 4-bit rows whose length is a multiple of 64."""
    sizes = {"hidden_size": 96, "intermediate_size": 96}
    meant = write_mxfp4_experts(tiny_model("gpt_oss", **sizes), tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    expanded = _expand(open_checkpoint(tmp_path / "checkpoint"), "bfloat16")
    assert {item.choice for item in expanded.expansions} == {"float4_e2m1fn in blocks of 32 becomes bfloat16"}
    weights = {op.name: weight_tensor(op.inputs["weight"]) for op in expanded.ops if op.kind.startswith("Grouped")}
    for number, layer in enumerate(meant.model.layers):
        experts = layer.mlp.experts
        gate_up = experts.gate_up_proj.detach().transpose(1, 2).reshape(5, 96, 2, 96).transpose(1, 2)
        for name, expected in (("gate_up_proj", gate_up), ("down_proj", experts.down_proj.detach().transpose(1, 2))):
            found = weights[f"layers.{number}.mlp.experts.{name}"]
            assert found is not None
            assert np.array_equal(found.numpy().astype(np.float32), expected.numpy())


READ = ["awq", "fp8 in tiles", "fp8 in tiles with powers of two", "modelopt mxfp4", "gptq 8 bits"]


@pytest.mark.parametrize("layout", READ)
def test_what_kernels_read_stays_as_it_is(layout: str, tmp_path: Path) -> None:
    write_quantized(tiny_model("llama", **SHAPE, head_dim=64), tmp_path / "model", LAYOUTS[layout])
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint", "bfloat16")
    assert not _expand(open_checkpoint(tmp_path / "checkpoint"), "bfloat16").expansions


def test_a_scale_for_each_row_becomes_one_for_each_block() -> None:
    model, _ = run_passes(quantized(cuda_shape(), "fp8_wo"))
    by_name = {op.name: op for op in ops_of(model.graph)}
    expanded = expand_weights(model.graph, "bfloat16")
    read = [op for op in expanded.ops if "weight_scale" in op.inputs]
    assert read
    for op in read:
        scale, of_rows = (weight_tensor(one.inputs["weight_scale"]) for one in (op, by_name[op.name]))
        assert scale is not None
        assert of_rows is not None
        depth, found = op.inputs["weight"].shape[-1], scale.numpy()
        assert depth // found.shape[-1] == {64: 64, 96: 32}[depth]
        assert np.array_equal(found, np.broadcast_to(of_rows.numpy(), found.shape))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight", np.nan, r"of float8_e4m3fn has elements that are not numbers \(NaN\)"),
        ("weight_scale", 129, "reach 129, and GPU kernels multiply such weights with scales up to 128: convert with"),
        ("weight_scale", np.nan, "reach nan"),
    ],
)
def test_numbers_that_kernels_do_not_know_are_errors(name: str, value: float, message: str) -> None:
    """The error is raised when weights are written."""
    model = quantized(cuda_shape(), "fp8_wo")
    found = model.graph.initializers[f"model.layers.0.self_attn.q_proj.weight.{name}"]
    tensor = found.const_value
    assert tensor is not None
    numbers = tensor.numpy().copy()
    numbers[3] = value
    found.const_value = ir.Tensor(numbers, dtype=tensor.dtype)
    weights = lowered_model(model, "bfloat16").operands.weights
    wrong = next(one for one in weights.values() if one.name == f"layers.0.attention.qkv_proj.{name}")
    with pytest.raises(BuildError, match=message):
        wrong.load()
