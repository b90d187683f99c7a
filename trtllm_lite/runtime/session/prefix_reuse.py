"""What the KV cache keeps of prompts, for others that begin alike."""

from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.limits import RunnerOptions


def state_interval(manifest: Manifest, options: RunnerOptions) -> int:
    """The blocks of a prompt between states that are kept, 0 for none. Raises ArgumentError if none can be kept."""
    interval = options.kv_cache.state_snapshot_interval
    if interval is None:
        return 0
    if not _has_states(manifest):
        why = "this model has no recurrent layers"
    elif not reuses_prefixes(manifest, options):
        why = "prefixes are not reused in chunks"
    else:
        return interval
    raise ArgumentError(f"state_snapshot_interval is {interval}, and {why}, so that no states are kept: leave it out")


def reuses_prefixes(manifest: Manifest, options: RunnerOptions) -> bool:
    """Whether later prompts can go on from cached prefixes; states are kept between the chunks of a prompt."""
    can_reuse = options.enable_chunked_context or not _has_states(manifest)
    return options.kv_cache.enable_block_reuse and can_reuse


def told_reuse(manifest: Manifest, options: RunnerOptions) -> str:
    """A sentence without a period, of where later prompts can go on from cached prefixes, and where these lie."""
    told, on_host = _told_reuse(manifest, options), options.kv_cache.host_cache_size
    if not on_host or not reuses_prefixes(manifest, options):
        return told
    return f"{told}; what the KV cache has no room for goes to {on_host:,} bytes of host memory"


def _told_reuse(manifest: Manifest, options: RunnerOptions) -> str:
    if not options.kv_cache.enable_block_reuse:
        return "cached prefixes are not reused (enable_block_reuse is off)"
    block = f"{manifest.kv_cache.tokens_per_block} tokens"
    if not _has_states(manifest):
        return f"cached prefixes are reused, in blocks of {block}"
    if not reuses_prefixes(manifest, options):
        return "cached prefixes are not reused: states of recurrent layers are kept with chunked context alone"
    interval = state_interval(manifest, options)
    every = f", and after every {interval} blocks of {block}" if interval else ""
    return f"cached prefixes are reused where states of recurrent layers are kept: where prompts end or part{every}"


def _has_states(manifest: Manifest) -> bool:
    return any(group.kind == STATE for group in manifest.kv_cache.groups)
