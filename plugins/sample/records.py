"""The structs of slot.cuh in numpy, for references."""

import numpy as np

LARGEST = -1  # kGreedy: in place of the number of tokens before
NOT_SEEN = -1
TOKEN_MASK, BANNED, STOP = (1 << 24) - 1, 1 << 24, 1 << 25

SLOT = np.dtype(
    [
        ("temperature", "<f4"),
        ("top_k", "<i4"),
        ("top_p", "<f4"),
        ("min_p", "<f4"),
        ("seed", "<u4", 2),
        ("sequence_index", "<u4"),
        ("num_edits", "<i4"),
        ("repetition_penalty", "<f4"),
        ("presence_penalty", "<f4"),
        ("frequency_penalty", "<f4"),
        ("min_tokens", "<i4"),
        ("num_logprobs", "<i4"),
        ("counts_tokens", "<i4"),
        ("stops", "<i4", 10),
    ]
)
EDIT = np.dtype([("token", "<u4"), ("num_generated", "<i4"), ("bias", "<f4"), ("raw", "<f4")])
LOGPROBS = np.dtype([("logprob", "<f4"), ("rank", "<i4"), ("tokens", "<i4", 20), ("logprobs", "<f4", 20)])


def record(max_edits: int) -> np.dtype:
    """A row of ``sampling_slots``."""
    return np.dtype([("slot", SLOT), ("edits", EDIT, max_edits)])
