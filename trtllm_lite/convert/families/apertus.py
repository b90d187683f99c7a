"""Apertus (arXiv 2509.14233): Llama with norms of query and key heads, and an MLP without gate.

The MLP's activation, xIELU, has learned factors.
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts, rms_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.xielu import LearnedFactor, Xielu

_LAYER = "model.layers.{layer}"
_ACTIVATION = f"{_LAYER}.mlp.act_fn"
NAMES = {
    **{role: name for role, name in TENSOR_NAMES.items() if role != "gate_proj"},
    **{"attention_norm": f"{_LAYER}.attention_layernorm", "mlp_norm": f"{_LAYER}.feedforward_layernorm"},
    **{name: f"{_ACTIVATION}.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; keys that published files have besides say what all models have."""
    for key, value in (("hidden_act", "xielu"), ("qk_norm", True), ("post_norm", False), ("mlp_bias", False)):
        config.expect(key, value)
    sizes, bias = read_sizes(config), config.flag("attention_bias")
    if config.take("rope_parameters") is None and config.take("rope_scaling") is None:
        config.problem("rope_parameters", "expected the parameters of RoPE, found none")
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, RopeDefaults(theta=12000000.0))
    parts = UsualParts(sizes, Tensors(NAMES), rms_norm(config, 1e-5))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors, bias, bias),
            sizes.heads,
            rope=rope,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
        )
        mlp = parts.plain_mlp(tensors, _xielu(tensors, sizes.intermediate_size))
        return parts.pre_norm_layer(tensors, attention, mlp)

    return parts.decoder(config, parts.layers(layer))


def _xielu(tensors: Tensors, features: int) -> Xielu:
    positive, negative, beta = (*(tensors.plain(f"alpha_{sign}", 1) for sign in "pn"), tensors.plain("beta"))
    return Xielu(
        LearnedFactor(features, positive), LearnedFactor(features, negative, beta), LearnedFactor(features, None, beta)
    )


FAMILY = Family(
    name="apertus",
    architectures=("ApertusForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"model\.layers\.\d+\.mlp\.act_fn\.eps",),  # keeps a kernel of training from dividing by zero
    gguf=Gguf(
        "apertus",
        flags={"attention_bias": "blk.0.attn_q.bias"},
        listed={f"xielu.{name}": name for name in ("alpha_p", "alpha_n", "beta", "eps")},
    ),
)
