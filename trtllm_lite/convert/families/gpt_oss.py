"""gpt-oss (arXiv 2508.10925): mixtures of experts with biases, attention with sinks, windows in every other layer."""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MOE_TENSOR_NAMES, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import SWIGLU_ALPHA, SWIGLU_LIMIT, SwigluOai
from trtllm_lite.network.moe import Biases, Experts, Moe, Router
from trtllm_lite.network.several_matrices import ColumnsOfMatrices, RowsOfMatrices
from trtllm_lite.network.sinks import Sinks

_MLP = "model.layers.{layer}.mlp"
NAMES = {
    **MOE_TENSOR_NAMES,
    "sinks": "model.layers.{layer}.self_attn.sinks",
    "router": f"{_MLP}.router",
    "gate_up_proj": f"{_MLP}.experts.gate_up_proj",
    "gate_up_bias": f"{_MLP}.experts.gate_up_proj_bias",
    "down_proj": f"{_MLP}.experts.down_proj",
    "down_bias": f"{_MLP}.experts.down_proj_bias",
}
_GGUF_KEYS = {"attention.sliding_window": "sliding_window", "expert_feed_forward_length": "intermediate_size"}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the first layer and every second one after it have a window, unless ``layer_types`` says
    otherwise."""
    config.rename({"experts_per_token": "num_experts_per_tok"})
    config.take("initial_context_length")  # the parameters of RoPE repeat this length
    if not config.take("rope_parameters") and not config.take("rope_scaling"):
        config.problem("rope_scaling", "expected the parameters of YaRN, found none: pass the published config.json")
    for key, value in (("hidden_act", "silu"), ("swiglu_alpha", SWIGLU_ALPHA), ("swiglu_limit", SWIGLU_LIMIT)):
        config.expect(key, value)
    parts = LlamaParts.read(config, NAMES, head_dim=64, epsilon=1e-5, rope=RopeDefaults(theta=150000.0))
    mixture = MoeParts.read(config, parts, parts.sizes.intermediate_size, "softmax_of_chosen")
    bias, window = config.flag("attention_bias", True), config.nullable_integer("sliding_window", 128) or 0
    slides = read_layer_types(config, [number % 2 == 0 for number in range(parts.sizes.num_hidden_layers)])

    make = _experts_apart if config.flag("experts_apart") else _experts

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, bias, bias), window if slides[number] else 0)
        sinks = Sinks(tensors.tensor("sinks", parts.sizes.num_attention_heads))
        weight = tensors.weight("router", mixture.num_experts, parts.sizes.hidden_size)
        router = Router(weight, mixture.top_k, mixture.scoring, bias=tensors.bias("router", mixture.num_experts))
        return parts.pre_norm_layer(tensors, replace(attention, sinks=sinks), Moe(router, make(tensors, mixture)))

    return parts.decoder(config, parts.layers(layer))


def _experts(tensors: Tensors, mixture: MoeParts) -> Experts:
    """The experts in Hugging Face's files: matrices are [in, out], and outputs alternate between gate and up."""
    count, hidden, inner = mixture.num_experts, mixture.parts.sizes.hidden_size, mixture.intermediate_size
    both = ColumnsOfMatrices(tensors.tensor("gate_up_proj", count, hidden, 2 * inner))
    biases = RowsOfMatrices(tensors.tensor("gate_up_bias", count, 2 * inner))
    (gate, up), (gate_bias, up_bias) = (tensor.split_heads(count * inner, 1, 1) for tensor in (both, biases))
    down = ColumnsOfMatrices(tensors.tensor("down_proj", count, inner, hidden))
    of_all = Biases(gate_bias, up_bias, RowsOfMatrices(tensors.tensor("down_bias", count, hidden)))
    return Experts(count, gate, up, down, SwigluOai(), of_all)


def _experts_apart(tensors: Tensors, mixture: MoeParts) -> Experts:
    """The experts of GGUF files: a matrix and a bias for each expert, with separate gate and up."""
    hidden, inner = mixture.parts.sizes.hidden_size, mixture.intermediate_size
    shapes = dict.fromkeys(("expert_gate_proj", "expert_up_proj"), (inner, hidden)) | {
        "expert_down_proj": (hidden, inner)
    }
    gate, up, down = (mixture.of_each(tensors, role, *shape) for role, shape in shapes.items())
    biases = (mixture.bias_of_each(tensors, role, rows) for role, (rows, _) in shapes.items())
    return Experts(mixture.num_experts, gate, up, down, SwigluOai(), Biases(*biases))


def gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config entries that llama.cpp leaves out."""
    return {"experts_apart": True, "rope_parameters": {**config["rope_parameters"], "truncate": False}}


FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "gpt-oss",
        roles={"blk.{layer}.attn_sinks": "sinks", "blk.{layer}.post_attention_norm": "mlp_norm"},
        keys={**MOE_GGUF_KEYS, **_GGUF_KEYS},
        config=gguf_config,
        has_experts=True,
        bare=("sinks",),
        end_tokens=("<|call|>",),
    ),
)
