"""Reads GGUF entries of encoders: the vocabulary of word pieces, and the pooling of a text.

llama.cpp puts U+2581 before pieces that begin a word, and drops BERT's ## before other pieces; it lower-cases texts,
removes accents, and normalises embeddings (src/llama-vocab.cpp, tools/server).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from trtllm_lite.convert.sources.source import Embeddings
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import CONTROL, SPACE, add_around
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.pooling import Pooling

WORD_PIECES = "bert"  # value of tokenizer.ggml.model
_POOLINGS = {1: False, 2: True}  # whether each pooling_type takes the first row; the default is the mean
_USUAL_IDS = {"cls": 101, "seperator": 102, "unknown": 100}  # llama.cpp's defaults
_LONGEST_WORD = 100  # characters; in BERT a longer word becomes the unknown token


def word_pieces(ggml: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a file with the metadata ``ggml`` under tokenizer.ggml, with the tokens around a text."""
    types = ggml.get("token_type") or [0] * len(ggml["tokens"])
    pieces = [_piece(token, kind) for token, kind in zip(ggml["tokens"], types, strict=True)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    first, last, unknown = (pieces[_token_id(ggml, name)] for name in ("cls", "seperator", "unknown"))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = [piece for piece, kind in zip(pieces, types, strict=True) if kind == CONTROL]
    whole = dict.fromkeys([first, last, unknown, *special])
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in whole])
    add_around(tokenizer, first, last)
    return tokenizer


def _piece(token: str, kind: int) -> str:
    """Return the piece as spelled in BERT's vocabulary."""
    if kind == CONTROL or (token.startswith("[") and token.endswith("]")):
        return token
    return token.removeprefix(SPACE) if token.startswith(SPACE) else f"##{token}"


def _token_id(ggml: dict[str, Any], name: str) -> int:
    """Return the id of a token by its name in newer files; other files have CLS as BOS, and SEP as EOS."""
    other = {"cls": "bos", "seperator": "eos"}.get(name, name)
    number = ggml.get(f"{name}_token_id", ggml.get(f"{other}_token_id", _USUAL_IDS[name]))
    if not isinstance(number, int) or not 0 <= number < len(ggml["tokens"]):
        raise ConvertError(f"expected {name}_token_id to be a token's number, found {shown(number)}")
    return number


def embeddings_of(metadata: dict[str, Any]) -> Callable[[], Embeddings]:
    """Return a reader of the pooling, which raises ConvertError if it is not supported."""
    return partial(_embeddings, metadata.get(f"{metadata['general.architecture']}.pooling_type", 1))


def _embeddings(kind: Any) -> Embeddings:
    if kind not in _POOLINGS:
        raise ConvertError(
            f"the GGUF file has pooling_type {shown(kind)}: expected 1 (the mean over tokens) or 2 (the first token)"
        )
    return Embeddings(Pooling(_POOLINGS[kind], normalize=True))
