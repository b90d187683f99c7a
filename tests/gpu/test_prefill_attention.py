"""Paged prefill attention against float64: ragged batches, chunks after a past, block boundaries, windows."""

import pytest
import torch

from tests.gpu.attention_checks import attention_shape, check_prefill, check_rows_alone
from tests.gpu.memory import NAMES
from tests.gpu.paged import CACHE_SCALES
from trtllm_lite.plugins.cuda.row_scales import RowScales

# Past and new tokens of each sequence, by name of the batch.
BATCHES = {
    "one token": [(0, 1)],
    "odd sizes": [(0, 1), (0, 3), (0, 17), (0, 65), (0, 129)],
    "chunks": [(1, 31), (31, 1), (32, 33), (63, 65), (500, 100)],
    "mixed with decoding": [(900, 1), (0, 300), (77, 1), (128, 64), (1, 1)],
    "long": [(0, 1000)],
    "many steps": [(2000, 129), (0, 700)],
    "many sequences": [(0, 1 + 29 * i % 90) for i in range(70)],
}


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_batches(batch: list[tuple[int, int]], page: int, dtype: torch.dtype, wgmma: bool) -> None:
    check_prefill(attention_shape(8, 2, 128, page), batch, dtype, wgmma=wgmma)


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (14, 2), (16, 1)])
def test_heads(heads: int, kv_heads: int, head_dim: int, wgmma: bool) -> None:
    check_prefill(
        attention_shape(heads, kv_heads, head_dim, 32), BATCHES["mixed with decoding"], torch.bfloat16, wgmma=wgmma
    )


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("window", [1, 17, 64, 250])
def test_window(window: int, wgmma: bool) -> None:
    check_prefill(
        attention_shape(8, 2, 64, 32), BATCHES["chunks"] + BATCHES["long"], torch.bfloat16, window, wgmma=wgmma
    )


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("first_position", [1, 150])
@pytest.mark.parametrize("window", [0, 64])
def test_from_a_later_position_on(window: int, first_position: int, wgmma: bool) -> None:
    shape, batch = attention_shape(32, 8, 128, 32), BATCHES["mixed with decoding"] + BATCHES["long"]
    check_prefill(shape, batch, torch.bfloat16, window, wgmma=wgmma, first_position=first_position)


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 24, 64, 160, 512])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(40, 8, 128), (16, 1, 256), (4, 4, 80), (71, 1, 64)])
def test_chunks_at_temperatures(
    heads: int, kv_heads: int, head_dim: int, window: int, dtype: torch.dtype, wgmma: bool
) -> None:
    how = {"chunked": True, "temperature": (5, 0, 0.7), "wgmma": wgmma}
    shape = attention_shape(heads, kv_heads, head_dim, 32)
    for name in ("chunks", "mixed with decoding", "many steps"):
        check_prefill(shape, BATCHES[name], dtype, window, **how)
    check_prefill(shape, BATCHES["chunks"], dtype, window, 2.0, sinks=True, **how)


KEYS = pytest.mark.parametrize("plain_keys", [False, True], ids=["keys of bytes", "keys of 16 bits"])


@KEYS
@pytest.mark.parametrize("cache_dtype", [None, *CACHE_SCALES], ids=lambda dtype: NAMES.get(dtype, "16 bits"))
def test_chunks_of_llama_4(cache_dtype: torch.dtype | None, plain_keys: bool) -> None:
    """Steps end with the first chunk, begin after it, or begin in one chunk and end in the next."""
    shape, late = attention_shape(10, 2, 128, 32), {"chunked": True, "temperature": (8192, 1, 0.1)}
    batch = [(8192 - 64, 64), (8192, 200), (8192 - 100, 300), (3, 5)]
    for window in (0, 8192):
        how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, **late}
        check_prefill(shape, batch, torch.bfloat16, window, wgmma=True, **how)


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize("softcap", [2.0, 50.0])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (16, 8, 256), (16, 1, 64), (4, 4, 80)])
def test_softcap(
    heads: int, kv_heads: int, head_dim: int, softcap: float, window: int, dtype: torch.dtype, wgmma: bool
) -> None:
    shape, batch = attention_shape(heads, kv_heads, head_dim, 32), BATCHES["mixed with decoding"] + BATCHES["long"]
    check_prefill(shape, batch, dtype, window, softcap, wgmma=wgmma)


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(64, 8, 64), (16, 1, 64), (4, 4, 256)])
def test_sinks(
    heads: int,
    kv_heads: int,
    head_dim: int,
    batch: list[tuple[int, int]],
    window: int,
    dtype: torch.dtype,
    wgmma: bool,
) -> None:
    shape = attention_shape(heads, kv_heads, head_dim, 32)
    check_prefill(shape, batch, dtype, window, wgmma=wgmma, sinks=True)


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [128, 176, 256])
def test_little_shared_memory(head_dim: int, page: int) -> None:
    """GPUs with 99 KB of shared memory run large heads with 32 keys at a time."""
    batch = BATCHES["mixed with decoding"] + BATCHES["long"]
    check_prefill(attention_shape(8, 2, head_dim, page), batch, torch.bfloat16, wgmma=False, mma_step=32)
    check_prefill(
        attention_shape(8, 2, head_dim, page), BATCHES["chunks"], torch.bfloat16, 50, wgmma=False, mma_step=32
    )


@pytest.mark.parametrize("scales", [RowScales("int8", 2**-6), RowScales("float8_e4m3fn", 2**-7)], ids=str)
@pytest.mark.parametrize("wgmma", [False, True])
def test_results_in_bytes(scales: RowScales, wgmma: bool) -> None:
    check_prefill(attention_shape(8, 2, 128, 32), BATCHES["odd sizes"], torch.bfloat16, wgmma=wgmma, y_scales=scales)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_caches_of_bytes(head_dim: int, cache_dtype: torch.dtype, plain_keys: bool) -> None:
    how = {"wgmma": True, "cache_dtype": cache_dtype, "plain_keys": plain_keys}
    for dtype, batch in ((torch.bfloat16, BATCHES["mixed with decoding"]), (torch.float16, BATCHES["many steps"])):
        check_prefill(attention_shape(8, 2, head_dim, 32), batch, dtype, **how)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_caches_of_bytes_that_were_widened(head_dim: int, cache_dtype: torch.dtype, plain_keys: bool) -> None:
    """Short sequences, and those that no longer fit, stand between and behind the long ones, which fill blocks."""
    how = {"wgmma": True, "cache_dtype": cache_dtype, "plain_keys": plain_keys, "wide_tokens": 200}
    batch = [(300, 1), (68, 700), (31, 32), (1520, 400), (0, 640), (33, 64), (0, 5)]
    for page, window, blocks in ((32, 0, 90), (128, 500, 30)):
        check_prefill(attention_shape(8, 2, head_dim, page), batch, torch.bfloat16, window, wide_blocks=blocks, **how)


@KEYS
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (16, 1, 64), (8, 8, 96), (6, 2, 256)])
def test_rows_have_the_same_bits_in_every_launch(
    heads: int, kv_heads: int, head_dim: int, cache_dtype: torch.dtype | None, plain_keys: bool
) -> None:
    shape = attention_shape(heads, kv_heads, head_dim, 128)
    how = {"wgmma": True, "cache_dtype": cache_dtype, "plain_keys": plain_keys}
    for past, new, window in ((0, 300, 0), (1000, 70, 0), (130, 50, 128), (245, 20, 17)):
        check_rows_alone(shape, past, new, torch.bfloat16, window, **how)
    check_rows_alone(shape, 3000, 20, torch.float16, 1024, chunked=True, temperature=(100, 0, 0.7), **how)
