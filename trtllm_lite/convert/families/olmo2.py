"""OLMo 2 (arXiv 2501.00656): norms after the blocks, and over all query heads and all key heads."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.olmo import NAMES, OlmoParts
from trtllm_lite.network.decoder import Decoder


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = OlmoParts.read(config)
    rope = read_rope(config, parts.sizes.head_dim, parts.sizes.max_position_embeddings)
    return parts.decoder(config, parts.layers(lambda tensors, _: parts.layer(tensors, rope)))


# llama.cpp has one architecture for OLMo 2 and 3; the family olmo3 reads their files.
FAMILY = Family(name="olmo2", architectures=("Olmo2ForCausalLM",), read_model=read_model, tensor_names=NAMES)
