"""Reads how a model's images are preprocessed, of which only the normalisation of pixels becomes part of a network."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_lite.convert.sources.json_file import read_json
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.pixels import Normalization

_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"
FILES = (_PREPROCESSOR, _PROCESSOR)
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
# Mean and deviation of processors that are not _HALF (transformers, image_processing_*.py), by the beginnings of names.
_DEFAULTS = {"CLIP": _CLIP, "Llava": _CLIP, "Qwen2VL": _CLIP, "Pixtral": _CLIP, "GotOcr2": _CLIP}


@dataclass(frozen=True)
class ImageSettings:
    """The settings of a model's image ``processor``, and the ``normalization`` that they say."""

    processor: Mapping[str, Any]
    normalization: Normalization

    def to_json(self, config: Mapping[str, Any], class_tokens: int) -> str:
        """The file for the runtime: the processor's settings, the model's ``config``, and the tower's class tokens."""
        content = {"image_processor": self.processor, "model": config, "class_tokens": class_tokens}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read_image_settings(directory: Path) -> ImageSettings:
    """Read preprocessor_config.json or, of newer checkpoints, processor_config.json. Raises ConvertError."""
    newer = read_json(directory / _PROCESSOR).get("image_processor")
    values, file = (newer, _PROCESSOR) if isinstance(newer, dict) else (None, _PREPROCESSOR)
    values = values if values is not None else read_json(directory / _PREPROCESSOR)
    if not values:
        raise ConvertError(
            f"{directory} has neither {_PREPROCESSOR} nor {_PROCESSOR}, which say how images are preprocessed: "
            "download the model again, or leave its vision tower out with --text_only"
        )
    return ImageSettings(values, _normalization(values, str(directory / file)))


def _normalization(values: Mapping[str, Any], file: str) -> Normalization:
    name = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")
    default = next((found for begin, found in _DEFAULTS.items() if name.startswith(begin)), _HALF)
    mean, std = (
        _channels(values, key, usual, file) for key, usual in zip(("image_mean", "image_std"), default, strict=True)
    )
    scale = values.get("rescale_factor") or 1 / 255
    if not _is_number(scale) or scale <= 0 or min(std) <= 0:
        raise ConvertError(f"expected rescale_factor and image_std of {file} to be above 0: download it again")
    if values.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Normalization(float(scale) if values.get("do_rescale") is not False else 1.0, mean, std)


def _channels(values: Mapping[str, Any], key: str, default: tuple[float, ...], file: str) -> tuple[float, float, float]:
    value = values.get(key)
    found = default if value is None else [value] * 3 if _is_number(value) else value
    if not isinstance(found, list | tuple) or len(found) != 3 or not all(map(_is_number, found)):
        raise ConvertError(f"expected {key} of {file} to have a number for each of 3 channels, found {shown(value)}")
    red, green, blue = map(float, found)
    return red, green, blue


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
