"""The matrix products of a network that can be quantized, and what they multiply."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.formats import Plain, StoredMatrix
from trtllm_lite.quantize.formats.format import made_by

LM_HEAD = "lm_head"


@dataclass(frozen=True, eq=False)
class Product:
    """x times the transpose of ``matrix`` [out, in], which is stored in floating point.

    ``node`` is the MatMul; ``transpose`` makes its second operand of the float32 value ``weight``.
    """

    node: ir.Node
    transpose: ir.Node
    matrix: StoredMatrix

    @property
    def name(self) -> str:
        """The product's path in the model, such as ``layers.3.attention.q_proj``."""
        return str(self.node.name)

    @property
    def x(self) -> ir.Value:
        """The activations."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def weight(self) -> ir.Value:
        """The matrix as the float32 operand that is transposed."""
        value = self.transpose.inputs[0]
        assert value is not None
        return value

    @property
    def in_features(self) -> int:
        """The columns of the matrix."""
        return self.matrix.shape[1]


def find_products(graph: ir.Graph) -> list[Product]:
    """Every product with a floating-point matrix, in the order of the graph."""
    found = []
    for node in graph:
        transpose = made_by(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
        matrix = None if transpose is None else Plain().recognise(transpose.inputs[0])
        if transpose is not None and matrix is not None:
            found.append(Product(node, transpose, matrix))
    return found


def observed_input(group: Sequence[Product]) -> Observed:
    """What calibration looks at for products that multiply the same activations."""
    return Observed(group[0].in_features, tuple(product.name for product in group))


def by_input(products: Sequence[Product]) -> dict[str, list[Product]]:
    """The products that multiply the same activations together, under the name of the first."""
    groups: dict[ir.Value, list[Product]] = {}
    for product in products:
        groups.setdefault(product.x, []).append(product)
    return {members[0].name: members for members in groups.values()}
