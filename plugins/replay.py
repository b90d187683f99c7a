"""What a recurrent layer keeps of a sequence: a matrix for each head, and the tokens behind it, which are replayed.

A step reads the matrix without writing it, and adds what the tokens behind it would change. Only when REPLAYED tokens
are settled behind it are they added to the matrix that is stored. So most steps write a token instead of a matrix, and
the last tokens can be taken back, as wrong drafts are, by forgetting them.

Of a token at position t the place t % slots has its key, its update u, by which it changes the matrix by key u^T, and
the logarithm of the decay that comes before it. The matrix has the first ``length`` tokens, a multiple of REPLAYED.

A matrix of 16-bit elements is rounded wherever it has a multiple of REPLAYED tokens, whether or not it is stored there:
so a sequence gets the same bits however it is divided into steps, from kernels that add in one order. On GPUs another
kernel computes long sequences (``cuda/replay_chunks.cuh``), but in deterministic engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from trtllm_lite.common.vocabulary import DTYPES, FLOAT32
from trtllm_lite.plugins.state_spans import StateSpan

REPLAYED = 16
ALIGNMENT = 8
"""Words of 32 bits: a head's state begins at a multiple of 32 bytes, the least that a GPU reads."""
_SIZES = ("key_dim", "value_dim", "decay_dim", "replay_tokens", "taken_back")


def stored_length(length: int, past: int, count: int, replayed: int, taken_back: int) -> int:
    """The tokens in the stored matrix after a step of ``count`` tokens after ``past`` ones, if it had ``length``.

    The last ``taken_back`` tokens of the step may be taken back, but none of those before it.
    """
    settled = past + max(count - taken_back, 0)
    return max(length, settled // replayed * replayed)


@dataclass(frozen=True)
class ReplayState:
    """A head's state: matrix, keys, updates, decays, length, in this order, and what aligns the next head's.

    ``decays``: the decays of a token, 1 or one for each element of a key. The elements of the state are of the type
    ``dtype``. Those of 16 bits hold the matrix, in whole words of 32 bits, and two of them each float32 behind it.
    """

    key_dim: int
    value_dim: int
    decays: int
    replayed: int
    taken_back: int
    dtype: str = FLOAT32

    @classmethod
    def of(cls, attributes: Mapping[str, Any], dtype: str) -> "ReplayState":
        """The layout that an operator's attributes state, of states of ``dtype``."""
        key_dim, value_dim, decays, replayed, taken_back = (int(attributes[name]) for name in _SIZES)
        return cls(key_dim, value_dim, decays, replayed, taken_back, dtype)

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes of an operator that state the layout, but for the tokens that may be taken back."""
        numbers = (self.key_dim, self.value_dim, self.decays, self.replayed)
        return dict(zip(_SIZES, numbers, strict=False))

    @property
    def slots(self) -> int:
        """The tokens for which there is room behind the matrix."""
        return self.replayed + self.taken_back

    @property
    def size(self) -> int:
        """The number of elements."""
        words = self._matrix_words + self.slots * (self.key_dim + self.value_dim + self.decays) + 1
        return self._of_word * (-(-words // ALIGNMENT) * ALIGNMENT)

    @property
    def _of_word(self) -> int:
        """The elements of a word of 32 bits."""
        return 32 // DTYPES[self.dtype].bits

    @property
    def _matrix_words(self) -> int:
        return -(-self.key_dim * self.value_dim // self._of_word)

    def views(self, state: Any) -> tuple[Any, Any, Any, Any, Any]:
        """The parts of ``state`` [heads, size]: [heads, key_dim, value_dim], [heads, slots, …] three times, [heads].

        The first is of the state's type, the others are float32.
        """
        heads, num_elements = len(state), self.key_dim * self.value_dim
        matrix, others = state[:, :num_elements], state[:, self._matrix_words * self._of_word :].view(np.float32)
        extents = [self.slots * width for width in (self.key_dim, self.value_dim, self.decays)]
        keys, updates, decays, rest = np.split(others, np.cumsum(extents), axis=1)
        return (
            matrix.reshape(heads, self.key_dim, self.value_dim),
            keys.reshape(heads, self.slots, self.key_dim),
            updates.reshape(heads, self.slots, self.value_dim),
            decays.reshape(heads, self.slots, self.decays),
            rest[:, 0],
        )

    def rounded(self, matrix: np.ndarray) -> np.ndarray:
        """What a state of 16-bit elements keeps of ``matrix``: instead of infinity the type's largest number."""
        largest = float(ml_dtypes.finfo(self.dtype).max)
        return matrix.clip(-largest, largest).astype(self.dtype).astype(np.float64)


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
        if self._layout.dtype != FLOAT32 and (position + 1) % self._layout.replayed == 0:
            self.matrix = self._layout.rounded(self.matrix)
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
