"""Interprets each device kernel in numpy over raw memory, by the macros, grid and arguments that a plan gives it.

A pointer is an array of bytes from its address to the end of its memory; sizes come from the macros alone, as on a
card. Sums are float64 and every result is rounded once to the type it is stored in.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from trtllm_lite.common.nibbles import TYPES as NIBBLES
from trtllm_lite.plugins.activations import activate, gated
from trtllm_lite.plugins.cache_slots.reference import reference as find_slots
from trtllm_lite.plugins.cuda.activation import ACTIVATION_FLAGS
from trtllm_lite.plugins.cut_rows.reference import reference as cut_rows_reference
from trtllm_lite.plugins.head_layer_norm.reference import reference as head_layer_norm_reference
from trtllm_lite.plugins.mix_streams.reference import reference as mix_streams_reference
from trtllm_lite.plugins.packing import unpack
from trtllm_lite.plugins.paged_load.reference import reference as load_rows
from trtllm_lite.plugins.rescale_rows.reference import reference as rescale_rows_reference
from trtllm_lite.plugins.sample.reference import reference as draw_tokens

Pointer = np.ndarray
Macros = Mapping[str, Any]
Grid = tuple[int, int, int]

NUM_SMS = 132
ROW_TYPES = {2: 1, 5: 2}  # by TL_WEIGHT_FORM: the type of rows that are bytes
# The types and layouts of block-quantized weights, by TL_WEIGHT_FORM.
BLOCK_FORMS = {
    3: (ml_dtypes.int4, "pairs8"),
    4: (ml_dtypes.uint4, "pairs8"),
    6: (ml_dtypes.float8_e4m3fn, "spread_e4m3"),
    7: (ml_dtypes.float4_e2m1fn, "spread_e2m1"),
    8: (np.int8, "mma_k16"),
}
BYTE_TYPES = {1: ml_dtypes.float8_e4m3fn, 2: np.int8}  # by row type
KERNELS: dict[str, Callable[..., None]] = {}


def kernel(function: Callable[..., None]) -> Callable[..., None]:
    KERNELS[function.__name__] = function
    return function


def at(pointer: Pointer, dtype: type, *shape: int) -> np.ndarray:
    """The array of ``shape`` at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert len(pointer) >= size, f"{size} bytes are read or written where {len(pointer)} are left"
    return pointer[:size].view(dtype).reshape(shape)


def columns_at(pointer: Pointer, dtype: type, rows: int, columns: int, pitch: int) -> np.ndarray:
    """Rows of ``columns`` elements, of which the first is at an address, and the others ``pitch`` elements apart."""
    assert pitch >= columns
    size = np.dtype(dtype).itemsize
    bytes_read = size * (pitch * (rows - 1) + columns) if rows else 0
    assert len(pointer) >= bytes_read, f"{bytes_read} bytes are read where {len(pointer)} are left"
    return np.ndarray((rows, columns), dtype, pointer, 0, (size * pitch, size))


def blocks_at(pointer: Pointer, dtype: type, block_bytes: int, *shape: int) -> np.ndarray:
    """The blocks [blocks, *shape] of a cache at an address; ``block_bytes`` lie between the beginnings of two."""
    items = np.cumprod([np.dtype(dtype).itemsize, *reversed(shape)])
    count = (len(pointer) - int(items[-1])) // block_bytes + 1
    strides = (block_bytes, *(int(item) for item in reversed(items[:-1])))
    return np.ndarray((count, *shape), dtype, pointer, 0, strides)


def half_type(macros: Macros) -> type:
    return np.float16 if macros["TL_FP16"] else ml_dtypes.bfloat16


def normalised(x: np.ndarray, weight: Pointer, epsilon: float) -> np.ndarray:
    scale = at(weight, np.float32, x.shape[-1]).astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def matrix(macros: Macros, weight: Pointer, scale: Pointer | None, offset: Pointer | None, rows: int) -> np.ndarray:
    """The weight [rows, in] of a product in float64, dequantized according to TL_WEIGHT_FORM."""
    features, form = macros["TL_IN"], macros["TL_WEIGHT_FORM"]
    if form == 0:
        return at(weight, half_type(macros), rows, features).astype(np.float64)
    if form in BLOCK_FORMS:
        return _in_blocks(macros, weight, [scale, offset], rows)
    if form == 1:
        stored = unpack(at(weight, np.int8, rows, features), "mma_k16", (rows, features), np.int8)
    else:
        stored = at(weight, BYTE_TYPES[ROW_TYPES[form]], rows, features)
    return stored.astype(np.float64) * at(scale, np.float32, rows, 1)


def _in_blocks(macros: Macros, weight: Pointer, numbers: list[Pointer | None], rows: int) -> np.ndarray:
    features, blocks = macros["TL_IN"], macros["TL_IN"] // macros["TL_BLOCK"]
    dtype, layout = BLOCK_FORMS[macros["TL_WEIGHT_FORM"]]
    layout = "pairs32" if macros.get("TL_PAIRS32") else layout
    kind = (np.float32, np.float16, ml_dtypes.bfloat16)[macros["TL_NUMBER_TYPE"]]

    def of_blocks(pointer: Pointer | None) -> np.ndarray:
        return unpack(at(pointer, kind, rows // 8, blocks, 8), "rows8", (rows, blocks), kind).astype(np.float64)

    item, in_bytes = (np.uint8, features // 2) if np.dtype(dtype) in NIBBLES else (dtype, features)
    stored = unpack(at(weight, item, rows, in_bytes), layout, (rows, features), dtype)
    wide = stored.astype(np.float64).reshape(rows, blocks, -1) * of_blocks(numbers[0])[..., None]
    return (wide + (of_blocks(numbers[1])[..., None] if macros["TL_OFFSETS"] else 0)).reshape(rows, features)


def product(
    macros: Macros,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    norm_weight: Pointer | None,
    rows: int,
    epsilon: float,
    x_scale: float,
    parts: int = 1,
) -> np.ndarray:
    """x @ weight.T of a GEMV kernel, float64 [rows, parts * out]."""
    assert rows <= macros["TL_TOKENS"]
    half, features = half_type(macros), macros["TL_IN"]
    transposed = matrix(macros, weight, weight_scale, weight_offset, parts * macros["TL_OUT"]).T
    source = at(x, half, rows, features).astype(np.float64)
    if macros["TL_NORM"]:
        source = normalised(source, norm_weight, epsilon).astype(half).astype(np.float64)
    if macros["TL_WEIGHT_FORM"] in ROW_TYPES:
        kind = ROW_TYPES[macros["TL_WEIGHT_FORM"]]
        bytes_, scales = rounded(kind, source, x_scale, bool(macros["TL_ROW_SCALES"]))
        source = bytes_.astype(np.float64) * scales[:, None]
    return source @ transposed


def rounded(kind: int, rows: np.ndarray, scale: float, per_row: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the 8-bit row type ``kind``, and their float32 scales: all equal, or by each row's largest element."""
    scales = np.full(len(rows), scale, np.float32)
    if per_row:
        scales = np.maximum(np.abs(rows).max(-1) / (448 if kind == 1 else 127), scale).astype(np.float32)
    scaled = rows / scales[:, None]
    numbers = np.clip(scaled, -448, 448) if kind == 1 else np.clip(np.rint(scaled), -128, 127)
    return numbers.astype(BYTE_TYPES[kind]), scales


@kernel
def channel_magnitudes(macros: Macros, grid: Grid, y: Pointer, x: Pointer, rows: int) -> None:
    features = macros["TL_FEATURES"]
    assert 64 * grid[0] >= features
    found = np.abs(at(x, half_type(macros), rows, features).astype(np.float64))
    at(y, np.float32, 2, features)[...] = [found.max(0, initial=0), found.sum(0)]


@kernel
def quantize_rows(macros: Macros, grid: Grid, y: Pointer, y_scale: Pointer | None, x: Pointer, scale: float) -> None:
    rows = at(x, half_type(macros), grid[0], macros["TL_FEATURES"]).astype(np.float64)
    store_rounded(macros, rows, y, y_scale, scale)


def store_rounded(macros: Macros, rows: np.ndarray, y: Pointer, y_scale: Pointer | None, scale: float) -> None:
    """Store rows as bytes, and their scales if each row has one."""
    kind = macros["TL_Y_TYPE"]
    at(y, BYTE_TYPES[kind], *rows.shape)[...], scales = rounded(kind, rows, scale, bool(macros["TL_ROW_SCALES"]))
    if macros["TL_ROW_SCALES"]:
        at(y_scale, np.float32, len(rows))[...] = scales


@kernel
def dequantize(
    macros: Macros,
    grid: Grid,
    to: Pointer,
    weight: Pointer,
    weight_scale: Pointer,
    weight_offset: Pointer | None,
    rows: int,
) -> None:
    per_thread = 32 if macros["TL_WEIGHT_FORM"] in (3, 4, 7) else 16
    assert grid[0] * macros["TL_THREADS"] * per_thread >= rows * macros["TL_IN"]
    at(to, half_type(macros), rows, macros["TL_IN"])[...] = matrix(macros, weight, weight_scale, weight_offset, rows)


@kernel
def embedding(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    ids: Pointer,
    slots: Pointer | None,
    last: Pointer | None,
    weight: Pointer,
    ranks: Pointer | None,
    vocab: int,
    scale: float,
    token_rows: Pointer | None,
) -> None:
    rows, hidden, half = grid[0], macros["TL_HIDDEN"], half_type(macros)
    del ranks, vocab  # there is one rank in a stage
    (chosen,) = _ints(rows, ids)
    if slots is not None:
        chosen = [at(last, np.int32, s + 1)[s] if s >= 0 else i for i, s in zip(*_ints(rows, ids, slots), strict=True)]
    for row, token in enumerate(chosen):
        table, number, factor = (token_rows, ~token, 1.0) if token < 0 else (weight, token, scale)
        at(y, half, rows, hidden)[row] = at(table, half, number + 1, hidden)[number].astype(np.float32) * factor


def _ints(count: int, *pointers: Pointer) -> list[list[int]]:
    return [at(pointer, np.int32, count).tolist() for pointer in pointers]


@kernel
def cache_slots(
    macros: Macros,
    grid: Grid,
    slots: Pointer,
    past_lens: Pointer,
    position_ids: Pointer,
    token_slots: Pointer,
    cu_seqlens: Pointer,
    block_tables: Pointer,
    last_tokens: Pointer,
    ranks: Pointer | None,
    num_tokens: int,
    num_seqs: int,
    max_blocks: int,
) -> None:
    del ranks  # one of them draws tokens, the others write none
    page, groups = macros["TL_PAGE"], macros["TL_GROUPS"]
    assert 0 <= 128 * grid[0] - num_tokens < 128
    past, chosen = at(past_lens, np.int32, num_seqs), at(token_slots, np.int32, num_tokens)
    inputs = [past, at(position_ids, np.int32, num_tokens), chosen, at(cu_seqlens, np.int32, num_seqs + 1)]
    inputs += [at(block_tables, np.int32, num_seqs * groups, max_blocks), at(last_tokens, np.int32, chosen.max() + 1)]
    at(slots, np.int32, groups, num_tokens)[...], past[...] = find_slots(inputs, {"tokens_per_block": page})


@kernel
def rotary_table(
    macros: Macros, grid: Grid, cos: Pointer, sin: Pointer, position_ids: Pointer, inv_freq: Pointer, scale: float
) -> None:
    rows, half = grid[0], macros["TL_HALF_DIM"]
    positions = at(position_ids, np.int32, rows)
    angles = positions[:, None].astype(np.float32) * at(inv_freq, np.float32, half)
    at(cos, np.float32, rows, half)[...] = scale * np.cos(angles.astype(np.float64))
    at(sin, np.float32, rows, half)[...] = scale * np.sin(angles.astype(np.float64))


@kernel
def rms_norm(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    row_scales: Pointer | None,
    total: Pointer | None,
    x: Pointer,
    weight: Pointer,
    residual: Pointer | None,
    epsilon: float,
    y_scale: float,
) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_HIDDEN"])
    rows = at(x, half, *shape).astype(np.float64)
    if macros["TL_RESIDUAL"]:
        at(total, half, *shape)[...] = rows + at(residual, half, *shape).astype(np.float64)
        rows = at(total, half, *shape).astype(np.float64)
    normal = normalised(rows, weight, epsilon).astype(half)
    if macros["TL_Y_TYPE"]:
        store_rounded(macros, normal.astype(np.float64), y, row_scales, y_scale)
    else:
        at(y, half, *shape)[...] = normal


@kernel
def layer_norm(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    total: Pointer | None,
    x: Pointer,
    weight: Pointer,
    residual: Pointer | None,
    bias: Pointer | None,
    epsilon: float,
) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_HIDDEN"])
    rows = at(x, half, *shape).astype(np.float64)
    if macros["TL_RESIDUAL"]:
        at(total, half, *shape)[...] = rows + at(residual, half, *shape).astype(np.float64)
        rows = at(total, half, *shape).astype(np.float64)
    centred = rows - rows.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + epsilon)
    result = scaled * at(weight, np.float32, shape[1])
    at(y, half, *shape)[...] = result + at(bias, np.float32, shape[1]) if macros["TL_BIAS"] else result


@kernel
def query_key_norm(
    macros: Macros, grid: Grid, y: Pointer, x: Pointer, query_weight: Pointer, key_weight: Pointer, epsilon: float
) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_FEATURES"])
    result = at(x, half, *shape).astype(np.float64)
    queries, end = macros["TL_QUERIES"], macros["TL_QUERIES"] + macros["TL_KEYS"]
    result[:, :queries] = normalised(result[:, :queries], query_weight, epsilon)
    result[:, queries:end] = normalised(result[:, queries:end], key_weight, epsilon)
    at(y, half, *shape)[...] = result.astype(half)


@kernel
def head_layer_norm(macros: Macros, grid: Grid, y: Pointer, x: Pointer, weight: Pointer, epsilon: float) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_FEATURES"])
    rows, normed = at(x, half, *shape).astype(np.float64), (macros["TL_NORMED_HEADS"], macros["TL_HEAD_DIM"])
    inputs = rows, at(weight, np.float32, *normed)
    at(y, half, *shape)[...] = head_layer_norm_reference(inputs, {"epsilon": epsilon})[0].astype(half)


@kernel
def mix_streams(macros: Macros, grid: Grid, *arguments: Any) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_HIDDEN"])
    mixes, streams, (residual, router, weights, scale, epsilon) = arguments[:5], arguments[5:10], arguments[10:]
    rows = [None if stream is None else at(stream, half, *shape).astype(np.float64) for stream in (*streams, residual)]
    factors = at(router, np.float32, 4, shape[1]), at(weights, np.float32, 5, 4, 5)
    features = None if scale is None else at(scale, np.float32, shape[1])
    found = mix_streams_reference([*rows[:5], *factors, rows[5], features], {"epsilon": epsilon})
    for y, mix in zip(mixes, found, strict=True):
        if y is not None:
            at(y, half, *shape)[...] = mix.astype(half)


@kernel
def rescale_rows(macros: Macros, grid: Grid, y: Pointer, x: Pointer, like: Pointer, least: float) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_FEATURES"])
    rows = [at(pointer, half, *shape).astype(np.float64) for pointer in (x, like)]
    at(y, half, *shape)[...] = rescale_rows_reference(rows, {"least": least})[0].astype(half)


@kernel
def cut_rows(macros: Macros, grid: Grid, y: Pointer, x: Pointer, times: float) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_FEATURES"])
    rows = at(x, half, *shape).astype(np.float64)
    at(y, half, *shape)[...] = cut_rows_reference([rows], {"factor": times})[0].astype(half)


@kernel
def position_embedding(
    macros: Macros, grid: Grid, y: Pointer, x: Pointer, position_ids: Pointer, weight: Pointer
) -> None:
    half, shape = half_type(macros), (grid[0], macros["TL_HIDDEN"])
    positions = at(position_ids, np.int32, shape[0])
    table = at(weight, half, positions.max() + 1, shape[1]).astype(np.float64)
    at(y, half, *shape)[...] = at(x, half, *shape).astype(np.float64) + table[positions]


@kernel
def rowwise(macros: Macros, grid: Grid, y: Pointer, *operands: Pointer | None) -> None:
    """The expression of TL_EXPRESSION, translated to numpy."""
    half, shape = half_type(macros), (grid[0], macros["TL_FEATURES"])
    assert grid[1] * 8 * macros["TL_THREADS"] >= shape[1]
    rows, vectors, constants = operands[:4], operands[4:8], operands[8]

    def row(index: int) -> np.ndarray:
        dtype = np.float32 if macros["TL_FLOAT_ROWS"] >> index & 1 else half
        dtype = np.uint8 if macros["TL_BYTE_ROWS"] >> index & 1 else dtype
        pitch = macros["TL_X1_PITCH"] if index == 1 else shape[1]
        return columns_at(rows[index], dtype, *shape, pitch).astype(np.float64)

    names = {
        "TL_X": row,
        "TL_V": lambda index: at(vectors[index], np.float32, shape[1]).astype(np.float64),
        "TL_C": lambda index: float(at(constants, np.float32, index + 1)[index]),
        "tanhf": np.tanh,
        "fmaxf": np.maximum,
        "gelu": partial(activate, "gelu"),
        "gelu_tanh": partial(activate, "gelu_tanh"),
        "silu": partial(activate, "silu"),
        "sigmoid": partial(activate, "sigmoid"),
    }
    result = eval(str(macros["TL_EXPRESSION"]).replace("0.0f", "0.0"), {"__builtins__": {}}, names)
    at(y, np.float32 if macros["TL_FLOAT_OUT"] else half, *shape)[...] = result


def activated(macros: Macros, x: np.ndarray) -> np.ndarray:
    """The activation that a product's epilogue applies."""
    names = {number: name for name, number in ACTIVATION_FLAGS.items()}
    return activate(names[macros["TL_ACTIVATION"]], x)


def gated_sums(macros: Macros, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """The result of a gated product's epilogue."""
    names = {number: name for name, number in ACTIVATION_FLAGS.items()}
    return gated(names[macros["TL_ACTIVATION"]], gate, up)


def finish_linear(
    macros: Macros, result: np.ndarray, y: Pointer, bias: Pointer | None, residual: Pointer | None
) -> None:
    """The epilogue of a Linear: float64 [rows, out] plus what the macros ask for, rounded into y."""
    rows, out = result.shape
    if macros["TL_BIAS"]:
        result += at(bias, np.float32, out)
    result = activated(macros, result)
    if macros["TL_RESIDUAL"]:
        result += at(residual, half_type(macros), rows, out).astype(np.float64)
    at(y, np.float32 if macros["TL_FLOAT_OUT"] else half_type(macros), rows, out)[...] = result


@kernel
def linear(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    norm_weight: Pointer | None,
    bias: Pointer | None,
    residual: Pointer | None,
    ranks: Pointer | None,
    rows: int,
    epsilon: float,
    x_scale: float,
) -> None:
    del grid
    assert ranks is None
    result = product(macros, x, weight, weight_scale, weight_offset, norm_weight, rows, epsilon, x_scale)
    finish_linear(macros, result, y, bias, residual)


@kernel
def gated_linear(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    norm_weight: Pointer | None,
    bias: Pointer | None,
    added: Pointer | None,
    rows: int,
    epsilon: float,
    x_scale: float,
    y_factor: float,
) -> None:
    del grid
    both = product(macros, x, weight, weight_scale, weight_offset, norm_weight, rows, epsilon, x_scale, parts=2)
    if macros["TL_BIAS"]:
        both += at(bias, np.float32, 2 * macros["TL_OUT"])
    if macros["TL_ADDED"]:
        both += at(added, half_type(macros), *both.shape).astype(np.float64)
    gate, up = np.split(both, 2, axis=1)
    store_gated(macros, activated(macros, gate) * up, y, y_factor)


def store_gated(macros: Macros, result: np.ndarray, y: Pointer, y_factor: float) -> None:
    kind = macros["TL_Y_TYPE"]
    if kind:
        at(y, BYTE_TYPES[kind], *result.shape)[...], _ = rounded(kind, result, 1 / y_factor, False)
    else:
        at(y, half_type(macros), *result.shape)[...] = result


def tiled_product(
    macros: Macros,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    row_scales: Pointer | None,
    x_scale: float,
    rows: int,
    parts: int = 1,
) -> np.ndarray:
    """x @ weight.T of a tiled kernel, float64 [rows, parts * out]; x and the weight come as tensor maps."""
    kind = ROW_TYPES.get(macros["TL_WEIGHT_FORM"])
    row_type = half_type(macros) if kind is None else BYTE_TYPES[kind]
    source = at(x, row_type, rows, macros["TL_IN"]).astype(np.float64)
    product = source @ matrix(macros, weight, weight_scale, weight_offset, parts * macros["TL_OUT"]).T
    if kind is None:
        return product
    return product * (at(row_scales, np.float32, rows, 1) if macros["TL_ROW_SCALES"] else x_scale)


@kernel
def linear_tiled(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    y: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    row_scales: Pointer | None,
    bias: Pointer | None,
    residual: Pointer | None,
    ranks: Pointer | None,
    x_scale: float,
    rows: int,
) -> None:
    del grid
    assert ranks is None
    result = tiled_product(macros, x, weight, weight_scale, weight_offset, row_scales, x_scale, rows)
    finish_linear(macros, result, y, bias, residual)


@kernel
def linear_swap_ab(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    y: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    bias: Pointer | None,
    residual: Pointer | None,
    ranks: Pointer | None,
    rows: int,
) -> None:
    operands = (x, weight, y, weight_scale, weight_offset, None, bias, residual, ranks, 0.0, rows)
    linear_tiled(macros, grid, *operands)


@kernel
def gated_linear_tiled(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    y: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    row_scales: Pointer | None,
    added: Pointer | None,
    x_scale: float,
    y_factor: float,
    rows: int,
) -> None:
    del grid
    both = tiled_product(macros, x, weight, weight_scale, weight_offset, row_scales, x_scale, rows, parts=2)
    if macros["TL_ADDED"]:
        both += at(added, half_type(macros), *both.shape).astype(np.float64)
    gate, up = np.split(both, 2, axis=1)
    store_gated(macros, activated(macros, gate) * up, y, y_factor)


@kernel
def gated_linear_swap_ab(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    y: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    added: Pointer | None,
    rows: int,
) -> None:
    operands = (x, weight, y, weight_scale, weight_offset, None, added, 0.0, 1.0, rows)
    gated_linear_tiled(macros | {"TL_Y_TYPE": 0}, grid, *operands)


@kernel
def gate_mul(macros: Macros, grid: Grid, y: Pointer, both: Pointer) -> None:
    half, out = half_type(macros), macros["TL_OUT"]
    assert grid[1] * 16 * macros["TL_THREADS"] >= out
    gate, up = np.split(at(both, half, grid[0], 2 * out).astype(np.float64), 2, axis=1)
    at(y, half, grid[0], out)[...] = activated(macros, gate) * up


@kernel
def gather_rows(macros: Macros, grid: Grid, y: Pointer, x: Pointer, indices: Pointer) -> None:
    rows, hidden = grid[0], macros["TL_HIDDEN"]
    chosen = at(indices, np.int32, rows)
    at(y, np.uint16, rows, hidden)[...] = at(x, np.uint16, chosen.max() + 1, hidden)[chosen]


@kernel
def paged_store(
    macros: Macros, grid: Grid, cache: Pointer, x: Pointer, slots: Pointer, indices: Pointer | None
) -> None:
    rows, hidden = grid[0], macros["TL_HIDDEN"]
    tokens = np.arange(rows) if indices is None else at(indices, np.int32, rows)
    places = at(slots, np.int32, int(tokens.max()) + 1)[tokens]
    at(cache, np.uint16, int(places.max()) + 1, hidden)[places] = at(x, np.uint16, rows, hidden)


@kernel
def paged_load(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    cache: Pointer,
    slots: Pointer,
    position_ids: Pointer,
    cu_seqlens: Pointer,
    block_tables: Pointer,
    num_seqs: int,
    table_stride: int,
) -> None:
    rows, hidden, page = grid[0], macros["TL_HIDDEN"], macros["TL_PAGE"]
    blocks = len(cache) // (2 * page * hidden)
    at(slots, np.int32, rows)
    inputs = (at(position_ids, np.int32, rows), at(cu_seqlens, np.int32, num_seqs + 1))
    bits = at(cache, np.uint16, blocks, page, hidden)  # whole numbers, which float32 represents exactly
    (found,) = load_rows((bits, *inputs, at(block_tables, np.int32, num_seqs, table_stride)), {})
    at(y, np.uint16, rows, hidden)[...] = found


@kernel
def merge_rows(macros: Macros, grid: Grid, y: Pointer, x: Pointer) -> None:
    rows, elements = grid[0], 8 * macros["TL_VECTORS"]
    assert grid[1] * macros["TL_THREADS"] >= macros["TL_VECTORS"]
    at(y, np.uint16, rows, elements)[...] = at(x, np.uint16, rows, elements)


@kernel
def gather_columns(macros: Macros, grid: Grid, y: Pointer, x: Pointer, order: Pointer) -> None:
    rows, columns = grid[0], macros["TL_COLUMNS"]
    assert grid[1] * macros["TL_THREADS"] >= columns
    item = {2: np.uint16, 4: np.uint32}[macros["TL_ITEM_BYTES"]]
    at(y, item, rows, columns)[...] = at(x, item, rows, macros["TL_FEATURES"])[:, at(order, np.int32, columns)]


@kernel
def sample(
    macros: Macros,
    grid: Grid,
    tokens: Pointer,
    logits: Pointer,
    winners: Pointer,
    arrivals: Pointer,
    last_tokens: Pointer,
    slots: Pointer,
    logprobs: Pointer,
    masks: Pointer,
    max_edits: int,
    sample_slots: Pointer,
    counters: Pointer,
    drafts: Pointer,
    sample_masks: Pointer,
) -> None:
    blocks, rows, _ = grid
    at(winners, np.uint64, rows * blocks)[...] = 0
    assert not at(arrivals, np.uint32, rows).any()
    chosen = at(sample_slots, np.int32, rows)
    count = max(chosen.max() + 1, 0)
    last, records = at(last_tokens, np.int32, count), at(slots, np.int32, count, 24 + 4 * max_edits)
    scores = at(logits, np.float32, rows, macros["TL_VOCAB"])
    step = [at(pointer, np.int32, rows) for pointer in (counters, drafts, sample_masks)]
    inputs = (scores, chosen, *step, last, records, at(masks, np.int32, rows, -(-macros["TL_VOCAB"] // 32)))
    outputs = (at(tokens, np.int32, rows), at(logprobs, np.int32, rows, 42), last, records)
    for output, drawn in zip(outputs, draw_tokens(inputs, {"max_edits": max_edits}), strict=True):
        output[...] = drawn
