"""Assembles a decoder network from its spec; the pattern of nodes is what the builder's passes recognise."""

from collections.abc import Mapping

import onnx_ir as ir

from trtllm_lite.network.attention import Context, Inputs, attention_block, shared_context
from trtllm_lite.network.blocks import LinearShape, embedding, linear, rms_norm, swiglu_mlp
from trtllm_lite.network.graph import OPSET_VERSION, GraphBuilder, Network
from trtllm_lite.network.spec import DecoderSpec

ROLES = ("embedding", "final_norm", "lm_head")
LAYER_ROLES = (
    *("attention_norm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj"),
    *("mlp_norm", "gate_proj", "up_proj", "down_proj"),
)


def build_decoder(spec: DecoderSpec, prefixes: Mapping[str, str], dtype: ir.DataType) -> Network:
    """The network of ``spec`` with matrices stored as ``dtype`` and vectors as float32.

    ``prefixes`` maps each of ROLES and LAYER_ROLES to a weight name without ``.weight``/``.bias``; ``{layer}`` in a
    layer's prefix stands for its number. Inputs and outputs are listed in :mod:`trtllm_lite.network.verifier`.
    """
    graph = GraphBuilder()
    inputs = _declare_inputs(spec)
    context = shared_context(graph, inputs, spec, dtype)
    table = (spec.vocab_size, spec.hidden_size)
    hidden = embedding(graph, inputs.input_ids, prefixes["embedding"], table, dtype)
    caches: list[ir.Value] = []
    for number in range(len(spec.layers)):
        names = {role: prefixes[role].format(layer=number) for role in LAYER_ROLES}
        with graph.scope(f"layers.{number}"):
            hidden, key, value = _layer(context, hidden, number, names)
        caches += [key, value]
    final = rms_norm(graph, hidden, prefixes["final_norm"], spec.hidden_size, spec.norm_epsilon, "final_norm")
    head = prefixes["embedding" if spec.tied_embeddings else "lm_head"]
    head_shape = LinearShape(spec.hidden_size, spec.vocab_size)
    logits = linear(graph, final, head, head_shape, dtype, "lm_head", output_name="logits")
    return _finish(context, logits, caches)


def _layer(
    context: Context, hidden: ir.Value, number: int, names: dict[str, str]
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """h + attention(norm(h)), then h + mlp(norm(h)); returns h and the layer's updated caches."""
    graph, spec = context.graph, context.spec
    size, epsilon = spec.hidden_size, spec.norm_epsilon
    normed = rms_norm(graph, hidden, names["attention_norm"], size, epsilon, "attention_norm")
    with graph.scope("attention"):
        mixed, key, value = attention_block(context, normed, number, names)
    hidden = graph.op("Add", [hidden, mixed], "attention_residual")
    normed = rms_norm(graph, hidden, names["mlp_norm"], size, epsilon, "mlp_norm")
    with graph.scope("mlp"):
        sizes, bias = (size, spec.intermediate_size), spec.layers[number].mlp_bias
        expanded = swiglu_mlp(graph, normed, names, sizes, bias, context.dtype)
    return graph.op("Add", [hidden, expanded], "mlp_residual"), key, value


def _declare_inputs(spec: DecoderSpec) -> Inputs:
    def declare(name: str, dtype: ir.DataType, shape: tuple[int | str, ...]) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))

    cache_shape = ("batch", spec.num_key_value_heads, "max_seq", spec.head_dim)

    def caches(name: str) -> tuple[ir.Value, ...]:
        return tuple(declare(f"{name}.{i}", ir.DataType.FLOAT, cache_shape) for i in range(len(spec.layers)))

    return Inputs(
        declare("input_ids", ir.DataType.INT64, ("batch", "seq")),
        declare("position_ids", ir.DataType.INT64, ("batch", "seq")),
        declare("past_lens", ir.DataType.INT64, ("batch",)),
        caches("past_key"),
        caches("past_value"),
    )


def _finish(context: Context, logits: ir.Value, present: list[ir.Value]) -> Network:
    """``present`` holds the updated caches in the order key 0, value 0, key 1, …"""
    inputs = context.inputs
    past = [value for pair in zip(inputs.past_keys, inputs.past_values, strict=True) for value in pair]
    logits.type = ir.TensorType(ir.DataType.FLOAT)
    logits.shape = ir.Shape(("batch", "seq", context.spec.vocab_size))
    for after, before in zip(present, past, strict=True):
        after.type, after.shape = before.type, before.shape
    finished = ir.Graph(
        [inputs.input_ids, inputs.position_ids, inputs.past_lens, *past],
        [logits, *present],
        nodes=context.graph.nodes,
        initializers=list(context.graph.constants.values()),
        opset_imports={"": OPSET_VERSION},
        name="decoder",
    )
    return Network(finished, tuple(context.graph.weights.values()))
