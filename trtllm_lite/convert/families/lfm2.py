"""LFM2 and LFM2.5, such as LFM2-1.2B: short convolutions with gates in most layers, attention in the others."""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.short_convolution import SHORT_CONV_NAMES, ShortConvParts, short_conv_gguf
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the inner features of MLPs come from ``intermediate_size`` and three keys ``block_…``."""
    of_convolutions = ShortConvParts.read(config, SHORT_CONV_NAMES)
    parts = of_convolutions.parts
    wide = _inner_features(config, parts.sizes.intermediate_size)
    parts = replace(parts, sizes=replace(parts.sizes, intermediate_size=wide))

    def layer(tensors: Tensors, number: int) -> Layer:
        return of_convolutions.layer(tensors, number, parts.gated_mlp(tensors, parts.activation))

    return replace(of_convolutions, parts=parts).decoder(config, parts.layers(layer))


def _inner_features(config: ConfigFields, given: int) -> int:
    """The inner features: two thirds of the ``given``, times a factor, and up to a multiple; or ``given`` itself."""
    factor, unit = config.nullable_number("block_ffn_dim_multiplier", 1.0), config.integer("block_multiple_of", 256)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return given
    adjusted = int(2 * given / 3)
    if factor is not None:
        adjusted = -(-int(factor * adjusted) // unit) * unit
    if not 1 <= adjusted < 1 << 30:
        config.problem("block_ffn_dim_multiplier", f"expected from 1 to 2^30 inner features, found {adjusted}")
        return given
    return adjusted


FAMILY = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    read_model=read_model,
    tensor_names=SHORT_CONV_NAMES,
    gguf=short_conv_gguf("lfm2"),
)
