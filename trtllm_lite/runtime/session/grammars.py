"""Grammars: compiles what guides the requests of one engine, by llguidance."""

import importlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, LimitError, OverloadedError, shown
from trtllm_lite.printable import one_line
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.session.grammar_markers import with_markers
from trtllm_lite.runtime.session.guided_decoding import STRUCTURAL_TAG, GrammarSource, GuidedDecodingParams
from trtllm_lite.runtime.session.reasoning import Thoughts
from trtllm_lite.runtime.text.tokenizer import Tokenizer

COMPILE_MILLISECONDS = 10_000
"""A grammar that takes longer to compile is refused."""
# In llguidance's Lark: strings, comments and regular expressions; and behind them the name of a token, or its number.
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/')
_TOKEN_NAME = re.compile(r"<[^<>\s]+>")
MAX_KEPT = 64  # compiled grammars; a large schema's takes some megabytes
MAX_THOUGHTS_KEPT = 8  # a model has one or two kinds of them


class Grammars:
    """Compiled grammars over the tokens of one engine, of which the latest are kept. Threads share it.

    Making one takes a moment (the vocabulary is read into a tree), as the first compilation of a grammar does, so both
    happen where requests are made and not in the event loop. Raises ArgumentError if llguidance is not installed or too
    old, or the engine's model has no tokenizer or no end token; DeviceError if llguidance does not load.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer | None) -> None:
        end_ids = manifest.model.eos_token_ids
        if tokenizer is None:
            raise ArgumentError("guided_decoding needs the texts of tokens; this engine has no tokenizer: leave it out")
        if not end_ids:
            raise ArgumentError("guided_decoding ends texts by the model's end token, and it has none: leave it out")
        compiler = core().GrammarCompiler(
            library=str(_library_path()),
            tokenizer_json=tokenizer.json_with_special(end_ids),
            vocab_size=manifest.model.vocab_size,
            end_ids=list(end_ids),
            tokenize=tokenizer.spell if manifest.limits.max_draft_len > 0 else None,
        )
        # The caches refer to the compiler alone: with a reference to this object they would keep themselves alive.
        self._compiled = lru_cache(maxsize=MAX_KEPT)(partial(_compile, compiler, tokenizer, frozenset(end_ids)))
        self._tokens_of = lru_cache(maxsize=MAX_THOUGHTS_KEPT)(partial(_tokens_of, compiler))
        self._tokenizer, self._end_ids = tokenizer, list(end_ids)

    def of(self, guided: GuidedDecodingParams, prompt_ids: NDArray[np.int32]) -> Any:
        """``_core.Grammar`` of what is generated behind a prompt, int32[prompt_len], by params that have a form.

        Raises what :meth:`compile` does.
        """
        assert guided.source is not None
        grammar, thoughts = self.compile(guided.source), guided.thoughts
        if thoughts is None or guided.source.has_thoughts:
            return grammar
        behind = thoughts.behind(prompt_ids, self._tokenizer, self._end_ids)
        return grammar if behind is None else grammar.behind(self._tokens_of(behind))

    def compile(self, source: GrammarSource) -> Any:
        """``_core.Grammar`` of ``source``, which is kept.

        Raises ArgumentError, with llguidance's message, for what is no grammar, what it does not support or what is too
        large for it; LimitError after COMPILE_MILLISECONDS; OverloadedError while too many others compile.
        """
        return self._compiled(source)


def _compile(compiler: Any, tokenizer: Tokenizer, end_ids: frozenset[int], source: GrammarSource) -> Any:
    kind, text = source.kind, source.text
    if kind == "lark":
        _check_names_no_token(source)
        text = with_markers(source, tokenizer.special_ids, end_ids)
    try:
        if kind == STRUCTURAL_TAG:
            kind, text = "lark", _lark_of_tags(json.loads(text))
        names_tokens = bool(source.markers) and _named_token(text) is not None
        return compiler.compile(kind, text, timeout_ms=COMPILE_MILLISECONDS, names_tokens=names_tokens)
    except (ArgumentError, LimitError, OverloadedError) as error:
        raise type(error)(f"{source.field} of guided_decoding: {one_line(str(error))}") from error


def _tokens_of(compiler: Any, thoughts: Thoughts) -> Any:
    return compiler.tokens_of(thoughts.native)


def _check_names_no_token(source: GrammarSource) -> None:
    """Raise ArgumentError if a Lark grammar names tokens, as ``<|user|>`` or ``<[3]>``: a text has characters alone."""
    named = _named_token(source.text)
    if named is not None:
        raise ArgumentError(
            f"{source.field} of guided_decoding names the token {shown(named)}: expected text in quotes, as special "
            "tokens are no part of what a grammar allows"
        )


def _named_token(text: str) -> str | None:
    """The first token that a Lark grammar names."""
    named = _TOKEN_NAME.search(_LITERAL.sub("", text))
    return None if named is None else named[0]


def _library() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise ArgumentError(
            "guided_decoding needs llguidance, which is not installed: pip install 'trtllm_lite[guided]'"
        ) from error


def _library_path() -> Path:
    """The shared library in llguidance's wheel, which is its Python extension and also has a C interface."""
    return Path(_library()._lib.__file__)


def _lark_of_tags(tags: Mapping[str, Any]) -> str:
    """The grammar of free text in which the structures of ``tags`` stand; see GuidedDecodingParams."""
    triggers, structures = tags.get("triggers", []), tags.get("structures", [])
    if tags.get("type") != STRUCTURAL_TAG or not _are_texts(triggers) or not _are_structures(structures):
        raise ArgumentError(
            f'found {shown(dict(tags))}: expected {{"type": "structural_tag", "structures": [{{"begin": "…", "schema": '
            '{…}, "end": "…"}, …], "triggers": ["…", …]}'
        )
    struct_tag = _library().StructTag
    made = []
    for structure in structures:
        begin, schema, end = structure["begin"], structure["schema"], structure["end"]
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise ArgumentError(f"the begin {shown(begin)} starts with no trigger: add one that it starts with")
        made.append(struct_tag(trigger=trigger, begin=begin, grammar=schema, end=end))
    # A trigger in angle brackets would be taken for a special token's name otherwise.
    return str(struct_tag.to_grammar(made, assume_special=False))


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) and value for value in values)


def _are_structures(values: Any) -> bool:
    kinds = {"begin": str, "schema": dict, "end": str}
    return (
        isinstance(values, list)
        and bool(values)
        and all(
            isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())
            for value in values
        )
    )
