"""Defines the interface of a scheme: what it needs to know of activations, and how it changes products of a network."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum

from trtllm_lite.quantize.formats import Scaled
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class Needs(IntEnum):
    """Statistics that a scheme needs of calibration; each value includes those before it."""

    NOTHING = 0
    CHANNELS = 1  # magnitudes of channels, and a sample of rows
    GRAM = 2  # also the mean of outer products


class Scheme(ABC):
    """One way to quantize products; ``in_groups``: with a scale for each group of weights, of a size that users choose.

    ``folds``: the scheme scales inputs of products, and weights inversely. Inputs of experts stay unquantized in all
    schemes, and need no calibration: the elements of their matrices are rounded to nearest in the format ``experts``.
    """

    name: str
    experts: Scaled
    needs = Needs.NOTHING
    in_groups = False
    folds = False

    @abstractmethod
    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Quantize ``products`` (no experts) of ``work``'s network. A weight is read only when its result is read."""

    def quantize_experts(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Quantize ``products`` of experts in ``work``'s network. A weight is read only when its result is read."""
        for product in products:
            size = work.check_groups(product, self.name) if self.in_groups else 0
            work.store(product, replace(self.experts, block_size=size))
            scales = f"{size} weights of a row" if size else "row"
            weights = f"{self.experts.name} with a scale for each {scales}, rounded to the nearest"
            work.decide(product.name, f"{weights}; activations stay as they are", "products of experts")
