"""Computes what memory an engine would need for batches and lengths below its limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from trtllm_lite._core import KvGeometry
from trtllm_lite.common.units import format_bytes, short
from trtllm_lite.engine.inspect import Inspection
from trtllm_lite.pages.charts import NUM_COLORS, Axis, Chart, Curve

_TICKS = 5  # approximate number of ticks on the axis of bytes
_MOST = NUM_COLORS - 1  # bound on the number of batches, and of lengths


@dataclass(frozen=True)
class Cell:
    """``num_bytes`` of weights, workspace and a KV cache that has ``num_blocks`` for a batch."""

    num_bytes: int
    num_blocks: int


@dataclass(frozen=True)
class WhatIf:
    """A row for each of ``batches``, with a cell for each of ``lengths`` in tokens."""

    batches: Sequence[int]
    lengths: Sequence[int]
    rows: Sequence[Sequence[Cell]]

    @property
    def chart(self) -> Chart:
        """A curve for each batch."""
        curves = [
            Curve(f"batch {batch}", [(n, cell.num_bytes) for n, cell in zip(self.lengths, row, strict=True)], color)
            for color, (batch, row) in enumerate(zip(self.batches, self.rows, strict=True))
        ]
        sizes = [cell.num_bytes for row in self.rows for cell in row]
        low, high = min(sizes).bit_length() - 1, max(sizes).bit_length()
        ticks = tuple(2.0**power for power in range(low, high + 1, max((high - low) // _TICKS, 1)))
        x = Axis("tokens of each sequence", partial(short, unit=""), log=True)
        return Chart("Memory", x, Axis("", format_bytes, log=True, ticks=ticks), curves)


def what_if(found: Inspection) -> WhatIf | None:
    """The memory of batches and lengths up to the engine's limits; None for an engine without a KV cache."""
    if found.cache_use is None or not found.cache_use.groups:
        return None
    groups = [group.spec for group in found.cache_use.groups]
    tokens_per_block = found.kv_cache["tokens_per_block"]
    limits = {name: int(found.limits[name]) for name in ("max_batch_size", "max_seq_len", "max_num_tokens")}
    geometry = KvGeometry(tokens_per_block, groups, limits["max_num_tokens"])
    others = found.memory["total"] - found.memory["kv_cache"]
    batches = list(_doubling(1, limits["max_batch_size"]))
    lengths = list(_doubling(tokens_per_block, limits["max_seq_len"]))

    def cell(batch: int, length: int) -> Cell:
        num_blocks = geometry.most_blocks_of_batch(batch, length)
        return Cell(others + num_blocks * found.kv_cache["bytes_per_block"], num_blocks)

    return WhatIf(batches, lengths, [[cell(batch, length) for length in lengths] for batch in batches])


def _doubling(least: int, most: int) -> Iterator[int]:
    """``least``, 2 ``least``, 4 ``least``, … below ``most``, only the last ``_MOST - 1``; then ``most`` itself."""
    doubles = [least << power for power in range(most.bit_length()) if least << power < most]
    yield from [*doubles[-_MOST + 1 :], most]
