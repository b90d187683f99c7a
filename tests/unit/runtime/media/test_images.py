"""Images are read as transformers' PIL back ends read them, and refused before they are decoded if too large."""

import random
import struct
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps
from transformers.image_transforms import convert_to_rgb

from tests.rounds import rounds
from tests.unit.runtime.media.odd_images import FORMATS, odd_image, picture
from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.media.images import PILLOW_MAX_PIXELS, ImageLimits, read_image

LIMITS = ImageLimits()


def as_transformers(content: bytes) -> np.ndarray:
    """The pixels of an image, upright as load_image of transformers has them, in RGB as its PIL back ends have them."""
    return convert_to_rgb(ImageOps.exif_transpose(Image.open(BytesIO(content))), return_numpy=True)


def encoded(image: Image.Image, file_format: str = "PNG", **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG file of a few hundred bytes that says it has these extents."""
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(10_000))))
    parts = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def not_decoded(image: Image.Image) -> None:
    pytest.fail(f"pixels of {image} are decoded")


@pytest.mark.parametrize("part", range(4))
def test_odd_images_are_as_in_transformers(part: int) -> None:
    for seed in range(part, rounds(200), 4):
        content = odd_image(seed)
        found = read_image(content, LIMITS)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, as_transformers(content), err_msg=f"seed {seed}")


def test_odd_images_are_of_all_kinds() -> None:
    """The seeds of the default tier come to each mode, and to rotated and animated images."""
    images = [Image.open(BytesIO(odd_image(seed))) for seed in range(rounds(200))]
    assert {image.mode for image in images} >= FORMATS.keys() - {"PA", "YCbCr"}
    assert any(getattr(image, "is_animated", False) for image in images)
    assert len({image.getexif().get(0x0112) for image in images}) > 4


def test_a_path_a_pil_image_and_an_array_are_the_same_image(tmp_path: Path) -> None:
    content = odd_image(0)
    (tmp_path / "image").write_bytes(content)
    expected = as_transformers(content)
    sources = (tmp_path / "image", str(tmp_path / "image"), bytearray(content), Image.open(BytesIO(content)), expected)
    for source in sources:
        np.testing.assert_array_equal(read_image(source, LIMITS), expected)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"])
def test_truncated_files_are_refused(file_format: str) -> None:
    content = encoded(picture(random.Random(3), "L").resize((64, 64)), file_format)
    for length in (len(content) // 2, len(content) * 9 // 10, 30, 3):
        with pytest.raises(ArgumentError, match="expected an image in one of the formats"):
            read_image(content[:length], LIMITS)


@pytest.mark.parametrize("content", [b"", b"not an image", b"%PDF-1.7", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>"])
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(ArgumentError, match="in no known format: expected an image"):
        read_image(content, LIMITS)


def test_an_unknown_kind_of_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="an image is given as int: expected bytes, a path"):
        read_image(3, LIMITS)
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_image(tmp_path / "absent.png", LIMITS)
    with pytest.raises(ArgumentError, match="not a plain file"):
        read_image(tmp_path, LIMITS)


@pytest.mark.parametrize("array", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2, 3))])
def test_an_array_of_another_kind_is_refused(array: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match=r"expected uint8 \[height, width, 3\]"):
        read_image(array, LIMITS)


@pytest.mark.parametrize("source", [np.zeros((0, 2, 3), np.uint8), Image.new("RGB", (0, 3))])
def test_an_image_without_pixels_is_refused(source) -> None:
    with pytest.raises(ArgumentError, match="expected at least one"):
        read_image(source, LIMITS)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(40_000, 25_000), (1 << 14, 10_000), (9000, 9000)])
def test_large_images_are_refused_before_they_are_decoded(width: int, height: int, monkeypatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", not_decoded)
    with pytest.raises(LimitError, match="pixels"):
        read_image(bomb(width, height), LIMITS)


@pytest.mark.parametrize("file_format", sorted({name for names in FORMATS.values() for name in names}))
def test_each_format_is_held_against_the_limits_before_it_is_decoded(file_format: str, monkeypatch) -> None:
    content = encoded(picture(random.Random(1), "L").resize((40, 30)), file_format)
    assert read_image(content, ImageLimits(1200)).shape == (30, 40, 3)
    monkeypatch.setattr(ImageFile.ImageFile, "load", not_decoded)
    with pytest.raises(LimitError, match="30 × 40 pixels"):
        read_image(content, ImageLimits(1199))


def test_the_limits_hold_for_each_kind_of_source(tmp_path: Path) -> None:
    image = Image.new("RGB", (11, 10))
    content = encoded(image)
    (tmp_path / "image").write_bytes(content)
    for source in (content, tmp_path / "image", image, np.asarray(image)):
        assert read_image(source, ImageLimits(110)).shape == (10, 11, 3)
        with pytest.raises(LimitError, match=r"10 × 11 pixels .* exceeds max_image_pixels \(109\)"):
            read_image(source, ImageLimits(109))
    with pytest.raises(LimitError, match="exceeds max_image_bytes"):
        read_image(content, ImageLimits(max_image_bytes=len(content) - 1))
    with pytest.raises(ArgumentError, match="exceeds the limit"):
        read_image(tmp_path / "image", ImageLimits(max_image_bytes=len(content) - 1))


@pytest.mark.parametrize(
    "limits", [{"max_image_pixels": 0}, {"max_image_pixels": PILLOW_MAX_PIXELS + 1}, {"max_image_bytes": 0}]
)
def test_impossible_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"max_image_\w+ is .*: expected"):
        ImageLimits(**limits)


def test_without_pillow_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ArgumentError, match=r"pip install 'trtllm_lite\[vision\]'"):
        read_image(b"", LIMITS)
    array = np.zeros((2, 2, 3), np.uint8)
    assert read_image(array, LIMITS) is array
