"""The processor of LLaVA-OneVision."""

import math
from dataclasses import dataclass

from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, Patches, parts_of, patches_of
from trtllm_lite.runtime.media.processors.resizing import centred, resized
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, Checkpoint, Settings

_SIZE = ("height", "width")
_PINPOINTS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
_MAX_PINPOINTS = 1 << 10
_RATIO = "anyres_max_"
_LEAST_SHRINKING = 1.1


@dataclass(frozen=True)
class LlavaOnevisionProcessor(ImageProcessor):
    """Fits images into one of the ``layouts`` of tiles of ``side`` × ``side``, after one tile of the whole image.

    What is left of a layout is black, on both sides of the image. These are the patches of an image that is alone in
    its prompt: transformers does not cut images of prompts with several.

    The tower's features of the tiles of parts are joined, those of the margins left out, and shrunk to about
    ``max_tiles`` tiles. A newline token follows each of their rows.
    """

    side: int
    layouts: tuple[Grid, ...]
    max_tiles: int
    resample: int

    def patches(self, image: Pixels) -> Patches:
        height, width = image.shape[:2]
        layout = self.layout(height, width)
        whole = resized(image, self.side, self.side, self.resample)
        room = (self.side * layout.rows, self.side * layout.columns)
        fitted = resized(image, *_fitted_extents(height, width, *room), self.resample)
        parts, _ = parts_of(centred(fitted, *room), self.side, self.side)
        num_tokens = (self.side // self.patch_size) ** 2 + self._num_joined_tokens(height, width, layout)
        return patches_of([whole, *parts], self.patch_size, num_tokens, layout)

    def layout(self, height: int, width: int) -> Grid:
        """The layout that keeps most pixels of an image and, among such, has the fewest others."""
        return max(self.layouts, key=lambda layout: self._merit(layout, height, width))

    def _merit(self, layout: Grid, height: int, width: int) -> tuple[int, int]:
        room_height, room_width = self.side * layout.rows, self.side * layout.columns
        scale = min(room_width / width, room_height / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - room_height * room_width

    def _num_joined_tokens(self, height: int, width: int, layout: Grid) -> int:
        """The tokens of the tiles of parts, with a newline for each row of them."""
        per_tile = self.side // self.patch_size
        rows, columns = per_tile * layout.rows, per_tile * layout.columns
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        shrink = math.sqrt(rows * columns / (self.max_tiles * per_tile**2))
        if shrink > _LEAST_SHRINKING:
            rows, columns = int(rows // shrink), int(columns // shrink)
        return rows * (columns + 1)


def _fitted_extents(height: int, width: int, room_height: int, room_width: int) -> tuple[int, int]:
    """The largest height and width in proportion, rounded up, that a room has place for."""
    across, down = room_width / width, room_height / height
    if across < down:
        return min(math.ceil(height * across), room_height), room_width
    return room_height, min(math.ceil(width * down), room_width)


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
        layouts=_read_layouts(settings, size["height"]),
        max_tiles=_read_max_tiles(checkpoint.model),
        resample=settings.resample(BICUBIC),
    )


def _read_layouts(settings: Settings, side: int) -> tuple[Grid, ...]:
    pinpoints = settings.get("image_grid_pinpoints", _PINPOINTS)
    if not isinstance(pinpoints, list) or not 1 <= len(pinpoints) <= _MAX_PINPOINTS:
        raise _bad_pinpoints(settings, side)
    for pinpoint in pinpoints:
        is_pair = isinstance(pinpoint, list) and len(pinpoint) == 2 and all(type(edge) is int for edge in pinpoint)
        if not is_pair or any(edge % side or not side <= edge < 1 << 16 for edge in pinpoint):
            raise _bad_pinpoints(settings, side)
    return tuple(Grid(height // side, width // side) for height, width in pinpoints)


def _bad_pinpoints(settings: Settings, side: int) -> EngineError:
    return settings.refusal("image_grid_pinpoints", f"a list of pairs of multiples of {side}, a tile's side")


def _read_max_tiles(model: Settings) -> int:
    text = model.get("vision_aspect_ratio", f"{_RATIO}9")
    number = text.removeprefix(_RATIO) if isinstance(text, str) and text.startswith(_RATIO) else ""
    if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 4 and int(number)):
        raise model.refusal("vision_aspect_ratio", f'"{_RATIO}9", or with another number')
    return int(number)
