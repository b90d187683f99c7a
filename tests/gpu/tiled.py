"""Tiled products on tensors of torch, through the launches of their plugins."""

import torch

from tests.gpu.launches import H200, Prepared
from trtllm_lite.plugins.cuda.row_scales import E4M3
from trtllm_lite.plugins.cuda.tiles import TileConfig, Tiling
from trtllm_lite.plugins.gated_linear import cuda as gated_linear
from trtllm_lite.plugins.launch import Buffer, WeightBuffers, symbol
from trtllm_lite.plugins.linear import cuda as linear

_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32", torch.float8_e4m3fn: E4M3}


def _buffer(name: str, tensor: torch.Tensor) -> Buffer:
    return Buffer(name, _NAMES[tensor.dtype], tuple(tensor.shape))


def prepare(
    config: TileConfig,
    rows: int,
    y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Prepared:
    """The product for ``rows`` of the rows that x and y have room for; gated if ``weight`` is [2, out, in]."""
    given = {"y": y, "x": x, "weight": weight, "bias": bias, "residual": residual}
    tensors = {_buffer(name, tensor): tensor for name, tensor in given.items() if tensor is not None}
    buffers = {buffer.name: buffer for buffer in tensors}
    operands = (buffers["y"], buffers["x"], WeightBuffers(buffers["weight"]), symbol("rows"))
    tiling = Tiling(_NAMES[x.dtype], H200, config, x.shape[0])
    if weight.dim() == 3:
        launch = gated_linear.tiled(*operands, tiling, activation="silu")
    else:
        launch = linear.tiled(*operands, tiling, bias=buffers.get("bias"), residual=buffers.get("residual"))
    return Prepared(launch, tensors, {"rows": rows})
