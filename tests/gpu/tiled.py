"""Tiled products on tensors of torch, by their plugins' launches."""

import torch

from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear


def prepare(
    config: TileConfig,
    rows: int,
    y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Prepared:
    """Prepare a product of ``rows`` rows in the buffers x and y; it is gated if ``weight`` is [2, out, in]."""
    memory = Memory()
    operands = (memory("y", y), memory("x", x), WeightBuffers(memory("weight", weight)), symbol("rows"))
    tiling = Tiling(NAMES[x.dtype], H200, config, x.shape[0])
    if weight.dim() == 3:
        launch = gated_linear.tiled(*operands, tiling, activation="silu")
    else:
        more = {"bias": memory.optional("bias", bias), "residual": memory.optional("residual", residual)}
        launch = linear.tiled(*operands, tiling, **more)
    return Prepared(launch, memory.tensors, {"rows": rows})
