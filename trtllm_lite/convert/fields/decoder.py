"""Reads the config keys that decoder families share: sizes, activation functions, sliding windows."""

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.errors import shown
from trtllm_lite.network.decoder import Sizes
from trtllm_lite.network.mlp import ACTIVATIONS, Activation

MAX_LAYERS = 4096
MAX_HEAD_DIM = 65536
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_sizes(config: ConfigFields, head_dim: int | None = None) -> Sizes:
    """The sizes of a model; ``head_dim`` is the family's default, else hidden_size / num_attention_heads."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", head_dim or max(hidden // heads, 1))
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        config.problem("num_attention_heads", f"expected a multiple of num_key_value_heads ({kv_heads}), found {heads}")
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        config.problem("head_dim", f"expected an even number up to {MAX_HEAD_DIM}, found {head_dim}")
        head_dim = 2
    return Sizes(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers", maximum=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=config.integer("max_position_embeddings"),
    )


def read_activation(config: ConfigFields, key: str = "hidden_act", default: str = "silu") -> Activation:
    """The activation function of the MLP."""
    name = config.take(key)
    if name is None:
        name = default
    if not isinstance(name, str) or name not in ACTIVATIONS:
        config.problem(key, f"expected one of {', '.join(ACTIVATIONS)}, found {shown(name)}, which is not supported")
        name = default
    return ACTIVATIONS[name]


def qwen_windows(config: ConfigFields, layers: int) -> list[int]:
    """The sliding windows of ``layers`` layers as Qwen configs give them, in tokens, 0 for none.

    With ``use_sliding_window`` the layers that ``layer_types`` names have the window, or without that key the layers
    from number ``max_window_layers`` on.
    """
    used, window = config.flag("use_sliding_window"), config.integer("sliding_window", 4096)
    first = config.integer("max_window_layers", 28, minimum=0)
    slides = read_layer_types(config, [used and number >= first for number in range(layers)])
    if not used and any(slides):
        config.problem("layer_types", "names sliding_attention although use_sliding_window is false")
    return [window if slide else 0 for slide in slides]


def read_layer_types(config: ConfigFields, default: list[bool], left_out: int = 0) -> list[bool]:
    """For each layer whether it has a sliding window, by ``layer_types``; ``default`` if the config lacks that key.

    The list may go on with the types of as many layers as are ``left_out``.
    """
    types = config.take("layer_types")
    if types is None:
        return default
    if isinstance(types, list) and len(types) == len(default) + left_out:
        types = types[: len(default)]
    if not isinstance(types, list) or len(types) != len(default) or not all(kind in _LAYER_TYPES for kind in types):
        expected = f"{len(default)} times {' or '.join(_LAYER_TYPES)}"
        config.problem("layer_types", f"expected {expected}, found {shown(types)}")
        return default
    return [kind == "sliding_attention" for kind in types]


def read_layer_flags(config: ConfigFields, key: str, default: list[bool]) -> list[bool]:
    """What the list ``key`` has for each layer, 0 or 1; ``default`` if the config lacks that key."""
    given = config.take(key)
    if given is None:
        return default
    if not isinstance(given, list) or len(given) != len(default) or not all(value in (0, 1) for value in given):
        config.problem(key, f"expected {len(default)} times 0 or 1, found {shown(given)}")
        return default
    return [value == 1 for value in given]


def read_rotating_layers(config: ConfigFields, layers: int) -> list[bool]:
    """Whether each layer has RoPE. Despite its name, ``no_rope_layers`` has a 1 for each layer with RoPE."""
    interval = config.integer("no_rope_layer_interval", 4)
    default = [(number + 1) % interval != 0 for number in range(layers)]
    given = config.take("no_rope_layers")
    if not given:
        return default
    if not isinstance(given, list) or len(given) < layers or not all(value in (0, 1) for value in given):
        config.problem("no_rope_layers", f"expected {layers} times 0 or 1, found {shown(given)}")
        return default
    return [value == 1 for value in given[:layers]]
