"""The plan of a GPU engine: each program lowered, laid out, and written as instructions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import onnx_ir as ir

from trtllm_lite.builder.cuda.expansion import expand_weights
from trtllm_lite.builder.cuda.layout import Layout, lay_out
from trtllm_lite.builder.cuda.limits import Bucket, decode_batches, decode_buckets, step_buckets, with_adapters
from trtllm_lite.builder.cuda.lowering import lower
from trtllm_lite.builder.cuda.operands import Operands
from trtllm_lite.builder.cuda.passes.ranks import rank_states
from trtllm_lite.builder.cuda.products.choices import chooser
from trtllm_lite.builder.cuda.products.timing_cache import Product, TimingCache
from trtllm_lite.builder.cuda.program_ops import LAST_TOKENS
from trtllm_lite.builder.graph import results, shared_experts
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.modules import module_of
from trtllm_lite.builder.observe import shows_rows
from trtllm_lite.builder.stages import received
from trtllm_lite.common.vocabulary import DEVICE_ALIGNMENT, TOKEN_ROWS
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.engine.modules import Module
from trtllm_lite.engine.plan import (
    AdaptedProduct,
    BoxedTensor,
    CollectiveInstruction,
    CompiledKernel,
    CudaSettings,
    FloatArgument,
    Instruction,
    IntArgument,
    LaunchArgument,
    LaunchInstruction,
    MatmulInstruction,
    Number,
    Plan,
    Program,
    TensorArgument,
    TensorMapArgument,
    TimedAlgorithm,
)
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.cuda.tiles import TILED_ARCH
from trtllm_lite.plugins.launch import (
    Buffer,
    Collective,
    Command,
    Device,
    Extent,
    Kernel,
    Launch,
    Matmul,
    Slice,
    TensorMap,
    features,
)
from trtllm_lite.request_fields.draws import NUMBERS

WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for cuBLASLt on Hopper

_WRITTEN_STATE = ("sampling_slots", "token_masks", "ranks")  # state that the executor itself writes


@dataclass(frozen=True)
class LoweredProgram:
    """The commands of one program for one device."""

    device: Device
    bucket: Bucket
    commands: list[Command]

    @property
    def name(self) -> str:
        """``decode_8``, ``step_64``, or ``mixed`` for the program that fits any step."""
        return self.bucket.name


@dataclass(frozen=True)
class Lowered:
    """A network lowered to programs and a memory layout; nothing is compiled yet.

    ``expansions`` lists the weights that were expanded; ``kind`` is that of the module.
    """

    operands: Operands
    programs: tuple[LoweredProgram, ...]
    layout: Layout
    kind: str
    tallies: tuple[Buffer, ...] = ()  # counts of routers, in order of layers
    shared_experts: tuple[int, ...] = ()  # of each router
    expansions: tuple[Tactic, ...] = ()

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that have programs."""
        return tuple(dict.fromkeys(program.device.arch for program in self.programs))

    @property
    def inputs(self) -> dict[str, int]:
        """The tensors that are filled before a program runs, by name."""
        return {buffer.name: self.layout.index[buffer] for buffer in self.operands.received.values()}

    @property
    def outputs(self) -> dict[str, int]:
        """The tensors of results, and of state that the executor writes, by name."""
        operands = self.operands
        shared = ("last_tokens",) if operands.limits.uses_nccl else ()
        written = (name for name in (*_WRITTEN_STATE, *shared) if name in operands.states)
        outputs = {**operands.outputs, **{name: operands.states[name] for name in written}}
        return {name: self.layout.index[buffer] for name, buffer in outputs.items()}

    @property
    def module(self) -> Module:
        """The module that the network becomes."""
        limits = self.operands.limits
        inputs, outputs = self.inputs, self.outputs
        return module_of(self.kind, self.layout.tensors, inputs, outputs, limits.cache_groups, limits.tokens_per_row)

    def kernels(self) -> dict[tuple[Kernel, str], int]:
        """Maps each kernel and architecture to its number, in order of first launch."""
        found: dict[tuple[Kernel, str], int] = {}
        for program in self.programs:
            for command in program.commands:
                if isinstance(command, Launch):
                    found.setdefault((command.kernel, program.device.arch), len(found))
        return found


def operands_of(graph: ir.Graph, dtype: str, limits: BuildLimits) -> Operands:
    """Make the operands of the programs of ``graph``, including those that a pipeline stage receives from others."""
    operands = Operands(dtype, limits)
    for value in received(graph):
        operands.receive(value)
    for value in graph.inputs:
        if value.name == TOKEN_ROWS:
            operands.take_rows(value)
    if limits.pp_size > 1:
        for state in (LAST_TOKENS, *rank_states(limits).values()):
            operands.state_of_ranks(state)
    return operands


def lower_network(
    graph: ir.Graph,
    kind: str,
    dtype: str,
    limits: BuildLimits,
    devices: Sequence[Device],
    timings: TimingCache | None = None,
) -> Lowered:
    """Lower ``graph``, which holds fused operators only, for each device; ``timings`` choose kernels of products.

    ``kind`` is that of the graph's module. The KV cache is of ``dtype`` unless the network rounds keys and values.
    Raises BuildError for what is unsupported.
    """
    if limits.deterministic:
        _check_ordered(devices)
    operands, network = operands_of(graph, dtype, limits), expand_weights(graph, dtype)
    buckets = [*decode_buckets(limits), *step_buckets(operands.symbols["num_tokens"])]
    if shows_rows(graph):
        buckets = buckets[-1:]  # the program that fits any step, which is the only one compiled
    lists = [buckets, with_adapters(buckets)] if limits.max_lora_rank else [buckets]
    programs: list[LoweredProgram] = []
    for device, of_kind in product(devices, lists):
        ordered = []
        for bucket in of_kind:
            choose = chooser(bucket, device, timings, limits.deterministic)
            ordered.append(LoweredProgram(device, bucket, lower(network.ops, operands, device, bucket, choose)))
        programs += [first for first, then in pairwise(ordered) if not _runs_alike(first, then)] + ordered[-1:]
    layout = lay_out(operands, [program.commands for program in programs])
    tallies = tuple(operands.states[str(results(node)["tally"].name)] for node in graph if node.op_type == "Router")
    return Lowered(operands, tuple(programs), layout, kind, tallies, shared_experts(graph), network.expansions)


def _check_ordered(devices: Sequence[Device]) -> None:
    """Raise BuildError for devices whose products add in another order for few rows than for many."""
    others = [device.arch for device in devices if device.arch != TILED_ARCH]
    if others:
        raise BuildError(
            f"deterministic is given for {', '.join(others)}, where products of few and of many rows add in "
            "different orders: build for cpu or sm_90, or leave deterministic out"
        )


def _runs_alike(program: LoweredProgram, larger: LoweredProgram) -> bool:
    """Return whether the program for larger steps launches the same kernels."""
    if program.bucket.decode:
        return False
    ran = [[(s.kernel, s.grid) if isinstance(s, Launch) else type(s) for s in p.commands] for p in (program, larger)]
    return ran[0] == ran[1]


def make_plan(lowered: Lowered, keys: Mapping[tuple[Kernel, str], str], timings: TimingCache | None = None) -> Plan:
    """Make the plan of ``lowered``, whose kernels have the cubins ``keys``; ``timings`` choose products' algorithms."""
    numbers, index = lowered.kernels(), lowered.layout.index
    operands = lowered.operands
    programs = tuple(_program(program, operands.symbols, numbers, index, timings) for program in lowered.programs)
    measured = any(
        instruction.algorithms
        for program in programs
        for instruction in program.instructions
        if isinstance(instruction, MatmulInstruction)
    )
    stride = {"adapter_stride": lowered.layout.slot_bytes // DEVICE_ALIGNMENT} if operands.adapted else {}
    return Plan(
        symbols=operands.symbols | stride,
        arena_bytes=lowered.layout.arena_bytes,
        state_bytes=lowered.layout.state_bytes,
        tensors=lowered.layout.tensors,
        outputs=lowered.outputs,
        inputs=lowered.inputs,
        tallies=tuple(index[buffer] for buffer in lowered.tallies),
        shared_experts=lowered.shared_experts,
        kernels=tuple(
            CompiledKernel(kernel.name, {arch: keys[kernel, arch]}, kernel.threads, kernel.shared_bytes)
            for kernel, arch in numbers
        ),
        programs=programs,
        cuda=CudaSettings(
            decode_batches=decode_batches(operands.symbols["num_decode_seqs"]),
            workspace_bytes=WORKSPACE_BYTES,
            cublaslt_version=timings.cublaslt_version if timings is not None and measured else 0,
            adapted=tuple(
                AdaptedProduct(index[slots.a], index[slots.b], index[slots.ranks], slots.widths)
                for _, slots in sorted(operands.adapted.items())
            ),
            collectives=tuple(operands.collectives),
            slot_numbers=tuple(NUMBERS),
        ),
    )


def _program(
    program: LoweredProgram,
    symbols: dict[str, int],
    numbers: Mapping[tuple[Kernel, str], int],
    index: Mapping[Buffer, int],
    timings: TimingCache | None,
) -> Program:
    instructions: list[Instruction] = []
    for command in program.commands:
        if isinstance(command, Matmul):
            where = (program.device.arch, program.bucket.max_tokens)
            algorithms = () if timings is None else timings.algorithms(Product.of(command), *where)
            instructions.append(_matmul(command, index, algorithms))
            continue
        if isinstance(command, Collective):
            instructions.append(_collective(command, index))
            continue
        # Programmatic dependent launch: each kernel itself waits for the one before it. The first may follow a copy.
        programmatic = bool(instructions)
        x, y, z = (_number(extent) for extent in command.grid)
        arguments = tuple(_argument(argument, index, symbols) for argument in command.arguments)
        number = numbers[command.kernel, program.device.arch]
        instructions.append(LaunchInstruction("launch", number, (x, y, z), arguments, programmatic))
    bucket = program.bucket
    steps = (bucket.decode, bucket.max_tokens, tuple(instructions), bucket.adapters)
    return Program(bucket.name, program.device.arch, *steps)


def _matmul(matmul: Matmul, index: Mapping[Buffer, int], algorithms: tuple[TimedAlgorithm, ...]) -> MatmulInstruction:
    return MatmulInstruction(
        kind="matmul",
        x=_pointer(matmul.x, index),
        weight=_pointer(matmul.weight, index),
        y=_pointer(matmul.y, index),
        residual=None if matmul.residual is None else _pointer(matmul.residual, index),
        bias=None if matmul.bias is None else _pointer(matmul.bias, index),
        rows=_number(matmul.rows),
        out_features=matmul.out_features,
        in_features=matmul.in_features,
        dtype=matmul.weight.dtype,
        out_dtype=matmul.y.dtype,
        algorithms=algorithms,
    )


def _collective(collective: Collective, index: Mapping[Buffer, int]) -> CollectiveInstruction:
    return CollectiveInstruction(
        kind="collective",
        op=collective.op,
        x=_pointer(collective.x, index),
        y=_pointer(collective.y, index),
        rows=_number(collective.rows),
        x_features=features(collective.x),
        y_features=features(collective.x),
        dtype=collective.x.dtype,
    )


def _pointer(operand: Buffer | Slice, index: Mapping[Buffer, int]) -> TensorArgument:
    if isinstance(operand, Slice):
        return TensorArgument(index[operand.buffer], _number(operand.offset))
    return TensorArgument(index[operand], 0)


def _argument(argument: object, index: Mapping[Buffer, int], symbols: dict[str, int]) -> LaunchArgument:
    if argument is None:
        return None
    if isinstance(argument, TensorMap):
        return _tensor_map(argument, index, symbols)
    if isinstance(argument, float):
        return FloatArgument(argument)
    if isinstance(argument, int | Extent):
        return IntArgument(argument if isinstance(argument, int) else _number(argument))
    assert isinstance(argument, Buffer | Slice)
    return _pointer(argument, index)


def _tensor_map(wanted: TensorMap, index: Mapping[Buffer, int], symbols: dict[str, int]) -> TensorMapArgument:
    place = _pointer(wanted.operand, index)
    assert isinstance(place.offset, int)
    rows = wanted.rows if isinstance(wanted.rows, int) else symbols[wanted.rows]
    box = (wanted.box_rows, wanted.box_columns)
    return TensorMapArgument(BoxedTensor(place.tensor, place.offset, rows, wanted.columns, *box))


def _number(extent: Extent) -> Number:
    """Return a constant as a plain integer."""
    return extent if extent.terms else extent.const
