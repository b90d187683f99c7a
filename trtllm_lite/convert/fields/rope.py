"""Reads the config keys of rotary position embeddings, as spelled in transformers 5 and in older versions."""

from collections.abc import Mapping
from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import ORIGINAL, PROPORTIONAL, USUAL_ROPE, RopeDefaults, RopeSizes, read_type
from trtllm_lite.errors import shown
from trtllm_lite.network.rope import Rope

_NEUTRAL = frozenset({"finetuned"})


def read_rope(config: ConfigFields, head_dim: int, max_positions: int, defaults: RopeDefaults = USUAL_ROPE) -> Rope:
    """RoPE of a model, from ``rope_parameters``, or else from ``rope_theta`` and ``rope_scaling``."""
    outside = config.take(ORIGINAL) is not None
    original = config.integer(ORIGINAL) if outside else defaults.original
    theta = config.number("rope_theta", defaults.theta)
    part = config.number("partial_rotary_factor", defaults.part or 1.0), defaults.part is not None
    name, raw = _parameters(config)
    return _read(config, name, defaults.own(raw), RopeSizes(head_dim, max_positions, original), theta, part)


def read_ropes_by_layer_type(
    config: ConfigFields,
    head_dim: int,
    max_positions: int,
    thetas: dict[str, tuple[str, float]],
    part: float | None = None,
    head_dims: Mapping[str, int] | None = None,
) -> dict[str, Rope]:
    """RoPE of each kind of layer; ``thetas`` maps a kind to the key of its theta in old configs and to its default.

    ``part`` is the share of every head that is rotated by default; None means whole heads, which no config may change.
    ``head_dims`` has the sizes of heads of kinds where these are not ``head_dim``. ``rope_parameters`` has an object
    for every kind; the ``rope_scaling`` of old configs concerns full attention alone.
    """
    factor = (1.0, False) if part is None else (config.number("partial_rotary_factor", part), True)
    old_thetas = {kind: config.number(key, default) for kind, (key, default) in thetas.items()}
    name, raw = _parameters(config)
    if name == "rope_scaling":
        raw = {"full_attention": raw}
    fields = ConfigFields(raw, f"{name}.", _NEUTRAL)
    ropes = {}
    for kind, theta in old_thetas.items():
        own = fields.take(kind) or {}
        where = name if name == "rope_scaling" else f"{name}.{kind}"
        sizes = RopeSizes((head_dims or {}).get(kind, head_dim), max_positions, None)
        ropes[kind] = _read(config, where, own if isinstance(own, dict) else {kind: own}, sizes, theta, factor)
    fields.check_unread()
    config.problems += fields.problems
    return ropes


def _parameters(config: ConfigFields) -> tuple[str, dict[str, Any]]:
    """The object with the parameters and the key that it stands under; {} if there is none."""
    current, legacy = config.take("rope_parameters"), config.take("rope_scaling")
    if isinstance(legacy, dict) and set(legacy) <= {"type", "rope_type"} and set(legacy.values()) <= {"default"}:
        legacy = None  # this rope_scaling says that RoPE is not scaled
    if current and legacy and current != legacy:
        config.problem("rope_scaling", f"contradicts rope_parameters: {shown(legacy)} and {shown(current)}")
    name = "rope_parameters" if current or not legacy else "rope_scaling"
    raw = current or legacy or {}
    if not isinstance(raw, dict):
        config.problem(name, f"expected an object, found {shown(raw)}")
        raw = {}
    return name, raw


def _read(
    config: ConfigFields,
    name: str,
    raw: dict[str, Any],
    sizes: RopeSizes,
    theta: float,
    part: tuple[float, bool] = (1.0, False),
) -> Rope:
    """Read RoPE from ``raw``; ``part`` is the default of partial_rotary_factor, and whether it may differ from 1."""
    fields = ConfigFields(raw, f"{name}.", _NEUTRAL)
    theta, factor = fields.number("rope_theta", theta), fields.number("partial_rotary_factor", part[0])
    kind, old_kind = fields.take("rope_type"), fields.take("type")
    kind = kind or old_kind or "default"
    sizes = sizes.turned(fields, factor) if kind == PROPORTIONAL else sizes.rotated(fields, factor, part[1])
    rope = read_type(fields, kind, theta, sizes)
    config.problems += fields.problems
    return rope
