"""Makes the layers that LFM2's models share, from their config keys: short convolutions, and attention in some."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trtllm_lite.common.vocabulary import CONVOLUTION
from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block, Layer
from trtllm_lite.network.short_convolution import ShortConvolution

_LAYER = "model.layers.{layer}"
SHORT_CONV_NAMES: Mapping[str, str] = {
    **TENSOR_NAMES,
    "final_norm": "model.embedding_norm",
    "attention_norm": f"{_LAYER}.operator_norm",
    "mlp_norm": f"{_LAYER}.ffn_norm",
    "q_norm": f"{_LAYER}.self_attn.q_layernorm",
    "k_norm": f"{_LAYER}.self_attn.k_layernorm",
    "o_proj": f"{_LAYER}.self_attn.out_proj",
    "gate_proj": f"{_LAYER}.feed_forward.w1",
    "up_proj": f"{_LAYER}.feed_forward.w3",
    "down_proj": f"{_LAYER}.feed_forward.w2",
    "conv": f"{_LAYER}.conv.conv",
    "conv_in_proj": f"{_LAYER}.conv.in_proj",
    "conv_out_proj": f"{_LAYER}.conv.out_proj",
}
_OTHER_NAMES = {"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
# Keys of initial weights, which change nothing afterwards.
_OF_TRAINING = ("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init")
_KINDS = ("full_attention", "conv")
_GGUF_ROLES = {"conv": "", "in_proj": "_in_proj", "out_proj": "_out_proj"}
_MAX_WIDTH = 64  # of the convolution; published models have 3


@dataclass(frozen=True)
class ShortConvParts:
    """Makes the layers; ``parts`` makes all but convolutions, which are ``width`` tokens wide.

    ``convolves`` says of each layer whether it has a convolution, in place of attention; ``bias`` gives biases to the
    convolution and to the projections around it.
    """

    parts: LlamaParts
    convolves: tuple[bool, ...]
    width: int
    bias: bool

    @classmethod
    def read(cls, config: ConfigFields, names: Mapping[str, str]) -> "ShortConvParts":
        """Read the keys that the models share, also those of the training code that published configs repeat."""
        config.rename(_OTHER_NAMES)
        parts = LlamaParts.read(config, names, epsilon=1e-5, rope=RopeDefaults(theta=1e6))
        sizes = parts.sizes
        for key in ("block_dim", "conv_dim", "conv_dim_out"):
            config.expect(key, sizes.hidden_size)
        config.expect("num_heads", sizes.num_attention_heads)
        config.expect("block_norm_eps", config.number("rms_norm_eps", 1e-5))
        config.expect("hidden_act", "silu")
        for key in ("block_use_swiglu", "use_pos_enc"):
            config.expect(key, True)
        for key in _OF_TRAINING:
            config.take(key)
        width = config.integer("conv_L_cache", 3, minimum=2, maximum=_MAX_WIDTH)
        return cls(parts, _read_convolutions(config, sizes.num_hidden_layers), width, config.flag("conv_bias"))

    def layer(self, tensors: Tensors, number: int, mlp: Block) -> Layer:
        """Layer ``number`` with this MLP."""
        parts = self.parts
        if self.convolves[number]:
            return replace(parts.pre_norm_layer(tensors, self._convolution(tensors), mlp), name=CONVOLUTION)
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        return parts.pre_norm_layer(tensors, parts.attention(parts.projections(tensors), 0, *norms), mlp)

    def decoder(self, config: ConfigFields, layers: tuple[Layer, ...]) -> Decoder:
        """A decoder of ``layers``, whose embedding and head share a matrix unless the config says otherwise."""
        return self.parts.decoder(config, layers, tied=True)

    def _convolution(self, tensors: Tensors) -> ShortConvolution:
        hidden = self.parts.sizes.hidden_size
        input_gate, output_gate, value = tensors.linears("conv_in_proj", 3, hidden, hidden, self.bias)
        bias = tensors.bias("conv", hidden) if self.bias else None
        convolution = CausalConvolution(tensors.weight("conv", hidden, 1, self.width), bias=bias)
        output = tensors.linear("conv_out_proj", hidden, hidden, self.bias)
        return ShortConvolution(input_gate, output_gate, value, convolution, output)


def _read_convolutions(config: ConfigFields, layers: int) -> tuple[bool, ...]:
    """For each layer whether it has a convolution, by ``layer_types`` or ``full_attn_idxs``, which must agree."""
    kinds, attending = config.take("layer_types"), config.take("full_attn_idxs")
    attention, other = _KINDS
    if attending is not None:
        are_layers = isinstance(attending, list) and all(type(n) is int and 0 <= n < layers for n in attending)
        if not are_layers:
            config.problem("full_attn_idxs", f"expected numbers of the {layers} layers, found {shown(attending)}")
            return (True,) * layers
        named = [attention if number in attending else other for number in range(layers)]
        kinds = named if kinds is None else kinds
        if kinds != named:
            config.problem("full_attn_idxs", f"contradicts layer_types: {shown(attending)} and {shown(kinds)}")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in _KINDS for kind in kinds):
        config.problem("layer_types", f"expected {layers} times {' or '.join(_KINDS)}, found {shown(kinds)}")
        return (True,) * layers
    return tuple(kind == other for kind in kinds)


def short_conv_gguf(architecture: str) -> Gguf:
    """How llama.cpp stores the models (conversion/lfm2.py), whose last norm has the name of the embedding's."""
    return Gguf(
        architecture,
        roles={
            "token_embd_norm": "final_norm",
            **{f"blk.{{layer}}.shortconv.{own}": f"conv{role}" for own, role in _GGUF_ROLES.items()},
        },
        keys={"shortconv.l_cache": "conv_L_cache"},
        config=_gguf_config,
        squeezed=("conv",),
        kinds="attention.head_count_kv",
    )


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the kinds of layers: those with convolutions have no key/value heads; MLPs have their size."""
    counts = config["num_key_value_heads"]
    counts = counts if isinstance(counts, list) else [counts] * config["num_hidden_layers"]
    heads = sorted(set(counts) - {0})
    return {
        "num_key_value_heads": heads[0] if len(heads) == 1 else counts,
        "layer_types": [_KINDS[count == 0] for count in counts],
        "block_auto_adjust_ff_dim": False,
    }
