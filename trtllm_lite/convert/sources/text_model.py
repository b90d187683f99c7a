"""Presents multimodal sources as their text model, without the parts for images."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family, all_families
from trtllm_lite.convert.sources.source import Source
from trtllm_lite.errors import ConvertError, shown

_TEXT_CONFIG = "text_config"
_TIED = "tie_word_embeddings"
# Maps prefixes of the text model's tensor names in the whole model (of transformers up to 4.51, and of later versions)
# to their prefix in a text model that is saved alone.
_PREFIXES = {"language_model.": "", "model.language_model.": "model.", "model.text_model.": "model."}
_VISION_PARTS = (
    "vision_model|vision_tower|embed_vision|vision_embedder|visual|multi_modal_projector|mm_projector|connector"
)
VISION_TENSORS = re.compile(rf"(model\.)?({_VISION_PARTS})\..*", re.DOTALL)
_PARTS = f"{_VISION_PARTS}|audio_tower|embed_audio"
_OTHER_TENSORS = re.compile(rf"(model\.)?({_PARTS})\..*", re.DOTALL)


def as_text_model(source: Source) -> Source:
    """The text model of a ``source`` that is multimodal; the same source if it is not, or of no known class.

    Keys of the whole config that belong to no other part count if the text model's own config lacks them. Raises
    ConvertError if the text model's family is unknown.
    """
    family = text_family(source.config, source.description)
    if family is None:
        return source
    names, text = _names(source.tensors), source.config.get(_TEXT_CONFIG, source.config)
    config = _config(source.config, text, family)
    if source.config.get(_TIED, config.get(_TIED)) != config.get(_TIED) and names:
        # Releases of transformers differ in which of these settings counts, and write the LM head only if it is not
        # tied.
        config[_TIED] = f"{family.tensor_names['lm_head']}.weight" not in names
    return replace(source, config=config, is_text_part=True, whole=source).renamed(names)


def text_family(config: Mapping[str, Any], description: str) -> Family | None:
    """The family of the text model of a multimodal ``config``; None for one of no known multimodal class.

    Raises ConvertError if the text model's family is unknown; ``description`` names the model in the message.
    """
    architectures = config.get("architectures")
    families = _holding(architectures if isinstance(architectures, list) else [])
    if not families:
        return None
    text = config.get(_TEXT_CONFIG, config if _is_flat(config, families) else None)
    if not isinstance(text, dict):
        raise ConvertError(
            f"expected {_TEXT_CONFIG} in the config of {description} to be an object, found {shown(text)}: download it "
            "again"
        )
    found = text.get("model_type")
    if not isinstance(found, str) or found not in families:
        raise ConvertError(
            f"expected the text model of {description} to have the model_type {' or '.join(families)}, found "
            f"{shown(found)}, which is not supported; docs/contributing/family.md says how to add a family"
        )
    return families[found]


def as_if_text(source: Source) -> Source:
    """The ``source`` as if it were a text model, if it has the config of one inside its own."""
    text = source.config.get(_TEXT_CONFIG)
    if not isinstance(text, dict):
        return source
    around = {key: value for key, value in source.config.items() if key != _TEXT_CONFIG}
    return replace(source, config={**around, **text}, is_text_part=True).renamed(_names(source.tensors))


def _holding(architectures: list[Any]) -> dict[str, Family]:
    """The families of the text models that the first known class of these holds, by their model_type."""
    known = all_families().values()
    for name in architectures:
        holding = [family for family in known if family.multimodal and name in family.multimodal.architectures]
        if holding:
            return {model_type: family for family in holding for model_type in _model_types(family)}
    return {}


def _model_types(family: Family) -> tuple[str, ...]:
    """The model_types of configs that describe text models of the family in multimodal models."""
    assert family.multimodal is not None
    return family.model_type or family.name, *family.multimodal.model_types, *family.multimodal.flat_types


def _is_flat(config: Mapping[str, Any], families: dict[str, Family]) -> bool:
    """Whether the text model's keys stand beside those of other parts."""
    found = config.get("model_type")
    multimodal = families[found].multimodal if isinstance(found, str) and found in families else None
    return multimodal is not None and found in multimodal.flat_types


def _config(config: dict[str, Any], text: dict[str, Any], family: Family) -> dict[str, Any]:
    """The config of the text model, as if it were saved alone."""
    assert family.multimodal is not None
    others = {_TEXT_CONFIG, *family.multimodal.other_keys}
    parts = [{key: value for key, value in part.items() if key not in others} for part in (config, text)]
    return {**family.multimodal.defaults, **parts[0], **parts[1], "architectures": [family.architectures[0]]}


def _names(tensors: Collection[str]) -> dict[str, str]:
    """The names of the text model's tensors, mapped to those of the ``tensors`` of the whole model.

    Unknown tensors keep their names; so does a tensor whose name without the prefix is taken, so that both are
    reported.
    """
    names: dict[str, str] = {}
    for name in tensors:
        own = _own_name(name)
        if not _OTHER_TENSORS.fullmatch(name):
            names[name if own in names or own in tensors else own] = name
    return names


def _own_name(name: str) -> str:
    for prefix, own in _PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
