"""In a decode step every row has logits, so that nothing is to be gathered."""

from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Op, ProgramKind


def rows_with_logits(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Programs for decode steps without GatherRows: its readers read what it would gather from."""
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
