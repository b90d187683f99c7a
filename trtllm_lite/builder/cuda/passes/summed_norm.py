"""Norms the sum over a row's experts in the kernel that makes the sum, so that one launch does both."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind


def summed_norm(ops: list[Op], program: ProgramKind) -> list[Op]:
    """RmsNorm(x=GroupedLinear(…) -> sum, w) -> y becomes GroupedLinear(…, norm_weight=w) -> y, sum.

    This needs rows sorted by expert: for a few rows the GEMV itself adds up the experts, and each of its thread blocks
    has only some of the features.
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
    """Return the sum over experts that is the only input of ``norm``; a second norm of the same sum is left alone."""
    if norm.kind != "RmsNorm" or "residual" in norm.inputs:
        return None
    summed = links.producer(norm.inputs["x"], "GroupedLinear")
    if summed is None or "places" not in summed.inputs:
        return None
    norms = [reader for reader in links.readers[norm.inputs["x"]] if reader.kind == "RmsNorm"]
    return summed if norms[0] is norm else None
