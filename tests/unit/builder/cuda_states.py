"""The kernels of operators with a recurrent state in numpy over raw memory; see cuda_kernels.py."""

from typing import Any

import numpy as np

from tests.unit.builder.cuda_kernels import Grid, Macros, Pointer, activated, at, columns_at, half_type, kernel
from trtllm_lite.plugins.activations import activate
from trtllm_lite.plugins.causal_conv.reference import reference as convolve
from trtllm_lite.plugins.cuda.replay import STATE_FORMS
from trtllm_lite.plugins.gated_delta_rule.reference import reference as apply_delta_rule
from trtllm_lite.plugins.grouped_rms_norm.reference import reference as normalise_groups
from trtllm_lite.plugins.mamba2.reference import reference as apply_mamba2
from trtllm_lite.plugins.replay import ReplayState

# The attributes of operators with a replayed state, and their macros.
_REPLAY = {
    "key_dim": "KEY_DIM",
    "value_dim": "VALUE_DIM",
    "decay_dim": "DECAY_DIM",
    "replay_tokens": "REPLAYED",
    "taken_back": "TAKEN_BACK",
}


def _layout(macros: Macros) -> ReplayState:
    dtype = STATE_FORMS[int(macros["TL_STATE_FORM"])]
    return ReplayState(*(macros[f"TL_{name}"] for name in _REPLAY.values()), dtype)


def _attributes(macros: Macros, **more: Any) -> dict[str, Any]:
    return {name: macros[f"TL_{macro}"] for name, macro in _REPLAY.items()} | {"cache_group": 0, **more}


def _places(pointers: tuple[Pointer, Pointer, Pointer], num_seqs: int, stride: int) -> list[np.ndarray]:
    """``cu_seqlens``, ``past_lens``, and the first entry of each sequence's table."""
    starts, past_lens = at(pointers[0], np.int32, num_seqs + 1), at(pointers[1], np.int32, num_seqs)
    entries = pointers[2].view(np.int32)
    return [starts, past_lens, np.array([[entries[seq * stride]] for seq in range(num_seqs)], np.int32)]


class _States:
    """The states that a step's sequences have, one after the other, and ``tables`` that say so.

    States of blocks that follow each other may overlap: only one of them is in use.
    """

    def __init__(
        self, macros: Macros, pointer: Pointer, tables: np.ndarray, *shape: int, dtype: str = "float32"
    ) -> None:
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        ends = tables.astype(np.int64) * macros["TL_BLOCK_BYTES"] + size
        self.blocks = np.unique(tables[(tables >= 0) & (ends <= len(pointer))])
        begins = [int(block) * macros["TL_BLOCK_BYTES"] for block in self.blocks]
        self.views = [at(pointer[begin:], np.dtype(dtype), *shape) for begin in begins]
        self.all = np.array(self.views, np.dtype(dtype)).reshape(-1, *shape)
        self.tables = np.where(np.isin(tables, self.blocks), np.searchsorted(self.blocks, tables), -1).astype(np.int32)

    def store(self, states: np.ndarray) -> None:
        changed = [new.tobytes() != old.tobytes() for new, old in zip(states, self.all, strict=True)]
        for view, state, is_changed in zip(self.views, states, changed, strict=True):
            if is_changed:
                view[...] = state


@kernel
def causal_conv(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    states: Pointer,
    cu_seqlens: Pointer,
    past_lens: Pointer,
    tables: Pointer,
    stride: int,
    x: Pointer,
    weight: Pointer,
    bias: Pointer | None,
    num_seqs: int,
    num_tokens: int,
) -> None:
    half, channels, width = half_type(macros), macros["TL_CHANNELS"], macros["TL_WIDTH"]
    assert grid[0] * macros["TL_THREADS"] * macros["TL_OF_THREAD"] >= channels
    assert grid[1] * macros["TL_TOKENS"] >= num_tokens
    *places, blocks = _places((cu_seqlens, past_lens, tables), num_seqs, stride)
    cache = _States(macros, states, blocks, macros["TL_SLOTS"], channels)
    rows = columns_at(x, half, num_tokens, channels, macros["TL_X_PITCH"]).astype(np.float32)
    taps = at(weight, half, channels, width)
    given = None if bias is None else at(bias, np.float32, channels)
    inputs = [rows, taps, cache.all, *places, cache.tables, given]
    sums, after = convolve(inputs, {"activation": "none", "cache_group": 0, "x_first": 0})
    cache.store(after)
    at(y, half, num_tokens, channels)[...] = activated(macros, sums.astype(np.float64))


# The kernels of long sequences make results of these alone, and those that follow them store the states of all.
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # results and new states, and the new tokens of each sequence


def _store_results(macros: Macros, y: Pointer, results: np.ndarray, counts: np.ndarray, *, are_long: bool) -> None:
    wanted = np.repeat((counts > macros["TL_MOST_TOKENS"]) == are_long, counts)
    at(y, half_type(macros), *results.shape)[wanted] = results[wanted]


def _check_grid_of_tokens(macros: Macros, grid: Grid, heads: int, num_seqs: int) -> None:
    if macros["TL_PREFETCHES"]:
        assert macros["TL_COLUMNS"] == macros["TL_VALUE_DIM"]
        return
    assert grid[1] == num_seqs
    assert grid[0] * macros["TL_COLUMNS"] >= heads * macros["TL_VALUE_DIM"]
    assert grid[0] % heads == 0


def _check_grid_of_chunks(macros: Macros, grid: Grid, features: int, counts: np.ndarray) -> None:
    assert grid[0] * macros["TL_COLUMNS"] == features
    assert grid[1] >= (counts > macros["TL_MOST_TOKENS"]).sum()


def _delta_rule(macros: Macros, num_seqs: int, states: Pointer, *given: Any) -> tuple[_States, Rows]:
    cu_seqlens, past_lens, tables, stride, qkv, a, b, a_log, dt_bias, scale, epsilon = given
    key_heads, heads = macros["TL_KEY_HEADS"], macros["TL_VALUE_HEADS"]
    layout = _layout(macros)
    key_dim, value_dim, decays = layout.key_dim, layout.value_dim, heads * layout.decays
    *places, blocks = _places((cu_seqlens, past_lens, tables), num_seqs, stride)
    cache = _States(macros, states, blocks, heads, layout.size, dtype=layout.dtype)
    count, half = int(places[0][-1]), half_type(macros)
    rows = [at(qkv, half, count, 2 * key_heads * key_dim + heads * value_dim)]
    rows.append(columns_at(a, half, count, decays, macros["TL_A_PITCH"]))
    rows.append(columns_at(b, half, count, heads, macros["TL_B_PITCH"]))
    weights = [at(a_log, np.float32, heads), at(dt_bias, np.float32, decays)]
    given_to_rule = {"num_key_heads": key_heads, "scale": scale, "norm_epsilon": epsilon}
    attributes = _attributes(macros, **given_to_rule, a_first=0, b_first=0)
    results, after = apply_delta_rule([*rows, *weights, cache.all, *places, cache.tables], attributes)
    return cache, (results, after, np.diff(places[0]))


@kernel
def gated_delta_rule(macros: Macros, grid: Grid, y: Pointer, states: Pointer, *given: Any) -> None:
    *operands, num_seqs = given
    _check_grid_of_tokens(macros, grid, macros["TL_VALUE_HEADS"], num_seqs)
    cache, (results, after, counts) = _delta_rule(macros, num_seqs, states, *operands)
    cache.store(after)
    _store_results(macros, y, results, counts, are_long=False)


@kernel
def gated_delta_rule_chunks(macros: Macros, grid: Grid, y: Pointer, states: Pointer, *given: Any) -> None:
    *operands, num_seqs = given
    _, (results, _, counts) = _delta_rule(macros, num_seqs, states, *operands)
    _check_grid_of_chunks(macros, grid, results.shape[1], counts)
    _store_results(macros, y, results, counts, are_long=True)


def _mamba2(macros: Macros, num_seqs: int, states: Pointer, *given: Any) -> tuple[_States, Rows]:
    cu_seqlens, past_lens, tables, stride, xbc, dt, a_log, dt_bias, d, min_step, max_step = given
    heads, groups, layout = macros["TL_HEADS"], macros["TL_GROUPS"], _layout(macros)
    features = heads * layout.value_dim
    *places, blocks = _places((cu_seqlens, past_lens, tables), num_seqs, stride)
    cache = _States(macros, states, blocks, heads, layout.size, dtype=layout.dtype)
    count, half = int(places[0][-1]), half_type(macros)
    rows = [at(xbc, half, count, features + 2 * groups * layout.key_dim)]
    rows.append(columns_at(dt, half, count, heads, macros["TL_DT_PITCH"]))
    weights = [at(vector, np.float32, heads) for vector in (a_log, dt_bias, d)]
    attributes = _attributes(macros, num_groups=groups, min_step=min_step, max_step=max_step, dt_first=0)
    results, after = apply_mamba2([*rows, *weights, cache.all, *places, cache.tables], attributes)
    return cache, (results, after, np.diff(places[0]))


@kernel
def mamba2(macros: Macros, grid: Grid, y: Pointer, states: Pointer, *given: Any) -> None:
    *operands, num_seqs = given
    _check_grid_of_tokens(macros, grid, macros["TL_HEADS"], num_seqs)
    cache, (results, after, counts) = _mamba2(macros, num_seqs, states, *operands)
    cache.store(after)
    _store_results(macros, y, results, counts, are_long=False)


@kernel
def mamba2_chunks(macros: Macros, grid: Grid, y: Pointer, states: Pointer, *given: Any) -> None:
    *operands, num_seqs = given
    _, (results, _, counts) = _mamba2(macros, num_seqs, states, *operands)
    _check_grid_of_chunks(macros, grid, results.shape[1], counts)
    _store_results(macros, y, results, counts, are_long=True)


@kernel
def gated_rms_norm(
    macros: Macros, grid: Grid, y: Pointer, x: Pointer, gate: Pointer, weight: Pointer, epsilon: float
) -> None:
    half, shape, size = half_type(macros), (grid[0], macros["TL_FEATURES"]), macros["TL_GROUP"]
    assert grid[1] * (macros["TL_THREADS"] // macros["TL_LANES"]) * size >= shape[1]
    groups = at(x, half, *shape).astype(np.float64).reshape(grid[0], -1, size)
    normal = groups / np.sqrt(np.mean(groups**2, axis=-1, keepdims=True) + epsilon) * at(weight, np.float32, size)
    name = "sigmoid" if macros["TL_SIGMOID"] else "silu"
    gates = columns_at(gate, half, *shape, macros["TL_GATE_PITCH"]).astype(np.float64)
    at(y, half, *shape)[...] = normal.reshape(shape) * activate(name, gates)


@kernel
def grouped_rms_norm(
    macros: Macros, grid: Grid, y: Pointer, x: Pointer, gate: Pointer, weight: Pointer, epsilon: float
) -> None:
    half, shape, groups = half_type(macros), (grid[0], macros["TL_FEATURES"]), macros["TL_GROUPS"]
    assert grid[1] == groups
    pitch = macros["TL_GATE_PITCH"]
    gates = columns_at(gate, half, *shape, pitch) if pitch else None
    operands = [at(x, half, *shape), gates, at(weight, np.float32, groups, shape[1] // groups)]
    order = "gate_first" if macros["TL_GATE_FIRST"] else "gate_last"
    (at(y, half, *shape)[...],) = normalise_groups(operands, {"order": order, "epsilon": epsilon, "gate_first": 0})
