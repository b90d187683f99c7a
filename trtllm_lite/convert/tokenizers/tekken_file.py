"""Reads Mistral's tekken.json: a byte-level BPE that lists its tokens by rank, and no merges.

Source: ``Tekkenizer`` of mistral-common, which gives the file to tiktoken. A token's number is its rank plus the number
of special tokens.
"""

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from trtllm_lite.convert.gguf.pre_tokenizers import PreTokenizer, split
from trtllm_lite.convert.metadata.ignored import IgnoredKeys
from trtllm_lite.convert.metadata.key_table import KeyTable
from trtllm_lite.convert.metadata.tekken import TEKKEN, TEKKEN_CONFIG, TEKKEN_SPECIAL_TOKEN, TEKKEN_TOKEN
from trtllm_lite.convert.sources.json_file import read_json
from trtllm_lite.convert.tokenizers.ranks import NUM_BYTES, rank_tokenizer
from trtllm_lite.errors import ConvertError, shown

TEKKEN_FILE = f"{TEKKEN.name}.json"
_MAX_SPECIAL = 1 << 16  # published files have 1,000
# Special tokens of files that list none, as files up to version v7 may.
_FIRST_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_UNLISTED_VERSIONS = ("v1", "v2", "v3", "v7")
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
# Pieces of regular expressions that mean the same in tiktoken and in the tokenizers library.
_CHARACTER = r"\\[rntsSdD]|\\[pP]\{\w+\}|\\[^\w\s]"
_PLAIN = r"[^\\\[\]&~-]"  # a character that stands for itself between brackets
_ATOM = rf"{_CHARACTER}|\[\^?+(?:{_CHARACTER}|{_PLAIN}(?:-{_PLAIN})?)++\]|\)|[^\\\[\](){{}}|*+?^$]"
_ALIKE = re.compile(rf"(?:(?:{_ATOM})(?:[*+?][+?]?|\{{\d+(?:,\d*)?\}})?|\((?:\?(?:i?:|=|!))?|\|)++")
_REMEDY = "download it again"


@dataclass(frozen=True)
class TekkenFile:
    """The content of a file: ``pattern`` cuts texts into words; ``tokens`` are by rank, ``special`` ones by number."""

    pattern: str
    tokens: list[bytes]
    special: list[str]

    @property
    def strings(self) -> dict[str, str]:
        """The texts of special tokens by role."""
        return {role: text for role, text in _ROLES.items() if text in self.special}

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, without tokens around a text. Special tokens are found in texts, as chat templates need it."""
        numbers = {token: rank + len(self.special) for rank, token in enumerate(self.tokens)}
        special = {text: number for number, text in enumerate(self.special)}
        if len(numbers) + len(special) < len(self.tokens) + len(self.special):
            raise ConvertError(f"the tokenizer has two tokens with the same text, expected different ones: {_REMEDY}")
        tokenizer = rank_tokenizer(numbers, special, PreTokenizer(split(self.pattern)))
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
        return tokenizer


def read_tekken(path: Path, ignored: IgnoredKeys) -> TekkenFile:
    """Read the file ``path``. Raises ConvertError if it is damaged or needs an unsupported feature.

    Values of wrong types raise TypeError and the like.
    """
    content = ignored.without(read_json(path), TEKKEN.name)
    TEKKEN.check(path, content)
    config: dict[str, Any] = content["config"]
    TEKKEN_CONFIG.check(path, config)
    size, special_count = (_whole(path, config, key) for key in ("default_vocab_size", "default_num_special_tokens"))
    if not 0 <= special_count <= _MAX_SPECIAL:
        raise ConvertError(f"{path} has {special_count} special tokens, expected at most {_MAX_SPECIAL}: {_REMEDY}")
    kept = size - special_count
    if not NUM_BYTES <= kept <= len(content["vocab"]):
        raise ConvertError(
            f"{path} has {len(content['vocab'])} tokens besides special ones, of which its config keeps {kept}, "
            f"expected {NUM_BYTES} or more, and not more than there are: {_REMEDY}"
        )
    return TekkenFile(
        _pattern(path, config["pattern"]),
        _tokens(path, content["vocab"][:kept], ignored),
        _special(path, content.get("special_tokens"), config.get("version"), special_count, ignored),
    )


def _whole(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int:
        raise ConvertError(f"expected {TEKKEN_CONFIG.name}.{key} of {path} to be a whole number, found {shown(value)}")
    return value


def _pattern(path: Path, pattern: str) -> str:
    if not _ALIKE.fullmatch(pattern):
        raise ConvertError(
            f"{path} cuts texts by the pattern {shown(pattern)}, which may mean something else to the tokenizers "
            "library than to tiktoken, and is not supported: put a tokenizer.json beside it"
        )
    return pattern


def _tokens(path: Path, entries: list[dict[str, Any]], ignored: IgnoredKeys) -> list[bytes]:
    _check_keys(path, entries, TEKKEN_TOKEN, ignored)
    tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in entries]
    if [entry["rank"] for entry in entries] != list(range(len(entries))):
        raise ConvertError(f"expected tokens of {path} in the order of their ranks, from 0: {_REMEDY}")
    if tokens[:NUM_BYTES] != [bytes([byte]) for byte in range(NUM_BYTES)]:
        raise ConvertError(f"expected the first {NUM_BYTES} tokens of {path} to be the single bytes: {_REMEDY}")
    return tokens


def _special(
    path: Path, entries: list[dict[str, Any]] | None, version: str | None, count: int, ignored: IgnoredKeys
) -> list[str]:
    """The special tokens by number: those that the file names, and placeholders up to their ``count``."""
    if entries is None and version not in _UNLISTED_VERSIONS:
        raise ConvertError(f"expected special_tokens in {path} of version {shown(version)}, found none: {_REMEDY}")
    named = list(_FIRST_SPECIAL)
    if entries is not None:
        _check_keys(path, entries, TEKKEN_SPECIAL_TOKEN, ignored)
        ordered = sorted(entries, key=lambda entry: entry["rank"])
        if [entry["rank"] for entry in ordered] != list(range(len(entries))):
            raise ConvertError(f"expected special tokens of {path} to have the ranks from 0 on: {_REMEDY}")
        named = [entry["token_str"] for entry in ordered]
    if len(named) > count or not all(named):
        raise ConvertError(f"{path} has {len(named)} special tokens, expected at most {count}, none empty: {_REMEDY}")
    return [*named, *(f"<SPECIAL_{number}>" for number in range(len(named), count))]


def _check_keys(path: Path, entries: list[dict[str, Any]], table: KeyTable, ignored: IgnoredKeys) -> None:
    """Raise ConvertError for an unknown key that has a value in one of ``entries``."""
    values = {key: value for entry in entries for key, value in entry.items() if value}
    table.check(path, ignored.without(values, table.name))
