"""The query, key and value projections of an attention become one Linear whose weight rows are q, then k, then v.

x is read once and one large matrix product replaces three. A Split hands the parts on until paged_attention, which
reads the merged rows as they are, removes it.
"""

from collections.abc import Iterable

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    add_initializer,
    dims,
    fused_by,
    fused_node,
    nodes_of,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect, match_cache, match_heads
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.weights import concatenate, extents, zeros


def _rewrite(graph: ir.Graph) -> list[Decision]:
    decisions = []
    for attention in nodes_of(graph, "Attention"):
        try:
            linears = _projections(attention)
        except MismatchError as mismatch:
            decisions.append(Decision(site(attention), False, str(mismatch)))
            continue
        name = site(*linears)
        _merge(graph, linears, name)
        decisions.append(Decision(name, True))
    return decisions


def _projections(attention: ir.Node) -> list[ir.Node]:
    """The three Linears, if they can be one. Raises MismatchError."""
    query, key, value = (*attention.inputs, None, None, None)[:3]
    states = [query, match_cache(key, "key").new, match_cache(value, "value").new]
    linears = []
    for state, what in zip(states, ("query", "key", "value"), strict=True):
        linear = fused_by(match_heads(state, what).source, "Linear")
        expect(linear is not None, f"the {what} does not come straight from a Linear")
        assert linear is not None
        linears.append(linear)
    expect(len({id(linear) for linear in linears}) == 3, "query, key and value share a projection")
    expect(len({linear.inputs[0] for linear in linears}) == 1, "query, key and value read different inputs")
    dtypes = {_weight(linear).dtype for linear in linears}
    expect(len(dtypes) == 1, f"the weights have different types: {', '.join(sorted(str(dtype) for dtype in dtypes))}")
    return linears


def _weight(linear: ir.Node) -> ir.TensorProtocol:
    tensor = weight_tensor(linear.inputs[1])
    assert tensor is not None  # the linear pass takes initializers only
    return tensor


def _bias(linear: ir.Node) -> ir.TensorProtocol | None:
    return weight_tensor(linear.inputs[2]) if len(linear.inputs) > 2 else None


def _merge(graph: ir.Graph, linears: list[ir.Node], name: str) -> None:
    path = f"{name}.qkv_proj"
    sizes = [extents(_weight(linear))[0] for linear in linears]
    inputs = [linears[0].inputs[0], add_initializer(graph, f"{path}.weight", concatenate([*map(_weight, linears)]))]
    biases = [_bias(linear) for linear in linears]
    if any(bias is not None for bias in biases):
        parts = [zeros(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)]
        inputs.append(add_initializer(graph, f"{path}.bias", concatenate(parts)))
    rows = (dims(linears[0].outputs[0]) or ("",))[0] or ""
    merged = value_of(f"{path}.linear", ir.DataType.FLOAT, [rows, sum(sizes)])
    parts_out = [value_of(f"{path}.{kind}", ir.DataType.FLOAT, [rows, n]) for kind, n in zip("qkv", sizes, strict=True)]
    lengths = add_initializer(graph, f"{path}.sizes", ir.tensor(sizes, dtype=ir.DataType.INT64))
    split = ir.node("Split", [merged, lengths], {"axis": -1}, outputs=parts_out, name=f"{path}.split")
    first = next(node for node in graph if node in linears)
    graph.insert_before(first, [fused_node("Linear", path, inputs, [merged], {"activation": "none"}), split])
    for linear, part in zip(linears, parts_out, strict=True):
        replace_value(linear.outputs[0], part)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == "input_ids" for value in graph.inputs):
        yield "padding is not removed yet"


MERGE_QKV = GraphPass("merge_qkv", _rewrite, _requires)
