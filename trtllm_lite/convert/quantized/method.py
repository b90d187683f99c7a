"""The interface of a quantization method: a file for each, which reads its settings and its layers."""

from abc import ABC, abstractmethod

from trtllm_lite.convert.quantized.layer import Layer, Matrix

UNQUANTIZED = "convert the unquantized model, or its GGUF file"
# Part of a description: the type of the KV cache and its scale are chosen when an engine is built.
WITHOUT_KV_SCALES = " (scales of the KV cache left out)"


class Method(ABC):
    """How a source stores the linear layers that are quantized; ``description`` is for people and for records."""

    description: str

    @abstractmethod
    def matrix(self, layer: Layer) -> Matrix:
        """What the layer's tensors mean. Raises ConvertError for what is not supported."""

    def is_noted(self, tensor: str) -> bool:
        """Whether the method has noted what the tensor of that name says, so that it is needed no more."""
        del tensor
        return False
