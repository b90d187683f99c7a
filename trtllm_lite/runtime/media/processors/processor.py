"""What all image processors have in common: the patches they make, and the constants that normalise pixels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
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

    No processor computes this: the three are folded into the convolution of patches when an engine is built.
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
    def patches(self, image: Pixels) -> Patches:
        """The patches of an image, uint8 [height, width, 3].

        Raises ArgumentError or LimitError if the processor refuses the extents of the image.
        """

    def patches_among_others(self, image: Pixels) -> Patches:
        """The patches of one of several images of a prompt.

        Raises ArgumentError or LimitError if the processor refuses the extents of the image.
        """
        return self.patches(image)

    def text(self, patches: Patches) -> ImageText:
        """What replaces the placeholder of an image with these ``patches``."""
        return ImageText(self.image_token, (patches.num_tokens,))


def grid_of(tile: Pixels, patch_size: int) -> Grid:
    """The grid of whole patches in a tile: a convolution takes no others."""
    return Grid(tile.shape[0] // patch_size, tile.shape[1] // patch_size)


def patches_of(
    tiles: Sequence[Pixels], patch_size: int, num_tokens: int, parts: Grid = UNCUT, merge_size: int = 1
) -> Patches:
    """The patches of tiles, each in row-major order, the elements of a patch as [channel, row, column].

    Tiles are uint8 [height, width, 3], whose extents are multiples of ``patch_size``, or are cut to such ones. Where
    ``merge_size`` is more than 1, the patches of ``merge_size`` × ``merge_size`` follow each other.
    """
    grids = tuple(grid_of(tile, patch_size) for tile in tiles)
    rows = np.empty((sum(grid.rows * grid.columns for grid in grids), 3 * patch_size**2), np.uint8)
    begin = 0
    for tile, grid in zip(tiles, grids, strict=True):
        end = begin + grid.rows * grid.columns
        _core.cut_patches(tile, patch_size, merge_size, rows[begin:end])
        begin = end
    return Patches(rows, grids, num_tokens, parts)


def parts_of(image: Pixels, height: int, width: int) -> tuple[list[Pixels], Grid]:
    """Views of the parts of ``height`` × ``width`` that an image consists of, in row-major order, and their layout."""
    layout = Grid(image.shape[0] // height, image.shape[1] // width)
    rows, columns = range(0, layout.rows * height, height), range(0, layout.columns * width, width)
    return [image[top : top + height, left : left + width] for top in rows for left in columns], layout
