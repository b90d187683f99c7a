"""The sum over a row's experts is normed where it is made, so that one launch does both."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind


def summed_norm(ops: list[Op], program: ProgramKind) -> list[Op]:
    """RmsNorm(x=GroupedLinear(…) -> sum, w) -> y becomes GroupedLinear(…, norm_weight=w) -> y, sum.

    Rows are sorted by expert; of a few rows the product itself makes the sum, a block some features of it.
    """
    del program
    links = Links(ops)
    norms = {op: summed for op in ops if (summed := _summed(op, links)) is not None}
    by_product = {summed: norm for norm, summed in norms.items()}
    fused = []
    for op in (op for op in ops if op not in norms):
        norm = by_product.get(op)
        if norm is not None:
            outputs = {**norm.outputs, "sum": op.outputs["y"]}
            op = op.with_inputs(norm_weight=norm.inputs["weight"])
            op = replace(op, outputs=outputs, attributes={**op.attributes, **norm.attributes})
        fused.append(op)
    return fused


def _summed(norm: Op, links: Links) -> Op | None:
    """The sum over experts that is all that ``norm`` reads; a second norm of it is left alone."""
    if norm.kind != "RmsNorm" or "residual" in norm.inputs:
        return None
    summed = links.producer(norm.inputs["x"], "GroupedLinear")
    if summed is None or "places" not in summed.inputs:
        return None
    norms = [reader for reader in links.readers[norm.inputs["x"]] if reader.kind == "RmsNorm"]
    return summed if norms[0] is norm else None
