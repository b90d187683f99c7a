"""The tolerances within which two float32 computations of the same model count as equal, and the check itself."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tolerance:
    """``cosine``: least similarity in float64; ``relative``: largest error over the largest expected magnitude."""

    cosine: float
    relative: float


# Tolerances by storage type. Both sides read the same rounded weights and compute in float32, so storage adds
# nothing: what differs is the order of sums. Through three to thirty layers that gives some 1e-6 of the largest logit,
# and peaked softmaxes magnify it about tenfold; a wrong mask, scale or rotation gives 1e-2 and more.
TOLERANCES = {
    "float32": Tolerance(cosine=0.99999, relative=5e-5),
    "float16": Tolerance(cosine=0.99999, relative=5e-5),
    "bfloat16": Tolerance(cosine=0.99999, relative=5e-5),
}

# Recurrent layers normalise what heads read from their states, which magnifies the rounding of small results: in 40
# random batches of 150 tokens, transformers in float32 is off from itself in float64 by up to 3.2e-5 of the largest
# logit, and so are networks (3.1e-5). Both are off by up to this much at once, and more in longer runs of tests.
RECURRENT_TOLERANCES = dict.fromkeys(TOLERANCES, Tolerance(cosine=0.99999, relative=2e-4))

# A GPU engine against float32 arithmetic on the same weights: activations are rounded to the storage type between
# kernels, 2^-8 (bfloat16) or 2^-11 (float16) of their size some ten times a layer.
GPU_TOLERANCES = {
    "bfloat16": Tolerance(cosine=0.999, relative=8e-2),
    "float16": Tolerance(cosine=0.9999, relative=1e-2),
}

# Now and then one position of a text magnifies that rounding in a tiny random model. Of 20 prompts of each of 20
# families, with two seeds and two widths, float32 arithmetic whose layers' results are rounded to bfloat16 is off by up
# to 0.118 of the largest logit, at one of 24 tokens of SmolLM3, of which the others are off by up to 0.03 (a GPU is
# off by up to 0.119 in that model). transformers in bfloat16 is off by up to 0.096, in float16 by 0.013. Every prompt
# is held to a third more than these, and most to GPU_TOLERANCES (SHARES).
OUTLIER_TOLERANCES = {
    "bfloat16": Tolerance(cosine=0.999, relative=0.16),
    "float16": Tolerance(cosine=0.9999, relative=2e-2),
}

# Rounding changes which experts a token of a tiny random mixture chooses, now and then: transformers in bfloat16 is off
# by cosines down to 0.956 and by up to 1.2 of the largest logit of such a prompt, in float16 by 0.992 and 0.43.
OTHER_EXPERTS_TOLERANCES = {
    "bfloat16": Tolerance(cosine=0.95, relative=1.2),
    "float16": Tolerance(cosine=0.99, relative=0.45),
}


@dataclass(frozen=True)
class Shares:
    """The least shares of a batch's prompts that must be within the usual tolerances.

    ``close``: prompts whose logits meet GPU_TOLERANCES. ``near_ties``: prompts for which two computations choose the
    same tokens up to a near-tie, at which the logits of both tokens in a float32 reference differ by at most twice the
    error that GPU_TOLERANCES allow. A defect in most rows, such as a lost term or a row that reads
    another's keys and values, leaves nearly no such prompts.
    """

    close: float
    near_ties: float


# In the computations above, 18 to 20 of 20 prompts are close, and all diverge at near-ties (by at most 0.075 of the
# largest logit in bfloat16, where 0.16 is near, and by 0.004 in float16, where 0.02 is).
SHARES = Shares(close=0.75, near_ties=1.0)
# Other experts make other tokens likely: a bound on every prompt would have to be too wide to fail, since transformers
# itself chooses other tokens where its float32 logits differ by up to 1.02 of the largest. In bfloat16, 5 to 16 of 20
# prompts of such mixtures are close, and 14 to 20 of 20 diverge at near-ties. A lost expert concerns all.
MIXTURE_SHARES = Shares(close=0.25, near_ties=0.5)

# Models with adapters: the adapters' matrices, and sums between and after these, are rounded, too. transformers in
# float16 with such adapters is off by up to 0.025 of the largest logit of a tiny random Llama.
ADAPTER_TOLERANCES = GPU_TOLERANCES | {"float16": Tolerance(cosine=0.9999, relative=2e-2)}

# For a random draft head after six random layers, torch in bfloat16 is off by cosines down to 0.976 (0.9985 for the
# tokens of the test), and by up to 0.23 of the largest logit. A lost term gives a cosine below 0.9.
HEAD_TOLERANCES = {"bfloat16": Tolerance(cosine=0.99, relative=0.15)}


# Perplexity on a GPU over that on a CPU: a mean over thousands of tokens, in which the roundings above cancel but for
# some parts in a thousand.
GPU_LOSS = 1e-2


@dataclass(frozen=True)
class RoundingRatio:
    """Errors of an engine over those of transformers computing in the engine's type, both against float32."""

    rms: float
    worst: float


# A real model magnifies rounding where attention is peaked: on SmolLM2 transformers in float16 itself is off by 0.2% to
# 1.0% of the largest logit, prompt by prompt. Over all of them the errors of two good computations are alike (an engine
# rounds less often); which of them meets the worst place is chance.
ROUNDING_RATIO = RoundingRatio(rms=1.25, worst=5.0)

# One kernel against its float64 reference: no layers to add up, so only the rounding of one sum of up to 2000 products
# is left, some 1e-7 of the largest output.
KERNEL_TOLERANCES = {
    "float32": Tolerance(cosine=1 - 1e-11, relative=2e-6),
    "float16": Tolerance(cosine=1 - 1e-11, relative=2e-6),
    "bfloat16": Tolerance(cosine=1 - 1e-11, relative=2e-6),
    "int8": Tolerance(cosine=1 - 1e-11, relative=3e-6),  # converted exactly; the scale after the sum rounds once more
    "float8_e4m3fn": Tolerance(cosine=1 - 1e-11, relative=3e-6),  # converted exactly, like int8
}

# A recurrent state and what is read from it: each token rounds the state anew, and what remains of these errors decays
# as the state does. After some hundred tokens a state that decays slowly is off by some 1e-6 of its largest element.
STATE_TOLERANCES = {
    "float32": Tolerance(cosine=1 - 1e-10, relative=5e-6),
    # A number that is halfway between two of 16 bits is rounded up in one computation, and down in another.
    "float16": Tolerance(cosine=1 - 1e-7, relative=2**-11),
    "bfloat16": Tolerance(cosine=1 - 1e-5, relative=2**-8),
}
# States on a GPU. Chunks of bfloat16 are multiplied in two parts, of 17 bits (5.3e-6, emulated), and tensor cores
# truncate sums: a token that repeats is off by 7e-6 on an H200. A state of 16 bits is off by 7e-4 there, where two
# numbers that follow from each other were halfway between two of 16 bits.
GPU_STATE_TOLERANCES = {
    "float32": Tolerance(cosine=1 - 1e-10, relative=1e-5),
    "float16": Tolerance(cosine=1 - 1e-7, relative=2**-10),
    "bfloat16": Tolerance(cosine=1 - 1e-5, relative=2**-7),
}
# Results of operators whose states are rounded to 16 bits, and logits of models with such states, which normalise what
# they read from states.
NARROW_STATE_TOLERANCES = {
    "float16": Tolerance(cosine=0.99999, relative=5e-3),
    "bfloat16": Tolerance(cosine=0.999, relative=4e-2),
}

# GPU engines round every activation to the storage type: by 2^-12 (float16) or 2^-9 (bfloat16), some ten times in a
# row in a small model.
ROUNDED_TOLERANCES = {
    "float16": Tolerance(cosine=0.999995, relative=4e-3),
    "bfloat16": Tolerance(cosine=0.9998, relative=3e-2),
}

# Tolerances for mixtures of experts: their inputs or outputs, weighted by the router, are rounded once more, and the
# errors of a token's few experts hardly cancel out in their sum.
MIXTURE_TOLERANCES = {
    "float16": Tolerance(cosine=0.99999, relative=4e-3),
    "bfloat16": Tolerance(cosine=0.9995, relative=5e-2),
}


# Tolerances for networks that round activations to 8 bits between 16-bit kernels. Where a rounding to 16 bits changes
# the next rounding to 8 bits, an element is off by 2^-4 (E4M3), and small random models have few elements to average
# over: transformers whose layers' results are rounded to bfloat16 differs from itself by cosines down to 0.967, and by
# up to 0.49 of the largest of some thousand logits (60 prompts, tiny Llama). A lost scale gives a cosine of less than
# 0.9.
BYTE_TOLERANCES = {
    "float16": Tolerance(cosine=0.975, relative=0.5),
    "bfloat16": Tolerance(cosine=0.955, relative=0.65),
}


def is_close(actual: np.ndarray, expected: np.ndarray, tolerance: Tolerance) -> bool:
    """Whether both arrays agree; both must be finite."""
    cosine, error = _difference(actual, expected)
    return bool(cosine >= tolerance.cosine and error <= tolerance.relative)


def assert_close(
    actual: np.ndarray,
    expected: np.ndarray,
    dtype: str = "float32",
    what: str = "logits",
    table: Mapping[str, Tolerance] = TOLERANCES,
) -> None:
    """Fail unless both are finite and agree by cosine (blind to scale) and elementwise (blind to direction)."""
    tolerance = table[dtype]
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    assert np.isfinite(actual).all(), f"{what}: not finite"
    assert np.isfinite(expected).all(), f"{what}: the reference is not finite"
    cosine, error = _difference(actual, expected)
    assert cosine >= tolerance.cosine, f"{what}: cosine {cosine}, expected at least {tolerance.cosine}"
    assert error <= tolerance.relative, f"{what}: relative error {error}, expected at most {tolerance.relative}"


def _difference(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The cosine of both, and the largest error over the largest expected magnitude."""
    left, right = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    cosine = left @ right / (np.linalg.norm(left) * np.linalg.norm(right))
    return float(cosine), float(np.abs(left - right).max() / np.abs(right).max())
