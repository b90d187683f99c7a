"""LatentAttention on a GPU: queries absorb key_up and attend to cached latents; value_up multiplies the means."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Buffer, Command, Launch
from ..paged_attention.launches import Cache
from .launches import ATTENDING_ARCH, LatentHeads, absorb, decode, make_values, prefill


def lower(op: Lowering) -> list[Command]:
    """Launch the writes to the cache, attention for decode rows and for other rows, and the products around them."""
    heads = _heads(op)
    problems = heads.problems()
    if op.device.arch != ATTENDING_ARCH:
        problems.append(f"the target is {op.device.arch}, expected {ATTENDING_ARCH}")
    if problems:
        op.refuse(f"the GPU kernels do not attend to these latents: {'; '.join(problems)}: build for --target cpu")
    keys = op.cache("rotary_cache", 1, heads.tokens_per_block, heads.rotary_dim)
    latents = op.cache("latent_cache", 1, heads.tokens_per_block, heads.latent_dim)
    starts, past_lens, blocks = (op.step_input(name) for name in ("cu_seqlens", "past_lens", "block_tables"))
    cache = Cache(keys, latents, starts, past_lens, blocks, op.rows("slots"), op.attribute("cache_group"))
    rows, tokens = (op.rows("query"), op.rows("latent")), op.extents("y")[0]
    absorbed = Buffer(f"{op.name}.absorbed", op.dtype, (tokens, heads.num_heads, heads.query_dim))
    mean = Buffer(f"{op.name}.mean", op.dtype, (tokens, heads.num_heads, heads.latent_dim))
    norm, tables = (op.vector("latent_norm"), op.attribute("norm_epsilon")), (op.rows("cos"), op.rows("sin"))
    return [
        absorb(absorbed, *rows, op.matrix("key_up"), norm, tables, cache, heads, op.max_tokens),
        *_attention(op, mean, absorbed, cache, heads),
        make_values(op.new("y"), mean, op.matrix("value_up"), heads, op.max_tokens),
    ]


def _heads(op: Lowering) -> LatentHeads:
    extents = (*op.extents("key_up")[:2], op.extents("rotary_cache")[-1], *op.extents("value_up")[1:])
    num_heads, plain_dim, rotary_dim, value_dim, latent_dim = (size for size in extents if isinstance(size, int))
    sizes = (num_heads, plain_dim, rotary_dim, value_dim, latent_dim, op.tokens_per_block)
    return LatentHeads(*sizes, op.block_bytes, op.dtype)


def _attention(op: Lowering, mean: Buffer, absorbed: Buffer, cache: Cache, heads: LatentHeads) -> list[Launch]:
    rows, scale = (mean, absorbed, cache, heads, op.device), op.attribute("scale")
    others = prefill(*rows, scale)
    if others is None:
        op.refuse(
            f"attention to latents of {heads.latent_dim} elements takes {heads.shared_bytes:,} bytes of shared memory, "
            f"and a block of {op.device.arch} has {op.device.shared_bytes:,}: build for --target cpu"
        )
    num_seqs, num_new_tokens = op.max_decode_seqs, 1 + op.max_draft_len
    if op.deterministic:
        few = prefill(*rows, scale, num_new_tokens=num_new_tokens)
    else:
        few = decode(*rows, scale, max_seqs=num_seqs, num_new_tokens=num_new_tokens)
    if few is None:
        most = heads.most_items(op.device, num_new_tokens) // heads.items_of_sequence(num_new_tokens)
        op.refuse(
            f"attention to latents keeps a table of the batch in shared memory, where there is room for {most} "
            f"sequences of up to {num_new_tokens} new tokens, not for {num_seqs:,}: lower max_batch_size to {most}"
        )
    return [few] if op.decode else [few, others]
