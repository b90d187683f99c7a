"""Random sequences that go through an operator with a recurrent state, in steps; states that nobody has are NaN."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from tests.tolerances import ROUNDED_TOLERANCES, STATE_TOLERANCES, Tolerance, assert_close
from trtllm_lite.plugins.replay import REPLAYED, ReplayState
from trtllm_lite.plugins.schema import all_schemas

NUM_GROUPS, GROUP = 2, 1  # tables of each sequence, and the one that the operator reads
TAKEN_BACK = 4  # the last tokens of a step that may be taken back
_NO_BLOCK = 1 << 20  # of table entries that must not be read

Arrays = list[np.ndarray | None]
# Takes inputs, and returns ``y`` and the updated states.
Run = Callable[[Arrays, Mapping[str, Any]], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Operator:
    """An operator with its weights; inputs are rows of ``widths``, ``weights``, states, places, and ``last``."""

    name: str
    widths: tuple[int, ...]
    state: tuple[int, ...]
    weights: tuple[np.ndarray, ...]
    attributes: Mapping[str, Any]
    last: tuple[np.ndarray | None, ...] = ()
    folder: str = field(default="", compare=False)
    layout: ReplayState | None = None  # of the state of a head, if it has a matrix

    def parts(self, states: np.ndarray) -> dict[str, np.ndarray]:
        """``states`` [blocks, …] by what they mean."""
        if self.layout is None:
            return {"inputs": states}
        heads = states.reshape(-1, states.shape[-1])
        return dict(zip(("matrix", "keys", "updates", "decays", "length"), self.layout.views(heads), strict=True))

    def among_others(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """``rows`` with as many columns of NaN on both sides as the attributes say of the first side."""
        begins = [self.attributes.get(argument.first, 0) for argument in all_schemas()[self.name].inputs]
        return [
            np.pad(part, ((0, 0), (first, first)), constant_values=np.nan)
            for part, first in zip(rows, begins, strict=False)
        ]


def in_wider_rows(operator: Operator) -> Operator:
    """The operator on columns of wider rows, wherever it may read such, at another column of each."""
    begins = [argument.first for argument in all_schemas()[operator.name].inputs if argument.columns]
    attributes = {**operator.attributes, **{name: 6 + 5 * number for number, name in enumerate(begins)}}
    return replace(operator, attributes=attributes)


def causal_conv(
    channels: int,
    width: int,
    *,
    bias: bool = True,
    activation: str = "silu",
    dtype: type = np.float32,
    taken_back: int = TAKEN_BACK,
) -> Operator:
    """A CausalConv with random weights."""
    rng = np.random.default_rng([channels, width])
    weight = rng.standard_normal((channels, width), np.float32).astype(dtype)
    given = rng.standard_normal(channels, np.float32) if bias else None
    attributes = {"activation": activation, "cache_group": GROUP, "taken_back": taken_back, "x_first": 0}
    state = (width - 1 + taken_back, channels)
    return Operator("CausalConv", (channels,), state, (weight,), attributes, (given,), "causal_conv")


def gated_delta_rule(
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    *,
    by_channel: bool = False,
    taken_back: int = TAKEN_BACK,
    state_dtype: str = "float32",
) -> Operator:
    """A GatedDeltaRule with heads that remember a few tokens, and others that remember hundreds.

    ``by_channel``: each channel of a key has a decay of its own.
    """
    rng = np.random.default_rng([key_heads, value_heads, key_dim, value_dim])
    a_log = np.linspace(np.log(1e-3), np.log(16), value_heads).astype(np.float32)
    layout = ReplayState(key_dim, value_dim, key_dim if by_channel else 1, REPLAYED, taken_back, state_dtype)
    decays = value_heads * layout.decays
    widths = (2 * key_heads * key_dim + value_heads * value_dim, decays, value_heads)
    attributes = {"num_key_heads": key_heads, "scale": key_dim**-0.5, "norm_epsilon": 1e-6, **_of_replay(layout)}
    attributes |= {"a_first": 0, "b_first": 0}
    weights = (a_log, rng.standard_normal(decays, np.float32))
    state = (value_heads, layout.size)
    return Operator("GatedDeltaRule", widths, state, weights, attributes, (), "gated_delta_rule", layout)


def mamba2(
    heads: int,
    groups: int,
    key_dim: int,
    value_dim: int,
    *,
    bounds: tuple[float, float] = (0.01, 4.0),
    taken_back: int = TAKEN_BACK,
    state_dtype: str = "float32",
) -> Operator:
    """A Mamba2 with heads that remember a few tokens, and others that remember hundreds; ``bounds`` bind some steps."""
    rng = np.random.default_rng([heads, groups, key_dim, value_dim])
    a_log = np.linspace(np.log(1e-3), np.log(16), heads).astype(np.float32)
    layout = ReplayState(key_dim, value_dim, 1, REPLAYED, taken_back, state_dtype)
    widths = (heads * value_dim + 2 * groups * key_dim, heads)
    attributes = {"num_groups": groups, "min_step": bounds[0], "max_step": bounds[1], **_of_replay(layout)}
    attributes["dt_first"] = 0
    weights = (a_log, *rng.standard_normal((2, heads), np.float32))
    return Operator("Mamba2", widths, (heads, layout.size), weights, attributes, (), "mamba2", layout)


def _of_replay(layout: ReplayState) -> dict[str, int]:
    return {
        **{"key_dim": layout.key_dim, "value_dim": layout.value_dim, "decay_dim": layout.decays, "cache_group": GROUP},
        **{"replay_tokens": layout.replayed, "taken_back": layout.taken_back},
    }


class Sequences:
    """Sequences of ``lengths`` tokens, of which steps append some to each."""

    def __init__(self, operator: Operator, lengths: Sequence[int], seed: int = 0, dtype: type = np.float32) -> None:
        """Make random rows; ``dtype`` is a type that holds them exactly."""
        rng = np.random.default_rng([seed, *lengths])
        self.operator = operator
        self.rows = [
            [(2 * rng.standard_normal((length, width))).astype(dtype).astype(np.float32) for width in operator.widths]
            for length in lengths
        ]
        dtype_of_states = np.dtype("float32" if operator.layout is None else operator.layout.dtype)
        self.states = np.empty((len(lengths) + 2, *operator.state), dtype_of_states)
        self.states.view(np.uint8)[...] = 0xFF  # NaN in each of the types
        self.tables = np.full((len(lengths), 2), _NO_BLOCK, np.int32)
        self.tables[:, 0] = rng.permutation(len(self.states))[: len(lengths)]
        self.done = [0] * len(lengths)

    def inputs(self, new_tokens: Sequence[tuple[int, int]]) -> Arrays:
        """All inputs of a step that appends tokens: ``count`` of each ``(sequence, count)``."""
        spans = [(s, slice(self.done[s], self.done[s] + count)) for s, count in new_tokens]
        rows = [
            np.concatenate([self.rows[s][kind][span] for s, span in spans]) for kind in range(len(self.operator.widths))
        ]
        starts = np.cumsum([0, *(count for _, count in new_tokens)]).astype(np.int32)
        past_lens = np.array([self.done[s] for s, _ in new_tokens], np.int32)
        tables = np.full((len(new_tokens), NUM_GROUPS, 2), _NO_BLOCK, np.int32)
        tables[:, GROUP] = self.tables[[s for s, _ in new_tokens]]
        places = [starts, past_lens, tables.reshape(-1, 2)]
        return [*self.operator.among_others(rows), *self.operator.weights, self.states, *places, *self.operator.last]

    def step(self, new_tokens: Sequence[tuple[int, int]], run: Run) -> list[np.ndarray]:
        """Run a step; returns ``y`` of each sequence, and checks that other states than its own are as before."""
        before = self.states
        y, self.states = run(self.inputs(new_tokens), self.operator.attributes)
        written = []
        for sequence, count in new_tokens:
            self.done[sequence] += count
            written += [self.state_block(sequence)] if count else []
        others = np.delete(np.arange(len(before)), written)
        np.testing.assert_array_equal(self.states[others].view(np.uint8), before[others].view(np.uint8))
        return np.split(y, np.cumsum([count for _, count in new_tokens])[:-1])

    def take_back(self, sequence: int, count: int, seed: int) -> None:
        """Take back the last ``count`` tokens of a sequence, and give it others in their place."""
        self.done[sequence] -= count
        rng = np.random.default_rng(seed)
        for rows in self.rows[sequence]:
            left = rows[self.done[sequence] :]
            left[...] = left[rng.permutation(len(left))]

    def state_block(self, sequence: int) -> int:
        """The block of a sequence's state."""
        return int(self.tables[sequence, 0])


def run_steps(sequences: Sequences, steps: Sequence[Sequence[tuple[int, int]]], run: Run) -> list[np.ndarray]:
    """Run all steps; returns ``y`` of each sequence that has tokens."""
    parts: dict[int, list[np.ndarray]] = {}
    for new_tokens in steps:
        for (sequence, count), part in zip(new_tokens, sequences.step(new_tokens, run), strict=True):
            if count:
                parts.setdefault(sequence, []).append(part)
    return [np.concatenate(parts[sequence]) for sequence in sorted(parts)]


def check_states(
    operator: Operator,
    found: np.ndarray,
    expected: np.ndarray,
    tolerances: Mapping[str, Tolerance] = STATE_TOLERANCES,
) -> None:
    """Compare states [blocks, …], of which elements that nobody wrote are NaN."""
    for what, states in operator.parts(expected).items():
        own, is_stored = operator.parts(found)[what], np.isfinite(states)
        np.testing.assert_array_equal(np.isfinite(own), is_stored)
        if is_stored.any() and states[is_stored].any():
            assert_close(own[is_stored], states[is_stored], expected.dtype.name, what, tolerances)


def check_tokens_are_taken_back(operator: Operator, run: Run, seed: int, dtype: str | None = None) -> None:
    """Steps whose last tokens are taken back must leave no trace: results are those of the tokens that stay.

    They have the same bits, or with ``dtype`` those that its tolerance allows.
    """
    rng = np.random.default_rng(seed)
    most = TAKEN_BACK
    lengths = [int(length) for length in rng.integers(1, 70, 3)]
    sequences = Sequences(operator, [length + most for length in lengths], seed)
    found: list[list[np.ndarray]] = [[] for _ in lengths]
    for turn in range(1000):
        left = [length - done for length, done in zip(lengths, sequences.done, strict=True)]
        if not any(left):
            break
        counts = [int(rng.integers(0, rest + 1)) if rng.random() < 0.3 else min(1, rest) for rest in left]
        drafts = [int(rng.integers(0, most + 1)) if count else 0 for count in counts]
        if not any(counts):
            continue
        tokens = [(s, count + wrong) for s, (count, wrong) in enumerate(zip(counts, drafts, strict=True))]
        for (s, _), y, count, wrong in zip(tokens, sequences.step(tokens, run), counts, drafts, strict=True):
            found[s].append(y[:count])
            sequences.take_back(s, wrong, turn)
    expected = Sequences(operator, [length + most for length in lengths], seed)
    for s, rows in enumerate(sequences.rows):
        expected.rows[s] = rows
    whole = expected.step(list(enumerate(lengths)), run)
    for parts, y in zip(found, whole, strict=True):
        if dtype is None:
            np.testing.assert_array_equal(np.concatenate(parts), y)
        else:
            assert_close(np.concatenate(parts), y, dtype, what="y", table=ROUNDED_TOLERANCES)


def check_what_is_kept(state_dtype: str, numbers: Sequence[float], made: Callable[[Operator], Run]) -> None:
    """Check a matrix of 16 bits that becomes ``numbers``.

    They are rounded to nearest, ties to even; beyond the type's largest number they become it, and NaN stays NaN.
    """
    operator = mamba2(1, 1, 1, len(numbers), bounds=(1.0, 1.0), taken_back=1, state_dtype=state_dtype)
    sequences = Sequences(operator, [REPLAYED + 1])
    (inputs, _), kept = sequences.rows[0], REPLAYED - 1
    inputs[...] = [0.0] * len(numbers) + [1.0, 1.0]  # B and C are 1, and steps are 1 by their bounds
    inputs[kept, : len(numbers)] = numbers
    sequences.step([(0, len(inputs))], made(operator))
    found = operator.parts(sequences.states[[sequences.state_block(0)]])["matrix"][0, 0]
    largest = float(ml_dtypes.finfo(state_dtype).max)
    expected = np.array(numbers, np.float32).clip(-largest, largest).astype(state_dtype)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
