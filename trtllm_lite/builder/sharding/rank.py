"""Holds a rank's part of a network while it is made, with the operations that sharding rules apply to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import dims, features_of, fused_node, replace_value, value_of, weight_tensor
from trtllm_lite.builder.sharding.shared_sources import SharedSources
from trtllm_lite.errors import BuildError
from trtllm_lite.network.tensors import add_initializer, extents, take

Range = tuple[int, int]


@dataclass(frozen=True)
class Columns:
    """The features of ``rows``, a value of the whole network, from ``first`` up to ``stop``: what an operator reads."""

    rows: ir.Value
    first: int
    stop: int

    @classmethod
    def whole(cls, rows: ir.Value) -> "Columns":
        """All features of ``rows``."""
        return cls(rows, 0, features_of(rows))

    def holds(self, part: Range, features: int | str | None) -> bool:
        """Whether a rank's ``part`` of the rows, which have ``features``, lies here.

        Padded parts may lie behind the last feature.
        """
        return self.first <= part[0] and (part[0] < self.stop or self.stop == features)


def shifted(ranges: Sequence[Range], by: int) -> list[Range]:
    """``ranges`` of features whose numbers are higher by ``by``."""
    return [(start + by, stop + by) for start, stop in ranges]


class Rank:
    """The part of a network on rank ``number`` of ``tp_size``; ``moe_tp_size`` ranks divide the features of an expert.

    ``graph`` is the whole network at first, and is cut down to the part.
    """

    def __init__(self, graph: ir.Graph, number: int, tp_size: int, moe_tp_size: int, sources: SharedSources) -> None:
        self.graph, self.number, self.tp_size, self.moe_tp_size = graph, number, tp_size, moe_tp_size
        self._sources = sources
        self._parts: dict[ir.Value, Sequence[Range]] = {}  # the features that the rank has, if not all
        self._whole: dict[ir.Value, tuple[int | str | None, ...]] = {}  # shapes in the whole network, where they differ
        self._cut: dict[tuple[ir.Value, int], Sequence[Range]] = {}  # weights that were cut along an axis already

    def own(self, count: int) -> Range:
        """The begin and end of the rank's part of an axis that gives each rank ``count`` elements."""
        return self.number * count, (self.number + 1) * count

    def has_part_of(self, value: ir.Value) -> bool:
        """Whether the rank has only some of the value's features."""
        return value in self._parts

    def has_part_of_inputs(self, node: ir.Node) -> bool:
        """Whether the rank has only some features of an input of ``node``."""
        return any(value in self._parts for value in node.inputs if value is not None)

    def part_of(self, value: ir.Value) -> Sequence[Range] | None:
        """The features that the rank has of ``value``; None if it has all."""
        return self._parts.get(value)

    def part_of_inputs(self, node: ir.Node) -> Sequence[Range]:
        """The features that the rank has of the inputs of ``node``, which are the same of each input in parts."""
        parts = [self._parts[value] for value in node.inputs if value in self._parts]
        if any(part != parts[0] for part in parts):
            raise self.refusal(node, "it reads inputs of which the ranks have different features")
        return parts[0]

    def whole_dims(self, value: ir.Value) -> tuple[int | str | None, ...]:
        """The shape that ``value`` has in the whole network."""
        return self._whole.get(value) or dims(value) or ()

    def reshape(self, value: ir.Value, shape: Sequence[int | str | None]) -> None:
        """Give ``value``, which several operators may read, the shape that it has on the rank."""
        self._whole.setdefault(value, dims(value) or ())
        value.shape = ir.Shape(shape)

    def mark(self, value: ir.Value, ranges: Sequence[Range]) -> None:
        """Record that the rank has the features ``ranges`` of ``value``."""
        self.reshape(value, [*(dims(value) or ())[:-1], sum(stop - start for start, stop in ranges)])
        self._parts[value] = ranges

    def cut(self, value: ir.Value, axis: int, ranges: Sequence[Range]) -> None:
        """Keep ``ranges`` of a weight; a weight that several operators read is cut once along an axis."""
        tensor = self.tensor(value)
        axis %= len(extents(tensor))
        if (value, axis) in self._cut:
            if self._cut[value, axis] != ranges:
                raise BuildError(
                    f"tp_size is {self.tp_size}: {value.name} is shared by operators that need different parts of it: "
                    "give each its own copy in network.onnx"
                )
            return
        if list(ranges) == [(0, extents(tensor)[axis])]:
            return
        is_whole = all(known is not value for known, _ in self._cut)
        self._cut[value, axis] = ranges
        self.replace(value, take(self._sources.of(tensor) if is_whole else tensor, axis, ranges))

    def tensor(self, value: ir.Value) -> ir.TensorProtocol:
        """The tensor of the weight ``value``."""
        tensor = weight_tensor(value)
        assert tensor is not None
        return tensor

    def replace(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        """Replace the tensor of the weight ``value``."""
        value.const_value = tensor
        self.reshape(value, extents(tensor))

    def meet(self, node: ir.Node, op_type: str, features: int | None = None) -> None:
        """Insert the collective ``op_type`` over all ranks' results of ``node``, whose readers then read its output.

        The output has ``features`` features, or as many as the rank's result.
        """
        value = node.outputs[0]
        shape = list(dims(value) or ())
        whole = value_of(f"{value.name}.whole", ir.DataType.FLOAT, [*shape[:-1], features or shape[-1]])
        replace_value(value, whole)
        self._parts.pop(value, None)
        name = f"{node.name}.{'all_reduce' if op_type == 'AllReduce' else 'all_gather'}"
        self.graph.insert_after(node, fused_node(op_type, name, {"x": value}, {"y": whole}))

    def take_columns(self, node: ir.Node, rows: ir.Value, ranges: Sequence[Range], name: str) -> ir.Value:
        """Let ``node`` read the features ``ranges`` of ``rows``, of which the rank has all, by a GatherColumns.

        Features behind the last, with which a part is padded, are the last again.
        """
        columns = np.concatenate([np.arange(start, stop, dtype=np.int32) for start, stop in ranges])
        order = add_initializer(self.graph, f"{name}.order", ir.tensor(np.minimum(columns, features_of(rows) - 1)))
        own = value_of(f"{name}.columns", ir.DataType.FLOAT, [*(dims(rows) or ())[:1], len(columns)])
        self.graph.insert_before(node, fused_node("GatherColumns", name, {"x": rows, "order": order}, {"y": own}))
        node.replace_input_with(list(node.inputs).index(rows), own)
        self._whole[own] = self.whole_dims(rows)
        return own

    def refusal(self, node: ir.Node, problem: str) -> BuildError:
        """The error that ``node`` cannot be divided."""
        return BuildError(
            f"tp_size is {self.tp_size}, and {node.name} cannot be split among this many ranks: {problem}"
        )


def even_part(features: int, num_parts: int, part: int, padded_to: int) -> Range:
    """Part number ``part`` of ``features``: equal parts, the last of them padded if the division has a remainder."""
    share, uneven = divmod(features, num_parts)
    if uneven or (num_parts > 1 and share % padded_to):
        share = -(-features // num_parts // padded_to) * padded_to
    return part * share, (part + 1) * share
