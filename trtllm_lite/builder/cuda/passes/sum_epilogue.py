"""A product adds other rows to its own in its epilogue, as mixtures add what experts and a shared expert make."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind
from trtllm_lite.builder.graph import dims

_SUM = "x0 x1 add"  # the program of Rowwise


def sum_epilogue(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Rowwise(product, r) that adds becomes the product with the residual r, at the place of the Rowwise.

    A GroupedLinear adds the result of a Linear rather than the other way round: the pass residual_epilogue can then let
    the Linear add the residual stream.
    """
    del program
    links = Links(ops)
    sums = {op: product for op in ops if (product := _product(op, links)) is not None}
    rewritten = []
    for op in (op for op in ops if op not in sums.values()):
        product = sums.get(op)
        if product is not None:
            (other,) = (value for value in op.inputs.values() if value is not product.outputs["y"])
            op = replace(product.with_inputs(residual=other), outputs={**product.outputs, "y": op.outputs["y"]})
        rewritten.append(op)
    return rewritten


def product_of(links: Links, op: Op, operand: str) -> Op | None:
    """Return the Linear without activation or the GroupedLinear whose rows only ``op`` reads, as its ``operand``."""
    value = op.inputs[operand]
    product = links.producer(value, "GroupedLinear") or links.producer(value, "Linear")
    adds = product is not None and product.attributes.get("activation", "none") == "none"
    return product if adds and links.only_reader(value) is op else None


def _product(op: Op, links: Links) -> Op | None:
    """Return the product whose epilogue can do what ``op`` does."""
    if op.kind != "Rowwise" or op.attributes["program"] != _SUM or op.outputs["y"].is_graph_output():
        return None
    if dims(op.inputs["x1"]) != dims(op.outputs["y"]):  # columns of wider rows
        return None
    found = [product for name in ("x1", "x0") if (product := product_of(links, op, name)) is not None]
    return next((product for product in found if product.kind == "GroupedLinear"), next(iter(found), None))
