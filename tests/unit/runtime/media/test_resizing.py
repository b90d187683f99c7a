"""Images are resized as Pillow resizes them, bit for bit, by every implementation, and cut into patches as by numpy."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from tests.rounds import rounds
from trtllm_lite import _core
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.media.processors.resizing import resized

FILTERS = {"lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
_SIDES = st.one_of(st.integers(1, 20), st.integers(1, 300))


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """Noise, or black and white, for which sums exceed a byte."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return noise if seed % 2 else np.where(noise < 128, np.uint8(0), np.uint8(255))


def by_pillow(image: np.ndarray, height: int, width: int, number: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), number))


def implementations() -> list[int]:
    found = []
    for number in itertools.count():
        try:
            _core.resize_image(np.zeros((1, 1, 3), np.uint8), np.zeros((1, 1, 3), np.uint8), 1, number)
        except ArgumentError:
            return found
        found.append(number)
    raise AssertionError


@pytest.mark.parametrize("implementation", implementations())
@pytest.mark.parametrize("name", FILTERS)
@given(st.integers(0, 1 << 20), _SIDES, _SIDES, _SIDES, _SIDES)
@example(0, 300, 100, 100, 1)  # columns first, by one pixel
@example(0, 299, 100, 100, 1)  # rows first
@example(1, 42, 43, 43, 42)
@example(0, 1, 300, 300, 1)
def test_images_are_resized_as_by_pillow(
    name: str, implementation: int, seed: int, height: int, width: int, new_height: int, new_width: int
) -> None:
    image, out = picture(seed, height, width), np.empty((new_height, new_width, 3), np.uint8)
    _core.resize_image(image, out, FILTERS[name], implementation)
    np.testing.assert_array_equal(out, by_pillow(image, new_height, new_width, FILTERS[name]))


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("extents", "new_extents"),
    [((640, 640), (2048, 2048)), ((2048, 1365), (384, 384)), ((5, 20_000), (7, 300)), ((20_000, 5), (300, 7))],
)
def test_large_images_are_resized_as_by_pillow(
    name: str, extents: tuple[int, int], new_extents: tuple[int, int]
) -> None:
    for seed in range(rounds(4)):
        image = picture(seed, *extents)
        found = resized(image, *new_extents, FILTERS[name])
        np.testing.assert_array_equal(found, by_pillow(image, *new_extents, FILTERS[name]))


def test_a_view_of_an_image_and_the_nearest_pixels_are_resized_as_by_pillow() -> None:
    image = picture(1, 60, 90)[10:50, 20:70]
    for number in (0, 3):
        np.testing.assert_array_equal(resized(image, 31, 77, number), by_pillow(image, 31, 77, number))


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 20), st.integers(1, 4), st.integers(0, 19))
def test_patches_are_cut_as_by_numpy(row_groups: int, column_groups: int, side: int, merge: int, rest: int) -> None:
    rows, columns = row_groups * merge, column_groups * merge
    margin = rest % side
    image = picture(3, rows * side + margin + 2, columns * side + margin + 5)
    tile = image[1 : rows * side + margin + 1, 2 : columns * side + margin + 2]
    whole = tile[: rows * side, : columns * side]
    cells = whole.reshape(row_groups, merge, side, column_groups, merge, side, 3)
    expected = cells.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, 3 * side * side)
    found = np.empty_like(expected)
    _core.cut_patches(tile, side, merge, found)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "number", "implementation"),
    [((0, 3, 3), 1, 0), ((3, 0, 3), 1, 0), ((3, 3, 3), 0, 0), ((3, 3, 3), 6, 0), ((3, 3, 3), 1, -1)],
)
def test_what_cannot_be_resized_is_refused(shape: tuple[int, ...], number: int, implementation: int) -> None:
    image, empty = np.zeros((3, 3, 3), np.uint8), np.zeros(shape, np.uint8)
    for pair in ((image, empty), (empty, image)):
        with pytest.raises(ArgumentError, match="expected"):
            _core.resize_image(*pair, number, implementation)


@pytest.mark.parametrize(
    ("tile", "side", "merge", "shape"),
    [
        (np.zeros((4, 4, 3), np.uint8), 2, 1, (3, 12)),
        (np.zeros((4, 4, 3), np.uint8), 2, 1, (4, 11)),
        (np.zeros((4, 6, 3), np.uint8), 2, 2, (6, 12)),
        (np.zeros((4, 4, 3), np.uint8), 0, 1, (4, 12)),
        (np.zeros((4, 4, 3), np.uint8), 2, 0, (4, 12)),
        (np.zeros((4, 8, 3), np.uint8)[:, ::2], 2, 1, (4, 12)),
        (np.zeros((4, 4, 3), np.uint8)[::-1], 2, 1, (4, 12)),
    ],
)
def test_what_cannot_be_cut_is_refused(tile: np.ndarray, side: int, merge: int, shape: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        _core.cut_patches(tile, side, merge, np.zeros(shape, np.uint8))
