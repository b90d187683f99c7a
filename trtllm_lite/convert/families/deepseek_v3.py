"""DeepSeek-V3 and R1 (arXiv 2412.19437): V2 whose router scores by sigmoids, with corrections for the choice.

Also Kimi K2.5 and K2.6, text only. The last layers, which predict further tokens (MTP), are left out.
"""

from trtllm_lite.convert.family import GGUF_DRAFTING_TENSORS, ROTARY_BUFFERS, Family, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.deepseek_gguf import deepseek_gguf
from trtllm_lite.convert.parts.latent import LATENT_TENSOR_NAMES, LatentParts
from trtllm_lite.network.decoder import Decoder

# Keys of Kimi K2.5 and K2.6, beside the text model's.
_OTHER_KEYS = (
    *("vision_config", "media_placeholder_token_id", "ignore_index", "use_unified_vision_chunk", "video_placeholder"),
    *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("projection_hidden_size", "projection_layer_norm_eps"),
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``rope_interleave`` says whether RoPE rotates neighbouring elements."""
    parts = LatentParts.read_latent(config, rotates_pairs=config.flag("rope_interleave", True))
    experts = sigmoid_experts(config, parts, inner=2048, scale=2.5, groups=(8, 4))
    layers = deepseek_layers(config, parts, experts, parts.latent_attention, first_dense=3, num_shared=1)
    return parts.decoder(config, layers)


FAMILY = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    multimodal=Multimodal(
        # Published files have the first name, and those that transformers writes the second.
        architectures=("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
        # Source: configuration_deepseek_v3.py of transformers, DeepseekV3Config
        defaults={
            **{"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61},
            **{"num_attention_heads": 128, "n_routed_experts": 256, "num_experts_per_tok": 8},
            "max_position_embeddings": 4096,
        },
        other_keys=_OTHER_KEYS,
        model_types=("kimi_k2",),
    ),
    read_model=read_model,
    tensor_names=LATENT_TENSOR_NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, *GGUF_DRAFTING_TENSORS),
    gguf=deepseek_gguf(2, lambda _: "noaux_tc"),
    drafting_layers=NUM_DRAFTING_LAYERS,
)
