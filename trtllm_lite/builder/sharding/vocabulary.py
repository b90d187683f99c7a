"""Divides embedding and LM head: a rank has some rows of the vocabulary."""

import onnx_ir as ir

from trtllm_lite.builder.graph import dims, operands
from trtllm_lite.builder.sharding.products import cut_outputs
from trtllm_lite.builder.sharding.rank import Rank, even_part
from trtllm_lite.common.vocabulary import LOGITS
from trtllm_lite.quantize.formats import matrix_of

_PADDED_TO = 64


def share_embedding(rank: Rank, node: ir.Node) -> None:
    """Give the rank its rows of the table; tokens whose rows are on other ranks give zeros."""
    matrix = matrix_of(operands(node))
    part = even_part(matrix.shape[0], rank.tp_size, rank.number, _PADDED_TO)
    for value in matrix.operands.values():
        rank.cut(value, -2, [part])
    rank.meet(node, "AllReduce")


def makes_logits(node: ir.Node) -> bool:
    """Whether ``node`` makes the logits, possibly through operators that treat each feature alone."""
    value = node.outputs[0]
    while not value.is_graph_output():
        readers = {use.node for use in value.uses()}
        if len(readers) != 1:
            return False
        (reader,) = readers
        if reader.op_type != "Rowwise":
            return False
        value = reader.outputs[0]
    return value.name == LOGITS


def share_logits(rank: Rank, node: ir.Node) -> None:
    """Give the rank its part of the logits, and gather the logits of all ranks."""
    features = (dims(node.outputs[0]) or ())[-1]
    assert isinstance(features, int)
    cut_outputs(rank, node, [even_part(features, rank.tp_size, rank.number, _PADDED_TO)])
    rank.meet(node, "AllGather", features)
