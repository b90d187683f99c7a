"""GatedDeltaRule in numpy, one token at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trtllm_lite.plugins.replay import ReplayState, stored_length
from trtllm_lite.plugins.state_spans import StateSpan, state_spans


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y, recurrent_state_out)``; inputs are not changed."""
    qkv, a, b, a_log, dt_bias, states, cu_seqlens, past_lens, block_tables = inputs
    key_heads, key_dim = int(attributes["num_key_heads"]), int(attributes["key_dim"])
    heads, value_dim = len(a_log), int(attributes["value_dim"])
    layout = ReplayState(key_dim, value_dim, *(int(attributes[name]) for name in _SIZES))
    queries, keys, values = np.split(qkv.astype(np.float64), np.cumsum([key_heads * key_dim] * 2), axis=1)
    queries, keys = (
        _normalised(part.reshape(-1, key_heads, key_dim), attributes["norm_epsilon"]).repeat(heads // key_heads, axis=1)
        for part in (queries, keys)
    )
    queries, values = queries * attributes["scale"], values.reshape(-1, heads, value_dim)
    speed = np.exp(a_log.astype(np.float64))[:, None]
    decay = -speed * np.logaddexp(0, a.astype(np.float64) + dt_bias).reshape(len(a), heads, -1)
    beta = np.exp(-np.logaddexp(0, -b.astype(np.float64)))
    y, updated = np.zeros(values.shape), states.copy()
    for span in state_spans(cu_seqlens, past_lens, block_tables, attributes):
        replay = Replay(layout, updated[span.block], span)
        for row in range(span.rows.start, span.rows.stop):
            matrix = replay.matrix * np.exp(decay[row])[:, :, None]
            update = beta[row, :, None] * (values[row] - np.einsum("hkv,hk->hv", matrix, keys[row]))
            replay.add(keys[row], update, decay[row])
            y[row] = np.einsum("hkv,hk->hv", replay.matrix, queries[row])
        replay.store()
    return y.reshape(len(qkv), -1).astype(np.float32), updated


_SIZES = ("decay_dim", "replay_tokens", "taken_back")


class Replay:
    """A sequence's matrices [heads, key_dim, value_dim] while a step's tokens are added, one after the other."""

    def __init__(self, layout: ReplayState, state: np.ndarray, span: StateSpan) -> None:
        """``state`` [heads, layout.size] is changed by :meth:`store`."""
        self._layout, self._parts, self._position = layout, layout.views(state), span.past
        matrix, keys, updates, decays, length = self._parts
        self._length = int(length[0]) if span.past else 0
        self._past, self._stored = (
            span.past,
            stored_length(self._length, span.past, span.count, layout.replayed, layout.taken_back),
        )
        self.matrix = matrix.astype(np.float64) if self._length else np.zeros(matrix.shape)
        self._kept: np.ndarray | None = None
        self._new: list[tuple[np.ndarray, ...]] = []
        for position in range(self._length, span.past):
            slot = position % layout.slots
            self._change(position, *(part[:, slot].astype(np.float64) for part in (keys, updates, decays)))

    def add(self, key: np.ndarray, update: np.ndarray, decay: np.ndarray) -> None:
        """Add the next token: [heads, key_dim], [heads, value_dim], [heads, decays]."""
        self._change(self._position, key, update, decay)
        self._new.append((key, update, decay))
        self._position += 1

    def _change(self, position: int, key: np.ndarray, update: np.ndarray, decay: np.ndarray) -> None:
        self.matrix = self.matrix * np.exp(decay)[:, :, None] + key[:, :, None] * update[:, None]
        if position + 1 == self._stored:
            self._kept = self.matrix

    def store(self) -> None:
        """Write the sequence's state after the step."""
        matrix, *parts, length = self._parts
        if self._kept is not None:
            matrix[...] = self._kept
        for number in range(max(self._stored - self._past, 0), len(self._new)):
            for part, value in zip(parts, self._new[number], strict=True):
                part[:, (self._past + number) % self._layout.slots] = value
        length[...] = self._stored


def _normalised(heads: np.ndarray, epsilon: float) -> np.ndarray:
    return heads / np.sqrt((heads**2).sum(-1, keepdims=True) + epsilon)
