"""The interface of a scheme: what it needs to know of activations, and how it changes the products of a network."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum

from trtllm_lite.quantize.formats import Scaled
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class Needs(IntEnum):
    """What a scheme needs of calibration; each includes those before."""

    NOTHING = 0
    CHANNELS = 1  # magnitudes of channels, and a sample of rows
    GRAM = 2  # the mean of outer products, too


class Scheme(ABC):
    """One way to quantize products; ``in_groups``: with a scale for each group of as many weights as users say.

    ``folds``: it divides what products multiply, and their weights make up for that. What experts of mixtures multiply
    stays as it is in all schemes, and nothing is calibrated for them: of their matrices every element is rounded to the
    nearest that the format ``experts`` has.
    """

    name: str
    experts: Scaled
    needs = Needs.NOTHING
    in_groups = False
    folds = False

    @abstractmethod
    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Quantize ``products``, none of experts, of ``work``'s network. No weight is read before it is asked for."""

    def quantize_experts(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Quantize ``products`` of experts of ``work``'s network. No weight is read before it is asked for."""
        for product in products:
            size = work.check_groups(product, self.name) if self.in_groups else 0
            work.store(product, replace(self.experts, block_size=size))
            scales = f"{size} weights of a row" if size else "row"
            weights = f"{self.experts.name} with a scale for each {scales}, rounded to the nearest"
            work.decide(product.name, f"{weights}; activations stay as they are", "products of experts")
