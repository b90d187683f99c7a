"""How llama.cpp stores Gemma 3n (conversion/gemma.py and gguf-py/gguf/tensor_mapping.py there)."""

from statistics import NormalDist
from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.fields.decoder import MAX_LAYERS
from trtllm_lite.convert.parts.gemma import GGUF_KEYS, GGUF_ROLES
from trtllm_lite.convert.parts.gemma4 import FULL, SLIDING
from trtllm_lite.network.streams import STREAMS

# Names of the tensors that layers' inputs need.
INPUT_ROLES = {
    "per_layer_token_embd": "input_embedding",
    "per_layer_model_proj": "input_model_projection",
    "per_layer_proj_norm": "input_norm",
    "blk.{layer}.inp_gate": "input_gate",
    "blk.{layer}.proj": "input_projection",
    "blk.{layer}.post_norm": "input_post_norm",
}
_USUAL_THETA = 10000.0  # of layers with a window


def _config(config: dict[str, Any]) -> dict[str, Any]:
    """The kinds of layers, the RoPE of both, and the share of each layer's gates that a cut leaves out.

    Files say above how many deviations the cut is, minus infinity for layers without one.
    """
    slides, scales, layers = config.pop("slides"), config.pop("scales"), min(config["num_hidden_layers"], MAX_LAYERS)
    windowed = {"rope_type": "default", "rope_theta": config.pop("windowed_theta", _USUAL_THETA)}
    by_layer = slides if isinstance(slides, list) else [slides] * layers
    factors = scales if isinstance(scales, list) else [scales] * layers
    return {
        "layer_types": [SLIDING if slide else FULL for slide in by_layer],
        "activation_sparsity_pattern": [NormalDist().cdf(factor) for factor in factors],
        "rope_parameters": {FULL: config["rope_parameters"], SLIDING: windowed},
    }


GGUF = Gguf(
    "gemma3n",
    roles={
        **GGUF_ROLES,
        **INPUT_ROLES,
        "altup_proj": "stream_projection",
        "altup_unembd_proj": "stream_output",
        "blk.{layer}.altup_router": "router",
        "blk.{layer}.altup_router_norm": "router_norm",
        "blk.{layer}.altup_predict_coef": "prediction",
        "blk.{layer}.altup_correct_coef": "correction",
        "blk.{layer}.altup_correct_scale": "correct_scale",
        "blk.{layer}.laurel_l": "laurel_down",
        "blk.{layer}.laurel_r": "laurel_up",
        "blk.{layer}.laurel_post_norm": "laurel_norm",
    },
    keys={
        **GGUF_KEYS,
        "attention.sliding_window_pattern": "slides",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "rope.freq_base_swa": "windowed_theta",
        "activation_sparsity_scale": "scales",
        "altup.active_idx": "altup_active_idx",
        "altup.num_inputs": "altup_num_inputs",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    },
    config=_config,
    bare=("correct_scale",),
    stacked={"stream_projection": STREAMS - 1, "stream_output": STREAMS - 1},
    rows={
        "laurel_rank": "blk.0.laurel_l.weight",
        "vocab_size_per_layer_input": "per_layer_token_embd.weight",
    },
)
