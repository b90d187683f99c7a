"""The program of a GPU engine: kernel launches and matrix products over tensors with static offsets.

Numbers that depend on a step (grids, row counts, offsets) are :class:`Extent`: expressions of symbols that the executor
sets for each step. ``CudaPlan.symbols`` bounds each symbol from above, and memory is sized by the bounds.
"""

import json
from dataclasses import dataclass, field
from typing import TypeAlias

from trtllm_lite.engine.plan import PlanTensor
from trtllm_lite.engine.records import from_json, parse_json, to_json
from trtllm_lite.plugins.launch import Extent

Number: TypeAlias = int | Extent


def dotted(cublaslt_version: int) -> str:
    """How cuBLAS writes its version: 13.1.0 for 130100."""
    return f"{cublaslt_version // 10000}.{cublaslt_version // 100 % 100}.{cublaslt_version % 100}"


@dataclass(frozen=True)
class TensorArgument:
    """A pointer: byte ``offset`` of tensor number ``tensor``."""

    tensor: int
    offset: Number


@dataclass(frozen=True)
class IntArgument:
    """An int32."""

    value: Number = field(metadata={"key": "int"})


@dataclass(frozen=True)
class FloatArgument:
    """A float32."""

    value: float = field(metadata={"key": "float"})


@dataclass(frozen=True)
class BoxedTensor:
    """Byte ``offset`` of an arena or weight tensor on as a row-major matrix [rows, columns] of its 16-bit elements.

    The copy engine reads it in boxes of ``box_rows`` x ``box_columns`` (at most 256 x 64), swizzled by 128 bytes.
    """

    tensor: int
    offset: int
    rows: int
    columns: int
    box_rows: int
    box_columns: int


@dataclass(frozen=True)
class TensorMapArgument:
    """The 128 bytes that the driver makes of a tensor map when the engine is loaded, aligned to 64."""

    tensor_map: BoxedTensor


# None: a null pointer.
Argument = TensorArgument | TensorMapArgument | IntArgument | FloatArgument | None


@dataclass(frozen=True)
class LaunchInstruction:
    """``launch``: run kernel number ``kernel``; skipped if an extent of ``grid`` is 0.

    Arguments are packed with natural alignment in the order given; a struct passed by value is its fields in a row, but
    not in a kernel that takes tensor maps.
    ``programmatic``: it may start before its predecessor has finished (the kernel itself waits).
    """

    kind: str
    kernel: int
    grid: tuple[Number, Number, Number]
    args: tuple[Argument, ...]
    programmatic: bool


@dataclass(frozen=True)
class MatmulAlgorithm:
    """A cuBLASLt algorithm (64 bytes in hexadecimal) for products of at most ``max_rows`` rows."""

    max_rows: int
    algo: str


@dataclass(frozen=True)
class MatmulInstruction:
    """``matmul``: y[rows, out] = x[rows, in] @ weight[out, in].T [+ bias[out]] [+ residual[rows, out]], row-major.

    Operands are ``dtype``, y is ``out_dtype``, sums are float32; y may be the residual. Without ``algorithms`` the
    executor asks cuBLASLt's heuristic when the engine is loaded.
    """

    kind: str
    x: TensorArgument
    weight: TensorArgument
    y: TensorArgument
    residual: TensorArgument | None
    bias: TensorArgument | None
    rows: Number
    out_features: int
    in_features: int
    dtype: str
    out_dtype: str
    algorithms: tuple[MatmulAlgorithm, ...]


Instruction = LaunchInstruction | MatmulInstruction


@dataclass(frozen=True)
class CudaKernel:
    """Function ``name`` of the entry ``cubin.<key>``, where ``cubins`` maps an architecture to the key."""

    name: str
    cubins: dict[str, str]
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class CudaProgram:
    """The instructions of a step on cards of architecture ``arch``.

    It fits steps of at most ``max_tokens`` tokens and, with ``decode_only``, of rows that each have one new token and
    one row of logits, in the same order.
    """

    name: str
    arch: str
    decode_only: bool
    max_tokens: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class CudaPlan:
    """``outputs`` maps ``logits``, ``tokens``, ``logprobs`` and ``sampling_slots`` to tensor numbers.

    ``programs`` are in order of preference. Offsets of tensors count from the start of the arena, of the state (zero at
    load, kept between steps) or, for weights, of the engine's data section. The executor places caches and step inputs;
    their offset is 0. Decode steps are padded to the next of ``decode_batches``. ``workspace_bytes`` is what cuBLASLt
    may use, ``cublaslt_version`` that with which the products' algorithms were measured (0 if there are none).
    """

    symbols: dict[str, int]
    arena_bytes: int
    state_bytes: int
    decode_batches: tuple[int, ...]
    workspace_bytes: int
    cublaslt_version: int
    tensors: tuple[PlanTensor, ...]
    outputs: dict[str, int]
    kernels: tuple[CudaKernel, ...]
    programs: tuple[CudaProgram, ...]

    def to_json(self) -> str:
        """Compact JSON, identical for equal plans."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "CudaPlan":
        """Parse; a missing or unknown key or a wrong type is an EngineError."""
        return from_json(cls, parse_json(text, "plan"), "plan")
