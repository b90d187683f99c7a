"""GGUF files of encoders: tensors, pooling and word pieces come back as Hugging Face has them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.encoders import expected_rows
from tests.gguf_writer import write_gguf
from tests.models import save_model, tiny_model
from tests.real_models import CACHE, FILES
from tests.tolerances import assert_close
from trtllm_lite import LLM
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.gguf_file import open_gguf
from trtllm_lite.errors import ConvertError

_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "jump", "##ed", "##s", "un", "##fox", ".", "##]", "cafe"]
_CONTROL, _NORMAL = 3, 1


def _vocabulary(pieces: list[str], size: int) -> dict[str, Any]:
    """As llama.cpp's converter writes word pieces, with unused ones up to ``size``."""
    spelled = [
        piece if piece.startswith("[") and piece.endswith("]") else piece[2:] if piece.startswith("##") else f"▁{piece}"
        for piece in pieces
    ]
    types = [_CONTROL if piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") else _NORMAL for piece in pieces]
    unused = [f"[unused{number}]" for number in range(size - len(pieces))]
    around = {"cls": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]"}
    ids = {name: pieces.index(token) for name, token in around.items()}
    return {
        **dict.fromkeys(("tokenizer.ggml.merges", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template")),
        "tokenizer.ggml.bos_token_id": None,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": spelled + unused,
        "tokenizer.ggml.token_type": types + [_NORMAL] * len(unused),
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()},
    }


def _reference(pieces: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, pieces.index(name)) for name in ("[CLS]", "[SEP]")]
    )
    return tokenizer


TEXTS = ["The FOX jumped.", "unfox  jumps", "café foxes", "fox]", "the [SEP] fox", ""]


@pytest.mark.parametrize("is_new", [False, True])
def test_word_pieces(is_new: bool, tmp_path: Path) -> None:
    """Newer files say where a text begins and ends by other names."""
    model = tiny_model("bert")
    metadata = _vocabulary(_PIECES, model.config.vocab_size)
    if is_new:
        for old, new in (("cls", "bos"), ("seperator", "eos")):
            metadata[f"tokenizer.ggml.{new}_token_id"] = metadata.pop(f"tokenizer.ggml.{old}_token_id")
    source = open_gguf(write_gguf(model, tmp_path / "m.gguf", metadata=metadata))
    assert isinstance(source.tokenizer, str)
    tokenizer, reference = Tokenizer.from_str(source.tokenizer), _reference(_PIECES)
    reference.add_special_tokens(["[SEP]"])
    for text in TEXTS:
        assert tokenizer.encode(text).ids == reference.encode(text).ids, text


def test_word_pieces_of_a_real_vocabulary(tmp_path: Path) -> None:
    directory = CACHE / FILES["all-minilm-l6-v2"]
    if not directory.is_dir():
        pytest.skip(f"{directory.name} is not there: bash scripts/fetch_model.sh all-minilm-l6-v2")
    real = Tokenizer.from_file(str(directory / "tokenizer.json"))
    real.no_truncation()
    real.no_padding()
    ids = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = sorted(ids, key=ids.get)
    model = tiny_model("bert", vocab_size=len(pieces))
    source = open_gguf(write_gguf(model, tmp_path / "m.gguf", metadata=_vocabulary(pieces, len(pieces))))
    assert isinstance(source.tokenizer, str)
    tokenizer = Tokenizer.from_str(source.tokenizer)
    others = ("naïve café, déjà-vu!", "日本語 and 한국어", "x" * 120, "don't [MASK] ## 3.14")
    for text in ("A cat sits on the mat.", *others):
        assert tokenizer.encode(text).ids == real.encode(text).ids, text


def test_a_file_equals_transformers(tmp_path: Path) -> None:
    """Tensors, config and pooling: of the first token, normalised as llama.cpp does."""
    model = tiny_model("bert")
    path = write_gguf(model, tmp_path / "m.gguf", metadata=_vocabulary(_PIECES, model.config.vocab_size))
    source = open_gguf(path)
    save_model(model, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    expected = {name: tensor for name, tensor in stored.items() if not name.startswith("pooler.")}
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(source.read(name), tensor.numpy(), err_msg=name)
    texts = [[5, 6, 7, 200], [9], [30] * 40]
    limits = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 64}
    with LLM(path, dtype="float32", **limits) as llm:
        rows = np.array(llm.embed(texts), np.float32)
    assert_close(rows, expected_rows(model, texts, first=True, normalize=True), what="embeddings")


@pytest.mark.parametrize("kind", [0, 3, 4])
def test_other_poolings_are_refused(kind: int, tmp_path: Path) -> None:
    model = tiny_model("bert")
    metadata = {**_vocabulary(_PIECES, model.config.vocab_size), "bert.pooling_type": kind}
    with pytest.raises(ConvertError, match=f"pooling_type {kind}: expected 1"):
        convert_checkpoint(str(write_gguf(model, tmp_path / "m.gguf", metadata=metadata)), tmp_path / "checkpoint")
