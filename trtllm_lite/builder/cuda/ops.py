"""The fused graph as a list of operators with named operands, which the passes for this device rewrite.

Besides the operands of its schema, an operator may have operands of an operation that a device pass has moved into its
prologue or epilogue. ``plugins/cuda/lowering.py`` lists them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import onnx_ir as ir

from trtllm_lite.builder.cuda.limits import Bucket
from trtllm_lite.builder.graph import Dim, dims, operands, results
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.cuda.few_rows import GemvConfig, few_rows_config
from trtllm_lite.plugins.cuda.grouped import gated_gemv_config, summed_gemv_config
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.weight_form import BlockNumbers, WeightForm, has_blocks, weight_form
from trtllm_lite.plugins.launch import Device
from trtllm_lite.plugins.schema import all_schemas

Attributes: TypeAlias = Mapping[str, int | float | str]


@dataclass(frozen=True, eq=False)
class Op:
    """One operator: ``kind`` is its name in its schema; absent operands have no entry."""

    kind: str
    name: str
    inputs: Mapping[str, ir.Value]
    outputs: Mapping[str, ir.Value]
    attributes: Attributes = field(default_factory=dict)

    def with_inputs(self, **inputs: ir.Value) -> "Op":
        """Return this operator with changed or added inputs."""
        return replace(self, inputs={**self.inputs, **inputs})

    def without(self, *names: str) -> "Op":
        """Return this operator without the inputs and outputs ``names``."""
        inputs, outputs = (
            {name: value for name, value in operands.items() if name not in names}
            for operands in (self.inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs)


_GROUPED_CONFIGS: Mapping[str, Callable[..., GemvConfig | SplitKConfig | None]] = {
    "GroupedGatedLinear": gated_gemv_config,
    "GroupedLinear": summed_gemv_config,
}


@dataclass(frozen=True)
class ProgramKind:
    """The purpose of a program: a device, the steps of a bucket, and the limits of the engine."""

    device: Device
    bucket: Bucket
    limits: BuildLimits

    def few_rows(self, op: Op) -> GemvConfig | SplitKConfig | None:
        """Return the GEMV configuration of ``op``; None if it has many rows, or is too large for a GEMV.

        GEMV kernels have their own order of additions, so deterministic engines use them only where sums are exact,
        and only for rows with scales of their own: one scale lets kernels for many rows round y to bytes in one step,
        from float32, where those for few rows take two.
        """
        if not self.bucket.decode:
            return None
        shape, form = static_dims(op.inputs["weight"]), form_of_op(op)
        exact = form.adds_exactly(shape[-1]) and op.attributes.get("x_row_scales")
        if self.limits.deterministic and not exact:
            return None
        how = (form, self.bucket.max_tokens, self.device)
        return _GROUPED_CONFIGS.get(op.kind, few_rows_config)(shape, *how)


def rows_of(op: Op) -> str | None:
    """Return the type of a product's quantized activations; None if they are not quantized."""
    rows = op.attributes.get("x_type")
    assert rows is None or isinstance(rows, str)
    return rows


def form_of_op(op: Op) -> WeightForm:
    """Return the form in which kernels read the weight of a product."""
    weight, scale, blocks = op.inputs["weight"], op.inputs.get("weight_scale"), None
    assert weight.dtype is not None
    name = DTYPE_NAMES[weight.dtype]
    if scale is not None and has_blocks(name, rows_of(op), static_dims(scale)[-1]):
        assert scale.dtype is not None
        size = static_dims(weight)[-1] // static_dims(scale)[-1]
        blocks = BlockNumbers(size, DTYPE_NAMES[scale.dtype], "weight_offset" in op.inputs)
    return weight_form(name, rows_of(op), blocks)


DevicePass: TypeAlias = Callable[[list[Op], ProgramKind], list[Op]]


def ops_of(graph: ir.Graph) -> list[Op]:
    """Return the operators of ``graph``, which are all fused, in its order."""
    ops = []
    for node in graph:
        attributes = {name: found.value for name, found in node.attributes.items()}
        ops.append(Op(node.op_type, str(node.name), operands(node), results(node), attributes))
    return ops


class Links:
    """The producer and the readers of each value in a list of operators."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.producers: dict[ir.Value, Op] = {}
        self.readers: dict[ir.Value, list[Op]] = {}
        for op in ops:
            self.producers |= dict.fromkeys(op.outputs.values(), op)
            for value in op.inputs.values():
                self.readers.setdefault(value, []).append(op)

    def producer(self, value: ir.Value | None, kind: str) -> Op | None:
        """Return the operator that makes ``value``, if it is of ``kind``."""
        op = None if value is None else self.producers.get(value)
        return op if op is not None and op.kind == kind else None

    def only_reader(self, value: ir.Value) -> Op | None:
        """The only operator that reads ``value``, once; None if there are more, or if the graph outputs ``value``."""
        readers = self.readers.get(value, [])
        return readers[0] if len(readers) == 1 and not value.is_graph_output() else None

    def storage(self, value: ir.Value) -> ir.Value:
        """Return the value whose storage ``value`` shares: operators update some of their inputs in place."""
        op = self.producers.get(value)
        if op is None:
            return value
        name = next(name for name, made in op.outputs.items() if made is value)
        alias = all_schemas()[op.kind].output(name).alias
        return value if alias is None else self.storage(op.inputs[alias])


def without_unread(ops: Sequence[Op]) -> list[Op]:
    """Return ``ops`` without operators whose outputs are unread and which keep no state for the next step."""
    kept: list[Op] = []
    read: set[ir.Value] = set()
    for op in reversed(ops):
        is_read = any(value in read or value.is_graph_output() for value in op.outputs.values())
        if is_read or all_schemas()[op.kind].keeps_state:
            kept.append(op)
            read |= set(op.inputs.values())
    return kept[::-1]


def known_dims(value: ir.Value) -> tuple[Dim, ...]:
    """Return the extents of a value, which are all known: integers and symbols."""
    shape = dims(value)
    assert shape is not None
    assert None not in shape
    return tuple(extent for extent in shape if extent is not None)


def static_dims(value: ir.Value) -> tuple[int, ...]:
    """Return the extents of a weight."""
    shape = known_dims(value)
    numbers = tuple(extent for extent in shape if isinstance(extent, int))
    assert len(numbers) == len(shape)
    return numbers
