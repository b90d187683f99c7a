"""Turns the MLP that all rows of a mixture share into experts of the mixture, which the pass moe has fused before.

An MLP with k times the inner features of an expert is k experts that every row has, each with the share 1, or with the
sigmoid of a score if the MLP has a gate (network/moe.py). Router gives rows these experts beside the chosen ones, so
that the MLP needs no products of its own, and neither a gate nor an addition after them. On CPUs, products with experts
multiply one that all rows have as a plain product would, and one that a few rows have together with the others.

Engines of several ranks leave the pass out, because a rank has some of the experts, but a part of each shared one. So
do engines with adapters, which may change shared experts alone (builder/pipeline.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.constraints import implied_extents
from trtllm_lite.builder.graph import (
    attribute,
    dims,
    features_of,
    fused_by,
    nodes_of,
    only_user,
    operands,
    produced_by,
    replace_value,
    results,
    site,
    weight_tensor,
)
from trtllm_lite.builder.passes.activations import match_gating
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.experts import beside, halves
from trtllm_lite.builder.passes.linear import transposed_matrix
from trtllm_lite.builder.passes.sigmoid_gate import gate_of
from trtllm_lite.network.tensors import add_initializer, concatenate, extents, lazy
from trtllm_lite.plugins.cuda.grouped import MAX_EXPERTS, MAX_TOP_K
from trtllm_lite.plugins.schema import DOMAIN, all_schemas
from trtllm_lite.quantize.activations import recognise
from trtllm_lite.quantize.formats import StoredMatrix, in_one_form

Tensors = Mapping[str, ir.TensorProtocol]  # those of a stored matrix, by operand


@dataclass(frozen=True)
class _Mixture:
    """The three operators of a mixture, the last of which makes the sum over a row's experts."""

    router: ir.Node
    gated: ir.Node
    summed: ir.Node


@dataclass(frozen=True)
class _Shared:
    """A shared MLP as ``count`` experts, whose tensors are those of the mixture's products: [count, …].

    The sigmoid of the product of rows and ``gate`` [hidden, 1] is their share, if there is a gate.
    """

    count: int
    gate: ir.TensorProtocol | None
    gate_up: Tensors
    down: Tensors


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for summed in nodes_of(graph, "GroupedLinear", DOMAIN):
        total = results(summed)["y"]
        add = only_user(total)
        if add is None or add.op_type not in ("Add", "MatMul"):
            continue
        name, other = site(summed, add), next((value for value in add.inputs if value is not total), None)
        if add.op_type == "MatMul":
            yield Decision(name, False, "the experts work on other features than a shared expert would")
            continue
        product, gate = _last_product(other)
        if product is None:
            continue
        try:
            mixture = _mixture_of(summed)
            shared = _match(mixture, product, gate)
        except MismatchError as mismatch:
            yield Decision(name, False, str(mismatch))
            continue
        _merge(graph, mixture, shared)
        replace_value(add.outputs[0], total)
        yield Decision(name, True)


def _last_product(value: ir.Value | None) -> tuple[ir.Node | None, ir.Node | None]:
    """The product that makes ``value``, perhaps times the sigmoid of a product with one column, which is the second."""
    values, gate = gate_of(produced_by(value, "Mul"))
    return produced_by(value if gate is None else values, "MatMul"), gate


def _mixture_of(summed: ir.Node) -> _Mixture:
    gated, router = fused_by(operands(summed)["x"], "GroupedGatedLinear"), fused_by(operands(summed)["ids"], "Router")
    assert gated is not None
    assert router is not None
    return _Mixture(router, gated, summed)


def _match(mixture: _Mixture, product: ir.Node, gate: ir.Node | None) -> _Shared:
    """The MLP whose last product is ``product``. Raises MismatchError unless it is like the experts of ``mixture``."""
    experts, down = operands(mixture.gated), _matrix_of(product)
    expect(recognise(product.inputs[0]) is None, "the shared expert multiplies rounded activations, experts do not")
    gating, name = match_gating(product.inputs[0], "the shared expert"), attribute(mixture.gated, "activation")
    self_gated = gating.gate is gating.up
    found, expected = ("no gate projection", "two") if self_gated else ("a gate projection", "one")
    fits = attribute(mixture.gated, "self_gated") == self_gated
    expect(fits, f"the shared expert has {found}, and an expert has {expected} of the matrices that read rows")
    expect(gating.activation == name, f"the shared expert has the activation {gating.activation}, experts have {name}")
    gate_product, up_product = (_product(value) for value in (gating.gate, gating.up))
    reads = all(one.inputs[0] is experts["x"] for one in (gate_product, up_product))
    expect(reads, "the shared expert reads other rows than the experts")
    expect("bias" not in experts and "bias" not in operands(mixture.summed), "the experts have biases")
    inner, wide = features_of(results(mixture.gated)["y"]), down.shape[1]
    matrices = [_matrix_of(gate_product), _matrix_of(up_product)]
    fits = wide % inner == 0 and all(matrix.shape[0] == wide for matrix in matrices)
    expect(fits, f"the shared expert has {wide} inner features, no multiple of the {inner} of an expert")
    count = wide // inner
    parts = [_rows_by_expert(matrix, count) for matrix in in_one_form(matrices)]
    gate_up = halves(parts[1]) if self_gated else beside(parts)
    shared = _Shared(count, _gate_column(mixture, gate), gate_up, _columns_by_expert(down, count))
    alike = _is_alike(shared.gate_up, mixture.gated) and _is_alike(shared.down, mixture.summed)
    expect(alike, "the shared expert stores its weights in another form than the experts")
    in_all, chosen = attribute(mixture.router, "local_experts") + count, attribute(mixture.router, "top_k") + count
    few = in_all <= MAX_EXPERTS and chosen <= MAX_TOP_K
    expect(few, f"a row would have {chosen} of {in_all} experts, more than GPU kernels choose")
    return shared


def _product(value: ir.Value | None) -> ir.Node:
    product = produced_by(value, "MatMul")
    expect(product is not None, "the projections of the shared expert are no plain products")
    assert product is not None
    return product


def _matrix_of(product: ir.Node) -> StoredMatrix:
    matrix = transposed_matrix(product.inputs[1])
    expect(matrix is not None, "the shared expert has no weights of its own in a known format")
    assert matrix is not None
    return matrix


def _gate_column(mixture: _Mixture, gate: ir.Node | None) -> ir.TensorProtocol | None:
    """The weight of the product ``gate``, which Router computes with those of its own."""
    if gate is None:
        return None
    expect(gate.inputs[0] is operands(mixture.router)["x"], "the gate of the shared expert reads other rows")
    scales_inputs = "input_shares" in operands(mixture.gated)
    expect(not scales_inputs, "the gate multiplies what the shared expert makes, and shares what the experts read")
    return weight_tensor(gate.inputs[1])


def _rows_by_expert(matrix: StoredMatrix, count: int) -> dict[str, ir.TensorProtocol]:
    """The tensors of a matrix [count * rows, depth], whose rows are divided among experts: [count, rows, …]."""

    def cut(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        rows, columns = extents(tensor)
        shape = (count, rows // count, columns)
        return lazy(lambda: tensor.numpy().reshape(shape), tensor.dtype, shape, [tensor])

    return {operand: cut(matrix.tensor(operand)) for operand in matrix.operands}


def _columns_by_expert(matrix: StoredMatrix, count: int) -> dict[str, ir.TensorProtocol]:
    """The tensors of a matrix [rows, count * depth], whose columns are divided among experts: [count, rows, …].

    Each expert gets its blocks' numbers; if a row has one number, all experts get that.
    """

    def cut(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        rows, columns = extents(tensor)
        each = max(columns // count, 1)
        is_cut = each * count == columns
        expect(is_cut or columns == 1, "blocks of the shared expert's weights are of several experts")

        def load() -> np.ndarray:
            array = tensor.numpy()
            if not is_cut:
                return np.ascontiguousarray(np.broadcast_to(array, (count, rows, 1)))
            return np.ascontiguousarray(array.reshape(rows, count, each).transpose(1, 0, 2))

        return lazy(load, tensor.dtype, (count, rows, each), [tensor])

    return {operand: cut(matrix.tensor(operand)) for operand in matrix.operands}


def _is_alike(tensors: Tensors, node: ir.Node) -> bool:
    """Whether ``tensors`` have the form of the experts' tensors in ``node``, and extents that fit them."""
    given = operands(node)
    own = {operand: given[operand] for operand in ("weight", "weight_scale", "weight_offset") if operand in given}
    of_own = {operand: (value.dtype, (dims(value) or ())[1:]) for operand, value in own.items()}
    return of_own == {operand: (tensor.dtype, extents(tensor)[1:]) for operand, tensor in tensors.items()}


def _merge(graph: ir.Graph, mixture: _Mixture, shared: _Shared) -> None:
    """Append ``shared`` to the experts of ``mixture``."""
    router, made = mixture.router, results(mixture.router)
    experts = attribute(router, "local_experts") + shared.count
    new = {"num_shared": shared.count, "shared_gate": int(shared.gate is not None), "local_experts": experts}
    router.attributes.update({name: ir.AttrInt64(name, value) for name, value in new.items()})
    rows, columns = dims(made["scores"]) or ()
    assert isinstance(columns, int)
    chosen = attribute(router, "top_k") + shared.count
    shapes = {
        made["ids"]: [rows, chosen],
        made["shares"]: [rows, chosen],
        made["scores"]: [rows, columns + new["shared_gate"]],
        made["tally"]: [implied_extents(all_schemas()["Router"], new)["tallied"]],
        results(mixture.gated)["y"]: [rows, chosen, features_of(results(mixture.gated)["y"])],
    }
    for value, shape in shapes.items():
        value.shape = ir.Shape(shape)
    if shared.gate is not None:
        _append(graph, router, {"weight": shared.gate}, axis=1)
    _append(graph, mixture.gated, shared.gate_up, axis=0)
    _append(graph, mixture.summed, shared.down, axis=0)


def _append(graph: ir.Graph, node: ir.Node, more: Tensors, axis: int) -> None:
    """Give ``node`` weights that continue with the tensors ``more`` along ``axis``."""
    schema = all_schemas()[node.op_type]
    for operand, tensor in more.items():
        before, position = operands(node)[operand], schema.input_index(operand)
        own = weight_tensor(before)
        assert own is not None
        node.replace_input_with(position, None)
        if not before.uses():
            del graph.initializers[str(before.name)]
        joined = add_initializer(graph, f"{node.name}.{operand}", concatenate([own, tensor], axis))
        node.replace_input_with(position, joined)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == "input_ids" for value in graph.inputs):
        yield "padding is not removed yet"


SHARED_EXPERTS = GraphPass("shared_experts", _rewrite, _requires)
