"""Reads rank files of tiktoken: each line has a token in base64 and its rank, which is its number.

Such a file has neither the pattern that cuts texts nor the special tokens: both are facts of the class that reads it,
whose code comes with the model and is not run here. The classes that are known:

- Kimi (Moonlight, Kimi K2, Kimi Linear): ``TikTokenTokenizer`` of tokenization_kimi.py and tokenization_moonshot.py in
  the repositories of moonshotai. The 256 numbers behind the ranks are special tokens, named by tokenizer_config.json.
- Qwen of the first generation: ``QWenTokenizer`` of tokenization_qwen.py in Qwen/Qwen-7B.

Their functions that cut runs of more than 25,000 characters, which tiktoken needed once, have no equal here.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_TOKENIZER_BYTES
from trtllm_lite.convert.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from trtllm_lite.convert.tokenizers.ranks import NUM_BYTES, rank_tokenizer
from trtllm_lite.errors import ConvertError, shown

TIKTOKEN_FILES = ("tiktoken.model", "*.tiktoken")
"""Names and patterns of rank files."""

_REMEDY = "download it again"


@dataclass(frozen=True)
class _Class:
    """What a class adds to its rank ``file``: how it cuts texts, and special tokens.

    These are ``names``, from the number ``first`` on, or else from the one behind the last rank, and further ones to a
    ``count`` of them, which tokenizer_config.json names or else the ``placeholder``, a format of their numbers.
    """

    file: str
    cuts: PreTokenizer
    count: int
    placeholder: str
    names: tuple[str, ...] = ()
    first: int | None = None

    def special(self, ranks: Mapping[bytes, int], named: Mapping[int, str]) -> dict[str, int]:
        """The special tokens with their numbers; ``named`` are those of tokenizer_config.json."""
        first = max(ranks.values()) + 1 if self.first is None else self.first
        unnamed = {first + place: self.placeholder.format(first + place, place) for place in range(self.count)}
        names = unnamed | {first + place: name for place, name in enumerate(self.names)}
        names |= {number: text for number, text in named.items() if number >= first}
        return {text: number for number, text in names.items()}


_KIMI = _Class("tiktoken.model", PRE_TOKENIZERS["kimi-k2"], 256, "<|reserved_token_{0}|>")
_QWEN_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
_QWEN = _Class("qwen.tiktoken", PRE_TOKENIZERS["qwen2"], len(_QWEN_NAMES), "", _QWEN_NAMES, 151643)
_CLASSES = {
    "tokenization_kimi.TikTokenTokenizer": _KIMI,
    "tokenization_moonshot.TikTokenTokenizer": _KIMI,
    "tokenization_qwen.QWenTokenizer": _QWEN,
}


def find_tiktoken(path: Path) -> Path | None:
    """The rank file of the model directory ``path``, if it has one."""
    return next((file for name in TIKTOKEN_FILES for file in sorted(path.glob(name))), None)


def read_tiktoken(file: Path, raw: Mapping[str, Any], named: Mapping[int, str], save: str) -> Tokenizer:
    """The tokenizer of the rank file ``file``, without tokens around a text.

    ``raw`` is the content of tokenizer_config.json, ``named`` are the tokens that it adds, by number, which the caller
    adds; ``save`` is the remedy if its class is not known. Raises ConvertError, also if the file is damaged.
    """
    kind = _class_of(raw)
    found = _CLASSES.get(kind) if isinstance(kind, str) else None
    if found is None or file.name != found.file:
        expected = ", ".join(f"{name} (for {known.file})" for name, known in _CLASSES.items())
        raise ConvertError(
            f"{file.parent} has its tokenizer in {file.name} alone, which does not say how texts are cut, and the "
            f"class {shown(kind)} in tokenizer_config.json, expected one of {expected}: create tokenizer.json with "
            f"{save}"
        )
    ranks = _ranks(file)
    special = found.special(ranks, named)
    tokenizer = rank_tokenizer(ranks, special, found.cuts)
    own = [text for text, number in special.items() if number not in named]
    # Where characters are composed first, special tokens are found in what results.
    tokenizer.add_special_tokens([AddedToken(text, normalized=found.cuts.composes, special=True) for text in own])
    return tokenizer


def _class_of(raw: Mapping[str, Any]) -> Any:
    """The module and class that ``auto_map`` of tokenizer_config.json names, without the repository they are in."""
    classes = raw.get("auto_map")
    name = classes.get("AutoTokenizer") if isinstance(classes, dict) else None
    name = name[0] if isinstance(name, list) and name else name
    return name.rpartition("--")[2] if isinstance(name, str) else raw.get("tokenizer_class")


def _ranks(file: Path) -> dict[bytes, int]:
    """Tokens and their ranks, in the order of these."""
    pairs = []
    for number, line in enumerate(read_foreign(file, MAX_TOKENIZER_BYTES).splitlines()):
        parts = line.split()
        if not parts:
            continue
        try:
            token, rank = parts
            pairs.append((int(rank), base64.b64decode(token, validate=True)))
        except ValueError as error:
            raise ConvertError(
                f"expected line {number + 1} of {file} to be a token in base64 and its rank, found "
                f"{shown(line[:80])}: {_REMEDY}"
            ) from error
    ranks = {token: rank for rank, token in sorted(pairs)}
    missing = [byte for byte in range(NUM_BYTES) if bytes([byte]) not in ranks]
    if missing:
        raise ConvertError(
            f"expected {file} to have every single byte as a token, found {NUM_BYTES - len(missing)} of {NUM_BYTES}: "
            f"{_REMEDY}"
        )
    if len(ranks) < len(pairs) or min(ranks.values()) < 0:
        raise ConvertError(f"expected the tokens of {file} to be different, with ranks from 0 on: {_REMEDY}")
    return ranks
