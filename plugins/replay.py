"""What a recurrent layer keeps of a sequence: a matrix for each head, and the tokens behind it, which are replayed.

A step reads the matrix without writing it, and adds what the tokens behind it would change. Only when REPLAYED tokens
are settled behind it are they added to the matrix that is stored. So most steps write a token instead of a matrix, and
the last tokens can be taken back, as wrong drafts are, by forgetting them.

Of a token at position t the place t % slots has its key, its update u, by which it changes the matrix by key u^T, and
the logarithm of the decay that comes before it. The matrix has the first ``length`` tokens, a multiple of REPLAYED.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

REPLAYED = 16


def stored_length(length: int, past: int, count: int, replayed: int, taken_back: int) -> int:
    """The tokens in the stored matrix after a step of ``count`` tokens after ``past`` ones, if it had ``length``.

    The last ``taken_back`` tokens of the step may be taken back, but none of those before it.
    """
    settled = past + max(count - taken_back, 0)
    return max(length, settled // replayed * replayed)


@dataclass(frozen=True)
class ReplayState:
    """The float32 elements of a head's state, in this order: matrix, keys, updates, decays, length.

    ``decays``: the decays of a token, 1 or one for each element of a key.
    """

    key_dim: int
    value_dim: int
    decays: int
    replayed: int
    taken_back: int

    @property
    def slots(self) -> int:
        """The tokens for which there is room behind the matrix."""
        return self.replayed + self.taken_back

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.key_dim * self.value_dim + self.slots * (self.key_dim + self.value_dim + self.decays) + 1

    def views(self, state: Any) -> tuple[Any, Any, Any, Any, Any]:
        """The parts of ``state`` [heads, size]: [heads, key_dim, value_dim], [heads, slots, …] three times, [heads]."""
        extents = [
            self.key_dim * self.value_dim,
            *(self.slots * width for width in (self.key_dim, self.value_dim, self.decays)),
        ]
        matrix, keys, updates, decays, length = np.split(state, np.cumsum(extents), axis=1)
        heads = len(state)
        return (
            matrix.reshape(heads, self.key_dim, self.value_dim),
            keys.reshape(heads, self.slots, self.key_dim),
            updates.reshape(heads, self.slots, self.value_dim),
            decays.reshape(heads, self.slots, self.decays),
            length[:, 0],
        )
