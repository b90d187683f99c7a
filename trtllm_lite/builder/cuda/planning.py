"""The plan of a GPU engine: each program lowered, laid out, and written as instructions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.cuda.layout import Layout, Step, lay_out
from trtllm_lite.builder.cuda.limits import decode_buckets
from trtllm_lite.builder.cuda.lowering import lower
from trtllm_lite.builder.cuda.operands import Operands
from trtllm_lite.builder.cuda.timing_cache import Product, TimingCache
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.engine.cuda_plan import (
    Argument,
    CudaKernel,
    CudaPlan,
    CudaProgram,
    FloatArgument,
    Instruction,
    IntArgument,
    LaunchInstruction,
    MatmulAlgorithm,
    MatmulInstruction,
    Number,
    TensorArgument,
)
from trtllm_lite.plugins.launch import Buffer, Device, Extent, Kernel, Launch, Matmul, Slice

WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for cuBLASLt on Hopper


@dataclass(frozen=True)
class LoweredProgram:
    """The steps of one program for one device; ``bucket`` is the most rows of a decode program."""

    device: Device
    bucket: int | None
    steps: list[Step]

    @property
    def name(self) -> str:
        """``decode_8``, or ``mixed`` for the program that fits any step."""
        return "mixed" if self.bucket is None else f"decode_{self.bucket}"


@dataclass(frozen=True)
class Lowered:
    """A network as programs over laid-out memory; nothing is compiled yet."""

    operands: Operands
    programs: tuple[LoweredProgram, ...]
    layout: Layout

    def kernels(self) -> dict[tuple[Kernel, str], int]:
        """Number of each kernel and architecture, in order of first launch."""
        found: dict[tuple[Kernel, str], int] = {}
        for program in self.programs:
            for step in program.steps:
                if isinstance(step, Launch):
                    found.setdefault((step.kernel, program.device.arch), len(found))
        return found


def lower_network(graph: ir.Graph, dtype: str, limits: BuildLimits, devices: Sequence[Device]) -> Lowered:
    """Lower ``graph``, which holds fused operators only, for each device. Raises BuildError for what is unsupported."""
    operands = Operands(graph, dtype, limits)
    programs = tuple(
        LoweredProgram(device, bucket, lower(graph, operands, device, bucket))
        for device in devices
        for bucket in (*decode_buckets(limits), None)
    )
    return Lowered(operands, programs, lay_out(operands, [program.steps for program in programs]))


def make_plan(lowered: Lowered, keys: Mapping[tuple[Kernel, str], str], timings: TimingCache | None = None) -> CudaPlan:
    """The plan of ``lowered``, whose kernels have the cubins ``keys``; ``timings`` choose algorithms of products."""
    numbers, index = lowered.kernels(), lowered.layout.index
    operands = lowered.operands
    programs = tuple(_program(program, operands.symbols, numbers, index, timings) for program in lowered.programs)
    measured = any(
        instruction.algorithms
        for program in programs
        for instruction in program.instructions
        if isinstance(instruction, MatmulInstruction)
    )
    return CudaPlan(
        symbols=operands.symbols,
        arena_bytes=lowered.layout.arena_bytes,
        state_bytes=lowered.layout.state_bytes,
        workspace_bytes=WORKSPACE_BYTES,
        cublaslt_version=timings.cublaslt_version if timings is not None and measured else 0,
        tensors=lowered.layout.tensors,
        outputs={buffer.name: index[buffer] for buffer in (operands.logits, operands.tokens)},
        kernels=tuple(
            CudaKernel(kernel.name, {arch: keys[kernel, arch]}, kernel.threads, kernel.shared_bytes)
            for kernel, arch in numbers
        ),
        programs=programs,
    )


def _program(
    program: LoweredProgram,
    symbols: dict[str, int],
    numbers: Mapping[tuple[Kernel, str], int],
    index: Mapping[Buffer, int],
    timings: TimingCache | None,
) -> CudaProgram:
    instructions: list[Instruction] = []
    for step in program.steps:
        if isinstance(step, Matmul):
            algorithms = () if timings is None else timings.algorithms(Product.of(step), program.device.arch)
            instructions.append(_matmul(step, index, algorithms))
            continue
        # Every kernel waits for its predecessor by itself, but the first may follow a copy instead of a kernel.
        programmatic = bool(instructions)
        x, y, z = (_number(extent) for extent in step.grid)
        arguments = tuple(_argument(argument, index) for argument in step.arguments)
        number = numbers[step.kernel, program.device.arch]
        instructions.append(LaunchInstruction("launch", number, (x, y, z), arguments, programmatic))
    max_tokens = program.bucket or symbols["num_tokens"]
    decode_only = program.bucket is not None
    return CudaProgram(program.name, program.device.arch, decode_only, max_tokens, tuple(instructions))


def _matmul(step: Matmul, index: Mapping[Buffer, int], algorithms: tuple[MatmulAlgorithm, ...]) -> MatmulInstruction:
    return MatmulInstruction(
        kind="matmul",
        x=_pointer(step.x, index),
        weight=_pointer(step.weight, index),
        y=_pointer(step.y, index),
        residual=None if step.residual is None else _pointer(step.residual, index),
        bias=None if step.bias is None else _pointer(step.bias, index),
        rows=_number(step.rows),
        out_features=step.out_features,
        in_features=step.in_features,
        dtype=step.weight.dtype,
        out_dtype=step.y.dtype,
        algorithms=algorithms,
    )


def _pointer(operand: Buffer | Slice, index: Mapping[Buffer, int]) -> TensorArgument:
    if isinstance(operand, Slice):
        return TensorArgument(index[operand.buffer], _number(operand.offset))
    return TensorArgument(index[operand], 0)


def _argument(argument: object, index: Mapping[Buffer, int]) -> Argument:
    if argument is None:
        return None
    if isinstance(argument, float):
        return FloatArgument(argument)
    if isinstance(argument, int | Extent):
        return IntArgument(argument if isinstance(argument, int) else _number(argument))
    assert isinstance(argument, Buffer | Slice)
    return _pointer(argument, index)


def _number(extent: Extent) -> Number:
    """A constant as a plain integer."""
    return extent if extent.terms else extent.const
