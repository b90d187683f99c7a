"""The order in which a vision tower takes the patches of an image."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.runtime.media.processors.processor import Grid


def block_order(grid: Grid, block: int) -> NDArray[np.int64]:
    """The numbers of a tile's patches, counted row by row, in the order of squares of ``block`` × ``block`` patches.

    Patches of a square come row by row, too. The grid has whole squares alone.
    """
    numbers = np.arange(grid.rows * grid.columns).reshape(grid.rows // block, block, grid.columns // block, block)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)
