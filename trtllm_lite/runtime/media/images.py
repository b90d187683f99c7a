"""Reads images of foreign origin into arrays of RGB pixels.

The header of an image is held against the limits before its pixels are decoded. Orientation and colours are as the PIL
back ends of transformers have them: the EXIF orientation is applied, and what is transparent lies on white.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.foreign_files import read_foreign
from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ArgumentError, LimitError, shown

Pixels = NDArray[np.uint8]  # [height, width, 3], RGB

# What Pillow decodes by itself: its reader of EPS, for example, would start another program.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PILLOW_MAX_PIXELS = 178_956_970  # Pillow opens no larger image
_EXPECTED = f"expected an image in one of the formats {', '.join(FORMATS)}"
_WHITE = (255, 255, 255, 255)


@dataclass(frozen=True)
class ImageLimits:
    """Bounds of an image: the pixels of one frame, and the bytes of its encoded form.

    Raises ArgumentError if a bound is not positive, or ``max_image_pixels`` exceeds PILLOW_MAX_PIXELS.
    """

    max_image_pixels: int = 1 << 26
    max_image_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        if not 1 <= self.max_image_pixels <= PILLOW_MAX_PIXELS:
            raise ArgumentError(
                f"max_image_pixels is {shown(self.max_image_pixels)}: expected a number from 1 to {PILLOW_MAX_PIXELS:,}"
            )
        if self.max_image_bytes < 1:
            raise ArgumentError(f"max_image_bytes is {shown(self.max_image_bytes)}: expected a positive number")


def read_image(source: Any, limits: ImageLimits) -> Pixels:
    """The pixels of an image: uint8 [height, width, 3], RGB.

    ``source`` is the content of a file (bytes), the path of one, a PIL image, or an array of RGB pixels, uint8
    [height, width, 3]. Of an animation it is the first frame. 16-bit greys above 255 become white, as in Pillow. The
    result may be read-only.

    Raises ArgumentError if ``source`` is no image, is truncated or damaged, or Pillow is not installed, and LimitError
    if it exceeds ``limits`` or the memory.
    """
    if isinstance(source, np.ndarray):
        return _checked_array(source, limits)
    pillow = import_pillow()
    if isinstance(source, pillow.Image):
        return _pixels(source, limits, is_ours=False)
    content = _content(source, limits)
    with _pillow_errors("the image cannot be read"):
        image = pillow.open(BytesIO(content), formats=FORMATS)
    with image:
        return _pixels(image, limits, is_ours=True)


def import_pillow() -> Any:
    """The module PIL.Image. Raises ArgumentError if Pillow is not installed."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ArgumentError("images need Pillow, which is not installed: pip install 'trtllm_lite[vision]'") from error


def check_pixels(height: int, width: int, limits: ImageLimits) -> None:
    """Raise LimitError if an image of these extents exceeds ``limits``, ArgumentError if it has no pixels."""
    if height < 1 or width < 1:
        raise ArgumentError(f"the image has {height} × {width} pixels (height × width): expected at least one")
    if height * width > limits.max_image_pixels:
        raise LimitError(
            f"the image has {height:,} × {width:,} pixels (height × width), which exceeds max_image_pixels "
            f"({limits.max_image_pixels:,}): send a smaller one"
        )


def check_bytes(length: int, limits: ImageLimits) -> None:
    """Raise LimitError if the file of an image of this ``length`` exceeds ``limits``."""
    if length > limits.max_image_bytes:
        raise LimitError(
            f"the image has {length:,} bytes, which exceeds max_image_bytes ({limits.max_image_bytes:,}): send a "
            "smaller one"
        )


def _checked_array(array: NDArray[Any], limits: ImageLimits) -> Pixels:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise ArgumentError(
            f"the array of an image is {array.dtype} {list(array.shape)}: expected uint8 [height, width, 3], RGB"
        )
    check_pixels(array.shape[0], array.shape[1], limits)
    return np.ascontiguousarray(array)


def _content(source: Any, limits: ImageLimits) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
        check_bytes(len(content), limits)
        return content
    if not isinstance(source, str | os.PathLike):
        raise ArgumentError(
            f"an image is given as {type(source).__name__}: expected bytes, a path, a PIL image, or an array"
        )
    try:
        return read_foreign(Path(source), limits.max_image_bytes)
    except OSError as error:
        raise ArgumentError(
            f"the image {shown(os.fspath(source))} cannot be read ({one_line(error.strerror or str(error))}): expected "
            f"the path of a file of at most {limits.max_image_bytes:,} bytes"
        ) from error


def _pixels(image: Any, limits: ImageLimits, is_ours: bool) -> Pixels:
    """The pixels of a PIL image, whose own are decoded only now; the image may be changed if it ``is_ours``."""
    check_pixels(image.height, image.width, limits)
    found = f"the image ({image.format or 'of PIL'}, mode {one_line(image.mode)}) cannot be decoded"
    with _pillow_errors(found):
        upright = importlib.import_module("PIL.ImageOps").exif_transpose(image, in_place=is_ours) or image
        return np.asarray(_rgb(upright))


def _rgb(image: Any) -> Any:
    """A PIL image in the mode RGB."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    pillow = import_pillow()
    over = image.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", over.size, _WHITE), over).convert("RGB")


@contextmanager
def _pillow_errors(found: str) -> Iterator[None]:
    """Turn what Pillow raises into errors of this package. Damaged files make it raise any kind of exception."""
    pillow = import_pillow()
    try:
        yield
    except MemoryError as error:
        raise LimitError(f"{found}: it needs more memory than there is; send a smaller one") from error
    except pillow.DecompressionBombError as error:
        raise LimitError(
            f"{found} ({one_line(str(error))}): send one of at most {PILLOW_MAX_PIXELS:,} pixels"
        ) from error
    except pillow.UnidentifiedImageError as error:
        raise ArgumentError(f"{found}, as it is in no known format: {_EXPECTED}") from error
    except Exception as error:
        reason = one_line(str(error) or type(error).__name__)
        raise ArgumentError(f"{found} ({reason}): {_EXPECTED}, whole and undamaged") from error
