"""The processor of GOT-OCR 2 and InternVL."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, ImageText, Patches, Tiles, parts_of
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, Checkpoint

_SIZE = ("height", "width")
_MAX_TILES = 1 << 8


@dataclass(frozen=True)
class GotOcr2Processor(ImageProcessor):
    """Cuts images into ``min_tiles`` to ``max_tiles`` tiles of ``height`` × ``width``, and adds one of the whole image.

    The layout of the tiles is the one whose aspect ratio is nearest to the image's. The tile of the whole image is the
    last one; there is none besides a single tile. Each tile becomes ``tokens_per_tile`` tokens.
    """

    placeholder: ClassVar[str] = "<IMG_CONTEXT>"
    image_token: ClassVar[str] = "<IMG_CONTEXT>"

    height: int
    width: int
    min_tiles: int
    max_tiles: int
    resample: int
    tokens_per_tile: int

    def tiles(self, image: Pixels) -> Tiles:
        layout = self.layout(*image.shape[:2])
        whole = resized(image, self.height, self.width, self.resample)
        if layout == (1, 1):
            return Tiles([whole], self.tokens_per_tile)
        large = resized(image, self.height * layout.rows, self.width * layout.columns, self.resample)
        parts, _ = parts_of(large, self.height, self.width)
        return Tiles([*parts, whole], self.tokens_per_tile * (len(parts) + 1), layout)

    def text(self, patches: Patches) -> ImageText:
        return ImageText(f"<img>{self.image_token}</img>", (patches.num_tokens,))

    def layout(self, height: int, width: int) -> Grid:
        """The layout of the tiles of an image.

        Among equally near ones a later one, of more tiles, is taken if the image has more than half of its pixels.
        """
        ratio, area = width / height, width * height
        best, least = Grid(1, 1), float("inf")
        for layout in sorted(self._layouts(), key=lambda layout: layout.rows * layout.columns):
            distance = abs(ratio - layout.columns / layout.rows)
            is_filled = area > 0.5 * self.height * self.width * layout.rows * layout.columns
            if distance < least or (distance == least and is_filled):
                best, least = layout, distance
        return best

    def _layouts(self) -> Iterator[Grid]:
        for columns in range(1, self.max_tiles + 1):
            for rows in range(1, self.max_tiles // columns + 1):
                if rows * columns >= self.min_tiles:
                    yield Grid(rows, columns)


def read(checkpoint: Checkpoint) -> GotOcr2Processor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    size = settings.size("size", {"height": 384, "width": 384}, _SIZE)
    max_tiles = settings.whole("max_patches", 12, _MAX_TILES)
    min_tiles = settings.whole("min_patches", 1, max_tiles)
    # The processor of InternVL asks for tiles, whatever the settings of its image processor say.
    is_cut = settings.flag("crop_to_patches", False) or checkpoint.model.get("model_type", None) == "internvl"
    return GotOcr2Processor(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=checkpoint.patch_size(size),
        height=size["height"],
        width=size["width"],
        min_tiles=min_tiles if is_cut and max_tiles > 1 else 1,
        max_tiles=max_tiles if is_cut else 1,
        resample=settings.resample(BICUBIC),
        tokens_per_tile=checkpoint.model.whole("image_seq_length", 256),
    )
