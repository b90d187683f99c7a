"""Defines Embedder: takes texts for a loaded engine of an encoder, and embeds them together."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.session.device import available_memory, check_num_threads, make_executor, open_gpus
from trtllm_lite.runtime.session.embedding_handle import EmbeddingHandle, OnEnd
from trtllm_lite.runtime.session.embedding_pump import EmbeddingPump
from trtllm_lite.runtime.session.limits import RunnerOptions, tightened
from trtllm_lite.runtime.session.loaded_model import LoadedModel
from trtllm_lite.runtime.session.request import check_service
from trtllm_lite.runtime.session.stats import LatencyLog, Stats, make_stats
from trtllm_lite.runtime.text.tokenizer import Tokenizer

_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
# Maps options of generation to LLM's names for them.
_NAMES = {
    "kv_cache": "kv_cache_config",
    "scheduler": "scheduler_config",
    "speculation": "speculative_config",
    "enable_chunked_context": "enable_chunked_prefill",
}
_MOST_SUBMITTED = 512
"""The most texts of a call of :meth:`Embedder.embed` that are submitted together; two such groups are outstanding."""


@dataclass(frozen=True)
class EmbedderLimits:
    """Limits: texts per step, tokens per text, and tokens per step."""

    max_batch_size: int
    max_input_len: int
    max_num_tokens: int

    @property
    def longest(self) -> int:
        """The most tokens of a text, which is computed in one step."""
        return min(self.max_input_len, self.max_num_tokens)


@dataclass(eq=False)
class Embedder(LoadedModel):
    """Takes texts for an encoder, from any thread, and embeds them together.

    ``pump`` delivers what a ``_core.EncoderLoop`` does.
    """

    limits: EmbedderLimits
    pump: EmbeddingPump

    @property
    def closing(self) -> tuple[Callable[[], None], ...]:
        """Implements :attr:`LoadedModel.closing`."""
        return (self.pump.close,)

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be embedded any more until the engine is loaded again."""
        return self.pump.failure is not None or self.pump.loop.device_failed

    @property
    def size(self) -> int:
        """The number of elements of an embedding."""
        return self.manifest.module.outputs[0].size

    def stats(self) -> Stats:
        """Counts and times of what the embedder has done so far."""
        return make_stats(self.pump.loop.stats(), LatencyLog())

    def check(self, texts: Sequence[NDArray[np.int32]]) -> None:
        """Raise LimitError for a text that is too long."""
        for row, text in enumerate(texts):
            self._check_length("the text" if len(texts) == 1 else f"text {row}", len(text))

    def submit(
        self,
        texts: Sequence[NDArray[np.int32]],
        *,
        priority: int = 0,
        timeout: float | None = None,
        on_end: OnEnd | None = None,
        flow: int | None = None,
    ) -> EmbeddingHandle:
        """Queue texts as token ids; returns at once.

        Texts of a greater ``priority`` (-100 to 100) are served earlier; ``timeout`` is in seconds from now. The texts
        of a call take turns with those of other calls, unless several calls give one ``flow`` of the pump.

        If this raises, none of the texts is embedded: LimitError for one that is too long, ArgumentError for a priority
        or timeout, OverloadedError if too many texts are outstanding, EngineError if the embedder is broken.
        """
        check_service(priority, timeout)
        self.check(texts)
        handle = EmbeddingHandle(np.ones(len(texts), np.int64), timeout, self.cancel, on_end)
        self.pump.submit(handle, texts, self.pump.new_flow() if flow is None else flow, priority, timeout)
        return handle

    def embed(
        self, texts: Sequence[NDArray[np.int32]], *, priority: int = 0, timeout: float | None = None
    ) -> NDArray[np.float32]:
        """float32[texts, embedding_size] for texts as token ids, a bounded number at a time.

        Raises the errors of :meth:`submit`, for any text before anything runs, and of ``EmbeddingHandle.result``.
        """
        self.check(texts)
        flow, rows = self.pump.new_flow(), []
        waiting: deque[EmbeddingHandle] = deque()
        for first in range(0, len(texts), _MOST_SUBMITTED):
            if len(waiting) == 2:
                rows.append(waiting.popleft().result())
            group = texts[first : first + _MOST_SUBMITTED]
            waiting.append(self.submit(group, priority=priority, timeout=timeout, flow=flow))
        rows += [handle.result() for handle in waiting]
        return np.concatenate(rows)

    def _check_length(self, name: str, length: int) -> None:
        longest = self.limits.longest
        if length > longest:
            which = "max_input_len" if longest == self.limits.max_input_len else "max_num_tokens"
            raise LimitError(
                f"{name} has {length} tokens, which exceeds {which} {longest}: shorten it, or build the engine with a "
                f"larger --{which} (the model takes up to {self.manifest.model.max_position_embeddings})"
            )


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
    gpus = open_gpus(native, manifest.target, len(ranks), options.device_ids)
    if on_gpu:
        available_memory(gpus, manifest)  # raises if the device has too little memory
    values = {name: tightened(name, getattr(options, name), getattr(manifest.limits, name)) for name in _LIMITS}
    executing: dict[str, Any] = {"num_threads": options.num_threads or 0, "device_ids": options.device_ids}
    max_len = min(values["max_input_len"], values["max_seq_len"])
    limits = EmbedderLimits(values["max_batch_size"], max_len, values["max_num_tokens"])
    executor = make_executor(native, ranks, manifest, **executing, num_blocks=0)
    return Embedder(
        manifest=manifest,
        limits=limits,
        executor=executor,
        pump=EmbeddingPump(encoder_loop(native, executor, limits)),
        tokenizer=Tokenizer.from_dir(directory, manifest.files, native.crc32c),
    )


def encoder_loop(native: Any, executor: Any, limits: EmbedderLimits) -> Any:
    """The ``_core.EncoderLoop`` over an encoder's executor."""
    return native.EncoderLoop(
        executor,
        max_batch_size=limits.max_batch_size,
        max_input_len=limits.longest,
        max_num_tokens=limits.max_num_tokens,
    )
