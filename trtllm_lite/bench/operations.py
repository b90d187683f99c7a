"""Counts the operations of matrix products and of attention; a multiply-add counts two."""

from dataclasses import replace

from trtllm_lite.bench.latency_shape import LatencyShape
from trtllm_lite.bench.mixtures import mixtures
from trtllm_lite.common.vocabulary import STATE
from trtllm_lite.engine.manifest import ModelConfig
from trtllm_lite.engine.reader import EngineFile


def products_flops(engine: EngineFile, rows: float) -> float:
    """A rank's operations in the matrix products of a decode step of ``rows`` rows, which all have logits."""
    model = _model_of(engine)
    dense = (2 * _layer_weights(model) + _head_flops(model)) / _tp_size(engine)
    return rows * (dense + 2 * _chosen_weights(engine))


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
    unattended = _attention_flops(_recurrent_layers(engine), model, length) / _tp_size(engine)
    return prompt_flops(model, length, _tp_size(engine)) - unattended + 2 * length * _chosen_weights(engine)


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


def _chosen_weights(engine: EngineFile) -> float:
    """Elements of a rank's matrices that a row is multiplied by in mixtures, beyond those counted for dense layers.

    Routers are not counted, nor experts that all rows share where these are products of their own.
    """
    model, ranks = engine.manifest.model, engine.manifest.mapping.moe_ep_size
    dense = model.intermediate_size / _tp_size(engine)
    return sum(3 * model.hidden_size * (one.top_k * one.inner / ranks - dense) for one in mixtures(engine))


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
