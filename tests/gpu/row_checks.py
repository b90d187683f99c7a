"""Checks of the kernels that touch each row once, on a GPU or emulated."""

import torch

from plugins.cuda.activation import ACTIVATION_FLAGS
from plugins.rowwise.cuda import expression
from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from tests.gpu.kernels import dtype_flag

_EPSILON = 1e-5
_THREADS = 256  # of gate_mul
_ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def check_layer_norm(
    rows: int, hidden: int, threads: int, dtype: torch.dtype, *, residual: bool, bias: bool, machine: Machine
) -> None:
    """One launch over random rows that are far from centred."""
    device = machine.device
    x, other = ((mean + torch.randn(rows, hidden, device=device)).to(dtype) for mean in (1, 0))
    weight, offset = torch.randn(2, hidden, device=device)
    y, total = (torch.full((rows, hidden), POISON, device=device, dtype=dtype) for _ in range(2))
    defines: dict[str, int | str] = {"TL_HIDDEN": hidden, "TL_THREADS": threads, "TL_FP16": dtype_flag(dtype)}
    defines |= {"TL_RESIDUAL": int(residual), "TL_BIAS": int(bias)}
    kernel = machine.kernel("layer_norm/cuda.cuh", "layer_norm", threads, 0, defines)
    kernel(y, total, x, weight.contiguous(), other, offset.contiguous(), _EPSILON, grid=rows)
    wide = x.double()
    if residual:
        assert torch.equal(total, x + other)
        wide = total.double()
    expected = torch.nn.functional.layer_norm(wide, (hidden,), weight.double(), None, _EPSILON)
    assert_close(y, expected + offset.double() if bias else expected)


def check_position_embedding(rows: int, hidden: int, dtype: torch.dtype, machine: Machine) -> None:
    """Random positions of a table of 50."""
    device = machine.device
    table, x = (torch.randn(n, hidden, device=device).to(dtype) for n in (50, rows))
    positions = torch.randint(50, (rows,), device=device, dtype=torch.int32)
    y = torch.full((rows, hidden), POISON, device=device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_HIDDEN": hidden, "TL_FP16": dtype_flag(dtype)}
    kernel = machine.kernel("position_embedding/cuda.cuh", "position_embedding", 128, 0, defines)
    kernel(y, x, positions, table, grid=rows)
    assert torch.equal(y, x + table[positions.long()])


def check_rowwise(
    program: str, expected: torch.Tensor, operands: list[torch.Tensor | None], dtype: torch.dtype, machine: Machine
) -> None:
    """``operands`` as the kernel takes them: four rows, four vectors, constants; ``expected`` is float64."""
    rows, features = expected.shape
    y = torch.full((rows, features), POISON, device=machine.device, dtype=dtype)
    is_float = [x is not None and x.dtype == torch.float32 for x in operands[:4]]
    defines: dict[str, int | str] = {
        "TL_EXPRESSION": expression(program),
        "TL_FEATURES": features,
        "TL_THREADS": 64,
        "TL_FLOAT_ROWS": sum(1 << i for i, found in enumerate(is_float) if found),
        "TL_FLOAT_OUT": int(dtype == torch.float32),
        "TL_FP16": int(dtype == torch.float16),
    }
    kernel = machine.kernel("rowwise/cuda.cuh", "rowwise", 64, 0, defines)
    kernel(y, *operands, grid=(rows, -(-features // 256), 1))
    assert_close(y, expected)


def check_gate_mul(rows: int, out: int, activation: str, dtype: torch.dtype, machine: Machine) -> None:
    """Gates of both signs, large and tiny ones among them."""
    x = (torch.randn(rows, 2 * out, device=machine.device) * 4).to(dtype)
    x[0, :8] = torch.tensor([0.0, -0.0, 100, -100, 1e3, -1e3, 1e-4, -1e-4]).to(dtype)
    y = torch.full((rows, out), POISON, device=machine.device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_OUT": out, "TL_THREADS": _THREADS, "TL_FP16": dtype_flag(dtype)}
    defines["TL_ACTIVATION"] = ACTIVATION_FLAGS[activation]
    kernel = machine.kernel("gated_linear/gate_mul.cuh", "gate_mul", _THREADS, 0, defines)
    kernel(y, x, grid=(rows, -(-out // (16 * _THREADS)), 1))
    gate, up = x.double().chunk(2, dim=1)
    assert_close(y, _ACTIVATIONS[activation](gate) * up)
