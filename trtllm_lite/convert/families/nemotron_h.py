"""Nemotron-H (arXiv 2504.03624) and Nemotron 3: each layer is Mamba-2 (arXiv 2405.21060), attention without positions,
an MLP, whose activation is the square of ReLU, or a mixture of such experts.
"""

from trtllm_lite.common.vocabulary import ATTENTION, PLAIN_DTYPES, RECURRENT
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.mamba2 import MambaKeys, MambaParts, mamba_tensor_names
from trtllm_lite.convert.parts.mamba_gguf import MAMBA_GGUF_TENSORS
from trtllm_lite.convert.parts.nemotron import MLP, MOE, NemotronMlps, read_kinds
from trtllm_lite.convert.parts.nemotron_gguf import NEMOTRON_GGUF_KEYS, NEMOTRON_GGUF_ROLES, nemotron_gguf_config
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block, Layer, Residual, SingleLayer
from trtllm_lite.network.mamba2 import SpaceHeads

_LAYER = "backbone.layers.{layer}"
_MIXER = f"{_LAYER}.mixer"
NAMES = {
    "embedding": "backbone.embeddings",
    "final_norm": "backbone.norm_f",
    "lm_head": "lm_head",
    "norm": f"{_LAYER}.norm",
    **{f"{name}_proj": f"{_MIXER}.{name}_proj" for name in ("q", "k", "v", "o", "up", "down")},
    **mamba_tensor_names(_MIXER),
    "router": f"{_MIXER}.gate",
    "correction": f"{_MIXER}.gate.e_score_correction_bias",
    "latent_in": f"{_MIXER}.fc1_latent_proj",
    "latent_out": f"{_MIXER}.fc2_latent_proj",
    **{f"expert_{name}_proj": f"{_MIXER}.experts.{{expert}}.{name}_proj" for name in ("up", "down")},
    **{f"shared_{name}_proj": f"{_MIXER}.shared_experts.{name}_proj" for name in ("up", "down")},
}
_HEADS = SpaceHeads(num_heads=128, num_groups=8, state_size=128, head_dim=64)
# These keys are of training, of other runtimes, or of the layers with which models draft (MTP), which are left out.
# transformers bounds steps by time_step_min, but only in prompts; the kernels of mamba_ssm have time_step_limit.
_NEUTRAL = (
    *("time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual", "residual_in_fp32", "expand"),
    *("chunk_size", "use_mamba_kernels", "num_logits_to_keep", "moe_shared_expert_overlap"),
    *("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
)
_KEYS = MambaKeys(
    num_heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    num_groups="n_groups",
    state_size="ssm_state_size",
    width="conv_kernel",
    expand=None,
    conv_bias="use_conv_bias",
    bias="use_bias",
    activation="mamba_hidden_act",
    change_nothing=_NEUTRAL,
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the kinds of layers are those of its ``layers_block_type`` or ``hybrid_override_pattern``."""
    kinds = read_kinds(config)
    config.rename({"attention_head_dim": "head_dim", "layer_norm_epsilon": "rms_norm_eps"})
    parts = LlamaParts.read(config, NAMES, head_dim=128, epsilon=1e-5)
    config.expect("mamba_ssm_cache_dtype", *PLAIN_DTYPES)  # a proposal: builds have state_dtype
    for key in ("attention_bias", "mamba_proj_bias"):
        config.expect(key, False)
    config.expect("sliding_window")
    mlps, mamba = NemotronMlps.read(config, parts, MOE in kinds), MambaParts.read(config, _HEADS, _KEYS)

    def block(tensors: Tensors, kind: str) -> Block:
        if kind == RECURRENT:
            return mamba.block(tensors, mamba.norm(tensors))
        if kind == ATTENTION:
            return Attention(*parts.projections(tensors), parts.sizes.heads)
        return mlps.moe(tensors) if kind == MOE else mlps.mlp(tensors)

    def layer(tensors: Tensors, number: int) -> Layer:
        residual = Residual(parts.norm(tensors, "norm", parts.sizes.hidden_size), block(tensors, kinds[number]))
        return SingleLayer(residual, MLP if kinds[number] == MOE else kinds[number])

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"mtp\..*",),
    gguf=Gguf(
        "nemotron_h",
        also=("nemotron_h_moe",),
        roles=NEMOTRON_GGUF_ROLES,
        keys=NEMOTRON_GGUF_KEYS,
        config=nemotron_gguf_config,
        interleaved_rope=True,
        kinds="attention.head_count_kv, or feed_forward_length",
        **{**MAMBA_GGUF_TENSORS, "bare": (*MAMBA_GGUF_TENSORS["bare"], "correction")},
    ),
)
