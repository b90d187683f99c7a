"""LFM2 with mixtures of experts, such as LFM2-8B-A1B: short convolutions with gates, and attention in some layers.

Shares of experts are divided by the sum of a token's sigmoids; transformers adds 1e-6 to that sum, here it is 1e-20.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MOE_TENSOR_NAMES, MoeParts, layer_block
from trtllm_lite.convert.parts.short_convolution import SHORT_CONV_NAMES, ShortConvParts, short_conv_gguf
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import Scoring

_GGUF, _SIGMOID = short_conv_gguf("lfm2moe"), 2  # llama.cpp's number of the scoring function
_MLP = "model.layers.{layer}.feed_forward"
NAMES = {
    **MOE_TENSOR_NAMES,
    **SHORT_CONV_NAMES,
    "router": f"{_MLP}.gate",
    "correction": f"{_MLP}.expert_bias",
    "expert_gate_proj": f"{_MLP}.experts.{{expert}}.w1",
    "expert_up_proj": f"{_MLP}.experts.{{expert}}.w3",
    "expert_down_proj": f"{_MLP}.experts.{{expert}}.w2",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the first ``num_dense_layers`` layers have no experts."""
    of_convolutions = ShortConvParts.read(config, NAMES)
    parts = of_convolutions.parts
    scoring: Scoring = "normalized_sigmoid" if config.flag("norm_topk_prob", True) else "sigmoid"
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", 1792), scoring)
    scale, is_corrected = config.number("routed_scaling_factor", 1.0), config.flag("use_expert_bias", True)
    experts = replace(experts, scale=scale, is_corrected=is_corrected)
    dense = config.integer("num_dense_layers", 2, minimum=0)
    config.expect("expert_gating_func", _SIGMOID)  # of GGUF files

    def layer(tensors: Tensors, number: int) -> Layer:
        return of_convolutions.layer(tensors, number, layer_block(experts, tensors, number >= dense))

    return of_convolutions.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=replace(
        _GGUF,
        roles={**_GGUF.roles, "blk.{layer}.exp_probs_b": "correction"},
        keys={
            **{**MOE_GGUF_KEYS, **_GGUF.keys, "leading_dense_block_count": "num_dense_layers"},
            **{"expert_gating_func": "expert_gating_func", "expert_weights_scale": "routed_scaling_factor"},
        },
        has_experts=True,
        gating=_SIGMOID,
        bare=("correction",),
    ),
)
