"""Reads the decoder of a tokenizer.json, which turns tokens into text, as rules for the C++ side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_lite.errors import EngineError, shown
from trtllm_lite.runtime.core import core

Replacement = tuple[str, str, str]


@dataclass
class DecoderRules:
    """The arguments of ``_core.TokenBytes`` that say how tokens become text; csrc/text/token_bytes.h describes them."""

    replacements: list[Replacement] = field(default_factory=list)
    bytes: Any = field(default_factory=lambda: core().ByteSpelling.NONE)
    separator: str = ""
    stripped: str = ""
    max_stripped: int = 0


def decoder_rules(decoder: Mapping[str, Any] | None) -> DecoderRules:
    """The rules of a decoder; None stands for a tokenizer that has none, whose tokens are joined with spaces.

    Raises EngineError for a decoder that these rules cannot express.
    """
    if decoder is None:
        return DecoderRules(separator=" ")
    rules = DecoderRules()
    steps = _steps(decoder)
    num_own = next((place for place, step in enumerate(steps) if step["type"] not in _REPLACING), len(steps))
    for step in steps[:num_own]:
        rules.replacements.append(_REPLACING[step["type"]](step))
    _read_rest(steps[num_own:], rules)
    return rules


def _steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _replaced(step: Mapping[str, Any]) -> Replacement:
    pattern, content = step["pattern"].get("String"), step["content"]
    if not pattern:
        raise _unsupported(f"replaces {shown(step['pattern'])}")
    return pattern, content, content


def _spaces(step: Mapping[str, Any]) -> Replacement:
    return step["replacement"], " ", " " if step["prepend_scheme"] == "never" else ""


# Steps that change each token by itself.
_REPLACING = {"Replace": _replaced, "Metaspace": _spaces}


def _read_rest(steps: Sequence[Mapping[str, Any]], rules: DecoderRules) -> None:
    """Read the steps after the replacements: the joining of tokens, and then a strip."""
    joined = False
    for step in steps:
        kind = step["type"]
        if kind == "ByteLevel" and not joined and rules.bytes == core().ByteSpelling.NONE:
            rules.bytes, joined = core().ByteSpelling.ALPHABET, True
        elif kind == "ByteFallback" and not joined and rules.bytes == core().ByteSpelling.NONE:
            rules.bytes = core().ByteSpelling.FALLBACK
        elif kind == "Fuse":
            joined = True
        elif kind == "Strip" and joined and step["stop"] == 0 and not rules.stripped:
            rules.stripped, rules.max_stripped = step["content"], step["start"]
        else:
            raise _unsupported(f"has the step {shown(dict(step))} in such a place" if joined else f"is {shown(kind)}")


def _unsupported(what: str) -> EngineError:
    return EngineError(
        f"the decoder of the tokenizer's tokenizer.json {what}: expected ByteLevel, Metaspace, none, or replacements, "
        "ByteFallback, Fuse and Strip at the start, in this order; ask for token ids alone with detokenize=False"
    )
