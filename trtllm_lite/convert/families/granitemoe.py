"""Granite 3 with mixtures of experts (arXiv 2408.13359), such as 3.0 1B-A400M, perhaps with a shared expert."""

from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.granite import GGUF_KEYS, GraniteParts
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MoeParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import SharedExpert

_MOE, _SHARED = "model.layers.{layer}.block_sparse_moe", "model.layers.{layer}.shared_mlp"
NAMES = {
    **{role: name for role, name in TENSOR_NAMES.items() if role not in ("gate_proj", "up_proj", "down_proj")},
    "router": f"{_MOE}.router.layer",
    "experts_gate_up_proj": f"{_MOE}.input_linear",
    "experts_down_proj": f"{_MOE}.output_linear",
    "shared_gate_up_proj": f"{_SHARED}.input_linear",
    "shared_down_proj": f"{_SHARED}.output_linear",
    **{f"expert_{name}_proj": f"{_MOE}.experts.{{expert}}.{name}_proj" for name in ("gate", "up", "down")},  # for GGUF
    **{f"shared_{name}_proj": f"{_SHARED}.{name}_proj" for name in ("gate", "up")},  # for GGUF
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; without a ``shared_intermediate_size`` there is no shared expert."""
    granite = GraniteParts.read(config, NAMES)
    parts = granite.parts
    experts = MoeParts.read(config, parts, parts.sizes.intermediate_size, "softmax_of_chosen")
    shared_wide = config.integer("shared_intermediate_size", 0, minimum=0)
    apart = config.flag("experts_apart")

    def shared(tensors: Tensors) -> SharedExpert:
        if apart:
            return SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide))
        return SharedExpert(granite.shared_mlp(tensors, shared_wide))

    def layer(tensors: Tensors, _: int) -> Layer:
        make = experts.moe if apart else experts.fused_moe
        mlp = make(tensors, shared(tensors) if shared_wide else None)
        return parts.pre_norm_layer(tensors, granite.attention(tensors), mlp)

    return granite.decoder(config, parts.layers(layer))


def gguf_config(_: dict[str, Any]) -> dict[str, Any]:
    """Entries for the form in which llama.cpp stores experts: each matrix separately, including gate and up."""
    return {"experts_apart": True}


FAMILY = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "granitemoe",
        keys={**GGUF_KEYS, **MOE_GGUF_KEYS, "expert_shared_feed_forward_length": "shared_intermediate_size"},
        interleaved_rope=True,
        optional_bias=True,
        config=gguf_config,
        has_experts=True,
    ),
)
