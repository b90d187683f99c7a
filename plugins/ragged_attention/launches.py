"""Launches of bidirectional attention, and of RoPE before it."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import DTYPE_FLAGS, Buffer, Device, Extent, Launch, Slice, kernel, launch, symbol

_ROTATE_THREADS = 128
_LONG = 1024  # from this number of tokens on, most blocks of 128 queries are full
_MAX_DIM_OF_TWO_TILES = 64  # heads with more elements would need too many registers
MAX_DIM = 256


@dataclass(frozen=True)
class Attention:
    """The extents for which the kernels of a layer are specialised."""

    num_heads: int
    head_dim: int
    scale: float
    window: int
    num_distances: int  # columns of the bias; 0: there is none
    half_dim: int  # pairs of a head that RoPE rotates; 0: no RoPE
    dtype: str

    @property
    def features(self) -> int:
        """The number of elements in a row of queries, of keys, or of values."""
        return self.num_heads * self.head_dim

    def problems(self) -> list[str]:
        """A sentence for each property that the kernels do not support."""
        found = []
        if self.head_dim % 16 or self.head_dim > MAX_DIM:
            found.append(f"head_dim is {self.head_dim}, expected a multiple of 16 up to {MAX_DIM}")
        if self.half_dim % 2:
            found.append(f"RoPE rotates {2 * self.half_dim} elements of a head, expected a multiple of 4")
        return found


def rotate(rotated: Buffer, qkv: Buffer, cos: Buffer, sin: Buffer, how: Attention) -> Launch:
    """``rotated`` [tokens, 2 * heads * head_dim]: queries and keys."""
    defines = {"TL_HEADS": how.num_heads, "TL_HEAD_DIM": how.head_dim, "TL_HALF_DIM": how.half_dim}
    defines |= {"TL_THREADS": _ROTATE_THREADS, "TL_FP16": DTYPE_FLAGS[how.dtype]}
    specialised = kernel("ragged_attention/rotate.cuh", "rotate", _ROTATE_THREADS, 0, defines)
    return launch(specialised, (symbol("num_tokens"),), rotated, qkv, cos, sin)


def attend(
    output: Buffer,
    qkv: Buffer,
    rotated: Buffer | None,
    cu_seqlens: Buffer,
    bias: Buffer | None,
    *,
    how: Attention,
    device: Device,
    max_seq_len: int,
) -> Launch | None:
    """Attention of all rows; None if ``device`` has too little shared memory.

    A row's result does not depend on other sequences, bit for bit.
    """
    tiles = 2 if max_seq_len >= _LONG and how.head_dim <= _MAX_DIM_OF_TWO_TILES else 1
    rows, pitch, bias_bytes = 64 * tiles, how.head_dim * 2 + 16, how.num_distances * 4
    shared = {step: (rows + 4 * step) * pitch + bias_bytes for step in (64, 32)}
    step = next((step for step, needed in shared.items() if needed <= device.shared_bytes), None)
    if step is None:
        return None
    first = qkv if rotated is None else rotated
    defines = {
        "TL_HEADS": how.num_heads,
        "TL_HEAD_DIM": how.head_dim,
        "TL_TILES": tiles,
        "TL_STEP": step,
        "TL_QUERY_STRIDE": how.features * (3 if rotated is None else 2),
        "TL_WINDOW": how.window,
        "TL_DISTANCES": how.num_distances,
        "TL_SHARED_BYTES": shared[step],
        "TL_FP16": DTYPE_FLAGS[how.dtype],
    }
    reason = f"blocks of {rows} queries, for texts of up to {max_seq_len} tokens"
    specialised = kernel("ragged_attention/cuda.cuh", "ragged_attention", 128, shared[step], defines, reason)
    keys, values = (Slice(buffer, Extent(parts * how.features * 2)) for buffer, parts in ((first, 1), (qkv, 2)))
    # A bound on the sum over sequences of ceil(tokens / tokens of a block).
    blocks = symbol("num_tokens", 1, rows) + symbol("num_seqs")
    operands = (output, first, keys, values, cu_seqlens, bias, symbol("num_seqs"), how.scale)
    return launch(specialised, (how.num_heads, blocks), *operands)
