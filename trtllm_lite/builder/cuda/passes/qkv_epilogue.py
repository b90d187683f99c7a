"""Moves RoPE and the cache write into the epilogue of the product that makes queries, keys and values."""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Links, Op, ProgramKind
from trtllm_lite.builder.graph import dims
from trtllm_lite.plugins.paged_attention.new_tokens import rotates_in_products


def qkv_epilogue(ops: list[Op], _program: ProgramKind) -> list[Op]:
    """PagedAttention(qkv=Linear(x, weight, bias)) becomes PagedAttention(x, weight, bias) where kernels can do that."""
    links = Links(ops)
    products = {op: linear for op in ops if (linear := _product(op, links)) is not None}
    rewritten = []
    for op in ops:
        linear = products.get(op)
        rewritten.append(op if linear is None else _joined(op, linear))
    return rewritten


def _joined(attention: Op, linear: Op) -> Op:
    rounding = {name: value for name, value in linear.attributes.items() if name.startswith("x_")}
    joined = attention.without("qkv").with_inputs(**linear.inputs)
    return replace(joined, attributes={**attention.attributes, **rounding})


def _product(attention: Op, links: Links) -> Op | None:
    if attention.kind != "PagedAttention" or {"query_norm", "key_norm", "value_norm"} & attention.inputs.keys():
        return None
    if "stored" in attention.outputs or not attention.attributes["appends"]:
        return None
    linear = links.producer(attention.inputs["qkv"], "Linear")
    if linear is None or links.only_reader(attention.inputs["qkv"]) is not attention:
        return None
    if {"added", "residual"} & linear.inputs.keys():  # its kernels add neither
        return None
    columns = (dims(attention.inputs.get("cos")) or (0,))[-1]
    assert isinstance(columns, int)
    return linear if linear.attributes["activation"] == "none" and rotates_in_products(2 * columns) else None
