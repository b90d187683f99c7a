"""Moves the normalisation of rows into the prologue of a GEMV."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind

_PRODUCTS = ("Linear", "GatedLinear", "PagedAttention", "Router", "GroupedGatedLinear")


def norm_prologue(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Product(x=RmsNorm(z, w)) becomes Product(x=z, x_norm=w) where x stays in shared memory.

    Deterministic engines keep the norm's kernel, whose sums have the same order for any number of rows.
    """
    if program.limits.deterministic:
        return ops
    links = Links(ops)
    rewritten = []
    for op in ops:
        norm = _norm(op, links, program)
        if norm is None:
            rewritten.append(op)
            continue
        attributes = {**op.attributes, "x_norm_epsilon": norm.attributes["epsilon"]}
        read = op.with_inputs(x=norm.inputs["x"], x_norm=norm.inputs["weight"])
        rewritten.append(replace(read, attributes=attributes))
    return rewritten


def _norm(op: Op, links: Links, program: ProgramKind) -> Op | None:
    """Return the norm without residual that ``op`` can take into its prologue; None if there is none."""
    if op.kind not in _PRODUCTS or "x" not in op.inputs:
        return None
    if op.kind == "GroupedGatedLinear" and "scores" not in op.inputs:
        return None
    norm = links.producer(op.inputs["x"], "RmsNorm")
    if norm is None or op.inputs["x"] is not norm.outputs["y"] or "residual" in norm.inputs:
        return None
    if any(reader.kind == "LowRank" for reader in links.readers[op.inputs["x"]]):
        return None  # an adapter reads the normalised rows from memory
    config = program.few_rows(op)
    return norm if config is not None and not config.stream_x else None
