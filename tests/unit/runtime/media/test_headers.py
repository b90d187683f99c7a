"""The extents that headers of images' files state are those that Pillow finds, of damaged files too, or none."""

import random
from io import BytesIO

import pytest
from PIL import Image

from tests.rounds import rounds
from tests.unit.runtime.media.odd_images import FORMATS, odd_image, picture
from tests.unit.runtime.media.test_images import bomb, encoded
from trtllm_lite.runtime.media.headers import stated_extents

WITH_HEADERS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")


def extents_of_pillow(content: bytes) -> tuple[int, int]:
    image = Image.open(BytesIO(content))
    return image.height, image.width


def test_odd_images_have_the_extents_that_pillow_finds() -> None:
    for seed in range(rounds(200)):
        content = odd_image(seed)
        found = stated_extents(content)
        if (file_format := Image.open(BytesIO(content)).format) not in WITH_HEADERS:
            assert found is None, f"seed {seed}"
        elif file_format == "TIFF":  # Pillow states the extents of the upright image
            assert found in (extents_of_pillow(content), extents_of_pillow(content)[::-1]), f"seed {seed}"
        else:
            assert found == extents_of_pillow(content), f"seed {seed}"


@pytest.mark.parametrize(("mode", "file_format"), [(mode, name) for mode in FORMATS for name in FORMATS[mode]])
def test_all_formats_have_the_extents_that_pillow_finds(mode: str, file_format: str) -> None:
    image = picture(random.Random(3), "P" if mode == "PA" else mode)
    content = encoded(image, file_format)
    assert stated_extents(content) == ((image.height, image.width) if file_format in WITH_HEADERS else None)


@pytest.mark.parametrize(
    ("file_format", "options"),
    [
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": False}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + bytes(60_000), "icc_profile": bytes(200_000), "comment": b"\xff\xc0" * 999}),
        ("TIFF", {"big_tiff": True}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_kinds_of_formats_have_the_extents_that_pillow_finds(file_format: str, options: dict) -> None:
    content = encoded(Image.new("RGB", (700, 300)), file_format, **options)
    assert stated_extents(content) == (None if "big_tiff" in options else (300, 700))


def test_rows_of_a_bitmap_may_go_down() -> None:
    content = bytearray(encoded(Image.new("RGB", (7, 3)), "BMP"))
    content[22:26] = (-3).to_bytes(4, "little", signed=True)
    assert stated_extents(bytes(content)) == extents_of_pillow(bytes(content)) == (3, 7)


def test_bombs_state_their_extents() -> None:
    assert stated_extents(bomb(1 << 20, 1 << 19)) == (1 << 19, 1 << 20)


@pytest.mark.parametrize("file_format", WITH_HEADERS)
def test_truncated_files_state_the_same_or_nothing(file_format: str) -> None:
    content = encoded(Image.new("RGB", (70, 30)), file_format)
    assert {stated_extents(content[:length]) for length in range(len(content))} <= {None, (30, 70)}


@pytest.mark.parametrize("file_format", WITH_HEADERS)
def test_damaged_files_raise_nothing(file_format: str) -> None:
    content = encoded(Image.new("RGB", (70, 30)), file_format)
    rng = random.Random(1)
    for _ in range(rounds(2000)):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(min(len(damaged), 200))] = rng.randrange(256)
        stated_extents(bytes(damaged))


def test_files_of_many_parts_are_left_to_others() -> None:
    assert stated_extents(b"\xff\xd8" + b"\xff" * 100_000) is None
    assert stated_extents(b"\xff\xd8" + b"\xff\xfe\x00\x02" * 100_000) is None
    assert stated_extents(b"II*\x00\x08\x00\x00\x00\xff\xff" + bytes(100)) is None
