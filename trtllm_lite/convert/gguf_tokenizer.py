"""Builds tokenizer.json from the vocabulary that a GGUF file carries (keys ``tokenizer.ggml.*``)."""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from trtllm_lite.errors import ConvertError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type
_TOKEN_STRINGS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}

# How text is cut before merges apply, by tokenizer.ggml.pre; as in the models' own tokenizer.json files.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "llama-bpe": lambda: _split(_LLAMA3_SPLIT),
    "qwen2": lambda: _split(_QWEN2_SPLIT),
    "smollm": _smollm,
}


def read_tokenizer(metadata: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text of tokenizer.json, and the chat template with the token strings; ConvertError for unknown kinds."""
    prefix = "tokenizer.ggml."
    ggml = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    kind = ggml.get("model")
    if kind not in builders:
        raise ConvertError(f"expected a GGUF tokenizer of model {' or '.join(builders)}, found {kind!r}")
    try:
        tokenizer = builders[kind](ggml)
        _add_special_tokens(tokenizer, ggml)
        strings = {ours: ggml.get(f"{theirs}_token_id") for ours, theirs in _TOKEN_STRINGS.items()}
        config = {name: ggml["tokens"][number] for name, number in strings.items() if number is not None}
    except ConvertError:
        raise
    except Exception as error:  # tokenizers raises plain Exception on inconsistent vocabularies
        raise ConvertError(f"the GGUF file's tokenizer is inconsistent ({error!r}): download it again") from error
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return tokenizer.to_str(), config


def _byte_level_bpe(ggml: dict[str, Any]) -> Tokenizer:
    """GPT-2's kind: bytes spelled as printable characters, merges listed in order."""
    pre = ggml.get("pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise ConvertError(
            f"expected tokenizer.ggml.pre to be one of {', '.join(_PRE_TOKENIZERS)}, found {pre!r}, which is not "
            "supported: convert from the Hugging Face directory instead, which has a tokenizer.json"
        )
    vocab = {token: number for number, token in enumerate(ggml["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in ggml["merges"]]
    # Llama 3 takes a word that is in the vocabulary whole, even if merges would not reach it.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    ggml.setdefault("add_bos_token", pre == "llama-bpe")
    return tokenizer


def _sentencepiece_bpe(ggml: dict[str, Any]) -> Tokenizer:
    """SentencePiece's BPE kind: spaces as U+2581, scores instead of merges, unknown characters as bytes."""
    tokens, unknown = ggml["tokens"], ggml.get("unknown_token_id", 0)
    vocab = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(
        vocab=vocab,
        merges=_merges_from_scores(tokens, ggml["scores"], ggml["token_type"]),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", "\u2581")
    undo: list[decoders.Decoder] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if ggml.get("add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
        undo.append(decoders.Strip(content=" ", left=1))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(undo)
    ggml.setdefault("add_bos_token", True)
    return tokenizer


def _merges_from_scores(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best score first.

    SentencePiece joins the neighbours whose union scores best (arXiv 1808.06226); ranking all joins by that score makes
    ordinary BPE do the same.
    """
    normal = {token: number for number, token in enumerate(tokens) if types[number] == _NORMAL}
    ranked = []
    for token, number in normal.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                ranked.append((-scores[number], normal[left], normal[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_special_tokens(tokenizer: Tokenizer, ggml: dict[str, Any]) -> None:
    """Tokens that are matched whole, and BOS or EOS around every text if the model wants them."""
    tokens: list[str] = ggml["tokens"]
    typed = list(zip(tokens, ggml.get("token_type", ()), strict=False))
    special = [token for token, kind in typed if kind in (_UNKNOWN, _CONTROL)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    user_defined = [token for token, kind in typed if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    around = [(key, ggml.get(f"{key}_token_id")) for key in ("bos", "eos") if ggml.get(f"add_{key}_token")]
    added = {key: (tokens[number], number) for key, number in around if number is not None}
    if added:
        start, end = ([added[key][0]] if key in added else [] for key in ("bos", "eos"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*start, "$A", *end],
            pair=[*start, "$A", *end, *start, "$B:1", *end],
            special_tokens=list(added.values()),
        )
