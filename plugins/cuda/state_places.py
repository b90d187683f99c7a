"""What kernels of operators with a recurrent state are told about where states lie (``state_span.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Argument, Buffer, Extent, Slice, symbol
from .lowering import Lowering


@dataclass(frozen=True)
class StatePlaces:
    """The states of a layer, and the step inputs that locate those of the step's sequences."""

    states: Buffer
    cu_seqlens: Buffer
    past_lens: Buffer
    block_tables: Buffer  # [sequences * cache groups, columns]
    num_groups: int
    group: int
    block_bytes: int

    @classmethod
    def of(cls, op: Lowering, states: str) -> StatePlaces:
        """Take the operands of ``op``."""
        buffer = op.cache(states, *(extent for extent in op.extents(states)[1:] if isinstance(extent, int)))
        num_groups = op.rows("slots").shape[0]
        assert isinstance(num_groups, int)
        starts, past_lens, tables = (op.step_input(name) for name in ("cu_seqlens", "past_lens", "block_tables"))
        return cls(buffer, starts, past_lens, tables, num_groups, op.attribute("cache_group"), op.block_bytes)

    def defines(self) -> dict[str, int]:
        """Macros of ``state_span.cuh``."""
        return {"TL_BLOCK_BYTES": self.block_bytes}

    def arguments(self) -> tuple[Argument, ...]:
        """The states, and what the kernel makes its ``StatePlaces`` of."""
        first = symbol("max_blocks_per_seq", 4 * self.group) if self.group else Extent(0)
        stride = symbol("max_blocks_per_seq", self.num_groups)
        return self.states, self.cu_seqlens, self.past_lens, Slice(self.block_tables, first), stride
