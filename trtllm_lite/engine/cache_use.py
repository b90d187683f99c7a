"""Computes the KV cache that a sequence of full length takes by cache group, and what attention windows save."""

from dataclasses import dataclass

from trtllm_lite._core import KvGeometry
from trtllm_lite.common.units import counted, format_bytes
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.manifest import CacheGroup, KvCache


@dataclass(frozen=True)
class CacheBytes:
    """The type of what all layers of a group keep under a name, such as ``key_cache``, and the bytes of a token there.

    Of states they are the bytes of a sequence.
    """

    name: str
    dtype: str
    num_bytes: int

    def describe(self) -> str:
        """A description: name, type, bytes."""
        return f"{self.name} {self.dtype} ({format_bytes(self.num_bytes)})"


@dataclass(frozen=True)
class GroupUse:
    """What a sequence of full length uses of one cache group; ``num_blocks`` are its blocks during generation.

    ``token_bytes``: what a token takes in a block, of which ``idle_bytes`` hold nothing, because other groups have more
    or larger layers; both are 0 for states, which do not grow. ``dtypes``: the types of what it keeps, and ``caches``
    the bytes of each; ``blocks``: the blocks that an entry of its block table takes.
    """

    name: str
    kind: str
    window: int
    blocks: int
    num_layers: int
    dtypes: tuple[str, ...]
    caches: tuple[CacheBytes, ...]
    token_bytes: int
    idle_bytes: int
    num_blocks: int
    num_bytes: int

    @property
    def spec(self) -> tuple[str, int, int]:
        """What :class:`KvGeometry` needs to know of the group."""
        return self.kind, self.window, self.blocks

    def describe(self) -> str:
        """A description: window, layers (a stage may have none), types, bytes of a token, blocks, bytes."""
        if not self.num_layers:
            return f"no layers of {self.name}: {counted(self.num_blocks, 'block')}, {format_bytes(self.num_bytes)}"
        of_each = " and ".join(cache.describe() for cache in self.caches) if len(self.dtypes) > 1 else self.dtypes[0]
        if self.kind == STATE:
            return (
                f"{counted(self.num_layers, 'layer')} with states, {of_each}: "
                f"{counted(self.num_blocks, 'block')}, {format_bytes(self.num_bytes)} a sequence"
            )
        window = f"a window of {counted(self.window, 'token')}" if self.window else "no window"
        latents = " latents," if self.kind == "latent" else ""
        idle = f" ({format_bytes(self.idle_bytes)} idle)" if self.idle_bytes else ""
        return (
            f"{counted(self.num_layers, 'layer')} with {window},{latents} {of_each}, "
            f"{format_bytes(self.token_bytes)} a token{idle}: {counted(self.num_blocks, 'block')}, "
            f"{format_bytes(self.num_bytes)}"
        )


@dataclass(frozen=True)
class CacheUse:
    """The KV cache that a sequence of ``max_seq_len`` tokens uses; without windows it would be ``full_bytes``."""

    max_seq_len: int
    groups: tuple[GroupUse, ...]
    full_bytes: int

    @property
    def num_bytes(self) -> int:
        """The bytes of all groups."""
        return sum(group.num_bytes for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """The bytes of a block, which are the same in all groups."""
        return self.groups[0].num_bytes // self.groups[0].num_blocks

    def describe(self) -> str:
        """A description: the bytes of a sequence, and how much of them windows save."""
        text = f"{format_bytes(self.num_bytes)} for a sequence of {counted(self.max_seq_len, 'token')}"
        if self.num_bytes < self.full_bytes:
            saved = 1 - self.num_bytes / self.full_bytes
            text += f", {saved:.0%} less than {format_bytes(self.full_bytes)} without windows"
        return text


def _bytes_of_each(group: CacheGroup) -> tuple[CacheBytes, ...]:
    dtypes, sizes = dict[str, str](), dict[str, int]()
    for cache in group.caches:
        dtypes[cache.name] = cache.dtype
        sizes[cache.name] = sizes.get(cache.name, 0) + cache.num_bytes
    return tuple(CacheBytes(name, dtype, sizes[name]) for name, dtype in dtypes.items())


def cache_use(kv_cache: KvCache, max_seq_len: int) -> CacheUse:
    """The KV cache that a sequence of ``max_seq_len`` tokens uses after its prompt; an encoder has no cache."""
    if not kv_cache.groups:
        return CacheUse(max_seq_len, (), 0)

    def blocks(spec: tuple[str, int, int]) -> int:
        return KvGeometry(kv_cache.tokens_per_block, [spec], max_seq_len).most_blocks(1, max_seq_len)

    attention = [group for group in kv_cache.groups if group.kind != STATE]
    several = len(attention) > 1  # a model of one group has no idle bytes, and may keep features, which are in blocks
    of_token = kv_cache.token_bytes
    groups = tuple(
        GroupUse(
            group.name,
            group.kind,
            group.window,
            group.blocks,
            len(group.layers),
            tuple(dict.fromkeys(cache.dtype for cache in group.caches)),
            _bytes_of_each(group),
            0 if group.kind == STATE else of_token,
            of_token - group.num_bytes if several and group.kind != STATE else 0,
            blocks(group.spec),
            blocks(group.spec) * kv_cache.bytes_per_block,
        )
        for group in kv_cache.groups
    )
    used = kv_cache.tokens_per_block * sum(group.num_bytes for group in attention)
    of_attention = blocks(("full", 0, 1)) * (used if several else kv_cache.bytes_per_block)
    of_states = sum(group.num_bytes for group in groups if group.kind == STATE)
    return CacheUse(max_seq_len, groups, of_attention + of_states)
