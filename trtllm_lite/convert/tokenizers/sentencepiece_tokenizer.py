"""Builds a tokenizer of the tokenizers library from a SentencePiece vocabulary; it gives the same ids as SentencePiece.

SentencePiece (arXiv 1808.06226) spells spaces as U+2581 and knows two kinds of model: BPE, which joins the neighbours
whose union scores best, and Unigram, which takes the likeliest segmentation.

Unlike SentencePiece, the tokenizer finds control tokens in text, as chat templates need it. The text after a control
token is treated as a new text, whose first word gets a space in front. Llama 2 was trained on such prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from trtllm_lite.convert.tokenizers.merges import check_lengths, joins
from trtllm_lite.errors import ConvertError, shown

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens, in SentencePiece and in GGUF
SPACE = "\u2581"
_USER_DEFINED_SCORE = -0.1  # as in SentencePiece: above the score of any trained piece


@dataclass(frozen=True)
class Vocabulary:
    """A SentencePiece model: ``pieces`` with their ``scores`` and ``types`` by token id, and how text is normalised.

    ``charsmap`` is SentencePiece's compiled table of character replacements, empty for none. ``merges`` are those of
    BPE in their order; None means those that follow from scores.
    """

    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unigram: bool = False
    byte_fallback: bool = True
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = False
    charsmap: bytes = b""
    merges: Sequence[tuple[str, str]] | None = None

    def of_type(self, *types: int) -> list[str]:
        """Pieces of these types, in the order of their ids."""
        return [piece for piece, kind in zip(self.pieces, self.types, strict=True) if kind in types]

    @property
    def unknown_id(self) -> int:
        """The token for text that no piece spells."""
        return self.types.index(UNKNOWN) if UNKNOWN in self.types else 0


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer, without tokens around a text; ConvertError for what the tokenizers library cannot express."""
    _check(vocabulary)
    tokenizer = Tokenizer(_unigram(vocabulary) if vocabulary.unigram else _bpe(vocabulary))
    tokenizer.normalizer = normalizers.Sequence(_normalizers(vocabulary))
    tokenizer.decoder = decoders.Sequence(_decoders(vocabulary))
    special = vocabulary.of_type(UNKNOWN, CONTROL)
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in special])
    if not vocabulary.unigram:
        # SentencePiece finds user-defined pieces after normalisation. Here a dummy prefix would come before these
        # pieces.
        normalized = not vocabulary.add_dummy_prefix
        defined = vocabulary.of_type(USER_DEFINED)
        tokenizer.add_tokens([AddedToken(piece, normalized=normalized) for piece in defined])
    return tokenizer


def add_around(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Put these tokens, if any, before and after every text."""
    if bos is not None or eos is not None:
        start, end = ([] if token is None else [token] for token in (bos, eos))
        put_around(tokenizer, start, end)


def put_around(tokenizer: Tokenizer, start: list[str], end: list[str]) -> None:
    """Put these tokens before and after every text, and no other tokens."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *end, *start, "$B:1", *end],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*start, *end])],
    )


def _check(vocabulary: Vocabulary) -> None:
    check_lengths(vocabulary.pieces)
    if not all(map(math.isfinite, vocabulary.scores)):
        raise ConvertError("the tokenizer has a token whose score is not a number: check the file")
    spaced = [piece for piece in vocabulary.of_type(USER_DEFINED) if SPACE in piece]
    if vocabulary.add_dummy_prefix and spaced and not vocabulary.unigram:
        raise ConvertError(
            f"the tokenizer is a SentencePiece model with user-defined pieces with spaces ({shown(spaced[0])}) and a "
            "dummy prefix, which is not supported: create tokenizer.json with "
            "`AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` of transformers"
        )


def _bpe(vocabulary: Vocabulary) -> models.BPE:
    return models.BPE(
        vocab={piece: number for number, piece in enumerate(vocabulary.pieces)},
        merges=_merges_from_scores(vocabulary) if vocabulary.merges is None else list(vocabulary.merges),
        unk_token=vocabulary.pieces[vocabulary.unknown_id],
        fuse_unk=True,
        byte_fallback=vocabulary.byte_fallback,
    )


def _unigram(vocabulary: Vocabulary) -> models.Unigram:
    """A Unigram model; tokens that SentencePiece does not find by likelihood get the lowest score of all pieces.

    A text that spells such a token, such as ``<0x41>``, is therefore tokenized as that token. An unused piece gets a
    plain space in front, which normalisation removes from every text, so that no text spells it.
    """
    table = list(zip(vocabulary.pieces, vocabulary.scores, vocabulary.types, strict=True))
    lowest = min((score for _, score, kind in table if kind == NORMAL), default=0.0)
    scores = {USER_DEFINED: _USER_DEFINED_SCORE, **dict.fromkeys((UNKNOWN, CONTROL, UNUSED, BYTE), lowest)}
    pieces = [(f" {piece}" if kind == UNUSED else piece, scores.get(kind, score)) for piece, score, kind in table]
    return models.Unigram(pieces, vocabulary.unknown_id, vocabulary.byte_fallback)


def _merges_from_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first, so that ordinary BPE joins as SentencePiece does.

    Among several ways to make the same piece, a way whose right part can be the left part of another join comes first,
    because SentencePiece joins the left one of two overlapping pairs.
    """
    table = zip(vocabulary.pieces, vocabulary.scores, vocabulary.types, strict=True)
    normal = {piece: score for piece, score, kind in table if kind == NORMAL}
    ranks = {piece: (-score, number) for number, (piece, score) in enumerate(normal.items())}

    def order(join: tuple[str, str, str]) -> tuple[tuple[float, int], bool, int]:
        piece, left, right = join
        return ranks[piece], not piece.startswith(right), len(left)

    return [(left, right) for _, left, right in sorted(joins(normal), key=order)]


def _normalizers(vocabulary: Vocabulary) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if vocabulary.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _decoders(vocabulary: Vocabulary) -> list[decoders.Decoder]:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return [*steps, decoders.Strip(content=" ", left=1)] if vocabulary.add_dummy_prefix else steps
