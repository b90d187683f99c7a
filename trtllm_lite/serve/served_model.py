"""ServedModel: one engine of the server, its adapters, and the requests that it works on."""

import asyncio
import contextvars
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import OverloadedError, shown
from trtllm_lite.llm import LLM
from trtllm_lite.runtime.api.generation import Generation
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.notifier import Mailbox
from trtllm_lite.runtime.session.prompts import kept_ids
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.sampling_params import SamplingParams
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.bodies.sampling import SamplingFields
from trtllm_lite.serve.logprobs import TokenTexts
from trtllm_lite.serve.metrics.sequences import SequenceCounts
from trtllm_lite.serve.started import note_started

Value = TypeVar("Value")
Listener = Callable[[RequestHandle], None]
_LONGEST_RETRY = 60  # seconds


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a model is served.

    - ``names``: what requests call it; the first is its own name
    - ``tool_parser``, ``reasoning_parser``: names of parsers (see ``serve.parsers``); None for none
    - ``max_queue_size``: sequences that may wait for a place in the batch; a request beyond them gets status 429
    - ``adapters``: names and directories of LoRA adapters, which requests may name as their model
    """

    names: tuple[str, ...]
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    max_queue_size: int = 1024
    adapters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Prompt:
    """What an endpoint has made of a prompt: a request that can run, and the prompt's text if it came as one."""

    request: Request
    text: str | None = None
    num_truncated_tokens: int = 0


@dataclass(eq=False)
class ServedModel:
    """An engine that requests over HTTP are run on.

    Its methods belong to the thread of ``loop``, but for those of ``session`` and what :meth:`prepare` runs in one of
    the ``workers``: rendering, tokenizing and compiling grammars may take time and must not hold up streams.
    """

    llm: LLM
    settings: ModelSettings
    loop: asyncio.AbstractEventLoop
    workers: ThreadPoolExecutor
    num_active: int = 0
    """Sequences that are being generated, or wait for it."""
    num_rejected: Counter[str] = field(default_factory=lambda: Counter(queue_full=0, overloaded=0))
    """Requests that got status 429, by what was full: the server's queue, or the runtime's."""
    waiting: set[Callable[[Exception], None]] = field(default_factory=set)
    """What ends each answer that is waited for with an error."""
    _listeners: dict[RequestHandle, Listener] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = self.llm.session
        self.tokenizer = self.llm.tokenizer
        self.token_texts = TokenTexts(self.tokenizer)
        self.counts = SequenceCounts(self.max_model_len)
        self.tool_parses = Counter(tool_call=0, no_tool_call=0) if self.settings.tool_parser else Counter[str]()
        """Choices that were searched for tool calls, by what was found."""
        self.mailbox = Mailbox(self.loop, self._listen)
        self.adapters: dict[str, LoRARequest] = {}
        self._last_adapter = 0
        for name, path in self.settings.adapters:
            self.check_adapter(path)
            self.add_adapter(name, path)

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.settings.names[0]

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together at most."""
        return self.session.limits.max_seq_len

    @property
    def capacity(self) -> int:
        """Sequences that are taken in at a time: those of a batch, and those that may wait."""
        return self.session.limits.max_batch_size + self.settings.max_queue_size

    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ApiError 400 if the engine has none."""
        if self.tokenizer is None:
            raise ApiError(
                400,
                f"the engine of {shown(self.name)} has no tokenizer: send prompts of token ids to /v1/completions",
                code="no_tokenizer",
            )
        return self.tokenizer

    @contextmanager
    def admission(self, num_sequences: int) -> Iterator[None]:
        """Take in a request of so many sequences until the block ends.

        Raises ApiError 400 for more than the server ever takes in, 429 if too many are there now.
        """
        if num_sequences > self.capacity:
            raise ApiError(
                400,
                f"the request asks for {num_sequences} sequences, which exceeds the {self.capacity} of max_batch_size "
                "and max_queue_size together: send several requests",
                code="too_many_sequences",
            )
        if self.num_active + num_sequences > self.capacity:
            self.num_rejected["queue_full"] += 1
            raise ApiError(
                429,
                f"{self.num_active} sequences run or wait, and {num_sequences} more exceed the "
                f"{self.capacity} of max_batch_size and max_queue_size together: send the request again later",
                code="queue_full",
                retry_after=self._retry_seconds(),
            )
        self.num_active += num_sequences
        try:
            yield
        finally:
            self.num_active -= num_sequences

    async def prepare(self, work: Callable[[], Value], *, is_quick: bool = False) -> Value:
        """The result of ``work``.

        It runs in a worker's thread, or at once in this one if it ``is_quick``: if handing over takes longer.
        """
        try:
            if is_quick:
                return work()
            return await self.loop.run_in_executor(self.workers, contextvars.copy_context().run, work)
        except OverloadedError:
            self.num_rejected["overloaded"] += 1
            raise

    def prompt(
        self,
        ids: NDArray[np.int32],
        text: str | None,
        params: SamplingParams,
        fields: SamplingFields,
        adapter: LoRARequest | None,
    ) -> Prompt:
        """The prompt of checked token ids, int32[prompt_len], to be served as the request's ``fields`` want it."""
        kept = kept_ids(ids, params.truncate_prompt_tokens)
        request = Request(
            kept,
            params,
            priority=fields.priority,
            timeout=fields.timeout,
            cache_salt=fields.cache_salt,
            lora_request=adapter,
            on_end=self.counts.add,
        )
        return Prompt(request, text, len(ids) - len(kept))

    def start(self, prompt: Prompt) -> Generation:
        """Submit a prompt, from any thread. Raises what ``Session.submit`` does."""
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

    def start_all(self, prompts: Sequence[Prompt]) -> list[Generation]:
        """:meth:`start` several prompts; if one is refused, none is left running."""
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
        """Nobody listens to the handle any more."""
        self._listeners.pop(handle, None)

    def adapter(self, name: str) -> LoRARequest | None:
        """The adapter of this name, or None."""
        return self.adapters.get(name)

    def check_adapter(self, path: str) -> None:
        """Read an adapter, from any thread.

        Raises ArgumentError if the engine takes no adapters, EngineError or LimitError if not this one.
        """
        self.session.check_takes_adapters("lora_name").check(path)

    def add_adapter(self, name: str, path: str) -> LoRARequest:
        """Make an adapter known under a name that nothing has; its files are read when a request first names it."""
        self._last_adapter += 1  # no number is given twice: requests may still run with an adapter that was removed
        self.adapters[name] = adapter = LoRARequest(name, self._last_adapter, path)
        return adapter

    def _listen(self, handles: Sequence[RequestHandle]) -> None:
        listeners = self._listeners
        for handle in handles:
            listener = listeners.get(handle)
            if listener is not None:
                listener(handle)

    def _retry_seconds(self) -> int:
        """When about a place in the queue should be free: what waits, at the rate of the last hundred requests."""
        latencies, batch = self.session.stats().recent_latencies, self.session.limits.max_batch_size
        return min(max(math.ceil(latencies.total_seconds * self.settings.max_queue_size / batch), 1), _LONGEST_RETRY)
