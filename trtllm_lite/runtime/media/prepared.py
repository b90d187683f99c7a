"""Images as an engine takes them: the patches, the text that stands for them, and digests that tell them apart."""

import hashlib
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import LimitError
from trtllm_lite.runtime.media.images import ImageLimits, Pixels, read_image
from trtllm_lite.runtime.media.processors.processor import ImageProcessor, ImageText, NewRows, Patches, empty_rows


@dataclass(frozen=True)
class PreparedImage:
    """An image, read and cut into ``patches``.

    ``height`` and ``width`` are those of the image itself, upright. ``text`` replaces its placeholder in a prompt.
    Images with the same ``digest`` have the same patches, and so have a model's features of them.
    """

    patches: Patches
    text: ImageText
    height: int
    width: int
    digest: bytes


def prepare(
    source: Any,
    limits: ImageLimits,
    processor: ImageProcessor,
    is_alone: bool = True,
    new_rows: NewRows = empty_rows,
) -> PreparedImage:
    """Read an image, and process it, in this process; ``is_alone`` says that its prompt has no other images.

    ``source`` is what ``read_image`` takes, whose errors this raises; also those of ``ImageProcessor.patches``, which
    is given ``new_rows``.
    """
    pixels = read_image(source, limits)
    try:
        patches = processor.patches(pixels, is_alone, new_rows)
    except MemoryError as error:
        raise LimitError(
            f"the image of {pixels.shape[0]:,} × {pixels.shape[1]:,} pixels (height × width) cannot be processed: it "
            "needs more memory than there is; send a smaller one"
        ) from error
    digest = pixels_digest(pixels, processor, is_alone)
    return PreparedImage(patches, processor.text(patches), pixels.shape[0], pixels.shape[1], digest)


def pixels_digest(pixels: Pixels, processor: ImageProcessor, is_alone: bool) -> bytes:
    """The SHA-256 of an image's pixels, uint8 [height, width, 3], and of how they are processed."""
    way = "alone" if is_alone or not processor.differs_among_others else "among others"
    digest = hashlib.sha256(f"RGB {pixels.shape[0]} {pixels.shape[1]} {way} {processor!r}\n".encode())
    digest.update(pixels.data)
    return digest.digest()


def file_digest(content: bytes) -> bytes:
    """The SHA-256 of an image's file, by which an image that was prepared before is found without reading it."""
    return hashlib.sha256(content).digest()
