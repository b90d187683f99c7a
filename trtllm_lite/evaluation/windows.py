"""Cuts a text into windows of tokens: each is a separate sequence, and no token is in two."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.runtime.sequence_runner import SequenceRunner

MIN_WINDOW = 2  # the first token of a window is read, and not predicted


def read_text(path: Path) -> str:
    """The text of a file. Raises ArgumentError if there is none, or if it is not UTF-8."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot read the dataset {path}: {error.strerror}: pass a text file") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"the dataset {path} is not UTF-8 (byte {error.start}): re-encode it") from error
    if not text.strip():
        raise ArgumentError(f"the dataset {path} is empty: pass a file with text")
    return text


def encode(engine: SequenceRunner, text: str) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer puts before every prompt (often BOS), and the tokens of ``text`` without them."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise EngineError(f"{engine.directory} has no tokenizer to read a text with: convert a model that has one")
    return tokenizer.encode(""), tokenizer.encode(text, add_special_tokens=False)


def split(prefix: list[int], tokens: list[int], window: int, max_tokens: int | None) -> NDArray[np.int32]:
    """int32[windows, window]: whole windows, each ``prefix`` and the next tokens of the text.

    Takes at most ``max_tokens`` of ``tokens``. Raises ArgumentError if there is not even one whole window.
    """
    fresh, shortest = window - len(prefix), max(MIN_WINDOW, len(prefix) + 1)
    if window < shortest:
        raise ArgumentError(f"a window of {window} tokens is too short: pass {shortest} or more")
    taken = len(tokens) if max_tokens is None else min(max_tokens, len(tokens))
    count = taken // fresh
    if count < 1:
        remedy = "pass a longer text" if taken == len(tokens) else "raise --max_tokens"
        raise ArgumentError(f"{taken} tokens of text fill no window of {window} tokens: {remedy}, or lower --window")
    rows = np.array(tokens[: count * fresh], np.int32).reshape(count, fresh)
    return np.concatenate([np.tile(np.array(prefix, np.int32), (count, 1)), rows], axis=1)
