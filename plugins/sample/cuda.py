"""Sampling on a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from ..launch import Buffer, Launch, features, kernel, launch, symbol

# Step inputs in the order of SamplingInputs, one entry a row of logits.
PARAMETERS = {
    "sample_slots": "int32",
    "temperature": "float32",
    "top_k": "int32",
    "top_p": "float32",
    "min_p": "float32",
    "seed_low": "int32",
    "seed_high": "int32",
    "sample_counter": "int32",
    "sequence_index": "int32",
}
_THREADS, _SHARED_BYTES = 512, 64 * 1024
_BLOCKS_PER_ROW = 8  # a cluster, where there are clusters


def sample(tokens: Buffer, logits: Buffer, last_tokens: Buffer, inputs: Mapping[str, Buffer]) -> Launch:
    """tokens[r] drawn from logits[r] for num_logits rows, also into last_tokens[sample_slots[r]].

    ``inputs`` holds at least :data:`PARAMETERS`.
    """
    winners = Buffer("sample_winners", "int32", ("num_logits", 2 * _BLOCKS_PER_ROW))  # 64 bits each
    arrivals = Buffer("sample_arrivals", "int32", ("num_logits",), "state")
    defines = {"TL_VOCAB": features(logits), "TL_SHARED_BYTES": _SHARED_BYTES}
    specialised = kernel("sample/cuda.cuh", "sample", _THREADS, _SHARED_BYTES, defines)
    parameters = (inputs[name] for name in PARAMETERS)
    grid = (_BLOCKS_PER_ROW, symbol("num_logits"))
    return launch(specialised, grid, tokens, logits, winners, arrivals, last_tokens, *parameters)
