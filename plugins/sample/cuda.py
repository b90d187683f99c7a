"""Sample on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Buffer, Command, features, kernel, launch, symbol

_MAX_COUNTED_TOKENS = 32 * 1024  # the most of a sequence with penalties; longer ones are sampled on the host
_MAX_GIVEN_EDITS = 1024  # biases, bans and stop tokens, in addition to these
_PARAMETERS = ("sample_slots", "sample_counter", "sample_drafts", "sample_masks")  # in the order of SamplingInputs
_THREADS, _SHARED_BYTES = 512, 64 * 1024
_BLOCKS_PER_ROW = 8  # where there are no clusters, so that one row is not one block's work
_FIRST_ARCH_WITH_CLUSTERS = 90
# (rows, blocks): up to this number of rows, a cluster has this number of blocks. Few rows are spread over many blocks;
# with many rows, each block does more between two barriers. An H200 draws from 256 rows of 128,256 in 221 us with eight
# blocks a row, and in 118 us with two.
_CLUSTERS = ((8, 8), (16, 4))
_BLOCKS_OF_MANY_ROWS = 2


def max_edits(vocab_size: int, max_seq_len: int) -> int:
    """The edits that records have room for, given sequences of at most ``max_seq_len`` tokens."""
    return min(vocab_size, min(max_seq_len, _MAX_COUNTED_TOKENS) + _MAX_GIVEN_EDITS)


def mask_words(vocab_size: int) -> int:
    """The number of 32-bit words in a mask of tokens."""
    return -(-vocab_size // 32)


def lower(op: Lowering) -> list[Command]:
    """Draw tokens[r] from logits[r] for num_logits rows; the token also goes to last_tokens of the row's slot."""
    # The blocks of a row add up sums for draws and log probabilities: the number of blocks decides the order of sums.
    max_rows = 1 if op.deterministic else min(op.max_tokens, op.symbols["num_logits"])
    cluster = next((blocks for most, blocks in _CLUSTERS if max_rows <= most), _BLOCKS_OF_MANY_ROWS)
    winners = Buffer("sample_winners", "int32", ("num_logits", 2 * _BLOCKS_PER_ROW))  # 64 bits each
    arrivals = Buffer("sample_arrivals", "int32", ("num_logits",), "state")
    logits = op.rows("logits")
    defines = {"TL_VOCAB": features(logits), "TL_SHARED_BYTES": _SHARED_BYTES, "TL_CLUSTER": cluster}
    specialised = kernel("sample/cuda.cuh", "sample", _THREADS, _SHARED_BYTES, defines)
    results = (op.output("tokens"), logits, winners, arrivals)
    kept = (op.state("last_tokens"), op.state("sampling_slots"), op.output("logprobs"), op.state("token_masks"))
    parameters = (op.step_input(name) for name in _PARAMETERS)
    has_clusters = op.device.compute_capability >= _FIRST_ARCH_WITH_CLUSTERS
    grid = (cluster if has_clusters else _BLOCKS_PER_ROW, symbol("num_logits"))
    return [launch(specialised, grid, *results, *kept, op.attribute("max_edits"), *parameters)]
