"""Changes how a tokenizer.json treats text before cutting it, by tokenizer_config.json: spaces and lower case.

Classes of transformers build their tokenizers anew with these settings: ``add_prefix_space`` (a space is put before a
text, so that its first word is tokenized like later ones) and the settings of BERT's normalizer.
"""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from trtllm_lite.convert.metadata.tokenizer_config import TOKENIZER_CONFIG
from trtllm_lite.convert.tokenizers.sentencepiece_tokenizer import SPACE
from trtllm_lite.errors import ConvertError

_PREFIX = "add_prefix_space"
_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_ELSEWHERE = {"do_lower_case": "Lowercase", "strip_accents": "StripAccents"}  # other steps with the same effect
_PARTS = ("normalizers", "pretokenizers", "decoders")


def set_text_flags(tokenizer: Tokenizer, raw: dict[str, Any]) -> bool:
    """Change ``tokenizer`` by the flags of tokenizer_config.json in ``raw``; returns whether anything changed.

    Raises ConvertError for a flag that this tokenizer cannot follow.
    """
    flags = {key: raw[key] for key in (_PREFIX, *_BERT) if raw.get(key) is not None}
    spaced = _PREFIX in flags and _set_prefix(tokenizer, flags[_PREFIX], bool(raw.get("legacy")))
    return _set_bert(tokenizer, flags) or spaced


def _set_bert(tokenizer: Tokenizer, flags: dict[str, bool]) -> bool:
    state = _state(tokenizer.normalizer)
    if state.get("type") != "BertNormalizer":
        kinds = {step["type"] for step in _steps(state)}
        for key, step in _ELSEWHERE.items():
            if flags.get(key) and step not in kinds:
                raise _unfit(key)
        return False
    wanted = {ours: flags[key] for key, ours in _BERT.items() if key in flags}
    if all(state[name] == value for name, value in wanted.items()):
        return False
    arguments = {name: value for name, value in {**state, **wanted}.items() if name != "type"}
    tokenizer.normalizer = normalizers.BertNormalizer(**arguments)
    return True


def _set_prefix(tokenizer: Tokenizer, wanted: bool, legacy: bool) -> bool:
    cuts, normalizes = _state(tokenizer.pre_tokenizer), _state(tokenizer.normalizer)
    steps = [*_steps(cuts), *_steps(normalizes)]
    kinds = {step["type"]: step for step in steps}
    if "ByteLevel" in kinds:
        has = kinds["ByteLevel"][_PREFIX]
    elif "Metaspace" in kinds:
        has = kinds["Metaspace"]["prepend_scheme"] != "never"
    else:
        has = "Prepend" in kinds
    if has == wanted:
        return False
    if cuts.get("type") == "ByteLevel":
        arguments = {name: value for name, value in cuts.items() if name != "type"}
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**{**arguments, _PREFIX: wanted})
    elif "ByteLevel" not in kinds and "Metaspace" in kinds:
        everywhere = legacy or isinstance(tokenizer.model, models.Unigram)
        _set_scheme(tokenizer, ("always" if everywhere else "first") if wanted else "never")
    elif any(step["type"] == "Replace" and step["content"] == SPACE for step in steps):
        _set_prepend(tokenizer, wanted)
    else:
        raise _unfit(_PREFIX)
    return True


def _set_scheme(tokenizer: Tokenizer, scheme: str) -> None:
    parts = tokenizer.pre_tokenizer, tokenizer.decoder
    for part in parts:
        state = _state(part)
        for step in _steps(state):
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = scheme
        if state:
            part.__setstate__(json.dumps(state).encode())
    tokenizer.pre_tokenizer, tokenizer.decoder = parts


def _set_prepend(tokenizer: Tokenizer, wanted: bool) -> None:
    """Let a normalizer put a space before texts, or not, and likewise strip it from decoded texts."""
    before, behind = _steps(_state(tokenizer.normalizer)), _steps(_state(tokenizer.decoder))
    kept = [step for step in before if step["type"] != "Prepend"]
    left = [step for step in behind if step["type"] != "Strip"]
    if wanted:
        kept, left = [{"type": "Prepend", "prepend": SPACE}, *kept], [*left, {"type": "Strip", **_FIRST_SPACE}]
    normalizer, decoder = normalizers.Sequence([]), decoders.Sequence([])
    normalizer.__setstate__(json.dumps({"type": "Sequence", "normalizers": kept}).encode())
    decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": left}).encode())
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder


_FIRST_SPACE = {"content": " ", "start": 1, "stop": 0}


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer in the form of tokenizer.json; {} if it is absent."""
    return {} if part is None else json.loads(part.__getstate__())


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a part, with the steps of nested sequences."""
    return list(_walk(state)) if state else []


def _walk(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    inner = next((state[name] for name in _PARTS if name in state), None)
    if inner is None:
        yield state
        return
    for step in inner:
        yield from _walk(step)


def _unfit(key: str) -> ConvertError:
    return ConvertError(
        f"{TOKENIZER_CONFIG.name}.{key} is set, and nothing in tokenizer.json does that: if you know that it changes "
        f"nothing, pass --ignore_config_keys {TOKENIZER_CONFIG.name}.{key} (ignore_config_keys of LLM)"
    )
