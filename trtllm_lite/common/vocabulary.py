"""The vocabulary of engines: dtypes, layouts, symbols, step inputs, bounds. No other module spells these names.

``csrc/generate_records.py`` turns them into C++ (``engine/vocabulary.h``). This module needs the standard library
alone, because the C++ build reads it before anything is installed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

FORMAT = "trtllm_lite.engine"
FORMAT_VERSION = 1  # version of the container: entries, alignment, checksums
PLAN_VERSION = 24  # version of the plan and the meaning of its instructions

ALIGNMENT = 64  # bytes; every entry of the file and every tensor of a CPU's arena is so aligned
DEVICE_ALIGNMENT = 256  # bytes; weights and all other tensors that a GPU reads are so aligned
MAX_EXTENT = 1 << 30  # extents and integer attributes are smaller, so that a product of two fits in 64 bits
MAX_BYTES = 1 << 50  # bound of the sizes of tensors and arenas, and of offsets
MAX_NAME_BYTES = 512
# The host memory that a runtime takes for steps and for the bookkeeping of the KV cache grows with these numbers,
# whatever the model is. The bounds are several times what the largest machines can use.
MAX_STEP_SEQS = 1 << 16  # sequences of a step
MAX_STEP_TOKENS = 1 << 24  # tokens of a step
MAX_CACHE_BLOCKS = 1 << 26  # blocks of the KV cache, and entries of the block tables of a step
CPU = "cpu"  # the target, its kind, and the arch of its program
AUTO, AUTO_16_BITS = "auto", "auto_16_bits"  # a model's own dtype of matrices, and bfloat16 instead of float32
AUTO_TARGET = "auto"  # the GPUs of this machine, or its CPU
GPU_MEMORY_FRACTION = 0.9  # share of the memory left by weights and workspace that the KV cache takes
MAX_DRAFT_LEN = 8  # draft tokens of a sequence in a step
DEFAULT_MAX_LORAS, MAX_LORAS = 16, 256  # adapters in use at once, which a GPU has in its memory
MAX_RANK = 4
MAX_TP_SIZE = 16  # ranks, each with an engine of its own, among which every layer is divided
MAX_PP_SIZE = 16  # pipeline stages; each has tp_size ranks and some of the layers
# How the ranks of a GPU engine exchange data: by kernels that access peer memory, or by NCCL.
ALLREDUCE_STRATEGIES = ("AUTO", "NCCL")
MAX_JSON_BYTES = 1 << 26  # bound of manifests, plans and JSON files of models, far above their usual sizes
MAX_TOKENIZER_BYTES = 1 << 27  # several times the largest tokenizer files known


@dataclass(frozen=True)
class DType:
    """``bits`` of one element; ``stored`` and ``onnx`` are its names in safetensors files and in ONNX.

    Elements of a ``scaled`` type mean nothing without scales, which are a separate operand. Elements of 4 bits lie two
    to a byte, the first in the low bits, as ONNX has them; safetensors files have the bytes.
    """

    bits: int
    stored: str
    onnx: str
    scaled: bool = False

    @property
    def per_item(self) -> int:
        """The elements of one item of the stored type."""
        return max(8 // self.bits, 1)


DTYPES = {
    "float32": DType(32, "F32", "FLOAT"),
    "float16": DType(16, "F16", "FLOAT16"),
    "bfloat16": DType(16, "BF16", "BFLOAT16"),
    "int64": DType(64, "I64", "INT64"),
    "int32": DType(32, "I32", "INT32"),
    "int8": DType(8, "I8", "INT8", scaled=True),
    "float8_e4m3fn": DType(8, "F8_E4M3", "FLOAT8E4M3FN", scaled=True),
    "uint8": DType(8, "U8", "UINT8"),
    "int4": DType(4, "U8", "INT4", scaled=True),
    "uint4": DType(4, "U8", "UINT4", scaled=True),
    "float8_e8m0fnu": DType(8, "F8_E8M0", "FLOAT8E8M0"),
    "float4_e2m1fn": DType(4, "U8", "FLOAT4E2M1", scaled=True),
}

# The bytes of one item of each type of safetensors files.
STORED_BYTES = {dtype.stored: dtype.bits * dtype.per_item // 8 for dtype in DTYPES.values()}


def num_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a row-major tensor."""
    return prod(stored_shape(dtype, shape)) * STORED_BYTES[DTYPES[dtype].stored]


def stored_shape(dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """``shape`` in items of the stored type. Raises ValueError if rows do not end with a whole item."""
    per_item = DTYPES[dtype].per_item
    if per_item == 1:
        return tuple(shape)
    if not shape or shape[-1] % per_item:
        raise ValueError(f"rows of {dtype} have a multiple of {per_item} elements, found the shape {list(shape)}")
    return (*shape[:-1], shape[-1] // per_item)


# The types that matrices and caches have where nothing is quantized; CPUs compute in the first.
FLOAT32 = "float32"
PLAIN_DTYPES = (FLOAT32, "float16", "bfloat16")
STATE_DTYPES = (*PLAIN_DTYPES, AUTO)  # what builds take for the matrices of recurrent layers
# The change of a layer's results for which AUTO takes 16 bits: about what rounding the results to bfloat16 changes.
STATE_BUDGET = 1e-3

# Bytes of a picture, as numbers from 0 to 255; and the types of step inputs that are rows.
UINT8 = "uint8"
ROW_DTYPES = (*PLAIN_DTYPES, UINT8)

# The orders in which a weight's elements are stored; plugins/README.md describes them.
LAYOUTS = (
    "row_major",
    "panel64",
    "gated_panel64",
    "mma_k16",
    "pairs8",
    "pairs32",
    "spread_e4m3",
    "spread_e2m1",
    "rows8",
)

# The kinds of memory a tensor may lie in: the arena, which is overwritten within a step; the file (weight); the paged
# KV cache; the executor's inputs of a step; memory that is zero at load and kept between steps (state); or the slots of
# adapters, which come and go.
TENSOR_KINDS = ("arena", "weight", "cache", "input", "state", "adapter")

# The quantities that change from step to step, and what each counts. Sequences of at most 1 + max_draft_len new tokens
# ("decode") lead a batch.
SYMBOLS = {
    "num_tokens": "new tokens of all sequences",
    "num_seqs": "sequences",
    "num_seqs_plus_1": "num_seqs + 1",
    "num_decode_seqs": "sequences of at most 1 + max_draft_len new tokens each, which come first",
    "num_prefill_seqs": "the other sequences",
    "num_prefill_tokens": "new tokens of the other sequences",
    "num_token_rows": "new tokens that are rows of a prompt's own",
    "num_image_rows": "rows that a vision tower makes: num_tokens / tokens_per_row of the module",
    "num_tables": "rows of block_tables: for each sequence one row per cache group",
    "num_logits": "rows of logits",
    "max_blocks_per_seq": "columns of block_tables",
    "num_blocks": "blocks of the KV cache; chosen when an engine is loaded",
    "num_slots": "requests that may hold a slot: a full batch, and those whose last step has not ended yet",
    "num_sms": "multiprocessors of the GPU",
    "num_adapter_tokens": "num_tokens if any request of the step has an adapter, else 0",
    "num_adapter_logits": "num_logits if any request of the step has an adapter, else 0",
    "num_loras": "slots of adapters if any request of the step has an adapter; chosen when an engine is loaded",
    "adapter_stride": "units of 256 bytes from one slot of adapters to the next",
}


@dataclass(frozen=True)
class StepInput:
    """One input of a step, with a symbol for each axis: int32, or ``rows`` of the type and size that the module's port
    says: one of ROW_DTYPES, uint8 or the type of activations.
    """

    name: str
    shape: tuple[str, ...]
    doc: str
    rows: bool = False


TOKEN_ROWS = "token_rows"
STEP_INPUTS = (
    StepInput("token_ids", ("num_tokens",), "new tokens of all sequences, in a row; ~i stands for row i of token_rows"),
    StepInput("token_slots", ("num_tokens",), ">= 0: take the token that this slot sampled last instead"),
    StepInput("position_ids", ("num_tokens",), "position of each new token in its sequence"),
    StepInput("cu_seqlens", ("num_seqs_plus_1",), "first row of each sequence, then num_tokens"),
    StepInput("past_lens", ("num_seqs",), "tokens of each sequence that the cache holds already"),
    StepInput("logits_indices", ("num_logits",), "rows of token_ids whose logits are wanted"),
    StepInput("sample_slots", ("num_logits",), "slot whose parameters a row is sampled with; -1: nothing is drawn"),
    StepInput("sample_counter", ("num_logits",), "index of the random draw for each row"),
    StepInput("sample_drafts", ("num_logits",), "draft token that follows the row; the next row has its logits"),
    StepInput("sample_masks", ("num_logits",), "the mask of tokens that may be drawn from a row; -1: all may"),
    StepInput("adapter_tokens", ("num_adapter_tokens",), "tokens by slots of their adapters, then tokens without one"),
    StepInput("adapter_token_ends", ("num_loras",), "where the tokens of each slot end in adapter_tokens"),
    StepInput("adapter_logits", ("num_adapter_logits",), "all rows of logits, in the order of adapter_tokens"),
    StepInput("adapter_logit_ends", ("num_loras",), "where the rows of each slot end in adapter_logits"),
    StepInput(TOKEN_ROWS, ("num_token_rows",), "rows that take the place of tokens, in their order", rows=True),
    # Entries that no window reaches any more may name any block: nothing reads these blocks.
    StepInput("block_tables", ("num_tables", "max_blocks_per_seq"), "cache blocks by sequence, then by cache group"),
)

# The inputs of a checkpoint's network besides its caches, all int64, with their ranks: see network/contract.py.
NETWORK_INPUTS = {"input_ids": 2, "position_ids": 2, "past_lens": 1}
# The inputs of an encoder's network, which has no caches: SEQ_LENS are the lengths of texts, after which rows are
# padded. The output has a row for each text, see network/contract.py.
SEQ_LENS, EMBEDDING, SCORES = "seq_lens", "sentence_embedding", "scores"
ENCODER_INPUTS = {"input_ids": 2, "position_ids": 2, SEQ_LENS: 1}
# A vision tower has patches of images in place of tokens, bytes of pixels, and makes IMAGE_FEATURES of them.
PATCHES, IMAGE_FEATURES = "patches", "image_features"
# The file beside a tower's network and engine that says how its images are preprocessed.
IMAGE_PROCESSOR_FILE = "image_processor.json"
TOWER_INPUTS = {**ENCODER_INPUTS, PATCHES: 3}
# Names of features: a network may output FEATURES, one row per token, from which a drafting head predicts tokens. The
# head has the features of the previous token as its input FEATURES, and outputs HIDDEN, which takes the place of
# features for draft tokens.
FEATURES, HIDDEN = "features", "hidden"
# The key of a checkpoint's and an engine's tokenizer_config.json for the prefix of every text of an encoder.
PROMPT_SETTING = "embedding_prompt"
LOGITS_INDICES, LOGITS = "logits_indices", "logits"
# The inputs of a network that TensorRT compiled, besides its caches: it computes only chosen rows of LOGITS.
COMPILED_INPUTS = {**NETWORK_INPUTS, LOGITS_INDICES: 1}


# Kinds of modules. A decoder generates tokens, a text encoder makes a row for each text, a text classifier a score of
# each label for each text, a vision tower rows of embeddings for each image, and a drafting head (EAGLE, MTP) drafts
# from features that a decoder keeps. A draft model is a decoder; a pipeline stage has some of its layers.
DECODER, TEXT_ENCODER, TEXT_CLASSIFIER, DRAFTING_HEAD = "decoder", "text_encoder", "text_classifier", "drafting_head"
VISION_TOWER = "vision_tower"


@dataclass(frozen=True)
class ModuleUse:
    """What modules of a kind make, and how people ask an engine for it.

    A step returns rows of the module's first output, ``output``, to its caller: float32, as many as the symbol ``rows``
    counts. ``method`` is that of ``LLM``, ``route`` that of the server, and ``doing`` says in a sentence what they do.
    """

    output: str
    rows: str
    method: str
    route: str
    doing: str


_GENERATE = ModuleUse(LOGITS, "num_logits", "generate", "/v1/completions", "generates text")
MODULE_USES = {
    DECODER: _GENERATE,
    TEXT_ENCODER: ModuleUse(EMBEDDING, "num_seqs", "embed", "/v1/embeddings", "embeds texts"),
    TEXT_CLASSIFIER: ModuleUse(SCORES, "num_seqs", "classify", "/classify", "classifies texts"),
    DRAFTING_HEAD: _GENERATE,
    VISION_TOWER: ModuleUse(IMAGE_FEATURES, "num_image_rows", "generate", "/v1/chat/completions", "sees images"),
}
MODULE_KINDS = tuple(MODULE_USES)

# Kinds of caches: keys and values of all tokens of a sequence, those of the tokens in a window, latents, from which
# kernels compute both, and states, of which a sequence has one: what recurrent layers keep of all its tokens together.
STATE = "state"
CACHE_KINDS = ("full", "window", "latent", STATE)


# Kinds of layers by what they keep of a sequence: keys and values of its tokens; of each token a latent and the rotated
# part of its key; or, in recurrent layers, a state that each token changes: the last inputs of a convolution, and, if
# it has more than the convolution, a matrix for each head.
ATTENTION, LATENT_ATTENTION = "attention", "latent_attention"
RECURRENT, CONVOLUTION = "recurrent", "convolution"
WITH_STATES = (RECURRENT, CONVOLUTION)
# What each kind of layer keeps, in the order of a network's inputs: the names in networks, and those in plans. A layer
# may be of two kinds, and so keep what both keep; other layers keep nothing.
LAYER_CACHES = {
    ATTENTION: {"key": "key_cache", "value": "value_cache"},
    LATENT_ATTENTION: {"rotary": "rotary_cache", "latent": "latent_cache"},
    RECURRENT: {"conv": "conv_state", "recurrent": "recurrent_state"},
    CONVOLUTION: {"conv": "conv_state"},
}


@dataclass(frozen=True)
class CacheNames:
    """Names of one of the tensors that a layer keeps: in a plan, and as input and output of a network."""

    plan: str
    past: str
    present: str


def cache_names(layers: Iterable[tuple[int, str]]) -> Iterator[CacheNames]:
    """The caches of ``layers``, each with its number and kind: what the first layer keeps, and so on."""
    for layer, kind in layers:
        for name, in_plan in LAYER_CACHES[kind].items():
            yield CacheNames(f"{in_plan}.{layer}", f"past_{name}.{layer}", f"present_{name}.{layer}")


@dataclass(frozen=True)
class DefaultLimits:
    """The limits that engines of a backend get if none are given.

    ``max_seq_len`` None is the longest that the model takes. ``max_tokens_of_batch`` bounds the tokens of a full batch
    of sequences of full length; ``max_batch_size`` is lowered accordingly.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int | None = None
    max_tokens_of_batch: int = 1 << 25  # more than any card holds: 256 sequences of 131,072 tokens


ON_CPU = DefaultLimits(max_batch_size=8, max_num_tokens=2048)
# Steps of 8,192 tokens compute prompts at full speed, and their workspace fits in the memory of a card.
ON_GPU = DefaultLimits(max_batch_size=256, max_num_tokens=8192)
# TensorRT sets memory aside for the longest sequences.
BY_TENSORRT = DefaultLimits(max_batch_size=8, max_num_tokens=2048, max_seq_len=2048)
# Types of a KV cache whose keys and values are rounded with scales, and the dtypes of such a cache.
KV_CACHE_DTYPES = {"fp8": "float8_e4m3fn", "int8": "int8"}
