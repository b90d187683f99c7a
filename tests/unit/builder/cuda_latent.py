"""The kernels of latent attention in numpy over raw memory; see cuda_kernels.py."""

import numpy as np

from tests.unit.builder.cuda_kernels import NUM_SMS, Grid, Macros, Pointer, at, blocks_at, half_type, kernel, normalised


def _rotated(rows: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    low, high = np.split(rows, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _cache(macros: Macros, pointer: Pointer, dim: int) -> np.ndarray:
    """Every token of a cache: [blocks, page, dim]."""
    return blocks_at(pointer, half_type(macros), macros["TL_BLOCK_BYTES"], macros["TL_PAGE"], dim)


@kernel
def absorb_queries(
    macros: Macros,
    grid: Grid,
    absorbed: Pointer,
    keys: Pointer,
    latents: Pointer,
    query: Pointer,
    latent: Pointer,
    key_up: Pointer,
    norm: Pointer,
    cos: Pointer,
    sin: Pointer,
    slots: Pointer,
    epsilon: float,
    rows: int,
) -> None:
    half = half_type(macros)
    heads, plain, rotary, wide = (macros[f"TL_{name}"] for name in ("HEADS", "IN", "ROTARY_DIM", "LATENT_DIM"))
    _multiply_heads(macros, (grid[0] - macros["TL_ROWS"] // 16, *grid[1:]), absorbed, query, key_up, rows)
    tables = [at(table, np.float32, rows, rotary // 2).astype(np.float64) for table in (cos, sin)]
    new, key = np.split(at(latent, half, rows, wide + rotary).astype(np.float64), [wide], axis=1)
    places = np.divmod(at(slots, np.int32, rows), macros["TL_PAGE"])
    _cache(macros, latents, wide)[places] = normalised(new, norm, epsilon)
    _cache(macros, keys, rotary)[places] = _rotated(key, *tables)
    parts = at(query, half, rows, heads * (plain + rotary)).astype(np.float64)[:, heads * plain :]
    of_heads = _rotated(parts.reshape(rows, heads, rotary), *(table[:, None] for table in tables))
    at(absorbed, half, rows, heads, wide + rotary)[..., wide:] = of_heads


@kernel
def make_values(macros: Macros, grid: Grid, y: Pointer, mean: Pointer, value_up: Pointer, rows: int) -> None:
    _multiply_heads(macros, grid, y, mean, value_up, rows)


def _multiply_heads(macros: Macros, grid: Grid, y: Pointer, x: Pointer, weight: Pointer, rows: int) -> None:
    half, heads, depth, width = half_type(macros), macros["TL_HEADS"], macros["TL_IN"], macros["TL_OUT"]
    assert grid[:2] == (heads * width // macros["TL_COLUMNS"], -(-rows // macros["TL_ROWS"]))
    matrices = at(weight, half, heads, *((depth, width) if macros["TL_INPUTS_FIRST"] else (width, depth)))
    matrices = matrices if macros["TL_INPUTS_FIRST"] else matrices.transpose(0, 2, 1)
    for head in range(heads):
        source, target = (pointer[2 * head * macros[f"TL_{name}_HEAD"] :] for pointer, name in ((x, "X"), (y, "Y")))
        for row in range(rows):
            elements = at(source[2 * row * macros["TL_X_STRIDE"] :], half, depth).astype(np.float64)
            at(target[2 * row * macros["TL_Y_STRIDE"] :], half, width)[...] = elements @ matrices[head].astype(float)


@kernel
def attend_latents(
    macros: Macros,
    grid: Grid,
    mean: Pointer,
    query: Pointer,
    keys: Pointer,
    latents: Pointer,
    cu_seqlens: Pointer,
    past_lens: Pointer,
    block_tables: Pointer,
    num_seqs: int,
    max_blocks: int,
    scale: float,
    partials: Pointer | None,
    arrivals: Pointer | None,
) -> None:
    half, heads, page, wide = half_type(macros), macros["TL_HEADS"], macros["TL_PAGE"], macros["TL_LATENT_DIM"]
    past, blocks = at(past_lens, np.int32, num_seqs), -(-heads // 64)
    ends = at(cu_seqlens, np.int32, num_seqs + 1)
    item_tokens = 64 // min(heads, 64)
    items = sum(-(-int(length) // item_tokens) for length in np.diff(ends))
    if "TL_MAX_ITEMS" in macros:
        assert 0 < items <= macros["TL_MAX_ITEMS"]
        assert 0 <= np.diff(ends).min() <= np.diff(ends).max() <= macros["TL_NEW_TOKENS"]
        assert grid == (NUM_SMS, 1, 1)
        rows = min(item_tokens, macros["TL_NEW_TOKENS"]) * min(heads, 64)
        at(partials, np.float32, 2 * grid[0] * rows * (wide + 2))[...] = np.nan
        assert not at(arrivals, np.int32, items * blocks).any()
    else:
        assert grid[0] >= items, "some rows have no block"
        assert grid[1] == blocks
    rows = int(ends[-1])
    queries = at(query, half, rows, heads, wide + macros["TL_ROTARY_DIM"]).astype(np.float64)
    results = at(mean, half, rows, heads, wide)
    for seq in range(num_seqs):
        table = block_tables[4 * max_blocks * seq : 4 * max_blocks * (seq + 1)].view(np.int32)
        for row in range(ends[seq], ends[seq + 1]):
            positions = np.arange(past[seq] + row - ends[seq] + 1)
            slots = table[positions // page], positions % page
            seen = _cache(macros, latents, wide)[slots].astype(np.float64)
            all_keys = np.concatenate([seen, _cache(macros, keys, macros["TL_ROTARY_DIM"])[slots].astype(float)], 1)
            scores = queries[row] @ all_keys.T * scale
            weights = np.exp2(scores - scores.max(1, keepdims=True))
            results[row] = weights / weights.sum(1, keepdims=True) @ seen
