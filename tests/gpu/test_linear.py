"""GEMV kernels against float64: every prologue and epilogue, odd sizes, poisoned outputs."""

import pytest
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.kernels import GatedLinear, GemvConfig, Linear

EPSILON = 1e-5
SHAPES = [(96, 64), (49, 576), (1000, 1536), (6144, 4096), (4096, 2048), (528, 14336)]
BUCKETS = [(1, 1), (2, 2), (4, 3), (8, 1), (8, 7), (8, 8), (16, 9), (16, 16)]
CONFIGS = [
    GemvConfig(stage_k=256),
    GemvConfig(stage_k=1024),
    GemvConfig(stage_k=256, tiles_per_stage=2),
    GemvConfig(stage_k=256, tiles_per_stage=2, stream_x=True, shared_bytes=100 * 1024),
    GemvConfig(stage_k=512, stream_x=True),
]


def _randn(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def _norm(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    wide = x.double()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * weight.double()
    return scaled.to(dtype).double()  # the kernel also rounds the operands of the tensor cores


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features"), SHAPES)
def test_linear(out: int, in_features: int, tokens: int, rows: int, dtype: torch.dtype) -> None:
    x, weight = _randn(rows, in_features, dtype=dtype), _randn(out, in_features, dtype=dtype, scale=0.02)
    y = torch.full((rows, out), POISON, device="cuda", dtype=dtype)
    Linear(out, in_features, tokens, dtype)(y, x, weight)
    assert_close(y, x.double() @ weight.double().T)


@pytest.mark.parametrize("tokens", [1, 4, 8, 16])
@pytest.mark.parametrize(("out", "in_features"), [(49, 576), (1000, 1536), (6144, 4096)])
def test_norm_bias_residual_and_float_output(out: int, in_features: int, tokens: int) -> None:
    dtype = torch.bfloat16
    x, weight = _randn(tokens, in_features, dtype=dtype, scale=3.0), _randn(out, in_features, dtype=dtype, scale=0.02)
    norm_weight, bias = _randn(in_features, dtype=torch.float32), _randn(out, dtype=torch.float32)
    residual = _randn(tokens, out, dtype=dtype)
    y = torch.full((tokens, out), POISON, device="cuda", dtype=torch.float32)
    linear = Linear(out, in_features, tokens, norm=True, bias=True, residual=True, float_out=True)
    linear(y, x, weight, norm_weight=norm_weight, bias=bias, residual=residual, epsilon=EPSILON)
    expected = _norm(x, norm_weight, dtype) @ weight.double().T + bias.double() + residual.double()
    assert_close(y, expected)


def test_residual_may_be_updated_in_place() -> None:
    x, weight = _randn(3, 1536, dtype=torch.bfloat16), _randn(576, 1536, dtype=torch.bfloat16, scale=0.02)
    y = _randn(3, 576, dtype=torch.bfloat16)
    expected = x.double() @ weight.double().T + y.double()
    Linear(576, 1536, 4, residual=True)(y, x, weight, residual=y)
    assert_close(y, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features", "norm"), [(1536, 576, True), (1000, 2048, False), (14336, 4096, True)])
def test_gated_linear(out: int, in_features: int, norm: bool, tokens: int, rows: int, dtype: torch.dtype) -> None:
    _check_gated_linear(out, in_features, tokens, rows, dtype, norm=norm)


@pytest.mark.parametrize(("tokens", "rows"), BUCKETS)
@pytest.mark.parametrize(("out", "in_features"), [(1536, 576), (1000, 2048)])
def test_gated_linear_with_bias(out: int, in_features: int, tokens: int, rows: int) -> None:
    _check_gated_linear(out, in_features, tokens, rows, torch.bfloat16, bias=_randn(2, out, dtype=torch.float32))


def _check_gated_linear(
    out: int,
    in_features: int,
    tokens: int,
    rows: int,
    dtype: torch.dtype,
    *,
    norm: bool = False,
    bias: torch.Tensor | None = None,
) -> None:
    x, weight = _randn(rows, in_features, dtype=dtype), _randn(2, out, in_features, dtype=dtype, scale=0.03)
    norm_weight = _randn(in_features, dtype=torch.float32)
    y = torch.full((rows, out), POISON, device="cuda", dtype=dtype)
    gated = GatedLinear(out, in_features, tokens, dtype, norm=norm, bias=bias is not None)
    gated(y, x, weight, norm_weight=norm_weight, bias=bias, epsilon=EPSILON)
    seen = _norm(x, norm_weight, dtype) if norm else x.double()
    gate, up = torch.stack([seen @ part.double().T for part in weight]) + (0 if bias is None else bias[:, None])
    assert_close(y, torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("rows", [1, 5])
def test_every_configuration_gives_the_same_result(config: GemvConfig, rows: int) -> None:
    x, weight = _randn(rows, 1600, dtype=torch.bfloat16), _randn(720, 1600, dtype=torch.bfloat16, scale=0.02)
    y = torch.full((rows, 720), POISON, device="cuda", dtype=torch.bfloat16)
    Linear(720, 1600, 8, config=config)(y, x, weight)
    assert_close(y, x.double() @ weight.double().T)


def test_a_row_does_not_depend_on_the_others() -> None:
    x, weight = _randn(8, 4096, dtype=torch.bfloat16), _randn(512, 4096, dtype=torch.bfloat16)
    together, alone = (torch.empty(8, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    linear = Linear(512, 4096, 8)
    linear(together, x, weight)
    for row in range(8):
        linear(alone[row : row + 1], x[row : row + 1], weight)
    assert torch.equal(together, alone)
