"""How llama.cpp stores models with Mamba-2 beside attention (conversion/mamba.py, granite.py and nemotron.py)."""

from typing import Any

from trtllm_lite.errors import ConvertError, shown

_LAYER = "blk.{layer}"
MAMBA_GGUF_ROLES = {
    **{f"{_LAYER}.ssm_in": "in_proj", f"{_LAYER}.ssm_conv1d": "conv", f"{_LAYER}.ssm_a": "a_log"},
    **{f"{_LAYER}.ssm_dt": "dt_bias", f"{_LAYER}.ssm_d": "d", f"{_LAYER}.ssm_norm": "gated_norm"},
    f"{_LAYER}.ssm_out": "mamba_out_proj",
}
_HEADS, _INNER, _KV, _FF = "ssm.time_step_rank", "ssm.inner_size", "attention.head_count_kv", "feed_forward_length"
# Entries of Gguf that say what llama.cpp changes in tensors of such layers.
MAMBA_GGUF_TENSORS: dict[str, Any] = {
    "bare": ("a_log", "dt_bias", "d"),
    "without_suffix": ("a_log", "d"),
    "decays": ("a_log",),
    "squeezed": ("conv",),
    "forms": dict.fromkeys(("a_log", "d", "gated_norm"), (-1,)),
}


def mamba_gguf_keys(width: str, state: str, groups: str, heads: str) -> dict[str, str]:
    """Keys of metadata by the config's names; the features of all heads keep the name that they have in files."""
    return {
        **{"ssm.conv_kernel": width, "ssm.state_size": state, "ssm.group_count": groups, _HEADS: heads},
        _INNER: _INNER,
    }


def inner_and_head_dim(config: dict[str, Any], heads: str) -> tuple[int, int]:
    """Take the features of all heads out of the config, and return them and those of one head.

    Raises ConvertError, which names the key, for sizes that are absent or contradict each other.
    """
    inner, count = config.pop(_INNER, None), config.get(heads)
    for key, size in ((_INNER, inner), (_HEADS, count)):
        if type(size) is not int or size < 1:
            raise wrong_gguf(f"{key} to be a positive integer", size)
    if inner % count:
        raise wrong_gguf(f"{_INNER} to be a multiple of {_HEADS} ({count})", inner)
    return inner, inner // count


def layers_of(config: dict[str, Any], ours: str) -> list[int]:
    """The sizes that a key of files gives for each layer, ``ours`` in the config, which has one number if all agree."""
    key, layers = {"num_key_value_heads": _KV, "intermediate_size": _FF}[ours], config["num_hidden_layers"]
    sizes = config.get(ours)
    sizes = sizes if isinstance(sizes, list) else [sizes] * layers
    if len(sizes) != layers or not all(type(size) is int and size >= 0 for size in sizes):
        raise wrong_gguf(f"{key} to have a size for each of {layers} layers", config.get(ours))
    return sizes


def only_size(config: dict[str, Any], ours: str) -> int:
    """The size that all layers have which have one; 0 if there is no such layer."""
    found = sorted({size for size in layers_of(config, ours) if size > 0})
    if len(found) > 1:
        raise wrong_gguf(f"one size in all layers that have {ours}", found)
    return found[0] if found else 0


def wrong_gguf(expected: str, found: Any) -> ConvertError:
    """The error for metadata that say something else than ``expected``."""
    return ConvertError(
        f"in the metadata of the GGUF file, expected {expected}, found {shown(found)}: download it again"
    )
