"""Grammars that are costly to compile, each with a text of random tokens that follow it."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.grammars import hostile_grammar
from tests.fuzz.model_files import VOCAB, tokenizer
from tests.unit.runtime.doubles import fake_manifest
from trtllm_lite import GuidedDecodingParams, _testing
from trtllm_lite.errors import LimitError, TrtllmLiteError
from trtllm_lite.runtime.session.grammars import Grammars
from trtllm_lite.runtime.text.tokenizer import Tokenizer

COUNT = 40
_TOKENS = 200  # tokens in a text
_MOST_RESIDENT = 192 << 20  # bytes more than at the start: kept grammars, fragments, the latest grammar and its text


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) << 12


class Target:
    """Grammars over a tokenizer of bytes, made as in a server with draft tokens."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        manifest = fake_manifest()
        model = replace(manifest.model, vocab_size=VOCAB, eos_token_ids=(2,))
        limits = replace(manifest.limits, max_draft_len=8)
        self._grammars = Grammars(replace(manifest, model=model, limits=limits), Tokenizer(tokenizer(), {}))
        self._grammars.compile(GuidedDecodingParams(regex="a").source)
        self._resident = _resident()

    def write(self, rng: random.Random, directory: Path) -> None:
        (directory / "grammar.json").write_text(json.dumps(hostile_grammar(rng)))

    def read(self, directory: Path) -> None:
        fields = json.loads((directory / "grammar.json").read_text())
        try:
            grammar = self._grammars.compile(GuidedDecodingParams(**fields).source)
        except TrtllmLiteError as error:
            if "panic: " in str(error) or (isinstance(error, LimitError) and not re.search("[0-9]", str(error))):
                raise ValueError("the message quotes a panic, or names no limit") from error
            raise
        _write_text(grammar, random.Random(0))
        assert _resident() - self._resident < _MOST_RESIDENT


def _write_text(grammar: Any, rng: random.Random) -> None:
    """Write random tokens, and roll some back; a limit may end the text, as it would end a request."""
    matcher, forcer = _testing.start_grammar(grammar), _testing.start_forcer(grammar)
    tokens: list[int] = []
    try:
        for _ in range(_TOKENS):
            allowed = [token for token in matcher.allowed(VOCAB) if token != 2]
            if not allowed:
                break
            tokens.append(rng.choice(allowed))
            matcher.accept(tokens[-1:])
            forcer.forced_tokens(8)
            forcer.num_allowed(tokens[-1:])  # 0 if its own lexer reached a limit first
            forcer.accept(tokens[-1:])
            if rng.random() < 0.1:
                count = rng.randint(1, min(9, len(tokens)))
                matcher.roll_back(count)
                matcher.accept(tokens[-count:])
    except RuntimeError as error:
        if "the grammar cannot be followed any further" not in str(error) or "panic: " in str(error):
            raise
