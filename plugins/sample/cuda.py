"""Sampling on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from ..launch import Buffer, Device, Launch, features, kernel, launch, symbol
from .outputs import EDIT_WORDS, SLOT_WORDS, Outputs

# Step inputs in the order of SamplingInputs, one entry a row of logits.
PARAMETERS = {"sample_slots": "int32", "sample_counter": "int32"}
_THREADS, _SHARED_BYTES = 512, 64 * 1024
_BLOCKS_PER_ROW = 8  # where there are no clusters, so that one row is not one block's work
_FIRST_ARCH_WITH_CLUSTERS = 90
# Most rows, blocks of a cluster: a few rows are spread wide, of many each block does more between two barriers. An H200
# draws from 256 rows of 128,256 in 221 us with eight blocks a row, in 118 us with two.
_CLUSTERS = ((8, 8), (16, 4))
_BLOCKS_OF_MANY_ROWS = 2


def sample(to: Outputs, logits: Buffer, inputs: Mapping[str, Buffer], device: Device, max_rows: int) -> Launch:
    """tokens[r] drawn from logits[r] for num_logits rows, also into last_tokens[sample_slots[r]].

    ``inputs`` holds at least :data:`PARAMETERS`. ``max_rows`` is the most that there may be.
    """
    cluster = next((blocks for most, blocks in _CLUSTERS if max_rows <= most), _BLOCKS_OF_MANY_ROWS)
    winners = Buffer("sample_winners", "int32", ("num_logits", 2 * _BLOCKS_PER_ROW))  # 64 bits each
    arrivals = Buffer("sample_arrivals", "int32", ("num_logits",), "state")
    max_edits = (features(to.slots) - SLOT_WORDS) // EDIT_WORDS
    defines = {"TL_VOCAB": features(logits), "TL_SHARED_BYTES": _SHARED_BYTES, "TL_CLUSTER": cluster}
    specialised = kernel("sample/cuda.cuh", "sample", _THREADS, _SHARED_BYTES, defines)
    parameters = (inputs[name] for name in PARAMETERS)
    kept = (to.last_tokens, to.slots, to.logprobs)
    has_clusters = device.compute_capability >= _FIRST_ARCH_WITH_CLUSTERS
    grid = (cluster if has_clusters else _BLOCKS_PER_ROW, symbol("num_logits"))
    return launch(specialised, grid, to.tokens, logits, winners, arrivals, *kept, max_edits, *parameters)
