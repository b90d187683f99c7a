"""Gemma 3n, text only: layers between four residual streams, with inputs of their own; the last layers share keys."""

from trtllm_lite.convert.family import Family, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.gemma import NAMES as GEMMA_NAMES
from trtllm_lite.convert.parts.gemma3n import Gemma3nParts
from trtllm_lite.convert.parts.gemma3n_gguf import GGUF
from trtllm_lite.convert.parts.gemma4 import INPUT_NAMES, UNUSED_TENSORS
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Head

NAMES = {
    **GEMMA_NAMES,
    **INPUT_NAMES,
    "router": "model.layers.{layer}.altup.modality_router",
    "router_norm": "model.layers.{layer}.altup.router_norm",
    "prediction": "model.layers.{layer}.altup.prediction_coefs",
    "correction": "model.layers.{layer}.altup.correction_coefs",
    "correct_scale": "model.layers.{layer}.altup.correct_output_scale",
    "laurel_down": "model.layers.{layer}.laurel.linear_left",
    "laurel_up": "model.layers.{layer}.laurel.linear_right",
    "laurel_norm": "model.layers.{layer}.laurel.post_laurel_norm",
    "stream_projection": "model.altup_projections.{expert}",
    "stream_output": "model.altup_unembed_projections.{expert}",
}
# Keys beside the text model's.
OTHER_KEYS = (
    *("vision_config", "audio_config", "boi_token_id", "eoi_token_id", "image_token_id", "boa_token_id"),
    *("eoa_token_id", "audio_token_id", "vision_soft_tokens_per_image", "audio_soft_tokens_per_image"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config."""
    parts = Gemma3nParts.read(config, NAMES)
    embedding, layers = parts.streams_embedding(config), parts.layers(parts.streams_layer)
    cap = config.nullable_number("final_logit_softcapping", 30.0) or 0.0
    head = Head(parts.head(config.flag("tie_word_embeddings", True)), softcap=cap)
    return Decoder(parts.sizes, embedding, layers, parts.streams_norm(), head)


FAMILY = Family(
    name="gemma3n",
    architectures=("Gemma3nForCausalLM",),
    multimodal=Multimodal(
        architectures=("Gemma3nForConditionalGeneration",),
        # Source: configuration_gemma3n.py of transformers, Gemma3nTextConfig
        defaults={
            **{"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35},
            **{"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 32768},
        },
        other_keys=OTHER_KEYS,
    ),
    model_type="gemma3n_text",
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*UNUSED_TENSORS, r"model\.layers\.\d+\.altup\.correct_output_scale"),
    gguf=GGUF,
)
