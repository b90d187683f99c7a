"""Defines the program of an engine: instructions over tensors at static offsets, for CPUs and for NVIDIA GPUs.

The records below are the schema of the plan: ``records.py`` reads and checks the JSON in Python by them, and
``csrc/generate_records.py`` writes the C++ structs, their reader and its bounds checks from them; so this module
imports only the standard library.

Numbers that depend on a step are :class:`~trtllm_lite.common.extents.Extent`. ``Plan.symbols`` bounds each symbol from
above, and memory is sized by the bounds.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from trtllm_lite.common.extents import Extent
from trtllm_lite.common.vocabulary import (
    DTYPES,
    LAYOUTS,
    MAX_BYTES,
    MAX_EXTENT,
    MAX_NAME_BYTES,
    SYMBOLS,
    TENSOR_KINDS,
    num_bytes,
)
from trtllm_lite.engine.records import Hex, IndexOf, Native, OneOf, Range, Text, from_json, json_text, parse_json
from trtllm_lite.errors import EngineError, shown

Name: TypeAlias = Annotated[str, Text(MAX_NAME_BYTES)]
Count: TypeAlias = Annotated[int, Range(1, MAX_EXTENT - 1)]
Bytes: TypeAlias = Annotated[int, Range(0, MAX_BYTES)]
DTypeName: TypeAlias = Annotated[str, OneOf("DType", tuple(DTYPES))]
LayoutName: TypeAlias = Annotated[str, OneOf("Layout", LAYOUTS)]
KindName: TypeAlias = Annotated[str, OneOf("TensorKind", TENSOR_KINDS)]
SymbolName: TypeAlias = Annotated[str, OneOf("Symbol", tuple(SYMBOLS))]
TensorIndex: TypeAlias = Annotated[int, IndexOf("tensors")]


def dotted(cublaslt_version: int) -> str:
    """How cuBLAS writes its version: 13.1.0 for 130100."""
    return f"{cublaslt_version // 10000}.{cublaslt_version // 100 % 100}.{cublaslt_version % 100}"


Number: TypeAlias = Annotated[int | Extent, Native("ExtentExpr", "read_extent")]


@dataclass(frozen=True)
class PlanTensor:
    """One tensor. ``shape`` is logical, of integers and symbols; ``layout`` is the layout of a weight's bytes.

    ``offset`` is in bytes from the start of the arena or the state, or, for a weight, from the start of the engine's
    data section, where the entry ``weights.<name>`` is. A layer's cache begins ``offset`` bytes from the start of each
    block of its cache group; those of other groups may begin there, too. The executor places inputs and features, whose
    offset is 0.
    """

    name: Name
    dtype: DTypeName
    shape: Annotated[tuple[int | str, ...], Native("std::vector<Dim>", "read_shape")]
    layout: LayoutName
    kind: KindName
    offset: Bytes

    def max_bytes(self, symbols: dict[str, int]) -> int:
        """Bytes in row-major order when every symbol is at its bound."""
        return num_bytes(self.dtype, [symbols[d] if isinstance(d, str) else d for d in self.shape])


@dataclass(frozen=True)
class CallInstruction:
    """``call``: run the native kernel of operator ``op``.

    ``operands`` maps the names of the operator's schema to tensors; an absent optional operand has no entry, and an
    output that aliases an input is not repeated.
    """

    kind: Literal["call"]
    op: Name
    operands: dict[str, TensorIndex]
    attributes: Annotated[dict[str, int | float | str], Native("AttributeMap", "read_attributes")]


@dataclass(frozen=True)
class TensorArgument:
    """A pointer: byte ``offset`` of tensor number ``tensor``."""

    tensor: TensorIndex
    offset: Number


@dataclass(frozen=True)
class IntArgument:
    """An int32."""

    value: Number = field(metadata={"key": "int"})


@dataclass(frozen=True)
class FloatArgument:
    """A float32."""

    value: Annotated[float, Native("float", "read_float32")] = field(metadata={"key": "float"})


@dataclass(frozen=True)
class BoxedTensor:
    """A row-major matrix [rows, columns] of 16-bit elements, from byte ``offset`` of an arena or weight tensor on.

    The Tensor Memory Accelerator (TMA) reads the matrix in boxes of ``box_rows`` x ``box_columns`` elements with the
    128-byte swizzle.
    """

    tensor: TensorIndex
    offset: Bytes
    rows: Count
    columns: Count
    box_rows: Annotated[int, Range(1, 256)]
    box_columns: Annotated[int, Range(1, 128)]


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map: 128 bytes, aligned to 64, that the driver makes from a :class:`BoxedTensor` at load."""

    tensor_map: BoxedTensor


# None stands for a null pointer.
LaunchArgument = TensorArgument | TensorMapArgument | IntArgument | FloatArgument | None


@dataclass(frozen=True)
class LaunchInstruction:
    """``launch``: run compiled kernel number ``kernel``; skipped if an extent of ``grid`` is 0.

    Arguments are packed with natural alignment in the order given. A struct that is passed by value is written as its
    fields in a row; kernels that take tensor maps take no such structs. A ``programmatic`` launch may start before its
    predecessor has finished (the kernel itself waits).
    """

    kind: Literal["launch"]
    kernel: Annotated[int, IndexOf("kernels")]
    grid: tuple[Number, Number, Number]
    args: tuple[LaunchArgument, ...]
    programmatic: bool


@dataclass(frozen=True)
class TimedAlgorithm:
    """The cuBLASLt algorithm, 64 bytes in hexadecimal, that was fastest for products of up to ``max_rows`` rows."""

    max_rows: Count
    algo: Annotated[str, Hex(64)]


@dataclass(frozen=True)
class MatmulInstruction:
    """``matmul``: y[rows, out] = x[rows, in] @ weight[out, in].T [+ bias[out]] [+ residual[rows, out]], row-major.

    x and weight are ``dtype``; bias, residual and y are ``out_dtype``; sums are float32; y may be the residual.
    ``max_rows`` of the algorithms ascend; beyond the last, and without any, the executor asks cuBLASLt's heuristic when
    the engine is loaded.
    """

    kind: Literal["matmul"]
    x: TensorArgument
    weight: TensorArgument
    y: TensorArgument
    residual: TensorArgument | None
    bias: TensorArgument | None
    rows: Number
    out_features: Count
    in_features: Count
    dtype: DTypeName
    out_dtype: DTypeName
    algorithms: tuple[TimedAlgorithm, ...]


@dataclass(frozen=True)
class CollectiveInstruction:
    """``collective``: the ranks together compute y[rows, y_features], on every rank, from their x[rows, x_features].

    ``all_reduce`` sums x of all ranks, on CPUs in the order of ranks. ``all_gather`` (on CPUs) concatenates the
    features of all ranks in order, up to y_features. ``all_gather_rows`` (on GPUs) concatenates the rows of all ranks
    in order.
    """

    kind: Literal["collective"]
    op: Annotated[str, OneOf("CollectiveOp", ("all_reduce", "all_gather", "all_gather_rows"))]
    x: TensorArgument
    y: TensorArgument
    rows: Number
    x_features: Count
    y_features: Count
    dtype: DTypeName


@dataclass(frozen=True)
class NetworkInstruction:
    """``network``: run the entry ``network.<network>``, an engine that ``library`` serialized, with the given profile.

    The entry contains the names of its inputs and outputs: those of a checkpoint's network, and ``logits_indices``.
    """

    kind: Literal["network"]
    library: Annotated[str, OneOf("Library", ("tensorrt_rtx", "tensorrt"))]
    network: Name
    profile: Annotated[int, Range(0, 1)]


Instruction = CallInstruction | LaunchInstruction | MatmulInstruction | CollectiveInstruction | NetworkInstruction


@dataclass(frozen=True)
class CompiledKernel:
    """The function ``name`` of a cubin; ``cubins`` maps an architecture to the key of the entry ``cubin.<key>``."""

    name: Name
    cubins: dict[str, Name]
    threads: Annotated[int, Range(1, 1024)]
    shared_bytes: Annotated[int, Range(0, 1 << 20)]


@dataclass(frozen=True)
class Program:
    """The instructions of a step on devices of architecture ``arch``: ``cpu``, or a GPU's such as ``sm_90a``.

    The architecture of a TensorRT network is ``any``, because the network itself determines it.

    The program fits steps of at most ``max_tokens`` tokens. With ``decode_only`` it fits only steps whose sequences
    each have one new token and one row of logits, in the same order. Steps in which a request has an adapter run
    programs with ``adapters``, other steps programs without.
    """

    name: Name
    arch: Name
    decode_only: bool
    max_tokens: Count
    instructions: tuple[Instruction, ...]
    adapters: bool = False


@dataclass(frozen=True)
class AdaptedProduct:
    """The matrices of adapter slots for one product, whose parts have ``widths`` outputs.

    ``a`` is [num_loras, parts * max_rank, in], ``b`` is [num_loras, outputs of all parts, max_rank]. ``ranks`` is
    [num_loras, parts]: multiples of 8, 0 for a part that an adapter does not change.
    """

    a: TensorIndex
    b: TensorIndex
    ranks: TensorIndex
    widths: tuple[Count, ...]


@dataclass(frozen=True)
class CudaSettings:
    """The settings of GPU engines.

    Decode steps are padded to the next of ``decode_batches`` sequences. ``workspace_bytes`` is the workspace of
    cuBLASLt; ``cublaslt_version`` is the version with which the products' algorithms were measured (0 if none were).
    Adapters may change the parts of the ``adapted`` products, which are numbered in their order. ``collectives`` are
    the names of the collectives that kernels of several ranks compute together; kernels refer to a collective by its
    position. ``slot_numbers`` are the numbers that records of slots begin with (plugins/sample/slot.cuh), which kernels
    were compiled for.
    """

    decode_batches: tuple[Count, ...]
    workspace_bytes: Bytes
    cublaslt_version: Bytes
    adapted: tuple[AdaptedProduct, ...] = ()
    collectives: tuple[Name, ...] = ()
    slot_numbers: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A plan; ``programs`` are in order of preference; the plan of a CPU engine has one.

    ``outputs`` maps the name of a result to its tensor: ``logits``, and on GPUs ``tokens``, ``logprobs``,
    ``sampling_slots`` and ``token_masks``, too. In a program, the first instruction that reads ``token_masks`` and all
    after it sample tokens; earlier instructions make logits. ``symbols`` has the symbols that the plan uses.

    A pipeline stage that is not the last has no ``logits``: its outputs, which have a row for each token, are sent to
    the next stage. There ``inputs`` maps their names to tensors of the arena that are filled before a program runs. The
    manifest's modules tell what flows between engines (:class:`~trtllm_lite.engine.modules.Port`).

    ``tallies`` are the tensors in the state in which routers count their choices, in order of layers
    (plugins/router/tally.cuh); ``shared_experts`` says how many of each router's experts, the last, all rows share.
    """

    symbols: Annotated[dict[str, int], Native("Extents", "read_bounds")]
    arena_bytes: Bytes
    state_bytes: Bytes
    tensors: tuple[PlanTensor, ...]
    outputs: dict[str, TensorIndex]
    kernels: tuple[CompiledKernel, ...]
    programs: tuple[Program, ...]
    cuda: CudaSettings | None
    inputs: dict[str, TensorIndex] = field(default_factory=dict)
    tallies: tuple[TensorIndex, ...] = ()
    shared_experts: tuple[Annotated[int, Range(0, MAX_EXTENT - 1)], ...] = ()

    def name_of(self, instruction: Instruction) -> str:
        """The name of the operator or kernel that is run; ``product`` for cuBLASLt, the library for a network."""
        if isinstance(instruction, LaunchInstruction):
            return self.kernels[instruction.kernel].name
        if isinstance(instruction, NetworkInstruction):
            return instruction.library
        return "product" if isinstance(instruction, MatmulInstruction) else instruction.op

    def max_bytes(self, tensor: PlanTensor) -> int:
        """The bytes of ``tensor`` when every symbol is at its bound. Raises EngineError for a number out of range."""
        name = shown(tensor.name)
        try:
            size = tensor.max_bytes(self.symbols)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{name} has an impossible shape ({shown(error)}): the file is damaged") from error
        if not 0 <= size <= MAX_BYTES:
            raise EngineError(f"{name} has {shown(size)} bytes, expected 0 to 2^50: the file is damaged")
        return size

    def to_json(self) -> str:
        """Compact JSON, identical for equal plans."""
        return json_text(self)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Parse; a missing or unknown key, a wrong type or a number out of range is an EngineError."""
        plan: Plan = from_json(cls, parse_json(text, "plan"), "plan")
        return plan
