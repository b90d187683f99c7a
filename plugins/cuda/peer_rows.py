"""Where products store rows that other ranks read (``peer_rows.cuh``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..launch import Buffer


@dataclass(frozen=True)
class PeerRows:
    """Which rank stores each row, as macros; ``ranks``, the table of the ranks' memory, is needed for other ranks."""

    defines: Mapping[str, int]
    ranks: Buffer | None = field(default=None)


HERE = PeerRows({"TL_ROWS_ON": 0})


def on_owners(ranks: Buffer, rows: Buffer) -> PeerRows:
    """Store each row on the rank that adds it up, in the state ``rows`` [ranks, rows of a rank, features]."""
    num_ranks, rank_rows, _ = rows.shape
    assert isinstance(num_ranks, int)
    assert isinstance(rank_rows, int)
    return PeerRows({"TL_ROWS_ON": 1, "TL_RANKS": num_ranks, "TL_RANK_ROWS": rank_rows}, ranks)


def on_first_rank(ranks: Buffer, features: int) -> PeerRows:
    """Store all rows on the first rank, as columns of rows of ``features`` elements from all ranks."""
    return PeerRows({"TL_ROWS_ON": 2, "TL_ROW_FEATURES": features}, ranks)
