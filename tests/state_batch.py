"""Random sequences that go through an operator with a recurrent state, in steps; states that nobody has are NaN."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUM_GROUPS, GROUP = 2, 1  # tables of each sequence, and the one that the operator reads
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


def causal_conv(
    channels: int, width: int, *, bias: bool = True, activation: str = "silu", dtype: type = np.float32, **places: int
) -> Operator:
    """A CausalConv with random weights."""
    rng = np.random.default_rng([channels, width])
    weight = rng.standard_normal((channels, width), np.float32).astype(dtype)
    given = rng.standard_normal(channels, np.float32) if bias else None
    attributes = {"activation": activation, **_of_states(**places)}
    return Operator("CausalConv", (channels,), (channels, width - 1), (weight,), attributes, (given,), "causal_conv")


def gated_delta_rule(key_heads: int, value_heads: int, key_dim: int, value_dim: int, **places: int) -> Operator:
    """A GatedDeltaRule with heads that remember a few tokens, and others that remember hundreds."""
    rng = np.random.default_rng([key_heads, value_heads, key_dim, value_dim])
    a_log = np.linspace(np.log(1e-3), np.log(16), value_heads).astype(np.float32)
    widths = (2 * key_heads * key_dim + value_heads * value_dim, value_heads, value_heads)
    attributes = {"num_key_heads": key_heads, "scale": key_dim**-0.5, "norm_epsilon": 1e-6, **_of_states(**places)}
    weights = (a_log, rng.standard_normal(value_heads, np.float32))
    state = (value_heads, key_dim, value_dim)
    return Operator("GatedDeltaRule", widths, state, weights, attributes, folder="gated_delta_rule")


def _of_states(tokens_per_state: int = 16) -> dict[str, int]:
    return {"cache_group": GROUP, "tokens_per_state": tokens_per_state}


class Sequences:
    """Sequences of ``lengths`` tokens, of which steps append some to each."""

    def __init__(self, operator: Operator, lengths: Sequence[int], seed: int = 0, dtype: type = np.float32) -> None:
        """Make random rows; ``dtype`` is a type that holds them exactly."""
        rng = np.random.default_rng([seed, *lengths])
        self.operator, self.per_state = operator, int(operator.attributes["tokens_per_state"])
        self.rows = [
            [(2 * rng.standard_normal((length, width))).astype(dtype).astype(np.float32) for width in operator.widths]
            for length in lengths
        ]
        self.columns = max(-(-length // self.per_state) for length in lengths) + 1
        counts = [-(-length // self.per_state) for length in lengths]
        self.states = np.full((sum(counts) + 2, *operator.state), np.nan, np.float32)
        order = rng.permutation(len(self.states))
        self.tables = np.full((len(lengths), self.columns), _NO_BLOCK, np.int32)
        for sequence, end in enumerate(np.cumsum(counts)):
            self.tables[sequence, : counts[sequence]] = order[end - counts[sequence] : end]
        self.done = [0] * len(lengths)

    def inputs(self, new_tokens: Sequence[tuple[int, int]]) -> Arrays:
        """All inputs of a step that appends tokens: ``count`` of each ``(sequence, count)``."""
        spans = [(s, slice(self.done[s], self.done[s] + count)) for s, count in new_tokens]
        rows = [
            np.concatenate([self.rows[s][kind][span] for s, span in spans]) for kind in range(len(self.operator.widths))
        ]
        starts = np.cumsum([0, *(count for _, count in new_tokens)]).astype(np.int32)
        past_lens = np.array([self.done[s] for s, _ in new_tokens], np.int32)
        tables = np.full((len(new_tokens), NUM_GROUPS, self.columns), _NO_BLOCK, np.int32)
        tables[:, GROUP] = self.tables[[s for s, _ in new_tokens]]
        places = [starts, past_lens, tables.reshape(-1, self.columns)]
        return [*rows, *self.operator.weights, self.states, *places, *self.operator.last]

    def step(self, new_tokens: Sequence[tuple[int, int]], run: Run) -> list[np.ndarray]:
        """Run a step; returns ``y`` of each sequence, and checks that other states than its own are as before."""
        before = self.states
        y, self.states = run(self.inputs(new_tokens), self.operator.attributes)
        written = []
        for sequence, count in new_tokens:
            self.done[sequence] += count
            written += [self.state_block(sequence)] if count else []
        others = np.delete(np.arange(len(before)), written)
        np.testing.assert_array_equal(self.states[others], before[others])
        return np.split(y, np.cumsum([count for _, count in new_tokens])[:-1])

    def state_block(self, sequence: int) -> int:
        """The block of a sequence's latest state."""
        return int(self.tables[sequence, (self.done[sequence] - 1) // self.per_state])

    def state(self, sequence: int) -> np.ndarray:
        """A sequence's latest state."""
        return self.states[self.state_block(sequence)]


def run_steps(
    sequences: Sequences, steps: Sequence[Sequence[tuple[int, int]]], run: Run
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Run all steps; returns ``y`` and the last state of each sequence that has tokens."""
    parts: dict[int, list[np.ndarray]] = {}
    for new_tokens in steps:
        for (sequence, count), part in zip(new_tokens, sequences.step(new_tokens, run), strict=True):
            if count:
                parts.setdefault(sequence, []).append(part)
    order = sorted(parts)
    return [np.concatenate(parts[sequence]) for sequence in order], [sequences.state(sequence) for sequence in order]
