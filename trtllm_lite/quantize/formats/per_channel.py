"""Elements of one byte, and a float32 scale for each output feature: a row's largest element becomes the type's."""

from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.tensors import add_initializer, extents, lazy
from trtllm_lite.quantize.formats.format import QuantizedFormat, StoredMatrix, derived, initializer, made_by


class PerChannel(QuantizedFormat):
    """weight [..., out, in] of the one type of ``weight_dtypes``, weight_scale float32 [..., out].

    ``largest`` is the largest element of a row that is not zero.
    """

    operands = ("weight", "weight_scale")
    largest: float

    @abstractmethod
    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """float32 elements of at most ``largest``, rounded to the type of the weight."""

    def recognise(self, value: ir.Value | None) -> StoredMatrix | None:
        """As :meth:`Format.recognise`: DequantizeLinear(W, scale), without zero points.

        The scale has an element for each row (axis=0), or is a scalar, which is then repeated for each row.
        """
        node = made_by(value, "DequantizeLinear")
        if node is None or len([source for source in node.inputs if source is not None]) != 2:
            return None
        weight, scale = (initializer(source) for source in node.inputs[:2])
        if weight is None or scale is None or weight.dtype not in self.weight_dtypes:
            return None
        axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
        if scale.dtype != ir.DataType.FLOAT or block:
            return None
        shape, scale_shape = (extents(value.const_value) for value in (weight, scale) if value.const_value is not None)
        by_row = scale_shape == shape[:1] and axis in (0, -2)
        if len(shape) != 2 or not (by_row or scale_shape == ()):
            return None
        scales = scale if by_row else _repeated(scale, shape[0], str(weight.name))
        return StoredMatrix(self, {"weight": weight, "weight_scale": scales})

    def pack(self, matrix: np.ndarray) -> dict[str, np.ndarray]:
        """As :meth:`QuantizedFormat.pack`. The scale of a row of zeros is 1."""
        wide = matrix.astype(np.float32)
        scale = np.abs(wide).max(-1) / np.float32(self.largest)
        scale = np.where(scale > 0, scale, np.float32(1))
        scaled = np.clip(wide / scale[..., None], -self.largest, self.largest)
        return {"weight": self.rounded(scaled), "weight_scale": scale}

    def express(self, graph: ir.Graph, before: ir.Node, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """As :meth:`QuantizedFormat.express`."""
        shape = extents(tensor)

        def part(operand: str) -> Callable[[], np.ndarray]:
            return lambda: self.pack(tensor.numpy())[operand]

        weight = lazy(part("weight"), self.weight_dtypes[0], shape)
        scale = lazy(part("weight_scale"), ir.DataType.FLOAT, shape[:1])
        inputs = [add_initializer(graph, f"{name}.quantized", weight), add_initializer(graph, f"{name}.scale", scale)]
        kind = ir.TensorType(ir.DataType.FLOAT)
        result = ir.Value(name=f"{name}.dequantized", type=kind, shape=ir.Shape(shape))
        node = ir.node("DequantizeLinear", inputs, {"axis": 0}, outputs=[result], name=f"{name}.dequantize")
        graph.insert_before(before, node)
        return result

    def dequantize(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """As :meth:`Format.dequantize`."""
        return tensors["weight"].astype(np.float32) * tensors["weight_scale"][..., None]


def _repeated(scalar: ir.Value, count: int, weight: str) -> ir.Value:
    """The float32 ``scalar``, which scales the whole of ``weight``, ``count`` times."""
    tensor = scalar.const_value
    assert tensor is not None
    repeated = lazy(lambda: np.full(count, tensor.numpy(), np.float32), ir.DataType.FLOAT, (count,))
    return derived(f"{weight}.{scalar.name}", repeated)
