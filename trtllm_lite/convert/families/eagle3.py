"""Heads that draft from the features of a model (EAGLE-3, arXiv 2503.01840), stored as vLLM and SGLang do.

A checkpoint has one layer, ``midlayer``, an LM head over some tokens (listed in ``d2t``), and ``fc``, which belongs to
the network that computes the features (:mod:`trtllm_lite.convert.features`).
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.features import FC, LAYER_SETTINGS
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.usual import LlamaParts, Projections, rms_norm
from trtllm_lite.convert.sources.source_tensors import KNOWN_TOKENS, TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.drafting import FIRST_POSITION, FeatureLayer
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.known_tokens import HeadOfKnownTokens
from trtllm_lite.network.layers import Residual
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.weight_expression import SourceTensor

_LAYER = "model.layers.{layer}."
_NAMES = {role: name.replace(_LAYER, "midlayer.").removeprefix("model.") for role, name in TENSOR_NAMES.items()}
_NAMES["feature_norm"] = "midlayer.hidden_norm"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config of a head."""
    sizes = read_sizes(config)
    config.expect("num_hidden_layers", 1)
    config.expect("attention_bias", False)
    config.expect("mlp_bias", False)
    config.expect("tie_word_embeddings", False)
    config.expect("target_hidden_size", sizes.hidden_size)
    config.take(LAYER_SETTINGS)  # read by the network that computes the features
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    parts = LlamaParts(sizes, Tensors(_NAMES), rms_norm(config), rope, read_activation(config))
    known = config.integer("draft_vocab_size", sizes.vocab_size, maximum=sizes.vocab_size)
    return Decoder(
        replace(sizes, num_hidden_layers=1),
        Embedding(parts.tensors.weight("embedding", sizes.vocab_size, sizes.hidden_size)),
        (_layer(parts, config.flag("norm_before_residual")),),
        parts.norm(parts.tensors, "final_norm", sizes.hidden_size),
        _head(parts.tensors, known, sizes.vocab_size, sizes.hidden_size),
        reads_features=True,
    )


def _layer(parts: LlamaParts, norm_before_residual: bool) -> FeatureLayer:
    sizes, tensors = parts.sizes, parts.tensors
    hidden, keys = sizes.hidden_size, sizes.num_key_value_heads * sizes.head_dim
    queries = sizes.num_attention_heads * sizes.head_dim
    projections = Projections(
        tensors.linear("q_proj", queries, 2 * hidden),
        tensors.linear("k_proj", keys, 2 * hidden),
        tensors.linear("v_proj", keys, 2 * hidden),
        tensors.linear("o_proj", hidden, queries),
    )
    return FeatureLayer(
        parts.norm(tensors, "attention_norm", hidden),
        parts.norm(tensors, "feature_norm", hidden),
        replace(parts.attention(projections), first_position=FIRST_POSITION),
        Residual(parts.norm(tensors, "mlp_norm", hidden), parts.gated_mlp(tensors, parts.activation)),
        norm_before_residual,
    )


def _head(tensors: Tensors, known: int, vocab_size: int, hidden: int) -> Head | HeadOfKnownTokens:
    """The LM head, expanded to the vocabulary of the model."""
    weight = tensors.weight("lm_head", known, hidden)
    if known == vocab_size:
        return Head(Linear(weight))
    return HeadOfKnownTokens(weight, SourceTensor(KNOWN_TOKENS, (known,)), vocab_size)


FAMILY = Family(
    name="eagle3",
    architectures=("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"),
    read_model=read_model,
    tensor_names=_NAMES,
    ignored_tensors=("t2d", FC),
    drafts=True,
)
