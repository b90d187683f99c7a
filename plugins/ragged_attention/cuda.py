"""RaggedAttention on a GPU: RoPE of queries and keys if there is any, then attention."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Buffer, Command
from .launches import Attention, attend, rotate


def lower(op: Lowering) -> list[Command]:
    """Launch attention, after RoPE if there is any."""
    how = Attention(
        num_heads=op.attribute("num_heads"),
        head_dim=op.attribute("head_dim"),
        scale=op.attribute("scale"),
        window=op.attribute("window"),
        num_distances=_columns(op, "distance_bias"),
        half_dim=_columns(op, "cos"),
        dtype=op.dtype,
    )
    problems = how.problems()
    if problems:
        op.refuse(f"the GPU kernels do not support this attention: {'; '.join(problems)}")
    qkv, output, rotated = op.rows("qkv"), op.new("y"), None
    first: list[Command] = []
    if op.has("cos"):
        rotated = Buffer(f"{op.name}.rotated", op.dtype, (qkv.shape[0], 2 * how.features))
        first = [rotate(rotated, qkv, op.rows("cos"), op.rows("sin"), how)]
    operands = (output, qkv, rotated, op.step_input("cu_seqlens"), op.optional_vector("distance_bias"))
    attention = attend(*operands, how=how, device=op.device, max_seq_len=op.max_seq_len)
    if attention is None:
        op.refuse(
            f"attention with a head_dim of {how.head_dim} needs more shared memory than {op.device.arch} has "
            f"({op.device.shared_bytes:,} bytes a block): build for another target"
        )
    return [*first, attention]


def _columns(op: Lowering, operand: str) -> int:
    """The columns of an operand; 0 if it is absent."""
    columns = op.extents(operand)[-1] if op.has(operand) else 0
    assert isinstance(columns, int)
    return columns
