"""Reads the settings of an image processor from a checkpoint, each one checked and none left over."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_lite.common.foreign_files import is_plain_file, read_foreign
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import EngineError, shown
from trtllm_lite.runtime.media.processors.processor import Normalization

PREPROCESSOR_FILE, PROCESSOR_FILE, CONFIG_FILE = "preprocessor_config.json", "processor_config.json", "config.json"
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
LANCZOS, BILINEAR, BICUBIC = 1, 2, 3  # numbers of Pillow's filters

_MAX_FILE_BYTES = 1 << 24
_MAX_SIDE = 1 << 16
MAX_PIXELS = 1 << 40  # of settings that count pixels
_NUM_FILTERS = 6
# These have no influence on pixels: images are RGB when they get to a processor, and no code of a checkpoint is run.
_WITHOUT_EFFECT = {
    *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "return_tensors"),
    *("do_convert_rgb", "default_to_square", "data_format", "device", "disable_grouping"),
}

Size = dict[str, int]
Kind = tuple[str, ...]  # keys of a size


class Settings:
    """The settings of one processor. Those that are null are as if they were absent, as in transformers.

    Every method that reads a setting raises EngineError if its value is not one that the processor supports.
    """

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._file = file
        self._unread = set(self._values) - _WITHOUT_EFFECT

    def refusal(self, key: str, expected: str) -> EngineError:
        """The error that says that the value of ``key`` is not as ``expected``."""
        found = f"is {shown(self._values[key])}" if key in self._values else "is absent"
        return EngineError(f"{key} of {self._file} {found}: expected {expected}")

    def get(self, key: str, default: Any) -> Any:
        """The value of a setting, unchecked."""
        self._unread.discard(key)
        return self._values.get(key, default)

    def flag(self, key: str, default: bool) -> bool:
        """A setting that is true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def must_be(self, key: str, value: Any) -> None:
        """Check that a setting, if it is there, has the only ``value`` that is supported."""
        if self.get(key, value) != value:
            raise self.refusal(key, f"{json.dumps(value)}, as nothing else is supported")

    def whole(self, key: str, default: int | None, most: int = _MAX_SIDE) -> int:
        """A whole number from 1 to ``most``; it must be there if there is no ``default``."""
        value = self.get(key, default)
        if not _is_whole(value, most):
            raise self.refusal(key, f"a whole number from 1 to {most:,}")
        return int(value)

    def side(self, key: str, most: int) -> int:
        """The side of a square, which some configs give twice, from 1 to ``most``."""
        value = self.get(key, None)
        sides = value if isinstance(value, list) and len(value) == 2 else [value, value]
        if sides[0] != sides[1] or not _is_whole(sides[0], most):
            raise self.refusal(key, f"the side of a square, a whole number from 1 to {most:,}")
        return int(sides[0])

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.get(key, default)
        if not _is_finite(value) or value <= 0:
            raise self.refusal(key, "a number above 0")
        return float(value)

    def resample(self, default: int) -> int:
        """The number of one of Pillow's filters."""
        value = self.get("resample", default)
        if not _is_whole(value, _NUM_FILTERS - 1) and (value != 0 or isinstance(value, bool)):
            raise self.refusal("resample", "the number of a filter of Pillow, from 0 to 5")
        return int(value)

    def size(self, key: str, default: Size, *kinds: Kind, number: Kind | None = None, most: int = _MAX_SIDE) -> Size:
        """A size with exactly the keys of one of the ``kinds``. A plain number is that of all keys of ``number``."""
        value = self.get(key, default)
        if number is not None and _is_whole(value, most):
            value = dict.fromkeys(number, value)
        if isinstance(value, dict):
            value = {name: extent for name, extent in value.items() if extent is not None}
            if any(value.keys() == set(kind) for kind in kinds) and all(_is_whole(n, most) for n in value.values()):
                return value
        expected = " or ".join("{" + ", ".join(kind) + "}" for kind in kinds)
        raise self.refusal(key, f"{expected} with whole numbers from 1 to {most:,}")

    def normalization(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
        """How pixels are rescaled and normalised, by ``mean`` and ``std`` if the settings name no others."""
        rescale = self.number("rescale_factor", 1 / 255)
        scale = rescale if self.flag("do_rescale", True) else 1.0
        mean, std = self._channels("image_mean", mean), self._channels("image_std", std)
        if min(std) <= 0:
            raise self.refusal("image_std", "numbers above 0")
        if not self.flag("do_normalize", True):
            mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        return Normalization(scale, mean, std)

    def mean_colour(self, mean: tuple[float, ...]) -> tuple[int, int, int]:
        """The colour of margins, which is that of the mean, in values from 0 to 255. Raises EngineError."""
        red, green, blue = (int(value * 255) for value in self._channels("image_mean", mean))
        if not 0 <= min(red, green, blue) <= max(red, green, blue) <= 255:
            raise self.refusal("image_mean", "numbers from 0 to 1, as margins have their colour")
        return red, green, blue

    def finish(self) -> None:
        """Raise EngineError if there are settings that nothing has read, other than steps that are switched off."""
        for step in ("do_center_crop", "do_pad"):
            self._unread -= {step} if self._values.get(step) is False else set()
        if self._unread:
            keys = ", ".join(one_line(key) for key in sorted(self._unread)[:10])
            raise EngineError(
                f"{self._file} has settings of images that are not supported here: {keys}; expected a checkpoint "
                "whose processor is as in transformers"
            )

    def _channels(self, key: str, default: tuple[float, ...]) -> tuple[float, float, float]:
        value = self.get(key, default)
        values = [value] * 3 if _is_finite(value) else value
        if not isinstance(values, list | tuple) or len(values) != 3 or not all(map(_is_finite, values)):
            raise self.refusal(key, "a number for each of 3 channels")
        red, green, blue = map(float, values)
        return red, green, blue


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_finite(value: Any) -> bool:
    """Whether ``value`` is a number that float32 can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e38


class Checkpoint:
    """What a checkpoint says of its images: the settings of its processor, and its model's ``config``."""

    @classmethod
    def from_dir(cls, directory: Path) -> "Checkpoint":
        """Read the files of a checkpoint. Raises EngineError if they are absent or damaged."""
        return cls(read_json(directory / CONFIG_FILE), *_processor_values(directory))

    @classmethod
    def from_file(cls, path: Path) -> "Checkpoint":
        """Read the file of an engine that has both. Raises EngineError if it is absent or damaged."""
        both = read_json(path)
        values, config = both.get("image_processor"), both.get("model")
        if not isinstance(values, dict) or not isinstance(config, dict):
            raise EngineError(f"{path} has no settings of an image processor and its model: build the engine again")
        return cls(config, values, path.name)

    def __init__(self, config: dict[str, Any], values: dict[str, Any], file: str) -> None:
        """``values`` are the settings of the processor, from ``file``."""
        self._config = config
        self.type = values.get("image_processor_type") or values.get("feature_extractor_type")
        self.settings = Settings(values, file)
        self.vision = self._part("vision_config")
        self.model = Settings(self._config, CONFIG_FILE)

    def patch_size(self, tile: Size) -> int:
        """The side of the tower's patches, at least one of which a ``tile`` has in each direction."""
        return self.vision.side("patch_size", min(tile.values()))

    def _part(self, name: str) -> Settings:
        part = self._config.get(name)
        # A checkpoint of a vision tower alone has its fields at the top.
        return (
            Settings(part, f"{name} in {CONFIG_FILE}")
            if isinstance(part, dict)
            else Settings(self._config, CONFIG_FILE)
        )


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object. Raises EngineError."""
    try:
        value = json.loads(read_foreign(path, _MAX_FILE_BYTES))
    except OSError as error:
        raise EngineError(
            f"{path} cannot be read ({one_line(error.strerror or str(error))}): expected a checkpoint of a model that "
            "takes images"
        ) from error
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path} is no JSON ({one_line(str(error))}): download the checkpoint again") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path} holds {shown(value)}: expected a JSON object; download the checkpoint again")
    return value


def _processor_values(directory: Path) -> tuple[dict[str, Any], str]:
    """The settings of the image processor, and the file that they are from: newer checkpoints have them in another."""
    if is_plain_file(directory / PROCESSOR_FILE):
        values = read_json(directory / PROCESSOR_FILE).get("image_processor")
        if isinstance(values, dict):
            return values, PROCESSOR_FILE
    return read_json(directory / PREPROCESSOR_FILE), PREPROCESSOR_FILE
