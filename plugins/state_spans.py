"""Where the states of a step's sequences lie, for the references of operators with a recurrent state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StateSpan:
    """The new ``rows`` of a sequence, after ``past`` tokens, and the ``block`` of its state."""

    rows: slice
    past: int
    block: int

    @property
    def count(self) -> int:
        """The number of new tokens."""
        return self.rows.stop - self.rows.start

    @property
    def end(self) -> int:
        """The position behind the last new token."""
        return self.past + self.count


def state_spans(
    cu_seqlens: Sequence[int], past_lens: Sequence[int], block_tables: Any, attributes: Mapping[str, Any]
) -> Iterator[StateSpan]:
    """Yield the span of each sequence that has new tokens; arguments are those of the operator."""
    num_groups = len(block_tables) // len(past_lens)
    for sequence, past in enumerate(map(int, past_lens)):
        first, end = int(cu_seqlens[sequence]), int(cu_seqlens[sequence + 1])
        if first < end:
            row = block_tables[sequence * num_groups + int(attributes["cache_group"])]
            yield StateSpan(slice(first, end), past, int(row[0]))
