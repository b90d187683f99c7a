"""The attention kernels in numpy over raw memory; see cuda_kernels.py."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.unit.builder.cuda_kernels import (
    BYTE_TYPES,
    NUM_SMS,
    Grid,
    Macros,
    Pointer,
    at,
    blocks_at,
    half_type,
    kernel,
    normalised,
    product,
    rounded,
    tiled_product,
)

KINDS = ("TL_KEY_TYPE", "TL_CACHE_TYPE")  # macros of the row types of keys and of values


def _cache(macros: Macros, kind: str, pointer: Pointer) -> np.ndarray:
    """Every token of the cache whose type the macro ``kind`` is: [blocks, kv_heads, page, dim]."""
    dtype = BYTE_TYPES.get(macros[kind]) or half_type(macros)
    return blocks_at(pointer, dtype, macros["TL_BLOCK_BYTES"], *_block_shape(macros))


def _sections(sharing: int) -> tuple[int, int]:
    """The query heads of a section of those that share a key/value head, and the number of such sections."""
    sections = -(-sharing // 16)
    return -(-sharing // sections), sections


def _block_shape(macros: Macros) -> tuple[int, ...]:
    return macros["TL_KV_HEADS"], macros["TL_PAGE"], macros["TL_HEAD_DIM"]


def _wide(macros: Macros) -> Macros:
    """``macros`` of the blocks of float16 that ``widen_cache`` makes, which lie behind each other."""
    block_bytes = 2 * int(np.prod(_block_shape(macros)))
    return {**macros, **dict.fromkeys(KINDS, 0), "TL_FP16": 1, "TL_BLOCK_BYTES": block_bytes}


def _stored(kind: int, rows: np.ndarray, factor: float) -> np.ndarray:
    """Rows rounded as a cache of the row type ``kind`` stores them."""
    return _in_bytes(kind, rows, factor) if kind else rows


def _in_bytes(kind: int, rows: np.ndarray, factor: float) -> np.ndarray:
    """Rows [rows, heads, dim] times ``factor``, rounded to the row type ``kind``."""
    return rounded(kind, rows.reshape(len(rows), -1), 1 / factor, False)[0].reshape(rows.shape)


def _append(
    macros: Macros,
    qkv: np.ndarray,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    cos: Pointer | None,
    sin: Pointer | None,
    slots: Pointer,
    factors: tuple[float, float],
    norms: tuple[Pointer | None, Pointer | None, float] | None = None,
) -> None:
    """Rotate and store [rows, heads, dim] in float64; ``norms`` of queries and keys come after RoPE."""
    heads, kv_heads, dim, page = (macros[f"TL_{name}"] for name in ("HEADS", "KV_HEADS", "HEAD_DIM", "PAGE"))
    rows, half, pairs = len(qkv), half_type(macros), macros["TL_ROTARY_DIM"] // 2
    rotated = qkv[:, : heads + kv_heads]
    if pairs:
        c, s = (at(table, np.float32, rows, 1, pairs).astype(np.float64) for table in (cos, sin))
        low, high, rest = np.split(rotated, [pairs, 2 * pairs], axis=-1)
        rotated = np.concatenate([low * c - high * s, high * c + low * s, rest], axis=-1)
    if norms is not None:
        rotated = np.concatenate(
            [normalised(rotated[:, :heads], norms[0], norms[2]), normalised(rotated[:, heads:], norms[1], norms[2])], 1
        )
    at(query, np.float16 if macros["TL_KEY_TYPE"] else half, rows, heads, dim)[...] = rotated[:, :heads]
    if not macros.get("TL_APPENDS", 1):
        return
    places = at(slots, np.int32, rows)
    new = (rotated[:, heads:], qkv[:, heads + kv_heads :])
    for kind, cache, heads_of, factor in zip(KINDS, (keys, values), new, factors, strict=True):
        _cache(macros, kind, cache)[places // page, :, places % page] = _stored(macros[kind], heads_of, factor)


@kernel
def qkv_linear(
    macros: Macros,
    grid: Grid,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    norm_weight: Pointer | None,
    bias: Pointer | None,
    cos: Pointer | None,
    sin: Pointer | None,
    slots: Pointer,
    rows: int,
    epsilon: float,
    x_scale: float,
    *factors: float,
) -> None:
    del grid
    result = product(macros, x, weight, weight_scale, weight_offset, norm_weight, rows, epsilon, x_scale)
    if macros["TL_BIAS"]:
        result += at(bias, np.float32, macros["TL_OUT"])
    heads = result.reshape(rows, -1, macros["TL_HEAD_DIM"])
    _append(macros, heads, query, keys, values, cos, sin, slots, (factors[0], factors[1]))


@kernel
def qkv_linear_tiled(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    row_scales: Pointer | None,
    bias: Pointer | None,
    cos: Pointer | None,
    sin: Pointer | None,
    slots: Pointer,
    x_scale: float,
    rows: int,
    *factors: float,
) -> None:
    del grid
    result = tiled_product(macros, x, weight, weight_scale, weight_offset, row_scales, x_scale, rows)
    if macros["TL_BIAS"]:
        result += at(bias, np.float32, macros["TL_OUT"])
    heads = result.reshape(rows, -1, macros["TL_HEAD_DIM"])
    _append(macros, heads, query, keys, values, cos, sin, slots, (factors[0], factors[1]))


@kernel
def qkv_linear_swap_ab(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    bias: Pointer | None,
    cos: Pointer | None,
    sin: Pointer | None,
    slots: Pointer,
    rows: int,
    *factors: float,
) -> None:
    operands = (x, weight, query, keys, values, weight_scale, weight_offset, None, bias, cos, sin, slots)
    qkv_linear_tiled(macros, grid, *operands, 0.0, rows, *factors)


@kernel
def rope_cache(
    macros: Macros,
    grid: Grid,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    stored: Pointer | None,
    qkv: Pointer,
    cos: Pointer | None,
    sin: Pointer | None,
    slots: Pointer,
    query_norm: Pointer | None,
    key_norm: Pointer | None,
    value_norm: Pointer | None,
    epsilon: float,
    *factors: float,
) -> None:
    heads, kv_heads = macros["TL_HEADS"], macros["TL_KV_HEADS"]
    shape = (grid[0], heads + 2 * kv_heads * macros["TL_APPENDS"], macros["TL_HEAD_DIM"])
    rows = at(qkv, half_type(macros), *shape).astype(np.float64)
    if macros["TL_NORM"] == 1:
        rows[:, :heads] = normalised(rows[:, :heads], query_norm, epsilon)
    if macros["TL_NORM"] == 1 and macros["TL_APPENDS"]:
        both = slice(heads, heads + kv_heads)
        rows[:, both] = normalised(rows[:, both], key_norm, epsilon)
    if macros["TL_VALUE_NORM"]:
        rows[:, heads + kv_heads :] = normalised(rows[:, heads + kv_heads :], value_norm, epsilon)
    last = (query_norm, key_norm, epsilon) if macros["TL_NORM"] == 2 else None
    _append(macros, rows, query, keys, values, cos, sin, slots, (factors[0], factors[1]), last)
    if macros["TL_STORED"]:
        assert not macros["TL_CACHE_TYPE"]
        places = at(slots, np.int32, len(rows))
        kept = [
            _cache(macros, kind, cache)[places // macros["TL_PAGE"], :, places % macros["TL_PAGE"]]
            for kind, cache in zip(KINDS, (keys, values), strict=True)
        ]
        at(stored, half_type(macros), len(rows), 2 * kv_heads, macros["TL_HEAD_DIM"])[...] = np.concatenate(kept, 1)


def _exponents(macros: Macros, products: np.ndarray, scale: float, cap: tuple[float, ...]) -> np.ndarray:
    """Scores as exponents of 2, up to an offset that all share; ``cap``: rate and height of the softcap."""
    if not macros["TL_SOFTCAP"]:
        assert not cap
        return products * scale
    rate, height = cap
    return height / (1 + np.exp2(products * scale * rate))


@dataclass(frozen=True)
class _Scores:
    """The numbers at the end of the arguments, from which scores are computed."""

    window: int
    value_scale: float
    scale: float
    cap: tuple[float, ...]
    temperature: tuple[float, ...]  # floor_scale, floor_offset and attn_scale

    @classmethod
    def taken(cls, macros: Macros, numbers: tuple[Any, ...]) -> tuple["_Scores", tuple[Any, ...]]:
        """The scores' numbers, taken from the beginning of ``numbers``, and the remaining ones."""
        window, value_scale, scale, *more = numbers
        cap, tuned = 2 * macros["TL_SOFTCAP"], 3 * macros["TL_TEMPERATURE"]
        own = cls(window, value_scale, scale, tuple(more[:cap]), tuple(more[cap : cap + tuned]))
        return own, tuple(more[cap + tuned :])


_Blocks = tuple[np.ndarray, np.ndarray]  # all blocks of a cache, and the numbers of a sequence's blocks there


def _attend(
    macros: Macros,
    caches: tuple[_Blocks, _Blocks],
    query: np.ndarray,
    past: int,
    how: _Scores,
    sinks: Pointer | None,
) -> np.ndarray:
    """Causal attention of ``query`` [new, heads, dim] at positions past, past + 1, … of the sequence of ``caches``."""
    heads, kv_heads, dim, page = (macros[f"TL_{name}"] for name in ("HEADS", "KV_HEADS", "HEAD_DIM", "PAGE"))
    length = past + len(query)
    keys, values = (
        cache[table[: -(-length // page)]].transpose(1, 0, 2, 3).reshape(kv_heads, -1, dim)[:, :length].astype("f8")
        for cache, table in caches
    )
    grouped = query.reshape(len(query), kv_heads, heads // kv_heads, dim).astype(np.float64)
    position, key = past + np.arange(len(query))[:, None], np.arange(length)
    products = np.einsum("qkgd,ktd->kgqt", grouped, keys)
    if how.temperature:
        floor_scale, floor_offset, attn_scale = how.temperature
        products *= 1 + attn_scale * np.log1p((position + int(floor_offset)) // int(floor_scale))
    scores = _exponents(macros, products, how.scale, how.cap)
    hidden = key > position
    if how.window:
        moving = position - how.window + 1
        hidden |= key < (position // how.window * how.window if macros["TL_CHUNKED"] else moving)
    hidden |= key < np.minimum(macros["TL_FIRST_POSITION"], position)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp2(np.where(hidden, -np.inf, scores - largest))
    total = weights.sum(-1, keepdims=True)
    if macros["TL_SINKS"]:
        assert not how.cap
        exponents = at(sinks, np.float32, kv_heads, heads // kv_heads, 1, 1) * np.log2(np.e)
        total += np.exp2(exponents - largest)
    weights /= total
    return np.einsum("kgqt,ktd->qkgd", weights, values).reshape(query.shape)


def _tables(pointer: Pointer, num_seqs: int, stride: int) -> list[np.ndarray]:
    """The block table of each sequence; the last one ends where the memory does."""
    return [pointer[4 * stride * seq : 4 * stride * (seq + 1)].view(np.int32) for seq in range(num_seqs)]


def _put(macros: Macros, output: Pointer, found: np.ndarray, factor: float, first: int = 0) -> None:
    """Store results [rows, heads, dim] from row ``first`` on, in 16 bits of the activations' type or in bytes."""
    rows, kind = found.astype(half_type({"TL_FP16": macros["TL_Y_FP16"]})), macros["TL_Y_TYPE"]
    if kind:
        rows = _in_bytes(kind, rows.astype(np.float64), factor)
    at(output[first * rows[0].nbytes :], rows.dtype.type, *rows.shape)[...] = rows


@kernel
def paged_attention_decode(
    macros: Macros,
    grid: Grid,
    output: Pointer,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    past_lens: Pointer,
    block_tables: Pointer,
    partials: Pointer,
    arrivals: Pointer,
    sinks: Pointer | None,
    of_tokens: Pointer,
    y_factor: float,
    num_seqs: int,
    max_blocks: int,
    shared_bytes: int,
    *numbers: Any,
) -> None:
    how, rest = _Scores.taken(macros, numbers)
    assert not rest
    heads, kv_heads, dim = (macros[f"TL_{name}"] for name in ("HEADS", "KV_HEADS", "HEAD_DIM"))
    num_new, item_tokens = macros["TL_NEW_TOKENS"], macros["TL_ITEM_TOKENS"]
    ends = np.arange(num_seqs + 1) if num_new == 1 else at(of_tokens, np.int32, num_seqs + 1)
    new = np.diff(ends)
    items = sum(-(-int(count) // item_tokens) for count in new)
    assert 0 <= new.min() <= new.max() <= num_new
    assert not new[np.argmin(new) :].any() or new.min() > 0, "sequences without tokens are not the last"
    assert 0 < items <= macros["TL_MAX_ITEMS"]
    assert grid[0] <= macros["TL_MAX_GRID"]
    assert shared_bytes >= 2 * macros["TL_WARPS"] * 32 * dim * sum(1 if macros[kind] else 2 for kind in KINDS)
    assert grid[1:] == (1, 1)
    group, sections = _sections(heads // kv_heads)
    rows = item_tokens * group
    parts, part = (1, rows) if num_new == 1 else (-(-rows // 8), min(rows, 8))
    at(partials, np.float32, 2 * grid[0] * parts * -(-part * (dim + 2) // 4) * 4)[...] = np.nan
    assert not at(arrivals, np.int32, items * kv_heads * sections).any()
    shape = (int(ends[-1]), heads, dim)
    queries, results = at(query, half_type(macros), *shape), np.zeros(shape)
    tables, past = _tables(block_tables, num_seqs, max_blocks), at(past_lens, np.int32, num_seqs)
    page = macros["TL_PAGE"]
    of_keys, of_values = (_cache(macros, kind, cache) for kind, cache in zip(KINDS, (keys, values), strict=True))
    for seq in np.flatnonzero(new):
        mine, table = slice(ends[seq], ends[seq + 1]), tables[seq]
        if num_new == 1:
            slot = at(of_tokens, np.int32, num_seqs)[seq]
            assert slot == table[past[seq] // page] * page + past[seq] % page, "not the new token's slot"
        found = _attend(macros, ((of_keys, table), (of_values, table)), queries[mine], int(past[seq]), how, sinks)
        results[mine] = found * how.value_scale
    _put(macros, output, results, y_factor)


def _wide_places(
    macros: Macros, ends: np.ndarray, past: np.ndarray, window: int, wide_blocks: int
) -> list[tuple[int, int, int] | None]:
    """For each sequence with a copy in the wide cache: its first seen block, the copy's first block, and their number.

    Prompts of enough tokens have one, behind each other, while they fit (wide_cache.cuh).
    """
    places: list[tuple[int, int, int] | None] = []
    begin, page = 0, macros["TL_PAGE"]
    for new, old in zip(np.diff(ends), past, strict=True):
        start = 0 if window == 0 else old // window * window if macros["TL_CHUNKED"] else max(old - window + 1, 0)
        first, count = int(start) // page, 0
        if new >= macros["TL_WIDE_TOKENS"]:
            count = -(-int(old + new) // page) - first
        places.append((first, begin, count) if count and begin + count <= wide_blocks else None)
        begin += count
    return places


@kernel
def widen_cache(
    macros: Macros,
    grid: Grid,
    wide_keys: Pointer | None,
    wide_values: Pointer,
    keys: Pointer,
    values: Pointer,
    cu_seqlens: Pointer,
    past_lens: Pointer,
    block_tables: Pointer,
    num_seqs: int,
    max_blocks: int,
    window: int,
    wide_blocks: int,
) -> None:
    assert grid[1:] == (1, 1)
    ends, past = at(cu_seqlens, np.int32, num_seqs + 1), at(past_lens, np.int32, num_seqs)
    tables = _tables(block_tables, num_seqs, max_blocks)
    for seq, place in enumerate(_wide_places(macros, ends, past, window, wide_blocks)):
        if place is None:
            continue
        first, begin, count = place
        for kind, wide, cache in zip(KINDS, (wide_keys, wide_values), (keys, values), strict=True):
            assert (wide is None) == (macros[kind] == 0)
            if wide is not None:
                seen = _cache(macros, kind, cache)[tables[seq][first : first + count]]
                _cache(_wide(macros), kind, wide)[begin : begin + count] = seen


@kernel
def paged_attention_prefill(
    macros: Macros,
    grid: Grid,
    output: Pointer,
    query: Pointer,
    keys: Pointer,
    values: Pointer,
    cu_seqlens: Pointer,
    past_lens: Pointer,
    block_tables: Pointer,
    sinks: Pointer | None,
    y_factor: float,
    num_seqs: int,
    max_blocks: int,
    *numbers: Any,
) -> None:
    heads, kv_heads, dim = (macros[f"TL_{name}"] for name in ("HEADS", "KV_HEADS", "HEAD_DIM"))
    how, rest = _Scores.taken(macros, numbers)
    taken, wide_keys, wide_values, wide_blocks = rest or (None, None, None, 0)
    assert taken is None or not at(taken, np.int32, 1).any()
    ends = at(cu_seqlens, np.int32, num_seqs + 1)
    rows = 64 if dim > 128 else 128
    group, sections = _sections(heads // kv_heads)
    blocks = sum(-(-int(length) // (rows // group)) for length in np.diff(ends))
    # The first kernel has a block per work item; the blocks of the second take items until none are left.
    takes_items = grid in ((NUM_SMS, 1, 1), (2 * NUM_SMS, 1, 1))
    assert takes_items or (grid[0] == kv_heads * sections and grid[1] >= blocks), "some rows have no block"
    tables, past = _tables(block_tables, num_seqs, max_blocks), at(past_lens, np.int32, num_seqs)
    shape = (int(ends[-1]), heads, dim)
    queries, results = at(query, half_type(macros), *shape), np.zeros(shape)
    places = _wide_places(macros, ends, past, how.window, wide_blocks) if wide_blocks else [None] * num_seqs
    for seq in range(num_seqs):
        mine, caches = slice(ends[seq], ends[seq + 1]), []
        for kind, cache, wide in zip(KINDS, (keys, values), (wide_keys, wide_values), strict=True):
            if places[seq] and macros[kind]:
                first, begin, count = places[seq]
                table = np.concatenate([np.full(first, begin), np.arange(begin, begin + count)])  # unseen blocks: any
                caches.append((_cache(_wide(macros), kind, wide), table))
            else:
                caches.append((_cache(macros, kind, cache), tables[seq]))
        found = _attend(macros, (caches[0], caches[1]), queries[mine], int(past[seq]), how, sinks)
        results[mine] = found * how.value_scale
    _put(macros, output, results[ends[0] :], y_factor, int(ends[0]))
