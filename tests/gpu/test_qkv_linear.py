"""Queries, keys and values: products, rotation, and the write into the paged cache."""

import pytest
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.kernels import LLAMA_8B, ModelShape, QkvLinear

EPSILON = 1e-5
NUM_BLOCKS = 5
SMOL = ModelShape(576, 1536, 9, 3, 64, 1000, page=32)
BIASED = ModelShape(896, 4864, 14, 2, 64, 1000, page=64, qkv_bias=True)
WIDE = ModelShape(512, 1024, 4, 1, 80, 1000, page=32)


def _reference(
    shape: ModelShape, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = qkv.view(len(qkv), -1, shape.head_dim)
    rotated, values = heads.split([shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
    low, high = rotated.chunk(2, dim=-1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
    return rotated[:, : shape.heads], rotated[:, shape.heads :], values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (4, 3), (8, 8), (16, 13)])
@pytest.mark.parametrize("shape", [SMOL, BIASED, WIDE, LLAMA_8B], ids=["smol", "biased", "wide", "llama_8b"])
def test_qkv_linear(shape: ModelShape, tokens: int, rows: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, shape.hidden, device="cuda").to(dtype)
    weight = (torch.randn(shape.qkv_features, shape.hidden, device="cuda") * shape.hidden**-0.5).to(dtype)
    norm_weight = torch.randn(shape.hidden, device="cuda")
    bias = torch.randn(shape.qkv_features, device="cuda") if shape.qkv_bias else None
    angles = torch.rand(rows, shape.head_dim // 2, device="cuda") * 6.3
    slots = torch.randperm(NUM_BLOCKS * shape.page, device="cuda")[:rows].int()
    q = torch.full((rows, shape.heads, shape.head_dim), POISON, device="cuda", dtype=dtype)
    cache = (NUM_BLOCKS, shape.kv_heads, shape.page, shape.head_dim)
    keys, values = (torch.full(cache, POISON, device="cuda", dtype=dtype) for _ in range(2))
    step = {"cos": angles.cos(), "sin": angles.sin(), "slots": slots}
    linear = QkvLinear(shape, tokens, dtype)
    linear(q, keys, values, x, weight, norm_weight=norm_weight, bias=bias, epsilon=EPSILON, **step)

    wide = x.double()
    seen = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * norm_weight.double()).to(dtype)
    qkv = seen.double() @ weight.double().T + (0 if bias is None else bias.double())
    expected = _reference(shape, qkv, step["cos"], step["sin"])
    assert_close(q, expected[0])
    at = slots.long()
    for written, reference in zip((keys, values), expected[1:], strict=True):
        assert_close(written[at // shape.page, :, at % shape.page], reference)
        assert torch.isfinite(written).sum() == reference.numel(), "other slots were written"
