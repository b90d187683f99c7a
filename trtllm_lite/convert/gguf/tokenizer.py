"""Builds tokenizer.json from the vocabulary that a GGUF file carries (keys ``tokenizer.ggml.*``)."""

from typing import Any

from tokenizers import AddedToken, Tokenizer

from trtllm_lite.common.library_errors import LibraryErrors
from trtllm_lite.convert.gguf.encoder import WORD_PIECES, word_pieces
from trtllm_lite.convert.gguf.pre_tokenizers import PRE_TOKENIZERS
from trtllm_lite.convert.tokenizers.chat_templates import as_setting
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import (
    BYTE,
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    add_around,
    build_tokenizer,
)
from trtllm_lite.errors import ConvertError, shown

_TEMPLATE = "tokenizer.chat_template"
_UNKNOWN_PRE = "default"
_TOKEN_STRINGS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def read_tokenizer(metadata: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the text of tokenizer.json, and the chat template with the token strings; None and {} without a tokenizer.

    Raises ConvertError for unknown kinds.
    """
    prefix = "tokenizer.ggml."
    ggml = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    builders = {
        **{"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe, "gemma4": _listed_merges, "t5": _unigram},
        WORD_PIECES: word_pieces,
    }
    kind = ggml.get("model", "no_vocab")
    if kind == "no_vocab":
        return None, {}
    if not isinstance(kind, str) or kind not in builders:
        raise ConvertError(f"expected a GGUF tokenizer of model {' or '.join(builders)}, found {shown(kind)}")
    with LibraryErrors(ConvertError, "the GGUF file's tokenizer is inconsistent", "download it again"):
        tokenizer = builders[kind](ggml)
        if kind != WORD_PIECES:
            add_around(tokenizer, _around(ggml, "bos"), _around(ggml, "eos"))
        strings = {ours: ggml.get(f"{theirs}_token_id") for ours, theirs in _TOKEN_STRINGS.items()}
        config = {name: ggml["tokens"][number] for name, number in strings.items() if number is not None}
        text = tokenizer.to_str()
        Tokenizer.from_str(text)
    template = as_setting(_chat_templates(metadata))
    return text, config if template is None else config | {"chat_template": template}


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name: ``tokenizer.chat_template`` is the default, ``tokenizer.chat_template.NAME`` another."""
    found = {key.removeprefix(_TEMPLATE): value for key, value in metadata.items() if key.startswith(_TEMPLATE)}
    names = {"": "default"} | {key: key[1:] for key in found if key.startswith(".")}
    return {names[key]: value for key, value in found.items() if key in names and isinstance(value, str)}


def _byte_level_bpe(ggml: dict[str, Any]) -> Tokenizer:
    """A tokenizer of GPT-2's kind: bytes spelled as printable characters, merges listed in order."""
    name = ggml.get("pre", _UNKNOWN_PRE)
    if name == _UNKNOWN_PRE:
        raise ConvertError(
            f"the GGUF file does not say how its tokenizer cuts texts (tokenizer.ggml.pre is {_UNKNOWN_PRE} or absent, "
            "as in files that old versions of llama.cpp's converter wrote): take a newer file of the model, or write "
            "the name of its pre-tokenizer into this one (`gguf-new-metadata --pre-tokenizer NAME IN OUT` of the "
            f"package gguf, NAME one of {', '.join(PRE_TOKENIZERS)}), or convert from the Hugging Face directory"
        )
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise ConvertError(
            f"expected tokenizer.ggml.pre to be one of {', '.join(PRE_TOKENIZERS)}, found {shown(name)}, which is not "
            "supported: convert from the Hugging Face directory instead, which has a tokenizer.json"
        )
    pre = PRE_TOKENIZERS[name]
    vocab = {token: number for number, token in enumerate(ggml["tokens"])}
    tokenizer = pre.tokenizer(vocab, [tuple(merge.split(" ")) for merge in ggml["merges"]])
    ggml.setdefault("add_bos_token", pre.adds_bos)
    _add_special_tokens(tokenizer, ggml, pre.mask)
    return tokenizer


def _sentencepiece_bpe(ggml: dict[str, Any]) -> Tokenizer:
    """A tokenizer of SentencePiece's BPE kind, described by llama.cpp's keys."""
    ggml.setdefault("add_bos_token", True)
    prefix = bool(ggml.get("add_space_prefix", True))
    return build_tokenizer(Vocabulary(ggml["tokens"], ggml["scores"], ggml["token_type"], add_dummy_prefix=prefix))


def _listed_merges(ggml: dict[str, Any]) -> Tokenizer:
    """A tokenizer of SentencePiece's BPE kind whose merges are listed in order."""
    merges = [(left, right) for left, right in (merge.split(" ") for merge in ggml["merges"])]
    types, prefix = ggml["token_type"], bool(ggml.get("add_space_prefix", False))
    return build_tokenizer(
        Vocabulary(ggml["tokens"], [0.0] * len(types), types, add_dummy_prefix=prefix, merges=merges)
    )


def _unigram(ggml: dict[str, Any]) -> Tokenizer:
    """A tokenizer of SentencePiece's Unigram kind, as in T5 and XLM-R; missing entries get llama.cpp's defaults."""
    ggml.setdefault("eos_token_id", 1)
    ggml.setdefault("add_eos_token", True)
    types = ggml["token_type"]
    return build_tokenizer(
        Vocabulary(
            pieces=ggml["tokens"],
            scores=ggml["scores"],
            types=types,
            unigram=True,
            byte_fallback=BYTE in types,
            add_dummy_prefix=bool(ggml.get("add_space_prefix", False)),
            remove_extra_whitespaces=bool(ggml.get("remove_extra_whitespaces", False)),
            charsmap=bytes(value & 0xFF for value in ggml.get("precompiled_charsmap", ())),  # some are signed
        )
    )


def _add_special_tokens(tokenizer: Tokenizer, ggml: dict[str, Any], mask: str | None) -> None:
    """Add the tokens that are matched whole; ``mask`` is matched first, as ModernBERT's takes the spaces before it."""
    typed = list(zip(ggml["tokens"], ggml.get("token_type", ()), strict=False))
    special = [
        AddedToken(token, normalized=False, special=True, lstrip=token == mask)
        for token, kind in typed
        if kind in (UNKNOWN, CONTROL)
    ]
    tokenizer.add_special_tokens(special)
    user_defined = [token for token, kind in typed if kind == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=mask is not None) for token in user_defined])


def _around(ggml: dict[str, Any], key: str) -> str | None:
    """The BOS or EOS token (``key`` bos or eos) if every text gets it, else None."""
    number = ggml.get(f"{key}_token_id")
    return ggml["tokens"][number] if ggml.get(f"add_{key}_token") and number is not None else None
