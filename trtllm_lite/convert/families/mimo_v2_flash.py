"""MiMo-V2-Flash (arXiv 2601.02780): windows with sinks in most layers, values narrower than keys, many experts.

Values are padded with zeros to the size of keys, so that a KV cache is a fifth larger than values need. Layers that
predict further tokens (MTP) are left out.
"""

from collections.abc import Callable
from dataclasses import replace

from trtllm_lite.convert.family import GGUF_DRAFTING_TENSORS, ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_layer_flags, read_layer_types, read_sizes
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, read_sparse_layers, sigmoid_experts
from trtllm_lite.convert.parts.mimo_gguf import MIMO_GGUF
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES, layer_block
from trtllm_lite.convert.parts.usual import LlamaParts, Projections, rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention, Heads
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.sinks import Sinks
from trtllm_lite.network.weight_expression import PaddedHeads

NAMES = {**DEEPSEEK_MOE_NAMES, "sinks": "model.layers.{layer}.self_attn.attention_sink_bias"}
_THETAS = {"full_attention": ("rope_theta", 5000000.0), "sliding_attention": ("swa_rope_theta", 10000.0)}
_PART = 0.334  # of each head that is rotated: 64 of 192 elements


def read_model(config: ConfigFields) -> Decoder:
    """Read the config, whose ``swa_`` keys concern layers with windows."""
    config.rename({"layernorm_epsilon": "rms_norm_eps"})
    sizes = read_sizes(config, head_dim=192)
    ropes = read_ropes_by_layer_type(config, sizes.head_dim, sizes.max_position_embeddings, _THETAS, _PART)
    rope = ropes["full_attention"]
    parts = LlamaParts(sizes, Tensors(NAMES), rms_norm(config, 1e-5), rope, read_activation(config))
    experts = sigmoid_experts(config, parts, inner=2048, scale=1.0)
    config.expect("n_shared_experts", 0)
    sparse = read_sparse_layers(config, sizes.num_hidden_layers, 1)
    project, slides, window = _read_projections(config, sizes), _read_windows(config, sizes), _read_window(config)
    kv_heads = config.integer("swa_num_key_value_heads", 2 * sizes.num_key_value_heads)
    if (queries := sizes.num_attention_heads) % kv_heads:
        config.problem("swa_num_key_value_heads", f"expected a divisor of {queries}, found {kv_heads}")

    def layer(tensors: Tensors, number: int) -> Layer:
        heads = Heads(sizes.num_attention_heads, kv_heads, sizes.head_dim) if slides[number] else sizes.heads
        attention = Attention(*project(tensors, heads), heads, rope=rope)
        if slides[number]:
            sinks = Sinks(tensors.tensor("sinks", heads.num_heads))
            attention = replace(attention, rope=ropes["sliding_attention"], window=window, sinks=sinks)
        return parts.pre_norm_layer(tensors, attention, layer_block(experts, tensors, sparse[number]))

    return parts.decoder(config, parts.layers(layer))


def _read_windows(config: ConfigFields, sizes: Sizes) -> list[bool]:
    """Which layers have a window: by default, all but the first and every sixth."""
    default = [number > 0 and (number + 1) % 6 != 0 for number in range(sizes.num_hidden_layers)]
    return read_layer_types(config, read_layer_flags(config, "hybrid_layer_pattern", default))


def _read_window(config: ConfigFields) -> int:
    """The window in tokens; ``sliding_window_size`` does not count a query's own token, and takes precedence."""
    config.take("attention_chunk_size")  # repeats it
    window = config.integer("sliding_window", 129)
    return window if config.take("sliding_window_size") is None else config.integer("sliding_window_size") + 1


def _read_projections(config: ConfigFields, sizes: Sizes) -> Callable[[Tensors, Heads], Projections]:
    """A function that makes the linear layers of attention; what scales values is part of the output's weight."""
    hidden, dim, bias = sizes.hidden_size, sizes.head_dim, config.flag("attention_bias")
    value_dim = config.integer("v_head_dim", min(128, dim), maximum=dim)
    scale = config.nullable_number("attention_value_scale", 0.707) or 1.0
    sinks = {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "swa_v_head_dim": value_dim}
    heads_of_all = {"swa_num_attention_heads": sizes.num_attention_heads, "swa_head_dim": dim}
    for key, value in (sinks | heads_of_all).items():
        config.expect(key, value)

    def project(tensors: Tensors, heads: Heads) -> Projections:
        queries = tensors.linear("q_proj", heads.num_heads * dim, hidden, bias)
        keys = tensors.linear("k_proj", heads.num_kv_heads * dim, hidden, bias)
        values = tensors.linear("v_proj", heads.num_kv_heads * value_dim, hidden, bias)
        padded = None if values.bias is None else PaddedHeads(values.bias, heads.num_kv_heads, dim)
        mixed = tensors.weight("o_proj", hidden, heads.num_heads * value_dim).affine(scale).transpose()
        output = Linear(PaddedHeads(mixed, heads.num_heads, dim).transpose())
        return Projections(queries, keys, Linear(PaddedHeads(values.weight, heads.num_kv_heads, dim), padded), output)

    return project


FAMILY = Family(
    name="mimo_v2_flash",
    architectures=("MiMoV2FlashForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, r"model\.mtp\..*", *GGUF_DRAFTING_TENSORS),
    gguf=MIMO_GGUF,
    drafting_layers=NUM_DRAFTING_LAYERS,
)
