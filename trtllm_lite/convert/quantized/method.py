"""The interface of a quantization method: a file for each, which reads its settings and its layers."""

from abc import ABC, abstractmethod

from trtllm_lite.convert.quantized.kv_cache import KvCache
from trtllm_lite.convert.quantized.layer import Layer, Matrix

UNQUANTIZED = "convert the unquantized model, or its GGUF file"


class Method(ABC):
    """How a source stores the linear layers that are quantized; ``description`` is for people and for records.

    ``kv_cache`` is what its makers rounded keys and values to, None if they did not.
    """

    description: str
    kv_cache: KvCache | None = None

    @abstractmethod
    def matrix(self, layer: Layer) -> Matrix:
        """What the layer's tensors mean. Raises ConvertError for what is not supported."""
