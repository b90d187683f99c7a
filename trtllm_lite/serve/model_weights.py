"""Reads ``--model_weights`` of ``serve``: names that several models share, each with a part of the requests."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.llm import LLM
from trtllm_lite.serve.http.messages import is_header_value
from trtllm_lite.serve.served_engine import ModelSettings

_LONGEST_NAME = 128  # bound on the name of a version, which a header carries
_FORM = "NAME=MODEL:WEIGHT,MODEL:WEIGHT, such as chat=v1:90,v2:10"


def shares_of(given: Sequence[str], models: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    """Weights by model and by the names that it shares with others. Raises ArgumentError for texts of another form."""
    shares: dict[str, dict[str, int]] = defaultdict(dict)
    shared: set[str] = set()
    for text in given:
        name, weights = _parsed(text)
        if name in models or name in shared:
            raise ArgumentError(f"model_weights names {shown(name)}, which is a model already: choose another name")
        shared.add(name)
        for model, weight in weights.items():
            if model not in models:
                known = ", ".join(map(shown, models))
                raise ArgumentError(f"model_weights has {shown(model)}, and the models are {known}: name one of them")
            shares[model][name] = weight
    return shares


def check_kinds(loaded: Sequence[tuple[LLM, ModelSettings]]) -> None:
    """Raise ArgumentError if an encoder and a decoder share a name."""
    generates: dict[str, bool] = {}
    for llm, settings in loaded:
        for name in settings.shares:
            if generates.setdefault(name, llm.generates) != llm.generates:
                raise ArgumentError(
                    f"model_weights has an encoder and a generator for {shown(name)}: let models of one kind share it"
                )


def _parsed(text: str) -> tuple[str, dict[str, int]]:
    name, equals, rest = text.partition("=")
    weights: dict[str, int] = {}
    for part in rest.split(","):
        model, colon, weight = part.rpartition(":")
        is_valid = colon and weight.isascii() and weight.isdecimal() and is_header_value(model, _LONGEST_NAME)
        if not (name and equals and is_valid) or model in weights:
            raise ArgumentError(f"model_weights is {shown(text)}: expected {_FORM}")
        weights[model] = int(weight)
    if not any(weights.values()):
        raise ArgumentError(f"model_weights is {shown(text)}, where no model gets requests: give one a weight above 0")
    return name, weights
