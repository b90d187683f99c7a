"""What all image processors have in common: the patches they make, and the constants that normalise pixels."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_lite import _core
from trtllm_lite.runtime.media.images import Pixels

Rows = NDArray[np.uint8]  # [num_patches, patch_elements]


class Grid(NamedTuple):
    """``rows`` × ``columns`` patches of a tile, or tiles of an image."""

    rows: int
    columns: int


UNCUT = Grid(0, 0)
NewRows = Callable[[int, int], Rows]


def empty_rows(rows: int, columns: int) -> Rows:
    """An array whose contents are undefined: uint8 [rows, columns]."""
    return np.empty((rows, columns), np.uint8)


@dataclass(frozen=True)
class Patches:
    """An image as a vision tower takes it: one tile of the whole image, and further ones of its parts, if it is cut.

    ``rows`` is uint8 [num_patches, patch_elements]: the patches of all tiles, one tile after the other. ``grids`` has
    the grid of each tile. ``num_tokens`` counts the placeholder tokens that the features of the image replace, without
    tokens that separate rows or tiles and keep their own embeddings. ``parts`` says how the tiles of parts are laid
    out, and is UNCUT for an image of one tile.
    """

    rows: Rows
    grids: tuple[Grid, ...]
    num_tokens: int
    parts: Grid = UNCUT


class Tiles(NamedTuple):
    """The tiles of an image before they are cut into patches, each uint8 [height, width, 3]; the rest as in Patches."""

    tiles: Sequence[Pixels]
    num_tokens: int
    parts: Grid = UNCUT


class ImageText(NamedTuple):
    """The text that replaces a placeholder of an image in a prompt, before the prompt is tokenized.

    ``text`` has an image token for each run of them. After the prompt is tokenized, the image tokens of its images,
    first to last, are repeated as often as ``repeats`` says; features replace their embeddings.
    """

    text: str
    repeats: tuple[int, ...]


@dataclass(frozen=True)
class Normalization:
    """A pixel x of channel c enters the model as (x * ``scale`` - ``mean[c]``) / ``std[c]``.

    No processor computes this: ``convert`` folds it into the convolution of patches (network/pixels.py).
    """

    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class ImageProcessor(ABC):
    """Cuts images into patches of ``patch_size`` × ``patch_size`` pixels, as a checkpoint's vision tower takes them.

    The elements of a patch are ordered [channel, row, column], or [row, column, channel] where ``channels_last``.
    ``differs_among_others`` says that several images of a prompt have other patches than an image that is alone.
    ``placeholder`` stands for an image where a chat template has written a prompt, and ``image_token`` for its tokens
    whose embeddings are replaced: the tokens that published tokenizers of these models have.
    """

    channels_last: ClassVar[bool] = False
    differs_among_others: ClassVar[bool] = False
    placeholder: ClassVar[str] = "<image>"
    image_token: ClassVar[str] = "<image>"

    normalization: Normalization
    patch_size: int

    @abstractmethod
    def tiles(self, image: Pixels) -> Tiles:
        """The tiles of an image, uint8 [height, width, 3], that is alone in its prompt.

        Raises ArgumentError or LimitError if the processor refuses the extents of the image.
        """

    def tiles_among_others(self, image: Pixels) -> Tiles:
        """The tiles of one of several images of a prompt. Raises the errors of ``tiles``."""
        return self.tiles(image)

    @property
    def group_side(self) -> int:
        """The patches of so many rows and columns follow each other, before those of the next group."""
        return 1

    def patches(self, image: Pixels, is_alone: bool = True, new_rows: NewRows = empty_rows) -> Patches:
        """The patches of an image, uint8 [height, width, 3]; ``is_alone`` says that its prompt has no other images.

        ``new_rows`` makes the array that they are written to, of a number of rows and columns. Pixels at the margins
        of a tile that make up no whole patch are left out. Raises the errors of ``tiles``.
        """
        tiles, num_tokens, parts = self.tiles(image) if is_alone else self.tiles_among_others(image)
        grids = tuple(grid_of(tile, self.patch_size) for tile in tiles)
        rows = new_rows(sum(grid.rows * grid.columns for grid in grids), 3 * self.patch_size**2)
        begin = 0
        for tile, grid in zip(tiles, grids, strict=True):
            end = begin + grid.rows * grid.columns
            self._cut(tile, rows[begin:end])
            begin = end
        return Patches(rows, grids, num_tokens, parts)

    def _cut(self, tile: Pixels, rows: Rows) -> None:
        """Write the patches of a tile to ``rows``."""
        _core.cut_patches(tile, self.patch_size, self.group_side, rows)

    def text(self, patches: Patches) -> ImageText:
        """What replaces the placeholder of an image with these ``patches``."""
        return ImageText(self.image_token, (patches.num_tokens,))


def grid_of(tile: Pixels, patch_size: int) -> Grid:
    """The grid of whole patches in a tile: a convolution takes no others."""
    return Grid(tile.shape[0] // patch_size, tile.shape[1] // patch_size)


def parts_of(image: Pixels, height: int, width: int) -> tuple[list[Pixels], Grid]:
    """Views of the parts of ``height`` × ``width`` that an image consists of, in row-major order, and their layout."""
    layout = Grid(image.shape[0] // height, image.shape[1] // width)
    rows, columns = range(0, layout.rows * height, height), range(0, layout.columns * width, width)
    return [image[top : top + height, left : left + width] for top in rows for left in columns], layout
