"""Finds the matrix products of a network that can be quantized, and their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.moe import EXPERTS, SHARED_EXPERT
from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.formats import Plain, StoredMatrix
from trtllm_lite.quantize.formats.format import initializer, made_by

LM_HEAD = "lm_head"
CLASSIFIER = "classification.classifier"  # the last product of a classifier, see network/classification.py
_PROJECTIONS = ("gate", "up", "down")


@dataclass(frozen=True, eq=False)
class Product:
    """A product of x and the transpose of ``matrix`` [out, in], which is stored in floating point.

    ``node`` is the MatMul; its second operand is made from the float32 value ``weight``, which ``reader`` reads. With
    ``of_experts`` the matrix has the rows of all experts of a mixture (network/moe.py). With ``of_shared`` it is one of
    an MLP that all rows of a mixture share and that is as wide as some experts: engines compute it as experts, if
    it is stored like theirs (builder/passes/shared_experts.py).
    """

    node: ir.Node
    reader: ir.Node
    matrix: StoredMatrix
    of_experts: bool = False
    of_shared: bool = False

    @property
    def num_elements(self) -> int:
        """The number of elements of the matrix."""
        rows, columns = self.matrix.shape
        return int(rows * columns)

    @property
    def name(self) -> str:
        """The product's path in the model, such as ``layers.3.attention.q_proj``."""
        return str(self.node.name)

    @property
    def x(self) -> ir.Value:
        """The activations that it multiplies."""
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def weight(self) -> ir.Value:
        """The matrix in float32."""
        value = self.reader.inputs[0]
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
        product = made_by(node.outputs[0], "MatMul")
        by_expert = None if product is None else _cut_by_expert(product.inputs[1])
        reader = by_expert if by_expert or product is None else made_by(product.inputs[1], "Transpose")
        matrix = None if reader is None else Plain().recognise(reader.inputs[0])
        if reader is not None and matrix is not None:
            found.append(Product(node, reader, matrix, by_expert is not None))
    shared = _shared_like_experts(found)
    return [replace(product, of_shared=product in shared) for product in found]


def _shared_like_experts(products: Sequence[Product]) -> set[Product]:
    """The products of MLPs that all rows of a mixture share, each as wide as some of the mixture's experts.

    The MLP has the same projections as an expert: gate, up and down, or up and down.
    """
    by_name = {product.name: product for product in products}
    found: set[Product] = set()
    for name, down in by_name.items():
        mixture, is_shared, last = name.rpartition(f".{SHARED_EXPERT}.")
        of_experts = by_name.get(f"{mixture}.{EXPERTS}.{last}")
        own, theirs = (
            {part: by_name[path] for part in _PROJECTIONS if (path := f"{mixture}.{scope}.{part}_proj") in by_name}
            for scope in (SHARED_EXPERT, EXPERTS)
        )
        if is_shared and of_experts is not None and down is own.get("down") and own.keys() == theirs.keys():
            fits = of_experts.of_experts and down.in_features % of_experts.in_features == 0
            found |= set(own.values()) if fits else set()
    return found


def _cut_by_expert(value: ir.Value | None) -> ir.Node | None:
    """The Reshape that cuts a matrix into the matrices of experts, [experts, out, in], and leads to ``value``."""
    flat = made_by(value, "Reshape")
    transpose = None if flat is None else made_by(flat.inputs[0], "Transpose")
    by_expert = None if transpose is None else made_by(transpose.inputs[0], "Reshape")
    shape = None if by_expert is None else initializer(by_expert.inputs[1])
    if shape is None or shape.const_value is None or np.size(shape.const_value.numpy()) != 3:
        return None
    return by_expert


def observed_input(group: Sequence[Product]) -> Observed:
    """The input that calibration observes for products that multiply the same activations."""
    return Observed(group[0].in_features, tuple(product.name for product in group))


def by_input(products: Sequence[Product]) -> dict[str, list[Product]]:
    """Group products by the activations that they multiply, under the name of the first; experts form their own
    groups."""
    groups: dict[tuple[ir.Value, bool], list[Product]] = {}
    for product in products:
        groups.setdefault((product.x, product.of_experts), []).append(product)
    return {members[0].name: members for members in groups.values()}


def merged(products: Sequence[Product]) -> list[list[Product]]:
    """Group products that an engine computes at once, and that get one scheme: those of a block that read one input."""
    groups: dict[tuple[ir.Value, bool, str], list[Product]] = {}
    for product in products:
        groups.setdefault((product.x, product.of_experts, product.name.rpartition(".")[0]), []).append(product)
    return list(groups.values())
