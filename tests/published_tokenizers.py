"""Settings of published tokenizers, over vocabularies of some hundred tokens: facts of their repositories' files.

Each entry names the model on huggingface.co whose tokenizer_config.json, special tokens and kind of tokenizer.json it
repeats. ``write`` makes a model directory of it, which transformers and this project read alike.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_CORPUS = [
    "the quick brown fox jumps over the lazy dogs of the town, and 1 + 1 = 2",
    "naïve café, Ünder 你好 the end",
] * 9
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")


@cache
def _merged(metaspace: bool) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a small BPE model, of bytes or of SentencePiece's characters."""
    trained = Tokenizer(models.BPE())
    if metaspace:
        trained.pre_tokenizer = pre_tokenizers.Metaspace()
        first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=first, show_progress=False)
    else:
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(_CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _digits() -> pre_tokenizers.PreTokenizer:
    cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(cuts)


def _byte_level(cut: Callable[[], Any], composes: bool = False, whole_words: bool = False) -> Tokenizer:
    vocabulary, merges = _merged(False)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    tokenizer.normalizer = normalizers.NFC() if composes else None
    tokenizer.pre_tokenizer, tokenizer.decoder = cut(), decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _sentencepiece(prefix: bool = True, metaspace: bool = False) -> Tokenizer:
    vocabulary, merges = _merged(True)
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend("▁")] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def _word_piece(lowercase: bool = True) -> Tokenizer:
    words = "the quick brown fox jump ##s over lazy dog of town , and 1 + = 2 naive cafe The Quick a b c ##a ##b x user"
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {
        piece: number for number, piece in enumerate([*first, *words.split(), "<s>", "</s>", "<pad>", "<mask>"])
    }
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return tokenizer


def _unigram() -> Tokenizer:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"thequickbrownfx12+,", "▁the", "▁quick", "▁fox", "user", "<mask>"]
    table = [(piece, -float(number)) for number, piece in enumerate(dict.fromkeys(pieces))]
    tokenizer = Tokenizer(models.Unigram(table, 3))
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(steps), decoders.Metaspace()
    return tokenizer


@dataclass(frozen=True)
class Published:
    """One model's tokenizer.

    ``kind`` makes its tokenizer.json without added tokens; ``special`` and ``plain`` are the added tokens, and
    ``flags`` their unusual flags; ``around`` are the texts of the tokens before and after a text. ``settings`` are
    further settings of tokenizer_config.json. With ``lists_added`` that file has the added tokens, too. ``odd`` matches
    texts that transformers 5 reads otherwise than tokenizer.json says, because its class builds the tokenizer anew.
    ``adds_bos`` is for settings that transformers leaves unread since version 5.
    """

    name: str
    model_type: str
    kind: Callable[[], Tokenizer]
    special: Sequence[str]
    settings: Mapping[str, Any]
    around: tuple[Sequence[str], Sequence[str]] = ((), ())
    plain: Sequence[str] = ()
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    lists_added: bool = True
    odd: str = ""
    adds_bos: bool = False

    def write(self, directory: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and config.json."""
        tokenizer = self.kind()
        for texts, is_special in ((self.special, True), (self.plain, False)):
            flags = {text: {"normalized": False, **self.flags.get(text, {})} for text in texts}
            tokenizer.add_tokens([AddedToken(text, special=is_special, **flags[text]) for text in texts])
        before, behind = self.around
        if before or behind:
            ids = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys((*before, *behind))]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *behind], pair=[*before, "$A", *behind, "$B:1"], special_tokens=ids
            )
        settings = dict(self.settings)
        if self.lists_added:
            added = tokenizer.get_added_tokens_decoder()
            settings["added_tokens_decoder"] = {str(number): token.__getstate__() for number, token in added.items()}
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        (directory / "config.json").write_text(json.dumps({"model_type": self.model_type}))


def _ends(bos: str | None, eos: str, pad: str | None = None, unk: str | None = None) -> dict[str, Any]:
    return {"bos_token": bos, "eos_token": eos, "pad_token": pad, "unk_token": unk}


_COMMON = {"clean_up_tokenization_spaces": False, "model_max_length": 131072}
_DIGITS = r".*\d.*"  # transformers' class does not split digits
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_SETTINGS = {
    **{"add_bos_token": False, "add_prefix_space": False, "errors": "replace", "split_special_tokens": False},
    **{"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": list(_IM[1:]), **_COMMON},
    **_ends(None, "<|im_end|>", "<|endoftext|>"),
}
_TOOLS = ("<tool_call>", "</tool_call>")
_EOT = "<|endoftext|>"
_GPT2 = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **_COMMON}
_LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>")
_LLAMA3_SETTINGS = {
    **{"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]},
    **{"clean_up_tokenization_spaces": True, "model_max_length": 131072},
}
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
_DEEPSEEK_SETTINGS = {
    **{"add_bos_token": True, "add_eos_token": False, "legacy": True, "sp_model_kwargs": {}},
    **{"tokenizer_class": "LlamaTokenizerFast", "use_default_system_prompt": False, **_COMMON},
    **_ends(_DEEPSEEK[0], _DEEPSEEK[1], _DEEPSEEK[1]),
}
_SP = {"tokenizer_class": "LlamaTokenizer", "sp_model_kwargs": {}, "use_default_system_prompt": False, **_COMMON}
_SP_BOS = {**_SP, "add_bos_token": True, "add_eos_token": False, **_ends("<s>", "</s>", None, "<unk>")}
_S = ("<unk>", "<s>", "</s>")
_SPACES = r"\s.*|.*</?s>.*|"  # the class puts fewer spaces before a text that begins with one, or after tokens
_BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT = {
    **{"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None, "never_split": None},
    **{"tokenize_chinese_chars": True, "do_basic_tokenize": True, "model_max_length": 512},
    **{f"{text[1:-1].lower()}_token": text for text in _BERT_TOKENS},
}
_CLS = (("[CLS]",), ("[SEP]",))
_XLM_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_XLM = {
    **{"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512, "clean_up_tokenization_spaces": True},
    **{**_ends("<s>", "</s>", "<pad>", "<unk>"), "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"},
}
_MASK = {"<mask>": {"lstrip": True}}
_ROBERTA = {**_XLM, "tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, "trim_offsets": True}
_MPNET = {**_BERT, **_XLM, "tokenizer_class": "MPNetTokenizer", "unk_token": "[UNK]"}


def _plain_cut() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _gpt2() -> Tokenizer:
    return _byte_level(_plain_cut)


def _neox() -> Tokenizer:
    return _byte_level(_plain_cut, composes=True)


def _numerals() -> Tokenizer:
    return _byte_level(_digits)


def _cohere() -> Tokenizer:
    return _byte_level(_digits, composes=True)


def _qwen() -> Tokenizer:
    return _byte_level(lambda: _split(_QWEN), composes=True)


def _cl100k() -> Tokenizer:
    return _byte_level(lambda: _split(_CL100K))


def _llama3() -> Tokenizer:
    return _byte_level(lambda: _split(_CL100K), whole_words=True)


def _gemma() -> Tokenizer:
    return _sentencepiece(prefix=False)


def _cased() -> Tokenizer:
    return _word_piece(lowercase=False)


def _llama_like(name: str, around: Sequence[str], **settings: Any) -> Published:
    merged = {**_LLAMA3_SETTINGS, **_ends(_LLAMA3[0], _LLAMA3[2]), **settings}
    return Published(name, "llama", _llama3, _LLAMA3, merged, (around, ()))


def _qwen_like(name: str, model_type: str, plain: Sequence[str] = _TOOLS, **settings: Any) -> Published:
    return Published(name, model_type, _qwen, _IM, {**_QWEN_SETTINGS, **settings}, plain=plain)


def _bert_like(
    name: str, kind: Callable[[], Tokenizer] = _word_piece, listed: bool = True, **settings: Any
) -> Published:
    return Published(name, "bert", kind, _BERT_TOKENS, {**_BERT, **settings}, _CLS, lists_added=listed)


def _xlm_like(name: str, model_type: str, **settings: Any) -> Published:
    return Published(name, model_type, _unigram, _XLM_TOKENS, {**_XLM, **settings}, (("<s>",), ("</s>",)), flags=_MASK)


def _smollm(name: str, model_type: str, special: Sequence[str], odd: str = _DIGITS, **ends: Any) -> Published:
    return Published(name, model_type, _numerals, special, {**_GPT2, **ends}, odd=odd)


PUBLISHED = (
    Published("openai-community/gpt2", "gpt2", _gpt2, (_EOT,), {"model_max_length": 1024}, lists_added=False),
    Published("microsoft/phi-2", "phi", _gpt2, (_EOT,), {**_GPT2, **_ends(_EOT, _EOT, None, _EOT)}),
    _qwen_like("Qwen/Qwen2-7B-Instruct", "qwen2", ()),
    _qwen_like("Qwen/Qwen2.5-7B-Instruct", "qwen2"),
    _qwen_like("Qwen/Qwen2.5-Coder-7B", "qwen2", ("<|fim_prefix|>",), **_ends(None, _EOT, _EOT)),
    _qwen_like("Qwen/Qwen3-8B", "qwen3", (*_TOOLS, "<think>", "</think>")),
    _qwen_like("Qwen/Qwen3-30B-A3B", "qwen3_moe", (*_TOOLS, "<think>", "</think>")),
    _qwen_like("Qwen/QwQ-32B", "qwen2", (*_TOOLS, "<think>", "</think>")),
    _llama_like("meta-llama/Llama-3.1-8B-Instruct", _LLAMA3[:1]),
    _llama_like("meta-llama/Llama-3.2-1B", _LLAMA3[:1], **_ends(_LLAMA3[0], _LLAMA3[1])),
    _llama_like("meta-llama/Llama-3.3-70B-Instruct", _LLAMA3[:1]),
    _llama_like("unsloth/Llama-3.2-3B-Instruct", _LLAMA3[:1], pad_token=_LLAMA3[3], padding_side="left"),
    _llama_like("NousResearch/Hermes-3-Llama-3.1-8B", _LLAMA3[:1]),
    Published(
        *("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama", _llama3, _DEEPSEEK, _DEEPSEEK_SETTINGS),
        (_DEEPSEEK[:1], ()),
    ),
    Published("deepseek-ai/DeepSeek-V3", "deepseek_v3", _cl100k, _DEEPSEEK, _DEEPSEEK_SETTINGS, adds_bos=True),
    Published("deepseek-ai/DeepSeek-R1", "deepseek_v3", _cl100k, _DEEPSEEK, _DEEPSEEK_SETTINGS, adds_bos=True),
    Published("deepseek-ai/DeepSeek-V2-Lite", "deepseek_v2", _cl100k, _DEEPSEEK, _DEEPSEEK_SETTINGS, adds_bos=True),
    Published(
        *("microsoft/phi-4", "phi3", _cl100k, (_EOT, "<|im_start|>", "<|im_sep|>")),
        {**_GPT2, **_ends(_EOT, _EOT, _EOT, _EOT)},
        flags={"<|im_start|>": {"lstrip": True, "rstrip": True}, "<|im_sep|>": {"lstrip": True, "rstrip": True}},
    ),
    Published(
        *("microsoft/Phi-4-mini-instruct", "phi3", _cl100k, (_EOT, "<|user|>")),
        {**_GPT2, **_ends(_EOT, _EOT, _EOT, _EOT)},
        flags={"<|user|>": {"rstrip": True}},
    ),
    _smollm(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", _IM, **_ends("<|im_start|>", "<|im_end|>", "<|im_end|>", _EOT)
    ),
    _smollm("HuggingFaceTB/SmolLM-135M", "llama", _IM, **_ends(_EOT, _EOT, None, _EOT)),
    _smollm("bigcode/starcoder2-3b", "starcoder2", (_EOT, "<fim_prefix>"), **_ends(_EOT, _EOT, None, _EOT)),
    _smollm("ibm-granite/granite-3.3-8b-instruct", "granite", (_EOT,), "", **_ends(_EOT, _EOT, _EOT, _EOT)),
    _smollm("ibm-granite/granite-3.1-3b-a800m-instruct", "granitemoe", (_EOT,), "", **_ends(_EOT, _EOT, _EOT, _EOT)),
    Published("allenai/OLMo-2-1124-7B-Instruct", "olmo2", _cl100k, (_EOT,), {**_GPT2, **_ends(_EOT, _EOT, None, _EOT)}),
    Published("allenai/Olmo-3-7B-Instruct", "olmo3", _cl100k, _IM, {**_GPT2, **_ends(None, "<|im_end|>", _EOT)}),
    Published(
        *("allenai/OLMoE-1B-7B-0924", "olmoe", _neox, (_EOT, "<|padding|>")),
        {
            **{"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": False, "add_eos_token": False},
            **{"add_prefix_space": False, **_COMMON, **_ends(_EOT, _EOT, "<|padding|>", _EOT)},
        },
    ),
    Published(
        *("EleutherAI/pythia-1b", "gpt_neox", _neox, (_EOT, "<|padding|>")),
        {"tokenizer_class": "GPTNeoXTokenizer", "add_prefix_space": False, **_ends(_EOT, _EOT, None, _EOT)},
        lists_added=False,
    ),
    Published(
        *("THUDM/glm-4-9b-chat-hf", "glm", _llama3, (_EOT, "[gMASK]", "<sop>", "<|user|>")),
        {
            **{"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left", "remove_space": False},
            **{"do_lower_case": False, "eos_token": _EOT, "pad_token": _EOT, **_COMMON},
        },
        (("[gMASK]", "<sop>"), ()),
    ),
    Published(
        *("THUDM/GLM-4-9B-0414", "glm4", _llama3, (_EOT, "[gMASK]", "<sop>", "<|user|>")),
        {"tokenizer_class": "PreTrainedTokenizer", "do_lower_case": False, "eos_token": "<|user|>", **_COMMON},
    ),
    Published(
        *("CohereForAI/c4ai-command-r7b-12-2024", "cohere2", _cohere),
        ("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
        {
            **{"tokenizer_class": "CohereTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": True},
            **{"add_prefix_space": False, "sp_model_kwargs": {}, "spaces_between_special_tokens": False},
            **{**_ends("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<PAD>"), "merges_file": None, "vocab_file": None},
        },
        (("<BOS_TOKEN>",), ()),
    ),
    Published(
        *("LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct", "exaone", _numerals, ("[BOS]", "[|endofturn|]", "[PAD]", "[UNK]")),
        {**_GPT2, **_ends("[BOS]", "[|endofturn|]", "[PAD]", "[UNK]")},
        odd=_DIGITS,
    ),
    Published(
        *("openai/gpt-oss-20b", "gpt_oss", _cl100k, ("<|startoftext|>", _EOT, "<|return|>")),
        {**_LLAMA3_SETTINGS, **_ends("<|startoftext|>", "<|return|>", _EOT), "extra_special_tokens": {}},
    ),
    Published(
        *(
            "HuggingFaceTB/SmolLM3-3B",
            "smollm3",
            _llama3,
            (*_LLAMA3, "<|im_end|>"),
            {**_LLAMA3_SETTINGS, "fast": False},
        ),
        plain=("<think>", "</think>"),
    ),
    Published(
        *("mistralai/Mistral-Nemo-Instruct-2407", "mistral", _llama3, (*_S, "[INST]")),
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": True,
            "add_prefix_space": False,
            **_ends("<s>", "</s>"),
        },
        (("<s>",), ()),
    ),
    Published(
        *("tiiuae/Falcon3-7B-Instruct", "llama", _cl100k, (_EOT, "<|assistant|>", "<|pad|>")),
        {**_LLAMA3_SETTINGS, "eos_token": _EOT, "pad_token": "<|pad|>"},
    ),
    Published(
        "meta-llama/Llama-2-7b-chat-hf",
        "llama",
        _sentencepiece,
        _S,
        {**_SP_BOS, "legacy": False},
        (("<s>",), ()),
        odd=_SPACES,
    ),
    Published(
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "llama",
        _sentencepiece,
        _S,
        {**_SP_BOS, "legacy": False},
        (("<s>",), ()),
        odd=_SPACES,
    ),
    Published(
        "lmsys/vicuna-7b-v1.5", "llama", _sentencepiece, _S, {**_SP_BOS, "legacy": False}, (("<s>",), ()), odd=_SPACES
    ),
    Published(
        "mistralai/Mistral-7B-Instruct-v0.2", "mistral", _sentencepiece, _S, {**_SP_BOS, "legacy": True}, (("<s>",), ())
    ),
    Published(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "mixtral",
        _sentencepiece,
        _S,
        {**_SP_BOS, "legacy": True},
        (("<s>",), ()),
    ),
    Published(
        *("mistralai/Mistral-7B-Instruct-v0.3", "mistral", lambda: _sentencepiece(metaspace=True), (*_S, "[INST]")),
        {**_SP_BOS, "legacy": False, "add_prefix_space": True},
        (("<s>",), ()),
    ),
    Published(
        "HuggingFaceH4/zephyr-7b-beta", "mistral", _sentencepiece, _S, {**_SP_BOS, "pad_token": "</s>"}, (("<s>",), ())
    ),
    Published(
        *("microsoft/Phi-3.5-mini-instruct", "phi3", _sentencepiece, (*_S, _EOT, "<|assistant|>")),
        {**_SP, "add_bos_token": False, "add_eos_token": False, "legacy": False, **_ends("<s>", _EOT, _EOT, "<unk>")},
        flags={"<|assistant|>": {"rstrip": True}, "</s>": {"rstrip": True}},
    ),
    Published(
        "internlm/internlm2_5-7b-chat",
        "internlm2",
        _sentencepiece,
        _S,
        {**_SP_BOS, "decode_with_prefix_space": False},
        (("<s>",), ()),
    ),
    Published("internlm/internlm3-8b-instruct", "internlm3", _sentencepiece, _S, _SP_BOS, (("<s>",), ())),
    *(
        Published(
            *(name, model_type, _gemma, ("<pad>", "<eos>", "<bos>", "<mask>", "<start_of_turn>")),
            {
                **{"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False},
                **{**_ends("<bos>", "<eos>", "<pad>", "<unk>"), "spaces_between_special_tokens": False, **extra},
            },
            (("<bos>",), ()),
        )
        for name, model_type, extra in (
            ("google/gemma-2-2b-it", "gemma2", {"sp_model_kwargs": {}}),
            (
                "google/gemma-3-1b-it",
                "gemma3_text",
                {"boi_token": "<start_of_turn>", "processor_class": "Gemma3Processor"},
            ),
        )
    ),
    _bert_like("google-bert/bert-base-uncased", listed=False),
    _bert_like("google-bert/bert-base-cased", _cased, do_lower_case=False),
    _bert_like("sentence-transformers/all-MiniLM-L6-v2", listed=False, name_or_path="nreimers/MiniLM-L6-H384-uncased"),
    _bert_like("intfloat/e5-small-v2", clean_up_tokenization_spaces=True),
    _bert_like("BAAI/bge-small-en-v1.5", clean_up_tokenization_spaces=True),
    _bert_like(
        "thenlper/gte-base", max_length=128, stride=0, truncation_side="right", truncation_strategy="longest_first"
    ),
    _bert_like(
        "Snowflake/snowflake-arctic-embed-s", pad_to_multiple_of=None, pad_token_type_id=0, padding_side="right"
    ),
    _bert_like("mixedbread-ai/mxbai-embed-large-v1"),
    Published(
        "sentence-transformers/all-mpnet-base-v2",
        "mpnet",
        _word_piece,
        (*_XLM_TOKENS, "[UNK]"),
        _MPNET,
        (("<s>",), ("</s>",)),
        flags=_MASK,
    ),
    _xlm_like("intfloat/multilingual-e5-small", "bert"),
    _xlm_like("BAAI/bge-m3", "xlm-roberta", sp_model_kwargs={}),
    _xlm_like("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", "bert", max_length=128, stride=0),
    Published(
        "FacebookAI/roberta-base",
        "roberta",
        _gpt2,
        _XLM_TOKENS,
        _ROBERTA,
        (("<s>",), ("</s>",)),
        flags=_MASK,
        lists_added=False,
    ),
    Published(
        "sentence-transformers/all-distilroberta-v1",
        "roberta",
        _gpt2,
        _XLM_TOKENS,
        _ROBERTA,
        (("<s>",), ("</s>",)),
        flags=_MASK,
    ),
    Published(
        *("answerdotai/ModernBERT-base", "modernbert", _neox, _BERT_TOKENS),
        {**{k: v for k, v in _BERT.items() if k.endswith("_token")}, "tokenizer_class": "PreTrainedTokenizerFast"},
        _CLS,
        flags={"[MASK]": {"lstrip": True}},
    ),
)
