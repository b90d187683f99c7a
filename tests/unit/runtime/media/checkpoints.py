"""Directories of checkpoints that take images: their processors' settings, and what their configs say of the towers."""

import json
from pathlib import Path
from typing import Any

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}

# Settings of the processor as published, and the config, of each kind of checkpoint. Extents are smaller where
# that leaves the rules the same.
CHECKPOINTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2-vl": (
        {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 60_000, "patch_size": 14}
        | {"temporal_patch_size": 2, "merge_size": 2, "processor_class": "Qwen2VLProcessor", **CLIP},
        {"model_type": "qwen2_vl", "vision_config": {"patch_size": 14}},
    ),
    "qwen3-vl": (
        {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "temporal_patch_size": 2}
        | {"size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}, "merge_size": 2, **HALF},
        {"model_type": "qwen3_vl", "vision_config": {"patch_size": 16}},
    ),
    "siglip": (
        {"image_processor_type": "SiglipImageProcessor", "do_convert_rgb": None, "do_normalize": True, "resample": 3}
        | {"do_rescale": True, "do_resize": True, "rescale_factor": 1 / 255, "size": {"height": 224, "width": 224}}
        | HALF,
        {"model_type": "paligemma", "vision_config": {"patch_size": 14}},
    ),
    "clip": (
        {"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 112, "width": 112}, "do_resize": True}
        | {"size": {"shortest_edge": 112}, "resample": 3, "rescale_factor": 0.00392156862745098, **CLIP},
        {"model_type": "llava", "vision_feature_select_strategy": "default", "vision_config": {"patch_size": 14}},
    ),
    "clip-padded": (
        {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 57, "size": 28, "do_center_crop": True, **CLIP},
        {"model_type": "clip", "vision_config": {"patch_size": 14}},
    ),
    "llava1.5": (
        {"image_processor_type": "LlavaImageProcessor", "crop_size": {"height": 56, "width": 56}, "do_pad": None}
        | {"size": {"shortest_edge": 56}, **CLIP},
        {"model_type": "llava", "vision_feature_select_strategy": "default", "vision_config": {"patch_size": 14}},
    ),
    "llava1.5-padded": (
        {"image_processor_type": "LlavaImageProcessorFast", "crop_size": {"height": 98, "width": 84}, "do_pad": True}
        | {"size": {"shortest_edge": 112}, **CLIP},
        {"model_type": "llava", "vision_feature_select_strategy": "default", "vision_config": {"patch_size": 14}},
    ),
    "llavanext": (
        {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 56}, "do_center_crop": True}
        | {"crop_size": {"height": 56, "width": 56}, "aspect_ratio_setting": "anyres", **CLIP}
        | {"image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]},
        {"model_type": "llava_next", "vision_feature_select_strategy": "default"}
        | {"vision_config": {"patch_size": 14, "model_type": "clip_vision_model"}},
    ),
    "llavanext-siglip": (
        {"image_processor_type": "LlavaNextImageProcessor", "size": {"height": 48, "width": 48}, "do_pad": True}
        | {"crop_size": {"height": 48, "width": 48}, "image_grid_pinpoints": [[48, 96], [480, 48], [192, 144]], **HALF},
        {"model_type": "llava_next", "vision_feature_select_strategy": "full"}
        | {"vision_config": {"patch_size": 16, "model_type": "siglip_vision_model"}},
    ),
    "gemma3": (
        {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": None, "image_seq_length": 256}
        | {"resample": 2, "size": {"height": 224, "width": 224}, "pan_and_scan_min_crop_size": None, **HALF},
        {"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {"patch_size": 14}},
    ),
    "gemma3-cut": (
        {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 64}
        | {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
        | {"size": {"height": 112, "width": 112}, **HALF},
        {"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {"patch_size": 14}},
    ),
    "pixtral": (
        {"image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 16, "width": 16}, "resample": 3}
        | {"size": {"longest_edge": 256}, "do_convert_rgb": True, "processor_class": "PixtralProcessor", **CLIP},
        {"model_type": "llava", "vision_config": {"patch_size": 16, "model_type": "pixtral"}},
    ),
    "mistral3": (
        {"image_processor_type": "PixtralImageProcessorFast", "patch_size": {"height": 14, "width": 14}}
        | {"size": {"longest_edge": 308}, "data_format": "channels_first", "crop_size": None, **CLIP},
        {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14}},
    ),
    "internvl": (
        {"image_processor_type": "GotOcr2ImageProcessorFast", "crop_to_patches": False, "max_patches": 12}
        | {"min_patches": 1, "size": {"height": 56, "width": 56}, "image_mean": [0.485, 0.456, 0.406]}
        | {"image_std": [0.229, 0.224, 0.225], "resample": 3},
        {"model_type": "internvl", "image_seq_length": 4, "vision_config": {"patch_size": [14, 14]}},
    ),
    "got-ocr2": (
        {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 128, "width": 128}, **CLIP},
        {"model_type": "got_ocr2", "image_seq_length": 16, "vision_config": {"patch_size": 16}},
    ),
    "smolvlm": (
        {"image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": True, "do_pad": True, "resample": 1}
        | {"max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 256}, **HALF},
        {"model_type": "smolvlm", "scale_factor": 2, "vision_config": {"patch_size": 16, "image_size": 64}},
    ),
    "idefics3": (
        {"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": False, "size": {"longest_edge": 145}}
        | {"max_image_size": {"longest_edge": 42}, **HALF},
        {"model_type": "idefics3", "scale_factor": 3, "vision_config": {"patch_size": 14, "image_size": 42}},
    ),
    "siglip2": (
        {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 256, "patch_size": 16, "resample": 2}
        | HALF,
        {"model_type": "siglip2", "vision_config": {"patch_size": 16}},
    ),
    "llava-onevision": (
        {"image_processor_type": "LlavaOnevisionImageProcessor", "do_pad": True, "size": {"height": 56, "width": 56}}
        | {"image_grid_pinpoints": [[56 * i, 56 * j] for i in range(1, 7) for j in range(1, 7)], **HALF},
        {"model_type": "llava_onevision", "vision_feature_select_strategy": "full"}
        | {"vision_aspect_ratio": "anyres_max_9", "vision_config": {"patch_size": 14}},
    ),
}


def write_checkpoint(directory: Path, name: str, **changes: Any) -> Path:
    """Write the files of a checkpoint; ``changes`` replace settings of its processor."""
    settings, config = CHECKPOINTS[name]
    (directory / "preprocessor_config.json").write_text(json.dumps(settings | changes))
    (directory / "config.json").write_text(json.dumps(config))
    return directory
