"""How operators with a replayed state are lowered (``replay_rule.cuh``)."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_lite.common.vocabulary import DTYPES

from ..launch import DTYPE_FLAGS, Argument, Command, Launch, features, kernel, launch, symbol
from ..replay import REPLAYED, ReplayState
from .clusters import CLUSTER_ARCH, RESIDENT
from .columns import Columns
from .lowering import Lowering
from .state_places import StatePlaces

_MAX_COLUMNS = 128  # of a block at a time, four threads each
_MAX_KEY_DIM = 256  # a block's columns are in registers
_MAX_DECAY_DIM = 128  # of keys that are as long; a chunk's keys, queries and decays are in shared memory
_MOST_CHUNKED_KEY = 128  # of kernels that multiply chunks
_CHUNK_COLUMNS = (16, 32, 48, 64)  # of a block of such a kernel
_FEW_SEQUENCES = 64  # for which blocks are launched, whether a step has so many or not
_ANY_NUMBER = (1 << 31) - 1
_PARTS, _PADDING, _BARRIER_BYTES, _FOUND_BYTES = 3, 8, 16, 2 * 3 * 32 * 16  # of replay_chunks.cuh
_CHUNK_SLOTS = (8, 4, 2)  # as many as fit
_GROUP_COLUMNS, _GROUP_WARPS = 32, 4  # columns that as many warps share
_ROWS_AT_ONCE = 64  # that four warps have
_DIRECT_THREADS, _MOST_THREADS = 640, 512  # of a multiprocessor, without and with copies of what comes next
_TOKEN_THREADS = 128  # of replay_walk.cuh, which prepare chunks
_MANY_HEADS = 3 * RESIDENT[1]  # of all sequences
_MAX_CLUSTER = 8  # blocks
_SIZES = {
    **{"TL_KEY_DIM": "key_dim", "TL_VALUE_DIM": "value_dim", "TL_DECAY_DIM": "decay_dim"},
    **{"TL_REPLAYED": "replay_tokens", "TL_TAKEN_BACK": "taken_back"},
}
STATE_FORMS = ("float32", "float16", "bfloat16")  # by TL_STATE_FORM


def lower_replay(
    op: Lowering,
    name: str,
    rows: str,
    gates: tuple[str, ...],
    of_heads: tuple[str, ...],
    numbers: tuple[str, ...],
    defines: Mapping[str, int],
    heads_macro: str,
) -> list[Command]:
    """Launch the kernel ``name`` of the operator's folder of that name, which takes a token after the other.

    In programs for prompts a kernel for long sequences (``replay_chunks.cuh``) comes before it, unless a token must
    get the same bits in every program. Operands are ``rows`` of tokens, ``gates``, which may be columns of wider rows,
    weights ``of_heads`` and the attributes ``numbers``.
    """
    y, read = op.new("y"), {one: Columns.of(op, one) for one in gates}
    extents: dict[str, int] = {macro: op.attribute(size) for macro, size in _SIZES.items()}
    key_dim, value_dim, decays = (extents[macro] for macro in ("TL_KEY_DIM", "TL_VALUE_DIM", "TL_DECAY_DIM"))
    if key_dim > _MAX_KEY_DIM:
        op.refuse(f"its keys have {key_dim} elements, expected at most {_MAX_KEY_DIM}: build for --target cpu")
    if decays > _MAX_DECAY_DIM:
        op.refuse(f"its heads have {decays} decays, expected at most {_MAX_DECAY_DIM}: build for --target cpu")
    heads, places = features(y) // value_dim, StatePlaces.of(op, "recurrent_state")
    macros = {**extents, **defines, **places.defines(), heads_macro: heads, "TL_FP16": DTYPE_FLAGS[y.dtype]}
    macros |= {f"TL_{one.upper()}_PITCH": found.pitch for one, found in read.items()}
    macros["TL_STATE_FORM"] = STATE_FORMS.index(places.states.dtype)
    macros["TL_STATE_WORDS"] = _words_of_head(op, places.states.dtype)
    weights, given = tuple(op.vector(one) for one in of_heads), tuple(op.attribute(one) for one in numbers)
    rows_read = (op.rows(rows), *(found.operand for found in read.values()))
    operands = (y, *places.arguments(), *rows_read, *weights, *given)
    most_with_chunks = op.max_tokens // (REPLAYED + 1)
    by_chunks = not (op.decode or op.deterministic) and decays == 1 and _fits_chunks(key_dim, value_dim)
    by_chunks = by_chunks and most_with_chunks > 0
    macros["TL_MOST_TOKENS"] = REPLAYED if by_chunks else _ANY_NUMBER
    attributes = {size: op.attribute(size) for size in _SIZES.values()}
    layout = ReplayState.of(attributes, places.states.dtype)
    tokens = _launch_tokens(op, name, heads, layout, macros, (*operands, symbol("num_seqs")))
    if not by_chunks:
        return [tokens]
    columns = _chunk_columns(heads, value_dim)
    warps = columns // 16 * (2 if key_dim % 32 == 0 else 1)
    sizes = {slots: chunk_bytes(key_dim, columns, warps, slots) for slots in _CHUNK_SLOTS}
    slots = next(slots for slots, size in sizes.items() if size <= op.device.shared_bytes)
    macros |= {"TL_COLUMNS": columns, "TL_CHUNK_SLOTS": slots, "TL_SHARED_BYTES": sizes[slots]}
    threads, shared_bytes = 32 * (warps + slots), sizes[slots]
    chunks = kernel(f"{name}/chunks.cuh", f"{name}_chunks", threads, shared_bytes, macros)
    sequences = most_with_chunks if most_with_chunks <= _FEW_SEQUENCES else symbol("num_seqs")
    grid = (heads * (value_dim // columns), sequences)
    return [launch(chunks, grid, *operands, symbol("num_seqs")), tokens]


def _launch_tokens(
    op: Lowering, name: str, heads: int, layout: ReplayState, macros: dict[str, int], operands: tuple[Argument, ...]
) -> Launch:
    """Launch the kernel that takes a token after the other.

    If a step may have many heads of sequences, blocks that stay on the GPU take one after the other and copy the state
    of the next meanwhile.
    """
    source, blocks = f"{name}/cuda.cuh", 0
    if heads * min(op.max_tokens, op.max_decode_seqs) >= _MANY_HEADS and _copies_whole(layout):
        threads, shared_bytes = _token_threads(layout.value_dim), prefetched_bytes(layout)
        blocks = min(op.device.shared_bytes // shared_bytes, _MOST_THREADS // threads)
        threads += _TOKEN_THREADS
    if blocks:
        macros = macros | {"TL_COLUMNS": layout.value_dim, "TL_PREFETCHES": 1, "TL_SHARED_BYTES": shared_bytes}
        macros |= {"TL_THREADS": threads, "TL_BLOCKS_AT_ONCE": blocks}
        return launch(kernel(source, name, threads, shared_bytes, macros), (symbol("num_sms", blocks),), *operands)
    columns = _token_columns(layout.value_dim, layout.decays, op.device.arch)
    threads = _token_threads(columns)
    macros = macros | {"TL_COLUMNS": columns, "TL_PREFETCHES": 0}
    macros |= {"TL_THREADS": threads, "TL_BLOCKS_AT_ONCE": max(1, _DIRECT_THREADS // threads)}
    grid = (heads * -(-layout.value_dim // columns), symbol("num_seqs"))
    return launch(kernel(source, name, threads, 0, macros), grid, *operands)


def _token_threads(columns: int) -> int:
    return 4 * min(-(-columns // _GROUP_COLUMNS) * _GROUP_COLUMNS, _MAX_COLUMNS)


def _copies_whole(layout: ReplayState) -> bool:
    """Whether states are copied as they are: a block has all columns, and no thread has others."""
    whole = layout.key_dim % _ROWS_AT_ONCE == 0 and layout.value_dim % _GROUP_COLUMNS == 0
    return whole and layout.value_dim <= _MAX_COLUMNS


def _fits_chunks(key_dim: int, value_dim: int) -> bool:
    return key_dim % 16 == 0 and value_dim % 16 == 0 and key_dim <= _MOST_CHUNKED_KEY


def _words_of_head(op: Lowering, dtype: str) -> int:
    size = op.extents("recurrent_state")[-1]
    assert isinstance(size, int)
    return size * DTYPES[dtype].bits // 32


def _token_columns(value_dim: int, decays: int, arch: str) -> int:
    """The columns of a block that takes a token after the other.

    Without clusters a block has all. With many decays, too: each block computes those of all pairs of tokens.
    """
    if arch != CLUSTER_ARCH or decays > 1:
        return value_dim
    of_cluster = -(-value_dim // _MAX_CLUSTER)
    multiple = _GROUP_COLUMNS if of_cluster <= _MAX_COLUMNS else _MAX_COLUMNS
    return -(-of_cluster // multiple) * multiple


def _chunk_columns(heads: int, value_dim: int) -> int:
    """As few columns as let all blocks of a sequence run at the same time: each block prepares its chunks by itself."""
    widths = [columns for columns in _CHUNK_COLUMNS if value_dim % columns == 0]
    return next((columns for columns in widths if heads * value_dim <= RESIDENT[1] * columns), widths[-1])


def prefetched_bytes(layout: ReplayState) -> int:
    """Shared memory of ``replay_tokens.cuh``: two matrices, each with a Chunk, and their barriers."""
    tokens, decays = layout.replayed, layout.replayed * layout.decays
    tail = 1 if layout.decays > 1 else layout.slots + 1
    vectors = tokens * (2 * layout.key_dim + layout.value_dim) + 2 * _GROUP_WARPS * layout.value_dim
    words = vectors + _in_fours(decays) + _in_fours(decays + 2 * tokens**2 + 2 * tokens + 1) + _in_fours(tail)
    of_matrix = layout.key_dim * layout.value_dim * DTYPES[layout.dtype].bits // 8
    return 2 * (of_matrix + 4 * words + _BARRIER_BYTES)


def _in_fours(words: int) -> int:
    return -(-words // 4) * 4


def chunk_bytes(key_dim: int, columns: int, warps: int, slots: int) -> int:
    """Shared memory: FoundParts, the slots of chunks (ChunkSlot) and their barriers."""
    rows = (_PARTS + 1) * 2 * (key_dim + _PADDING) + 2 * (columns + _PADDING)
    weights = 2 * 4 * (REPLAYED + _PADDING)
    numbers = 4 * (6 * REPLAYED + 4)
    return warps * _FOUND_BYTES + slots * (REPLAYED * (rows + weights) + numbers + _BARRIER_BYTES)
