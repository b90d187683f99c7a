"""Kernels of E4M3 against float64 on the bytes that they read: products, norms and roundings of rows."""

from dataclasses import dataclass

import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.launches import H200, Prepared
from trtllm_lite.plugins.cuda.row_norm import RowNorm
from trtllm_lite.plugins.cuda.row_scales import E4M3, RowScales
from trtllm_lite.plugins.cuda.stream import Streaming, stream_config
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.cuda.weight_form import weight_form
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import Buffer, Launch, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear
from trtllm_lite.plugins.quantize_rows.cuda import quantize
from trtllm_lite.plugins.rms_norm.cuda import rms_norm

LEAST = 1e-30
_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32", torch.float8_e4m3fn: E4M3}


def rounded(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x [rows, n] as E4M3 under ``scales`` [rows, 1], with the arithmetic of the kernels."""
    return (x.float() * (1 / scales)).clamp(-448, 448).to(torch.float8_e4m3fn)


def scales_of(x: torch.Tensor, static: float | None) -> torch.Tensor:
    """float32 [rows, 1]."""
    if static is not None:
        return torch.full((x.shape[0], 1), static, device=x.device)
    return (x.float().abs().amax(-1, keepdim=True) * torch.tensor(1 / 448, device=x.device)).clamp_min(LEAST)


@dataclass(frozen=True)
class Weight:
    """Bytes [..., out, in], a scale [..., out] each, and what they mean in float64."""

    values: torch.Tensor
    scale: torch.Tensor

    @property
    def meant(self) -> torch.Tensor:
        return self.values.double() * self.scale.double()[..., None]


def random_weight(*shape: int) -> Weight:
    """Elements of every size; those that are meant are about 1 / sqrt(in)."""
    values = (torch.randn(*shape, device="cuda") * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = (0.5 + torch.rand(shape[:-1], device="cuda")) / 100 / shape[-1] ** 0.5
    return Weight(values, scale)


class Memory:
    """Tensors behind the buffers of one launch."""

    def __init__(self) -> None:
        self.tensors: dict[Buffer, torch.Tensor] = {}

    def __call__(self, name: str, tensor: torch.Tensor | None) -> Buffer | None:
        """A buffer of ``tensor``."""
        if tensor is None:
            return None
        buffer = Buffer(name, _NAMES[tensor.dtype], tuple(tensor.shape))
        self.tensors[buffer] = tensor
        return buffer

    def weight(self, weight: Weight) -> WeightBuffers:
        values = self("weight", weight.values)
        assert values is not None
        return WeightBuffers(values, self("weight_scale", weight.scale))

    def run(self, launch: Launch, **symbols: int) -> None:
        Prepared(launch, self.tensors, symbols)()


def random_rows(rows: int, features: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of different size."""
    return (torch.randn(rows, features, device="cuda") * torch.rand(rows, 1, device="cuda").mul_(3).exp2()).to(dtype)


def check_streamed(
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
) -> None:
    """A product of a few rows that rounds them itself."""
    memory, weight = Memory(), random_weight(*((2,) if gated else ()), out, in_features)
    x = random_rows(rows, in_features, dtype)
    norm_weight = 1 + torch.rand(in_features, device="cuda") if norm else None
    stream = torch.randn(rows, out, device="cuda").to(dtype) if residual else None
    y = torch.full((rows, out), POISON, device="cuda", dtype=dtype)
    config = stream_config(out, in_features, weight_form(E4M3), tokens, H200)
    assert config is not None
    how = Streaming(tokens, _NAMES[dtype], H200, config, RowScales(static or LEAST, static is None))
    operands = (memory("y", y), memory("x", x), memory.weight(weight), symbol("rows"), how)
    normed = (memory("norm", norm_weight), 1e-5) if norm else None
    if gated:
        launch = gated_linear.stream(*operands, activation="silu", norm=normed)
    else:
        launch = linear.stream(*operands, norm=normed, residual=memory("residual", stream))
    memory.run(launch, rows=rows)
    seen = x
    if norm_weight is not None:
        wide = x.double()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm_weight.double()
        seen = normal.to(dtype)
    scales = scales_of(seen, static)
    meant = rounded(seen, scales).double() * scales.double()
    if gated:
        gate, up = meant @ weight.meant[0].T, meant @ weight.meant[1].T
        expected = torch.nn.functional.silu(gate) * up
    else:
        expected = meant @ weight.meant.T + (0 if stream is None else stream.double())
    assert_close(y, expected)


def check_tiled(
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
) -> None:
    """A product of ``rows`` of ``capacity`` rows of E4M3; y is 16-bit or, with ``y_scale``, E4M3."""
    memory, weight = Memory(), random_weight(*((2,) if gated else ()), out, in_features)
    source = random_rows(capacity, in_features, dtype)
    scales = scales_of(source, static)
    x = rounded(source, scales)
    stream = torch.randn(capacity, out, device="cuda").to(dtype) if residual else None
    y_type = dtype if y_scale is None else torch.float8_e4m3fn
    y = torch.full((capacity, out), POISON, device="cuda").to(y_type)
    buffer = memory("row_scales", scales.flatten()) if static is None else None
    how = Tiling(_NAMES[dtype], H200, config, capacity, RowScales(static or LEAST, static is None, buffer))
    operands = (memory("y", y), memory("x", x), memory.weight(weight), symbol("rows"), how)
    if gated:
        y_scales = None if y_scale is None else RowScales(y_scale)
        launch = gated_linear.tiled(*operands, activation="silu", y_scales=y_scales)
    else:
        launch = linear.tiled(*operands, residual=memory("residual", stream))
    memory.run(launch, rows=rows)
    meant = x[:rows].double() * scales[:rows].double()
    if gated:
        gate, up = meant @ weight.meant[0].T, meant @ weight.meant[1].T
        expected = torch.nn.functional.silu(gate) * up
    else:
        expected = meant @ weight.meant.T + (0 if stream is None else stream[:rows].double())
    assert torch.isnan(y[rows:].float()).all(), "rows past the last one were written"
    if y_scale is None:
        assert_close(y[:rows], expected, torch.float8_e4m3fn)
    else:
        # E4M3 has four bits: half a step is 2^-4 of an element, and 2^-10 of the scale below 2^-6 of it.
        off = (y[:rows].double() * y_scale - expected.clamp(-448 * y_scale, 448 * y_scale)).abs()
        allowed = expected.abs() / 14 + y_scale * 2**-10 + expected.square().mean().sqrt() * 0.1
        assert (off <= allowed).all(), (off / allowed).max()


def check_quantize(features: int, rows: int, dtype: torch.dtype, static: float | None) -> None:
    """Bytes and scales are those of torch, bit for bit."""
    memory, x = Memory(), random_rows(rows, features, dtype)
    x[rows // 2] = 0
    y = torch.full((rows, features), POISON, device="cuda").to(torch.float8_e4m3fn)
    y_scale = torch.full((rows,), POISON, device="cuda")
    buffer = memory("y_scale", y_scale) if static is None else None
    scales = RowScales(static or LEAST, static is None, buffer)
    memory.run(quantize(memory("y", y), memory("x", x), scales, symbol("rows")), rows=rows)
    expected = scales_of(x, static)
    if static is None:
        assert torch.equal(y_scale, expected.flatten())
    assert torch.equal(y.view(torch.uint8), rounded(x, expected).view(torch.uint8))


def check_rms_norm(hidden: int, rows: int, dtype: torch.dtype, static: float | None, *, residual: bool) -> None:
    """Rows are normalised in ``dtype``, and E4M3 of that, but for roundings that the norm's own turn."""
    memory, x, weight = Memory(), random_rows(rows, hidden, dtype), 1 + torch.rand(hidden, device="cuda")
    other = random_rows(rows, hidden, dtype) if residual else None
    total = torch.full_like(x, POISON) if residual else None
    y = torch.full((rows, hidden), POISON, device="cuda").to(torch.float8_e4m3fn)
    y_scale = torch.full((rows,), POISON, device="cuda")
    how = RowNorm(memory("y", y), memory("x", x), memory("residual", other), memory("total", total))
    scales = RowScales(static or LEAST, static is None, memory("y_scale", y_scale) if static is None else None)
    memory.run(rms_norm(how, memory("weight", weight), 1e-5, scales, symbol("rows")), rows=rows)
    wide = x.double() if other is None else (x + other).double()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    expected = scales_of(normal.to(dtype), static)
    if static is None:
        torch.testing.assert_close(y_scale, expected.flatten(), rtol=2**-7, atol=0)
    else:
        y_scale.fill_(static)
    off = (y.double() * y_scale.double()[:, None] - normal.clamp(-448 * expected, 448 * expected)).abs()
    assert (off <= normal.abs() * 0.07 + expected.double() * 2**-9).all()
