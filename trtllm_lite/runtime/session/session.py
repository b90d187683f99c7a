"""Defines Session: takes requests for a loaded engine, and runs them together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.lora.adapters import Adapters
from trtllm_lite.runtime.session.event_pump import EventPump
from trtllm_lite.runtime.session.experts import ExpertCounts, expert_counts
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.session.limits import RunnerLimits
from trtllm_lite.runtime.session.loaded_model import LoadedModel
from trtllm_lite.runtime.session.notifier import Notifier
from trtllm_lite.runtime.session.prompt_len import check_prompt_len, output_len
from trtllm_lite.runtime.session.request import Request
from trtllm_lite.runtime.session.request_handle import RequestHandle
from trtllm_lite.runtime.session.stats import Stats, make_stats


@dataclass(eq=False)
class Session(LoadedModel):
    """Takes requests for a decoder, from any thread, and runs them together.

    ``pump`` delivers the events of a ``_core.EventLoop``. ``stages`` are the processes that compute, if this process
    does not. ``told_reuse`` says of which cached prefixes requests are spared the computation.
    """

    limits: RunnerLimits
    pump: EventPump
    told_reuse: str
    adapters: Adapters | None = None
    stages: Any = None

    @property
    def closing(self) -> tuple[Callable[[], None], ...]:
        """Implements :attr:`LoadedModel.closing`."""
        parts = (self.adapters, self.pump, self.stages)
        return tuple(part.close for part in parts if part is not None)

    def check(self, request: Request, row: int | None = None) -> None:
        """Raise the errors of :meth:`submit`, except for a full queue; ``row`` is the prompt's number among several."""
        self._native_params(request, row)
        self._rows(request)
        self._grammar(request)
        self._new_text(request)
        self._adapters_of(request)

    def submit(self, request: Request, notifier: Notifier | None = None) -> RequestHandle:
        """Queue a request; returns at once. Requests that are waited for together take the same ``notifier``.

        A grammar that is not kept from earlier requests is compiled first, which takes milliseconds, or seconds if it
        is very large. Raises LimitError (prompt or output too long), ArgumentError (parameters that do not fit the
        model), OverloadedError (too many requests outstanding: try again later), EngineError (the session is broken).
        """
        return self.submit_all([request], notifier)[0]

    def submit_all(self, requests: Sequence[Request], notifier: Notifier | None = None) -> list[RequestHandle]:
        """Call :meth:`submit` for several requests, which start together; if one raises, none of them runs."""
        natives = [
            self._native_params(request, row if len(requests) > 1 else None) for row, request in enumerate(requests)
        ]
        grammars = [self._grammar(request) for request in requests]
        new_texts = [self._new_text(request) for request in requests]
        shared = notifier or Notifier()
        handles = [
            RequestHandle(request, native, grammar, new_text, shared, self.cancel, self._rows(request))
            for request, native, grammar, new_text in zip(requests, natives, grammars, new_texts, strict=True)
        ]
        try:
            with self.together():
                for handle in handles:
                    self._start(handle)
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return handles

    @contextmanager
    def together(self) -> Iterator[None]:
        """Requests that are submitted within the context start in one step, as far as the engine's limits allow.

        So what runs beside what does not depend on how fast they are submitted. Never wait for one of them within it.
        """
        self.pump.loop.hold()
        try:
            yield
        finally:
            self.pump.loop.release()

    def _start(self, handle: RequestHandle) -> None:
        adapters, lora = self._adapters_of(handle.request), handle.request.lora_request
        if adapters is None or lora is None:
            self.pump.submit(handle)
            return
        handle.may_wait(adapters.withdraw)
        adapters.submit(handle, lora)

    def _adapters_of(self, request: Request) -> Adapters | None:
        """The engine's adapters, if the request wants one; else None."""
        return None if request.lora_request is None else self.check_takes_adapters("lora_request")

    def check_takes_adapters(self, given: str) -> Adapters:
        """The engine's adapters. Raises ArgumentError, about the argument ``given``, if it takes none."""
        if self.adapters is None:
            raise ArgumentError(
                f"{given} is given, and this engine takes no adapters: build it with --max_lora_rank, or give LLM "
                "max_lora_rank"
            )
        return self.adapters

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be generated any more until the engine is loaded again."""
        return self.pump.failure is not None or (self.stages is not None and self.stages.failure is not None)

    def stats(self) -> Stats:
        """Counts and times of what the session has done so far."""
        loaded = () if self.adapters is None else self.adapters.loaded()
        return make_stats(self.pump.loop.stats(), self.pump.latencies, loaded)

    def expert_counts(self) -> list[ExpertCounts]:
        """Counts of the experts chosen by each router that this process computes.

        Steps go on meanwhile, so that some layers may have counted a step that others have not.
        """
        return expert_counts(self.executor)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.manifest, self.tokenizer)

    def _grammar(self, request: Request) -> Any:
        """The ``_core.Grammar`` of a request, or None; compiled if it is not kept from an earlier request."""
        guided = request.params.guided_decoding
        if guided is None or guided.source is None:
            return None
        return self._grammars.of(guided, request.prompt_ids)

    def _thoughts(self, request: Request) -> Any:
        """The ``_core.Thoughts`` after which stop words count; None if they count everywhere."""
        guided = request.params.guided_decoding
        if guided is None or guided.thoughts is None or not request.params.stop_words:
            return None
        end_ids = self.manifest.model.eos_token_ids
        thoughts = guided.thoughts.behind(request.prompt_ids, self.tokenizer, end_ids)
        return None if thoughts is None else thoughts.native

    def _native_params(self, request: Request, row: int | None = None) -> Any:
        """The ``_core.sampling.SamplingParams`` of request number ``row``, checked against the limits."""
        params, prompt_len = request.params, len(request.prompt_ids)
        name = "the prompt" if row is None else f"prompt {row}"
        check_prompt_len(name, prompt_len, self.limits)
        max_tokens = output_len(name, prompt_len, params.max_tokens, self.limits)
        wants_prompt = params.return_context_logits or params.prompt_logprobs is not None
        if params.prompt_logprobs is not None and request.prompt_embeds is not None:
            raise ArgumentError(
                f"prompt_logprobs is given, and {name} has prompt_embeds, which are no tokens: leave one of them out"
            )
        if wants_prompt and not self.manifest.gather_context_logits:
            wanted = "context logits" if params.return_context_logits else "prompt_logprobs"
            raise ArgumentError(
                f"this engine computes the logits of the last prompt token only: for {wanted}, build it with "
                "--gather_context_logits"
            )
        if params.use_beam_search and params.num_sequences > self.limits.max_beam_width:
            raise LimitError(
                f"a search with {params.num_sequences} beams exceeds max_beam_width {self.limits.max_beam_width}: ask "
                "for fewer beams, or build the engine with a larger --max_beam_width"
            )
        if params.stop_words.texts and self.tokenizer is None:
            raise ArgumentError("this engine has no tokenizer: give stop words as token ids")
        return params.to_native(self.manifest, self.tokenizer, max_tokens)

    def _rows(self, request: Request) -> Any:
        """The ``_core.PromptRows`` of a request; None if its prompt is tokens alone."""
        return None if request.prompt_embeds is None else request.prompt_embeds.to_native(self.manifest)

    def _new_text(self, request: Request) -> Callable[[], Any]:
        """A function that makes a ``_core.TextStream`` for a request. Raises EngineError if no text can be written."""
        params, tokenizer, thoughts = request.params, self.tokenizer, self._thoughts(request)
        has_text = tokenizer is not None and (params.detokenize or params.stop_words.texts or thoughts is not None)
        return partial(
            core().TextStream,
            tokenizer.token_bytes if tokenizer is not None and has_text else None,
            np.ascontiguousarray(request.prompt_ids, np.int32),
            params.stop_words.matcher,
            thoughts=thoughts,
            skips_special=params.skip_special_tokens,
            returns_text=params.detokenize,
            min_tokens=params.min_tokens,
            includes_stop=params.include_stop_str_in_output,
        )
