"""EXAONE 3.0 and 3.5 (arXiv 2408.03541, 2412.04862): Llama with other names."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {
    "embedding": "transformer.wte",
    "final_norm": "transformer.ln_f",
    "lm_head": "lm_head",
    "attention_norm": "transformer.h.{layer}.ln_1",
    "q_proj": "transformer.h.{layer}.attn.attention.q_proj",
    "k_proj": "transformer.h.{layer}.attn.attention.k_proj",
    "v_proj": "transformer.h.{layer}.attn.attention.v_proj",
    "o_proj": "transformer.h.{layer}.attn.attention.out_proj",
    "mlp_norm": "transformer.h.{layer}.ln_2",
    "gate_proj": "transformer.h.{layer}.mlp.c_fc_0",
    "up_proj": "transformer.h.{layer}.mlp.c_fc_1",
    "down_proj": "transformer.h.{layer}.mlp.c_proj",
}
# Maps the models' own names of keys to the usual ones of transformers.
KEYS = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all projections of a block have biases, or none has."""
    config.rename(KEYS)
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5, rope=RopeDefaults(theta=500000.0))
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, attention_bias, attention_bias))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation, mlp_bias))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="exaone",
    architectures=("ExaoneForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"transformer\.(h\.\d+\.attn\.attention\.)?rotary(_emb)?\.inv_freq",),
    gguf=Gguf(
        "exaone",
        keys={"attention.layer_norm_epsilon": "rms_norm_eps"},  # newer converters write this key
        optional_bias=True,
    ),
)
