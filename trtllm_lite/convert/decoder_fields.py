"""The config keys that decoder families share: sizes, tied embeddings, sliding windows."""

from collections.abc import Sequence
from dataclasses import replace

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.rope_fields import read_rope
from trtllm_lite.network.spec import DecoderSpec, LayerSpec

MAX_LAYERS = 4096
MAX_HEAD_DIM = 65536
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_decoder(
    config: ConfigFields, layer: LayerSpec, windows: Sequence[int], head_dim: int | None = None
) -> DecoderSpec:
    """The spec of a model whose layers are ``layer`` but for their windows (in tokens, one per layer, 0 for none).

    ``head_dim`` is the family's default, else hidden_size / num_attention_heads.
    """
    config.expect("hidden_act", "silu", "swish")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", head_dim or max(hidden // heads, 1))
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        config.problem("num_attention_heads", f"expected a multiple of num_key_value_heads ({kv_heads}), found {heads}")
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        config.problem("head_dim", f"expected an even number up to {MAX_HEAD_DIM}, found {head_dim}")
        head_dim = 2
    max_positions = config.integer("max_position_embeddings")
    return DecoderSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config, head_dim, max_positions),
        layers=tuple(replace(layer, window=window) for window in windows),
        tied_embeddings=config.flag("tie_word_embeddings"),
    )


def uniform_windows(config: ConfigFields, window: int) -> list[int]:
    """The same window in every layer; 0 for none."""
    return [window] * config.integer("num_hidden_layers", maximum=MAX_LAYERS)


def qwen_windows(config: ConfigFields) -> list[int]:
    """Sliding windows as Qwen configs give them.

    Only with ``use_sliding_window``, and then in the layers that ``layer_types`` says, else in those from
    ``max_window_layers`` on.
    """
    layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    used, window = config.flag("use_sliding_window"), config.integer("sliding_window", 4096)
    first, types = config.integer("max_window_layers", 28, minimum=0), config.take("layer_types")
    if types is None:
        types = [_LAYER_TYPES[used and number >= first] for number in range(layers)]
    if not isinstance(types, list) or len(types) != layers or not set(types) <= set(_LAYER_TYPES):
        config.problem("layer_types", f"expected {layers} times {' or '.join(_LAYER_TYPES)}, found {types!r}")
        return [0] * layers
    if not used and "sliding_attention" in types:
        config.problem("layer_types", "names sliding_attention although use_sliding_window is false")
    return [window if kind == "sliding_attention" else 0 for kind in types]
