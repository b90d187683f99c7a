"""Reads the config keys of Llama 4: which layers have experts, which see chunks, and how positions scale queries."""

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.errors import shown
from trtllm_lite.network.attention import Temperature

_LAYER_TYPES = {"chunked_attention", "full_attention"}


def read_sparse_layers(config: ConfigFields, layers: int) -> list[bool]:
    """For each layer whether it has experts: those of ``moe_layers``, or each ``interleave_moe_layer_step``-th."""
    step, given = config.integer("interleave_moe_layer_step", 1), config.take("moe_layers")
    if given is None:
        return [(number + 1) % step == 0 for number in range(layers)]
    if not isinstance(given, list) or not all(type(number) is int for number in given):
        config.problem("moe_layers", f"expected a list of numbers of layers, found {shown(given)}")
        return [True] * layers
    return [number in given for number in range(layers)]


def read_chunks(config: ConfigFields, rotates: list[bool]) -> list[int]:
    """For each layer the tokens of a chunk, 0 if it sees all: by ``layer_types``, or chunks in layers with RoPE."""
    chunk, kinds = config.nullable_integer("attention_chunk_size", 8192) or 0, config.take("layer_types")
    if kinds is None:
        return [chunk if rotated else 0 for rotated in rotates]
    if isinstance(kinds, list) and len(kinds) == len(rotates) and set(map(str, kinds)) <= _LAYER_TYPES:
        return [chunk if kind == "chunked_attention" else 0 for kind in kinds]
    config.problem("layer_types", f"expected {' or '.join(sorted(_LAYER_TYPES))} for each layer, found {shown(kinds)}")
    return [0] * len(rotates)


def read_temperature(config: ConfigFields) -> Temperature | None:
    """The scale of queries at late positions in layers without RoPE; None if they are not scaled."""
    temperature = Temperature(config.integer("floor_scale", 8192), config.number("attn_scale", 0.1))
    key = "attn_temperature_tuning"
    if type(config.take(key)) is int:  # transformers 4.51 writes an integer, and tests whether it is 0
        return temperature if config.integer(key, minimum=0) else None
    return temperature if config.flag(key, True) else None
