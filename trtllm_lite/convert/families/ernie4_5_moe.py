"""ERNIE 4.5 with experts, such as 21B-A3B (https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf).

RoPE rotates neighbouring elements; a router scores by softmax, with corrections for the choice. Layers that predict
further tokens (MTP) are left out.
"""

from dataclasses import replace

from trtllm_lite.convert.family import ROTARY_BUFFERS, Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.deepseek_gguf import CORRECTION_ROLE
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES, MOE_GGUF_KEYS, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import Moe, SharedExpert
from trtllm_lite.network.several_matrices import Elements

NAMES = {**DEEPSEEK_MOE_NAMES, "correction": "model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"}
_FIXED = {"use_bias": False, "use_rmsnorm": True, "moe_gate": "topk", "moe_use_aux_free": True}
_OF_TRAINING = ("moe_capacity", "moe_norm_min")  # the latter is far below any sum of shares


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; every ``moe_layer_interval``-th layer between two indices has experts."""
    config.rename({"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"})
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5, rope=RopeDefaults(theta=500000.0))
    for key, value in _FIXED.items():
        config.expect(key, value)
    for key in (*_OF_TRAINING, "num_nextn_predict_layers"):
        config.take(key)
    inner = config.integer("moe_intermediate_size", 1536)
    experts = MoeParts.read(config, parts, inner, "normalized_softmax")
    shared_wide = inner * config.integer("moe_num_shared_experts", 2, minimum=0)
    sparse = _read_sparse(config, parts.sizes.num_hidden_layers)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors).rotating_halves(parts.sizes, parts.rope))
        if not sparse[number]:
            return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide)) if shared_wide else None
        return parts.pre_norm_layer(tensors, attention, _corrected(experts.moe(tensors, shared), tensors))

    return parts.decoder(config, parts.layers(layer), tied=True)


def _corrected(mixture: Moe, tensors: Tensors) -> Moe:
    """The mixture with corrections, which are stored as one row."""
    correction = Elements(tensors.plain("correction", 1, mixture.experts.num_experts))
    return replace(mixture, router=replace(mixture.router, correction=correction))


def _read_sparse(config: ConfigFields, layers: int) -> list[bool]:
    interval, first = config.integer("moe_layer_interval", 1), config.integer("moe_layer_start_index", 1, minimum=0)
    last = config.integer("moe_layer_end_index", -1, minimum=-1)
    last = layers - 1 if last == -1 else last
    return [(number + 1) % interval == 0 and first <= number <= last for number in range(layers)]


FAMILY = Family(
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, r"model\.mtp_.*"),
    gguf=Gguf(
        "ernie4_5-moe",
        roles=CORRECTION_ROLE,
        keys={
            **MOE_GGUF_KEYS,
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_shared_feed_forward_length": "shared_size",
        },
        # llama.cpp computes that size of the number of key heads; tensors of another size are an error.
        config=lambda config: {"shared_size": None, "moe_num_shared_experts": config.get("moe_num_shared_experts", 0)},
        has_experts=True,
        bare=("correction",),
        forms={"correction": (1, -1)},
    ),
)
