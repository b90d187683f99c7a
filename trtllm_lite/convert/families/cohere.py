"""Command R (https://huggingface.co/CohereForAI/c4ai-command-r-v01; Cohere in transformers)."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.cohere import GGUF_KEYS, CohereParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = CohereParts.read(config, RopeDefaults(theta=500000.0))

    def layer(tensors: Tensors, _: int) -> Layer:
        return parts.layer(tensors, parts.attention(tensors))

    return parts.scaled_decoder(config, parts.layers(layer))


FAMILY = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    read_model=read_model,
    gguf=Gguf("command-r", keys=GGUF_KEYS),
)
