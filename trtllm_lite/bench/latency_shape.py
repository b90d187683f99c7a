"""Defines the shapes that ``bench latency`` measures."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.manifest import Limits
from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.limits import RunnerLimits


@dataclass(frozen=True)
class LatencyShape:
    """A batch to measure: ``batch_size`` random prompts of ``input_len`` tokens, each continued by ``output_len``."""

    input_len: int = 128
    output_len: int = 129
    batch_size: int = 1
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("input_len", 1), ("output_len", 2), ("batch_size", 1), ("repeats", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} is {getattr(self, name)}: expected at least {least}")

    @property
    def seq_len(self) -> int:
        """Tokens of a finished sequence."""
        return self.input_len + self.output_len

    def prompts(self, vocab_size: int) -> list[NDArray[np.int32]]:
        """The prompts, int32[input_len] each; equal seeds give equal prompts."""
        generator = np.random.default_rng(self.seed)
        return list(generator.integers(0, vocab_size, (self.batch_size, self.input_len), dtype=np.int32))

    def check_limits(self, limits: Limits) -> None:
        """Raise LimitError for a batch, or sequences, beyond the limits of the engine."""
        for name, value, limit in (
            ("input_len", self.input_len, "max_input_len"),
            ("batch_size", self.batch_size, "max_batch_size"),
            ("input_len + output_len", self.seq_len, "max_seq_len"),
        ):
            if value > (most := getattr(limits, limit)):
                raise LimitError(
                    f"{name} is {value} and {limit} {most}: lower it, or build the engine with a larger --{limit}"
                )

    def check_fits(self, limits: RunnerLimits) -> None:
        """Raise LimitError unless the KV cache holds the whole batch at once."""
        blocks = limits.blocks_for_batch(self.batch_size, self.seq_len)
        if blocks > limits.num_blocks:
            raise LimitError(
                f"batch_size {self.batch_size} of {self.seq_len} tokens needs {blocks} KV cache blocks of "
                f"{limits.tokens_per_block} tokens, and the engine has {limits.num_blocks}: measure a smaller batch or "
                "shorter sequences"
            )
