"""Defines the result of reading a config: a decoder, an encoder, or the vision tower beside a decoder."""

from collections.abc import Mapping

import onnx_ir as ir

from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.context import NO_ROUNDING, CacheRounding
from trtllm_lite.network.decoder import Decoder, build_network
from trtllm_lite.network.encoder import Encoder, build_encoder
from trtllm_lite.network.graph import Network
from trtllm_lite.network.vision import VisionTower, build_tower

Model = Decoder | Encoder | VisionTower


def network_of(
    model: Model,
    dtype: ir.DataType,
    blocks: Mapping[str, Blocks] | None = None,
    cache: Mapping[int, CacheRounding] = NO_ROUNDING,
) -> Network:
    """The network of ``model``; the arguments are those of :func:`build_network`. Only decoders have a ``cache``."""
    if isinstance(model, Encoder):
        return build_encoder(model, dtype, blocks)
    if isinstance(model, VisionTower):
        return build_tower(model, dtype, blocks)
    return build_network(model, dtype, blocks, cache)
