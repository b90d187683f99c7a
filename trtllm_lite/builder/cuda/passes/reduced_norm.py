"""Fuses the sum over all ranks, the residual add and the norm, so that one launch does all three."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind


def reduced_norm(ops: list[Op], program: ProgramKind) -> list[Op]:
    """RmsNorm(x=AllReduce(z), residual=r, w) -> y, sum becomes AllReduce(z, residual=r, w) -> y, sum.

    With NCCL nothing is fused, as NCCL computes sums only.
    """
    if program.limits.uses_nccl:
        return ops
    links = Links(ops)
    sums = {op: found for op in ops if (found := _sum(op, links)) is not None}
    fused = []
    for op in (op for op in ops if op not in sums.values()):
        if op in sums:
            inputs = {**op.inputs, "x": sums[op].inputs["x"]}
            op = replace(sums[op], inputs=inputs, outputs=op.outputs, attributes=op.attributes)
        fused.append(op)
    return fused


def _sum(norm: Op, links: Links) -> Op | None:
    """Return the AllReduce whose sum is read by ``norm`` alone, which adds a residual and norms."""
    if norm.kind != "RmsNorm" or "residual" not in norm.inputs:
        return None
    reduce = links.producer(norm.inputs["x"], "AllReduce")
    return reduce if reduce is not None and links.only_reader(norm.inputs["x"]) is norm else None
