"""Paged decode attention against float64 over ragged lengths, block boundaries, head counts and windows."""

import pytest
import torch

from tests.gpu.attention_checks import attention_shape, check_decode
from tests.gpu.kernels import LLAMA_8B
from tests.gpu.memory import NAMES
from tests.gpu.paged import CACHE_SCALES
from trtllm_lite.plugins.cuda.row_scales import RowScales

LENGTHS = {
    "one token": [1],
    "edges of blocks": [31, 32, 33, 63, 64, 65, 127, 128, 129],
    "long": [3000],
    "ragged": [1, 2500, 3, 17, 700, 64, 1, 1, 129, 900],
    "many": [(37 * i) % 211 + 1 for i in range(200)],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("page", [16, 32, 64])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_lengths(lengths: list[int], page: int, dtype: torch.dtype) -> None:
    check_decode(attention_shape(32, 8, 128, page), lengths, dtype)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (14, 2), (16, 1), (71, 1)])
def test_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    check_decode(attention_shape(heads, kv_heads, head_dim, 32), LENGTHS["ragged"], torch.bfloat16)


@pytest.mark.parametrize("window", [1, 17, 64, 1000])
def test_window(window: int) -> None:
    check_decode(attention_shape(8, 2, 64, 32), LENGTHS["ragged"], torch.bfloat16, window=window)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize("softcap", [2.0, 50.0])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (16, 8, 256), (16, 1, 64), (4, 4, 80)])
def test_softcap(heads: int, kv_heads: int, head_dim: int, softcap: float, window: int, dtype: torch.dtype) -> None:
    check_decode(attention_shape(heads, kv_heads, head_dim, 32), LENGTHS["ragged"], dtype, window, softcap)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(64, 8, 64), (16, 1, 64), (4, 4, 128)])
def test_sinks(heads: int, kv_heads: int, head_dim: int, lengths: list[int], window: int, dtype: torch.dtype) -> None:
    check_decode(attention_shape(heads, kv_heads, head_dim, 32), lengths, dtype, window, sinks=True)


KEYS = pytest.mark.parametrize("plain_keys", [False, True], ids=["keys of bytes", "keys of 16 bits"])


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
def test_sinks_over_caches_of_bytes(cache_dtype: torch.dtype, plain_keys: bool) -> None:
    shape, how = attention_shape(64, 8, 64, 32), {"cache_dtype": cache_dtype, "plain_keys": plain_keys}
    check_decode(shape, LENGTHS["ragged"], torch.bfloat16, 128, sinks=True, **how)


@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize("first_position", [1, 70])
def test_from_a_later_position_on(first_position: int, window: int) -> None:
    shape = attention_shape(32, 8, 128, 32)
    check_decode(shape, [2, *LENGTHS["ragged"]], torch.bfloat16, window, first_position=first_position)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 24, 64, 1024])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(40, 8, 128), (16, 1, 64), (4, 4, 80)])
def test_chunks_at_temperatures(
    heads: int, kv_heads: int, head_dim: int, lengths: list[int], window: int, dtype: torch.dtype
) -> None:
    shape, late = attention_shape(heads, kv_heads, head_dim, 32), {"chunked": True, "temperature": (5, 0, 0.7)}
    check_decode(shape, lengths, dtype, window, **late)
    check_decode(shape, [64, 65, 128, *lengths], dtype, window, 2.0, sinks=True, **late)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize("window", [0, 64, 8192])
def test_chunks_over_caches_of_bytes(window: int, cache_dtype: torch.dtype, plain_keys: bool) -> None:
    """The size is Llama 4's; sequences end in the first chunk, at its end, after it, and in the third chunk."""
    shape, late = attention_shape(40, 8, 128, 32), {"chunked": True, "temperature": (8192, 1, 0.1)}
    for lengths in (LENGTHS["ragged"], [8191, 8192, 8193, 16400, 5]):
        how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, **late}
        check_decode(shape, lengths, torch.bfloat16, window, **how)
        check_decode(shape, lengths, torch.bfloat16, window, **late)


CHOICES = [{"warps": 2}, {"warps": 1}, {"warps": 2, "shared_bytes": 100 * 1024, "blocks_per_sm": 2}]


@pytest.mark.parametrize("options", CHOICES, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_launch_choices(lengths: list[int], options: dict[str, int]) -> None:
    check_decode(LLAMA_8B, lengths, torch.bfloat16, **options)


@pytest.mark.parametrize("seqs", [16, 31, 64, 130])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64), (16, 8, 80), (4, 4, 256)])
def test_pairs_that_stay_whole(heads: int, kv_heads: int, head_dim: int, seqs: int) -> None:
    """Many sequences have similar lengths, so that split.cuh assigns a team of warps to each sequence and KV head."""
    lengths = [150 + 7 * i % 50 for i in range(seqs)]
    check_decode(attention_shape(heads, kv_heads, head_dim, 32), lengths, torch.bfloat16)
    check_decode(attention_shape(heads, kv_heads, head_dim, 64), lengths, torch.bfloat16, window=100)


@pytest.mark.parametrize("scales", [RowScales("int8", 2**-6), RowScales("float8_e4m3fn", 2**-7)], ids=str)
def test_results_in_bytes(scales: RowScales) -> None:
    for lengths in (LENGTHS["ragged"], [700] * 64):
        check_decode(LLAMA_8B, lengths, torch.bfloat16, y_scales=scales)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_caches_of_bytes(head_dim: int, cache_dtype: torch.dtype, plain_keys: bool) -> None:
    how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys}
    for dtype, lengths in ((torch.bfloat16, LENGTHS["ragged"]), (torch.float16, LENGTHS["many"])):
        check_decode(attention_shape(16, 4, head_dim, 32), lengths, dtype, **how)
    check_decode(attention_shape(16, 1, head_dim, 16), LENGTHS["ragged"], torch.bfloat16, **how)


def _with_drafts(lengths: list[int], most: int) -> dict[str, list[int]]:
    """Lengths of sequences to which up to ``most`` new tokens each belong, and the numbers of these."""
    new = [1 + (5 * i + 2) % most for i in range(len(lengths))]
    return {"lengths": [length - 1 + count for length, count in zip(lengths, new, strict=True)], "new": new}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_new_tokens", [2, 5, 9])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_drafts(lengths: list[int], num_new_tokens: int, dtype: torch.dtype) -> None:
    """Sequences have one to ``num_new_tokens`` new tokens."""
    how = {**_with_drafts(lengths, num_new_tokens), "num_new_tokens": num_new_tokens, "max_items": 512}
    for page in (16, 32, 64):
        check_decode(attention_shape(32, 8, 128, page), dtype=dtype, **how)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (14, 2), (16, 1)])
def test_heads_with_drafts(heads: int, kv_heads: int, head_dim: int) -> None:
    how = {**_with_drafts(LENGTHS["ragged"], 5), "num_new_tokens": 5}
    check_decode(attention_shape(heads, kv_heads, head_dim, 32), dtype=torch.bfloat16, **how)


@pytest.mark.parametrize("window", [1, 17, 64, 1000])
def test_windows_and_sinks_with_drafts(window: int) -> None:
    for lengths in LENGTHS.values():
        how = {**_with_drafts(lengths, 9), "num_new_tokens": 9, "max_items": 1024, "sinks": True}
        check_decode(attention_shape(64, 8, 64, 32), dtype=torch.bfloat16, window=window, **how)
        check_decode(attention_shape(8, 2, 64, 32), dtype=torch.float16, window=window, softcap=50.0, **how)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_drafts_over_caches_of_bytes(head_dim: int, cache_dtype: torch.dtype, plain_keys: bool) -> None:
    how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, "num_new_tokens": 5, "max_items": 512}
    late = {"chunked": True, "temperature": (5, 0, 0.7), "window": 64}
    for lengths in (LENGTHS["ragged"], LENGTHS["many"], [384] * 64):
        of = _with_drafts(lengths, 5)
        check_decode(attention_shape(16, 4, head_dim, 32), dtype=torch.bfloat16, **of, **how)
        check_decode(attention_shape(16, 4, head_dim, 32), dtype=torch.bfloat16, **of, **how, **late)
