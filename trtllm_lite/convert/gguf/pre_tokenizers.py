"""Makes pre-tokenizers, which cut texts before merges apply, by ``tokenizer.ggml.pre`` of a GGUF file.

The names are those that llama.cpp gives to tokenizers of models (``src/llama-vocab.cpp``); the patterns are those of
the models' own tokenizer.json files.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Qwen2's, but marks belong to the letters before them.
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _O200K.replace(_SHORT, "").replace(r"\p{N}{1,3}", r"\p{N}")
# DeepSeek's list of cased letters, which leaves out these ranges.
_NOT_LISTED = (
    r"\x{560}-\x{588}\x{10C7}\x{10CD}\x{10D0}-\x{10FF}\x{1C80}-\x{1C8A}\x{2D00}-\x{2D2D}\x{A790}-\x{A7FA}"
    r"\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{10D50}-\x{10D85}\x{16E40}-\x{16EFF}\x{1D400}-\x{1D7CB}\x{1DF00}-\x{1DF2A}"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{_NOT_LISTED}]]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+",
    r"\p{N}",
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+", r"\p{N}")
_SEED_CODER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# GPT-4o's pattern, but Chinese characters stay together, and slashes do not end punctuation.
_KIMI_K2 = r"\p{Han}+|" + _O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
_SUPERBPE = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")  # digits in threes from the right; all other text stays whole


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _by_digit() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def split(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Cut by one pattern after the other."""

    def make() -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


@dataclass(frozen=True)
class PreTokenizer:
    """A pre-tokenizer, which ``make`` makes, and settings of tokenizers that have it.

    With ``composes`` texts are normalised to NFC first. With ``whole_words`` a word of the vocabulary is one token even
    if merges would not reach it. With ``adds_bos`` a BOS is added unless the file says otherwise. ``mask`` is the token
    that includes the spaces before it, if any.
    """

    make: Callable[[], pre_tokenizers.PreTokenizer]
    composes: bool = False
    whole_words: bool = False
    adds_bos: bool = False
    mask: str | None = None

    def tokenizer(self, vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
        """A byte-level BPE (as GPT-2's: bytes spelled as printable characters) over words that are cut in this way."""
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=self.whole_words))
        if self.composes:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = self.make()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


_LIKE_LLAMA3 = PreTokenizer(split(_LLAMA3), whole_words=True, adds_bos=True)
_LIKE_QWEN2 = PreTokenizer(split(_QWEN2), composes=True)
PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "exaone4", "trillion"), PreTokenizer(_gpt2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"), _LIKE_LLAMA3),
    **dict.fromkeys(("lfm2", "midm-2.0", "pixtral"), _LIKE_LLAMA3),  # pixtral: Nemotron 3, too
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _LIKE_QWEN2),
    "qwen35": PreTokenizer(split(_QWEN35), composes=True),
    **dict.fromkeys(("smollm", "starcoder", "refact", "exaone", "minerva-7b"), PreTokenizer(_by_digit)),
    "command-r": PreTokenizer(_by_digit, composes=True),
    **dict.fromkeys(("olmo", "mpt"), PreTokenizer(_gpt2, composes=True)),  # GPT-NeoX's pre-tokenizer
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer(split(_LLAMA3))),
    "glm4": PreTokenizer(split(_LLAMA3), whole_words=True),
    **dict.fromkeys(("gpt-4o", "llama4"), PreTokenizer(split(_O200K))),
    "tekken": PreTokenizer(split(_TEKKEN), whole_words=True, adds_bos=True),
    "deepseek-llm": PreTokenizer(split(*_DEEPSEEK_LLM)),
    "deepseek-coder": PreTokenizer(split(*_DEEPSEEK_CODER)),
    "seed-coder": PreTokenizer(split(_SEED_CODER)),
    "kimi-k2": PreTokenizer(split(_KIMI_K2)),
    "superbpe": PreTokenizer(split(*_SUPERBPE)),
    "deepseek-v3": PreTokenizer(split(*_DEEPSEEK_V3)),
    "modern-bert": PreTokenizer(_gpt2, composes=True, mask="[MASK]"),
    "roberta-bpe": PreTokenizer(_gpt2, mask="<mask>"),
}
