from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.builder.cuda_engines import CUDA_VARIANTS, LIMITS
from tests.unit.builder.networks import VARIANTS, network
from tests.unit.builder.structure import find, find_value, operators, run_until
from trtllm_lite.builder.cache_groups import assign_cache_groups
from trtllm_lite.builder.cuda.planning import lower_network
from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.pipeline import run_passes
from trtllm_lite.common.vocabulary import DECODER
from trtllm_lite.errors import BuildError

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


def test_another_gather_stays() -> None:
    """The operator does not accept the type of this gather's indices."""
    model = network("act_order")
    value = find_value(model, f"{ORDER}.order")
    value.const_value, value.dtype = ir.tensor(np.arange(VARIANTS["llama"].inter)), ir.DataType.INT64
    _, decisions = run_until("gather_columns", model)
    assert ORDER not in [d.site for d in decisions]


@pytest.mark.parametrize("wrong", [-1, CUDA_VARIANTS["act_order"].inter])
def test_indices_of_no_feature_are_refused_when_a_gpu_engine_is_written(wrong: int) -> None:
    """A GPU would not detect a bad index; for CPUs, the check is made when an engine is loaded."""
    model = network(CUDA_VARIANTS["act_order"])
    order = find_value(model, f"{ORDER}.order")
    indices = np.arange(CUDA_VARIANTS["act_order"].inter, dtype=np.int32)
    indices[3] = wrong
    order.const_value = ir.tensor(indices, name=order.name)
    fused, _ = run_passes(model)
    limits = BuildLimits(**LIMITS)
    limits = replace(limits, cache_groups=assign_cache_groups(fused.graph, limits.max_seq_len))
    made = lower_network(fused.graph, DECODER, "bfloat16", limits, parse_targets(["sm_90"]))
    [weight] = (weight for weight in made.operands.weights.values() if weight.name == order.name)
    with pytest.raises(BuildError, match=f"expected indices from 0 to {len(indices) - 1} in {ORDER}.order"):
        weight.load()
