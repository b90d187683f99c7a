"""Idefics 3 and SmolVLM (arXiv 2408.12637, 2504.05299): SigLIP, and a matrix that makes a row of each square."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.siglip import SiglipParts, siglip_names
from trtllm_lite.convert.tower import Tower
from trtllm_lite.network.vision import Projector, VisionTower

NAMES = {**siglip_names("vision_model."), "projection": "connector.modality_projection.proj"}


def read_tower(config: ConfigFields) -> VisionTower:
    """Read the config; squares have ``scale_factor`` patches a side."""
    parts = SiglipParts.read(config, NAMES)
    square = config.integer("scale_factor", 2)
    if parts.side % square:
        config.problem("scale_factor", f"expected a divisor of {parts.side}, the patches of a side, found {square}")
        square = 1
    config.take("size")  # of the processor, in some published configs
    hidden = parts.sizes.hidden_size
    output = parts.tensors.linear("projection", parts.text_size(config), square**2 * hidden)
    return VisionTower(
        sizes=parts.sizes,
        embedding=parts.embedding(config, square),
        layers=parts.tower_layers(),
        projector=Projector(output),
        final_norm=parts.norm(parts.tensors, "final_norm", hidden),
    )


TOWER = Tower(
    Family(name="idefics3_vision", architectures=(), read_model=read_tower, tensor_names=NAMES),
    beside=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    keys=("scale_factor",),
)
