"""Defines a loaded engine of an encoder: executor, limits, tokenizer. There is no event loop."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import EMBEDDING
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, DeviceError, EngineError, LimitError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.device import available_memory, check_num_threads, make_executor
from trtllm_lite.runtime.session.limits import RunnerOptions, tightened
from trtllm_lite.runtime.text.tokenizer import Tokenizer

_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
# Maps options of generation to LLM's names for them.
_NAMES = {
    "kv_cache": "kv_cache_config",
    "scheduler": "scheduler_config",
    "speculation": "speculative_config",
    "enable_chunked_context": "enable_chunked_prefill",
}


@dataclass(frozen=True)
class EmbedderLimits:
    """Limits: texts per step, tokens per text, and tokens per step."""

    max_batch_size: int
    max_input_len: int
    max_num_tokens: int

    def fit(self, num_texts: int, num_tokens: int) -> bool:
        """Whether a step takes that many texts and tokens."""
        return num_texts <= self.max_batch_size and num_tokens <= self.max_num_tokens


@dataclass(eq=False)
class Embedder:
    """Makes embeddings. Any thread may call the methods; ``executor`` is a ``_core.DeviceExecutor``."""

    manifest: Manifest
    limits: EmbedderLimits
    executor: Any
    tokenizer: Tokenizer | None
    pace: Any
    """The ``_core.StepPace`` that says how many tokens a step may take while other requests wait."""
    is_broken: bool = False
    """Whether the device has failed."""
    _lock: Lock = field(default_factory=Lock)

    def embed(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """float32[texts, embedding_size] for texts as token ids, as many at a time as the engine takes.

        Raises LimitError for a text that is too long, before anything runs; EngineError if a result is not finite, or
        after :meth:`close`.
        """
        self.check(texts)
        return np.concatenate([self.step(batch) for batch in self._batches(texts)])

    def check(self, texts: Sequence[NDArray[np.int32]]) -> None:
        """Raise LimitError for a text that is too long."""
        for row, text in enumerate(texts):
            self._check_length("the text" if len(texts) == 1 else f"text {row}", len(text))

    def fit_step(self, num_texts: int, num_tokens: int) -> bool:
        """Whether a step takes that many texts and tokens, and is short enough for other requests that wait."""
        return self.limits.fit(num_texts, num_tokens) and num_tokens <= self.pace.max_prefill(0)

    def close(self) -> None:
        """Give the engine's memory back. Nothing can be embedded any more; closing twice is fine."""
        with self._lock:
            self.executor = None

    def _check_length(self, name: str, length: int) -> None:
        longest = min(self.limits.max_input_len, self.limits.max_num_tokens)
        if length > longest:
            which = "max_input_len" if longest == self.limits.max_input_len else "max_num_tokens"
            raise LimitError(
                f"{name} has {length} tokens, which exceeds {which} {longest}: shorten it, or build the engine with a "
                f"larger --{which} (the model takes up to {self.manifest.model.max_position_embeddings})"
            )

    def _batches(self, texts: Sequence[NDArray[np.int32]]) -> Iterator[list[NDArray[np.int32]]]:
        """Batches of consecutive texts, each of which fits into one step."""
        batch: list[NDArray[np.int32]] = []
        num_tokens = 0
        for text in texts:
            if batch and not self.limits.fit(len(batch) + 1, num_tokens + len(text)):
                yield batch
                batch, num_tokens = [], 0
            batch.append(text)
            num_tokens += len(text)
        yield batch

    def step(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Compute :meth:`embed` for checked texts that fit into one step. Raises EngineError, DeviceError."""
        lengths = np.array([len(text) for text in texts], np.int32)
        nothing = np.zeros(0, np.int32)
        # Block tables of zero cache groups, as wide as the longest text would need.
        columns = -(-int(np.max(lengths)) // self.manifest.kv_cache.tokens_per_block)
        tables = np.zeros((0, columns), np.int32)
        with self._lock:
            if self.executor is None:
                raise EngineError("the engine was shut down: load it again")
            begin = time.perf_counter()
            try:
                core().compute(self.executor, np.concatenate(texts), lengths, np.zeros_like(lengths), tables, nothing)
                rows: NDArray[np.float32] = self.executor.output(EMBEDDING).view(np.float32)
            except DeviceError:
                self.is_broken = True
                raise
            self.pace.observe(int(lengths.sum()), time.perf_counter() - begin)
        if not np.isfinite(rows).all():
            raise EngineError("an embedding is not finite: convert the model with another --dtype, and build it again")
        return rows


def open_embedder(native: Any, directory: Path, ranks: Sequence[Any], options: RunnerOptions) -> Embedder:
    """Open the encoder with the engines ``ranks``.

    Raises ArgumentError for options of generation, LimitError for limits above the engine's or too little memory.
    """
    usual, used = RunnerOptions(), {*_LIMITS, "num_threads"}
    given = [entry.name for entry in fields(options) if getattr(options, entry.name) != getattr(usual, entry.name)]
    manifest = Manifest.from_json(ranks[0].manifest)
    on_gpu = manifest.target.kind != "cpu"
    check_num_threads(options.num_threads, on_gpu=on_gpu)
    used |= {"device_ids"} if on_gpu else set()
    unused = [_NAMES.get(name, name) for name in given if name not in used]
    if unused:
        raise ArgumentError(f"{', '.join(unused)}: this engine is an encoder's, which generates nothing: leave it out")
    if on_gpu:
        available_memory(native, manifest, device_ids=options.device_ids)  # raises if the device has too little memory
    limits = {name: tightened(name, getattr(options, name), getattr(manifest.limits, name)) for name in _LIMITS}
    executing: dict[str, Any] = {"num_threads": options.num_threads or 0, "device_ids": options.device_ids}
    max_len = min(limits["max_input_len"], limits["max_seq_len"])
    return Embedder(
        manifest,
        EmbedderLimits(limits["max_batch_size"], max_len, limits["max_num_tokens"]),
        make_executor(native, ranks, manifest, **executing, num_blocks=0),
        Tokenizer.from_dir(directory, manifest.files, native.crc32c),
        native.StepPace(0.0 if on_gpu else native.CPU_STEP_SECONDS),
    )
