"""Folds the normalisation of pixels into the convolution of patches, so that towers read bytes.

A pixel x of channel c enters a model as (x * scale - mean[c]) / std[c]. The convolution of a patch is a product with
its pixels; so with bytes less their middle it is a product with the weight * scale / std[c], plus what the weight makes
of (127.5 * scale - mean[c]) / std[c]. This is computed in float64 when weights are written, and rounded once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.network.weight_expression import OfOne, Read, SourceTensor, WeightExpression

MIDDLE = 127.5  # of a byte; differences from it take 8 bits
BYTES_MULTIPLE = 16  # of a patch, as the kernels of GPUs read them


@dataclass(frozen=True)
class Normalization:
    """A pixel x of channel c enters the model as (x * ``scale`` - ``mean[c]``) / ``std[c]``."""

    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factors(self) -> NDArray[np.float64]:
        """What a byte of each channel is multiplied by."""
        return self.scale / np.array(self.std)

    @property
    def offsets(self) -> NDArray[np.float64]:
        """What the middle byte of each channel becomes."""
        return (MIDDLE * self.scale - np.array(self.mean)) / np.array(self.std)


def _columns(weight: NDArray) -> NDArray[np.float64]:
    """[hidden, 3, pixels] of the weight of a convolution [hidden, 3, height, width], or [hidden, 3, frames, …].

    All frames of a still image are equal, so that their weights are added.
    """
    kernel = weight.astype(np.float64)
    if kernel.ndim == 5:
        kernel = kernel.sum(axis=2)
    return kernel.reshape(kernel.shape[0], 3, -1)


@dataclass(frozen=True)
class PatchWeight(OfOne):
    """[hidden, bytes] for bytes less MIDDLE, in the order [channel, row, column], of a convolution.

    Behind them are zeros, for what pads patches to a multiple of BYTES_MULTIPLE.
    """

    normalization: Normalization

    @property
    def shape(self) -> tuple[int, ...]:
        hidden, channels, *extents = self.operand.shape
        return (hidden, -(-channels * extents[-2] * extents[-1] // BYTES_MULTIPLE) * BYTES_MULTIPLE)

    def evaluate(self, read: Read) -> NDArray:
        columns = _columns(self.operand.evaluate(read)) * self.normalization.factors[:, None]
        weight = np.zeros(self.shape, np.float32)
        weight[:, : columns[0].size] = columns.reshape(len(columns), -1)
        return weight


@dataclass(frozen=True)
class PatchBias(OfOne):
    """[hidden]: what the convolution makes of a patch of middle bytes, with its own ``bias`` if it has one."""

    normalization: Normalization
    bias: WeightExpression | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.operand.shape[:1]

    def sources(self) -> Iterator[SourceTensor]:
        yield from self.operand.sources()
        if self.bias is not None:
            yield from self.bias.sources()

    def evaluate(self, read: Read) -> NDArray:
        made = (_columns(self.operand.evaluate(read)) * self.normalization.offsets[:, None]).sum(axis=(1, 2))
        own = 0.0 if self.bias is None else self.bias.evaluate(read).astype(np.float64)
        return (made + own).astype(np.float32)
