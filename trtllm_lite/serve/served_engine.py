"""Defines ServedEngine: the common part of the server's engines, decoders and encoders."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from trtllm_lite.common.vocabulary import TEXT_ENCODER
from trtllm_lite.engine.modules import Module
from trtllm_lite.errors import OverloadedError, shown
from trtllm_lite.llm import LLM
from trtllm_lite.runtime.lora.request import LoRARequest
from trtllm_lite.runtime.session.prompts import max_chars
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.serve.api_error import ApiError
from trtllm_lite.serve.logprobs import TokenTexts
from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.turns import TURN

Value = TypeVar("Value")
_LONGEST_RETRY = 60  # seconds


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of a served model.

    - ``names``: what requests call it; the first is its own name
    - ``shares``: names that it shares with other models, and its weight among those
    - ``tool_parser``, ``reasoning_parser``: names of parsers (see ``serve.parsers``); None for none
    - ``refuses_special_tokens``: whether a chat whose texts spell special tokens is an error
    - ``max_queue_size``: sequences that may wait for a place in the batch; a request beyond them gets status 429
    - ``adapters``: names and directories of LoRA adapters, which requests may name as their model
    - ``takes_priorities``: whether requests may have a priority; otherwise a request with a priority is refused
    - ``part_of``: the name of the decoder whose engine directory holds the encoder, which embeds for that name, too
    """

    names: tuple[str, ...]
    shares: Mapping[str, int] = field(default_factory=dict)
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    refuses_special_tokens: bool = False
    max_queue_size: int = 1024
    adapters: tuple[tuple[str, str], ...] = ()
    takes_priorities: bool = False
    part_of: str | None = None

    def of_encoder_beside(self) -> "ModelSettings":
        """The settings of the encoder in the engine directory of a decoder that has these."""
        decoder = self.names[0]
        return ModelSettings(
            names=(f"{decoder}/{TEXT_ENCODER}",),
            max_queue_size=self.max_queue_size,
            takes_priorities=self.takes_priorities,
            part_of=decoder,
        )


@dataclass(eq=False)
class ServedEngine(ABC):
    """An engine that HTTP requests run on.

    Its methods belong to the thread of ``loop``, except for the engine's own methods and work that :meth:`prepare` runs
    in other threads: rendering, tokenizing and compiling grammars are slow and must not delay streams.
    """

    llm: LLM
    settings: ModelSettings
    loop: asyncio.AbstractEventLoop
    num_active: int = 0
    """The number of running and waiting sequences."""
    num_rejected: Counter[str] = field(default_factory=lambda: Counter(queue_full=0, overloaded=0))
    """The number of requests with status 429, by the queue that was full: the server's, or the runtime's."""
    waiting: set[Callable[[Exception], None]] = field(default_factory=set)
    """Functions that end each awaited answer with an error."""
    adapters: dict[str, LoRARequest] = field(default_factory=dict)
    """Adapters by the names that requests have for them; encoders have none."""

    def __post_init__(self) -> None:
        self.tokenizer = self.own_tokenizer()
        self.token_texts = TokenTexts(self.tokenizer)

    def own_tokenizer(self) -> Tokenizer | None:
        """The engine's tokenizer, if it has one."""
        return self.llm.tokenizer

    @property
    @abstractmethod
    def module(self) -> Module:
        """The engine's module."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The size of the vocabulary; token ids are below it."""

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """The maximum number of tokens of prompt and answer together."""

    @property
    @abstractmethod
    def max_input_len(self) -> int:
        """The maximum number of tokens of a prompt."""

    @property
    def max_prompt_chars(self) -> int:
        """An upper bound of a prompt's characters; 0 without a tokenizer, because no prompt is a text then."""
        return 0 if self.tokenizer is None else max_chars(self.tokenizer, self.max_input_len)

    @property
    @abstractmethod
    def max_batch_size(self) -> int:
        """The maximum number of sequences of a step."""

    @property
    @abstractmethod
    def is_broken(self) -> bool:
        """Whether the engine has failed."""

    @abstractmethod
    def load(self) -> dict[str, float]:
        """The engine's current work."""

    @abstractmethod
    def add_metrics(self, families: Families) -> None:
        """Add the metrics of the engine."""

    @abstractmethod
    def _seconds_in_queue(self) -> float:
        """The estimated time until a place in the queue is free."""

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.settings.names[0]

    @property
    def capacity(self) -> int:
        """The maximum number of sequences that are accepted at a time: a batch, and the queue."""
        return self.max_batch_size + self.settings.max_queue_size

    def adapter(self, name: str) -> LoRARequest | None:
        """The adapter of this name, or None."""
        return self.adapters.get(name)

    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ApiError 400 if the engine has none."""
        if self.tokenizer is None:
            raise ApiError(
                400,
                f"the engine of {shown(self.name)} has no tokenizer: send prompts of token ids",
                code="no_tokenizer",
            )
        return self.tokenizer

    def check_priority(self, priority: int) -> None:
        """Raise ApiError for a priority if the operator does not allow priorities."""
        if priority and not self.settings.takes_priorities:
            raise ApiError(
                400,
                f"priority is {priority}, and all requests have one priority here: leave it out, or start the server "
                "with --scheduling_policy priority",
                param="priority",
                code="unsupported_value",
            )

    @contextmanager
    def admission(self, num_sequences: int) -> Iterator[None]:
        """Admit a request of ``num_sequences`` sequences until the block ends.

        Raises ApiError 400 for more than the server ever accepts, 429 if it has too many now.
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
        """The result of ``work``, which prepares the request that the current task answers.

        The work runs in another thread when it is the client's turn, or at once in this thread if it ``is_quick``,
        which means that it takes less time than handing it over.
        """
        try:
            return work() if is_quick else await TURN.get().prepare(work)
        except OverloadedError:
            self.num_rejected["overloaded"] += 1
            raise

    async def compile(self, work: Callable[[], Value]) -> Value:
        """The result of ``work``, which compiles a grammar; other work does not wait for it."""
        try:
            return await TURN.get().compile(work)
        except OverloadedError:
            self.num_rejected["overloaded"] += 1
            raise

    def _retry_seconds(self) -> int:
        return min(max(math.ceil(self._seconds_in_queue()), 1), _LONGEST_RETRY)
