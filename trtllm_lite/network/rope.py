"""Computes rotary position embeddings (arXiv 2104.09864): inverse frequencies of the plain and the scaled variants.

Everything is computed in float32, in the order of operations that models are trained with: rounding the exponents to
float32 shifts the frequencies by a few units in the last place, which long positions magnify.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.float32]


@dataclass(frozen=True)
class LongFrequencies:
    """The inverse frequencies for caches of more than ``original_length`` tokens, the length of pretraining."""

    original_length: int
    inv_freq: tuple[float, ...]


@dataclass(frozen=True)
class Rope:
    """Rotation of a head's pairs (i, i + dim/2) by the angle position * inv_freq[i], where dim = 2 * len(inv_freq).

    ``inv_freq`` is in radians per token; elements of the head from dim on are not rotated. ``attention_factor``
    multiplies cosines and sines. Long caches use the frequencies ``long``, if they are given.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    long: LongFrequencies | None = None


def plain(theta: float, head_dim: int) -> Frequencies:
    """inv_freq[i] = theta^(-2i/head_dim) (arXiv 2104.09864, section 3.2.2); float32 [head_dim/2]."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.float32(1) / np.float32(theta) ** exponents


def linear(inv_freq: Frequencies, factor: float) -> Frequencies:
    """Position interpolation: divide positions, and so frequencies, by ``factor`` (arXiv 2306.15595, equation 4)."""
    return inv_freq / np.float32(factor)


def divided(inv_freq: Frequencies, factors: Frequencies) -> Frequencies:
    """Divide each frequency by its own factor, float32 [head_dim/2], as LongRoPE does (arXiv 2402.13753, equation 1).

    GGUF files store Llama 3.1's scaling as such factors as well.
    """
    return inv_freq / factors


def llama3(
    inv_freq: Frequencies, factor: float, low_freq_factor: float, high_freq_factor: float, original_length: int
) -> Frequencies:
    """Llama 3.1's scaling: long wavelengths are divided by ``factor``, short ones kept, with a linear blend in between.

    With equal factors (Llama 4 Scout) there is no blend.

    Wavelengths are compared with ``original_length`` (the context the model was pretrained on, in tokens) divided by
    the two factors. Source: ``apply_scaling`` of Meta's llama-models reference code.
    """
    cycles = np.float32(original_length) / (np.float32(2 * math.pi) / inv_freq)
    low, width = np.float32(low_freq_factor), np.float32(high_freq_factor - low_freq_factor)
    blend = np.clip((cycles - low) / width, np.float32(0), np.float32(1)) if width else np.float32(cycles >= low)
    return (1 - blend) * inv_freq / np.float32(factor) + blend * inv_freq


def yarn(
    theta: float,
    head_dim: int,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Frequencies:
    """YaRN's "NTK-by-parts" (arXiv 2309.00071, section 3.2): interpolate slow dimensions, keep fast ones.

    A dimension that turns ``beta_fast`` times or more over ``original_length`` tokens is kept, one that turns at most
    ``beta_slow`` times is divided by ``factor``; ``truncate`` rounds these bounds outwards to whole dimensions.
    """

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # keeps the ramp from dividing by zero: it becomes a step
    ramp = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    interpolated = np.clip(ramp, np.float32(0), np.float32(1))
    kept = 1 - interpolated
    inv_freq = plain(theta, head_dim)
    return inv_freq / np.float32(factor) * (1 - kept) + inv_freq * kept


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """YaRN's temperature sqrt(1/t) = 0.1 ln(factor) + 1 (arXiv 2309.00071, equation 22).

    With both ``mscale`` values (DeepSeek's extension) it is the quotient of the two scaled temperatures.
    """

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)


def longrope_attention_factor(factor: float, original_length: int) -> float:
    """sqrt(1 + ln(factor) / ln(original_length)), or 1 for a model without scaling (arXiv 2404.14219, Phi-3)."""
    return math.sqrt(1 + math.log(factor) / math.log(original_length)) if factor > 1 else 1.0
