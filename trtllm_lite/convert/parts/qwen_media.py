"""What sources of Qwen's multimodal models say besides what their text models need."""

from typing import Any

# Keys of configs beside the text model's.
MEDIA_KEYS = (
    *("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    "vision_token_id",
)
# Keys of GGUF files: the elements of heads that rotate by each of three positions, which are equal for a text's tokens,
# and the first layers to which features of images are added.
_OF_MEDIA = ("rope.dimension_sections", "n_deepstack_layers")
MEDIA_GGUF_KEYS = {key: key for key in _OF_MEDIA}


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Remove what GGUF files say of images from ``config``; no entry is missing."""
    for key in _OF_MEDIA:
        config.pop(key, None)
    return {}
