"""Where the states of a step's sequences lie, for the references of operators with a recurrent state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StateSpan:
    """The new tokens of a sequence, and the blocks of its state before and after them.

    ``source`` is None for a sequence that begins: its state is zero.
    """

    rows: slice
    source: int | None
    target: int


def state_spans(
    cu_seqlens: Sequence[int], past_lens: Sequence[int], block_tables: Any, attributes: Mapping[str, Any]
) -> Iterator[StateSpan]:
    """Yield the span of each sequence that has new tokens; arguments are those of the operator."""
    num_groups, tokens_per_state = len(block_tables) // len(past_lens), int(attributes["tokens_per_state"])
    for sequence, past in enumerate(map(int, past_lens)):
        first, end = int(cu_seqlens[sequence]), int(cu_seqlens[sequence + 1])
        if first == end:
            continue
        row = block_tables[sequence * num_groups + int(attributes["cache_group"])]
        source = int(row[(past - 1) // tokens_per_state]) if past else None
        yield StateSpan(slice(first, end), source, int(row[(past + end - first - 1) // tokens_per_state]))
