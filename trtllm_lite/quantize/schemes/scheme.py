"""The interface of a scheme: what it needs to know of activations, and how it changes the products of a network."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum

from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class Needs(IntEnum):
    """What a scheme needs of calibration; each includes those before."""

    NOTHING = 0
    CHANNELS = 1  # magnitudes of channels, and a sample of rows
    GRAM = 2  # the mean of outer products, too


class Scheme(ABC):
    """One way to quantize products; ``in_groups``: with a scale for each group of as many weights as users say.

    ``folds``: it divides what products multiply, and their weights make up for that.
    """

    name: str
    needs = Needs.NOTHING
    in_groups = False
    folds = False

    @abstractmethod
    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Quantize ``products`` of the network that ``work`` holds. No weight is read before it is asked for."""
