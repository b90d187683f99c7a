"""Fuses elementwise operators over packed rows that no other pass has fused into Rowwise, one node for each chain.

A chain is a tree of operators whose inner results no other operator reads. A part of wider rows that a Split makes is
read in place. An operator without a kernel of its own thus
costs at most one read and write of its rows. Every chain is listed as not fused, with its cost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    features_of,
    fused_node,
    only_user,
    produced_by,
    remove_dead,
    replace_value,
    scalar_constant,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.activations import OP_TYPES, activation_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.patch_rows import NUM_TOKEN_ROWS
from trtllm_lite.builder.passes.remove_padding import NUM_IMAGE_ROWS, NUM_SEQS, NUM_TOKENS
from trtllm_lite.network.tensors import add_initializer
from trtllm_lite.plugins.rowwise.expression import (
    ARITY,
    MAX_CONSTANTS,
    MAX_DEPTH,
    MAX_ROWS,
    MAX_STEPS,
    MAX_VECTORS,
    max_depth,
)

# What there is a row of.
_ROWS = {NUM_TOKENS: "token", NUM_SEQS: "text", NUM_TOKEN_ROWS: "patch", NUM_IMAGE_ROWS: "row of an image"}
_ITEM_BYTES = 4  # bytes of a float32 activation
# Maps a standard operator to its word in a program.
_WORDS = {
    op_type: op_type.lower()
    for op_type in ("Add", "Sub", "Mul", "Div", "Neg", "Tanh", "Sigmoid", "Relu", "Exp", "Sqrt", "Reciprocal")
}

Item = str | float | ir.Value  # an operation, a constant, or a value of rows or of a vector


@dataclass(frozen=True)
class _Chain:
    """An expression in postfix order, and the nodes it replaces."""

    items: tuple[Item, ...]
    nodes: tuple[ir.Node, ...]

    def operands(self) -> tuple[list[ir.Value], list[ir.Value], list[float]]:
        """The rows, vectors and constants of the expression, each once."""
        values = _with_part_second(list(dict.fromkeys(item for item in self.items if isinstance(item, ir.Value))))
        constants = list(dict.fromkeys(item for item in self.items if isinstance(item, float)))
        is_vector = {value: len(dims(value) or ()) == 1 for value in values}
        return [v for v in values if not is_vector[v]], [v for v in values if is_vector[v]], constants

    def words(self) -> list[str]:
        """The words of the program."""
        rows, vectors, constants = self.operands()
        names: dict[Item, str] = {value: f"x{i}" for i, value in enumerate(rows)}
        names |= {value: f"v{i}" for i, value in enumerate(vectors)}
        names |= {value: f"c{i}" for i, value in enumerate(constants)}
        return [item if isinstance(item, str) else names[item] for item in self.items]

    def fits(self) -> bool:
        """Whether the chain is within the limits of a program."""
        rows, vectors, constants = self.operands()
        few = len(rows) <= MAX_ROWS and len(vectors) <= MAX_VECTORS and len(constants) <= MAX_CONSTANTS
        return few and len(self.items) <= MAX_STEPS and max_depth(self.words()) <= MAX_DEPTH


def _rewrite(graph: ir.Graph) -> list[Decision]:
    decisions: list[Decision] = []
    taken: set[ir.Node] = set()
    for node in reversed(list(graph)):
        if node in taken or _word(node) is None or not _operands_fit(node):
            continue
        chain = _chain(node)
        taken.update(chain.nodes)
        decisions.append(Decision(site(node), False, _cost(chain, node)))
        _fuse(graph, node, chain)
    remove_dead(graph)
    return decisions[::-1]


def _word(node: ir.Node) -> str | None:
    if node.domain:
        return None
    return activation_of(node) if node.op_type in OP_TYPES else _WORDS.get(node.op_type)


def _operands_fit(node: ir.Node) -> bool:
    shape = dims(node.outputs[0]) or ()
    is_rows = len(shape) == 2 and shape[0] in _ROWS and node.outputs[0].dtype == ir.DataType.FLOAT
    items = [_operand(value, shape) for value in node.inputs]
    has_rows = any(isinstance(item, ir.Value) and dims(item) == shape for item in items)
    return is_rows and has_rows and len(items) == ARITY[_word(node) or ""] and None not in items


def _operand(value: ir.Value | None, shape: Sequence[int | str | None]) -> ir.Value | float | None:
    """Rows of ``shape``, a vector with an element per feature, or a float32 constant; else None."""
    if value is None or value.dtype != ir.DataType.FLOAT:
        return None
    constant = scalar_constant(value)
    if constant is not None:
        return float(constant)
    is_vector = weight_tensor(value) is not None and dims(value) == tuple(shape[1:])
    return value if is_vector or dims(value) == tuple(shape) else None


def _chain(node: ir.Node) -> _Chain:
    """The chain that ends with ``node``, as long as limits allow; operands that do not join it are its inputs."""
    shape = dims(node.outputs[0]) or ()
    parts: list[_Chain] = []
    for value in node.inputs:
        operand = _operand(value, shape)
        assert operand is not None
        parts.append(_Chain((operand,), ()))
    for position, value in enumerate(node.inputs):
        producer = None if value is None else value.producer()
        if producer is None or not _is_inner(producer, node):
            continue
        longer = [*parts[:position], _chain(producer), *parts[position + 1 :]]
        if _joined(node, longer).fits():
            parts = longer
    return _joined(node, parts)


def _is_inner(producer: ir.Node, reader: ir.Node) -> bool:
    result = producer.outputs[0]
    once = only_user(result) is reader and len(list(result.uses())) == 1
    return once and _word(producer) is not None and _operands_fit(producer)


def _joined(node: ir.Node, parts: Sequence[_Chain]) -> _Chain:
    items = tuple(item for part in parts for item in part.items)
    return _Chain((*items, _word(node) or ""), (*(inner for part in parts for inner in part.nodes), node))


def _cost(chain: _Chain, node: ir.Node) -> str:
    rows, features = dims(node.outputs[0]) or ("", 0)
    assert isinstance(features, int)
    count = len(chain.operands()[0]) + 1
    operators = ", ".join(inner.op_type for inner in chain.nodes)
    return f"{operators} run as Rowwise: {count * features * _ITEM_BYTES:,} bytes a {_ROWS[str(rows)]} in float32"


def _fuse(graph: ir.Graph, node: ir.Node, chain: _Chain) -> None:
    rows, vectors, constants = chain.operands()
    part = _part_of_rows(rows)
    inputs = {f"x{i}": value for i, value in enumerate(rows)} | {f"v{i}": value for i, value in enumerate(vectors)}
    inputs["x0"] = _bytes_of(rows[0])
    if part is not None:
        inputs["x1"] = part[0]
    if constants:
        tensor = ir.tensor(np.array(constants, np.float32), name=f"{node.name}.constants")
        inputs["constants"] = add_initializer(graph, f"{node.name}.constants", tensor)
    result = node.outputs[0]
    output = value_of(f"{node.name}.rowwise", ir.DataType.FLOAT, dims(result) or ())
    first = 0 if part is None else part[1]
    program: dict[str, int | float | str] = {"program": " ".join(chain.words()), "x1_first": first}
    graph.insert_before(node, fused_node("Rowwise", str(node.name), inputs, {"y": output}, program))
    replace_value(result, output)


def _bytes_of(rows: ir.Value) -> ir.Value:
    """The bytes that ``rows`` are cast from, which the operator reads as they are; ``rows`` themselves of others."""
    cast = produced_by(rows, "Cast")
    source = None if cast is None else cast.inputs[0]
    return source if source is not None and source.dtype == ir.DataType.UINT8 else rows


def _with_part_second(values: list[ir.Value]) -> list[ir.Value]:
    """The rows and vectors, with the first part of wider rows, if there is one, after other rows."""
    part = next((value for value in values if produced_by(value, "Split") is not None), None)
    others = [value for value in values if value is not part and len(dims(value) or ()) == 2]
    if part is None or not others:
        return values
    return [others[0], part, *(value for value in values if value not in (others[0], part))]


def _part_of_rows(rows: Sequence[ir.Value]) -> tuple[ir.Value, int] | None:
    """The wider rows of which x1 is a part, and the part's first column."""
    split = produced_by(rows[1], "Split") if len(rows) > 1 else None
    if split is None or attribute(split, "axis", 0) not in (-1, 1) or split.inputs[0] is None:
        return None
    number = split.outputs.index(rows[1])
    return split.inputs[0], sum(features_of(part) for part in split.outputs[:number])


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in graph:
        if _word(node) is not None and _operands_fit(node):
            yield f"{node.name} is an elementwise operator that was not fused"


ROWWISE = GraphPass("rowwise", _rewrite, ensures=_ensures)
