"""Removes the gathering of rows from decode steps, where every row has logits."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Op, ProgramKind


def rows_with_logits(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Remove GatherRows from programs for decode steps: its readers read its input."""
    if not program.bucket.decode:
        return ops
    gathered: dict[ir.Value, ir.Value] = {}
    kept = []
    for op in ops:
        if op.kind == "GatherRows":
            gathered[op.outputs["y"]] = gathered.get(op.inputs["x"], op.inputs["x"])
        else:
            kept.append(replace(op, inputs={name: gathered.get(value, value) for name, value in op.inputs.items()}))
    return kept
