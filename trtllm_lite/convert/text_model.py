"""Multimodal sources seen as the model that reads and writes their text, without what sees."""

import re
from dataclasses import replace

from trtllm_lite.convert.family import Multimodal, find_family
from trtllm_lite.convert.source import Source
from trtllm_lite.errors import ConvertError, shown

_TEXT_CONFIG = "text_config"


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
    others = {_TEXT_CONFIG, *family.multimodal.other_keys}
    around = {key: value for key, value in source.config.items() if key not in others}
    config = {**around, **text, "architectures": architectures}
    return replace(source, config=config, is_text_part=True).renamed(_names(source, family.multimodal))


def _names(source: Source, multimodal: Multimodal) -> dict[str, str]:
    """The names of the text model's tensors, mapped to those that ``source`` has.

    Unknown tensors keep their names, and so does one whose name without the prefix is another's, for both to be seen.
    """
    patterns = multimodal.other_tensors
    kept = [name for name in source.tensors if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    return {name if (own := name.removeprefix(multimodal.prefix)) in source.tensors else own: name for name in kept}
