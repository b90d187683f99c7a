"""gpt-oss (arXiv 2508.10925): mixtures of experts with biases, attention with sinks, windows in every other layer."""

from dataclasses import replace

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.decoder_fields import read_layer_types
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.moe_parts import MoeParts
from trtllm_lite.convert.rope_types import RopeDefaults
from trtllm_lite.convert.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.convert.usual_parts import LlamaParts
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import SWIGLU_ALPHA, SWIGLU_LIMIT, SwigluOai
from trtllm_lite.network.moe import Biases, Experts, Moe, Router
from trtllm_lite.network.sinks import Sinks
from trtllm_lite.network.weight_expression import ColumnsOfMatrices, RowsOfMatrices

_MLP = "model.layers.{layer}.mlp"
NAMES = {
    **TENSOR_NAMES,
    "sinks": "model.layers.{layer}.self_attn.sinks",
    "router": f"{_MLP}.router",
    "gate_up_proj": f"{_MLP}.experts.gate_up_proj",
    "gate_up_bias": f"{_MLP}.experts.gate_up_proj_bias",
    "down_proj": f"{_MLP}.experts.down_proj",
    "down_bias": f"{_MLP}.experts.down_proj_bias",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the first layer has a window, and every other one, unless ``layer_types`` says otherwise."""
    config.rename({"experts_per_token": "num_experts_per_tok"})
    config.take("initial_context_length")  # which the parameters of RoPE repeat
    if not config.take("rope_parameters") and not config.take("rope_scaling"):
        config.problem("rope_scaling", "expected the parameters of YaRN, found none: pass the published config.json")
    for key, value in (("hidden_act", "silu"), ("swiglu_alpha", SWIGLU_ALPHA), ("swiglu_limit", SWIGLU_LIMIT)):
        config.expect(key, value)
    parts = LlamaParts.read(config, NAMES, head_dim=64, epsilon=1e-5, rope=RopeDefaults(theta=150000.0))
    mixture = MoeParts.read(config, parts, parts.sizes.intermediate_size, "softmax_of_chosen")
    bias, window = config.flag("attention_bias", True), config.nullable_integer("sliding_window", 128) or 0
    slides = read_layer_types(config, [number % 2 == 0 for number in range(parts.sizes.num_hidden_layers)])

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, bias, bias), window if slides[number] else 0)
        sinks = Sinks(tensors.tensor("sinks", parts.sizes.num_attention_heads))
        return parts.pre_norm_layer(tensors, replace(attention, sinks=sinks), _moe(tensors, mixture))

    return parts.decoder(config, parts.layers(layer))


def _moe(tensors: Tensors, mixture: MoeParts) -> Moe:
    """Of all experts, matrices are [in, out]; the outputs of gate and up take turns."""
    count, hidden, inner = mixture.num_experts, mixture.parts.sizes.hidden_size, mixture.intermediate_size
    both = ColumnsOfMatrices(tensors.tensor("gate_up_proj", count, hidden, 2 * inner))
    biases = RowsOfMatrices(tensors.tensor("gate_up_bias", count, 2 * inner))
    (gate, up), (gate_bias, up_bias) = (tensor.split_heads(count * inner, 1, 1) for tensor in (both, biases))
    down = ColumnsOfMatrices(tensors.tensor("down_proj", count, inner, hidden))
    of_all = Biases(gate_bias, up_bias, tensors.tensor("down_bias", count, hidden))
    weight, bias = tensors.weight("router", count, hidden), tensors.bias("router", count)
    router = Router(weight, mixture.top_k, mixture.scoring, bias=bias)
    return Moe(router, Experts(count, gate, up, down, SwigluOai(), of_all))


FAMILY = Family(name="gpt_oss", architectures=("GptOssForCausalLM",), read_model=read_model, tensor_names=NAMES)
