"""The processor of Gemma 3."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, ImageText, Patches, Tiles
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import BILINEAR, HALF, Checkpoint, Settings

_SIZE = ("height", "width")
_TOKENS = "mm_tokens_per_image"


@dataclass(frozen=True)
class PanAndScan:
    """Cuts an image, one side of which is at least ``min_ratio`` times the other, into crops along that side.

    There are as many crops as the ratio of the sides, rounded, but at most ``max_crops`` and at least 2. Where a side
    of a crop would have fewer than ``min_crop_size`` pixels there are none.
    """

    min_crop_size: int
    max_crops: int
    min_ratio: float

    def crops(self, image: Pixels) -> Sequence[Pixels]:
        """Views of the crops of an image, from left to right or from top to bottom; none if it is not cut."""
        height, width = image.shape[:2]
        longer, shorter = max(height, width), min(height, width)
        if longer / shorter < self.min_ratio:
            return []
        wanted = min(longer // self.min_crop_size, math.floor(longer / shorter + 0.5))
        number = min(self.max_crops, max(2, wanted))
        length = math.ceil(longer / number)
        if min(length, shorter) < self.min_crop_size:
            return []
        starts = range(0, number * length, length)
        if width >= height:
            return [image[:, start : start + length] for start in starts]
        return [image[start : start + length] for start in starts]


@dataclass(frozen=True)
class Gemma3Processor(ImageProcessor):
    """Squeezes images into a tile of ``height`` × ``width``, and their crops, if any, into further ones after it.

    The tower's patches are pooled to ``tokens_per_tile``. ``pan_and_scan`` is None where images are not cut.
    """

    placeholder: ClassVar[str] = "<start_of_image>"
    image_token: ClassVar[str] = "<image_soft_token>"

    height: int
    width: int
    resample: int
    tokens_per_tile: int
    pan_and_scan: PanAndScan | None

    def tiles(self, image: Pixels) -> Tiles:
        crops = [] if self.pan_and_scan is None else self.pan_and_scan.crops(image)
        tiles = [resized(part, self.height, self.width, self.resample) for part in [image, *crops]]
        is_wide = image.shape[1] >= image.shape[0]
        parts = Grid(min(1, len(crops)), len(crops)) if is_wide else Grid(len(crops), min(1, len(crops)))
        return Tiles(tiles, self.tokens_per_tile * len(tiles), parts)

    def text(self, patches: Patches) -> ImageText:
        tile = f"\n\n<start_of_image>{self.image_token}<end_of_image>\n\n"
        repeats = (self.tokens_per_tile,) * len(patches.grids)
        if len(patches.grids) == 1:
            return ImageText(tile, repeats)
        crops = " ".join([tile] * (len(patches.grids) - 1))
        introduction = f"Here is the original image {tile} and here are some crops to help you see better "
        return ImageText(introduction + crops, repeats)


def read(checkpoint: Checkpoint) -> Gemma3Processor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    size = settings.size("size", {"height": 224, "width": 224}, _SIZE)
    tokens = checkpoint.model.whole(_TOKENS, 256)
    if settings.whole("image_seq_length", tokens) != tokens:
        raise settings.refusal("image_seq_length", f"{tokens}, as {_TOKENS} of config.json says")
    return Gemma3Processor(
        normalization=settings.normalization(HALF, HALF),
        patch_size=checkpoint.patch_size(size),
        height=size["height"],
        width=size["width"],
        resample=settings.resample(BILINEAR),
        tokens_per_tile=tokens,
        pan_and_scan=_read_pan_and_scan(settings),
    )


def _read_pan_and_scan(settings: Settings) -> PanAndScan | None:
    pan_and_scan = PanAndScan(
        settings.whole("pan_and_scan_min_crop_size", 256),
        settings.whole("pan_and_scan_max_num_crops", 4, 1 << 8),
        settings.number("pan_and_scan_min_ratio_to_activate", 1.2),
    )
    if pan_and_scan.min_crop_size < pan_and_scan.max_crops:  # the last crop of a short image could be empty
        raise settings.refusal("pan_and_scan_min_crop_size", "at least pan_and_scan_max_num_crops")
    return pan_and_scan if settings.flag("do_pan_and_scan", False) else None
