"""The kernels of mixtures of experts in numpy over raw memory; see cuda_kernels.py."""

import numpy as np

from tests.unit.builder.cuda_kernels import (
    KERNELS,
    Grid,
    Macros,
    Pointer,
    at,
    gated_sums,
    half_type,
    kernel,
    matrix,
    normalised,
    rms_norm,
)
from trtllm_lite.plugins.router.reference import reference
from trtllm_lite.plugins.schema import all_schemas

_LEAST = np.float32(-3.402823e38)
Added = tuple[Pointer | None, Pointer | None, Pointer | None]
Weight = tuple[Pointer, Pointer | None, Pointer | None]  # elements, and the scales and offsets of their blocks
_HEADER = 4
_SORT_BLOCKS = 8
_GROUP = np.dtype([("expert", "i4"), ("first", "i4"), ("end", "i4"), ("unused", "i4")])
_SCORINGS = all_schemas()["Router"].attributes[1].choices


def _choose(
    macros: Macros,
    scores: Pointer,
    added: Added,
    numbers: tuple[float, float],
    padding: tuple[Pointer | None, int],
    rows: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Chosen ids [rows, top_k], -1 in rows of padding, and their shares; ``numbers`` are their scale and threshold."""
    shared, gate = macros["TL_SHARED"], macros["TL_SHARED_GATE"]
    experts = macros["TL_EXPERTS"] - shared
    columns = experts + gate
    terms = at(scores, np.float32, rows, macros["TL_SCORES"])[:, : 2 * columns]
    given = (macros["TL_SCORE_BIAS"], macros["TL_CORRECTION"], macros["TL_FACTORS"])
    bias, correction, of_experts = (
        at(values, np.float32, experts) if has else None for values, has in zip(added, given, strict=True)
    )
    both = np.fmax(terms.reshape(rows, 2, columns).sum(1), _LEAST)
    attributes = {
        **{"top_k": macros["TL_TOP_K"] - shared, "scoring": _SCORINGS[macros["TL_SCORING"]]},
        **dict(zip(("scale", "threshold"), numbers, strict=True)),
        **{"num_groups": macros["TL_GROUPS"], "top_groups": macros["TL_TOP_GROUPS"], "num_best": macros["TL_NUM_BEST"]},
        **{"local_experts": experts + shared, "num_shared": shared, "shared_gate": gate},
    }
    chosen, shares, *_ = reference((both, np.eye(columns), correction, bias, of_experts), attributes)
    slots, spare = padding
    if slots is not None:
        chosen[at(slots, np.int32, rows) >= spare] = -1
    return chosen, shares


def _put(outputs: tuple[Pointer, Pointer], chosen: np.ndarray, shares: np.ndarray) -> None:
    for pointer, values in zip(outputs, (chosen, shares), strict=True):
        at(pointer, values.dtype.type, *values.shape)[...] = values


def _count(macros: Macros, tally: Pointer, chosen: np.ndarray) -> None:
    experts = macros["TL_EXPERTS"]
    counts, own = at(tally, np.int64, experts + 3), np.bincount(chosen[chosen >= 0], minlength=experts)
    counts += [*own, np.count_nonzero(own), 1, own.sum()]


def _listed(pointer: Pointer, kind: np.dtype) -> np.ndarray:
    count = int(at(pointer, np.int32, 1)[0])
    size = count * kind.itemsize
    return pointer[_HEADER * 4 : _HEADER * 4 + size].view(kind)


def _list(pointer: Pointer, records: list[tuple], kind: np.dtype) -> None:
    array = np.array(records, kind)
    at(pointer, np.int32, 1)[0] = len(array)
    pointer[_HEADER * 4 : _HEADER * 4 + array.nbytes] = array.view(np.uint8)


def _check_local(macros: Macros, ranks: Pointer | None) -> None:
    assert ranks is None
    assert macros["TL_LOCAL_EXPERTS"] == macros["TL_EXPERTS"]


def _list_experts(found: np.ndarray) -> list[tuple[int, list[tuple[int, int]]]]:
    """Each expert that some row has chosen, with the (row, slot) of all such choices."""
    chosen = np.unique(found[found >= 0])
    return [(int(expert), list(zip(*np.nonzero(found == expert), strict=True))) for expert in chosen]


def _sort(macros: Macros, found: np.ndarray, places: Pointer, groups: Pointer) -> None:
    experts, most = macros["TL_EXPERTS"], macros["TL_GROUP_ROWS"]
    numbers = at(places, np.int32, *found.shape)
    order = np.argsort(found[found >= 0], kind="stable")
    numbers[found < 0] = -1
    numbers[found >= 0] = np.argsort(order)
    sizes = np.bincount(found[found >= 0], minlength=experts)
    _list_groups(groups, sizes, most)


def _list_groups(groups: Pointer, sizes: np.ndarray, most: int) -> None:
    """List the rows of experts in groups of at most ``most``."""
    begins = np.concatenate([[0], np.cumsum(sizes)])
    records = [
        (expert, row, min(row + most, begins[expert + 1]), 0)
        for expert in range(len(sizes))
        for row in range(begins[expert], begins[expert + 1], most)
    ]
    _list(groups, records, _GROUP)


@kernel
def even_groups(macros: Macros, grid: Grid, groups: Pointer, rows: int) -> None:
    assert grid == (1, 1, 1)
    shared = macros["TL_SHARED"]
    local = macros["TL_LOCAL_EXPERTS"] - shared
    places = np.arange(rows * (macros["TL_TOP_K"] - shared) * local // (macros["TL_EXPERTS"] - shared))
    sizes = np.array([*np.bincount(places % local, minlength=local), *[rows] * shared])
    _list_groups(groups, sizes, macros["TL_GROUP_ROWS"])


@kernel
def sort_by_expert(
    macros: Macros,
    grid: Grid,
    ids: Pointer,
    places: Pointer,
    shares: Pointer,
    groups: Pointer,
    tally: Pointer,
    scores: Pointer,
    bias: Pointer | None,
    correction: Pointer | None,
    scale: float,
    threshold: float,
    ranks: Pointer | None,
    cache_slots: Pointer | None,
    spare: int,
    rows: int,
    share_factors: Pointer | None,
) -> None:
    _check_local(macros, ranks)
    assert grid == (_SORT_BLOCKS, 1, 1)
    added, numbers = (bias, correction, share_factors), (scale, threshold)
    found, factors = _choose(macros, scores, added, numbers, (cache_slots, spare), rows)
    _put((ids, shares), found, factors)
    _count(macros, tally, found)
    _sort(macros, found, places, groups)


@kernel
def choose_rows(
    macros: Macros,
    grid: Grid,
    ids: Pointer,
    choices: Pointer,
    shares: Pointer,
    scores: Pointer,
    bias: Pointer | None,
    correction: Pointer | None,
    scale: float,
    threshold: float,
    ranks: Pointer | None,
    cache_slots: Pointer | None,
    spare: int,
    rows: int,
    share_factors: Pointer | None,
) -> None:
    _check_local(macros, ranks)
    assert grid[0] == -(-rows // (macros["TL_THREADS"] // 32))
    added, numbers = (bias, correction, share_factors), (scale, threshold)
    found, factors = _choose(macros, scores, added, numbers, (cache_slots, spare), rows)
    _put((ids, shares), found, factors)
    at(choices, np.int32, *found.shape)[...] = found


@kernel
def sort_chosen(
    macros: Macros, grid: Grid, places: Pointer, groups: Pointer, tally: Pointer, ranks: Pointer | None, rows: int
) -> None:
    _check_local(macros, ranks)
    assert grid == (_SORT_BLOCKS, 1, 1)
    found = at(places, np.int32, rows, macros["TL_TOP_K"]).copy()
    _count(macros, tally, found)
    _sort(macros, found, places, groups)


def _of_experts(macros: Macros, weight: Weight, rows_of_each: int) -> np.ndarray:
    experts = macros["TL_EXPERTS"]
    flat = matrix(macros, *weight, experts * rows_of_each)
    return flat.reshape(experts, rows_of_each, -1)


def _bias(macros: Macros, bias: Pointer | None, rows_of_each: int) -> np.ndarray:
    shape = macros["TL_EXPERTS"], rows_of_each
    return at(bias, np.float32, *shape) if macros["TL_BIAS"] else np.zeros(shape)


def _results(macros: Macros) -> int:
    """How many of an expert's matrices each have features of their own in the result."""
    return 1 + macros.get("TL_SELF_GATED", 0)


def _gated(macros: Macros, sums: np.ndarray) -> np.ndarray:
    """The features of sums [..., 2 * out], which gate each other or each itself."""
    both = [sums, sums] if macros["TL_SELF_GATED"] else np.split(sums, 2, axis=-1)
    return gated_sums(macros, *both)


@kernel
def grouped_gated_linear(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    tally: Pointer,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    bias: Pointer | None,
    norm_weight: Pointer | None,
    epsilon: float,
    x_scale: float,
    scores: Pointer,
    score_bias: Pointer | None,
    correction: Pointer | None,
    score_scale: float,
    threshold: float,
    ranks: Pointer | None,
    cache_slots: Pointer | None,
    spare: int,
    rows: int,
    share_factors: Pointer | None,
) -> None:
    del grid, x_scale
    _check_local(macros, ranks)
    added, numbers, padding = (score_bias, correction, share_factors), (score_scale, threshold), (cache_slots, spare)
    found, factors = _choose(macros, scores, added, numbers, padding, rows)
    _count(macros, tally, found)
    half, out, top_k = half_type(macros), macros["TL_OUT"], macros["TL_TOP_K"]
    source = at(x, half, rows, macros["TL_IN"]).astype(np.float64)
    if macros["TL_NORM"]:
        source = normalised(source, norm_weight, epsilon).astype(half).astype(np.float64)
    weights = _of_experts(macros, (weight, weight_scale, weight_offset), 2 * out)
    ones = np.ones_like(factors)
    before, behind = (factors, ones) if macros["TL_SCALES_INPUTS"] else (ones, factors)
    result = at(y, half, rows, top_k, out * _results(macros))
    for expert, choices in _list_experts(found):
        for row, slot in choices:
            sums = weights[expert] @ source[row] * before[row, slot] + _bias(macros, bias, 2 * out)[expert]
            result[row, slot] = _gated(macros, sums) * behind[row, slot]


@kernel
def grouped_linear(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    x: Pointer,
    weight: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    bias: Pointer | None,
    residual: Pointer | None,
    scores: Pointer,
    score_bias: Pointer | None,
    correction: Pointer | None,
    score_scale: float,
    threshold: float,
    ranks: Pointer | None,
    cache_slots: Pointer | None,
    spare: int,
    rows: int,
    share_factors: Pointer | None,
) -> None:
    del grid
    _check_local(macros, ranks)
    added, numbers, padding = (score_bias, correction, share_factors), (score_scale, threshold), (cache_slots, spare)
    found, factors = _choose(macros, scores, added, numbers, padding, rows)
    half, out = half_type(macros), macros["TL_OUT"]
    source = at(x, half, rows, macros["TL_TOP_K"], macros["TL_IN"]).astype(np.float64)
    weights, sums = _of_experts(macros, (weight, weight_scale, weight_offset), out), np.zeros((rows, out))
    if macros["TL_RESIDUAL"]:
        sums += at(residual, half, rows, out).astype(np.float64)
    if macros["TL_BIAS"]:
        sums += (np.where(found[..., None] < 0, 0, _bias(macros, bias, out)[found]) * factors[..., None]).sum(1)
    for expert, choices in _list_experts(found):
        for row, slot in choices:
            sums[row] += weights[expert] @ source[row, slot]
    at(y, half, rows, out)[...] = sums


@kernel
def sort_rows(macros: Macros, grid: Grid, to: Pointer, x: Pointer, places: Pointer, shares: Pointer | None) -> None:
    rows, features, top_k = grid[0], macros["TL_IN"], macros["TL_TOP_K"]
    assert grid[1] == -(-features // (8 * macros["TL_THREADS"]))
    numbers = at(places, np.int32, rows, top_k)
    half = half_type(macros)
    source = np.broadcast_to(at(x, half, rows, 1, features), (rows, top_k, features))
    if macros["TL_SHARES"]:
        source = (source * at(shares, np.float32, rows, top_k, 1)).astype(half)
    at(to, half, rows * top_k, features)[numbers[numbers >= 0]] = source[numbers >= 0]


def _summed(
    macros: Macros,
    shape: tuple[int, int],
    rows: Pointer,
    places: Pointer,
    shares: Pointer | None,
    residual: Pointer | None,
) -> np.ndarray:
    (count, out), top_k = shape, macros["TL_TOP_K"]
    half, numbers = half_type(macros), at(places, np.int32, count, top_k)
    results = at(rows, half, count * top_k, out).astype(np.float64)[numbers]
    results[numbers < 0] = 0
    sums = (results * (at(shares, np.float32, count, top_k, 1) if macros["TL_SHARES"] else 1)).sum(1)
    if macros["TL_RESIDUAL"]:
        sums += at(residual, half, count, out).astype(np.float64)
    return sums.astype(half)


@kernel
def combine(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    rows: Pointer,
    places: Pointer,
    shares: Pointer | None,
    residual: Pointer | None,
) -> None:
    shape = grid[0], macros["TL_OUT"]
    assert grid[1] == -(-shape[1] // (8 * macros["TL_THREADS"]))
    at(y, half_type(macros), *shape)[...] = _summed(macros, shape, rows, places, shares, residual)


@kernel
def combine_norm(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    row_scales: Pointer | None,
    total: Pointer,
    rows: Pointer,
    places: Pointer,
    shares: Pointer | None,
    residual: Pointer | None,
    weight: Pointer,
    epsilon: float,
    y_scale: float,
) -> None:
    shape = grid[0], macros["TL_HIDDEN"]
    sums = at(total, half_type(macros), *shape)
    sums[...] = _summed(macros, shape, rows, places, shares, residual)
    rms_norm({**macros, "TL_RESIDUAL": 0}, grid, y, row_scales, None, total, weight, None, epsilon, y_scale)


@kernel
def grouped_gated_linear_tiled(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    y: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    bias: Pointer | None,
    groups: Pointer,
) -> None:
    del grid
    for rows, result in _tiles(macros, x, (weight, weight_scale, weight_offset), bias, y, groups, parts=2):
        rows[...] = _gated(macros, result)


@kernel
def grouped_linear_tiled(
    macros: Macros,
    grid: Grid,
    x: Pointer,
    weight: Pointer,
    y: Pointer,
    weight_scale: Pointer | None,
    weight_offset: Pointer | None,
    bias: Pointer | None,
    groups: Pointer,
) -> None:
    del grid
    for rows, result in _tiles(macros, x, (weight, weight_scale, weight_offset), bias, y, groups, parts=1):
        rows[...] = result


KERNELS["grouped_gated_linear_swap_ab"] = grouped_gated_linear_tiled
KERNELS["grouped_linear_swap_ab"] = grouped_linear_tiled


def _tiles(
    macros: Macros, x: Pointer, weight: Weight, bias: Pointer | None, y: Pointer, groups: Pointer, parts: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each group, its rows of y, and the products of its rows of x with its expert's matrices."""
    half, found = half_type(macros), _listed(groups, _GROUP)
    weights, last = _of_experts(macros, weight, parts * macros["TL_OUT"]), int(found["end"].max())
    source = at(x, half, last, macros["TL_IN"]).astype(np.float64)
    result = at(y, half, last, macros["TL_OUT"] * _results(macros))
    biases = _bias(macros, bias, parts * macros["TL_OUT"])
    of_groups = [(slice(group["first"], group["end"]), group["expert"]) for group in found]
    assert all(rows.stop - rows.start <= macros["TL_X_BOX"] * macros["TL_X_BOXES"] for rows, _ in of_groups)
    return [(result[rows], source[rows] @ weights[expert].T + biases[expert]) for rows, expert in of_groups]


@kernel
def sigmoid_gate(macros: Macros, grid: Grid, y: Pointer, x: Pointer, weight: Pointer, values: Pointer) -> None:
    half, rows = half_type(macros), grid[0]
    logits = at(x, half, rows, macros["TL_IN"]).astype(np.float64) @ at(weight, np.float32, macros["TL_IN"], 1)
    gated = at(values, half, rows, macros["TL_OUT"]).astype(np.float64) / (1 + np.exp(-logits))
    at(y, half, rows, macros["TL_OUT"])[...] = gated
