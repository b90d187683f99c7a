"""Undoes the order in which llama.cpp stores the value heads of Gated DeltaNet.

In Hugging Face's checkpoints the value heads of a key head follow one another. llama.cpp's converter puts the first
value head of every key head first, then the second one of each, and so on, as ggml broadcasts the key heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WITH_QUERIES = ("qkv_proj", "conv")  # roles of tensors with queries and keys before the values


@dataclass(frozen=True)
class HeadTiles:
    """The value heads of a tensor along ``axis``: ``of_key_head`` for each of ``num_key_heads``.

    ``start`` features come before them, and a head has ``size``.
    """

    num_key_heads: int
    of_key_head: int
    start: int
    size: int
    axis: int

    @classmethod
    def of(cls, role: str, axis: int, config: Mapping[str, Any]) -> "HeadTiles | None":
        """The tiles of the tensor of ``role``; None if no order but one is possible."""
        keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        if keys == 1 or keys == values:
            return None
        start = 2 * keys * config["linear_key_head_dim"] if role in _WITH_QUERIES else 0
        size = 1 if role in ("a_log", "dt_bias", "a_proj", "b_proj") else config["linear_value_head_dim"]
        return cls(keys, values // keys, start, size, axis)

    def fits_blocks(self, elements: int) -> bool:
        """Whether heads can change places while the tensor stays in blocks of so many elements of a row."""
        return self.axis == 0 or self.size % elements == 0

    def undone(self, values: NDArray) -> NDArray:
        """The tensor in the order of Hugging Face; ``values`` may also be the scales of its blocks."""
        before, heads = np.split(values, [self.start], self.axis)
        shape = heads.shape
        tiles = heads.reshape(*shape[: self.axis], self.of_key_head, self.num_key_heads, -1, *shape[self.axis + 1 :])
        return np.concatenate([before, tiles.swapaxes(self.axis, self.axis + 1).reshape(shape)], self.axis)
