"""Rowwise on a GPU: the kernel is compiled with the program as a C++ expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtllm_lite.common.vocabulary import UINT8

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, Operand, Slice, features, kernel, launch
from .expression import MAX_ROWS, MAX_VECTORS, evaluate

_THREADS, _ELEMENTS_PER_THREAD = 256, 8
_Term = Callable[..., str]
_FUNCTIONS: dict[str, _Term] = {
    "add": "({}+{})".format,
    "sub": "({}-{})".format,
    "mul": "({}*{})".format,
    "div": "({}/{})".format,
    "neg": "(-{})".format,
    "tanh": "tanhf({})".format,
    "gelu": "gelu({})".format,
    "gelu_tanh": "gelu_tanh({})".format,
    "silu": "silu({})".format,
    "sigmoid": "sigmoid({})".format,
    "relu": "fmaxf({},0.0f)".format,
    "exp": "expf({})".format,
    "sqrt": "sqrtf({})".format,
    "reciprocal": "(1.0f/{})".format,
}


def expression(program: str) -> str:
    """``program`` as a C++ expression with the macros of ``cuda.cuh``: ``"x0 c0 mul"`` is ``"(TL_X(0)*TL_C(0))"``."""
    return evaluate(program, lambda word: f"TL_{word[0].upper()}({word[1:]})", _FUNCTIONS)


def elements_at_once(*extents: int) -> int:
    """How many elements of rows a load moves, if rows have so many, or begin at such places."""
    return 1 if any(extent % _ELEMENTS_PER_THREAD for extent in extents) else _ELEMENTS_PER_THREAD


def rowwise(
    y: Buffer,
    program: str,
    rows: Extent,
    operands: Sequence[Buffer],
    vectors: Sequence[Buffer] = (),
    constants: Buffer | None = None,
    x1_first: int = 0,
) -> Launch:
    """y = program(operands, vectors, constants) for ``rows`` rows; operands and y are 16-bit or float32.

    Operands may also be bytes.

    Of the second operand columns from ``x1_first`` on are read.
    """
    width = features(y)
    pitch = features(operands[1]) if len(operands) > 1 else width
    half = next((buffer.dtype for buffer in (y, *operands) if buffer.dtype in DTYPE_FLAGS), "bfloat16")
    defines: dict[str, int | str] = {
        "TL_EXPRESSION": expression(program),
        "TL_FEATURES": width,
        "TL_AT_ONCE": elements_at_once(width, pitch, x1_first),
        "TL_X1_PITCH": pitch,
        "TL_THREADS": _THREADS,
        "TL_ROWS": len(operands),
        "TL_VECTORS": len(vectors),
        "TL_FLOAT_ROWS": sum(1 << i for i, buffer in enumerate(operands) if buffer.dtype == "float32"),
        "TL_BYTE_ROWS": sum(1 << i for i, buffer in enumerate(operands) if buffer.dtype == UINT8),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_FP16": DTYPE_FLAGS[half],
    }
    specialised = kernel("rowwise/cuda.cuh", "rowwise", _THREADS, 0, defines)
    places: list[Operand] = [*operands]
    if x1_first:
        places[1] = Slice(operands[1], Extent((4 if operands[1].dtype == "float32" else 2) * x1_first))
    pointers = [*places, *[None] * (MAX_ROWS - len(operands)), *vectors, *[None] * (MAX_VECTORS - len(vectors))]
    return launch(specialised, (rows, -(-width // (_THREADS * _ELEMENTS_PER_THREAD))), y, *pointers, constants)


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel."""
    rows = [op.rows(name) for name in _names("x", MAX_ROWS) if op.has(name)]
    vectors = [op.vector(name) for name in _names("v", MAX_VECTORS) if op.has(name)]
    constants = op.optional_vector("constants")
    first = op.attribute("x1_first") if op.has("x1") else 0
    return [rowwise(op.result("y"), op.attribute("program"), op.num_rows("y"), rows, vectors, constants, first)]


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]
