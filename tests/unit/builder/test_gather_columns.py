import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.structure import find, find_value, operators, run_until

ORDER = "layers.0.mlp.in_order"


def test_features_in_a_constant_order() -> None:
    model, decisions = run_until("gather_columns", "act_order")
    assert [d.site for d in decisions] == [
        f"layers.{n}.{part}.in_order" for n in range(2) for part in ("attention", "mlp")
    ]
    assert all(d.fused for d in decisions)
    node = find(model, ORDER)
    assert node.op_type == "GatherColumns"
    assert [value.name for value in node.inputs] == ["layers.0.mlp.mul_out", f"{ORDER}.order"]
    assert find(model, "layers.0.mlp.down_proj").inputs[0] is node.outputs[0]


def test_what_reads_one_order_is_still_merged() -> None:
    model, _ = run_until("merge_qkv", "act_order")
    assert operators(model)["GatherColumns"] == 4
    assert find(model, "layers.0.attention.qkv_proj").op_type == "Linear"


@pytest.mark.parametrize(
    "order", [np.arange(VARIANTS["llama"].inter), np.maximum(np.arange(VARIANTS["llama"].inter, dtype=np.int32), 1)]
)
def test_another_gather_stays(order: np.ndarray) -> None:
    """One whose indices the operator does not take, or one that leaves out a feature."""
    model = network("act_order")
    value = find_value(model, f"{ORDER}.order")
    value.const_value, value.dtype = ir.tensor(order), ir.DataType.from_numpy(order.dtype)
    _, decisions = run_until("gather_columns", model)
    assert ORDER not in [d.site for d in decisions]
