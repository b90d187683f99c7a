"""Numeric gates: two at once, because cosine misses a lost scale and an elementwise gate misses a small tilt."""

import torch

POISON = float("nan")
# dtype -> (relative norm of the error, elementwise tolerance in units of the reference's RMS)
TOLERANCES = {torch.bfloat16: (6e-3, 4e-2), torch.float16: (8e-4, 6e-3), torch.float32: (2e-3, 1.5e-2)}
# Tensor cores of Hopper keep 14 bits of the sums of tiled products of E4M3, cut and not rounded, step by step.
TOLERANCES[torch.float8_e4m3fn] = (1e-2, 0.12)
# Weights that tiled products widen to bfloat16 are rounded twice: their scale, and the product with it.
TOLERANCES[torch.uint8] = (8e-3, 8e-2)


def assert_close(actual: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    """``reference`` is float64; ``dtype`` is the coarsest type that the computation rounds to (default: actual's)."""
    norm_limit, element_limit = TOLERANCES[dtype or actual.dtype]
    actual = actual.double()
    assert actual.shape == reference.shape, (actual.shape, reference.shape)
    assert torch.isfinite(actual).all(), f"{(~torch.isfinite(actual)).sum().item()} non-finite or unwritten elements"
    difference = actual - reference
    relative = (difference.norm() / reference.norm()).item()
    cosine = torch.nn.functional.cosine_similarity(actual.flatten(), reference.flatten(), dim=0).item()
    rms = reference.square().mean().sqrt()
    # Rounding the result itself is relative to each element, everything before it to the typical one.
    worst = (difference.abs() / (rms + reference.abs())).max().item()
    assert relative < norm_limit, f"relative error {relative:.2e} (limit {norm_limit:.0e}), cosine {cosine:.6f}"
    assert cosine > 1 - norm_limit, f"cosine {cosine:.6f}"
    assert worst < element_limit, f"worst element off by {worst:.2e} (limit {element_limit:.0e})"
