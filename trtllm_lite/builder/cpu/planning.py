"""Turns the fused graph into the plan of a CPU engine: tensors with offsets, and calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import onnx_ir as ir

from trtllm_lite.builder.arena import Lifetime, assign_offsets
from trtllm_lite.builder.cache_groups import block_layout
from trtllm_lite.builder.constraints import broken_constraints
from trtllm_lite.builder.graph import (
    aliases_of,
    attribute,
    dims,
    is_cache,
    operands,
    results,
    shared_experts,
    weight_tensor,
)
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.modules import module_of
from trtllm_lite.builder.passes.paged_attention import TOKENS_PER_BLOCK
from trtllm_lite.builder.stages import received
from trtllm_lite.common.extents import Extent, symbol
from trtllm_lite.common.vocabulary import ALIGNMENT, CPU, FLOAT32
from trtllm_lite.engine.modules import Module
from trtllm_lite.engine.plan import (
    CallInstruction,
    CollectiveInstruction,
    Instruction,
    Plan,
    PlanTensor,
    Program,
    TensorArgument,
)
from trtllm_lite.engine.writer import Weight, weight_offsets
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.network.tensors import Computed, extents
from trtllm_lite.plugins.packing import pack, packed_shape
from trtllm_lite.plugins.schema import LAYOUTS, Schema, all_schemas


@dataclass(frozen=True)
class Planned:
    """A plan and the weights that it addresses, in file order; their data is still on disk."""

    plan: Plan
    weights: tuple[Weight, ...]
    module: Module


def make_plan(graph: ir.Graph, kind: str, limits: BuildLimits) -> Planned:
    """Plan ``graph``, which holds fused operators only, with caches of the types that its cache groups say.

    ``kind`` is that of its module.

    Raises BuildError if a weight cannot be laid out.
    """
    layouts = _weight_layouts(graph)
    weights = tuple(_stored_weight(value, layout) for value, layout in layouts.items())
    offsets = dict(zip(layouts, weight_offsets([weight.num_bytes for weight in weights]), strict=True))
    symbols = limits.symbols()
    tallies = _tallies(graph)
    arena, arena_bytes = _arena(graph, symbols, limits, tallies)
    state, state_bytes = _state(tallies, limits)

    block = block_layout(limits.cache_groups, limits.tokens_per_block)
    stored = {cache.tensor: cache.dtype for group in limits.cache_groups for cache in group.caches}
    tensors: list[PlanTensor] = []
    index: dict[ir.Value, int] = {}

    def add(value: ir.Value, kind: str, offset: int = 0, layout: str = "row_major") -> None:
        index[value] = len(tensors)
        tensor = _tensor(value, limits, kind, offset, layout)
        tensors.append(replace(tensor, dtype=stored.get(tensor.name, tensor.dtype)) if kind == "cache" else tensor)

    for value in graph.inputs:
        if value in arena:
            continue
        if is_cache(value):
            add(value, "cache", block.offsets.get(str(value.name), 0))
        else:
            add(value, "input")
    for value, layout in layouts.items():
        add(value, "weight", offsets[value], layout)
    for value, offset in arena.items():
        add(value, "arena", offset)
    for value, offset in state.items():
        add(value, "state", offset)
    instructions = tuple(_instruction(node, index) for node in graph)
    _check_constraints(graph, tensors, index)
    plan = Plan(
        symbols=symbols,
        arena_bytes=arena_bytes,
        state_bytes=state_bytes,
        tensors=tuple(tensors),
        outputs={str(value.name): index[value] for value in graph.outputs if value in arena},
        kernels=(),
        programs=(Program("step", CPU, False, symbols["num_tokens"], instructions),),
        cuda=None,
        inputs={str(value.name): index[value] for value in received(graph)},
        tallies=tuple(index[value] for value in tallies),
        shared_experts=shared_experts(graph),
    )
    groups = limits.cache_groups
    module = module_of(kind, plan.tensors, plan.inputs, plan.outputs, groups, limits.tokens_per_row)
    return Planned(plan, weights, module)


def _operands(node: ir.Node) -> list[tuple[ir.Value, tuple[str, ...]]]:
    """The inputs that are present, each with the layouts that its operator accepts."""
    arguments = all_schemas()[node.op_type].inputs
    return [(value, a.layouts) for a, value in zip(arguments, node.inputs, strict=False) if value is not None]


def _weight_layouts(graph: ir.Graph) -> dict[ir.Value, str]:
    """Return the layout of each weight, in order of first use: the first layout that all of its readers accept."""
    accepted: dict[ir.Value, set[str]] = {}
    for node in graph:
        for value, layouts in _operands(node):
            if weight_tensor(value) is not None:
                accepted[value] = accepted.get(value, set(LAYOUTS)) & set(layouts)
    for value, common in accepted.items():
        if not common:
            users = sorted({str(use.node.name) for use in value.uses()})
            raise BuildError(
                f"the weight {value.name} is shared by {', '.join(users)}, which need different layouts: "
                "give each its own copy in network.onnx"
            )
    return {value: min(common, key=LAYOUTS.index) for value, common in accepted.items()}


def _stored_weight(value: ir.Value, layout: str) -> Weight:
    tensor = weight_tensor(value)
    assert tensor is not None
    shape = packed_shape(extents(tensor), layout, tensor.dtype.numpy())

    def load() -> memoryview:
        return pack(tensor.numpy(), layout).reshape(-1).view("u1").data

    return Weight(str(value.name), DTYPE_NAMES[tensor.dtype], shape, load, isinstance(tensor, Computed))


def _tallies(graph: ir.Graph) -> list[ir.Value]:
    """Return the tensors in which routers count chosen experts, in order of layers."""
    return [results(node)["tally"] for node in graph if node.op_type == "Router"]


def _state(values: Sequence[ir.Value], limits: BuildLimits) -> tuple[dict[ir.Value, int], int]:
    """Return the offset of every value that is kept between steps, and their total bytes."""
    sizes = [_tensor(value, limits, "state").max_bytes({}) for value in values]
    ends = list(accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes))
    return dict(zip(values, [0, *ends], strict=False)), ends[-1] if ends else 0


def _arena(
    graph: ir.Graph, symbols: dict[str, int], limits: BuildLimits, kept: Sequence[ir.Value]
) -> tuple[dict[ir.Value, int], int]:
    """Return the offsets of intermediate values and of values received from another stage, and the bytes of the arena.

    Values that are ``kept`` between steps are not in the arena.
    """
    nodes = list(graph)
    aliased = {node.outputs[i] for node in nodes for i in aliases_of(node)} | set(kept)
    position = {node: step for step, node in enumerate(nodes)}
    born = dict.fromkeys(received(graph), 0)
    born |= {value: step for step, node in enumerate(nodes) for value in node.outputs if value not in aliased}
    lifetimes = []
    for value, first in born.items():
        last = len(nodes) if value.is_graph_output() else first
        last = max([last, *(position[use.node] for use in value.uses())])
        lifetimes.append(Lifetime(_tensor(value, limits, "arena").max_bytes(symbols), first, last))
    offsets, arena_bytes = assign_offsets(lifetimes)
    return dict(zip(born, offsets, strict=True)), arena_bytes


def _tensor(value: ir.Value, limits: BuildLimits, kind: str, offset: int = 0, layout: str = "row_major") -> PlanTensor:
    assert value.dtype is not None
    shape = []
    for dim in dims(value) or ():
        if dim is None or (isinstance(dim, str) and dim not in (TOKENS_PER_BLOCK, *limits.symbols())):
            raise BuildError(
                f"the extent {dim} of {value.name} is bounded by no limit: name it like a limit, or make it static"
            )
        shape.append(limits.tokens_per_block if dim == TOKENS_PER_BLOCK else dim)
    return PlanTensor(str(value.name), DTYPE_NAMES[value.dtype], tuple(shape), layout, kind, offset)


def _instruction(node: ir.Node, index: dict[ir.Value, int]) -> Instruction:
    schema = all_schemas()[node.op_type]
    return _collective(node, schema, index) if schema.collective else _call(node, index)


def _collective(node: ir.Node, schema: Schema, index: dict[ir.Value, int]) -> CollectiveInstruction:
    x, y = operands(node)["x"], results(node)["y"]
    rows, x_features = dims(x) or ()
    _, y_features = dims(y) or ()
    assert isinstance(rows, str)
    assert isinstance(x_features, int)
    assert isinstance(y_features, int)
    at = [TensorArgument(index[value], Extent(0)) for value in (x, y)]
    return CollectiveInstruction(
        "collective", schema.folder, at[0], at[1], symbol(rows), x_features, y_features, FLOAT32
    )


def _call(node: ir.Node, index: dict[ir.Value, int]) -> CallInstruction:
    """The call of ``node``; an aliased output gets its input's index, which later readers also use."""
    schema = all_schemas()[node.op_type]
    aliases = aliases_of(node)
    for output, source in aliases.items():
        value = node.inputs[source]
        assert value is not None
        index[node.outputs[output]] = index[value]
    operands = {
        argument.name: index[value]
        for argument, value in zip(schema.inputs, node.inputs, strict=False)
        if value is not None
    }
    operands |= {
        argument.name: index[value]
        for position, (argument, value) in enumerate(zip(schema.outputs, node.outputs, strict=False))
        if value.name and position not in aliases
    }
    attributes: dict[str, int | float | str] = {}
    for declared in schema.attributes:
        value = attribute(node, declared.name)
        assert isinstance(value, int | float | str)
        attributes[declared.name] = value
    return CallInstruction("call", node.op_type, operands, attributes)


def _check_constraints(graph: ir.Graph, tensors: Sequence[PlanTensor], index: dict[ir.Value, int]) -> None:
    """Raise BuildError if an operator is used with sizes that its kernels do not support."""
    problems = []
    for node in graph:
        schema = all_schemas()[node.op_type]
        pairs = (*zip(schema.inputs, node.inputs, strict=False), *zip(schema.outputs, node.outputs, strict=False))
        shapes = [(argument, tensors[index[value]].shape) for argument, value in pairs if value in index]
        attributes = {declared.name: attribute(node, declared.name) for declared in schema.attributes}
        problems += [
            f"{node.op_type} at {node.name} needs {rule}" for rule in broken_constraints(schema, shapes, attributes)
        ]
    if problems:
        raise BuildError(
            f"this model does not fit the kernels: {'; '.join(problems[:10])}; these sizes are not supported"
        )
