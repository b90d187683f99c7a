"""The processor of LLaVA-NeXT, and the tiles that LLaVA-OneVision shares with it."""

import math
from dataclasses import dataclass

from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.media.images import Pixels
from trtllm_lite.runtime.media.processors.processor import Grid, ImageProcessor, Tiles, parts_of
from trtllm_lite.runtime.media.processors.resizing import centred, resized
from trtllm_lite.runtime.media.processors.settings import BICUBIC, CLIP_MEAN, CLIP_STD, Checkpoint, Settings, Size
from trtllm_lite.runtime.media.processors.tower_tokens import STRATEGY, read_extra_tokens

_SHORTEST, _FIXED = ("shortest_edge",), ("height", "width")
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_MAX_PINPOINTS = 1 << 10


@dataclass(frozen=True)
class LlavaNextProcessor(ImageProcessor):
    """Fits images into one of the ``layouts`` of tiles of ``side`` × ``side``, after one tile of the whole image.

    What is left of a layout is black, on both sides of the image. The tower's features of the tiles of parts are
    joined, and those of the margins left out. A newline token follows each of their rows.
    """

    side: int
    layouts: tuple[Grid, ...]
    resample: int

    def tiles(self, image: Pixels) -> Tiles:
        height, width = image.shape[:2]
        layout = self.layout(height, width)
        whole = resized(image, self.side, self.side, self.resample)
        room = (self.side * layout.rows, self.side * layout.columns)
        fitted = resized(image, *_fitted_extents(height, width, *room), self.resample)
        parts, _ = parts_of(centred(fitted, *room), self.side, self.side)
        rows, columns = self._shrunk(self._joined(height, width, layout))
        num_tokens = (self.side // self.patch_size) ** 2 + rows * (columns + 1)
        return Tiles([whole, *parts], num_tokens, layout)

    def layout(self, height: int, width: int) -> Grid:
        """The layout that keeps most pixels of an image and, among such, has the fewest others."""
        return max(self.layouts, key=lambda layout: self._merit(layout, height, width))

    def _merit(self, layout: Grid, height: int, width: int) -> tuple[int, int]:
        room_height, room_width = self.side * layout.rows, self.side * layout.columns
        scale = min(room_width / width, room_height / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - room_height * room_width

    def _joined(self, height: int, width: int, layout: Grid) -> Grid:
        """The features of the tiles of parts, without those of the margins."""
        per_tile = self.side // self.patch_size
        rows, columns = per_tile * layout.rows, per_tile * layout.columns
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        return Grid(rows, columns)

    def _shrunk(self, joined: Grid) -> Grid:
        """The features that the model takes of ``joined`` ones: all, unless there are too many for it."""
        return joined


def _fitted_extents(height: int, width: int, room_height: int, room_width: int) -> tuple[int, int]:
    """The largest height and width in proportion, rounded up, that a room has place for."""
    across, down = room_width / width, room_height / height
    if across < down:
        return min(math.ceil(height * across), room_height), room_width
    return room_height, min(math.ceil(width * down), room_width)


def read(checkpoint: Checkpoint) -> LlavaNextProcessor:
    """The processor of a checkpoint. Raises EngineError."""
    settings = checkpoint.settings
    settings.must_be("do_resize", True)
    settings.flag("do_pad", True)
    settings.must_be("aspect_ratio_setting", "anyres")
    side = _read_side(settings)
    tower = checkpoint.vision.get("model_type", None)
    if read_extra_tokens(checkpoint, class_tokens=0 if tower == "siglip_vision_model" else 1):
        raise checkpoint.model.refusal(STRATEGY, "the one that leaves a tower's patches alone")
    return LlavaNextProcessor(
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch_size=checkpoint.patch_size(dict.fromkeys(_FIXED, side)),
        side=side,
        layouts=read_layouts(settings, side, _PINPOINTS),
        resample=settings.resample(BICUBIC),
    )


def read_layouts(settings: Settings, side: int, default: list[list[int]]) -> tuple[Grid, ...]:
    """The layouts of tiles that an image may have. Raises EngineError."""
    pinpoints = settings.get("image_grid_pinpoints", default)
    if not isinstance(pinpoints, list) or not 1 <= len(pinpoints) <= _MAX_PINPOINTS:
        raise _bad_pinpoints(settings, side)
    for pinpoint in pinpoints:
        is_pair = isinstance(pinpoint, list) and len(pinpoint) == 2 and all(type(edge) is int for edge in pinpoint)
        if not is_pair or any(edge % side or not side <= edge < 1 << 16 for edge in pinpoint):
            raise _bad_pinpoints(settings, side)
    return tuple(Grid(height // side, width // side) for height, width in pinpoints)


def _bad_pinpoints(settings: Settings, side: int) -> EngineError:
    return settings.refusal("image_grid_pinpoints", f"a list of pairs of multiples of {side}, a tile's side")


def _read_side(settings: Settings) -> int:
    """The side of tiles, which the middle cut out of them must have too, so that it leaves them as they are."""
    size = settings.size("size", {"shortest_edge": 224}, _SHORTEST, _FIXED, number=_SHORTEST)
    default: Size = {"height": 224, "width": 224}
    crop = settings.size("crop_size", default, _FIXED, number=_FIXED)
    sides = set(size.values())
    if len(sides) > 1:
        raise settings.refusal("size", "tiles that are square")
    if set(crop.values()) != sides:
        raise settings.refusal("crop_size", f"{sides.pop()} × the same, as size says")
    settings.flag("do_center_crop", True)
    return sides.pop()
