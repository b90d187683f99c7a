"""Compares kernels that multiply or produce 8-bit rows with float64 on the same bytes, on a GPU or emulated."""

from dataclasses import dataclass, replace

import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import GPU, Machine
from tests.gpu.launches import H200
from tests.gpu.memory import NAMES, Memory
from trtllm_lite.plugins.cuda.few_rows import FewRows, GemvConfig, few_rows_config
from trtllm_lite.plugins.cuda.row_norm import RowNorm
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.cuda.split_k import SplitKConfig
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import Device, Extent, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.quantize_rows.cuda import quantize
from trtllm_lite.plugins.rms_norm.cuda import rms_norm

LEAST = 1e-30
LARGEST = {torch.float8_e4m3fn: 448, torch.int8: 127}
# Half the distance between neighbouring numbers of a type, relative to the number and in units of the scale.
HALF_STEPS = {torch.float8_e4m3fn: (2**-4, 2**-10), torch.int8: (0.0, 0.5)}


def rounded(x: torch.Tensor, scales: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """x [rows, n] rounded to ``kind`` under ``scales`` [rows, 1], with the arithmetic of the kernels."""
    scaled = x.float() * (1 / scales)
    if kind == torch.int8:
        return scaled.round().clamp(-128, 127).to(kind)
    return scaled.clamp(-448, 448).to(kind)


def scales_of(x: torch.Tensor, static: float | None, kind: torch.dtype) -> torch.Tensor:
    """The scales of rows, float32 [rows, 1]."""
    if static is not None:
        return torch.full((x.shape[0], 1), static, device=x.device)
    return (x.float().abs().amax(-1, keepdim=True) * torch.tensor(1 / LARGEST[kind], device=x.device)).clamp_min(LEAST)


@dataclass(frozen=True)
class Weight:
    """Bytes [..., out, in], scales [..., out], and the dequantized float64 weight."""

    values: torch.Tensor
    scale: torch.Tensor

    @property
    def meant(self) -> torch.Tensor:
        return self.values.double() * self.scale.double()[..., None]

    def buffers(self, memory: Memory) -> WeightBuffers:
        values = memory("weight", self.values)
        return WeightBuffers(values, memory("weight_scale", self.scale), rows=values.dtype)


def random_weight(kind: torch.dtype, *shape: int, device: str = "cuda") -> Weight:
    """A weight with elements of every magnitude; dequantized elements are about 1 / sqrt(in)."""
    largest = LARGEST[kind]
    values = (torch.randn(*shape, device=device) * largest / 4.5).clamp(-largest, largest).to(kind)
    scale = (0.5 + torch.rand(shape[:-1], device=device)) * 4.5 / largest / shape[-1] ** 0.5
    return Weight(values, scale)


def random_rows(rows: int, features: int, dtype: torch.dtype, device: str = "cuda") -> torch.Tensor:
    """Rows of different magnitude."""
    return (torch.randn(rows, features, device=device) * torch.rand(rows, 1, device=device).mul_(3).exp2()).to(dtype)


def check_few_rows(
    kind: torch.dtype,
    out: int,
    in_features: int,
    tokens: int,
    rows: int,
    dtype: torch.dtype,
    *,
    static: float | None,
    gated: bool = False,
    norm: bool = False,
    residual: bool = False,
    y_scale: float | None = None,
    config: GemvConfig | SplitKConfig | None = None,
    blocks: int | None = None,
    device: Device = H200,
    machine: Machine = GPU,
) -> None:
    """Check a GEMV kernel, which rounds its rows, on ``blocks`` blocks; with ``y_scale`` y is 8-bit."""
    at = machine.device
    memory, weight = Memory(), random_weight(kind, *((2,) if gated else ()), out, in_features, device=at)
    x = random_rows(rows, in_features, dtype, at)
    norm_weight = 1 + torch.rand(in_features, device=at) if norm else None
    stream = torch.randn(rows, out, device=at).to(dtype) if residual else None
    y = torch.full((rows, out), POISON, device=at).to(dtype if y_scale is None else kind)
    config = config or few_rows_config(weight.values.shape, weight_form(NAMES[kind], NAMES[kind]), tokens, device)
    assert config is not None
    x_scales = RowScales(NAMES[kind], static or LEAST, static is None)
    how = FewRows(tokens, NAMES[dtype], device, config, x_scales)
    operands = (memory("y", y), memory("x", x), weight.buffers(memory), symbol("rows"), how)
    normed = (memory("norm", norm_weight), 1e-5) if norm_weight is not None else None
    if gated:
        y_scales = None if y_scale is None else RowScales(NAMES[kind], y_scale)
        launch = gated_linear.stream(*operands, activation="silu", norm=normed, y_scales=y_scales)
    else:
        launch = linear.stream(*operands, norm=normed, residual=memory.optional("residual", stream))
    memory.run(launch if blocks is None else replace(launch, grid=(Extent(blocks), *launch.grid[1:])), rows, machine)
    seen = x
    if norm_weight is not None:
        wide = x.double()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm_weight.double()
        seen = normal.to(dtype)
    scales = scales_of(seen, static, kind)
    meant = rounded(seen, scales, kind).double() * scales.double()
    if gated:
        gate, up = meant @ weight.meant[0].T, meant @ weight.meant[1].T
        expected = torch.nn.functional.silu(gate) * up
    else:
        expected = meant @ weight.meant.T + (0 if stream is None else stream.double())
    if y_scale is None:
        assert_close(y, expected, kind if kind == torch.float8_e4m3fn and config.splits > 1 else dtype)
    else:
        _assert_bytes_close(y, expected, y_scale)


def _assert_bytes_close(y: torch.Tensor, expected: torch.Tensor, y_scale: float) -> None:
    largest, (of_number, of_scale) = LARGEST[y.dtype] * y_scale, HALF_STEPS[y.dtype]
    off = (y.double() * y_scale - expected.clamp(-largest, largest)).abs()
    # int8 ends at -128; other errors are those of the sums.
    of_sums = expected.square().mean().sqrt() * 0.1
    allowed = expected.abs() * (of_number + 0.01) + y_scale * (of_scale + 0.5) + of_sums
    assert (off <= allowed).all(), (off / allowed).max()


def check_tiled(
    kind: torch.dtype,
    config: TileConfig,
    out: int,
    in_features: int,
    rows: int,
    capacity: int,
    dtype: torch.dtype,
    *,
    static: float | None,
    gated: bool = False,
    residual: bool = False,
    y_scale: float | None = None,
    machine: Machine = GPU,
) -> None:
    """Check a product of 8-bit rows, ``rows`` of ``capacity``; y is 16-bit or, with ``y_scale``, 8-bit."""
    memory, weight = Memory(), random_weight(kind, *((2,) if gated else ()), out, in_features, device=machine.device)
    source = random_rows(capacity, in_features, dtype, machine.device)
    scales = scales_of(source, static, kind)
    x = rounded(source, scales, kind)
    stream = torch.randn(capacity, out, device=machine.device).to(dtype) if residual else None
    y = torch.full((capacity, out), POISON, device=machine.device).to(dtype if y_scale is None else kind)
    unwritten = y[0, 0].clone()
    buffer = memory("row_scales", scales.flatten()) if static is None else None
    x_scales = RowScales(NAMES[kind], static or LEAST, static is None, buffer)
    how = Tiling(NAMES[dtype], H200, config, capacity, x_scales)
    operands = (memory("y", y), memory("x", x), weight.buffers(memory), symbol("rows"), how)
    if gated:
        y_scales = None if y_scale is None else RowScales(NAMES[kind], y_scale)
        launch = gated_linear.tiled(*operands, activation="silu", y_scales=y_scales)
    else:
        launch = linear.tiled(*operands, residual=memory.optional("residual", stream))
    memory.run(launch, rows, machine)
    meant = x[:rows].double() * scales[:rows].double()
    if gated:
        gate, up = meant @ weight.meant[0].T, meant @ weight.meant[1].T
        expected = torch.nn.functional.silu(gate) * up
    else:
        expected = meant @ weight.meant.T + (0 if stream is None else stream[:rows].double())
    untouched = y[rows:].view(torch.uint8) == unwritten.view(1, 1).view(torch.uint8).repeat(1, out)
    assert untouched.all(), "rows past the last one were written"
    if y_scale is None:
        assert_close(y[:rows], expected, kind if kind == torch.float8_e4m3fn else dtype)
    else:
        _assert_bytes_close(y[:rows], expected, y_scale)


def check_quantize(
    kind: torch.dtype, features: int, rows: int, dtype: torch.dtype, static: float | None, machine: Machine = GPU
) -> None:
    """Check that bytes and scales equal torch's, bit for bit."""
    memory, at = Memory(), machine.device
    x = random_rows(rows, features, dtype, at)
    x[rows // 2] = 0
    y = torch.full((rows, features), POISON, device=at).to(kind)
    y_scale = torch.full((rows,), POISON, device=at)
    buffer = memory("y_scale", y_scale) if static is None else None
    scales = RowScales(NAMES[kind], static or LEAST, static is None, buffer)
    memory.run(quantize(memory("y", y), memory("x", x), scales, symbol("rows")), rows, machine)
    expected = scales_of(x, static, kind)
    if static is None:
        assert torch.equal(y_scale, expected.flatten())
    assert torch.equal(y.view(torch.uint8), rounded(x, expected, kind).view(torch.uint8))


def check_rms_norm(
    kind: torch.dtype,
    hidden: int,
    rows: int,
    dtype: torch.dtype,
    static: float | None,
    *,
    residual: bool,
    machine: Machine = GPU,
) -> None:
    """Check norms in ``dtype`` and their bytes, which may differ where the norm's error changes a rounding."""
    memory, at = Memory(), machine.device
    x, weight = random_rows(rows, hidden, dtype, at), 1 + torch.rand(hidden, device=at)
    other = random_rows(rows, hidden, dtype, at) if residual else None
    total = torch.full_like(x, POISON) if residual else None
    y = torch.full((rows, hidden), POISON, device=at).to(kind)
    y_scale = torch.full((rows,), POISON, device=at)
    how = RowNorm(memory("y", y), memory("x", x), memory.optional("residual", other), memory.optional("total", total))
    buffer = memory("y_scale", y_scale) if static is None else None
    scales = RowScales(NAMES[kind], static or LEAST, static is None, buffer)
    memory.run(rms_norm(how, memory("weight", weight), 1e-5, scales, symbol("rows")), rows, machine)
    wide = x.double() if other is None else (x + other).double()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert_rounded(y, y_scale, normal, dtype, static)


def assert_rounded(
    y: torch.Tensor, y_scale: torch.Tensor, normal: torch.Tensor, dtype: torch.dtype, static: float | None
) -> None:
    """Check 8-bit y: rows in ``dtype`` rounded under the scale ``static`` or each row's own, in ``y_scale``."""
    expected = scales_of(normal.to(dtype), static, y.dtype)
    if static is None:
        torch.testing.assert_close(y_scale, expected.flatten(), rtol=2**-7, atol=0)
        scales = y_scale[:, None]
    else:
        scales = expected
    largest, (of_number, of_scale) = LARGEST[y.dtype] * expected, HALF_STEPS[y.dtype]
    off = (y.double() * scales.double() - normal.clamp(-largest, largest)).abs()
    assert (off <= normal.abs() * (of_number + 2**-7) + expected.double() * (of_scale * 2 + 2**-9)).all()
