"""Images as the PIL back ends of transformers process them, in the order of rows in which towers take patches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.unit.runtime.media.checkpoints import CHECKPOINTS


class Reference(NamedTuple):
    """An image in transformers: float32 ``rows`` of patches, the extents of the ``grids``, and ``num_tokens``."""

    rows: np.ndarray
    grids: list[tuple[int, int]]
    num_tokens: int
    parts: tuple[int, int] | None = None  # None where transformers does not say it


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


def got_ocr2(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    if config["model_type"] == "internvl":  # as its processor calls the image processor
        values = values | {"crop_to_patches": True}
    found = GotOcr2ImageProcessorPil(**values)(image, return_tensors="np")
    assert len(found["pixel_values"]) == found["num_patches"][0]
    return _tiles(found, config)._replace(num_tokens=config["image_seq_length"] * found["num_patches"][0])


def smolvlm(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    return _idefics(SmolVLMImageProcessorPil(**values), config, image)


def idefics3(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    return _idefics(Idefics3ImageProcessorPil(**values), config, image)


def _idefics(processor: Any, config: dict[str, Any], image: Any) -> Reference:
    found = processor(image, return_tensors="np", return_row_col_info=True)
    assert found["pixel_attention_mask"].all()  # an image that is alone has no margins
    tiles = _tiles({"pixel_values": found["pixel_values"][0]}, config)
    vision = config["vision_config"]
    tile_size = processor.max_image_size["longest_edge"]
    image_seq_len = int(((tile_size // vision["patch_size"]) ** 2) / (config["scale_factor"] ** 2))
    layout = (found["rows"][0][0], found["cols"][0][0])
    assert len(tiles.grids) == layout[0] * layout[1] + 1
    return tiles._replace(num_tokens=image_seq_len * len(tiles.grids), parts=layout)


def siglip2(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    found = Siglip2ImageProcessorPil(**values)(image, return_tensors="np")
    grid = tuple(found["spatial_shapes"][0])
    num_patches = found["pixel_attention_mask"][0].sum()
    assert not found["pixel_values"][0][num_patches:].any()
    del config
    return Reference(found["pixel_values"][0][:num_patches], [grid], num_patches)


def llava(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    return _tiles(LlavaImageProcessorPil(**values)(image, return_tensors="np"), config)


def llava_next(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    processor = LlavaNextImageProcessorPil(**values)
    found = processor(image, return_tensors="np")
    tiles = _tiles({"pixel_values": found["pixel_values"][0]}, config)
    counter = object.__new__(LlavaNextProcessor)  # without a tokenizer, which counting does not need
    counter.image_processor, counter.image_token = processor, "x"
    counter.patch_size = config["vision_config"]["patch_size"]
    counter.vision_feature_select_strategy = config["vision_feature_select_strategy"]
    counter.num_additional_image_tokens = int(config["vision_config"]["model_type"] == "clip_vision_model")
    return tiles._replace(num_tokens=len(counter.replace_image_token(found, 0)))


def llava_onevision(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    processor = LlavaOnevisionImageProcessorPil(**values)
    found = processor(image, return_tensors="np")
    tiles = _tiles({"pixel_values": found["pixel_values"][0]}, config)
    counter = object.__new__(LlavaOnevisionProcessor)  # without a tokenizer, which counting does not need
    counter.image_processor, counter.num_image_tokens = processor, tiles.grids[0][0] * tiles.grids[0][1]
    counter.vision_aspect_ratio = config["vision_aspect_ratio"]
    side = values["size"]["height"]
    num_tokens = counter._get_number_of_features(image.height, image.width, side, side)
    return tiles._replace(num_tokens=num_tokens)


def llava_onevision_among_others(values: dict[str, Any], config: dict[str, Any], image: Any) -> Reference:
    """Before another image of the same prompt."""
    processor = LlavaOnevisionImageProcessorPil(**values)
    found = processor([[image, np.zeros((200, 400, 3), np.uint8)]], return_tensors="np")
    tiles = _tiles({"pixel_values": found["pixel_values"][0]}, config)
    counter = object.__new__(LlavaOnevisionProcessor)
    counter.image_token, counter.num_image_tokens = "x", tiles.num_tokens
    counter.vision_feature_select_strategy = config["vision_feature_select_strategy"]
    return tiles._replace(num_tokens=len(counter.replace_image_token(found, 0)))


_MAKERS = {
    **{"clip": clip, "gemma3": gemma3, "siglip": siglip, "siglip2": siglip2, "qwen2": qwen2_vl, "qwen3": qwen2_vl},
    **{"pixtral": pixtral, "mistral3": pixtral, "internvl": got_ocr2, "got": got_ocr2, "llava": llava_onevision},
    **{"smolvlm": smolvlm, "idefics3": idefics3, "llava1.5": llava, "llavanext": llava_next},
}


def reference(name: str, image: Any, changes: Mapping[str, Any], is_alone: bool = True) -> Reference:
    """A PIL image as the processor of a checkpoint of CHECKPOINTS processes it, whose settings ``changes`` replace."""
    settings, config = CHECKPOINTS[name]
    make = _MAKERS[name.split("-")[0]] if is_alone else llava_onevision_among_others
    kept = ("image_processor_type", "feature_extractor_type", "processor_class", "image_seq_length")
    values = {key: value for key, value in (settings | changes).items() if key not in kept}
    return make(values | {"do_convert_rgb": True}, config, image)


def saved_settings(name: str) -> dict[str, Any]:
    """The settings of a checkpoint of CHECKPOINTS as transformers saves them."""
    settings, _ = CHECKPOINTS[name]
    kind = settings.get("image_processor_type", "CLIPImageProcessor").removesuffix("Fast")
    return globals()[f"{kind}Pil"](**settings).to_dict()


def _tiles(found: Any, config: dict[str, Any]) -> Reference:
    """Tiles as the convolution of a tower takes them; torch's unfold has the same order as its weights."""
    pixels, side = np.stack(found["pixel_values"]), config["vision_config"]["patch_size"]
    side = side[0] if isinstance(side, list) else side
    assert pixels.dtype == np.float32
    columns = torch.nn.functional.unfold(torch.from_numpy(np.ascontiguousarray(pixels)), side, stride=side)
    rows = columns.transpose(1, 2).reshape(-1, 3 * side * side).numpy()
    grid = (pixels.shape[2] // side, pixels.shape[3] // side)
    # LLaVA leaves out the first of CLIP's features, which is of no patch.
    return Reference(rows, [grid] * len(pixels), grid[0] * grid[1])
