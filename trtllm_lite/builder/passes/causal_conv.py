"""Fuses the causal convolution of a recurrent layer (network/convolution.py) into CausalConv.

packed rows -> unpack -> Transpose -> Concat with the past -> Conv -> [Swish] -> Transpose
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.builder.graph import attribute, dims, integers, nodes_of, only_user, produced_by, site, weight_tensor
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect, expect_node, match_unpacked
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.recurrent_pattern import State, insert_recurrent, match_state
from trtllm_lite.builder.passes.remove_padding import PADDED_ROWS
from trtllm_lite.network.tensors import add_initializer, extents, lazy


@dataclass(frozen=True)
class _Convolution:
    """``x`` are packed rows, ``weight`` is stored as [channels, 1, width]; ``last`` makes the padded results."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    activation: str
    state: State
    last: ir.Node


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for conv in nodes_of(graph, "Conv"):
        try:
            match = _match(conv)
        except MismatchError as mismatch:
            yield Decision(site(conv), False, str(mismatch))
            continue
        operands = {"x": match.x, "weight": _matrix(graph, conv, match.weight), "bias": match.bias}
        channels, width = dims(operands["weight"]) or ()
        attributes = {"activation": match.activation}
        insert_recurrent(graph, match.last, "CausalConv", operands, match.state, (width, channels), attributes)
        yield Decision(site(conv), True)


def _match(conv: ir.Node) -> _Convolution:
    """The causal convolution around ``conv``. Raises MismatchError."""
    concat = expect_node(conv.inputs[0], "Concat", "input of the convolution")
    expect(len(concat.inputs) == 2 and attribute(concat, "axis") == 2, "the convolution has no past before its inputs")
    past, columns = concat.inputs
    transposed, last = expect_node(columns, "Transpose", "input of the convolution"), only_user(conv.outputs[0])
    swish = last if last is not None and last.op_type == "Swish" else None
    last = last if swish is None else only_user(swish.outputs[0])
    expect(last is not None and last.op_type == "Transpose", "the convolution's results are not turned into rows")
    assert last is not None
    perms = [list(attribute(node, "perm", ())) for node in (last, transposed)]
    expect(perms == [[0, 2, 1]] * 2, "the convolution does not run along sequences")
    weight, bias = _weights(conv)
    channels, _, width = dims(weight) or ()
    expect(swish is None or attribute(swish, "alpha", 1.0) == 1, "the activation of the convolution is not SiLU")
    expect(attribute(conv, "group", 1) == channels, "the convolution mixes channels")
    expect(set(conv.attributes) <= {"group", "kernel_shape"}, "the convolution has strides, gaps or padding")
    assert isinstance(width, int)
    expect((dims(past) or ())[1:] == (channels, width - 1), "the past of the convolution has another length")
    state = match_state("conv_state", past, _present(concat, conv, width - 1))
    x = match_unpacked(transposed.inputs[0], "input of the convolution")
    return _Convolution(x, weight, bias, "none" if swish is None else "silu", state, last)


def _weights(conv: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """The stored weight [channels, 1, width], and the float32 bias [channels] or None."""
    cast = produced_by(conv.inputs[1], "Cast")
    stored = conv.inputs[1] if cast is None else cast.inputs[0]
    shape = dims(stored) or ()
    is_weight = weight_tensor(stored) is not None and len(shape) == 3 and shape[1] == 1
    expect(is_weight, "the convolution has no weight for each channel")
    bias = conv.inputs[2] if len(conv.inputs) == 3 else None
    is_vector = bias is None or (weight_tensor(bias) is not None and bias.dtype == ir.DataType.FLOAT)
    expect(is_vector, "the bias of the convolution is no float32 vector")
    assert stored is not None
    return stored, bias


def _present(concat: ir.Node, conv: ir.Node, history: int) -> ir.Value:
    """The last ``history`` inputs of the convolution, which the network keeps. Raises MismatchError."""
    others = [use.node for use in concat.outputs[0].uses() if use.node is not conv]
    expect([node.op_type for node in others] == ["Slice"], "the last inputs of the convolution are not kept")
    _, start, end, axis = (*others[0].inputs, None, None)[:4]
    is_end = integers(start) == [-history] and integers(axis) == [2] and (integers(end) or [0])[0] >= 1 << 31
    expect(is_end, "what the convolution keeps is not its last inputs")
    return others[0].outputs[0]


def _matrix(graph: ir.Graph, conv: ir.Node, weight: ir.Value) -> ir.Value:
    """The weight as a matrix [channels, width]."""
    tensor = weight_tensor(weight)
    assert tensor is not None
    channels, _, width = extents(tensor)

    def load() -> NDArray:
        return tensor.numpy().reshape(channels, width)

    return add_initializer(graph, f"{conv.name}.weight", lazy(load, tensor.dtype, (channels, width), [tensor]))


def _requires(graph: ir.Graph) -> Iterable[str]:
    if PADDED_ROWS not in {value.name for value in graph.inputs}:
        yield "padding is not removed yet"


CAUSAL_CONV = GraphPass("causal_conv", _rewrite, _requires)
