"""The product in front of a norm adds the residual stream in its epilogue, so that the norm reads one buffer."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind
from trtllm_lite.builder.cuda.passes.sum_epilogue import product_of

_NORMS = ("RmsNorm", "LayerNorm")


def residual_epilogue(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Norm(x=Linear(…), residual=r) -> sum becomes Norm(x=Linear(…, residual=r)), whose rows are the sum.

    The product is a Linear without activation or a GroupedLinear, and only the norm reads its rows. If it adds rows of
    another such product (the pass sum_epilogue), that one adds ``r``. The products move to the place of the norm, where
    ``r`` is already computed.
    """
    del program
    links = Links(ops)
    norms = {op: products for op in ops if (products := _products(op, links))}
    sums = {products[-1].outputs["y"]: op.outputs["sum"] for op, products in norms.items() if "sum" in op.outputs}
    moved = {product for products in norms.values() for product in products}
    rewritten = []
    for op in (op for op in ops if op not in moved):
        reads_sums = _reading(op, sums)
        if op in norms:
            first, *others = norms[op]
            adding = [first.with_inputs(residual=reads_sums.inputs["residual"]), *others]
            for product in adding:
                y = product.outputs["y"]
                rewritten.append(replace(product, outputs={**product.outputs, "y": sums.get(y, y)}))
            reads_sums = reads_sums.without("residual", "sum")
        rewritten.append(reads_sums)
    return rewritten


def _reading(op: Op, sums: dict[ir.Value, ir.Value]) -> Op:
    return replace(op, inputs={name: sums.get(value, value) for name, value in op.inputs.items()})


def _products(norm: Op, links: Links) -> list[Op]:
    """The product that can add the residual of ``norm``, and those that add its rows, up to the one that norm reads."""
    if norm.kind not in _NORMS or "residual" not in norm.inputs:
        return []
    products: list[Op] = []
    reader, operand = norm, "x"
    while (product := product_of(links, reader, operand)) is not None:
        products.insert(0, product)
        if "residual" not in product.inputs:
            return products
        reader, operand = product, "residual"
    return []
