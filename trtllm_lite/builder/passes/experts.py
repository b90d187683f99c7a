"""Recognises the experts of a mixture: one gated MLP (network/moe.py), weighted by the shares of a router."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    features_of,
    integers,
    only_user,
    produced_by,
    scalar_constant,
    weight_tensor,
)
from trtllm_lite.builder.passes.activations import match_gating
from trtllm_lite.builder.passes.attention_pattern import expect
from trtllm_lite.network.tensors import extents, lazy, stack
from trtllm_lite.quantize.formats import FORMATS, StoredMatrix, in_one_form

_EIGHT = 8


@dataclass(frozen=True)
class Experts:
    """Operands of GroupedGatedLinear and GroupedLinear for ``num_experts`` experts of ``inner`` features.

    ``result`` is the sum over the experts' outputs for ``x``. With ``scale_inputs`` shares multiply ``x`` instead of
    the outputs. If experts are ``self_gated``, ``gate_up`` has the halves of their one matrix.
    """

    x: ir.Value
    num_experts: int
    inner: int
    gate_up: Mapping[str, ir.TensorProtocol]
    down: Mapping[str, ir.TensorProtocol]
    activation: str
    scale_inputs: bool
    self_gated: bool
    result: ir.Value


def match_experts(scatter: ir.Node) -> Experts:
    """The experts whose shares ``scatter`` makes. Raises MismatchError."""
    shares = scatter.outputs[0]
    spread = _reader(shares, "Gather", "the shares are not spread over the features of the experts")
    weighted, scale_inputs = _match_weighted(spread.outputs[0])
    product = _reader(weighted, "MatMul", "the weighted features are not multiplied with a matrix")
    down, (experts, hidden, inner) = _match_matrices(product, [0, 2, 1])
    gating = match_gating(weighted if scale_inputs else _scaled(weighted, spread.outputs[0]))
    both = [_scaled(part, spread.outputs[0]) if scale_inputs else part for part in (gating.gate, gating.up)]
    x, gate, gate_bias = _match_wide(both[0])
    other_x, up, up_bias = _match_wide(both[1])
    expect(x is other_x, "gate and up read different inputs")
    expect(gate.shape == up.shape == (experts * inner, hidden), "the matrices of the experts differ in shape")
    expect(_is_expert_of_feature(spread, experts, inner), "the shares are not repeated for all features")
    expect((gate_bias is None) == (up_bias is None), "one of gate and up has a bias")
    parts = [_by_expert(matrix, experts) for matrix in in_one_form([gate, up])]
    for part, added in zip(parts, (gate_bias, up_bias), strict=True):
        if added is not None:
            part["bias"] = _reshaped(added, (experts, inner))
    self_gated = both[0] is both[1] and has_halves(inner)
    gate_up = halves(parts[1]) if self_gated else beside(parts)
    of_down = _by_expert(down, experts)
    result, bias = _match_down_bias(product, shares, (experts, hidden))
    if bias is not None:
        of_down["bias"] = bias
    return Experts(x, experts, inner, gate_up, of_down, gating.activation, scale_inputs, self_gated, result)


def has_halves(inner: int) -> bool:
    """Whether the ``inner`` features of an expert without a gate are halves of whole eights, as GPU kernels need."""
    return inner % (2 * _EIGHT) == 0


def halves(matrices: Mapping[str, ir.TensorProtocol]) -> dict[str, ir.TensorProtocol]:
    """Tensors [experts, rows, …] of matrices as those of their upper and lower halves: [experts, 2, rows / 2, …]."""
    found = {}
    for operand, tensor in matrices.items():
        experts, rows, *others = extents(tensor)
        found[operand] = _reshaped(tensor, (experts, 2, rows // 2, *others))
    return found


def beside(parts: Sequence[Mapping[str, ir.TensorProtocol]]) -> dict[str, ir.TensorProtocol]:
    """Tensors [experts, rows, …] of gate and of up projections as [experts, 2, rows, …]."""
    return {operand: stack([part[operand] for part in parts], axis=1) for operand in parts[0]}


def _match_weighted(spread: ir.Value) -> tuple[ir.Value, bool]:
    """The value that the routing weights ``spread`` multiply, and whether they multiply the experts' inputs."""
    problem = "the shares are not multiplied with the features of the experts"
    products = list(dict.fromkeys(use.node for use in spread.uses()))
    expect(len(products) in (1, 2) and all(node.op_type == "Mul" for node in products), problem)
    if len(products) == 1:
        return products[0].outputs[0], False
    gated = [user for node in products if (user := only_user(node.outputs[0])) is not None and user.op_type == "Mul"]
    expect(len(gated) == 1, problem)
    return gated[0].outputs[0], True


def _scaled(value: ir.Value | None, by: ir.Value) -> ir.Value | None:
    """The other factor of the product ``value`` = x * ``by``. Raises MismatchError."""
    product = _node(value, "Mul", "gate and up are not multiplied with the shares")
    expect(by in product.inputs, "gate and up are not multiplied with the shares")
    return _other(product, by)


def _match_matrices(product: ir.Node, perm: list[int]) -> tuple[StoredMatrix, tuple[int, int, int]]:
    """The rows of all experts' matrices that ``product`` multiplies by, and the extents [experts, rows, depth]."""
    flat = _node(product.inputs[1], "Reshape", "the matrix is not that of all experts")
    transpose = _node(flat.inputs[0], "Transpose", "the matrix of the experts is not transposed")
    expect(list(attribute(transpose, "perm", ())) == perm, "the matrix of the experts has another order")
    by_expert = _node(transpose.inputs[0], "Reshape", "the matrix is not divided into those of the experts")
    shape, matrix = integers(by_expert.inputs[1]) or [], _matrix(by_expert.inputs[0])
    is_cut = len(shape) == 3 and matrix.shape == (shape[0] * shape[1], shape[2])
    expect(is_cut, "the matrix is not divided into those of the experts")
    experts, rows, depth = shape
    side_by_side = (depth, experts * rows) if perm[0] else (experts * depth, rows)
    expect(dims(flat.outputs[0]) == side_by_side, "the features of the experts are not side by side")
    return matrix, (experts, rows, depth)


def _match_down_bias(
    product: ir.Node, shares: ir.Value, extents_of_bias: tuple[int, int]
) -> tuple[ir.Value, ir.TensorProtocol | None]:
    """The result after adding the down projections' biases [experts, hidden], weighted by shares, if there are any."""
    result = product.outputs[0]
    add = only_user(result)
    other = None if add is None or add.op_type != "Add" else produced_by(_other(add, result), "MatMul")
    if add is None or other is None or other.inputs[0] is not shares:
        return result, None
    reshape = produced_by(other.inputs[1], "Reshape")
    bias = None if reshape is None else weight_tensor(reshape.inputs[0])
    expect(bias is not None and bias.dtype == ir.DataType.FLOAT, "the biases of the experts are not in float32")
    assert bias is not None
    expect(dims(other.inputs[1]) == extents_of_bias, "the biases are not of the shape [experts, hidden]")
    return add.outputs[0], _reshaped(bias, extents_of_bias)


def _match_wide(value: ir.Value | None) -> tuple[ir.Value, StoredMatrix, ir.TensorProtocol | None]:
    """The rows, the matrix and the bias of the product for all experts that makes ``value``."""
    add = produced_by(value, "Add")
    bias = None if add is None else weight_tensor(add.inputs[1])
    if add is not None:
        fits = bias is not None and bias.dtype == ir.DataType.FLOAT and value is not None
        expect(fits and dims(add.inputs[1]) == (features_of(add.outputs[0]),), "the experts have no bias in float32")
    product = _node(value if add is None else add.inputs[0], "MatMul", "the experts' features are no matrix product")
    matrix, _ = _match_matrices(product, [2, 0, 1])
    assert product.inputs[0] is not None
    return product.inputs[0], matrix, bias


def _matrix(value: ir.Value | None) -> StoredMatrix:
    matrix = next((found for known in FORMATS if (found := known.recognise(value))), None)
    names = ", ".join(known.name for known in FORMATS)
    expect(matrix is not None, f"the experts have no weights of their own in a known format ({names})")
    assert matrix is not None
    return matrix


def _by_expert(matrix: StoredMatrix, experts: int) -> dict[str, ir.TensorProtocol]:
    """The tensors of a matrix [experts * rows, depth], reshaped to [experts, rows, …]."""
    found = {operand: matrix.tensor(operand) for operand in matrix.operands}
    return {
        operand: _reshaped(tensor, (experts, extents(tensor)[0] // experts, *extents(tensor)[1:]))
        for operand, tensor in found.items()
    }


def _reshaped(tensor: ir.TensorProtocol, shape: tuple[int, ...]) -> ir.TensorProtocol:
    return lazy(lambda: tensor.numpy().reshape(shape), tensor.dtype, shape, [tensor])


def _is_expert_of_feature(spread: ir.Node, experts: int, inner: int) -> bool:
    """Whether the shares are taken by feature // inner."""
    ratio = produced_by(spread.inputs[1], "Div")
    features = None if ratio is None else produced_by(ratio.inputs[0], "Range")
    if ratio is None or features is None or attribute(spread, "axis", 0) != -1:
        return False
    numbers = [scalar_constant(value) for value in (*features.inputs, ratio.inputs[1])]
    return numbers == [0, experts * inner, 1, inner]


def _node(value: ir.Value | None, op_type: str, problem: str) -> ir.Node:
    node = produced_by(value, op_type)
    expect(node is not None, problem)
    assert node is not None
    return node


def _reader(value: ir.Value, op_type: str, problem: str) -> ir.Node:
    """The only reader of ``value``, which has to be of type ``op_type``."""
    found = [use.node for use in value.uses() if use.node.op_type == op_type and use.node.domain == ""]
    expect(len(found) == 1 and not value.is_graph_output(), problem)
    return found[0]


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    return next((operand for operand in node.inputs if operand is not value), None)
