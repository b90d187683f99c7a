"""Reads the kinds of RoPE and the parameters of each."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.errors import shown
from trtllm_lite.network import rope
from trtllm_lite.network.rope import Frequencies, LongFrequencies, Rope

ORIGINAL = "original_max_position_embeddings"
PROPORTIONAL = "proportional"
FREQUENCY_FACTORS = "frequency_factors"  # GGUF only: a tensor of divisors, one per frequency


@dataclass(frozen=True)
class RopeDefaults:
    """The defaults of a family for absent keys.

    ``original`` is the length of pretraining in tokens; None means max_position_embeddings. ``part`` is the share of
    every head that is rotated; None means whole heads, which no config may change. ``others`` are keys of other meaning
    among RoPE's parameters. With ``by_axes`` the config may say how images and videos rotate by three positions
    (M-RoPE): those of a text's token are equal. With ``has_mscales`` LongRoPE's factor of cosines and sines is given
    for short and for long sequences, as the same number in all published models.
    """

    theta: float = 10000.0
    original: int | None = None
    part: float | None = None
    others: frozenset[str] = frozenset()
    by_axes: bool = False
    has_mscales: bool = False

    def own(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The parameters ``raw`` of RoPE by one position, without others."""
        kept = {key: value for key, value in raw.items() if key not in self.others}
        if self.has_mscales and kept.get("short_mscale") == kept.get("long_mscale"):
            factor = kept.pop("long_mscale", None)
            kept |= {} if kept.pop("short_mscale", None) is None else {"attention_factor": factor}
        if not self.by_axes:
            return kept
        plain = {key: value for key, value in kept.items() if key not in _OF_AXES}
        return {key: "default" if key in _TYPES and value == "mrope" else value for key, value in plain.items()}


_OF_AXES, _TYPES = frozenset({"mrope_section", "mrope_interleaved"}), frozenset({"type", "rope_type"})
USUAL_ROPE = RopeDefaults()


@dataclass(frozen=True)
class RopeSizes:
    """The sizes that RoPE needs: ``dim`` rotated elements of a head, ``original`` length of pretraining.

    Of these elements proportional RoPE turns the ``share`` with the highest frequencies.
    """

    dim: int
    max_positions: int
    original: int | None
    share: float = 1.0

    def turned(self, fields: ConfigFields, share: float) -> "RopeSizes":
        """The sizes of proportional RoPE."""
        if int(share * self.dim // 2) < 1 or share > 1:
            fields.problem("partial_rotary_factor", f"expected a part of {self.dim} elements, found {share}")
            return self
        return replace(self, share=share)

    def rotated(self, fields: ConfigFields, factor: float, partial: bool) -> "RopeSizes":
        """The share of every head that is rotated, counted from its first element; 1 unless ``partial``."""
        if not partial and factor != 1:
            fields.problem("partial_rotary_factor", f"expected 1.0, found {factor}, which is not supported")
            return self
        dim = int(self.dim * factor) if factor <= 1 else 0
        if dim % 2 or dim < 2:
            fields.problem("partial_rotary_factor", f"expected an even part of {self.dim} elements, found {factor}")
            dim = self.dim
        return replace(self, dim=dim)

    def read_original(self, fields: ConfigFields, minimum: int = 1) -> int:
        """The length of pretraining in tokens; a key beside the parameters takes precedence, as in transformers."""
        inside = fields.integer(ORIGINAL, self.max_positions, minimum)
        return inside if self.original is None else self.original


def read_type(fields: ConfigFields, kind: Any, theta: float, sizes: RopeSizes) -> Rope:
    """RoPE with the parameters ``fields``, of the kind that they name; problems are recorded in ``fields``."""
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        known = ", ".join(name for name in _READERS if name != FREQUENCY_FACTORS)
        fields.problem("rope_type", f"expected one of {known}, found {shown(kind)}, which is not supported")
        return _rope(rope.plain(RopeDefaults.theta, sizes.dim))
    result = _try_to_read(reader, fields, theta, sizes)
    if result is None:
        if not fields.problems:
            fields.problem("rope_theta", f"{theta} and the other parameters of {kind} RoPE give no finite angles")
        result = _rope(rope.plain(RopeDefaults.theta, sizes.dim))
    fields.check_unread()
    return result


def _try_to_read(reader: "_Reader", fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope | None:
    """RoPE of the kind; None if an angle, or a number on the way to it, is infinite or undefined."""
    try:
        with np.errstate(all="ignore"):
            result = reader(fields, theta, sizes)
            frequencies = result.inv_freq + (result.long.inv_freq if result.long else ())
            angles = np.array(frequencies, np.float32) * np.float32(sizes.max_positions)
    except (OverflowError, ValueError, ZeroDivisionError):
        return None
    return result if np.isfinite(angles).all() and math.isfinite(result.attention_factor) else None


def _default(_fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    return _rope(rope.plain(theta, sizes.dim))


def _proportional(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    """Frequencies as of whole heads, of which only the highest are not 0 (Gemma 4)."""
    turned = int(sizes.share * sizes.dim // 2)
    plain = rope.linear(rope.plain(theta, sizes.dim), fields.number("factor", 1.0))
    return _rope(np.where(np.arange(len(plain)) < turned, plain, 0))


def _linear(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    return _rope(rope.linear(rope.plain(theta, sizes.dim), _required(fields, "factor")))


_OF_YARN = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # beside alpha, which do not count


def _dynamic(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    """Dynamic NTK, which changes theta only for sequences beyond max_position_embeddings; the builder refuses those.

    Hunyuan's theta is raised by the power of ``alpha`` for sequences of any length.
    """
    if fields.take("alpha") is not None:
        for key in _OF_YARN:
            fields.take(key)
        return _rope(rope.plain(theta * fields.number("alpha", 1.0) ** (sizes.dim / (sizes.dim - 2)), sizes.dim))
    fields.expect(ORIGINAL, sizes.max_positions)
    _required(fields, "factor")
    return _rope(rope.plain(theta, sizes.dim))


def _frequency_factors(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    return _rope(rope.divided(rope.plain(theta, sizes.dim), _factors(fields, "factors", sizes.dim // 2)))


def _longrope(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    """LongRoPE with short factors for caches of up to ``original`` tokens, and long ones for longer caches, as in vLLM.

    transformers takes the short factors while a sequence is no longer than ``original``; when it grows longer, all of
    its keys in the KV cache would have to be computed again.
    """
    original = sizes.read_original(fields, minimum=2)
    short, long = (_factors(fields, f"{length}_factor", sizes.dim // 2) for length in ("short", "long"))
    factor = fields.number("factor", sizes.max_positions / original)
    attention_factor = fields.number("attention_factor", rope.longrope_attention_factor(factor, original))
    plain = rope.plain(theta, sizes.dim)
    usual = _rope(rope.divided(plain, short), attention_factor)
    if sizes.max_positions <= original:
        return usual
    return replace(usual, long=LongFrequencies(original, _rope(rope.divided(plain, long)).inv_freq))


def _llama3(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    factor, low, high = (_required(fields, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original, plain = sizes.read_original(fields), rope.plain(theta, sizes.dim)
    if high < low:
        fields.problem("high_freq_factor", f"expected low_freq_factor ({low}) or more, found {high}")
        return _rope(plain)
    return _rope(rope.llama3(plain, factor, low, high, original))


def _yarn(fields: ConfigFields, theta: float, sizes: RopeSizes) -> Rope:
    """YaRN; ``attn_factor`` multiplies its temperature, as in the paper's code and in vLLM (transformers ignores it).

    With the factor of DeepSeek-R1-0528-Qwen3-8B the temperature is 1.
    """
    original = sizes.read_original(fields)
    factor = fields.number("factor", sizes.max_positions / original)
    mscale, mscale_all_dim = (fields.number(key, 0.0, allows_zero=True) for key in ("mscale", "mscale_all_dim"))
    usual = rope.yarn_attention_factor(factor, mscale, mscale_all_dim) * fields.number("attn_factor", 1.0)
    attention_factor = fields.number("attention_factor", usual)
    if fields.take("attn_factor") and fields.take("attention_factor"):
        fields.problem("attn_factor", "expected this or attention_factor, which is the whole factor, found both")
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    truncate = fields.flag("truncate", True)
    if theta <= 1:
        fields.problem("rope_theta", f"expected more than 1 for yarn, found {theta}")
        return _rope(rope.plain(theta, sizes.dim))
    return _rope(rope.yarn(theta, sizes.dim, factor, original, fast, slow, truncate), attention_factor)


_Reader = Callable[[ConfigFields, float, RopeSizes], Rope]
_READERS: dict[str, _Reader] = {
    "default": _default,
    PROPORTIONAL: _proportional,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name in the first Phi-3 checkpoints
    FREQUENCY_FACTORS: _frequency_factors,
}


def _required(fields: ConfigFields, key: str) -> float:
    """The required positive number ``key``."""
    if fields.take(key) is None:
        fields.problem(key, "expected a positive number, found none")
    return fields.number(key, 1.0)


def _factors(fields: ConfigFields, key: str, count: int) -> Frequencies:
    """The required list ``key`` of ``count`` positive numbers."""
    factors = fields.take(key)
    are_numbers = isinstance(factors, list) and all(type(value) in (int, float) and value > 0 for value in factors)
    if not are_numbers or len(factors) != count:
        fields.problem(key, f"expected {count} positive numbers, found {shown(factors)}")
        return np.ones(count, np.float32)
    return np.array(factors, np.float32)


def _rope(inv_freq: Frequencies, attention_factor: float = 1.0) -> Rope:
    return Rope(tuple(float(value) for value in inv_freq), attention_factor)
