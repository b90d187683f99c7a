"""Multimodal sources seen as the model that reads and writes their text, without what sees."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family, Multimodal, find_family
from trtllm_lite.convert.source import Source
from trtllm_lite.errors import ConvertError, shown

_TEXT_CONFIG = "text_config"
_TIED = "tie_word_embeddings"
# What transformers puts before the names of the text model's tensors, up to 4.51 and later, and what stands there where
# it is saved alone.
_PREFIXES = {"language_model.": "", "model.language_model.": "model."}
_OTHER_TENSORS = re.compile(r"(model\.)?(vision_model|vision_tower|multi_modal_projector)\..*", re.DOTALL)


def as_text_model(source: Source) -> Source:
    """The text model of a ``source`` that is multimodal; the same source if it is not, or of no known family.

    What its config says outside of the text model's own, and of no other part, counts where that says nothing.
    """
    architectures, text = source.config.get("architectures"), source.config.get(_TEXT_CONFIG)
    names = architectures if isinstance(architectures, list) else []
    family = find_family([name for name in names if isinstance(name, str)])
    if text is None or family is None or family.multimodal is None:
        return source
    if not isinstance(text, dict):
        raise ConvertError(
            f"expected {_TEXT_CONFIG} in the config of {source.description} to be an object, found {shown(text)}: "
            "download it again"
        )
    names_of_text = _names(source.tensors)
    config = {**_config(source, family, family.multimodal, text), "architectures": architectures}
    if _TIED in source.config and source.config[_TIED] != config.get(_TIED) and names_of_text:
        # Releases of transformers differ in which of the two counts, and write the head only where it is not tied.
        config[_TIED] = f"{family.tensor_names['lm_head']}.weight" not in names_of_text
    return replace(source, config=config, is_text_part=True).renamed(names_of_text)


def _config(source: Source, family: Family, multimodal: Multimodal, text: dict[str, Any]) -> dict[str, Any]:
    """The text model's config. Raises ConvertError if the text model is of another family."""
    expected, found = family.model_type or family.name, text.get("model_type")
    if found not in (None, expected):
        raise ConvertError(
            f"expected the text model of {source.description} to be of the model_type {expected}, found "
            f"{shown(found)}, which is not supported; see CONTRIBUTING.md on how to add a family"
        )
    others = {_TEXT_CONFIG, *multimodal.other_keys}
    around = {key: value for key, value in source.config.items() if key not in others}
    return {**multimodal.defaults, **around, **text}


def _names(tensors: Collection[str]) -> dict[str, str]:
    """The names of the text model's tensors, mapped to those of the ``tensors`` of the whole model.

    Unknown tensors keep their names, and so does one whose name without the prefix is another's, for both to be seen.
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
