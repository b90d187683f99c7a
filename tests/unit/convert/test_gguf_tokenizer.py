"""tokenizer.json built from a GGUF vocabulary gives the ids of independent implementations."""

import json
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import regex
from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, GemmaTokenizer, GPTNeoXTokenizer, Qwen3_5Tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from tests.nasty_texts import nasty_texts
from tests.references import reading_once
from trtllm_lite.convert.gguf.tokenizer import read_tokenizer

TEXTS = [
    "",
    "Hello, world!",
    "  two  spaces, a\ttab\n\n and\r\n lines   ",
    "I'll say it's DON'T we’re they'VE",
    "1 22 333 4444 55555 3.14159 1e-10 0x7F",
    "naïve café Ångström ÀÉÎ e\u0301 ﬁ",
    "你好，世界 こんにちは 안녕 مرحبا שלום Привет",
    "🙂👍🏽👨‍👩‍👧 ∑∞≠ ½ → \u200b\u00a0|",
    "def f(x: int) -> str:\n\treturn f'{x**2:>8}'  # comment\n\n\nclass A(B): pass",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|im_end|><|im_end|> <not_special>",
]


@pytest.fixture(scope="module")
def metadata(smollm2_gguf: Path) -> dict[str, Any]:
    """SmolLM2's metadata."""
    fields = gguf.GGUFReader(smollm2_gguf).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}


def test_smollm2_equals_transformers(metadata: dict[str, Any], smollm2_gguf: Path) -> None:
    text, config = read_tokenizer(metadata)
    ours = Tokenizer.from_str(text)
    with reading_once():
        theirs = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    for sample in TEXTS:
        ids = ours.encode(sample).ids
        # The file's pre-tokenizer is unknown to transformers: it splits at every Unicode numeral, not only at 0-9.
        if "½" not in sample:
            assert ids == theirs(sample).input_ids, sample
        assert ours.decode(ids, skip_special_tokens=False) == sample
    assert config["chat_template"] == theirs.chat_template
    assert [config[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token")] == [
        *("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    ]


def test_named_chat_templates_are_kept(metadata: dict[str, Any]) -> None:
    named = {"tokenizer.chat_template": "a", "tokenizer.chat_template.rag": "b", "tokenizer.chat_templates": ["rag"]}
    config = read_tokenizer({**metadata, **named})[1]
    assert config["chat_template"] == [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]


def test_smollm2_cuts_at_every_digit(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(read_tokenizer(metadata)[0])
    assert tokenizer.encode(" 123a45").tokens == ["Ġ", "1", "2", "3", "a", "4", "5"]


@pytest.mark.parametrize(
    "pre",
    [
        *("llama-bpe", "falcon3", "dbrx", "smaug-bpe", "qwen2", "deepseek-r1-qwen"),
        *("gpt-2", "gpt-4o", "llama4", "tekken"),
    ],
)
def test_other_byte_level_kinds_equal_transformers(pre: str, metadata: dict[str, Any]) -> None:
    """The same vocabulary is combined with the pre-tokenizers of other models."""
    ours = Tokenizer.from_str(
        read_tokenizer({**metadata, "tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False})[0]
    )
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    keys = ("model", "pre", "tokens", "token_type", "merges")
    fields = {names.get(key, key): metadata[f"tokenizer.ggml.{key}"] for key in keys} | {"pre_tokenizer_type": pre}
    theirs, _ = convert_gguf_tokenizer("llama", fields)
    for sample in TEXTS:
        if pre in ("qwen2", "deepseek-r1-qwen") and "e\u0301" in sample:
            continue  # Qwen's own tokenizer normalises to NFC, which transformers omits for GGUF files
        assert ours.encode(sample).ids == theirs.encode(sample, add_special_tokens=False).ids, sample


@pytest.mark.parametrize("pre", ["mpt", "olmo"])
def test_olmo_and_mpt_equal_gpt_neox_of_transformers(pre: str, metadata: dict[str, Any]) -> None:
    """OLMo and MPT use GPT-NeoX's pre-tokenizer; OLMo has other special tokens."""
    ours = Tokenizer.from_str(read_tokenizer({**metadata, "tokenizer.ggml.pre": pre})[0])
    vocab = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = GPTNeoXTokenizer(vocab=vocab, merges=merges)
    for sample in TEXTS[:-2]:  # texts without special tokens
        assert ours.encode(sample).ids == theirs(sample).input_ids, sample


def test_qwen35_equals_its_tokenizer_of_transformers(metadata: dict[str, Any]) -> None:
    ours = Tokenizer.from_str(read_tokenizer({**metadata, "tokenizer.ggml.pre": "qwen35"})[0])
    vocab = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = Qwen3_5Tokenizer(vocab=vocab, merges=merges)
    for sample in [*TEXTS[:-2], "हिन्दी में लिखा है", "x\u0301\u0302y \u0301!?\n 12\u0303"]:  # without special tokens
        assert ours.encode(sample).ids == theirs(sample).input_ids, sample


@pytest.mark.parametrize(
    ("pre", "other"),
    [
        *((pre, "smollm") for pre in ("starcoder", "refact", "exaone", "minerva-7b")),
        *((pre, "llama-bpe") for pre in ("midm-2.0", "lfm2", "falcon-h1", "pixtral")),
        *(("trillion", "gpt-2"), ("megrez", "qwen2")),
    ],
)
def test_llama_cpp_cuts_these_alike(pre: str, other: str, metadata: dict[str, Any]) -> None:
    first, second = (read_tokenizer({**metadata, "tokenizer.ggml.pre": name}) for name in (pre, other))
    assert first == second


def test_glm4_takes_words_whole(metadata: dict[str, Any]) -> None:
    """glm4 has the pre-tokenizer of chatglm-bpe, but looks a whole word up first."""
    names = ("chatglm-bpe", "glm4")
    models = [json.loads(read_tokenizer({**metadata, "tokenizer.ggml.pre": name})[0]) for name in names]
    assert [model["model"].pop("ignore_merges") for model in models] == [False, True]
    assert models[0] == models[1]


def test_deepseek_v3_equals_its_tokenizer() -> None:
    """The reference is the file that litellm ships."""
    path = Path(find_spec("litellm").origin).parent / "litellm_core_utils/tokenizers/deepseek_tokenizer.json"
    stored = json.loads(path.read_text())
    tokens = {number: token for token, number in stored["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in stored["added_tokens"]}
    count = max(*tokens, *special) + 1
    fields = {
        "model": "gpt2",
        "pre": "deepseek-v3",
        "tokens": [special.get(number, tokens.get(number, f"[PAD{number}]")) for number in range(count)],
        "token_type": [3 if number in special else 1 for number in range(count)],
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]],
    }
    ours = Tokenizer.from_str(read_tokenizer({f"tokenizer.ggml.{key}": value for key, value in fields.items()})[0])
    theirs = Tokenizer.from_file(str(path))
    for sample in [*TEXTS, "<｜User｜>1234 Hi!<｜Assistant｜>"]:
        assert ours.encode(sample).ids == theirs.encode(sample, add_special_tokens=False).ids, sample


def test_deepseek_llm_cuts_as_llama_cpp(metadata: dict[str, Any]) -> None:
    """The third pattern lists ASCII letters, so words are split at other letters; Georgian lowercase is not listed."""
    tokenizer = Tokenizer.from_str(read_tokenizer({**metadata, "tokenizer.ggml.pre": "deepseek-llm"})[0])
    for text, cuts in {
        "It's über 12½ km,\n ok": ["It", "'", "s", " ü", "ber", " ", "1", "2", "½", " km", ",", "\n", " ok"],
        "你好，世界 안녕 Привет": ["你好", "，", "世界", " ", "안녕", " Привет"],
        "«Ა» ა ʰ$  ": ["«", "Ა", "» ", "ა", " ʰ", "$", "  "],
    }.items():
        pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert [tokenizer.decoder.decode([piece]) for piece in pieces] == cuts


@pytest.mark.parametrize(
    ("pre", "text", "cuts"),
    [
        ("deepseek-coder", "x = f(12)\n你好 ok!!", ["x", " =", " f", "(", "1", "2", ")", "\n", "你好", " ok", "!!"]),
        ("seed-coder", "I'll do: 123!!\n\n  x", ["I", "'ll", " do", ":", " ", *"123", "!!", "\n\n", " ", " x"]),
        ("kimi-k2", "HelloWorld你好abc 1234!/\n", ["Hello", "World", "你好", "abc", " ", "123", "4", "!/\n"]),
        ("superbpe", "of the 1234567 and 12", ["of the ", "1", "234", "567", " and ", "12"]),
    ],
)
def test_models_cut_as_their_patterns_say(pre: str, text: str, cuts: list[str], metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(read_tokenizer({**metadata, "tokenizer.ggml.pre": pre})[0])
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [tokenizer.decoder.decode([piece]) for piece in pieces] == cuts


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_WORDS = rf"(?:{_SHORT})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]]"
_LOWER = r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Script=Han}]]"
# The patterns of llama.cpp (src/llama-vocab.cpp), for kimi-k2 those of unicode.cpp, which it names there.
_PATTERNS = {
    **dict.fromkeys(("trillion", "gpt-2"), (_GPT2,)),
    "minerva-7b": (r"\p{N}", _GPT2),
    "megrez": (rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",),
    "midm-2.0": (rf"{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",),
    "seed-coder": (rf"{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    "deepseek-coder": (
        *(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+"),
        *(r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"),
    ),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "kimi-k2": (
        rf"\p{{Script=Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?:{_SHORT})?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?:{_SHORT})?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
}


def _cut(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Cut by one pattern after the other: at both ends of what it finds, as llama.cpp does."""
    pieces = [text]
    for pattern in patterns:
        compiled = regex.compile(pattern, regex.V1)
        found = [{place for match in compiled.finditer(piece) for place in match.span()} for piece in pieces]
        ends = [sorted({0, len(piece), *places}) for piece, places in zip(pieces, found, strict=True)]
        pieces = [piece[a:b] for piece, at in zip(pieces, ends, strict=True) for a, b in pairwise(at)]
    return pieces


@pytest.mark.parametrize("pre", _PATTERNS)
def test_nasty_texts_are_cut_by_the_patterns_of_llama_cpp(pre: str, metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(read_tokenizer({**metadata, "tokenizer.ggml.pre": pre})[0])
    for text in nasty_texts(21):
        if "\u017f" in text:
            continue  # the models' own patterns take a long s for an s, llama.cpp's do not
        pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        spelled = [tokenizer.decoder.decode([piece]) for piece in pieces]
        assert spelled == _cut(text, _PATTERNS[pre]), text


def test_gemma4_equals_the_tokenizer_of_transformers() -> None:
    """Pieces with U+2581 for spaces, merges listed in order, bytes for what no piece spells."""
    trained = Tokenizer(BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool_call>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    limited = [text for text in TEXTS if text.isascii()]
    trained.train_from_iterator(limited * 2, BpeTrainer(vocab_size=420, special_tokens=pieces, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens, merges = sorted(model["vocab"], key=model["vocab"].get), [tuple(merge) for merge in model["merges"]]
    kinds = [3, 3, 3, 2, 3, 4, *[6] * 256]
    metadata = {
        **{"model": "gemma4", "tokens": tokens, "scores": [-1000.0] * len(tokens), "add_space_prefix": False},
        "token_type": kinds + [1] * (len(tokens) - len(kinds)),
        "merges": [" ".join(merge) for merge in merges],
        **{"bos_token_id": 2, "eos_token_id": 1, "add_bos_token": True},
    }
    text, _ = read_tokenizer({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    assert text is not None
    ours, theirs = Tokenizer.from_str(text), GemmaTokenizer(vocab=model["vocab"], merges=merges)
    theirs.add_tokens(["<|tool_call>"])
    assert len(merges) > 50
    for sample in [*TEXTS, "a<|tool_call>b  <mask> c"]:
        ids = ours.encode(sample).ids
        assert ids == [2, *theirs(sample, add_special_tokens=False).input_ids], sample
        assert ours.decode(ids[1:], skip_special_tokens=False) == sample


def test_bos_and_eos_are_added_when_the_model_wants_them(metadata: dict[str, Any]) -> None:
    both = {**metadata, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.from_str(read_tokenizer(both)[0])
    assert tokenizer.encode("Hi").tokens == ["<|im_start|>", "Hi", "<|im_end|>"]
    assert tokenizer.encode("Hi", add_special_tokens=False).tokens == ["Hi"]
    assert Tokenizer.from_str(read_tokenizer(metadata)[0]).encode("Hi").tokens == ["Hi"]


_PIECES = ["▁", "▁t", "h", "e", "t", "he", "▁the", "th", "▁th", "▁c", "a", "c", "ca", "▁ca", "s", "at", "cat", "▁▁"]


def _sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES, "<tool>"]
    normal = len(tokens) - len(_PIECES) - 1
    fields = {
        "model": "llama",
        "tokens": tokens,
        # Joined pieces that come earlier have better scores; some scores tie.
        "scores": [0.0] * normal + [-float(number // 2) for number in range(len(_PIECES))] + [0.0],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(_PIECES) + [4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


def _sentencepiece_reference(text: str, metadata: dict[str, Any]) -> list[str]:
    """SentencePiece BPE by definition: join the best-scoring neighbours (leftmost of equals) until none is a piece."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    score = {token: scores[number] for number, token in enumerate(tokens) if token in _PIECES}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score]
        if not joins:
            break
        at = min(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [piece for part in parts for piece in ([part] if part in score else _as_bytes(part))]


def _as_bytes(part: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in part.encode()]


@pytest.mark.parametrize(
    "text", ["the cat", "thecathe", " the  cats", "the\ncat", "catatat he the", "né 你", "   ", "tttheee"]
)
def test_sentencepiece_equals_its_definition(text: str) -> None:
    metadata = _sentencepiece_metadata()
    tokenizer = Tokenizer.from_str(read_tokenizer(metadata)[0])
    encoded = tokenizer.encode(text)
    assert encoded.tokens == ["<s>", *_sentencepiece_reference(text, metadata)]
    assert tokenizer.decode(encoded.ids) == text


def test_sentencepiece_special_tokens_and_prefix() -> None:
    tokenizer = Tokenizer.from_str(read_tokenizer(_sentencepiece_metadata(add_bos_token=False))[0])
    assert tokenizer.encode("cat</s><tool>").tokens == ["▁ca", "t", "</s>", "<tool>"]
    bare = Tokenizer.from_str(read_tokenizer(_sentencepiece_metadata(add_space_prefix=False))[0])
    assert bare.encode("the cat").tokens == ["<s>", "t", "he", "▁ca", "t"]
    assert bare.decode(bare.encode(" cat").ids) == " cat"
