"""Images as the PIL back ends of transformers process them, in the order of rows in which towers take patches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from tests.unit.runtime.media.checkpoints import CHECKPOINTS


class Reference(NamedTuple):
    """An image in transformers: float32 ``rows`` of patches, the extents of the ``grids``, and ``num_tokens``."""

    rows: np.ndarray
    grids: list[tuple[int, int]]
    num_tokens: int


def qwen2_vl(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    found = Qwen2VLImageProcessorPil(**values)(image, return_tensors="np")
    (_, rows, columns), pixels = found["image_grid_thw"][0], found["pixel_values"]
    frames = pixels.reshape(len(pixels), 3, 2, -1)
    np.testing.assert_array_equal(frames[:, :, 0], frames[:, :, 1])  # a still image
    del config
    return Reference(frames[:, :, 0].reshape(len(pixels), -1), [(rows, columns)], rows * columns // 4)


def siglip(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    return _tiles(SiglipImageProcessorPil(**values)(image, return_tensors="np"), config)


def clip(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    return _tiles(CLIPImageProcessorPil(**values)(image, return_tensors="np"), config)


def gemma3(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    found = Gemma3ImageProcessorPil(**values)(image, return_tensors="np")
    tiles = _tiles(found, config)
    assert len(tiles.grids) == 1 + found["num_crops"][0]
    return tiles._replace(num_tokens=config["mm_tokens_per_image"] * len(tiles.grids))


def pixtral(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    """Among two images, so that what the second adds to the first is cut off again, as the tower does it."""
    merge = config.get("spatial_merge_size", 1)
    side = config["vision_config"]["patch_size"] * merge
    other = np.zeros((200, 400, 3), np.uint8)
    processor = PixtralImageProcessorPil(**values)
    found = processor([image, other], patch_size={"height": side, "width": side}, return_tensors="np")
    height, width = found["image_sizes"][0]
    tiles = _tiles({"pixel_values": found["pixel_values"][:1, :, :height, :width]}, config)
    return tiles._replace(num_tokens=len(tiles.rows) // merge**2)


def reference(name: str, image: Any, changes: Mapping[str, Any]) -> Reference:
    """A PIL image as the processor of a checkpoint of CHECKPOINTS processes it, whose settings ``changes`` replace."""
    settings, config = CHECKPOINTS[name]
    makers = {"qwen2": qwen2_vl, "qwen3": qwen2_vl, "mistral3": pixtral}
    make = makers.get(name.split("-")[0]) or globals()[name.split("-")[0]]
    kept = ("image_processor_type", "feature_extractor_type", "processor_class", "image_seq_length")
    values = {key: value for key, value in (settings | changes).items() if key not in kept}
    return make(values | {"do_convert_rgb": True}, config, image)


def _tiles(found: Any, config: dict[str, Any]) -> Reference:
    """Tiles as the convolution of a tower takes them; torch's unfold has the same order as its weights."""
    pixels, side = np.stack(found["pixel_values"]), config["vision_config"]["patch_size"]
    assert pixels.dtype == np.float32
    columns = torch.nn.functional.unfold(torch.from_numpy(np.ascontiguousarray(pixels)), side, stride=side)
    rows = columns.transpose(1, 2).reshape(-1, 3 * side * side).numpy()
    grid = (pixels.shape[2] // side, pixels.shape[3] // side)
    # LLaVA leaves out the first of CLIP's features, which is of no patch.
    return Reference(rows, [grid] * len(pixels), grid[0] * grid[1])
