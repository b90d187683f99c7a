"""The config keys of rotary position embeddings, in the spellings of transformers 5 and of older versions."""

from typing import Any

import numpy as np

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.network import rope
from trtllm_lite.network.rope import Frequencies, Rope

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
FREQUENCY_FACTORS = "frequency_factors"  # GGUF only: a tensor of divisors, one per frequency
_NEUTRAL = frozenset({"finetuned"})


def read_rope(config: ConfigFields, head_dim: int, max_positions: int) -> Rope:
    """RoPE of a model: ``rope_parameters``, or else ``rope_theta`` and ``rope_scaling``.

    Types whose frequencies depend on the length of the input (dynamic, longrope) are errors.
    """
    theta = config.number("rope_theta", 10000.0)
    config.expect("partial_rotary_factor", 1.0)
    original = config.integer("original_max_position_embeddings", max_positions)
    current, legacy = config.take("rope_parameters"), config.take("rope_scaling")
    if current and legacy and current != legacy:
        config.problem("rope_scaling", f"contradicts rope_parameters: {legacy!r} and {current!r}")
    raw: Any = current or legacy or {}
    name = "rope_parameters" if current else "rope_scaling"
    if not isinstance(raw, dict):
        config.problem(name, f"expected an object, found {raw!r}")
        raw = {}
    fields = ConfigFields(raw, f"{name}.", _NEUTRAL)
    fields.expect("partial_rotary_factor", 1.0)
    theta = fields.number("rope_theta", theta)
    kind, old_kind = fields.take("rope_type"), fields.take("type")
    result = _read_type(fields, kind or old_kind or "default", theta, head_dim, (max_positions, original))
    fields.check_unread()
    config.problems += fields.problems
    return result


def _read_type(fields: ConfigFields, kind: Any, theta: float, head_dim: int, lengths: tuple[int, int]) -> Rope:
    plain = rope.plain(theta, head_dim)
    if kind == "default":
        return _rope(plain)
    if kind == "linear":
        return _rope(rope.linear(plain, _required(fields, "factor")))
    if kind == "llama3":
        return _rope(_llama3(fields, plain, lengths))
    if kind == "yarn":
        return _yarn(fields, theta, head_dim, lengths)
    if kind == FREQUENCY_FACTORS:
        return _rope(_divided(fields, plain))
    fields.problem("rope_type", f"expected one of {', '.join(ROPE_TYPES)}, found {kind!r}, which is not supported")
    return _rope(plain)


def _divided(fields: ConfigFields, plain: Frequencies) -> Frequencies:
    factors = fields.take("factors")
    positive = isinstance(factors, list) and all(isinstance(value, float) and value > 0 for value in factors)
    if not positive or len(factors) != len(plain):
        fields.problem("factors", f"expected {len(plain)} positive numbers, found {factors!r}")
        return plain
    return rope.divided(plain, np.array(factors, np.float32))


def _llama3(fields: ConfigFields, plain: Frequencies, lengths: tuple[int, int]) -> Frequencies:
    factor, low, high = (_required(fields, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = fields.integer("original_max_position_embeddings", lengths[1])
    if high <= low:
        fields.problem("high_freq_factor", f"expected more than low_freq_factor ({low}), found {high}")
        return plain
    return rope.llama3(plain, factor, low, high, original)


def _yarn(fields: ConfigFields, theta: float, head_dim: int, lengths: tuple[int, int]) -> Rope:
    original = fields.integer("original_max_position_embeddings", lengths[1])
    factor = fields.number("factor", lengths[0] / original)
    mscale, mscale_all_dim = (fields.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    attention_factor = fields.number("attention_factor", rope.yarn_attention_factor(factor, mscale, mscale_all_dim))
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    truncate = fields.flag("truncate", True)
    if theta <= 1:
        fields.problem("rope_theta", f"expected more than 1 for yarn, found {theta}")
        return _rope(rope.plain(theta, head_dim))
    return _rope(rope.yarn(theta, head_dim, factor, original, fast, slow, truncate), attention_factor)


def _required(fields: ConfigFields, key: str) -> float:
    """A positive number that must be there."""
    if fields.take(key) is None:
        fields.problem(key, "expected a positive number, found none")
    return fields.number(key, 1.0)


def _rope(inv_freq: Frequencies, attention_factor: float = 1.0) -> Rope:
    return Rope(tuple(float(value) for value in inv_freq), attention_factor)
