"""Bamba (https://huggingface.co/blog/bamba): Mamba-2 (arXiv 2405.21060) in most layers, attention in the others."""

from dataclasses import replace

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.mamba2 import MambaParts, mamba_tensor_names
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mamba2 import SpaceHeads

NAMES = {
    **TENSOR_NAMES,
    **mamba_tensor_names("model.layers.{layer}.mamba"),
    **{f"{name}_proj": f"model.layers.{{layer}}.feed_forward.{name}_proj" for name in ("gate", "up", "down")},
    "mlp_norm": "model.layers.{layer}.pre_ff_layernorm",
    "final_norm": "model.final_layernorm",
}
_HEADS = SpaceHeads(num_heads=128, num_groups=1, state_size=256, head_dim=64)
_OF_TRAINING = ("z_loss_coefficient", "num_logits_to_keep")


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attn_layer_indices`` lists the layers with attention."""
    for key in _OF_TRAINING:
        config.take(key)
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5, rope=RopeDefaults(part=0.5))
    config.expect("attn_rotary_emb", parts.sizes.head_dim // 2)
    mamba, mlp_bias = MambaParts.read(config, _HEADS), config.flag("mlp_bias")
    attends, bias = _read_attending_layers(config, parts.sizes.num_hidden_layers), config.flag("attention_bias")

    def layer(tensors: Tensors, number: int) -> Layer:
        mlp = parts.gated_mlp(tensors, parts.activation, mlp_bias)
        if number in attends:
            return parts.pre_norm_layer(tensors, parts.attention(parts.projections(tensors, bias, bias)), mlp)
        mixer = mamba.block(tensors, mamba.norm(tensors))
        return replace(parts.pre_norm_layer(tensors, mixer, mlp), name=RECURRENT)

    return parts.decoder(config, parts.layers(layer))


def _read_attending_layers(config: ConfigFields, layers: int) -> frozenset[int]:
    """The numbers of the layers with attention."""
    found = config.take("attn_layer_indices") or []
    if not isinstance(found, list) or not all(type(number) is int and 0 <= number < layers for number in found):
        config.problem("attn_layer_indices", f"expected numbers of layers in 0..{layers - 1}, found {shown(found)}")
        return frozenset()
    return frozenset(found)


FAMILY = Family(
    name="bamba",
    architectures=("BambaForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
)
