"""Checks of the row-wise kernels, on a GPU or emulated."""

import numpy as np
import torch

from tests.gpu.checks import POISON, assert_close
from tests.gpu.device import Machine
from tests.gpu.kernels import dtype_flag
from tests.gpu.ranks import rank_table
from trtllm_lite.plugins.cache_slots.reference import reference
from trtllm_lite.plugins.channel_magnitudes.reference import reference as magnitudes
from trtllm_lite.plugins.cuda.activation import ACTIVATION_FLAGS
from trtllm_lite.plugins.paged_load.reference import reference as load_reference
from trtllm_lite.plugins.paged_store.reference import reference as store_reference
from trtllm_lite.plugins.rowwise.cuda import elements_at_once, expression

_EPSILON = 1e-5
_THREADS = 256  # threads of gate_mul and side_by_side
_ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu2": lambda x: torch.relu(x).square(),  # of Linear, whose kernels have the same function
}


def check_layer_norm(
    rows: int, hidden: int, threads: int, dtype: torch.dtype, *, residual: bool, bias: bool, machine: Machine
) -> None:
    """Check one launch over random rows that are far from centred."""
    device = machine.device
    x, other = ((mean + torch.randn(rows, hidden, device=device)).to(dtype) for mean in (1, 0))
    weight, offset = torch.randn(2, hidden, device=device)
    y, total = (torch.full((rows, hidden), POISON, device=device, dtype=dtype) for _ in range(2))
    defines: dict[str, int | str] = {"TL_HIDDEN": hidden, "TL_THREADS": threads, "TL_FP16": dtype_flag(dtype)}
    defines |= {"TL_RESIDUAL": int(residual), "TL_BIAS": int(bias)}
    kernel = machine.kernel("layer_norm/cuda.cuh", "layer_norm", threads, 0, defines)
    kernel(y, total, x, weight.contiguous(), other, offset.contiguous(), _EPSILON, grid=rows)
    wide = x.double()
    if residual:
        assert torch.equal(total, x + other)
        wide = total.double()
    expected = torch.nn.functional.layer_norm(wide, (hidden,), weight.double(), None, _EPSILON)
    assert_close(y, expected + offset.double() if bias else expected)


def check_query_key_norm(
    rows: int, queries: int, keys: int, threads: int, dtype: torch.dtype, machine: Machine
) -> None:
    """Check random rows with as many values as keys; queries are much larger than keys."""
    device, features = machine.device, queries + 2 * keys
    x = torch.randn(rows, features, device=device)
    x[:, :queries] *= 50
    x = x.to(dtype)
    weights = [torch.randn(size, device=device) for size in (queries, keys)]
    y = torch.full((rows, features), POISON, device=device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_QUERIES": queries, "TL_KEYS": keys, "TL_FEATURES": features}
    defines |= {"TL_THREADS": threads, "TL_FP16": dtype_flag(dtype)}
    kernel = machine.kernel("query_key_norm/cuda.cuh", "query_key_norm", threads, 0, defines)
    kernel(y, x, *weights, _EPSILON, grid=rows)
    parts = x.double().split([queries, keys, keys], 1)
    for part, weight, normed in zip(parts, weights, y.split([queries, keys, keys], 1), strict=False):
        assert_close(normed, torch.nn.functional.rms_norm(part, part.shape[1:], weight.double(), _EPSILON))
    assert torch.equal(y[:, queries + keys :], x[:, queries + keys :])


def check_head_layer_norm(
    rows: int, heads: int, others: int, head_dim: int, dtype: torch.dtype, machine: Machine
) -> None:
    """Check random rows of ``heads`` with norms, whose means are not 0, and ``others`` without."""
    device, features = machine.device, (heads + others) * head_dim
    x = (3 + torch.randn(rows, features, device=device)).to(dtype)
    weight, threads = torch.randn(heads, head_dim, device=device), min(128, 32 * (heads + others))
    y = torch.full((rows, features), POISON, device=device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_NORMED_HEADS": heads, "TL_FEATURES": features, "TL_HEAD_DIM": head_dim}
    defines |= {"TL_THREADS": threads, "TL_FP16": dtype_flag(dtype)}
    kernel = machine.kernel("head_layer_norm/cuda.cuh", "head_layer_norm", threads, 0, defines)
    kernel(y, x, weight, _EPSILON, grid=rows)
    normed = x[:, : heads * head_dim].double().reshape(rows, heads, head_dim)
    expected = torch.nn.functional.layer_norm(normed, (head_dim,), None, None, _EPSILON) * weight.double()
    assert_close(y[:, : heads * head_dim], expected.reshape(rows, -1))
    assert torch.equal(y[:, heads * head_dim :], x[:, heads * head_dim :])


def check_mix_streams(
    rows: int, hidden: int, threads: int, inputs: int, dtype: torch.dtype, machine: Machine, *, whole: bool = True
) -> None:
    """Check random rows of ``inputs`` streams, the first of which is much longer than the others.

    With ``whole`` the first is a sum of two rows, and the first mix is also wanted times a vector.
    """
    device = machine.device
    x = torch.randn(inputs, rows, hidden, device=device)
    x[0] *= 20
    streams, residual = list(x.to(dtype)), torch.randn(rows, hidden, device=device).to(dtype)
    router, scale = torch.randn(4, hidden, device=device) / hidden**0.5, torch.randn(hidden, device=device)
    weights = torch.randn(5, 4, 5, device=device)
    mixes = [torch.full((rows, hidden), POISON, device=device, dtype=dtype) for _ in range(5)]
    defines: dict[str, int | str] = {"TL_HIDDEN": hidden, "TL_INPUTS": inputs, "TL_THREADS": threads}
    defines |= {"TL_RESIDUAL": int(whole), "TL_SCALED": int(whole), "TL_FP16": dtype_flag(dtype)}
    kernel = machine.kernel("mix_streams/cuda.cuh", "mix_streams", threads, 0, defines)
    given = [*streams, *[None] * (5 - inputs), residual if whole else None]
    kernel(*mixes, *given, router, weights, scale if whole else None, _EPSILON, grid=rows)
    wide = torch.stack(streams).double()
    if whole:
        wide[0] += residual.double()
    normed = torch.nn.functional.rms_norm(wide[0], (hidden,), None, _EPSILON)
    modalities = torch.tanh(normed @ router.double().T)
    factors = weights[0].double() + torch.einsum("rk,kji->rji", modalities, weights[1:].double())
    expected = torch.einsum("rji,irh->jrh", factors[:, :, :inputs], wide)
    for mix, of_stream in zip(mixes, expected, strict=False):
        assert_close(mix, of_stream)
    if whole:
        assert_close(mixes[4], expected[0] * scale.double())


def check_rescale_rows(rows: int, features: int, threads: int, dtype: torch.dtype, machine: Machine) -> None:
    """Check random rows, the last of which is so small that it is divided by the least root mean square instead."""
    device, least = machine.device, 1e-5
    x, like = ((torch.randn(rows, features, device=device) * scale).to(dtype) for scale in (1, 7))
    x[-1] *= 1e-3
    y = torch.full((rows, features), POISON, device=device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_FEATURES": features, "TL_THREADS": threads, "TL_FP16": dtype_flag(dtype)}
    machine.kernel("rescale_rows/cuda.cuh", "rescale_rows", threads, 0, defines)(y, x, like, least, grid=rows)
    own, target = (wide.double().square().mean(1, keepdim=True) for wide in (x, like))
    assert_close(y, x.double() * (target / own.clamp(min=least)).sqrt())


def check_cut_rows(rows: int, features: int, threads: int, dtype: torch.dtype, machine: Machine) -> None:
    """Check random rows that are far from centred, of which a twentieth is left."""
    device, factor = machine.device, 1.6484375
    x = (3 + torch.randn(rows, features, device=device)).to(dtype)
    y = torch.full((rows, features), POISON, device=device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_FEATURES": features, "TL_THREADS": threads, "TL_FP16": dtype_flag(dtype)}
    machine.kernel("cut_rows/cuda.cuh", "cut_rows", threads, 0, defines)(y, x, factor, grid=rows)
    wide = x.double()
    cut = wide.mean(1, keepdim=True) + factor * wide.std(1, keepdim=True, correction=0)
    assert_close(y, torch.relu(wide - cut))


def check_position_embedding(rows: int, hidden: int, dtype: torch.dtype, machine: Machine) -> None:
    """Check random positions in a table of 50."""
    device = machine.device
    table, x = (torch.randn(n, hidden, device=device).to(dtype) for n in (50, rows))
    positions = torch.randint(50, (rows,), device=device, dtype=torch.int32)
    y = torch.full((rows, hidden), POISON, device=device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_HIDDEN": hidden, "TL_FP16": dtype_flag(dtype)}
    kernel = machine.kernel("position_embedding/cuda.cuh", "position_embedding", 128, 0, defines)
    kernel(y, x, positions, table, grid=rows)
    assert torch.equal(y, x + table[positions.long()])


def check_gather_columns(rows: int, features: int, machine: Machine) -> None:
    """Check a random order, in which some float32 columns are taken several times and others never."""
    device, threads = machine.device, 256
    permutation, some = torch.randperm(features).int(), torch.randint(features, (3 * features + 5,)).int()
    for order, dtype in ((permutation, torch.bfloat16), (some, torch.float32)):
        x, columns = torch.randn(rows, features, device=device).to(dtype), len(order)
        y = torch.full((rows, columns), POISON, device=device, dtype=dtype)
        defines: dict[str, int | str] = {"TL_FEATURES": features, "TL_COLUMNS": columns, "TL_THREADS": threads}
        defines["TL_ITEM_BYTES"] = x.itemsize
        kernel = machine.kernel("gather_columns/cuda.cuh", "gather_columns", threads, 0, defines)
        kernel(y, x, order.to(device), grid=(rows, -(-columns // threads), 1))
        assert torch.equal(y, x[:, order.long().to(device)])


def check_merge_rows(rows: int, merged: int, features: int, machine: Machine) -> None:
    """Check that rows one after the other become one."""
    x = torch.randn(rows * merged, features, device=machine.device).to(torch.bfloat16)
    y = torch.full((rows, merged * features), POISON, device=machine.device, dtype=torch.bfloat16)
    vectors = merged * features // 8
    kernel = machine.kernel(
        "merge_rows/cuda.cuh", "merge_rows", _THREADS, 0, {"TL_VECTORS": vectors, "TL_THREADS": _THREADS}
    )
    kernel(y, x, grid=(rows, -(-vectors // _THREADS), 1))
    assert torch.equal(y, x.reshape(rows, -1))


def check_side_by_side(rows: int, ranks: int, part: int, features: int, machine: Machine) -> None:
    """Check rows of several ranks, stored one after the other; the last of ``features`` may belong to any rank."""
    parts = torch.randn(ranks, rows, part, device=machine.device)
    y = torch.full((rows + 1, features), POISON, device=machine.device)
    kernel = machine.kernel("all_gather/side_by_side.cuh", "side_by_side", _THREADS, 0, {})
    kernel(y, parts, rows, part, features, grid=(rows, ranks, 1))
    assert torch.equal(y[:rows], torch.cat(list(parts), 1)[:, :features])
    assert bool(y[rows].isnan().all())


def check_channel_magnitudes(rows: int, features: int, dtype: torch.dtype, machine: Machine) -> None:
    """Check random rows, whose NaN must not be lost."""
    device = machine.device
    x = torch.randn(rows, features, device=device).to(dtype)
    defines: dict[str, int | str] = {"TL_FEATURES": features, "TL_FP16": dtype_flag(dtype)}
    kernel = machine.kernel("channel_magnitudes/cuda.cuh", "channel_magnitudes", 256, 0, defines)
    for damaged in ([], [features - 1]):
        x[rows // 2, damaged] = torch.nan
        y = torch.full((2, features), POISON, device=device)
        kernel(y, x, rows, grid=-(-features // 64))
        (expected,) = magnitudes([x.float().cpu().numpy()], {})
        kept = slice(0, features - len(damaged))
        torch.testing.assert_close(y.cpu()[:, kept], torch.from_numpy(expected)[:, kept], rtol=1e-5, atol=0)
        assert torch.equal(y.cpu()[0, kept], torch.from_numpy(expected)[0, kept])
        assert not torch.isfinite(y[:, damaged]).any()


def check_cache_slots(lengths: list[int], past: list[int], page: int, groups: int, machine: Machine) -> None:
    """Check sequences of ``lengths`` new and ``past`` tokens; the second one with a single new token has ended."""
    device, count, num_tokens = machine.device, len(lengths), sum(lengths)
    columns = max(p + n for p, n in zip(past, lengths, strict=True)) // page + 1
    positions = torch.cat([torch.arange(p, p + n) for p, n in zip(past, lengths, strict=True)])
    starts = torch.tensor([0, *lengths]).cumsum(0)
    tables = torch.randperm(count * groups * columns).view(count, groups, columns)
    decoding = [sequence for sequence, length in enumerate(lengths) if length == 1][:2]
    token_slots = torch.full((num_tokens,), -1)
    token_slots[starts[decoding]] = torch.tensor([2, 0])
    step = (torch.tensor(past), positions, token_slots, starts, tables, torch.tensor([~5, ~6, 7]))
    kernel = machine.kernel("cache_slots/cuda.cuh", "cache_slots", 128, 0, {"TL_PAGE": page, "TL_GROUPS": groups})
    inputs = [tensor.int().numpy() for tensor in (*step[:4], tables.flatten(0, 1), step[5])]
    expected, expected_lens = reference(inputs, {"tokens_per_block": page})
    assert expected_lens.tolist() == [0 if sequence == decoding[1] else p for sequence, p in enumerate(past)]
    past_lens, *others, drawn = (tensor.int().to(device) for tensor in step)
    own = torch.zeros_like(drawn)  # tokens of a rank that draws none
    table = rank_table(0, 0, drawn.data_ptr(), [0], [own.data_ptr()], 0, 0.0).to(device)
    for last_tokens, ranks in ((drawn, None), (own, table)):
        slots = torch.full((groups, num_tokens), -1, device=device, dtype=torch.int32)
        lens, grid = past_lens.clone(), -(-num_tokens // 128)
        kernel(slots, lens, *others, last_tokens, ranks, num_tokens, count, columns, grid=grid, memory=[drawn])
        assert lens.tolist() == expected_lens.tolist()
        assert np.array_equal(slots.cpu().numpy(), expected)


def check_paged_rows(batch: list[tuple[int, int]], page: int, features: int, machine: Machine, groups: int) -> None:
    """Check that each token's row is stored and the previous token's row is read; ``batch``: past and new tokens.

    Of the block tables of a sequence, one for each of ``groups``, the first counts.
    """
    device, lengths = machine.device, [new for _, new in batch]
    columns = max(past + new for past, new in batch) // page + 2
    positions = torch.cat([torch.arange(past, past + new) for past, new in batch]).int()
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    count = len(batch) * columns
    tables = torch.stack([torch.randperm(count).view(-1, columns) for _ in range(groups)], 1).int()
    of_token = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(lengths))
    slots = (tables[of_token, 0, (positions // page).long()] * page + positions % page).int()
    x = torch.randn(len(positions), features).to(torch.bfloat16)
    cache = torch.randn(len(batch) * columns, page, features).to(torch.bfloat16)
    step = [tensor.to(device) for tensor in (positions, starts, tables)]
    places = [tensor.numpy() for tensor in (positions, starts, tables.flatten(0, 1))]
    defines: dict[str, int | str] = {"TL_HIDDEN": features, "TL_PAGE": page}

    load = machine.kernel("paged_load/cuda.cuh", "paged_load", 128, 0, defines)
    y, held = torch.full_like(x, POISON).to(device), cache.to(device)
    load(y, held, slots.to(device), *step, len(batch), groups * columns, grid=len(positions))
    (expected,) = load_reference([cache.float().numpy(), *places], {})
    assert np.array_equal(y.cpu().float().numpy(), expected)

    store = machine.kernel("paged_store/cuda.cuh", "paged_store", 128, 0, defines)
    for indices in (None, (starts[1:] - 1).int()):
        rows, held = x if indices is None else x[indices.long()], cache.to(device)
        given = None if indices is None else indices.to(device)
        store(held, rows.contiguous().to(device), slots.to(device), given, grid=len(rows))
        inputs = [rows.float().numpy(), cache.float().numpy(), *places, None if indices is None else indices.numpy()]
        (expected,) = store_reference(inputs, {})
        assert np.array_equal(held.cpu().float().numpy(), expected)


def check_rotary_table(positions: torch.Tensor, half_dim: int, scale: float, machine: Machine) -> None:
    """Check the table; the angle is a float32 product, as in the reference implementations of RoPE."""
    inv_freq = 500000.0 ** -(torch.arange(half_dim, device=machine.device) / half_dim)
    cos, sin = (torch.full((len(positions), half_dim), POISON, device=machine.device) for _ in range(2))
    kernel = machine.kernel("rotary_table/cuda.cuh", "rotary_table", half_dim, 0, {"TL_HALF_DIM": half_dim})
    kernel(cos, sin, positions, inv_freq, scale, grid=len(positions))
    angles = (positions[:, None].float() * inv_freq).double()
    torch.testing.assert_close(cos.double(), scale * angles.cos(), rtol=0, atol=1e-6)
    torch.testing.assert_close(sin.double(), scale * angles.sin(), rtol=0, atol=1e-6)


def check_rowwise(
    program: str, expected: torch.Tensor, operands: list[torch.Tensor | None], dtype: torch.dtype, machine: Machine
) -> None:
    """Check ``operands`` in the kernel's order: four rows, four vectors, constants; ``expected`` is float64."""
    rows, features = expected.shape
    y = torch.full((rows, features), POISON, device=machine.device, dtype=dtype)
    is_float = [x is not None and x.dtype == torch.float32 for x in operands[:4]]
    defines: dict[str, int | str] = {
        "TL_EXPRESSION": expression(program),
        "TL_FEATURES": features,
        "TL_AT_ONCE": elements_at_once(features),
        "TL_X1_PITCH": features if operands[1] is None else operands[1].shape[1],
        "TL_THREADS": 64,
        "TL_ROWS": sum(x is not None for x in operands[:4]),
        "TL_VECTORS": sum(x is not None for x in operands[4:8]),
        "TL_FLOAT_ROWS": sum(1 << i for i, found in enumerate(is_float) if found),
        "TL_BYTE_ROWS": sum(1 << i for i, x in enumerate(operands[:4]) if x is not None and x.dtype == torch.uint8),
        "TL_FLOAT_OUT": int(dtype == torch.float32),
        "TL_FP16": int(dtype == torch.float16),
    }
    kernel = machine.kernel("rowwise/cuda.cuh", "rowwise", 64, 0, defines)
    kernel(y, *operands, grid=(rows, -(-features // 512), 1))
    assert_close(y, expected)


def check_gate_mul(rows: int, out: int, activation: str, dtype: torch.dtype, machine: Machine) -> None:
    """Check gates of both signs, large and tiny."""
    x = (torch.randn(rows, 2 * out, device=machine.device) * 4).to(dtype)
    x[0, :8] = torch.tensor([0.0, -0.0, 100, -100, 1e3, -1e3, 1e-4, -1e-4]).to(dtype)
    if activation == "relu2":
        x = x.clamp(-30, 30)  # float16 holds what their squares make
    y = torch.full((rows, out), POISON, device=machine.device, dtype=dtype)
    defines: dict[str, int | str] = {"TL_OUT": out, "TL_THREADS": _THREADS, "TL_FP16": dtype_flag(dtype)}
    defines["TL_ACTIVATION"] = ACTIVATION_FLAGS[activation]
    kernel = machine.kernel("gated_linear/gate_mul.cuh", "gate_mul", _THREADS, 0, defines)
    kernel(y, x, grid=(rows, -(-out // (16 * _THREADS)), 1))
    gate, up = x.double().chunk(2, dim=1)
    assert_close(y, _ACTIVATIONS[activation](gate) * up)
