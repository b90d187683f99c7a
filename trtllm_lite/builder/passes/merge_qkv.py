"""Fuses the query, key and value projections of an attention into one Linear with weight rows q, then k, then v.

x is read once and one large matrix product replaces three. A Split hands the parts on; paged_attention reads the merged
rows directly and removes it. Norms of all query heads and of all key heads, or LayerNorms of each, may stand between
(query_key_norm, head_layer_norm).
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    dims,
    features_of,
    fused_by,
    nodes_of,
    operands,
    replace_value,
    site,
    value_of,
)
from trtllm_lite.builder.passes.attention_pattern import (
    MismatchError,
    expect,
    match_heads,
    match_states,
    norm_of_all_heads,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.joined_linear import insert_joined
from trtllm_lite.builder.passes.temperature import match_temperature
from trtllm_lite.network.tensors import add_initializer


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for attention in nodes_of(graph, "Attention"):
        try:
            linears = _projections(attention)
        except MismatchError as mismatch:
            yield Decision(site(attention), False, str(mismatch))
            continue
        name = site(*linears)
        _merge(graph, linears, name)
        yield Decision(name, True)


def _projections(attention: ir.Node) -> list[ir.Node]:
    """The three Linears, if they can be merged. Raises MismatchError."""
    linears = []
    query, *others = match_states(attention)
    states = (match_temperature(query)[0], *others)
    for state, what in zip(states, ("query", "key", "value"), strict=True):
        source = match_heads(state, what, skip_layer_norms=True).source
        norm = norm_of_all_heads(source)
        linear = fused_by(source if norm is None else norm.inputs[0], "Linear")
        expect(linear is not None, f"the {what} does not come straight from a Linear")
        assert linear is not None
        linears.append(linear)
    expect(len({id(linear) for linear in linears}) == 3, "query, key and value share a projection")
    inputs = list(dict.fromkeys(operands(linear)["x"] for linear in linears))
    orders = [fused_by(value, "GatherColumns") for value in inputs]
    expect(
        len(inputs) == 1 or None in orders,
        "query, key and value have groups of columns in different orders (act-order): convert with --dequantize",
    )
    expect(len(inputs) == 1, "query, key and value read different inputs")
    return linears


def _merge(graph: ir.Graph, linears: list[ir.Node], name: str) -> None:
    path, sizes = f"{name}.qkv_proj", [features_of(linear.outputs[0]) for linear in linears]
    merged = insert_joined(graph, linears, path)
    rows = (dims(merged) or ("",))[0] or ""
    parts_out = [value_of(f"{path}.{kind}", ir.DataType.FLOAT, [rows, n]) for kind, n in zip("qkv", sizes, strict=True)]
    lengths = add_initializer(graph, f"{path}.sizes", ir.tensor(sizes, dtype=ir.DataType.INT64))
    split = ir.node("Split", [merged, lengths], {"axis": -1}, outputs=parts_out, name=f"{path}.split")
    product = merged.producer()
    assert product is not None
    graph.insert_after(product, split)
    for linear, part in zip(linears, parts_out, strict=True):
        replace_value(linear.outputs[0], part)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == "input_ids" for value in graph.inputs):
        yield "padding is not removed yet"


MERGE_QKV = GraphPass("merge_qkv", _rewrite, _requires)
