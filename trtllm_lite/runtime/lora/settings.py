"""What adapter_config.json says of an adapter: ranks, scales, and what no engine applies."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_lite.errors import EngineError, shown

MAX_CONFIG_BYTES = 1 << 20
_MERGE = "merge the adapter into the model before `trtllm-lite convert`"
# Keys that change what an adapter computes, each with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "modules_to_save": (None, []),
    "bias": ("none",),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "layer_replication": (None, []),
    "megatron_config": (None,),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False,),
    "eva_config": (None,),
    "corda_config": (None,),
    "loftq_config": (None, {}),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
}


@dataclass(frozen=True)
class AdapterSettings:
    """Rank and alpha of all modules, or by a pattern that ends a module's path; rsLoRA divides by the root of r."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    use_rslora: bool

    def rank_of(self, module: str) -> int:
        """The rank of the module with this path."""
        return int(_matched(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What B @ A is multiplied with: alpha / r, of rsLoRA (arXiv 2312.03732) alpha / sqrt(r)."""
        rank, alpha = self.rank_of(module), _matched(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def parse_settings(data: bytes) -> AdapterSettings:
    """Read adapter_config.json. Raises EngineError for what is no LoRA, or more than that."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError("expected adapter_config.json to be JSON, found something else: save it again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise EngineError(f"adapter_config.json: peft_type is {shown(kind)}, expected LORA: {_MERGE}")
    for name, neutral in _NEUTRAL.items():
        value = config.get(name, neutral[0])
        if value not in neutral:
            raise EngineError(f"adapter_config.json: {name} is {shown(value)}, which no engine applies: {_MERGE}")
    return AdapterSettings(
        rank=int(_number("r", config.get("r"))),
        alpha=_number("lora_alpha", config.get("lora_alpha")),
        rank_pattern={key: int(value) for key, value in _pattern("rank_pattern", config).items()},
        alpha_pattern=_pattern("alpha_pattern", config),
        use_rslora=config.get("use_rslora", False) is True,
    )


def _number(name: str, value: Any) -> float:
    whole = name in ("r", "rank_pattern")
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1 << 20:
        raise EngineError(f"adapter_config.json: {name} is {shown(value)}, expected a number above 0: save it again")
    return value


def _pattern(name: str, config: Mapping[str, Any]) -> dict[str, float]:
    value = config.get(name) or {}
    if not isinstance(value, dict) or len(value) > 1 << 12:
        raise EngineError(f"adapter_config.json: {name} is {shown(value)}, expected an object of numbers")
    for key in value:
        # PEFT takes keys for regular expressions; from a file these could take for ever.
        if not re.fullmatch(r"\^?[\w.]{1,256}", key):
            raise EngineError(f"adapter_config.json: {name} has the key {shown(key)}, expected the path of a module")
    return {key: _number(name, number) for key, number in value.items()}


def _matched(pattern: Mapping[str, float], module: str, default: float) -> float:
    for key, value in pattern.items():
        exact = key.removeprefix("^")
        if module == exact or (exact == key and module.endswith(f".{key}")):
            return value
    return default
