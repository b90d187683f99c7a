"""Fuses calls of the functions between residual streams (network/streams.py) into operators of the same names.

Networks concatenate the streams, for a mix and between layers, and split them again. The operators read and make each
stream by itself, so that no stream is copied. A mix also adds two rows that make its first stream, and multiplies its
first result by a vector.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    features_of,
    fused_node,
    nodes_of,
    only_user,
    produced_by,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.network.functions import CUT_ROWS, FUNCTIONS, MIX_STREAMS, RESCALE_ROWS

_MOST_INPUTS, _OUTPUTS = 5, 4  # of a mix


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for split in nodes_of(graph, "Split"):
        _join(split)
    for call in nodes_of(graph, MIX_STREAMS, FUNCTIONS):
        yield _mix(graph, call)
    for function, names in ((RESCALE_ROWS, ("x", "like")), (CUT_ROWS, ("x",))):
        for call in nodes_of(graph, function, FUNCTIONS):
            given = {name: value.value for name, value in call.attributes.items()}
            y = _rows_like(call.outputs[0], f"{call.name}.rows")
            inputs = dict(zip(names, call.inputs, strict=True))
            graph.insert_before(call, fused_node(function, str(call.name), inputs, {"y": y}, given))
            replace_value(call.outputs[0], y)
            yield Decision(site(call), True)


def _join(split: ir.Node) -> None:
    """Let readers of the parts of ``split`` read what was concatenated, if that consists of the same parts."""
    streams = _parts(split.inputs[0])
    if [features_of(part) for part in split.outputs] != [features_of(stream) for stream in streams]:
        return
    for part, stream in zip(split.outputs, streams, strict=True):
        part.replace_all_uses_with(stream)


def _parts(value: ir.Value | None) -> list[ir.Value]:
    """The rows of which ``value`` is the concatenation; none if it is not one of packed rows."""
    concat = produced_by(value, "Concat")
    if concat is None or len(dims(value) or ()) != 2 or attribute(concat, "axis") not in (-1, 1):
        return []
    return [part for part in concat.inputs if part is not None]


def _mix(graph: ir.Graph, call: ir.Node) -> Decision:
    streams, router, weights = _parts(call.inputs[0]), call.inputs[1], call.inputs[2]
    split = only_user(call.outputs[0])
    if split is None or split.op_type != "Split" or len(split.outputs) != _OUTPUTS:
        return Decision(site(call), False, f"its result is not split into {_OUTPUTS} streams")
    if not 0 < len(streams) <= _MOST_INPUTS:
        return Decision(site(call), False, f"it reads {len(streams)} streams, expected at most {_MOST_INPUTS}")
    if {*map(features_of, streams), *map(features_of, split.outputs)} != {(dims(router) or ())[-1]}:
        return Decision(site(call), False, "its streams have different features")
    first, residual = _addends(streams[0], call)
    scaling, scale = _scaling(split.outputs[0])
    named: dict[str, ir.Value | None] = {f"x{number}": row for number, row in enumerate([first, *streams[1:]])}
    inputs = named | {"router": router, "weights": weights, "residual": residual, "scale": scale}
    replaced = dict(zip(("y0", "y1", "y2", "y3"), split.outputs, strict=True))
    if scaling is not None:
        replaced["scaled"] = scaling.outputs[0]
    outputs = {name: _rows_like(value, f"{call.name}.{name}") for name, value in replaced.items()}
    given = {"epsilon": attribute(call, "epsilon")}
    graph.insert_before(call, fused_node(MIX_STREAMS, str(call.name), inputs, outputs, given))
    for name, value in replaced.items():
        replace_value(value, outputs[name])
    return Decision(site(call), True)


def _addends(stream: ir.Value, call: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """The two rows whose sum ``stream`` is, if only ``call`` reads the sum; else the stream alone."""
    add, concat = produced_by(stream, "Add"), call.inputs[0]
    assert concat is not None
    parts = [] if add is None else [part for part in add.inputs if part is not None and dims(part) == dims(stream)]
    if len(parts) != 2 or only_user(stream) is not concat.producer():
        return stream, None
    return parts[0], parts[1]


def _scaling(mix: ir.Value) -> tuple[ir.Node | None, ir.Value | None]:
    """The node that multiplies ``mix`` by a constant vector, and that vector; else None."""
    for node in (use.node for use in mix.uses()):
        vectors = [value for value in node.inputs if weight_tensor(value) and dims(value) == (features_of(mix),)]
        if node.op_type == "Mul" and vectors:
            return node, vectors[0]
    return None, None


def _rows_like(value: ir.Value, name: str) -> ir.Value:
    return value_of(name, ir.DataType.FLOAT, dims(value) or ())


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for function in (RESCALE_ROWS, CUT_ROWS):
        for call in nodes_of(graph, function, FUNCTIONS):
            yield f"{call.name} is not fused"


STREAMS = GraphPass("streams", _rewrite, ensures=_ensures)
