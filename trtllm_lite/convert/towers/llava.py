"""LLaVA 1.5 (arXiv 2310.03744): CLIP without its last layers, and an MLP that makes a decoder's row of each patch."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation
from trtllm_lite.convert.parts.siglip import CLIP, SiglipParts, clip_names
from trtllm_lite.convert.tower import Tower
from trtllm_lite.network.vision import Projector, VisionTower

_PROJECTOR = "multi_modal_projector"
NAMES = {**clip_names("vision_tower."), "inner": f"{_PROJECTOR}.linear_1", "output": f"{_PROJECTOR}.linear_2"}


def read_tower(config: ConfigFields) -> VisionTower:
    """Read the config; ``vision_feature_layer`` counts layers from the last, which is -1."""
    config.expect("model_type", "clip_vision_model")
    parts = SiglipParts.read(config, NAMES, CLIP)
    layers = parts.sizes.num_hidden_layers
    from_last = -config.integer("vision_feature_layer", -2, minimum=-layers, maximum=-1)
    config.expect("vision_feature_select_strategy", "default", "full")
    for key in ("projection_dim", "initializer_factor"):  # of CLIP's own head, which is left out, and of training
        config.take(key)
    bias, size = config.flag("multimodal_projector_bias", True), parts.text_size(config)
    hidden = parts.sizes.hidden_size
    activation = read_activation(config, "projector_hidden_act", "gelu")
    return VisionTower(
        sizes=parts.sizes,
        embedding=parts.embedding_behind_class(config),
        layers=parts.tower_layers(layers - from_last + 1),
        projector=Projector(
            parts.tensors.linear("output", size, size, bias),
            parts.tensors.linear("inner", size, hidden, bias),
            activation,
        ),
        class_tokens=1,
        first_norm=parts.norm(parts.tensors, "first_norm", hidden),
    )


TOWER = Tower(
    Family(
        name="llava_vision",
        architectures=(),
        read_model=read_tower,
        tensor_names=NAMES,
        # Layers behind the one whose output is taken, and the norm behind the last.
        ignored_tensors=(r"vision_tower\.(post_layernorm|encoder\.layers\.\d+)\..*",),
    ),
    beside=("LlavaForConditionalGeneration",),
    keys=(
        *("vision_feature_layer", "vision_feature_select_strategy", "multimodal_projector_bias"),
        "projector_hidden_act",
    ),
)
