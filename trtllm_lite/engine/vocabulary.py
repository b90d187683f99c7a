"""The words that engines are written in: dtypes, layouts, symbols, step inputs, bounds; nowhere else are they spelled.

``csrc/generate_records.py`` turns them into C++ (``engine/vocabulary.h``). Standard library only: the C++ build reads
this file before anything is installed.
"""

from dataclasses import dataclass

FORMAT = "trtllm_lite.engine"
FORMAT_VERSION = 1  # the container: entries, alignment, checksums
PLAN_VERSION = 4  # the plan and what its instructions mean

ALIGNMENT = 64  # bytes: of every entry of the file and every tensor of a CPU's arena
DEVICE_ALIGNMENT = 256  # bytes: of weights and everything else that a GPU reads
MAX_EXTENT = 1 << 30  # extents and integer attributes stay below, so that a product of two fits in 64 bits
MAX_BYTES = 1 << 50  # of a tensor, an arena, an offset
MAX_NAME_BYTES = 512
# What a runtime keeps for a step and for the KV cache on the host grows with these, whatever the model is. The bounds
# are several times what the largest machines can use.
MAX_STEP_SEQS = 1 << 16  # sequences of a step
MAX_STEP_TOKENS = 1 << 24  # tokens of a step
MAX_CACHE_BLOCKS = 1 << 26  # blocks of the KV cache, and entries of the block tables of a step
MAX_RANK = 4
MAX_JSON_BYTES = 1 << 26  # of a manifest or plan, far above any engine's


@dataclass(frozen=True)
class DType:
    """``item_bytes`` of one element; ``stored`` is the name that safetensors files have for it.

    Elements of a ``scaled`` type mean nothing without scales, which are an operand of their own.
    """

    item_bytes: int
    stored: str
    scaled: bool = False


DTYPES = {
    "float32": DType(4, "F32"),
    "float16": DType(2, "F16"),
    "bfloat16": DType(2, "BF16"),
    "int32": DType(4, "I32"),
    "int8": DType(1, "I8", scaled=True),
    "uint8": DType(1, "U8"),
}

# How the bytes of a weight lie; plugins/README.md has the table.
LAYOUTS = ("row_major", "panel64", "gated_panel64", "mma_k16")

# Where a tensor lies: in the arena (overwritten within a step), in the file (weight), in the paged KV cache, where the
# executor puts the inputs of a step, or in memory that is zero at load and kept between steps (state).
TENSOR_KINDS = ("arena", "weight", "cache", "input", "state")

# Quantities that change from step to step, and what each counts. Rows of one new token ("decode") lead a batch.
SYMBOLS = {
    "num_tokens": "new tokens of all sequences",
    "num_seqs": "sequences",
    "num_seqs_plus_1": "num_seqs + 1",
    "num_decode_seqs": "sequences of one new token each, which come first",
    "num_prefill_seqs": "the other sequences",
    "num_prefill_tokens": "new tokens of the other sequences",
    "num_logits": "rows of logits",
    "max_blocks_per_seq": "columns of block_tables",
    "num_blocks": "blocks of the KV cache; chosen when an engine is loaded",
    "num_slots": "requests that may hold a slot: a full batch, and those whose last step has not ended yet",
    "num_sms": "multiprocessors of the GPU",
}


@dataclass(frozen=True)
class StepInput:
    """One input of a step: int32, with a symbol for each axis."""

    name: str
    shape: tuple[str, ...]
    doc: str


STEP_INPUTS = (
    StepInput("token_ids", ("num_tokens",), "new tokens of all sequences, one behind the other"),
    StepInput("token_slots", ("num_tokens",), ">= 0: take the token that this slot sampled last instead"),
    StepInput("position_ids", ("num_tokens",), "position of each new token in its sequence"),
    StepInput("cu_seqlens", ("num_seqs_plus_1",), "first row of each sequence, then num_tokens"),
    StepInput("past_lens", ("num_seqs",), "tokens of each sequence that the cache holds already"),
    StepInput("logits_indices", ("num_logits",), "rows of token_ids whose logits are wanted"),
    StepInput("sample_slots", ("num_logits",), "slot whose parameters a row is sampled with; -1: nothing is drawn"),
    StepInput("sample_counter", ("num_logits",), "number of the random draw of each row"),
    StepInput("block_tables", ("num_seqs", "max_blocks_per_seq"), "cache blocks of each sequence"),
)
