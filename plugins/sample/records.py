"""The structs of slot.cuh in numpy, for references."""

import numpy as np

from trtllm_lite.request_fields.draws import NUMBERS

LARGEST = -1  # kGreedy: the sample_counter that asks for the largest logit
NOT_SEEN = -1
TOKEN_MASK, BANNED, STOP = (1 << 24) - 1, 1 << 24, 1 << 25

_NUMBERS = [(name, "<i4" if number.whole else "<f4") for name, number in NUMBERS.items()]
SLOT = np.dtype(
    [
        *_NUMBERS,
        ("seed", "<u4", 2),
        ("sequence_index", "<u4"),
        ("num_edits", "<i4"),
        ("min_tokens", "<i4"),
        ("num_logprobs", "<i4"),
        ("counts_tokens", "<i4"),
        ("stops", "<i4", 17 - len(_NUMBERS)),
    ]
)
EDIT = np.dtype([("token", "<u4"), ("num_generated", "<i4"), ("bias", "<f4"), ("raw", "<f4")])
LOGPROBS = np.dtype([("logprob", "<f4"), ("rank", "<i4"), ("tokens", "<i4", 20), ("logprobs", "<f4", 20)])


def record(max_edits: int) -> np.dtype:
    """A row of ``sampling_slots``."""
    return np.dtype([("slot", SLOT), ("edits", EDIT, max_edits)])
