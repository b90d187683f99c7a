"""Reads ``tokenizer.model``, the file that SentencePiece trains: a protocol buffer whose schema is in that package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.vocabulary import MAX_TOKENIZER_BYTES
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import Vocabulary
from trtllm_lite.errors import ConvertError

_KINDS = ("UNIGRAM", "BPE")


@dataclass(frozen=True)
class SentencePieceFile:
    """The content of a file; ``bos``, ``eos`` and ``unknown`` are tokens, None if the model has none."""

    vocabulary: Vocabulary
    bos: str | None
    eos: str | None
    unknown: str | None


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """The content of ``path``; ConvertError if it is damaged or a model of another kind than BPE and Unigram."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(read_foreign(path, MAX_TOKENIZER_BYTES))
    except DecodeError as error:
        raise ConvertError(f"expected {path} to be a SentencePiece model, but: {error}: download it again") from error
    if not model.pieces:
        raise ConvertError(f"expected {path} to be a SentencePiece model, found one without pieces: download it again")
    if not all(isinstance(piece.piece, str) for piece in model.pieces):  # protobuf returns invalid UTF-8 as bytes
        raise ConvertError(f"expected the pieces of {path} to be UTF-8, found other bytes: download it again")
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    kind = trainer.ModelType.Name(trainer.model_type)
    odd = [kind] if kind not in _KINDS else []
    odd += ["treat_whitespace_as_suffix"] if trainer.treat_whitespace_as_suffix else []
    odd += ["spaces that are not escaped"] if not normalizer.escape_whitespaces else []
    if odd:
        raise ConvertError(
            f"{path} is a SentencePiece model with {', '.join(odd)}, expected {' or '.join(_KINDS)} with escaped "
            "spaces before words: create tokenizer.json with `AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)` "
            "of transformers"
        )
    vocabulary = Vocabulary(
        pieces=[piece.piece for piece in model.pieces],
        scores=[piece.score for piece in model.pieces],
        types=[piece.type for piece in model.pieces],
        unigram=kind == "UNIGRAM",
        byte_fallback=trainer.byte_fallback,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
        charsmap=normalizer.precompiled_charsmap,
    )
    bos, eos, unknown = (_piece(model, number) for number in (trainer.bos_id, trainer.eos_id, trainer.unk_id))
    return SentencePieceFile(vocabulary, bos, eos, unknown)


def _piece(model: Any, number: int) -> str | None:
    """Piece ``number`` of the model; None for -1 and other numbers outside the vocabulary."""
    return model.pieces[number].piece if 0 <= number < len(model.pieces) else None
