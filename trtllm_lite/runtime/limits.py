"""Limits of one runner: those its engine was built for, or tighter ones chosen at load time."""

import os
from dataclasses import dataclass, fields

from trtllm_lite.engine.manifest import KvCache, Limits
from trtllm_lite.errors import ArgumentError, LimitError


@dataclass(frozen=True)
class RunnerLimits:
    """Upper bounds in sequences, tokens and cache blocks.

    ``max_seq_len`` bounds prompt plus generated tokens, ``max_output_len`` the generated ones alone, ``max_num_tokens``
    the packed tokens of one step (longer prompts are split).
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_output_len: int
    num_blocks: int
    tokens_per_block: int

    def blocks_for(self, num_tokens: int) -> int:
        """KV cache blocks that hold ``num_tokens`` tokens of one sequence."""
        return -(-num_tokens // self.tokens_per_block)

    @property
    def cache_len(self) -> int:
        """Tokens that the KV cache holds, all sequences together."""
        return self.num_blocks * self.tokens_per_block


@dataclass(frozen=True)
class RunnerOptions:
    """What ``ModelRunner.from_dir`` may tighten; None leaves the engine's value."""

    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_output_len: int | None = None
    max_tokens_in_paged_kv_cache: int | None = None
    kv_cache_free_gpu_memory_fraction: float | None = None
    num_threads: int | None = None


OPTION_NAMES = tuple(field.name for field in fields(RunnerOptions))


def runner_limits(built: Limits, cache: KvCache, options: RunnerOptions, available_bytes: int) -> RunnerLimits:
    """The engine's limits, tightened by the options.

    ``available_bytes`` is the free memory of the device, of which kv_cache_free_gpu_memory_fraction is a share.
    Raises LimitError for an option above the engine's limit, ArgumentError for one that is not a positive number.
    """
    ceilings = {**vars(built), "max_output_len": built.max_seq_len}
    values = {name: _tightened(name, getattr(options, name), ceiling) for name, ceiling in ceilings.items()}
    if values["max_num_tokens"] < values["max_batch_size"]:
        raise LimitError(
            f"max_num_tokens={values['max_num_tokens']} is less than max_batch_size={values['max_batch_size']}, but "
            "each sequence of a batch needs one token per step: raise the former or lower the latter"
        )
    demand = values["max_batch_size"] * -(-values["max_seq_len"] // cache.tokens_per_block)
    blocks = _cache_blocks(cache, demand, options, available_bytes)
    return RunnerLimits(**values, num_blocks=blocks, tokens_per_block=cache.tokens_per_block)


def check_positive(name: str, value: object) -> None:
    """Raise ArgumentError unless ``value`` is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name} is {value!r}: expected a whole number above 0")


def available_host_memory() -> int:
    """Bytes of host memory that can be taken without swapping."""
    try:
        with open("/proc/meminfo") as meminfo:
            entries = dict(line.split(":", 1) for line in meminfo)
        return int(entries["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _tightened(name: str, value: int | None, built: int) -> int:
    if value is None:
        return built
    check_positive(name, value)
    if value > built:
        flag = "max_seq_len" if name == "max_output_len" else name
        raise LimitError(
            f"{name}={value} exceeds what this engine was built for ({built}): lower it, or build the engine again "
            f"with a larger --{flag}"
        )
    return value


def _cache_blocks(cache: KvCache, demand: int, options: RunnerOptions, available_bytes: int) -> int:
    """KV cache blocks to reserve: ``demand`` for a full batch, or fewer if the engine or an option caps them."""
    caps = {"the engine": cache.num_blocks, "max_batch_size and max_seq_len": demand}
    tokens, fraction = options.max_tokens_in_paged_kv_cache, options.kv_cache_free_gpu_memory_fraction
    if tokens is not None:
        check_positive("max_tokens_in_paged_kv_cache", tokens)
        caps[f"max_tokens_in_paged_kv_cache={tokens}"] = tokens // cache.tokens_per_block
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ArgumentError(
                f"kv_cache_free_gpu_memory_fraction is {fraction!r}: expected a number above 0 and at most 1"
            )
        share = int(available_bytes * fraction) // cache.bytes_per_block
        caps[f"kv_cache_free_gpu_memory_fraction={fraction} of {available_bytes:,} free bytes"] = share
    reason, blocks = min(caps.items(), key=lambda cap: cap[1])
    if blocks < 1:
        raise LimitError(
            f"{reason} leaves no room for one KV cache block of {cache.tokens_per_block} tokens "
            f"({cache.bytes_per_block:,} bytes): raise it"
        )
    return blocks
