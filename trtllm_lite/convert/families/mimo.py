"""MiMo (arXiv 2505.07608): Qwen2, and a layer that predicts a further token (MTP) and drafts for the model.

The layer is described in ``modeling_mimo.py`` of the published checkpoints. To draft several tokens it is applied to
its own output, as in vLLM. (vLLM also replaces the embedding of a text's second token by zeros; the published code does
not, nor does this one.)
"""

from trtllm_lite.convert.families import qwen2
from trtllm_lite.convert.family import ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import qwen_windows
from trtllm_lite.convert.parts.predictor import PredictorNames, predicting_decoder
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

_NUM_LAYERS = "num_nextn_predict_layers"
_LAYER = "model.mtp_layers.{layer}."
_NAMES = PredictorNames(
    layer=_LAYER,
    embedding_norm=f"{_LAYER}token_layernorm",
    state_norm=f"{_LAYER}hidden_layernorm",
    projection=f"{_LAYER}input_proj",
    final_norm=f"{_LAYER}final_layernorm",
).by_role(TENSOR_NAMES)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the layers that predict further tokens are not part of the model's own network."""
    config.integer(_NUM_LAYERS, 0, minimum=0)
    config.expect("attention_bias", True)
    return qwen2.read_model(config)


def read_predictor(config: ConfigFields) -> Decoder:
    """Read the config of the drafting layer, which is that of the model."""
    found = config.take(_NUM_LAYERS) or 0
    if found != 1:
        config.problem(_NUM_LAYERS, f"expected 1, for one layer that predicts a further token (MTP), found {found}")
    config.expect("attention_bias", True)
    parts = LlamaParts.read(config, _NAMES)
    if any(qwen_windows(config, parts.sizes.num_hidden_layers)):
        config.problem("use_sliding_window", "expected false in a model whose MTP layer drafts, found true")

    def layer(tensors: Tensors) -> tuple[Attention, Block]:
        attention = parts.attention(parts.projections(tensors, qkv_bias=True))
        return attention, parts.gated_mlp(tensors, parts.activation)

    return predicting_decoder(config, parts, layer, state_first=True)


FAMILY = Family(
    name="mimo",
    architectures=("MiMoForCausalLM",),
    read_model=read_model,
    ignored_tensors=(*ROTARY_BUFFERS, r"model\.mtp_layers\..*"),
    predictor=Family(
        name="mimo_mtp",
        architectures=("MiMoForCausalLM",),
        read_model=read_predictor,
        tensor_names=_NAMES,
        ignored_tensors=(*ROTARY_BUFFERS, r"model\.layers\..*", r"model\.norm\.weight"),
        drafts=True,
    ),
)
