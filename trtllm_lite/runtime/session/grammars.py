"""Compiles, by llguidance, the grammars that guide the requests of one engine."""

import sys
import threading
from collections import OrderedDict
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, LimitError, OverloadedError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.grammar_process import GrammarProcess
from trtllm_lite.runtime.session.grammar_texts import compiler_input, llguidance
from trtllm_lite.runtime.session.guided_decoding import GrammarSource, GuidedDecodingParams
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.runtime.text.tokenizer import Tokenizer

MAX_KEPT = 64
"""The maximum number of compiled grammars that are kept."""
MAX_KEPT_BYTES = 48 << 20
"""The maximum number of bytes that all kept grammars take with their texts; a single larger grammar is refused.

With drafts a schema of 1 kB takes about 0.6 MiB, one of 90 kB 5 MiB, and 1,000 structural tags take 24 MiB. So
``MAX_KEPT`` usual grammars fit. Some dozens of hostile grammars fill the room; with the latest text, and memory
fragmented between kept grammars, a process has then grown by at most 192 MiB, which the fuzz target ``grammar`` checks.
"""
MAX_THOUGHTS_KEPT = 8  # models have one or two kinds of thoughts


class Grammars:
    """Compiled grammars over the tokens of one engine; the latest ones are kept. Threads share it.

    Creating this object is slow (the vocabulary is read into a tree), and so is the first compilation of a grammar, so
    both happen in the thread that makes requests and not in the event loop. Raises ArgumentError if llguidance is not
    installed or too old, or the engine's model has no tokenizer or no end token; DeviceError if llguidance does not
    load.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer | None) -> None:
        end_ids = manifest.model.eos_token_ids
        if tokenizer is None:
            raise ArgumentError(
                "guided_decoding needs a tokenizer, and this engine has no tokenizer: leave guided_decoding out"
            )
        if not end_ids:
            raise ArgumentError(
                "guided_decoding ends texts by an end token, and this model has none: leave guided_decoding out"
            )
        forces = manifest.limits.max_draft_len > 0
        arguments = {
            "library": str(_library_path()),
            "tokenizer_json": tokenizer.json_with_special(end_ids),
            "vocab_size": manifest.model.vocab_size,
            "end_ids": list(end_ids),
        }
        self._process = GrammarProcess({**arguments, "forces": forces})
        self._process.start()
        self._compiler = core().GrammarCompiler(**arguments, tokenize=tokenizer.spell if forces else None)
        self._tokenizer, self._end_ids = tokenizer, list(end_ids)
        self._kept = _Kept()
        # The cache refers only to the compiler: a reference to this object would keep it alive in a cycle.
        self._tokens_of = lru_cache(maxsize=MAX_THOUGHTS_KEPT)(partial(_tokens_of, self._compiler))

    def of(self, guided: GuidedDecodingParams, prompt_ids: NDArray[np.int32]) -> Any:
        """The ``_core.Grammar`` for the text generated after a prompt, int32[prompt_len]; ``guided`` has a grammar.

        Raises the errors of :meth:`compile`.
        """
        assert guided.source is not None
        grammar, thoughts = self.compile(guided.source), guided.thoughts
        if thoughts is None or guided.source.has_thoughts:
            return grammar
        behind = thoughts.behind(prompt_ids, self._tokenizer, self._end_ids)
        return grammar if behind is None else grammar.behind(self._tokens_of(behind))

    def compile(self, source: GrammarSource) -> Any:
        """The ``_core.Grammar`` of ``source``, which is kept.

        The grammar is tried in another process, which may die, and compiled here if it passes. Raises ArgumentError,
        with llguidance's message, for an invalid or unsupported grammar; LimitError for what exceeds a limit of
        ``grammar_texts``, of ``grammar_process`` or of the compiler; OverloadedError while too many grammars compile.
        """
        grammar = self._kept.get(source)
        if grammar is None:
            try:
                given = compiler_input(source, self._tokenizer.special_ids, self._end_ids)
                with self._process.place():
                    num_bytes = self._process.try_out(given) + sys.getsizeof(source.text)
                    self._make_room(num_bytes)
                    grammar = self._compiler.compile(**asdict(given))
            except (ArgumentError, LimitError, OverloadedError) as error:
                raise type(error)(f"{source.field} of guided_decoding: {one_line(str(error))}") from error
            self._kept.put(source, grammar, num_bytes)
            core().return_free_memory()  # compilation has freed several times the memory of the grammar
        return grammar

    def _make_room(self, num_bytes: int) -> None:
        """Drop older grammars before a new one is compiled, so that its memory is not scattered between theirs.

        Raises LimitError for a grammar that does not fit.
        """
        if num_bytes > MAX_KEPT_BYTES:
            raise LimitError(
                f"expected a grammar that takes at most {MAX_KEPT_BYTES >> 20} MiB when compiled, found one of "
                f"{num_bytes / (1 << 20):.0f} MiB; simplify it"
            )
        if self._kept.make_room(num_bytes):
            core().return_free_memory()


class _Kept:
    """The grammars that were compiled or asked for last. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grammars: OrderedDict[GrammarSource, tuple[Any, int]] = OrderedDict()
        self._num_bytes = 0

    def get(self, source: GrammarSource) -> Any:
        """The grammar of ``source``; None if it is not kept."""
        with self._lock:
            if source not in self._grammars:
                return None
            self._grammars.move_to_end(source)
            return self._grammars[source][0]

    def make_room(self, num_bytes: int) -> bool:
        """Drop the least recently used grammars until one of ``num_bytes`` fits; returns whether any was dropped."""
        with self._lock:
            num_kept = len(self._grammars)
            self._shrink(MAX_KEPT - 1, MAX_KEPT_BYTES - num_bytes)
            return len(self._grammars) < num_kept

    def put(self, source: GrammarSource, grammar: Any, num_bytes: int) -> None:
        """Keep a grammar that takes ``num_bytes`` of memory; drop older ones if other threads have taken its room."""
        with self._lock:
            self._num_bytes -= self._grammars.pop(source, (None, 0))[1]
            self._shrink(MAX_KEPT - 1, MAX_KEPT_BYTES - num_bytes)
            self._grammars[source] = grammar, num_bytes
            self._num_bytes += num_bytes

    def _shrink(self, max_kept: int, max_bytes: int) -> None:
        while self._grammars and (len(self._grammars) > max_kept or self._num_bytes > max_bytes):
            self._num_bytes -= self._grammars.popitem(last=False)[1][1]


def _tokens_of(compiler: Any, thoughts: Thoughts) -> Any:
    return compiler.tokens_of(thoughts.native)


def _library_path() -> Path:
    """The shared library in llguidance's wheel: its Python extension, which also has a C interface."""
    return Path(llguidance()._lib.__file__)
