"""Chooses the frequencies of RoPE that depend on the length of caches (LongRoPE), which is max_seq_len.

An engine has one set of frequencies, because the keys in its cache were rotated by them: a sequence that grows beyond
the length of pretraining could not go on with another set.
"""

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    nodes_of,
    produced_by,
    replace_value,
    scalar_constant,
    site,
    weight_tensor,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass


def chosen_frequencies(max_seq_len: int) -> GraphPass:
    """The pass for engines of sequences of up to ``max_seq_len`` tokens."""
    return GraphPass("chosen_frequencies", partial(_rewrite, max_seq_len=max_seq_len))


def _rewrite(graph: ir.Graph, max_seq_len: int) -> Iterator[Decision]:
    for node in nodes_of(graph, "Where"):
        length = _compared_length(node.inputs[0])
        if length is None or any(weight_tensor(value) is None for value in node.inputs[1:]):
            yield Decision(site(node), False, "it does not choose between weights by the length of caches")
            continue
        chosen = node.inputs[1 if max_seq_len > length else 2]
        assert chosen is not None
        replace_value(node.outputs[0], chosen)
        verdict = "more than" if max_seq_len > length else "within"
        yield Decision(site(node), True, f"max_seq_len {max_seq_len} is {verdict} {length} tokens")


def _compared_length(condition: ir.Value | None) -> int | None:
    """The n of a condition that the caches have more than n slots; None if it is another condition."""
    greater = produced_by(condition, "Greater")
    shape = None if greater is None else produced_by(greater.inputs[0], "Shape")
    if greater is None or shape is None or (attribute(shape, "start", 0), attribute(shape, "end")) != (2, 3):
        return None
    cache, length = shape.inputs[0], scalar_constant(greater.inputs[1])
    is_cache = cache is not None and cache.is_graph_input() and len(dims(cache) or ()) == 4
    return length if is_cache and isinstance(length, int) else None
