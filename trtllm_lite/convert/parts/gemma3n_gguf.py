"""How llama.cpp stores Gemma 3n (conversion/gemma.py and gguf-py/gguf/tensor_mapping.py there)."""

from statistics import NormalDist
from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.fields.decoder import MAX_LAYERS
from trtllm_lite.convert.parts.gemma import GGUF_ROLES
from trtllm_lite.convert.parts.gemma4_gguf import INPUT_ROLES, INPUT_ROWS, SHARED_KEYS, kinds_and_ropes
from trtllm_lite.network.streams import STREAMS


def _config(config: dict[str, Any]) -> dict[str, Any]:
    """The kinds of layers, the RoPE of both, and the share of each layer's gates that a cut leaves out.

    Files say above how many deviations the cut is, minus infinity for layers without one.
    """
    scales, layers = config.pop("scales"), min(config["num_hidden_layers"], MAX_LAYERS)
    factors = scales if isinstance(scales, list) else [scales] * layers
    shares = [NormalDist().cdf(factor) for factor in factors]
    return {**kinds_and_ropes(config, layers), "activation_sparsity_pattern": shares}


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
        **SHARED_KEYS,
        "activation_sparsity_scale": "scales",
        "altup.active_idx": "altup_active_idx",
        "altup.num_inputs": "altup_num_inputs",
    },
    config=_config,
    bare=("correct_scale",),
    stacked={"stream_projection": STREAMS - 1, "stream_output": STREAMS - 1},
    rows={**INPUT_ROWS, "laurel_rank": "blk.0.laurel_l.weight"},
)
