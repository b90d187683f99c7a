"""The processor of CLIP, which LLaVA 1.5 uses."""

from dataclasses import dataclass

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, Tiles
from trtllm_lite.runtime.media.processors.resizing import (
    Colour,
    centre_cropped,
    resized,
    shortest_edge_resized,
    squared,
)
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, Checkpoint, Size
from trtllm_lite.runtime.media.processors.tower_tokens import read_extra_tokens

_SHORTEST, _FIXED = ("shortest_edge",), ("height", "width")


@dataclass(frozen=True)
class ClipProcessor(ImageProcessor):
    """Resizes images so that the shorter side has ``size``, or both sides have, and takes the middle of them.

    ``size`` is {shortest_edge} or {height, width}; ``crop`` has the extents of the middle, or is None for all. Where
    there is a ``margin``, images are the middles of squares of this colour first.
    """

    size: Size
    crop: Size | None
    resample: int
    extra_tokens: int
    margin: Colour | None = None

    def tiles(self, image: Pixels) -> Tiles:
        tile = self._tile(image)
        num_patches = (tile.shape[0] // self.patch_size) * (tile.shape[1] // self.patch_size)
        return Tiles([tile], num_patches + self.extra_tokens)

    def _tile(self, image: Pixels) -> Pixels:
        if self.margin is not None:
            image = squared(image, self.margin)
        if "shortest_edge" in self.size:
            tile = shortest_edge_resized(image, self.size["shortest_edge"], self.resample)
        else:
            tile = resized(image, self.size["height"], self.size["width"], self.resample)
        return tile if self.crop is None else centre_cropped(tile, self.crop["height"], self.crop["width"])


def read(checkpoint: Checkpoint) -> ClipProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    number = _FIXED if settings.flag("default_to_square", False) else _SHORTEST
    size = settings.size("size", {"shortest_edge": 224}, _SHORTEST, _FIXED, number=number)
    crop = settings.size("crop_size", {"height": 224, "width": 224}, _FIXED, number=_FIXED)
    is_cropped = settings.flag("do_center_crop", True)
    if not is_cropped and "shortest_edge" in size:
        raise settings.refusal("do_center_crop", "true, as the tower takes images of one shape")
    return ClipProcessor(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=checkpoint.patch_size(crop if is_cropped else size),
        size=size,
        crop=crop if is_cropped else None,
        resample=settings.resample(BICUBIC),
        extra_tokens=read_extra_tokens(checkpoint, class_tokens=1),
    )
