"""PagedAttention on a GPU: queries and keys are rotated, keys and values stored in the cache; then attention."""

from __future__ import annotations

from functools import partial

from ..cuda.lowering import Lowering
from ..launch import Buffer, Command, Launch
from .decode import DecodeItems, decode
from .launches import WIDEST_TILE, Cache, Heads, Scores
from .new_tokens import HeadNorm, NewTokens
from .prefill import NOT_WIDE, prefill, wide_cache, widen


def lower(op: Lowering) -> list[Command]:
    """Launch the new tokens' part, then attention for decode rows and, if there may be any, for other rows."""
    num_kv_heads, head_dim = _token_shape(op)
    block = (num_kv_heads, op.tokens_per_block, head_dim)
    keys, values = (op.cache(name, *block) for name in ("key_cache", "value_cache"))
    heads = _heads(op, keys.dtype, values.dtype)
    key_scale, value_scale = op.attribute("key_scale"), op.attribute("value_scale")
    mask = (op.attribute("window"), op.attribute("softcap"), value_scale, op.attribute("first_position"))
    late = (op.attribute("floor_scale"), op.attribute("floor_offset"), float(op.attribute("attn_scale")))
    chunked = op.attribute("chunked") > 0
    scores = Scores(op.attribute("scale") * key_scale, *mask, op.optional_vector("sinks"), chunked, *late)
    _refuse(op, [*heads.problems(), *scores.problems()])
    starts, past_lens, blocks = (op.step_input(name) for name in ("cu_seqlens", "past_lens", "block_tables"))
    places = (starts, past_lens, blocks, op.rows("slots"), op.attribute("cache_group"))
    cache = Cache(keys, values, *places, key_scale, value_scale)
    query = Buffer(f"{op.name}.query", heads.query_dtype, op.extents("y"))
    tables = (op.optional_rows("cos"), op.optional_rows("sin"))  # RoPE's tables, which some networks lack
    tokens = NewTokens(query, cache, tables, heads)
    first = _new_tokens(op, tokens)
    output = op.new("y")
    if op.deterministic:
        _refuse_moving_tiles(op, scores)
        attend = _prefill(op, output, tokens, scores, 1 + op.max_draft_len)
    else:
        attend = [_decode(op, output, tokens, scores)]
    if not op.decode:
        attend += _prefill(op, output, tokens, scores)
    return [*first, *attend]


def _token_shape(op: Lowering) -> tuple[int, int]:
    """The number of key/value heads, and the number of elements of a head."""
    _, num_kv_heads, head_dim, _ = op.extents("key_cache")
    assert isinstance(num_kv_heads, int)
    assert isinstance(head_dim, int)
    return num_kv_heads, head_dim


def _heads(op: Lowering, key_dtype: str, value_dtype: str) -> Heads:
    rotary_dim = 0
    if op.has("cos"):  # RoPE rotates two elements for each column of its table
        columns = op.extents("cos")[-1]
        assert isinstance(columns, int)
        rotary_dim = 2 * columns
    extents = (op.attribute("num_heads"), *_token_shape(op), op.tokens_per_block)
    return Heads(*extents, op.dtype, value_dtype, op.block_bytes, rotary_dim, op.scales("y"), key_dtype)


def _new_tokens(op: Lowering, tokens: NewTokens) -> list[Command]:
    """Compute rotated queries, and store keys and values in the cache."""
    if op.has("qkv"):
        stored = op.new("stored") if op.has("stored") else None
        return [tokens.computed(op.rows("qkv"), _head_norm(op), stored, op.attribute("appends") > 0)]
    how = op.few_rows()
    if how is None:
        return op.qkv_product(tokens)
    x, norm, bias, weight = op.rows("x"), op.norm(), op.optional_vector("bias"), op.weight()
    return [tokens.few_rows(x, weight, op.num_rows("y"), how, norm=norm, bias=bias)]


def _head_norm(op: Lowering) -> HeadNorm:
    query, key, value = (op.optional_vector(f"{role}_norm") for role in ("query", "key", "value"))
    if (query is None) != (key is None) and op.attribute("appends"):
        op.refuse("only one of queries and keys is normalized, and the GPU kernels normalize both or neither")
    return HeadNorm(query, key, value, op.attribute("norm_epsilon"), bool(op.attribute("norm_after_rope")))


def _decode(op: Lowering, output: Buffer, tokens: NewTokens, scores: Scores) -> Launch:
    num_seqs, items = op.max_decode_seqs, DecodeItems.of(tokens.heads, 1 + op.max_draft_len)
    max_sms, of_all = op.symbols["num_sms"], partial(decode, output, tokens, device=op.device, scores=scores)

    def launch_for(max_seqs: int, few_rows: bool) -> Launch | None:
        return of_all(max_seqs=max_seqs, max_sms=max_sms, few_rows=few_rows, items=items)

    launch = launch_for(num_seqs, op.decode)
    if launch is None and launch_for(1, True) is not None:
        op.refuse(
            f"attention keeps a table of the batch in shared memory, and {op.device.arch} has no room for a table of "
            f"{num_seqs:,} sequences: lower max_batch_size"
        )
    return _fitting(op, tokens.heads, launch)


def _prefill(op: Lowering, output: Buffer, tokens: NewTokens, scores: Scores, num_new_tokens: int = 0) -> list[Command]:
    """Attention of sequences of any number of new tokens or, if given, of decode rows of up to ``num_new_tokens``."""
    heads, cache, wide = tokens.heads, tokens.cache, NOT_WIDE
    first: list[Command] = []
    if heads.cache_type and op.has_many_rows and not num_new_tokens:
        wide = wide_cache(op.name, heads, op.max_tokens, op.symbols["max_blocks_per_seq"])
        first = [widen(wide, cache, heads=heads, scores=scores)]
    of_layer = partial(prefill, output, tokens.query, cache, heads=heads, device=op.device, scores=scores)
    attend = of_layer(num_new_tokens=num_new_tokens, wide=wide)
    return [*first, _fitting(op, heads, attend)]


def _refuse_moving_tiles(op: Lowering, scores: Scores) -> None:
    """Raise BuildError unless tiles of keys are at the same positions for each row: see ``prefill``."""
    begins_at_tiles = scores.window == 0 or (scores.chunked and scores.window % WIDEST_TILE == 0)
    if not begins_at_tiles and op.tokens_per_block != WIDEST_TILE:
        op.refuse(
            f"deterministic is given, and attention has a window of {scores.window} tokens, so that tiles of keys "
            f"begin at cache blocks, of {op.tokens_per_block} tokens: build with --tokens_per_block {WIDEST_TILE}"
        )


def _fitting(op: Lowering, heads: Heads, launch: Launch | None) -> Launch:
    if launch is None:
        op.refuse(
            f"attention with a head_dim of {heads.head_dim} needs more shared memory than {op.device.arch} has "
            f"({op.device.shared_bytes:,} bytes a block), or values are {heads.cache_dtype} and the kernels that read "
            "such a cache are for sm_90a: build for another target, or with a --kv_cache_dtype of 16 bits"
        )
    return launch


def _refuse(op: Lowering, problems: list[str]) -> None:
    if problems:
        op.refuse(f"the GPU kernels do not support this attention: {'; '.join(problems)}")
