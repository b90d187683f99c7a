"""The processor of SigLIP 2 with native aspect ratios (NaFlex)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, Rows, Tiles, grid_of
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import BILINEAR, HALF, Checkpoint

_MAX_SCALE = 100.0
_PRECISION = 1e-5


@dataclass(frozen=True)
class Siglip2Processor(ImageProcessor):
    """Resizes images to the largest extents of at most ``max_num_patches`` whole patches, nearly in proportion.

    In transformers rows of zeros follow, up to ``max_num_patches``, after pixels are normalised; a mask keeps them out
    of the tower's results, so that they have no place here.
    """

    channels_last: ClassVar[bool] = True

    max_num_patches: int
    resample: int

    def tiles(self, image: Pixels) -> Tiles:
        tile = resized(image, *self.resized_extents(*image.shape[:2]), self.resample)
        grid = grid_of(tile, self.patch_size)
        return Tiles([tile], grid.rows * grid.columns)

    def _cut(self, tile: Pixels, rows: Rows) -> None:
        grid, side = grid_of(tile, self.patch_size), self.patch_size
        cells = tile.reshape(grid.rows, side, grid.columns, side, 3).transpose(0, 2, 1, 3, 4)
        rows.reshape(cells.shape)[:] = cells

    def resized_extents(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an image of ``height`` × ``width`` is resized to.

        The scale is found by bisection to _PRECISION, as which of two near scales is found decides the extents.
        """
        low, high = _PRECISION / 10, _MAX_SCALE
        while high - low >= _PRECISION:
            middle = (low + high) / 2
            if self._patches_along(middle, height) * self._patches_along(middle, width) <= self.max_num_patches:
                low = middle
            else:
                high = middle
        return self._patches_along(low, height) * self.patch_size, self._patches_along(low, width) * self.patch_size

    def _patches_along(self, scale: float, side: int) -> int:
        return max(1, math.ceil(side * scale / self.patch_size))


def read(checkpoint: Checkpoint) -> Siglip2Processor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    return Siglip2Processor(
        normalization=settings.normalization(HALF, HALF),
        patch_size=settings.whole("patch_size", 16, 1 << 10),
        max_num_patches=settings.whole("max_num_patches", 256),
        resample=settings.resample(BILINEAR),
    )
