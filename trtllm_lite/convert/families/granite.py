"""Granite 3 (https://github.com/ibm-granite/granite-3.0-language-models): Llama with four constant factors."""

from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.granite import GGUF_KEYS, GraniteParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all projections of a block have biases, or none has."""
    granite, mlp_bias = GraniteParts.read(config), config.flag("mlp_bias")
    parts = granite.parts

    def layer(tensors: Tensors, _: int) -> Layer:
        mlp = parts.gated_mlp(tensors, parts.activation, mlp_bias)
        return parts.pre_norm_layer(tensors, granite.attention(tensors), mlp)

    return granite.decoder(config, parts.layers(layer))


# Keys that files of dense Granite 4, which is Granite 3 to llama.cpp, have although no layer is recurrent.
_OF_MAMBA = tuple(
    f"ssm.{name}" for name in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")
)
_SHARED = "expert_shared_feed_forward_length"


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """Take what dense Granite 4 says besides, of which only the size of the MLP matters."""
    for key in _OF_MAMBA:
        config.pop(key, None)
    return {"intermediate_size": config.pop(_SHARED, config.get("intermediate_size"))}


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    read_model=read_model,
    gguf=Gguf(
        "granite",
        keys={**GGUF_KEYS, **{key: key for key in (*_OF_MAMBA, _SHARED)}},
        config=_gguf_config,
        interleaved_rope=True,
        optional_bias=True,
    ),
)
