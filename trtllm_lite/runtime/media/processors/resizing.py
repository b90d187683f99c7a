"""Resizes images, with Pillow's results, and cuts their middle out."""

import numpy as np

from trtllm_lite import _core
from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.media.images import Pixels, import_pillow

MAX_RESIZED_PIXELS = 1 << 25

Colour = tuple[int, int, int]  # red, green, blue
BLACK = (0, 0, 0)
_NEAREST = 0  # which only picks pixels, so that Pillow is fast enough


def resized(image: Pixels, height: int, width: int, resample: int) -> Pixels:
    """``image`` with other extents; ``resample`` is the number of one of Pillow's filters.

    The result is that of Pillow 13, bit for bit. Earlier versions resize a few images in another order of axes.

    Raises LimitError if the result would have more than MAX_RESIZED_PIXELS pixels, as those of thin images can.
    """
    check_extents(image, height, width)
    if image.shape[:2] == (height, width):
        return image
    if resample == _NEAREST:
        return np.asarray(import_pillow().fromarray(image).resize((width, height), resample))
    result = np.empty((height, width, 3), np.uint8)
    _core.resize_image(np.ascontiguousarray(image), result, resample)
    return result


def shortest_edge_resized(image: Pixels, edge: int, resample: int) -> Pixels:
    """``image`` resized so that its shorter side has ``edge`` pixels, and the other is rounded down."""
    height, width = image.shape[:2]
    other = int(edge * max(height, width) / min(height, width))
    new_height, new_width = (other, edge) if width <= height else (edge, other)
    return resized(image, new_height, new_width, resample)


def centre_cropped(image: Pixels, height: int, width: int) -> Pixels:
    """The middle of ``image``, which black pixels surround where it is too small.

    Where a margin is odd, the smaller half of what is cut lies before the middle, and the larger half of what is added.
    """
    result = np.zeros((height, width, 3), np.uint8)
    rows, columns = _overlap(image.shape[0], height), _overlap(image.shape[1], width)
    result[rows[1], columns[1]] = image[rows[0], columns[0]]
    return result


def centred(image: Pixels, height: int, width: int, margin: Colour = BLACK) -> Pixels:
    """``image`` in the middle of ``height`` × ``width`` pixels, the others of which have the colour ``margin``.

    Where a margin is odd, the smaller half of it lies before the image.
    """
    if image.shape[:2] == (height, width):
        return image
    result = np.empty((height, width, 3), np.uint8)
    result[:] = margin
    top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    result[top : top + image.shape[0], left : left + image.shape[1]] = image
    return result


def squared(image: Pixels, margin: Colour) -> Pixels:
    """``image`` in the middle of a square of the colour ``margin``, whose side is the longer one of the image.

    Raises LimitError if the square would have more than MAX_RESIZED_PIXELS pixels.
    """
    side = max(image.shape[:2])
    check_extents(image, side, side)
    return centred(image, side, side, margin)


def check_extents(image: Pixels, height: int, width: int) -> None:
    """Raise LimitError if the pixels that are made of ``image`` would be more than MAX_RESIZED_PIXELS."""
    if height * width > MAX_RESIZED_PIXELS:
        raise LimitError(
            f"the image has {image.shape[0]:,} × {image.shape[1]:,} pixels (height × width), for which the model's "
            f"processor makes {height:,} × {width:,}, which exceeds {MAX_RESIZED_PIXELS:,} pixels: send one whose "
            "sides differ less"
        )


def _overlap(have: int, want: int) -> tuple[slice, slice]:
    """The part of ``have`` elements that lies within the ``want`` middle ones, and its place among these."""
    if have >= want:
        start = (have - want) // 2
        return slice(start, start + want), slice(0, want)
    start = -((have - want) // 2)
    return slice(0, have), slice(start, start + have)
