"""Tensors of torch as the buffers of a launch."""

from collections.abc import Mapping

import torch

from tests.gpu.device import GPU, Machine
from tests.gpu.launches import Prepared
from trtllm_lite.plugins.cuda.row_scales import E4M3
from trtllm_lite.plugins.launch import Buffer, Launch

NAMES = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
    torch.float8_e4m3fn: E4M3,
    torch.int8: "int8",
    torch.int32: "int32",
    torch.int64: "int64",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Memory:
    """Tensors that stand for the buffers of one launch."""

    def __init__(self, tensors: Mapping[Buffer, torch.Tensor] | None = None) -> None:
        self.tensors = dict(tensors or {})

    def __call__(self, name: str, tensor: torch.Tensor) -> Buffer:
        """A buffer that stands for ``tensor``."""
        buffer = Buffer(name, NAMES[tensor.dtype], tuple(tensor.shape))
        self.tensors[buffer] = tensor
        return buffer

    def optional(self, name: str, tensor: torch.Tensor | None) -> Buffer | None:
        """A buffer that stands for ``tensor``, or None without one."""
        return None if tensor is None else self(name, tensor)

    def run(self, launch: Launch, rows: int, machine: Machine = GPU) -> None:
        """Launch with these tensors for the symbol ``rows``."""
        Prepared(launch, self.tensors, {"rows": rows}, machine)()
