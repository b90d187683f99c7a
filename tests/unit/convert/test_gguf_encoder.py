"""GGUF files of encoders: tensors, pooling and word pieces are restored to those of Hugging Face."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel, RobertaTokenizer, XLMRobertaTokenizer

from tests.encoders import expected_rows
from tests.gguf_writer import dequantized, write_gguf
from tests.models import save_model, tiny_model
from tests.real_models import CACHE, FILES
from tests.tolerances import assert_close
from trtllm_lite import LLM
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.convert.gguf.tokenizer import read_tokenizer
from trtllm_lite.errors import ConvertError

_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "fox", "jump", "##ed", "##s", "un", "##fox", ".", "##]", "cafe"]
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)


def _vocabulary(pieces: list[str], size: int) -> dict[str, Any]:
    """Word pieces in the form of llama.cpp's converter, padded with unused ones up to ``size``."""
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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty engine cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


TEXTS = ["The FOX jumped.", "unfox  jumps", "café foxes", "fox]", "the [SEP] fox", ""]


@pytest.mark.parametrize("is_new", [False, True])
def test_word_pieces(is_new: bool, tmp_path: Path) -> None:
    """Newer files name the tokens at the beginning and end of a text by other keys."""
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


def test_tensors_and_embeddings_of_bert(tmp_path: Path) -> None:
    model = tiny_model("bert")
    path = write_gguf(model, tmp_path / "m.gguf", metadata=_vocabulary(_PIECES, model.config.vocab_size))
    source = open_gguf(path)
    save_model(model, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    expected = {f"bert.{name}": tensor for name, tensor in stored.items() if not name.startswith("pooler.")}
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(source.read(name), tensor.numpy(), err_msg=name)
    _assert_embeds_as(model, path, {"the fox": [2, 4, 5, 3]})


def _assert_embeds_as(model: PreTrainedModel, path: Path, texts: dict[str, list[int]]) -> None:
    """Compare tensors, config and normalised embeddings with CLS pooling; ``texts`` are given with their token ids."""
    ids = [[5, 6, 7, 200], [9], [30] * 40]
    limits = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 64}
    with LLM(path, dtype="float32", **limits) as llm:
        rows = np.array([*llm.embed(ids), *llm.embed(list(texts))], np.float32)
    assert_close(rows, expected_rows(model, [*ids, *texts.values()], first=True, normalize=True), what="embeddings")


def test_word_pieces_around_embeddings_of_xlm_r(sentencepiece_model: ModelProto, tmp_path: Path) -> None:
    """A BERT that lacks the unused positions, with a Unigram vocabulary."""
    metadata = _fairseq_vocabulary(sentencepiece_model)
    model = tiny_model("roberta", vocab_size=len(metadata["tokenizer.ggml.tokens"]), type_vocab_size=1, pad_token_id=1)
    path = write_gguf(model, tmp_path / "m.gguf", metadata=metadata)
    source = open_gguf(path)
    assert source.config["max_position_embeddings"] == 129
    text = "import numpy as np"
    ids = _fairseq_ids(SentencePieceProcessor(model_proto=sentencepiece_model.SerializeToString()), text)
    _assert_embeds_as(model, path, {text: ids})


def test_embeddings_of_modern_bert(tmp_path: Path) -> None:
    """The file is quantized, like most such files."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 5}
    model = tiny_model("modernbert", norm_bias=False, hidden_activation="silu", pad_token_id=1, **shape)
    kinds = {"token_embd": "Q8_0", "attn_qkv": "Q8_0", "attn_output": "Q4_0", "ffn_up": "Q5_1", "ffn_down": "F16"}
    special = ["[CLS]", "[PAD]", "[SEP]", "[MASK]"]
    metadata = _byte_level("modern-bert", special, model.config.vocab_size)
    extra = {"cls.weight": np.zeros((64, 64), np.float32), "cls.norm.weight": np.ones(64, np.float32)}
    path = write_gguf(model, tmp_path / "m.gguf", kinds, metadata, extra)
    tokens = metadata["tokenizer.ggml.tokens"]
    _assert_embeds_as(dequantized(model, kinds), path, {"he the": [0, *map(tokens.index, ("he", "Ġthe")), 2]})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.sliding_window", None, "local_attention: expected an integer in 2"),
        ("attention.causal", True, "is_decoder: expected False, found True"),
        ("hidden_activation", "reglu", "hidden_activation: expected one of silu"),
        ("embedding_length_out", 128, "modern-bert.embedding_length_out: 128 is not mapped"),
    ],
)
def test_what_modern_bert_does_not_do_is_an_error(key: str, value: Any, message: str, tmp_path: Path) -> None:
    model = tiny_model("modernbert", norm_bias=False)
    metadata = {"tokenizer.ggml.pre": "modern-bert", f"modern-bert.{key}": value}
    path = write_gguf(model, tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(path), tmp_path / "checkpoint")


def test_norms_of_old_and_new_files(tmp_path: Path) -> None:
    """The first ModernBERT files give one epsilon under two keys; other files give it under either key."""
    model = tiny_model("modernbert", norm_bias=False, norm_eps=0.25)
    names = [f"modern-bert.attention.layer_norm_{kind}epsilon" for kind in ("", "rms_")]
    for number, missing in enumerate(names):
        metadata = {"tokenizer.ggml.pre": "modern-bert", missing: None}
        path = write_gguf(model, tmp_path / f"{number}.gguf", metadata=metadata)
        assert open_gguf(path).config["norm_eps"] == 0.25


def _byte_level(pre: str, special: list[str], size: int) -> dict[str, Any]:
    """A byte-level vocabulary that begins with the begin, padding, end and mask tokens."""
    normal = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "Ġt", "Ġthe", "Ã©", "  "]
    unused = [f"[PAD{number}]" for number in range(size - len(special) - len(normal))]
    types = [_CONTROL] * len(special) + [_NORMAL] * (len(normal) - 1) + [_USER_DEFINED] + [_UNUSED] * len(unused)
    ids = {"bos": 0, "eos": 2, "padding": 1, "seperator": 2, "mask": 3}
    return {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*special, *normal, *unused],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["h e", "Ġ t", "Ġt he", "Ã ©"],
        "tokenizer.chat_template": None,
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()},
        **{f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")},
    }


@pytest.mark.parametrize("pre", ["modern-bert", "roberta-bpe"])
def test_byte_level_vocabularies(pre: str) -> None:
    """ModernBERT's tokenizer.json uses NFC and GPT-2's pre-tokenizer; transformers makes RoBERTa's tokenizer."""
    special = {"modern-bert": ["[CLS]", "[PAD]", "[SEP]", "[MASK]"], "roberta-bpe": ["<s>", "<pad>", "</s>", "<mask>"]}
    metadata = _byte_level(pre, special[pre], 397)
    tokenizer = Tokenizer.from_str(str(read_tokenizer({"tokenizer.ggml.model": "gpt2", **metadata})[0]))
    vocabulary = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split()) for merge in metadata["tokenizer.ggml.merges"]]
    if pre == "roberta-bpe":
        mask_token = AddedToken("<mask>", lstrip=True, special=True)  # as in tokenizer.json
        arguments = {"unk_token": mask_token, "mask_token": mask_token}
        reference = RobertaTokenizer(vocab=vocabulary, merges=merges, **arguments).backend_tokenizer
    else:
        reference = Tokenizer(models.BPE(vocabulary, merges))
        reference.normalizer = normalizers.NFC()
        reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        reference.add_special_tokens([*special[pre][:3], AddedToken("[MASK]", lstrip=True, special=True)])
        around = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
        reference.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    reference.add_tokens(["  "])
    mask, end = special[pre][3], special[pre][2]
    texts = ["", "the he", f"the  {mask} he{mask}the", f"he{end} the", "cafe\u0301 é", "a   b    c"]
    for text in texts:
        assert tokenizer.encode(text).ids == reference.encode(text).ids, text


# A part of the replacements of XLM-R's table, nmt_nfkc, which gguf takes seconds to read in whole.
_REPLACED = {"\t": " ", "\n": " ", "\u3000": " ", "ﬁ": "fi", "①": "1", "½": "1\u20442", "e\u0301": "é", "\uff21": "A"}


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> ModelProto:
    """A SentencePiece model of XLM-R's kind."""
    rules = tmp_path_factory.mktemp("rules") / "rules.tsv"
    points = [[" ".join(f"{ord(letter):X}" for letter in text) for text in rule] for rule in _REPLACED.items()]
    rules.write_text("".join(f"{source}\t{target}\n" for source, target in points))
    lines = [line for path in sorted(Path(__file__).parent.glob("*.py")) for line in path.read_text().splitlines()]
    lines = lines[:900] + ["naïve café Ångström 你好，世界 こんにちは ﬁ ① ½"] * 30
    model = io.BytesIO()
    options = {"model_type": "unigram", "vocab_size": 600, "character_coverage": 0.9995, "num_threads": 1}
    options |= {"normalization_rule_tsv": str(rules)}
    SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options)
    return ModelProto.FromString(model.getvalue())


def _fairseq_vocabulary(model: ModelProto) -> dict[str, Any]:
    """XLM-R's vocabulary in the form of llama.cpp's converter: one token more than SentencePiece's, and no <mask>."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece.piece for piece in model.pieces[3:])]
    mask = len(tokens)
    ids = {"bos": 0, "eos": 2, "unknown": 3, "seperator": 2, "padding": 1, "mask": mask}
    return {
        **dict.fromkeys(("tokenizer.ggml.merges", "tokenizer.chat_template")),
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*tokens, f"[PAD{mask - 1}]"],
        "tokenizer.ggml.scores": [0.0] * 4 + [piece.score for piece in model.pieces[3:]] + [-10000.0],
        "tokenizer.ggml.token_type": [_CONTROL] * 3 + [_UNKNOWN] + [_NORMAL] * (mask - 4) + [_UNUSED],
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.add_space_prefix": model.normalizer_spec.add_dummy_prefix,
        "tokenizer.ggml.remove_extra_whitespaces": model.normalizer_spec.remove_extra_whitespaces,
        "tokenizer.ggml.precompiled_charsmap": model.normalizer_spec.precompiled_charsmap,
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()},
        **{f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos")},
    }


def _fairseq_ids(processor: SentencePieceProcessor, text: str) -> list[int]:
    return [0, *(number + 1 if number else 3 for number in processor.encode(text)), 2]


def test_vocabulary_of_xlm_r(sentencepiece_model: ModelProto, tmp_path: Path) -> None:
    """Ids are those of SentencePiece and of transformers; no text produces the token that replaces <mask>."""
    metadata = _fairseq_vocabulary(sentencepiece_model)
    size = len(metadata["tokenizer.ggml.tokens"])
    path = write_gguf(tiny_model("roberta", vocab_size=size, type_vocab_size=1), tmp_path / "m.gguf", metadata=metadata)
    source = open_gguf(path)
    tokenizer = Tokenizer.from_str(str(source.tokenizer))
    assert {name: source.tokenizer_config[f"{name}_token"] for name in ("bos", "eos", "pad", "unk")} == {
        **{"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    }
    processor = SentencePieceProcessor(model_proto=sentencepiece_model.SerializeToString())
    scored = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], strict=True)
    charsmap = metadata["tokenizer.ggml.precompiled_charsmap"]
    theirs = XLMRobertaTokenizer(vocab=[*list(scored)[:-1], ("<mask>", 0.0)], _spm_precompiled_charsmap=charsmap)
    unused = metadata["tokenizer.ggml.tokens"][-1]
    texts = ["", " ", "import numpy as np", "  two\t spaces\n", "\uff21ll\u3000ﬁ ① ½ é e\u0301", "你好，世界 🙂🙂 мир"]
    for text in (*texts, unused):
        ids = tokenizer.encode(text).ids
        assert ids == _fairseq_ids(processor, text), text
        assert ids == theirs(text).input_ids, text
    assert size - 1 not in ids
    assert tokenizer.encode("np</s>np").tokens.count("</s>") == 2


def test_signed_bytes_and_files_that_say_little(sentencepiece_model: ModelProto) -> None:
    """The table of replacements may have signed bytes; without keys for </s>, its id is 1, and it ends every text."""
    metadata = _fairseq_vocabulary(sentencepiece_model)
    signed = np.frombuffer(metadata["tokenizer.ggml.precompiled_charsmap"], np.int8).tolist()
    tokens = ["<pad>", "</s>", "<unk>", "▁fi", "▁", "x"]
    ggml = {"model": "t5", "tokens": tokens, "scores": [0.0] * 6, "token_type": [3, 3, 2, 1, 1, 1]}
    changes = {"precompiled_charsmap": signed, "add_space_prefix": True}
    text = read_tokenizer({f"tokenizer.ggml.{key}": value for key, value in {**ggml, **changes}.items()})[0]
    assert Tokenizer.from_str(str(text)).encode("ﬁx").tokens == ["▁fi", "x", "</s>"]


def test_a_damaged_table_of_replacements_is_an_error(sentencepiece_model: ModelProto) -> None:
    metadata = {**_fairseq_vocabulary(sentencepiece_model), "tokenizer.ggml.precompiled_charsmap": b"\xff\xff\xff\x7fx"}
    with pytest.raises(ConvertError, match="the GGUF file's tokenizer is inconsistent"):
        read_tokenizer(metadata)


@pytest.mark.parametrize("kind", [0, 3, 4])
def test_other_poolings_are_refused(kind: int, tmp_path: Path) -> None:
    model = tiny_model("bert")
    metadata = {**_vocabulary(_PIECES, model.config.vocab_size), "bert.pooling_type": kind}
    with pytest.raises(ConvertError, match=f"pooling_type {kind}: expected 1"):
        convert_checkpoint(str(write_gguf(model, tmp_path / "m.gguf", metadata=metadata)), tmp_path / "checkpoint")
