"""Streaming products and the dequantization of int8 weights against float64, on a GPU or emulated."""

import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import GPU, Machine
from tests.gpu.int8_weights import random_int8
from tests.gpu.kernels import GatedLinear, Linear, StreamConfig

EPSILON = 1e-5
DEQUANTIZE_THREADS = 256


def check_linear(
    out: int,
    in_features: int,
    tokens: int,
    rows: int,
    dtype: torch.dtype,
    *,
    bias: bool = False,
    residual: bool = False,
    config: StreamConfig | None = None,
    machine: Machine = GPU,
) -> None:
    """y = x @ weight.T * scale [+ bias] [+ residual]."""
    device, weight = machine.device, random_int8(out, in_features, device=machine.device)
    x = torch.randn(rows, in_features, device=device).to(dtype)
    offset = torch.randn(out, device=device) if bias else None
    stream = torch.randn(rows, out, device=device).to(dtype) if residual else None
    y = torch.full((rows, out), POISON, device=device, dtype=dtype)
    how = {"bias": bias, "residual": residual, "int8": True, "config": config, "machine": machine}
    linear = Linear(out, in_features, tokens, dtype, **how)
    linear(y, x, weight.stored, weight_scale=weight.scale, bias=offset, residual=stream)
    expected = x.double() @ weight.meant.T
    expected += 0 if offset is None else offset.double()
    expected += 0 if stream is None else stream.double()
    assert_close(y, expected)


def check_gated_linear(
    out: int, in_features: int, tokens: int, rows: int, dtype: torch.dtype, *, machine: Machine = GPU
) -> None:
    """y = silu(x @ weight[0].T * scale[0]) * (x @ weight[1].T * scale[1]), x normalised first."""
    device, weight = machine.device, random_int8(2, out, in_features, device=machine.device)
    x, norm = torch.randn(rows, in_features, device=device).to(dtype), 1 + torch.rand(in_features, device=device)
    y = torch.full((rows, out), POISON, device=device, dtype=dtype)
    gated = GatedLinear(out, in_features, tokens, dtype, norm=True, int8=True, machine=machine)
    gated(y, x, weight.stored, weight_scale=weight.scale, norm_weight=norm, epsilon=EPSILON)
    wide = x.double()
    seen = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * norm.double()
    seen = seen.to(dtype).double()  # the kernel, too, rounds what it feeds to the tensor cores
    gate, up = seen @ weight.meant[0].T, seen @ weight.meant[1].T
    assert_close(y, torch.nn.functional.silu(gate) * up)


def check_dequantize(rows: int, in_features: int, dtype: torch.dtype, machine: Machine = GPU) -> None:
    """Every element is what is meant, rounded once."""
    weight = random_int8(rows, in_features, device=machine.device)
    to = torch.full((rows, in_features), POISON, device=machine.device, dtype=dtype)
    defines = {
        "TL_IN": in_features,
        "TL_THREADS": DEQUANTIZE_THREADS,
        "TL_FP16": {torch.bfloat16: 0, torch.float16: 1}[dtype],
    }
    kernel = machine.kernel("linear/dequantize.cuh", "dequantize", DEQUANTIZE_THREADS, 0, defines)
    kernel(to, weight.stored, weight.scale, rows, grid=-(-rows * in_features // (16 * DEQUANTIZE_THREADS)))
    assert_close(to, weight.meant)
