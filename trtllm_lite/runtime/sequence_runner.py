"""Runs one sequence at a time through an engine, without an event loop, and gives access to all outputs of a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.manifest import KvCache, Manifest
from trtllm_lite.engine.plan import Plan, PlanTensor
from trtllm_lite.errors import EngineError, LimitError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.device import available_memory, check_num_threads, make_executor, open_gpus
from trtllm_lite.runtime.session.engine_dir import open_ranks
from trtllm_lite.runtime.session.opening import check_generates
from trtllm_lite.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Part:
    """Tokens ``first`` to ``end`` of a sequence: what one step computes."""

    first: int
    end: int


class SequenceRunner:
    """The engine of ``engine_dir``, on its device, with a KV cache for one sequence.

    ``max_len`` bounds the tokens of a sequence. ``num_threads`` are the threads of a CPU engine; None means one for
    each core. Raises EngineError (no engine, or a damaged one), DeviceError, ArgumentError (an encoder's engine,
    ``num_threads``), LimitError (``max_len``, or too little memory).
    """

    def __init__(self, engine_dir: Path, max_len: int | None = None, num_threads: int | None = None) -> None:
        native, directory = core(), Path(engine_dir)
        self.directory = directory
        ranks = open_ranks(native, directory)
        engine = ranks[0]
        self.manifest = Manifest.from_json(engine.manifest)
        if self.manifest.stripped:
            raise EngineError(f"{directory} was built with --strip_plan: its weights are random; build it without that")
        check_generates(self.manifest, directory)
        limits = self.manifest.limits
        self.max_len = limits.max_seq_len if max_len is None else max_len
        if not 1 <= self.max_len <= limits.max_seq_len:
            raise LimitError(
                f"sequences of {self.max_len} tokens exceed max_seq_len {limits.max_seq_len} of {directory}: ask for "
                "less, or build the engine with a larger --max_seq_len"
            )
        self.tokenizer = Tokenizer.from_dir(directory, self.manifest.files, native.crc32c)
        self._plan = Plan.from_json(ranks[-1].plan)  # the plan of the last stage, which has the results
        self.max_logits = self._plan.symbols["num_logits"]
        """The maximum number of rows of logits that a step computes."""
        check_num_threads(num_threads, on_gpu=self.manifest.target.kind != "cpu")
        gpus = open_gpus(native, self.manifest.target, len(ranks))
        available_memory(gpus, self.manifest, others=[Manifest.from_json(rank.manifest) for rank in ranks[1:]])
        self._tables, num_blocks = _tables(self.manifest.kv_cache, self.max_len, limits.max_num_tokens)
        self.executor = make_executor(native, ranks, self.manifest, num_threads=num_threads or 0, num_blocks=num_blocks)
        """The ``_core.DeviceExecutor``."""

    def parts(self, num_tokens: int, most: int) -> list[Part]:
        """Split a sequence of ``num_tokens`` into steps of at most ``most`` tokens each."""
        size = min(most, self.manifest.limits.max_num_tokens)
        return [Part(first, min(first + size, num_tokens)) for first in range(0, num_tokens, size)]

    def logits(self, token_ids: NDArray[np.int32], most: int) -> Iterator[NDArray[np.float32]]:
        """Logits after each token, float32[tokens, vocab_size] for parts of at most ``most`` tokens.

        Raises LimitError.
        """
        for part in self.parts(len(token_ids), min(most, self.max_logits)):
            wanted = np.arange(part.end - part.first, dtype=np.int32)
            logits: NDArray[np.float32] = core().step(*self._arguments(token_ids, part, wanted))
            yield logits

    def steps(self, token_ids: NDArray[np.int32], names: Sequence[str], most: int) -> Iterator[Part]:
        """Run steps of at most ``most`` tokens; outputs ``names`` can be read after each. Raises LimitError."""
        needs_logits = any(self._tensor(name).shape[0] == "num_logits" for name in names)
        for part in self.parts(len(token_ids), min(most, self.max_logits) if needs_logits else most):
            wanted = np.arange(part.end - part.first if needs_logits else 0, dtype=np.int32)
            core().compute(*self._arguments(token_ids, part, wanted))
            yield part

    def output(self, name: str, begin: int = 0, end: int | None = None) -> tuple[str, NDArray[np.uint8]]:
        """The dtype of an output of the engine, and the bytes of its rows after the last step. Raises LimitError."""
        return self._tensor(name).dtype, self.executor.output(name, begin, end)

    def _tensor(self, name: str) -> PlanTensor:
        return self._plan.tensors[self._plan.outputs[name]]

    def _arguments(self, token_ids: NDArray[np.int32], part: Part, wanted: NDArray[np.int32]) -> tuple[Any, ...]:
        size, past = np.array([part.end - part.first], np.int32), np.array([part.first], np.int32)
        tokens = np.ascontiguousarray(token_ids[part.first : part.end])
        return self.executor, tokens, size, past, self._tables, wanted


def _tables(cache: KvCache, max_len: int, max_num_tokens: int) -> tuple[NDArray[np.int32], int]:
    """Return the block tables [cache groups, blocks of ``max_len`` tokens] of the only sequence, and all its blocks.

    A windowed group reuses its blocks in turns: blocks that the window has passed are overwritten.
    """
    indices, first, rows = np.arange(-(-max_len // cache.tokens_per_block)), 0, []
    for group in cache.groups:
        geometry = core().KvGeometry(cache.tokens_per_block, [group.spec], max_num_tokens)
        num_blocks = geometry.most_blocks(max_len, max_len)
        rows.append(first + indices % num_blocks)
        first += num_blocks
    return np.array(rows, np.int32), first
