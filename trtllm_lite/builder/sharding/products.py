"""Divides products: by their outputs, or by their inputs, with Rowwise operators between the two kinds."""

from collections.abc import Sequence

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import caches_layer
from trtllm_lite.builder.graph import attribute, dims, fused_by, operands, results
from trtllm_lite.builder.sharding import attention, latent_attention
from trtllm_lite.builder.sharding.rank import Range, Rank, even_part
from trtllm_lite.network.tensors import extents, zeros
from trtllm_lite.quantize.formats import matrix_of

PADDED_TO = 8
"""A rank's number of features is a multiple of this, as GPU kernels read this many at once."""
_ROW_WISE = ("GatherRows", "QuantizeRows", "Rowwise")  # operators that treat each feature of a row by itself


def inner(rank: Rank) -> set[ir.Node]:
    """The products whose results only other products read, possibly through operators that treat each feature alone."""
    found: set[ir.Node] = set()
    for node in rank.graph:
        if node.op_type == "PagedAttention" and not attention.norms_all_heads(node):
            found.add(_product_before(rank, node, "qkv"))
        if node.op_type == "LatentAttention":
            found.add(_product_before(rank, node, "query"))
        if node.op_type == "Linear":
            origins = _origins(operands(node)["x"])
            if all(_is(origin, "Linear", "GatedLinear") or (origin and caches_layer(origin)) for origin in origins):
                found |= {origin for origin in origins if origin and _is(origin, "Linear", "GatedLinear")}
    return found


def _product_before(rank: Rank, node: ir.Node, operand: str) -> ir.Node:
    product = fused_by(operands(node)[operand], "Linear")
    if product is None:
        raise rank.refusal(node, "its queries, keys and values do not come straight from one product")
    return product


def _origins(value: ir.Value) -> set[ir.Node | None]:
    """The nodes whose features become ``value`` through operators that treat each feature alone."""
    node = value.producer()
    if node is None or node.op_type not in _ROW_WISE:
        return {node}
    rows = [found for name, found in operands(node).items() if name.startswith("x")]
    return set().union(*map(_origins, rows))


def _is(node: ir.Node | None, *op_types: str) -> bool:
    return node is not None and node.op_type in op_types


def share_outputs(rank: Rank, node: ir.Node) -> None:
    """Give the rank some of the outputs of ``node``, in whole heads if attention reads them."""
    readers = {use.node.op_type: use.node for use in node.outputs[0].uses()}
    if "PagedAttention" in readers:
        cut_outputs(rank, node, attention.heads(rank, readers["PagedAttention"]))
    elif "LatentAttention" in readers:
        cut_outputs(rank, node, latent_attention.heads(rank, readers["LatentAttention"]))
    else:
        features = matrix_of(operands(node)).shape[-2]
        cut_outputs(rank, node, [even_part(features, rank.tp_size, rank.number, PADDED_TO)])


def cut_outputs(rank: Rank, node: ir.Node, ranges: Sequence[Range]) -> None:
    """Keep the output features ``ranges`` of a product."""
    given = operands(node)
    for value in matrix_of(given).operands.values():
        rank.cut(value, -2, ranges)
    if "bias" in given:
        rank.cut(given["bias"], -1, ranges)
    rank.mark(node.outputs[0], sum(stop - start for start, stop in ranges))


def share_inputs(rank: Rank, node: ir.Node, num_parts: int) -> None:
    """Let ``node`` read only the rank's input features, one of ``num_parts`` parts that ranks have in turn."""
    given = operands(node)
    if attribute(node, "activation", "none") != "none":
        raise rank.refusal(node, "its activation would be applied before the ranks' parts are added")
    features = (dims(given["x"]) or ())[-1]
    assert isinstance(features, int)
    number = rank.number % num_parts
    part = number * features, (number + 1) * features  # the last features may be padding
    matrix = matrix_of(given)
    in_features = matrix.shape[-1]
    for value in matrix.operands.values():
        _cut_inputs(rank, node, value, in_features, part)
    room = results(node).get("gathered")
    if room is not None:
        room.shape = ir.Shape([*(dims(room) or ())[:-1], features])
    if "bias" in given and number > 0:  # only one rank adds the bias
        rank.replace(given["bias"], zeros(extents(rank.tensor(given["bias"]))))
    rank.meet(node, "AllReduce")


def _cut_inputs(rank: Rank, node: ir.Node, value: ir.Value, in_features: int, part: Range) -> None:
    """Keep the input features ``part`` of a weight, or of its scales, whose columns serve blocks of features."""
    columns = extents(rank.tensor(value))[-1]
    block = in_features // columns
    if columns == 1:
        return
    if part[0] % block or part[1] % block:
        raise rank.refusal(
            node,
            f"a rank would have the input features {part[0]} to {part[1] - 1}, and the weight has scales for "
            f"blocks of {block}: quantize with a --group_size that divides {part[1] - part[0]}",
        )
    rank.cut(value, -1, [(part[0] // block, part[1] // block)])


def follow(rank: Rank, node: ir.Node) -> None:
    """Let ``node`` compute the rank's features from the rank's part of its inputs."""
    if node.op_type not in _ROW_WISE:
        raise rank.refusal(node, f"{node.op_type} reads features that the ranks split")
    (features,) = {(dims(value) or ())[-1] for value in node.inputs if value is not None and rank.has_part_of(value)}
    assert isinstance(features, int)
    if node.op_type == "Rowwise":
        for name, value in operands(node).items():
            if name.startswith("x") and not rank.has_part_of(value):
                raise rank.refusal(node, "it reads features that the ranks split, and others that they do not")
            if name.startswith("v"):
                rank.cut(value, -1, [rank.own(features)])
    for name, value in results(node).items():
        if name == "y":
            rank.mark(value, features)
