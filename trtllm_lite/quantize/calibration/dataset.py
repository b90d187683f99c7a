"""Reads the texts for calibration, and draws sequences of tokens from them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.units import counted
from trtllm_lite.errors import ArgumentError, shown

DEFAULT_SIZE = 512
_TEXT_FILE = "text.txt"
_SUFFIXES = (".txt", ".jsonl")
_MIN_TOKENS = 64
_EXPECTED = 'expected a text in quotes, or an object with the key "text", on each line'


@dataclass(frozen=True)
class CalibrationText:
    """The texts for calibration and the sequences that are drawn from them.

    Without a ``dataset`` they are the text that comes with this package. At most ``size`` sequences of at most
    ``max_seq_length`` tokens are taken, drawn by ``seed``; None for ``size`` means up to 512.
    """

    dataset: Path | None = None
    size: int | None = None
    max_seq_length: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "max_seq_length"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ArgumentError(f"calib_{name} is {shown(value)}: expected a whole number above 0")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise ArgumentError(f"calib_seed is {shown(self.seed)}: expected a whole number, 0 or above")

    def texts(self) -> list[str]:
        """The texts of the file. Raises ArgumentError."""
        if self.dataset is None:
            return [resources.files(__package__).joinpath(_TEXT_FILE).read_text(encoding="utf-8")]
        suffix = Path(self.dataset).suffix
        if suffix not in _SUFFIXES:
            raise ArgumentError(f"calib_dataset is {self.dataset}: expected a file whose name ends in .txt or .jsonl")
        try:
            content = Path(self.dataset).read_text(encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"cannot read {self.dataset}: {error.strerror}: pass a .txt or .jsonl file") from error
        except UnicodeDecodeError as error:
            raise ArgumentError(f"{self.dataset} is not UTF-8 (byte {error.start}): re-encode it") from error
        if not content.strip():
            raise ArgumentError(f"the calibration dataset {self.dataset} is empty: pass a file with text")
        if suffix == ".txt":
            return [content]
        lines = enumerate(content.split("\n"), 1)  # a text may contain other line separators
        return [self._text_of(line, number) for number, line in lines if line.strip()]

    def sequences(self, encode: Callable[[str], Sequence[int]], prefix: Sequence[int]) -> list[NDArray[np.int32]]:
        """The sequences, each preceded by ``prefix``; ``encode`` turns a text into tokens. Raises ArgumentError."""
        if self.max_seq_length <= len(prefix):
            raise ArgumentError(
                f"calib_max_seq_length is {self.max_seq_length}, and prompts begin with "
                f"{counted(len(prefix), 'token')}: raise calib_max_seq_length"
            )
        fresh = self.max_seq_length - len(prefix)
        parts = [
            np.array([*prefix, *tokens[first : first + fresh]], np.int32)
            for tokens in map(encode, self.texts())
            for first in range(0, len(tokens), fresh)
        ]
        num_tokens = sum(map(len, parts))
        source = self.dataset or "the text that comes with trtllm_lite"
        if num_tokens < _MIN_TOKENS or len(parts) < (self.size or 1):
            raise ArgumentError(
                f"the calibration dataset is too small: {source} has {counted(num_tokens, 'token')} in "
                f"{counted(len(parts), 'sequence')} of at most {self.max_seq_length}, expected at least {_MIN_TOKENS} "
                f"tokens, and at least {counted(self.size or 1, 'sequence')}: pass more text"
                + (", or lower calib_size" if num_tokens >= _MIN_TOKENS else "")
            )
        chosen = np.random.default_rng(self.seed).permutation(len(parts))[: self.size or DEFAULT_SIZE]
        sequences = [parts[i] for i in sorted(chosen)]
        num_chosen = sum(map(len, sequences))
        if num_chosen < _MIN_TOKENS:
            raise ArgumentError(
                f"calibration is to read {counted(num_chosen, 'token')} in {counted(len(sequences), 'sequence')} of at "
                f"most {self.max_seq_length}, expected at least {_MIN_TOKENS} tokens: raise calib_size or "
                "calib_max_seq_length"
            )
        return sequences

    def _text_of(self, line: str, number: int) -> str:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{self.dataset}, line {number} is not JSON: {shown(line)}: {_EXPECTED}") from error
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ArgumentError(f"{self.dataset}, line {number} is {shown(value)}: {_EXPECTED}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(
                f"{self.dataset}, line {number} has {text[error.start]!a}, half of a character: remove it"
            ) from error
        return text
