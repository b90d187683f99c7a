"""Row-wise kernels: embedding, gather, norms, SwiGLU, cache slots, rotary table, cache writes."""

import pytest
import torch

from tests.gpu.attention_checks import attention_shape, check_rope_cache
from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import GPU, Kernel
from tests.gpu.kernels import dtype_flag
from tests.gpu.memory import NAMES
from tests.gpu.paged import CACHE_SCALES
from tests.gpu.row_checks import (
    check_cache_slots,
    check_channel_magnitudes,
    check_cut_rows,
    check_gate_mul,
    check_gather_columns,
    check_head_layer_norm,
    check_layer_norm,
    check_merge_rows,
    check_mix_streams,
    check_paged_rows,
    check_position_embedding,
    check_query_key_norm,
    check_rescale_rows,
    check_rotary_table,
    check_rowwise,
    check_side_by_side,
)

EPSILON = 1e-5
ROWS = [1, 3, 17, 65, 129]


def _randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("ranks", "part", "features"), [(2, 64128, 128256), (3, 1100, 3297), (4, 4, 10)])
def test_side_by_side(rows: int, ranks: int, part: int, features: int) -> None:
    check_side_by_side(rows, ranks, part, features, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("hidden", [64, 576, 4096])
def test_gather_rows(rows: int, hidden: int) -> None:
    table = _randn(200, hidden, dtype=torch.bfloat16)
    indices = torch.randint(200, (rows,), device="cuda", dtype=torch.int32)
    y = torch.full((rows, hidden), POISON, device="cuda", dtype=torch.bfloat16)
    Kernel("gather_rows/cuda.cuh", "gather_rows", 128, 0, {"TL_HIDDEN": hidden})(y, table, indices, grid=rows)
    assert torch.equal(y, table[indices.long()])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("queries", "keys", "threads"), [(64, 32, 32), (2048, 2048, 512), (5120, 1024, 512)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_query_key_norm(rows: int, queries: int, keys: int, threads: int, dtype: torch.dtype) -> None:
    check_query_key_norm(rows, queries, keys, threads, dtype, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_head_layer_norm(rows: int, dtype: torch.dtype) -> None:
    check_head_layer_norm(rows, 40, 8, 160, dtype, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("merged", "features"), [(4, 1152), (16, 72)])
def test_merge_rows(rows: int, merged: int, features: int) -> None:
    check_merge_rows(rows, merged, features, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("hidden", "threads"), [(64, 32), (1032, 64), (2048, 256)])
def test_streams(rows: int, hidden: int, threads: int, dtype: torch.dtype) -> None:
    check_mix_streams(rows, hidden, threads, 5, dtype, GPU)
    check_mix_streams(rows, hidden, threads, 4, dtype, GPU, whole=False)
    check_rescale_rows(rows, hidden, threads, dtype, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("features", "threads"), [(96, 32), (8192, 512), (16384, 512)])
def test_cut_rows(rows: int, features: int, threads: int) -> None:
    check_cut_rows(rows, features, threads, torch.bfloat16, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("features", [64, 576, 14336])
def test_gather_columns(rows: int, features: int) -> None:
    check_gather_columns(rows, features, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("hidden", [64, 576, 4096])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 45.25), (torch.float16, 8.0), (torch.float16, 1.0)])
def test_embedding(rows: int, hidden: int, dtype: torch.dtype, scale: float) -> None:
    table = _randn(200, hidden, dtype=dtype)
    token_ids, last_tokens = (torch.randint(200, (n,), device="cuda", dtype=torch.int32) for n in (rows, 9))
    slots = torch.randint(-9, 9, (rows,), device="cuda", dtype=torch.int32)
    token_ids[slots >= 0] = 1 << 30  # these ids must not be read
    last_tokens[::2] = ~last_tokens[::2]
    y = torch.full((rows, hidden), POISON, device="cuda", dtype=dtype)
    macros = {"TL_HIDDEN": hidden, "TL_FP16": dtype_flag(dtype)}
    kernel = Kernel("embedding/cuda.cuh", "embedding", 128, 0, macros)
    given = _randn(rows, hidden, dtype=dtype)
    token_ids[slots < -4] = ~torch.arange(rows, device="cuda", dtype=torch.int32)[slots < -4]
    kernel(y, token_ids, slots, last_tokens, table, None, len(table), scale, given, grid=rows)
    ids = torch.where(slots >= 0, last_tokens[slots.clamp(min=0).long()], token_ids)
    is_row = (slots < -4)[:, None]
    assert torch.equal(y, torch.where(is_row, given, table[torch.where(ids < 0, ~ids, ids).long() % 200] * scale))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("out", [8, 1000, 1536, 14336])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu2"])
def test_gate_mul(rows: int, out: int, activation: str, dtype: torch.dtype) -> None:
    check_gate_mul(rows, out, activation, dtype, GPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("hidden", "threads"), [(64, 32), (576, 128), (8192, 512)])
@pytest.mark.parametrize(("residual", "bias"), [(False, True), (True, False)])
def test_layer_norm(rows: int, hidden: int, threads: int, residual: bool, bias: bool, dtype: torch.dtype) -> None:
    check_layer_norm(rows, hidden, threads, dtype, residual=residual, bias=bias, machine=GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("hidden", [64, 4096])
def test_position_embedding(rows: int, hidden: int) -> None:
    check_position_embedding(rows, hidden, torch.bfloat16, GPU)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("features", [1, 301, 50257])
def test_rowwise_soft_cap_of_logits(rows: int, features: int) -> None:
    logits = torch.randn(rows, features, device="cuda") * 10
    constants = torch.tensor([5.0], device="cuda")
    operands = [logits, *[None] * 7, constants]
    check_rowwise("x0 c0 div tanh c0 mul", 5 * torch.tanh(logits.double() / 5), operands, torch.float32, GPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("hidden", "threads"), [(64, 32), (576, 128), (4096, 256), (8192, 512)])
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm(rows: int, hidden: int, threads: int, residual: bool, dtype: torch.dtype) -> None:
    x, weight = _randn(rows, hidden, dtype=dtype), torch.randn(hidden, device="cuda")
    other = _randn(rows, hidden, dtype=dtype)
    y, total = (torch.full((rows, hidden), POISON, device="cuda", dtype=dtype) for _ in range(2))
    defines = {"TL_HIDDEN": hidden, "TL_THREADS": threads, "TL_RESIDUAL": int(residual), "TL_FP16": dtype_flag(dtype)}
    defines |= {"TL_Y_TYPE": 0, "TL_ROW_SCALES": 0}
    kernel = Kernel("rms_norm/cuda.cuh", "rms_norm", threads, 0, defines)
    kernel(y, None, total, x, weight, other, EPSILON, 0.0, grid=rows)
    wide = x.double()
    if residual:
        assert torch.equal(total, x + other)
        wide = total.double()
    assert_close(y, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * weight.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "features"), [(1, 64), (512, 4096), (511, 14336)])
def test_channel_magnitudes(rows: int, features: int, dtype: torch.dtype) -> None:
    check_channel_magnitudes(rows, features, dtype, GPU)


@pytest.mark.parametrize("page", [32, 64])
@pytest.mark.parametrize("groups", [1, 6])
def test_cache_slots(page: int, groups: int) -> None:
    check_cache_slots([1, 17, 65, 1, 129], [5000, 0, 31, 32, 63], page, groups, GPU)


@pytest.mark.parametrize(("page", "features", "groups"), [(32, 4096, 1), (64, 1032, 2)])
def test_paged_rows(page: int, features: int, groups: int) -> None:
    check_paged_rows([(0, 1), (63, 17), (128, 1), (0, 650), (7, 1), *[(96, 1)] * 70], page, features, GPU, groups)


@pytest.mark.parametrize("half_dim", [64, 128])
def test_rotary_table(half_dim: int) -> None:
    positions = torch.cat([torch.arange(100), torch.tensor([5000, 131071, 1000003])]).int().cuda()
    check_rotary_table(positions, half_dim, 1.25, GPU)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rows", [1, 17, 129])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (9, 3, 64), (4, 1, 80), (2, 1, 256)])
def test_rope_cache(heads: int, kv_heads: int, dim: int, rows: int, norm: bool) -> None:
    check_rope_cache(attention_shape(heads, kv_heads, dim, 32), rows, norm=norm)


@pytest.mark.parametrize("plain_keys", [False, True])
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (9, 3, 64), (2, 1, 256)])
def test_rope_cache_of_bytes(heads: int, kv_heads: int, dim: int, cache_dtype: torch.dtype, plain_keys: bool) -> None:
    how = {"norm": True, "cache_dtype": cache_dtype, "plain_keys": plain_keys}
    check_rope_cache(attention_shape(heads, kv_heads, dim, 32), 129, **how)


@pytest.mark.parametrize(("dim", "rotary_dim"), [(80, 0), (96, 72), (256, 64)])
def test_rope_cache_of_a_part_of_each_head(dim: int, rotary_dim: int) -> None:
    check_rope_cache(attention_shape(4, 2, dim, 32), 17, norm=False, rotary_dim=rotary_dim)
