"""State of kernels that synchronize with other ranks (``ranks.cuh``) or send them rows (``rank_inbox.cuh``)."""

from __future__ import annotations

from trtllm_lite.common.vocabulary import MAX_TP_SIZE

BARRIER_BLOCKS = 128  # the most blocks of a kernel
# Words of the states that such kernels read: the RankTable (int64) and the flags (int32).
RANKS_WORDS = 7 + 2 * MAX_TP_SIZE
FLAG_WORDS = 2 * BARRIER_BLOCKS * MAX_TP_SIZE + BARRIER_BLOCKS
INBOX_TURNS = 3  # places of each row of an inbox, used in rotation
_INBOX_ROWS = 512  # total over all other ranks


def inbox_rows(num_ranks: int) -> int:
    """The number of rows from each other rank for which an inbox has room.

    Steps with at most that many rows send them to every other rank. In larger steps, products store rows on the ranks
    that add them up, or ranks read them in place, which costs two barriers but moves fewer bytes. (Measured on
    two H200s: 8.8 and 13.5 us for 256 rows of 4096 elements.)
    """
    return _INBOX_ROWS // (num_ranks - 1)
