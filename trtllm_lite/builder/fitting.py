"""Chooses the limits that were not given so that an engine fits into a GPU's memory."""

from collections.abc import Callable, Iterator
from typing import Unpack

from trtllm_lite._core import KvGeometry
from trtllm_lite.builder.limits import BuildLimits, GivenLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.common.units import format_bytes
from trtllm_lite.common.vocabulary import GPU_MEMORY_FRACTION
from trtllm_lite.errors import BuildError


def fit_limits(
    limits_of: Callable[..., BuildLimits],
    memory_of: Callable[[BuildLimits], MemoryPlan],
    device_memory: int,
    **given: Unpack[GivenLimits],
) -> BuildLimits:
    """The largest limits with which a sequence of full length fits into GPU_MEMORY_FRACTION of ``device_memory`` bytes.

    ``limits_of`` fills in the defaults of limits that are not ``given``. The batch and the tokens of a step are halved
    first, the longest sequence is shortened last. The KV cache itself is sized when the engine is loaded, by the memory
    that is free then, and all sequences share it.

    Raises BuildError if not even one block of the KV cache fits.
    """
    for limits in _halved(limits_of, given):
        memory = memory_of(limits)
        if cache_room(memory, device_memory) >= memory.cache_use.num_bytes:
            return limits
    num_blocks = cache_room(memory, device_memory) // memory.cache_use.block_bytes
    if num_blocks < len(memory.cache_use.groups):
        raise BuildError(
            f"weights of {format_bytes(memory.weights)} and a workspace of {format_bytes(memory.workspace)} leave no "
            f"room for a KV cache in {GPU_MEMORY_FRACTION:.0%} of {format_bytes(device_memory)}: build with a "
            "--qformat of fewer bits, or share the model out with --tp_size"
        )
    if given.get("max_seq_len") is not None:  # not shortened: requests that exceed the cache fail
        return limits
    groups = [group.spec for group in memory.cache_use.groups]
    geometry = KvGeometry(limits.tokens_per_block, groups, limits.num_tokens)
    longest = max(geometry.longest_sequence(num_blocks), given.get("max_input_len") or 1)
    num_tokens = given.get("max_num_tokens") or min(limits.num_tokens, limits.max_batch_size * longest)
    fitting = {"max_batch_size": limits.max_batch_size, "max_num_tokens": num_tokens, "max_seq_len": longest}
    return limits_of(**{**given, **fitting})


def cache_room(memory: MemoryPlan, device_memory: int) -> int:
    """Return the bytes that are left for the KV cache in an engine's share of ``device_memory`` bytes."""
    return int(GPU_MEMORY_FRACTION * device_memory) - memory.weights - memory.workspace - memory.adapters


def _halved(limits_of: Callable[..., BuildLimits], given: GivenLimits) -> Iterator[BuildLimits]:
    """Yield the default limits, and then those of ever smaller steps; limits that were given stay."""
    limits = limits_of(**given)
    yield limits
    batch, tokens = limits.max_batch_size, limits.num_tokens
    while batch > limits.smallest_batch and None in (given.get("max_batch_size"), given.get("max_num_tokens")):
        batch, tokens = max(batch // 2, limits.smallest_batch), tokens // 2
        smaller = {"max_batch_size": batch, "max_num_tokens": max(tokens, batch)}
        yield limits_of(**{**given, **{name: given.get(name) or value for name, value in smaller.items()}})
