"""Compares kernels around the paged cache with float64: RoPE and cache write, decode and prefill attention."""

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.gpu.attention import DecodeAttention, PrefillAttention
from tests.gpu.byte_checks import HALF_STEPS, rounded
from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import GPU, Machine
from tests.gpu.kernels import ModelShape, QkvLinear
from tests.gpu.memory import NAMES
from tests.gpu.paged import CacheTypes, PagedCache, beginnings, bits, in_range, poisoned, unpacked
from trtllm_lite.plugins.cuda.row_scales import RowScales
from trtllm_lite.plugins.paged_attention.launches import Heads
from trtllm_lite.plugins.paged_attention.prefill import WIDE_TOKENS

EPSILON = 1e-5


def attention_shape(heads: int, kv_heads: int, head_dim: int, page: int) -> ModelShape:
    return ModelShape(heads * head_dim, 1024, heads, kv_heads, head_dim, 1000, page=page)


def _query(rows: int, shape: ModelShape, dtype: torch.dtype, softcap: float, device: str) -> torch.Tensor:
    """Random queries; with a cap, scores are about as large as the cap."""
    return (torch.randn(rows, shape.heads, shape.head_dim, device=device) * (softcap or 1.0)).to(dtype)


def _sinks(wanted: bool, shape: ModelShape, device: str) -> torch.Tensor | None:
    """Random sinks, some of which are larger than all scores; the exponential of one exceeds float32."""
    if not wanted:
        return None
    scores = 4 * torch.randn(shape.heads, device=device)
    scores[-1] = 1000
    return scores


def _skip_unless_read(cache_dtype: torch.dtype | None, machine: Machine) -> None:
    if cache_dtype and machine.arch != "sm_90a":
        pytest.skip(f"8-bit caches need sm_90a, this is {machine.arch}")


def check_decode(
    shape: ModelShape,
    lengths: list[int],
    dtype: torch.dtype,
    window: int = 0,
    softcap: float = 0.0,
    *,
    new: list[int] | None = None,
    first_position: int = 0,
    sinks: bool = False,
    chunked: bool = False,
    temperature: tuple[int, int, float] | None = None,
    machine: Machine = GPU,
    y_scales: RowScales | None = None,
    cache_dtype: torch.dtype | None = None,
    plain_keys: bool = False,
    **options: int,
) -> None:
    """``lengths`` of sequences include their new tokens; ``options`` are those of :class:`DecodeAttention`.

    ``new``: the number of each sequence's new tokens (default: one), for kernels of several; sequences without tokens
    follow then, as in padded steps. ``cache_dtype``: the type of an 8-bit cache, if ``plain_keys`` of values alone.
    """
    _skip_unless_read(cache_dtype, machine)
    types = CacheTypes.of(dtype, cache_dtype, plain_keys)
    cache = PagedCache(shape, lengths, types, machine.device)
    counts = new or [1] * len(lengths)
    query = _query(sum(counts), shape, types.queries, softcap, machine.device)
    past = [length - count for length, count in zip(lengths, counts, strict=True)]
    mask = {"softcap": softcap, "first_position": first_position, "sinks": _sinks(sinks, shape, machine.device)}
    mask |= {"chunked": chunked, "temperature": temperature}
    how = {**mask, "cache_dtype": cache_dtype, "plain_keys": plain_keys, "machine": machine, **options}
    attention = DecodeAttention(shape, dtype, **how)
    attention.partials.fill_(POISON)
    parts = query.split(counts)
    expected = torch.cat([cache.attend(part, s, past[s], window, **mask) for s, part in enumerate(parts)])
    past_lens, tables = torch.tensor(past).int().to(machine.device), cache.give_back(past, window, chunked)
    of_tokens = cache.last_slots()
    if new:
        ends = [0, *itertools.accumulate(new)]
        of_tokens = torch.tensor([*ends, ends[-1], ends[-1]], device=machine.device, dtype=torch.int32)
        past_lens = torch.cat([past_lens, past_lens.new_full((2,), 1 << 30)])
        tables = torch.cat([tables, tables.new_full((2, tables.shape[1]), -1)])
    results = []
    for _ in range(2):  # the second launch finds the counters that the first left
        output = torch.full_like(query, POISON, dtype=dtype)
        tensors = (query, cache.key_cache, cache.value_cache, past_lens, tables, of_tokens)
        attention(output, *tensors, window=window)
        assert_close(output, expected)
        results.append(output)
    assert torch.equal(*results)
    assert not attention.arrivals.any()
    if y_scales is not None:
        in_bytes = DecodeAttention(shape, dtype, y_scales=y_scales, **how)
        _check_bytes(results[0], y_scales, lambda output: in_bytes(output, *tensors, window=window))


def check_prefill(
    shape: ModelShape,
    batch: list[tuple[int, int]],
    dtype: torch.dtype,
    window: int = 0,
    softcap: float = 0.0,
    *,
    wgmma: bool,
    first_position: int = 0,
    sinks: bool = False,
    chunked: bool = False,
    temperature: tuple[int, int, float] | None = None,
    mma_step: int = 64,
    y_scales: RowScales | None = None,
    cache_dtype: torch.dtype | None = None,
    plain_keys: bool = False,
    wide_blocks: int = 0,
    wide_tokens: int = WIDE_TOKENS,
    machine: Machine = GPU,
) -> None:
    """``batch``: past and new tokens of each sequence; ``cache_dtype`` and ``plain_keys`` as in :func:`check_decode`.

    ``wide_blocks`` and ``wide_tokens`` as in :class:`PrefillAttention`: exactly the blocks that wide_cache.cuh names
    must be converted.
    """
    _skip_unless_read(cache_dtype, machine)
    mask = {"softcap": softcap, "first_position": first_position, "sinks": _sinks(sinks, shape, machine.device)}
    mask |= {"chunked": chunked, "temperature": temperature}
    how = {**mask, "wgmma": wgmma, "mma_step": mma_step, "cache_dtype": cache_dtype, "machine": machine}
    how |= {"plain_keys": plain_keys, "wide_blocks": wide_blocks, "wide_tokens": wide_tokens}
    attention = PrefillAttention(shape, dtype, **how)
    if attention.wgmma != wgmma:
        pytest.skip(f"{machine.arch} has no wgmma")
    types = CacheTypes.of(dtype, cache_dtype, plain_keys)
    cache = PagedCache(shape, [past + new for past, new in batch], types, machine.device)
    new = torch.tensor([new for _, new in batch])
    cu_seqlens = torch.cat([torch.zeros(1), new.cumsum(0)]).int().to(machine.device)
    past_lens = torch.tensor([past for past, _ in batch], device=machine.device, dtype=torch.int32)
    query = _query(int(new.sum()), shape, types.queries, softcap, machine.device)
    parts = query.split([new for _, new in batch])
    expected = torch.cat([cache.attend(part, seq, batch[seq][0], window, **mask) for seq, part in enumerate(parts)])
    tables = cache.give_back([past for past, _ in batch], window, chunked)
    results = []
    for _ in range(2):  # the second launch finds the counter that the first left
        output = torch.full_like(query, POISON, dtype=dtype)
        tensors = (output, query, cache.key_cache, cache.value_cache, cu_seqlens, past_lens, tables)
        attention(*tensors, window=window)
        assert_close(output, expected)
        results.append(output)
    assert torch.equal(*results)
    assert not attention.taken.any()
    if attention.widen:
        long = _long_prompts(batch, shape.page, window, wide_blocks, wide_tokens)
        for wide, kept in ((attention.widen.keys, cache.key_cache), (attention.widen.values, cache.value_cache)):
            if wide is None:
                continue
            assert int((~wide.isnan()).flatten(1).all(1).sum()) == sum(map(len, long.values()))
            for seq, columns in long.items():  # attention reads the copies
                blocks = tables[seq, columns.start : columns.stop].long()
                kept[blocks] = poisoned(*kept[blocks].shape, dtype=kept.dtype, device=machine.device)
        output = torch.full_like(query, POISON, dtype=dtype)
        attention(output, *tensors[1:], window=window, widens=False)
        assert torch.equal(output, results[0])
        return
    if y_scales is not None:
        in_bytes = PrefillAttention(shape, dtype, y_scales=y_scales, **how)
        _check_bytes(results[0], y_scales, lambda output: in_bytes(output, *tensors[1:], window=window))


def _long_prompts(
    batch: list[tuple[int, int]], page: int, window: int, wide_blocks: int, wide_tokens: int
) -> dict[int, range]:
    """The columns of block tables that long prompts see, by sequence, for a window that moves; only those that fit."""
    found, total = {}, 0
    for seq, (past, new) in enumerate(batch):
        columns = range(max(past - window + 1, 0) // page if window else 0, -(-(past + new) // page))
        if new >= wide_tokens:
            total += len(columns)
            if total > wide_blocks:
                break
            found[seq] = columns
    return found


def check_rows_alone(
    shape: ModelShape,
    past: int,
    new: int,
    dtype: torch.dtype,
    window: int = 0,
    *,
    wgmma: bool,
    chunked: bool = False,
    temperature: tuple[int, int, float] | None = None,
    cache_dtype: torch.dtype | None = None,
    plain_keys: bool = False,
    machine: Machine = GPU,
) -> None:
    """Each new token of a sequence gets the same bits beside others, in chunks, as a decode row, and with drafts."""
    _skip_unless_read(cache_dtype, machine)
    how = {"chunked": chunked, "temperature": temperature, "cache_dtype": cache_dtype, "machine": machine}
    how["plain_keys"], types = plain_keys, CacheTypes.of(dtype, cache_dtype, plain_keys)
    attention = PrefillAttention(shape, dtype, wgmma=wgmma, **how)
    if attention.wgmma != wgmma:
        pytest.skip(f"{machine.arch} has no wgmma")
    cache = PagedCache(shape, [past + new], types, machine.device)
    query = _query(new, shape, types.queries, 0.0, machine.device)
    tables = cache.give_back([past], window, chunked)
    results = []
    of_decode_rows, of_drafts = (PrefillAttention(shape, dtype, wgmma=wgmma, num_new_tokens=n, **how) for n in (1, 9))
    in_thirds = [new // 3, 1, new - new // 3 - 1]
    with_drafts = [min(9, new - at) for at in range(0, new, 9)]
    steps = ((attention, [new]), (attention, [1] * new), (attention, in_thirds), (of_decode_rows, [1] * new))
    steps += ((of_drafts, with_drafts), (of_drafts, [1] * new), (of_drafts, [*with_drafts, 0, 0]))
    for launched, chunks in steps:
        ends = torch.tensor([0, *chunks]).cumsum(0).int()
        output = torch.full_like(query, POISON, dtype=dtype)
        places = (ends.to(machine.device), (ends[:-1] + past).to(machine.device), tables.repeat(len(chunks), 1))
        launched(output, query, cache.key_cache, cache.value_cache, *places, window=window)
        assert not launched.taken.any()
        results.append(output)
    for other in results[1:]:
        assert torch.equal(results[0], other)


def _check_bytes(rows: torch.Tensor, scales: RowScales, attend: Callable[[torch.Tensor], None]) -> None:
    """Check that bytes are exactly the rounded 16-bit ``rows`` of the same attention."""
    kind = next(dtype for dtype, name in NAMES.items() if name == scales.dtype)
    output = torch.full_like(rows, POISON, dtype=torch.float32).to(kind)
    attend(output)
    expected = rounded(rows.flatten(1), torch.full((len(rows), 1), scales.value, device=rows.device), kind)
    assert torch.equal(output.flatten(1).view(torch.uint8), expected.view(torch.uint8))


def assert_stored(
    cache: torch.Tensor,
    slots: torch.Tensor,
    expected: torch.Tensor,
    scale: float = 1.0,
    coarsest: torch.dtype | None = None,
) -> torch.Tensor:
    """Check that ``cache`` has ``expected`` [rows, kv_heads, dim] in ``slots`` and poison elsewhere.

    ``scale``: that of an 8-bit cache. ``coarsest``: a coarser type to which 16-bit elements were rounded before.
    """
    tokens, (_, _, page, _) = unpacked(cache), cache.shape
    at = (slots.long() // page, slice(None), slots.long() % page)
    found = tokens[at]
    if cache.itemsize == 1:
        of_number, of_scale = HALF_STEPS[cache.dtype]
        exact = expected / scale
        allowed = exact.abs() * of_number + of_scale + 0.02 * exact.square().mean().sqrt()  # sums are not exact
        off = (found.double() - in_range(exact, cache.dtype)).abs()
        assert (off <= allowed).all(), (off / allowed).max()
    else:
        assert_close(found, expected, coarsest)
    untouched = bits(poisoned(*cache.shape, dtype=cache.dtype, device=str(cache.device)))
    untouched[at] = bits(found)
    assert torch.equal(bits(tokens), untouched), "other slots were written"
    return found


def check_rope_cache(
    shape: ModelShape,
    rows: int,
    *,
    norm: bool,
    after_rope: bool = False,
    rotary_dim: int | None = None,
    cache_dtype: torch.dtype | None = None,
    plain_keys: bool = False,
    value_norm: bool = False,
    appends: bool = True,
    machine: Machine = GPU,
) -> None:
    """Check the rotation of ``rows`` bfloat16 tokens, and their keys and values in random slots of a poisoned cache.

    ``rotary_dim`` elements of a head are rotated (default: all), before their ``norm`` if that is ``after_rope``.
    ``cache_dtype`` and ``plain_keys`` as in :func:`check_decode`. With ``value_norm`` values are normalised; unless the
    layer ``appends``, there are queries alone.
    """
    heads, kv_heads, dim, page = shape.heads, shape.kv_heads, shape.head_dim, shape.page
    dtype, device, blocks = torch.bfloat16, machine.device, -(-rows // page) + 1
    qkv = torch.randn(rows, heads + 2 * kv_heads, dim, device=device).to(dtype)
    rotated_dim = dim if rotary_dim is None else rotary_dim
    angles = torch.rand(rows, rotated_dim // 2, device=device) * 6.3
    slots = torch.randperm(blocks * page, device=device)[:rows].int()
    norms = torch.randn(3, dim, device=device)
    types = CacheTypes.of(dtype, cache_dtype, plain_keys)
    q, scales = torch.full((rows, heads, dim), POISON, device=device, dtype=types.queries), types.scales
    keys, values = types.poisoned(blocks, kv_heads, page, dim, device=device)
    names, stride = (NAMES[dtype], NAMES[types.values]), types.block_bytes(kv_heads, dim, page)
    of_layer = Heads(heads, kv_heads, dim, page, *names, stride, rotated_dim, key_dtype=NAMES[types.keys])
    defines = of_layer.rope_defines()
    defines |= {"TL_WARPS": 8, "TL_NORM": int(norm) * (2 if after_rope else 1), "TL_STORED": int(norm)}
    defines |= {"TL_VALUE_NORM": int(value_norm), "TL_APPENDS": int(appends)}
    stored = torch.full((rows, 2 * kv_heads, dim), POISON, device=device, dtype=dtype)
    kernel = machine.kernel("paged_attention/rope_cache.cuh", "rope_cache", 256, 0, defines)
    tables = (angles.cos(), angles.sin())
    factors = [1 / scale for scale in scales]
    untouched = [bits(cache).clone() for cache in (keys, values)]
    given = qkv if appends else qkv[:, :heads].contiguous()
    kernel(q, keys, values, stored, given, *tables, slots, *norms, EPSILON, *factors, grid=rows)
    wide, cos, sin = qkv.double(), angles.double().cos()[:, None], angles.double().sin()[:, None]

    def normed(rows: torch.Tensor) -> torch.Tensor:
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPSILON)
        rows[:, :heads] *= norms[0].double()
        rows[:, heads : heads + kv_heads] *= norms[1].double()
        return rows

    wide = normed(wide) if norm and not after_rope else wide
    low, high = wide[..., :rotated_dim].chunk(2, dim=-1)
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin, wide[..., rotated_dim:]], dim=-1)
    rotated = normed(rotated) if norm and after_rope else rotated
    assert_close(q, rotated[:, :heads])
    if not appends:
        assert all(torch.equal(bits(cache), before) for cache, before in zip((keys, values), untouched, strict=True))
        return
    written = [beginnings(cache, kv_heads, page, dim) for cache in (keys, values)]
    assert_stored(written[0], slots, rotated[:, heads : heads + kv_heads], scales[0])
    unrotated = qkv[:, heads + kv_heads :]
    if value_norm:
        wide = unrotated.double()
        normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * norms[2].double()
        assert_stored(written[1], slots, normalised, scales[1])
        return
    found = assert_stored(written[1], slots, unrotated.double(), scales[1])
    if cache_dtype:  # the numbers include midpoints between two bytes, and numbers beyond the largest
        expected = rounded(unrotated.flatten(1), torch.full((rows, 1), scales[1], device=device), cache_dtype)
        assert torch.equal(bits(found.flatten(1)), bits(expected))
    if norm:
        assert_close(stored[:, :kv_heads], rotated[:, heads : heads + kv_heads])
        assert torch.equal(stored[:, kv_heads:], unrotated)


def rotated(
    shape: ModelShape, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = qkv.view(len(qkv), -1, shape.head_dim)
    rotated, values = heads.split([shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
    rotated_dim = 2 * cos.shape[1]
    low, high = rotated[..., :rotated_dim].chunk(2, dim=-1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin, rotated[..., rotated_dim:]], dim=-1)
    return rotated[:, : shape.heads], rotated[:, shape.heads :], values


def check_qkv_linear(
    shape: ModelShape,
    tokens: int,
    rows: int,
    dtype: torch.dtype,
    *,
    rotary_dim: int | None = None,
    cache_dtype: torch.dtype | None = None,
    plain_keys: bool = False,
    machine: Machine = GPU,
) -> None:
    """Check ``rows`` tokens, by a kernel for at most ``tokens``, in random slots of a poisoned cache.

    ``cache_dtype`` and ``plain_keys`` as in :func:`check_decode`.
    """
    device, num_blocks = machine.device, 5
    x = torch.randn(rows, shape.hidden, device=device).to(dtype)
    weight = (torch.randn(shape.qkv_features, shape.hidden, device=device) * shape.hidden**-0.5).to(dtype)
    norm_weight = torch.randn(shape.hidden, device=device)
    bias = torch.randn(shape.qkv_features, device=device) if shape.qkv_bias else None
    angles = torch.rand(rows, (shape.head_dim if rotary_dim is None else rotary_dim) // 2, device=device) * 6.3
    slots = torch.randperm(num_blocks * shape.page, device=device)[:rows].int()
    types, block = CacheTypes.of(dtype, cache_dtype, plain_keys), (shape.kv_heads, shape.page, shape.head_dim)
    q = torch.full((rows, shape.heads, shape.head_dim), POISON, device=device, dtype=types.queries)
    keys, values = types.poisoned(num_blocks, *block, device=device)
    step = {"cos": angles.cos(), "sin": angles.sin(), "slots": slots}
    how = {"rotary_dim": rotary_dim, "cache_dtype": cache_dtype, "plain_keys": plain_keys, "cache_scales": types.scales}
    linear = QkvLinear(shape, tokens, dtype, **how, machine=machine)
    linear(q, keys, values, x, weight, norm_weight=norm_weight, bias=bias, epsilon=EPSILON, **step)

    wide = x.double()
    seen = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * norm_weight.double()).to(dtype)
    qkv = seen.double() @ weight.double().T + (0 if bias is None else bias.double())
    expected = rotated(shape, qkv, step["cos"], step["sin"])
    assert_close(q, expected[0])
    for written, reference, scale in zip((keys, values), expected[1:], types.scales, strict=True):
        assert_stored(beginnings(written, *block), slots, reference, scale)
