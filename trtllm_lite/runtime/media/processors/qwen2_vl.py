"""The processor of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5."""

import math
from dataclasses import dataclass
from typing import ClassVar

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, Tiles, grid_of
from trtllm_lite.runtime.media.processors.resizing import resized
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, MAX_PIXELS, Checkpoint

MAX_ASPECT_RATIO = 200
_SIZE = ("shortest_edge", "longest_edge")  # numbers of pixels, in spite of these names


@dataclass(frozen=True)
class Qwen2VLProcessor(ImageProcessor):
    """Keeps the aspect ratio and the area, and cuts patches in the order in which the tower merges them.

    The patches of ``merge_size`` × ``merge_size`` follow each other, and become one token. The tower's convolution
    takes ``frames_per_patch`` frames; a still image is the same in all of them, so that a row has one frame, and the
    convolution is summed over frames when an engine is built.
    """

    placeholder: ClassVar[str] = "<|image_pad|>"
    image_token: ClassVar[str] = "<|image_pad|>"

    frames_per_patch: int
    merge_size: int
    min_pixels: int
    max_pixels: int
    resample: int

    def tiles(self, image: Pixels) -> Tiles:
        height, width = self.resized_extents(*image.shape[:2])
        tile = resized(image, height, width, self.resample)
        grid = grid_of(tile, self.patch_size)
        num_tokens = grid.rows * grid.columns // self.merge_size**2
        return Tiles([tile], num_tokens)

    @property
    def group_side(self) -> int:
        return self.merge_size

    def resized_extents(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an image of ``height`` × ``width`` is resized to.

        Both are multiples of ``patch_size * merge_size``, the nearest ones if their product lies between ``min_pixels``
        and ``max_pixels``. Raises ArgumentError if one side is more than MAX_ASPECT_RATIO times the other.
        """
        if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
            raise ArgumentError(
                f"the image has {height:,} × {width:,} pixels (height × width): the model expects that no side has "
                f"more than {MAX_ASPECT_RATIO} times as many as the other"
            )
        step = self.patch_size * self.merge_size
        near_height, near_width = (round(side / step) * step for side in (height, width))
        if near_height * near_width > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            low_height, low_width = (math.floor(side / shrink / step) * step for side in (height, width))
            return max(step, low_height), max(step, low_width)
        if near_height * near_width < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            return math.ceil(height * grow / step) * step, math.ceil(width * grow / step) * step
        return near_height, near_width


def read(checkpoint: Checkpoint) -> Qwen2VLProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    size = settings.size("size", {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, _SIZE, most=MAX_PIXELS)
    # Older checkpoints have these two instead of a size; the class of transformers lets them win.
    least = settings.whole("min_pixels", size["shortest_edge"], MAX_PIXELS)
    most = settings.whole("max_pixels", size["longest_edge"], MAX_PIXELS)
    return Qwen2VLProcessor(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=settings.whole("patch_size", 14, 1 << 10),
        frames_per_patch=settings.whole("temporal_patch_size", 2, 1 << 10),
        merge_size=settings.whole("merge_size", 2, 1 << 6),
        min_pixels=least,
        max_pixels=most,
        resample=settings.resample(BICUBIC),
    )
