"""Reads vocab.json with merges.txt, a byte-level BPE; the class of the tokenizer decides how texts are cut.

Source: the classes of transformers, whose defaults count for special tokens that tokenizer_config.json does not name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, processors

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_TOKENIZER_BYTES
from trtllm_lite.convert.gguf.pre_tokenizers import PRE_TOKENIZERS
from trtllm_lite.convert.tokenizers.settings import TokenizerSettings
from trtllm_lite.errors import ConvertError, shown

MERGED_FILES = ("vocab.json", "merges.txt")


@dataclass(frozen=True)
class _Class:
    """How a class cuts texts, the name of llama.cpp for it, and its special tokens by role (without ``_token``).

    With ``surrounds`` texts are put between the tokens of the roles cls and sep.
    """

    cuts: str
    named: Mapping[str, str]
    surrounds: bool = False


_END = "<|endoftext|>"
_ENDS = {"bos": _END, "eos": _END, "unk": _END}
_QWEN_ENDS = {"eos": _END, "unk": _END, "pad": _END}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
_COHERE = {
    **{"bos": "<BOS_TOKEN>", "eos": "<|END_OF_TURN_TOKEN|>", "unk": "<UNK>", "pad": "<PAD>"},
    **{"cls": "<CLS>", "sep": "<SEP>", "mask": "<MASK_TOKEN>"},
}
# Each class has a second one, …Fast.
_CLASSES = {
    "GPT2Tokenizer": _Class("gpt-2", _ENDS),
    "GPTNeoXTokenizer": _Class("olmo", {**_ENDS, "pad": "<|padding|>"}),
    "CohereTokenizer": _Class("command-r", _COHERE),
    "Qwen2Tokenizer": _Class("qwen2", _QWEN_ENDS),
    "Qwen3_5Tokenizer": _Class("qwen35", _QWEN_ENDS),
    "RobertaTokenizer": _Class("gpt-2", _ROBERTA, surrounds=True),
}


def read_merged(path: Path, settings: TokenizerSettings, save: str) -> tuple[Tokenizer, TokenizerSettings]:
    """The tokenizer of the directory ``path``, without added tokens, and the settings with defaults of its class.

    ``save`` is the remedy if the class is not known, a ConvertError. Damaged files raise ValueError and the like.
    """
    kind = settings.raw.get("tokenizer_class")
    found = _CLASSES.get(kind.removesuffix("Fast")) if isinstance(kind, str) else None
    if found is None:
        raise ConvertError(
            f"{path} has its tokenizer in {' and '.join(MERGED_FILES)} alone, which do not say how texts are cut, and "
            f"the tokenizer_class {shown(kind)}, expected one of {', '.join(_CLASSES)}: create tokenizer.json with "
            f"{save}"
        )
    vocab, lines = (read_foreign(path / name, MAX_TOKENIZER_BYTES).decode() for name in MERGED_FILES)
    pairs = [line.split(" ") for line in lines.split("\n") if line and not line.startswith("#version")]
    tokenizer = PRE_TOKENIZERS[found.cuts].tokenizer(json.loads(vocab), [(left, right) for left, right in pairs])
    settings = _with_defaults(settings, {f"{role}_token": text for role, text in found.named.items()})
    if found.surrounds:
        tokenizer.add_special_tokens([settings.named[role] for role in ("cls_token", "sep_token")])
        sep, cls = (_numbered(tokenizer, settings, role) for role in ("sep_token", "cls_token"))
        tokenizer.post_processor = processors.RobertaProcessing(sep, cls)
    return tokenizer, settings


def _with_defaults(settings: TokenizerSettings, defaults: Mapping[str, str]) -> TokenizerSettings:
    """``settings`` with the tokens ``defaults`` in the roles of which tokenizer_config.json says nothing."""
    missing = {
        role: AddedToken(text, normalized=False, special=True)
        for role, text in defaults.items()
        if role not in settings.raw
    }
    return replace(settings, named=missing | settings.named)


def _numbered(tokenizer: Tokenizer, settings: TokenizerSettings, role: str) -> tuple[str, int]:
    text = settings.named[role].content
    number = tokenizer.token_to_id(text)
    assert number is not None  # it was added
    return text, number
