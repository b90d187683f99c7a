"""Recognises activation functions; merge_gate_up, linear_activation and experts read them."""

import math
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, only_user, produced_by, scalar_constant
from trtllm_lite.builder.passes.attention_pattern import expect
from trtllm_lite.network.mlp import SWIGLU_ALPHA, SWIGLU_LIMIT

OP_TYPES = ("Swish", "Gelu")
_OF_EXPERTS = (*OP_TYPES, "Relu")
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def activation_of(node: ir.Node) -> str | None:
    """The schema name of the activation function of ``node``, one of OP_TYPES; None if schemas do not have it."""
    if node.op_type == "Swish":
        return "silu" if attribute(node, "alpha", 1.0) == 1.0 else None
    return _GELUS.get(attribute(node, "approximate", "none"))


def squared_relu_of(node: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """The x of which ``node`` makes max(x, 0) * x, and the nodes that do it (network/mlp.py); None if it does not."""
    if node.op_type != "Mul":
        return None
    relu = next((found for value in node.inputs if (found := produced_by(value, "Relu"))), None)
    x = None if relu is None else relu.inputs[0]
    if relu is None or x is None or only_user(relu.outputs[0]) is not node or not any(y is x for y in node.inputs):
        return None
    return x, (relu, node)


def describe(node: ir.Node) -> str:
    """Describes the node and its attributes, for messages."""
    given = ", ".join(f"{name} {found.value}" for name, found in node.attributes.items())
    return f"{node.op_type} with {given}" if given else node.op_type


@dataclass(frozen=True)
class GatingMatch:
    """The operands of a gating, and its ``activation`` by its name in GroupedGatedLinear."""

    activation: str
    gate: ir.Value | None
    up: ir.Value | None


def match_gating(value: ir.Value | None, whose: str = "an expert") -> GatingMatch:
    """Match ``value`` as a gating of gate and up projections; the error says ``whose``. Raises MismatchError."""
    product = produced_by(value, "Mul")
    expect(product is not None, f"{whose} is not a gated MLP")
    assert product is not None
    function = next((node for operand in product.inputs if (node := produced_by(operand, *_OF_EXPERTS))), None)
    expect(function is not None, f"{whose} has no activation function")
    assert function is not None
    up = next((operand for operand in product.inputs if operand is not function.outputs[0]), None)
    if (bounded := _match_swiglu_oai(function, up)) is not None:
        return bounded
    name = "relu" if function.op_type == "Relu" else activation_of(function)
    expect(name is not None, f"the gate goes through {describe(function)}, which no fused operator computes")
    return GatingMatch(name or "", function.inputs[0], up)


def _match_swiglu_oai(function: ir.Node, up: ir.Value | None) -> GatingMatch | None:
    """Match Swish(Clip(gate)) * (Clip(up) + 1) with the bounds and the alpha of network/mlp.py."""
    gate_clip, add = produced_by(function.inputs[0], "Clip"), produced_by(up, "Add")
    up_clip = None if add is None else produced_by(add.inputs[0], "Clip")
    if gate_clip is None or add is None or up_clip is None or function.op_type != "Swish":
        return None
    limits = [_bounds(gate_clip), _bounds(up_clip)] == [(None, SWIGLU_LIMIT), (-SWIGLU_LIMIT, SWIGLU_LIMIT)]
    if not limits or scalar_constant(add.inputs[1]) != 1 or not _is_close(attribute(function, "alpha", 1.0)):
        return None
    return GatingMatch("swiglu_oai", gate_clip.inputs[0], up_clip.inputs[0])


def _bounds(clip: ir.Node) -> tuple[float | None, float | None]:
    low, high = (scalar_constant(value) for value in (*clip.inputs[1:], None, None)[:2])
    return low, high


def _is_close(alpha: float) -> bool:
    return math.isclose(alpha, SWIGLU_ALPHA, rel_tol=1e-6)  # attributes are float32
