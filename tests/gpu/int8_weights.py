"""Random int8 weights as kernels read them, and what they mean."""

from dataclasses import dataclass

import torch

from trtllm_lite.plugins.packing import pack


@dataclass(frozen=True)
class Int8Weight:
    """``stored`` int8 [..., out, in] in the layout mma_k16, ``scale`` float32 [..., out], ``meant`` float64."""

    stored: torch.Tensor
    scale: torch.Tensor
    meant: torch.Tensor


def random_int8(*shape: int, device: str) -> Int8Weight:
    """Values of every size, scales so that the elements that are meant are about 0.02."""
    values = torch.randint(-127, 128, shape, dtype=torch.int8)
    scale = (0.5 + torch.rand(shape[:-1])) * 0.02 / 73
    stored = torch.from_numpy(pack(values.numpy(), "mma_k16")).to(device)
    return Int8Weight(stored, scale.to(device), (values.double() * scale.double()[..., None]).to(device))
