"""Defines ServedModel: the engine of a decoder in the server, its adapters, and its requests."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.modules import Module
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.notifier import Mailbox
from trtllm_lite.runtime.session.prompt_embeds import PromptEmbeds
from trtllm_lite.runtime.session.prompts import kept_ids
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.serve.bodies.sampling import SamplingFields
from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.metrics.model_metrics import add_model
from trtllm_lite.serve.metrics.sequences import SequenceCounts
from trtllm_lite.serve.served_engine import ServedEngine
from trtllm_lite.serve.started import note_started

Listener = Callable[[RequestHandle], None]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Prompt:
    """A prompt that an endpoint has prepared: a request that can run, and the prompt's text if it was given as text."""

    request: Request
    text: str | None = None
    num_truncated_tokens: int = 0


@dataclass(eq=False)
class ServedModel(ServedEngine):
    """The engine of a decoder that HTTP requests run on."""

    _listeners: dict[RequestHandle, Listener] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.session = self.llm.session
        self.counts = SequenceCounts(self.max_model_len)
        self.tool_parses = Counter(tool_call=0, no_tool_call=0) if self.settings.tool_parser else Counter[str]()
        """The number of choices that were searched for tool calls, by result."""
        self.empty_answers = Counter(stop=0, length=0)
        """The number of choices of conversations without content and calls, by finish reason."""
        self.mailbox = Mailbox(self.loop, self._listen)
        self._last_adapter = 0
        for name, path in self.settings.adapters:
            self.check_adapter(path)
            self.add_adapter(name, path)
        self.loaded: set[str] = set()
        """Names of adapters that requests have loaded, and may unload."""

    @property
    def module(self) -> Module:
        return self.session.manifest.module

    @property
    def vocab_size(self) -> int:
        return self.session.manifest.model.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.session.limits.max_seq_len

    @property
    def max_input_len(self) -> int:
        return self.session.limits.max_input_len

    @property
    def max_batch_size(self) -> int:
        return self.session.limits.max_batch_size

    @property
    def is_broken(self) -> bool:
        return self.session.is_broken

    def load(self) -> dict[str, float]:
        stats = self.session.stats()
        return {
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
            "num_active_sequences": self.num_active,
            "capacity": self.capacity,
            "kv_cache_usage": stats.num_used_blocks / max(stats.num_blocks, 1),
            "num_generated_tokens": stats.num_generated_tokens,
        }

    def add_metrics(self, families: Families) -> None:
        add_model(families, self)

    def prompt(
        self,
        ids: NDArray[np.int32],
        text: str | None,
        params: SamplingParams,
        fields: SamplingFields,
        adapter: LoRARequest | None,
        embeds: PromptEmbeds | None = None,
    ) -> Prompt:
        """A prompt of checked token ids, int32[prompt_len], with the priority, timeout and cache salt of ``fields``.

        ``embeds`` take the place of tokens of images. Raises ArgumentError if the prompt is to be cut as well, ApiError
        for a priority if the operator does not allow priorities.
        """
        self.check_priority(fields.priority)
        kept = kept_ids(ids, params.truncate_prompt_tokens)
        if embeds is not None and len(kept) < len(ids):
            raise ArgumentError("truncate_prompt_tokens is given for a conversation with images: leave it out")
        request = Request(
            kept,
            params,
            priority=fields.priority,
            timeout=fields.timeout,
            cache_salt=fields.cache_salt,
            lora_request=adapter,
            prompt_embeds=embeds,
            on_end=self.counts.add,
        )
        return Prompt(request, text, len(ids) - len(kept))

    def start(self, prompt: Prompt) -> Generation:
        """Submit a prompt, from any thread. Raises the errors of ``Session.submit``."""
        generation = Generation(
            self.session,
            prompt.request,
            prompt=prompt.text,
            num_truncated_tokens=prompt.num_truncated_tokens,
            streaming=False,
            notifier=self.mailbox,
        )
        note_started(generation)
        return generation

    async def begin(
        self, make: Callable[[], tuple[Made, Sequence[Prompt]]], *, is_quick: bool = False
    ) -> tuple[Made, list[Generation]]:
        """The result of ``make``, made from a request, and the generations that continue its prompts.

        ``make`` runs as in :meth:`prepare`, and prompts without a grammar are submitted in the same thread. Raises what
        ``make`` and :meth:`start_all` do.
        """

        def prepared() -> tuple[Made, Sequence[Prompt], list[Generation] | None]:
            made, prompts = make()
            is_guided = any(prompt.request.params.guided_decoding is not None for prompt in prompts)
            return made, prompts, None if is_guided else self.start_all(prompts)

        made, prompts, generations = await self.prepare(prepared, is_quick=is_quick)
        if generations is None:
            generations = await self.compile(partial(self.start_all, prompts))
        return made, generations

    def start_all(self, prompts: Sequence[Prompt]) -> list[Generation]:
        """Call :meth:`start` for several prompts; if one is refused, none is left running."""
        if len(prompts) > 1:
            for row, prompt in enumerate(prompts):
                self.session.check(prompt.request, row)
        started: list[Generation] = []
        try:
            for prompt in prompts:
                started.append(self.start(prompt))
        except BaseException:
            for generation in started:
                generation.cancel()
            raise
        return started

    def listen(self, handle: RequestHandle, listener: Listener) -> None:
        """Call ``listener`` now, and whenever the handle has something new, until :meth:`forget`."""
        self._listeners[handle] = listener
        listener(handle)

    def forget(self, handle: RequestHandle) -> None:
        """Stop calling the listener of the handle."""
        self._listeners.pop(handle, None)

    def check_adapter(self, path: str, root: str | None = None) -> None:
        """Read an adapter, whose files have to be in ``root`` if it is given, from any thread.

        Raises ArgumentError if the engine takes no adapters, EngineError or LimitError if it does not take this one.
        """
        self.session.check_takes_adapters("lora_name").check(path, root)

    def add_adapter(self, name: str, path: str, root: str | None = None) -> LoRARequest:
        """Give an adapter an unused name; its files are read when a request first names it."""
        self._last_adapter += 1  # numbers are not reused: requests may still run with an adapter that was removed
        self.adapters[name] = adapter = LoRARequest(name, self._last_adapter, path, root)
        return adapter

    def _listen(self, handles: Sequence[RequestHandle]) -> None:
        listeners = self._listeners
        for handle in handles:
            listener = listeners.get(handle)
            if listener is not None:
                listener(handle)

    def _seconds_in_queue(self) -> float:
        """The estimated time until a place in the queue is free, at the rate of the last hundred requests."""
        return self.session.stats().recent_latencies.total_seconds * self.settings.max_queue_size / self.max_batch_size
