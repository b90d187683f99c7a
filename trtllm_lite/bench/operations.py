"""Counts the operations of matrix products and of attention; a multiply-add counts two."""

from dataclasses import replace
from math import prod

from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.bench.mixtures import is_grouped, mixtures, operands_of
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.manifest import ModelConfig
from trtllm_lite.engine.reader import EngineFile


def products_flops(engine: EngineFile, rows: float) -> float:
    """A rank's operations in the matrix products of a decode step of ``rows`` rows, which all have logits."""
    model = _model_of(engine)
    return rows * (2 * _multiplied_weights(engine) + _head_flops(model) / _tp_size(engine))


def step_flops(engine: EngineFile, shape: LatencyShape) -> float:
    """A rank's operations in a decode step of ``shape``, on average of its steps: products and attention."""
    model = _model_of(engine)
    context = shape.input_len + shape.output_len / 2
    heads = (model.num_hidden_layers - _recurrent_layers(engine)) * model.num_attention_heads
    attention = 4 * heads * model.head_dim * context / _tp_size(engine)
    return products_flops(engine, shape.batch_size) + shape.batch_size * attention


def prompt_flops_of(engine: EngineFile, length: int) -> float:
    """A rank's operations up to the first token of a prompt of ``length`` tokens, as far as its stage computes it."""
    model = _model_of(engine)
    attended = _attention_flops(model.num_hidden_layers - _recurrent_layers(engine), model, length)
    return 2 * length * _multiplied_weights(engine) + (attended + _head_flops(model)) / _tp_size(engine)


def _tp_size(engine: EngineFile) -> int:
    return engine.manifest.mapping.tp_size


def _recurrent_layers(engine: EngineFile) -> int:
    """The layers that do not attend to earlier tokens."""
    return sum(len(group.layers) for group in engine.manifest.kv_cache.groups if group.kind == STATE)


def _model_of(engine: EngineFile) -> ModelConfig:
    """The part of the model that the engine's stage computes: its layers only, with logits only in the last stage."""
    model, mapping = engine.manifest.model, engine.manifest.mapping
    if mapping.pp_size == 1:
        return model
    layers = sum(len(group.layers) for group in engine.manifest.kv_cache.groups)
    return replace(model, num_hidden_layers=layers, vocab_size=model.vocab_size if mapping.is_last else 0)


def _multiplied_weights(engine: EngineFile) -> float:
    """Elements of a rank's matrices that a row is multiplied by in all layers.

    Layers of hybrids differ, so their matrices are those of the plan. Of other models routers are not counted, nor
    experts that all rows share where these are products of their own.
    """
    model, ranks, found = _model_of(engine), engine.manifest.mapping.moe_ep_size, mixtures(engine)
    chosen = sum(one.top_k * one.elements / ranks for one in found)
    if _recurrent_layers(engine) > 0:
        return chosen + _dense_elements(engine)
    dense = 3 * model.hidden_size * model.intermediate_size
    return (_layer_weights(model) - dense * len(found)) / _tp_size(engine) + chosen


def _dense_elements(engine: EngineFile) -> int:
    """Elements of the matrices in a rank's plan, without those of experts, and the head and the embedding."""
    plan, vocab_size = engine.plan, engine.manifest.model.vocab_size
    grouped = [one for one in plan.programs[0].instructions if is_grouped(plan, one)]
    of_experts = {index for instruction in grouped for index in operands_of(plan, instruction)}
    shapes = [one.shape for index, one in enumerate(plan.tensors) if one.kind == "weight" and index not in of_experts]
    matrices = [[extent for extent in shape if isinstance(extent, int)] for shape in shapes if len(shape) > 1]
    return sum(prod(extents) for extents in matrices if extents[0] * _tp_size(engine) < vocab_size)


def prompt_flops(model: ModelConfig, length: int, tp_size: int = 1) -> float:
    """A rank's operations up to the first token of a prompt of ``length`` tokens; a multiply-add counts two."""
    attention = _attention_flops(model.num_hidden_layers, model, length)
    return (2 * _layer_weights(model) * length + attention + _head_flops(model)) / tp_size


def _attention_flops(num_layers: int, model: ModelConfig, length: int) -> float:
    """Operations of causal attention of ``length`` tokens in ``num_layers`` layers."""
    return 4 * num_layers * model.num_attention_heads * model.head_dim * length**2 / 2


def _layer_weights(model: ModelConfig) -> int:
    """Elements of the matrices of all layers."""
    attention = 2 * (model.num_attention_heads + model.num_key_value_heads) * model.head_dim
    return model.num_hidden_layers * model.hidden_size * (attention + 3 * model.intermediate_size)


def _head_flops(model: ModelConfig) -> int:
    return 2 * model.vocab_size * model.hidden_size
