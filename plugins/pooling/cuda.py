"""Pooling on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Buffer, Command, Launch, features, kernel, launch, symbol

_THREADS, _MAX_THREADS = 256, 1024
MAX_FEATURES = 8 * _MAX_THREADS


def pool(y: Buffer, x: Buffer, cu_seqlens: Buffer, *, takes_mean: bool, divides_by_norm: bool) -> Launch:
    """A row for each of num_seqs sequences, float32 or of the type of x."""
    vectors = features(x) // 8
    threads = max(_THREADS, -(-vectors // 32) * 32)
    defines = {"TL_HIDDEN": features(x), "TL_THREADS": threads, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    defines |= {"TL_MEAN": int(takes_mean), "TL_L2": int(divides_by_norm)}
    defines |= {"TL_FLOAT_OUT": int(y.dtype == "float32")}
    specialised = kernel("pooling/cuda.cuh", "pooling", threads, 0, defines)
    return launch(specialised, (symbol("num_seqs"),), y, x, cu_seqlens)


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel."""
    x, y = op.rows("x"), op.result("y")
    if features(x) > MAX_FEATURES:
        op.refuse(
            f"rows have {features(x)} elements, and the GPU kernel takes up to {MAX_FEATURES}: build for --target cpu"
        )
    takes_mean, divides = op.attribute("mode") == "mean", op.attribute("normalization") == "l2"
    return [pool(y, x, op.step_input("cu_seqlens"), takes_mean=takes_mean, divides_by_norm=divides)]
