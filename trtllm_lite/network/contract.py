"""Defines the contract of a checkpoint's network, on which the builder relies: standard operators, names, operands.

Inputs: input_ids and position_ids int64 [batch, seq], past_lens int64 [batch], and per layer past_key.{i} and
past_value.{i} float32 [batch, kv_heads, max_seq, head_dim]; keys and values differ in head_dim where attention is over
latents (network/latent_attention.py). Outputs: logits float32 [batch, seq, vocab], then per layer present_key.{i} and
present_value.{i} of the same shapes as the past ones.

A network that keeps features for a head has the output features after the logits; such a head has the input features
after past_lens and the output hidden after the logits: float32 [batch, seq, hidden], see network/drafting.py.

An encoder has the input seq_lens int64 [batch] instead of past_lens, no caches, and only the output sentence_embedding
float32 [batch, hidden], see network/encoder.py.
"""

import onnx_ir as ir

from trtllm_lite.common.vocabulary import (
    EMBEDDING,
    ENCODER_INPUTS,
    FEATURES,
    HIDDEN,
    LOGITS,
    NETWORK_INPUTS,
    SEQ_LENS,
    cache_names,
)
from trtllm_lite.network.graph import OPSET_VERSION

_Signature = tuple[str, str, tuple[int | str, ...]]
_ANY_CACHE: tuple[int | str, ...] = ("batch", "kv_heads", "max_seq", "head_dim")


def violations(graph: ir.Graph) -> list[str]:
    """The defects of ``graph``, as phrases that complete a sentence about it."""
    problems = []
    opset = graph.opset_imports.get("", 0)
    if opset < OPSET_VERSION:
        problems.append(f"expected ONNX opset {OPSET_VERSION} or newer, found {opset}")
    custom = sorted(
        {f"{node.domain}::{node.op_type}" for node in graph.all_nodes() if node.domain not in ("", "ai.onnx")}
    )
    if custom:
        problems.append(f"expected standard operators only, found {', '.join(custom)}")
    unnamed = sum(not node.name for node in graph.all_nodes())
    if unnamed:
        problems.append(f"{unnamed} nodes have no name")
    expected = _expected_of_encoder if is_encoder(graph) else _expected_signatures
    inputs, outputs = expected(graph)
    problems += _compare("inputs", inputs, [_signature(value) for value in graph.inputs])
    problems += _compare("outputs", outputs, [_signature(value) for value in graph.outputs])
    return problems


def is_encoder(graph: ir.Graph) -> bool:
    """Whether a network, before any pass has run, is an encoder's."""
    return any(value.name == SEQ_LENS for value in graph.inputs)


def _expected_of_encoder(graph: ir.Graph) -> tuple[list[_Signature], list[_Signature]]:
    """The inputs and outputs of an encoder by the contract."""
    inputs: list[_Signature] = [(name, "INT64", ("batch", "seq")[:rank]) for name, rank in ENCODER_INPUTS.items()]
    found = _signature(graph.outputs[0])[2] if graph.outputs else ()
    return inputs, [(EMBEDDING, "FLOAT", ("batch", *found[1:2]))]


def _expected_signatures(graph: ir.Graph) -> tuple[list[_Signature], list[_Signature]]:
    """The inputs and outputs of the module's contract, with the model's sizes taken from the graph."""
    extra_inputs = [_signature(value) for value in graph.inputs if value.name == FEATURES][:1]
    extra_outputs = [_signature(value) for value in graph.outputs if value.name in (FEATURES, HIDDEN)][:1]
    first_cache = 3 + len(extra_inputs)
    layers = (len(graph.inputs) - first_cache) // 2
    caches = [_cache_like(value) for value in graph.inputs[first_cache : first_cache + 2]]
    pair = caches if len(caches) == 2 and caches[0][1] == caches[1][1] else [_ANY_CACHE] * 2
    logits = _signature(graph.outputs[0])[2] if graph.outputs else ()
    vocab = logits[-1] if logits else "vocab"
    tokens = ("batch", "seq")
    names = list(cache_names(max(layers, 1)))
    inputs: list[_Signature] = [(name, "INT64", tokens[:rank]) for name, rank in NETWORK_INPUTS.items()]
    inputs += [_rows_of_tokens(FEATURES, entry) for entry in extra_inputs]
    inputs += [(name.past, "FLOAT", pair[number % 2]) for number, name in enumerate(names)]
    outputs: list[_Signature] = [(LOGITS, "FLOAT", (*tokens, vocab))]
    outputs += [_rows_of_tokens(HIDDEN if extra_inputs else FEATURES, entry) for entry in extra_outputs]
    outputs += [(name.present, "FLOAT", pair[number % 2]) for number, name in enumerate(names)]
    return inputs, outputs


def _cache_like(value: ir.Value) -> tuple[int | str, ...]:
    """The shape of a cache with the sizes of ``value``."""
    found = _signature(value)[2]
    return ("batch", found[1], "max_seq", found[3]) if len(found) == 4 else _ANY_CACHE


def _rows_of_tokens(name: str, found: _Signature) -> _Signature:
    """The expected signature of ``found``, a row for each token whose size the network may choose."""
    return name, "FLOAT", ("batch", "seq", *found[2][2:3])


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
