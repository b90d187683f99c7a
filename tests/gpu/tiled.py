"""Tiled products on tensors of torch, by their plugins' launches."""

import torch

from tests.gpu.launches import H200, Prepared
from tests.gpu.memory import NAMES, Memory
from trtllm_lite.plugins.cuda.row_scales import RowScales
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
    weight_scale: torch.Tensor | None = None,
) -> Prepared:
    """Prepare a product of ``rows`` rows in the buffers x and y; it is gated if ``weight`` is [2, out, in].

    8-bit weights have a ``weight_scale`` [..., out]; 8-bit x (and gated y) have the scale 1 in all rows.
    """
    memory = Memory()
    values, scales, y_scales = memory("weight", weight), None, None
    buffers = WeightBuffers(values)
    if weight_scale is not None:
        buffers = WeightBuffers(values, memory("weight_scale", weight_scale), rows=values.dtype)
        scales = RowScales(values.dtype, 1.0)
        y_scales = scales if y.dtype == x.dtype else None
    operands = (memory("y", y), memory("x", x), buffers, symbol("rows"))
    tiling = Tiling("bfloat16" if scales else NAMES[x.dtype], H200, config, x.shape[0], scales)
    if weight.dim() == 3:
        launch = gated_linear.tiled(*operands, tiling, activation="silu", y_scales=y_scales)
    else:
        more = {"bias": memory.optional("bias", bias), "residual": memory.optional("residual", residual)}
        launch = linear.tiled(*operands, tiling, **more)
    return Prepared(launch, memory.tensors, {"rows": rows})
