"""Compares products of 16-bit rows and 8-bit or 4-bit weights with float64, on a GPU or emulated."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import GPU, Machine
from tests.gpu.launches import H200
from tests.gpu.memory import NAMES, Memory
from tests.gpu.weights import Form, random_weight
from trtllm_lite.plugins.cuda.few_rows import FewRows, GemvConfig, few_rows_config
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.cuda.weight_form import BLOCK_FORMS, form_of
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import Buffer, Device, Extent, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.packing import pack

EPSILON = 1e-5


def check_few_rows(
    form: Form,
    out: int,
    in_features: int,
    tokens: int,
    rows: int,
    dtype: torch.dtype,
    *,
    gated: bool = False,
    norm: bool = False,
    bias: bool = False,
    residual: bool = False,
    config: GemvConfig | SplitKConfig | None = None,
    blocks: int | None = None,
    device: Device = H200,
    machine: Machine = GPU,
) -> None:
    """Check a GEMV kernel on ``blocks`` blocks: y = [rms_norm](x) @ weight.T [+ bias] [+ residual] or silu(gate) * up.

    In a gated product ``residual`` is the sum that adapters add to gate and up.
    """
    at = machine.device
    weight = random_weight(form, *((2,) if gated else ()), out, in_features, device=at)
    memory, x = Memory(weight.tensors), torch.randn(rows, in_features, device=at).to(dtype)
    norm_weight = 1 + torch.rand(in_features, device=at) if norm else None
    vector = torch.randn(out, device=at) if bias else None
    stream = torch.randn(rows, (1 + gated) * out, device=at).to(dtype) if residual else None
    y = torch.full((rows, out), POISON, device=at, dtype=dtype)
    config = config or few_rows_config(weight.meant.shape, form_of(weight.buffers), tokens, device)
    assert config is not None
    how = FewRows(tokens, NAMES[dtype], device, config)
    operands = (memory("y", y), memory("x", x), weight.buffers, symbol("rows"), how)
    normed = (memory("norm", norm_weight), EPSILON) if norm_weight is not None else None
    if gated:
        added = memory.optional("added", stream)
        launch = gated_linear.stream(*operands, activation="silu", norm=normed, added=added)
    else:
        more = {"bias": memory.optional("bias", vector), "residual": memory.optional("residual", stream)}
        launch = linear.stream(*operands, norm=normed, **more)
    memory.run(launch if blocks is None else replace(launch, grid=(Extent(blocks), *launch.grid[1:])), rows, machine)
    seen = x.double()
    if norm_weight is not None:
        seen = seen * torch.rsqrt(seen.square().mean(-1, keepdim=True) + EPSILON) * norm_weight.double()
        seen = seen.to(dtype).double()  # the kernel also rounds the operands of the tensor cores
    assert_close(y, _product(seen, weight.meant, vector, stream))


def check_tiled(
    form: Form,
    config: TileConfig,
    out: int,
    in_features: int,
    rows: int,
    capacity: int,
    dtype: torch.dtype,
    *,
    gated: bool = False,
    residual: bool = False,
    machine: Machine = GPU,
) -> None:
    """Check a tiled kernel like :func:`check_few_rows`, without norm and bias, on ``rows`` of ``capacity`` rows."""
    weight = random_weight(form, *((2,) if gated else ()), out, in_features, device=machine.device)
    memory, x = Memory(weight.tensors), torch.randn(capacity, in_features, device=machine.device).to(dtype)
    stream = torch.randn(capacity, (1 + gated) * out, device=machine.device).to(dtype) if residual else None
    y = torch.full((capacity, out), POISON, device=machine.device, dtype=dtype)
    how = Tiling(NAMES[dtype], H200, config, capacity)
    operands = (memory("y", y), memory("x", x), weight.buffers, symbol("rows"), how)
    if gated:
        launch = gated_linear.tiled(*operands, activation="silu", added=memory.optional("added", stream))
    else:
        launch = linear.tiled(*operands, residual=memory.optional("residual", stream))
    memory.run(launch, rows, machine)
    assert torch.isnan(y[rows:]).all(), "rows past the last one were written"
    shown = None if stream is None else stream[:rows]
    rounded = torch.uint8 if dtype == torch.bfloat16 else dtype
    assert_close(y[:rows], _product(x[:rows].double(), weight.meant, None, shown), rounded)


def check_dequantize(form: Form, rows: int, in_features: int, dtype: torch.dtype, machine: Machine = GPU) -> None:
    """Check that every element is the exact value, rounded once."""
    weight = random_weight(form, rows, in_features, device=machine.device)
    memory, to = Memory(weight.tensors), torch.full((rows, in_features), POISON, device=machine.device, dtype=dtype)
    memory.run(linear.dequantize(memory("to", to), weight.buffers), rows, machine)
    assert_close(to, weight.meant)


def check_codes(name: str, dtype: torch.dtype, machine: Machine = GPU) -> None:
    """Check that kernels decode every code of a floating-point type, in every position of a word, like ml_dtypes."""
    kind, form = np.dtype(getattr(ml_dtypes, name)), BLOCK_FORMS[name]
    codes = np.arange(1 << form.weight_bits, dtype=np.uint8).view(kind)
    values = np.where(np.isnan(codes.astype(np.float32)), 0, codes.astype(np.float32)).astype(kind)
    matrix = np.stack([np.roll(np.resize(values, 512), by) for by in range(8)])
    weight, scale = Buffer("weight", name, matrix.shape), Buffer("scale", "float32", (8, 16), layout="rows8")
    stored = torch.from_numpy(pack(matrix, form.layout).view(np.uint8)).to(machine.device)
    memory = Memory({weight: stored, scale: torch.ones(1, 16, 8, device=machine.device)})
    to = torch.full(matrix.shape, POISON, device=machine.device, dtype=dtype)
    memory.run(linear.dequantize(memory("to", to), WeightBuffers(weight, scale)), 8, machine)
    assert torch.equal(to.cpu().float(), torch.from_numpy(matrix.astype(np.float32)))


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    if weight.dim() == 3:
        gate, up = (0, 0) if residual is None else residual.double().chunk(2, dim=1)
        return torch.nn.functional.silu(x @ weight[0].T + gate) * (x @ weight[1].T + up)
    y = x @ weight.T
    y = y if bias is None else y + bias.double()
    return y if residual is None else y + residual.double()
