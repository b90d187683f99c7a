"""The product in front of a norm adds the residual stream in its epilogue, so that the norm reads one buffer."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind

_NORMS = ("RmsNorm", "LayerNorm")


def residual_epilogue(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Norm(x=Linear(…), residual=r) -> sum becomes Norm(x=Linear(…, residual=r)), whose rows are the sum.

    The product is a Linear without activation or a GroupedLinear, and only the norm reads its rows. The product moves
    to the place of the norm, where ``r`` is already computed.
    """
    del program
    links = Links(ops)
    norms = {op: linear for op in ops if (linear := _product(op, links)) is not None}
    sums = {linear.outputs["y"]: op.outputs["sum"] for op, linear in norms.items() if "sum" in op.outputs}
    rewritten = []
    for op in (op for op in ops if op not in norms.values()):
        reads_sums = replace(op, inputs={name: sums.get(value, value) for name, value in op.inputs.items()})
        if op in norms:
            linear, y = norms[op], norms[op].outputs["y"]
            added = linear.with_inputs(residual=reads_sums.inputs["residual"])
            rewritten.append(replace(added, outputs={**linear.outputs, "y": sums.get(y, y)}))
            reads_sums = reads_sums.without("residual", "sum")
        rewritten.append(reads_sums)
    return rewritten


def _product(norm: Op, links: Links) -> Op | None:
    """Return the product whose epilogue can add the residual of ``norm``."""
    if norm.kind not in _NORMS or "residual" not in norm.inputs:
        return None
    linear = links.producer(norm.inputs["x"], "Linear") or links.producer(norm.inputs["x"], "GroupedLinear")
    can_add = linear is not None and linear.attributes.get("activation", "none") == "none"
    return linear if can_add and links.only_reader(norm.inputs["x"]) is norm else None
