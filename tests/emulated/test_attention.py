"""The attention kernels' logic without a GPU: indices, masks, tails of pages, barriers, the order of copies.

Shapes are small, and each is run under several schedules.
"""

import pytest
import torch

from tests.emulated.emulator import Emulator
from tests.gpu.attention_checks import (
    attention_shape,
    check_decode,
    check_prefill,
    check_qkv_linear,
    check_rope_cache,
    check_rows_alone,
)
from tests.gpu.kernels import ModelShape
from tests.gpu.memory import NAMES
from tests.gpu.paged import CACHE_SCALES
from trtllm_lite.plugins.cuda.row_scales import RowScales

# Values decide how kernels are compiled; tests/gpu combine them.
pytestmark = pytest.mark.each_value

LENGTHS = {
    "one token": [1],
    "edges of blocks": [31, 32, 33, 63, 64, 65, 127, 128, 129],
    "ragged": [1, 700, 3, 17, 64, 1, 129],
    "alike": [70 + 7 * i % 50 for i in range(13)],  # no pair of a sequence and a KV head is split
}
# The batches, by name: past and new tokens of each sequence.
BATCHES = {
    "one token": [(0, 1)],
    "odd sizes": [(0, 3), (0, 17), (0, 97)],
    "chunks": [(1, 31), (31, 1), (32, 33), (63, 65), (160, 40)],
    "mixed with decoding": [(300, 1), (0, 70), (77, 1), (128, 40), (1, 1)],
}
SEEDS = (0, 2)  # a check launches twice: with a seed and with the next one
# Caps of attention scores: Gemma 2's in float16, which shows small errors, and one that changes every score.
CAPS = [(50.0, torch.float16), (2.0, torch.bfloat16)]
TEMPERATURE = (5, 1, 0.7)  # floor_scale, floor_offset and attn_scale


@pytest.mark.parametrize("page", [16, 32, 64])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_decode(lengths: list[int], page: int) -> None:
    for seed in SEEDS:
        check_decode(attention_shape(4, 2, 128, page), lengths, torch.bfloat16, machine=Emulator(seed=seed))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page", "dtype"),
    [(3, 1, 64, 64, torch.bfloat16), (2, 2, 80, 16, torch.float16), (16, 1, 256, 32, torch.float16)],
)
def test_decode_heads(heads: int, kv_heads: int, head_dim: int, page: int, dtype: torch.dtype) -> None:
    shape = attention_shape(heads, kv_heads, head_dim, page)
    check_decode(shape, LENGTHS["edges of blocks"], dtype, machine=Emulator())


@pytest.mark.parametrize(("heads", "kv_heads", "new"), [(8, 1, 1), (4, 1, 3), (3, 1, 1), (11, 1, 1)])
@pytest.mark.parametrize("batch", ["ragged", "edges of blocks"])
def test_decode_wide_heads(heads: int, kv_heads: int, new: int, batch: str) -> None:
    """Queries of a head_dim beyond 256 are in shared memory, as if there were drafts."""
    lengths = [length + new for length in LENGTHS[batch]]
    counts = [1 + number % new for number in range(len(lengths))]
    how = {"new": counts, "num_new_tokens": new, "warps": 1, "machine": Emulator()}
    for head_dim, window in ((512, 0), (288, 17)):
        check_decode(attention_shape(heads, kv_heads, head_dim, 32), lengths, torch.bfloat16, window, **how)


# Many query heads share a key/value head: they are cut into sections, of which the last may have fewer heads.
SECTIONS = pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(71, 1, 64), (34, 2, 16), (32, 1, 128)])


@SECTIONS
@pytest.mark.parametrize("sinks", [False, True])
def test_decode_in_sections(heads: int, kv_heads: int, head_dim: int, sinks: bool) -> None:
    """Pairs of a sequence and a section are whole, or split among blocks."""
    shape, how = attention_shape(heads, kv_heads, head_dim, 32), {"sinks": sinks, "machine": Emulator()}
    for lengths in ([1, 33, 70], LENGTHS["ragged"]):
        check_decode(shape, lengths, torch.bfloat16, **how)
    if head_dim == 64:
        check_decode(shape, LENGTHS["ragged"], torch.bfloat16, 17, 2.0, cache_dtype=torch.int8, **how)


@SECTIONS
@pytest.mark.parametrize("sinks", [False, True])
def test_drafts_in_sections(heads: int, kv_heads: int, head_dim: int, sinks: bool) -> None:
    for batch in ("ragged", "edges of blocks"):
        _check_drafts(heads, kv_heads, head_dim, batch, torch.float16, sinks=sinks)


@SECTIONS
@pytest.mark.parametrize("wgmma", [False, True])
def test_prefill_in_sections(heads: int, kv_heads: int, head_dim: int, wgmma: bool) -> None:
    shape, how = attention_shape(heads, kv_heads, head_dim, 32), {"wgmma": wgmma, "machine": Emulator()}
    if head_dim == 16 and wgmma:
        shape = attention_shape(heads, kv_heads, 64, 32)
    for sinks in (False, True):
        check_prefill(shape, BATCHES["mixed with decoding"], torch.float16, 17, sinks=sinks, **how)


@pytest.mark.parametrize("scales", [RowScales("int8", 2**-6), RowScales("float8_e4m3fn", 2**-7)], ids=str)
def test_results_in_bytes(scales: RowScales) -> None:
    """A warp computes whole pairs of a sequence and a KV head, or pairs are split and their parts combined."""
    shape, how = attention_shape(4, 2, 64, 32), {"y_scales": scales, "machine": Emulator()}
    for lengths in (LENGTHS["alike"], LENGTHS["ragged"]):
        check_decode(shape, lengths, torch.bfloat16, **how)
    for wgmma in (False, True):
        check_prefill(shape, BATCHES["odd sizes"], torch.float16, wgmma=wgmma, **how)


KEYS = pytest.mark.parametrize("plain_keys", [False, True], ids=["keys of bytes", "keys of 16 bits"])


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
def test_caches_of_bytes(cache_dtype: torch.dtype, plain_keys: bool) -> None:
    """Rows of 128 bytes are swizzled, those of 96 bytes are not; results have either type of activations."""
    for head_dim, dtype, lengths in ((128, torch.bfloat16, "ragged"), (96, torch.float16, "alike")):
        shape, how = attention_shape(4, 2, head_dim, 32), {"cache_dtype": cache_dtype, "machine": Emulator()}
        how["plain_keys"] = plain_keys
        check_decode(shape, LENGTHS[lengths], dtype, **how)
        check_prefill(shape, BATCHES["chunks"], dtype, wgmma=True, **how)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
@pytest.mark.parametrize(
    ("head_dim", "page", "window", "blocks"), [(128, 32, 0, 12), (96, 16, 0, 12), (64, 128, 50, 3), (64, 32, 50, 40)]
)
def test_prefill_of_bytes_that_were_widened(
    head_dim: int, page: int, window: int, blocks: int, cache_dtype: torch.dtype, plain_keys: bool
) -> None:
    """Short sequences, and those that no longer fit, stand between and behind the long ones."""
    batch = [(300, 1), (3, 70), (31, 32), (160, 40), (0, 64), (33, 64), (0, 5)]
    how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, "machine": Emulator(seed=head_dim)}
    how |= {"wide_blocks": blocks, "wide_tokens": 40}
    check_prefill(attention_shape(4, 2, head_dim, page), batch, torch.bfloat16, window, wgmma=True, **how)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
def test_writing_caches_of_bytes(cache_dtype: torch.dtype, plain_keys: bool) -> None:
    how = {"cache_dtype": cache_dtype, "plain_keys": plain_keys, "machine": Emulator()}
    check_rope_cache(attention_shape(3, 1, 96, 32), 19, norm=True, rotary_dim=64, **how)
    check_qkv_linear(ModelShape(576, 1536, 2, 1, 128, 1000, page=32), 4, 3, torch.bfloat16, **how)


@pytest.mark.parametrize("seed", [0, 4, 6])
def test_decode_of_one_pair_by_many_blocks(seed: int) -> None:
    """More blocks share a pair than a narrow head has sums: combining must not disturb barriers of the next pair."""
    shape, machine = attention_shape(4, 1, 16, 32), Emulator(num_sms=26, seed=seed)
    check_decode(shape, [1000, 200], torch.float16, machine=machine, warps=1)


@pytest.mark.parametrize("window", [1, 17, 64])
def test_decode_window(window: int) -> None:
    check_decode(attention_shape(4, 1, 64, 32), LENGTHS["ragged"], torch.bfloat16, window, machine=Emulator())


@pytest.mark.parametrize(("softcap", "dtype"), CAPS)
@pytest.mark.parametrize(("heads", "kv_heads", "window"), [(4, 1, 0), (16, 1, 17)])
def test_decode_softcap(heads: int, kv_heads: int, window: int, softcap: float, dtype: torch.dtype) -> None:
    shape = attention_shape(heads, kv_heads, 64, 32)
    check_decode(shape, LENGTHS["ragged"], dtype, window, softcap, machine=Emulator())


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads", "window", "softcap"), [(4, 2, 0, 0.0), (16, 1, 17, 0.0), (6, 2, 0, 2.0)])
def test_decode_sinks(heads: int, kv_heads: int, window: int, softcap: float, lengths: list[int]) -> None:
    shape, how = attention_shape(heads, kv_heads, 64, 32), {"sinks": True, "machine": Emulator()}
    check_decode(shape, lengths, torch.float16, window, softcap, **how)


def test_decode_sinks_of_one_pair_by_many_blocks() -> None:
    """Only one of the blocks that share a pair of a sequence and a KV head adds the sink."""
    how = {"sinks": True, "machine": Emulator(num_sms=26)}
    check_decode(attention_shape(4, 1, 16, 32), [1000, 200], torch.float16, warps=1, **how)
    how["cache_dtype"] = torch.int8
    for plain_keys in (False, True):
        check_decode(attention_shape(4, 1, 64, 32), [1000, 200], torch.bfloat16, plain_keys=plain_keys, **how)


@pytest.mark.parametrize("first_position", [1, 40])
@pytest.mark.parametrize("window", [0, 17])
def test_decode_from_a_later_position_on(first_position: int, window: int) -> None:
    shape, lengths = attention_shape(4, 1, 64, 32), LENGTHS["ragged"]
    how = {"first_position": first_position, "machine": Emulator()}
    check_decode(shape, lengths, torch.bfloat16, window, **how)
    check_decode(shape, [1, 2, *LENGTHS["alike"]], torch.bfloat16, window, cache_dtype=torch.int8, **how)


@pytest.mark.parametrize("window", [0, 24, 64])
def test_decode_of_chunks_at_temperatures(window: int) -> None:
    """Sequences end in their first chunk, at its end, or after it; some pairs are whole and others are split."""
    how = {"chunked": True, "temperature": TEMPERATURE, "machine": Emulator()}
    for lengths in (LENGTHS["edges of blocks"], LENGTHS["ragged"], [*LENGTHS["alike"], 24, 25, 48]):
        check_decode(attention_shape(4, 2, 64, 32), lengths, torch.float16, window, **how)
    check_decode(attention_shape(4, 1, 64, 16), LENGTHS["ragged"], torch.float16, window, 2.0, sinks=True, **how)
    how |= {"cache_dtype": torch.int8, "temperature": (5, 0, 0.7)}
    for plain_keys in (False, True):
        shape = attention_shape(4, 2, 64, 32)
        check_decode(shape, LENGTHS["ragged"], torch.bfloat16, window, plain_keys=plain_keys, **how)


# Steps with drafts: past and new tokens of each sequence. New tokens straddle tiles and cache blocks.
DRAFTS = {
    "one sequence": [(0, 1)],
    "prompts": [(0, 9), (0, 3), (0, 1)],
    "edges of blocks": [(31, 5), (28, 5), (27, 5), (63, 2), (60, 5), (124, 9), (127, 3), (128, 9)],
    "ragged": [(0, 2), (695, 5), (3, 1), (12, 9), (59, 6), (0, 1), (120, 9)],
    "alike": [(70 + 7 * i % 50, 1 + i % 9) for i in range(13)],
}
NEW_TOKENS = 9


def _check_drafts(heads: int, kv_heads: int, head_dim: int, batch: str, dtype: torch.dtype, **how: object) -> None:
    lengths, new = [past + new for past, new in DRAFTS[batch]], [new for _, new in DRAFTS[batch]]
    how = {"new": new, "num_new_tokens": NEW_TOKENS, "machine": Emulator(), **how}
    check_decode(attention_shape(heads, kv_heads, head_dim, how.pop("page", 32)), lengths, dtype, **how)


@pytest.mark.parametrize("page", [16, 32, 64])
@pytest.mark.parametrize("batch", DRAFTS)
def test_decode_of_drafts(batch: str, page: int) -> None:
    for seed in SEEDS:
        _check_drafts(4, 2, 128, batch, torch.bfloat16, page=page, machine=Emulator(seed=seed))


@pytest.mark.parametrize("item_tokens", [1, 2, 4, 9])
@pytest.mark.parametrize("batch", ["ragged", "alike"])
def test_drafts_in_items(batch: str, item_tokens: int) -> None:
    """An item is a part of a sequence's new tokens, or all of them."""
    _check_drafts(4, 2, 64, batch, torch.float16, item_tokens=item_tokens)
    _check_drafts(3, 1, 16, batch, torch.float16, item_tokens=item_tokens, warps=1, machine=Emulator(num_sms=26))


def test_many_drafts_in_items() -> None:
    """There are more sequences than lanes in a warp, which divides them into items."""
    new = [1 + 5 * i % 9 for i in range(70)]
    lengths = [count + 11 * i % 40 for i, count in enumerate(new)]
    how = {"new": new, "num_new_tokens": NEW_TOKENS, "machine": Emulator()}
    check_decode(attention_shape(2, 1, 16, 16), lengths, torch.float16, item_tokens=4, max_items=256, **how)


@pytest.mark.parametrize("batch", DRAFTS)
@pytest.mark.parametrize(("window", "sinks", "softcap"), [(17, False, 0.0), (64, True, 0.0), (3, True, 2.0)])
def test_windows_and_sinks_of_drafts(window: int, sinks: bool, softcap: float, batch: str) -> None:
    """Each token has a window of its own; some see none of the keys of an item's first tile."""
    _check_drafts(4, 1, 64, batch, torch.float16, window=window, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("window", [0, 24, 64])
def test_chunks_at_temperatures_of_drafts(window: int) -> None:
    for batch in ("edges of blocks", "ragged"):
        how = {"window": window, "chunked": True, "temperature": TEMPERATURE}
        _check_drafts(3, 1, 64, batch, torch.float16, **how)
        _check_drafts(4, 2, 64, batch, torch.bfloat16, cache_dtype=torch.int8, **how)
    _check_drafts(4, 2, 64, "ragged", torch.bfloat16, window=window, first_position=40)


@KEYS
@pytest.mark.parametrize("cache_dtype", CACHE_SCALES, ids=NAMES.get)
def test_drafts_over_caches_of_bytes(cache_dtype: torch.dtype, plain_keys: bool) -> None:
    for head_dim, dtype, batch in ((128, torch.bfloat16, "ragged"), (96, torch.float16, "alike")):
        _check_drafts(4, 2, head_dim, batch, dtype, cache_dtype=cache_dtype, plain_keys=plain_keys)
    for scales in (RowScales("int8", 2**-6), RowScales("float8_e4m3fn", 2**-7)):
        _check_drafts(4, 2, 64, "edges of blocks", torch.bfloat16, y_scales=scales)


def test_decode_of_drafts_by_single_copies() -> None:
    _check_drafts(8, 2, 128, "edges of blocks", torch.bfloat16, page=16, machine=Emulator("sm_80"))


def test_decode_by_single_copies() -> None:
    """GPUs before sm_90 copy by cp.async."""
    machine = Emulator("sm_80")
    check_decode(attention_shape(8, 2, 128, 16), LENGTHS["edges of blocks"], torch.bfloat16, machine=machine)


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_prefill_wgmma(batch: list[tuple[int, int]], page: int) -> None:
    for seed in SEEDS:
        shape = attention_shape(4, 1, 128, page)
        check_prefill(shape, batch, torch.bfloat16, wgmma=True, machine=Emulator(seed=seed))


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_prefill_mma(batch: list[tuple[int, int]], page: int) -> None:
    check_prefill(attention_shape(4, 1, 128, page), batch, torch.bfloat16, wgmma=False, machine=Emulator())


WGMMA_HEADS = [(3, 1, 64, True), (2, 2, 80, True), (6, 2, 96, True), (16, 1, 256, True)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "wgmma"), [*WGMMA_HEADS, (2, 2, 80, False), (16, 1, 256, False)]
)
def test_prefill_heads(heads: int, kv_heads: int, head_dim: int, wgmma: bool) -> None:
    shape, batch = attention_shape(heads, kv_heads, head_dim, 16), BATCHES["mixed with decoding"]
    check_prefill(shape, batch, torch.float16, wgmma=wgmma, machine=Emulator())


@pytest.mark.parametrize(("step", "page"), [(32, 16), (16, 64)])
@pytest.mark.parametrize("head_dim", [288, 512])
def test_prefill_wide_heads(head_dim: int, step: int, page: int) -> None:
    """Two warps share rows, and each makes half of the columns of the output."""
    for heads, kv_heads, window in ((8, 1, 0), (3, 1, 17), (11, 1, 0)):
        shape, batch = attention_shape(heads, kv_heads, head_dim, page), BATCHES["mixed with decoding"]
        check_prefill(shape, batch, torch.bfloat16, window, wgmma=False, mma_step=step, machine=Emulator())


@pytest.mark.parametrize("head_dim", [112, 176, 240])
def test_prefill_in_short_steps(head_dim: int) -> None:
    """Shared memory is small; the number of pieces in a step is not always a multiple of the number of threads."""
    shape, batch = attention_shape(2, 1, head_dim, 16), BATCHES["mixed with decoding"]
    check_prefill(shape, batch, torch.float16, wgmma=False, mma_step=32, machine=Emulator("sm_80"))


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("window", [1, 17, 250])
def test_prefill_window(window: int, wgmma: bool) -> None:
    shape = attention_shape(4, 1, 64, 32)
    check_prefill(shape, BATCHES["chunks"], torch.bfloat16, window, wgmma=wgmma, machine=Emulator())


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("first_position", [1, 150])
@pytest.mark.parametrize("window", [0, 17])
def test_prefill_from_a_later_position_on(window: int, first_position: int, wgmma: bool) -> None:
    shape, how = attention_shape(4, 1, 64, 32), {"first_position": first_position, "machine": Emulator()}
    for batch in (BATCHES["chunks"], BATCHES["odd sizes"]):
        check_prefill(shape, batch, torch.bfloat16, window, wgmma=wgmma, **how)


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize("window", [0, 24, 64, 160])
def test_prefill_of_chunks_at_temperatures(window: int, wgmma: bool) -> None:
    """With chunks of 160 positions, some rows of a block see none of the keys of its first tile."""
    how = {"chunked": True, "temperature": TEMPERATURE, "wgmma": wgmma, "machine": Emulator()}
    for batch in (BATCHES["chunks"], BATCHES["mixed with decoding"]):
        check_prefill(attention_shape(4, 2, 64, 32), batch, torch.float16, window, **how)
    shape = attention_shape(3, 1, 64, 16)
    how["temperature"] = (5, 0, 0.7)
    check_prefill(shape, [(100, 130)], torch.float16, window, 2.0, sinks=True, **how)
    if wgmma:
        how["cache_dtype"] = torch.float8_e4m3fn
        for plain_keys in (False, True):
            check_prefill(shape, [(100, 130)], torch.bfloat16, window, plain_keys=plain_keys, **how)


@pytest.mark.parametrize(("softcap", "dtype"), CAPS)
@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "window"), [(4, 2, 64, 0), (4, 1, 128, 17), (2, 1, 256, 0)])
def test_prefill_softcap(
    heads: int, kv_heads: int, head_dim: int, window: int, wgmma: bool, softcap: float, dtype: torch.dtype
) -> None:
    shape = attention_shape(heads, kv_heads, head_dim, 32)
    check_prefill(shape, BATCHES["chunks"], dtype, window, softcap, wgmma=wgmma, machine=Emulator())


@pytest.mark.parametrize("wgmma", [True, False], ids=["wgmma", "mma"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "window"), [(4, 2, 64, 0), (6, 2, 64, 17), (2, 1, 256, 0)])
def test_prefill_sinks(heads: int, kv_heads: int, head_dim: int, window: int, wgmma: bool) -> None:
    shape, how = attention_shape(heads, kv_heads, head_dim, 32), {"wgmma": wgmma, "sinks": True}
    for name in ("chunks", "mixed with decoding"):
        check_prefill(shape, BATCHES[name], torch.float16, window, machine=Emulator(), **how)
    check_prefill(shape, BATCHES["odd sizes"], torch.bfloat16, window, 2.0, machine=Emulator(), **how)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page", "norm"),
    [(8, 2, 128, 16, False), (3, 1, 80, 32, True), (14, 2, 64, 64, True)],
)
def test_rope_cache(heads: int, kv_heads: int, head_dim: int, page: int, norm: bool) -> None:
    check_rope_cache(attention_shape(heads, kv_heads, head_dim, page), 37, norm=norm, machine=Emulator())


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 0), (96, 72), (40, 20), (256, 64)])
@pytest.mark.parametrize("norm", [False, True])
def test_rope_cache_of_a_part_of_each_head(head_dim: int, rotary_dim: int, norm: bool) -> None:
    shape = attention_shape(3, 1, head_dim, 16)
    check_rope_cache(shape, 19, norm=norm, rotary_dim=rotary_dim, machine=Emulator())


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 80), (96, 72)])
def test_rope_cache_with_norms_after_rope(head_dim: int, rotary_dim: int) -> None:
    shape = attention_shape(3, 1, head_dim, 16)
    check_rope_cache(shape, 19, norm=True, after_rope=True, rotary_dim=rotary_dim, machine=Emulator())


@pytest.mark.parametrize("appends", [True, False])
@pytest.mark.parametrize("head_dim", [80, 512])
def test_rope_cache_with_norms_of_values(head_dim: int, appends: bool) -> None:
    how = {"norm": True, "value_norm": True, "appends": appends, "machine": Emulator()}
    check_rope_cache(attention_shape(8, 2, head_dim, 16), 19, **how)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 0), (96, 48)])
def test_qkv_linear_of_a_part_of_each_head(head_dim: int, rotary_dim: int) -> None:
    shape = ModelShape(576, 1536, 2, 1, head_dim, 1000, page=32, qkv_bias=True)
    check_qkv_linear(shape, 4, 3, torch.bfloat16, rotary_dim=rotary_dim, machine=Emulator())


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (4, 3), (16, 13)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 64), (2, 1, 80)])
def test_qkv_linear(heads: int, kv_heads: int, head_dim: int, tokens: int, rows: int) -> None:
    shape = ModelShape(576, 1536, heads, kv_heads, head_dim, 1000, page=32, qkv_bias=heads == 2)
    check_qkv_linear(shape, tokens, rows, torch.bfloat16, machine=Emulator())


@pytest.mark.parametrize(("window", "page"), [(0, 32), (70, 128)])
@pytest.mark.parametrize("wgmma", [False, True])
def test_rows_get_the_same_bits_in_any_company(wgmma: bool, window: int, page: int) -> None:
    """Deterministic engines walk all rows in the same order: tiles begin at multiples of their length."""
    shape = attention_shape(4, 2, 64, page)
    check_rows_alone(shape, 150, 20, torch.bfloat16, window, wgmma=wgmma, machine=Emulator())
    if not window:
        chunks = {"chunked": True, "temperature": TEMPERATURE}
        check_rows_alone(shape, 245, 20, torch.bfloat16, 128, wgmma=wgmma, **chunks, machine=Emulator())
    if wgmma and not window:
        how = {"wgmma": True, "cache_dtype": torch.int8, "machine": Emulator()}
        for plain_keys in (False, True):
            check_rows_alone(shape, 60, 9, torch.bfloat16, plain_keys=plain_keys, **how)
