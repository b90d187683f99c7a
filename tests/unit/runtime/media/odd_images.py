"""Odd images, each made from a seed: of few pixels, thin, of many modes and formats, rotated by EXIF, or animated."""

import random
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

# The modes of images, and formats that keep them.
FORMATS = {
    "RGB": ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "AVIF"),
    "RGBA": ("PNG", "WEBP", "TIFF"),
    "P": ("PNG", "GIF", "BMP", "TIFF"),
    "PA": ("PNG",),  # a palette with transparency
    "L": ("PNG", "JPEG", "GIF", "TIFF", "PPM"),
    "LA": ("PNG", "TIFF"),
    "CMYK": ("JPEG", "TIFF"),
    "YCbCr": ("JPEG",),
    "I;16": ("PNG", "TIFF"),
    "I": ("TIFF",),
    "F": ("TIFF",),
    "1": ("PNG", "TIFF", "PPM"),
}
ROTATED = ("JPEG", "PNG", "WEBP", "TIFF")  # formats with EXIF
ANIMATED = ("GIF", "WEBP", "PNG")
_ORIENTATION = 0x0112
_EXTENTS = ((1, 1), (1, 2), (200, 1), (1, 200), (400, 2), (3, 600), (1, 150), (2, 2), (13, 7))


@lru_cache(maxsize=200)
def odd_image(seed: int) -> bytes:
    """The file of an image. Seeds that follow each other go through the modes."""
    rng = random.Random(seed)
    modes = tuple(FORMATS)
    mode = modes[seed % len(modes)]
    if rng.random() < 0.1:
        return _animation(rng)
    return _encoded(rng, picture(rng, mode), rng.choice(FORMATS[mode]))


def picture(rng: random.Random, mode: str) -> Image.Image:
    """An image whose pixels are partly smooth and partly noise."""
    width, height = rng.choice(_EXTENTS) if rng.random() < 0.3 else (rng.randint(1, 500), rng.randint(1, 300))
    noise = np.random.default_rng(rng.randrange(1 << 32))
    waves = np.add.outer(np.arange(height), np.arange(width))[..., None] * noise.uniform(0.1, 3, 4)
    values = np.where(noise.random((height, width, 4)) < 0.3, noise.integers(0, 256, (height, width, 4)), waves % 256)
    rgba = Image.fromarray(values.astype(np.uint8), "RGBA")
    match mode:
        case "I;16":
            return Image.fromarray((values[..., 0] * noise.choice((1, 200))).astype(np.uint16))
        case "I" | "F":
            return Image.fromarray((values[..., 0] * 1.5 - 40).astype(np.int32 if mode == "I" else np.float32))
        case "P" | "PA":
            return rgba.convert("RGB").quantize(rng.choice((2, 17, 256)))
    return rgba.convert(mode)


def _encoded(rng: random.Random, image: Image.Image, file_format: str, **options: Any) -> bytes:
    if file_format in ROTATED and rng.random() < 0.5:
        exif = Image.Exif()
        exif[_ORIENTATION] = rng.randint(1, 8)
        options["exif"] = exif
    if image.mode in ("P", "L", "RGB") and file_format == "PNG" and rng.random() < 0.5:
        options["transparency"] = {"P": 1, "L": 7, "RGB": (1, 2, 3)}[image.mode]
    buffer = BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _animation(rng: random.Random) -> bytes:
    first, second = picture(rng, "RGB"), picture(rng, "RGB")
    others = [second.resize(first.size)]
    return _encoded(rng, first, rng.choice(ANIMATED), save_all=True, append_images=others)
