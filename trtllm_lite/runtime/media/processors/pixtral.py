"""The processor of Pixtral and Mistral 3."""

import math
from dataclasses import dataclass
from typing import ClassVar

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, ImageText, Patches, Tiles, grid_of
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, Checkpoint, Size

_LONGEST, _FIXED = ("longest_edge",), ("height", "width")


@dataclass(frozen=True)
class PixtralProcessor(ImageProcessor):
    """Shrinks images to at most ``max_height`` × ``max_width``, and both sides up to whole tokens.

    ``merge_size`` × ``merge_size`` patches become one token; the patches are in row-major order all the same. In
    transformers the images of a batch are padded after they are normalised, and the tower cuts what was added, so that
    it needs no place here.
    """

    placeholder: ClassVar[str] = "[IMG]"
    image_token: ClassVar[str] = "[IMG]"

    max_height: int
    max_width: int
    merge_size: int
    resample: int

    def tiles(self, image: Pixels) -> Tiles:
        tile = resized(image, *self.resized_extents(*image.shape[:2]), self.resample)
        grid = grid_of(tile, self.patch_size)
        return Tiles([tile], grid.rows * grid.columns // self.merge_size**2)

    def text(self, patches: Patches) -> ImageText:
        rows, columns = (side // self.merge_size for side in patches.grids[0])
        text = "[IMG_BREAK]".join([self.image_token] * rows) + "[IMG_END]"
        return ImageText(text, (columns,) * rows)

    def resized_extents(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an image of ``height`` × ``width`` is resized to.

        A side of a thin image that rounds down to 0 is taken as one token, for which transformers raises an error.
        """
        ratio = max(height / self.max_height, width / self.max_width)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        step = self.patch_size * self.merge_size
        return max(step, -(-height // step) * step), max(step, -(-width // step) * step)


def read(checkpoint: Checkpoint) -> PixtralProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    settings.flag("do_pad", True)
    size = settings.size("size", {"longest_edge": 1024}, _LONGEST, _FIXED)
    patch_size = checkpoint.vision.side("patch_size", 1 << 10)
    merge_size = checkpoint.model.whole("spatial_merge_size", 1, 1 << 6)
    # The processor of a checkpoint passes the side of a token on, whatever its image processor says.
    own = settings.size("patch_size", _square(patch_size), _FIXED, number=_FIXED)
    if own not in (_square(patch_size), _square(patch_size * merge_size)):
        raise settings.refusal("patch_size", f"{patch_size}, as vision_config in config.json says")
    return PixtralProcessor(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=patch_size,
        max_height=size.get("longest_edge", size.get("height", 0)),
        max_width=size.get("longest_edge", size.get("width", 0)),
        merge_size=merge_size,
        resample=settings.resample(BICUBIC),
    )


def _square(side: int) -> Size:
    return dict.fromkeys(_FIXED, side)
