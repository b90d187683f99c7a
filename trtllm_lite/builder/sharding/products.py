"""Divides products: by their outputs, or by their inputs, with Rowwise operators between the two kinds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import caches_layer
from trtllm_lite.builder.graph import attribute, dims, features_of, operands, results
from trtllm_lite.builder.sharding import attention, by_schema, latent_attention
from trtllm_lite.builder.sharding.rank import Columns, Range, Rank, even_part, shifted
from trtllm_lite.network.tensors import extents, zeros
from trtllm_lite.quantize.formats import matrix_of

PADDED_TO = 8
"""A rank's number of features is a multiple of this, as GPU kernels read this many at once."""
_Found: TypeAlias = dict[ir.Node, dict[Range, list[Range]]]
"""The columns that operators read, of each product, with those of them that the rank has."""
_DIFFERENT = "operators that read it need different features"
_ROW_WISE = ("GatherRows", "QuantizeRows", "Rowwise")  # operators that treat each feature of a row by itself
_LOW_RANK = 8  # a product whose outputs are more than so many times its inputs costs less than adding up its parts
_WHOLE = ("CutRows",)  # operators of whole rows, of which ranks take parts to multiply with parts of products


def inner(rank: Rank) -> dict[ir.Node, list[Range]]:
    """The products of whose outputs the rank computes some, and which: those whose results attention and recurrent
    layers read, or only other products that have not many more outputs than inputs, possibly through operators that
    treat each feature alone.

    These operators may also read rows that each rank has whole, and of which it takes its features. A product whose
    outputs are divided has all inputs on every rank.
    """
    found: _Found = {}
    for node in rank.graph:
        for columns, ranges in _of_heads(rank, node):
            _divide(rank, node, _origins(rank, columns), ranges, found)
    for node in reversed([node for node in rank.graph if node.op_type == "Linear"]):
        x = operands(node)["x"]
        origins = _origins(rank, Columns.whole(x))
        makers = [origin.rows.producer() for origin in origins]
        makers = [maker for maker in makers if not _is_whole(maker)]
        in_parts = all(_is_product(maker) or (maker and caches_layer(maker)) for maker in makers)
        is_narrow = features_of(x) * _LOW_RANK < features_of(node.outputs[0])
        is_low_rank = is_narrow and all(map(_is_product, makers))
        if node not in found and in_parts and not is_low_rank:
            products = [origin for origin in origins if _is_product(origin.rows.producer())]
            _divide(rank, node, products, _part_of(rank, x, makers), found)
    return {product: _all_outputs(rank, product, parts) for product, parts in found.items()}


def _of_heads(rank: Rank, node: ir.Node) -> list[tuple[Columns, list[Range]]]:
    """What ``node`` reads of heads that the ranks divide, with the features of the rank's heads."""
    given = operands(node)
    if node.op_type == "PagedAttention":
        whole = Columns.whole(given["qkv"])
        return [] if attention.norms_all_heads(node) else [(whole, attention.heads(rank, node))]
    if node.op_type == "LatentAttention":
        return [(Columns.whole(given["query"]), latent_attention.heads(rank, node))]
    return by_schema.rows_of_heads(rank, node)


def _divide(rank: Rank, reader: ir.Node, origins: Iterable[Columns], ranges: list[Range], found: _Found) -> None:
    """Give the rank the outputs of products at ``origins`` that ``reader`` needs: ``ranges`` of each."""
    for origin in origins:
        product = origin.rows.producer()
        if product is None or not _is_product(product):
            raise rank.refusal(reader, "what it reads does not come straight from a product")
        own = shifted(ranges, origin.first)
        if found.setdefault(product, {}).setdefault((origin.first, origin.stop), own) != own:
            raise rank.refusal(product, _DIFFERENT)


def _all_outputs(rank: Rank, product: ir.Node, parts: Mapping[Range, list[Range]]) -> list[Range]:
    """The rank's outputs of a product, of which operators read the columns ``parts``, one after the other."""
    bounds = sorted(parts)
    ends = [0, *(stop for _, stop in bounds)]
    overlaps = any(own[-1][1] > stop for (_, stop), own in parts.items() if stop != ends[-1])
    if overlaps or [first for first, _ in bounds] != ends[:-1] or ends[-1] != features_of(product.outputs[0]):
        raise rank.refusal(product, _DIFFERENT)
    return [own for columns in bounds for own in parts[columns]]


def _part_of(rank: Rank, x: ir.Value, makers: Iterable[ir.Node | None]) -> list[Range]:
    """The rank's features of ``x``: those of its heads if attention or a recurrent layer makes some of them."""
    if any(maker and caches_layer(maker) for maker in makers):
        return [rank.own(features_of(x) // rank.tp_size)]
    return [even_part(features_of(x), rank.tp_size, rank.number, PADDED_TO)]


def _origins(rank: Rank, columns: Columns) -> set[Columns]:
    """The features that become ``columns`` through operators that treat each feature alone."""
    node = columns.rows.producer()
    if node is None:
        return {columns}
    if node.op_type in _ROW_WISE:
        rows = [Columns.whole(found) for name, found in operands(node).items() if name.startswith("x")]
    else:
        rows = by_schema.rows_of_channels(rank, node)
    moved = [Columns(read.rows, read.first + columns.first, read.first + columns.stop) for read in rows]
    return set().union(*(_origins(rank, one) for one in moved)) if moved else {columns}


def _is_whole(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in _WHOLE


def _is_product(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in ("Linear", "GatedLinear")


def cut_outputs(rank: Rank, node: ir.Node, ranges: Sequence[Range]) -> None:
    """Keep the output features ``ranges`` of a product."""
    given = operands(node)
    for value in matrix_of(given).operands.values():
        rank.cut(value, -2, ranges)
    if "bias" in given:
        rank.cut(given["bias"], -1, ranges)
    rank.mark(node.outputs[0], ranges)


def share_inputs(rank: Rank, node: ir.Node, num_parts: int) -> None:
    """Let ``node`` read only the rank's input features, one of ``num_parts`` parts that ranks have in turn."""
    if attribute(node, "activation", "none") != "none":
        raise rank.refusal(node, "its activation would be applied before the ranks' parts are added")
    features = (dims(operands(node)["x"]) or ())[-1]
    assert isinstance(features, int)
    number = rank.number % num_parts
    take_inputs(rank, node, [(number * features, (number + 1) * features)], number)  # the last may be padding


def take_inputs(rank: Rank, node: ir.Node, parts: Sequence[Range], number: int) -> None:
    """Let ``node`` read only the input features ``parts``, those of part ``number`` of all ranks' parts."""
    given = operands(node)
    matrix, features = matrix_of(given), sum(stop - first for first, stop in parts)
    in_features = matrix.shape[-1]
    for value in matrix.operands.values():
        _cut_inputs(rank, node, value, in_features, parts)
    room = results(node).get("gathered")
    if room is not None:
        room.shape = ir.Shape([*(dims(room) or ())[:-1], features])
    if "bias" in given and number > 0:  # only one rank adds the bias
        rank.replace(given["bias"], zeros(extents(rank.tensor(given["bias"]))))
    rank.meet(node, "AllReduce")


def _cut_inputs(rank: Rank, node: ir.Node, value: ir.Value, in_features: int, parts: Sequence[Range]) -> None:
    """Keep the input features ``parts`` of a weight, or of its scales, whose columns serve blocks of features."""
    columns = extents(rank.tensor(value))[-1]
    block = in_features // columns
    if columns == 1:
        return
    for first, stop in parts:
        if first % block or stop % block:
            raise rank.refusal(
                node,
                f"a rank would have the input features {first} to {stop - 1}, and the weight has scales for "
                f"blocks of {block}: quantize with a --group_size that divides {stop - first}",
            )
    rank.cut(value, -1, [(first // block, stop // block) for first, stop in parts])


def follow(rank: Rank, node: ir.Node) -> None:
    """Let ``node`` compute the rank's features from the rank's part of its inputs."""
    if node.op_type not in _ROW_WISE:
        raise rank.refusal(node, f"{node.op_type} reads features that the ranks split")
    ranges = rank.part_of_inputs(node)
    if node.op_type == "Rowwise":
        for value in operands(node).values():
            if _is_whole(value.producer()):
                rank.mark(rank.take_columns(node, value, ranges, f"{node.name}.own"), ranges)
        for name, value in operands(node).items():
            if name == "x1" and not rank.has_part_of(value) and len(ranges) == 1:
                first = attribute(node, "x1_first") + ranges[0][0]
                node.attributes["x1_first"] = ir.AttrInt64("x1_first", first)
            elif name.startswith("x") and not rank.has_part_of(value):
                raise rank.refusal(node, "it reads features that the ranks split, and others that they do not")
            if name.startswith("v"):
                rank.cut(value, -1, ranges)
    for name, value in results(node).items():
        if name == "y":
            rank.mark(value, ranges)
