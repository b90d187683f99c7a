"""Command R (https://huggingface.co/CohereForAI/c4ai-command-r-v01; Cohere in transformers).

The models have LayerNorm without bias, attention and MLP in parallel (arXiv 2204.02311), logits scaled by a constant,
and RoPE that rotates neighbouring elements: the rows of queries and keys are reordered to the usual form.
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer, ParallelLayer
from trtllm_lite.network.norms import LayerNorm

ROPE = RopeDefaults(theta=500000.0)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    sizes, activation = read_sizes(config), read_activation(config)
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, ROPE)
    epsilon, bias = config.number("layer_norm_eps", 1e-5), config.flag("attention_bias")
    config.expect("use_qk_norm", False)
    parts = UsualParts(
        sizes, Tensors(TENSOR_NAMES), lambda tensors, role, size: LayerNorm(tensors.weight(role, size), None, epsilon)
    )

    def layer(tensors: Tensors, _: int) -> Layer:
        projections = parts.projections(tensors, bias, bias).rotating_halves(sizes, rope)
        attention = Attention(*projections, sizes.heads, rope=rope)
        norm = parts.norm(tensors, "attention_norm", sizes.hidden_size)
        return ParallelLayer(norm, attention, parts.gated_mlp(tensors, activation))

    table = parts.tensors.weight("embedding", sizes.vocab_size, sizes.hidden_size)
    final_norm = parts.norm(parts.tensors, "final_norm", sizes.hidden_size)
    head = Head(parts.head(config.flag("tie_word_embeddings", True)), scale=config.number("logit_scale", 0.0625))
    return Decoder(sizes, Embedding(table), parts.layers(layer), final_norm, head)


FAMILY = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    read_model=read_model,
    gguf=Gguf("command-r", keys={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}),
)
