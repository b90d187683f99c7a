"""The interface of a quantization method: a file for each, which reads its settings and its layers."""

from abc import ABC, abstractmethod

from trtllm_lite.convert.quantized.kv_cache import KvCache
from trtllm_lite.convert.quantized.layer import Layer, Matrix

# A linear layer that has one of these is quantized.
_MARKS = ("weight_scale", "weight_packed", "qweight", "weight_scale_inv")
UNQUANTIZED = "convert the unquantized model, or its GGUF file"


class Method(ABC):
    """How a source stores the linear layers that are quantized; ``description`` is for people and for records.

    ``kv_cache`` is what its makers rounded keys and values to, None if they did not.
    """

    description: str
    kv_cache: KvCache | None = None

    @abstractmethod
    def matrices(self, layer: Layer) -> dict[str, Matrix]:
        """What the layer's tensors mean, by the name of the tensor that an unquantized layer has there.

        Nothing, if the layer is not quantized. Raises ConvertError for what is not supported.
        """


class LinearMethod(Method):
    """A method for linear layers, each of which has one ``weight``."""

    @abstractmethod
    def matrix(self, layer: Layer) -> Matrix:
        """What the tensors of a quantized layer mean. Raises ConvertError for what is not supported."""

    def matrices(self, layer: Layer) -> dict[str, Matrix]:
        """As :meth:`Method.matrices`."""
        return {"weight": self.matrix(layer)} if set(_MARKS) & set(layer.tensors) else {}
