"""Ministral 3, text only (https://huggingface.co/mistralai/Ministral-3-8B-Base-2512): Mistral with YaRN.

Queries at positions beyond the length of pretraining are scaled, by the logarithm of how many times the position
exceeds it (arXiv 2501.19399), as in modeling_ministral3.py of transformers.
"""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.families.mistral import OTHER_KEYS
from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import ORIGINAL, RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Temperature
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

_ROPE, _SCALE = "rope_parameters", "llama_4_scaling_beta"
_GGUF_SCALE = "attention.temperature_scale"
# The RoPE parameters also hold the temperature's scale, and max_position_embeddings again.
ROPE = RopeDefaults(others=frozenset({_SCALE, "max_position_embeddings"}))


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; a null or absent ``sliding_window`` means full attention."""
    parts, temperature = LlamaParts.read(config, head_dim=128, epsilon=1e-5, rope=ROPE), _read_temperature(config)
    window = config.integer("sliding_window", 0)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = replace(parts.attention(parts.projections(tensors), window), temperature=temperature)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


def _read_temperature(config: ConfigFields) -> Temperature | None:
    """The scale of queries beyond the length of pretraining; None for a factor of 0."""
    given = config.take(_ROPE)
    fields = ConfigFields(given if isinstance(given, dict) else {}, f"{_ROPE}.")
    if fields.take(_SCALE) is None:
        fields.problem(_SCALE, "expected a positive number, found none")
    length, scale = fields.integer(ORIGINAL), fields.number(_SCALE, 1.0, allows_zero=True)
    config.problems += fields.problems
    return Temperature(length, scale, floor_offset=0) if scale else None


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """Entries that files of Mistral 3 lack; they have ``mscale_all_dim`` as YaRN's multiplier (``mscale`` 1)."""
    rope = dict(config["rope_parameters"])
    mscales = {"mscale": 1.0, "mscale_all_dim": rope.pop("log_multiplier")} if "log_multiplier" in rope else {}
    return {"rope_parameters": {**rope, **mscales, _SCALE: config.pop("temperature")}}


FAMILY = Family(
    name="ministral3",
    architectures=("Ministral3ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Mistral3ForConditionalGeneration",),
        # Source: configuration_ministral3.py of transformers, Ministral3Config
        defaults={
            **{"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34},
            **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262144},
        },
        other_keys=OTHER_KEYS,
    ),
    read_model=read_model,
    gguf=Gguf(
        "mistral3",
        keys={_GGUF_SCALE: "temperature"},
        config=_gguf_config,
        interleaved_rope=True,
        marker=_GGUF_SCALE,
    ),
)
