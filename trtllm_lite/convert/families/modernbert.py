"""ModernBERT, encoders such as gte-modernbert-base, and classifiers (arXiv 2412.13663): RoPE, gated MLPs, windows.

Each block begins with a norm, but the first attention reads the norm of the embedding. The decoder is left out.
"""

from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_layer_types
from trtllm_lite.convert.fields.rope import read_ropes_by_layer_type
from trtllm_lite.convert.parts.classification import CLASSIFIER, DENSE, NORM, with_head
from trtllm_lite.convert.parts.encoder import read_encoder_sizes
from trtllm_lite.convert.parts.usual import layer_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.encoder import Encoder, EncoderEmbedding
from trtllm_lite.network.encoder_layers import EncoderAttention, PreNormLayer
from trtllm_lite.network.ends import Embedding
from trtllm_lite.network.mlp import GatedMlp

_LAYER = "model.layers.{layer}."
NAMES = {
    **{"embedding": "model.embeddings.tok_embeddings", "embedding_norm": "model.embeddings.norm"},
    **{"attention_norm": f"{_LAYER}attn_norm", "qkv_proj": f"{_LAYER}attn.Wqkv", "o_proj": f"{_LAYER}attn.Wo"},
    **{"mlp_norm": f"{_LAYER}mlp_norm", "gate_up_proj": f"{_LAYER}mlp.Wi", "down_proj": f"{_LAYER}mlp.Wo"},
    **{"final_norm": "model.final_norm", DENSE: "head.dense", NORM: "head.norm", CLASSIFIER: "classifier"},
}
_THETAS = {"full_attention": ("global_rope_theta", 160000.0), "sliding_attention": ("local_rope_theta", 10000.0)}
# Keys of training, of heads for other tasks, of kernels, and BERT's names for keys that have other names here.
_UNUSED = (
    *("tie_word_embeddings", "decoder_bias", "sparse_prediction", "sparse_pred_ignore_index", "embedding_dropout"),
    *("mlp_dropout", "initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile", "layer_norm_eps"),
    *("repad_logits_with_grad", "position_embedding_type"),
)


def read_model(config: ConfigFields) -> Encoder:
    """Read the config; two of every three layers have a window, unless the config says otherwise."""
    sizes = read_encoder_sizes(config)
    hidden, wide, count = sizes.hidden_size, sizes.intermediate_size, sizes.num_hidden_layers
    period = config.integer("global_attn_every_n_layers", 3)
    slides = read_layer_types(config, [number % period != 0 for number in range(count)])
    window = config.integer("local_attention", 128, minimum=2) // 2  # tokens on each side
    if config.take("rope_scaling") is not None:
        config.problem("rope_scaling", "is not supported here: expected rope_parameters of each kind of layer")
    ropes = read_ropes_by_layer_type(config, sizes.head_dim, sizes.max_position_embeddings, _THETAS)
    activation, function = (read_activation(config, f"{of}_activation", "gelu") for of in ("hidden", "classifier"))
    attention_bias, mlp_bias, bias = map(config.flag, ("attention_bias", "mlp_bias", "classifier_bias"))
    norm = layer_norm(config.number("norm_eps", 1e-5), config.flag("norm_bias"))
    config.expect("is_decoder", False)
    for key in _UNUSED:
        config.take(key)

    def layer(tensors: Tensors, number: int) -> PreNormLayer:
        query, key, value = tensors.linears("qkv_proj", 3, hidden, hidden, attention_bias)
        output = tensors.linear("o_proj", hidden, hidden, attention_bias)
        rope = ropes["sliding_attention" if slides[number] else "full_attention"]
        attention = EncoderAttention(query, key, value, output, sizes.heads, rope, window if slides[number] else 0)
        gate, up = tensors.linears("gate_up_proj", 2, wide, hidden, mlp_bias)
        mlp = GatedMlp(gate, up, tensors.linear("down_proj", hidden, wide, mlp_bias), activation)
        before = norm(tensors, "attention_norm", hidden) if number else None
        return PreNormLayer(attention, before, mlp, norm(tensors, "mlp_norm", hidden))

    tensors = Tensors(NAMES)
    layers = tuple(layer(tensors.of_layer(number), number) for number in range(count))
    words = Embedding(tensors.weight("embedding", sizes.vocab_size, hidden))
    embedding = EncoderEmbedding(words, norm(tensors, "embedding_norm", hidden))
    encoder = Encoder(sizes, embedding, layers, norm(tensors, "final_norm", hidden))
    config.expect("classifier_pooling", "cls", "mean")
    mean = config.take("classifier_pooling") == "mean"
    return with_head(encoder, config, tensors, function, norm(tensors, NORM, hidden), dense_bias=bias, takes_mean=mean)


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with ``norm_eps`` once, as new converters write it twice; a missing window becomes 0, an error."""
    return {
        **{"norm_eps": config.get("norm_eps", config.get("rms_norm_eps")), "rms_norm_eps": None},
        "local_attention": config.get("local_attention", 0),
        "rope_parameters": {"full_attention": config["rope_parameters"]},
    }


_GGUF_NAMES = {
    **{"token_embd_norm": "embedding_norm", "blk.{layer}.attn_qkv": "qkv_proj", "blk.{layer}.ffn_up": "gate_up_proj"}
}
_GGUF_KEYS = {
    **{"attention.layer_norm_epsilon": "norm_eps", "attention.causal": "is_decoder"},
    **{"attention.sliding_window": "local_attention", "hidden_activation": "hidden_activation"},
    **{"attention.sliding_window_pattern": "global_attn_every_n_layers", "rope.freq_base_swa": "local_rope_theta"},
}

FAMILY = Family(
    name="modernbert",
    architectures=("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"(model\.)?(head\.(dense|norm)\..*|decoder\.(weight|bias))", r"cls\.(norm\.)?(weight|bias)"),
    optional_prefix="model.",
    gguf=Gguf("modern-bert", roles=_GGUF_NAMES, keys=_GGUF_KEYS, config=_gguf_config),
)
