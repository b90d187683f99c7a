"""tokenizer.model: a SentencePiece model changed field by field, made into a tokenizer."""

import random
from pathlib import Path

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer

from tests.fuzz.damage import damaged
from tests.fuzz.messages import mutate
from trtllm_lite.convert.tokenizers.files import read_tokenizer

COUNT = 300
_CONTROL, _BYTE = 3, 6


class Target:
    """A small model of BPE with all bytes, or of Unigram."""

    def __init__(self, scratch: Path) -> None:
        del scratch
        model = ModelProto()
        model.pieces.add(piece="<unk>", type=2)
        for piece in ("<s>", "</s>"):
            model.pieces.add(piece=piece, type=_CONTROL)
        for number in range(256):
            model.pieces.add(piece=f"<0x{number:02X}>", type=_BYTE)
        for number, piece in enumerate(("▁a", "ab", "▁ab", "a", "b", "▁", "é", "你")):
            model.pieces.add(piece=piece, score=-float(number))
        model.trainer_spec.byte_fallback = True
        model.normalizer_spec.add_dummy_prefix = True
        self._model = model

    def write(self, rng: random.Random, directory: Path) -> None:
        model = ModelProto()
        model.CopyFrom(self._model)
        model.trainer_spec.model_type = rng.choice((1, 2))
        for _ in range(rng.choice((1, 1, 2, 5))):
            mutate(rng, model)
        data = model.SerializeToString()
        if rng.random() < 0.2:
            data = damaged(rng, data)
        (directory / "tokenizer.model").write_bytes(data)

    def read(self, directory: Path) -> None:
        text, _ = read_tokenizer(directory)
        tokenizer = Tokenizer.from_str(str(text))
        for sample in ("", " ab abab é你 <s>", "\0\n" * 20):
            tokenizer.decode(tokenizer.encode(sample).ids)
