"""Defines the interface of quantization methods: each has a file, which reads its settings and its layers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from trtllm_lite.convert.quantized.kv_cache import KvCache
from trtllm_lite.convert.quantized.layer import ExpandedMatrix, Layer, Matrix

# A linear layer that has one of these tensors is quantized.
_MARKS = ("weight_scale", "weight_packed", "qweight", "weight_scale_inv")
UNQUANTIZED = "convert the unquantized model, or its GGUF file"


class Method(ABC):
    """A way in which sources store quantized linear layers; ``description`` is for people and for records.

    ``kv_cache`` is the type to which the source's makers rounded keys and values; None if they did not.
    """

    description: str
    kv_cache: KvCache | None = None

    @abstractmethod
    def matrices(self, layer: Layer) -> Mapping[str, Matrix | ExpandedMatrix]:
        """Return the layer's matrices, by the name of the tensor that an unquantized layer has in their place.

        The result is empty if the layer is not quantized. Raises ConvertError for unsupported layers.
        """


class LinearMethod(Method):
    """A method for linear layers, each of which has one ``weight``."""

    @abstractmethod
    def matrix(self, layer: Layer) -> Matrix:
        """Return the matrix of a quantized layer. Raises ConvertError for unsupported layers."""

    def matrices(self, layer: Layer) -> dict[str, Matrix]:
        """Implements :meth:`Method.matrices`."""
        return {"weight": self.matrix(layer)} if set(_MARKS) & set(layer.tensors) else {}
