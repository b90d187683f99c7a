"""The records in which ``plugins/<op>/cuda.py`` describes kernel launches: macros, memory, grid, arguments.

This module needs the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from trtllm_lite.common.extents import Extent, symbol

__all__ = ["Extent", "symbol"]

DTYPE_FLAGS = {"bfloat16": 0, "float16": 1}  # TL_FP16


@dataclass(frozen=True)
class Device:
    """A compilation target. ``shared_bytes`` is the most dynamic shared memory of a block."""

    arch: str
    shared_bytes: int

    @property
    def compute_capability(self) -> int:
        """The compute capability times 10, such as 90 for sm_90a."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory on the device, row-major except for weights of another ``layout``. A buffer equals only itself.

    ``shape`` holds integers and symbols. ``kind``: ``arena`` (lives from its first to its last use in a program),
    ``weight``, ``cache``, ``input`` (set by each step) or ``state`` (zero at load, kept between steps).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    kind: str = "arena"
    layout: str = "row_major"


@dataclass(frozen=True)
class Slice:
    """A part of ``buffer`` that begins at byte ``offset``."""

    buffer: Buffer
    offset: Extent


Operand = Buffer | Slice


@dataclass(frozen=True)
class TensorMap:
    """``operand`` as a row-major matrix [rows, columns] for the copy engine (TMA, sm_90 and later).

    Elements are those of the operand, or the bytes that hold its elements of 4 bits. The copy engine copies boxes of
    ``box_rows`` x ``box_columns`` elements to shared memory. A row of a box has 128 bytes, and the copy has TMA's
    128-byte swizzle; elements beyond the matrix are copied as zeros. ``rows`` is a number, or a symbol, which means its
    bound; an operand's offset is constant. A kernel takes a tensor map as a ``const __grid_constant__`` parameter of
    128 bytes, aligned to 64.
    """

    operand: Operand
    rows: int | str
    columns: int
    box_rows: int
    box_columns: int


Argument = Operand | TensorMap | Extent | int | float | None


@dataclass(frozen=True)
class Kernel:
    """The function ``name`` of ``plugins/<source>``, specialised by the macros ``defines``.

    ``shared_bytes`` is dynamic shared memory of a block of ``threads`` threads. ``reason`` says why these macros were
    chosen where there was a choice.
    """

    source: str
    name: str
    threads: int
    shared_bytes: int
    defines: tuple[tuple[str, int | str], ...]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel. Arguments come in the order of the function's parameters; a struct counts as its fields.

    A function that takes tensor maps takes no struct.
    """

    kernel: Kernel
    grid: tuple[Extent, Extent, Extent]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class WeightBuffers:
    """A weight matrix [..., out, in]: 16-bit ``values``, bytes with a float32 ``scale`` for each row, or blocks.

    Blocks of 8- or 4-bit elements have scales, and maybe offsets: [..., out, blocks] in the layout rows8. Values lie in
    the layout of their form (``cuda/weight_form.py``); bytes to be multiplied by rows of bytes have the type ``rows``.
    """

    values: Buffer
    scale: Buffer | None = None
    offset: Buffer | None = None
    rows: str | None = None

    @property
    def numbers(self) -> tuple[Buffer | None, Buffer | None]:
        """The arguments that follow ``values`` in every kernel that reads a weight."""
        return self.scale, self.offset


@dataclass(frozen=True)
class Matmul:
    """y[rows, out] = x[rows, in] @ weight[out, in].T [+ bias] [+ residual]; what is added has the type of y.

    ``reason`` says why a library computes it where there was a choice.
    """

    x: Operand
    weight: Buffer
    y: Buffer
    rows: Extent
    residual: Operand | None = None
    bias: Buffer | None = None
    reason: str = field(default="", compare=False)

    @property
    def out_features(self) -> int:
        """Columns of y."""
        return features(self.y)

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        extent = self.weight.shape[-1]
        assert isinstance(extent, int)
        return extent


@dataclass(frozen=True)
class Collective:
    """A collective of all ranks by a library, over ``rows`` rows; ``op`` is one of CollectiveInstruction's."""

    op: str
    x: Buffer
    y: Buffer
    rows: Extent


Command: TypeAlias = Launch | Matmul | Collective  # an element of a program


def features(buffer: Buffer) -> int:
    """Elements of a row: the product of all extents but the first. These are static."""
    return prod(extent for extent in buffer.shape[1:] if isinstance(extent, int))


def launch(kernel: Kernel, grid: tuple[Extent | int, ...], *arguments: Argument) -> Launch:
    """Make a launch; missing grid extents become 1."""
    extents = [Extent(extent) if isinstance(extent, int) else extent for extent in (*grid, 1, 1)[:3]]
    return Launch(kernel, (extents[0], extents[1], extents[2]), arguments)


def kernel(
    source: str, name: str, threads: int, shared_bytes: int, defines: Mapping[str, int | str], reason: str = ""
) -> Kernel:
    """Make a kernel with sorted macros, so that equal kernels compare equal."""
    return Kernel(source, name, threads, shared_bytes, tuple(sorted(defines.items())), reason)
