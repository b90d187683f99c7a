"""The processor of SmolVLM and Idefics 3."""

import math
from dataclasses import dataclass

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import UNCUT, ImageProcessor, ImageText, Patches, Tiles, parts_of
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import HALF, LANCZOS, Checkpoint

_EDGE = ("longest_edge",)
_MAX_EDGE = 4096  # of transformers: longer edges are shortened to it


@dataclass(frozen=True)
class SmolVlmProcessor(ImageProcessor):
    """Resizes images to a longer edge of ``longest_edge``, and cuts them into tiles of ``tile_size`` × ``tile_size``.

    The edges are first resized up to multiples of a tile's. Images that consist of more than one tile are cut, and
    squeezed into a last tile; others are this tile alone. ``is_cut`` is false where all images are squeezed.
    """

    longest_edge: int
    tile_size: int
    is_cut: bool
    resample: int
    tokens_per_tile: int

    def tiles(self, image: Pixels) -> Tiles:
        image = resized(image, *self.resized_extents(*image.shape[:2]), self.resample)
        parts: list[Pixels] = []
        layout = UNCUT
        if self.is_cut:
            image = resized(image, *self._whole_tiles(*image.shape[:2]), self.resample)
            if max(image.shape[:2]) > self.tile_size:
                parts, layout = parts_of(image, self.tile_size, self.tile_size)
        tiles = [*parts, resized(image, self.tile_size, self.tile_size, self.resample)]
        return Tiles(tiles, self.tokens_per_tile * len(tiles), layout)

    def text(self, patches: Patches) -> ImageText:
        mark, layout = "<fake_token_around_image>", patches.parts
        text = ""
        for row in range(1, layout.rows + 1):
            for column in range(1, layout.columns + 1):
                text += f"{mark}<row_{row}_col_{column}>{self.image_token}"
            text += "\n"
        text += "" if layout == UNCUT else "\n"
        text += f"{mark}<global-img>{self.image_token}{mark}"
        return ImageText(text, (self.tokens_per_tile,) * len(patches.grids))

    def resized_extents(self, height: int, width: int) -> tuple[int, int]:
        """The height and width at which the longer edge of an image is ``longest_edge``, but at most _MAX_EDGE."""
        ratio, edge = width / height, self.longest_edge
        if width >= height:
            shorter = int(edge / ratio)
            height, width = max(1, shorter + shorter % 2), edge
        else:
            shorter = int(edge * ratio)
            height, width = edge, max(1, shorter + shorter % 2)
        ratio = width / height
        if max(height, width) <= _MAX_EDGE:
            return height, width
        if width >= height:
            return max(1, int(_MAX_EDGE / ratio)), _MAX_EDGE
        return _MAX_EDGE, max(1, int(_MAX_EDGE * ratio))

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        """The longer edge up to whole tiles, then the shorter one in the same ratio, again up to whole tiles."""
        ratio = width / height
        if width >= height:
            width = self._up(width)
            return self._up(int(width / ratio)), width
        height = self._up(height)
        return height, self._up(int(height * ratio))

    def _up(self, edge: int) -> int:
        return math.ceil(edge / self.tile_size) * self.tile_size


def read(checkpoint: Checkpoint) -> SmolVlmProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    settings.flag("do_pad", True)
    settings.flag("return_row_col_info", False)
    tile = settings.size("max_image_size", {"longest_edge": 364}, _EDGE)
    tile_size = tile["longest_edge"]
    patch_size = checkpoint.patch_size(tile)
    merge_size = checkpoint.model.whole("scale_factor", 2, 1 << 6)
    return SmolVlmProcessor(
        normalization=settings.normalization(HALF, HALF),
        patch_size=patch_size,
        longest_edge=settings.size("size", {"longest_edge": 4 * 364}, _EDGE)["longest_edge"],
        tile_size=tile_size,
        is_cut=settings.flag("do_image_splitting", True),
        resample=settings.resample(LANCZOS),
        tokens_per_tile=(tile_size // patch_size) ** 2 // merge_size**2,
    )
