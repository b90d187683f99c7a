"""Two numeric gates at once: cosine misses a lost scale, and an elementwise gate misses a small error everywhere."""

import torch

POISON = float("nan")
# dtype -> (relative norm of the error, elementwise tolerance in units of the RMS of the reference, or of its row)
TOLERANCES = {torch.bfloat16: (6e-3, 4e-2), torch.float16: (8e-4, 6e-3), torch.float32: (2e-3, 1.5e-2)}
# Hopper's tensor cores keep 14 bits of the sums in tiled products of E4M3; each step truncates instead of rounding.
TOLERANCES[torch.float8_e4m3fn] = (1e-2, 0.12)
# Weights that tiled products dequantize to bfloat16 are rounded twice: their scale, and the product with it.
TOLERANCES[torch.uint8] = (8e-3, 8e-2)


def assert_close(
    actual: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype | None = None, *, by_row: bool = False
) -> None:
    """Compare with the float64 ``reference``; ``dtype`` is the coarsest type that the computation rounds to.

    ``by_row``: elements are measured by the RMS of their row, where rows differ in size: attention over few keys gives
    larger values than over many, and larger errors with them.
    """
    norm_limit, element_limit = TOLERANCES[dtype or actual.dtype]
    actual = actual.double()
    assert actual.shape == reference.shape, (actual.shape, reference.shape)
    assert torch.isfinite(actual).all(), f"{(~torch.isfinite(actual)).sum().item()} non-finite or unwritten elements"
    difference = actual - reference
    relative = (difference.norm() / reference.norm()).item()
    cosine = torch.nn.functional.cosine_similarity(actual.flatten(), reference.flatten(), dim=0).item()
    squares = reference.square()
    rms = (squares.mean(-1, keepdim=True) if by_row else squares.mean()).sqrt()
    # The error of rounding the result is relative to each element, that of earlier roundings to the typical element.
    worst = (difference.abs() / (rms + reference.abs())).max().item()
    assert relative < norm_limit, f"relative error {relative:.2e} (limit {norm_limit:.0e}), cosine {cosine:.6f}"
    assert cosine > 1 - norm_limit, f"cosine {cosine:.6f}"
    assert worst < element_limit, f"worst element off by {worst:.2e} (limit {element_limit:.0e})"
