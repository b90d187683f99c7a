"""Reads adapter_config.json of an adapter: ranks, scales, and settings that no engine applies."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.engine.records import parse_json
from trtllm_lite.errors import EngineError, shown

MAX_CONFIG_BYTES = 1 << 20
_NUMBERS_END = 1 << 20  # bound on ranks and alphas
_MERGE = "merge the adapter into the model before `trtllm-lite convert`"
_USED = ("peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora")
# Keys that never change the result: keys that say which modules are adapted (the names of the tensors show it), keys
# about training alone, and fan_in_fan_out, the order of axes in the model's own weights.
_WITHOUT_EFFECT = """
    task_type auto_mapping peft_version base_model_name_or_path revision inference_mode runtime_config
    target_modules exclude_modules layers_to_transform layers_pattern ensure_weight_tying fan_in_fan_out
    lora_dropout eva_config corda_config lora_ga_config loftq_config velora_config
    megatron_core qalora_group_size merge_weights
"""
# Keys that change an adapter's computation, each with its neutral values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "modules_to_save": (None, []),
    "bias": ("none",),
    "lora_bias": (False,),
    "layer_replication": (None, []),
    "megatron_config": (None,),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "enable_lora": (None,),
}
# Initialisations of A and B that leave the model's own weights unchanged (peft/tuners/lora/layer.py, update_layer).
_INITIAL, _KEPT_WEIGHTS = "init_lora_weights", (True, False, "gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True)
class AdapterSettings:
    """Rank and alpha of an adapter's modules; the patterns hold exceptions, by the ends of modules' paths."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    use_rslora: bool

    def rank_of(self, module: str) -> int:
        """The rank of the module with this path."""
        return int(_matched(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of B @ A: alpha / r, or alpha / sqrt(r) for rsLoRA (arXiv 2312.03732)."""
        rank, alpha = self.rank_of(module), _matched(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def parse_settings(data: bytes) -> AdapterSettings:
    """Read adapter_config.json. Raises EngineError for anything but plain LoRA, and for unknown keys."""
    config = parse_json(data, "adapter_config.json")
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise EngineError(f"adapter_config.json: peft_type is {shown(kind)}, expected LORA: {_MERGE}")
    for name, value in config.items():
        _check(name, value)
    return AdapterSettings(
        rank=int(_number("r", config.get("r"))),
        alpha=_number("lora_alpha", config.get("lora_alpha")),
        rank_pattern={key: int(value) for key, value in _pattern("rank_pattern", config).items()},
        alpha_pattern=_pattern("alpha_pattern", config),
        use_rslora=_flag("use_rslora", config),
    )


def _check(name: str, value: Any) -> None:
    """Raise EngineError for a key that no engine applies, or for an unknown key."""
    if name == _INITIAL:
        if not _is_one_of(value, _KEPT_WEIGHTS):
            raise EngineError(
                f"adapter_config.json: {name} is {shown(value)}, by which the weights of the model were changed before "
                "training: save the adapter with path_initial_model_for_weight_conversion, which PEFT's documentation "
                f"of it describes, or {_MERGE}"
            )
    elif name in _NEUTRAL:
        if not _is_one_of(value, _NEUTRAL[name]):
            raise EngineError(f"adapter_config.json: {name} is {shown(value)}, which no engine applies: {_MERGE}")
    elif name not in _USED and name not in _WITHOUT_EFFECT.split():
        raise EngineError(
            f"adapter_config.json has the key {shown(name)}, which this trtllm_lite does not know: take it out of the "
            f"file if it concerns training alone, or {_MERGE}"
        )


def _is_one_of(value: Any, known: tuple[Any, ...]) -> bool:
    """Whether ``value`` is one of ``known`` and of the same type: 1 is not True."""
    return any(type(value) is type(other) and value == other for other in known)


def _flag(name: str, config: Mapping[str, Any]) -> bool:
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise EngineError(
            f"adapter_config.json: {name} is {shown(value)}, expected true or false: save the adapter again"
        )
    return value


def _number(name: str, value: Any) -> float:
    whole = name in ("r", "rank_pattern")
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < _NUMBERS_END:
        raise EngineError(
            f"adapter_config.json: {name} is {shown(value)}, expected a {'whole ' if whole else ''}number above 0 and "
            f"below {_NUMBERS_END}: save the adapter again"
        )
    return value


def _pattern(name: str, config: Mapping[str, Any]) -> dict[str, float]:
    value = config.get(name) or {}
    if not isinstance(value, dict) or len(value) > 1 << 12:
        raise EngineError(f"adapter_config.json: {name} is {shown(value)}, expected an object of at most 4,096 numbers")
    for key in value:
        # PEFT uses keys as regular expressions; matching a hostile one could take forever.
        if not re.fullmatch(r"\^?[\w.]{1,256}", key):
            raise EngineError(f"adapter_config.json: {name} has the key {shown(key)}, expected the path of a module")
    return {key: _number(name, number) for key, number in value.items()}


def _matched(pattern: Mapping[str, float], module: str, default: float) -> float:
    for key, value in pattern.items():
        exact = key.removeprefix("^")
        if module == exact or (exact == key and module.endswith(f".{key}")):
            return value
    return default
