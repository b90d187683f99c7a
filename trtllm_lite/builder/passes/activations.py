"""Recognises activation functions; merge_gate_up and linear_activation both read them."""

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute

OP_TYPES = ("Swish", "Gelu")
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}


def activation_of(node: ir.Node) -> str | None:
    """The name of the activation function of ``node``, one of OP_TYPES, in schemas; None if schemas do not have it."""
    if node.op_type == "Swish":
        return "silu" if attribute(node, "alpha", 1.0) == 1.0 else None
    return _GELUS.get(attribute(node, "approximate", "none"))


def describe(node: ir.Node) -> str:
    """The node and what its attributes say, for messages."""
    given = ", ".join(f"{name} {found.value}" for name, found in node.attributes.items())
    return f"{node.op_type} with {given}" if given else node.op_type
