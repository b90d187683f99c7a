"""Adds adapters to products: LowRank makes the rows to add, in programs for steps with adapters."""

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind
from trtllm_lite.builder.cuda.program_ops import step_input
from trtllm_lite.builder.graph import dims, value_of
from trtllm_lite.common.vocabulary import LOGITS_INDICES
from trtllm_lite.plugins.rowwise.expression import program_of_activation


def adapters(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Products lose ``added`` in programs without adapters; in others LowRank comes right before its product.

    There LowRank reads the adapter slot of each row. If the product has a residual, LowRank adds that to its own rows,
    and the product then takes the sum as its residual.
    """
    if not program.bucket.adapters:
        return [op.without("added") if "added" in op.inputs else op for op in ops]
    links, rewritten = Links(ops), []
    for op in ops:
        low_rank = links.producer(op.inputs.get("added"), "LowRank")
        if low_rank is not None:
            rewritten += _adapted(op, _listed(low_rank, ops, program))
        elif op.kind != "LowRank":
            rewritten.append(op)
    return rewritten


def _listed(low_rank: Op, ops: Sequence[Op], program: ProgramKind) -> Op:
    """Return LowRank with each adapter's list of rows: rows with logits if it reads only those, else all tokens."""
    of_logits = LOGITS_INDICES in low_rank.inputs and not program.bucket.decode
    rows, ends = ("adapter_logits", "adapter_logit_ends") if of_logits else ("adapter_tokens", "adapter_token_ends")
    lists = {"adapter_rows": step_input(rows, ops), "adapter_ends": step_input(ends, ops)}
    return low_rank.without(LOGITS_INDICES, "projected").with_inputs(**lists)


def _adapted(product: Op, low_rank: Op) -> list[Op]:
    if "residual" in product.inputs:
        both = low_rank.with_inputs(residual=product.inputs["residual"])
        return [both, product.without("added").with_inputs(residual=low_rank.outputs["y"])]
    activation = product.attributes["activation"]
    if product.kind == "GatedLinear" or activation == "none":
        return [low_rank, product]
    # An adapter's rows are added before the activation, which the kernels of Linear apply first.
    y = product.outputs["y"]
    plain = value_of(f"{product.name}.plain", ir.DataType.FLOAT, dims(y) or ())
    linear = replace(product, outputs={"y": plain}, attributes={**product.attributes, "activation": "none"})
    applied = {"program": program_of_activation(str(activation))}
    return [low_rank, linear, Op("Rowwise", product.name, {"x0": plain}, {"y": y}, applied)]
