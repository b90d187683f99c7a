"""Defines the contract of a checkpoint's network, on which the builder relies: standard operators, names, operands.

Inputs: input_ids and position_ids int64 [batch, seq], past_lens int64 [batch], and what each layer keeps. A layer with
attention keeps past_key.{i} and past_value.{i} float32 [batch, kv_heads, max_seq, head_dim]. One with attention over
latents (network/latent_attention.py) keeps past_rotary.{i} float32 [batch, 1, max_seq, rotary_dim], the rotated parts
of keys, and past_latent.{i} float32 [batch, 1, max_seq, latent_dim]. A recurrent layer keeps past_conv.{i} float32
[batch, channels, history], the last inputs of its convolution with the oldest first, and, if it has more than the
convolution, past_recurrent.{i} float32 [batch, heads, key_dim, value_dim]; both are zeros where past_lens is 0, and all
sequences of a batch have as many new tokens if a layer is recurrent. Layers come in order; one may keep what two kinds
keep, or nothing. Sizes may differ from layer to layer. Outputs: logits float32 [batch, seq, vocab], then
what each layer keeps, present_key.{i} and so on, of the same shapes as the past ones.

Operators are standard ones, or calls of the project's own functions (network/functions.py), whose bodies consist of
standard operators; the network defines the functions that it calls.

A network that keeps features for a head has the output features after the logits; such a head has the input features
after past_lens and the output hidden after the logits: float32 [batch, seq, hidden], see network/drafting.py.

An encoder has the input seq_lens int64 [batch] instead of past_lens, no caches, and only one output, whose name says
what the encoder is for (network/module_kinds.py): float32 [batch, size], see network/encoder.py.

A vision tower is an encoder with one more input, patches uint8 [batch, seq, bytes], and the output image_features
float32 [batch, image_seq, size], see network/vision.py.
"""

from collections.abc import Iterator

import onnx_ir as ir

from trtllm_lite.common.vocabulary import (
    ATTENTION,
    FEATURES,
    HIDDEN,
    LAYER_CACHES,
    PATCHES,
    CacheNames,
    cache_names,
)
from trtllm_lite.network.functions import is_call
from trtllm_lite.network.graph import OPSET_VERSION
from trtllm_lite.network.module_kinds import module_kind

_Signature = tuple[str, str, tuple[int | str, ...]]
# The shapes of what a layer keeps. The network chooses the extents named here but those of _FIXED.
_KEPT: dict[str, tuple[int | str, ...]] = {
    "key": ("batch", "kv_heads", "max_seq", "head_dim"),
    "value": ("batch", "kv_heads", "max_seq", "head_dim"),
    "rotary": ("batch", 1, "max_seq", "rotary_dim"),
    "latent": ("batch", 1, "max_seq", "latent_dim"),
    "conv": ("batch", "channels", "history"),
    "recurrent": ("batch", "heads", "key_dim", "value_dim"),
}
_FIXED = ("batch", "max_seq", 1)
_LARGEST_FIRST = sorted(LAYER_CACHES.items(), key=lambda kind: -len(kind[1]))


def violations(graph: ir.Graph) -> list[str]:
    """The defects of ``graph``, as phrases that complete a sentence about it."""
    problems = []
    opset = graph.opset_imports.get("", 0)
    if opset < OPSET_VERSION:
        problems.append(f"expected ONNX opset {OPSET_VERSION} or newer, found {opset}")
    others = (node for node in graph.all_nodes() if node.domain not in ("", "ai.onnx") and not is_call(node))
    custom = sorted({f"{node.domain}::{node.op_type}" for node in others})
    if custom:
        problems.append(f"expected standard operators and the project's functions, found {', '.join(custom)}")
    unnamed = sum(not node.name for node in graph.all_nodes())
    if unnamed:
        problems.append(f"{unnamed} nodes have no name")
    inputs, outputs = _expected_signatures(graph)
    problems += _compare("inputs", inputs, [_signature(value) for value in graph.inputs])
    problems += _compare("outputs", outputs, [_signature(value) for value in graph.outputs])
    return problems


def _expected_signatures(graph: ir.Graph) -> tuple[list[_Signature], list[_Signature]]:
    """The inputs and outputs of the module's contract, with the model's sizes taken from the graph."""
    extra_inputs = [_signature(value) for value in graph.inputs if value.name == FEATURES][:1]
    extra_outputs = [_signature(value) for value in graph.outputs if value.name in (FEATURES, HIDDEN)][:1]
    kind, kept = module_kind(graph), list(_kept_signatures(graph))
    found = _signature(graph.outputs[0])[2] if graph.outputs else ()
    size = found[-1] if len(found) > len(kind.output_rows) else "size"
    numbers = {name: rank for name, rank in kind.inputs.items() if name != PATCHES}
    inputs: list[_Signature] = [(name, "INT64", ("batch", "seq")[:rank]) for name, rank in numbers.items()]
    inputs += [_rows_of_tokens(PATCHES, _signature(value), "UINT8") for value in graph.inputs if value.name == PATCHES]
    inputs += [_rows_of_tokens(FEATURES, entry) for entry in extra_inputs]
    inputs += [(name.past, "FLOAT", shape) for name, shape in kept]
    outputs: list[_Signature] = [(kind.output, "FLOAT", (*kind.output_rows, size))]
    outputs += [_rows_of_tokens(HIDDEN if extra_inputs else FEATURES, entry) for entry in extra_outputs]
    outputs += [(name.present, "FLOAT", shape) for name, shape in kept]
    return inputs, outputs


def layer_kinds(graph: ir.Graph) -> list[tuple[int, str]]:
    """The numbers and kinds of layers that keep something of a sequence, as the names of the network's inputs say."""
    left = [str(value.name).removeprefix("past_").partition(".")[::2] for value in _kept_inputs(graph)]
    found: list[tuple[int, str]] = []
    while left:
        layer = left[0][1]
        begins = (
            kind for kind, caches in _LARGEST_FIRST if left[: len(caches)] == [(cache, layer) for cache in caches]
        )
        kind = next(begins, ATTENTION)
        found.append((int(layer) if layer.isdecimal() else len(found), kind))
        left = left[len(LAYER_CACHES[kind]) :]
    return sorted(found, key=lambda layer: layer[0])


def _kept_inputs(graph: ir.Graph) -> list[ir.Value]:
    """The inputs that follow those of the step: what layers keep."""
    return list(graph.inputs)[len(module_kind(graph).inputs) + any(value.name == FEATURES for value in graph.inputs) :]


def _kept_signatures(graph: ir.Graph) -> Iterator[tuple[CacheNames, tuple[int | str, ...]]]:
    """What each layer keeps by the contract, with the layer's own sizes; keys and values have as many heads."""
    least = module_kind(graph).caching_layer
    layers = layer_kinds(graph) or ([] if least is None else [(0, least)])
    found = [_signature(value)[2] for value in _kept_inputs(graph)]
    what = [name for _, kind in layers for name in LAYER_CACHES[kind]]
    found += [()] * (len(what) - len(found))
    previous: tuple[int | str, ...] = ()
    for names, kept, own in zip(cache_names(layers), what, found, strict=False):
        shape = _sized(_KEPT[kept], own)
        if kept == "value":
            shape = (shape[0], previous[1], *shape[2:])
        yield names, shape
        previous = shape


def _sized(axes: tuple[int | str, ...], found: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The shape with these axes, and with the extents of ``found`` where a network may choose them."""
    if len(found) != len(axes):
        return axes
    return tuple(axis if axis in _FIXED else extent for axis, extent in zip(axes, found, strict=True))


def _rows_of_tokens(name: str, found: _Signature, dtype: str = "FLOAT") -> _Signature:
    """The expected signature of ``found``, a row for each token whose size the network may choose."""
    return name, dtype, ("batch", "seq", *found[2][2:3])


def _signature(value: ir.Value) -> _Signature:
    dims = () if value.shape is None else tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
    return value.name or "", value.dtype.name if value.dtype else "?", dims


def _compare(what: str, expected: list[_Signature], found: list[_Signature]) -> list[str]:
    if expected == found:
        return []
    wrong = [f"{want} found {have}" for want, have in zip(expected, found, strict=False) if want != have]
    if len(expected) != len(found):
        wrong.append(f"{len(expected)}, found {len(found)}")
    return [f"{what}: expected {'; '.join(wrong)}"]
