"""OLMo 3 (https://huggingface.co/allenai/Olmo-3-1025-7B): OLMo 2, most of whose layers have a sliding window.

RoPE is scaled in the layers that see all tokens, and plain in the others.
"""

from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.olmo import NAMES, OlmoParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

THETAS = dict.fromkeys(("full_attention", "sliding_attention"), ("rope_theta", 500000.0))


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; every fourth layer has no window unless ``layer_types`` says otherwise; null means no window."""
    parts = OlmoParts.read(config)
    ropes = read_ropes_by_layer_type(config, parts.sizes.head_dim, parts.sizes.max_position_embeddings, THETAS)
    config.expect("partial_rotary_factor", 1.0)  # GGUF files have this key
    window = config.nullable_integer("sliding_window", 4096) or 0
    slides = read_layer_types(config, [(number + 1) % 4 != 0 for number in range(parts.sizes.num_hidden_layers)])

    def layer(tensors: Tensors, number: int) -> Layer:
        slide = slides[number]
        rope = ropes["sliding_attention" if slide else "full_attention"]
        return parts.layer(tensors, rope, window if slide else 0)

    return parts.decoder(config, parts.layers(layer))


def gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The kinds of layers and the RoPE of both: llama.cpp stores that of full attention; that of windows is unscaled.

    Files of OLMo 2 have no windows, and a single kind of layer.
    """
    rope, slides = config["rope_parameters"], config.pop("slides", None)
    windowed = {"rope_type": "default", "rope_theta": config.pop("windowed_theta", rope["rope_theta"])}
    if config["sliding_window"] is None:
        slides = [False] * int(config["num_hidden_layers"])
    types = {} if slides is None else {"layer_types": [f"{'sliding' if s else 'full'}_attention" for s in slides]}
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": windowed}, **types}


FAMILY = Family(
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "olmo2",
        roles={
            "blk.{layer}.post_attention_norm": "attention_post_norm",
            "blk.{layer}.post_ffw_norm": "mlp_post_norm",
        },
        keys={
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "slides",
            "rope.freq_base_swa": "windowed_theta",
        },
        config=gguf_config,
    ),
)
