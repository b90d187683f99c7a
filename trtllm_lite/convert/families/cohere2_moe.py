"""Command A with experts (Cohere2Moe in transformers), such as North Mini Code: Command A's layers, most with experts.

The first layers may have MLPs instead. Layers without a window have no position encoding, but for those first ones.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope_types import USUAL_ROPE
from trtllm_lite.convert.parts.cohere import EXPECTED, CohereParts
from trtllm_lite.convert.parts.deepseek import read_sparse_layers
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts, rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer, ParallelLayer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.moe import Scoring, SharedExpert

NAMES = {role: name for role, name in DEEPSEEK_MOE_NAMES.items() if role != "correction"}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; norms are RMSNorms if it has ``rms_norm_eps``, and LayerNorms otherwise."""
    own = replace(CohereParts.read(config, USUAL_ROPE), tensors=Tensors(NAMES))
    for key, value in EXPECTED.items():
        config.expect(key, value)
    own = own if config.take("rms_norm_eps") is None else replace(own, norm=rms_norm(config))
    parts = LlamaParts(own.sizes, own.tensors, own.norm, own.rope, own.activation)
    sizes, inner = own.sizes, own.sizes.intermediate_size
    sparse = read_sparse_layers(config, sizes.num_hidden_layers, 0)
    slides = _read_windows(config, sizes.num_hidden_layers)
    window, dense_wide = config.integer("sliding_window", 4096), config.integer("prefix_dense_intermediate_size", inner)
    rotates_dense = config.integer("prefix_dense_sliding_window_pattern", 1) == 1
    shared_wide = inner * config.integer("num_shared_experts", 0, minimum=0)
    config.expect("shared_expert_combination_strategy", "average", "sum")
    averages = bool(shared_wide) and config.take("shared_expert_combination_strategy") != "sum"
    experts = replace(MoeParts.read(config, parts, inner, _read_scoring(config)), scale=0.5 if averages else 1.0)

    def shared(tensors: Tensors) -> SharedExpert | None:
        mlp = parts.mlp_of(tensors, "shared_", shared_wide) if shared_wide else None
        if mlp is not None and averages:
            halved = tensors.weight("shared_down_proj", sizes.hidden_size, shared_wide).affine(0.5)
            mlp = replace(mlp, down=Linear(halved))
        return None if mlp is None else SharedExpert(mlp)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = own.attention(tensors)
        if slides[number]:
            attention = replace(attention, window=window)
        elif sparse[number] or not rotates_dense:
            attention = replace(attention, rope=None)
        block = experts.moe(tensors, shared(tensors)) if sparse[number] else parts.mlp_of(tensors, "", dense_wide)
        return ParallelLayer(own.norm(tensors, "attention_norm", sizes.hidden_size), attention, block)

    return own.scaled_decoder(config, own.layers(layer))


def _read_windows(config: ConfigFields, layers: int) -> list[bool]:
    """Which layers have a window: the first ones, which have MLPs, follow a pattern of their own."""
    dense = min(config.integer("first_k_dense_replace", 0, minimum=0), layers)
    patterns = config.integer("prefix_dense_sliding_window_pattern", 1), config.integer("sliding_window_pattern", 4)
    prefix, rest = ([(n + 1) % every != 0 for n in range(layers)] for every in patterns)
    return read_layer_types(config, prefix[:dense] + rest[: layers - dense])


def _read_scoring(config: ConfigFields) -> Scoring:
    """The scoring of the router; only shares that are sigmoids may be left as they are."""
    config.expect("expert_selection_fn", "softmax", "sigmoid")
    normalizes = config.flag("norm_topk_prob", True)
    if config.take("expert_selection_fn") != "sigmoid":
        return "softmax_of_chosen"
    return "normalized_sigmoid" if normalizes else "sigmoid"


FAMILY = Family(
    name="cohere2_moe",
    architectures=("Cohere2MoeForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
)
