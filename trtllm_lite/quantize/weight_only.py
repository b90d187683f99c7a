"""Schemes without calibration: the matrices of a network's products in another format, and maybe what they multiply.

Embeddings and the LM head stay as they are: an embedding is looked up, not multiplied, and logits are what small errors
hurt most.
"""

from dataclasses import dataclass, replace

import onnx_ir as ir

from trtllm_lite.errors import BuildError, shown
from trtllm_lite.plugins.packing import WORD
from trtllm_lite.quantize.activations import quantize_per_tensor, quantize_per_token
from trtllm_lite.quantize.formats import Float8, Int4, Int8, Plain
from trtllm_lite.quantize.formats.format import made_by
from trtllm_lite.quantize.formats.scaled import Scaled

FULL_PRECISION = "full_prec"  # weights as the checkpoint has them
GROUP_SIZE = 128  # elements of a row that share a scale in formats of 4 bits


@dataclass(frozen=True)
class Scheme:
    """The format of weights, and the type that activations are rounded to.

    Each token has a scale of its own, or, ``static``, all activations that a product reads have one, of calibration.
    """

    weights: Scaled
    activations: str | None = None
    static: bool = False


# int8_wo and fp8_rowwise as TensorRT-LLM has them; fp8_wo after the former.
QFORMATS = {
    "int8_wo": Scheme(Int8()),
    "fp8_wo": Scheme(Float8()),
    "int4_wo": Scheme(Int4(block_size=GROUP_SIZE)),
    "fp8": Scheme(Float8(), "float8_e4m3fn", static=True),
    "fp8_rowwise": Scheme(Float8(), "float8_e4m3fn"),
}
_LM_HEAD = "lm_head"


def quantize_weights(
    network: ir.Model, qformat: str, static_scale: float | None = None, group_size: int = GROUP_SIZE
) -> ir.Model:
    """``network`` whose linear layers, but for the LM head, dequantize weights, and maybe activations, of ``qformat``.

    ``full_prec`` is the network itself. ``static_scale`` is that of all activations of a scheme with static scales;
    ``group_size`` elements of a row share a scale where weights have 4 bits. Weights are quantized when they are asked
    for. Raises BuildError if ``qformat`` is unknown, if there is nothing that it applies to, if it lacks a scale, or if
    the rows of a layer are no whole groups.
    """
    if qformat == FULL_PRECISION:
        return network
    if qformat not in QFORMATS:
        raise BuildError(f"qformat is {shown(qformat)}: expected one of {', '.join((FULL_PRECISION, *QFORMATS))}")
    scheme, quantized = QFORMATS[qformat], network.clone()
    weights = replace(scheme.weights, block_size=group_size) if scheme.weights.block_size else scheme.weights
    if scheme.static and static_scale is None:
        raise BuildError(f"qformat is {qformat}, whose scales of activations need calibration: pass fp8_rowwise")
    rounded: dict[ir.Value, ir.Value] = {}
    done: dict[ir.Value, ir.Value] = {}
    for node in [node for node in quantized.graph if node.op_type == "Transpose"]:
        source, matrix = node.inputs[0], Plain().recognise(node.inputs[0])
        if source is None or matrix is None or not _is_linear(node):
            continue
        if source not in done:
            name, tensor = str(_initializer(source).name), matrix.tensor("weight")
            _check_groups(weights.block_size, qformat, str(node.name).removesuffix(".transpose"), matrix.shape[-1])
            done[source] = weights.express(quantized.graph, node, name, weights.quantized(tensor))
        node.replace_input_with(0, done[source])
        if scheme.activations is not None:
            _round_inputs(quantized.graph, node.outputs[0], scheme, static_scale, rounded)
    if not done:
        raise BuildError(f"qformat is {qformat}, and the network has no linear layer with a floating-point weight")
    _remove_unread(quantized.graph, list(done))
    return quantized


def _check_groups(group_size: int, qformat: str, layer: str, in_features: int) -> None:
    """Raise BuildError unless the rows of ``layer`` are whole groups, which whole words of 4 bits make."""
    if not group_size or (group_size > 0 and group_size % WORD == 0 and in_features % group_size == 0):
        return
    largest = in_features & -in_features
    remedy = f"pass --group_size {min(largest, GROUP_SIZE)}" if largest >= WORD else "pass --qformat int8_wo"
    raise BuildError(
        f"{layer} has rows of {in_features} weights, and {qformat} is to store them in groups of {group_size}: "
        f"expected a multiple of {WORD} that divides {in_features}; {remedy}"
    )


def _is_linear(transpose: ir.Node) -> bool:
    """Whether the transposed matrix is read only by products that are no LM head."""
    uses = list(transpose.outputs[0].uses())
    return bool(uses) and all(use.node.op_type == "MatMul" and use.node.name != _LM_HEAD for use in uses)


def _round_inputs(
    graph: ir.Graph, weight: ir.Value, scheme: Scheme, static_scale: float | None, rounded: dict[ir.Value, ir.Value]
) -> None:
    """Let the products with ``weight`` read rounded activations; ``rounded`` are those that there are already."""
    to = scheme.activations
    assert to is not None
    for product in [use.node for use in weight.uses()]:
        x = product.inputs[0]
        assert x is not None
        if x not in rounded:
            if scheme.static:
                assert static_scale is not None
                rounded[x] = quantize_per_tensor(graph, x, to, static_scale)
            else:
                rounded[x] = quantize_per_token(graph, x, to)
        product.replace_input_with(0, rounded[x])


def _initializer(value: ir.Value) -> ir.Value:
    cast = made_by(value, "Cast")
    source = value if cast is None else cast.inputs[0]
    assert source is not None
    return source


def _remove_unread(graph: ir.Graph, values: list[ir.Value]) -> None:
    """Remove the widened matrices that nothing reads any longer, and their weights."""
    for value in values:
        producer = value.producer()
        if producer is not None and not value.uses():
            source = producer.inputs[0]
            graph.remove(producer, safe=True)
            value = source if source is not None else value
        if value.is_initializer() and not value.uses():
            del graph.initializers[str(value.name)]
