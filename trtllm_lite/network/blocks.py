"""Embedding, norm, linear, MLP and LM head, each a handful of standard ONNX nodes.

Activations are float32. ``prefix`` is always the name of a weight without ``.weight`` or ``.bias``.
"""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.graph import GraphBuilder

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class LinearShape:
    """A linear layer: weight ``[out_features, in_features]`` as Hugging Face stores it, bias ``[out_features]``."""

    in_features: int
    out_features: int
    bias: bool = False


def embedding(
    graph: GraphBuilder, token_ids: ir.Value, prefix: str, shape: tuple[int, int], dtype: ir.DataType
) -> ir.Value:
    """Rows of the table [vocab, hidden] for int64 ids [batch, seq]: float32 [batch, seq, hidden]."""
    table = graph.weight(f"{prefix}.weight", shape, dtype)
    rows = graph.op("Gather", [table, token_ids], "embedding", {"axis": 0})
    if dtype == _FLOAT:
        return rows
    return graph.op("Cast", [rows], "embedding.cast", {"to": _FLOAT.value})


def rms_norm(graph: GraphBuilder, x: ir.Value, prefix: str, size: int, epsilon: float, name: str) -> ir.Value:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis of ``size`` (arXiv 1910.07467)."""
    scale = graph.weight(f"{prefix}.weight", (size,), _FLOAT)
    return graph.op("RMSNormalization", [x, scale], name, {"axis": -1, "epsilon": epsilon})


def linear(
    graph: GraphBuilder,
    x: ir.Value,
    prefix: str,
    shape: LinearShape,
    dtype: ir.DataType,
    name: str,
    output_name: str | None = None,
) -> ir.Value:
    """x @ weight.T (+ bias): float32 [..., in_features] to [..., out_features]; ``output_name`` names the result."""
    matrix = graph.matrix(f"{prefix}.weight", (shape.out_features, shape.in_features), dtype, name)
    transposed = graph.op("Transpose", [matrix], f"{name}.transpose", {"perm": [1, 0]})
    if not shape.bias:
        return graph.op("MatMul", [x, transposed], name, output_name=output_name)
    product = graph.op("MatMul", [x, transposed], name)
    bias = graph.weight(f"{prefix}.bias", (shape.out_features,), _FLOAT)
    return graph.op("Add", [product, bias], f"{name}.bias", output_name=output_name)


def swiglu_mlp(
    graph: GraphBuilder, x: ir.Value, prefixes: dict[str, str], sizes: tuple[int, int], bias: bool, dtype: ir.DataType
) -> ir.Value:
    """down(silu(gate(x)) * up(x)) (arXiv 2002.05202); ``sizes`` are (hidden, intermediate)."""
    hidden, intermediate = sizes
    widen, narrow = LinearShape(hidden, intermediate, bias), LinearShape(intermediate, hidden, bias)
    gate = linear(graph, x, prefixes["gate_proj"], widen, dtype, "gate_proj")
    up = linear(graph, x, prefixes["up_proj"], widen, dtype, "up_proj")
    activated = graph.op("Mul", [graph.op("Swish", [gate], "swish"), up], "gated")
    return linear(graph, activated, prefixes["down_proj"], narrow, dtype, "down_proj")
