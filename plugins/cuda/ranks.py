"""What kernels that meet those of other ranks need: see ``ranks.cuh``."""

from __future__ import annotations

from trtllm_lite.vocabulary import MAX_TP_SIZE

MEETING_BLOCKS = 128  # of a kernel, at most
# Words of the states that such kernels read: addresses of all ranks (int64), and flags (int32).
RANKS_WORDS = 2 + 2 * MAX_TP_SIZE
FLAG_WORDS = 2 * MEETING_BLOCKS * MAX_TP_SIZE + MEETING_BLOCKS


def meeting(num_items: int, threads: int) -> tuple[int, dict[str, int]]:
    """Blocks of ``threads`` for up to ``num_items``, an item each as far as that goes, and the kernel's macros."""
    return min(-(-num_items // threads), MEETING_BLOCKS), {"TL_MEETING_BLOCKS": MEETING_BLOCKS}
