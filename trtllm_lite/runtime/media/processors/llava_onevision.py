"""The processor of LLaVA-OneVision."""

import math
from dataclasses import dataclass
from typing import ClassVar

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.llava_next import LlavaNextProcessor, read_layouts
from trtllm_lite.runtime.media.processors.processor import Grid, Tiles
from trtllm_lite.runtime.media.processors.resizing import Colour, resized, squared
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, Checkpoint, Settings

_SIZE = ("height", "width")
_PINPOINTS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
_RATIO = "anyres_max_"
_LEAST_SHRINKING = 1.1


@dataclass(frozen=True)
class LlavaOnevisionProcessor(LlavaNextProcessor):
    """LLaVA-NeXT's processor, but that joined features are shrunk to about ``max_tiles`` tiles.

    An image that is alone in its prompt is cut. One among others is squeezed into a single tile, in the middle of a
    square of the colour ``margin``, and a newline token follows its features.
    """

    differs_among_others: ClassVar[bool] = True

    max_tiles: int
    margin: Colour

    def tiles_among_others(self, image: Pixels) -> Tiles:
        tile = resized(squared(image, self.margin), self.side, self.side, self.resample)
        return Tiles([tile], (self.side // self.patch_size) ** 2 + 1)

    def _shrunk(self, joined: Grid) -> Grid:
        per_tile = self.side // self.patch_size
        shrink = math.sqrt(joined.rows * joined.columns / (self.max_tiles * per_tile**2))
        return Grid(int(joined.rows // shrink), int(joined.columns // shrink)) if shrink > _LEAST_SHRINKING else joined


def read(checkpoint: Checkpoint) -> LlavaOnevisionProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    settings.flag("do_pad", True)
    size = settings.size("size", {"height": 384, "width": 384}, _SIZE)
    if size["height"] != size["width"]:
        raise settings.refusal("size", "tiles that are square")
    if checkpoint.model.get("vision_feature_select_strategy", "full") != "full":
        raise checkpoint.model.refusal("vision_feature_select_strategy", '"full", as nothing else is supported')
    return LlavaOnevisionProcessor(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=checkpoint.patch_size(size),
        side=size["height"],
        layouts=read_layouts(settings, size["height"], _PINPOINTS),
        resample=settings.resample(BICUBIC),
        max_tiles=_read_max_tiles(checkpoint.model),
        margin=settings.mean_colour(CLIP_MEAN),
    )


def _read_max_tiles(model: Settings) -> int:
    text = model.get("vision_aspect_ratio", f"{_RATIO}9")
    number = text.removeprefix(_RATIO) if isinstance(text, str) and text.startswith(_RATIO) else ""
    if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 4 and int(number)):
        raise model.refusal("vision_aspect_ratio", f'"{_RATIO}9", or with another number')
    return int(number)
