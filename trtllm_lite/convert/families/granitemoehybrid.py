"""Granite 4 (https://www.ibm.com/granite), such as 4.0-H-Small: Mamba-2 (arXiv 2405.21060) in most layers, attention in
the others, and an MLP that all tokens share, perhaps beside a mixture of experts. Dense ones, such as 4.0-Micro, have
attention in all layers.
"""

from dataclasses import replace

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.convert.families.granitemoe import NAMES as MOE_NAMES
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import USUAL_ROPE, RopeDefaults
from trtllm_lite.convert.parts.granite import GraniteParts
from trtllm_lite.convert.parts.granite_gguf import GRANITE_HYBRID_GGUF
from trtllm_lite.convert.parts.mamba2 import MIXERS, MambaParts, mamba_tensor_names, read_layer_kinds
from trtllm_lite.convert.parts.moe import MoeParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block, Layer
from trtllm_lite.network.mamba2 import SpaceHeads
from trtllm_lite.network.moe import SharedExpert

NAMES = {**MOE_NAMES, **mamba_tensor_names("model.layers.{layer}.mamba")}
_HEADS = SpaceHeads(num_heads=128, num_groups=1, state_size=256, head_dim=64)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; without ``position_embedding_type`` rope, attention knows no positions."""
    apart = config.flag("experts_apart")  # in GGUF files, which may also rotate parts of heads, as Bamba does
    granite = GraniteParts.read(config, NAMES, RopeDefaults(part=1.0) if apart else USUAL_ROPE)
    config.expect("position_embedding_type", "nope", "rope")
    config.expect("normalization_function", "rmsnorm")
    config.take("init_method")  # a key of training
    rope = granite.parts.rope if config.take("position_embedding_type") == "rope" else None
    kinds = read_layer_kinds(config, "layer_types", granite.parts.sizes.num_hidden_layers, MIXERS, RECURRENT)
    mamba, experts = MambaParts.read(config, _HEADS), _read_experts(config, granite)
    wide = config.integer("shared_intermediate_size", 1024)

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = granite.parts.mlp_of(tensors, "shared_", wide) if apart else granite.shared_mlp(tensors, wide)
        mlp: Block = shared
        if experts is not None:
            mlp = (experts.moe if apart else experts.fused_moe)(tensors, SharedExpert(shared))
        if kinds[number] == RECURRENT:
            mixer = mamba.block(tensors, mamba.norm(tensors))
            return replace(granite.parts.pre_norm_layer(tensors, mixer, mlp), name=RECURRENT)
        return granite.parts.pre_norm_layer(tensors, replace(granite.attention(tensors), rope=rope), mlp)

    return granite.decoder(config, granite.parts.layers(layer))


def _read_experts(config: ConfigFields, granite: GraniteParts) -> MoeParts | None:
    """The experts; models without any have 0 of them."""
    if config.integer("num_local_experts", 8, minimum=0) == 0:
        config.take("num_experts_per_tok")
        return None
    return MoeParts.read(config, granite.parts, granite.parts.sizes.intermediate_size, "softmax_of_chosen")


FAMILY = Family(
    name="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=GRANITE_HYBRID_GGUF,
)
