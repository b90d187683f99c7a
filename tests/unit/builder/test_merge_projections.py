"""The pass merge_projections: which products of recurrent layers become one, and where its parts are read."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.models import save_tiny_model
from tests.unit.builder.cuda_engines import recipe
from tests.unit.builder.structure import find, run_until
from tests.unit.quantize.made_up import made_up
from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.graph import attribute, dims, nodes_of, operands, weight_tensor
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.passes import Decision
from trtllm_lite.builder.passes.merge_projections import MERGE_PROJECTIONS
from trtllm_lite.builder.pipeline import fuse_into_plugins, run_passes
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.network.verifier import load_network
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.network import quantize_network

LAYER = "layers.1.recurrent"
# Sizes that are multiples of a group of weights.
IN_GROUPS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
IN_GROUPS |= {"linear_value_head_dim": 16}


def network(family: str, directory: Path, **sizes: int) -> ir.Model:
    save_tiny_model(family, directory / "model", **sizes)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", "float32")
    return load_network(directory / "checkpoint")


def products(model: ir.Model, layer: str = LAYER) -> list[str]:
    """The products of a layer, by the ends of their names."""
    names = [str(node.name) for node in nodes_of(model.graph, "Linear", DOMAIN)]
    return [name.removeprefix(f"{layer}.") for name in names if name.startswith(f"{layer}.")]


def read(model: ir.Model, op_type: str, operand: str) -> tuple[ir.Value, int]:
    """What an operator of the second recurrent layer reads, and from which column on."""
    node = nodes_of(model.graph, op_type, DOMAIN)[1]
    return operands(node)[operand], attribute(node, f"{operand}_first")


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("qwen3_5", ["qkv_gate_a_b_proj", "o_proj"]),
        ("qwen3_5_moe", ["qkv_gate_a_b_proj", "o_proj"]),
        ("qwen3_next", ["qkv_gate_a_b_proj", "o_proj"]),
        ("bamba", ["xbc_gate_dt_proj", "o_proj"]),
        ("granitemoehybrid", ["xbc_gate_dt_proj", "o_proj"]),
        ("kimi_linear", ["qkv_b_proj"]),
    ],
)
def test_a_recurrent_layer_has_one_product_of_its_input(family: str, expected: list[str], tmp_path: Path) -> None:
    model, decisions = run_until("merge_projections", network(family, tmp_path))
    found = products(model)
    assert [name for name in found if name in expected] == expected
    x = operands(find(model, f"{LAYER}.{expected[0]}"))["x"]
    of_x = [use.node for use in x.uses() if use.node.op_type == "Linear"]
    assert len(of_x) == (3 if family == "kimi_linear" else 1)  # there decays and gates are of low rank
    assert Decision(LAYER, True) in decisions


def test_parts_are_read_where_they_lie(tmp_path: Path) -> None:
    source = network("qwen3_5", tmp_path)
    model, _ = run_until("merge_projections", source)
    rows, weight = find(model, f"{LAYER}.qkv_gate_a_b_proj").outputs[0], find(model, f"{LAYER}.qkv_gate_a_b_proj")
    widths = {"qkv": 124, "gate": 84, "a": 6, "b": 6}
    begins = dict(zip(widths, np.cumsum([0, *widths.values()]).tolist(), strict=False))
    assert dims(rows) == ("num_tokens", sum(widths.values()))
    assert read(model, "CausalConv", "x") == (rows, begins["qkv"])
    assert read(model, "GatedDeltaRule", "a") == (rows, begins["a"])
    assert read(model, "GatedDeltaRule", "b") == (rows, begins["b"])
    assert read(model, "GatedRmsNorm", "gate") == (rows, begins["gate"])
    merged = weight_tensor(operands(weight)["weight"])
    assert merged is not None
    assert type(merged).__name__ == "LazyTensor"
    before, _ = run_until("linear", source)
    for name, begin in begins.items():
        part = weight_tensor(operands(find(before, f"{LAYER}.{name}_proj"))["weight"])
        assert part is not None
        np.testing.assert_array_equal(merged.numpy()[begin : begin + widths[name]], part.numpy())


@pytest.mark.parametrize("qformat", ["int8_wo", "int4_wo", "int8_sq", "fp8", "fp8_rowwise"])
def test_quantized_products_become_one(qformat: str, tmp_path: Path) -> None:
    model = network("qwen3_5", tmp_path, **IN_GROUPS)
    quantized, _ = quantize_network(model, recipe(qformat), made_up(model))
    fused, _ = run_until("quantize_rows", quantized)
    assert products(fused) == ["qkv_gate_a_b_proj", "o_proj"]
    weight = operands(find(fused, f"{LAYER}.qkv_gate_a_b_proj"))["weight"]
    assert weight.dtype not in (ir.DataType.FLOAT, ir.DataType.BFLOAT16)


def test_weights_of_other_forms_stay_apart(tmp_path: Path) -> None:
    source, _ = run_until("merge_qkv", network("qwen3_5", tmp_path))
    for name in ("a", "b"):
        _store_as_bfloat16(source, f"{LAYER}.{name}_proj")
    model, _ = run_passes(source, [MERGE_PROJECTIONS])
    assert products(model) == ["qkv_gate_proj", "a_b_proj", "o_proj"]
    _store_as_bfloat16(source, f"{LAYER}.gate_proj")
    model, fusions = run_passes(source, [MERGE_PROJECTIONS])
    assert products(model) == ["qkv_proj", "gate_a_b_proj", "o_proj"]
    (alone,) = [fusion for fusion in fusions if fusion.site == f"{LAYER}.qkv_proj"]
    assert (alone.fused, alone.reason) == (False, "other products of its input store their weights in another form")


def test_products_that_adapters_may_change_stay_apart(tmp_path: Path) -> None:
    source, limits = network("qwen3_5", tmp_path), {"max_batch_size": 1, "max_input_len": 16, "max_seq_len": 32}
    apart = [f"{name}_proj" for name in ("qkv", "a", "b", "gate", "o")]
    for max_rank, expected in ((0, ["qkv_gate_a_b_proj", "o_proj"]), (8, apart)):
        fused = fuse_into_plugins(source, AUTO_DTYPE, BuildLimits(**limits, max_lora_rank=max_rank))
        assert products(ir.Model(fused.graph, ir_version=10)) == expected


def _store_as_bfloat16(model: ir.Model, product: str) -> None:
    weight = operands(find(model, product))["weight"]
    tensor = weight_tensor(weight)
    assert tensor is not None
    weight.const_value = ir.tensor(tensor.numpy().astype(ir.DataType.BFLOAT16.numpy()), ir.DataType.BFLOAT16)
    weight.dtype = ir.DataType.BFLOAT16
