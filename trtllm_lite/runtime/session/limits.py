"""Defines the limits of a loaded engine: those that it was built for, or tighter ones chosen at load time."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trtllm_lite.common.vocabulary import AUTO, DEFAULT_MAX_LORAS, KV_CACHE_DTYPES, STATE
from trtllm_lite.engine.manifest import KvCache, Limits, Manifest
from trtllm_lite.errors import ArgumentError, LimitError, shown
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.config import KvCacheConfig, SchedulerConfig, SpeculativeConfig
from trtllm_lite.runtime.values import check_flag, check_positive, whole_number


@dataclass(frozen=True)
class RunnerLimits:
    """Upper bounds in sequences, tokens and cache blocks.

    ``max_seq_len`` bounds prompt plus generated tokens, ``max_output_len`` the generated ones alone, ``max_num_tokens``
    the packed tokens of one step (longer prompts are split), ``max_beam_width`` the beams of one search, each of which
    takes a place in the batch. ``num_host_blocks`` are on the host; ``cache_groups`` says of each cache
    group what :class:`KvGeometry` needs to know. Adapters on a GPU take up to ``adapter_bytes`` beside the KV
    cache, and borrow the memory of up to ``lent_blocks`` of its blocks.
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_output_len: int
    max_beam_width: int
    num_blocks: int
    num_host_blocks: int
    tokens_per_block: int
    cache_groups: tuple[tuple[str, int, int], ...] = (("full", 0, 1),)
    adapter_bytes: int | None = None
    lent_blocks: int = 0

    def blocks_for(self, num_tokens: int) -> int:
        """The maximum number of KV cache blocks that one sequence of ``num_tokens`` tokens takes."""
        return self._geometry.most_blocks(num_tokens, num_tokens)

    def blocks_for_batch(self, batch_size: int, num_tokens: int) -> int:
        """The maximum number of KV cache blocks of ``batch_size`` sequences of ``num_tokens`` tokens together."""
        return self._geometry.most_blocks_of_batch(batch_size, num_tokens)

    @property
    def cache_len(self) -> int:
        """Tokens of the longest sequence that the KV cache holds, however much of it is lent."""
        return self._geometry.longest_sequence(self.num_blocks - self.lent_blocks)

    @property
    def _geometry(self) -> Any:
        return core().KvGeometry(self.tokens_per_block, self.cache_groups, self.max_num_tokens)


@dataclass(frozen=True)
class AdapterSlots:
    """Slots for ``num_loras`` adapters on a GPU, of ``num_bytes`` in all; memory moves to them in slabs."""

    num_loras: int = 0
    num_bytes: int = 0
    slab_bytes: int = 1

    def share(self, memory_bytes: int, cache_bytes: int, num_blocks: int, block_bytes: int) -> tuple[int, int]:
        """The bytes that slots take beside the KV cache, and the blocks that it may lend them besides.

        The KV cache has ``cache_bytes`` of ``memory_bytes``. Its layers have ``num_blocks`` blocks of ``block_bytes``,
        one behind the other; a block of which part is lent is lost to the cache, and the first slab stays. Raises
        LimitError if the cache cannot lend so much.
        """
        wanted, unused = -(-self.num_bytes // self.slab_bytes), max(memory_bytes - cache_bytes, 0) // self.slab_bytes
        borrowed = max(wanted - unused, 0)
        # A slab begins at a multiple of this many bytes after the beginning of a block.
        step = math.gcd(self.slab_bytes, block_bytes)
        lent_blocks = borrowed * ((self.slab_bytes - step + block_bytes - 1) // block_bytes + 1)
        if borrowed and (borrowed >= num_blocks * block_bytes // self.slab_bytes or lent_blocks >= num_blocks):
            raise LimitError(
                f"the slots of {self.num_loras} adapters take {self.num_bytes:,} bytes, and {memory_bytes:,} bytes of "
                "the GPU's memory are for them and the KV cache: lower max_loras, or build the engine again with a "
                "smaller --max_lora_rank"
            )
        return (wanted - borrowed) * self.slab_bytes, lent_blocks


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How to run an engine: limits tighter than the engine's (None keeps the engine's), memory, order of service.

    ``enable_chunked_context``: prompts may be spread over several steps. Without it max_input_len may not exceed
    max_num_tokens. ``speculation``: how to draft tokens, if at all. ``num_threads``: threads of a CPU engine; None
    means one for each core. ``max_loras``: adapters that running requests use at once (16 by default);
    ``max_cpu_loras``: adapters that are kept in memory (twice ``max_loras`` by default). ``device_ids``: the GPUs of an
    engine's ranks, in their order; None means the first ones. ``distributed_executor_backend``: "ray" for stages in
    Ray actors, None for this process; on GPUs the last stage always runs in this process, and ``device_ids`` are for
    its ranks. Raises ArgumentError for an invalid value.
    """

    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_output_len: int | None = None
    max_beam_width: int | None = None
    kv_cache: KvCacheConfig = field(default_factory=KvCacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    enable_chunked_context: bool = True
    num_threads: int | None = None
    speculation: SpeculativeConfig | None = None
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    device_ids: tuple[int, ...] | None = None
    distributed_executor_backend: str | None = None

    def __post_init__(self) -> None:
        for name in (*LIMIT_NAMES, "max_loras", "max_cpu_loras"):
            check_positive(name, getattr(self, name))
        if self.max_cpu_loras is not None and self.max_cpu_loras < (self.max_loras or DEFAULT_MAX_LORAS):
            raise ArgumentError(
                f"max_cpu_loras is {self.max_cpu_loras}, below max_loras {self.max_loras or DEFAULT_MAX_LORAS}: "
                "adapters in use are in memory, so raise max_cpu_loras, or lower max_loras"
            )
        if self.num_threads is not None:
            whole_number("num_threads", self.num_threads, 1, _MAX_THREADS)
        for device in self.device_ids or ():
            whole_number("device_ids", device, 0, _MAX_DEVICES)
        if self.distributed_executor_backend not in (None, "ray"):
            raise ArgumentError(
                f"distributed_executor_backend is {shown(self.distributed_executor_backend)}: expected ray, or leave "
                "it out to compute in this process"
            )
        check_flag("enable_chunked_context", self.enable_chunked_context)
        policy = self.scheduler.capacity_scheduler_policy
        keeps = self.kv_cache.enable_block_reuse or policy == "MAX_UTILIZATION"
        if self.kv_cache.host_cache_size and not keeps:
            raise ArgumentError(
                "host_cache_size is for prefixes that are reused and requests that are preempted, enable_block_reuse "
                f"is off, and {policy} preempts none: set capacity_scheduler_policy to MAX_UTILIZATION, or leave "
                "host_cache_size out"
            )


_NOTED_BYTES = 128  # upper bound of the event loop's bookkeeping for a block, without token ids (csrc/schedule)
_MAX_DEVICES = 1 << 10  # the C++ side refuses numbers of GPUs that the machine does not have
_MAX_THREADS = 1 << 16  # the C++ side refuses numbers that the machine cannot run
LIMIT_NAMES = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_output_len", "max_beam_width")


def runner_limits(
    manifest: Manifest,
    options: RunnerOptions,
    available_bytes: int,
    draft: Manifest | None = None,
    others: Sequence[Manifest] = (),
    slots: AdapterSlots | None = None,
) -> RunnerLimits:
    """The engine's limits, tightened by the options.

    ``others`` are the manifests of all ranks but the first: on a CPU their blocks are in the same memory. A draft
    engine ``draft`` has as many blocks, in the same memory as well. ``available_bytes`` is the free memory of the
    device, of which free_gpu_memory_fraction is a share; ``slots`` of adapters take what the KV cache leaves of the
    share, and borrow more from it. Raises LimitError for an option above the engine's limit, ArgumentError for one that
    contradicts the engine.
    """
    built, cache = manifest.limits, manifest.kv_cache
    ceilings = {**vars(built), "max_output_len": built.max_seq_len}
    values = {name: tightened(name, getattr(options, name), ceilings[name]) for name in LIMIT_NAMES}
    values["max_beam_width"] = min(values["max_beam_width"], values["max_batch_size"])
    _check_step(values, built, options)
    _check_geometry(cache, options.kv_cache)
    _check_drafts(options.speculation, built)
    cache_groups = tuple(group.spec for group in cache.groups)
    geometry = core().KvGeometry(cache.tokens_per_block, cache_groups, values["max_num_tokens"])
    demand = geometry.most_blocks_of_batch(values["max_batch_size"], values["max_seq_len"])
    of_ranks = [rank.kv_cache.bytes_per_block for rank in (manifest, *others)]
    of_draft = 0 if draft is None else draft.kv_cache.bytes_per_block
    on_host = sum(of_ranks) + of_draft
    block_bytes = on_host if manifest.target.kind == "cpu" else max(of_ranks) + of_draft
    num_blocks = _cache_blocks(cache, block_bytes, demand, options.kv_cache, available_bytes, values["max_batch_size"])
    adapters = {}
    if slots is not None and slots.num_loras:
        memory = int(available_bytes * (options.kv_cache.free_gpu_memory_fraction or 1.0))
        own, lent = slots.share(memory, num_blocks * block_bytes, num_blocks, manifest.layers_block_bytes)
        adapters = {"adapter_bytes": own, "lent_blocks": lent}
    return RunnerLimits(
        **values,
        **adapters,
        num_blocks=num_blocks,
        num_host_blocks=_host_blocks(cache, options.kv_cache, on_host),
        tokens_per_block=cache.tokens_per_block,
        cache_groups=cache_groups,
    )


def check_host_memory(limits: RunnerLimits, available_bytes: int) -> None:
    """Raise LimitError if the event loop's records of the KV cache's blocks exceed the host's free memory.

    The blocks themselves are not counted: on a GPU they are elsewhere, on a CPU they take memory when they are written.
    """
    table_bytes = 4 * limits.max_batch_size * limits.blocks_for(limits.max_seq_len)
    num_blocks = limits.num_blocks + limits.num_host_blocks
    needed = num_blocks * (_NOTED_BYTES + 4 * limits.tokens_per_block) + table_bytes
    if needed > available_bytes:
        raise LimitError(
            f"a KV cache of {limits.num_blocks:,} blocks, for max_batch_size {limits.max_batch_size} and max_seq_len "
            f"{limits.max_seq_len}, takes {needed:,} bytes of bookkeeping alone, and {available_bytes:,} are free: "
            "lower max_batch_size, max_seq_len or the KV cache's max_tokens"
        )


@contextmanager
def memory_for(limits: RunnerLimits) -> Iterator[None]:
    """Turn a MemoryError inside ``with`` into a LimitError that names the limits by which the memory grows."""
    try:
        yield
    except MemoryError as error:
        raise LimitError(
            f"there is not enough memory for max_batch_size {limits.max_batch_size}, max_seq_len {limits.max_seq_len}, "
            f"max_num_tokens {limits.max_num_tokens} and {limits.num_blocks:,} blocks of KV cache: lower one of them"
        ) from error


def _host_blocks(cache: KvCache, config: KvCacheConfig, block_bytes: int) -> int:
    """The blocks on the host, of ``block_bytes`` in all ranks together."""
    wanted, memory = config.host_cache_size or 0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > memory:
        raise LimitError(f"host_cache_size={shown(wanted)} exceeds the host's memory of {memory:,} bytes: lower it")
    least = block_bytes * max((group.blocks for group in cache.groups), default=1)
    if 0 < wanted < least:
        raise LimitError(
            f"host_cache_size={wanted} is too small: a block of the KV cache, or a state, takes {least:,} bytes: raise "
            "it, or leave it out"
        )
    return wanted // block_bytes


def tightened(name: str, value: int | None, built: int) -> int:
    """``value``, or the engine's limit ``built`` if it is None. Raises LimitError if it exceeds ``built``."""
    if value is None:
        return built
    if value > built:
        flag = {"max_output_len": "max_seq_len"}.get(name, name)
        raise LimitError(
            f"{name}={shown(value)} exceeds what this engine was built for ({built}): lower it, or build the engine "
            f"again with a larger --{flag}"
        )
    return value


def _check_step(values: dict[str, int], built: Limits, options: RunnerOptions) -> None:
    num_tokens, batch_size, input_len = (values[name] for name in ("max_num_tokens", "max_batch_size", "max_input_len"))
    if num_tokens < batch_size:
        raise LimitError(
            f"max_num_tokens={num_tokens} is less than max_batch_size={batch_size}, but each sequence of a batch needs "
            "one token per step: raise the former or lower the latter"
        )
    if not options.enable_chunked_context and input_len > num_tokens:
        raise LimitError(
            f"without chunked context a prompt of max_input_len={input_len} tokens must fit into a step of "
            f"max_num_tokens={num_tokens}: enable it, lower max_input_len, or (if the engine, built for "
            f"{built.max_num_tokens}, allows) raise max_num_tokens"
        )


def _check_drafts(speculation: SpeculativeConfig | None, built: Limits) -> None:
    wanted = 0 if speculation is None else speculation.num_speculative_tokens
    if wanted > built.max_draft_len:
        raise LimitError(
            f"num_speculative_tokens={wanted} exceeds the max_draft_len that this engine was built for "
            f"({built.max_draft_len}): lower it, or build the engine again with --max_draft_len {wanted}"
        )


def _check_geometry(cache: KvCache, config: KvCacheConfig) -> None:
    if config.tokens_per_block not in (None, cache.tokens_per_block):
        raise ArgumentError(
            f"tokens_per_block is {config.tokens_per_block}, but this engine was built for {cache.tokens_per_block}: "
            "leave it out, or build the engine again with it"
        )
    values = KV_CACHE_DTYPES.get(config.dtype, config.dtype)
    if values not in (AUTO, cache.value_dtype):
        raise ArgumentError(
            f"the KV cache's dtype is {shown(config.dtype)}, but this engine was built for {cache.dtype}: leave it out"
        )
    if config.key_cache_dtype not in (AUTO, cache.key_dtype):
        raise ArgumentError(
            f"key_cache_dtype is {shown(config.key_cache_dtype)}, but this engine keeps keys as {cache.key_dtype}: "
            "leave it out, or build the engine again with it"
        )
    if config.state_dtype not in (None, AUTO, cache.state_dtype):
        raise ArgumentError(
            f"state_dtype is {config.state_dtype}, but the type of this engine's states is {cache.state_dtype}: leave "
            "it out, or build the engine again with it"
        )


def _cache_blocks(
    cache: KvCache, block_bytes: int, demand: int, config: KvCacheConfig, available_bytes: int, batch_size: int
) -> int:
    """KV cache blocks to reserve: ``demand`` for a full batch, or fewer if the engine or the config caps them.

    ``max_tokens`` are stored by each group of attention layers; the states of a batch come on top.
    """
    states = [group.blocks for group in cache.groups if group.kind == STATE]
    least, and_state = sum(group.blocks for group in cache.groups), " and a state of recurrent layers" if states else ""
    caps = []
    if config.max_tokens is not None:
        cap = config.max_tokens // cache.tokens_per_block * (len(cache.groups) - len(states)) + batch_size * sum(states)
        caps.append((cap, f"the KV cache's max_tokens={config.max_tokens}", "raise it"))
    if config.max_gpu_total_bytes:
        cap = config.max_gpu_total_bytes // block_bytes
        caps.append((cap, f"the KV cache's max_gpu_total_bytes={config.max_gpu_total_bytes}", "raise it"))
    if config.free_gpu_memory_fraction is not None:
        cap = int(available_bytes * config.free_gpu_memory_fraction) // block_bytes
        share = f"free_gpu_memory_fraction={config.free_gpu_memory_fraction} of {available_bytes:,} free bytes"
        caps.append((cap, share, "free memory on the device, or raise the fraction if it is below 1"))
    for cap, reason, remedy in caps:
        if cap < max(least, 1):
            raise LimitError(
                f"{reason} leaves no room for one KV cache block of {cache.tokens_per_block} tokens{and_state} "
                f"({least * block_bytes:,} bytes): {remedy}"
            )
    return min(cache.num_blocks, demand, *(cap for cap, _, _ in caps))
